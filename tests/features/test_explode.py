import math
from functools import partial

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Collect, Explode, explode
from fastrec.table import Column, Table
from tests.features.frames import of_rows
from tests.features.test_contract import column_of

word = st.text("ab🎉 ", max_size=3)
lists = st.lists(st.one_of(st.none(), st.lists(st.tuples(word, st.integers(-9, 9)), max_size=4)), max_size=8)


def loop(rows):
    result = {"id": [], "item": [], "price": [], "position": [], "row": []}
    for i, row in enumerate(rows):
        for place, (w, p) in enumerate(row or []):
            for name, value in zip(result, (f"r{i}", w, float(p), place + 1, i), strict=True):
                result[name].append(value)
    return result


@given(lists)
def test_texts_and_lists_equal_a_loop(rows):
    names = [f"r{i}" for i in range(len(rows))]
    # One empty word alone would read as an empty list.
    rows = [None if r is None else [(w or "e", p) for w, p in r] for r in rows]
    text = {
        "id": pa.array(names, pa.string()),
        "items": pa.array([None if r is None else "|".join(w for w, _ in r) for r in rows], pa.string()),
        "prices": pa.array([None if r is None else "|".join(str(p) for _, p in r) for r in rows], pa.string()),
    }
    real = {
        "id": text["id"],
        "items": pa.array([None if r is None else [w for w, _ in r] for r in rows], pa.list_(pa.string())),
        "prices": pa.array([None if r is None else [p for _, p in r] for r in rows], pa.large_list(pa.int32())),
    }
    how = {"row": "row", "numbers": ["prices"]}
    for frame in (text, real):
        made = explode(pa.table(frame), {"items": "item", "prices": "price"}, **how)
        assert made.names == ["id", "item", "price", "position", "row"]
        assert made.to_arrow().to_pydict() == loop(rows)
        assert made["price"].values.dtype.is_floating_point
        again = Explode({"items": "item", "prices": "price"}, **how).fit_transform(pa.table(frame))
        assert again.to_pydict() == loop(rows)


INSIDE = Column("list", torch.tensor([2, 5, 5, 7]), elements=Column("number", torch.arange(9)))
TAKEN_APART = {
    "empty words between separators": (
        {"x": ["a||b", "|", "", None, "c"]},
        {"columns": "x", "row": "row"},
        {"x": ["a", "", "b", "", "", "c"], "position": [1, 2, 3, 1, 2, 1], "row": [0, 0, 0, 1, 1, 4]},
    ),
    "a separator is text and not a pattern": ({"x": ["a.b.c"]}, {"columns": "x", "sep": "."}, {"x": ["a", "b", "c"]}),
    "a longer separator": ({"x": ["a, b"]}, {"columns": ["x"], "sep": ", "}, {"x": ["a", "b"]}),
    "missing elements": (
        {"x": [["a", None], [None]], "p": [[1.5, None], [None]]},
        {"columns": ["x", "p"], "numbers": ["p"]},
        {"x": ["a", None, None], "p": [1.5, None, None]},
    ),
    "a name used again for what it replaces": (
        {"x": ["1|2"], "y": ["3|4"]},
        {"columns": {"x": "y", "y": "x"}, "numbers": ["x", "y"]},
        {"y": [1, 2], "x": [3, 4]},
    ),
    "a number too large is infinite as in Python": (
        {"x": ["1e400"]},
        {"columns": "x", "numbers": ["x"]},
        {"x": [math.inf]},
    ),
    "lists that begin and end inside their elements": (
        {"x": INSIDE},
        {"columns": "x", "row": "r"},
        {"x": [2, 3, 4, 5, 6], "position": [1, 2, 3, 1, 2], "r": [0, 0, 0, 2, 2]},
    ),
}


@pytest.mark.parametrize(("frame", "options", "expected"), TAKEN_APART.values(), ids=TAKEN_APART)
def test_lists_are_taken_apart(frame, options, expected):
    options = {"position": "position" if "position" in expected else None, **options}
    assert explode(Table(frame), **options).to_arrow().to_pydict() == expected


@pytest.mark.parametrize("blank", [[None, None], [], ["", None]])
def test_columns_without_any_list(blank):
    for kind in (pa.string(), pa.null(), pa.list_(pa.int64())):
        if "" in blank and kind != pa.string():
            continue
        frame = pa.table({"id": pa.array(range(len(blank)), pa.int64()), "x": pa.array(blank, kind)})
        made = explode(frame, {"x": "y"}, row="row", numbers=["x"])
        assert (made.names, len(made)) == (["id", "y", "position", "row"], 0)


@pytest.mark.parametrize("text", [" 12 ", "-1.5", "+2", ".5", "3.", "1e3", "2E-2", "123456789.125"])
def test_numbers_in_any_usual_form(text):
    assert explode({"x": [f"1|{text}"]}, "x", numbers=["x"])["x"].values.tolist() == [1.0, float(text)]


@pytest.mark.parametrize("text", ["", "x", "1,5", "nan", "inf", "0x1", "1 2", "--1", "1_000", "None", "٣"])
def test_what_is_no_number_is_named_with_file_column_and_row(text):
    with pytest.raises(FastrecError) as caught:
        explode({"x": ["1|2", None, f"3|{text}|{text}"]}, {"x": "y"}, numbers=["x"], file="train.csv")
    error = caught.value
    assert (error.file, error.column, error.row) == ("train.csv", "x", 2)
    assert repr(text) in str(error)
    assert error.remedy


