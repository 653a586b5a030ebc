"""Statistics of a group, and a row's rank, deviation and neighbours in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine import group_values, keyed
from fastrec.features._engine.options import OfColumns, named
from fastrec.features._engine.order import difference, ordered_groups, run_begins, take_or_missing
from fastrec.features.base import Cells, Col, Cols, Context, Fitted, Grouped, Names, Scope, State, Tensors
from fastrec.features.columns import as_columns, as_list, comparable, name_of, number_of, order_keys
from fastrec.features.encode import SumsByKey, count_keys, merge_counts
from fastrec.segments import Groups, lexical_order, rank_in_group, segment_sum, shift_in_group
from fastrec.table import Column, Keys, Table
from fastrec.table.keys import UNITS_PER_SECOND

_QUANTILE = re.compile(r"q\d{2,}")
_NEED_NO_NUMBERS = ("count", "nunique", "first", "last")
_STATS = (*keyed.PARTS, "median", "nunique", "first", "last")
_MERGES = {
    "moments": keyed.merge_arrays,
    "tally": group_values.merge_tallies,
    "pairs": lambda a, b, *_: merge_counts(*a, *b),
    "ends": group_values.merge_ends,
}


class GroupStats(OfColumns, Fitted):
    """Statistics of a column over the rows of a group, exact in any partitions; missing values do not count.

    A group that is missing, unseen or without values gives a missing value (``count``, ``sum``, ``nunique`` and
    ``histogram``: 0).

    Args:
        cols: number columns, or generators; of any type for ``count``, ``nunique``, ``first`` and ``last``.
        stats: any of ``mean``, ``std`` (sample), ``min``, ``max``, ``sum``, ``count``, ``median``, quantiles by their
            decimals (``q05``, ``q25``, ``q975``), ``skew`` (adjusted, from three values on), all as in pandas;
            ``nunique``; ``first`` and ``last`` in ``order``; ``histogram``: the shares ``hist0``, … of values in
            ``bins``.
        over: ``'train'``: the group's training rows; ``'group'``: its rows in the frame to transform.
        order: the order columns of ``first`` and ``last``; among ties the smallest value is first, the largest last.
            None (only for ``over='group'``): the order of the frame.
        bins: the increasing edges of the histogram; a bin includes its lower edge, the last one both. Values outside
            are in no bin.
        name: a prefix of the outputs' names.

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
        self._check()

    def _check(self) -> None:
        wanted, kind = self._wanted, type(self).__name__
        unknown = [s for s in wanted if s not in _STATS and not _QUANTILE.fullmatch(str(s))]
        if unknown:
            known = f"Use one of {', '.join(_STATS)}, or a quantile: q05"
            raise DataError(f"{kind} has no statistic {unknown[0]!r}", remedy=known)
        if (self.over, self.scope) not in (("train", "train"), ("train", "all"), ("group", "train")):
            remedy = "Use over='train' with scope='train' or 'all', or over='group' alone"
            raise DataError(f"{kind} cannot look over {self.over!r} with scope {self.scope!r}", remedy=remedy)
        if {"first", "last"} & set(wanted) and self.order is None and self.over == "train":
            raise DataError(f"{kind}: first and last need an order", remedy="Name its columns with order=")
        edges = [float(b) for b in as_list(self.bins)]
        if ("histogram" in wanted) != bool(edges) or edges != sorted(set(edges)) or len(edges) == 1:
            problem = f"{kind}: a histogram and bins of two growing edges or more belong together, not {self.bins!r}"
            raise DataError(problem, remedy="Give both, as in stats='histogram', bins=[0, 10, 100]")

    @property
    def _wanted(self) -> list[str]:
        return as_list(self.stats)

    @property
    def by_key(self) -> tuple[tuple[str, ...], ...]:
        # Tallies, distinct values and ends hold codes of the keys, which a split into buckets would change.
        return (("keys", "columns"),) if all(s in keyed.PARTS for s in self._wanted) else ()

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
        return named(self, "_".join([*as_list(self.name), word]), col)

    @property
    def _quantiles(self) -> dict[str, float]:
        return {s: 0.5 if s == "median" else float(f"0.{s[1:]}") for s in self._wanted if s[0] == "q" or s == "median"}

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.over == "group":  # nothing is learned
            return {}
        keys, codes = keyed.sort_keys(table.coded(as_list(self.by)))
        made = {c: self._parts(table, c, codes, cells, len(keys) + 1) for c in self.columns}
        return {"keys": keys, "columns": made}

    def _parts(
        self, table: Table, col: str, codes: torch.Tensor, cells: Cells | None, size: int, *, here: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return a column's statistics; ``here``: final ones of this table, which cannot be merged."""
        wanted, made = self._wanted, {}
        if any(s not in _NEED_NO_NUMBERS for s in wanted):
            values = number_of(table, col, wanted_by=self)
            known = ~values.isnan()
        else:
            known = ~table[col].is_missing().to(table.device)
            values = known.double()
        arrays = {p for s in wanted for p in keyed.PARTS.get(s, ())}
        if arrays:
            made["moments"] = keyed.collect_moments(values, known, codes, cells, size, arrays, as_list(self.bins))
        shares = self._quantiles
        if here:
            quantiles = group_values.quantiles_here(values, known, codes, size, list(shares.values()))
            made["here"] = dict(zip(shares, quantiles))
            if "nunique" in wanted:
                made["here"]["nunique"] = group_values.count_distinct_here(table[col].coded(), codes, size)
        elif shares:
            made["tally"] = group_values.tally_values(values, known, codes, cells)
        if "nunique" in wanted and not here:
            pairs, count = count_keys(table, [*as_list(self.by), col], cells)
            made["pairs"] = [pairs, count > 0]
        ends = [s for s in ("first", "last") if s in wanted]
        if ends:
            order = order_keys(table, as_list(self.order)) or [torch.arange(len(table), device=table.device)]
            made["ends"] = group_values.pick_ends(table[col].coded(), order, codes, cells, size, ends)
        return made

    def merge(self, a: State, b: State) -> State:
        if self.over == "group":
            return {}
        keys, left, right = keyed.union_keys(a["keys"], b["keys"])
        merged = {}
        for c in self.columns:
            x, y, made = a["columns"][c], b["columns"][c], {}
            for part in x:  # moments and ends have an entry for every key
                sizes = (len(keys),) if part in ("moments", "ends") else ()
                made[part] = _MERGES[part](x[part], y[part], left, right, *sizes)
            merged[c] = made
        return {"keys": keys, "columns": merged}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for c in self.columns if state else []:
            parts, size = state["columns"][c], len(state["keys"])
            made = {}
            for n, v in parts.get("here", {}).items():  # code 0 is a missing group: NaN, or 0
                made[n] = torch.cat([v.new_full((1,), torch.nan if v.is_floating_point() else 0), v[1:]])
            if "moments" in parts:
                made |= keyed.statistics(keyed.over_cells(parts["moments"], keep))
            if "tally" in parts:
                found = group_values.tally_quantiles(parts["tally"], list(self._quantiles.values()), size, keep)
                made |= dict(zip(self._quantiles, found, strict=True))
            if "pairs" in parts:
                made["nunique"] = _count_distinct(*parts["pairs"], state["keys"], keep)
            for end in [n for n in parts.get("ends", ()) if n != "values"]:
                made[end] = group_values.end_codes(parts["ends"], end, keep)
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
        return self._own(table) if self.over == "group" else super().compute(table)

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
        # Replace the codes of first and last values by the values.
        for end in [s for s in ("first", "last") if s in self._wanted]:
            for c in self.columns:
                name = self._name(c, end)
                columns[name] = group_values.decoded(columns[name].values, state["columns"][c]["ends"]["values"], name)
        return columns


class GroupPick(OfColumns, Grouped):
    """Value of a column in the n-th (or n-th last) row of a group, ordered by another column.

    Rows without an order or a value are skipped; ties are in row order. NaN for a missing group, or without such a row.

    Args:
        order: the column, or generator, that orders the rows.
        nth: the row's place in that order, from 1.
        last: count from the last row backwards.
        name: the first word of the outputs' names; None: ``first`` or ``last``, with ``nth`` above 1 appended.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupPick
        >>> df = pd.DataFrame({"list": [1, 1, 1], "position": [1, 2, 3], "age": [None, 40.0, 7.0]})
        >>> GroupPick("position", by="list", order="age").fit_transform(df)["first_position__list"].tolist()
        [3.0, 3.0, 3.0]
    """

    _least: ClassVar = {"nth": 1}

    def __init__(
        self, cols: Cols, *, by: Names, order: Col, nth: int = 1, last: bool = False, name: str | None = None
    ) -> None: ...

    @property
    def _word(self) -> str:
        return self.name or ("last" if self.last else "first") + (str(self.nth) if self.nth > 1 else "")

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        order, unordered = comparable(table, name_of(self.order))
        result = {}
        for col in self.columns:
            values = number_of(table, col, wanted_by=self)
            rows = (~(unordered | values.isnan()) & (coded.codes > 0)).nonzero().squeeze(1)
            sort = lexical_order([coded.codes[rows], order[rows]])
            rows = rows if sort is None else rows[sort]
            of_group = torch.full((coded.size,), torch.nan, dtype=torch.float64, device=table.device)
            codes = coded.codes[rows]
            groups = Groups.arranged(codes, None)
            place = torch.bincount(codes, minlength=coded.size)[codes] - 1 - groups.place if self.last else groups.place
            chosen = place == self.nth - 1
            of_group[codes[chosen]] = values[rows[chosen]]
            result[self._name(col)] = of_group[coded.codes]
        return as_columns(result)


class GroupRank(OfColumns, Grouped):
    """Rank of the row's value in its group, smallest first; NaN if the value or the group is missing.

    Args:
        method: the rank of ties: ``min``, ``max``, ``average``, ``dense`` or ``ordinal`` (by row number).
        descending: rank the largest value first.
        normalise: return ``(rank - 1) / (values - 1)`` in [0, 1]; 0 for a single value.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import GroupRank
        >>> df = pd.DataFrame({"list": [1, 1, 1], "price": [30, 10, 20]})
        >>> GroupRank("price", by="list").fit_transform(df)["rank_price__list"].tolist()
        [3.0, 1.0, 2.0]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        method: Literal["min", "max", "average", "dense", "ordinal"] = "min",
        descending: bool = False,
        normalise: bool = False,
    ) -> None: ...

    @property
    def _word(self) -> str:
        return ("n" if self.normalise else "") + ("desc" if self.descending else "") + "rank"

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        coded = table.coded(as_list(self.by))
        codes = coded.codes
        result = {}
        for col in self.columns:
            values, missing = comparable(table, col)
            if self.descending:  # inverting bits, unlike negation, cannot overflow
                values = -values if values.is_floating_point() else ~values
            missing = missing | (codes == 0)
            rank = rank_in_group(values, codes, method=self.method, missing=missing)
            if self.normalise:
                size = torch.bincount(codes[~missing], minlength=coded.size)[codes]
                rank = torch.where(size > 1, (rank - 1) / (size - 1).clamp_min(1), rank * 0)
            result[self._name(col)] = rank
        return as_columns(result)


class DeviationFromGroup(GroupStats):
    """Difference, ratio or z-score of the row's value to its group's mean or median.

    Missing if the value is missing, or if the group is missing, unseen or without values.

    Args:
        how: ``'diff'``: value - centre; ``'ratio'``: value / centre, missing if the centre is 0; ``'z'``: the
            difference in sample standard deviations of the group, 0 at the centre if that is 0 or missing.
        stat: the centre: ``'mean'`` or ``'median'``.
        over: ``'group'``: the group's rows in the frame to transform; ``'train'``: its training rows.
        scope: with ``over='train'``, ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        name: the first word of the outputs' names; None: ``{how}{stat}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DeviationFromGroup
        >>> df = pd.DataFrame({"list": [1, 1, 2], "price": [10.0, 30.0, 5.0]})
        >>> DeviationFromGroup("price", by="list").fit_transform(df)["diffmean_price__list"].tolist()
        [-10.0, 10.0, 0.0]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        how: Literal["diff", "ratio", "z"] = "diff",
        stat: Literal["mean", "median"] = "mean",
        over: Literal["group", "train"] = "group",
        scope: Scope = "train",
        name: str | None = None,
    ) -> None:
        self.order = self.bins = None
        self._check()

    @property
    def _wanted(self) -> list[str]:
        return [self.stat, *(["std"] if self.how == "z" else [])]

    @property
    def outputs(self) -> list[str]:
        return [named(self, self.name or self.how + self.stat, c) for c in self.columns]

    def _inputs(self, table: Table) -> Tensors:
        return {f"value_{i}": number_of(table, c, wanted_by=self) for i, c in enumerate(self.columns)}

    def apply(self, fit: dict[str, torch.Tensor], tensors: Tensors) -> Tensors:
        found, made = super().apply(fit, tensors), {}
        for i, (c, output) in enumerate(zip(self.columns, self.outputs, strict=True)):
            values, centre = tensors[f"value_{i}"], found[self._name(c, self.stat)]
            away = values - centre
            if self.how == "ratio":
                made[output] = torch.where(centre != 0, values / torch.where(centre != 0, centre, 1), torch.nan)
            elif self.how == "z":
                spread = found[self._name(c, "std")]
                some = spread > 0
                none = torch.where(away == 0, 0, torch.nan)
                made[output] = torch.where(some, away / torch.where(some, spread, 1), none)
            else:
                made[output] = away
        return made


