"""The body of a request → the rows that it holds: JSON as columns or as rows, or a stream of Arrow."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from fastrec._core.messages import nearest
from fastrec.serve.server.call import Limits, Refusal, shortened
from fastrec.serve.server.columns import RequestColumns, arrow_type, from_array, from_arrow, from_values, wanted_value
from fastrec.serve.server.spec import Input, Spec
from fastrec.table.keys import is_text


def columns_of_rows(
    spec: Spec, rows: list[dict[str, Any]], context: Mapping[str, Any] | None = None, *, max_rows: int
) -> RequestColumns:
    """Read rows of JSON: ``[{"age": 31, "city": "Köln"}, …]``; ``context`` has the values that a row lacks."""
    context = context or {}
    columns = lists_of_rows(rows, max_rows, context)
    if not rows:
        columns = {i.name: [] for i in spec.sent}
    _check_names(spec, columns)
    for column in spec.sent:
        if column.name not in columns and column.nullable and column.events is None:
            columns[column.name] = [None] * len(rows)
        elif column.name in columns and not column.nullable and column.required and column.name not in context:
            lacking = next((i for i, row in enumerate(rows) if column.name not in row), None)
            if lacking is not None:
                remedy = f"Send {wanted_value(column)}{', or null' if column.may_be_missing else ''}"
                raise Refusal(422, "the row does not have this column", column=column.name, row=lacking, remedy=remedy)
    return checked_columns(spec, columns, len(rows), from_values, list)


def columns_of_candidates(
    spec: Spec, candidates: list[dict[str, Any]], context: Mapping[str, Any] | None = None, *, max_rows: int
) -> RequestColumns:
    """Read the candidates of one list as rows; each is another item, and no column of theirs is in ``context``."""
    columns = columns_of_rows(spec, candidates, context, max_rows=max_rows)
    if not candidates:
        raise Refusal(422, "there are no candidates", remedy="Send one object for each")
    for name in context or {}:
        row = next((i for i, candidate in enumerate(candidates) if name in candidate), None)
        if row is not None:
            remedy = "Leave it out of one of them"
            raise Refusal(422, "it is in context and in a candidate", column=name, row=row, remedy=remedy)
    if spec.item is not None:
        if columns.items is None:
            remedy = "Send an integer or text with each"
            raise Refusal(422, "the candidates lack their ids", column=spec.item, remedy=remedy)
        numbers, count = _numbered(spec.item, columns.items, "an item")
        if count < len(numbers):
            row = int((numbers != np.arange(len(numbers))).argmax())  # numbers are in order of appearance
            said = f"an earlier candidate has the item {shortened(repr(columns.items[row]))}"
            raise Refusal(422, said, column=spec.item, row=row, remedy="Send each item once")
    return columns


def named_columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return a table's columns by name; refuse two of one name."""
    names = table.column_names
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise Refusal(422, "two columns have this name", column=twice)
    return dict(zip(names, table.columns))


def columns_of_arrays(spec: Spec, columns: Mapping[str, Any]) -> RequestColumns:
    """Read columns of numpy arrays, or of what numpy makes an array of."""
    lists, arrays = {i.name for i in spec.event_columns}, {}
    for name, values in columns.items():
        if name in lists:  # of lists of equal lengths numpy would make a matrix
            arrays[name] = np.empty(len(values), object)
            arrays[name][:] = list(values)
        else:
            arrays[name] = values if isinstance(values, np.ndarray) else np.array(values, object)
    for name, values in arrays.items():
        if values.ndim != 1:
            raise Refusal(422, f"its shape is {values.shape}, not [n]", column=name)
    return checked_columns(spec, arrays, check_same_length(arrays), from_array, np.ndarray.tolist)


def checked_columns(
    spec: Spec,
    columns: Mapping[str, Any],
    rows: int,
    convert: Callable[[Input, Any], np.ndarray],
    as_list: Callable[[Any], list[Any]],
) -> RequestColumns:
    """Check names; ``convert`` will make arrays of columns, ``as_list`` reads ids of lists and items."""
    _check_names(spec, columns)
    if not columns.keys() >= spec.required:
        missing = next(i for i in spec.sent if i.required and i.name not in columns)
        remedy = f"Send {wanted_value(missing)} for each row"
        raise Refusal(422, "the column is missing", column=missing.name, remedy=remedy)
    made = RequestColumns(spec, columns, rows, convert)
    if spec.list is not None and spec.list in columns:
        made.lists, made.n_lists = _numbered(spec.list, as_list(columns[spec.list]), "a list")
    if spec.item is not None and spec.item in columns:
        made.items = as_list(columns[spec.item])
    return made


