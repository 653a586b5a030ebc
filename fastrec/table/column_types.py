"""The type of a column in a word (``text``, ``number``, ``bool``, ``time``, ``time in Europe/Berlin``, ``clock``,
``list of text``, …), and conversion of values to it: one rule for files, frames and requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.errors import DataError
from fastrec.table.column import plain_decimals
from fastrec.table.convert import as_column
from fastrec.table.keys import is_numeric, is_text
from fastrec.table.read import MISSING_TEXT

if TYPE_CHECKING:
    from fastrec.table.table import Table


ZONED, LIST = "time in ", "list of "
_OFFSET = r"(?:Z|[+-]\d\d:?\d\d|:\d\d[+-]\d\d)$"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?"
_SPAN = r"-?\d+ days [+-]?\d\d:\d\d:\d\d(?:\.\d+)?"  # as pandas writes durations, which are numbers of seconds
_EMPTY = {"text": pa.string(), "number": pa.float64(), "bool": pa.bool_(), "clock": pa.time64("us")}


def type_of(kind: pa.DataType) -> str | None:
    """Return the word for an Arrow type; None: no values, or values that are carried through."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "bool"
    if is_numeric(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind):
        return "number"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        return "time" if zone is None else f"{ZONED}{zone}"
    if pa.types.is_time(kind):
        return "clock"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = type_of(kind.value_type)
        return None if inner is None else f"{LIST}{inner}"
    return None


def types_of(table: pa.Table | Table) -> dict[str, str]:
    """Return column → the word for its type, of the columns that have values.

    Decimals are numbers, or text where they are integers that no number holds.
    """
    found: dict[str, str] = {}
    for name in table.column_names if isinstance(table, pa.Table) else table.names:
        values, chunked = table[name], isinstance(table, pa.Table)
        kind = (values.slice(0, 0) if chunked else values.slice(0, 0).to_arrow()).type
        word = type_of(kind)
        if word is None or (_is_empty(values) if chunked else values.is_missing().all()):
            continue
        if pa.types.is_decimal(kind):
            word = str(type_of(plain_decimals(values.combine_chunks(), name=name).type))
        found[name] = word
    return found


def shared_types(*tables: pa.Table | Table | None) -> dict[str, str]:
    """Return column → its common type in several tables of the same kind, such as train and test.

    Text and anything else is text, yes or no and numbers are numbers; else the first table decides.
    """
    found: dict[str, str] = {}
    for types in (types_of(t) for t in tables if t is not None):
        for name, kind in types.items():
            both = {kind, found.setdefault(name, kind)}
            if len(both) > 1 and both <= {"text", "bool", "number", "clock", "time"}:
                found[name] = "text" if "text" in both else "number" if both == {"bool", "number"} else found[name]
    return found


def differing(*tables: pa.Table | None) -> list[str]:
    """List columns that are text in one table and something else in another."""
    types = [types_of(t) for t in tables if t is not None]
    mixed = shared_types(*tables)
    return [n for n, k in mixed.items() if k == "text" and any(t.get(n, "text") != "text" for t in types)]


def as_types(table: Table, types: Mapping[str, str], names: Sequence[str] | None = None) -> Table:
    """Convert a table's columns (``names``, or all) to their ``types``; others stay as they are."""
    made = {}
    for name in types if names is None else names:
        if name not in table or name not in types:
            continue
        column, wanted = table[name], types[name]
        kind = type_of(column.slice(0, 0).to_arrow().type)
        if kind == wanted or (kind is None and column.kind in ("vector", "opaque")):
            continue
        if column.kind == "datetime" and kind != "time" and wanted.startswith(ZONED):
            made[name] = replace(column, zone=wanted.removeprefix(ZONED))
        else:
            made[name] = as_column(as_type(column.to_arrow(), wanted, column=name), name=name)
    return table.with_columns(made) if made else table


