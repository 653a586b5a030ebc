from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, TextSvd, Tokens
from fastrec.features import text as text_svd
from fastrec.features.base import Cells
from fastrec.table import Table

some = settings(max_examples=60, deadline=None)
text = st.one_of(st.none(), st.lists(st.sampled_from(["a", "B", "b", "cc", "é", "_1", "!"]), max_size=6).map(" ".join))
texts = st.lists(text, max_size=9)


def frame(values):
    return pa.table({"text": pa.array(values, pa.string())})


def vectors_of(made, dims, name="text"):
    return np.stack([made[f"svd{i}_{name}"].to_numpy() for i in range(dims)], 1).reshape(-1, dims)


def vocabulary_of(train, max_words, min_count):
    """The words to learn, by a loop: in how many rows each is."""
    rows = Counter(w for t in train if t is not None for w in set(re.findall(r"\w+", t.lower())))
    first = sorted((w for w in rows if rows[w] >= max(min_count, 1)), key=lambda w: (-rows[w], w))
    return sorted(first[:max_words])


def by_scikit_learn(train, new, *, max_words=100, min_count=1):
    """TF-IDF of training and of other texts, dense; a missing text has none."""
    words = vocabulary_of(train, max_words, min_count)
    if not words:
        return np.zeros((len(train), 0)), np.zeros((len(new), 0))
    counts = CountVectorizer(token_pattern=r"\w+", vocabulary=words)
    idf = TfidfTransformer().fit(counts.transform([t for t in train if t is not None]))
    found = []
    for values in (train, new):
        counted = counts.transform([t or "" for t in values]).astype(float) if values else None
        found.append(np.zeros((0, len(words))) if counted is None else idf.transform(counted.log1p()).toarray())
    return tuple(found)


@some
@given(texts, texts, st.integers(1, 7), st.integers(0, 3))
@example(["a b", "b", "cc b"], ["b b", None], 2, 2)
def test_inner_products_and_lengths_are_those_of_the_tf_idf(train, new, max_words, min_count):
    """With all components, inner products with training rows are whole, whatever the basis."""
    ours = TextSvd("text", 8, max_words=max_words, min_count=min_count).fit(frame(train))
    a, b = (vectors_of(ours.transform(frame(t)), 8) for t in (train, new))
    x, y = by_scikit_learn(train, new, max_words=max_words, min_count=min_count)
    np.testing.assert_allclose(a @ a.T, x @ x.T, atol=1e-9)
    np.testing.assert_allclose(b @ a.T, y @ x.T, atol=1e-9)
    sizes = np.zeros(8)
    if x.size:
        found = np.linalg.svd(x, compute_uv=False)[:8]
        sizes[: len(found)] = found
    np.testing.assert_allclose(np.linalg.norm(a, axis=0), sizes, atol=1e-6)


def many(n, seed=0, words=60):
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, words + 1)
    drawn = [rng.choice(words, rng.integers(0, 12), p=share / share.sum()) for _ in range(n)]
    return [" ".join(f"w{k}" for k in d) for d in drawn]


def test_it_is_scikit_learns_up_to_signs():
    train, new = many(400), many(90, seed=1)
    ours = TextSvd("text", 5, max_words=40, min_count=3).fit(frame(train))
    x, y = by_scikit_learn(train, new, max_words=40, min_count=3)
    peer = TruncatedSVD(5, algorithm="arpack", random_state=0).fit(x)
    signs = np.sign(peer.components_[np.arange(5), np.abs(peer.components_).argmax(1)])
    for made, tfidf in ((ours.transform(frame(train)), x), (ours.transform(frame(new)), y)):
        np.testing.assert_allclose(vectors_of(made, 5), peer.transform(tfidf) * signs, atol=1e-9)


