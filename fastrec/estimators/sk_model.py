"""``SKModel``: any estimator of scikit-learn, or with its manners."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from fastrec.errors import DataError, DataWarning
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
from fastrec.estimators._sk_description import described, made_of
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
    left out. What draws random numbers draws them by the seed of ``fit``, unless its ``random_state`` is given.

    scikit-learn has no form to be saved in but pickle, which runs whatever a file says. What is saved instead is the
    estimator's class and parameters with the matrix that it was trained on, and ``load`` trains it again: the same
    numbers, by any later version too, for as long as training takes and as much space as the matrix.

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
        self.estimator = made_of(estimator) if isinstance(estimator, Mapping) else estimator
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
        self._lesson: dict[str, Any] = {}  # all that training needs: ``read`` trains again
        self._parts: list[Any] = []  # for each output its estimator, or the constant that it is

    def fit(
        self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> SKModel:
        """Train; ``valid`` is not looked at."""
        self.check_task(train)
        check_classes(train, self.class_weight, name=self.name)
        train = learnable(train, name=self.name)
        self._check_kind(self._untrained(train.task, seed, device), train.task)
        self.forget()
        if self.prepare:
            self._inputs = DenseInputs.fit(train, self.columns, self.cats)
        else:
            self._inputs = TreeInputs.fit(train, self.columns)
        labels = outputs_of(train)
        self._lesson = {
            "task": train.task,
            "n_outputs": train.n_outputs,
            "seed": seed,
            "on": self._library(device),
            "values": self._inputs.matrix(train.table).cpu(),
            "labels": labels,
            "weights": [output_weight(train, label, self.class_weight) for label in labels],
        }
        self._learn(device)
        return self

    def _library(self, device: torch.device | None) -> str:
        return "sklearn"

    def _untrained(self, task: Task, seed: int, device: torch.device | None) -> Any:
        """The estimator that learns one output."""
        made = clone(self.estimator)
        params = made.get_params(deep=True)
        free = {n: seed for n, v in params.items() if n.split("__")[-1] == "random_state" and v is None}
        parts = {"": made} | {n: v for n, v in params.items() if hasattr(v, "get_params")}
        for path, part in parts.items():
            name = f"{path}__n_jobs".removeprefix("__")
            if type(part).__module__.startswith(_THREADED) and name in params and params[name] is None:
                free[name] = torch.get_num_threads()
        return made.set_params(**free)

    def _check_kind(self, estimator: Any, task: Task) -> None:
        if task in _CLASSES and not hasattr(estimator, "predict_proba"):
            raise DataError(
                f"{self.name} ({type(estimator).__name__}) says no probabilities",
                remedy="Wrap it: sklearn.calibration.CalibratedClassifierCV(estimator)",
            )

    def _learn(self, device: torch.device | None) -> None:
        """Train each output by the lesson."""
        lesson, task = self._lesson, self._lesson["task"]
        values, self._parts = lesson["values"].numpy(), []
        for label, weight in zip(lesson["labels"], lesson["weights"], strict=True):
            if bool((label == label[0]).all()):
                self._parts.append(float(label[0]))
                continue
            made = self._untrained(task, lesson["seed"], device)
            target = label.long().numpy() if task in _CLASSES else label.double().numpy()
            with threadpool_limits(torch.get_num_threads()):
                made.fit(values, target, **self._weight_for(made, weight))
            self._parts.append(made)
        self.trace = Trace(importance=self._importance())

    def _weight_for(self, made: Any, weight: torch.Tensor | None) -> dict[str, np.ndarray]:
        """The weights as the estimator takes them."""
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
        """Feature → the importance that the estimators say, where they do."""
        assert self._inputs is not None
        owners = self._inputs.owners if isinstance(self._inputs, DenseInputs) else self._inputs.names
        found: dict[str, float] = {}
        for part in self._parts:
            said = getattr(part, "feature_importances_", None)
            for name, value in zip(owners, () if said is None else said):
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def predict(self, data: Rows) -> torch.Tensor:
        """Probabilities or values, by the task that was learned: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._inputs is None:
            raise self.not_fitted()
        task, k = self._lesson["task"], self._lesson["n_outputs"]
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
        said = torch.from_numpy(np.asarray(part.predict_proba(values), dtype=np.float64))
        if task != "multiclass":
            return said[:, 1]
        result = torch.zeros((len(values), k), dtype=torch.float64)
        result[:, torch.from_numpy(np.asarray(part.classes_).astype(np.int64))] = said  # a class may have had no row
        return result

    # Saving ----------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("name", "columns", "class_weight", "cats", "prepare")
        return {**{n: getattr(self, n) for n in names}, "estimator": described(self.estimator)}

    def write(self, folder: Path) -> dict[str, Any]:
        """What it was trained on, and how columns are prepared."""
        if self._inputs is None:
            raise self.not_fitted()
        save_state(folder / "lesson", self._lesson)
        return self._inputs.write(folder)

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Train again, as it was trained."""
        self._inputs = (DenseInputs if self.prepare else TreeInputs).read(folder, about)
        self._lesson = load_state(folder / "lesson")
        self._learn(self._device_again())

    def _device_again(self) -> torch.device | None:
        """Where it is trained again."""
        return None


def _tasks_of(estimator: Any) -> tuple[Task, ...]:
    """What an estimator can do, as far as it says."""
    try:
        if is_classifier(estimator):
            return _CLASSES
        if is_regressor(estimator):
            return ("regression",)
    except (AttributeError, TypeError, ValueError):  # others' estimators may not say
        pass
    return (*_CLASSES, "regression")
