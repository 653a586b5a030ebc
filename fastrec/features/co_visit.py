"""Similarity of a row's item to the items before it: co-visits and Jaccard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.keyed import add_spread, hash_keys, key_text, of_codes, sort_keys, sum_by_cell, union_keys
from fastrec.features._engine.order import earlier_events
from fastrec.features.base import Cells, Context, Fitted, Grouped, Names, State, Tensors
from fastrec.features.columns import as_list, order_keys
from fastrec.segments import Groups, segment_max
from fastrec.table import Column, Table
from fastrec.table.column import lengths_of, offsets_of, rows_of, runs
from fastrec.table.keys import UNITS_PER_SECOND


def near_pairs(
    groups: Groups,
    item: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    time: torch.Tensor | None,
    *,
    window: int,
    half_life: float,
    size: tuple[int, int],
) -> State:
    """Sum the weights of pairs of events in one group and cell, up to ``window`` places apart, by pair of items.

    A pair weighs the product of its events' weights, halved with every ``half_life`` between them if ``time`` is given.
    ``size``: the numbers of items and cells. Returns the pairs' items ``low`` and ``high`` (int64 ``[U]`` from 0,
    sorted) and ``weight``, float64 ``[cells, U]``.
    """
    items, cells = size
    joined = item.new_zeros(0)
    total = weight.new_zeros(0)
    for begin in range(0, len(item), limits.PAIRED_PLACES):
        end = min(begin + limits.PAIRED_PLACES, len(item))
        found, weights = [joined], [total]
        for step in range(1, window + 1):
            a = torch.arange(begin, max(min(end, len(item) - step), begin), device=item.device)
            a = a[groups.codes[a] == groups.codes[a + step]]
            a = a[(item[a] != item[a + step]) & (cell[a] == cell[a + step])]
            b = a + step
            low, high = torch.minimum(item[a], item[b]), torch.maximum(item[a], item[b])
            weighs = weight[a] * weight[b]
            if time is not None:
                weighs = weighs * torch.exp2(-(time[b] - time[a]).abs() / half_life)
            found.append((low * items + high) * cells + cell[a])
            weights.append(weighs)
        keys, order = torch.sort(torch.cat(found), stable=True)
        joined, place = torch.unique_consecutive(keys, return_inverse=True)
        total = weight.new_zeros(len(joined)).index_add_(0, place, torch.cat(weights)[order])
    pair, place = torch.unique_consecutive(joined // cells, return_inverse=True)
    made = weight.new_zeros(cells, len(pair))
    made[joined % cells, place] = total
    return {"low": pair // max(items, 1), "high": pair % max(items, 1), "weight": made}


Stat = Literal["sum", "max", "mean"]
_NONE = -2  # no event, or a missing item; -1 is an item that was not learned


class CoVisit(Fitted):
    """Scores of the row's item with the items strictly before it in its group, by how often they occur together.

    Two items of a group at most ``window`` events apart are a pair, which weighs the product of its events' weights,
    halved with every ``half_life`` between them. The score is the cosine ``w(a, b) / √(w(a) · w(b))``: ``w(a, b)`` is
    the weight of all pairs of ``a`` and ``b``, ``w(a)`` the sum of the squared weights of events on ``a``.

    Groups are assigned to folds by a hash of ``by``. Rows of training groups get scores from the other folds, all other
    rows from all folds; all events of the log count (in a run with folds by time, those before the scored rows). The
    score is 0 for items never seen together. Outputs are NaN if the row's item is missing or no other is before it.

    Args:
        item: the column of the item, in rows and log.
        by: the columns of the group, in rows and log.
        order: the columns that order events and rows, in both.
        table: the name of the log in ``tables``, read when fitting and transforming; None: the frame's rows are the
            events.
        window: the largest distance of a pair, in events.
        last: the number of events before the row to compare with; those on the row's item do not count.
        half_life: in seconds if the first order column holds times, else in its unit; None: no decay.
        event: the column of the events' kind.
        weights: kind → weight, 0 or more; events of other kinds do not count. None: all weigh 1.
        stats: any of ``sum``, ``max`` and ``mean`` of the scores.
        folds: the number of folds of groups.

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
    _reads, _of_log = ("by", "order", "item"), ("event",)
    _least: ClassVar = {"window": 1, "last": 1, "folds": 2}

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
        # Ties in the order are broken by item and weight, so that the result does not depend on the order of rows.
        kinds = [] if self.weights is None else [torch.unique(weight, return_inverse=True)[1]]
        groups = Groups.of(by[rows], *order, codes, *kinds)
        since = order[0] - (order[0].min() if len(order[0]) else 0)
        seconds = since.double() / UNITS_PER_SECOND[events[as_list(self.order)[0]].unit or "s"]
        pairs = near_pairs(
            groups, *(groups.sort(v) for v in (codes, cell, weight)),
            None if self.half_life is None else groups.sort(seconds), window=self.window,
            half_life=self.half_life or 1.0, size=(len(items), count * self.folds),
        )  # fmt: skip
        return {"items": items, "own": own, "groups": torch.unique(group), **pairs}

    def _log(self) -> Table | None:
        return None if self.table is None else self.context.table(self.table, wanted_by="CoVisit")

    def _weights(self, events: Table) -> torch.Tensor:
        if self.weights is None:
            return torch.ones(len(events), dtype=torch.float64, device=events.device)
        coded = events[self.event].coded()
        known = key_text(coded.keys.columns[0]).to_pylist()
        given = {str(kind): float(w) for kind, w in self.weights.items()}
        return of_codes(coded, torch.tensor([given.get(kind, 0.0) for kind in known], dtype=torch.float64))

    def merge(self, a: State, b: State) -> State:
        items, left, right = union_keys(a["items"], b["items"])
        own = add_spread(a["own"], b["own"], items, left, right)
        groups, size = torch.unique(torch.cat([a["groups"], b["groups"]])), max(len(items), 1)
        places = [(s["low"], s["high"], at.to(s["low"].device)) for s, at in ((a, left), (b, right))]
        pair, place = torch.unique(torch.cat([at[x] * size + at[y] for x, y, at in places]), return_inverse=True)
        weight = add_spread(a["weight"], b["weight"], pair, *place.tensor_split([len(a["low"])]))
        pairs = {"low": pair // size, "high": pair % size, "weight": weight}
        return {"items": items, "own": own, "groups": groups, **pairs}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Score every pair from all folds, then without fold 0, 1, …."""
        low, high = state["low"], state["high"]
        own, weight = (self._without_folds(state[n], keep) for n in ("own", "weight"))
        norm = torch.sqrt(own[:, low] * own[:, high])
        score = torch.where(norm > 0, weight / torch.where(norm > 0, norm, 1), 0)
        return {"pair": low * len(state["items"]) + high, "score": score, "size": len(state["items"])}

    def _without_folds(self, values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """Sum ``[cells · folds, …]`` over all folds, then over all folds but one: ``[folds + 1, …]``."""
        by_fold = values.view(len(values) // self.folds, self.folds, values.shape[1])
        # Events of a log are in no cell, so no fold of rows masks them.
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
        found = earlier_events(table, log, by, as_list(self.order), counted=usable, tie=sort_keys(theirs)[1])
        there = theirs.recode(items) - 1
        earlier = torch.full((len(table), self.last), _NONE, dtype=torch.int32, device=table.device)
        # Items not seen in training share a code, so equality is decided by the tables' codes.
        same = theirs.codes if log is None else theirs.recode(mine.keys)
        for i in range(self.last):  # by column: `last` is small, rows are many
            rows = found.back(i + 1)
            at = rows.clamp_min(0)
            other = (rows >= 0) & (same[at] != mine.codes) if len(there) else rows >= 0
            earlier[:, i] = torch.where(other, there[at] if len(there) else -1, _NONE).int()
        group = _group_hash(table, by)
        fold = torch.where(torch.isin(group, state["groups"].to(group.device)), group % self.folds + 1, 0)
        return {"item": torch.where(mine.codes > 0, mine.recode(items) - 1, _NONE), "earlier": earlier, "fold": fold}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        item, fold, pair = tensors["item"], tensors["fold"], fit["pair"].to(tensors["item"].device)
        score = fit["score"].to(item.device)
        total = torch.zeros(item.shape[0], dtype=torch.float64, device=item.device)
        most, count = torch.zeros_like(total), torch.zeros_like(total)
        for column in tensors["earlier"].unbind(1):
            there = column.long()
            some = (item != _NONE) & (there != _NONE)
            count += some
            if not len(pair):
                continue
            rows = (some & (item >= 0) & (there >= 0)).nonzero().squeeze(1)
            a, b = item[rows], there[rows]
            wanted = torch.minimum(a, b) * fit["size"] + torch.maximum(a, b)
            place = torch.searchsorted(pair, wanted).clamp_max(len(pair) - 1)
            known = pair[place] == wanted
            rows = rows[known]
            found = score[fold[rows], place[known]]
            total[rows] += found
            most[rows] = torch.maximum(most[rows], found)
        made = {"sum": total, "max": most, "mean": total / count.clamp_min(1)}
        return {f"{self.name}_{s}": torch.where(count > 0, made[s], torch.nan) for s in as_list(self.stats)}


def _group_hash(table: Table, by: Sequence[str]) -> torch.Tensor:
    """Hash each row's group key: int64 ``[n]``, -1 if the key is missing."""
    coded = table.coded(list(by))
    return of_codes(coded, hash_keys(coded.keys, 1 << 62, 2) + 1) - 1


class JaccardToHistory(Grouped):
    """Jaccard similarity of the row's item with the last items of its group strictly before it: mean and maximum.

    An event on the row's item counts with similarity 1. NaN without an earlier event, or if the item table lacks the
    items; 0 if neither item has properties.

    Args:
        by: the columns of the group, in rows and log.
        item: the column of the item, in rows, log and item table.
        properties: the list column of the item table with an item's properties.
        order: the columns that order events and rows.
        table: the name of the log in ``tables``.
        items: the name of the item table in ``tables``; without it all values are missing. An item's last row counts.
        last: the number of events to look back.

    Source: Jaccard 1912, "The distribution of the flora in the alpine zone".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import JaccardToHistory
        >>> log = pd.DataFrame({"user": [1], "item": ["a"], "t": [1]})
        >>> items = pd.DataFrame({"item": ["a", "b"], "tags": [["x", "y"], ["y", "z"]]})
        >>> j = JaccardToHistory("user", item="item", properties="tags", order="t", table="log", items="items")
        >>> rows = pd.DataFrame({"user": [1], "item": ["b"], "t": [2]})
        >>> round(float(j.fit_transform(rows, tables={"log": log, "items": items})["jaccard_mean"][0]), 4)
        0.3333
    """

    _reads = ("by", "item", "order")
    _least: ClassVar = {"last": 1}

    def __init__(
        self,
        by: Names,
        *,
        item: str,
        properties: str,
        order: Names,
        table: str,
        items: str,
        last: int = 3,
        name: str = "jaccard",
    ) -> None: ...

    @property
    def table_inputs(self) -> dict[str, list[str]]:
        return {self.table: self.sources, self.items: [self.item, self.properties]}

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_mean", f"{self.name}_max"]

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        if self.items not in context.tables:
            unknown = torch.full((len(table),), torch.nan, dtype=torch.float64, device=table.device)
            return {n: Column("number", unknown, name=n) for n in self.outputs}
        log = context.table(self.table, wanted_by="JaccardToHistory")
        catalogue = context.table(self.items, wanted_by="JaccardToHistory")
        sets = self._sets(catalogue)
        keys = catalogue[self.item].coded()
        # Row of each item in the catalogue, from 1; 0: absent.
        rows = torch.arange(1, len(catalogue) + 1, device=table.device)
        place = segment_max(rows, keys.codes, keys.size).clamp_min(0)
        place[0] = 0
        mine = place[table[self.item].coded().recode(keys.keys)]
        touched = place[log[self.item].coded().recode(keys.keys)]
        events = earlier_events(table, log, as_list(self.by), as_list(self.order))
        total = torch.zeros(len(mine), dtype=torch.float64, device=mine.device)
        most, count = torch.zeros_like(total), torch.zeros_like(mine)
        for back in range(1, self.last + 1) if len(log) else ():
            event = events.back(back)
            there = torch.where(event >= 0, touched[event.clamp_min(0)], 0)
            rows = ((mine > 0) & (there > 0)).nonzero().squeeze(1)
            like = sets.likeness(mine[rows], there[rows])
            total[rows] += like
            most[rows] = torch.maximum(most[rows], like)
            count[rows] += 1
        found = (torch.where(count > 0, v, torch.nan) for v in (total / count.clamp_min(1), most))
        return {n: Column("number", v, name=n) for n, v in zip(self.outputs, found, strict=True)}

    def _sets(self, catalogue: Table) -> _Sets:
        column = catalogue[self.properties]
        if column.kind != "list":
            raise DataError("JaccardToHistory needs lists", column=self.properties, remedy="Split the text first")
        coded = column.elements.coded()
        rows = rows_of(column.values) + 1
        first = int(column.values[0])
        codes = coded.codes[first : first + len(rows)]
        known = codes > 0  # missing properties do not count
        return _Sets.of(rows[known], codes[known], len(catalogue) + 1, coded.size)


@dataclass(frozen=True, eq=False)
class _Sets:
    """Sets of properties, concatenated."""

    start: torch.Tensor  # int64 ``[sets + 1]``, the place of each set's first property
    properties: torch.Tensor  # int64 ``[elements]`` in ``0 … size - 1``, without repeats in a set
    size: int  # the number of properties

    @classmethod
    def of(cls, sets: torch.Tensor, properties: torch.Tensor, count: int, size: int) -> _Sets:
        """Build ``count`` sets from pairs of set and property (int64 ``[m]`` each), which may repeat."""
        once = torch.unique(sets * size + properties)
        return cls(offsets_of(torch.bincount(once // size, minlength=count)), once % size, size)

    def likeness(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the Jaccard similarity of pairs of sets (int64 ``[n]`` each): float64 ``[n]``, 0 if both are empty."""
        block = max(min(limits.JACCARD_CELLS // max(self.size, 1), len(a)), 1)
        marks = torch.zeros(block * self.size, dtype=torch.bool, device=a.device)
        both = torch.zeros_like(a)
        for i in range(0, len(a), block):
            place = self._places(a[i : i + block])
            marks[place] = True
            other = self._places(b[i : i + block])
            both[i : i + block] = torch.bincount(other[marks[other]] // self.size, minlength=len(a[i : i + block]))
            marks[place] = False
        length = lengths_of(self.start)
        either = length[a] + length[b] - both
        # float32 as in the golden values.
        return (both.float() / either.clamp_min(1).float()).double()

    def _places(self, sets: torch.Tensor) -> torch.Tensor:
        """Return the places of some sets' properties in a flat matrix ``[sets, size]``: int64 ``[m]``."""
        offsets, elements = runs(self.start[sets], lengths_of(self.start)[sets])
        return rows_of(offsets) * self.size + self.properties[elements]
