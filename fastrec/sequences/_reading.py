"""A log of events, or a table of list columns, as events that stand session by session and in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.segments import lexical_order
from fastrec.table import Column, Table
from fastrec.table.list_columns import packed
from fastrec.table.offsets import offsets_of, rows_of

__all__ = ["EventColumns", "read_events"]


@dataclass
class EventColumns:
    """Events of sessions, one session after the other.

    Args:
        offsets: session ``i`` has the events ``offsets[i]`` up to ``offsets[i + 1]``, int64 ``[n + 1]``.
        columns: of the events, by name.
        sessions: the sessions' ids ``[n]``; None: there are none.
        target: the item that follows, ``[n]``; None: not known.
    """

    offsets: torch.Tensor
    columns: dict[str, Column]
    sessions: Column | None
    target: Column | None


def read_events(
    source: Any, *, item: str, session: str | None, order: Sequence[str], features: Sequence[str], target: str | None
) -> EventColumns:
    """Return the events of a log, or of lists.

    Args:
        source: what ``Table.read`` takes.
        item, session, order, features, target: names of columns, see ``SessionFrame``.

    Raises:
        DataError: the columns do not fit together.
    """
    wanted = [item, *order, *features, *(n for n in (session, target) if n is not None)]
    table = Table.read(source, list(dict.fromkeys(wanted)))
    events = [item, *order, *features]
    if table[item].kind == "list":
        return _of_lists(table, events, session, target, order)
    if session is None:
        raise DataError(
            "holds one item a row, and no column says which session a row belongs to",
            column=item,
            remedy="Name the session's column (session=…), or give a column of lists",
        )
    return _of_log(table, events, session, target, order)


def _of_lists(
    table: Table, events: Sequence[str], session: str | None, target: str | None, order: Sequence[str]
) -> EventColumns:
    item = events[0]
    lists = {n: table[n] for n in events}
    for name, column in lists.items():
        if column.kind != "list":
            raise DataError(
                f"holds one value a row, but {item!r} a list", column=name, remedy="Give a list for every session"
            )
    lists = {n: packed(c) for n, c in lists.items()}
    offsets = lists[item].values
    for name, column in lists.items():
        differ = (column.values != offsets).nonzero()
        if len(differ):
            raise DataError(
                f"its list is not as long as that of {item!r}",
                column=name,
                row=max(int(differ[0]) - 1, 0),
                remedy="Give one value for every item of a session",
            )
    columns = {n: c.elements for n, c in lists.items() if c.elements is not None}
    if order:
        columns = _arranged(columns, lexical_order([rows_of(offsets), *(_key(columns[n]) for n in order)]))
    return EventColumns(
        offsets, columns, None if session is None else table[session], None if target is None else table[target]
    )


def _of_log(
    table: Table, events: Sequence[str], session: str, target: str | None, order: Sequence[str]
) -> EventColumns:
    coded = table[session].coded()
    gone = (coded.codes == 0).nonzero()
    if len(gone):
        raise DataError(
            "a row belongs to no session", column=session, row=int(gone[0]), remedy="Fill the column, or drop the row"
        )
    numbers, first = _by_appearance(coded.codes - 1)
    permutation = lexical_order([numbers, *(_key(table[n]) for n in order)])
    offsets = offsets_of(torch.bincount(numbers, minlength=len(first)))
    last = offsets[1:] - 1
    if permutation is not None:
        last = permutation[last]
    return EventColumns(
        offsets,
        _arranged({n: table[n] for n in events}, permutation),
        table[session].take(first),
        None if target is None else table[target].take(last),
    )


def _by_appearance(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes int64 ``[n]`` in the order in which they first appear, and the rows where they do."""
    size = int(codes.max()) + 1 if len(codes) else 0
    first = torch.full((size,), len(codes), dtype=torch.int64, device=codes.device)
    first.scatter_reduce_(0, codes, torch.arange(len(codes), device=codes.device), "amin")
    order = torch.argsort(first)
    order = order[first[order] < len(codes)]  # a category may have values without a row
    place = torch.empty_like(first)
    place[order] = torch.arange(len(order), device=codes.device)
    return place[codes], first[order]


def _arranged(columns: dict[str, Column], permutation: torch.Tensor | None) -> dict[str, Column]:
    return columns if permutation is None else {n: c.take(permutation) for n, c in columns.items()}


def _key(column: Column) -> torch.Tensor:
    """Return numbers ``[n]`` in the order of a column's values; a missing one comes last."""
    if column.kind == "category":
        coded = column.coded()
        place = torch.empty(coded.size, dtype=torch.int64)
        sorted_keys = coded.keys.sort_order() if column.ordered is None else torch.arange(coded.size - 1)
        place[sorted_keys + 1] = torch.arange(coded.size - 1)
        place[0] = coded.size
        return place.to(coded.codes.device)[coded.codes]
    if column.kind == "number" and column.values.is_floating_point():
        return column.number()
    return column.integer().masked_fill(column.is_missing(), torch.iinfo(torch.int64).max)
