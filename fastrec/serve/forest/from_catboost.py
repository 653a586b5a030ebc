"""Convert CatBoost's trees, from its JSON format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fastrec.errors import DataError
from fastrec.serve.forest._catboost_statistics import statistics_of
from fastrec.serve.forest._code_hashes import code_hashes
from fastrec.serve.forest._columns import CategorySet, Derived
from fastrec.serve.forest._grow import Tree, grow
from fastrec.serve.forest.forest import Forest, Link

_LINKS: dict[str, Link] = {
    "Logloss": "logistic",
    "CrossEntropy": "logistic",
    "Focal": "logistic",
    "MultiClass": "softmax",
    "MultiClassOneVsAll": "logistic",
    "Poisson": "exp",
    "Tweedie": "exp",
}


def forest_of_catboost(model: Any, n_codes: Mapping[int, int] | None = None) -> Forest:
    """Convert the trees of a model, of any shape.

    Args:
        model: ``catboost.CatBoost`` or one of its kind.
        n_codes: column → number of codes of a category, integers from 0 in training; NaN counts as code 0.

    Raises:
        DataError: the trees read text, embeddings, categories without ``n_codes``, or an unknown kind of statistics.
    """
    import catboost

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        try:
            model.save_model(str(path), format="json")
        except catboost.CatBoostError as error:
            remedy = "Train on numbers and categories, not on text or embeddings"
            raise DataError(f"CatBoost's trees cannot be exported: {error}", remedy=remedy) from error
        saved = json.loads(path.read_text(encoding="utf-8"))
    features = saved["features_info"]
    if features.get("categorical_features") and not n_codes:
        raise DataError("CatBoost's trees read categories whose codes are not given", remedy="Give n_codes=")
    kinds = ("float_features", "categorical_features")
    columns = 1 + max(f["flat_feature_index"] for kind in kinds for f in features.get(kind, ()))
    scale, base = saved["scale_and_bias"]
    base = np.atleast_1d(np.asarray(base, float))
    splits = _Splits(saved, code_hashes(max((n_codes or {}).values(), default=0)))
    if "oblivious_trees" in saved:
        trees = [t for tree in saved["oblivious_trees"] for t in _oblivious(tree, splits, len(base), scale)]
    else:
        trees = [t for tree in saved["trees"] for t in _of_any_shape(tree, splits, len(base), scale)]
    loss = saved["model_info"].get("params", {}).get("loss_function", {}).get("type", "")
    return grow(trees, columns, base, link=_LINKS.get(loss, "identity"), rule="le", dtype="float64")


class _Splits:
    """CatBoost's splits: a column, a threshold, the side of NaN, and the derived column if it is one."""

    def __init__(self, saved: Mapping[str, Any], hashes: np.ndarray) -> None:
        features = saved["features_info"]
        self.numbers = {f["feature_index"]: f for f in features.get("float_features", ())}
        self.cats = {f["feature_index"]: f["flat_feature_index"] for f in features.get("categorical_features", ())}
        self.hashes = hashes
        self.statistics = statistics_of(saved, self.numbers, self.cats, self.hashes)
        # splits are numbered: those by numbers, by single categories, by statistics
        # "split_index" counts them in this order
        before = sum(len(f["borders"]) for f in features.get("float_features", ()))
        self.before = before + sum(len(f.get("values", ())) for f in features.get("categorical_features", ()))
        self.ends = np.cumsum([len(c["borders"]) for c in features.get("ctrs", ())])

    def of(self, split: Mapping[str, Any]) -> tuple[int, float, bool, Derived | None]:
        kind = split["split_type"]
        if kind == "FloatFeature":
            feature = self.numbers[split["float_feature_index"]]
            return feature["flat_feature_index"], split["border"], feature["nan_value_treatment"] != "AsTrue", None
        if kind == "OneHotFeature":
            column = self.cats[split["cat_feature_index"]]
            members = tuple(np.flatnonzero(self.hashes == split["value"]).tolist())
            return column, 0.5, 0 not in members, CategorySet(column, members)
        if kind == "OnlineCtr":
            number = int(np.searchsorted(self.ends, split["split_index"] - self.before, side="right"))
            return 0, split["border"], True, self.statistics[number]
        raise DataError(
            f"CatBoost's trees have splits of the kind {kind!r}, which cannot be exported",
            remedy="Train on numbers and categories",
        )


def _oblivious(tree: Mapping[str, Any], splits: _Splits, targets: int, scale: float) -> list[Tree]:
    """Convert a tree with one split per level; the first split is the lowest bit of a leaf's number."""
    levels = [splits.of(s) for s in reversed(tree.get("splits") or ())]
    depth = len(levels)
    level = np.repeat(np.arange(depth), 1 << np.arange(depth))  # node i has the children 2i + 1 and 2i + 2
    nodes, leaves = len(level), 1 << depth
    rows = np.arange(nodes)
    pad = np.zeros(leaves, int)

    def of_levels(i: int, kind: type) -> np.ndarray:
        return np.concatenate([np.array([s[i] for s in levels], kind)[level], pad]).astype(kind)

    values = np.asarray(tree["leaf_values"], float).reshape(leaves, targets) * scale
    shape = {
        "left": np.concatenate([2 * rows + 1, pad - 1]),
        "right": np.concatenate([2 * rows + 2, pad - 1]),
        "feature": of_levels(0, int),
        "threshold": of_levels(1, float),
        "missing_left": of_levels(2, bool),
        "derived": {int(r): levels[level[r]][3] for r in rows if levels[level[r]][3] is not None},
    }
    return [Tree(**shape, value=np.concatenate([np.zeros(nodes), values[:, k]]), target=k) for k in range(targets)]


def _of_any_shape(tree: Mapping[str, Any], splits: _Splits, targets: int, scale: float) -> list[Tree]:
    """Convert a tree of nested nodes."""
    rows: list[tuple[int, int, Any, Sequence[float]]] = []

    def put(node: Mapping[str, Any]) -> int:
        place = len(rows)
        if "split" not in node:
            rows.append((-1, -1, (0, 0.0, False, None), np.atleast_1d(node["value"]) * scale))
            return place
        rows.append((0, 0, None, np.zeros(targets)))
        left, right = put(node["left"]), put(node["right"])
        rows[place] = (left, right, splits.of(node["split"]), np.zeros(targets))
        return place

    put(tree)
    left, right, found, values = zip(*rows, strict=True)
    shape = {
        "left": np.array(left),
        "right": np.array(right),
        "feature": np.array([s[0] for s in found]),
        "threshold": np.array([s[1] for s in found], float),
        "missing_left": np.array([s[2] for s in found], bool),
        "derived": {i: s[3] for i, s in enumerate(found) if s[3] is not None},
    }
    return [Tree(**shape, value=np.array([v[k] for v in values]), target=k) for k in range(targets)]