class NUnique(OfColumns, SumsByKey):
    """Number of distinct values of a column in a group's training rows, exact in any partitions.

    Missing values do not count. A missing or unseen group gives 0.

    Args:
        cols: key columns of any type, or generators.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import NUnique
        >>> df = pd.DataFrame({"user": [1, 1, 1, 2], "item": ["a", "b", "a", None]})
        >>> NUnique("item", by="user").fit_transform(df)["nunique_item__user"].tolist()
        [2, 2, 2, 0]
    """

    by_key = (("groups",), ("pairs", "seen"))
    _word = "nunique"

    def __init__(self, cols: Cols, *, by: Names, scope: Scope = "train") -> None:
        if not as_list(by):
            raise DataError("NUnique: no column says which rows are a group", remedy="Name one: by='user'")

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        pairs = [count_keys(table, [*as_list(self.by), col], cells) for col in self.columns]
        groups, _ = count_keys(table, as_list(self.by), None)
        return {"groups": groups, "pairs": [keys for keys, _ in pairs], "seen": [count > 0 for _, count in pairs]}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        counted = zip(self.columns, state["pairs"], state["seen"], strict=True)
        return {self._name(col): _count_distinct(*pairs, state["groups"], keep) for col, *pairs in counted}

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"group": table.coded(as_list(self.by)).recode(state["groups"])}

    def lookups(self) -> dict[str, str]:
        return dict.fromkeys(self.outputs, "group")


