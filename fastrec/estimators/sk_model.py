"""``SKModel``: any estimator of scikit-learn, or with its manners."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import sklearn
import torch
from joblib import effective_n_jobs
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.ensemble._forest import BaseForest
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from fastrec.errors import DataError, DataWarning, OutOfTimeError
from fastrec.estimators._dense_inputs import Cats, DenseInputs
from fastrec.estimators._learnable import (
    ClassWeight,
    assembled,
    check_class_weight,
    check_classes,
    learnable,
    output_weight,
    outputs_of,
)
from fastrec.estimators._pace import Deadline, seconds_for
from fastrec.estimators._sk_saved import packed, unpacked
from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.estimators.base import Estimator, Trace
from fastrec.table import load_state, save_state
from fastrec.validate import Rows
from fastrec.validate.tasks import Task

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
        warnings.warn(
            f"{self.name}: {type(last).__name__} takes no weights: all rows of a weight above 0 count alike",
            DataWarning,
            stacklevel=4,
        )
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
            warnings.warn(
                f"{self.name} was saved by scikit-learn {about['scikit-learn']}, and this is {sklearn.__version__}: "
                "what is predicted may differ; train it again where it does",
                DataWarning,
                stacklevel=4,
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
