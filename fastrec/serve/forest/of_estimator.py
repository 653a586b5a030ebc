"""Convert the trees of fastrec's own estimators, with the steps of their ``predict``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fastrec.errors import DataError
from fastrec.estimators import CatBoostModel, Estimator, LGBMModel, SKModel, XGBModel
from fastrec.estimators._dense_inputs import DenseInputs
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.estimators.catboost_model import _EXPONENTS
from fastrec.serve.forest._graph import NodeList
from fastrec.serve.forest.forest import Forest
from fastrec.serve.forest.from_catboost import forest_of_catboost
from fastrec.serve.forest.from_lightgbm import forest_of_lightgbm
from fastrec.serve.forest.from_sklearn import forest_of_sklearn
from fastrec.serve.forest.from_xgboost import forest_of_xgboost
from fastrec.serve.forest.links import link_nodes
from fastrec.validate.tasks import Task


@dataclass(frozen=True)
class EstimatorForests:
    """One forest, or the constant that is predicted, for each output of an estimator.

    Args:
        parts: the outputs, with the links of ``predict`` (none in ranking).
        inputs: converts a table to the trees' matrix.
        task: the estimator's.
        start: a column of margins instead of ``base``, if any.
    """

    parts: tuple[Forest | float, ...]
    inputs: TreeInputs | DenseInputs
    task: Task
    start: str | None = None

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The dtype of the rows that ``nodes`` takes."""
        return "float64" if any(isinstance(p, Forest) and p.wide for p in self.parts) else "float32"

    def nodes(self, x: str, y: str, *, prefix: str, start: str | None = None) -> tuple[list[Any], list[Any]]:
        """Build the ONNX nodes of ``predict``: nodes in order, and initializers.

        Args:
            x: name of the matrix of ``inputs.matrix``: ``dtype``, ``[n, columns]``, NaN if missing.
            y: name of the predictions: float64 ``[n]`` or ``[n, k]``.
            prefix: of all other names.
            start: name of the values of the column ``start``, if there is one: float32 ``[n]``.
        """
        graph = NodeList(prefix)
        outputs = [self._part(part, x, f"{prefix}_p{i}", start, graph) for i, part in enumerate(self.parts)]
        whole = outputs[0] if len(outputs) == 1 else graph.node("Concat", *outputs, axis=1)
        one = graph.constant(np.array([1]))
        if self.task == "multiclass":
            graph.named("Div", [whole, graph.node("ReduceSum", whole, one, keepdims=1)], y)
        elif len(outputs) == 1:
            graph.named("Squeeze", [whole, one], y)
        else:
            graph.named("Identity", [whole], y)
        return graph.nodes, graph.initializers

    def _part(self, part: Forest | float, x: str, name: str, start: str | None, graph: NodeList) -> str:
        """Add one output: ``[n, 1]``, or ``[n, k]`` for a multiclass task; return its name."""
        one = graph.constant(np.array([1]))
        if isinstance(part, float):
            shape = graph.node("Concat", graph.node("Shape", x, start=0, end=1), one, axis=0)
            return graph.node("Expand", graph.number(part), shape)
        margin = f"{name}_margin"
        graph.add(part.nodes(x, margin, prefix=name, base=self.start is None))
        if self.start is not None:
            assert start is not None
            margin = graph.node("Add", margin, graph.node("Unsqueeze", graph.double(start), one))
        graph.add(link_nodes(part.link, part.scale, margin, f"{name}_y", prefix=f"{name}_link"))
        return f"{name}_y"


def forests_of(estimator: Estimator) -> EstimatorForests:
    """Convert the trees of a trained estimator.

    Args:
        estimator: ``XGBModel`` (``XGBRanker``), ``LGBMModel``, ``CatBoostModel``, or ``SKModel`` with trees.

    Raises:
        NotFittedError: it has not learned yet.
        DataError: it has no trees, or none that can be exported.
    """
    if isinstance(estimator, XGBModel | LGBMModel | CatBoostModel):
        if estimator._task is None:
            raise estimator.not_fitted()
        parts = tuple(p if isinstance(p, float) else _of_trees(estimator, p) for p in estimator._parts)
        return EstimatorForests(parts, estimator._inputs, estimator._task, estimator.margin)
    if isinstance(estimator, SKModel):
        if estimator._inputs is None:
            raise estimator.not_fitted()
        task, k = estimator._task, estimator._n_outputs
        parts = tuple(p if isinstance(p, float) else _of_sklearn(p, task, k) for p in estimator._parts)
        return EstimatorForests(parts, estimator._inputs, task)
    raise DataError(f"{estimator.name} ({type(estimator).__name__}) has no trees", remedy="Give an estimator of trees")


def _of_trees(estimator: XGBModel | LGBMModel | CatBoostModel, trees: Any) -> Forest:
    inputs, task = estimator._inputs, estimator._task
    if isinstance(estimator, XGBModel):
        forest = forest_of_xgboost(trees, len(inputs.names))
    elif isinstance(estimator, LGBMModel):
        forest = forest_of_lightgbm(trees)
    else:
        codes = {i: len(inputs.vocabs[n]) for i, n in enumerate(inputs.names) if n in inputs.vocabs}
        forest = forest_of_catboost(trees, codes)
        if task == "regression":
            power = (estimator.objective or "").startswith(_EXPONENTS)
            forest = replace(forest, link="exp" if power else "identity")
    return _raw(forest) if task == "ranking" else forest


def _raw(forest: Forest) -> Forest:
    return replace(forest, link="identity", scale=1.0)  # the estimator predicts margins


def _of_sklearn(model: Any, task: Task, k: int) -> Forest:
    forest = forest_of_sklearn(model, every_class=task == "multiclass")
    if task != "multiclass":
        return forest
    classes = np.asarray(model.classes_).astype(np.int64)  # a class may have had no row
    base = np.full(k, -1e300 if forest.link == "softmax" else 0.0)  # a softmax makes the absent classes 0
    base[classes] = forest.base
    return replace(forest, base=base, target=classes[forest.target])