def _count_distinct(pairs: Keys, seen: torch.Tensor, groups: Keys, keep: torch.Tensor | None) -> torch.Tensor:
    """Count each group's values from keys (group, value) and bool ``[cells, pairs]``: int64 ``[groups + 1]``."""
    group = Keys(pairs.columns[: len(groups.columns)]).find_in(groups) + 1
    return segment_sum(keyed.sum_kept(seen, keep).long(), group.to(seen.device), len(groups) + 1)


What = Literal["previous", "next", "diff_previous", "diff_next", "above", "below"]


class Neighbours(OfColumns, Grouped):
    """Values of neighbouring rows in a list, by place or by size.

    If the order is time, the rows after are the future (``uses_future``). Missing without such a row, or if a value or
    the list is missing.

    Args:
        cols: columns, or generators; of numbers or times for all but ``previous`` and ``next``.
        by: the columns of the list.
        order: the columns that order a list's rows, ties by row number; None: the order of the frame.
        n: the distance in rows, or several.
        what: any of ``previous`` and ``next`` (the value ``n`` rows before and after), ``diff_previous`` and
            ``diff_next`` (the row's value minus that), ``above`` and ``below`` (the distance to the next larger and
            smaller value in the list; ``n`` is ignored). Times differ in seconds.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Neighbours
        >>> df = pd.DataFrame({"list": [1, 1, 1], "place": [1, 2, 3], "price": [30.0, 10.0, 25.0]})
        >>> made = Neighbours("price", by="list", order="place", what=["next", "above"]).fit_transform(df)
        >>> made[["next1_price__list", "above_price__list"]].values.tolist()
        [[10.0, nan], [25.0, 15.0], [nan, 5.0]]
    """

    _least: ClassVar = {"n": 1}

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        order: Names | None = None,
        n: int | Sequence[int] = 1,
        what: What | Sequence[What] = ("previous", "next"),
    ) -> None: ...

    @property
    def uses_future(self) -> bool:  # type: ignore[override]
        return bool({"next", "diff_next"} & set(as_list(self.what)))

    @property
    def outputs(self) -> list[str]:
        return [name for c in self.columns for _, _, name in self._parts(c)]

    def _parts(self, col: str) -> list[tuple[str, int, str]]:
        """Return a column's outputs: word, distance and name."""
        made = []
        for word in as_list(self.what):
            steps = [0] if word in ("above", "below") else as_list(self.n)
            made += [(word, n, named(self, f"{word}{n or ''}", col)) for n in steps]
        return made

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        groups, outside = ordered_groups(table, as_list(self.by), as_list(self.order))
        result: dict[str, Column] = {}
        shifted: dict[int, torch.Tensor] = {}
        for col in self.columns:
            gaps: dict[str, torch.Tensor] = {}
            for word, n, name in self._parts(col):
                if word in ("above", "below"):
                    gaps = gaps or self._gaps(table, col)
                    result[name] = Column("number", gaps[word], name=name)
                    continue
                n = n if word.endswith("previous") else -n
                if n not in shifted:
                    shifted[n] = torch.where(outside, -1, shift_in_group(groups, n))
                there = take_or_missing(table[col], shifted[n])
                if word.startswith("diff"):
                    there = Column("number", self._difference(table, col, shifted[n]), name=name)
                result[name] = there
        return result

    def _values(self, table: Table, col: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return values to compare, a mask of the missing ones, and units per second."""
        number_of(table, col, wanted_by=self)  # raises for a column of neither numbers nor times
        return *comparable(table, col), UNITS_PER_SECOND[table[col].unit or "s"]

    def _difference(self, table: Table, col: str, rows: torch.Tensor) -> torch.Tensor:
        values, missing, unit = self._values(table, col)
        if not len(values):
            return values.double()
        gone = missing | (rows < 0) | missing[rows.clamp_min(0)]
        return torch.where(gone, torch.nan, difference(values, values[rows.clamp_min(0)]) / unit)

    def _gaps(self, table: Table, col: str) -> dict[str, torch.Tensor]:
        """Return the distance to the next larger and smaller value of the list: float64 ``[n]`` each."""
        values, missing, unit = self._values(table, col)
        codes = table.coded(as_list(self.by)).codes
        rows = (~missing & (codes > 0)).nonzero().squeeze(1)
        nothing = torch.full((len(codes),), torch.nan, dtype=torch.float64, device=codes.device)
        made = {"above": nothing, "below": nothing.clone()}
        if not len(rows):
            return made
        values = values[rows]
        groups = Groups.of(codes[rows], values)
        ordered = groups.sort(values)
        new = run_begins(groups.codes, ordered)
        # Equal values of a list are one step; adjacent steps hold the next values by size.
        step = torch.cumsum(new, 0) - 1
        level, of = ordered[new], groups.codes[new]
        gap = difference(level[1:], level[:-1]) / unit
        gap = torch.where(of[1:] == of[:-1], gap, torch.nan)
        none = gap.new_full((1,), torch.nan)
        for word, found in (("above", torch.cat([gap, none])), ("below", torch.cat([none, gap]))):
            made[word][rows] = groups.unsort(found[step])
        return made