def as_type(
    values: pa.Array | pa.ChunkedArray, wanted: str, *, column: str, file: str | Path | None = None
) -> pa.Array | pa.ChunkedArray:
    """Convert values ``[n]`` of any type to a wanted one; refuse a value that is none, naming file, column and row.

    Numbers are text as they are written, text of numbers is numbers, ``true`` and ``false`` are yes and no, text in
    ISO 8601 is times, and a moment of another zone is the same moment. No values at all are missing ones of any type.
    """
    kind = type_of(values.type)
    if kind == wanted and "decimal" not in str(values.type):
        return values
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_decimal(values.type):
        return as_type(plain_decimals(values, name=column), wanted, column=column, file=file)
    if _is_empty(values):
        return pa.nulls(len(values), _arrow_type(wanted))
    if kind is not None and wanted.startswith(LIST) and kind.startswith(LIST):
        inner = as_type(values.flatten(), wanted.removeprefix(LIST), column=column, file=file)
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        return pa.LargeListArray.from_arrays(offsets, inner, mask=values.is_null() if values.null_count else None)
    base = "time" if wanted.startswith(ZONED) else wanted
    make = _MAKERS.get((kind, "zoned" if wanted.startswith(ZONED) else wanted))
    if make is None and kind is not None and kind.startswith(ZONED) and wanted.startswith(ZONED):
        return values.cast(pa.timestamp(values.type.unit, wanted.removeprefix(ZONED)))
    if make is None:
        problem = f"holds {_called(kind, values.type)}, and is {wanted} in the run"
        raise DataError(problem, file=file, column=column, row=_first(values.is_valid()), remedy=_remedy(kind, wanted))
    made = make(values)
    row = _first(pc.and_(pc.is_null(made), _is_value(values)))
    if row is not None:
        text = repr(values[row].as_py())
        shown = text if len(text) <= 60 else f"{text[:59]}…"
        problem = f"{shown} is no {base}, which the column is in the run"
        raise DataError(problem, file=file, column=column, row=row, remedy=_remedy(kind, wanted))
    return made.cast(pa.timestamp("us", wanted.removeprefix(ZONED))) if wanted.startswith(ZONED) else made


def times_in_text(texts: pa.Array, form: str | None = None, *, zoned: bool | None = None) -> pa.Array:
    """Parse text ``[n]`` as times in microseconds, by ISO 8601 or ``form`` (of ``strptime``); missing if it is none.

    ``zoned``: whether they have an offset from UTC, and become moments; None: whether any has. The others are none.
    """
    import pandas as pd

    text = pd.Series(texts.to_pandas(), dtype="object").str.strip()
    made = None
    if form is not None:
        made = pd.to_datetime(text, format=form, errors="coerce", utc="%z" in form)
        text = text.where(made.isna() & text.str.match(r"\d{4}-\d\d-\d\d", na=False), None)
        zoned = "%z" in form if zoned is None else zoned
    offset = text.str.contains(_OFFSET, regex=True, na=False)
    zoned = bool(offset.any()) if zoned is None else zoned
    iso = pd.to_datetime(text.where(offset == zoned, None), format="ISO8601", errors="coerce", utc=zoned)
    made = iso if made is None else iso if bool(made.isna().all()) else made.fillna(iso)
    return pa.Array.from_pandas(made.dt.as_unit("us"))


def clocks_in_text(texts: pa.Array) -> pa.Array:
    """Parse text such as ``7:30`` or ``07:30:15`` as times of day; missing if it is none."""
    import pandas as pd

    text = pd.Series(texts.to_pandas(), dtype="object").str.strip()
    text = text.where(text.str.fullmatch(_CLOCK, na=False), None)
    span = pd.to_timedelta(text.where(text.str.count(":") != 1, text + ":00"), errors="coerce")
    whole = span.where(span < pd.Timedelta(days=1)).to_numpy().astype("timedelta64[us]")
    return pa.array(whole.astype(np.int64), pa.int64(), mask=np.isnat(whole)).cast(pa.time64("us"))


def _arrow_type(wanted: str) -> pa.DataType:
    if wanted.startswith(LIST):
        return pa.large_list(_arrow_type(wanted.removeprefix(LIST)))
    if wanted.startswith("time"):
        return pa.timestamp("us", wanted.removeprefix(ZONED) if wanted.startswith(ZONED) else None)
    return _EMPTY[wanted]


def _is_value(values: pa.Array) -> pa.Array:
    """Tell whether a value is there: no null, no NaN, no text that means missing."""
    if is_text(values.type):
        text = pc.utf8_trim_whitespace(values.cast(pa.string()))
        return pc.and_(values.is_valid(), pc.invert(pc.is_in(text, value_set=pa.array(MISSING_TEXT))))
    if pa.types.is_floating(values.type):
        return pc.invert(values.is_null(nan_is_null=True))
    return values.is_valid()


