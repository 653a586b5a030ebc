from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError, NotFittedError
from fastrec.features import Categorify, FeatureSet, Lag, category
from fastrec.features.base import Cells
from fastrec.table import Table
from tests.features.test_hash_encode import fnv

word = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "", "🎉"]))
column = st.lists(word, min_size=1, max_size=25)
listed = st.lists(st.one_of(st.none(), st.lists(word, max_size=4)), min_size=1, max_size=10)


def oracle(train, *, min_count=1, max_size=None, unseen=False, buckets=None):
    """What a value's code is, by a plain loop."""
    counts = Counter(v for v in train if v is not None)
    kept = sorted((v for v in counts if counts[v] >= min_count), key=lambda v: (-counts[v], v.encode()))
    kept = sorted(kept if max_size is None else kept[:max_size], key=str.encode)
    reserved = ["#na#"] + ["#unseen#"] * unseen + ["#rare#"] * (min_count > 1 or max_size is not None)
    if buckets is not None:
        reserved = ["#na#"] + [f"#hash{i + 1}#" for i in range(buckets)]

    def code(value):
        if value is None:
            return 0
        if value in kept:
            return len(reserved) + kept.index(value)
        if buckets is not None:
            return fnv(value, buckets)
        if value in counts:
            return reserved.index("#rare#") if "#rare#" in reserved else 0
        return reserved.index("#unseen#") if unseen else 0

    return code, [*reserved, *kept]


options = st.one_of(
    st.fixed_dictionaries(
        {"min_count": st.integers(0, 4), "max_size": st.one_of(st.none(), st.integers(0, 4)), "unseen": st.booleans()}
    ),
    st.fixed_dictionaries({"min_count": st.integers(1, 4), "buckets": st.integers(1, 5)}),
)


@settings(max_examples=80, deadline=None)
@given(column, column, options)
def test_codes_equal_a_plain_loop(train, new, how):
    code, classes = oracle(train, **how)
    feature = Categorify("k", **how)
    frames = [pa.table({"k": pa.array(v, pa.string())}) for v in (train, new)]
    assert feature.fit_transform(frames[0])["code_k"].to_pylist() == [code(v) for v in train]
    assert feature.transform(frames[1])["code_k"].to_pylist() == [code(v) for v in new]
    assert feature.vocabs["k"].classes == classes


@settings(max_examples=60, deadline=None)
@given(listed, listed, options)
def test_lists_equal_a_plain_loop(train, new, how):
    code, _ = oracle([v for row in train for v in row or ()], **how)
    feature = Categorify("k", **how)
    kind = pa.list_(pa.string())
    for rows, apply in ((train, feature.fit_transform), (new, feature.transform)):
        made = apply(pa.table({"k": pa.array(rows, kind)}))["code_k"].to_pylist()
        assert made == [None if row is None else [code(v) for v in row] for row in rows]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(word, word), min_size=1, max_size=20), options)
def test_a_shared_vocabulary_equals_a_plain_loop(rows, how):
    code, classes = oracle([v for pair in rows for v in pair], **how)
    frame = pa.table({n: pa.array([r[i] for r in rows], pa.string()) for i, n in enumerate("ab")})
    feature = Categorify(["a", "b"], shared="word", **how)
    made = feature.fit_transform(frame)
    for i, name in enumerate("ab"):
        assert made[f"code_{name}"].to_pylist() == [code(r[i]) for r in rows]
    assert {n: v.classes for n, v in feature.vocabs.items()} == {"word": classes}


def test_lists_and_plain_columns_share():
    frame = pd.DataFrame({"item": ["b", "z"], "seen": [["a", "b"], []]})
    feature = Categorify(["item", "seen"], shared=True, name="id")
    made = feature.fit_transform(frame)
    assert made["id_item"].tolist() == [2, 3]
    assert [list(v) for v in made["id_seen"]] == [[1, 2], []]
    assert list(feature.vocabs) == ["shared"]


