from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, RankByCount

keys = st.lists(st.one_of(st.none(), st.sampled_from("abcde")), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(keys, keys)
def test_it_equals_a_loop(train, new):
    first, second = (pd.DataFrame({"k": pd.Series(r, dtype=object)}) for r in (train, new))
    fs = FeatureSet([RankByCount("k", method=m) for m in ("min", "dense", "ordinal")]).fit(first)
    count = {k: train.count(k) for k in train if k is not None}
    own = sorted(count, key=lambda k: (-count[k], k))
    for frame, given_keys in ((first, train), (second, new)):
        made = fs.transform(frame)
        for i, k in enumerate(given_keys):
            expected = [0, 0, 0]
            if k in count:
                more = [n for n in count.values() if n > count[k]]
                expected = [1 + len(more), 1 + len(set(more)), 1 + own.index(k)]
            assert made.loc[i, ["countrank_k", "dense_countrank_k", "ordinal_countrank_k"]].tolist() == expected


def test_it_equals_pandas():
    frame = pd.DataFrame({"k": [5, 7, 7, 2**53 + 1, 2**53, 5, 7]})
    made = RankByCount("k").fit_transform(frame)["countrank_k"]
    counts = frame["k"].value_counts()
    assert made.tolist() == frame["k"].map(counts.rank(method="min", ascending=False)).astype(int).tolist()


def test_unlabeled_rows_count_where_asked():
    train, test = pd.DataFrame({"k": ["a", "b", "b"]}), pd.DataFrame({"k": ["a", "a", "c"]})
    both = RankByCount("k", scope="all")
    assert both.fit_transform(train, unlabeled=test)["countrank_k"].tolist() == [1, 2, 2]
    assert both.transform(test)["countrank_k"].tolist() == [1, 1, 3]


@pytest.mark.parametrize("options", [{"method": "max"}, {"scope": "test"}])
def test_options_that_cannot_be(options):
    with pytest.raises(FastrecError, match="RankByCount"):
        RankByCount("k", **options)