@pytest.mark.parametrize("other", ["1", "1|2|3", "", None])
def test_lists_of_unequal_length_are_named(other):
    frame = {"items": ["a|b", "c|d", None], "prices": ["1|2", other, None]}
    with pytest.raises(FastrecError, match="2") as caught:
        explode(frame, ["items", "prices"], file="train.csv")
    assert (caught.value.file, caught.value.column, caught.value.row) == ("train.csv", "prices", 1)


ROWS = {"id": [7, 8, 9, 10], "items": [["a", None], [], None, ["b"]], "prices": [[1, 2], [], None, [3]]}
EXPLODED = {"id": [7, 7, 10], "item": ["a", None, "b"], "prices": [1, 2, 3], "position": [1, 2, 1], "r": [0, 0, 3]}


def test_the_library_that_came_in_comes_out():
    arrow, feature = pa.table(ROWS), Explode({"items": "item", "prices": "prices"}, row="r")
    for frame, kind in (
        (arrow, pa.Table),
        (arrow.to_batches()[0], pa.Table),
        (pl.from_arrow(arrow), pl.DataFrame),
        (Table.read(arrow), Table),
        (ROWS, dict),
    ):
        made = feature.fit_transform(frame)
        assert isinstance(made, kind)
        assert pa.table(made if kind is dict else Table.read(made).to_arrow()).to_pydict() == EXPLODED


def test_pandas_keeps_its_index_and_types_as_its_own_explode_does():
    frame = pd.DataFrame({"id": pd.array([2**53 + 1, None], dtype="Int64"), "x": [["a", "b"], ["c"]]})
    frame["c"] = pd.Categorical(["k", "l"], categories=["l", "k"], ordered=True)
    frame["d"] = pd.to_datetime(["2024-01-01", None]).tz_localize("Asia/Tokyo")
    frame.index = pd.Index(["i", "j"], name="name")
    before = frame.copy(deep=True)
    made = Explode("x", position=None).fit_transform(frame)
    expected = frame.explode("x")[["id", "c", "d", "x"]]
    pd.testing.assert_frame_equal(made, expected, check_dtype=False)
    pd.testing.assert_frame_equal(made[["id", "c", "d"]], expected[["id", "c", "d"]])
    pd.testing.assert_frame_equal(frame, before)


def test_a_frame_of_lists_alone_and_of_vectors():
    assert Explode("x").fit_transform(pd.DataFrame({"x": [["a"], ["b", "c"]]}))["x"].tolist() == ["a", "b", "c"]
    assert Explode("x", position=None).fit_transform(pa.table({"x": [["a"], []]})).to_pydict() == {"x": ["a"]}
    assert Explode("x").fit_transform(pl.DataFrame({"x": ["a|b"]})).rows() == [("a", 1), ("b", 2)]
    vectors = pa.table({"i": [1, 2], "x": pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))})
    assert Explode("x").fit_transform(vectors).to_pydict() == {"i": [1, 1], "x": [1.0, 2.0], "position": [1, 2]}


def test_scikit_learns_manners():
    from sklearn.base import clone

    feature = Explode(["x"], sep=",", position="place", numbers=("x",))
    assert feature.get_params() == {"cols": ["x"], "sep": ",", "position": "place", "row": None, "numbers": ("x",)}
    other = clone(feature)
    assert repr(other) == repr(feature) == "Explode(cols=['x'], sep=',', position='place', numbers=['x'])"
    assert other.set_params(sep=";") is other
    assert other.fit({"x": ["1;2"], "k": [0]}).get_feature_names_out() == ["k", "x", "place"]
    assert [list(v) for v in other.transform({"x": ["1;2"], "k": [0]}).values()] == [[0, 0], [1.0, 2.0], [1, 2]]
    assert feature.get_feature_names_out(["a", "x"]) == ["a", "x", "place"]
    with pytest.raises(FastrecError, match="no_such"):
        feature.set_params(no_such=1)


rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 9))),
    min_size=1,
    max_size=12,
)


frame_of = partial(of_rows, user="Int64", t="int64", x="Int64")


def by_loop(row, events, max_len):
    before = [(t, i, x) for i, (u, t, x) in enumerate(events) if u == row[0] and t < row[1]]
    return [x for _, _, x in sorted(before)][-max_len:] if row[0] is not None else []


@given(rows, rows, st.integers(1, 4))
def test_the_past_of_the_rows_themselves_and_in_a_log_equal_a_loop(data, log, max_len):
    made = Collect("x", by="user", order="t", max_len=max_len).fit_transform(frame_of(data))
    assert column_of(made, "past_x__user") == [by_loop(row, data, max_len) for row in data]
    feature = Collect("x", by="user", order="t", max_len=max_len, table="log", name="seen")
    made = feature.fit_transform(frame_of(data)[["user", "t"]], tables={"log": frame_of(log)})
    assert column_of(made, "seen_x__user") == [by_loop(row, log, max_len) for row in data]


def test_the_rows_own_order():
    frame = pd.DataFrame({"user": [1, 2, 1, 1], "x": list("abcd")})
    made = Collect("x", by="user").fit_transform(frame)
    assert [list(v) for v in made["past_x__user"]] == [[], [], ["a"], ["a", "c"]]


def test_collected_lists_are_list_columns_that_can_be_taken_apart():
    frame = pd.DataFrame({"user": [1, 1], "t": [1, 2], "x": [2**53 + 1, 7], "w": ["a", "b"]})
    feature = Collect(["x", "w"], by="user", order="t")
    made = feature.fit_transform(pl.from_pandas(frame))
    assert (made.schema["past_x__user"], made.schema["past_w__user"]) == (pl.List(pl.Int64), pl.List(pl.String))
    apart = Explode({"past_w__user": "before"}).fit_transform(feature.fit_transform(frame))
    assert (column_of(apart, "t"), column_of(apart, "before")) == ([2], ["a"])
