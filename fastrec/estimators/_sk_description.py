"""An untrained scikit-learn estimator as JSON values, and back: its class and the parameters that are not the default.

A file may name any class of scikit-learn or cuML. One of another library is made only where its module was imported
before: nothing is imported that a file names.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from fastrec.errors import DataError

_KNOWN = ("sklearn.", "cuml.")


def described(value: Any) -> Any:
    """An estimator, or a parameter of one, as JSON values.

    Raises:
        DataError: it is of a kind that no JSON file holds.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [described(v) for v in value]
    if isinstance(value, tuple):
        return {"$tuple": [described(v) for v in value]}
    if isinstance(value, Mapping):
        return {"$pairs": [[described(k), described(v)] for k, v in value.items()]}
    if hasattr(value, "get_params") and not isinstance(value, type):
        kind = type(value)
        usual = {n: p.default for n, p in inspect.signature(kind).parameters.items()}
        params = {n: v for n, v in value.get_params(deep=False).items() if not _is(v, usual.get(n, inspect._empty))}
        return {
            "$estimator": f"{kind.__module__}:{kind.__qualname__}",
            "params": {n: described(v) for n, v in params.items()},
        }
    raise DataError(
        f"a parameter is a {type(value).__name__}, which cannot be saved",
        remedy="Use text, numbers, lists and estimators as parameters",
    )


def _is(value: Any, usual: Any) -> bool:
    return value is usual or (type(value) is type(usual) and isinstance(value, int | float | str) and value == usual)


def made_of(described: Any) -> Any:
    """The inverse of ``described``.

    Raises:
        DataError: it names no estimator, or one that is not known here.
    """
    if isinstance(described, list):
        return [made_of(v) for v in described]
    if not isinstance(described, Mapping):
        return described
    if "$tuple" in described:
        return tuple(made_of(v) for v in described["$tuple"])
    if "$pairs" in described:
        return {made_of(k): made_of(v) for k, v in described["$pairs"]}
    kind = _class_of(str(described["$estimator"]))
    return kind(**{n: made_of(v) for n, v in described["params"].items()})


def _class_of(path: str) -> type:
    module, _, name = path.partition(":")
    if module.startswith(_KNOWN):
        import_module(module)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    own = module.startswith("cuml.") and hasattr(found, "get_params")
    if not (isinstance(found, type) and (own or issubclass(found, BaseEstimator))):
        raise DataError(
            f"it holds an estimator of the class {path!r}, which is not known here",
            remedy="Import the module that defines the class first",
        )
    return found