def fastai_frames():
    rng = np.random.default_rng(0)
    size = pd.Categorical(rng.choice(["small", "mid", "large"], 60), ["small", "mid", "large", "giant"], ordered=True)
    yield pd.DataFrame({"k": rng.choice(["b", "a", "é", "🎉", None], 60)})
    yield pd.DataFrame({"k": rng.integers(-5, 5, 60)})
    yield pd.DataFrame({"k": rng.choice([0.5, -1.0, np.nan, 7.0], 60)})
    yield pd.DataFrame({"k": rng.choice([True, False], 60)})
    yield pd.DataFrame({"k": pd.to_datetime(rng.choice(["2024-01-02", "1969-01-01"], 60))})
    yield pd.DataFrame({"k": size})
    yield pd.DataFrame({"k": pd.Categorical(rng.choice(["y", "x"], 60), ["y", "x"])})


@pytest.mark.parametrize("frame", list(fastai_frames()), ids=lambda f: str(f["k"].dtype))
def test_codes_equal_tabular_pandas(frame):
    from fastai.tabular.core import Categorify as Fastai
    from fastai.tabular.core import TabularPandas

    to = TabularPandas(frame.copy(), procs=[Fastai], cat_names=["k"])
    feature = Categorify("k")
    assert feature.fit_transform(frame)["code_k"].tolist() == to.items["k"].tolist()
    assert len(feature.vocabs["k"]) == len(to.classes["k"])


def test_the_classes_of_nvtabulars_own_test():
    frame = pl.DataFrame({"k": [["A"], ["A", "E"], ["B", "C"], ["C"]]})
    feature = Categorify("k", min_count=2)
    assert feature.fit_transform(frame)["code_k"].to_list() == [[2], [2, 1], [1, 3], [3]]
    assert feature.vocabs["k"].values.to_pylist() == ["A", "C"]


def test_missing_values_in_several_partitions_code_right():
    parts = [["b", None], [None, None], ["a", "b", None], ["c"]]
    feature = Categorify("k", min_count=2)
    states = [feature.collect(Table.read(pa.table({"k": pa.array(p, pa.string())}))) for p in parts]
    merged = states[3]
    for state in states[:3]:
        merged = feature.merge(state, merged)
    feature.learn(merged)
    made = feature.transform(pd.DataFrame({"k": ["a", "b", None, "new"]}))["code_k"].tolist()
    assert made == [1, 2, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(word, st.integers(0, 2)), min_size=1, max_size=20), options)
def test_cells_left_out_are_as_if_never_seen(rows, how):
    frame = pa.table({"k": pa.array([r[0] for r in rows], pa.string()), "l": [[r[0], r[0]] for r in rows]})
    table = Table.read(frame.set_column(1, "l", frame["l"].cast(pa.list_(pa.string()))))
    cell = [r[1] for r in rows]
    feature = Categorify(["k", "l"], **how)
    state = feature.collect(table, Cells(torch.tensor(cell), 3))
    made = feature.compute_out_of_cell(table, state, Cells(torch.tensor(cell), 3), torch.eye(3, dtype=torch.bool))
    for repeats, name in ((1, "k"), (2, "l")):
        codes = [oracle([r[0] for r in rows for _ in range(repeats) if r[1] != c], **how)[0] for c in range(3)]
        expected = [codes[c](value) for value, c in rows]
        found = made[f"code_{name}"].to_arrow().to_pylist()
        assert found == (expected if name == "k" else [[code, code] for code in expected])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_partition_of_lists_and_one_without_a_value(order):
    parts = [pa.table({"k": [["a"], ["b", "a"]]}), pa.table({"k": pa.nulls(2)})]
    feature = Categorify("k")
    states = [feature.collect(Table.read(parts[i])) for i in order]
    feature.learn(feature.merge(*states))
    made = feature.transform(parts[1])["code_k"]
    assert (made.type, made.to_pylist()) == (pa.large_list(pa.int64()), [None, None])
    assert feature.transform(parts[0])["code_k"].to_pylist() == [[1], [2, 1]]


