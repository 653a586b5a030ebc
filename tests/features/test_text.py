from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer

from fastrec._core import limits
from fastrec._core.device import on_host, resolve_device
from fastrec.features import FeatureSet, TextSvd, TfIdfSimilarity, Tokens
from fastrec.features import text as text_svd
from fastrec.features.base import Cells
from fastrec.table import Table

ROUNDING = 0.0 if on_host(resolve_device()) else 1e-14  # a device adds up in any order
texts = st.lists(st.one_of(st.none(), st.text("#@ab_ É9🎉\x00.", max_size=9)), max_size=8)


def tokens(values, *args, **options):
    made = Tokens("x", *args, **options).fit_transform(pa.table({"x": pa.array(values, pa.string())}))
    return made.column(1).to_pylist()


def is_word(sign):
    return sign.isalnum() or sign == "_"


def marked(text, mark):
    """Words right after a mark that follows no word, by hand."""
    found, i = [], 0
    while i < len(text):
        before = text[i - 1] if i else " "
        if text[i] == mark and not is_word(before) and not (mark == "@" and before == "@"):
            end = i + 1
            while end < len(text) and is_word(text[end]):
                end += 1
            if end > i + 1:
                found.append(text[i + 1 : end])
                i = end
                continue
        i += 1
    return found


@given(texts)
def test_hashtags_mentions_and_words_are_those_found_by_hand(values):
    def expected(find):
        return [None if v is None else find(v) for v in values]

    assert tokens(values, lower=False) == expected(lambda v: marked(v, "#"))
    assert tokens(values, "mentions", lower=False) == expected(lambda v: marked(v, "@"))
    split = expected(lambda v: [w for w in re.split(r"[^aÉb9_]+", v) if w])
    assert tokens(values, "words", lower=False) == split
    assert tokens(values, "words") == [None if v is None else [w.lower() for w in v] for v in split]


def test_what_is_a_tag_and_a_pattern_of_ones_own():
    assert tokens(["a|b||c", ""], r"[^|]+") == [["a", "b", "c"], []]
    assert tokens(["k=1;l=22"], r"\w=(\d+)") == [["1", "22"]]  # what the group holds
    assert tokens(["k=1"], r"(?:k|l)=\d") == [["k=1"]]
    assert tokens(["aXb"], r"x*") == [[]]  # nothing is no piece
    assert tokens(["aXb"], r"(?i)x*", lower=False) == [["X"]]
    text = "#One,#two #three! a#four ##five #été_9 # six me@mail.com @You @@no (@me)"
    assert tokens([text]) == [["one", "two", "three", "five", "été_9"]]
    assert tokens([text], "mentions") == [["you", "me"]]


text = st.one_of(st.none(), st.lists(st.sampled_from(["a", "B", "b", "cc", "é", "_1", "!"]), max_size=6).map(" ".join))
text_svd_texts = st.lists(text, max_size=9)


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


@given(text_svd_texts, text_svd_texts, st.integers(1, 7), st.integers(0, 3))
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
    table = Table.read(frame(["x y", "secret x", "secret"]))
    state = feature.collect(table, Cells(torch.tensor([0, 1, 1], device=table.device), 2))
    fit = feature.finalize(state, torch.tensor([True, False]))
    assert fit["place"].tolist() == [0, 0, 1, 2]  # unknown, secret, x, y
    assert fit["idf"].tolist() == [0, 1, 1]  # n = 1: ln(2 / 2) + 1
    np.testing.assert_allclose(fit["components"][1:, 0], [0.5**0.5] * 2)
    assert not fit["components"][:, 1].any()


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


def test_saved_it_is_not_decomposed_again(tmp_path, monkeypatch):
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
    np.testing.assert_allclose(vectors_of(again.transform(new), 4), vectors_of(fs.transform(new), 4), 0, ROUNDING)
    assert len(made) == 1


word = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "é"]))
words = st.one_of(st.none(), st.lists(word, max_size=7))
rows = st.lists(st.tuples(words, words), max_size=9)


def tfidf_frame(pairs):
    kind = pa.list_(pa.string())
    return pa.table({"a": pa.array([a for a, _ in pairs], kind), "b": pa.array([b for _, b in pairs], kind)})


def known(row):
    return [w for w in row if w is not None]


def tfidf_by_scikit_learn(train, new):
    """The peer's vectors and their cosines, for pairs of lists without None."""
    vectors = TfidfVectorizer(analyzer=lambda x: x, norm="l2")
    documents = [known(x) for pair in train for x in pair if x is not None]
    try:
        vectors.fit(documents)
    except ValueError:  # it refuses an empty vocabulary
        return [0.0] * len(new)
    a, b = (vectors.transform([known(pair[i]) for pair in new]) for i in (0, 1))
    return np.asarray(a.multiply(b).sum(1)).ravel().tolist()


@given(rows, rows)
def test_it_is_scikit_learns(train, new):
    made = TfIdfSimilarity("a", "b").fit(tfidf_frame(train)).transform(tfidf_frame(new))["tfidf_a__b"]
    whole = [pair for pair in new if None not in pair]
    expected = iter(tfidf_by_scikit_learn(train, whole) if whole else [])
    for value, pair in zip(made.to_numpy(), new, strict=True):
        if None in pair:
            assert math.isnan(value)
        else:
            assert value == pytest.approx(next(expected), abs=1e-12)
            assert 0 <= value <= 1


@given(rows, st.integers(1, 9))
def test_blocks_of_rows_change_nothing(pairs, size):
    feature = TfIdfSimilarity("a", "b").fit(tfidf_frame(pairs))
    expected = feature.transform(tfidf_frame(pairs))["tfidf_a__b"].to_numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TFIDF_ELEMENTS", size)
        found = feature.transform(tfidf_frame(pairs))["tfidf_a__b"].to_numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


def test_a_word_of_hidden_rows_alone_is_unseen():
    table = Table.read(tfidf_frame([(["x"], ["x"]), (["secret"], ["x"])]))
    feature = TfIdfSimilarity("a", "b")
    state = feature.collect(table, Cells(torch.tensor([0, 1], device=table.device), 2))
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
    made = TfIdfSimilarity("a", "b").fit_transform(tfidf_frame([(["a"] * 3001, ["a"] * 7)]))
    assert made["tfidf_a__b"].to_pylist() == [1.0]
