"""``GroupStats`` and ``GroupRank``: what a row's group looks like, and where the row stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features.base import (
    Cells,
    Context,
    Feature,
    Fitted,
    Grouped,
    State,
    Tensors,
    as_list,
    comparable,
    name_of,
    names_of,
    number_of,
)
from fastrec.features.keyed import extreme_by_cell, merge_moments, sort_keys, spread, sum_by_cell, union_keys
from fastrec.segments import Groups, lexical_order, rank_in_group
from fastrec.table import Column, Table

Stat = Literal["mean", "std", "min", "max", "sum", "count"]
_STATS = ("mean", "std", "min", "max", "sum", "count")
_EMPTY = {"count": 0.0, "mean": 0.0, "sum": 0.0, "m2": 0.0, "min": torch.inf, "max": -torch.inf}


class GroupStats(Fitted):
    """Statistics of a column over the rows of the row's group; missing values do not count.

    Args:
        cols: number columns, or generators.
        by: the columns of the group.
        stats: of ``mean``, ``std`` (sample, as in pandas), ``min``, ``max``, ``sum``, ``count``.
        over: ``'train'``: the group's training rows; ``'group'``: the rows of the group in the frame at hand (an item's
            list, say).
        scope: ``'all'`` takes the unlabeled rows given to ``fit`` too (the run reports it as transductive).

    A group that is missing, was not seen, or has no value gives NaN (``count`` and ``sum`` 0).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupStats
        >>> df = pd.DataFrame({"list": [1, 1, 2], "price": [10.0, 30.0, 5.0]})
        >>> GroupStats("price", by="list", stats="mean", over="group").fit_transform(df)["mean_price__list"].tolist()
        [20.0, 20.0, 5.0]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        by: str | Sequence[str],
        stats: Stat | Sequence[Stat] = ("mean",),
        over: Literal["train", "group"] = "train",
        scope: Literal["train", "all"] = "train",
    ) -> None:
        super().__init__()
        self.cols, self.by, self.stats, self.over, self.scope = cols, by, stats, over, scope
        unknown = set(as_list(stats)) - set(_STATS)
        if unknown:
            raise DataError(f"GroupStats has no statistic {unknown.pop()!r}", remedy=f"Use one of {', '.join(_STATS)}")
        if over not in ("train", "group") or scope not in ("train", "all") or (over, scope) == ("group", "all"):
            raise DataError(
                f"GroupStats cannot look over {over!r} with scope {scope!r}",
                remedy="Use over='train' with scope='train' or 'all', or over='group' alone",
            )

    @property
    def within(self) -> list[str] | None:
        return as_list(self.by) if self.over == "group" else None

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *as_list(self.by)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are summarised."""
        return [n for c in as_list(self.cols) for n in names_of(c)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(c, s) for c in self.columns for s in as_list(self.stats)]

    def _name(self, col: str, stat: Stat) -> str:
        return f"{stat}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        keys, codes = sort_keys(table.coded(as_list(self.by)))
        size = len(keys) + 1
        made = {c: self._moments(number_of(table, c, wanted_by=self), codes, cells, size) for c in self.columns}
        return {"keys": keys, "columns": made}

    def _moments(
        self, values: torch.Tensor, codes: torch.Tensor, cells: Cells | None, size: int
    ) -> dict[str, torch.Tensor]:
        known = ~values.isnan()
        filled = torch.where(known, values, 0)
        count = sum_by_cell(known.double(), codes, cells, size)
        mean = sum_by_cell(filled, codes, cells, size) / count.clamp_min(1)
        own = mean[0 if cells is None else cells.codes, codes]
        # A second pass takes back what rounding of a long sum has lost; an infinite mean needs none.
        rest = torch.where(known & own.isfinite(), filled - own, 0)
        mean = mean + sum_by_cell(rest, codes, cells, size) / count.clamp_min(1)
        result = {"count": count, "mean": mean}
        wanted = set(as_list(self.stats))
        if "sum" in wanted:
            result["sum"] = sum_by_cell(filled, codes, cells, size)
        if "std" in wanted:
            own = mean[0 if cells is None else cells.codes, codes]
            result["m2"] = sum_by_cell(torch.where(known, (filled - own) ** 2, 0), codes, cells, size)
        for stat in ("min", "max"):
            if stat in wanted:
                edge = torch.where(known, values, _EMPTY[stat])
                result[stat] = extreme_by_cell(edge, codes, cells, size, largest=stat == "max")
        return {n: v[:, 1:] for n, v in result.items()}

    def merge(self, a: State, b: State) -> State:
        keys, left, right = union_keys(a["keys"], b["keys"])
        merged = {}
        for c in self.columns:
            cells = max(len(a["columns"][c]["count"]), len(b["columns"][c]["count"]))
            x = {n: spread(v, left, len(keys), cells, _EMPTY[n]) for n, v in a["columns"][c].items()}
            y = {n: spread(v, right, len(keys), cells, _EMPTY[n]) for n, v in b["columns"][c].items()}
            merged[c] = _merged(x, y)
        return {"keys": keys, "columns": merged}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for c in self.columns:
            kept = {n: v if keep is None else v[keep.to(v.device)] for n, v in state["columns"][c].items()}
            total = {n: v.new_full(v.shape[1:], _EMPTY[n]) for n, v in kept.items()}
            for i in range(len(kept["count"])):
                total = _merged(total, {n: v[i] for n, v in kept.items()})
            made = _statistics({n: torch.cat([v.new_full((1,), _EMPTY[n]), v]) for n, v in total.items()})
            tables.update({self._name(c, s): made[s] for s in as_list(self.stats)})
        return tables

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"key": table.coded(as_list(self.by)).recode(state["keys"])}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        return {name: fit[name].to(tensors["key"].device)[tensors["key"]] for name in self.outputs}

    def learn(self, state: State) -> None:
        if self.over == "train":
            super().learn(state)
        else:  # nothing is remembered: every frame brings its own groups
            self.state_, self.fit_ = {}, {}

    def compute(self, table: Table) -> dict[str, Column]:
        if self.over == "train":
            return super().compute(table)
        return super().compute_from(table, self.collect(table))

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        return super().compute_from(table, state) if self.over == "train" else self.compute(table)

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        if self.over == "group":  # these rows' own statistics: there are no other rows' in the state
            return super().compute_from(table, state)
        return super().compute_out_of_cell(table, state, cells, excluded)


def _merged(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    zero = torch.zeros_like(a["count"])
    first, second = ((x["count"], x["mean"], x.get("m2", zero)) for x in (a, b))
    count, mean, m2 = merge_moments(first, second)
    result = {"count": count, "mean": mean}
    if "m2" in a:
        result["m2"] = m2
    if "sum" in a:
        result["sum"] = a["sum"] + b["sum"]
    for name, pick in (("min", torch.minimum), ("max", torch.maximum)):
        if name in a:
            result[name] = pick(a[name], b[name])
    return result


def _statistics(total: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    count = total["count"]
    some = count > 0
    made = {"count": count, "sum": total.get("sum"), "mean": torch.where(some, total["mean"], torch.nan)}
    if "m2" in total:
        enough = (count > 1) & total["mean"].isfinite()
        made["std"] = torch.where(enough, torch.sqrt(total["m2"] / (count - 1).clamp_min(1)), torch.nan)
    for name in ("min", "max"):
        if name in total:
            made[name] = torch.where(some, total[name], torch.nan)
    return made


class GroupRank(Grouped):
    """Rank of the row's value in its group, smallest first; NaN where the value or the group is missing.

    Args:
        cols: number columns, or generators.
        by: the columns of the group.
        method: how ties are ranked: ``min``, ``max``, ``average``, ``dense`` or ``ordinal`` (by row number).
        descending: largest value first.
        normalise: ``(rank - 1) / (values - 1)`` in [0, 1] instead; 0 for a group of one.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupRank
        >>> df = pd.DataFrame({"list": [1, 1, 1], "price": [30, 10, 20]})
        >>> GroupRank("price", by="list").fit_transform(df)["rank_price__list"].tolist()
        [3.0, 1.0, 2.0]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        by: str | Sequence[str],
        method: Literal["min", "max", "average", "dense", "ordinal"] = "min",
        descending: bool = False,
        normalise: bool = False,
    ) -> None:
        self.cols, self.by, self.method = cols, by, method
        self.descending, self.normalise = descending, normalise
        if method not in ("min", "max", "average", "dense", "ordinal"):
            raise DataError(f"GroupRank has no method {method!r}", remedy="Use min, max, average, dense or ordinal")

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *as_list(self.by)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are ranked."""
        return [n for c in as_list(self.cols) for n in names_of(c)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in self.columns]

    def _name(self, col: str) -> str:
        word = ("n" if self.normalise else "") + ("desc" if self.descending else "") + "rank"
        return f"{word}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        codes = coded.codes
        result = {}
        for col in self.columns:
            values, missing = comparable(table, col)
            if self.descending:  # turning the bits round, unlike a minus, cannot overflow
                values = -values if values.is_floating_point() else ~values
            missing = missing | (codes == 0)
            rank = rank_in_group(values, codes, method=self.method, missing=missing)
            if self.normalise:
                size = torch.bincount(codes[~missing], minlength=coded.size)[codes]
                rank = torch.where(size > 1, (rank - 1) / (size - 1).clamp_min(1), rank * 0)
            result[self._name(col)] = Column("number", rank, name=self._name(col))
        return result


class GroupPick(Grouped):
    """The value that a column has in the first (or last) row of the row's group, in the order of another column.

    Rows where the order or the value is missing are passed over; NaN for a missing group, or one without another row.
    Of rows at the same place the first one by row number is first, the last one is last.

    Args:
        cols: number columns, or generators, to take the value of.
        by: the columns of the group.
        order: the column, or generator, that says which row is first.
        nth: take the n-th row in that order, from 1.
        last: count from the last row backwards instead.
        name: a word for the outputs' names.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupPick
        >>> df = pd.DataFrame({"list": [1, 1, 1], "position": [1, 2, 3], "age": [None, 40.0, 7.0]})
        >>> GroupPick("position", by="list", order="age").fit_transform(df)["first_position__list"].tolist()
        [3.0, 3.0, 3.0]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        by: str | Sequence[str],
        order: str | Feature,
        nth: int = 1,
        last: bool = False,
        name: str | None = None,
    ) -> None:
        self.cols, self.by, self.order, self.nth, self.last, self.name = cols, by, order, nth, last, name
        if nth < 1:
            raise DataError(f"GroupPick: nth is {nth}", remedy="Count from 1")

    @property
    def sources(self) -> list[str | Feature]:
        return [*as_list(self.cols), *as_list(self.by), self.order]

    @property
    def outputs(self) -> list[str]:
        return [self._name(n) for c in as_list(self.cols) for n in names_of(c)]

    def _name(self, col: str) -> str:
        word = self.name or ("last" if self.last else "first") + (str(self.nth) if self.nth > 1 else "")
        return f"{word}_{col}" + "".join(f"__{b}" for b in as_list(self.by))

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        order, unordered = comparable(table, name_of(self.order))
        result = {}
        for col in (n for c in as_list(self.cols) for n in names_of(c)):
            values = number_of(table, col, wanted_by=self)
            rows = (~(unordered | values.isnan()) & (coded.codes > 0)).nonzero().squeeze(1)
            sort = lexical_order([coded.codes[rows], order[rows]])
            rows = rows if sort is None else rows[sort]
            of_group = torch.full((coded.size,), torch.nan, dtype=torch.float64, device=table.device)
            codes = coded.codes[rows]
            groups = Groups.of(codes)
            place = torch.bincount(codes, minlength=coded.size)[codes] - 1 - groups.place if self.last else groups.place
            chosen = place == self.nth - 1
            of_group[codes[chosen]] = values[rows[chosen]]
            result[self._name(col)] = Column("number", of_group[coded.codes], name=self._name(col))
        return result
