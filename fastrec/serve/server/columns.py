"""The columns of requests → the arrays that the graph takes, of one request or of several together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.competition.reading import parsed
from fastrec.errors import DataError
from fastrec.serve.server.call import Refusal, shortened
from fastrec.serve.server.spec import Input, Spec
from fastrec.table.column_types import as_type
from fastrec.table.keys import is_text

# One column of a request → the array that the graph takes: from JSON's values, from Arrow, from a tensor.
#
# What has another type is read by ``as_type``, as the run reads it (numbers as text, text of numbers as numbers), or
# refused with its column and row; a number is never rounded to fit, except to a float's width.

DTYPES = {"int64": np.int64, "float64": np.float64, "float32": np.float32, "string": np.object_, "bool": np.bool_}
_JSON = {"int64": {int}, "float64": {float, int, bool}, "float32": {float, int, bool}, "string": {str}, "bool": {bool}}
_OWN = {name: pa.string() if name == "string" else pa.from_numpy_dtype(dtype) for name, dtype in DTYPES.items()}


_NOT_MISSING = "the value is missing, and may not be"
_NOT_WHOLE = "{} is no whole number below 2**53"
_KINDS = {float: "number with a fraction", int: "integer", str: "string", bool: "bool", list: "list", dict: "object"}


def from_values(column: Input, values: list[Any]) -> np.ndarray:
    """Convert values of JSON, None for missing, to the array ``[n]`` of the column's type."""
    kinds, missing = set(map(type, values)), None
    if float in kinds and not column.is_float:  # a whole column became floats where one value was missing, as in pandas
        values = [
            None if v != v else int(v) if type(v) is float and v.is_integer() and abs(v) < limits.EXACT_FLOAT else v
            for v in values
        ]
        kinds = set(map(type, values))
    if type(None) in kinds:
        kinds.discard(type(None))
        missing = [v is None for v in values]
        if not column.may_be_missing:
            row = missing.index(True)
            raise Refusal(422, _NOT_MISSING, column=column.name, row=row, remedy=f"Send {wanted_value(column)}")
    if column.type == "string" and kinds & {int, float, bool}:  # numbers are text as they are written
        values = [_written(v) if type(v) in (int, float, bool) else v for v in values]
        kinds = set(map(type, values)) - {type(None)}
    if not kinds <= _JSON[column.type]:
        if column.type != "bool" and column.unit is None and {str} < kinds <= {str} | _JSON[column.type]:
            # Convert each kind separately: as text a number could be read otherwise (1.5 as 15).
            text = [type(v) is str for v in values]
            pairs = [*zip(values, text, strict=True)]
            parts = [v if t else "0" for v, t in pairs], [0 if t else v for v, t in pairs]
            return np.where(text, *(from_values(column, part) for part in parts))
        if column.type != "bool" and column.unit is None and kinds == {str}:
            return from_arrow(column, pa.array(values, pa.string()))
        if column.unit is not None and kinds == {str}:
            # Nulls are read as 0 here; ``missing`` says where they are.
            times = from_arrow(replace(column, missing=0), pa.array(values, pa.string()))
            return times if missing is None else np.where(missing, column.missing, times)
        allowed = _JSON[column.type] | {type(None)} | ({str} if column.unit is not None else set())
        row = next((i for i, v in enumerate(values) if type(v) not in allowed), None)
        if row is None:
            raise Refusal(422, "some times are text and some are integers", column=column.name)
        kind = _KINDS.get(type(values[row]), type(values[row]).__name__)
        article = "an" if kind == "integer" else "a"
        said = f"{shortened(values[row])} is {article} {kind}, not {wanted_value(column)}"
        if type(values[row]) is float and abs(values[row]) >= limits.EXACT_FLOAT:
            said = _NOT_WHOLE.format(values[row])
        raise Refusal(422, said, column=column.name, row=row, remedy=f"Send {wanted_value(column)}")
    if missing is not None:
        fill = np.nan if column.is_float else column.missing
        values = [fill if v is None else v for v in values]
    try:
        if column.type != "float32":
            return np.array(values, dtype=DTYPES[column.type])
        with np.errstate(over="ignore"):  # a number too large for 32 bits becomes infinite, as in training
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        kind = float if column.is_float else np.int64
        row = _first_failing(len(values), lambda n: np.array(values[:n], dtype=kind), OverflowError)
        raise Refusal(422, f"{shortened(values[row])} is out of range", column=column.name, row=row) from None


