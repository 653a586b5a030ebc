"""The pipeline of a frame's procs, in which a column's name is no attribute."""

from __future__ import annotations

from typing import Any

from fastcore.foundation import L
from fasttransform import Pipeline


class ProcPipeline(Pipeline):
    """fastai's ``Pipeline``, whose attributes are those of its procs.

    fastai's takes ``Categorify["c"]`` for an attribute as well. Dataloaders, loaders and frames pass on what they lack
    to it: there ``dls.c``, the number of outputs, would be the classes of a column of that name.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "fs":
            raise AttributeError(name)
        found = [value for proc in self.fs if (value := getattr(proc, name, None)) is not None]
        if not found:
            raise AttributeError(name)
        return found[0] if len(found) == 1 else L(found)
