"""Which settings of a model are searched, and between what."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
from fastrec.estimators._architecture import Architecture, name_of
from fastrec.estimators._recipes import default_model, recipe_of
from fastrec.validate import Rows

_DIGITS = 3  # of a setting: what is printed is what was scored


@dataclass(frozen=True)
class Dim:
    """One setting.

    Args:
        name: as the estimator, or the option of its net, is given it.
        low, high: between what.
        log: even steps of it are factors.
        whole: a whole number.
        option: an option of the net.
    """

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
    option: bool = False

    def suggest(self, trial: Any) -> float:
        """The value that an Optuna trial gives it."""
        if self.whole:
            return int(trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log))
        return float(f"{trial.suggest_float(self.name, self.low, self.high, log=self.log):.{_DIGITS}g}")


_XGB = (
    Dim("eta", 0.01, 0.3, log=True),
    Dim("max_depth", 3, 10, whole=True),
    Dim("min_child_weight", 0.1, 100, log=True),
    Dim("subsample", 0.5, 1),
    Dim("colsample_bytree", 0.2, 1),
    Dim("reg_lambda", 0.01, 100, log=True),
)
_LGBM = (
    Dim("learning_rate", 0.01, 0.3, log=True),
    Dim("num_leaves", 7, 255, log=True, whole=True),
    Dim("min_data_in_leaf", 3, 300, log=True, whole=True),
    Dim("feature_fraction", 0.2, 1),
    Dim("bagging_fraction", 0.5, 1),
    Dim("lambda_l2", 0.01, 100, log=True),
)
_CATBOOST = (
    Dim("learning_rate", 0.01, 0.3, log=True),
    Dim("depth", 4, 9, whole=True),
    Dim("l2_leaf_reg", 0.5, 30, log=True),
    Dim("random_strength", 0.1, 10, log=True),
)
_TREES: Mapping[type[Estimator], tuple[Dim, ...]] = {
    XGBModel: _XGB,
    XGBRanker: _XGB,
    LGBMModel: _LGBM,
    CatBoostModel: _CATBOOST,
}
# What else the libraries call these settings: a recipe's own value under another name gives way.
_OTHER_NAMES = {
    "eta": ("learning_rate",),
    "reg_lambda": ("lambda",),
    "learning_rate": ("eta", "shrinkage_rate"),
    "num_leaves": ("num_leaf", "max_leaves", "max_leaf", "max_leaf_nodes"),
    "min_data_in_leaf": ("min_data_per_leaf", "min_data", "min_child_samples", "min_samples_leaf"),
    "feature_fraction": ("sub_feature", "colsample_bytree"),
    "bagging_fraction": ("sub_row", "subsample", "bagging"),
    "lambda_l2": ("reg_lambda", "lambda", "l2_regularization"),
    "depth": ("max_depth",),
    "l2_leaf_reg": ("reg_lambda",),
}


def is_tree(model: Estimator) -> bool:
    """Whether a model is one of trees that can be tuned."""
    return type(_inner(model)) in _TREES


def has_space(model: Estimator) -> bool:
    """Whether a model's settings can be searched."""
    return is_tree(model) or isinstance(_inner(model), NetModel | NetRanker)


