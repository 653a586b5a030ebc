"""``SessionFrame``: sessions of events, and how they are read and split."""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from datetime import time
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import torch

from fastrec._core.imports import library_of
from fastrec._core.messages import refuse_absent
from fastrec.errors import DataError, FastrecError, warn
from fastrec.segments import lexical_order
from fastrec.table import Column, Table, Vocab, as_column, concat
from fastrec.table.column import lengths_of, offsets_of, packed, rows_of, runs
from fastrec.table.column_types import times_in_text
from fastrec.table.keys import is_text
from fastrec.table.read import read_file
from fastrec.table.state import Saved

_TIMED_BY = {"number": "numbers", "datetime": "times (2024-03-31 10:30:00)", "category": "ordered categories"}
_TIMES = "Write times as 2024-03-31 10:30:00, or as numbers"


@dataclass
class EventColumns:
    """Events of sessions, one session after the other."""

    offsets: torch.Tensor  # session ``i`` has the events ``offsets[i]`` up to ``offsets[i + 1]``, int64 ``[n + 1]``
    columns: dict[str, Column]  # of the events, by name
    sessions: Column | None  # the sessions' ids ``[n]``; None: there are none
    target: Column | None  # the item that follows, ``[n]``; None: not known


def read_events(source: Any, columns: dict[str, Any], target: str | None, virtual: str | None) -> EventColumns:
    """Return the events of a log, or of lists; the arguments are those of ``SessionFrame``."""
    item, session, order, features = (columns[n] for n in ("item", "session", "order", "features"))
    features = [*features, *([] if virtual is None else [virtual])]
    wanted = list(dict.fromkeys([item, *order, *features, *(n for n in (session, target) if n is not None)]))
    source = read_file(source, wanted) if isinstance(source, str | Path) else source
    table = Table.read(source, wanted, device="cpu")
    for name in order:
        refuse_clock(source[name], name)
        if type(getattr(source[name], "dtype", None)).__name__ == "Enum":  # of polars: Arrow's dictionaries say it
            table = table.with_columns({name: replace(table[name], ordered=True)})
    needless = _elements(table[item]).is_missing()  # events that are dropped have no place in the order
    if virtual is not None and len(says := _elements(table[virtual])) == len(needless):
        needless = needless & says.is_missing()
    table = table.with_columns({n: as_order(table[n], needless) for n in order})
    events = list(dict.fromkeys([item, *order, *features]))
    if table[item].kind == "list":
        return _of_lists(table, events, session, target, order)
    if session is None:
        problem = "holds one item a row, and no column says which session a row belongs to"
        raise DataError(problem, column=item, remedy="Name the session's column (session=…), or give a column of lists")
    table[session].refuse_missing("a row belongs to no session", "Fill the column, or drop the row")
    # sessions are numbered by first appearance
    coded = table[session].coded()
    codes = coded.codes - 1
    first = torch.full((coded.size - 1,), len(codes)).scatter_reduce_(0, codes, torch.arange(len(codes)), "amin")
    by_first = torch.argsort(first)
    numbers, first = torch.argsort(by_first)[codes], first[by_first]
    first = first[first < len(codes)]  # a category may have values without a row
    permutation = lexical_order([numbers, *(_key(table[n]) for n in order)])
    offsets = offsets_of(torch.bincount(numbers, minlength=len(first)))
    last = offsets[1:] - 1
    if permutation is not None:
        last = permutation[last]
    follows = None if target is None else table[target].take(last)
    return EventColumns(
        offsets, _arranged({n: table[n] for n in events}, permutation), table[session].take(first), follows
    )


