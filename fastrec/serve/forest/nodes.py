"""ONNX nodes that forests are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from fastrec._core.imports import require


def onnx() -> ModuleType:
    """Import ONNX with its helpers, or refuse with the way to install it."""
    how = "pip install fastrec-tabular[export]"
    for module in ("onnx.helper", "onnx.numpy_helper"):
        require(module, "ONNX", how)
    return require("onnx", "ONNX", how)


class NodeList:
    """ONNX nodes in order, and initializers; ``prefix`` begins all names, ``dtype`` is that of ``number``."""

    def __init__(self, prefix: str, dtype: str = "float64") -> None:
        self.prefix, self.dtype = prefix, dtype
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        return self.named(kind, inputs, f"{self.prefix}_{len(self.nodes)}", **attributes)

    def named(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node whose output has a given name."""
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        """Add an initializer; return its name."""
        name = f"{self.prefix}_c{len(self.initializers)}"
        self.initializers.append(onnx().numpy_helper.from_array(value, name))
        return name

    def number(self, value: float) -> str:
        """Add a number of ``dtype``; return its name."""
        return self.constant(np.array(value, self.dtype))

    def integer(self, name: str) -> str:
        """Convert to int64."""
        return self.node("Cast", name, to=onnx().TensorProto.INT64)

    def double(self, name: str) -> str:
        """Convert to float64."""
        return self.node("Cast", name, to=onnx().TensorProto.DOUBLE)

    def lookup(self, name: str, keys: np.ndarray, values: np.ndarray, *, default: int) -> str:
        """Look up int64 values of int64 keys, ``default`` for others."""
        tensors = {"keys": keys, "values": values, "default": np.array([default])}
        attributes = {f"{n}_tensor": onnx().numpy_helper.from_array(v) for n, v in tensors.items()}
        return self.node("LabelEncoder", name, domain="ai.onnx.ml", **attributes)

    def add(self, more: tuple[list[Any], list[Any]]) -> None:
        """Add nodes and initializers of others."""
        self.nodes += more[0]
        self.initializers += more[1]


