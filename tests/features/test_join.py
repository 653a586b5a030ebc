from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import CountEncode, Cross, FeatureSet, JoinTable

key = st.one_of(st.none(), st.sampled_from(["a", "b", "", "🎉"]))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(key, st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.tuples(key, st.integers(0, 2), st.integers(-9, 9)), max_size=12),
    st.sampled_from(["first", "last", "error"]),
)
def test_it_equals_a_dictionary(rows, known, duplicates):
    lookup, repeated = {}, None
    for i, (name, number, value) in enumerate(known):
        if name is None:
            continue
        if (name, number) in lookup and repeated is None:
            repeated = i
        if (name, number) not in lookup or duplicates == "last":
            lookup[name, number] = value
    frame = pa.table({"k": pa.array([r[0] for r in rows], pa.string()), "n": [r[1] for r in rows]})
    other = pa.table(
        {
            "k": pa.array([r[0] for r in known], pa.string()),
            "n": pa.array([r[1] for r in known], pa.int64()),
            "v": pa.array([r[2] for r in known], pa.int64()),
        }
    )
    feature = JoinTable("t", ["k", "n"], "v", duplicates=duplicates)
    if duplicates == "error" and repeated is not None:
        with pytest.raises(FastrecError, match="'t'") as caught:
            feature.fit_transform(frame, tables={"t": other})
        assert (caught.value.row, caught.value.column) == (repeated, "k")
        return
    made = feature.fit_transform(frame, tables={"t": other})["t_v"].to_pylist()
    assert made == [lookup.get(r) for r in rows]


def test_a_key_that_comes_twice_is_named():
    rows = pd.DataFrame({"k": ["a"], "n": [1]})
    other = pd.DataFrame({"k": [None, "b", "a", None, "a", "b"], "n": [1] * 6, "v": range(6)})
    with pytest.raises(FastrecError, match="'t' has the key of row 2 again") as caught:
        JoinTable("t", ["k", "n"], "v").fit_transform(rows, tables={"t": other})
    assert (caught.value.row, caught.value.column) == (4, "k")
    for duplicates, value in (("first", 2), ("last", 4)):
        made = JoinTable("t", ["k", "n"], "v", duplicates=duplicates).fit_transform(rows, tables={"t": other})
        assert made["t_v"].tolist() == [value]


def test_every_type_is_kept():
    other = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "text": pa.array(["naïve\x00", None]),
            "small": pa.array([5, 6], pa.int8()),
            "big": pa.array([2**53 + 1, None], pa.int64()),
            "real": pa.array([0.5, 1.5], pa.float32()),
            "flag": pa.array([True, False]),
            "time": pa.array([0, 1], pa.timestamp("ms", "Europe/Berlin")),
            "list": pa.array([["x", None], []], pa.large_list(pa.large_string())),
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "struct": pa.array([{"a": 1}, {"a": 2}]),
            "same": pa.array([1, 1]),
        }
    )
    names = [n for n in other.column_names if n != "id"]
    frame = pa.table({"id": [2, 1, 9, None, 1]})
    made = JoinTable("o", "id", names).fit_transform(frame, tables={"o": other})
    for name in names:
        values = other[name].to_pylist()
        assert made[f"o_{name}"].to_pylist() == [values[1], values[0], None, None, values[0]], name
    kinds = {n: made[f"o_{n}"].type for n in names}
    for name in ("small", "big", "real", "flag", "time", "list", "vector", "struct"):
        assert kinds[name] == other[name].type, name


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_left_join_of_that_library(library):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": rng.integers(0, 50, 300), "x": range(300)})
    other = pd.DataFrame({"key": rng.permutation(40), "v": rng.normal(size=40)})
    expected = frame.merge(other, left_on="id", right_on="key", how="left")["v"].tolist()
    if library == "polars":
        frame, other = pl.from_pandas(frame), pl.from_pandas(other)
    made = JoinTable("o", {"id": "key"}, "v", name="its").fit_transform(frame, tables={"o": other})
    np.testing.assert_array_equal(np.array(made["its_v"].to_list(), dtype=float), expected)


def test_types_of_the_key_may_differ_but_not_what_they_mean():
    other = pd.DataFrame({"id": [2**53 + 1, 7], "v": ["big", "seven"]})
    frame = pd.DataFrame({"id": pd.array([2**53, 2**53 + 1, None], dtype="Int64"), "f": [7.0, 7.5, None]})
    made = JoinTable("o", "id", "v").fit_transform(frame, tables={"o": other})["o_v"]
    assert [None if pd.isna(v) else v for v in made] == [None, "big", None]
    made = JoinTable("o", {"f": "id"}, "v").fit_transform(frame, tables={"o": other})["o_v"]
    assert [None if pd.isna(v) else v for v in made] == ["seven", None, None]
    with pytest.raises(FastrecError, match="JoinTable"):
        JoinTable("o", "id", "v").fit_transform(pd.DataFrame({"id": ["7"]}), tables={"o": other})


def test_what_is_joined_can_be_read_by_others():
    items = pd.DataFrame({"item": ["a", "b", "c"], "brand": ["x", "x", "y"]})
    join = JoinTable("items", "item", "brand")
    fs = FeatureSet([CountEncode(join), CountEncode(Cross(join, "item"))])
    rows = pd.DataFrame({"item": ["a", "b", "c", "zzz", None, "a"]})
    made = fs.fit_transform(rows, tables={"items": items})
    assert made["count_items_brand"].tolist() == [3, 3, 1, 0, 0, 3]
    assert made["count_items_brand_x_item"].tolist() == [2, 1, 1, 0, 0, 2]


def test_a_generator_as_key():
    counts = pd.DataFrame({"count_k": [1, 2], "word": ["once", "twice"]})
    made = JoinTable("words", CountEncode("k"), "word").fit_transform(
        pd.DataFrame({"k": ["a", "b", "a"]}), tables={"words": counts}
    )
    assert made["words_word"].tolist() == ["twice", "once", "twice"]


def test_what_is_not_there_is_named():
    rows, other = pd.DataFrame({"id": [1]}), pd.DataFrame({"id": [1], "v": [2]})
    with pytest.raises(FastrecError, match="'o'"):
        JoinTable("o", "id", "v").fit_transform(rows)
    with pytest.raises(FastrecError, match="'w'"):
        JoinTable("o", "id", "w").fit_transform(rows, tables={"o": other})
    for options in ({"on": [], "columns": "v"}, {"on": "id", "columns": []}):
        with pytest.raises(FastrecError, match="JoinTable"):
            JoinTable("o", **options)
    with pytest.raises(FastrecError, match="JoinTable"):
        JoinTable("o", "id", "v", duplicates="mean")


def test_an_empty_table_joins_nothing():
    other = pa.table(
        {"id": pa.array([], pa.int64()), "v": pa.array([], pa.int16()), "l": pa.array([], pa.list_(pa.int8()))}
    )
    made = JoinTable("o", "id", ["v", "l"]).fit_transform(pa.table({"id": [1, None]}), tables={"o": other})
    assert made["o_v"].to_pylist() == made["o_l"].to_pylist() == [None, None]
    assert made["o_v"].type == pa.int16()


def test_a_category_that_no_row_has_is_missing() -> None:
    items = pd.DataFrame({"item": pd.Categorical(["a"], categories=["a", "b"]), "stars": [4]})
    rows = pd.DataFrame({"item": ["b", "a"]})
    for duplicates in ("error", "first", "last"):
        made = JoinTable("items", "item", "stars", duplicates=duplicates).fit_transform(rows, tables={"items": items})
        assert made["items_stars"].fillna(-1).tolist() == [-1, 4]
