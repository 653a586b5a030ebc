"""``Forest``: trees of any library as flat arrays, and their ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fastrec._core import limits
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
    # (column, border, whether NaN is above): elements from 0; the first never is
    above: tuple[tuple[int, float, bool], ...]
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


# Derived columns of trees: sets of categories, zeros as missing, statistics of categories.
#
# A split by a set of categories could be a ``BRANCH_MEMBER`` node. onnxruntime takes 1.3 to 10 times as long for these
# as for a column of 0 and 1 from a table of the categories (1,024 rows, 20 columns of 12 to 2,000 categories), and
# versions up to 1.22 crash on large sets (onnxruntime's issue 25400).


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


def derived_nodes(derived: Sequence[Derived], x: str, graph: Graph, dtype: str) -> str:
    """Append derived columns (in the order of ``in_order``) to the rows ``x`` of a dtype; return all columns' name."""
    zeros = [d.column for d in derived if isinstance(d, ZerosMissing)]
    sets = [d for d in derived if isinstance(d, CategorySet)]
    statistics = next((d.statistics for d in derived if isinstance(d, Statistic)), None)
    blocks = [x]
    if zeros:
        own = graph.op("Gather", x, graph.constant(np.array(zeros)), axis=1)
        near = graph.op("LessOrEqual", graph.op("Abs", own), graph.constant(1e-35, dtype))  # LightGBM's kZeroThreshold
        blocks.append(graph.op("Where", near, graph.constant(np.nan, dtype), own))
    if sets:
        columns = sorted({s.column for s in sets})
        members = [[s.members for s in sets if s.column == c] for c in columns]
        above = np.array([1 + max((m[-1] for m in own if m), default=-1) for own in members])
        own = graph.op("Gather", x, graph.constant(np.array(columns)), axis=1)
        high, missing, low = (graph.constant(v, dtype) for v in (above, above + 1, [-1]))
        safe = graph.op("Where", graph.op("IsNaN", own), missing, graph.op("Max", graph.op("Min", own, high), low))
        if dtype == "float32":  # XGBoost takes -0.5 for no category, LightGBM cuts it to 0
            safe = graph.op("Floor", safe)
        codes = graph.op("Add", graph.cast(safe, np.int64), graph.whole(1))
        for i, (of_column, most) in enumerate(zip(members, above, strict=True)):
            table, row = _membership(of_column, int(most), graph.op("Gather", codes, graph.constant(i), axis=1), graph)
            blocks.append(graph.op("Gather", graph.constant(table, dtype), row, axis=0))
    if statistics is not None:
        blocks.append(statistics_nodes(statistics, x, graph))
    return graph.op("Concat", *blocks, axis=1)


def _membership(sets: Sequence[tuple[int, ...]], above: int, row: str, graph: Graph) -> tuple[np.ndarray, str]:
    """Build the table of a column's sets, and the value of each row's place in it.

    Row 0 of the table is for numbers below 0, row ``1 + c`` for category ``c``, the last but one for categories above
    all members, the last for missing ones.
    """
    table = np.zeros((above + 2, len(sets)), bool)
    for j, members in enumerate(sets):
        table[np.array(members, dtype=np.int64) + 1, j] = True
    # categories in the same sets share a row
    _, first, number = np.unique(np.packbits(table, axis=1), axis=0, return_index=True, return_inverse=True)
    if 2 * len(first) < len(table):
        table = table[first]
        row = graph.op("Gather", graph.constant(np.append(number.reshape(-1), len(first))), row, axis=0)
    return np.concatenate([table, np.full((1, table.shape[1]), np.nan)]), row


