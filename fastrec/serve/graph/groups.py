"""Sums, extremes and ranks within the lists of a graph's rows."""

from __future__ import annotations

import math

import numpy as np
import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, N, value_of

_MINUS_INFINITY = np.array([-math.inf])
_START = {"add": np.array([0.0]), "max": _MINUS_INFINITY, "min": -_MINUS_INFINITY}


class GraphGroups:
    """The lists of a graph's rows.

    Args:
        codes: int64 ``[rows]``, equal in the rows of one list; those of any two lists differ.
    """

    def __init__(self, codes: GraphTensor) -> None:
        self.graph: Graph = codes.graph
        distinct, _, inverse, _ = self.graph.op("Unique", codes.value, outputs=4, sorted=1)
        self._count, self._of_row = self.graph.op("Shape", distinct), inverse
        self._meta = codes.meta

    def reduce(self, values: GraphTensor, how: str) -> GraphTensor:
        """Compute the sum (``'add'``), maximum (``'max'``) or minimum (``'min'``) of each row's list: float64."""
        graph = self.graph
        value = value_of(graph, values, torch.float64)
        start = graph.op("ConstantOfShape", self._count, value=_START[how])
        each = graph.op("ScatterElements", start, self._of_row, value, reduction=how)
        return self._spread(each, torch.float64)

    def size(self) -> GraphTensor:
        """Count the rows of each row's list: float64."""
        graph = self.graph
        ones = graph.op("Cast", graph.op("Equal", self._of_row, self._of_row), to=graph.type_of(np.float64))
        return self.reduce(GraphTensor(graph, ones, torch.empty(N, dtype=torch.float64, device="meta")), "add")

    def order(self, keys: list[tuple[GraphTensor, bool]]) -> str:
        """Sort rows by list, then by the keys, then by position: int64 ``[rows]``.

        Args:
            keys: values without NaN and whether the largest comes first, the most important key first.
        """
        graph = self.graph
        rows = graph.op("Shape", self._of_row)
        order = None
        group = GraphTensor(graph, self._of_row, self._meta)
        for values, largest in [*reversed(keys), (group, False)]:
            value = values.value if order is None else graph.op("Gather", values.value, order, axis=0)
            _, places = graph.op("TopK", value, rows, outputs=2, largest=int(largest), sorted=1)  # ties: the first row
            order = places if order is None else graph.op("Gather", order, places, axis=0)
        assert order is not None
        return order

    def place(self, keys: list[tuple[GraphTensor, bool]]) -> GraphTensor:
        """Compute each row's place in its list by the keys, from 0: int64."""
        graph = self.graph
        order = self.order(keys)
        zero, one = (graph.constant(np.array(i, dtype=np.int64)) for i in (0, 1))
        rows = graph.op("Squeeze", graph.op("Shape", self._of_row))
        at = graph.op("Range", zero, rows, one)
        # each row's place in the order, less the first place of its list
        position = graph.op("ScatterElements", at, order, at)
        first = self.reduce(GraphTensor(graph, position, self._meta), "min")
        return GraphTensor(graph, position, self._meta) - first.long()

    def parted(self, values: GraphTensor) -> GraphGroups:
        """Group the rows of one list that have one value; no value is NaN."""
        graph = self.graph
        distinct, _, inverse, _ = graph.op("Unique", value_of(graph, values, torch.float64), outputs=4, sorted=1)
        width = graph.op("Shape", distinct)
        pair = graph.op("Add", graph.op("Mul", self._of_row, width), inverse)
        return GraphGroups(GraphTensor(graph, pair, self._meta))

    def dense(self, values: GraphTensor) -> GraphTensor:
        """Rank each row's value among the distinct values of its list, from 1: float64."""
        pairs = self.parted(values)  # numbered list by list, in each by value
        number = GraphTensor(self.graph, pairs._of_row, self._meta)
        return (number - self.reduce(number, "min").long() + 1).double()

    def shifted(self, values: GraphTensor, by: int) -> GraphTensor:
        """Take the value of the row ``by`` places before in its list, NaN if there is none: float64."""
        graph = self.graph
        order = self.order([])
        place = self.place([])
        zero, one = (graph.constant(np.array(i, dtype=np.int64)) for i in (0, 1))
        at = graph.op("Range", zero, graph.op("Squeeze", graph.op("Shape", self._of_row)), one)
        position = GraphTensor(graph, graph.op("ScatterElements", at, order, at), self._meta)
        found = (place - by >= 0) & ((place - by).double() < self.size())
        there = torch.where(found, position - by, 0)
        rows = graph.op("Gather", order, there.value, axis=0)
        value = graph.op("Gather", value_of(graph, values, torch.float64), rows, axis=0)
        made = GraphTensor(graph, value, torch.empty(N, dtype=torch.float64, device="meta"))
        return torch.where(found, made, torch.nan)

    def _spread(self, each: str, dtype: torch.dtype) -> GraphTensor:
        meta = torch.empty(N, dtype=dtype, device="meta")
        return GraphTensor(self.graph, self.graph.op("Gather", each, self._of_row, axis=0), meta)
