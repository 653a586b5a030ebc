"""Estimators of scikit-learn and cuML."""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import scipy.sparse
import sklearn
import torch
from joblib import effective_n_jobs
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble._forest import BaseForest
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from fastrec.errors import DataError, OutOfTimeError, warn
from fastrec.estimators._sklearn_saving import packed, unpacked
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

Cats = Literal["onehot", "code", "every"]
_FOLDER = "numbers"


@dataclass
class _Number:
    """Preparation of a numeric column, learned from the finite values of training rows.

    Missing values are replaced by the median, infinite ones by the minimum or maximum. Then ``mean`` is subtracted and
    the result divided by ``scale``. ``flag``: values were missing in training; a column of 0 and 1 marks them.
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
        # A constant column must not be divided by its rounding errors.
        number.scale = spread if spread > 1e-12 * max(abs(number.mean), 1e-300) else 1.0
        return number

    def fill(self, values: torch.Tensor) -> torch.Tensor:
        return values.nan_to_num(self.median, self.high, self.low)

    def columns(self, values: torch.Tensor) -> list[torch.Tensor]:
        columns = [(self.fill(values) - self.mean) / self.scale]
        return [*columns, values.isnan().double()] if self.flag else columns


class DenseInputs:
    """Numbers, standardised, with the median for missing values (and a column that marks them); categories as ``cats``.

    ``'onehot'``: a column of 0 and 1 for each of the 64 most frequent values, one for all others, none for missing and
    unseen ones. ``'code'``: the value's position in sorted order, 0 for missing and unseen ones. ``'every'``: like
    ``'onehot'``, but for every value of two rows or more, in a sparse matrix.
    """

    def __init__(self, inputs: TreeInputs, cats: Cats, numbers: Mapping[str, _Number]) -> None:
        self.inputs, self.cats, self.numbers = inputs, cats, dict(numbers)

    @classmethod
    def fit(cls, rows: Rows, columns: Sequence[str] | None, cats: Cats) -> DenseInputs:
        """Learn from training rows."""
        inputs = TreeInputs.fit(rows, columns)
        if cats != "code":
            # Rarer values share one column: one for each would make the matrix too wide.
            held: dict[str, int] = {"max_size": 64} if cats == "onehot" else {"min_count": 2}
            inputs.vocabs = {n: Vocab.fit(rows.table[n], **held) for n in inputs.vocabs}
        others = (n for n in inputs.names if n not in inputs.vocabs)
        return cls(inputs, cats, {n: _Number.fit(rows.table[n].number()) for n in others})

    def matrix(self, table: Table) -> np.ndarray | scipy.sparse.csr_array:
        """Return the columns as float64 ``[n, m]``, every value finite; sparse for ``'every'``."""
        blocks = [self._block(table, name) for name in self.inputs.names]
        if self.cats == "every" and blocks:
            return scipy.sparse.hstack([scipy.sparse.csr_array(b) for b in blocks], format="csr")
        return torch.cat(blocks, 1).numpy() if blocks else np.zeros((len(table), 0))

    def _block(self, table: Table, name: str) -> Any:
        if name in self.numbers:
            return torch.stack(self.numbers[name].columns(table[name].number().cpu()), 1)
        # code 0, missing or unseen, has no column of its own
        codes = self.inputs.codes(table, name).cpu()
        if self.cats == "every":
            known, size = codes > 0, len(self.inputs.vocabs[name]) - 1
            ends = np.append(0, known.cumsum(0).numpy()).astype(np.int32)  # liblinear requires 32 bits
            places = (codes[known] - 1).numpy().astype(np.int32)
            return scipy.sparse.csr_array((np.ones(len(places)), places, ends), shape=(len(codes), size))
        if self.cats == "code":
            return codes.double().unsqueeze(1)
        return torch.nn.functional.one_hot(codes, len(self.inputs.vocabs[name]))[:, 1:].double()

    @property
    def widths(self) -> dict[str, int]:
        """How many columns of the matrix each of the table's columns becomes, in their order."""
        wide = {n: 1 if self.cats == "code" else len(v) - 1 for n, v in self.inputs.vocabs.items()}
        wide |= {n: 1 + number.flag for n, number in self.numbers.items()}
        return {n: wide[n] for n in self.inputs.names}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write vocabularies and numbers; see ``TreeInputs.write``."""
        save_state(folder / _FOLDER, {n: vars(how) for n, how in self.numbers.items()})
        return {**self.inputs.write(folder), "cats": self.cats}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> DenseInputs:
        """Restore what ``write`` wrote."""
        numbers = {n: _Number(**how) for n, how in load_state(folder / _FOLDER).items()}
        return cls(TreeInputs.read(folder, about), about["cats"], numbers)


_THREADED = ("sklearn.ensemble._forest", "sklearn.neighbors.")  # modules that use threads if n_jobs is set
_CLASSES: tuple[Task, ...] = ("binary", "multiclass", "multilabel")


class SKModel(Estimator):
    """Any estimator or pipeline of scikit-learn; a task with several targets gets one estimator per target.

    Use a classifier with ``predict_proba`` for classes and a regressor for regression. Rows of weight 0 are excluded.
    The seed of ``fit`` sets ``random_state``, unless that is given.

    The model is saved as plain values and arrays, without pickle and without retraining. Loaded by the same version of
    scikit-learn, it predicts the same to the bit. This works for most of scikit-learn's estimators, but not for
    hyperparameter searches, Gaussian processes or ``memory=``. Your own estimators need attributes that are numbers,
    text, lists, dicts, arrays or such estimators.

    With a time limit, a forest gets as many trees as fit into it. Another estimator is refused if timings on a few rows
    show that training on all rows would take longer.

    Args:
        estimator: an untrained estimator; it is not changed.
        columns: the columns to use; None: all categories and numbers.
        class_weight: ``'balanced'``, or class number → weight; None: equal weights.
        cats: how categories and text columns are encoded. ``'onehot'``: a column of 0 and 1 for each of the 64 most
            frequent values, one for all others, none for missing and unseen ones. ``'code'``: the value's position in
            sorted order, for trees. ``'every'``: like ``'onehot'``, but for every value of two rows or more, in a
            sparse matrix, as for linear models of ids.
        prepare: replace missing numbers by the median, add a column that marks them, and standardise. False: the
            estimator (such as a pipeline) gets the raw columns in their order: NaN if missing, categories by code.
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
        if cats not in get_args(Cats):
            remedy = "Give 'onehot', 'code' or 'every'"
            raise DataError(f"{name} cannot prepare categories as {cats!r}", remedy=remedy)
        self.estimator = unpacked(estimator) if isinstance(estimator, Mapping) else estimator
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "get_params"):
            raise DataError(f"{name} was given no estimator", remedy="Give one as scikit-learn has them: Ridge()")
        linear = any(k.__module__.startswith("sklearn.linear_model") for k in type(self.estimator).__mro__)
        if cats == "every" and not (prepare and linear):
            problem = f"{name} is to have a column for every value, and is no linear model with prepare=True"
            raise DataError(problem, remedy="Give 'onehot' or 'code'")
        self.name, self.cats, self.prepare, self.tasks = name, cats, prepare, (*_CLASSES, "regression")
        with suppress(AttributeError, TypeError, ValueError):  # other libraries' estimators may not tell
            if is_classifier(self.estimator):
                self.tasks = _CLASSES
            elif is_regressor(self.estimator):
                self.tasks = ("regression",)
        self.columns = None if columns is None else list(columns)
        self.class_weight = check_class_weight(class_weight, name=name)
        self.forget()

    def forget(self) -> None:
        """Drop what was learned."""
        super().forget()
        self._inputs: DenseInputs | TreeInputs | None = None
        self._task: Task | None = None
        self._n_outputs = 1
        self._parts: list[Any] = []  # for each output, its estimator or a constant

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Train the estimators, without looking at ``valid``."""
        self.check_task(train)
        check_classes(train, self.class_weight, name=self.name)
        train = learnable(train, name=self.name)
        # Refuse before hours of training, not after.
        self._check_kind(self._untrained(train.task, seed, device), train.task)
        self.forget()
        self._inputs = inputs = (
            DenseInputs.fit(train, self.columns, self.cats) if self.prepare else TreeInputs.fit(train, self.columns)
        )
        # one matrix for all outputs
        values, parts = self._matrix(train.table), []
        whole, outputs = None if self.time_limit is None else Deadline(self.time_limit), outputs_of(train)
        for i, label in enumerate(outputs):
            weight = output_weight(train, label, self.class_weight)
            deadline = None if whole is None else whole.share(len(outputs) - i)
            untrained = self._untrained(train.task, seed, device)
            parts.append(self._learned(values, label, weight, untrained, train.task, deadline))
        self._parts, self._task, self._n_outputs = parts, train.task, train.n_outputs
        wide = inputs.widths if isinstance(inputs, DenseInputs) else dict.fromkeys(inputs.names, 1)
        owners = [n for n, columns in wide.items() for _ in range(columns)]
        importance: dict[str, float] = {}
        for part in parts:
            gains = getattr(part, "feature_importances_", None)
            for name, value in zip(owners, () if gains is None else gains):
                importance[name] = importance.get(name, 0.0) + float(value)
        self.trace = Trace(importance=importance)
        return self

    def _matrix(self, table: Table) -> Any:
        made = self._inputs.matrix(table)  # type: ignore[union-attr]
        return made.cpu().numpy() if isinstance(made, torch.Tensor) else made

    def _untrained(self, task: Task, seed: int, device: torch.device | None) -> Any:
        """Return the estimator that learns one output."""
        untrained = clone(self.estimator)
        params = untrained.get_params(deep=True)
        # the seed goes to every step of a pipeline that has none
        free = {n: seed for n, v in params.items() if n.split("__")[-1] == "random_state" and v is None}
        parts = {"": untrained} | {n: v for n, v in params.items() if hasattr(v, "get_params")}
        for path, part in parts.items():
            name = f"{path}__n_jobs".removeprefix("__")
            if type(part).__module__.startswith(_THREADED) and name in params and params[name] is None:
                free[name] = torch.get_num_threads()
        return untrained.set_params(**free)

    def _check_kind(self, estimator: Any, task: Task) -> None:
        """Refuse an estimator that does not support the task or could not be saved."""
        packed(estimator, trained=False)
        if task in _CLASSES and not hasattr(estimator, "predict_proba"):
            remedy = "Wrap it: sklearn.calibration.CalibratedClassifierCV(estimator)"
            raise DataError(f"{self.name} ({type(estimator).__name__}) says no probabilities", remedy=remedy)

    def _learned(
        self, values: np.ndarray, label: torch.Tensor, weight: torch.Tensor | None, untrained: Any, task: Task,
        deadline: Deadline | None,
    ) -> Any:  # fmt: skip
        """Train the estimator of one output, or return the constant of a constant output."""
        if bool((label == label[0]).all()):
            return float(label[0])
        target = label.long().numpy() if task in _CLASSES else label.double().numpy()
        with threadpool_limits(torch.get_num_threads()):
            weights = self._weight_for(untrained, weight)
            is_forest = isinstance(untrained, BaseForest) and not isinstance(untrained.class_weight, str)
            if deadline is not None:
                self._check_time(values, target, untrained, task, deadline, few_trees=is_forest)
            if deadline is None or not is_forest:
                return untrained.fit(values, target, **weights)
            return self._grown(untrained, lambda: untrained.fit(values, target, **weights), deadline)

    def _check_time(
        self, values: np.ndarray, target: np.ndarray, untrained: Any, task: Task, deadline: Deadline, *, few_trees: bool
    ) -> None:
        """Refuse an estimator if training it, or predicting as many rows, would exceed the remaining time."""
        # Neighbouring rows may all be of one class.
        rows = np.random.default_rng(0).permutation(values.shape[0])
        jobs = effective_n_jobs(untrained.n_jobs) if few_trees else 1

        def fit(n: int) -> None:
            trial = clone(untrained).set_params(n_estimators=jobs) if few_trees else clone(untrained)
            some, known = values[rows[:n]], target[rows[:n]]
            with suppress(ValueError):  # a class may have too few rows in a subset
                self._said(trial.fit(some, known), some, task, int(target.max()) + 1 if task in _CLASSES else 1)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # problems of the data are reported when all rows are used
            seconds = seconds_for(values.shape[0], fit, deadline)
        # A forest of fewer than ten trees is not worth training.
        seconds *= math.ceil(min(10, untrained.n_estimators) / jobs) if few_trees else 1
        if seconds > deadline.left:
            raise OutOfTimeError(f"{self.name}: a fit takes about {seconds:.0f} s, {deadline.left:.0f} s are left")

    def _grown(self, forest: Any, fit: Callable[[], Any], deadline: Deadline) -> Any:
        """Grow as many trees as fit into the time; if all fit, the forest equals the one without a limit."""
        wanted, before, jobs = forest.n_estimators, forest.warm_start, effective_n_jobs(forest.n_jobs)
        # Trees are added in turns, so that the last turn's time tells how many more fit.
        forest.set_params(warm_start=True, n_estimators=min(jobs, wanted))
        while fit() and forest.n_estimators < wanted:
            done = forest.n_estimators
            possible = int(deadline.left / ((deadline.seconds - deadline.left) / done))
            if possible < jobs:
                break
            forest.set_params(n_estimators=min(wanted, done + max(possible // 2, jobs)))
        return forest.set_params(warm_start=before)

    def _weight_for(self, estimator: Any, weight: torch.Tensor | None) -> dict[str, np.ndarray]:
        last, prefix = estimator, ""
        while isinstance(last, Pipeline):
            step, last = last.steps[-1]
            prefix += f"{step}__"
        if weight is None or bool((weight == weight[0]).all()):
            return {}
        if has_fit_parameter(last, "sample_weight"):
            return {f"{prefix}sample_weight": weight.numpy()}
        warn(f"{self.name}: {type(last).__name__} takes no weights: all rows of a weight above 0 count alike")
        return {}

    def predict(self, data: Rows) -> torch.Tensor:
        """Return probabilities or values, depending on the task: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._inputs is None:
            raise self.not_fitted()
        task, k = self._task, self._n_outputs
        if not len(data):
            return torch.zeros((0, k) if task != "binary" and k > 1 else 0, dtype=torch.float64)
        values = self._matrix(data.table)
        with threadpool_limits(torch.get_num_threads()):
            return assembled([self._said(part, values, task, k) for part in self._parts], task)

    def _said(self, part: Any, values: np.ndarray, task: Task, k: int) -> torch.Tensor:
        if isinstance(part, float):
            return torch.full((values.shape[0],), part, dtype=torch.float64)
        if task == "regression":
            return torch.from_numpy(np.asarray(part.predict(values), dtype=np.float64).reshape(values.shape[0]))
        probabilities = torch.from_numpy(np.asarray(part.predict_proba(values), dtype=np.float64))
        if task != "multiclass":
            return probabilities[:, 1]
        result = torch.zeros((len(probabilities), k), dtype=torch.float64)
        # a class may have had no row
        result[:, torch.from_numpy(np.asarray(part.classes_).astype(np.int64))] = probabilities
        return result

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().settings(), "estimator": packed(self.estimator, trained=False)}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trained estimators and the preparation of columns."""
        if self._inputs is None:
            raise self.not_fitted()
        save_state(folder / "learned", {"parts": [packed(_twin(part)) for part in self._parts]})
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


def _twin(part: Any) -> Any:
    """Return scikit-learn's equivalent of a trained cuML estimator; return any other unchanged."""
    if isinstance(part, CalibratedClassifierCV) and hasattr(part.estimator, "as_sklearn"):
        part = copy.deepcopy(part).set_params(estimator=part.estimator.as_sklearn())
        for inner in part.calibrated_classifiers_:
            inner.estimator = inner.estimator.as_sklearn()
    return part.as_sklearn() if hasattr(part, "as_sklearn") else part


