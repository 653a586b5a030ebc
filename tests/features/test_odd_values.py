"""Odd floats, booleans and times in every input of every generator.

They end in values or in an error of the package; and a value is the same whatever holds it. Every input of an
example meets some of the kinds, its own by a checksum; ``ODD_VALUES=all`` in the environment tries all of them.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import zlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fastrec._core.device import on_host, resolve_device
from fastrec.errors import FastrecError
from fastrec.features import FeatureSet
from fastrec.table import Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_arrow
from tests.features.test_contract import plain

pytestmark = pytest.mark.filterwarnings("ignore::fastrec.errors.DataWarning")

N = 12
MOST = (1 << 63) - 1
PLAIN = Table.read(to_arrow(columns(N)))
TABLES = {n: Table.read(t) for n, t in tables().items()}
ROUNDING = 0.0 if on_host(resolve_device()) else 1e-12  # a device adds up in any order
EVERY = os.environ.get("ODD_VALUES") == "all"


def chosen(options, *about, count):
    """Some of the options, always the same ones for one thing that they are for."""
    options = list(options)
    if EVERY:
        return options
    start = zlib.crc32(repr(about).encode()) % len(options)
    return [options[(start + i * 7) % len(options)] for i in range(count)]


def repeated(values):
    return list(itertools.islice(itertools.cycle(values), N))


def inputs_of(make):
    return [n for n in make().inputs if n in PLAIN]


def outcome(make, **given):
    """The outputs of a frame with some columns replaced, learned and looked up; ``FastrecError`` if that is the end."""
    try:
        feature = make()
        table = PLAIN.with_columns(given)
        fs = FeatureSet([feature], key="row")
        found = [fs.fit_transform(table, tables=TABLES), fs.transform(table, tables=TABLES)]
    except FastrecError:
        return FastrecError
    return [t[n].to_arrow() for t in found for n in feature.outputs]


FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1e308, -1e308, 2.5, 1.7e308, math.nan]
WHOLE = [MOST, -MOST, -MOST - 1, 0, -1, 1, None, 1 << 53, (1 << 53) + 1, 7, 7, None]
GONE = np.arange(N) % 5 == 0
DAYS = pd.to_datetime(repeated(["2024-01-01", None, "2054-07-01"]))


def arrow(kind, *values):
    return lambda: pa.array(repeated(values), kind)


def numbers_as(kind, *values):
    return lambda: pa.array(repeated(values), pa.int64()).cast(kind)


def floats(dtype):
    with np.errstate(over="ignore"):
        return np.array(FLOATS).astype(dtype)


ODD = {
    "float64": lambda: floats("f8"),
    "float32": lambda: floats("f4"),
    "float16": lambda: floats("f2"),
    "longdouble": lambda: floats(np.longdouble),
    "Arrow float16": lambda: pa.array(floats("f2")),
    "Float64": lambda: pd.Series(pd.arrays.FloatingArray(floats("f8"), GONE)),
    "Float32": lambda: pd.Series(pd.arrays.FloatingArray(floats("f4"), GONE)),
    "nulls and NaN": lambda: pa.array([None if g else v for v, g in zip(FLOATS, GONE, strict=True)]),
    "int64": arrow(pa.int64(), *WHOLE),
    "uint64": arrow(pa.uint64(), *(None if v is None else v % (1 << 64) for v in WHOLE)),
    "int8": lambda: np.array(repeated([-128, 127, 0, 1]), "i1"),
    "True alone": lambda: np.ones(N, bool),
    "bool and int objects": lambda: pd.Series(repeated([True, 2, None]), dtype=object),
    "a category of bools": lambda: pd.Series(repeated([True, False, None]), dtype="category"),
    "a category of floats": lambda: pd.Series(repeated([1.5, math.inf, None, -0.0]), dtype="category"),
    "a category of times": lambda: pd.Series(DAYS).astype("category"),
    "a dictionary of times": lambda: pa.array(DAYS).dictionary_encode(),
    "a dictionary of dates": lambda: arrow(pa.date32(), dt.date(2024, 1, 1), None)().dictionary_encode(),
    "timedelta": lambda: pd.Series(pd.to_timedelta(repeated([1, None, -5, 10**9]), unit="s")),
    "timedelta's ends": lambda: np.array(repeated([MOST, -MOST, -MOST - 1, 0])).view("m8[ns]"),
    "duration": arrow(pa.duration("ms"), 5, None, -7),
    "date32": arrow(pa.date32(), dt.date(2024, 1, 1), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "date32's ends": lambda: pa.array(np.array(repeated([2**31 - 1, -(2**31), 0]), "i4")).cast(pa.date32()),
    "date64": arrow(pa.date64(), dt.date(2024, 1, 1), None, dt.date(1, 1, 1)),
    "date objects": lambda: pd.Series(repeated([dt.date(2024, 1, 1), None]), dtype=object),
    "time32": arrow(pa.time32("s"), 5, None, 86_399),
    "time64": arrow(pa.time64("us"), 5, None, 86_399),
    "time objects": lambda: pd.Series(repeated([dt.time(1, 2), None]), dtype=object),
    "intervals": arrow(pa.month_day_nano_interval(), None, (1, 2, 3)),
    "periods": lambda: pd.Series(pd.period_range("2024-01", periods=N, freq="M")),
    "NaT alone": lambda: pd.Series(pd.to_datetime([None] * N)),
    "a zone": lambda: pd.Series(DAYS).dt.tz_localize("Europe/Berlin"),
    "a fixed zone": lambda: pd.Series(DAYS).dt.tz_localize(dt.timezone(dt.timedelta(hours=1, minutes=30))),
    "a zone of seconds": lambda: pd.Series(DAYS).dt.tz_localize(dt.timezone(dt.timedelta(hours=1, seconds=30))),
    "bytes": arrow(pa.binary(), b"a", None),
}
for unit in ("s", "ms", "us", "ns"):
    ends = np.array(repeated([MOST, -MOST - 1, -MOST, 0, -1]))
    ODD[f"numpy's times in {unit}"] = lambda unit=unit, ends=ends: ends.view(f"M8[{unit}]")
    for zone in (None, "America/New_York"):
        kind = pa.timestamp(unit, zone)
        ODD[f"times in {unit}, {zone}"] = numbers_as(kind, MOST, None, -MOST, 0, -1, 1_700_000_000)
for kind in ("decimal32", "decimal64", "decimal128", "decimal256"):
    if hasattr(pa, kind):
        ODD[kind] = lambda kind=kind: pa.array(repeated([5, None, 7, -5]), getattr(pa, kind)(9, 2))


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"RowFunction", "GroupFunction"}))  # errors of their own
def test_odd_values_end_in_numbers_or_in_a_named_error(name):
    for i, make in enumerate(EXAMPLES[name]):
        for col in inputs_of(make):
            for odd in chosen(ODD, name, i, col, count=2 if i == 0 else 1):
                try:
                    outcome(make, **{col: ODD[odd]()})
                except Exception as error:
                    raise AssertionError(f"{name} {i}: {odd} in {col!r}: {error!r}") from error


SMALL = [0.5, None, -0.0, math.inf, -2.25, 0.0, 1024.0, -math.inf, 0.5, None, 3.0, 0.5]  # float16 holds them
FLAGS = [True, None, False, True, True, False, None, False, True, True, None, False]
DAY = [19_000, None, 5, -1, 19_000, 20_000, 0, None, 5, 40_000, -25_000, 19_000]  # since 1970
nan = [math.nan if v is None else v for v in SMALL]


def days_as(kind):
    seconds = pa.array([None if d is None else d * 86_400 for d in DAY], pa.int64())
    return seconds.cast(pa.timestamp("s", kind.tz)).cast(kind)


SAME = {
    "floats": [
        lambda: np.array(nan),
        lambda: pa.array(SMALL),
        lambda: np.array(nan, "f4"),
        lambda: np.array(nan, "f2"),
        lambda: pd.Series(SMALL, dtype="Float64"),
        lambda: pd.Series(pd.arrays.FloatingArray(np.array(nan), np.arange(N) == 1)),
        lambda: pd.Series(SMALL, dtype=object),
        lambda: pa.array(SMALL).dictionary_encode(),
        lambda: pd.Series(nan, dtype="category"),
    ],
    "booleans": [
        lambda: pa.array(FLAGS),
        lambda: pd.Series(FLAGS, dtype="boolean"),
        lambda: pd.Series(FLAGS, dtype=object),
        lambda: pd.Series(FLAGS, dtype="category"),
        lambda: pa.array(FLAGS).dictionary_encode(),
        lambda: pa.array(FLAGS).cast(pa.int8()),
        lambda: pd.Series(FLAGS, dtype="boolean").astype("Int64"),
        lambda: pa.array(FLAGS).cast(pa.uint64()),
    ],
    "days": [
        lambda: days_as(pa.timestamp("s")),
        lambda: days_as(pa.timestamp("ms")),
        lambda: days_as(pa.timestamp("us")),
        lambda: days_as(pa.timestamp("ns")),
        lambda: pa.array(DAY, pa.int32()).cast(pa.date32()),
        lambda: pa.array(DAY, pa.int32()).cast(pa.date32()).cast(pa.date64()),
        lambda: np.array(["NaT" if d is None else d for d in DAY], "M8[D]"),
    ],
    "spans": [
        lambda: np.array([math.nan if d is None else d for d in DAY]),
        lambda: pa.array(DAY, pa.duration("s")),
        lambda: pa.array(DAY, pa.duration("s")).cast(pa.duration("ns")),
        lambda: np.array(["NaT" if d is None else d for d in DAY], "m8[s]"),
    ],
    "no values": [
        lambda: np.full(N, math.nan),
        lambda: pa.nulls(N),
        lambda: pd.Series([None] * N, dtype=object),
        lambda: pd.Series([pd.NA] * N, dtype="Float64"),
        lambda: pa.nulls(N, pa.float32()),
    ],
}


def assert_same(a, b, about):
    assert (a is FastrecError) == (b is FastrecError), about
    if a is FastrecError:
        return
    for x, y in zip(a, b, strict=True):
        pairs = zip(plain(x.to_pylist()), plain(y.to_pylist()), strict=True)
        for i, (u, v) in enumerate(pairs):
            near = isinstance(u, float) and isinstance(v, float) and math.isclose(u, v, rel_tol=1e-12, abs_tol=ROUNDING)
            assert u == v or near, f"{about}, row {i}: {u} {v}"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_value_is_the_same_whatever_holds_it(name):
    for i, make in enumerate(EXAMPLES[name] if EVERY else EXAMPLES[name][:2]):
        for col in inputs_of(make):
            for family in chosen(SAME, name, i, col, count=1):
                first, *others = SAME[family]
                expected = outcome(make, **{col: first()})
                for k in chosen(range(len(others)), name, i, col, family, count=2):
                    about = f"{name} {i}: {family} {k + 1} in {col!r}"
                    assert_same(expected, outcome(make, **{col: others[k]()}), about)
