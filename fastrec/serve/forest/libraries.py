"""Convert the trees of fastrec's own estimators, with the steps of their ``predict``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.estimators import CatBoostModel, Estimator, LGBMModel, SKModel, XGBModel
from fastrec.estimators.catboost_model import _EXPONENTS
from fastrec.serve.forest.catboost import forest_of_catboost
from fastrec.serve.forest.forest import CategorySet, Derived, Forest, Link, Tree, ZerosMissing, grow
from fastrec.serve.onnx_builder import Graph
from fastrec.validate.target import Task

# Convert LightGBM's trees, from its text format; rows take the side of its ``Tree::Decision``.

_LINKS_FROM_LIGHTGBM: dict[str, Link] = {
    **dict.fromkeys(("binary", "cross_entropy", "multiclassova"), "logistic"),
    "multiclass": "softmax",
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "exp"),
    "cross_entropy_lambda": "log1p_exp",
}
_IDENTITY = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg")


def forest_of_lightgbm(booster: Any) -> Forest:
    """Convert the trees of a ``lightgbm.Booster``, up to its best iteration if it has one."""
    head, *texts = booster.model_to_string(num_iteration=booster.best_iteration).split("\nTree=")
    about = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    objective, *options = about.get("objective", "none").split()
    if objective not in (*_LINKS_FROM_LIGHTGBM, *_IDENTITY):
        raise DataError(f"trees of LightGBM's objective {objective!r} cannot be exported", remedy="Use another one")
    link: Link = "signed_square" if "sqrt" in options else _LINKS_FROM_LIGHTGBM.get(objective, "identity")
    scale = next((float(o.split(":")[1]) for o in options if o.startswith("sigmoid:")), 1.0)
    targets, columns = int(about["num_tree_per_iteration"]), int(about["max_feature_idx"]) + 1
    if "average_output" in head.splitlines():  # a random forest; its raw scores are sums
        scale *= targets / len(texts)
    trees = [_tree_from_lightgbm(text, i % targets) for i, text in enumerate(texts)]
    return grow(trees, columns, np.zeros(targets), link=link, scale=scale, rule="le", dtype="float64")


def _tree_from_lightgbm(text: str, target: int) -> Tree:
    about = dict(line.split("=", 1) for line in text.split("\n\n", 1)[0].splitlines() if "=" in line)
    if about.get("is_linear", "0") != "0":
        raise DataError("LightGBM's trees of linear models cannot be exported", remedy="Train with linear_tree=False")

    def numbers(name: str, kind: type) -> np.ndarray:
        return np.array(about.get(name, "").split(), dtype=kind)

    left, right, how = numbers("left_child", int), numbers("right_child", int), numbers("decision_type", int)
    values, n, leaves = numbers("leaf_value", float), len(left), int(about["num_leaves"])
    rows = [np.where(side >= 0, side, n + ~side) for side in (left, right)]  # leaf i is kept as ~i: here row n + i
    threshold = numbers("threshold", float)
    by_set, default_left, missing = how & 1 > 0, how & 2 > 0, how >> 2 & 3  # missing: 0 nothing, 1 zeros, 2 NaN
    # in LightGBM members of a set go left and missing values right; a ``CategorySet`` is 1, above .5, for members
    rows = [np.where(by_set, rows[1], rows[0]), np.where(by_set, rows[0], rows[1])]
    goes_left = np.where(missing == 0, threshold >= 0, default_left) | by_set  # where nothing is missing NaN is 0
    bounds, words = numbers("cat_boundaries", int), numbers("cat_threshold", int)
    feature = numbers("split_feature", int)
    derived: dict[int, Derived] = {int(i): ZerosMissing(int(feature[i])) for i in np.flatnonzero(missing == 1)}
    for i in np.flatnonzero(by_set):
        first, last = bounds[int(threshold[i]) :][:2]
        # members are the bits that are set in words of 32 bits
        bits = np.unpackbits(words[first:last].astype("<u4").view(np.uint8), bitorder="little")
        derived[int(i)] = CategorySet(int(feature[i]), tuple(np.flatnonzero(bits).tolist()))
    pad = np.zeros(leaves)
    sides = [np.concatenate([side, pad - 1]).astype(int) for side in rows]
    threshold = np.concatenate([np.where(by_set, 0.5, threshold), pad])
    missing_left = np.concatenate([goes_left, pad]).astype(bool)
    value = np.concatenate([np.zeros(n), values])
    return Tree(*sides, np.concatenate([feature, pad]).astype(int), threshold, missing_left, value, target, derived)


def forest_of_sklearn(model: Any, *, every_class: bool = False) -> Forest:
    """Convert the trees of a trained classifier or regressor with one target.

    Targets are the values of a regressor, the probability of the second of two classes (``every_class``: of both) or of
    each of several; of boosted classifiers what probabilities are made of by ``link``.
    """
    from sklearn import ensemble, tree

    kinds = (f"{way}{task}" for way in ("ExtraTrees", "RandomForest") for task in ("Classifier", "Regressor"))
    forests = tuple(getattr(ensemble, kind) for kind in kinds)
    if isinstance(model, ensemble.HistGradientBoostingClassifier | ensemble.HistGradientBoostingRegressor):
        forest = _by_histograms(model)
    elif isinstance(model, ensemble.GradientBoostingClassifier | ensemble.GradientBoostingRegressor):
        forest = _boosted(model)
    elif isinstance(model, tree.BaseDecisionTree):
        return _averaged(model, [model], every_class)
    elif isinstance(model, forests):
        return _averaged(model, model.estimators_, every_class)
    else:
        known = "DecisionTree, ExtraTree, RandomForest, ExtraTrees, GradientBoosting, HistGradientBoosting"
        raise DataError(f"{type(model).__name__} has no trees that can be exported", remedy=f"Kinds that can: {known}")
    if every_class and forest.link == "logistic":  # the log-odds of the second class become margins of both
        base = np.array([0.0, forest.base[0]])
        return replace(forest, base=base, target=np.ones_like(forest.target), link="softmax")
    return forest


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


def _boosted(model: Any) -> Forest:
    start = model.init_
    # a model as start would need nodes of its own
    if start != "zero" and type(start).__name__ not in ("DummyClassifier", "DummyRegressor"):
        raise DataError(f"{type(model).__name__} starts from {type(start).__name__}", remedy="Train it with init=None")
    # the start is the same for every row
    base = np.asarray(model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32)), float)[0]
    members = [(i, member.tree_) for stage in model.estimators_ for i, member in enumerate(stage)]
    trees = [_tree(tree, tree.value[:, 0, 0] * model.learning_rate, i) for i, tree in members]
    link, scale = "identity", 1.0
    if hasattr(model, "classes_"):
        link = "logistic" if len(base) == 1 else "softmax"
        scale = 2.0 if model.loss == "exponential" else 1.0
    return grow(trees, model.n_features_in_, base, link=link, scale=scale, rule="le", dtype="float64")


def _tree(tree: Any, values: np.ndarray, target: int) -> Tree:
    missing_left = np.asarray(tree.missing_go_to_left, bool)
    sides, feature = (tree.children_left, tree.children_right), np.maximum(tree.feature, 0)
    return Tree(*sides, feature, tree.threshold, missing_left, values, target)


def _by_histograms(model: Any) -> Forest:
    if model.is_categorical_ is not None and model.is_categorical_.any():
        why = f"{type(model).__name__} has categories of its own, which cannot be exported"
        raise DataError(why, remedy="Train it with categorical_features=None")
    base = np.asarray(model._baseline_prediction, float).reshape(-1)
    trees = []
    for target, nodes in ((i, member.nodes) for stage in model._predictors for i, member in enumerate(stage)):
        leaf, missing_left = nodes["is_leaf"].astype(bool), nodes["missing_go_to_left"].astype(bool)
        sides = [np.where(leaf, -1, nodes[side].astype(int)) for side in ("left", "right")]
        feature, threshold = nodes["feature_idx"].astype(int), nodes["num_threshold"]
        trees.append(Tree(*sides, feature, threshold, missing_left, nodes["value"], target))
    link: Link = "exp" if getattr(model, "loss", None) in ("poisson", "gamma") else "identity"
    if hasattr(model, "classes_"):
        link = "logistic" if len(base) == 1 else "softmax"
    return grow(trees, model.n_features_in_, base, link=link, rule="le", dtype="float64", wide=True)


# Convert XGBoost's trees, from its JSON format (https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html).

_LOGITS = ("binary:logistic", "reg:logistic")  # whose base score is kept as a probability
_LINKS: dict[str, Link] = {
    **dict.fromkeys(_LOGITS, "logistic"),
    "multi:softprob": "softmax",
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie"), "exp"),
}
_KNOWN = (
    *_LINKS, "binary:logitraw", "rank:ndcg", "rank:map", "rank:pairwise", "reg:squarederror", "reg:squaredlogerror",
    "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror",
)  # fmt: skip


def forest_of_xgboost(booster: xgb.Booster) -> Forest:
    """Convert the trees (``gbtree``, ``dart``) of a booster; one that stopped early must have been cut to its best."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    objective, params = learner["objective"]["name"], learner["learner_model_param"]
    if objective not in _KNOWN:
        raise DataError(f"trees of XGBoost's objective {objective!r} cannot be exported", remedy="Use another one")
    targets = max(int(params["num_class"]), int(params.get("num_target", 1)), 1)
    numbers = params["base_score"].strip("[]").split(",")  # in brackets since version 3
    score = np.array([float(v) for v in numbers], np.float32)
    if objective in _LOGITS:
        score = -np.log((1 / score - 1).astype(np.float64))
    elif _LINKS.get(objective) == "exp":
        score = np.log(score.astype(np.float64))
    base = np.broadcast_to(score.astype(np.float32), (targets,)).astype(np.float64)
    about = {"link": _LINKS.get(objective, "identity"), "rule": "lt", "dtype": "float32"}
    saved = learner["gradient_booster"]
    if saved["name"] not in ("gbtree", "dart"):
        raise DataError(f"XGBoost's {saved['name']} has no trees to export", remedy="Train with booster='gbtree'")
    model = saved.get("gbtree", saved)["model"]
    weights = (saved | model).get("weight_drop", [1.0] * len(model["trees"]))  # of dart; in the model since 3.4
    trees = [_tree_from_xgboost(*of_tree) for of_tree in zip(model["trees"], weights, model["tree_info"], strict=True)]
    return grow(trees, int(params["num_feature"]), base, **about)