Kind = Literal["linear", "knn", "random_forest", "svm"]
_SETTINGS: dict[str, dict[str, Any]] = {  # each kind's settings, with their defaults
    "linear": {"C": 1.0},
    "knn": {"neighbors": 50},
    "random_forest": {"trees": 200, "depth": 16, "min_leaf": 1},
    "svm": {"C": 1.0},
}


class CuMLModel(SKModel):
    """A linear model, nearest neighbours, a random forest or a support vector machine, for any task but ranking.

    If ``fit`` is given a CUDA device and cuML is installed, cuML trains; otherwise scikit-learn. The results differ
    slightly. Columns are prepared and models saved as in ``SKModel``; a model trained by cuML is saved as
    scikit-learn's equivalent.

    Args:
        kind: ``'linear'``: logistic regression for classes, ridge for regression (``C``: inverse of the penalty).
            ``'knn'``: the mean of the ``neighbors`` nearest rows. ``'random_forest'``: ``trees``, maximum ``depth``,
            and at least ``min_leaf`` rows in a leaf. ``'svm'``: SVC or SVR with a Gaussian kernel (``C``: inverse of
            the penalty); its time grows with the square of the rows.
        name: the model's name; None: the kind.
        columns, class_weight, cats: as for ``SKModel``.
        **settings: the kind's settings; defaults: ``C=1``; ``neighbors=50``; ``trees=200, depth=16, min_leaf=1``.
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
        placeholder = _estimator_of("sklearn", kind, "regression", 0, self.options)  # the task tells which one
        super().__init__(name or kind, placeholder, columns=columns, class_weight=class_weight, cats=cats)
        self.tasks = ("binary", "multiclass", "regression", "multilabel")

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {n: getattr(self, n) for n in ("kind", "name", "columns", "class_weight", "cats")} | self.options

    def _untrained(self, task: Task, seed: int, device: torch.device | None) -> Any:
        on_gpu = device is not None and device.type == "cuda" and find_spec("cuml") is not None
        return _estimator_of("cuml" if on_gpu else "sklearn", self.kind, task, seed, self.options)

    def _check_kind(self, estimator: Any, task: Task) -> None:
        estimator = getattr(estimator, "estimator", estimator)
        if type(estimator).__module__.startswith("cuml.") and not hasattr(estimator, "as_sklearn"):
            raise DataError(f"{self.name}: this cuML hands over no models to be saved", remedy="Update cuML")


def _estimator_of(library: str, kind: str, task: str, seed: int, options: Mapping[str, Any]) -> Any:
    """Return an untrained estimator of a library, ``'sklearn'`` or ``'cuml'``."""
    amounts, o = task == "regression", defaultdict(int, options)
    module, names, given = {
        "linear": (
            "linear_model", ("LogisticRegression", "Ridge"),
            {"alpha": 1 / (o["C"] or 1)} if amounts else {"C": o["C"], "max_iter": 1000},
        ),
        "knn": ("neighbors", ("KNeighborsClassifier", "KNeighborsRegressor"), {"n_neighbors": o["neighbors"]}),
        "random_forest": (
            "ensemble", ("RandomForestClassifier", "RandomForestRegressor"),
            {"n_estimators": o["trees"], "max_depth": o["depth"], "min_samples_leaf": o["min_leaf"],
             "max_features": 1 / 3 if amounts else "sqrt", "random_state": seed},
        ),
        "svm": ("svm", ("SVC", "SVR"), {"C": o["C"]} if amounts else {"C": o["C"], "random_state": seed}),
    }[kind]  # fmt: skip
    if library == "cuml":
        # a single stream, as several draw random numbers in no fixed order
        given |= {"output_type": "numpy"} | ({"n_streams": 1} if kind == "random_forest" else {})
    elif kind in ("knn", "random_forest"):
        given["n_jobs"] = torch.get_num_threads()
    estimator = getattr(import_module(f"{library}.{module}"), names[amounts])(**given)
    return CalibratedClassifierCV(estimator, ensemble=False) if kind == "svm" and not amounts else estimator