def lists_of_rows(
    rows: list[dict[str, Any]], max_rows: int, context: Mapping[str, Any] | None = None
) -> dict[str, list[Any]]:
    """Turn rows of JSON into columns; where a row lacks a column, the value of ``context``, else None."""
    if type(rows) is not list:
        raise Refusal(422, "rows is no list of objects")
    check_rows(len(rows), max_rows)
    bad = next((i for i, r in enumerate(rows) if type(r) is not dict), None)
    if bad is not None:
        raise Refusal(422, f"{shortened(rows[bad])} is no object", row=bad)
    values = {**dict.fromkeys(chain.from_iterable(rows)), **(context or {})}
    return {name: [row.get(name, value) for row in rows] for name, value in values.items()}


def _check_names(spec: Spec, names: Iterable[str]) -> None:
    if spec.known.issuperset(names):
        return
    for name in names:
        if name in spec.known:
            continue
        if any(name == i.name for i in spec.made):
            raise Refusal(422, "the server makes this column from events", column=name, remedy="Leave it out")
        near = nearest(name, spec.known)
        takes = [n for n in (spec.list, spec.item) if n is not None]
        takes = list(dict.fromkeys([*takes, *(i.name for i in spec.sent)]))
        remedy = f"Is {near!r} meant? Rename it" if near else f"Leave it out; the model takes {', '.join(takes[:20])}"
        raise Refusal(422, "the model has no such column", column=name, remedy=remedy)


def check_same_length(columns: Mapping[str, Any]) -> int:
    """Return the number of values of every column; refuse different ones."""
    lengths = list(map(len, columns.values()))
    rows = lengths[0] if lengths else 0
    if lengths.count(rows) < len(lengths):
        first, other = next(iter(columns)), next(name for name, n in zip(columns, lengths) if n != rows)
        raise Refusal(422, f"it has {len(columns[other])} values, column {shortened(first)!r} has {rows}", column=other)
    return rows


def check_rows(rows: int, max_rows: int) -> None:
    """Refuse more rows than are allowed (413)."""
    if rows > max_rows:
        raise Refusal(413, f"there are {rows} rows, and no more than {max_rows} are allowed", remedy="Send fewer")


def _numbered(name: str, ids: list[Any], of: str) -> tuple[np.ndarray, int]:
    """Map ids, integers or text, to 0 … k - 1 in order of appearance; return k too."""
    if set(map(type, ids)) - {int, str}:
        row = next(i for i, v in enumerate(ids) if type(v) not in (int, str))
        raise Refusal(422, f"{shortened(ids[row])} is no id of {of} (an integer or text)", column=name, row=row)
    numbers = {v: i for i, v in enumerate(dict.fromkeys(ids))}
    return np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids)), max(len(numbers), 1)


def _listed(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise Refusal(422, f"ids of type {shortened(str(kind))} are neither integers nor text")
    return values.to_pylist()


# A stream of Arrow is checked before it is read: a few bytes can unpack to gigabytes.

_DICTIONARY, _BATCH = 2, 3  # kinds of messages
_BAD = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError, struct.error)


def parse_arrow(body: bytes, *, max_rows: int, max_bytes: int) -> pa.Table:
    """Check a stream of Arrow, then read it; ``max_bytes`` limits its unpacked text and also its number of values."""
    try:
        _check_batches(body, max_rows, max_bytes)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
        texts = [_texts(n, part) for n, whole in zip(table.column_names, table.columns) for part in whole.chunks]
        if sum(texts) > max_bytes:
            raise _too_large(max_bytes)
    except _BAD as error:
        raise Refusal(400, f"the body is no stream of Arrow: {shortened(' '.join(str(error).split())[:200])}") from None
    return table


