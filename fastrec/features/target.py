"""``TargetEncode``: a key's mean target, smoothed towards the prior, out of fold for training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors, as_list, name_of, names_of, number_of
from fastrec.features.keyed import Moments, merge_moments, sort_keys, spread, sum_by_cell, union_keys
from fastrec.table import Table

Stat = Literal["mean", "std", "count"]


class TargetEncode(Fitted):
    """A key's mean target, ``(sum + smooth · prior) / (count + smooth)``; the prior is the mean over all rows used.

    Training rows get values made from the other folds (prior included), so that no row sees its own target; other rows
    get values made from all training rows. A key that is missing or was not seen in the rows used gets the prior;
    where there is no row to use at all, that is 0.

    Args:
        cols: key columns, or generators of one column each (``Cross('item_id', 'city')`` encodes a combination).
        target: the column(s) to average: 0/1, bool or numbers; rows where it is missing do not count.
        folds: how many folds training rows' values are made with; None: the FeatureSet's.
        fold_column: a column of fold numbers (from 0) instead.
        smooth: how many rows' worth of prior each key gets.
        stats: of ``mean``, ``std`` (population; the prior's where fewer than two rows) and ``count``.
        weight: a column of sample weights.

    Source: Micci-Barreca 2001, "A preprocessing scheme for high-cardinality categorical attributes", eq. 3-4, with
        ``λ(n) = n / (n + smooth)``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import TargetEncode
        >>> df = pd.DataFrame({"item": ["a", "a", "b", "b"], "clicked": [1, 0, 1, 1]})
        >>> te = TargetEncode("item", "clicked", smooth=2).fit(df)
        >>> te.transform(pd.DataFrame({"item": ["a", "b", "new"]}))["te_item__clicked"].tolist()
        [0.625, 0.875, 0.75]
    """

    uses_target = True

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        target: str | Sequence[str],
        *,
        folds: int | None = None,
        fold_column: str | None = None,
        smooth: float = 20.0,
        stats: Stat | Sequence[Stat] = ("mean",),
        weight: str | None = None,
    ) -> None:
        super().__init__()
        self.cols, self.target, self.folds, self.fold_column = cols, target, folds, fold_column
        self.smooth, self.stats, self.weight = smooth, stats, weight
        unknown = set(as_list(stats)) - {"mean", "std", "count"}
        if unknown:
            raise DataError(f"TargetEncode has no statistic {unknown.pop()!r}", remedy="Use 'mean', 'std' or 'count'")
        if smooth < 0:
            raise DataError(f"TargetEncode: smooth is {smooth}, below 0", remedy="Use 0 for none")
        if folds is not None and folds < 2:
            raise DataError(f"TargetEncode: {folds} folds leave nothing to encode from", remedy="Use 2 or more")

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *self.fit_only]

    @property
    def fit_only(self) -> list[str]:
        return [*as_list(self.target), *as_list(self.fold_column), *as_list(self.weight)]

    @property
    def outputs(self) -> list[str]:
        targets, stats = as_list(self.target), as_list(self.stats)
        return [self._name(c, t, s) for c in as_list(self.cols) for t in targets for s in stats]

    def _name(self, col: str | Feature, target: str, stat: Stat) -> str:
        return f"te_{'' if stat == 'mean' else stat + '_'}{name_of(col)}__{target}"

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        targets = [self._finite(table, t) for t in as_list(self.target)]
        given = self._weights(table)
        one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        state: State = {"total": [self._moments(y, given, one, cells, 1) for y in targets], "keys": [], "columns": []}
        for col in as_list(self.cols):
            keys, codes = sort_keys(table.coded(names_of(col)))
            size = len(keys) + 1
            made = [self._moments(y, given, codes, cells, size) for y in targets]
            state["keys"].append(keys)
            state["columns"].append([{n: v[:, 1:] for n, v in m.items()} for m in made])
        return state

    def _weights(self, table: Table) -> torch.Tensor:
        if self.weight is None:
            return torch.ones(len(table), dtype=torch.float64, device=table.device)
        weight = self._finite(table, self.weight).nan_to_num(0)
        if bool((weight < 0).any()):
            row = int((weight < 0).nonzero()[0])
            raise DataError("TargetEncode: a weight is below 0", column=self.weight, row=row, remedy="Use 0 or more")
        return weight

    def _finite(self, table: Table, name: str) -> torch.Tensor:
        values = number_of(table, name, wanted_by=self)
        if bool(values.isinf().any()):
            row = int(values.isinf().nonzero()[0])
            raise DataError("TargetEncode: a value is infinite", column=name, row=row, remedy="Clip or drop such rows")
        return values

    def _moments(
        self, y: torch.Tensor, weight: torch.Tensor, codes: torch.Tensor, cells: Cells | None, size: int
    ) -> dict[str, torch.Tensor]:
        known = ~y.isnan()
        weight, y = torch.where(known, weight, 0), torch.where(known, y, 0)
        count = sum_by_cell(weight, codes, cells, size)
        result = {"count": count, "sum": sum_by_cell(weight * y, codes, cells, size)}
        if "std" in as_list(self.stats):
            mean = result["sum"] / torch.where(count > 0, count, 1)
            own = mean[0 if cells is None else cells.codes, codes]
            result["m2"] = sum_by_cell(weight * (y - own) ** 2, codes, cells, size)
        return result

    def merge(self, a: State, b: State) -> State:
        cells = max(a["total"][0]["count"].shape[0], b["total"][0]["count"].shape[0])
        one = torch.zeros(1, dtype=torch.int64)
        merged: State = {"keys": [], "columns": []}
        merged["total"] = [_add(x, y, one, one, 1, cells) for x, y in zip(a["total"], b["total"], strict=True)]
        for i in range(len(a["keys"])):
            keys, left, right = union_keys(a["keys"][i], b["keys"][i])
            pairs = zip(a["columns"][i], b["columns"][i], strict=True)
            merged["keys"].append(keys)
            merged["columns"].append([_add(x, y, left, right, len(keys), cells) for x, y in pairs])
        return merged

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for t, target in enumerate(as_list(self.target)):
            count, total, m2 = _over_cells(state["total"][t], keep)
            prior = torch.where(count > 0, total / torch.where(count > 0, count, 1), 0)
            spread_of_all = torch.sqrt(m2 / torch.where(count > 0, count, 1))
            for c, col in enumerate(as_list(self.cols)):
                n, s, d = (torch.cat([v.new_zeros(1), v]) for v in _over_cells(state["columns"][c][t], keep))
                weight = n + self.smooth
                smoothed = (s + self.smooth * prior) / torch.where(weight > 0, weight, 1)
                made = {
                    "mean": torch.where(weight > 0, smoothed, prior),
                    "std": torch.where(n > 1, torch.sqrt(d / torch.where(n > 0, n, 1)), spread_of_all),
                    "count": n,
                }
                tables.update({self._name(col, target, stat): made[stat] for stat in as_list(self.stats)})
        return tables

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(as_list(self.cols), state["keys"], strict=True)
        return {name_of(col): table.coded(names_of(col)).recode(keys) for col, keys in pairs}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        result = {}
        for col in as_list(self.cols):
            codes = tensors[name_of(col)]
            for target in as_list(self.target):
                for stat in as_list(self.stats):
                    name = self._name(col, target, stat)
                    result[name] = fit[name].to(codes.device)[codes]
        return result


def _add(
    a: dict[str, Any], b: dict[str, Any], left: torch.Tensor, right: torch.Tensor, size: int, cells: int
) -> dict[str, Any]:
    x = {n: spread(v, left, size, cells) for n, v in a.items()}
    y = {n: spread(v, right, size, cells) for n, v in b.items()}
    merged = {n: x[n] + y[n] for n in ("count", "sum")}
    if "m2" in x:
        merged["m2"] = merge_moments(_as_moments(x), _as_moments(y))[2]
    return merged


def _as_moments(stats: dict[str, torch.Tensor]) -> Moments:
    count = stats["count"]
    return count, stats["sum"] / torch.where(count > 0, count, 1), stats["m2"]


def _over_cells(stats: dict[str, torch.Tensor], keep: torch.Tensor | None) -> Moments:
    """Count, sum and sum of squared deviations (0 where not collected) over the kept cells: ``[K]`` each."""
    kept = stats if keep is None else {n: v[keep.to(v.device)] for n, v in stats.items()}
    count, total = kept["count"].sum(0), kept["sum"].sum(0)
    if "m2" not in kept:
        return count, total, torch.zeros_like(count)
    merged = (torch.zeros_like(count),) * 3
    for c, m, d in zip(*_as_moments(kept), strict=True):
        merged = merge_moments(merged, (c, m, d))
    return count, total, merged[2]