Link = Literal["identity", "logistic", "softmax", "exp", "log1p_exp", "signed_square"]
Rule = Literal["lt", "le"]
_MODES: dict[Rule, int] = {"le": 0, "lt": 1}  # BRANCH_LEQ, BRANCH_LT
_NODES: dict[Link, str] = {"logistic": "Sigmoid", "softmax": "Softmax", "exp": "Exp"}


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Binary trees that go left where ``x[feature] < threshold`` (``rule='lt'``) or ``<=`` (``'le'``).

    A margin is ``base`` plus the values of the leaves. A ``feature`` from ``columns`` on is a number in ``derived``. A
    node's children are numbers of nodes, or of leaves if ``left_leaf`` or ``right_leaf`` is set. A tree that is a
    single leaf has one node with that leaf on both sides.
    """

    roots: np.ndarray  # int64 ``[trees]``, numbers of nodes
    feature: np.ndarray  # int64 ``[nodes]``
    threshold: np.ndarray  # float64 ``[nodes]``
    missing_left: np.ndarray  # bool ``[nodes]``, where NaN goes
    left: np.ndarray  # int64 ``[nodes]``
    right: np.ndarray  # int64 ``[nodes]``
    left_leaf: np.ndarray  # bool ``[nodes]``
    right_leaf: np.ndarray  # bool ``[nodes]``
    value: np.ndarray  # float64 ``[leaves]``
    target: np.ndarray  # int64 ``[leaves]``, which target a leaf counts for
    columns: int  # number of columns of rows
    base: np.ndarray  # float64 ``[targets]``, start of the sums
    link: Link  # the prediction of ``m = scale · margin``: log1p_exp is ``log(1 + exp(m))``, signed_square ``|m| · m``
    scale: float  # factor of margins before the link
    rule: Rule  # condition to go left
    dtype: Literal["float32", "float64"]  # of sums and thresholds; rows are float32 unless ``wide``
    wide: bool  # rows must be float64: the library compares float64 and was trained on such rows
    derived: tuple[Derived, ...] = ()  # sets of categories, zeros as missing, CatBoost's statistics

    @property
    def targets(self) -> int:
        """Number of margins of a row."""
        return len(self.base)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of a ``TreeEnsemble`` node of ``ai.onnx.ml`` 5 that sums leaves without ``base``."""
        attributes = {
            "n_targets": self.targets,
            "aggregate_function": 1,
            "post_transform": 0,
            "tree_roots": self.roots.tolist(),
            "nodes_featureids": self.feature.tolist(),
            "nodes_splits": self.threshold.astype(self.dtype),
            "nodes_modes": np.full(len(self.feature), _MODES[self.rule], np.uint8),
            "nodes_truenodeids": self.left.tolist(),
            "nodes_falsenodeids": self.right.tolist(),
            "nodes_trueleafs": self.left_leaf.astype(int).tolist(),
            "nodes_falseleafs": self.right_leaf.astype(int).tolist(),
            "leaf_targetids": self.target.tolist(),
            "leaf_weights": self.value.astype(self.dtype),
        }
        if self.missing_left.any():
            attributes["nodes_missing_value_tracks_true"] = self.missing_left.astype(int).tolist()
        return attributes

    def margins(self, x: str, graph: Graph, *, base: bool = True) -> str:
        """Add the nodes of the margins ``[n, targets]`` of rows ``x``; ``base`` is added first, as the libraries do."""
        if self.dtype == "float64" and not self.wide:
            x = graph.cast(x, np.float64)
        parts = self._in_parts()
        zero = np.zeros(self.targets)  # a node without trees cannot be
        starts = [self.base if base else None if len(self.roots) else zero, *(None for _ in parts[1:])]
        sums = [part._sums(x, graph, start) for part, start in zip(parts, starts, strict=True)]
        wide = [graph.cast(s, np.float64) for s in sums]
        return wide[0] if len(wide) == 1 else graph.op("Sum", *wide)

    def _sums(self, x: str, graph: Graph, base: np.ndarray | None) -> str:
        """Add nodes that sum leaves in ``dtype``, starting from ``base``; return the sums' name."""
        if self.derived:
            x = derived_nodes(self.derived, x, graph, self.dtype)
        # float32 must be added up in the order of the trees, as the libraries do
        trees = symmetric_trees(self, self.targets) if self.dtype == "float64" else None
        if trees is not None:
            sums = symmetric_nodes(trees, x, self.columns + len(self.derived), self.rule == "lt", graph)
            return sums if base is None else graph.op("Add", sums, graph.constant(base))
        forest = self
        if base is not None:
            # trees of one leaf before the others: sums are then in the order of the libraries' own
            k, nodes, leaves = len(base), len(self.feature), len(self.value)
            mine = {"feature": np.zeros(k, np.int64), "threshold": np.zeros(k), "missing_left": np.zeros(k, bool)}
            mine |= {side: leaves + np.arange(k) for side in ("left", "right")}
            mine |= {f"{side}_leaf": np.ones(k, bool) for side in ("left", "right")}
            mine |= {"value": base, "target": np.arange(k)}
            joined = {name: np.concatenate([getattr(self, name), more]) for name, more in mine.items()}
            forest = replace(self, **joined, roots=np.concatenate([nodes + np.arange(k), self.roots]))
        return graph.op("TreeEnsemble", x, domain="ai.onnx.ml", **forest.attributes())

    def _in_parts(self) -> list[Forest]:
        """Split into forests with a bounded number of sets of categories each, or one tree."""
        ends = np.append(self.roots, len(self.feature))[1:]
        parts, start, seen = [], 0, set[int]()
        # each part computes the columns of its own sets only
        for tree, (first, end) in enumerate(zip(self.roots, ends, strict=True)):
            own = {int(f) for f in self.feature[first:end] if f >= self.columns}
            own = {f for f in own if isinstance(self.derived[f - self.columns], CategorySet)}
            if tree > start and len(seen | own) > limits.FOREST_SETS:
                parts.append(self._trees(start, tree))
                start, seen = tree, set()
            seen |= own
        return [*parts, self._trees(start, len(self.roots))] if parts else [self]

    def _trees(self, start: int, end: int) -> Forest:
        bounds = np.append(self.roots, len(self.feature))
        nodes = slice(bounds[start], bounds[end])
        own = {n: getattr(self, n)[nodes] for n in ("feature", "threshold", "missing_left", "left_leaf", "right_leaf")}
        sides = [(getattr(self, side)[nodes], own[f"{side}_leaf"]) for side in ("left", "right")]
        numbers = np.concatenate([number[is_leaf] for number, is_leaf in sides])
        leaves = slice(numbers.min(), numbers.max() + 1)
        left, right = (number - np.where(is_leaf, leaves.start, nodes.start) for number, is_leaf in sides)
        used = {int(f) for f in own["feature"] if f >= self.columns}
        derived = in_order({self.derived[f - self.columns] for f in used})
        place = {d: self.columns + i for i, d in enumerate(derived)}
        moved = [place[self.derived[f - self.columns]] if f in used else f for f in own["feature"].tolist()]
        own |= {"feature": np.array(moved, np.int64), "left": left, "right": right, "derived": tuple(derived)}
        own |= {
            "value": self.value[leaves],
            "target": self.target[leaves],
            "roots": self.roots[start:end] - nodes.start,
        }
        return replace(self, **own)

    def linked(self, margin: str, graph: Graph) -> str:
        """Add the nodes that compute predictions from margins; return their name: float64 ``[n, targets]``."""
        if self.scale != 1.0:
            margin = graph.op("Mul", margin, graph.constant(self.scale))
        if self.link == "signed_square":
            return graph.op("Mul", graph.op("Abs", margin), margin)
        if self.link == "log1p_exp":  # onnxruntime has no Softplus of float64; exp of a negative number cannot overflow
            small = graph.op("Exp", graph.op("Neg", graph.op("Abs", margin)))
            log = graph.op("Log", graph.op("Add", small, graph.constant(1.0)))
            return graph.op("Add", graph.op("Max", margin, graph.constant(0.0)), log)
        options = {"axis": 1} if self.link == "softmax" else {}
        return margin if self.link == "identity" else graph.op(_NODES[self.link], margin, **options)


