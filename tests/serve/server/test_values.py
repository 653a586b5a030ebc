"""Values of a request → arrays: exact, or refused with their row."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.serve.server.call import Refusal
from fastrec.serve.server.columns import RequestColumns, from_array, from_arrow, from_values, to_arrow
from fastrec.serve.server.spec import Input, Spec

LOW = -(2**63)
COLUMNS = {
    "int64": Input("a", "int64", missing=LOW),
    "float64": Input("a", "float64"),
    "float32": Input("a", "float32"),
    "string": Input("a", "string", missing=""),
    "bool": Input("a", "bool"),
}
AT = Input("at", "int64", missing=LOW, unit="us")
SEEN = Input("seen", "int64", missing=LOW, unit="ms", zone="Europe/Berlin")
_TEXT = st.text("xyzé\0 ", min_size=1, max_size=5).filter(str.strip)
_INTEGERS = st.integers(-(2**70), 2**70)
_ODD = st.one_of(st.none(), st.booleans(), _INTEGERS, st.floats(), _TEXT, st.just([]), st.just({}))


def refused(call: Callable[..., Any], *arguments: Any, match: str | None = None, **where: Any) -> Refusal:
    with pytest.raises(Refusal, match=match) as error:
        call(*arguments)
    assert {name: getattr(error.value, name) for name in where} == where
    return error.value


def expected(kind: str, value: Any) -> Any:
    """What one value is, in plain Python; an exception where it is refused."""
    if value is None or value != value:
        if kind == "bool":
            raise ValueError
        return {"int64": LOW, "string": ""}.get(kind, math.nan)
    if kind.startswith("float"):
        if type(value) not in (int, float, bool):
            raise ValueError
        made = float(value)
        if kind == "float32":
            with np.errstate(over="ignore"):
                made = float(np.float32(made))
        return made
    if kind in ("int64", "string") and type(value) is float and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if kind == "string" and type(value) in (int, float, bool):  # as it stands in a file
        return str(value)
    if type(value) is not {"int64": int, "string": str, "bool": bool}[kind]:
        raise ValueError
    if kind == "int64" and not LOW <= value < 2**63:
        raise ValueError
    return value


@given(kind=st.sampled_from(sorted(COLUMNS)), values=st.lists(_ODD, max_size=6))
def test_each_value_of_json_is_itself_or_refused_with_its_row(kind: str, values: list[Any]) -> None:
    wanted, bad = [], []
    for row, value in enumerate(values):
        try:
            wanted.append(expected(kind, value))
        except ValueError:
            bad.append(row)
    if bad:
        assert refused(from_values, COLUMNS[kind], values, status=422, column="a").row in bad
    else:
        made = from_values(COLUMNS[kind], values)
        assert made.dtype == {"string": object, "bool": bool}.get(kind, kind)
        assert all(m == w or (m != m and w != w) for m, w in zip(made.tolist(), wanted))


@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=6),
    kind=st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]),
)
def test_every_form_of_text_in_arrow(values: list[str | None], kind: pa.DataType) -> None:
    made = from_arrow(COLUMNS["string"], pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)]))
    assert made.tolist() == [v or "" for v in values]


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)), max_size=6))
def test_unsigned_integers_fit_or_are_refused_with_their_row(values: list[int | None]) -> None:
    column = pa.chunked_array([pa.array(values, pa.uint64())])
    bad = [i for i, v in enumerate(values) if v is not None and v >= 2**63]
    if bad:
        refused(from_arrow, COLUMNS["int64"], column, row=bad[0])
    else:
        assert from_arrow(COLUMNS["int64"], column).tolist() == [LOW if v is None else v for v in values]


@given(st.lists(st.one_of(st.none(), st.integers(-(2**54), 2**54).map(float), st.floats()), max_size=6))
def test_floats_are_integers_where_nothing_is_lost_as_pandas_makes_them(values: list[float | None]) -> None:
    bad = [i for i, v in enumerate(values) if v is not None and v == v and not (v.is_integer() and abs(v) < 2**53)]
    calls = [(from_arrow, pa.array(values, pa.float64())), (from_values, values)]
    if bad:
        for call, given_values in calls:
            refused(call, COLUMNS["int64"], given_values, row=bad[0])
    else:
        wanted = [LOW if v is None or v != v else int(v) for v in values]
        for call, given_values in [*calls, (from_array, np.array(values, np.float64))]:
            assert call(COLUMNS["int64"], given_values).tolist() == wanted


def moments(kind: pa.DataType, *values: int) -> pa.Array:
    return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)


NEVER = Input("a", "int64")  # no value may be missing
ARROWS = {
    "int64": [[1.5], [2.0**53], [-(2.0**53)], [True], ["1", "1.5"], ["x"]],
    "string": [[b"a"]],
    "float64": [["1", "1,5"], [[1.0]]],
    "bool": [[1], [True, None]],
}
REFUSED: list[tuple[Input, Any, str | None, int | None]] = [
    # column, values (of JSON or Arrow), words, row
    *((COLUMNS[kind], pa.array(v), None, None) for kind, several in ARROWS.items() for v in several),
    (COLUMNS["int64"], [1, 1e30], r"1e\+30 is no whole number below 2\*\*53", 1),
    (AT, ["2026-01-01", "2026-01-01T00:00:00Z"], None, 1),  # whose clock time would that be?
    (SEEN, ["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00"], None, 2),  # at which place?
    (SEEN, ["2026-01-01T00:00:00.0005Z"], None, 0),  # half a millisecond
    (AT, ["2026-01-01", "tomorrow"], None, 1),
    (AT, ["2026-01-01", 1.5], None, 1),
    (AT, [None, 2**63], None, 1),
    (AT, [True], None, 0),
    (AT, ["2026-01-01", 5], "some times are text", None),
    (AT, moments(pa.timestamp("us", "UTC"), 0), "zone", None),
    (SEEN, moments(pa.timestamp("us"), 0), "zone", None),
    (SEEN, moments(pa.date32(), 0), "zone", None),
    *(
        (Input("a", "int64", missing=LOW, unit="ns"), moments(pa.timestamp(u), 0, 2**63 - 1), None, 1)
        for u in ("s", "ms", "us")
    ),
    *((NEVER, v, "may not be", 1) for v in ([1, None], pa.array([1, None]), ["1", ""])),
    (NEVER, ["", 1], "may not be", 0),
]


@pytest.mark.parametrize(("column", "values", "words", "row"), REFUSED, ids=str)
def test_values_that_do_not_fit_are_refused(column: Input, values: Any, words: str | None, row: int | None) -> None:
    call, where = from_values if isinstance(values, list) else from_arrow, {} if row is None else {"row": row}
    refused(call, column, values, match=words, column=column.name, **where)


def test_floats_take_every_number_and_missing_is_nan() -> None:
    assert from_arrow(COLUMNS["float64"], pa.array([0.1, None])).tolist()[0] == 0.1  # not by way of 32 bits
    for values in (pa.array([1, None]), pa.array([True, None]), pa.array([1.0, None], pa.float32())):
        made = from_arrow(COLUMNS["float64"], values)
        assert made[0] == 1
        assert math.isnan(made[1])
    assert from_arrow(COLUMNS["float32"], pa.array([1e300])).tolist() == [math.inf]  # as training packs it


def test_text_of_numbers_is_numbers_and_numbers_are_text() -> None:
    for call, make in ((from_values, list), (from_arrow, pa.array)):
        assert call(COLUMNS["int64"], make(["10", None, "-3", " "])).tolist() == [10, LOW, -3, LOW]
        assert call(COLUMNS["float64"], make(["10", "1e3", ".5"])).tolist() == [10, 1000, 0.5]
        assert call(COLUMNS["string"], make([10115, None])).tolist() == ["10115", ""]
        assert call(COLUMNS["string"], make([10115.0, None])).tolist() == ["10115", ""]
    assert from_values(COLUMNS["string"], ["00715", 10115]).tolist() == ["00715", "10115"]
    error = refused(from_values, COLUMNS["float64"], ["10", "x"], match="'x' is no number", row=1)
    assert str(error).endswith("is. Send a number (float64).")
    zipped = Input("zip", "float64", text={"number": True, "comma": False})
    error = refused(from_values, zipped, ["SW1A 5BN"])
    assert str(error) == "column 'zip', row 0: 'SW1A 5BN' is no number. Send a number (float64)."


def test_text_in_the_form_of_the_training_files() -> None:
    price = Input("price", "float64", text={"number": True, "comma": False})
    euro = Input("euro", "float64", text={"number": True, "comma": True})
    day = Input("day", "int64", missing=LOW, unit="us", text={"date": "%d/%m/%Y"})
    opens = Input("opens", "float64", text={"clock": True})
    for call, make in ((from_values, list), (from_arrow, pa.array)):
        assert call(price, make(["$1,200.50", "(3)", "5 %"])).tolist() == [1200.5, -3, 5]
        assert call(euro, make(["1.200,50", "7"])).tolist() == [1200.5, 7]
        assert call(opens, make(["10:30", "00:00:01"])).tolist() == [37_800, 1]
        assert call(day, make(["02/01/1970", None, "1970-01-03"])).tolist() == [86_400_000_000, LOW, 172_800_000_000]
        for column, said, row in ((price, ["1", "1.200,50"], 1), (price, ["soon"], 0), (day, ["31/31/2024"], 0)):
            refused(call, column, make(said), status=422, column=column.name, row=row)
    assert from_values(price, [5.5]).tolist() == [5.5]


@given(st.lists(st.one_of(st.none(), st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))), max_size=5))
def test_times_without_a_zone(moments: list[datetime | None]) -> None:
    def count(m: datetime | None) -> int:
        return LOW if m is None else (m - datetime(1970, 1, 1)) // timedelta(microseconds=1)

    wanted = [count(m) for m in moments]
    texts = [None if m is None else m.isoformat() for m in moments]
    assert from_values(AT, texts).tolist() == wanted
    assert from_values(AT, [None if m is None else count(m) for m in moments]).tolist() == wanted
    assert from_arrow(AT, pa.array(moments, pa.timestamp("us"))).tolist() == wanted
    assert from_arrow(AT, pa.array(texts, pa.string())).tolist() == wanted
    back = to_arrow(AT, np.array(wanted, np.int64))
    assert back.type == pa.timestamp("us")
    assert back.to_pylist() == moments


def test_times_with_a_zone_are_moments() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    wanted = [int(noon.timestamp() * 1000)] * 3
    texts = ["2026-07-01T12:00:00Z", "2026-07-01T14:00:00+02:00", "2026-07-01 07:00:00.000-05:00"]
    assert from_values(SEEN, texts).tolist() == wanted
    assert from_arrow(SEEN, pa.array([noon] * 3, pa.timestamp("ns", "Asia/Tokyo"))).tolist() == wanted
    assert to_arrow(SEEN, np.array(wanted)).type == pa.timestamp("ms", "Europe/Berlin")
    assert from_arrow(AT, moments(pa.date32(), 1)).tolist() == [86_400_000_000]


def test_text_of_numbers_beside_numbers() -> None:
    german = Input("a", "float64", text={"number": True, "comma": True})
    for column, values, wanted in (
        (COLUMNS["int64"], ["46", 28, None, 3.0], [46, 28, LOW, 3]),
        (COLUMNS["float32"], ["46.5", 28, True], [46.5, 28, 1]),
        (Input("a", "int64"), [28, "-46"], [28, -46]),
        (german, ["1,5", 1.5], [1.5, 1.5]),  # a number is as it is, whatever the form of the text
        (COLUMNS["int64"], ["", 1, "2"], [LOW, 1, 2]),
    ):
        assert from_values(column, values).tolist() == wanted
    refused(from_values, COLUMNS["float64"], [1, "46", "soon"], row=2, match="soon")


def test_arrays_of_numpy_and_of_pandas() -> None:
    same = np.array([1, 2])
    assert from_array(COLUMNS["int64"], same) is same
    when = Input(name="when", type="int64", missing=LOW, unit="us", zone="Europe/Berlin")
    times = pd.Series(pd.to_datetime(["2026-03-29T00:59:00Z", None, "2026-03-29T01:00:00Z"]))
    for column, values, wanted in (
        (COLUMNS["int64"], np.array([1, 2], np.uint8), [1, 2]),
        (COLUMNS["int64"], np.array([1, None, math.nan], object), [1, LOW, LOW]),
        (COLUMNS["string"], np.array(["a", "é"]), ["a", "é"]),
        (AT, np.array(["1970-01-02", "NaT"], "M8[D]"), [86_400_000_000, LOW]),
        (SEEN, np.array(["1970-01-02", "NaT"], "M8[D]"), [86_400_000, LOW]),
        (when, times.dt.tz_convert("Europe/Berlin").to_numpy(), [1774745940_000_000, LOW, 1774746000_000_000]),
    ):
        assert from_array(column, values).tolist() == wanted
    refused(from_array, COLUMNS["int64"], np.array([1.5]))


def test_yes_and_no_are_no_other_numbers(tmp_path):
    spec = Spec("x", "binary", tmp_path, "", (Input("a", "float64", text={"bool": True}),), ())
    for values, made in (([True, 0, None, 1.0], [1.0, 0.0, math.nan, 1.0]), (["true", "0"], [1.0, 0.0])):
        np.testing.assert_array_equal(RequestColumns(spec, {"a": values}, len(values), from_values).arrays()["a"], made)
    for bad in (2, 0.5, -1.0, math.inf):
        both = [1.0, bad]
        for convert, values in ((from_values, both), (from_array, np.array(both)), (from_arrow, pa.array(both))):
            sent = RequestColumns(spec, {"a": values}, 2, convert)
            refused(sent.arrays, match="neither yes nor no", column="a", row=1, remedy="Send true or false")


def test_texts_that_are_taken_apart_are_limited(tmp_path):
    spec = Spec("x", "binary", tmp_path, "", (Input("a", "string", missing="", longest=8), Input("b", "string")), ())
    sent = {"a": ["four", "déjà vu", None], "b": ["long enough " * 9] * 3}
    for convert, values in ((from_values, sent), (from_arrow, {n: pa.array(v) for n, v in sent.items()})):
        arrays = RequestColumns(spec, values, 3, convert).arrays
        refused(arrays, match="more than 8 bytes", status=422, column="a", row=1)
        short = ["four", "déjà", None]
        fine = {**values, "a": short if convert is from_values else pa.array(short)}
        assert RequestColumns(spec, fine, 3, convert).arrays()["a"].tolist() == ["four", "déjà", ""]
