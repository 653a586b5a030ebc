"""Convert XGBoost's trees, from its JSON format (https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.serve.forest._columns import CategorySet
from fastrec.serve.forest._grow import Tree, grow
from fastrec.serve.forest.forest import Forest, Link

_LINKS: dict[str, Link] = {
    "binary:logistic": "logistic",
    "reg:logistic": "logistic",
    "multi:softprob": "softmax",
    "count:poisson": "exp",
    "reg:gamma": "exp",
    "reg:tweedie": "exp",
}
_LOGITS = ("binary:logistic", "reg:logistic")  # whose base score is kept as a probability
_KNOWN = (
    *_LINKS, "binary:logitraw", "rank:ndcg", "rank:map", "rank:pairwise", "reg:squarederror", "reg:squaredlogerror",
    "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror",
)  # fmt: skip


def forest_of_xgboost(booster: xgb.Booster, n_columns: int | None = None) -> Forest:
    """Convert the trees of a booster; one that stopped early must have been cut to its best tree.

    Args:
        booster: trees (``gbtree`` or ``dart``).
        n_columns: number of columns of rows; None: the booster's.

    Raises:
        DataError: the booster is linear, its objective is not known here, or its leaves are vectors.
    """
    learner = json.loads(booster.save_raw("json"))["learner"]
    objective, params = learner["objective"]["name"], learner["learner_model_param"]
    if objective not in _KNOWN:
        raise DataError(f"trees of XGBoost's objective {objective!r} cannot be exported", remedy="Use another one")
    columns = int(params["num_feature"]) if n_columns is None else n_columns
    targets = max(int(params["num_class"]), int(params.get("num_target", 1)), 1)
    base = _base(params["base_score"], objective, targets)
    about = {"link": _LINKS.get(objective, "identity"), "rule": "lt", "dtype": "float32"}
    saved = learner["gradient_booster"]
    if saved["name"] not in ("gbtree", "dart"):
        raise DataError(f"XGBoost's {saved['name']} has no trees to export", remedy="Train with booster='gbtree'")
    model = saved.get("gbtree", saved)["model"]
    weights = saved.get("weight_drop", [1.0] * len(model["trees"]))  # of dart
    trees = [_tree(*of_tree) for of_tree in zip(model["trees"], weights, model["tree_info"], strict=True)]
    return grow(trees, columns, base, **about)


def _base(text: str, objective: str, targets: int) -> np.ndarray:
    """Convert the base score to a margin, in float32 as XGBoost does."""
    score = np.array([float(v) for v in text.strip("[]").split(",")], np.float32)  # in brackets since version 3
    if objective in _LOGITS:
        score = -np.log((1 / score - 1).astype(np.float64))
    elif _LINKS.get(objective) == "exp":
        score = np.log(score.astype(np.float64))
    return np.broadcast_to(score.astype(np.float32), (targets,)).astype(np.float64)


def _tree(tree: Mapping[str, Any], weight: float, target: int) -> Tree:
    if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1:
        raise DataError(
            "trees of XGBoost whose leaves are vectors cannot be exported",
            remedy="Train with multi_strategy='one_output_per_tree'",
        )
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    numbers = np.array(tree["split_conditions"], np.float32)
    starts, sizes, codes = (tree[f"categories{name}"] for name in ("_segments", "_sizes", ""))
    features = tree["split_indices"]
    derived = {
        row: CategorySet(features[row], tuple(sorted(codes[start : start + size])))
        for row, start, size in zip(tree["categories_nodes"], starts, sizes, strict=True)
    }
    return Tree(
        left=left,
        right=right,
        feature=np.array(features),
        threshold=np.where(np.isin(np.arange(len(left)), list(derived)), 0.5, numbers),
        missing_left=np.array(tree["default_left"], bool),
        value=numbers * np.float32(weight),
        target=target,
        derived=derived,
    )


def booster_of_margins(booster: xgb.Booster) -> xgb.Booster:
    """Return the same trees under an objective that leaves margins as they are, for servers without margins.

    Args:
        booster: trees of one target.

    Raises:
        DataError: it has several targets, or cannot be exported.
    """
    forest = forest_of_xgboost(booster)
    if forest.targets > 1:
        raise DataError(
            f"a booster of {forest.targets} targets has no objective of margins", remedy="Give one of one target"
        )
    saved = json.loads(booster.save_raw("json"))
    learner = saved["learner"]
    params = learner["learner_model_param"]
    several = params["base_score"].startswith("[")  # as version 3 writes it
    params["base_score"] = f"[{float(forest.base[0])!r}]" if several else repr(float(forest.base[0]))
    learner["objective"] = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}
    return xgb.Booster(model_file=bytearray(json.dumps(saved).encode()))