@dataclass
class Tree:
    """One tree; row 0 is the root."""

    left: np.ndarray  # int ``[rows]``, the children's rows; -1 in rows that are leaves
    right: np.ndarray  # as ``left``
    feature: np.ndarray  # int ``[rows]``
    threshold: np.ndarray  # float ``[rows]``
    missing_left: np.ndarray  # bool ``[rows]``
    value: np.ndarray  # float ``[rows]``, of leaves
    target: int = 0  # of the leaves
    derived: Mapping[int, Derived] = field(default_factory=dict)  # row → its column, if that is a derived one


def grow(trees: Sequence[Tree], columns: int, base: Sequence[float] | np.ndarray, **about: Any) -> Forest:
    """Build a forest of trees, in the order in which their values are summed; ``about``: fields of ``Forest``."""
    # equal sets and statistics of several trees are one column
    derived = in_order({d for tree in trees for d in tree.derived.values()})
    place = {d: columns + i for i, d in enumerate(derived)}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*_OF_NODES, "value", "target", "roots")}
    nodes = leaves = 0
    for tree in trees:
        feature = np.array(tree.feature, np.int64)
        for row, column in tree.derived.items():
            feature[row] = place[column]
        flat = _flat(tree, feature, nodes, leaves)
        for name, values in flat.items():
            parts[name].append(values)
        nodes, leaves = nodes + len(flat["feature"]), leaves + len(flat["value"])
    dtypes = {"threshold": np.float64, "value": np.float64} | dict.fromkeys(_FLAGS, bool)
    flat = {n: np.concatenate([np.zeros(0), *v]).astype(dtypes.get(n, np.int64)) for n, v in parts.items()}
    about = {"scale": 1.0, "wide": False, **about}
    return Forest(columns=columns, base=np.asarray(base, np.float64), derived=tuple(derived), **flat, **about)


_FLAGS = ("missing_left", "left_leaf", "right_leaf")
_OF_NODES = ("feature", "threshold", "left", "right", *_FLAGS)