def _of_lists(
    table: Table, events: Sequence[str], session: str | None, target: str | None, order: Sequence[str]
) -> EventColumns:
    item = events[0]
    for name in events:
        if table[name].kind != "list":
            remedy = "Give a list for every session"
            raise DataError(f"holds one value a row, but {item!r} a list", column=name, remedy=remedy)
    lists = {n: packed(table[n]) for n in events}
    offsets = lists[item].values
    for name, column in lists.items():
        differ = (column.values != offsets).nonzero()
        if len(differ):
            row, remedy = max(int(differ[0]) - 1, 0), "Give one value for every item of a session"
            raise DataError(f"its list is not as long as that of {item!r}", column=name, row=row, remedy=remedy)
    columns = {n: c.elements for n, c in lists.items() if c.elements is not None}
    if order:
        columns = _arranged(columns, lexical_order([rows_of(offsets), *(_key(columns[n]) for n in order)]))
    ids, follows = (None if n is None else table[n] for n in (session, target))
    return EventColumns(offsets, columns, ids, follows)


def _arranged(columns: dict[str, Column], permutation: torch.Tensor | None) -> dict[str, Column]:
    return columns if permutation is None else {n: c.take(permutation) for n, c in columns.items()}


def _elements(column: Column) -> Column:
    return packed(column).elements or column if column.kind == "list" else column


def refuse_clock(values: Any, name: str) -> None:
    """Refuse times of day, which columns store as numbers; only the first value, or first list element, is checked."""
    if isinstance(values, Column | torch.Tensor) or library_of(values) == "cudf":
        return  # they hold none
    for row, value in enumerate(values):
        found = value.as_py() if isinstance(value, pa.Scalar) else value
        if not isinstance(found, str | bytes) and isinstance(found, Sized):
            found = next((v for v in found if v is not None), None)
        if isinstance(found, time):
            raise DataError(f"'{found}' is no time", column=name, row=row, remedy=_TIMES)
        if str(found) not in ("None", "nan", "NaT", "<NA>"):
            return


def as_order(column: Column, needless: torch.Tensor) -> Column:
    """Return a column of ``order``, one value per event or a list per session, with ISO 8601 text as times.

    Other text is refused, and missing values too, except at ``needless`` events (bool ``[events]``), which are dropped:
    they sort first.
    """
    held = packed(column) if column.kind == "list" else column
    values = moments = _elements(column)
    if values.kind == "category" and is_text(values.distinct.type):
        times = times_in_text(values.distinct)
        if not values.ordered or not times.null_count:  # an order of its own is for other text
            moments = as_column(replace(values, distinct=times).to_arrow(), name=column.name)
    missing = moments.is_missing()
    kept = (~missing).nonzero().squeeze(1)
    if len(needless) == len(missing) and bool((missing & needless).any()) and len(kept):
        first = kept[_key(moments.take(kept)).argmin()]
        moments = moments.take(torch.where(missing & needless, first, torch.arange(len(missing))))
        missing = missing & ~needless
    if bool(missing.any()):
        event = int(missing.nonzero()[0])
        row = int(rows_of(held.values)[event]) if column.kind == "list" else event
        found, problem, remedy = values.to_arrow()[event].as_py(), "an event has no time", "Drop such rows first"
        if found is not None:
            problem, remedy = f"{found!r} is no time", _TIMES
        raise DataError(problem, column=column.name, row=row, remedy=remedy)
    return moments if column.kind != "list" else replace(held, elements=moments)


def _key(column: Column) -> torch.Tensor:
    if column.kind == "category":
        coded = column.coded()
        by_value = coded.keys.sort_order() if column.ordered is None else torch.arange(coded.size - 1)
        return torch.argsort(by_value)[coded.codes - 1]
    if column.kind == "number" and column.values.is_floating_point():
        return column.number()
    return column.integer()


