"""Convert LightGBM's trees, from its text format; rows take the side of its ``Tree::Decision``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest._columns import CategorySet, Derived, ZerosMissing
from fastrec.serve.forest._grow import Tree, grow
from fastrec.serve.forest.forest import Forest, Link

_LINKS: dict[str, Link] = {
    "binary": "logistic",
    "cross_entropy": "logistic",
    "multiclass": "softmax",
    "multiclassova": "logistic",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
    "cross_entropy_lambda": "log1p_exp",
}
_IDENTITY = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg")


def forest_of_lightgbm(booster: Any) -> Forest:
    """Convert the trees of a booster, up to its best iteration if it has one.

    Args:
        booster: ``lightgbm.Booster``.

    Raises:
        DataError: the objective is not known here, or leaves are linear models.
    """
    head, *texts = booster.model_to_string(num_iteration=booster.best_iteration).split("\nTree=")
    about = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    objective, *options = about.get("objective", "none").split()
    if objective not in (*_LINKS, *_IDENTITY):
        raise DataError(f"trees of LightGBM's objective {objective!r} cannot be exported", remedy="Use another one")
    link: Link = "signed_square" if "sqrt" in options else _LINKS.get(objective, "identity")
    scale = next((float(o.split(":")[1]) for o in options if o.startswith("sigmoid:")), 1.0)
    targets, columns = int(about["num_tree_per_iteration"]), int(about["max_feature_idx"]) + 1
    if "average_output" in head.splitlines():  # a random forest; its raw scores are sums
        scale *= targets / len(texts)
    trees = [_tree(text, i % targets) for i, text in enumerate(texts)]
    return grow(trees, columns, np.zeros(targets), link=link, scale=scale, rule="le", dtype="float64")


def _tree(text: str, target: int) -> Tree:
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
    return Tree(
        left=np.concatenate([rows[0], pad - 1]).astype(int),
        right=np.concatenate([rows[1], pad - 1]).astype(int),
        feature=np.concatenate([feature, pad]).astype(int),
        threshold=np.concatenate([np.where(by_set, 0.5, threshold), pad]),
        missing_left=np.concatenate([goes_left, pad]).astype(bool),
        value=np.concatenate([np.zeros(n), values]),
        target=target,
        derived=derived,
    )
