"""Convert scikit-learn's trees: single ones, forests, and both kinds of gradient boosting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest._grow import Tree, grow
from fastrec.serve.forest.forest import Forest, Link

_KINDS = (
    "DecisionTree", "ExtraTree", "RandomForest", "ExtraTrees", "GradientBoosting", "HistGradientBoosting",
)  # fmt: skip


def forest_of_sklearn(model: Any, *, every_class: bool = False) -> Forest:
    """Convert the trees of a trained classifier or regressor with one target.

    Targets are the values of a regressor, the probability of the second of two classes or of each of several; of
    boosted classifiers what probabilities are made of by ``link``.

    Args:
        model: ``DecisionTree…``, ``ExtraTree…``, ``RandomForest…``, ``ExtraTrees…``, ``GradientBoosting…`` or
            ``HistGradientBoosting…``.
        every_class: give two classes a target each, too.

    Raises:
        DataError: it is of another kind, or has several targets or categories of its own.
    """
    from sklearn import ensemble, tree

    if isinstance(model, ensemble.HistGradientBoostingClassifier | ensemble.HistGradientBoostingRegressor):
        forest = _by_histograms(model)
        return _of_two(forest) if every_class else forest
    if isinstance(model, ensemble.GradientBoostingClassifier | ensemble.GradientBoostingRegressor):
        forest = _boosted(model)
        return _of_two(forest) if every_class else forest
    if isinstance(model, tree.BaseDecisionTree):
        return _averaged(model, [model], every_class)
    if isinstance(
        model,
        ensemble.ExtraTreesClassifier
        | ensemble.ExtraTreesRegressor
        | ensemble.RandomForestClassifier
        | ensemble.RandomForestRegressor,
    ):
        return _averaged(model, model.estimators_, every_class)
    raise DataError(
        f"{type(model).__name__} has no trees that can be exported", remedy=f"Kinds that can: {', '.join(_KINDS)}"
    )


def _averaged(model: Any, members: list[Any], every_class: bool) -> Forest:
    if model.n_outputs_ > 1:
        raise DataError(f"{type(model).__name__} has several targets", remedy="Train one for each of them")
    k = len(model.classes_) if hasattr(model, "classes_") else 1
    kept = [1] if k == 2 and not every_class else range(k)
    trees = []
    for member in members:
        values = member.tree_.value[:, 0, :]
        if k > 1:
            values = values / values.sum(1, keepdims=True)
        trees += [_tree(member.tree_, values[:, c] / len(members), i) for i, c in enumerate(kept)]
    return grow(trees, model.n_features_in_, np.zeros(len(kept)), link="identity", rule="le", dtype="float64")


def _of_two(forest: Forest) -> Forest:
    """Convert the log-odds of the second of two classes to margins of both; other forests stay."""
    if forest.link != "logistic":
        return forest
    base = np.array([0.0, forest.base[0]])
    return replace(forest, base=base, target=np.ones_like(forest.target), link="softmax")


def _boosted(model: Any) -> Forest:
    start = model.init_
    # a model as start would need nodes of its own
    if start != "zero" and type(start).__name__ not in ("DummyClassifier", "DummyRegressor"):
        raise DataError(f"{type(model).__name__} starts from {type(start).__name__}", remedy="Train it with init=None")
    # the start is the same for every row
    base = np.asarray(model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32)), float)[0]
    trees = [
        _tree(member.tree_, member.tree_.value[:, 0, 0] * model.learning_rate, i)
        for stage in model.estimators_
        for i, member in enumerate(stage)
    ]
    link, scale = "identity", 1.0
    if hasattr(model, "classes_"):
        link = "logistic" if len(base) == 1 else "softmax"
        scale = 2.0 if model.loss == "exponential" else 1.0
    return grow(trees, model.n_features_in_, base, link=link, scale=scale, rule="le", dtype="float64")


def _tree(tree: Any, values: np.ndarray, target: int) -> Tree:
    return Tree(
        left=tree.children_left,
        right=tree.children_right,
        feature=np.maximum(tree.feature, 0),
        threshold=tree.threshold,
        missing_left=np.asarray(tree.missing_go_to_left, bool),
        value=values,
        target=target,
    )


def _by_histograms(model: Any) -> Forest:
    if model.is_categorical_ is not None and model.is_categorical_.any():
        raise DataError(
            f"{type(model).__name__} has categories of its own, which cannot be exported",
            remedy="Train it with categorical_features=None",
        )
    base = np.asarray(model._baseline_prediction, float).reshape(-1)
    trees = []
    for target, nodes in ((i, member.nodes) for stage in model._predictors for i, member in enumerate(stage)):
        leaf = nodes["is_leaf"].astype(bool)
        tree = Tree(
            left=np.where(leaf, -1, nodes["left"].astype(int)),
            right=np.where(leaf, -1, nodes["right"].astype(int)),
            feature=nodes["feature_idx"].astype(int),
            threshold=nodes["num_threshold"],
            missing_left=nodes["missing_go_to_left"].astype(bool),
            value=nodes["value"],
            target=target,
        )
        trees.append(tree)
    link: Link = "identity"
    if hasattr(model, "classes_"):
        link = "logistic" if len(base) == 1 else "softmax"
    elif model.loss in ("poisson", "gamma"):
        link = "exp"
    return grow(trees, model.n_features_in_, base, link=link, rule="le", dtype="float64", wide=True)
