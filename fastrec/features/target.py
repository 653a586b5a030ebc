"""Target encoding and Bayesian rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine import keyed
from fastrec.features._engine.options import averaged_numbers, check_target_classes, row_weights
from fastrec.features.base import Cells, Col, Cols, Fitted, Names, State, Tensors
from fastrec.features.columns import as_list, name_of, names_of, number_of
from fastrec.segments import segment_sum
from fastrec.table import Table

Stat = Literal["mean", "std", "count", "woe"]
Sums = dict[str, torch.Tensor]
# Sums [K] of weights, weighted targets and squared deviations (0 if not collected), and the number of weighted rows.
_Totals = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class KeySums(Fitted):
    """Generator that sums each target over all rows and over the rows of each key in ``cols``.

    Subclasses compute a partition's sums (``_summing``) and add two partitions' aligned sums (``_add``).
    """

    by_key = (("keys", "columns"),)

    def _summing(self, table: Table, cells: Cells | None) -> Callable[[torch.Tensor, int], list[Sums]]:
        # Returns a function of codes (int64 [n]) and their number that returns each target's sums [cells, K].
        raise NotImplementedError

    def _add(self, a: Sums, b: Sums) -> Sums:
        raise NotImplementedError

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        summed = self._summing(table, cells)
        one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        state: State = {"total": summed(one, 1), "keys": [], "columns": []}
        for col in as_list(self.cols):
            keys, codes = keyed.sort_keys(table.coded(names_of(col)))
            state["keys"].append(keys)
            state["columns"].append([{n: v[:, 1:] for n, v in m.items()} for m in summed(codes, len(keys) + 1)])
        return state

    def merge(self, a: State, b: State) -> State:
        cells = max(s["total"][0]["count"].shape[0] for s in (a, b))

        def added(x: list[Sums], y: list[Sums], left: torch.Tensor, right: torch.Tensor, size: int) -> list[Sums]:
            return [
                self._add(
                    *({n: keyed.spread(v, at, size, cells) for n, v in s.items()} for s, at in ((p, left), (q, right)))
                )
                for p, q in zip(x, y, strict=True)
            ]

        one = torch.zeros(1, dtype=torch.int64)
        merged: State = {"total": added(a["total"], b["total"], one, one, 1), "keys": [], "columns": []}
        for ka, kb, x, y in zip(a["keys"], b["keys"], a["columns"], b["columns"], strict=True):
            keys, left, right = keyed.union_keys(ka, kb)
            merged["keys"].append(keys)
            merged["columns"].append(added(x, y, left, right, len(keys)))
        return merged


class TargetEncode(KeySums):
    """Mean target per key, ``(sum + smooth · prior) / (count + smooth)``; the prior is the mean over all rows used.

    A training row gets mean and prior of the other folds, so it never sees its own target. Other rows get the mean of
    all training rows. A missing or unseen key gets the prior; without any row the prior is 0.

    Args:
        cols: key columns, or generators (``Cross('item_id', 'city')`` encodes a combination).
        target: the column(s) to average: 0/1, bool or numbers; rows without one do not count.
        folds: the number of folds for training rows; None: the FeatureSet's.
        fold_column: a column of fold numbers (from 0) instead.
        smooth: the prior's weight in rows.
        stats: ``mean``, ``std`` (population; of all rows for keys with fewer than two positive weights), ``count``
            (sum of weights), ``woe`` (weight of evidence: log odds of the smoothed mean minus those of the prior; for
            0/1 targets).
        weight: a column of sample weights; None: all 1. ``std`` is ``√(Σ w·(y - mean)² / Σ w)``.
        classes: the target's classes; each gets a column (``te_item__y_a``): the mean of its 0/1 indicator. Rows of
            unlisted classes count as 0 in all of them.

    Source: Micci-Barreca 2001, "A preprocessing scheme for high-cardinality categorical attributes", eq. 3-4, with
        ``λ(n) = n / (n + smooth)``; weight of evidence: Good 1950, "Probability and the weighing of evidence":
        ``ln(p / q) - ln(P / Q)`` for a key's ``p`` ones and ``q`` zeros among all ``P`` and ``Q``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TargetEncode
        >>> df = pd.DataFrame({"item": ["a", "a", "b", "b"], "clicked": [1, 0, 1, 1]})
        >>> te = TargetEncode("item", "clicked", smooth=2).fit(df)
        >>> te.transform(pd.DataFrame({"item": ["a", "b", "new"]}))["te_item__clicked"].tolist()
        [0.625, 0.875, 0.75]
    """

    uses_target = True
    _reads = ("cols", "target", "fold_column", "weight")
    _least: ClassVar = {"smooth": 0, "folds": 2}

    def __init__(
        self,
        cols: Cols,
        target: Names,
        *,
        folds: int | None = None,
        fold_column: str | None = None,
        smooth: float = 20.0,
        stats: Stat | Sequence[Stat] = ("mean",),
        weight: str | None = None,
        classes: Sequence[Any] | None = None,
    ) -> None:
        if "woe" in as_list(stats) and not smooth:
            remedy = "Use a number above 0"
            raise DataError("TargetEncode: smooth is 0, but some evidence would be infinite", remedy=remedy)
        if classes is not None:
            check_target_classes(classes, wanted_by=self)

    @property
    def fit_only(self) -> list[str]:
        keys = as_list(self.cols)
        return [n for n in self.sources[len(keys) :] if n not in keys]

    @property
    def outputs(self) -> list[str]:
        return [name for _, _, _, name in self._columns()]

    def _columns(self) -> list[tuple[Col, int, Stat, str]]:
        """Return each output's key, the number of its target or class, its statistic and its name."""
        found = []
        each = 1 if self.classes is None else len(self.classes)
        for col in as_list(self.cols):
            for t, target in enumerate(as_list(self.target)):
                for stat in as_list(self.stats):
                    start = f"te_{'' if stat == 'mean' else stat + '_'}{name_of(col)}__{target}"
                    if self.classes is None or stat == "count":  # counts do not depend on the class
                        found.append((col, t * each, stat, start))
                    else:
                        found += [(col, t * each + i, stat, f"{start}_{c}") for i, c in enumerate(self.classes)]
        return found

    def _summing(self, table: Table, cells: Cells | None) -> Callable[[torch.Tensor, int], list[Sums]]:
        binary = "woe" in as_list(self.stats)
        targets = averaged_numbers(table, as_list(self.target), self.classes, wanted_by=self, binary=binary)
        given = None if self.weight is None else row_weights(table, self.weight, wanted_by=self)

        def summed(codes: torch.Tensor, size: int) -> list[Sums]:
            places = keyed.cell_places(codes, cells, size)
            return [self._moments(y, given, places, size) for y in targets]

        return summed

    def _moments(
        self, y: torch.Tensor, weight: torch.Tensor | None, places: tuple[torch.Tensor, int], size: int
    ) -> Sums:
        """Return count, sum and squared deviations by cell and key: float64 ``[cells, size]``."""
        where, cells = places
        known = ~y.isnan()
        if not bool(known.all()):  # without missing values no copies are needed
            y = torch.where(known, y, 0)
            weight = known.double() if weight is None else torch.where(known, weight, 0)
        if weight is None:  # faster than a sum of ones
            count = torch.bincount(where, minlength=cells * size).double()
        else:
            count = segment_sum(weight, where, cells * size)
        result = {"count": count, "sum": keyed.accurate_sum(y, weight, count, where)}
        if "std" in as_list(self.stats):
            rest = (y - (result["sum"] / torch.where(count > 0, count, 1)).index_select(0, where)) ** 2
            result["m2"] = segment_sum(rest if weight is None else weight * rest, where, cells * size)
            if self.weight is not None:  # else count is the number of rows
                result["rows"] = segment_sum((weight > 0).double(), where, cells * size)
        return {n: v.view(cells, size) for n, v in result.items()}

    def _add(self, a: Sums, b: Sums) -> Sums:
        merged = {n: a[n] + b[n] for n in ("count", "sum", "rows") if n in a}
        if "m2" in a:
            merged["m2"] = keyed.merge_moments(_as_moments(a), _as_moments(b))[2]
        return merged

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        cols = as_list(self.cols)
        totals = [_over_cells(total, keep) for total in state["total"]]
        made: dict[tuple[int, int], tuple[_Totals, _Totals]] = {}
        tables = {}
        for col, i, stat, name in self._columns():
            c = cols.index(col)
            if (c, i) not in made:
                own = tuple(torch.cat([v.new_zeros(1), v]) for v in _over_cells(state["columns"][c][i], keep))
                made[c, i] = own, totals[i]
            tables[name] = _statistic(stat, *made[c, i], self.smooth)
        return tables

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(as_list(self.cols), state["keys"], strict=True)
        return {name_of(col): table.coded(names_of(col)).recode(keys) for col, keys in pairs}

    def lookups(self) -> dict[str, str]:
        return {name: name_of(col) for col, _, _, name in self._columns()}