# Symmetric trees as tables: one split a level, so that a row's leaf is a binary number of as many digits.
#
# A thousand trees of depth 6 take 1,024 rows a quarter of the time that a ``TreeEnsemble`` does (9 ms for 36), where
# a processor guesses branches wrongly; a single row takes .09 ms for .03.


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Flat arrays of binary trees.

    A node's children are numbers of nodes, or of leaves if ``left_leaf`` or ``right_leaf`` is set. A tree that is a
    single leaf has one node with that leaf on both sides.

    Args:
        roots: int64 ``[trees]``, numbers of nodes.
        feature: int64 ``[nodes]``.
        threshold: float64 ``[nodes]``.
        missing_left: bool ``[nodes]``, where NaN goes.
        left, right: int64 ``[nodes]``.
        left_leaf, right_leaf: bool ``[nodes]``.
        value: float64 ``[leaves]``.
        target: int64 ``[leaves]``, which target a leaf counts for.
    """

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    left_leaf: np.ndarray
    right_leaf: np.ndarray
    value: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class SymmetricTrees:
    """Trees of one depth whose nodes of a level have the same split.

    Args:
        feature, threshold, missing_left: ``[splits]``, the distinct splits.
        splits: int64 ``[depth, trees]``, which split each level has.
        leaves: float64 ``[trees, 2 ** depth]``; the right side of the first level is the highest digit.
        target: int64 ``[trees]``, ascending.
    """

    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    splits: np.ndarray
    leaves: np.ndarray
    target: np.ndarray


def symmetric_trees(forest: Trees, targets: int) -> SymmetricTrees | None:
    """Convert trees to tables; None: one of them is not symmetric, depths differ too much, or a target has no tree."""
    sizes = np.diff(np.append(forest.roots, len(forest.feature)))
    depths = np.log2(sizes + 1).astype(int)
    if not len(sizes) or (sizes + 1 != 1 << depths).any() or not np.isfinite(forest.threshold).all():
        return None
    deepest, trees = int(depths.max()), len(sizes)
    # filling up shallow trees may cost memory, but not much (the factor is not measured)
    if trees << deepest > 4 * len(forest.value):
        return None
    nodes = np.empty((deepest, trees), np.int64)
    leaves = np.empty((trees, 1 << deepest), np.int64)
    for depth in np.unique(depths):
        own = np.flatnonzero(depths == depth)
        at, first = forest.roots[own][:, None], forest.roots[own]
        for level in range(depth):
            nodes[level, own] = at[:, 0]
            if any((v[at] != v[at[:, :1]]).any() for v in (forest.feature, forest.threshold, forest.missing_left)):
                return None
            if any((is_leaf[at] != (level == depth - 1)).any() for is_leaf in (forest.left_leaf, forest.right_leaf)):
                return None
            at = np.stack([forest.left[at], forest.right[at]], 2).reshape(len(own), -1)
        leaves[own] = np.repeat(at, 1 << (deepest - depth), axis=1)
        nodes[depth:, own] = first  # any split does: both its sides are the same leaf
    target = forest.target[leaves[:, 0]]
    if (forest.target[leaves] != target[:, None]).any() or len(np.unique(target)) < targets:
        return None
    order = np.argsort(target, kind="stable")
    nodes, leaves = nodes[:, order], leaves[order]
    splits_of_nodes = np.stack([forest.feature[nodes], forest.threshold[nodes], forest.missing_left[nodes]], 2)
    distinct, splits = np.unique(splits_of_nodes.reshape(-1, 3), axis=0, return_inverse=True)
    feature, threshold, missing_left = distinct.T
    return SymmetricTrees(
        feature.astype(np.int64), threshold, missing_left.astype(bool), splits.reshape(nodes.shape),
        forest.value[leaves], target[order],
    )  # fmt: skip


def symmetric_nodes(trees: SymmetricTrees, x: str, columns: int, strict: bool, graph: NodeList) -> str:
    """Add the nodes that sum the leaves; return the name of the sums, float64 ``[n, targets]``.

    ``x`` names the rows, float64 ``[n, columns]``; ``strict``: rows at a threshold go right.
    """
    # columns first: gathers of whole columns are contiguous
    rows, feature = graph.node("Transpose", x, perm=[1, 0]), trees.feature
    if not trees.missing_left.all():  # a missing value is above none, one at infinity above all
        above = graph.node("Where", graph.node("IsNaN", rows), graph.number(np.inf), rows)
        rows, feature = graph.node("Concat", rows, above, axis=0), feature + columns * ~trees.missing_left
    own = graph.node("Gather", rows, graph.constant(feature), axis=0)
    right = graph.node("GreaterOrEqual" if strict else "Greater", own, graph.constant(trees.threshold[:, None]))
    right = graph.node("Cast", right, to=onnx().TensorProto.INT32)
    leaf = ""
    for splits in trees.splits:
        digit = graph.node("Gather", right, graph.constant(splits), axis=0)
        leaf = graph.node("Add", graph.node("Add", leaf, leaf), digit) if leaf else digit
    count, width = trees.leaves.shape
    starts = graph.constant(np.arange(count, dtype=np.int32)[:, None] * np.int32(width))
    places = graph.node("Reshape", graph.node("Add", leaf, starts), graph.constant(np.array([-1])))
    values = graph.node("GatherElements", graph.constant(trees.leaves.ravel()), places, axis=0)
    values = graph.node("Reshape", values, graph.constant(np.array([count, -1])))
    zero, sums = graph.constant(np.array([0])), []
    bounds = list(pairwise([0, *np.flatnonzero(np.diff(trees.target)) + 1, count]))
    for bound in bounds:
        some = values
        if len(bounds) > 1:
            some = graph.node("Slice", values, *(graph.constant(np.array([b])) for b in bound), zero)
        sums.append(graph.node("ReduceSum", some, zero, keepdims=1))
    return graph.node("Transpose", sums[0] if len(sums) == 1 else graph.node("Concat", *sums, axis=0), perm=[1, 0])


# Statistics of combinations of categories as ONNX nodes: as many nodes whether there are two combinations or hundreds.
#
# A combination's elements are categories, whether a category is one code, and whether a number is above a border. It is
# known by a hash of them, ``hash = m · (hash + m · element)`` modulo 2^64 for one element after the other. Hashes of
# all combinations begin with different numbers, and are looked up in one table.

MULTIPLIER = 0x4906BA494954CB65  # of CatBoost's hashes
_APART = 0x9E3779B97F4A7C15  # 2^64 by the golden ratio: multiples of it are far from one another


@dataclass(frozen=True, eq=False)
class Statistics:
    """A model's statistics of combinations of categories.

    Args:
        hashes: int64 ``[codes + 1]``, of the codes of every category, the last for those above; NaN is code 0.
        above: (column, border, whether NaN is above it): elements from 0 on. The first one is never above.
        cats: columns: the next elements.
        exact: (place in ``cats``, hash of a code): the last elements.
        elements: int64 ``[combinations, most]``, filled up in front with 0.
        keys: int64 ``[rows]``, hashes of the combinations that are known.
        starts: int64 ``[rows]``, where their values are.
        unknown: int64 ``[combinations]``, where the values of other rows are.
        values: float32, for each row one after the other.
        of, index: int64 ``[statistics]``, the combination of each statistic, and its place among those of a row.
    """

    hashes: np.ndarray
    above: tuple[tuple[int, float, bool], ...]
    cats: tuple[int, ...]
    exact: tuple[tuple[int, int], ...]
    elements: np.ndarray
    keys: np.ndarray
    starts: np.ndarray
    unknown: np.ndarray
    values: np.ndarray
    of: np.ndarray
    index: np.ndarray


@dataclass(frozen=True)
class Statistic:
    """Column ``number`` of statistics."""

    statistics: Statistics
    number: int


def begin(combinations: int) -> np.ndarray:
    """Compute the initial hash of each combination: uint64."""
    return np.arange(combinations, dtype=np.uint64) * np.uint64(_APART)


def begun(combination: int, length: int) -> int:
    """Compute the initial hash's contribution after ``length`` elements."""
    return combination * _APART * pow(MULTIPLIER, length, 1 << 64) % (1 << 64)


