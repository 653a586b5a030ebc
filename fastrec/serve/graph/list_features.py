"""Write generators that read the rows of one request's list: ranks, statistics, lags."""

from __future__ import annotations

from typing import Any

import torch

from fastrec.features._inputs import as_columns, as_list, name_of
from fastrec.serve.graph.columns import GraphTable
from fastrec.serve.graph.features import ListScope, lists_of, writer
from fastrec.serve.graph.groups import GraphGroups
from fastrec.serve.graph.tensor import NotInGraphError
from fastrec.table import Column, Keys, as_column

_STATS = ("count", "sum", "mean", "min", "max", "std")


@writer("GroupRank")
def _rank(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    lists, made = lists_of(step, places), {}
    for col in step.columns:
        values = _numbers(table[col])
        gone = values.isnan()
        values = -values if step.descending else values
        rank = _ranked(lists, torch.where(gone, torch.inf, values), gone, step.method)
        if step.normalise:
            size = lists.reduce((~gone).double(), "add")
            rank = torch.where(size > 1, (rank - 1) / torch.clamp(size - 1, min=1), rank * 0)
        name = step._name(col)
        made[name] = Column("number", torch.where(gone, torch.nan, rank), name=name)
    return made


def _ranked(lists: GraphGroups, values: Any, gone: Any, method: str) -> Any:
    """Rank each row in its list, from 1; missing values come last."""
    place = lists.place([(values, False), (gone.double(), False)]).double() + 1
    if method == "ordinal":
        return place
    equal = lists.parted(values)  # rows of one list and one value
    if method == "dense":
        return lists.dense(values)
    low, high = equal.reduce(place, "min"), equal.reduce(place, "max")
    return {"min": low, "max": high, "average": (low + high) / 2}[method]


@writer("GroupStats")
def _stats(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    if step.over == "group":
        return as_columns(_of_lists(step, table, places))
    state, fit = step._learned()
    made = as_columns(step.apply(fit, step.prepare(state, table)))
    for end in [s for s in ("first", "last") if s in step._wanted]:
        for col in step.columns:
            name = step._name(col, end)
            made[name] = _value_of(made[name].values, state["columns"][col]["ends"]["values"], name)
    return made


@writer("DeviationFromGroup")
def _deviation(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    if step.over != "group":
        state, fit = step._learned()
        return as_columns(step.apply(fit, step.prepare(state, table)))
    found = _of_lists(step, table, places)
    some = next(iter(found.values()))
    return as_columns(
        step.apply({n: _ListStatistic(v) for n, v in found.items()}, {"key": some, **step._inputs(table)})
    )


class _ListStatistic:
    """A statistic of each row's list, which code for statistics of keys can index."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to(self, device: Any) -> _ListStatistic:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self.values


def _value_of(codes: Any, values: Keys, name: str) -> Column:
    """Convert codes (from 1; 0 = missing) to a column of their numbers."""
    column = as_column(values.columns[0], name=name).plain()
    if column.kind not in ("number", "datetime"):
        raise NotInGraphError("a list's text has no form in a graph", remedy="Compute it outside of the graph")
    table = torch.cat([column.values.new_zeros(1), column.values])
    return Column(column.kind, table[codes], name=name, missing=codes == 0, unit=column.unit, zone=column.zone)


def _of_lists(step: Any, table: GraphTable, places: ListScope) -> dict[str, Any]:
    """Write statistics of the rows of each row's list."""
    lists, made = lists_of(step, places), {}
    odd = [s for s in step._wanted if s not in _STATS]
    if odd:
        raise NotInGraphError(f"a list's {odd[0]} has no form in a graph", remedy="Compute it outside of the graph")
    for col in step.columns:
        values = _numbers(table[col])
        known = ~values.isnan()
        count = lists.reduce(known.double(), "add")
        filled = torch.where(known, values, 0.0)
        total = lists.reduce(filled, "add")
        mean = total / torch.clamp(count, min=1)
        # add what rounding has lost, as training does: a tree may split where a difference from the mean is 0
        rest = torch.where(known & mean.isfinite(), filled - mean, 0.0)
        mean = mean + lists.reduce(rest, "add") / torch.clamp(count, min=1)
        for stat in step._wanted:
            made[step._name(col, stat)] = _statistic(stat, lists, values, known, count, total, mean)
    return made


def _statistic(stat: str, lists: GraphGroups, values: Any, known: Any, count: Any, total: Any, mean: Any) -> Any:
    if stat == "count":
        return count.long()
    if stat == "sum":
        return total
    if stat == "mean":
        return torch.where(count > 0, mean, torch.nan)
    if stat == "std":
        rest = torch.where(known, values - mean, 0.0)
        square = lists.reduce(rest * rest, "add")
        enough = (count > 1) & mean.isfinite()
        return torch.where(enough, (square / torch.clamp(count - 1, min=1)).sqrt(), torch.nan)
    far = torch.inf if stat == "min" else -torch.inf
    return torch.where(count > 0, lists.reduce(torch.where(known, values, far), stat), torch.nan)


@writer("Lag", "Diff", "PctChange")
def _lag(step: Any, table: GraphTable, places: ListScope) -> dict[str, Column]:
    lists = lists_of(step, places)
    if step.order is not None or step.horizon is not None or type(step).__name__ == "PctChange":
        raise NotInGraphError("an order of the list has no form in a graph", remedy="Compute it outside of the graph")
    made = {}
    for n in as_list(step.n):
        for col in as_list(step.cols):
            column = table[name_of(col)]
            values = _numbers(column)
            there = lists.shifted(values, n)
            name = step._name(col, n)
            made[name] = Column("number", values - there if step._word == "diff" else there, name=name)
    return made


def _numbers(column: Column) -> Any:
    if column.kind == "datetime":
        raise NotInGraphError(
            "times of a list have no form in a graph", column=column.name, remedy="Compute it outside"
        )
    return column.number()