def _statistic(stat: Stat, own: _Totals, every: _Totals, smooth: float) -> torch.Tensor:
    """Return a statistic of keys, float64 ``[K]``, from the totals of each key and of all rows."""
    (n, s, d, rows), (count, total, m2, _) = own, every
    if stat == "count":
        return n
    if stat == "std":
        spread_of_all = torch.sqrt(m2 / torch.where(count > 0, count, 1))
        return torch.where(rows > 1, torch.sqrt(d / torch.where(n > 0, n, 1)), spread_of_all)
    prior = torch.where(count > 0, total / torch.where(count > 0, count, 1), 0)
    if stat == "woe":
        rest = (count - total) / torch.where(count > 0, count, 1)
        both = (prior > 0) & (rest > 0)  # with one class only there is no evidence
        prior, rest = torch.where(both, prior, 0.5), torch.where(both, rest, 0.5)
        odds = torch.log(s + smooth * prior) - torch.log((n - s).clamp_min(0) + smooth * rest)
        return torch.where(both, odds - (torch.log(prior) - torch.log(rest)), 0)
    weight = n + smooth
    return torch.where(weight > 0, (s + smooth * prior) / torch.where(weight > 0, weight, 1), prior)


def _as_moments(stats: dict[str, torch.Tensor]) -> keyed.MomentArrays:
    count = stats["count"]
    return count, stats["sum"] / torch.where(count > 0, count, 1), stats["m2"]


