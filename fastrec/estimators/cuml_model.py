"""``CuMLModel``: four usual models, by cuML on a GPU and by scikit-learn's twins on a CPU, with the same settings."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from fastrec._core.optional import require
from fastrec.errors import DataError
from fastrec.estimators._dense_inputs import Cats
from fastrec.estimators._learnable import ClassWeight
from fastrec.estimators.sk_model import SKModel
from fastrec.validate.tasks import Task

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
