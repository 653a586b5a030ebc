"""Conversion of scikit-learn estimators, trained or not, to plain values and tensors and back, without pickle."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator
from sklearn.calibration import _CalibratedClassifier
from sklearn.ensemble._forest import BaseForest
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.predictor import PREDICTOR_RECORD_DTYPE, TreePredictor
from sklearn.neighbors._base import NeighborsBase
from sklearn.svm._base import BaseLibSVM
from sklearn.tree import BaseDecisionTree
from sklearn.tree._tree import Tree

from fastrec.errors import DataError

# A file may name a class from the scikit-learn modules in ``_MODULES``, or a class of your own whose module has been
# imported. Attributes are stored as data: no function, no path, no object of another kind. Compiled code does not check
# the arrays that it walks through, so they are checked here.

_MODULES = {
    "calibration", "compose", "cross_decomposition", "decomposition", "discriminant_analysis", "dummy", "ensemble",
    "feature_selection", "impute", "isotonic", "kernel_approximation", "kernel_ridge", "linear_model", "multiclass",
    "multioutput", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing", "random_projection",
    "svm", "tree",
}  # fmt: skip
_ELSEWHERE = {"_BinMapper": "sklearn.ensemble._hist_gradient_boosting.binning"}  # no public module exports it
_NOT_SAVED = {"IsolationForest", "KernelDensity"}
_PATHS = ("memory", "caching")  # parameters that name a folder from which pickles would be read
_NOT_NEEDED = {  # for prediction, or rebuilt by ``_estimator``
    "_loss", "_base_loss", "_loss_function_", "loss_function_", "_scorer", "_optimizer", "named_estimators_", "f_",
}  # fmt: skip
_NODES = ("left_child", "right_child", "feature", "threshold", "missing_go_to_left")
_HISTOGRAM_NODES = ("left", "right", "feature_idx", "num_threshold", "missing_go_to_left", "is_leaf", "value")


def packed(value: Any, *, trained: bool = True, at: str = "the estimator") -> Any:
    """Turn an estimator, or one of its attributes, into plain values and tensors; untrained ones into JSON values."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"is": "number", "type": value.dtype.name, "of": value.item()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value)
    if kind in (list, tuple):
        of = [packed(v, trained=trained, at=at) for v in value]
        return of if kind is list else {"is": "tuple", "of": of}
    if kind is dict:
        return {"is": "dict", "of": [[packed(part, trained=trained, at=at) for part in pair] for pair in value.items()]}
    if kind is slice:
        return {"is": "slice", "of": [packed(v, at=at) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, np.dtype):
        return {"is": "dtype", "of": value.name}
    if kind is np.ndarray and trained:
        return _packed_array(value, at)
    if kind is Tree:
        state = value.__getstate__()
        about = {"features": value.n_features, "classes": value.n_classes.tolist(), "values": state["values"]}
        return {"is": "tree", **_columns(state["nodes"], _NODES), **{n: packed(v) for n, v in about.items()}}
    if kind is TreePredictor:
        return {"is": "histogram tree", **_columns(value.nodes, _HISTOGRAM_NODES)}
    if kind is BSpline:
        parts = {n: packed(np.asarray(v), at=at) for n, v in (("knots", value.t), ("weights", value.c))}
        return {"is": "spline", **parts, "degree": int(value.k), "extrapolate": value.extrapolate}
    if isinstance(value, BaseEstimator | _CalibratedClassifier):
        return _packed_estimator(value, trained)
    remedy = "Use text, numbers, lists and estimators instead"
    raise DataError(f"{at} is a {kind.__name__}, which cannot be saved", remedy=remedy)


def _packed_array(array: np.ndarray, at: str) -> dict[str, Any]:
    about = {"type": array.dtype.name if array.dtype.kind in "biuf" else array.dtype.str}
    if array.dtype.kind in "OU":
        return {"is": "objects", **about, "shape": list(array.shape), "of": packed(array.ravel().tolist(), at=at)}
    if array.dtype.kind not in "biuf":
        raise DataError(f"{at} is an array of {array.dtype}, which cannot be saved", remedy="Use numbers instead")
    turned = array.flags.f_contiguous and not array.flags.c_contiguous  # results of sums depend on the order in memory
    plain = np.ascontiguousarray(array.T if turned else array).reshape(array.T.shape if turned else array.shape)
    plain = plain.astype(plain.dtype.newbyteorder("="), copy=False)
    plain = plain.view(f"i{plain.itemsize}") if plain.dtype.kind == "u" else plain
    return {"is": "array", **about, "turned": turned, "of": torch.from_numpy(np.array(plain))}


def _columns(nodes: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    columns = {n: nodes[n] for n in names if n in nodes.dtype.names}  # missing_go_to_left is newer than the others
    small = {n: v.astype(np.int32) if v.dtype.kind in "iu" and v.itemsize > 4 else v for n, v in columns.items()}
    return {n: _packed_array(np.ascontiguousarray(v), n) for n, v in small.items()}


def _packed_estimator(value: Any, trained: bool) -> dict[str, Any]:
    kind = type(value)
    state, usual = vars(value), inspect.signature(kind).parameters
    path = next((n for n in _PATHS if state.get(n) is not None), None)
    if path is not None:
        raise DataError(f"{kind.__name__} has {path}=, which cannot be saved", remedy=f"Leave out {path}")
    if isinstance(value, BaseHistGradientBoosting) and value.categorical_features not in (None, "from_dtype", "warn"):
        remedy = "Leave out categorical_features: they get codes, or columns of 0 and 1"
        raise DataError(f"{kind.__name__} has categories of its own, which cannot be saved", remedy=remedy)
    if trained:
        random = (np.random.RandomState, np.random.Generator)
        state = {n: v for n, v in state.items() if not isinstance(v, random) and n not in _NOT_NEEDED}
    given = {n: (state[n], p.default) for n, p in usual.items() if n in state}
    plain = int | float | str  # other values are compared by identity: == of an array returns an array
    params = {
        n: v
        for n, (v, default) in given.items()
        if v is not default and not (type(v) is type(default) and isinstance(v, plain) and v == default)
    }
    learned = {n: v for n, v in state.items() if n not in usual}
    if issubclass(kind, NeighborsBase):
        rows, labels = state.get("_fit_X"), state.get("_y")
        labels = state["classes_"][labels] if "classes_" in state else labels
        learned = {} if rows is None else {"rows": rows, "labels": labels}
    parts = {n: {k: packed(v, trained=trained, at=f"{kind.__name__}.{k}") for k, v in part.items()}
            for n, part in {"params": params, "learned": learned}.items()}  # fmt: skip
    library, *module = kind.__module__.split(".")
    path = f"sklearn.{module[0]}:{kind.__name__}" if library == "sklearn" else f"{kind.__module__}:{kind.__qualname__}"
    if library == "sklearn" and _found(path) is not kind:
        remedy = "Give an estimator that can be: of a search the best one, with its parameters"
        raise DataError(f"{kind.__name__} of sklearn.{module[0]} cannot be saved", remedy=remedy)
    return {"is": "estimator", "class": path, **parts}


def unpacked(state: Any) -> Any:
    """Restore what ``packed`` made: nothing is trained, and only scikit-learn is imported."""
    if isinstance(state, list):
        return [unpacked(v) for v in state]
    if not isinstance(state, Mapping):
        return state
    what, of = state["is"], state.get("of")
    if what == "number":
        return _dtype(state["type"], "biuf").type(of)
    if what == "tuple":
        return tuple(unpacked(v) for v in of)
    if what == "dict":
        return {unpacked(k): unpacked(v) for k, v in of}
    if what == "slice":
        return slice(*of)
    if what == "dtype":
        return _dtype(of, "biufOU")
    if what == "array":
        array = np.array(of.numpy()).view(_dtype(state["type"], "biuf"))
        return array.T if state["turned"] else array
    if what == "objects":
        objects = np.empty(len(of), _dtype(state["type"], "OU"))
        objects[:] = unpacked(of)
        return objects.reshape(state["shape"])
    if what == "tree":
        return _tree(state)
    if what == "histogram tree":
        nodes = _nodes(state, _HISTOGRAM_NODES, PREDICTOR_RECORD_DTYPE)
        _check_children(nodes["left"], nodes["right"], nodes["is_leaf"] != 0)
        none = np.empty((0, 8), np.uint32)
        return TreePredictor(nodes, none, none)
    if what == "spline":
        knots, weights = (np.ascontiguousarray(unpacked(state[n]), dtype=np.float64) for n in ("knots", "weights"))
        degree = int(state["degree"])
        whole = knots.ndim == 1 and degree >= 0 and len(knots) >= 2 * (degree + 1) and bool(np.isfinite(knots).all())
        whole = whole and bool((np.diff(knots) >= 0).all()) and weights.ndim >= 1
        if not (whole and len(weights) == len(knots) - degree - 1):
            raise ValueError("a spline's knots are damaged")
        return BSpline.construct_fast(knots, weights, degree, extrapolate=state["extrapolate"])
    if what == "estimator":
        return _estimator(state)
    raise ValueError(f"it holds a {what!r}")


def _dtype(name: str, kinds: str) -> np.dtype:
    dtype = np.dtype(name)
    if dtype.kind not in kinds:
        raise ValueError(f"it holds values of the type {name}")
    return dtype


def _nodes(state: Mapping[str, Any], names: tuple[str, ...], dtype: Any) -> np.ndarray:
    columns = {n: unpacked(state[n]) for n in names if n in state}
    nodes = np.zeros(len(columns[names[0]]), dtype)
    for name, values in columns.items():
        nodes[name] = values
    return nodes


def _tree(state: Mapping[str, Any]) -> Tree:
    classes, values = np.asarray(unpacked(state["classes"]), dtype=np.intp), unpacked(state["values"])
    if classes.ndim != 1 or not len(classes) or (classes < 1).any() or int(state["features"]) < 1:
        raise ValueError("a tree's numbers of classes and columns are damaged")
    tree = Tree(int(state["features"]), classes, len(classes))
    nodes = _nodes(state, _NODES, tree.__getstate__()["nodes"].dtype)
    leaf = nodes["left_child"] == -1
    depth = _check_children(nodes["left_child"], nodes["right_child"], leaf)
    feature = nodes["feature"][~leaf]
    if ((feature < 0) | (feature >= tree.n_features)).any():
        raise ValueError("a tree asks for a column that there is not")
    tree.__setstate__({"max_depth": depth, "node_count": len(nodes), "nodes": nodes, "values": values})
    return tree


def _check_children(left: np.ndarray, right: np.ndarray, leaf: np.ndarray) -> int:
    """Return the depth; refuse nodes whose children do not come after them."""
    # Compiled code does not check children: only if they come later does every walk end.
    place, n = np.arange(len(leaf)), len(leaf)
    after = (left > place) & (left < n) & (right > place) & (right < n)
    if not n or not (leaf | after).all():
        raise ValueError("a tree's nodes are damaged")
    depth, level = 0, np.zeros(1, np.int64)
    while len(level := level[~leaf[level]]):
        depth, level = depth + 1, np.unique(np.concatenate([left[level], right[level]]).astype(np.int64))
    return depth


def _estimator(state: Mapping[str, Any]) -> Any:
    kind = _found(str(state["class"]))
    if kind is None:
        problem = f"it holds an estimator of the class {state['class']!r}, which is not known here"
        raise DataError(problem, remedy="Import the module that defines the class first")
    params, learned = ({n: unpacked(v) for n, v in state[part].items()} for part in ("params", "learned"))
    if any(n in _PATHS for n in (*params, *learned)):
        raise ValueError(f"{kind.__name__} names a folder to read from")
    estimator = kind(**params)
    if issubclass(kind, NeighborsBase):  # looks up rows: nothing is trained
        return estimator.fit(learned["rows"], learned["labels"]) if learned else estimator
    vars(estimator).update(learned)
    # those parts of _NOT_NEEDED that prediction needs
    if isinstance(estimator, BaseGradientBoosting | BaseHistGradientBoosting) and hasattr(estimator, "n_features_in_"):
        estimator._loss = estimator._get_loss(sample_weight=None)
    elif hasattr(estimator, "_get_loss") and hasattr(estimator, "coef_"):
        estimator._base_loss = estimator._get_loss()
    elif hasattr(estimator, "_build_f") and hasattr(estimator, "X_thresholds_"):
        estimator._build_f(estimator.X_thresholds_, estimator.y_thresholds_)
    _check(estimator)
    return estimator


def _check(estimator: Any) -> None:
    """Refuse an estimator whose compiled code would read beyond its arrays."""
    wide, good = getattr(estimator, "n_features_in_", None), True
    if isinstance(estimator, BaseDecisionTree) and hasattr(estimator, "tree_"):
        good = type(estimator.tree_) is Tree and estimator.tree_.n_features == wide
    elif isinstance(estimator, BaseForest | BaseGradientBoosting) and hasattr(estimator, "estimators_"):
        members = np.asarray(estimator.estimators_, dtype=object)
        good = all(isinstance(m, BaseDecisionTree) and m.n_features_in_ == wide for m in members.ravel())
        if good and isinstance(estimator, BaseGradientBoosting):
            sums = estimator._raw_predict_init(np.zeros((1, wide), np.float32))
            good = members.ndim == 2 and sums.shape == (1, members.shape[1])
    elif isinstance(estimator, BaseHistGradientBoosting) and hasattr(estimator, "_predictors"):
        nodes = [p.nodes[p.nodes["is_leaf"] == 0] for trees in estimator._predictors for p in trees]
        good = estimator._preprocessor is None and all(
            ((n["feature_idx"] >= 0) & (n["feature_idx"] < wide)).all() for n in nodes
        )
    elif isinstance(estimator, BaseLibSVM) and hasattr(estimator, "support_"):
        good = _is_whole_svm(estimator, wide)
    if not good:
        raise ValueError(f"{type(estimator).__name__}: the arrays are damaged")


def _is_whole_svm(estimator: Any, wide: Any) -> bool:
    n, k = len(estimator.support_vectors_), len(estimator._n_support)
    pairs = k * (k - 1) // 2
    whole = (
        estimator.support_vectors_.shape == (n, wide)
        and estimator.support_.shape == (n,)
        and estimator._dual_coef_.shape == (max(k - 1, 1), n)
        and estimator._intercept_.shape == (pairs,)
        and all(probabilities.shape in ((0,), (pairs,)) for probabilities in (estimator._probA, estimator._probB))
        and estimator._n_support.shape == (k,)
        and k > 1
        and "_impl" not in vars(estimator)
    )
    counts = hasattr(estimator, "classes_")  # in regression, support vectors are not looked up by class
    sums = not counts or (
        bool((estimator._n_support >= 0).all()) and estimator._n_support.sum() == n and len(estimator.classes_) == k
    )
    return whole and sums and not estimator._sparse and estimator.kernel in ("linear", "poly", "rbf", "sigmoid")


def _found(path: str) -> type | None:
    module, _, name = path.partition(":")
    library, *below = module.split(".")
    if library == "sklearn":
        if len(below) != 1 or below[0] not in _MODULES or name in _NOT_SAVED:
            return None
        cls = getattr(import_module(_ELSEWHERE.get(name, module)), name, None)
    else:
        cls = None if library == "fastrec" else sys.modules.get(module)
        for part in name.split("."):
            cls = getattr(cls, part, None)
    is_one = isinstance(cls, type) and issubclass(cls, BaseEstimator | _CalibratedClassifier)
    return cls if is_one else None