def test_by_hand():
    # n = 3 rows with a text; df: red 2, shoe 1, hat 1. The hat is a direction by itself.
    train = ["red red shoe", "Red!", None, "hat"]
    ours = TextSvd("text", 3, min_count=1).fit(frame(train))
    red, rare = (math.log(4 / 3) + 1) * math.log(3), (math.log(4 / 2) + 1) * math.log(2)
    first = np.array([red, rare]) / math.hypot(red, rare)
    x = np.array([first, [1, 0]])  # rows: red, shoe
    made = vectors_of(ours.transform(frame([*train, "new", "", "hat new hat"])), 3)
    np.testing.assert_allclose(made[:2] @ made[:2].T, x @ x.T, atol=1e-12)
    np.testing.assert_allclose(made[3], [0, 1, 0], atol=1e-12)  # singular values: above 1, 1, below 1
    np.testing.assert_allclose(made[6], made[3], atol=1e-12)
    assert not made[[2, 4, 5]].any()
    assert (made[:2, 0] > 0).all()


@some
@given(texts, texts, texts)
def test_parts_learn_what_the_whole_does_to_the_bit(a, b, c):
    feature, parts = TextSvd("text", 3, min_count=1), [a, b, c]
    states = [feature.collect(Table.read(frame(p)), halves(p)) for p in parts]
    whole = feature.collect(Table.read(frame(a + b + c)), halves(a + b + c))
    one, two, three = states
    for merged in (
        feature.merge(feature.merge(one, two), three),
        feature.merge(one, feature.merge(two, three)),
        feature.merge(three, feature.merge(two, one)),
    ):
        assert merged["words"].columns[0].to_pylist() == whole["words"].columns[0].to_pylist()
        for name in ("count", "pairs", "times"):
            assert torch.equal(merged[name], whole[name]), name
        for keep in (None, torch.tensor([True, False])):
            made, expected = feature.finalize(merged, keep), feature.finalize(whole, keep)
            assert all(torch.equal(made[n], expected[n]) for n in expected)


def test_bags_of_hundreds_of_words_are_told_apart():
    values = many(500, words=900)
    feature = TextSvd("text")
    states = [feature.collect(Table.read(frame(values[i::3]))) for i in range(3)]
    whole = feature.collect(Table.read(frame(values)))
    merged = feature.merge(states[2], feature.merge(states[0], states[1]))
    assert len(whole["words"]) > 512
    assert all(torch.equal(merged[n], whole[n]) for n in ("count", "pairs", "times"))


def halves(values):
    return Cells(torch.tensor([len(v or "") % 2 for v in values], dtype=torch.int64), 2)


def test_dictionaries_with_texts_of_other_rows_change_nothing():
    train = ["a b", "c c", "a", None, "", "!"]
    whole = Table.read(frame([*train, "secret text", None]))
    part = whole.take(torch.arange(len(train)))
    feature = TextSvd("text", 2)
    expected, found = feature.collect(Table.read(frame(train))), feature.collect(part)
    assert found["words"].columns[0].to_pylist() == expected["words"].columns[0].to_pylist() == ["a", "b", "c"]
    assert torch.equal(found["count"], expected["count"])
    lists = Table.read(pa.table({"text": [["a", "b"], ["secret"]]})).take(torch.tensor([0]))
    assert feature.collect(lists)["words"].columns[0].to_pylist() == ["a", "b"]


def test_a_word_of_hidden_rows_alone_is_unknown():
    feature = TextSvd("text", 2, min_count=1)
    state = feature.collect(Table.read(frame(["x y", "secret x", "secret"])), Cells(torch.tensor([0, 1, 1]), 2))
    fit = feature.finalize(state, torch.tensor([True, False]))
    assert fit["place"].tolist() == [0, 0, 1, 2]  # unknown, secret, x, y
    assert fit["idf"].tolist() == [0, 1, 1]  # n = 1: ln(2 / 2) + 1
    np.testing.assert_allclose(fit["components"][1:, 0], [0.5**0.5] * 2)
    assert not fit["components"][:, 1].any()


