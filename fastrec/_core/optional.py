"""Optional libraries, imported only where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from fastrec.errors import MissingPackageError


def require(module: str, package: str, how: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: the name to import.
        package: what it is called, for the message.
        how: the command that installs it.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(f"{package} is needed for this", remedy=f"Install it: {how}") from error


def library_of(frame: object) -> str:
    """Return the library of a frame's class: ``'pandas'``, ``'polars'``, ``'pyarrow'``, ``'cudf'`` …"""
    module = type(frame).__module__
    return module.split(".", 1)[0] if isinstance(module, str) else ""  # Cython's functions hold a descriptor there


def is_dask(frame: object) -> bool:
    """Tell whether it is a Dask frame of pandas or cuDF partitions, or a table split for Dask."""
    return library_of(frame) in ("dask", "dask_cudf", "dask_expr", "fastrec") and hasattr(frame, "to_delayed")
