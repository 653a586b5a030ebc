"""One request: its rows, the earlier rows and the events that its generators look at, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features.base import Feature
from fastrec.features.columns import order_keys
from fastrec.serve.online.fold import CUT, base_type, first_order, is_old, kept, span_of, summed, sums
from fastrec.serve.online.plan import HISTORY, ROW, EventIndex, EventLookup, Plan, RecordLayout, Values, union
from fastrec.serve.online.store import MemoryStore, row_keys
from fastrec.table import Column, Table, concat
from fastrec.table.keys import UNITS_PER_SECOND, is_text
from fastrec.table.table import concat_columns

Made = dict[str, Column]


@dataclass(eq=False)
class Fetched:
    """The events of some rows' keys."""

    index: EventIndex  # where they are from
    rows: np.ndarray  # int64 ``[n]``, the place of each row's key; -1: it has none
    first: np.ndarray  # int64 ``[keys]``, a row that has each key
    of_key: np.ndarray  # int64 ``[events]``, the place of each event's key; those of one key are together, as they came
    bases: np.ndarray | None  # what folded events came to, ``[keys]``; None: there are none
    folded: np.ndarray  # bool ``[keys]``, the keys that have some
    events: Table  # the events as a table


class Request:
    """Rows that ask for features: the earlier rows that are looked at (``past`` of them), then those asked about."""

    def __init__(
        self, plan: Plan, store: MemoryStore, values: Values, layouts: Mapping[str, RecordLayout], asked: Table
    ) -> None:
        self.plan, self.store, self.values, self.layouts = plan, store, values, layouts
        self._bases: dict[bytes, bytes | None] = {}  # of the frame's history, as of the moment that its rows were read
        self.own: dict[int, np.ndarray] = {}  # by step, the numbers of the earlier rows that it looks at
        self.rows = self._with_past(asked)
        self.past = len(self.rows) - len(asked)
        self._fetched: dict[tuple[int, tuple[str, ...]], Fetched] = {}
        self._digests: dict[str, list[bytes | None]] = {}
        wanted: dict[tuple[int, tuple[str, ...]], tuple[EventIndex, EventLookup, Table | None]] = {}
        for lookup in (k for found in plan.lookups for k in found):
            if lookup.table in layouts and all(n in self.rows for n in lookup.rows) and lookup.via is None:
                index = plan.index[lookup]
                names = lookup.rows[: len(index.columns)]  # a session's events are also those of it and an item
                wanted.setdefault((index.number, names), (index, lookup, None))
        self._fetch(list(wanted.values()))

    def add(self, made: Made) -> None:
        """Add columns to the rows."""
        # The table is this request's own: a new one for every step would cost more than most steps.
        self.rows._columns.update(made)

    def result(self, names: Sequence[str]) -> Table:
        """Return columns of the requested rows."""
        made = self.rows.select(names)
        return made.slice(self.past, len(self.rows)) if self.past else made

    def fetch(self, place: int) -> dict[str, Fetched]:
        """Return the events that a step looks at, by table; unknown tables are left out."""
        found: dict[str, Fetched] = {}
        for lookup in self.plan.lookups[place]:
            if lookup.table not in self.layouts:
                if lookup.via is None and lookup.table != HISTORY:
                    why = f"the types of the events of {lookup.table!r} are not known, as none was observed"
                    remedy = f"Make the Online with tables={{{lookup.table!r}: a frame or an Arrow schema}}"
                    raise DataError(why, remedy=remedy)
                continue
            index = self.plan.index[lookup]
            key = (index.number, lookup.rows[: len(index.columns)])
            if key not in self._fetched:
                self._fetch([(index, lookup, None if lookup.via is None else found[lookup.via].events)])
            found[lookup.table] = self._fetched[key]
        return found

    def on_own_rows(self, place: int, do: Callable[[Table], Made]) -> Made:
        """Compute on a step's earlier rows and the requested ones, and pad to all rows."""
        own = self.own.get(place)
        if own is None or len(own) == self.past:
            return do(self.rows)
        mine = np.concatenate([np.flatnonzero(np.isin(self._numbers, own)), np.arange(self.past, len(self.rows))])
        places = torch.from_numpy(mine)
        made = do(self.rows.take(places))
        # No step looks at the values of the rows in between.
        back = torch.zeros(len(self.rows), dtype=torch.int64).index_put_((places,), torch.arange(len(places)))
        return {n: c.take(back) for n, c in made.items()}

    def _with_past(self, asked: Table) -> Table:
        """Put the earlier rows that some step looks at before the requested ones.

        A step's values at earlier rows are needed where a step that looks back reads them; then the groups of those
        rows are needed too. So the steps are walked from the last to the first.
        """
        layout = self.layouts.get(HISTORY)
        names = next((i.fields for i in self.plan.indexes if i.table == HISTORY), None)
        if layout is None or names is None or not len(asked):
            return _own(asked)
        wanted: dict[str, np.ndarray] = {}
        every = nothing = np.empty(0, layout.dtype(names))
        groups: dict[bytes, np.ndarray] = {}
        for i in range(len(self.plan.steps) - 1, -1, -1):
            step = self.plan.steps[i]
            needed = [wanted[n] for n in step.outputs if n in wanted]
            rows = union([nothing, *needed]) if needed else nothing
            for lookup in self.plan.lookups[i]:
                if lookup.table == HISTORY:
                    rows = union([rows, self._group(lookup, rows, asked, layout, groups)])
                    self.own[i] = rows[ROW]
            if len(rows):
                every = union([every, rows])
                for name in step.inputs:
                    wanted[name] = union([wanted[name], rows]) if name in wanted else rows
        if not len(every):
            return _own(asked)
        self._numbers = every[ROW]
        past = layout.decode(every, names, self.values)
        # What no step looks at in earlier rows is not kept of them, and any value does.
        first = torch.zeros(len(every), dtype=torch.int64)
        past |= {n: asked[n].take(first) for n in asked.names if n not in past}
        return _own(concat([Table(past).select(asked.names), asked]))

    def _group(
        self, lookup: EventLookup, rows: np.ndarray, asked: Table, layout: RecordLayout, groups: dict[bytes, np.ndarray]
    ) -> np.ndarray:
        index = self.plan.index[lookup]
        keys = {k for k in row_keys(asked, index.columns, index.prefix) if k is not None}
        if len(rows):
            there = Table(layout.decode(rows, index.columns, self.values)) if index.columns else asked
            keys |= {k for k in row_keys(there, index.columns, index.prefix) if k is not None}
        absent = [k for k in keys if k not in groups]
        found = self.store.get([*absent, *(EventIndex.base_of(k) for k in absent if index.folds)])
        for key, value in zip(absent, found, strict=False):
            groups[key] = np.frombuffer(value, rows.dtype) if value else rows[:0]
        self._bases |= dict(zip(absent, found[len(absent) :], strict=False))
        return np.concatenate([rows[:0], *(groups[k] for k in keys)])

    def _fetch(self, wanted: Sequence[tuple[EventIndex, EventLookup, Table | None]]) -> None:
        """Fetch events by the keys of the rows, and of other events (the third of each)."""
        keyed = []
        for index, lookup, more in wanted:
            names = lookup.rows[: len(index.columns)]
            schema = self.layouts[index.table].schema
            for name, column in zip(names, index.columns, strict=True):
                mine, theirs = self.rows[name], schema.field(column).type
                has_value = len(mine) and not bool(mine.is_missing().all())
                if has_value and is_text(theirs) != (mine.kind == "category" and is_text(mine.distinct.type)):
                    why = f"holds {'no ' if is_text(theirs) else ''}text, and the events of {index.table!r} {theirs}"
                    raise DataError(why, column=name, remedy="Give both the same type")
            keys = row_keys(self.rows, names, index.prefix, self._digests)
            keys += row_keys(more, index.columns, index.prefix) if more is not None else []
            places: dict[bytes, int] = {}
            rows = np.array([-1 if k is None else places.setdefault(k, len(places)) for k in keys], np.int64)
            keyed.append((index, lookup, more, rows, list(places)))
        # Events and what folded ones came to are read at one moment, in between nothing is folded. The frame's history
        # was read already.
        asked: list[bytes] = []
        for index, *_, keys in keyed:
            if index.table != HISTORY:
                asked += keys + [EventIndex.base_of(k) for k in keys if index.folds]
        held = dict(zip(asked, self.store.get(asked), strict=True))
        parts = []
        for index, lookup, more, rows, keys in keyed:
            is_log = index.table != HISTORY
            values = [held[k] for k in keys] if is_log else []
            bases = [held[EventIndex.base_of(k)] if is_log else self._bases.get(k) for k in keys] if index.folds else []
            parts.append((self._arranged(index, rows, values, bases), lookup, more))
        self._share_words([f for f, *_ in parts])
        for fetched, lookup, more in parts:
            self._add_keys(fetched, lookup, more)
            self._fetched[fetched.index.number, lookup.rows[: len(fetched.index.columns)]] = fetched

    def _arranged(
        self, index: EventIndex, rows: np.ndarray, values: Sequence[bytes | None], bases: Sequence[bytes | None]
    ) -> Fetched:
        layout = self.layouts[index.table]
        kind = layout.dtype(index.fields)
        data = b"".join(v for v in values if v)
        records = np.frombuffer(data, kind) if data else np.empty(0, kind)
        of_key = np.repeat(np.arange(len(values)), [len(v or b"") // kind.itemsize for v in values])
        sums, folded = None, np.array([b is not None for b in bases], dtype=bool)
        if folded.any():
            base = base_type(index.readers, kind)
            nothing = np.zeros(1, base).tobytes()
            sums = np.frombuffer(b"".join(b or nothing for b in bases), base)
        first = np.zeros(int(rows.max(initial=-1)) + 1, dtype=np.int64)
        there = np.flatnonzero(rows >= 0)
        first[rows[there]] = there
        columns = layout.decode(records, index.fields, self.values) if index.table != HISTORY else {}
        return Fetched(index, rows, first, of_key, sums, folded, Table(columns))

    def _add_keys(self, fetched: Fetched, lookup: EventLookup, more: Table | None) -> None:
        if fetched.index.table == HISTORY:
            return
        rows = torch.from_numpy(fetched.first[fetched.of_key])
        for name, column in zip(lookup.rows, fetched.index.columns):
            source = self.rows[name]
            if more is not None:
                source = concat_columns([source, more[column]], torch.device("cpu"))
            fetched.events._columns[column] = source.take(rows).changed(name=column)
        fetched.rows = fetched.rows[: len(self.rows)]

    def _share_words(self, fetched: Sequence[Fetched]) -> None:
        """Give the rows' and the events' text columns of one name one list of words, so that codes are equal."""
        for name in self.rows.names:
            mine = self.rows[name]
            if mine.kind != "category" or mine.ordered is not None or not is_text(mine.distinct.type):
                continue
            others = [f.events for f in fetched if name in f.events and f.events[name].kind == "category"]
            if not others:
                continue
            places = {word: i for i, word in enumerate(mine.distinct.to_pylist(), 1)}
            tables = []
            for table in others:
                words = table[name].distinct.to_pylist()
                tables.append(np.array([0, *(places.setdefault(w, len(places) + 1) for w in words)], np.int32))
            words = pa.array(list(places), mine.distinct.type)
            self.rows._columns[name] = replace(mine, distinct=words)
            for table, codes in zip(others, tables, strict=True):
                there = table[name]
                values = torch.from_numpy(codes)[there.values.long()]
                table._columns[name] = replace(there, values=values, distinct=words)


def _own(table: Table) -> Table:
    """Copy the columns into a private table, without categories that no row has."""
    columns = {}
    for name in table.names:
        column = columns[name] = table[name]
        if column.kind == "category" and column.ordered is None and len(column.distinct) > len(column) + 1:
            used = torch.unique(column.values)
            used = used[used > 0]
            codes = torch.where(column.values > 0, torch.searchsorted(used, column.values) + 1, 0)
            words = column.distinct.take(pa.array(used.numpy() - 1))
            columns[name] = replace(column, values=codes.int(), distinct=words)
    return Table(columns)


class Folder:
    """Folding of old events into sums, for keys that have more than ``keep`` events.

    A key's base is a record of its own: the time that all folded events are before, and what they add to each output. A
    request may be ``late`` behind the newest event, in seconds or the order's unit.
    """

    def __init__(self, plan: Plan, store: MemoryStore, values: Values, keep: int, late: Fraction) -> None:
        if keep < 1 or late < 0:
            raise DataError(f"Online cannot keep {keep} events, {late} s late", remedy="Use keep >= 1 and late >= 0")
        self.plan, self.store, self.values, self.keep, self.late = plan, store, values, keep, late
        self._next: dict[bytes, int] = {}  # how many events a key may have that was folded to little effect

    def fold(
        self, lengths: Mapping[bytes, int], touched: Mapping[bytes, EventIndex], layouts: Mapping[str, RecordLayout]
    ) -> None:
        """Fold the keys whose values have become long, by the bytes of each key's events, and its index."""
        sizes = {i.number: layouts[i.table].dtype(i.fields).itemsize for i in set(touched.values())}
        for key, length in lengths.items():
            index = touched[key]
            if index.folds and length > self._next.get(key, self.keep) * sizes[index.number]:
                self._fold(key, index, layouts[index.table])

    def _fold(self, key: bytes, index: EventIndex, layout: RecordLayout) -> None:
        base_key = EventIndex.base_of(key)
        value, before = self.store.get([key, base_key])
        if value is None:
            return
        records = np.frombuffer(value, layout.dtype(index.fields))
        order = first_order(index.readers)
        base = base_type(index.readers, records.dtype)
        events = Table(layout.decode(records, index.fields, self.values))
        # the events that no later request can precede, and the time before which they are
        old, cut = np.ones(len(events), dtype=bool), None
        if order is not None:
            first = order_keys(events, [order])[0].numpy()
            unit = UNITS_PER_SECOND[events[order].unit or "s"]
            # A request may be `late`, and its windows reach further back.
            old, _ = is_old(first, first.max(), (self.late + max(span_of(s) for s in index.readers)) * unit)
            cut = is_old(first, first.max(), self.late * unit)[1]
        stays = torch.zeros(int(old.sum()), dtype=torch.bool)
        rows = torch.from_numpy(old.nonzero()[0])
        past = events.take(rows) if len(events.names) else events
        for step in index.readers:
            stays |= kept(step, past) if len(stays) else stays
        gone = rows[~stays]
        left = np.ones(len(records), dtype=bool)
        left[gone.numpy()] = False
        self._next.pop(key, None)
        if left.sum() > self.keep // 2:
            self._next[key] = 2 * int(left.sum())
        if not len(gone):
            return
        total = np.zeros(1, base) if before is None else np.frombuffer(before, base).copy()
        dropped = events.take(gone)
        for step in index.readers:
            for name, value_of in sums(step, dropped).items():
                total[name] += value_of
        if cut is not None:
            total[CUT] = cut if before is None else max(total[CUT][0], cut)
        self.store.replace(key, value, records[left].tobytes(), {base_key: total.tobytes()})

    def add_sums(
        self, step: Feature, made: dict[str, Column], fetched: Mapping[str, Fetched], request: Request
    ) -> dict[str, Column]:
        """Add the sums of folded events to a generator's columns; refuse a row older than what was folded."""
        for found in fetched.values():
            if found.bases is None:
                continue
            order = first_order(found.index.readers)
            if order is not None:
                now, key = order_keys(request.rows, [order])[0].numpy(), found.rows.clip(0)
                late = (found.rows >= 0) & found.folded[key] & (now < found.bases[CUT][key])
                late[: request.past] = False
                if late.any():
                    why, row = "a request is older than events that were folded into sums", int(late.argmax())
                    remedy = "Make the Online with a larger late=, or send requests in time"
                    raise DataError(why, column=order, row=row - request.past, remedy=remedy)
            place = torch.from_numpy(found.rows)
            for name in summed(step):
                more = torch.from_numpy(found.bases[name].copy())[place.clamp_min(0)]
                made[name] = replace(made[name], values=made[name].values + torch.where(place >= 0, more, 0))
        return made