def statistics_nodes(statistics: Statistics, x: str, graph: NodeList) -> str:
    """Add the nodes that compute statistics of the rows ``x``, float64 ``[n, columns]``; return their name."""
    # int64 wraps modulo 2^64 as CatBoost's uint64 does
    multiplier = graph.constant(np.array(MULTIPLIER))
    times = graph.node("Mul", _elements(statistics, x, graph), multiplier)
    total = graph.constant(begin(len(statistics.elements)).astype(np.int64)[:, None])
    for place in statistics.elements.T:
        element = graph.node("Gather", times, graph.constant(place), axis=0)
        total = graph.node("Mul", graph.node("Add", total, element), multiplier)
    found = graph.lookup(total, statistics.keys, statistics.starts, default=-1)
    is_unknown = graph.node("Less", found, graph.constant(np.array(0)))
    start = graph.node("Where", is_unknown, graph.constant(statistics.unknown[:, None]), found)
    own = graph.node("Gather", start, graph.constant(statistics.of), axis=0)
    places = graph.node("Add", own, graph.constant(statistics.index[:, None]))
    flat = graph.node("Reshape", places, graph.constant(np.array([-1])))
    values = graph.node("GatherElements", graph.constant(statistics.values), flat, axis=0)  # faster than Gather
    values = graph.node("Reshape", values, graph.constant(np.array([len(statistics.of), -1])))
    return graph.double(graph.node("Transpose", values, perm=[1, 0]))


def _elements(statistics: Statistics, x: str, graph: NodeList) -> str:
    """Add the nodes that compute the elements of rows: int64 ``[elements, n]``."""
    columns, borders, missing = (np.array(part) for part in zip(*statistics.above, strict=True))
    own = graph.node("Gather", x, graph.constant(columns), axis=1)
    above = graph.node("Greater", own, graph.constant(borders))
    if missing.any():
        gone = graph.node("And", graph.node("IsNaN", own), graph.constant(missing))
        above = graph.node("Or", above, gone)
    own = graph.node("Gather", x, graph.constant(np.array(statistics.cats)), axis=1)
    known = graph.integer(graph.node("Where", graph.node("IsNaN", own), graph.number(0.0), own))
    code = graph.node("Min", known, graph.constant(np.array(len(statistics.hashes) - 1)))
    hashed = graph.node("Gather", graph.constant(statistics.hashes), code, axis=0)
    parts = [graph.integer(above), hashed]
    if statistics.exact:
        places, wanted = (np.array(part) for part in zip(*statistics.exact, strict=True))
        own = graph.node("Gather", hashed, graph.constant(places), axis=1)
        parts.append(graph.integer(graph.node("Equal", own, graph.constant(wanted))))
    return graph.node("Transpose", graph.node("Concat", *parts, axis=1), perm=[1, 0])
