"""Derived columns of trees: sets of categories, zeros as missing, statistics of categories.

A split by a set of categories could be a ``BRANCH_MEMBER`` node. onnxruntime takes 1.3 to 10 times as long for these as
for a column of 0 and 1 from a table of the categories (1,024 rows, 20 columns of 12 to 2,000 categories), and versions
up to 1.22 crash on large sets (onnxruntime's issue 25400).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastrec.serve.forest._graph import NodeList
from fastrec.serve.forest._statistics import Statistic, statistics_nodes


@dataclass(frozen=True)
class ZerosMissing:
    """A column with NaN where it is 0."""

    column: int


@dataclass(frozen=True)
class CategorySet:
    """1 where a column's integer part is among ``members`` (ascending), else 0, NaN where the column is missing."""

    column: int
    members: tuple[int, ...]


Derived = ZerosMissing | CategorySet | Statistic


def in_order(derived: set[Derived]) -> list[Derived]:
    """Sort derived columns as ``derived_nodes`` needs them: zeros, sets by column, all statistics of the model."""
    zeros = sorted((d for d in derived if isinstance(d, ZerosMissing)), key=lambda d: d.column)
    sets = sorted((d for d in derived if isinstance(d, CategorySet)), key=lambda d: (d.column, d.members))
    used = next((d.statistics for d in derived if isinstance(d, Statistic)), None)
    return [*zeros, *sets, *(Statistic(used, i) for i in range(0 if used is None else len(used.of)))]


def derived_nodes(derived: Sequence[Derived], x: str, graph: NodeList) -> str:
    """Append derived columns (in the order of ``in_order``) to the rows ``x``; return the name of all columns."""
    zeros = [d.column for d in derived if isinstance(d, ZerosMissing)]
    sets = [d for d in derived if isinstance(d, CategorySet)]
    statistics = next((d.statistics for d in derived if isinstance(d, Statistic)), None)
    blocks = [x]
    if zeros:
        own = graph.node("Gather", x, graph.constant(np.array(zeros)), axis=1)
        near = graph.node("LessOrEqual", graph.node("Abs", own), graph.number(1e-35))  # LightGBM's kZeroThreshold
        blocks.append(graph.node("Where", near, graph.number(np.nan), own))
    if sets:
        blocks += _memberships(sets, x, graph)
    if statistics is not None:
        blocks.append(statistics_nodes(statistics, x, graph))
    return graph.node("Concat", *blocks, axis=1)


def _memberships(sets: Sequence[CategorySet], x: str, graph: NodeList) -> list[str]:
    """Add one block of columns for each column that has sets.

    Row 0 of a column's table is for numbers below 0, row ``1 + c`` for category ``c``, the last but one for categories
    above all members, the last for missing ones.
    """
    columns = sorted({s.column for s in sets})
    of = {c: [s.members for s in sets if s.column == c] for c in columns}
    above = np.array([1 + max((m[-1] for m in of[c] if m), default=-1) for c in columns])
    values = graph.node("Gather", x, graph.constant(np.array(columns)), axis=1)
    limits = [graph.constant(v.astype(graph.dtype)) for v in (above, above + 1, np.array([-1.0]))]
    within = graph.node("Max", graph.node("Min", values, limits[0]), limits[2])
    safe = graph.node("Where", graph.node("IsNaN", values), limits[1], within)
    if graph.dtype == "float32":  # XGBoost takes -0.5 for no category, LightGBM cuts it to 0
        safe = graph.node("Floor", safe)
    codes = graph.node("Add", graph.integer(safe), graph.constant(np.array([1])))
    blocks = []
    for i, column in enumerate(columns):
        table = np.zeros((above[i] + 2, len(of[column])), bool)
        for j, members in enumerate(of[column]):
            table[np.array(members, dtype=np.int64) + 1, j] = True
        blocks.append(_looked_up(table, codes, i, graph))
    return blocks


def _looked_up(table: np.ndarray, codes: str, place: int, graph: NodeList) -> str:
    """Look up the rows of a table by column ``place`` of ``codes``; categories in the same sets share a row."""
    row = graph.node("Gather", codes, graph.constant(np.array(place)), axis=1)
    _, first, number = np.unique(np.packbits(table, axis=1), axis=0, return_index=True, return_inverse=True)
    if 2 * len(first) < len(table):
        table = table[first]
        row = graph.node("Gather", graph.constant(np.append(number.reshape(-1), len(first))), row, axis=0)
    missing = np.full((1, table.shape[1]), np.nan)
    return graph.node("Gather", graph.constant(np.concatenate([table, missing]).astype(graph.dtype)), row, axis=0)
