"""A stream of Arrow → its rows, after what it would unpack to is counted: a few bytes can stand for gigabytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.serve.server.reading import check_rows
from fastrec.serve.server.refusal import Refusal, shortened

__all__ = ["parse_arrow"]

_DICTIONARY, _BATCH = 2, 3  # kinds of messages
_BAD = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError, struct.error)


def parse_arrow(body: bytes, *, max_rows: int, max_bytes: int) -> pa.Table:
    """Read a stream of Arrow; every buffer is checked before a value is read.

    Args:
        body: as it came.
        max_rows: rows of all batches.
        max_bytes: bytes that dictionaries and views of text may become, and values that there may be.
    """
    try:
        _check_batches(body, max_rows, max_bytes)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
        texts = [_texts(n, part) for n, whole in zip(table.column_names, table.columns) for part in whole.chunks]
        if sum(texts) > max_bytes:
            raise _too_large(max_bytes)
    except _BAD as error:
        said = shortened(" ".join(str(error).split())[:200])
        raise Refusal(400, f"the body is no stream of Arrow: {said}") from None
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
    found = _number(data, at, "q")
    if found < 0:  # it would make room for another
        raise ValueError(f"a length of {found}")
    return found


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
