"""Estimators of scikit-learn and cuML."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import sklearn
import torch
from joblib import effective_n_jobs
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.calibration import _CalibratedClassifier
from sklearn.ensemble._forest import BaseForest
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.predictor import PREDICTOR_RECORD_DTYPE, TreePredictor
from sklearn.neighbors._base import NeighborsBase
from sklearn.pipeline import Pipeline
from sklearn.svm._base import BaseLibSVM
from sklearn.tree import BaseDecisionTree
from sklearn.tree._tree import Tree
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from fastrec._core.imports import require
from fastrec._core.warn import warn
from fastrec.errors import DataError, OutOfTimeError
from fastrec.estimators._tree_model import Deadline, TreeInputs, seconds_for
from fastrec.estimators.base import (
    ClassWeight,
    Estimator,
    Trace,
    assembled,
    check_class_weight,
    check_classes,
    learnable,
    output_weight,
    outputs_of,
)
from fastrec.table import Table, Vocab, load_state, save_state
from fastrec.validate import Rows
from fastrec.validate.target import Task

# Estimators of scikit-learn, trained or not, as plain values and tensors, and back: no pickle, and no training.
#
# A file may name a class of the modules of scikit-learn in ``_MODULES``, or a class of one's own whose module was
# imported before. It holds attributes as data: no function, no path, no object of another kind. Compiled code does not
# check the arrays that it walks through, so that they are checked here.

_MODULES = {
    "calibration", "compose", "cross_decomposition", "decomposition", "discriminant_analysis", "dummy", "ensemble",
    "feature_selection", "impute", "isotonic", "kernel_approximation", "kernel_ridge", "linear_model", "multiclass",
    "multioutput", "naive_bayes", "neighbors", "neural_network", "pipeline", "preprocessing", "random_projection",
    "svm", "tree",
}  # fmt: skip
_ELSEWHERE = {"_BinMapper": "sklearn.ensemble._hist_gradient_boosting.binning"}  # no public module has it
_NOT_SAVED = {"IsolationForest", "KernelDensity"}
_PATHS = ("memory", "caching")  # parameters that name a folder, from which pickles would be read
_NOT_NEEDED = {  # to predict, or made again by ``_completed``
    "_loss", "_base_loss", "_loss_function_", "loss_function_", "_scorer", "_optimizer", "named_estimators_", "f_",
}  # fmt: skip
_NODES = ("left_child", "right_child", "feature", "threshold", "missing_go_to_left")
_HISTOGRAM_NODES = ("left", "right", "feature_idx", "num_threshold", "missing_go_to_left", "is_leaf", "value")


def packed(value: Any, *, trained: bool = True, at: str = "the estimator") -> Any:
    """Turn an estimator, or an attribute of one, into plain values and tensors.

    Args:
        trained: False: JSON values alone, as the parameters of an untrained estimator are.
        at: where the value is, for messages.
    """
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
    raise DataError(
        f"{at} is a {kind.__name__}, which cannot be saved", remedy="Use text, numbers, lists and estimators instead"
    )


def _packed_array(array: np.ndarray, at: str) -> dict[str, Any]:
    about = {"type": array.dtype.name if array.dtype.kind in "biuf" else array.dtype.str}
    if array.dtype.kind in "OU":
        return {"is": "objects", **about, "shape": list(array.shape), "of": packed(array.ravel().tolist(), at=at)}
    if array.dtype.kind not in "biuf":
        raise DataError(f"{at} is an array of {array.dtype}, which cannot be saved", remedy="Use numbers instead")
    turned = array.flags.f_contiguous and not array.flags.c_contiguous  # sums go by the order in memory
    plain = np.ascontiguousarray(array.T if turned else array).reshape(array.T.shape if turned else array.shape)
    plain = plain.astype(plain.dtype.newbyteorder("="), copy=False)
    plain = plain.view(f"i{plain.itemsize}") if plain.dtype.kind == "u" else plain
    return {"is": "array", **about, "turned": turned, "of": torch.from_numpy(np.array(plain))}


def _columns(nodes: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    columns = {n: nodes[n] for n in names if n in nodes.dtype.names}  # missing_go_to_left came later than the others
    small = {n: v.astype(np.int32) if v.dtype.kind in "iu" and v.itemsize > 4 else v for n, v in columns.items()}
    return {n: _packed_array(np.ascontiguousarray(v), n) for n, v in small.items()}


def _packed_estimator(value: Any, trained: bool) -> dict[str, Any]:
    kind = type(value)
    state, usual = vars(value), inspect.signature(kind).parameters
    path = next((n for n in _PATHS if state.get(n) is not None), None)
    if path is not None:
        raise DataError(f"{kind.__name__} has {path}=, which cannot be saved", remedy=f"Leave out {path}")
    if isinstance(value, BaseHistGradientBoosting) and value.categorical_features not in (None, "from_dtype", "warn"):
        raise DataError(
            f"{kind.__name__} has categories of its own, which cannot be saved",
            remedy="Leave out categorical_features: they get codes, or columns of 0 and 1",
        )
    if trained:
        random = (np.random.RandomState, np.random.Generator)
        state = {n: v for n, v in state.items() if not isinstance(v, random) and n not in _NOT_NEEDED}
    params = {n: state[n] for n, p in usual.items() if n in state and not _is(state[n], p.default)}
    learned = {n: v for n, v in state.items() if n not in usual}
    if _keeps_rows(kind):
        rows, labels = state.get("_fit_X"), state.get("_y")
        labels = state["classes_"][labels] if "classes_" in state else labels
        learned = {} if rows is None else {"rows": rows, "labels": labels}
    parts = {n: {k: packed(v, trained=trained, at=f"{kind.__name__}.{k}") for k, v in part.items()}
            for n, part in {"params": params, "learned": learned}.items()}  # fmt: skip
    return {"is": "estimator", "class": _path_of(kind), **parts}


def _is(value: Any, usual: Any) -> bool:
    return value is usual or (type(value) is type(usual) and isinstance(value, int | float | str) and value == usual)


def unpacked(state: Any) -> Any:
    """Restore what ``packed`` made; nothing is trained, and nothing imported but scikit-learn."""
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
        return _spline(state)
    if what == "estimator":
        return _estimator(state)
    raise ValueError(f"it holds a {what!r}")


def _spline(state: Mapping[str, Any]) -> BSpline:
    knots, weights = (np.ascontiguousarray(unpacked(state[n]), dtype=np.float64) for n in ("knots", "weights"))
    degree = int(state["degree"])
    whole = knots.ndim == 1 and degree >= 0 and len(knots) >= 2 * (degree + 1) and bool(np.isfinite(knots).all())
    whole = (
        whole and bool((np.diff(knots) >= 0).all()) and weights.ndim >= 1 and len(weights) == len(knots) - degree - 1
    )
    if not whole:
        raise ValueError("a spline's knots are damaged")
    return BSpline.construct_fast(knots, weights, degree, extrapolate=state["extrapolate"])


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
    """Refuse nodes whose children are not nodes after them, where a walk would leave the tree or not end.

    Returns:
        The depth.
    """
    # Compiled code follows children unchecked: only later nodes end every walk.
    place, n = np.arange(len(leaf)), len(leaf)
    after = (left > place) & (left < n) & (right > place) & (right < n)
    if not n or not (leaf | after).all():
        raise ValueError("a tree's nodes are damaged")
    depth, level = 0, np.zeros(1, np.int64)
    while len(level := level[~leaf[level]]):
        depth, level = depth + 1, np.unique(np.concatenate([left[level], right[level]]).astype(np.int64))
    return depth


def _estimator(state: Mapping[str, Any]) -> Any:
    kind = _class_of(str(state["class"]))
    params, learned = ({n: unpacked(v) for n, v in state[part].items()} for part in ("params", "learned"))
    if any(n in _PATHS for n in (*params, *learned)):
        raise ValueError(f"{kind.__name__} names a folder to read from")
    estimator = kind(**params)
    if _keeps_rows(kind):
        return (
            estimator.fit(learned["rows"], learned["labels"]) if learned else estimator
        )  # looks rows up: nothing is trained
    vars(estimator).update(learned)
    _completed(estimator)
    _check(estimator)
    return estimator


def _keeps_rows(kind: type) -> bool:
    return issubclass(kind, NeighborsBase)


def _completed(made: Any) -> None:
    if isinstance(made, BaseGradientBoosting | BaseHistGradientBoosting) and hasattr(made, "n_features_in_"):
        made._loss = made._get_loss(sample_weight=None)
    elif hasattr(made, "_get_loss") and hasattr(made, "coef_"):
        made._base_loss = made._get_loss()
    elif hasattr(made, "_build_f") and hasattr(made, "X_thresholds_"):
        made._build_f(made.X_thresholds_, made.y_thresholds_)


def _check(made: Any) -> None:
    """Refuse an estimator whose compiled code would read beyond its arrays."""
    wide, good = getattr(made, "n_features_in_", None), True
    if isinstance(made, BaseDecisionTree) and hasattr(made, "tree_"):
        good = type(made.tree_) is Tree and made.tree_.n_features == wide
    elif isinstance(made, BaseForest | BaseGradientBoosting) and hasattr(made, "estimators_"):
        members = np.asarray(made.estimators_, dtype=object)
        good = all(isinstance(m, BaseDecisionTree) and m.n_features_in_ == wide for m in members.ravel())
        if good and isinstance(made, BaseGradientBoosting):
            sums = made._raw_predict_init(np.zeros((1, wide), np.float32))
            good = members.ndim == 2 and sums.shape == (1, members.shape[1])
    elif isinstance(made, BaseHistGradientBoosting) and hasattr(made, "_predictors"):
        nodes = [p.nodes[p.nodes["is_leaf"] == 0] for trees in made._predictors for p in trees]
        good = made._preprocessor is None and all(
            ((n["feature_idx"] >= 0) & (n["feature_idx"] < wide)).all() for n in nodes
        )
    elif isinstance(made, BaseLibSVM) and hasattr(made, "support_"):
        good = _is_whole_svm(made, wide)
    if not good:
        raise ValueError(f"{type(made).__name__}: the arrays are damaged")


def _is_whole_svm(made: Any, wide: Any) -> bool:
    n, k = len(made.support_vectors_), len(made._n_support)
    pairs = k * (k - 1) // 2
    whole = (
        made.support_vectors_.shape == (n, wide)
        and made.support_.shape == (n,)
        and made._dual_coef_.shape == (max(k - 1, 1), n)
        and made._intercept_.shape == (pairs,)
        and all(probabilities.shape in ((0,), (pairs,)) for probabilities in (made._probA, made._probB))
        and made._n_support.shape == (k,)
        and k > 1
        and "_impl" not in vars(made)
    )
    counts = hasattr(made, "classes_")  # of a regression's support vectors nothing is looked up by class
    sums = not counts or (bool((made._n_support >= 0).all()) and made._n_support.sum() == n and len(made.classes_) == k)
    return whole and sums and not made._sparse and made.kernel in ("linear", "poly", "rbf", "sigmoid")


def _path_of(kind: type) -> str:
    """Return the name of a class in a file."""
    library, *module = kind.__module__.split(".")
    if library != "sklearn":
        return f"{kind.__module__}:{kind.__qualname__}"
    path = f"sklearn.{module[0]}:{kind.__name__}"
    if _found(path) is not kind:
        raise DataError(
            f"{kind.__name__} of sklearn.{module[0]} cannot be saved",
            remedy="Give an estimator that can be: of a search the best one, with its parameters",
        )
    return path


def _class_of(path: str) -> type:
    kind = _found(path)
    if kind is None:
        raise DataError(
            f"it holds an estimator of the class {path!r}, which is not known here",
            remedy="Import the module that defines the class first",
        )
    return kind


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


# ``DenseInputs``: the columns of a table as one matrix without gaps, for estimators that need one.

Cats = Literal["onehot", "code"]
_FOLDER = "numbers"


@dataclass
class _Number:
    """Preparation of a column of numbers.

    Args:
        median, low, high: of the training rows' finite values: missing values become the median, infinite ones the
            least or the largest value.
        mean, scale: what is taken off then, and what by is divided.
        flag: whether values were missing in training: a column of 0 and 1 says then which.
    """

    median: float
    low: float
    high: float
    mean: float
    scale: float
    flag: bool

    @classmethod
    def fit(cls, values: torch.Tensor) -> _Number:
        missing = values.isnan()
        # An infinite value would make mean and deviation useless.
        finite = values[values.isfinite()]
        if not len(finite):
            return cls(0.0, 0.0, 0.0, 0.0, 1.0, bool(missing.any()))
        number = cls(float(finite.median()), float(finite.min()), float(finite.max()), 0.0, 1.0, bool(missing.any()))
        filled = number.fill(values)
        number.mean, spread = float(filled.mean()), float(filled.std(correction=0))
        # A constant column is not divided by its rounding errors.
        number.scale = spread if spread > 1e-12 * max(abs(number.mean), 1e-300) else 1.0
        return number

    def fill(self, values: torch.Tensor) -> torch.Tensor:
        return values.nan_to_num(self.median, self.high, self.low)

    def columns(self, values: torch.Tensor) -> list[torch.Tensor]:
        columns = [(self.fill(values) - self.mean) / self.scale]
        return [*columns, values.isnan().double()] if self.flag else columns


class DenseInputs:
    """Numbers with the median where they are missing (and a column that says so), of mean 0 and variance 1; categories.

    Args:
        inputs: the columns, and the vocabularies of the categories.
        cats: ``'onehot'``: a column of 0 and 1 for each of the 64 most frequent values, one for the others, none for
            missing and unseen ones. ``'code'``: the value's number in sorted order, 0 for missing and unseen ones.
        numbers: how each of the other columns is prepared.
    """

    def __init__(self, inputs: TreeInputs, cats: Cats, numbers: Mapping[str, _Number]) -> None:
        self.inputs, self.cats, self.numbers = inputs, cats, dict(numbers)

    @classmethod
    def fit(cls, rows: Rows, columns: Sequence[str] | None, cats: Cats) -> DenseInputs:
        """Learn from training rows."""
        inputs = TreeInputs.fit(rows, columns)
        if cats == "onehot":
            # Rarer values share one column: a column for each would make the matrix too wide.
            inputs.vocabs = {n: Vocab.fit(rows.table[n], max_size=64) for n in inputs.vocabs}
        others = (n for n in inputs.names if n not in inputs.vocabs)
        return cls(inputs, cats, {n: _Number.fit(rows.table[n].number()) for n in others})

    def matrix(self, table: Table) -> torch.Tensor:
        """Return the columns as float64 ``[n, m]`` on the CPU, every value finite."""
        blocks = [self._block(table, name) for name in self.inputs.names]
        return torch.cat(blocks, 1) if blocks else torch.zeros((len(table), 0), dtype=torch.float64)

    def _block(self, table: Table, name: str) -> torch.Tensor:
        if name in self.numbers:
            return torch.stack(self.numbers[name].columns(table[name].number().cpu()), 1)
        codes = self.inputs.codes(table, name).cpu()
        if self.cats == "code":
            return codes.double().unsqueeze(1)
        return torch.nn.functional.one_hot(codes, len(self.inputs.vocabs[name]))[:, 1:].double()

    @property
    def owners(self) -> list[str]:
        """The table's column that each column of the matrix is made of."""
        wide = [1 + self.numbers[n].flag if n in self.numbers else self._width(n) for n in self.inputs.names]
        return [n for n, width in zip(self.inputs.names, wide, strict=True) for _ in range(width)]

    def _width(self, name: str) -> int:
        return 1 if self.cats == "code" else len(self.inputs.vocabs[name]) - 1

    def write(self, folder: Path) -> dict[str, Any]:
        """Write vocabularies and numbers into a folder that is there.

        Returns:
            What else ``read`` is to be given, as JSON values.
        """
        save_state(folder / _FOLDER, {n: vars(how) for n, how in self.numbers.items()})
        return {**self.inputs.write(folder), "cats": self.cats}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> DenseInputs:
        """Restore what ``write`` wrote."""
        numbers = {n: _Number(**how) for n, how in load_state(folder / _FOLDER).items()}
        return cls(TreeInputs.read(folder, about), about["cats"], numbers)


