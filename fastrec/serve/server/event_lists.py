"""Lists of events beside the rows of a request → the matrices that a graph takes, and how many events each row has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.spec import Input, Spec
from fastrec.serve.server.values import filled, from_arrow, from_values

__all__ = ["event_arrays"]


def event_arrays(
    spec: Spec, sent: Mapping[str, Any], rows: int, convert: Callable[[Input, Any], np.ndarray]
) -> dict[str, np.ndarray]:
    """Build an array ``[rows, most]`` for each column of events, and int64 ``[rows]``, the number of events.

    Args:
        spec: what the export takes.
        sent: the columns as they came; a row's events are a list, the oldest first, None where there are none.
        rows: how many there are.
        convert: makes an array of a column's values, or refuses one.
    """
    assert spec.events_count is not None
    made: dict[str, np.ndarray] = {}
    counts: tuple[str, np.ndarray] | None = None
    there = [i for i in spec.event_columns if i.name in sent]
    for column in there:
        flat, lengths = _parts(column, sent[column.name])
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
    count = np.zeros(rows, np.int64) if counts is None else np.minimum(counts[1], most)
    return {**made, spec.events_count: count}


def _parts(column: Input, values: Any) -> tuple[Any, np.ndarray]:
    """Flatten the values of all rows, and count those of each row: int64 ``[rows]``."""
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return _parts_of_arrow(column, values)
    rows = values.tolist() if isinstance(values, np.ndarray) else values
    rows = [v.tolist() if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v for v in rows]
    odd = next((i for i, v in enumerate(rows) if v is not None and type(v) is not list), None)
    if odd is not None:
        raise Refusal(422, f"{shortened(rows[odd])} is no list of events' values", column=column.name, row=odd)
    rows = [v or [] for v in rows]
    return list(chain.from_iterable(rows)), np.fromiter(map(len, rows), np.int64, len(rows))


def _parts_of_arrow(column: Input, values: pa.ChunkedArray | pa.Array) -> tuple[pa.Array, np.ndarray]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(0), np.zeros(len(values), np.int64)
    if pa.types.is_fixed_size_list(kind):
        values = values.cast(pa.large_list(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise Refusal(422, f"its type is {shortened(str(kind))}, no list", column=column.name)
    lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return values.flatten(), lengths


def _matrix(column: Input, flat: Any, lengths: np.ndarray, convert: Callable[[Input, Any], np.ndarray]) -> np.ndarray:
    """Arrange the last values of each row, padded at the end."""
    ends = lengths.cumsum()
    try:
        read = from_arrow if isinstance(flat, pa.Array) else from_values if isinstance(flat, list) else convert
        values = read(column, flat)
    except Refusal as refusal:  # the row of an event is that of its list
        row = None if refusal.row is None else int(np.searchsorted(ends, refusal.row, side="right"))
        raise Refusal(
            refusal.status, f"an event: {refusal.problem}", column=column.name, row=row, remedy=refusal.remedy
        ) from None
    most = column.events or 0
    kept = np.minimum(lengths, most)
    made = _empty(column, len(lengths))
    place = np.arange(most)
    there = place < kept[:, None]
    made[there] = values[((ends - kept)[:, None] + place)[there]]
    return made


def _empty(column: Input, rows: int) -> np.ndarray:
    return filled(column, rows * (column.events or 0)).reshape(rows, column.events or 0)