def _check_batches(body: bytes, max_rows: int, max_values: int) -> None:
    """Refuse compressed or too large messages by their metadata; no buffer is read."""
    rows = values = 0
    for data, at, kind in _batches(body):
        if _field(data, at, 3) is not None:
            raise Refusal(415, "the buffers of the stream are compressed", remedy="Write it without compression")
        length, nodes = _field(data, at, 0), _field(data, at, 1)
        if kind == _BATCH and length is not None:
            rows += _length(data, length)
            check_rows(rows, max_rows)
        if nodes is not None:
            first = _target(data, nodes)
            for i in range(_number(data, first, "I")):
                values += _length(data, first + 4 + 16 * i)  # 16 bytes: length and count of nulls
        if values > max_values:
            raise _too_large(max_values)


def _length(data: memoryview, at: int) -> int:
    length = _number(data, at, "q")
    if length < 0:  # it would make room for another
        raise ValueError(f"a length of {length}")
    return length


def _batches(body: bytes) -> Iterator[tuple[memoryview, int, int]]:
    """Yield the metadata of each message that holds rows, the place of its RecordBatch, and the message's kind."""
    for message in pa.ipc.MessageReader.open_stream(body):
        data = memoryview(message.metadata)
        root = _target(data, 0)
        kind, header = _field(data, root, 1), _field(data, root, 2)
        said = 0 if kind is None else data[kind]
        if said in (_DICTIONARY, _BATCH) and header is not None:
            at = _target(data, header)
            rows = _field(data, at, 1) if said == _DICTIONARY else header
            if rows is not None:
                yield data, _target(data, rows), said


# FlatBuffers, as far as the metadata of a batch needs them: tables begin with the distance to a list of places.


def _number(data: memoryview, at: int, kind: str) -> int:
    return struct.unpack_from(f"<{kind}", data, at)[0]


def _target(data: memoryview, at: int) -> int:
    return at + _number(data, at, "I")


def _field(data: memoryview, table: int, number: int) -> int | None:
    places = table - _number(data, table, "i")
    entry = 4 + 2 * number
    place = _number(data, places + entry, "H") if entry < _number(data, places, "H") else 0
    return table + place if place else None


def _texts(name: str, values: pa.Array) -> int:
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _texts(name, values.flatten())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # pyarrow cannot count these
        views = np.frombuffer(values.buffers()[1] or b"", "<i4")[::4]  # of 16 bytes each, the length is first
        views = views[values.offset : values.offset + len(values)].astype(np.int64)
        return int(views[values.is_valid().to_numpy(zero_copy_only=False)].sum())
    if not pa.types.is_dictionary(kind):
        return 0
    kind = kind.value_type
    if pa.types.is_primitive(kind) or pa.types.is_null(kind):
        return 0
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        said = f"its type is a dictionary of {shortened(str(kind))}"
        raise Refusal(422, said, column=name, remedy="Send its values themselves")
    return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the stream unpacks to more than {limit} bytes", remedy="Send fewer rows")


JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


@dataclass
class Body:
    """A body: its rows in one of the forms, and the other ``fields`` of JSON."""

    form: str  # ``table`` (of Arrow), ``columns``, ``rows`` or ``candidates``, which a ranking alone takes
    rows: Any
    fields: dict[str, Any]

    def columns(self, spec: Spec, max_rows: int) -> RequestColumns:
        """Check the rows against what an export takes; ``context`` is repeated for each row."""
        if self.form == "table":
            check_rows(self.rows.num_rows, max_rows)
            return checked_columns(spec, named_columns(self.rows), self.rows.num_rows, from_arrow, _listed)
        context = self.fields.get("context")
        if context is not None and type(context) is not dict:
            raise Refusal(422, "context is no object of values that hold for every row")
        if self.form != "columns":
            read = columns_of_rows if self.form == "rows" else columns_of_candidates
            return read(spec, self.rows, context, max_rows=max_rows)
        columns = self.rows  # such as {"age": [31, null], "city": ["Köln", "Oslo"]}
        if type(columns) is not dict:
            raise Refusal(422, "columns is no object of lists")
        if context:
            first = next(iter(columns.values()), [])
            n = min(len(first), max_rows + 1) if type(first) is list else 0
            both = next((name for name in context if name in columns), None)
            if both is not None:
                raise Refusal(422, "it is in context and in columns", column=both)
            columns = {**{name: [value] * n for name, value in context.items()}, **columns}
        if set(map(type, columns.values())) - {list}:
            bad = next(name for name, values in columns.items() if type(values) is not list)
            raise Refusal(422, "its values are no list", column=bad)
        check_rows(rows := check_same_length(columns), max_rows)
        return checked_columns(spec, columns, rows, from_values, list)