def test_each_distinct_text_is_read_once(monkeypatch):
    seen = []

    class Spy(Tokens):
        def compute(self, table):
            seen.append(len(table))
            return super().compute(table)

    monkeypatch.setattr(text_svd, "Tokens", Spy)
    TextSvd("text", 2).fit(frame(["a b", "c"] * 500 + [None]))
    assert seen == [3]  # a missing one among them


def test_texts_lists_and_generators_of_lists():
    values = ["red Shoe", "shoe shoe", None, "", "#x y"]
    lists = [None if v is None else re.findall(r"\w+", v.lower()) for v in values]
    kinds = [
        (TextSvd("t", 2, min_count=1), pd.DataFrame({"t": values})),
        (TextSvd("t", 2, min_count=1), pd.DataFrame({"t": pd.Series(values, dtype="category")})),
        (TextSvd("t", 2, min_count=1), pd.DataFrame({"t": lists})),
        (TextSvd(Tokens("s", "words", name="t"), 2, min_count=1), pd.DataFrame({"s": values})),
    ]
    found = [f.fit_transform(df)[["svd0_t", "svd1_t"]].to_numpy() for f, df in kinds]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    numbers = pa.table({"t": pa.array([[2**53], [2**53 + 1], [None, 2**53]])})
    made = vectors_of(TextSvd("t", 2, min_count=1).fit_transform(numbers), 2, "t")
    np.testing.assert_allclose(made, [[1, 0], [0, 1], [1, 0]], atol=1e-12)
    tags = TextSvd("t", 1, pattern="hashtags", min_count=1).fit_transform(pd.DataFrame({"t": ["#a b", "b c", "#A"]}))
    assert tags["svd0_t"].tolist() == [1, 0, 1]


def test_saved_it_is_not_decomposed_again_and_can_learn_more(tmp_path, monkeypatch):
    made = []

    def spy(*args, inner=text_svd._components):
        made.append(args)
        return inner(*args)

    monkeypatch.setattr(text_svd, "_components", spy)
    train = many(80)
    fs = FeatureSet([TextSvd("text", 4)])
    fs.fit_transform(frame(train))
    assert len(made) == 1  # nor for the training rows' own values
    fs.save(tmp_path / "fs")
    again = FeatureSet.load(tmp_path / "fs")
    new = frame(many(20, seed=3))
    np.testing.assert_array_equal(vectors_of(again.transform(new), 4), vectors_of(fs.transform(new), 4))
    assert len(made) == 1
    step, more = again.features[0], many(50, seed=4)
    step.learn(step.merge(step.state_, step.collect(Table.read(frame(more)))))
    both = TextSvd("text", 4).fit(frame(train + more))
    np.testing.assert_array_equal(vectors_of(step.transform(new), 4), vectors_of(both.transform(new), 4))


def test_unlabeled_rows_count_where_asked():
    train, test = ["x", "y"], ["y z", "z"]
    one, both = (TextSvd("text", 3, scope=s).fit(frame(train), unlabeled=frame(test)) for s in ("train", "all"))
    assert not vectors_of(one.transform(frame(train)), 3).any()  # no word twice
    np.testing.assert_allclose(np.linalg.norm(vectors_of(both.transform(frame(["x", "y", "z"])), 3), axis=1), [0, 1, 1])


@pytest.mark.parametrize("options", [{"dims": 0}, {"max_words": 0}, {"scope": "x"}, {"pattern": "("}])
def test_bad_options_are_refused(options):
    with pytest.raises(FastrecError, match="TextSvd"):
        TextSvd("text", **options)


def test_what_is_no_text_is_named():
    for values in ([None, 2.5], [None, True], [None, pd.Timestamp("2024-01-01")]):
        with pytest.raises(FastrecError, match="TextSvd needs text") as caught:
            TextSvd("t").fit(pd.DataFrame({"t": values}))
        assert (caught.value.column, caught.value.row) == ("t", 1)
    with pytest.raises(FastrecError, match="TextSvd") as caught:
        TextSvd("t").fit(pa.table({"t": pa.array([None, [[1]]])}))
    assert (caught.value.column, caught.value.row) == ("t", 1)
