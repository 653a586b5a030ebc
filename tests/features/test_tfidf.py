from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from fastrec._core import limits
from fastrec.errors import FastrecError
from fastrec.features import FeatureSet, TfIdfSimilarity, Tokens
from fastrec.features.base import Cells
from fastrec.table import Table

some = settings(max_examples=40, deadline=None)
word = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "é"]))
words = st.one_of(st.none(), st.lists(word, max_size=7))
rows = st.lists(st.tuples(words, words), max_size=9)


def frame(pairs):
    kind = pa.list_(pa.string())
    return pa.table({"a": pa.array([a for a, _ in pairs], kind), "b": pa.array([b for _, b in pairs], kind)})


def known(row):
    return [w for w in row if w is not None]


def by_scikit_learn(train, new):
    """The peer's vectors and their cosines, for pairs of lists without None."""
    vectors = TfidfVectorizer(analyzer=lambda x: x, norm="l2")
    documents = [known(x) for pair in train for x in pair if x is not None]
    try:
        vectors.fit(documents)
    except ValueError:  # it refuses an empty vocabulary
        return [0.0] * len(new)
    a, b = (vectors.transform([known(pair[i]) for pair in new]) for i in (0, 1))
    return np.asarray(a.multiply(b).sum(1)).ravel().tolist()


@some
@given(rows, rows)
def test_it_is_scikit_learns(train, new):
    made = TfIdfSimilarity("a", "b").fit(frame(train)).transform(frame(new))["tfidf_a__b"]
    whole = [pair for pair in new if None not in pair]
    expected = iter(by_scikit_learn(train, whole) if whole else [])
    for value, pair in zip(made.to_numpy(), new, strict=True):
        if None in pair:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(next(expected), abs=1e-12)
            assert 0 <= value <= 1


@some
@given(rows, st.integers(1, 9))
def test_blocks_of_rows_change_nothing(pairs, size):
    feature = TfIdfSimilarity("a", "b").fit(frame(pairs))
    expected = feature.transform(frame(pairs))["tfidf_a__b"].to_numpy()
    before, limits.TFIDF_ELEMENTS = limits.TFIDF_ELEMENTS, size
    try:
        np.testing.assert_array_equal(feature.transform(frame(pairs))["tfidf_a__b"].to_numpy(), expected)
    finally:
        limits.TFIDF_ELEMENTS = before


@some
@given(rows, rows)
def test_parts_learn_what_the_whole_does(first, second):
    feature = TfIdfSimilarity("a", "b")
    parts = [feature.collect(Table.read(frame(p))) for p in (first, second)]
    whole = feature.collect(Table.read(frame(first + second)))
    for merged in (feature.merge(*parts), feature.merge(*parts[::-1])):
        assert merged["keys"].columns[0].to_pylist() == whole["keys"].columns[0].to_pylist()
        assert merged["count"].tolist() == whole["count"].tolist()
        assert merged["lists"].tolist() == whole["lists"].tolist()


def test_by_hand():
    # n = 4 lists; df: red 3, shoe 1, boot 1, hat 1
    train = [(["red", "shoe"], ["red", "boot"]), (["hat"], ["red"])]
    red, rare = math.log(5 / 4) + 1, math.log(5 / 2) + 1
    made = TfIdfSimilarity("a", "b").fit_transform(frame(train))["tfidf_a__b"].to_pylist()
    assert made == pytest.approx([red**2 / (red**2 + rare**2), 0.0])


def test_repeats_weigh_more_and_unseen_words_nothing():
    feature = TfIdfSimilarity("a", "b").fit(frame([(["x"], ["y"])]))
    made = feature.transform(
        frame([(["x", "x", "y"], ["x"]), (["x", "new"], ["x", "other"]), (["new"], ["new"]), ([], ["x"])])
    )
    assert made["tfidf_a__b"].to_pylist() == pytest.approx([2 / math.sqrt(5), 1.0, 0.0, 0.0])


def test_a_word_of_hidden_rows_alone_is_unseen():
    table = Table.read(frame([(["x"], ["x"]), (["secret"], ["x"])]))
    feature = TfIdfSimilarity("a", "b")
    state = feature.collect(table, Cells(torch.tensor([0, 1]), 2))
    square = feature.finalize(state, torch.tensor([True, False]))["square"].tolist()
    assert square == [0.0, 0.0, (math.log(3 / 3) + 1) ** 2]  # missing, secret, x


def test_texts_numbers_and_the_same_column_twice():
    texts = pd.DataFrame({"q": ["Red shoes", None], "t": ["red, red!", "x"]})
    like = TfIdfSimilarity(Tokens("q", "words"), Tokens("t", "words"), name="like").fit_transform(texts)["like"]
    assert like[0] == pytest.approx((math.log(4 / 3) + 1) / math.hypot(math.log(4 / 3) + 1, math.log(4 / 2) + 1))
    assert math.isnan(like[1])
    ids = pa.table({"a": pa.array([[2**53 + 1]]), "b": pa.array([[2**53, 2**53 + 1]])})
    assert TfIdfSimilarity("a", "b").fit_transform(ids)["tfidf_a__b"].to_pylist() == pytest.approx([0.5798], abs=1e-4)
    assert TfIdfSimilarity("a", "a").fit_transform(ids)["tfidf_a__a"].to_pylist() == [1.0]


def test_saved_and_loaded_and_unlabeled_rows(tmp_path):
    train, test = [(["x"], ["x", "y"])], [(["y"], ["y"])] * 3
    one, both = (TfIdfSimilarity("a", "b", scope=s).fit(frame(train), unlabeled=frame(test)) for s in ("train", "all"))
    expected = both.transform(frame(train))["tfidf_a__b"].to_pylist()
    assert expected == pytest.approx(by_scikit_learn(train + test, train))
    assert one.transform(frame(train))["tfidf_a__b"].to_pylist() == pytest.approx(by_scikit_learn(train, train))
    FeatureSet([both]).save(tmp_path / "fs")
    again = FeatureSet.load(tmp_path / "fs").transform(frame(train))
    assert again["tfidf_a__b"].to_pylist() == expected


def test_long_lists_of_one_word_stay_at_one():
    made = TfIdfSimilarity("a", "b").fit_transform(frame([(["a"] * 3001, ["a"] * 7)]))
    assert made["tfidf_a__b"].to_pylist() == [1.0]


def test_lists_that_cannot_be_compared_are_named():
    table = pa.table({"a": pa.array([["x"]]), "b": pa.array([[1]])})
    with pytest.raises(FastrecError, match="TfIdfSimilarity"):
        TfIdfSimilarity("a", "b").fit(table)
    nested = pa.table({"a": pa.array([["x"], ["x"]]), "b": pa.array([None, [[1]]])})
    with pytest.raises(FastrecError, match="TfIdfSimilarity") as caught:
        TfIdfSimilarity("a", "b").fit(nested)
    assert (caught.value.column, caught.value.row) == ("b", 1)
    with pytest.raises(FastrecError, match="'x'"):
        TfIdfSimilarity("a", "b", scope="x")
