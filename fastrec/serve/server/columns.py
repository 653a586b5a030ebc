"""The columns of requests → the arrays that the graph takes, of one request or of several together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec.serve.server.event_lists import event_arrays
from fastrec.serve.server.refusal import Refusal
from fastrec.serve.server.spec import Input, Spec
from fastrec.serve.server.values import arrow_type, filled, from_values, to_arrow

__all__ = ["RequestColumns", "arrays_together", "lists_together"]


@dataclass
class RequestColumns:
    """The rows of one request, under names that the export knows.

    The values become arrays when they are scored: 60 columns of one row cost about as much as 60 columns of a hundred.

    Args:
        spec: what the export takes.
        sent: each column as it came.
        rows: how many there are.
        convert: makes an array ``[rows]`` of the declared type of a column, or refuses it.
        lists: int64 ``[rows]``: the number of the list that a row is of, 0 … ``n_lists`` - 1; None: all are of one.
        n_lists: how many lists there are.
        items: the ids of the candidates as they were sent; None: they were not.
        made: arrays ``[rows]`` that were made from events.
    """

    spec: Spec
    sent: Mapping[str, Any]
    rows: int
    convert: Callable[[Input, Any], np.ndarray]
    lists: np.ndarray | None = None
    n_lists: int = 1
    items: list[Any] | None = None
    made: dict[str, np.ndarray] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """Convert to an array ``[rows]`` for every input but the list's."""
        return {**_arrays(self.spec, self.sent, self.rows, self.convert), **self.made}

    def table(self) -> pa.Table:
        """Convert to the rows that features of events take: with nulls, and times as timestamps."""
        arrays = self.arrays()
        columns = [to_arrow(i, arrays[i.name]) for i in self.spec.sent]
        fields = [(i.name, arrow_type(i)) for i in self.spec.sent]
        if self.spec.list is not None:
            lists = np.zeros(self.rows, np.int64) if self.lists is None else self.lists
            columns.append(pa.array(lists))
            fields.append((self.spec.list, pa.int64()))
        return pa.table(columns, schema=pa.schema(fields))


def arrays_together(batch: Sequence[RequestColumns]) -> dict[str, np.ndarray]:
    """Stack the rows of several requests to one export."""
    first = batch[0]
    if len(batch) == 1:
        return first.arrays()
    if all(c.convert is from_values and not c.made and c.sent.keys() == first.sent.keys() for c in batch):
        joined = {name: list(chain.from_iterable([c.sent[name] for c in batch])) for name in first.sent}
        return _arrays(first.spec, joined, sum(c.rows for c in batch), from_values)
    parts = [c.arrays() for c in batch]
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def lists_together(batch: Sequence[RequestColumns]) -> np.ndarray:
    """Number the lists of all requests: int64 ``[rows of all]``."""
    numbers, before = [], 0
    for one in batch:
        numbers.append(np.full(one.rows, before, np.int64) if one.lists is None else one.lists + before)
        before += one.n_lists
    return np.concatenate(numbers)


def _arrays(
    spec: Spec, sent: Mapping[str, Any], rows: int, convert: Callable[[Input, Any], np.ndarray]
) -> dict[str, np.ndarray]:
    plain = [i for i in spec.sent if i.events is None]
    made = {i.name: convert(i, sent[i.name]) if i.name in sent else filled(i, rows) for i in plain}
    for column in plain:
        if column.longest is not None:
            _check_lengths(column, made[column.name])
    return made if spec.events_count is None else made | event_arrays(spec, sent, rows, convert)


def _check_lengths(column: Input, texts: np.ndarray) -> None:
    assert column.longest is not None
    for row, text in enumerate(texts.tolist()):
        # A letter has 4 bytes at most: short texts need not be encoded.
        if len(text) * 4 > column.longest and len(text.encode()) > column.longest:
            raise Refusal(422, f"the text has more than {column.longest} bytes", column=column.name, row=row)
