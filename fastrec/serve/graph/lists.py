"""Nets that read the events before a list, in a graph: events are inputs besides the candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from fastrec.estimators.session_ranker import ITEM
from fastrec.features.columns import as_columns, as_list, name_of
from fastrec.serve.graph.columns import (
    GraphColumn,
    GraphTable,
    as_graph_column,
    column_of,
    described,
    encode,
    input_type,
    no_text_of,
)
from fastrec.serve.graph.features import GraphGroups, applied, lists_of, writer
from fastrec.serve.graph.nets import _prepared, exported
from fastrec.serve.onnx_builder import ROWS, Graph, GraphTensor, NotInGraphError, value_of
from fastrec.table import Column, Table, as_column


@writer("GroupRank")
def _rank(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    lists, made = lists_of(step, lists), {}
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
def _stats(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    if step.over == "group":
        return as_columns(_of_lists(step, table, lists))
    made, (state, _) = as_columns(applied(step, table)), step._learned()
    for end in [s for s in ("first", "last") if s in step._wanted]:
        for col in step.columns:
            name = step._name(col, end)
            # codes, from 1 (0: missing) → the numbers that they stand for
            column = as_column(state["columns"][col]["ends"]["values"].columns[0], name=name).plain()
            if column.kind not in ("number", "datetime"):
                raise NotInGraphError("a list's text has no form in a graph")
            codes, table = made[name].values, torch.cat([column.values.new_zeros(1), column.values])
            about = {"name": name, "missing": codes == 0, "unit": column.unit, "zone": column.zone}
            made[name] = Column(column.kind, table[codes], **about)
    return made


@writer("DeviationFromGroup")
def _deviation(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    if step.over != "group":
        return as_columns(applied(step, table))
    found = _of_lists(step, table, lists)
    by_key = {n: _ListStatistic(v) for n, v in found.items()}
    return as_columns(step.apply(by_key, {"key": next(iter(found.values())), **step._inputs(table)}))


class _ListStatistic:
    """A statistic of each row's list, which code for statistics of keys can index."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to(self, device: Any) -> _ListStatistic:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self.values


def _of_lists(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Any]:
    lists, made = lists_of(step, lists), {}
    odd = [s for s in step._wanted if s not in ("count", "sum", "mean", "min", "max", "std")]
    if odd:
        raise NotInGraphError(f"a list's {odd[0]} has no form in a graph")
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
    if stat in ("count", "sum"):
        return count.long() if stat == "count" else total
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
def _lag(step: Any, table: GraphTable, lists: GraphGroups | None) -> dict[str, Column]:
    lists = lists_of(step, lists)
    if step.order is not None or step.horizon is not None or type(step).__name__ == "PctChange":
        raise NotInGraphError("an order of the list has no form in a graph")
    made = {}
    for n in as_list(step.n):
        for col in as_list(step.cols):
            values = _numbers(table[name_of(col)])
            there = lists.shifted(values, n)
            name = step._name(name_of(col), n)
            made[name] = Column("number", values - there if step._word == "diff" else there, name=name)
    return made


def _numbers(column: Column) -> Any:
    if column.kind == "datetime":
        raise NotInGraphError("times of a list have no form in a graph", column=column.name)
    return column.number()


COUNT, PREFIX = "events.count", "events."
_EVENTS = "events"  # name of the second dimension of the inputs


@dataclass
class GraphEvents:
    """The events before lists as inputs of a graph. Each row has those of its list; the first row's are read."""

    graph: Graph
    log: Mapping[str, Column]  # an example of each column that is read
    missing: Mapping[str, str]  # its mark of missing text
    item: str
    time: str | None

    def __post_init__(self) -> None:
        shape = (ROWS, _EVENTS)
        self.values = {n: self.graph.input(PREFIX + n, input_type(c), shape) for n, c in self.log.items()}
        self.count = self.graph.input(COUNT, np.int64)


def events_of(
    graph: Graph, rankers: Sequence[Any], log: Table, item: str, time: str | None
) -> tuple[GraphEvents, list[dict[str, Any]]]:
    """Add the inputs that rankers read of the events before lists, and describe them for ``serving.json``."""
    for ranker in rankers:
        if ranker._events is None:
            raise ranker.not_fitted()
    coders = [r._events for r in rankers]
    aged = time is not None and any(c.aged for c in coders)
    # an item may be a category of its own, too: each column once
    read = [item, *(n for c in coders for n in (*c.frame.cat_names, *c.frame.cont_names)), *([time] if aged else [])]
    columns = {n: log[n] for n in dict.fromkeys(read)}
    missing = {n: no_text_of(c) for n, c in columns.items()}
    most = max(c.most for c in coders)
    about = [{**described(PREFIX + n, c), "required": False, "events": most} for n, c in columns.items()]
    return GraphEvents(graph, columns, missing, item, time if aged else None), about


