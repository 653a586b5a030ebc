from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Collect, Explode
from fastrec.table import Table
from tests.features.frames import MAKERS, columns

some = settings(max_examples=25, deadline=None)
rows = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 9))),
    min_size=1,
    max_size=12,
)


def frame_of(data):
    user, t, x = zip(*data, strict=True)
    return pd.DataFrame({"user": pd.array(user, "Int64"), "t": t, "x": pd.array(x, "Int64")})


def lists(frame, name):
    return Table.read(frame, [name])[name].to_arrow().to_pylist()


def plain(values):
    return [None if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in values]


def by_loop(row, events, max_len):
    before = [(t, i, x) for i, (u, t, x) in enumerate(events) if u == row[0] and t < row[1]]
    return [x for _, _, x in sorted(before)][-max_len:] if row[0] is not None else []


@some
@given(rows, st.integers(1, 4))
def test_the_past_of_the_rows_themselves_equals_a_loop(data, max_len):
    made = Collect("x", by="user", order="t", max_len=max_len).fit_transform(frame_of(data))
    found = [plain(v) for v in lists(made, "past_x__user")]
    assert found == [by_loop(row, data, max_len) for row in data]


@some
@given(rows, rows, st.integers(1, 4))
def test_the_past_in_a_log_equals_a_loop(data, log, max_len):
    feature = Collect("x", by="user", order="t", max_len=max_len, table="log", name="seen")
    made = feature.fit_transform(frame_of(data)[["user", "t"]], tables={"log": frame_of(log)})
    assert [plain(v) for v in lists(made, "seen_x__user")] == [by_loop(row, log, max_len) for row in data]


def test_the_rows_own_order():
    frame = pd.DataFrame({"user": [1, 2, 1, 1], "x": list("abcd")})
    made = Collect("x", by="user").fit_transform(frame)
    assert [list(v) for v in made["past_x__user"]] == [[], [], ["a"], ["a", "c"]]


@pytest.mark.parametrize("library", sorted(MAKERS))
def test_lists_of_every_type_come_back_in_every_library(library):
    data = columns()
    names = ["item", "clicks", "price", "time", "flag"]
    made = Collect(names, by="user", order="when", max_len=4).fit_transform(MAKERS[library](data))
    for name in names:
        for i in range(40):
            before = [j for j in range(40) if data["user"][j] == data["user"][i] and data["when"][j] < data["when"][i]]
            before = sorted(before, key=lambda j: data["when"][j])[-4:]
            found = plain(lists(made, f"past_{name}__user")[i])
            assert [pd.Timestamp(v) if name == "time" and v is not None else v for v in found] == [
                data[name][j] for j in before
            ]


def test_what_polars_and_arrow_get_is_a_list_column():
    pl = pytest.importorskip("polars")
    frame = pd.DataFrame({"user": [1, 1], "t": [1, 2], "x": [2**53 + 1, 7], "w": ["a", "b"]})
    feature = Collect(["x", "w"], by="user", order="t")
    made = feature.fit_transform(pl.from_pandas(frame))
    assert made.schema["past_x__user"] == pl.List(pl.Int64)
    assert made.schema["past_w__user"] == pl.List(pl.String)
    assert made["past_x__user"].to_list() == [[], [2**53 + 1]]
    assert pa.types.is_large_list(feature.fit_transform(pa.table(frame.to_dict("list")))["past_w__user"].type)
    assert isinstance(feature.fit_transform(frame)["past_x__user"][1], np.ndarray)


def test_explode_takes_the_lists_apart_again():
    frame = pd.DataFrame({"user": [1, 1, 1], "t": [1, 2, 3], "x": ["a", "b", "c"]})
    made = Collect("x", by="user", order="t").fit_transform(frame)
    rows = Explode({"past_x__user": "before"}).fit_transform(made)
    found = Table.read(rows, ["t", "before"]).to_arrow().to_pydict()
    assert found == {"t": [2, 3, 3], "before": ["a", "a", "b"]}


def test_lists_of_lists_are_refused():
    frame = pd.DataFrame({"user": [1, 1], "t": [1, 2], "x": [["a"], ["b"]]})
    with pytest.raises(FastrecError, match="Collect") as caught:
        Collect("x", by="user", order="t").fit_transform(frame)
    assert (caught.value.column, caught.value.row) == ("x", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Collect("x", by="user", max_len=0),
        lambda: Collect("x", by="user", table="log"),
        lambda: Collect(Collect("x", by="user"), by="user", order="t", table="log"),
    ],
)
def test_options_that_cannot_be(make):
    with pytest.raises(FastrecError, match="Collect"):
        make()
