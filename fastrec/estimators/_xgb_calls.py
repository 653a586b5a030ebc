"""XGBoost's own interface, as ``XGBRanker`` and ``XGBModel`` use it: names, arrays on either device, predictions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xgboost as xgb


def names_for_xgboost(names: Sequence[str]) -> list[str]:
    """Escape the characters of column names that XGBoost refuses."""
    return [n.replace("%", "%25").replace("[", "%5B").replace("]", "%5D").replace("<", "%3C") for n in names]


def params_for_xgboost(params: Mapping[str, Any], seed: int, device: torch.device | None) -> dict[str, Any]:
    """Add the seed, the device and torch's number of threads; rename the columns of constraints."""
    params = {**params, "seed": seed}
    params["device"] = str(device) if device is not None and device.type == "cuda" else "cpu"
    params.setdefault("nthread", torch.get_num_threads())
    monotone, together = params.get("monotone_constraints"), params.get("interaction_constraints")
    if isinstance(monotone, Mapping):
        names = names_for_xgboost(list(monotone))
        params["monotone_constraints"] = dict(zip(names, monotone.values(), strict=True))
    if together is not None and not isinstance(together, str):
        params["interaction_constraints"] = [names_for_xgboost(names) for names in together]
    return params


def handed(values: torch.Tensor | None, *, on_gpu: bool) -> Any:
    """Return a tensor as XGBoost takes it: a numpy array, or a CuPy array of the same memory if trees grow on a GPU."""
    if values is None:
        return None
    cupy = _cupy() if on_gpu and values.is_cuda else None
    return values.cpu().numpy() if cupy is None else cupy.from_dlpack(values)


def _cupy() -> Any:
    """Return CuPy, without which XGBoost takes no arrays on a GPU, or None."""
    try:
        return importlib.import_module("cupy")
    except ImportError:
        return None


def predicted(
    booster: xgb.Booster,
    values: torch.Tensor,
    names: Sequence[str],
    *,
    margin: bool,
    start: torch.Tensor | None = None,
    types: Sequence[str] | None = None,
) -> torch.Tensor:
    """Predict rows. With CuPy, GPU rows are predicted in place and only the predictions are copied to the host.

    Args:
        margin: sums of leaves instead of what the objective makes of them.
        start: float32 ``[n]``, the margin to start from.
        types: XGBoost's type of each column; None: all are numbers.

    Returns:
        float64 ``[n]`` or ``[n, k]`` on the CPU.
    """
    # In place: the columns are not copied to the host.
    if values.is_cuda and types is None and _cupy() is not None:
        booster.set_param({"device": str(values.device)})
        there = booster.inplace_predict(
            handed(values, on_gpu=True),
            predict_type="margin" if margin else "value",
            validate_features=False,  # an array has no names
            base_margin=handed(start, on_gpu=True),
        )
        return torch.as_tensor(there).double().cpu()
    # The booster may have been trained on a GPU that is gone.
    booster.set_param({"device": "cpu"})
    matrix = xgb.DMatrix(
        handed(values, on_gpu=False),
        feature_names=names_for_xgboost(names),
        feature_types=types,
        enable_categorical=types is not None,
        nthread=torch.get_num_threads(),
        base_margin=handed(start, on_gpu=False),
    )
    return torch.from_numpy(booster.predict(matrix, output_margin=margin).astype(np.float64))


def linked(margins: torch.Tensor, objective: str) -> torch.Tensor | None:
    """Apply an objective's link to margins, in double precision; None: XGBoost alone knows it.

    XGBoost's own probabilities are float32, whose last bit depends on the library: a stack's trees, which compare such
    numbers with one another, would then say something else where the model is served elsewhere.

    Args:
        margins: float64 ``[n]``, of several classes ``[n, k]``.
    """
    if objective == "multi:softprob":
        return margins.softmax(1)
    if objective in ("binary:logistic", "reg:logistic"):
        return margins.sigmoid()
    if objective in ("count:poisson", "reg:gamma", "reg:tweedie"):
        return margins.exp()
    return margins if objective in ("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror") else None


def gains(booster: xgb.Booster, names: Sequence[str]) -> dict[str, float]:
    """Return feature → total gain."""
    scores: Mapping[str, Any] = booster.get_score(importance_type="total_gain")
    return {n: float(scores.get(escaped, 0.0)) for n, escaped in zip(names, names_for_xgboost(names), strict=True)}
