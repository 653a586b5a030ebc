"""The rooms whose public names the site lists."""

from __future__ import annotations

import importlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2] / "fastrec"
_FOLDERS = sorted(p.parent.name for p in _PACKAGE.glob("*/__init__.py"))
ROOMS = [f"fastrec.{n}" for n in ("all", "datasets", "errors", *_FOLDERS) if not n.startswith("_")]


def public_names(room: str) -> list[str]:
    """List the public names of a room: ``__all__``, or what a module without one defines."""
    module = importlib.import_module(room)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [n for n, v in vars(module).items() if getattr(v, "__module__", None) == room and not n.startswith("_")]