def _over_cells(stats: dict[str, torch.Tensor], keep: torch.Tensor | None) -> _Totals:
    count, total = keyed.sum_kept(stats["count"], keep), keyed.sum_kept(stats["sum"], keep)
    rows = keyed.sum_kept(stats["rows"], keep) if "rows" in stats else count
    if "m2" not in stats:
        return count, total, torch.zeros_like(count), rows
    kept = stats if keep is None else {n: v[keep.to(v.device)] for n, v in stats.items()}
    merged = (torch.zeros_like(count),) * 3
    for c, m, d in zip(*_as_moments(kept), strict=True):
        merged = keyed.merge_moments(merged, (c, m, d))
    return count, total, merged[2], rows


class BayesianRate(Fitted):
    """Posterior mean of a rate, ``(clicks + m·r) / (views + m)``, for a beta prior of mean ``r`` and weight ``m``.

    Clicks and views are known before the row (as from ``History``). A learned prior mean is the training rows' total
    clicks over total views, so later rows contribute to it.

    A learned weight (empirical Bayes, method of moments) is ``m = 1/ρ - 1`` with
    ``ρ = (S/(r(1 - r)) - (k - 1)) / (N - Σn²/N - (k - 1))`` over the ``k`` rows with trials: trials ``n``, rates ``p``,
    ``N = Σn``, ``S = Σn(p - r)²``. It is at most ``N`` (rates that differ by chance only), and 20 if nothing can be
    learned (no row has two trials, all rates are 0 or all are 1, or there are more clicks than views).

    Args:
        clicks: a column of past successes, or a generator.
        views: a column of past trials, or a generator.
        weight: the prior's weight ``m`` in trials; None: learned.
        prior: the prior's mean ``r``; None: learned. If given, ``k`` and ``N`` replace ``k - 1`` and ``N - Σn²/N``.
        name: the output's name; None: ``rate_{clicks}``.

    Source: Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.4; Kleinman 1973, "Proportions with extraneous
        variance: single and independent samples", JASA 68, the moment estimator with weights ``n``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import BayesianRate
        >>> df = pd.DataFrame({"clicks": [0, 5], "views": [0, 10]})
        >>> BayesianRate("clicks", "views", weight=10).fit_transform(df)["rate_clicks"].tolist()
        [0.5, 0.5]
    """

    _reads = ("clicks", "views")

    def __init__(
        self,
        clicks: Col,
        views: Col,
        *,
        weight: float | None = 20.0,
        prior: float | None = None,
        name: str | None = None,
    ) -> None:
        if weight is not None and not 0 < weight < math.inf:
            raise DataError(f"BayesianRate: the prior's weight is {weight}", remedy="Use a number above 0, or None")
        if prior is not None and not math.isfinite(prior):
            raise DataError(f"BayesianRate: the prior is {prior}", remedy="Use a rate, None to learn it")

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"rate_{name_of(self.clicks)}"]

    def _numbers(self, table: Table) -> tuple[torch.Tensor, torch.Tensor]:
        clicks = number_of(table, name_of(self.clicks), wanted_by=self).nan_to_num(0, math.inf, -math.inf)
        return clicks, number_of(table, name_of(self.views), wanted_by=self).nan_to_num(0, math.inf, -math.inf)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        one = torch.zeros(len(table), dtype=torch.int64, device=table.device)

        def summed(values: torch.Tensor) -> torch.Tensor:
            return keyed.sum_by_cell(values, one, cells, 1)

        clicks, views = self._numbers(table)
        finite = clicks.isfinite() & views.isfinite()
        clicks, views = torch.where(finite, clicks, 0), torch.where(finite, views, 0)
        state = {"clicks": summed(clicks), "views": summed(views)}
        if self.weight is None:
            tried = views > 0
            trials, rate = torch.where(tried, views, 0), torch.where(tried, clicks / torch.where(tried, views, 1), 0)
            total = summed(trials)
            mean = summed(trials * rate) / torch.where(total > 0, total, 1)
            own = mean[0 if cells is None else cells.codes, 0]
            state |= {"rows": summed(tried.double()), "squares": summed(trials**2), "count": total, "mean": mean}
            state["m2"] = summed(trials * (rate - own) ** 2)
        return state

    def merge(self, a: State, b: State) -> State:
        one = torch.zeros(1, dtype=torch.int64)
        return keyed.merge_arrays(a, b, one, one, 1)

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        total = {n: v[0] for n, v in keyed.over_cells(state, keep).items()}
        clicks, views = total["clicks"], total["views"]
        prior = torch.where(views > 0, clicks / views.clamp_min(1e-300), 0.0)
        if self.prior is not None:
            prior = torch.full_like(prior, self.prior)
        if self.weight is not None:
            return {"prior": prior, "weight": torch.full_like(prior, self.weight)}
        # Method of moments (see the class).
        rows, trials, m2 = total["rows"], total["count"], total["m2"]
        around = torch.where(trials > 0, trials, 1)
        if self.prior is not None:
            spread, most, least = m2 + trials * (total["mean"] - prior) ** 2, trials, rows
        else:
            spread, most, least = m2, trials - total["squares"] / around, rows - 1
        single = prior * (1 - prior)
        known = (single > 0) & (most - least > 1e-9 * around)
        share = (spread / torch.where(known, single, 1) - least) / torch.where(known, most - least, 1)
        # ρ = 1 / (N + 1) is a weight of N, the maximum that N trials support.
        share = share.clamp(1 / (1 + around), torch.ones_like(share))
        return {"prior": prior, "weight": torch.where(known, 1 / share - 1, 20.0)}

    def prepare(self, state: State, table: Table) -> Tensors:
        return dict(zip(("clicks", "views"), self._numbers(table), strict=True))

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        prior, weight = (fit[n].to(tensors["clicks"].device) for n in ("prior", "weight"))
        rate = (tensors["clicks"] + weight * prior) / (tensors["views"] + weight)
        return {self.outputs[0]: torch.where((weight == 0) & (tensors["views"] == 0), prior, rate)}
