"""The old events of a key become sums, and the sums come back into a request's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fastrec.errors import DataError
from fastrec.features._inputs import order_keys
from fastrec.features.base import Feature
from fastrec.serve.online.fetching import Fetched, Request
from fastrec.serve.online.fold import CUT, base_type, first_order, is_old, kept, span_of, summed, sums
from fastrec.serve.online.plan import EventIndex, Plan
from fastrec.serve.online.records import RecordLayout, Values
from fastrec.serve.online.store import EventStore
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND


class Folder:
    """Folds the old events of keys that have many.

    A key's base is a record of its own: the time that all folded events are before, and what they add to each output.

    Args:
        plan: what is kept.
        store: where.
        values: what names text.
        keep: how many events a key has before old ones are folded.
        late: how far behind the newest event a request may be, in seconds or the order's unit.
    """

    def __init__(self, plan: Plan, store: EventStore, values: Values, keep: int, late: Fraction) -> None:
        if keep < 1 or late < 0:
            raise DataError(f"Online cannot keep {keep} events, {late} s late", remedy="Use keep >= 1 and late >= 0")
        self.plan, self.store, self.values, self.keep, self.late = plan, store, values, keep, late
        self._next: dict[bytes, int] = {}  # how many events a key may have that was folded to little effect

    def fold(
        self, lengths: Mapping[bytes, int], touched: Mapping[bytes, EventIndex], layouts: Mapping[str, RecordLayout]
    ) -> None:
        """Fold the keys whose values have become long.

        Args:
            lengths: the bytes of each key's events.
            touched: the index of each key.
            layouts: the tables' types.
        """
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
        base = base_type(index.readers, None if order is None else layout.dtype([order])[order])
        events = Table(layout.decode(records, index.fields, self.values))
        old, cut = self._old(index, events)
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

    def _old(self, index: EventIndex, events: Table) -> tuple[np.ndarray, Any]:
        """Mark the events that no later request can precede, and return the time before which they are."""
        order = first_order(index.readers)
        if order is None:
            return np.ones(len(events), dtype=bool), None
        first = order_keys(events, [order])[0].numpy()
        unit = UNITS_PER_SECOND[events[order].unit or "s"]
        margin = (self.late + max(span_of(s) for s in index.readers)) * unit
        # A request may be `late`; what a window reaches back to from there is not old either.
        old, _ = is_old(first, first.max(), margin)
        return old, is_old(first, first.max(), self.late * unit)[1]

    def add_sums(
        self, step: Feature, made: dict[str, Column], fetched: Mapping[str, Fetched], request: Request
    ) -> dict[str, Column]:
        """Add the sums of folded events to a generator's columns.

        Raises:
            DataError: a row is older than what was folded.
        """
        for found in fetched.values():
            if found.bases is None:
                continue
            self._check_late(found, request)
            place = torch.from_numpy(found.rows)
            for name in summed(step):
                more = torch.from_numpy(found.bases[name].copy())[place.clamp_min(0)]
                made[name] = replace(made[name], values=made[name].values + torch.where(place >= 0, more, 0))
        return made

    def _check_late(self, found: Fetched, request: Request) -> None:
        order = first_order(found.index.readers)
        if order is None or found.bases is None:
            return
        now, place = order_keys(request.rows, [order])[0].numpy(), found.rows.clip(0)
        late = (found.rows >= 0) & found.folded[place] & (now < found.bases[CUT][place])
        late[: request.past] = False
        if late.any():
            raise DataError(
                "a request is older than events that were folded into sums",
                column=order,
                row=int(late.argmax()) - request.past,
                remedy="Make the Online with a larger late=, or send requests in time",
            )