def space_of(model: Estimator, rows: Rows) -> tuple[Dim, ...]:
    """What is searched for a model.

    Args:
        model: the model, with the run's settings.
        rows: what it is trained on.

    Raises:
        DataError: nothing is known of its class.
    """
    inner = _inner(model)
    if is_tree(inner):
        dims = _TREES[type(inner)]
        if inner.early_stopping_rounds is None:  # type: ignore[attr-defined]
            rounds = inner.rounds  # type: ignore[attr-defined]
            dims = (Dim("rounds", max(rounds // 4, 1), 4 * rounds, log=True, whole=True), *dims)
        return dims
    if isinstance(inner, NetModel | NetRanker):
        return _net_space(inner, rows)
    known = ", ".join(sorted(c.__name__ for c in (*_TREES, NetModel, NetRanker)))
    raise DataError(
        f"{model.name} is a {type(inner).__name__}, of whose settings nothing is known",
        remedy=f"Choose a model of {known}",
    )


def _net_space(net: NetModel | NetRanker, rows: Rows) -> tuple[Dim, ...]:
    if isinstance(net, NetModel):
        model = Architecture(default_model(rows) if net.model == "auto" else net.model).model
        usual = recipe_of(model, rows.task)  # type: ignore[arg-type]
        lr, epochs = net.lr or usual.lr, net.epochs or usual.epochs
    else:
        model, lr, epochs = net.architecture.model, net.lr, net.epochs
    dims = [
        Dim("lr", lr / 5, lr * 5, log=True),
        Dim("wd", 0.001, 0.3, log=True),
        Dim("epochs", max(epochs // 2, 1), 2 * epochs, log=True, whole=True),
    ]
    return (
        *dims,
        *(d for d in (Dim("ps", 0, 0.5, option=True), Dim("embed_p", 0, 0.4, option=True)) if _takes(model, d)),
    )


def _takes(model: Any, dim: Dim) -> bool:
    try:
        Architecture(model, {dim.name: dim.low})
    except DataError:
        return False
    return True


def with_settings(model: Estimator, dims: tuple[Dim, ...], values: Mapping[str, float]) -> Estimator:
    """An untrained copy of a model with other settings.

    Args:
        model: the model.
        dims: what is searched.
        values: setting → value.
    """
    if isinstance(model, OffsetModel):
        assert model.model is not None
        return OffsetModel(with_settings(model.model, dims, values), model.column)
    if isinstance(model, CentredModel):
        assert model.model is not None
        return CentredModel(with_settings(model.model, dims, values), model.column, share=model.share)
    made = arguments(model)
    for dim in dims:
        if dim.option:
            made["options"] = {**made.get("options", {}), dim.name: values[dim.name]}
            continue
        for other in _OTHER_NAMES.get(dim.name, ()) if is_tree(model) else ():
            made.pop(other, None)
        made[dim.name] = values[dim.name]
    return type(model)(**made)


def arguments(model: Estimator) -> dict[str, Any]:
    """What a model's class is to be called with to make it again."""
    made = model.settings()
    if isinstance(model, NetModel):
        made |= {"model": model.model, "options": dict(model.options), "stop_by": model.stop_by}
    elif isinstance(model, NetRanker):
        own = model.architecture
        plain = {n: v for n, v in own.options.items() if not _holds_tensors(v)}  # tensors are learnt from rows
        made |= {"model": own.model, "options": plain}
    return made


def as_line(model: Estimator) -> str:
    """A model as a line of a recipe: what it is called with, without what is so anyway."""
    if isinstance(model, OffsetModel):
        assert model.model is not None
        return f"OffsetModel({as_line(model.model)}, {model.column!r})"
    if isinstance(model, CentredModel):
        assert model.model is not None
        return f"CentredModel({as_line(model.model)}, {model.column!r}, share={model.share})"
    made = arguments(model)
    usual = {n: p.default for n, p in inspect.signature(type(model).__init__).parameters.items()}
    if isinstance(model, NetModel | NetRanker):
        if not isinstance(made["model"], str):
            made["model"] = name_of(made["model"])
        made = {**made, "stop_by": made["stop_by"].name} if made.get("stop_by") is not None else made
        made = {n: v for n, v in made.items() if not (n == "options" and not v)}
    given = [f"{n}={_shown(v)}" for n, v in made.items() if n != "name" and not (n in usual and _same(usual[n], v))]
    return f"{type(model).__name__}({', '.join([repr(model.name), *given])})"


def _same(usual: Any, value: Any) -> bool:
    return type(usual) is type(value) and bool(usual == value)


def _shown(value: Any) -> str:
    """A value as Python reads it; a class by its name, as ``nn.SiLU``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{n!r}: {_shown(v)}" for n, v in value.items()) + "}"
    if isinstance(value, type):
        return f"nn.{value.__name__}" if value.__module__.startswith("torch.nn") else value.__name__
    return repr(value)


def _holds_tensors(value: Any) -> bool:
    several = isinstance(value, list | tuple)
    return isinstance(value, torch.Tensor) or (several and any(isinstance(v, torch.Tensor) for v in value))


def _inner(model: Estimator) -> Estimator:
    while isinstance(model, CentredModel | OffsetModel) and model.model is not None:
        model = model.model
    return model
