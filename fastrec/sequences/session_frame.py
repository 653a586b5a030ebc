"""``SessionFrame``: who looked at what in which order, without padding."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, Self

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.sequences._reading import EventColumns, read_events
from fastrec.sequences._sides import Coding, code_items
from fastrec.sequences._virtual_items import virtual_codes, with_virtual
from fastrec.table import Column, Table, Vocab, concat
from fastrec.table.offsets import lengths_of, offsets_of, runs

__all__ = ["SessionFrame"]


class SessionFrame:
    """Sessions as item codes one after the other.

    Items are coded by a ``Vocab``: 0 is no item (missing, or never seen when the vocabulary was made), known items
    count from 1. Ties in the order keep the order of the rows. Sessions stand in the order in which they first appear;
    one whose events are all dropped stays, empty. An event without an item is dropped, unless ``virtual`` makes it one.

    Args:
        source: a log (one event a row), or one session a row with its items as a list: anything that ``Table.read``
            takes, a path too.
        item: the column of items.
        session: a log's column of sessions; of lists: the sessions' ids, if there are any.
        order: column or columns by which the events of a session are ordered; none: they are.
        features: columns of the events beside the item: text, categories and booleans become codes, other values
            standardised numbers.
        target: the column with the item that follows the session, where it is known; of a log its last row's counts.
        items: the items' codes; None: those of the events (and targets) at hand.
        item_table: a table of items with ``item`` as its ids: other columns are side features, see ``item_sides``.
        unknown: events with an item that has no code are dropped, or kept with code 0 (``'keep'``).
        virtual: a column that says what an event without an item was (a search, a page): each of its values becomes a
            virtual item. Models read these and learn what follows them; none is ever recommended. Their codes come
            before the items', with the vocabulary's other reserved ones.

    Attributes:
        values: item codes, int64 ``[events]``.
        offsets: session ``i`` is ``values[offsets[i]:offsets[i + 1]]``, int64 ``[n + 1]``.
        items: the items' ``Vocab``; ``len(items)`` codes, 0 included, is the width of a row of scores.
        sessions: the sessions' ids, a ``Column`` ``[n]``; None: there are none.
        target: codes of the items that follow, int64 ``[n]``; None: not known. 0: an item without a code.
        times: float64 ``[events]``: the first of ``order`` as numbers (times: seconds since 1970); None: it is none.
        sides: name → ``[events]`` of ``features``: codes int64, numbers float32.
        item_sides: name → ``[codes]`` or ``[codes, width]`` of ``item_table``.
        codings, item_codings: how these became numbers.

    Raises:
        DataError: columns do not fit together, or a row has no session.
    """

    def __init__(
        self,
        source: Any,
        *,
        item: str,
        session: str | None = None,
        order: str | Sequence[str] = (),
        features: Sequence[str] = (),
        target: str | None = None,
        items: Vocab | None = None,
        item_table: Any = None,
        unknown: Literal["drop", "keep"] = "drop",
        virtual: str | None = None,
    ) -> None:
        names = [order] if isinstance(order, str) else list(order)
        self.columns: dict[str, Any] = {"item": item, "session": session, "order": names, "features": list(features)}
        self.unknown, self.virtual = unknown, virtual
        events = self._read(source, target)
        self.items = items if items is not None else _vocab(events.columns.get(item), events.target, item)
        if items is None and virtual is not None and item in events.columns:
            self.items = with_virtual(self.items, events.columns[item], events.columns[virtual])
        self.codings: dict[str, Coding] = {n: Coding.fit(events.columns[n]) for n in features}
        self.item_codings: dict[str, Coding] = {}
        self.item_sides: dict[str, torch.Tensor] = {}
        if item_table is not None:
            self.item_codings, self.item_sides = code_items(item_table, item, self.items)
        self._fill(events)

    def new(self, source: Any, *, target: str | None = None) -> Self:
        """Return other sessions with the same columns and codes: those to predict for.

        Args:
            source: as for the class.
            target: the column with the item that follows, where it is known.
        """
        made = copy.copy(self)
        made._fill(made._read(source, target))
        return made

    @classmethod
    def of(cls, values: torch.Tensor, offsets: torch.Tensor, items: Vocab, *, target: Any = None) -> Self:
        """Return sessions of codes that are there already.

        Args:
            values: item codes, int64 ``[events]``.
            offsets: int64 ``[n + 1]``.
            items: what the codes mean.
            target: int64 ``[n]``, or None.
        """
        made = cls.__new__(cls)
        made.columns = {"item": items.name or "item", "session": None, "order": [], "features": []}
        made.unknown, made.items, made.virtual = "drop", items, None
        made.codings, made.item_codings, made.item_sides = {}, {}, {}
        made.values, made.offsets, made.target = values, offsets, target
        made.sessions, made.times, made.sides = None, None, {}
        return made

    def form(self) -> dict[str, Any]:
        """Return how these sessions were read and coded, as ``save_state`` takes it: columns and codings, no
        session.
        """
        codings = {n: c.to_state() for n, c in self.codings.items()}
        about = {"columns": self.columns, "unknown": self.unknown, "codings": codings}
        return about if self.virtual is None else {**about, "virtual": self.virtual}

    @classmethod
    def of_form(cls, form: dict[str, Any], items: Vocab) -> Self:
        """Return no sessions, whose ``new`` reads others as those of ``form`` were read.

        Args:
            form: what ``form`` gave.
            items: the items' codes.
        """
        made = cls.of(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), items)
        made.columns, made.unknown, made.virtual = form["columns"], form["unknown"], form.get("virtual")
        made.codings = {n: Coding.from_state(c) for n, c in form["codings"].items()}
        made.sides = {n: c.empty() for n, c in made.codings.items()}
        return made

    def _read(self, source: Any, target: str | None) -> EventColumns:
        if self.virtual is None:
            return read_events(source, target=target, **self.columns)
        features = list(dict.fromkeys([*self.columns["features"], self.virtual]))
        return read_events(source, target=target, **{**self.columns, "features": features})

    def _fill(self, events: EventColumns) -> None:
        item = self.columns["item"]
        order = self.columns["order"]
        self.sessions, self.offsets = events.sessions, events.offsets
        self.target = None if events.target is None else self.items.encode(events.target)
        self.times = _as_times(events.columns[order[0]]) if order else None
        self.sides = {n: c.encode(events.columns[n]) for n, c in self.codings.items()}
        column = events.columns.get(item)
        if column is None:  # lists, all of them empty
            self.values = torch.zeros(0, dtype=torch.int64)
            return
        self.values = self.items.encode(column)
        kept = ~column.is_missing() if self.unknown == "keep" else self.values >= len(self.items.reserved)
        if self.virtual is not None:
            codes = virtual_codes(self.items, column, events.columns[self.virtual])
            self.values, kept = torch.where(codes > 0, codes, self.values), kept | (codes > 0)
        self._keep(kept)

    def _keep(self, kept: torch.Tensor) -> None:
        """Drop all other events; bool ``[events]``."""
        if bool(kept.all()):
            return
        self.offsets = offsets_of(kept.long())[self.offsets]
        self.values = self.values[kept]
        self.times = None if self.times is None else self.times[kept]
        self.sides = {n: v[kept] for n, v in self.sides.items()}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> torch.Tensor:
        """How many events each session has, int64 ``[n]``."""
        return lengths_of(self.offsets)

    @property
    def gaps(self) -> torch.Tensor:
        """Seconds (or what ``order`` counts) since the session's event before, float64 ``[events]``; 0 at its start.

        Raises:
            DataError: the events have no times.
        """
        if self.times is None:
            raise DataError("the events have no times", remedy="Name the column of times (order=…)")
        gaps = torch.zeros_like(self.times)
        gaps[1:] = self.times[1:] - self.times[:-1]
        gaps[self.offsets[:-1][self.lengths > 0]] = 0.0
        return gaps

    @property
    def ends(self) -> torch.Tensor | None:
        """The time of each session's last event, float64 ``[n]``, NaN where it is empty; None without times."""
        if self.times is None:
            return None
        found = torch.full((len(self),), torch.nan, dtype=torch.float64)
        filled = self.lengths > 0
        found[filled] = self.times[self.offsets[1:][filled] - 1]
        return found

    def take(self, rows: torch.Tensor) -> Self:
        """Return the sessions at ``rows``: int64 numbers in any order, or a bool mask ``[n]``."""
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        made = self.cut(self.offsets[rows], self.offsets[rows + 1])
        made.sessions = None if self.sessions is None else self.sessions.take(rows)
        made.target = None if self.target is None else self.target[rows]
        return made

    def cut(self, starts: torch.Tensor, ends: torch.Tensor) -> Self:
        """Return sessions of neighbouring events, wherever they stand; without ids and targets.

        Args:
            starts, ends: int64 ``[m]``: each session's first event, and the one after its last.
        """
        made = copy.copy(self)
        made.offsets, places = runs(starts, ends - starts)
        made.values = self.values[places]
        made.times = None if self.times is None else self.times[places]
        made.sides = {n: v[places] for n, v in self.sides.items()}
        made.sessions = made.target = None
        return made

    def last(self, events: int) -> Self:
        """Return the sessions' last events, at most so many of each."""
        made = self.cut(torch.maximum(self.offsets[:-1], self.offsets[1:] - events), self.offsets[1:])
        made.sessions, made.target = self.sessions, self.target
        return made

    def with_target(self) -> Self:
        """Return sessions with the known item that follows as their last event (without times and side features)."""
        if self.target is None:
            return self
        known = (self.target > 0).long()
        offsets = self.offsets + offsets_of(known)
        values = self.values.new_zeros(int(offsets[-1]))
        places = runs(offsets[:-1], self.lengths)[1]
        values[places] = self.values
        values[offsets[1:][known > 0] - 1] = self.target[known > 0]
        made = copy.copy(self)
        made.values, made.offsets, made.target, made.times, made.sides = values, offsets, None, None, {}
        return made

    def recode(self, items: Vocab) -> Self:
        """Return the same sessions by another vocabulary's codes; events and targets without a code there are
        dropped, or 0.

        Args:
            items: the vocabulary; side features of items are left behind.
        """
        same = items.values.equals(self.items.values) and items.reserved == self.items.reserved
        if items is self.items or same:
            return self
        table = items.encode(_as_column(self.items))
        made = copy.copy(self)
        made.items, made.item_sides, made.item_codings = items, {}, {}
        made.target = None if self.target is None else table[self.target]
        made.values = table[self.values]
        if self.unknown == "drop":
            made._keep(made.values >= len(items.reserved))
        return made

    def decode(self, codes: torch.Tensor) -> pa.Array:
        """Item ids of codes of any shape, flattened; code 0 is null."""
        return self.items.decode(codes.reshape(-1))

    def __repr__(self) -> str:
        return f"SessionFrame({len(self)} sessions, {len(self.values)} events, {len(self.items.values)} items)"


def _as_times(column: Column) -> torch.Tensor | None:
    return column.number() if column.kind in ("number", "datetime") else None


def _vocab(column: Column | None, target: Column | None, name: str) -> Vocab:
    parts = [c for c in (column, target) if c is not None and len(c)]
    if not parts:
        return Vocab(pa.array([], pa.int64()), name=name)
    joined = concat([Table({name: c}) for c in parts])[name]
    return Vocab.fit(joined)


def _as_column(items: Vocab) -> Column:
    """Return all codes of a vocabulary as a column of their values."""
    return Table({"item": items.decode(torch.arange(len(items)))})["item"]
