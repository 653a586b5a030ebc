"""``CumTarget``: causal target encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from fastrec.errors import DataError, refuse
from fastrec.features._engine.keyed import accurate_sum, cell_places
from fastrec.features._engine.options import averaged_numbers, check_target_classes, finite_number, float64, row_weights
from fastrec.features._engine.order import Clock, EarlierRows, TimeRanks, decay
from fastrec.features.base import Cells, Col, Cols, Names, State, Tensors
from fastrec.features.columns import as_list, name_of, names_of
from fastrec.features.target import KeySums, Sums
from fastrec.segments import segment_max, segment_sum
from fastrec.table import Column, Table


class CumTarget(KeySums):
    """Mean target of a key's earlier rows, ``(sum + smooth · prior) / (count + smooth)``; the prior is the mean of all.

    Training rows get statistics (prior included) of training rows at strictly earlier points of ``order``; the first
    rows get 0. Other rows get statistics of all training rows. They need no target, and ``order`` only with
    ``half_life``. A missing or unseen key gets the prior.

    Args:
        cols: key columns, or generators of one column each, such as ``Cross('item_id', 'city')``.
        target: the column(s) to average: 0/1, bool or numbers; rows without a target do not count.
        order: the order columns, without missing values.
        smooth: the prior's weight in rows.
        half_life: the age at which a row counts half, in seconds for times, else in the order column's unit; None: no
            decay.
        weight: the column of sample weights.
        classes: the classes of a categorical target, each averaged as 0/1: ``cumte_item__y_a``; None: a number.
        of: number columns, or generators, to average instead, weighted by the target (0 or more). For a target of
            clicks ``cumte_user__price_by_clicked`` is the mean price of clicked rows.
        name: the outputs' first word; None: ``cumte``.

    Source: Prokhorenkova et al. 2018, "CatBoost: unbiased boosting with categorical features", section 3.2, ordered
        target statistics, here in the order of time.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CumTarget
        >>> df = pd.DataFrame({"item": ["a", "b", "a", "a"], "day": [1, 2, 3, 3], "clicked": [1, 0, 0, 1]})
        >>> ct = CumTarget("item", "clicked", order="day", smooth=1)
        >>> ct.fit_transform(df)["cumte_item__clicked"].tolist()
        [0.0, 1.0, 0.75, 0.75]
        >>> ct.transform(pd.DataFrame({"item": ["a", "new"]}))["cumte_item__clicked"].tolist()
        [0.625, 0.5]
    """

    uses_target = True
    causal = True
    _reads = ("cols", "target", "order", "weight", "of")
    _least: ClassVar = {"smooth": 0}

    def __init__(
        self,
        cols: Cols,
        target: Names,
        *,
        order: Names,
        smooth: float = 20.0,
        half_life: float | None = None,
        weight: str | None = None,
        classes: Sequence[Any] | None = None,
        of: Cols | None = None,
        name: str | None = None,
    ) -> None:
        if classes is not None:
            check_target_classes(classes, wanted_by=self)
        if not as_list(order):
            raise DataError("CumTarget: nothing says which rows are earlier", remedy="Name a column: order='time'")
        if half_life is not None and not 0 < half_life < math.inf:
            raise DataError(f"CumTarget: the half-life is {half_life}", remedy="Use a number above 0, or None")
        if half_life is not None and len(as_list(order)) > 1:
            remedy = "Order by one column of times or numbers where half_life is given"
            raise DataError(f"CumTarget: {len(as_list(order))} order columns have no age in common", remedy=remedy)

    @property
    def fit_only(self) -> list[str]:
        order = as_list(self.order)
        used = [*as_list(self.cols), *(order if self.half_life is not None else [])]
        return [n for n in (*as_list(self.target), *order, *as_list(self.weight), *self._of) if n not in used]

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, t) for c in as_list(self.cols) for t in self.averaged]

    @property
    def averaged(self) -> list[str]:
        """The names of the averaged numbers: targets, their classes, or the columns of ``of``."""
        targets = [t if c is None else f"{t}_{c}" for t in as_list(self.target) for c in self.classes or [None]]
        return targets if self.of is None else [f"{n}_by_{t}" for t in targets for n in self._of]

    @property
    def _of(self) -> list[str]:
        return [n for c in as_list(self.of) for n in names_of(c)]

    def _name(self, col: Col, target: str) -> str:
        return f"{self.name or 'cumte'}_{name_of(col)}__{target}"

    def _counted(self, table: Table) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the weights and values (0 where missing) of each averaged number: float64 ``[n]``."""
        given = row_weights(table, self.weight, wanted_by=self)
        targets = averaged_numbers(table, as_list(self.target), self.classes, wanted_by=self)
        if self.of is None:
            return [(torch.where(y.isnan(), 0, given), y.nan_to_num(0)) for y in targets]
        for y, name in zip(targets, as_list(self.target)) if self.classes is None else ():
            problem = "CumTarget: rows count by a target that is below 0"
            refuse(y < 0, name, problem, "Leave of= out, or shift the target")
        numbers = [finite_number(table, n, wanted_by=self) for n in self._of]
        return [(torch.where(x.isnan(), 0, given * y.nan_to_num(0)), x.nan_to_num(0)) for y in targets for x in numbers]

    def _clock(self, table: Table) -> Clock | None:
        return None if self.half_life is None else Clock.of(table, as_list(self.order)[0])

    def _summing(self, table: Table, cells: Cells | None) -> Callable[[torch.Tensor, int], list[Sums]]:
        counted, clock = self._counted(table), self._clock(table)
        return lambda codes, size: [self._sums(w, y, clock, codes, cells, size) for w, y in counted]

    def _sums(
        self,
        weight: torch.Tensor,
        y: torch.Tensor,
        clock: Clock | None,
        codes: torch.Tensor,
        cells: Cells | None,
        size: int,
    ) -> Sums:
        """Return counts and sums by cell and code, ``[cells, size]``; with decay, at the time of the last row."""
        places, count = cell_places(codes, cells, size)
        if clock is None:
            rows = segment_sum(weight, places, size * count)
            made = {"count": rows, "sum": accurate_sum(y, weight, rows, places)}
            return {n: v.view(count, size) for n, v in made.items()}
        counts = weight > 0
        none = torch.iinfo(torch.int64).min
        whole = segment_max(torch.where(counts, clock.whole, none), places, size * count)
        at_last = counts & (clock.whole == whole[places])
        part = segment_max(torch.where(at_last, clock.part, 0), places, size * count).clamp_min(0)
        last = Clock(torch.where(whole == none, 0, whole), part)
        left = weight * decay(last[places].since(clock), self.half_life)
        made = {
            "count": segment_sum(left, places, size * count), "sum": segment_sum(left * y, places, size * count),
            "whole": last.whole, "part": last.part,
        }  # fmt: skip
        return {n: v.view(count, size) for n, v in made.items()}

    def _add(self, a: Sums, b: Sums) -> Sums:
        """Add two partitions' sums; with decay, at the time of the later last row."""
        if self.half_life is None:
            return {n: a[n] + b[n] for n in ("count", "sum")}
        here, there = Clock(a["whole"], a["part"]), Clock(b["whole"], b["part"])
        is_later = (b["count"] > 0) & ((a["count"] <= 0) | there.after(here))
        last = Clock(torch.where(is_later, there.whole, here.whole), torch.where(is_later, there.part, here.part))
        x, y = (decay(last.since(c), self.half_life) for c in (here, there))
        return {"whole": last.whole, "part": last.part} | {n: a[n] * x + b[n] * y for n in ("count", "sum")}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for t, target in enumerate(self.averaged):
            total = self._over_cells(state["total"][t], keep)
            prior = _mean(total["sum"], total["count"], 0)
            for c, col in enumerate(as_list(self.cols)):
                name, own = self._name(col, target), self._over_cells(state["columns"][c][t], keep)
                own = {n: torch.cat([v.new_zeros(1), v]) for n, v in own.items()}
                if self.half_life is None:
                    tables[name] = smoothed(own["count"], own["sum"], 1.0, prior, self.smooth)
                else:
                    tables.update({f"{name}.{n}": v for n, v in own.items()})
                    tables[f"{name}.prior"] = prior
        return tables

    def _over_cells(self, sums: Sums, keep: torch.Tensor | None) -> Sums:
        kept = sums if keep is None else {n: v[keep.to(v.device)] for n, v in sums.items()}
        if self.half_life is None:
            return {n: v.sum(0) for n, v in kept.items()}
        total = {n: torch.zeros_like(v[0]) if len(v) else v.new_zeros(v.shape[1:]) for n, v in kept.items()}
        for i in range(len(kept["count"])):
            total = self._add(total, {n: v[i] for n, v in kept.items()})
        return total

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(as_list(self.cols), state["keys"], strict=True)
        tensors = {f"key.{name_of(col)}": table.coded(names_of(col)).recode(keys) for col, keys in pairs}
        clock = self._clock(table)
        return tensors if clock is None else tensors | {"clock.whole": clock.whole, "clock.part": clock.part}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        result = {}
        for col in as_list(self.cols):
            codes = tensors[f"key.{name_of(col)}"]
            for name in (self._name(col, t) for t in self.averaged):
                if self.half_life is None:
                    result[name] = fit[name].to(codes.device).index_select(0, codes)
                    continue
                parts = ("count", "sum", "whole", "part")
                own = {n: fit[f"{name}.{n}"].to(codes.device).index_select(0, codes) for n in parts}
                now = Clock(tensors["clock.whole"], tensors["clock.part"])
                left = decay(now.since(Clock(own["whole"], own["part"])), self.half_life)
                prior = fit[f"{name}.prior"].to(codes.device)
                result[name] = smoothed(own["count"], own["sum"], left, prior, self.smooth)
        return result

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        patterns, pattern_of = torch.unique(excluded, dim=0, return_inverse=True)
        if len(patterns) == 1:  # all rows see the same cells
            return self.wrap(self._causal(table, ~patterns[0].to(cells.codes.device)[cells.codes]))
        results: Tensors = {}
        of_row = pattern_of.to(cells.codes.device)[cells.codes]
        for i, pattern in enumerate(patterns):
            made = self._causal(table, ~pattern.to(cells.codes.device)[cells.codes])
            results = {n: torch.where(of_row == i, v, results.get(n, 0)) for n, v in made.items()}
        return self.wrap(results)

    def compute_after(self, table: Table, state: State, cells: Cells, excluded: torch.Tensor) -> dict[str, Column]:
        """Compute values of training rows that follow earlier tables, whose merged ``collect`` is ``state``.

        ``cells`` are the cells of ``table``, numbered as the state's. ``excluded`` is bool ``[cells, cells]``; its rows
        are equal and mark the cells that no row sees.
        """
        # table has all rows at each of its values of the first order column
        keep = ~excluded[0]
        return self.wrap(self._causal(table, keep.to(cells.codes.device)[cells.codes], (state, keep)))

    def _causal(self, table: Table, seen: torch.Tensor, past: tuple[State, torch.Tensor] | None = None) -> Tensors:
        """Compute values from earlier rows with ``seen`` (bool ``[n]``) and from the cells to keep of a past state."""
        ranks, clock = TimeRanks.of(table, as_list(self.order)), self._clock(table)
        counted = [(torch.where(seen, w, 0), torch.where(seen, y, 0)) for w, y in self._counted(table)]
        every, one = EarlierRows.of(ranks), torch.ones_like(ranks.rank)
        totals = [self._before(every, w, y, clock) for w, y in counted]
        if past is not None:
            totals = [self._longer(t, s, one, past[1], clock) for t, s in zip(totals, past[0]["total"], strict=True)]
        priors = [_mean(total, count, 0) for count, total, _ in totals]
        result = {}
        for c, col in enumerate(as_list(self.cols)):
            coded = table.coded(names_of(col))
            earlier, missing = EarlierRows.of(ranks, coded.codes), coded.codes == 0
            there = None if past is None else coded.recode(past[0]["keys"][c])
            for t, ((w, y), prior) in enumerate(zip(counted, priors, strict=True)):
                found = self._before(earlier, w, y, clock)
                if past is not None and there is not None:
                    found = self._longer(found, past[0]["columns"][c][t], there, past[1], clock)
                count, total = (v.masked_fill(missing, 0) for v in found[:2])
                left = 1.0 if clock is None else decay(found[2], self.half_life)
                result[self._name(col, self.averaged[t])] = smoothed(count, total, left, prior, self.smooth)
        return {n: result[n] for n in self.outputs}

    def _before(
        self, earlier: EarlierRows, weight: torch.Tensor, y: torch.Tensor, clock: Clock | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return count and sum (float64 ``[n]``) of the rows before each row, and the age of the last of them."""
        if clock is None and bool((weight == 1).all()):
            sums, age = earlier.sums(y[None], weight > 0)
            return earlier.count(), sums[0], age
        sums, age = earlier.sums(torch.stack([weight, weight * y]), weight > 0, clock, self.half_life or 1.0)
        return sums[0], sums[1], age

    def _longer(
        self,
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        past: Sums,
        codes: torch.Tensor,
        keep: torch.Tensor,
        clock: Clock | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Add a past state's sums of each row's key (``codes`` from 1; 0: none) to a result of ``_before``.
        sums = {n: torch.cat([v.new_zeros(1), v])[codes] for n, v in self._over_cells(past, keep).items()}
        count, total, age = found
        if clock is None:
            return count + sums["count"], total + sums["sum"], age
        since = clock.since(Clock(sums["whole"], sums["part"]))
        counts = count > 0
        left = torch.where(counts, decay(since - age, self.half_life), 1)
        return count + left * sums["count"], total + left * sums["sum"], torch.where(counts, age, since)


def _mean(total: torch.Tensor, count: torch.Tensor, otherwise: torch.Tensor | float) -> torch.Tensor:
    return torch.where(count > 0, total / torch.where(count > 0, count, 1), otherwise)


def smoothed(
    count: torch.Tensor, total: torch.Tensor, left: torch.Tensor | float, prior: torch.Tensor, smooth: float
) -> torch.Tensor:
    """Return ``(sum + smooth · prior) / (count + smooth)``, sum and count decayed by ``left``; 0 / 0 is the prior."""
    if not smooth:  # a mean does not change by decay
        return _mean(total, count, prior)
    weight = float64(smooth)
    return (total * left + weight * prior) / (count * left + weight)
