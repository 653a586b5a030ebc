"""Names of a package, imported at their first use: a command that needs one file need not load all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` (PEP 562); its ``__dir__`` has the names too, for completion.

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
