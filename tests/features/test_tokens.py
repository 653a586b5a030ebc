from __future__ import annotations

import re

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Tokens
from fastrec.table import Table

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


@settings(max_examples=120, deadline=None)
@given(texts)
def test_hashtags_mentions_and_words_are_those_found_by_hand(values):
    def expected(find):
        return [None if v is None else find(v) for v in values]

    assert tokens(values, lower=False) == expected(lambda v: marked(v, "#"))
    assert tokens(values, "mentions", lower=False) == expected(lambda v: marked(v, "@"))
    split = expected(lambda v: [w for w in re.split(r"[^aÉb9_]+", v) if w])
    assert tokens(values, "words", lower=False) == split
    assert tokens(values, "words") == [None if v is None else [w.lower() for w in v] for v in split]


def test_what_is_and_is_not_a_tag():
    text = "#One,#two #three! a#four ##five #été_9 # six me@mail.com @You @@no (@me)"
    assert tokens([text]) == [["one", "two", "three", "five", "été_9"]]
    assert tokens([text], "mentions") == [["you", "me"]]


def test_a_pattern_of_ones_own():
    assert tokens(["a|b||c", ""], r"[^|]+") == [["a", "b", "c"], []]
    assert tokens(["k=1;l=22"], r"\w=(\d+)") == [["1", "22"]]  # what the group holds
    assert tokens(["k=1"], r"(?:k|l)=\d") == [["k=1"]]
    assert tokens(["aXb"], r"x*") == [[]]  # nothing is no piece
    assert tokens(["aXb"], r"(?i)x*", lower=False) == [["X"]]


def test_order_and_repeats_stay():
    assert tokens(["b a b", "a"], "words") == [["b", "a", "b"], ["a"]]


def test_categories_keep_no_unused_text_and_names_differ():
    frame = pd.DataFrame({"x": pd.Categorical(["#a", None, "#a"], categories=["#zz", "#a"])})
    made = Tokens("x").fit_transform(frame)
    assert [v if v is None else list(v) for v in made["hashtags_x"]] == [["a"], None, ["a"]]
    assert Tokens("x", "mentions").outputs == ["mentions_x"]
    assert Tokens("x", "words").outputs == ["words_x"]
    assert Tokens("x", "a+").outputs == ["tokens_x"]
    assert Tokens("x", "a+", name="as").outputs == ["as"]


@pytest.mark.parametrize("values", [[], [None, None]])
def test_the_type_is_the_same_without_any_text(values):
    kind = pa.large_list(pa.large_string())
    for frame in (pa.table({"x": pa.array(values, pa.string())}), pa.table({"x": pa.array(values, pa.null())})):
        made = Tokens("x").fit_transform(frame)
        assert (made.schema.field("hashtags_x").type, made["hashtags_x"].to_pylist()) == (kind, values)
    assert Tokens("x").fit_transform(pl.DataFrame({"x": ["b"]}))["hashtags_x"].dtype == pl.List(pl.String)


def test_each_distinct_text_is_searched_once(monkeypatch):
    seen = []

    class Spy:
        def findall(self, text):
            seen.append(text)
            return [text]

    feature = Tokens("x", "words")
    monkeypatch.setattr(feature, "_compiled", Spy)
    made = feature.fit_transform(Table({"x": ["a", "b"] * 500}))
    assert sorted(seen) == ["a", "b"]
    assert made["words_x"].to_arrow().to_pylist() == [["a"], ["b"]] * 500


@pytest.mark.parametrize(("pattern", "word"), [("(", "pattern"), ("(a)(b)", "2 groups"), (7, "pattern")])
def test_a_bad_pattern_is_refused(pattern, word):
    with pytest.raises(FastrecError, match="Tokens") as caught:
        Tokens("x", pattern)
    assert word in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("values", [[None, 5.0], [None, pd.Timestamp("2024-01-01")], [None, ["a"]]])
def test_what_is_no_text_is_named(values):
    with pytest.raises(FastrecError) as caught:
        Tokens("x").fit_transform(pd.DataFrame({"x": values}))
    assert "Tokens" in str(caught.value)
    assert (caught.value.column, caught.value.row) == ("x", 1)