def _tree_from_xgboost(tree: Mapping[str, Any], weight: float, target: int) -> Tree:
    if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        remedy = "Train with multi_strategy='one_output_per_tree'"
        raise DataError("trees of XGBoost whose leaves are vectors cannot be exported", remedy=remedy)
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    numbers, features = np.array(tree["split_conditions"], np.float32), tree["split_indices"]
    starts, sizes, codes = (tree[f"categories{name}"] for name in ("_segments", "_sizes", ""))
    derived = {
        row: CategorySet(features[row], tuple(sorted(codes[start : start + size])))
        for row, start, size in zip(tree["categories_nodes"], starts, sizes, strict=True)
    }
    threshold = np.where(np.isin(np.arange(len(left)), list(derived)), 0.5, numbers)
    missing_left, value = np.array(tree["default_left"], bool), numbers * np.float32(weight)
    return Tree(left, right, np.array(features), threshold, missing_left, value, target, derived)


def booster_of_margins(booster: xgb.Booster) -> xgb.Booster:
    """Return trees of one target under an objective that leaves margins as they are, for servers without margins."""
    forest = forest_of_xgboost(booster)
    if forest.targets > 1:
        why = f"a booster of {forest.targets} targets has no objective of margins"
        raise DataError(why, remedy="Give one of one target")
    saved = json.loads(booster.save_raw("json"))
    learner = saved["learner"]
    params = learner["learner_model_param"]
    several = params["base_score"].startswith("[")  # as version 3 writes it
    params["base_score"] = f"[{float(forest.base[0])!r}]" if several else repr(float(forest.base[0]))
    learner["objective"] = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}
    return xgb.Booster(model_file=bytearray(json.dumps(saved).encode()))


