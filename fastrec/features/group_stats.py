"""``GroupStats``: what a row's group looks like, from the training rows or from the rows at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.group_moments import PARTS, collect_moments, merge_arrays, over_cells, statistics
from fastrec.features._engine.group_values import (
    count_distinct,
    count_distinct_here,
    decoded,
    distinct_values,
    end_codes,
    merge_distinct,
    merge_ends,
    merge_tallies,
    pick_ends,
    quantiles_here,
    tally_quantiles,
    tally_values,
)
from fastrec.features._engine.keyed import sort_keys, union_keys
from fastrec.features._engine.options import OfGroups
from fastrec.features._inputs import as_columns, as_list, number_of, order_keys
from fastrec.features.base import Cells, Cols, Fitted, Names, Scope, State, Tensors
from fastrec.table import Column, Table

_QUANTILE = re.compile(r"q\d{2,}")
_NEED_NO_NUMBERS = ("count", "nunique", "first", "last")
_STATS = (*PARTS, "median", "nunique", "first", "last")


class GroupStats(OfGroups, Fitted):
    """Statistics of a column over the rows of the row's group, exact in any partitions; missing values do not count.

    A group that is missing, was not seen, or has no value gives a missing value (``count``, ``sum``, ``nunique`` and
    ``histogram`` 0).

    Args:
        cols: number columns, or generators; for ``count``, ``nunique``, ``first`` and ``last`` of any type.
        by: the columns of the group.
        stats: any of ``mean``, ``std`` (sample), ``min``, ``max``, ``sum``, ``count``, ``median``, quantiles by their
            decimals (``q05``, ``q25``, ``q975``), ``skew`` (adjusted, from three values on), all as in pandas;
            ``nunique``; ``first`` and ``last`` in ``order``; ``histogram``: the shares ``hist0``, … of values in
            ``bins``.
        over: ``'train'``: the group's training rows; ``'group'``: its rows in the frame at hand (an item's list).
        order: the order columns of ``first`` and ``last``; of rows at one place the smallest value is first, the
            largest last. None (only for ``over='group'``): the rows' own order.
        bins: the growing edges of the histogram's bins; each has its lower edge, the last one both. Values outside are
            in none.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        name: a first word for the outputs' names.

    Source: Chan, Golub, LeVeque 1979 and Pébay 2008 for merging moments; Hyndman, Fan 1996, definition 7, for
    quantiles; Joanes, Gill 1998, G1, for the skewness.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupStats
        >>> df = pd.DataFrame({"list": [1, 1, 2], "price": [10.0, 30.0, 5.0]})
        >>> made = GroupStats("price", by="list", stats=["mean", "q25"], over="group").fit_transform(df)
        >>> made[["mean_price__list", "q25_price__list"]].values.tolist()
        [[20.0, 15.0], [20.0, 15.0], [5.0, 5.0]]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        stats: Names = ("mean",),
        over: Literal["train", "group"] = "train",
        order: Names | None = None,
        bins: Sequence[float] | None = None,
        scope: Scope = "train",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.cols, self.by, self.stats, self.over = cols, by, stats, over
        self.order, self.bins, self.scope, self.name = order, bins, scope, name
        self._check()

    def _check(self) -> None:
        wanted, kind = self._wanted, type(self).__name__
        unknown = [s for s in wanted if s not in _STATS and not _QUANTILE.fullmatch(str(s))]
        if unknown:
            raise DataError(
                f"{kind} has no statistic {unknown[0]!r}", remedy=f"Use one of {', '.join(_STATS)}, or a quantile: q05"
            )
        if self.over not in ("train", "group") or self.scope not in ("train", "all"):
            raise DataError(
                f"{kind} cannot look over {self.over!r} with scope {self.scope!r}",
                remedy="Use over='train' with scope='train' or 'all', or over='group' alone",
            )
        if (self.over, self.scope) == ("group", "all"):
            raise DataError(
                f"{kind} looks over the rows at hand alone, which has no scope 'all'", remedy="Use over='train' with it"
            )
        if {"first", "last"} & set(wanted) and self.order is None and self.over == "train":
            raise DataError(f"{kind}: first and last need an order", remedy="Name its columns with order=")
        edges = [float(b) for b in as_list(self.bins)]
        if ("histogram" in wanted) != bool(edges) or edges != sorted(set(edges)) or len(edges) == 1:
            raise DataError(
                f"{kind}: a histogram and bins of two growing edges or more belong together, not {self.bins!r}",
                remedy="Give both, as in stats='histogram', bins=[0, 10, 100]",
            )

    @property
    def _wanted(self) -> list[str]:
        return as_list(self.stats)

    @property
    def by_key(self) -> tuple[tuple[str, ...], ...]:
        # Tallies, distinct values and ends hold codes of the keys, which cutting would change.
        return (("keys", "columns"),) if all(s in PARTS for s in self._wanted) else ()

    @property
    def within(self) -> list[str] | None:
        return as_list(self.by) if self.over == "group" else None

    @property
    def outputs(self) -> list[str]:
        return self._tables

    @property
    def _tables(self) -> list[str]:
        bins = [f"hist{i}" for i in range(len(as_list(self.bins)) - 1)]
        words = [w for s in self._wanted for w in (bins if s == "histogram" else [s])]
        return [self._name(c, w) for c in self.columns for w in words]

    def _name(self, col: str, word: str) -> str:
        return "_".join([*as_list(self.name), word, col]) + "".join(f"__{b}" for b in as_list(self.by))

    @property
    def _quantiles(self) -> dict[str, float]:
        return {s: 0.5 if s == "median" else float(f"0.{s[1:]}") for s in self._wanted if s[0] == "q" or s == "median"}

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.over == "group":  # nothing is learned: every frame brings its own groups
            return {}
        keys, codes = sort_keys(table.coded(as_list(self.by)))
        made = {c: self._parts(table, c, codes, cells, len(keys) + 1) for c in self.columns}
        return {"keys": keys, "columns": made}

    def _parts(
        self, table: Table, col: str, codes: torch.Tensor, cells: Cells | None, size: int, *, here: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return a column's statistics; ``here``: of the rows at hand alone, not to be merged."""
        wanted, made = self._wanted, {}
        if any(s not in _NEED_NO_NUMBERS for s in wanted):  # text has counts, but no numbers
            values = number_of(table, col, wanted_by=self)
            known = ~values.isnan()
        else:
            known = ~table[col].is_missing()
            values = known.double()
        arrays = {p for s in wanted for p in PARTS.get(s, ())}
        if arrays:
            made["moments"] = collect_moments(values, known, codes, cells, size, arrays, as_list(self.bins))
        shares = self._quantiles
        if here:
            made["here"] = dict(zip(shares, quantiles_here(values, known, codes, size, list(shares.values()))))
            if "nunique" in wanted:
                made["here"]["nunique"] = count_distinct_here(table[col].coded(), codes, size)
        elif shares:
            made["tally"] = tally_values(values, known, codes, cells)
        if "nunique" in wanted and not here:
            made["distinct"] = distinct_values(table[col].coded(), codes, cells)
        ends = [s for s in ("first", "last") if s in wanted]
        if ends:
            order = order_keys(table, as_list(self.order))
            if not order:
                order = [torch.arange(len(table), device=table.device)]
            made["ends"] = pick_ends(table[col].coded(), order, codes, cells, size, ends)
        return made

    def merge(self, a: State, b: State) -> State:
        if self.over == "group":
            return {}
        keys, left, right = union_keys(a["keys"], b["keys"])
        merged = {}
        for c in self.columns:
            x, y, made = a["columns"][c], b["columns"][c], {}
            if "moments" in x:
                made["moments"] = merge_arrays(x["moments"], y["moments"], left, right, len(keys))
            if "tally" in x:
                made["tally"] = merge_tallies(x["tally"], y["tally"], left, right)
            if "distinct" in x:
                made["distinct"] = merge_distinct(x["distinct"], y["distinct"], left, right)
            if "ends" in x:
                made["ends"] = merge_ends(x["ends"], y["ends"], left, right, len(keys))
            merged[c] = made
        return {"keys": keys, "columns": merged}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for c in self.columns if state else []:
            parts, size = state["columns"][c], len(state["keys"])
            made = {}
            for n, v in parts.get("here", {}).items():  # code 0 is no group: missing, or 0
                made[n] = torch.cat([v.new_full((1,), torch.nan if v.is_floating_point() else 0), v[1:]])
            if "moments" in parts:
                made |= statistics(over_cells(parts["moments"], keep))
            if "tally" in parts:
                found = tally_quantiles(parts["tally"], list(self._quantiles.values()), size, keep)
                made |= dict(zip(self._quantiles, found, strict=True))
            if "distinct" in parts:
                made["nunique"] = count_distinct(parts["distinct"], size, keep)
            for end in [n for n in parts.get("ends", ()) if n != "values"]:
                made[end] = end_codes(parts["ends"], end, keep)
            tables |= {self._name(c, word): values for word, values in made.items()}
        return {n: tables[n] for n in self._tables} if state else {}

    def _inputs(self, table: Table) -> Tensors:
        """Return further inputs of ``apply``, for subclasses."""
        return {}

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"key": table.coded(as_list(self.by)).recode(state["keys"]), **self._inputs(table)}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        return {name: fit[name].to(tensors["key"].device)[tensors["key"]] for name in self._tables}

    def compute(self, table: Table) -> dict[str, Column]:
        if self.over == "group":
            return self._own(table)
        return self._decoded(super().compute(table), self._learned()[0])

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        if self.over == "group":
            return self._own(table)
        return self._decoded(super().compute_from(table, state), state)

    def compute_out_of_cell(
        self, table: Table, state: State, cells: Cells, excluded: torch.Tensor
    ) -> dict[str, Column]:
        if self.over == "group" or not bool(excluded.any()):
            return self.compute_from(table, state)
        return self._decoded(super().compute_out_of_cell(table, state, cells, excluded), state)

    def _own(self, table: Table) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        parts = {c: self._parts(table, c, coded.codes, None, coded.size, here=True) for c in self.columns}
        state = {"keys": coded.keys, "columns": parts}
        tensors = {"key": coded.codes, **self._inputs(table)}
        return self._decoded(as_columns(self.apply(self.finalize(state), tensors)), state)

    def _decoded(self, columns: dict[str, Column], state: State) -> dict[str, Column]:
        # First and last values replace their codes.
        for end in [s for s in ("first", "last") if s in self._wanted]:
            for c in self.columns:
                name = self._name(c, end)
                columns[name] = decoded(columns[name].values, state["columns"][c]["ends"]["values"], name)
        return columns
