"""``CoVisit``: how often others had the row's item together with the items before it in its group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError
from fastrec.features._engine.earlier import earlier_events
from fastrec.features._engine.item_pairs import Pairs, find_pairs, merge_pairs, near_pairs
from fastrec.features._engine.keyed import key_text, sort_keys, spread, sum_by_cell, union_keys
from fastrec.features._inputs import as_list, check_choices, order_keys
from fastrec.features.base import Cells, Fitted, Names, State, Tensors
from fastrec.segments import Groups
from fastrec.table import Table
from fastrec.table.key_types import UNITS_PER_SECOND
from fastrec.table.vocab import hash_codes

Stat = Literal["sum", "max", "mean"]
_STATS = ("sum", "max", "mean")
_NONE = -2  # no event, or a missing item; -1 is an item that was not learned


class CoVisit(Fitted):
    """How often groups (sessions) had the row's item together with the items before it in the row's own group.

    Two items of a group at most ``window`` events apart are a pair; it weighs the product of its events' weights,
    halved with every ``half_life`` between them. Two items score ``w(a, b) / √(w(a) · w(b))``, with ``w(a, b)`` the
    weight of their pairs and ``w(a)`` the sum of the squared weights of events on ``a``: the cosine of item-based
    neighbourhoods. Only events strictly before the row are compared with it.

    Groups are in folds by a hash of ``by``. Rows of training groups get their scores from the other folds, so no row
    meets its own group's pairs; rows of other groups get the scores of all folds.

    Args:
        item: the item's column, in rows and log.
        by: the columns of the group, in rows and log.
        order: the columns that order events and rows, both having them.
        table: the name of the log among the ``tables`` given, which is learned from when fitting and read for a row's
            past always; None: the frame's own rows are the events.
        window: how many events apart two items may be.
        last: how many events before the row are compared with it; those on the row's own item say nothing.
        half_life: in seconds where the first order column holds times, else in its unit; None: time does not matter.
        event: the events' column that says what kind each is.
        weights: kind → weight of an event, 0 or more; events of other kinds do not count. None: all weigh 1.
        stats: of ``sum``, ``max`` and ``mean`` of the scores with the items before.
        folds: how many folds of groups.
        name: the outputs' first word.

    NaN where no other item is before the row, or its own is missing; 0 for items that were never together.

    Source: Sarwar, Karypis, Konstan, Riedl 2001, "Item-based collaborative filtering recommendation algorithms", §3.1.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CoVisit
        >>> train = pd.DataFrame({"s": [1, 1, 2, 2, 3, 3], "t": [1, 2] * 3, "item": ["a", "b", "b", "a", "a", "c"]})
        >>> test = pd.DataFrame({"s": [9, 9, 9], "t": [1, 2, 3], "item": ["a", "b", "c"]})
        >>> made = CoVisit("item", by="s", order="t").fit(train).transform(test)
        >>> made["covisit_sum"].round(3).tolist()
        [nan, 0.816, 0.577]
    """

    online = "history"
    whole_groups = True

    def __init__(
        self,
        item: str,
        *,
        by: Names,
        order: Names,
        table: str | None = None,
        window: int = 5,
        last: int = 5,
        half_life: float | None = None,
        event: str | None = None,
        weights: Mapping[str, float] | None = None,
        stats: Stat | Sequence[Stat] = ("sum", "max"),
        folds: int = 5,
        name: str = "covisit",
    ) -> None:
        super().__init__()
        self.item, self.by, self.order, self.table = item, by, order, table
        self.window, self.last, self.half_life, self.event, self.weights = window, last, half_life, event, weights
        self.stats, self.folds, self.name = stats, folds, name
        check_choices(self, "statistic", stats, _STATS)
        for word, value, least in (("window", window, 1), ("last", last, 1), ("folds", folds, 2)):
            if value < least:
                raise DataError(f"CoVisit: {word} is {value}", remedy=f"Use {least} or more")
        if half_life is not None and not half_life > 0:
            raise DataError(f"CoVisit: half_life is {half_life}", remedy="Use a number above 0, or None")
        if (event is None) != (weights is None):
            raise DataError("CoVisit: event and weights belong together", remedy="Give both, or neither")
        if any(not 0 <= w < float("inf") for w in (weights or {}).values()):
            raise DataError(f"CoVisit: the weights are {weights!r}", remedy="Use finite numbers, 0 or more")
        if not as_list(order):
            raise DataError("CoVisit needs an order", remedy="Name its columns with order=")

    @property
    def within(self) -> list[str]:
        return as_list(self.by)

    @property
    def _event_columns(self) -> list[str]:
        return [*as_list(self.by), *as_list(self.order), self.item, *as_list(self.event)]

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        return [n for n in self._event_columns if self.table is None or n != self.event]

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {} if self.table is None else {self.table: self._event_columns}

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_{s}" for s in as_list(self.stats)]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        log = self._log()
        events = table if log is None else log
        cells = cells if log is None else None
        item, weight = events[self.item].coded(), self._weights(events)
        by = events.coded(as_list(self.by)).codes
        group = _group_hash(events, as_list(self.by))
        rows = ((item.codes > 0) & (by > 0) & (weight > 0)).nonzero().squeeze(1)
        items, codes = sort_keys(item)
        used = torch.bincount(codes[rows], minlength=len(items) + 1)[1:] > 0
        items, places = items.take(used.nonzero().squeeze(1).cpu()), torch.cumsum(used, 0) - 1
        codes, group, weight = places[codes[rows] - 1], group[rows], weight[rows]
        count = 1 if cells is None else cells.count
        cell = group % self.folds + (0 if cells is None else cells.codes[rows] * self.folds)
        own = sum_by_cell(weight**2, codes, Cells(cell, count * self.folds), len(items))
        order = [k[rows] for k in order_keys(events, as_list(self.order))]
        # Events at one place are told apart by what they are, so that rows may come in any order.
        kinds = [] if self.weights is None else [torch.unique(weight, return_inverse=True)[1]]
        groups = Groups.of(by[rows], *order, codes, *kinds)
        pairs = near_pairs(
            groups,
            *(groups.sort(v) for v in (codes, cell, weight)),
            groups.sort(self._seconds(events, order[0])) if self.half_life is not None else None,
            window=self.window,
            half_life=self.half_life or 1.0,
            size=(len(items), count * self.folds),
        )
        return {"items": items, "own": own, "groups": torch.unique(group), **pairs._asdict()}

    def _log(self) -> Table | None:
        return None if self.table is None else self.context.table(self.table, wanted_by="CoVisit")

    def _seconds(self, events: Table, order: torch.Tensor) -> torch.Tensor:
        first = order.min() if len(order) else 0
        return (order - first).double() / UNITS_PER_SECOND[events[as_list(self.order)[0]].unit or "s"]

    def _weights(self, events: Table) -> torch.Tensor:
        if self.weights is None:
            return torch.ones(len(events), dtype=torch.float64, device=events.device)
        coded = events[self.event].coded()
        known = key_text(coded.keys.columns[0]).to_pylist()
        given = {str(kind): float(w) for kind, w in self.weights.items()}
        table = torch.tensor([0.0, *(given.get(kind, 0.0) for kind in known)], dtype=torch.float64)
        return table.to(coded.codes.device).index_select(0, coded.codes)

    def merge(self, a: State, b: State) -> State:
        items, left, right = union_keys(a["items"], b["items"])
        cells = max(len(a["own"]), len(b["own"]))
        own = spread(a["own"], left, len(items), cells) + spread(b["own"], right, len(items), cells)
        parts = [Pairs(s["low"], s["high"], s["weight"]) for s in (a, b)]
        pairs = merge_pairs(*parts, left, right, len(items))
        groups = torch.unique(torch.cat([a["groups"], b["groups"]]))
        return {"items": items, "own": own, "groups": groups, **pairs._asdict()}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Score every pair: from all folds, then without fold 0, 1, …."""
        low, high = state["low"], state["high"]
        own, weight = (self._without_folds(state[n], keep) for n in ("own", "weight"))
        norm = torch.sqrt(own[:, low] * own[:, high])
        score = torch.where(norm > 0, weight / torch.where(norm > 0, norm, 1), 0)
        return {"pair": low * len(state["items"]) + high, "score": score, "size": len(state["items"])}

    def _without_folds(self, values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """Sum ``[cells · folds, …]`` over all folds, and over all but each one: ``[folds + 1, …]``."""
        by_fold = values.view(len(values) // self.folds, self.folds, values.shape[1])
        # The events of a log are in no cell: no fold of the rows hides them.
        by_fold = (by_fold if keep is None or self.table is not None else by_fold[keep.to(values.device)]).sum(0)
        others = 1 - torch.eye(self.folds, dtype=torch.float64, device=values.device)
        return torch.cat([by_fold.sum(0, keepdim=True), others @ by_fold])

    def prepare(self, state: State, table: Table) -> Tensors:
        log = self._log()
        events = table if log is None else log
        by, items = as_list(self.by), state["items"]
        mine, theirs = (t[self.item].coded() for t in (table, events))
        usable = ~events[self.item].is_missing()
        if self.weights is not None:
            usable &= self._weights(events) > 0
        tie = sort_keys(theirs)[1]
        found = earlier_events(table, log, by, as_list(self.order), counted=usable, tie=tie)
        there = theirs.recode(items) - 1
        earlier = torch.full((len(table), self.last), _NONE, dtype=torch.int32, device=table.device)
        # An item that was not learned is no item of a pair, but two of them may still be one item.
        same = theirs.codes if log is None else theirs.recode(mine.keys)
        for i in range(self.last):  # column by column: `last` is small, rows are many
            rows = found.back(i + 1)
            at = rows.clamp_min(0)
            other = (rows >= 0) & (same[at] != mine.codes) if len(there) else rows >= 0
            earlier[:, i] = torch.where(other, there[at] if len(there) else -1, _NONE).int()
        group = _group_hash(table, by)
        learned = torch.isin(group, state["groups"].to(group.device))
        fold = torch.where(learned, group % self.folds + 1, 0)
        item = torch.where(mine.codes > 0, mine.recode(items) - 1, _NONE)
        return {"item": item, "earlier": earlier, "fold": fold}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        item, fold, pair = tensors["item"], tensors["fold"], fit["pair"].to(tensors["item"].device)
        score = fit["score"].to(item.device)
        total = torch.zeros(item.shape[0], dtype=torch.float64, device=item.device)
        most, count = torch.zeros_like(total), torch.zeros_like(total)
        for column in tensors["earlier"].unbind(1):
            there = column.long()
            some = (item != _NONE) & (there != _NONE)
            count += some
            rows = (some & (item >= 0) & (there >= 0)).nonzero().squeeze(1)
            place, known = find_pairs(pair, item[rows], there[rows], fit["size"])
            rows, place = rows[known], place[known]
            found = score[fold[rows], place]
            total[rows] += found
            most[rows] = torch.maximum(most[rows], found)
        made = {"sum": total, "max": most, "mean": total / count.clamp_min(1)}
        return {f"{self.name}_{s}": torch.where(count > 0, made[s], torch.nan) for s in as_list(self.stats)}


def _group_hash(table: Table, by: Sequence[str]) -> torch.Tensor:
    """Hash each row's group by its key alone: int64 ``[n]``, -1 where the key is missing."""
    coded = table.coded(list(by))
    text = [key_text(c) for c in coded.keys.columns]
    joined = text[0] if len(text) == 1 else pc.binary_join_element_wise(*text, pa.scalar("\x1f", pa.large_string()))
    hashes = torch.full((coded.size,), -1, dtype=torch.int64)
    hashes[1:] = torch.from_numpy(hash_codes(joined, 1 << 62, seed=2))
    return hashes.to(coded.codes.device).index_select(0, coded.codes)
