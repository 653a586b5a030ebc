"""ONNX nodes of CatBoost's statistics of categories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastrec.serve.onnx_builder import Graph

# Statistics of combinations of categories as ONNX nodes: as many nodes whether there are two combinations or hundreds.
#
# A combination's elements are categories, whether a category is one code, and whether a number is above a border. It is
# known by a hash of them, ``hash = m · (hash + m · element)`` modulo 2^64 for one element after the other. Hashes of
# all combinations begin with different numbers, and are looked up in one table.

MULTIPLIER = 0x4906BA494954CB65  # of CatBoost's hashes
_APART = 0x9E3779B97F4A7C15  # 2^64 by the golden ratio: multiples of it are far from one another


@dataclass(frozen=True, eq=False)
class Statistics:
    """A model's statistics of combinations of categories."""

    hashes: np.ndarray  # int64 ``[codes + 1]``, of every category, the last for those above; NaN is code 0
    above: tuple[
        tuple[int, float, bool], ...
    ]  # (column, border, whether NaN is above): elements from 0; the first never is
    cats: tuple[int, ...]  # columns: the next elements
    exact: tuple[tuple[int, int], ...]  # (place in ``cats``, hash of a code): the last elements
    elements: np.ndarray  # int64 ``[combinations, most]``, filled up in front with 0
    keys: np.ndarray  # int64 ``[rows]``, hashes of the combinations that are known
    starts: np.ndarray  # int64 ``[rows]``, where their values are
    unknown: np.ndarray  # int64 ``[combinations]``, where the values of other rows are
    values: np.ndarray  # float32, for each row one after the other
    of: np.ndarray  # int64 ``[statistics]``, the combination of each
    index: np.ndarray  # int64 ``[statistics]``, its place among those of a row


@dataclass(frozen=True)
class Statistic:
    """Column ``number`` of statistics."""

    statistics: Statistics
    number: int


def begun(combination: int, length: int) -> int:
    """Compute the initial hash's contribution after ``length`` elements."""
    return combination * _APART * pow(MULTIPLIER, length, 1 << 64) % (1 << 64)


def statistics_nodes(statistics: Statistics, x: str, graph: Graph) -> str:
    """Add the nodes that compute statistics of the rows ``x``, float64 ``[n, columns]``; return their name."""
    # int64 wraps modulo 2^64 as CatBoost's uint64 does
    multiplier = graph.constant(np.array(MULTIPLIER))
    times = graph.op("Mul", _elements(statistics, x, graph), multiplier)
    start = np.arange(len(statistics.elements), dtype=np.uint64) * np.uint64(_APART)
    total = graph.constant(start.astype(np.int64)[:, None])
    for place in statistics.elements.T:
        element = graph.op("Gather", times, graph.constant(place), axis=0)
        total = graph.op("Mul", graph.op("Add", total, element), multiplier)
    found = graph.lookup(total, statistics.keys, statistics.starts, default=-1)
    is_unknown = graph.op("Less", found, graph.constant(np.array(0)))
    begins = graph.op("Where", is_unknown, graph.constant(statistics.unknown[:, None]), found)
    own = graph.op("Gather", begins, graph.constant(statistics.of), axis=0)
    flat = graph.op("Reshape", graph.op("Add", own, graph.constant(statistics.index[:, None])), graph.whole(-1))
    values = graph.op("GatherElements", graph.constant(statistics.values), flat, axis=0)  # faster than Gather
    values = graph.op("Reshape", values, graph.whole(len(statistics.of), -1))
    return graph.cast(graph.op("Transpose", values, perm=[1, 0]), np.float64)


def _elements(statistics: Statistics, x: str, graph: Graph) -> str:
    """Add the nodes that compute the elements of rows: int64 ``[elements, n]``."""
    columns, borders, missing = (np.array(part) for part in zip(*statistics.above, strict=True))
    own = graph.op("Gather", x, graph.constant(columns), axis=1)
    above = graph.op("Greater", own, graph.constant(borders))
    if missing.any():
        above = graph.op("Or", above, graph.op("And", graph.op("IsNaN", own), graph.constant(missing)))
    own = graph.op("Gather", x, graph.constant(np.array(statistics.cats)), axis=1)
    known = graph.cast(graph.op("Where", graph.op("IsNaN", own), graph.constant(0.0), own), np.int64)
    code = graph.op("Min", known, graph.constant(np.array(len(statistics.hashes) - 1)))
    hashed = graph.op("Gather", graph.constant(statistics.hashes), code, axis=0)
    parts = [graph.cast(above, np.int64), hashed]
    if statistics.exact:
        places, wanted = (np.array(part) for part in zip(*statistics.exact, strict=True))
        own = graph.op("Gather", hashed, graph.constant(places), axis=1)
        parts.append(graph.cast(graph.op("Equal", own, graph.constant(wanted)), np.int64))
    return graph.op("Transpose", graph.op("Concat", *parts, axis=1), perm=[1, 0])