def _is_empty(values: pa.Array | pa.ChunkedArray) -> bool:
    if pa.types.is_floating(values.type):
        return bool(pc.all(values.is_null(nan_is_null=True)).as_py())
    return values.null_count == len(values)


def _first(chosen: pa.Array) -> int | None:
    row = pc.index(chosen, pa.scalar(True)).as_py()
    return row if row >= 0 else None


def _called(kind: str | None, arrow: pa.DataType) -> str:
    if kind is None:
        return f"values of type {arrow}"
    if kind.startswith(ZONED):
        return f"times in a zone ({kind.removeprefix(ZONED)})"
    return {"time": "times without a zone", "number": "numbers", "clock": "times of day", "bool": "yes and no"}.get(
        kind, kind
    )


def _remedy(kind: str | None, wanted: str) -> str:
    if wanted.startswith(ZONED) and kind in ("time", "text"):
        zone = wanted.removeprefix(ZONED)
        return f"Give its moments: text with an offset or Z, or times with a zone (df.t.dt.tz_localize({zone!r}))"
    if wanted == "time" and kind is not None and kind.startswith(ZONED):
        return "Give the clock times that the run has learned, without a zone (df.t.dt.tz_localize(None))"
    if wanted.startswith("time"):
        return "Give times: text in ISO 8601, or pd.to_datetime(…, unit=…)"
    if wanted == "number" and kind == "text":
        return (
            "Write a number or leave it empty; is the text a value as others, name the column in the recipe's "
            "Reading(texts=[…]) and run it again"
        )
    return f"Give it as {wanted}, as in the training rows"


# from one type to another: null where a value is none of the other


def _number_to_text(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    wide = values.cast(pa.float64())
    known = pc.invert(wide.is_null(nan_is_null=True))
    whole = pc.and_(known, pc.and_(pc.equal(pc.floor(wide), wide), pc.less(pc.abs(wide), 2.0**53)))
    integers = pc.if_else(whole, wide, 0.0).cast(pa.int64()).cast(pa.string())
    return pc.if_else(known, pc.if_else(whole, integers, values.cast(pa.string())), pa.scalar(None, pa.string()))


def _text_to_number(values: pa.Array) -> pa.Array:
    import pandas as pd

    text = pd.Series(pc.if_else(_is_value(values), values, None).to_pandas(), dtype="object").str.strip()
    made = pd.to_numeric(text, errors="coerce")
    spans = text.where(text.str.fullmatch(_SPAN, na=False))
    made = made.fillna(pd.to_timedelta(spans, errors="coerce").dt.total_seconds())
    if bool(text.str.fullmatch(r"[+-]?\d{1,18}", na=True).all()):
        return pa.array([None if v is None or v != v else int(v) for v in text], pa.int64())
    return pa.array(made.to_numpy(dtype="float64"), from_pandas=True)


def _text_to_bool(values: pa.Array) -> pa.Array:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(values.cast(pa.string())))
    yes, no = (pc.is_in(text, value_set=pa.array(v)) for v in (["true", "1", "1.0"], ["false", "0", "0.0"]))
    return pc.if_else(pc.or_(yes, no), yes, pa.scalar(None, pa.bool_()))


def _number_to_bool(values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.float64(), safe=False)
    known = pc.or_(pc.equal(numbers, 0.0), pc.equal(numbers, 1.0))
    return pc.if_else(known, pc.equal(numbers, 1.0), pa.scalar(None, pa.bool_()))


_MAKERS: dict[tuple[str | None, str], Any] = {
    ("number", "text"): _number_to_text,
    ("bool", "text"): lambda v: pc.if_else(v, "True", "False"),
    ("text", "number"): _text_to_number,
    ("bool", "number"): lambda v: v.cast(pa.int8()),
    ("text", "bool"): _text_to_bool,
    ("number", "bool"): _number_to_bool,
    ("text", "time"): lambda v: times_in_text(v, zoned=False),
    ("text", "zoned"): lambda v: times_in_text(v, zoned=True),
    ("text", "clock"): clocks_in_text,
    ("number", "clock"): lambda v: v,
}
