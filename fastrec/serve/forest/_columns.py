"""Columns that trees look at and rows do not have: whether a category is in a set, and numbers with zeros as missing.

A split by a set of categories could be a ``BRANCH_MEMBER`` node. onnxruntime takes 1.3 to 10 times as long for these as
for a column of 0 and 1 that a table of the categories gives (1,024 rows, 20 columns of 12 to 2,000 categories), and
versions up to 1.22 crash on large sets (onnxruntime's issue 25400).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastrec.serve.forest._onnx import onnx

_ZERO = 1e-35  # LightGBM's kZeroThreshold


@dataclass(frozen=True)
class DerivedColumn:
    """A column made of another one.

    Args:
        column: the other one.
        members: categories in ascending order: 1 where the column's integer part is among them, else 0, NaN where it is
            missing. None: the column itself, NaN where it is 0.
    """

    column: int
    members: tuple[int, ...] | None


def derived_nodes(
    derived: Sequence[DerivedColumn], x: str, y: str, *, prefix: str, dtype: str
) -> tuple[list[Any], list[Any]]:
    """The ONNX nodes that put derived columns behind the columns of rows.

    Args:
        derived: the columns, ordered by ``order_of``.
        x, y: names of the rows before and after, both of ``dtype``.
        prefix: what other names begin with.
        dtype: ``'float32'`` or ``'float64'``.

    Returns:
        Nodes in order, and initializers.
    """
    graph = _Graph(prefix, dtype)
    zeros = [d.column for d in derived if d.members is None]
    blocks = [x]
    if zeros:
        own = graph.node("Gather", x, graph.constant(np.array(zeros)), axis=1)
        near = graph.node("LessOrEqual", graph.node("Abs", own), graph.number(_ZERO))
        blocks.append(graph.node("Where", near, graph.number(np.nan), own))
    sets = [d for d in derived if d.members is not None]
    if sets:
        blocks += _memberships(sets, x, graph)
    graph.nodes.append(onnx().helper.make_node("Concat", blocks, [y], axis=1))
    return graph.nodes, graph.initializers


def order_of(column: DerivedColumn) -> tuple[bool, int, tuple[int, ...]]:
    """The order in which ``derived_nodes`` takes columns: zeros first, then sets, by column."""
    return column.members is not None, column.column, column.members or ()


def _memberships(sets: Sequence[DerivedColumn], x: str, graph: _Graph) -> list[str]:
    """One block of columns for each column that has sets.

    Row 0 of a column's table is for numbers below 0, row ``1 + c`` for category ``c``, the last but one for categories
    above all members, the last for missing ones.
    """
    columns = sorted({s.column for s in sets})
    of = {c: [s.members or () for s in sets if s.column == c] for c in columns}
    above = np.array([1 + max((m[-1] for m in of[c] if m), default=-1) for c in columns])
    values = graph.node("Gather", x, graph.constant(np.array(columns)), axis=1)
    limits = [graph.constant(v.astype(graph.dtype)) for v in (above, above + 1, np.array([-1.0]))]
    within = graph.node("Max", graph.node("Min", values, limits[0]), limits[2])
    safe = graph.node("Where", graph.node("IsNaN", values), limits[1], within)
    floor = graph.node("Floor", safe)  # XGBoost takes -0.5 for no category
    codes = graph.node("Add", graph.node("Cast", floor, to=onnx().TensorProto.INT64), graph.constant(np.array([1])))
    blocks = []
    for i, column in enumerate(columns):
        table = np.zeros((above[i] + 3, len(of[column])), graph.dtype)
        for j, members in enumerate(of[column]):
            table[np.array(members, dtype=np.int64) + 1, j] = 1
        table[-1] = np.nan
        own = graph.node("Gather", codes, graph.constant(np.array(i)), axis=1)
        blocks.append(graph.node("Gather", graph.constant(table), own, axis=0))
    return blocks


class _Graph:
    """Nodes and initializers with names of their own."""

    def __init__(self, prefix: str, dtype: str) -> None:
        self.prefix, self.dtype, self.nodes, self.initializers = prefix, dtype, [], []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}_d{len(self.nodes)}"
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"{self.prefix}_c{len(self.initializers)}"
        self.initializers.append(onnx().numpy_helper.from_array(value, name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.dtype))