@dataclass(frozen=True)
class EstimatorForests:
    """One forest, or the constant that is predicted, for each output of an estimator."""

    parts: tuple[Forest | float, ...]  # the outputs, with the links of ``predict`` (none in ranking)
    task: Task  # the estimator's
    start: str | None = None  # a column of margins instead of ``base``, if any

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The dtype of the rows that ``nodes`` takes."""
        return "float64" if any(isinstance(p, Forest) and p.wide for p in self.parts) else "float32"

    def predictions(self, x: str, graph: Graph, *, start: str | None = None) -> tuple[str, list[str | None]]:
        """Add the nodes of ``predict``; return their name, and the names of each part's margins (None: a constant).

        ``start`` names the values of the column ``self.start``, float32 ``[n]``.
        """
        one, outputs, margins = graph.constant([1]), [], []
        for part in self.parts:
            if isinstance(part, float):
                shape = graph.op("Concat", graph.op("Shape", x, start=0, end=1), one, axis=0)
                margins.append(None)
                outputs.append(graph.op("Expand", graph.constant(part), shape))
                continue
            margin = part.margins(x, graph, base=self.start is None)
            margins.append(margin)
            if self.start is not None:
                margin = graph.op("Add", margin, graph.op("Unsqueeze", graph.cast(start, np.float64), one))
            outputs.append(part.linked(margin, graph))
        whole = outputs[0] if len(outputs) == 1 else graph.op("Concat", *outputs, axis=1)
        if self.task == "multiclass":
            return graph.op("Div", whole, graph.op("ReduceSum", whole, one, keepdims=1)), margins
        return graph.op("Squeeze", whole, one) if len(outputs) == 1 else whole, margins


def forests_of(estimator: Estimator) -> EstimatorForests:
    """Convert the trees of a trained ``XGBModel``, ``LGBMModel``, ``CatBoostModel``, or ``SKModel`` with trees."""
    if isinstance(estimator, XGBModel | LGBMModel | CatBoostModel):
        if estimator._task is None:
            raise estimator.not_fitted()
        parts = tuple(p if isinstance(p, float) else _of_trees(estimator, p) for p in estimator._parts)
        return EstimatorForests(parts, estimator._task, estimator.margin)
    if isinstance(estimator, SKModel):
        if estimator._inputs is None:
            raise estimator.not_fitted()
        task, k = estimator._task, estimator._n_outputs
        parts = tuple(p if isinstance(p, float) else _of_sklearn(p, task, k) for p in estimator._parts)
        return EstimatorForests(parts, task)
    raise DataError(f"{estimator.name} ({type(estimator).__name__}) has no trees", remedy="Give an estimator of trees")


def _of_trees(estimator: XGBModel | LGBMModel | CatBoostModel, trees: Any) -> Forest:
    inputs, task = estimator._inputs, estimator._task
    if isinstance(estimator, XGBModel):
        forest = forest_of_xgboost(trees)
    elif isinstance(estimator, LGBMModel):
        forest = forest_of_lightgbm(trees)
    else:
        codes = {i: len(inputs.vocabs[n]) for i, n in enumerate(inputs.names) if n in inputs.vocabs}
        forest = forest_of_catboost(trees, codes)
        if task == "regression":
            forest = replace(forest, link="exp" if (estimator.objective or "").startswith(_EXPONENTS) else "identity")
    # a ranker predicts margins
    return replace(forest, link="identity", scale=1.0) if task == "ranking" else forest


def _of_sklearn(model: Any, task: Task, k: int) -> Forest:
    forest = forest_of_sklearn(model, every_class=task == "multiclass")
    if task != "multiclass":
        return forest
    classes = np.asarray(model.classes_).astype(np.int64)  # a class may have had no row
    base = np.full(k, -1e300 if forest.link == "softmax" else 0.0)  # a softmax makes the absent classes 0
    base[classes] = forest.base
    return replace(forest, base=base, target=classes[forest.target])