@dataclass(frozen=True)
class Coding(Saved):
    """How a column becomes a tensor."""

    learned = ()

    kind: str  # ``category``, ``number`` or ``vector``
    vocab: Vocab | None = None  # of a category
    mean: float = 0.0  # of a number: what is taken away
    scale: float = 1.0  # what it is then divided by
    width: int = 1  # of a vector

    @classmethod
    def fit(cls, column: Column) -> Coding:
        """Learn the coding: text, categories and booleans become codes, other values numbers or vectors."""
        if column.kind == "vector":
            return cls("vector", width=column.values.shape[1])
        if column.kind == "category" or (column.kind == "number" and column.values.dtype == torch.bool):
            return cls("category", vocab=Vocab.fit(column))
        values = column.number()
        values = values[values.isfinite()]
        mean = float(values.mean()) if len(values) else 0.0
        scale = float(values.std(correction=0)) if len(values) else 1.0
        return cls("number", mean=mean, scale=scale or 1.0)

    def encode(self, column: Column) -> torch.Tensor:
        """Return codes int64 ``[n]``, standardised numbers float32 ``[n]`` or vectors ``[n, width]``; missing: 0."""
        if self.vocab is not None:
            return self.vocab.encode(column)
        if self.kind == "vector":
            return column.values.float().masked_fill(column.is_missing().unsqueeze(1), 0.0).nan_to_num(0.0)
        return self.standard(column.number())

    def standard(self, values: torch.Tensor) -> torch.Tensor:
        """Standardise numbers float64 to float32; missing ones become the mean."""
        return ((values - self.mean) / self.scale).nan_to_num(0.0, 0.0, 0.0).float()

    def decode(self, values: torch.Tensor) -> pa.Array:
        """Invert ``encode``, with null for codes without a value; vectors cannot be decoded."""
        if self.vocab is not None:
            return self.vocab.decode(values)
        return pa.array((values.double() * self.scale + self.mean).numpy())

    def empty(self) -> torch.Tensor:
        """Return the ``encode`` of no rows."""
        if self.vocab is not None:
            return torch.zeros(0, dtype=torch.int64)
        return torch.zeros((0, self.width) if self.kind == "vector" else 0)


def code_items(source: Any, item: str, items: Vocab) -> tuple[dict[str, Coding], dict[str, torch.Tensor]]:
    """Code the columns of a table of items: codings by name, and values ``[codes]`` or ``[codes, width]``.

    ``item`` is the column of ids. An item without a row gets zeros; one with two is refused.
    """
    table = Table.read(source, device="cpu")
    codes = items.encode(table[item])
    known = codes >= len(items.reserved)
    counts = torch.bincount(codes[known], minlength=len(items))
    if bool((counts > 1).any()):
        row = int((counts[codes] > 1).logical_and(known).nonzero()[1])
        raise DataError("an item has several rows", column=item, row=row, remedy="Keep one row per item")
    codings, sides = {}, {}
    for name in (n for n in table.names if n != item):
        codings[name] = Coding.fit(table[name])
        values = codings[name].encode(table[name])
        side = values.new_zeros((len(items), *values.shape[1:]))
        side[codes[known]] = values[known]
        sides[name] = side
    return codings, sides


# Virtual items: events without an item (a search, a page), which are read and never recommended.

_PREFIX = "virtual: "  # no name that a vocabulary reserves begins so


def with_virtual(items: Vocab, item: Column, says: Column) -> Vocab:
    """Add a reserved code for each value of ``says`` at events without an item, in sorted order."""
    alone = item.is_missing() & ~says.is_missing()
    texts = _texts(Vocab.fit(says.take(alone.nonzero().squeeze(1))))[1:] if bool(alone.any()) else []
    return Vocab(
        items.values, reserved=(*items.reserved, *texts), rare=items.rare, ordered=items.ordered, name=items.name
    )


def virtual_codes(items: Vocab, item: Column, says: Column) -> torch.Tensor:
    """Return codes of virtual items, int64 ``[events]``; 0: an event with an item, or with an unknown value."""
    known = {name: i for i, name in enumerate(items.reserved) if name.startswith(_PREFIX)}
    coded = Vocab.fit(says)
    table = torch.tensor([0, *(known.get(text, 0) for text in _texts(coded)[1:])], dtype=torch.int64)
    return torch.where(item.is_missing().cpu(), table[coded.encode(says).cpu().long()], 0)


