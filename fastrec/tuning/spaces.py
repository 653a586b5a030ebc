"""The settings of each class of models that are searched, and their bounds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.estimators import (
    CatBoostModel,
    CentredModel,
    Estimator,
    LGBMModel,
    NetModel,
    NetRanker,
    OffsetModel,
    XGBModel,
    XGBRanker,
)
from fastrec.estimators._net_training import Architecture, default_model, name_of, recipe_of
from fastrec.estimators.base import Wrapper
from fastrec.validate import Rows


@dataclass(frozen=True)
class Dim:
    """One setting: an estimator's argument, or an ``option`` of its net, and the bounds of its values."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    option: bool = False

    def suggest(self, trial: Any) -> float:
        """Draw a value by an Optuna trial."""
        if self.whole:
            return int(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        # three digits: the printed line has exactly the settings that were scored
        return float(f"{trial.suggest_float(self.name, self.low, self.high, log=self.log):.3g}")


_XGB = (
    Dim("eta", 0.01, 0.3, log=True),
    Dim("max_depth", 3, 10, whole=True),
    Dim("min_child_weight", 0.1, 100, log=True),
    Dim("subsample", 0.5, 1),
    Dim("colsample_bytree", 0.2, 1),
    Dim("reg_lambda", 0.01, 100, log=True),
)
_TREES: Mapping[type[Estimator], tuple[Dim, ...]] = {
    XGBModel: _XGB,
    XGBRanker: _XGB,
    LGBMModel: (
        Dim("learning_rate", 0.01, 0.3, log=True),
        Dim("num_leaves", 7, 255, log=True, whole=True),
        Dim("min_data_in_leaf", 3, 300, log=True, whole=True),
        Dim("feature_fraction", 0.2, 1),
        Dim("bagging_fraction", 0.5, 1),
        Dim("lambda_l2", 0.01, 100, log=True),
    ),
    CatBoostModel: (
        Dim("learning_rate", 0.01, 0.3, log=True),
        Dim("depth", 4, 9, whole=True),
        Dim("l2_leaf_reg", 0.5, 30, log=True),
        Dim("random_strength", 0.1, 10, log=True),
    ),
}


def is_tree(model: Estimator) -> bool:
    """Check if a model is one of trees that can be tuned."""
    return type(_inner(model)) in _TREES


def has_space(model: Estimator) -> bool:
    """Check if a model's settings can be searched."""
    return is_tree(model) or isinstance(_inner(model), NetModel | NetRanker)


def space_of(model: Estimator, rows: Rows) -> tuple[Dim, ...]:
    """List the settings to search; an ``"auto"`` net chooses its architecture by the training rows."""
    inner: Any = _inner(model)
    if is_tree(inner):
        dims = _TREES[type(inner)]
        # with early stopping the number of rounds is learned, not searched
        if inner.early_stopping_rounds is None:
            dims = (Dim("rounds", max(inner.rounds // 4, 1), 4 * inner.rounds, log=True, whole=True), *dims)
        return dims
    # around the recipe's own rate and epochs: what is good differs by model and task
    if isinstance(inner, NetModel):
        net = Architecture(default_model(rows) if inner.model == "auto" else inner.model).model
        usual = recipe_of(net, rows.task)  # type: ignore[arg-type]
        lr, epochs = inner.lr or usual.lr, inner.epochs or usual.epochs
    else:
        net, lr, epochs = inner.architecture.model, inner.lr, inner.epochs
    dims = (
        Dim("lr", lr / 5, lr * 5, log=True),
        Dim("wd", 0.001, 0.3, log=True),
        Dim("epochs", max(epochs // 2, 1), 2 * epochs, log=True, whole=True),
    )
    for option in (Dim("ps", 0, 0.5, option=True), Dim("embed_p", 0, 0.4, option=True)):
        with suppress(DataError):  # the architecture has no such option
            Architecture(net, {option.name: option.low})
            dims = (*dims, option)
    return dims


def with_settings(model: Estimator, dims: tuple[Dim, ...], values: Mapping[str, float]) -> Estimator:
    """Copy a model, untrained, with other values of the settings ``dims``."""
    given = _arguments(model)
    if isinstance(model, Wrapper):
        return type(model)(**{**given, "model": with_settings(model.model, dims, values)})
    for dim in dims:
        if dim.option:
            given["options"] = {**given.get("options", {}), dim.name: values[dim.name]}
            continue
        # a recipe's value under another name must go, or the library would refuse both
        for other in [alias for alias, name in getattr(model, "aliases", {}).items() if name == dim.name]:
            given.pop(other, None)
        given[dim.name] = values[dim.name]
    return type(model)(**given)


def _arguments(model: Estimator) -> dict[str, Any]:
    """Return the arguments that make the model again."""
    given = model.settings()
    if isinstance(model, NetModel):
        given |= {"model": model.model, "options": dict(model.options), "stop_by": model.stop_by}
    elif isinstance(model, NetRanker):
        # tensors, alone or in lists, are learned from rows: they are no settings
        options = {
            n: v
            for n, v in model.architecture.options.items()
            if not any(isinstance(x, torch.Tensor) for x in (v if isinstance(v, list | tuple) else [v]))
        }
        given |= {"model": model.architecture.model, "options": options}
    return given


def as_line(model: Estimator) -> str:
    """Format a model as a line of a recipe, without arguments that have their default."""
    parameters = inspect.signature(type(model).__init__).parameters
    if isinstance(model, Wrapper):
        texts = [as_line(model.model)]
        for n, v in model.settings().items():
            named = parameters[n].kind is inspect.Parameter.KEYWORD_ONLY
            texts += [] if n == "model" else [f"{n}={v!r}" if named else repr(v)]
        return f"{type(model).__name__}({', '.join(texts)})"
    given = _arguments(model)
    usual = {n: p.default for n, p in parameters.items()}
    if isinstance(model, NetModel | NetRanker):
        if not isinstance(given["model"], str):
            given["model"] = name_of(given["model"])
        if given.get("stop_by") is not None:
            given["stop_by"] = given["stop_by"].name
        if not given.get("options"):
            given.pop("options", None)
    # types are compared too: True == 1
    other = {n: v for n, v in given.items() if n not in usual or type(usual[n]) is not type(v) or usual[n] != v}
    texts = [f"{n}={_shown(v)}" for n, v in other.items() if n != "name"]
    return f"{type(model).__name__}({', '.join([repr(model.name), *texts])})"


def _shown(value: Any) -> str:
    """Format a value as Python source; a class by its name, such as ``nn.SiLU``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{n!r}: {_shown(v)}" for n, v in value.items()) + "}"
    if isinstance(value, type):
        return f"nn.{value.__name__}" if value.__module__.startswith("torch.nn") else value.__name__
    return repr(value)


def _inner(model: Estimator) -> Estimator:
    while isinstance(model, CentredModel | OffsetModel) and model.model is not None:
        model = model.model
    return model
