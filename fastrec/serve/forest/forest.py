"""``Forest``: trees of any library as flat arrays, and their ONNX nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fastrec._core import limits
from fastrec.serve.forest._columns import CategorySet, Derived, derived_nodes, in_order
from fastrec.serve.forest._graph import NodeList
from fastrec.serve.forest._onnx import onnx
from fastrec.serve.forest._symmetric import Trees, symmetric_nodes, symmetric_trees

Link = Literal["identity", "logistic", "softmax", "exp", "log1p_exp", "signed_square"]
Rule = Literal["lt", "le"]
_MODES: dict[Rule, int] = {"le": 0, "lt": 1}  # BRANCH_LEQ, BRANCH_LT


@dataclass(frozen=True, kw_only=True)
class Forest(Trees):
    """Binary trees that go left where ``x[feature] < threshold`` (``rule='lt'``) or ``<=`` (``'le'``).

    A margin is ``base`` plus the values of the leaves. A ``feature`` from ``columns`` on is a number in ``derived``.

    Args:
        columns: number of columns of rows.
        base: float64 ``[targets]``, start of the sums.
        link: the prediction from ``m = scale · margin``: ``'logistic'`` is ``1 / (1 + exp(-m))``,
            ``'log1p_exp'`` is ``log(1 + exp(m))``, ``'signed_square'`` is ``|m| · m``.
        scale: factor of margins before the link.
        rule: condition to go left.
        dtype: what the library adds up in, and what thresholds are: rows are float32 in either case, unless
            ``wide`` is set.
        wide: rows must be float64: the library compares float64 and was trained on such rows.
        derived: columns computed from others: sets of categories, zeros as missing, CatBoost's statistics.
    """

    columns: int
    base: np.ndarray
    link: Link
    scale: float
    rule: Rule
    dtype: Literal["float32", "float64"]
    wide: bool
    derived: tuple[Derived, ...] = ()

    @property
    def targets(self) -> int:
        """Number of margins of a row."""
        return len(self.base)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of a ``TreeEnsemble`` node of ``ai.onnx.ml`` 5 that sums leaves without ``base``."""
        tensor = onnx().numpy_helper.from_array
        attributes = {
            "n_targets": self.targets,
            "aggregate_function": 1,
            "post_transform": 0,
            "tree_roots": self.roots,
            "nodes_featureids": self.feature,
            "nodes_splits": tensor(self.threshold.astype(self.dtype)),
            "nodes_modes": tensor(np.full(len(self.feature), _MODES[self.rule], np.uint8)),
            "nodes_truenodeids": self.left,
            "nodes_falsenodeids": self.right,
            "nodes_trueleafs": self.left_leaf,
            "nodes_falseleafs": self.right_leaf,
            "leaf_targetids": self.target,
            "leaf_weights": tensor(self.value.astype(self.dtype)),
        }
        if self.missing_left.any():
            attributes["nodes_missing_value_tracks_true"] = self.missing_left
        return {n: v.astype(np.int64).tolist() if isinstance(v, np.ndarray) else v for n, v in attributes.items()}

    def nodes(self, x: str, y: str, *, prefix: str, base: bool = True) -> tuple[list[Any], list[Any]]:
        """Build the ONNX nodes that compute margins of rows: nodes in order, and initializers.

        Args:
            x: name of the rows: float32 ``[n, columns]`` (float64 if ``wide``), NaN if missing.
            y: name of the margins: float64 ``[n, targets]``.
            prefix: of all other names.
            base: add ``base`` first, as the libraries do; False if rows have their own.
        """
        graph = NodeList(prefix, self.dtype)
        if self.dtype == "float64" and not self.wide:
            x = graph.double(x)
        parts = self._in_parts()
        zero = np.zeros(self.targets)  # a node without trees cannot be
        starts = [self.base if base else None if len(self.roots) else zero, *(None for _ in parts[1:])]
        sums = [part._sums(x, graph, start) for part, start in zip(parts, starts, strict=True)]
        wide = [graph.double(s) for s in sums]
        graph.named("Identity" if len(wide) == 1 else "Sum", wide, y)
        return graph.nodes, graph.initializers

    def _sums(self, x: str, graph: NodeList, base: np.ndarray | None) -> str:
        """Add nodes that sum leaves in ``dtype``, starting from ``base``; return the sums' name."""
        if self.derived:
            x = derived_nodes(self.derived, x, graph)
        # float32 must be added up in the order of the trees, as the libraries do
        trees = symmetric_trees(self, self.targets) if self.dtype == "float64" else None
        if trees is not None:
            sums = symmetric_nodes(trees, x, self.columns + len(self.derived), self.rule == "lt", graph)
            return sums if base is None else graph.node("Add", sums, graph.constant(base))
        forest = self if base is None else self._with_base(base)
        return graph.node("TreeEnsemble", x, domain="ai.onnx.ml", **forest.attributes())

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
        """Take the trees from ``start`` to before ``end``."""
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

    def _with_base(self, base: np.ndarray) -> Forest:
        # trees of one leaf before the others: sums are then in the order of the libraries' own
        k, nodes, leaves = len(base), len(self.feature), len(self.value)
        mine = {"feature": np.zeros(k, np.int64), "threshold": np.zeros(k), "missing_left": np.zeros(k, bool)}
        mine |= {side: leaves + np.arange(k) for side in ("left", "right")}
        mine |= {f"{side}_leaf": np.ones(k, bool) for side in ("left", "right")}
        mine |= {"value": base, "target": np.arange(k)}
        joined = {name: np.concatenate([getattr(self, name), more]) for name, more in mine.items()}
        return replace(self, **joined, roots=np.concatenate([nodes + np.arange(k), self.roots]))

    def model(self) -> Any:
        """Build a model of these trees alone: ``x`` ``[n, columns]`` → ``margin`` float64 ``[n, targets]``."""
        helper, kind = onnx().helper, onnx().TensorProto
        nodes, initializers = self.nodes("x", "margin", prefix="forest")
        rows = helper.make_tensor_value_info("x", kind.DOUBLE if self.wide else kind.FLOAT, ["n", self.columns])
        margins = helper.make_tensor_value_info("margin", kind.DOUBLE, ["n", self.targets])
        graph = helper.make_graph(nodes, "forest", [rows], [margins], initializers)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