def test_options_by_column_and_selectors():
    frame = pd.DataFrame({"a": ["x", "x", "y"], "b": ["p", "q", "q"], "n": [1.0, 2.0, 3.0]})
    made = Categorify(category(), min_count={"b": 2}, max_size={"a": 1}).fit_transform(frame)
    assert list(made)[3:] == ["code_a", "code_b"]
    assert (made["code_a"].tolist(), made["code_b"].tolist()) == ([2, 2, 1], [1, 2, 2])


def test_a_column_of_lists_without_a_value_gives_missing_lists():
    feature = Categorify("k").fit(pa.table({"k": [["a"], ["b", "a"]]}))
    for blank in (pa.nulls(2), pa.nulls(0), pa.nulls(2, pa.list_(pa.string()))):
        made = feature.transform(pa.table({"k": blank}))["code_k"]
        assert made.type == pa.large_list(pa.int64())
        assert made.to_pylist() == [None] * len(blank)


def test_unlabeled_rows_give_codes_where_asked():
    train, test = pd.DataFrame({"k": ["a"]}), pd.DataFrame({"k": ["b", "a"]})
    fs = FeatureSet([Categorify("k"), Categorify("k", scope="all", name="all")]).fit(train, unlabeled=test)
    made = fs.transform(test)
    assert (made["code_k"].tolist(), made["all_k"].tolist()) == ([0, 1], [2, 1])
    assert fs.transductive == ["all_k"]


def test_types_that_differ_from_frame_to_frame():
    feature = Categorify("k").fit(pd.DataFrame({"k": [2**53 + 1, 2, 10]}))
    assert feature.transform(pd.DataFrame({"k": [10.0, None, 2.5]}))["code_k"].tolist() == [2, 0, 0]
    assert feature.transform(pd.DataFrame({"k": [2**53]}))["code_k"].tolist() == [0]
    with pytest.raises(FastrecError, match="Categorify"):
        feature.transform(pd.DataFrame({"k": ["2"]}))
    with pytest.raises(FastrecError, match="Categorify"):
        Categorify(["a", "b"], shared=True).fit(pd.DataFrame({"a": [1], "b": ["x"]}))


def test_what_was_not_fitted_has_no_vocabulary():
    with pytest.raises(NotFittedError, match="Categorify"):
        Categorify("k").vocabs  # noqa: B018


def test_codes_of_a_saved_generator(tmp_path):
    frame = pd.DataFrame({"k": pd.Categorical(["m", "s"], ["s", "m", "l"], ordered=True), "t": [["x"], ["y", "x"]]})
    feature = Categorify(["k", "t"], unseen=True).fit(frame)
    feature.save(tmp_path / "c")
    again = Categorify.load(tmp_path / "c")
    new = pd.DataFrame({"k": ["l", "s", "xl", None], "t": [["z"], None, [], ["y"]]})
    assert again.transform(new)["code_k"].tolist() == feature.transform(new)["code_k"].tolist() == [4, 2, 1, 0]
    assert again.vocabs["t"].classes == ["#na#", "#unseen#", "x", "y"]


def test_a_generators_missing_values_are_code_0():
    frame = pd.DataFrame({"u": [1, 1, 2], "item": ["a", "b", "c"]})
    made = Categorify(["item", Lag("item", by="u")], shared=True).fit_transform(frame)
    assert made[["code_item", "code_lag1_item__u"]].values.tolist() == [[1, 0], [2, 1], [3, 0]]


@pytest.mark.parametrize(
    "how",
    [
        {"min_count": -1},
        {"max_size": -1},
        {"min_count": {"other": 2}},
        {"min_count": {"k": 2}, "shared": True},
        {"buckets": 0},
        {"buckets": 2, "unseen": True},
        {"scope": "test"},
    ],
)
def test_what_cannot_be(how):
    with pytest.raises(FastrecError, match="Categorify"):
        Categorify("k", **how)