def session_outputs(model: Any, rows: Any) -> GraphTensor:
    """Write the nodes of a ``SessionRanker``: float64 ``[rows]``."""
    trained, coder = model._trained, model._events
    if trained is None or coder is None:
        raise model.not_fitted()
    events: GraphEvents = rows.events
    flags = {flag: rows.table[name].is_missing().double() for flag, name in trained.flags.items()}
    item = as_graph_column(rows.table[events.item])
    cats, conts = _prepared(trained.frame, rows.table.with_columns({**flags, ITEM: item}))
    laid = _Laid(events, rows.lists, coder.most)
    read = {events.item, *coder.frame.cat_names, *coder.frame.cont_names, *([events.time] if coder.aged else [])}
    own = {n: laid.column(n) for n in events.log if n in read}
    vocab = next(p for p in trained.frame.procs.fs if type(p).__name__ == "Categorify").vocab_of(ITEM)
    feeds = {"x_cat": value_of(laid.graph, cats, torch.int64), "lists": rows.lists._of_row}
    if trained.frame.cont_names:
        feeds["x_cont"] = value_of(laid.graph, conts, torch.float32)
    feeds["items"] = laid.wide(value_of(laid.graph, encode(vocab, own[events.item]), torch.int64))
    codes, numbers = _prepared(coder.frame, GraphTable(own))
    if coder.frame.cat_names:
        feeds["cats"] = laid.wide(value_of(laid.graph, codes, torch.int64), len(coder.frame.cat_names))
    parts = [numbers] if coder.frame.cont_names else []
    if coder.aged:
        parts.append(laid.age(rows.table[events.time], own[events.time]))
    if parts:
        values = [value_of(laid.graph, p, torch.float32) for p in parts]
        both = values[0] if len(values) == 1 else laid.graph.op("Concat", *values, axis=1)
        feeds["conts"] = laid.wide(both, len(coder.frame.cont_names) + coder.aged)
    feeds["listed"] = laid.wide(laid.listed(item, own[events.item]))
    feeds["steps"] = laid.steps
    proto = _net_model(_Fed(trained.net, len(trained.frame.cat_names), len(trained.frame.cont_names)), feeds, coder)
    if laid.graph.compress is not None:
        proto = laid.graph.compress(proto)
    output = laid.graph.merge(proto, [feeds[i.name] for i in proto.graph.input])[0]
    return GraphTensor.of(laid.graph, output, torch.float32, 1).double()[:, 0]