def from_arrow(column: Input, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Convert a column of Arrow to the array ``[n]`` of the column's type."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if values.type == _OWN[column.type] and not values.null_count:
        return values.to_numpy(zero_copy_only=False)
    values = _decoded(values)
    if column.type == "int64" and pa.types.is_floating(values.type):
        values = _whole(column, values.cast(pa.float64()))
    values = _cast(column, values)  # blank text becomes missing
    if values.null_count and not column.may_be_missing:
        row = pc.index(values.is_null(), pa.scalar(True)).as_py()
        raise Refusal(422, _NOT_MISSING, column=column.name, row=row, remedy=f"Send {wanted_value(column)}")
    if column.is_float:
        return values.to_numpy(zero_copy_only=False)  # nulls become NaN
    if values.null_count:
        values = values.fill_null(pa.scalar(column.missing, values.type))
    return values.to_numpy(zero_copy_only=False)


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def from_array(column: Input, values: np.ndarray) -> np.ndarray:
    """Convert a numpy array ``[n]`` to the column's type: NaN, NaT and None are missing."""
    if values.dtype == DTYPES[column.type] and values.dtype != object:
        return values
    if column.unit is not None and values.dtype == object:
        known = [v for v in values if v is not None and v == v]
        if known and all(isinstance(v, dt.datetime) for v in known):
            return from_arrow(column, pa.array(values.tolist(), from_pandas=True))
    if values.dtype.kind in "OUT":
        return from_values(column, [None if v is None or v != v else v for v in values.tolist()])
    if values.dtype.kind == "M" and column.zone is not None:  # numpy's times have no zone: they are moments in UTC
        unit = "ns" if column.unit == "ns" else "us"
        return from_arrow(column, pa.array(values.astype(f"M8[{unit}]")).cast(pa.timestamp(unit, "UTC")))
    return from_arrow(column, pa.array(values))


def filled(column: Input, rows: int) -> np.ndarray:
    """Build ``[rows]`` missing values; empty ones if the type has none."""
    value = np.nan if column.is_float else column.missing
    if value is None:
        value = "" if column.type == "string" else 0
    return np.full(rows, value, DTYPES[column.type])


def arrow_type(column: Input) -> pa.DataType:
    """Return the column's type in a table of Arrow."""
    return _OWN[column.type] if column.unit is None else pa.timestamp(column.unit, column.zone)


def to_arrow(column: Input, values: np.ndarray) -> pa.Array:
    """Invert ``from_arrow``: the missing value becomes null, integers of a time a timestamp."""
    missing = np.isnan(values) if column.is_float else None
    if column.missing is not None:
        missing = values == column.missing
    made = pa.array(values, mask=missing) if column.unit is not None else pa.array(values, arrow_type(column), missing)
    return made.cast(arrow_type(column))


def _cast(column: Input, values: pa.Array) -> pa.Array:
    """Cast to the column's own type of Arrow; times become integers of its unit."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.int64() if column.unit is not None else arrow_type(column))
    text = is_text(kind)
    integer, clock = pa.types.is_integer(kind), pa.types.is_timestamp(kind)
    if column.unit is not None and (text or clock or pa.types.is_date(kind)):
        return _times(column, values)
    number = integer or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)
    if column.unit is None and column.type != "bool" and (text if column.type != "string" else number):
        return _cast(column, _converted(column, values))
    if not {"string": text, "int64": integer, "bool": pa.types.is_boolean(kind)}.get(column.type, number):
        raise Refusal(422, f"its type is {shortened(str(kind))}, not {wanted_value(column)}", column=column.name)
    if column.is_float:
        if pa.types.is_boolean(kind):
            values = values.cast(pa.uint8())
        return values.cast(_OWN[column.type], safe=False)
    return _try_cast(column, values, lambda v: v.cast(_OWN[column.type]), f"{wanted_value(column)}: it is out of range")


def _converted(column: Input, values: pa.Array) -> pa.Array:
    """Read text as numbers and numbers as text, as the run does."""
    wanted = "text" if column.type == "string" else "number"
    try:
        if column.text is not None and wanted == "number":
            values = parsed(values, column.text, column=column.name)
        made = as_type(values, wanted, column=column.name)
    except DataError as error:
        said = error.problem.replace(" in the run", "")
        raise Refusal(422, said, column=column.name, row=error.row, remedy=f"Send {wanted_value(column)}") from None
    return _whole(column, made) if column.type == "int64" and pa.types.is_floating(made.type) else made


def _written(value: bool | int | float) -> str:
    whole = type(value) is float and value.is_integer() and abs(value) < limits.EXACT_FLOAT
    return str(int(value)) if whole else str(value)


def _whole(column: Input, values: pa.Array) -> pa.Array:
    """Cast floats that are integers or NaN to integers and nulls."""
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    bad = pc.or_(pc.greater_equal(pc.abs(values), limits.EXACT_FLOAT), pc.not_equal(pc.floor(values), values))
    row = pc.index(bad, pa.scalar(True)).as_py()
    if row >= 0:
        raise Refusal(422, _NOT_WHOLE.format(values[row]), column=column.name, row=row)
    return values.cast(pa.int64())


def _times(column: Input, values: pa.Array) -> pa.Array:
    """Cast text, timestamps or dates to integers of the column's unit; nothing is rounded, no zone is guessed."""
    kind, zone = values.type, None if column.zone is None else "UTC"
    if pa.types.is_timestamp(kind) and (kind.tz is None) != (zone is None):
        said = "has no zone, the column has" if kind.tz is None else f"has a zone ({kind.tz}), the column has none"
        raise Refusal(422, f"the time {said}", column=column.name)
    if pa.types.is_date(kind) and zone is not None:
        raise Refusal(422, "a date is no moment: the column has a zone", column=column.name)
    if column.text is not None and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        try:
            values = parsed(values, column.text, column=column.name)
        except DataError as error:
            remedy = f"Send {wanted_value(column)}"
            raise Refusal(422, error.problem, column=column.name, row=error.row, remedy=remedy) from None
        kind = values.type
    own = [pa.timestamp(column.unit, zone), pa.int64()]
    wanted = f"a time in {column.unit}"
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        own.insert(0, pa.timestamp("ns" if column.unit == "ns" else "us", zone))
        wanted = wanted_value(column)
    return _try_cast(column, values, lambda v: reduce(pa.Array.cast, own, v), wanted)


def _try_cast(column: Input, values: pa.Array, cast: Callable[[pa.Array], pa.Array], wanted: str) -> pa.Array:
    try:
        return cast(values)
    except pa.ArrowInvalid:
        row = _first_failing(len(values), lambda n: cast(values.slice(0, n)), pa.ArrowInvalid)
        try:
            said = str(values[row])
        except (OverflowError, ValueError):  # a moment that Python has none of
            said = f"{values[row].value} {values.type}"
        raise Refusal(422, f"{shortened(said)} is not {wanted}", column=column.name, row=row) from None


def _first_failing(n: int, attempt: Callable[[int], Any], error: type[Exception]) -> int:
    """Find by halves the row at which ``attempt(rows)`` begins to fail, as it fails for all longer pieces then."""
    good, bad = 0, n
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            attempt(middle)
            good = middle
        except error:
            bad = middle
    return bad - 1


def wanted_value(column: Input) -> str:
    """Describe a valid value of a column, for messages."""
    if column.text is not None and "bool" in column.text:
        return "true or false"
    if column.unit is None:
        return {"string": "a string", "bool": "a bool"}.get(column.type, f"a number ({column.type})")
    zone = "without a zone" if column.zone is None else "with an offset or Z"
    return f"a time: ISO 8601 {zone}, or an integer in {column.unit}"


def event_arrays(
    spec: Spec, sent: Mapping[str, Any], rows: int, convert: Callable[[Input, Any], np.ndarray]
) -> dict[str, np.ndarray]:
    """Build an array ``[rows, most]`` for each column of events, and int64 ``[rows]``, the number of events.

    In ``sent`` a row's events are a list, the oldest first, None where there are none; ``convert`` makes arrays.
    """
    made: dict[str, np.ndarray] = {}
    counts: tuple[str, np.ndarray] | None = None
    there = [i for i in spec.event_columns if i.name in sent]
    for column in there:
        flat, lengths = event_parts(column, sent[column.name])
        if counts is not None and (lengths != counts[1]).any():
            row = int((lengths != counts[1]).argmax())
            said = f"the row has {lengths[row]} events here and {counts[1][row]} in {counts[0]!r}"
            raise Refusal(422, said, column=column.name, row=row)
        counts = counts or (column.name, lengths)
        made[column.name] = _matrix(column, flat, lengths, convert)
    lacking = next((i.name for i in spec.event_columns if i.name not in sent), None)
    if there and lacking is not None:
        raise Refusal(422, "the column is missing, and other columns of events are there", column=lacking)
    made |= {i.name: _empty(i, rows) for i in spec.event_columns if i.name not in made}
    most = max(i.events or 0 for i in spec.event_columns)
    return {**made, spec.events_count: np.zeros(rows, np.int64) if counts is None else np.minimum(counts[1], most)}


def event_parts(column: Input, values: Any) -> tuple[Any, np.ndarray]:
    """Flatten the values of all rows, and count those of each row: int64 ``[rows]``."""
    if isinstance(values, pa.ChunkedArray | pa.Array):
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        kind = values.type
        if pa.types.is_null(kind):
            return pa.nulls(0), np.zeros(len(values), np.int64)
        if pa.types.is_fixed_size_list(kind):
            values = values.cast(pa.large_list(kind.value_type))
        elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise Refusal(422, f"its type is {shortened(str(kind))}, not a list of ids or values", column=column.name)
        lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return _decoded(values.flatten()), lengths
    rows = values.tolist() if isinstance(values, np.ndarray) else values
    rows = [v.tolist() if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v for v in rows]
    odd = next((i for i, v in enumerate(rows) if v is not None and type(v) is not list), None)
    if odd is not None:
        raise Refusal(422, f"{shortened(rows[odd])} is no list of events' values", column=column.name, row=odd)
    rows = [v or [] for v in rows]
    return list(chain.from_iterable(rows)), np.fromiter(map(len, rows), np.int64, len(rows))


def _matrix(column: Input, flat: Any, lengths: np.ndarray, convert: Callable[[Input, Any], np.ndarray]) -> np.ndarray:
    ends = lengths.cumsum()
    try:
        read = from_arrow if isinstance(flat, pa.Array) else from_values if isinstance(flat, list) else convert
        values = read(column, flat)
    except Refusal as refusal:  # the row of an event is that of its list
        row = None if refusal.row is None else int(np.searchsorted(ends, refusal.row, side="right"))
        said = f"an event: {refusal.problem}"
        raise Refusal(refusal.status, said, column=column.name, row=row, remedy=refusal.remedy) from None
    most = column.events or 0
    kept = np.minimum(lengths, most)
    made = _empty(column, len(lengths))
    place = np.arange(most)
    there = place < kept[:, None]
    made[there] = values[((ends - kept)[:, None] + place)[there]]
    return made


def _empty(column: Input, rows: int) -> np.ndarray:
    return filled(column, rows * (column.events or 0)).reshape(rows, column.events or 0)


@dataclass
class RequestColumns:
    """The rows of one request, under names that the export knows.

    The values become arrays when they are scored: 60 columns of one row cost about as much as 60 columns of a hundred.
    """

    spec: Spec  # of the export
    sent: Mapping[str, Any]  # each column as it came
    rows: int  # how many there are
    convert: Callable[[Input, Any], np.ndarray]  # makes an array ``[rows]`` of the declared type, or refuses
    lists: np.ndarray | None = None  # int64 ``[rows]``, each row's list, from 0; None: all are of one
    n_lists: int = 1  # how many lists there are
    items: list[Any] | None = None  # the candidates' ids as they were sent
    made: dict[str, np.ndarray] = field(default_factory=dict)  # arrays ``[rows]`` made from events

    def arrays(self) -> dict[str, np.ndarray]:
        """Convert to an array ``[rows]`` for every input but the list's."""
        return {**_arrays(self.spec, self.sent, self.rows, self.convert), **self.made}

    def table(self) -> pa.Table:
        """Convert to the rows that features of events take: with nulls, and times as timestamps."""
        arrays = self.arrays()
        columns = {i.name: to_arrow(i, arrays[i.name]) for i in self.spec.sent}
        if self.spec.list is not None:
            columns[self.spec.list] = pa.array(np.zeros(self.rows, np.int64) if self.lists is None else self.lists)
        return pa.table(columns)


def arrays_together(batch: Sequence[RequestColumns]) -> dict[str, np.ndarray]:
    """Stack the rows of several requests to one export."""
    first = batch[0]
    if len(batch) == 1:
        return first.arrays()
    if all(c.convert is from_values and not c.made and c.sent.keys() == first.sent.keys() for c in batch):
        joined = {
            name: list(chain.from_iterable([c.sent[name] for c in batch]))
            for name in first.sent
            if name not in first.spec.ignored
        }
        return _arrays(first.spec, joined, sum(c.rows for c in batch), from_values)
    parts = [c.arrays() for c in batch]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def lists_together(batch: Sequence[RequestColumns]) -> np.ndarray:
    """Count through the lists of all requests: numbers ``[rows of all]``, of the type that the graph's input has."""
    numbers, before = [], 0
    for one in batch:
        numbers.append(np.full(one.rows, before, np.int64) if one.lists is None else one.lists + before)
        before += one.n_lists
    joined = np.concatenate(numbers)
    kind = next(i.type for i in batch[0].spec.inputs if i.name == batch[0].spec.list)
    return joined.astype(str).astype(object) if kind == "string" else joined.astype(DTYPES[kind])


def _arrays(
    spec: Spec, sent: Mapping[str, Any], rows: int, convert: Callable[[Input, Any], np.ndarray]
) -> dict[str, np.ndarray]:
    plain = [i for i in spec.sent if i.events is None]
    made = {i.name: convert(i, sent[i.name]) if i.name in sent else filled(i, rows) for i in plain}
    for column in (i for i in plain if i.longest is not None):
        for row, text in enumerate(made[column.name].tolist()):
            # A letter has 4 bytes at most: short texts need not be encoded.
            if len(text) * 4 > column.longest and len(text.encode()) > column.longest:
                raise Refusal(422, f"the text has more than {column.longest} bytes", column=column.name, row=row)
    for column in (i for i in plain if i.text is not None and "bool" in i.text and i.is_float):
        values = made[column.name]
        bad = ~((values == 0) | (values == 1) | np.isnan(values))
        if bad.any():
            row = int(bad.argmax())
            said, remedy = f"{values[row]:g} is neither yes nor no", f"Send {wanted_value(column)}"
            raise Refusal(422, said, column=column.name, row=row, remedy=remedy)
    return made if spec.events_count is None else made | event_arrays(spec, sent, rows, convert)