def parse_body(body: bytes, content_type: str, fields: Collection[str], limits: Limits) -> Body:
    """Parse a body of JSON or Arrow by its content type; ``fields``: names that JSON may have beside the rows."""
    said = parse_content(body, content_type, limits)
    if isinstance(said, pa.Table):
        return Body("table", said, {})
    forms = [n for n in ("columns", "rows", "candidates") if n != "candidates" or n in fields]
    check_fields(said, {*fields, *forms})
    there = [n for n in forms if n in said]
    if len(there) != 1:
        why = f"the body has {' and '.join(there)}" if there else "the body has no rows"
        raise Refusal(422, why, remedy=f'Send one of {", ".join(forms)}, such as {{"columns": {{"a": [1]}}}}')
    return Body(there[0], said.pop(there[0]), said)


def parse_content(body: bytes, content_type: str, limits: Limits) -> pa.Table | dict[str, Any]:
    """Parse a body by its content type: a stream of Arrow, or an object of JSON."""
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind == ARROW:
        return parse_arrow(body, max_rows=limits.max_rows, max_bytes=limits.max_body)
    if kind != JSON:
        raise Refusal(415, f"the content type is {shortened(kind)!r}", remedy=f"Send {JSON} or {ARROW}")
    said = parse_json(body)
    if type(said) is not dict:
        raise Refusal(400, "the body is no object of JSON")
    return said


def check_fields(said: dict[str, Any], known: Collection[str], of: str = "body", row: int | None = None) -> None:
    """Refuse an object of JSON that has other fields."""
    unknown = next((n for n in said if n not in known), None)
    if unknown is not None:
        problem = f"the {of} has an unknown field {shortened(unknown)!r}"
        raise Refusal(422, problem, row=row, remedy=f"Known: {', '.join(sorted(known))}")


def parse_json(body: bytes | memoryview) -> Any:
    """Parse JSON with integers of 64 bits; NaN and Infinity, which clients send, are read too."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = bytes(body)
        if b"NaN" not in text and b"Infinity" not in text:
            raise Refusal(400, f"the body is no JSON: {error}") from None

    def finite(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            raise ValueError(f"{shortened(number)} is larger than any number")
        return value

    try:
        said = json.loads(text, parse_float=finite)
        json.dumps(said, ensure_ascii=False).encode()  # half of a surrogate pair is no text, which orjson sees itself
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {shortened(str(error))}") from None
    return said


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make an answer of JSON; numbers that are not finite become null."""
    return Response(orjson.dumps(value), status, headers=headers, media_type=JSON)


_ANY = {"string": "", "bool": False}  # values for nulls while a column is converted


def events_table(declared: tuple[Input, ...], body: Body, max_rows: int) -> pa.Table:
    """Read the events of a body; null stays null, whatever the column."""
    columns: Mapping[str, Any]
    if body.form == "table":
        columns = named_columns(body.rows)
    else:
        columns = lists_of_rows(body.rows, max_rows) if body.form == "rows" else body.rows
        if type(columns) is not dict or any(type(v) is not list for v in columns.values()):
            raise Refusal(422, "columns is no object of lists")
    check_rows(check_same_length(columns), max_rows)
    known = {c.name for c in declared}
    unknown = next((name for name in columns if name not in known), None)
    if unknown is not None:
        raise Refusal(422, f"the events have no such column; they have {shortened(', '.join(known))}", column=unknown)
    made = {}
    for column in declared:
        if column.name in columns:
            made[column.name] = _converted(column, columns[column.name])
        elif column.required:
            raise Refusal(422, "the column is missing", column=column.name)
    return pa.table(made)


def _converted(column: Input, values: Any) -> pa.Array:
    nullable = replace(column, missing=None if column.is_float else _ANY.get(column.type, 0))
    if isinstance(values, list):
        missing, plain = np.array([v is None for v in values], bool), from_values(nullable, values)
    else:
        missing, plain = values.is_null().to_numpy(zero_copy_only=False), from_arrow(nullable, values)
    if column.unit is not None:
        return pa.array(plain, pa.int64(), mask=missing).cast(arrow_type(column))
    return pa.array(plain, arrow_type(column), mask=missing)