def _flat(tree: Tree, feature: np.ndarray, nodes: int, leaves: int) -> dict[str, np.ndarray]:
    """Convert a tree's arrays, nodes and leaves apart; ``nodes`` and ``leaves`` count those of earlier trees."""
    left, right = np.asarray(tree.left, np.int64), np.asarray(tree.right, np.int64)
    inner = left >= 0
    if not inner[0]:  # of one leaf: a node with that leaf on both sides
        zero, leaf = np.zeros(1, np.int64), np.array([leaves])
        values = {"feature": zero, "threshold": zero, "missing_left": zero, "left": leaf, "right": leaf}
        values |= {"left_leaf": zero + 1, "right_leaf": zero + 1, "value": tree.value[:1]}
        return {**values, "target": zero + tree.target, "roots": np.array([nodes])}
    # A leaf below the root gets the tree's last number: onnxruntime up to 1.21 takes a root for a leaf where one child
    # is a node and the other a leaf of the same number (its issue 24679). There are never fewer leaves than nodes.
    top = np.isin(np.arange(len(inner)), (left[0], right[0]))
    order = np.concatenate([np.flatnonzero(~inner & ~top), np.flatnonzero(~inner & top)])
    number = nodes + np.cumsum(inner) - 1
    number[order] = leaves + np.arange(len(order))
    left, right = left[inner], right[inner]
    own = {"feature": feature[inner], "left": number[left], "right": number[right]}
    own |= {"left_leaf": ~inner[left], "right_leaf": ~inner[right], "value": np.asarray(tree.value)[order]}
    own |= {n: np.asarray(getattr(tree, n))[inner] for n in ("threshold", "missing_left")}
    return {**own, "target": np.full(len(order), tree.target), "roots": np.array([nodes])}


# Symmetric trees as tables: one split a level, so that a row's leaf is a binary number of as many digits.
#
# A thousand trees of depth 6 take 1,024 rows a quarter of the time that a ``TreeEnsemble`` does (9 ms for 36), where
# a processor guesses branches wrongly; a single row takes .09 ms for .03.


def symmetric_trees(forest: Forest, targets: int) -> tuple[np.ndarray, ...] | None:
    """Convert trees to tables; None: one of them is not symmetric, depths differ too much, or a target has no tree.

    Returns the distinct splits (columns, thresholds, whether NaN goes left), their int64 numbers ``[depth, trees]``,
    float64 ``[trees, 2 ** depth]`` leaves (the first level is the highest digit), and each tree's target, ascending.
    """
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
    numbers, leaves = splits.reshape(nodes.shape), forest.value[leaves]
    return feature.astype(np.int64), threshold, missing_left.astype(bool), numbers, leaves, target[order]


def symmetric_nodes(trees: tuple[np.ndarray, ...], x: str, columns: int, strict: bool, graph: Graph) -> str:
    """Add nodes that sum the leaves of ``symmetric_trees`` for rows ``x``; ``strict``: rows at a threshold go right."""
    feature, threshold, missing_left, numbers, leaves, target = trees
    # columns first: gathers of whole columns are contiguous
    rows = graph.op("Transpose", x, perm=[1, 0])
    if not missing_left.all():  # a missing value is above none, one at infinity above all
        above = graph.op("Where", graph.op("IsNaN", rows), graph.constant(np.inf), rows)
        rows, feature = graph.op("Concat", rows, above, axis=0), feature + columns * ~missing_left
    own = graph.op("Gather", rows, graph.constant(feature), axis=0)
    right = graph.op("GreaterOrEqual" if strict else "Greater", own, graph.constant(threshold[:, None]))
    right = graph.cast(right, np.int32)
    leaf = ""
    for splits in numbers:
        digit = graph.op("Gather", right, graph.constant(splits), axis=0)
        leaf = graph.op("Add", graph.op("Add", leaf, leaf), digit) if leaf else digit
    count, width = leaves.shape
    starts = graph.constant(np.arange(count, dtype=np.int32)[:, None] * np.int32(width))
    places = graph.op("Reshape", graph.op("Add", leaf, starts), graph.whole(-1))
    values = graph.op("GatherElements", graph.constant(leaves.ravel()), places, axis=0)
    values = graph.op("Reshape", values, graph.whole(count, -1))
    zero, sums = graph.whole(0), []
    bounds = list(pairwise([0, *np.flatnonzero(np.diff(target)) + 1, count]))
    for bound in bounds:
        some = values
        if len(bounds) > 1:
            some = graph.op("Slice", values, *(graph.whole(b) for b in bound), zero)
        sums.append(graph.op("ReduceSum", some, zero, keepdims=1))
    return graph.op("Transpose", sums[0] if len(sums) == 1 else graph.op("Concat", *sums, axis=0), perm=[1, 0])