def has_virtual(items: Vocab) -> bool:
    """Return whether a vocabulary has virtual items."""
    return any(name.startswith(_PREFIX) for name in items.reserved)


def _texts(values: Vocab) -> list[str]:
    """Return the names of all codes of a vocabulary; the first means no value."""
    return ["", *(f"{_PREFIX}{v}" for v in values.values.to_pylist())]


class SessionFrame:
    """Sessions as item codes, one session after the other.

    Code 0 is no item (missing or unknown), known items count from 1. Ties in the order keep the order of the rows.
    Sessions are numbered by first appearance; one whose events are all dropped remains, empty. An event without an item
    is dropped, unless ``virtual`` gives it one.

    Args:
        source: a log (one event a row) or one session a row with its items as a list: a path, or anything
            ``Table.read`` takes.
        item: column of items.
        session: column of sessions, or for lists their ids, if any.
        order: columns that order a session's events: numbers, times, ISO 8601 text or ordered categories; empty: the
            order of the rows. Dropped events need no value.
        features: more columns of the events: text, categories and booleans become codes, other values standardised
            numbers.
        target: column of the item that follows the session; in a log, the value of its last row counts.
        items: codes of the items; None: learned from the events and targets.
        item_table: table of items with ``item`` as ids; its other columns become ``item_sides``.
        unknown: drop events with an unknown item, or keep them with code 0 (``'keep'``).
        virtual: column that describes events without an item (a search, a page): each value becomes a virtual item,
            which models read but never recommend. Their codes are reserved ones, before the items'.

    Attributes:
        values: item codes, int64 ``[events]``.
        offsets: session ``i`` is ``values[offsets[i]:offsets[i + 1]]``, int64 ``[n + 1]``.
        items: ``Vocab`` of the items; ``len(items)`` codes, 0 included.
        sessions: ids, a ``Column`` ``[n]``, or None.
        target: codes of the next items, int64 ``[n]`` (0: unknown), or None.
        times: first column of ``order`` as numbers (times: seconds since 1970), float64 ``[events]``, or None.
        sides: name → ``[events]`` of ``features``: codes int64, numbers float32.
        item_sides: name → ``[codes]`` or ``[codes, width]`` of ``item_table``.
        codings, item_codings: how these became numbers.

    Raises:
        DataError: columns do not fit together, a row has no session, or ``order`` has missing or other values.
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
        self.timed_by: str | None = None  # the kind of the first column of ``order``
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
        """Read other sessions with the same columns and codes, such as those to predict for.

        Args:
            source, target: as for the class.
        """
        made = copy.copy(self)
        events = made._read(source, target)
        try:
            made._fill(events)
        except DataError as error:
            raise error.of_file(source) from None
        column = events.columns.get(self.columns["item"])
        if column is not None:
            made._tell_of_unknown(rows_of(events.offsets)[~column.is_missing()])
        return made

    def _tell_of_unknown(self, rows: torch.Tensor) -> None:
        """Warn of sessions that lost all their items; int64 ``rows`` has each original event's session."""
        had = torch.bincount(rows, minlength=len(self)) > 0
        lost = had & (torch.bincount(rows_of(self.offsets)[self.values > 0], minlength=len(self)) == 0)
        count = int(lost.sum())
        if count:
            problem = f"no item of {count:,} of {len(self):,} sessions is known to the model (such as session "
            problem += f"{int(lost.nonzero()[0])}): they are predicted as if they were empty"
            warn(problem)

    @classmethod
    def of(cls, values: torch.Tensor, offsets: torch.Tensor, items: Vocab, *, target: Any = None) -> Self:
        """Make sessions from codes.

        Args:
            values: item codes, int64 ``[events]``.
            offsets: int64 ``[n + 1]``.
            items: vocabulary of the codes.
            target: int64 ``[n]``, or None.
        """
        made = cls.__new__(cls)
        made.columns = {"item": items.name or "item", "session": None, "order": [], "features": []}
        made.unknown, made.items, made.virtual, made.timed_by = "drop", items, None, None
        made.codings, made.item_codings, made.item_sides = {}, {}, {}
        made.values, made.offsets, made.target = values, offsets, target
        made.sessions, made.times, made.sides = None, None, {}
        return made

    def form(self) -> dict[str, Any]:
        """Return how these sessions were read and coded, as ``save_state`` takes it."""
        return {n: getattr(self, n) for n in ("columns", "unknown", "codings", "timed_by", "virtual")}

    @classmethod
    def of_form(cls, form: dict[str, Any], items: Vocab) -> Self:
        """Return an empty frame whose ``new`` reads sessions as the frame of ``form`` did."""
        made = cls.of(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), items)
        vars(made).update(form)
        made.sides = {n: c.empty() for n, c in made.codings.items()}
        return made

    def _read(self, source: Any, target: str | None) -> EventColumns:
        try:
            return read_events(source, self.columns, target, self.virtual)
        except FastrecError as error:
            raise error.of_file(source) from None

    def _fill(self, events: EventColumns) -> None:
        item = self.columns["item"]
        order = self.columns["order"]
        self.sessions, self.offsets = events.sessions, events.offsets
        self.target = None if events.target is None else self.items.encode(events.target)
        times = events.columns[order[0]] if order else None
        self.times = None if times is None or times.kind not in ("number", "datetime") else times.number()
        if times is not None and len(times):
            if self.timed_by not in (None, times.kind):  # their gaps, and what is recent, would mean nothing
                there = _TIMED_BY[self.timed_by]
                problem = f"holds {_TIMED_BY[times.kind]}, but {there} in the log that was learned from"
                raise DataError(problem, column=order[0], remedy=f"Give {there} as in that log")
            self.timed_by = times.kind
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
        """Drop all events but those of a mask, bool ``[events]``."""
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
        """Number of events of each session, int64 ``[n]``."""
        return lengths_of(self.offsets)

    def inputs(self, timed: bool = False) -> list[torch.Tensor]:
        """Return nets' inputs, ``[events]`` each: items, side features and, if ``timed``, times (refused if absent)."""
        if timed and self.times is None:
            raise DataError("the events have no times", remedy="Name the column of times (order=…)")
        return [self.values, *self.sides.values(), *([self.times] if timed else [])]

    @property
    def ends(self) -> torch.Tensor | None:
        """Time of each session's last event, float64 ``[n]``, NaN if it is empty; None without times."""
        return None if self.times is None else self.at_ends(self.times, torch.nan)

    def at_ends(self, values: torch.Tensor, empty: float = 0) -> torch.Tensor:
        """Return the values ``[events]`` at each session's last event, ``[n]``; ``empty`` for empty sessions."""
        found = torch.full((len(self),), empty, dtype=values.dtype)
        filled = self.lengths > 0
        found[filled] = values[self.offsets[1:][filled] - 1]
        return found

    def ends_before(self, moment: float) -> torch.Tensor:
        """Return the place after each session's last event before a moment: int64 ``[n]``; events need times."""
        early = (self.inputs(True)[-1] < moment).long()
        return self.offsets[:-1].index_add(0, rows_of(self.offsets), early)  # times ascend within a session

    def steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each event's session, and how many of its events follow: int64 ``[events]`` each."""
        rows = rows_of(self.offsets)
        return rows, self.offsets[rows + 1] - 1 - torch.arange(len(rows))

    def next_of_kinds(self, side: str, kinds: Sequence[str]) -> torch.Tensor:
        """Return at each event its session's next item of each kind of ``side``, int64 ``[events, kinds]``; 0: none."""
        names, found = self.kinds(side), torch.zeros(len(self.values), len(kinds), dtype=torch.int64)
        ends, here = self.offsets[1:][rows_of(self.offsets)], torch.arange(len(self.values))
        for i, kind in enumerate(kinds):
            places = (self.sides[side] == (names.index(kind) if kind in names else -1)).nonzero().squeeze(1)
            after = torch.cat([places, ends.new_full((1,), len(self.values))])
            at = after[torch.searchsorted(places, here, right=True)]
            found[:, i] = torch.where(at < ends, self.values[at.clamp_max(max(len(self.values) - 1, 0))], 0)
        return found

    def kinds(self, side: str) -> list[str]:
        """Return the names of a side feature's codes; '' for reserved ones.

        Raises:
            MissingColumnError: there is no such side feature.
            DataError: it is a number.
        """
        remedy = "Name it in SessionFrame(features=…)"
        refuse_absent([side], self.sides, "sessions have no such side feature", remedy=remedy)
        vocab = self.codings[side].vocab
        if vocab is None:
            raise DataError("it is a number, no kind of event", column=side, remedy="Make it text or a category")
        return ["" if i < len(vocab.reserved) else str(v) for i, v in enumerate(vocab.classes)]

    def codes_of(self, side: str, kinds: Sequence[str]) -> list[int]:
        """Return the codes of kinds of events.

        Raises:
            MissingColumnError, DataError: as for ``kinds``; or no event is of such a kind.
        """
        names = self.kinds(side)
        lost = next((n for n in kinds if n not in names), None)
        if lost is not None:
            remedy = f"Name one of {', '.join(n for n in names if n)}"
            raise DataError(f"there is no event of the kind {lost!r}", column=side, remedy=remedy)
        return [names.index(n) for n in kinds]

    def take(self, rows: torch.Tensor) -> Self:
        """Return the sessions at ``rows``: int64 numbers in any order, or a bool mask ``[n]``."""
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        made = self.cut(self.offsets[rows], self.offsets[rows + 1])
        made.sessions = None if self.sessions is None else self.sessions.take(rows)
        made.target = None if self.target is None else self.target[rows]
        return made

    def cut(self, starts: torch.Tensor, ends: torch.Tensor) -> Self:
        """Return sessions of neighbouring events, without ids and targets.

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

    def with_target(self) -> Self:
        """Append each known target as the last event; times and side features are dropped."""
        if self.target is None:
            return self
        known = (self.target > 0).long()
        offsets = self.offsets + offsets_of(known)
        values = self.values.new_zeros(int(offsets[-1]))
        values[runs(offsets[:-1], self.lengths)[1]] = self.values
        values[offsets[1:][known > 0] - 1] = self.target[known > 0]
        made = copy.copy(self)
        made.values, made.offsets, made.target, made.times, made.sides = values, offsets, None, None, {}
        return made

    def recode(self, items: Vocab) -> Self:
        """Return the sessions in another vocabulary's codes, without side features of items.

        Events with an unknown item are dropped (or 0, see ``unknown``); unknown targets become 0.
        """
        if items is self.items or (items.values.equals(self.items.values) and items.reserved == self.items.reserved):
            return self
        table = items.encode(as_column(self.items.decode(torch.arange(len(self.items))), name="item"))
        made = copy.copy(self)
        made.items, made.item_sides, made.item_codings = items, {}, {}
        made.target = None if self.target is None else table[self.target]
        made.values = table[self.values]
        if self.unknown == "drop":
            made._keep(made.values >= len(items.reserved))
        made._tell_of_unknown(rows_of(self.offsets)[self.values > 0])
        return made

    def decode(self, codes: torch.Tensor) -> pa.Array:
        """Return item ids of codes of any shape, flattened; code 0 is null."""
        return self.items.decode(codes.reshape(-1))

    def __repr__(self) -> str:
        return f"SessionFrame({len(self)} sessions, {len(self.values)} events, {len(self.items.values)} items)"


def _vocab(column: Column | None, target: Column | None, name: str) -> Vocab:
    parts = [c for c in (column, target) if c is not None and len(c)]
    if not parts:
        return Vocab(pa.array([], pa.int64()), name=name)
    return Vocab.fit(concat([Table({name: c}) for c in parts])[name])


def leave_one_out(sessions: SessionFrame) -> tuple[SessionFrame, SessionFrame]:
    """Hold out the last event of every session of two or more.

    Returns:
        All sessions without it (shorter ones whole), and those that lost one, with it as their target.
    """
    long = (sessions.lengths > 1).long()
    starts, ends = sessions.offsets[:-1], sessions.offsets[1:]
    train = sessions.cut(starts, ends - long)
    train.sessions = sessions.sessions
    rows = long.nonzero().squeeze(1)
    valid = train.take(rows)
    valid.target = sessions.values[ends[rows] - 1]
    return train, valid


def by_time(sessions: SessionFrame, share: float = 0.1) -> tuple[SessionFrame, SessionFrame]:
    """Hold out a share of the sessions: those that ended last; without times, the last in order.

    Raises:
        DataError: ``share`` is not between 0 and 1.
    """
    ends = sessions.ends
    order = torch.arange(len(sessions)) if ends is None else torch.argsort(ends.nan_to_num(-torch.inf), stable=True)
    return _last_held_out(sessions, order, share)


def by_session(sessions: SessionFrame, share: float = 0.1, *, seed: int = 0) -> tuple[SessionFrame, SessionFrame]:
    """Hold out a share of the sessions at random.

    Raises:
        DataError: ``share`` is not between 0 and 1.
    """
    order = torch.randperm(len(sessions), generator=torch.Generator().manual_seed(seed))
    return _last_held_out(sessions, order.flip(0), share)


def given_split(sessions: SessionFrame, held_out: torch.Tensor) -> tuple[SessionFrame, SessionFrame]:
    """Hold out the sessions of a mask, bool ``[n]``.

    Raises:
        DataError: the mask is not bool, or of another length.
    """
    if held_out.dtype != torch.bool or held_out.shape != (len(sessions),):
        given = f"a mask of {tuple(held_out.shape)} {held_out.dtype}"
        raise DataError(f"{given} for {len(sessions)} sessions", remedy="Give True or False for each")
    return sessions.take(~held_out), sessions.take(held_out)


def prefixes(
    sessions: SessionFrame,
    *,
    last: int | None = None,
    drawn: int | None = None,
    seed: int = 0,
    longest: int | None = None,
) -> SessionFrame:
    """Return one session per event but a session's first: the events before it, with it as target.

    Args:
        last: only the last so many targets; None: all, whose events grow with the square of a session's length.
        drawn: only so many targets at random, in their order.
        seed: of the draw.
        longest: at most so many events before each target, the last ones; None: all.

    Returns:
        Sessions in the order of the targets, with the ids of their origin.
    """
    rows = torch.repeat_interleave(torch.arange(len(sessions)), (sessions.lengths - 1).clamp_min(0))
    kept = torch.arange(len(rows))
    if drawn is not None:
        kept = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:drawn].sort().values
    kept = kept if last is None else kept[max(len(kept) - last, 0) :]
    first = torch.ones(len(sessions.values), dtype=torch.bool)
    first[sessions.offsets[:-1][sessions.lengths > 0]] = False
    places, rows = first.nonzero().squeeze(1)[kept], rows[kept]
    starts = sessions.offsets[rows]
    made = sessions.cut(starts if longest is None else torch.maximum(starts, places - longest), places)
    made.target = sessions.values[places]
    made.sessions = None if sessions.sessions is None else sessions.sessions.take(rows)
    return made


def _last_held_out(sessions: SessionFrame, order: torch.Tensor, share: float) -> tuple[SessionFrame, SessionFrame]:
    if not 0 < share < 1:
        raise DataError(f"a share of {share} was to be held out", remedy="Give a number between 0 and 1")
    kept = len(order) - round(len(order) * share)
    return sessions.take(order[:kept].sort().values), sessions.take(order[kept:].sort().values)
