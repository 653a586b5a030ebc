"""Imports at first use: a package's public names, and optional libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from fastrec.errors import MissingPackageError

# Names of a package, imported at their first use: a command that needs one file need not load all.


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562), which imports a public name when it is first used.

    It also sets the package's ``__dir__``, so that completion knows these names.

    Args:
        package: the package's ``__name__``.
        homes: public name → the package's module that defines it.
    """

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    module = sys.modules[package]
    vars(module)["__dir__"] = lambda: sorted({*vars(module), *homes})
    return getattribute


def require(module: str, package: str, how: str) -> ModuleType:
    """Import an optional module; the error names its package, and how it is installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{package} is needed for this", remedy=f"Install it: {how}") from error


def library_of(frame: object) -> str:
    """Return the library of a frame's class: ``'pandas'``, ``'polars'``, ``'pyarrow'``, ``'cudf'`` …"""
    module = type(frame).__module__
    return module.split(".", 1)[0] if isinstance(module, str) else ""  # Cython's functions hold a descriptor there


def is_dask(frame: object) -> bool:
    """Tell whether it is a Dask frame of pandas or cuDF partitions, or a table split for Dask."""
    return library_of(frame) in ("dask", "dask_cudf", "dask_expr", "fastrec") and hasattr(frame, "to_delayed")