# ``SKModel``: any estimator of scikit-learn, or with its manners.

_THREADED = ("sklearn.ensemble._forest", "sklearn.neighbors.")  # what works in threads where it is told n_jobs
_CLASSES: tuple[Task, ...] = ("binary", "multiclass", "multilabel")


class SKModel(Estimator):
    """Any estimator or pipeline of scikit-learn, one for each target of a task with several.

    A classifier for tasks with classes, which must say probabilities; a regressor for amounts. Rows of weight 0 are
    left out. Random numbers are drawn by the seed of ``fit``, unless ``random_state`` is given.

    It is saved as plain values and arrays, without pickle, and predicts the same to the bit when it is loaded by the
    same version of scikit-learn; nothing is trained again. That can be done with most of scikit-learn's estimators (not
    with searches of parameters, Gaussian processes or ``memory=``) and with those of your own whose attributes are
    numbers, text, lists, dicts, arrays and such estimators.

    In a limit of time a forest has as many trees as fit into it; another estimator is not begun where a few rows tell
    that all would take longer.

    Args:
        name: the model's name.
        estimator: an untrained estimator; it is left as it is.
        columns: the columns to use; None: all categories and numbers.
        class_weight: ``'balanced'``, or the weight of each class by its number; None: all alike.
        cats: how categories, and text among the numbers, are prepared. ``'onehot'``: a column of 0 and 1 for each of
            the 64 most frequent values, one for the others, none for missing and unseen ones; ``'code'``: the number of
            the value in sorted order, for estimators of trees.
        prepare: numbers get the median where they are missing (and a column that says so), then mean 0 and variance 1.
            False: the estimator (a pipeline, say) is given the plain columns in their order, NaN where missing,
            categories by code.

    Raises:
        DataError: this is no untrained estimator.
    """

    keeps_time = True

    def __init__(
        self,
        name: str,
        estimator: Any,
        *,
        columns: Sequence[str] | None = None,
        class_weight: ClassWeight = None,
        cats: Cats = "onehot",
        prepare: bool = True,
    ) -> None:
        if cats not in ("onehot", "code"):
            raise DataError(f"{name} cannot prepare categories as {cats!r}", remedy="Give 'onehot' or 'code'")
        self.estimator = unpacked(estimator) if isinstance(estimator, Mapping) else estimator
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "get_params"):
            raise DataError(f"{name} was given no estimator", remedy="Give one as scikit-learn has them: Ridge()")
        self.name, self.cats, self.prepare, self.tasks = name, cats, prepare, _tasks_of(self.estimator)
        self.columns = None if columns is None else list(columns)
        self.class_weight = check_class_weight(class_weight, name=name)
        self.forget()

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        self._inputs: DenseInputs | TreeInputs | None = None
        self._task: Task | None = None
        self._n_outputs = 1
        self._parts: list[Any] = []  # for each output its estimator, or the constant that it is

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Train; ``valid`` is not looked at."""
        self.check_task(train)
        check_classes(train, self.class_weight, name=self.name)
        train = learnable(train, name=self.name)
        # Refused before hours of training, not after.
        self._check_kind(self._untrained(train.task, seed, device), train.task)
        self.forget()
        if self.prepare:
            self._inputs = DenseInputs.fit(train, self.columns, self.cats)
        else:
            self._inputs = TreeInputs.fit(train, self.columns)
        values, parts = self._inputs.matrix(train.table).cpu().numpy(), []
        whole, outputs = None if self.time_limit is None else Deadline(self.time_limit), outputs_of(train)
        for i, label in enumerate(outputs):
            weight = output_weight(train, label, self.class_weight)
            deadline = None if whole is None else whole.share(len(outputs) - i)
            untrained = self._untrained(train.task, seed, device)
            parts.append(self._learned(values, label, weight, untrained, train.task, deadline))
        self._parts, self._task, self._n_outputs = parts, train.task, train.n_outputs
        self.trace = Trace(importance=self._importance())
        return self

    def _untrained(self, task: Task, seed: int, device: torch.device | None) -> Any:
        """Return the estimator that learns one output."""
        untrained = clone(self.estimator)
        params = untrained.get_params(deep=True)
        free = {n: seed for n, v in params.items() if n.split("__")[-1] == "random_state" and v is None}
        parts = {"": untrained} | {n: v for n, v in params.items() if hasattr(v, "get_params")}
        for path, part in parts.items():
            name = f"{path}__n_jobs".removeprefix("__")
            if type(part).__module__.startswith(_THREADED) and name in params and params[name] is None:
                free[name] = torch.get_num_threads()
        return untrained.set_params(**free)

    def _check_kind(self, estimator: Any, task: Task) -> None:
        """Refuse, before it is trained, what cannot do the task or could not be saved."""
        packed(estimator, trained=False)
        if task in _CLASSES and not hasattr(estimator, "predict_proba"):
            raise DataError(
                f"{self.name} ({type(estimator).__name__}) says no probabilities",
                remedy="Wrap it: sklearn.calibration.CalibratedClassifierCV(estimator)",
            )

    def _learned(
        self,
        values: np.ndarray,
        label: torch.Tensor,
        weight: torch.Tensor | None,
        made: Any,
        task: Task,
        deadline: Deadline | None,
    ) -> Any:
        """Train the estimator of one output, or return the constant that the output is."""
        if bool((label == label[0]).all()):
            return float(label[0])
        target = label.long().numpy() if task in _CLASSES else label.double().numpy()
        with threadpool_limits(torch.get_num_threads()):
            weights = self._weight_for(made, weight)
            if deadline is None:
                return made.fit(values, target, **weights)
            is_forest = isinstance(made, BaseForest) and not isinstance(made.class_weight, str)
            self._check_time(values, target, made, task, deadline, few_trees=is_forest)
            if is_forest:
                return self._grown(made, lambda: made.fit(values, target, **weights), deadline)
            return made.fit(values, target, **weights)

    def _check_time(
        self, values: np.ndarray, target: np.ndarray, made: Any, task: Task, deadline: Deadline, *, few_trees: bool
    ) -> None:
        """Refuse what would not be trained, nor have predicted as many rows, in the time that is left."""
        # Rows in their order may be of one class.
        rows = np.random.default_rng(0).permutation(len(values))
        jobs = effective_n_jobs(made.n_jobs) if few_trees else 1

        def fit(n: int) -> None:
            trial = clone(made).set_params(n_estimators=jobs) if few_trees else clone(made)
            some, known = values[rows[:n]], target[rows[:n]]
            with suppress(ValueError):  # a class may have too few rows in a part
                self._said(trial.fit(some, known), some, task, int(target.max()) + 1 if task in _CLASSES else 1)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong with the data is said when all rows are learned from
            seconds = seconds_for(len(values), fit, deadline)
        # A forest of fewer than ten trees is not worth beginning.
        seconds *= math.ceil(min(10, made.n_estimators) / jobs) if few_trees else 1
        if seconds > deadline.left:
            raise OutOfTimeError(f"{self.name}: a fit takes about {seconds:.0f} s, {deadline.left:.0f} s are left")

    def _grown(self, made: Any, fit: Callable[[], Any], deadline: Deadline) -> Any:
        """Grow as many trees as fit into the time; with enough of it, the same forest as without a limit."""
        wanted, before = made.n_estimators, made.warm_start
        done, jobs = 0, effective_n_jobs(made.n_jobs)
        # Trees are added in turns, so that the time of the next ones can be judged by the last.
        made.set_params(warm_start=True, n_estimators=min(jobs, wanted))
        while fit() and made.n_estimators < wanted:
            done = made.n_estimators
            possible = int(deadline.left / ((deadline.seconds - deadline.left) / done))
            if possible < jobs:
                break
            made.set_params(n_estimators=min(wanted, done + max(possible // 2, jobs)))
        return made.set_params(warm_start=before)

    def _weight_for(self, made: Any, weight: torch.Tensor | None) -> dict[str, np.ndarray]:
        last, prefix = made, ""
        while isinstance(last, Pipeline):
            step, last = last.steps[-1]
            prefix += f"{step}__"
        if weight is None or bool((weight == weight[0]).all()):
            return {}
        if has_fit_parameter(last, "sample_weight"):
            return {f"{prefix}sample_weight": weight.numpy()}
        warn(f"{self.name}: {type(last).__name__} takes no weights: all rows of a weight above 0 count alike")
        return {}

    def _importance(self) -> dict[str, float]:
        assert self._inputs is not None
        owners = self._inputs.owners if isinstance(self._inputs, DenseInputs) else self._inputs.names
        importance: dict[str, float] = {}
        for part in self._parts:
            values = getattr(part, "feature_importances_", None)
            for name, value in zip(owners, () if values is None else values):
                importance[name] = importance.get(name, 0.0) + float(value)
        return importance

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values, by the task that was learned: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._inputs is None:
            raise self.not_fitted()
        task, k = self._task, self._n_outputs
        if not len(data):
            return torch.zeros((0, k) if task != "binary" and k > 1 else 0, dtype=torch.float64)
        values = self._inputs.matrix(data.table).cpu().numpy()
        with threadpool_limits(torch.get_num_threads()):
            return assembled([self._said(part, values, task, k) for part in self._parts], task)

    def _said(self, part: Any, values: np.ndarray, task: Task, k: int) -> torch.Tensor:
        if isinstance(part, float):
            return torch.full((len(values),), part, dtype=torch.float64)
        if task == "regression":
            return torch.from_numpy(np.asarray(part.predict(values), dtype=np.float64).reshape(len(values)))
        probabilities = torch.from_numpy(np.asarray(part.predict_proba(values), dtype=np.float64))
        if task != "multiclass":
            return probabilities[:, 1]
        result = torch.zeros((len(values), k), dtype=torch.float64)
        result[:, torch.from_numpy(np.asarray(part.classes_).astype(np.int64))] = (
            probabilities  # a class may have had no row
        )
        return result

    # Saving ----------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().settings(), "estimator": packed(self.estimator, trained=False)}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trained estimators, and how columns are prepared."""
        if self._inputs is None:
            raise self.not_fitted()
        # cuML's hand over scikit-learn's twin with what they have learned
        parts = [part.as_sklearn() if hasattr(part, "as_sklearn") else part for part in self._parts]
        save_state(folder / "learned", {"parts": [packed(part) for part in parts]})
        about = {"task": self._task, "n_outputs": self._n_outputs, "scikit-learn": sklearn.__version__}
        return {**self._inputs.write(folder), **about}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        if about["scikit-learn"].split(".")[:2] != sklearn.__version__.split(".")[:2]:
            warn(
                f"{self.name} was saved by scikit-learn {about['scikit-learn']}, and this is {sklearn.__version__}: "
                "what is predicted may differ; train it again where it does"
            )
        self._inputs = (DenseInputs if self.prepare else TreeInputs).read(folder, about)
        self._task, self._n_outputs = about["task"], int(about["n_outputs"])
        self._parts = unpacked(load_state(folder / "learned")["parts"])