class _Laid:
    """The last ``most`` events of every list: flat values have ``E = lists * most`` places."""

    def __init__(self, events: GraphEvents, lists: Any, most: int) -> None:
        graph = self.graph = events.graph
        self.events, self.lists, self.most, self.whole, op = events, lists, most, graph.whole, graph.op
        rows = op("Shape", lists._of_row)
        self.number = op("Range", graph.constant(np.int64(0)), op("Squeeze", rows), graph.constant(np.int64(1)))
        # rows of one list repeat its events: those of the first row are read
        self.first = self._first(lists._of_row, self.number, lists._count)
        # a count out of range would read the events of other lists
        count = op("Gather", op("Max", events.count, self.whole(0)), self.first)
        wide = op("Shape", next(iter(events.values.values())), start=1, end=2)
        count = op("Unsqueeze", op("Min", count, wide), self.whole(1))
        length = op("Min", count, self.whole(most))
        place = graph.constant(np.arange(most, dtype=np.int64))
        left = op("Sub", op("Sub", length, self.whole(1)), place)  # number of later events of the list
        there = op("Less", place, length)
        self.steps = op("Where", there, left, self.whole(-1))
        start = op("Mul", op("Unsqueeze", self.first, self.whole(1)), wide)
        at = op("Add", op("Add", start, op("Sub", count, length)), place)
        none = op("Mul", rows, wide)  # a missing value follows the last one
        self._at = op("Reshape", op("Where", there, at, none), self.whole(-1))

    def column(self, name: str) -> GraphColumn:
        graph, value = self.graph, self.events.values[name]
        column, no_text = self.events.log[name], self.events.missing[name]
        kind = input_type(column)
        absent = no_text if kind is object else np.iinfo(np.int64).min if kind is np.int64 else np.nan
        missing = np.array([absent], kind)
        flat = graph.op("Concat", graph.op("Reshape", value, self.whole(-1)), graph.constant(missing), axis=0)
        return column_of(graph, graph.op("Gather", flat, self._at), name, column, no_text=no_text)

    def wide(self, flat: str, width: int | None = None) -> str:
        return self.graph.op("Reshape", flat, self.whole(*[-1, self.most] if width is None else [-1, self.most, width]))

    def age(self, shown: Column, happened: GraphColumn) -> GraphTensor:
        """Compute how long ago events were, as ``EventCoder`` does: float32 ``[E, 1]``."""
        own = value_of(self.graph, shown.number(), torch.float64)
        moment = GraphTensor.of(self.graph, self._spread(self.graph.op("Gather", own, self.first)), torch.float64)
        return (moment - happened.number()).clamp_min(0).nan_to_num(0).log1p().float()[:, None] / 10

    def listed(self, candidates: GraphColumn, items: GraphColumn) -> str:
        """Find the row of the candidate that is an event's item, in the event's list; -1: none. int64 ``[E]``."""
        op = self.graph.op
        for column in (candidates, items):
            if column.text is None and column.values.dtype != torch.int64:
                why = "items are neither integers nor text"
                raise NotInGraphError(why, column=column.name or None, remedy="Give them as integers or text")
        mine, theirs = (c.values.value if c.text is None else c.text for c in (candidates, items))
        if (candidates.text is None) != (items.text is None):
            raise NotInGraphError("candidates' items are text or numbers, and the events' are not", column=items.name)
        # number items of candidates and events together, then pairs of list and item: equal pairs match
        _, _, item, _ = op("Unique", op("Concat", mine, theirs, axis=0), outputs=4, sorted=1)
        lists = op("Range", self.graph.constant(np.int64(0)), op("Squeeze", self.lists._count),
                   self.graph.constant(np.int64(1)))  # fmt: skip
        both = op("Concat", self.lists._of_row, self._spread(lists), axis=0)
        pair = op("Add", op("Mul", both, op("Shape", item)), item)  # no more items than values
        distinct, _, pair, _ = op("Unique", pair, outputs=4, sorted=1)
        rows = op("Shape", self.number)
        own = op("Slice", pair, self.whole(0), rows)
        theirs = op("Slice", pair, rows, self.whole(np.iinfo(np.int64).max))
        first = self._first(own, self.number, op("Shape", distinct), absent=-1)
        gone = items.is_missing()
        return op("Where", value_of(self.graph, gone, torch.bool), self.whole(-1), op("Gather", first, theirs))

    def _first(self, codes: str, number: str, size: str, absent: int | None = None) -> str:
        op = self.graph.op
        start = op("ConstantOfShape", size, value=np.array([np.inf]))
        wide = self.graph.cast(number, np.float64)  # the reduction of integers is not everywhere
        made = op("ScatterElements", start, codes, wide, reduction="min")
        if absent is not None:
            there = op("Less", made, self.graph.constant(np.array(np.inf)))
            made = op("Where", there, made, self.graph.constant(np.array(float(absent))))
        return self.graph.cast(made, np.int64)

    def _spread(self, of_list: str) -> str:
        """Repeat a value of each list at all its places: ``[E]``."""
        op = self.graph.op
        shape = op("Concat", self.lists._count, self.whole(self.most), axis=0)
        return op("Reshape", op("Expand", op("Unsqueeze", of_list, self.whole(1)), shape), self.whole(-1))


class _Fed(nn.Module):
    """A net of events that takes its inputs by name; those that it does without are empty."""

    def __init__(self, net: nn.Module, n_cat: int, n_cont: int) -> None:
        super().__init__()
        self.net, self.n_cat, self.n_cont = net, n_cat, n_cont

    def forward(
        self, x_cat: Tensor, lists: Tensor, items: Tensor, listed: Tensor, steps: Tensor,
        x_cont: Tensor | None = None, cats: Tensor | None = None, conts: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x_cont = torch.zeros((x_cat.shape[0], 0)) if x_cont is None else x_cont
        cats = items.new_zeros((*items.shape, 0)) if cats is None else cats
        conts = torch.zeros((*items.shape, 0)) if conts is None else conts
        return self.net(x_cat, x_cont, lists, items, cats, conts, listed, steps)


def _net_model(net: _Fed, feeds: Mapping[str, str], coder: Any) -> Any:
    """Convert the net to an ONNX model whose inputs have the names of ``feeds``."""
    n, lists, most = 6, 3, coder.most
    whole, sizes = torch.int64, coder.sizes
    given = {
        "x_cat": torch.zeros((n, net.n_cat), dtype=whole),
        "lists": torch.arange(n) // 2,
        "items": torch.zeros((lists, most), dtype=whole),
        "listed": torch.zeros((lists, most), dtype=whole),
        "steps": torch.arange(most - 1, -1, -1).repeat(lists, 1),
        "x_cont": torch.zeros((n, net.n_cont)),
        "cats": torch.zeros((lists, most, len(sizes["event_szs"])), dtype=whole),
        "conts": torch.zeros((lists, most, sizes["n_event_cont"])),
    }
    rows, of_lists = Dim("rows"), Dim("lists")
    given = {name: given[name] for name in given if name in feeds}
    shapes = {name: {0: rows if name in ("x_cat", "lists", "x_cont") else of_lists} for name in given}
    net.net.cpu()
    return exported(net.eval(), kwargs=given, shapes=shapes)