def _tasks_of(estimator: Any) -> tuple[Task, ...]:
    with suppress(AttributeError, TypeError, ValueError):  # others' estimators may not say
        if is_classifier(estimator):
            return _CLASSES
        if is_regressor(estimator):
            return ("regression",)
    return (*_CLASSES, "regression")


# ``CuMLModel``: four usual models, by cuML on a GPU and by scikit-learn's twins on a CPU, with the same settings.

Kind = Literal["linear", "knn", "random_forest", "svm"]
_SETTINGS: dict[str, dict[str, Any]] = {  # of each kind, with their defaults
    "linear": {"C": 1.0},
    "knn": {"neighbors": 50},
    "random_forest": {"trees": 200, "depth": 16, "min_leaf": 1},
    "svm": {"C": 1.0},
}


class CuMLModel(SKModel):
    """A linear model, nearest neighbours, a random forest or a support vector machine, for any task but ranking.

    Trained by cuML where ``fit`` is given a CUDA device and cuML is installed, else by scikit-learn; the two differ by
    a little. Columns are prepared and models saved as by ``SKModel``; where cuML trained, scikit-learn's twin is
    saved, with what was learned.

    Args:
        kind: ``'linear'``: logistic regression for classes, ridge for amounts (``C``: the inverse of the penalty).
            ``'knn'``: the mean of the ``neighbors`` nearest rows. ``'random_forest'``: ``trees``, ``depth`` at most,
            ``min_leaf`` rows in a leaf at least. ``'svm'``: SVC or SVR with a Gaussian kernel (``C``: the inverse of
            the penalty); time goes with the square of the rows.
        name: the model's name; None: the kind.
        columns: the columns to use; None: all categories and numbers.
        class_weight: ``'balanced'``, or the weight of each class by its number; None: all alike.
        cats: as in ``SKModel``.
        **settings: of the kind, over the defaults ``C=1``; ``neighbors=50``; ``trees=200, depth=16, min_leaf=1``.

    Raises:
        DataError: there is no such kind, or it has no such setting.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        name: str | None = None,
        columns: Sequence[str] | None = None,
        class_weight: ClassWeight = None,
        cats: Cats = "onehot",
        **settings: Any,
    ) -> None:
        if kind not in _SETTINGS:
            raise DataError(f"there is no kind {kind!r}", remedy=f"Give one of {', '.join(_SETTINGS)}")
        odd = next((n for n in settings if n not in _SETTINGS[kind]), None)
        if odd is not None:
            raise DataError(f"{kind} has no setting {odd!r}", remedy=f"It has {', '.join(_SETTINGS[kind])}")
        self.kind, self.options = kind, {**_SETTINGS[kind], **settings}
        placeholder = _sklearn_twin(kind, "regression", 0, self.options)  # which one it is, the task says
        super().__init__(name or kind, placeholder, columns=columns, class_weight=class_weight, cats=cats)
        self.tasks = ("binary", "multiclass", "regression", "multilabel")

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = ("kind", "name", "columns", "class_weight", "cats")
        return {**{n: getattr(self, n) for n in names}, **self.options}

    def _untrained(self, task: Task, seed: int, device: torch.device | None) -> Any:
        on_gpu = device is not None and device.type == "cuda" and importlib.util.find_spec("cuml") is not None
        return (_cuml if on_gpu else _sklearn_twin)(self.kind, task, seed, self.options)

    def _check_kind(self, estimator: Any, task: Task) -> None:
        if type(estimator).__module__.startswith("cuml.") and not hasattr(estimator, "as_sklearn"):
            raise DataError(f"{self.name}: this cuML hands over no models to be saved", remedy="Update cuML")


def _sklearn_twin(kind: str, task: str, seed: int, options: dict[str, Any]) -> Any:
    amounts, threads = task == "regression", torch.get_num_threads()
    if kind == "linear":
        from sklearn.linear_model import LogisticRegression, Ridge

        return Ridge(alpha=1 / options["C"]) if amounts else LogisticRegression(C=options["C"], max_iter=1000)
    if kind == "knn":
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

        return (KNeighborsRegressor if amounts else KNeighborsClassifier)(options["neighbors"], n_jobs=threads)
    if kind == "random_forest":
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        forest = RandomForestRegressor if amounts else RandomForestClassifier
        return forest(**_forest(options, amounts), random_state=seed, n_jobs=threads)
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC, SVR

    if amounts:
        return SVR(C=options["C"])
    return CalibratedClassifierCV(SVC(C=options["C"], random_state=seed), ensemble=False)


def _cuml(kind: str, task: str, seed: int, options: dict[str, Any]) -> Any:
    def of(module: str, name: str) -> Callable[..., Any]:
        require("cuml", "cuML", "pip install fastrec-tabular[gpu]")
        return getattr(importlib.import_module(f"cuml.{module}"), name)

    amounts = task == "regression"
    if kind == "linear":
        if amounts:
            return of("linear_model", "Ridge")(alpha=1 / options["C"], output_type="numpy")
        return of("linear_model", "LogisticRegression")(C=options["C"], max_iter=1000, output_type="numpy")
    if kind == "knn":
        kind_of = of("neighbors", "KNeighborsRegressor" if amounts else "KNeighborsClassifier")
        return kind_of(n_neighbors=options["neighbors"], output_type="numpy")
    if kind == "random_forest":
        kind_of = of("ensemble", "RandomForestRegressor" if amounts else "RandomForestClassifier")
        # one stream: more than one draw in no fixed order
        return kind_of(**_forest(options, amounts), random_state=seed, n_streams=1, output_type="numpy")
    if amounts:
        return of("svm", "SVR")(C=options["C"], output_type="numpy")
    return of("svm", "SVC")(C=options["C"], probability=True, random_state=seed, output_type="numpy")


def _forest(options: dict[str, Any], amounts: bool) -> dict[str, Any]:
    return {
        "n_estimators": options["trees"],
        "max_depth": options["depth"],
        "min_samples_leaf": options["min_leaf"],
        "max_features": 1 / 3 if amounts else "sqrt",
    }
