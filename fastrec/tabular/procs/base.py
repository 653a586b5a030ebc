"""``FrameProc`` and ``ContProc``: what every proc of a ``TabularFrame`` is, and what one of your own subclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from fastai.tabular.core import TabularProc
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec.errors import DataError, NotFittedError
from fastrec.table.state import settings_of

MAKES_FEATURES = ("fit_transform", "transform", "outputs")
"""What a set of features has, a generator too, and a proc has not."""


class FrameProc(TabularProc):
    """Base of what prepares a ``TabularFrame``'s columns."""

    several = False  # whether a frame may have more than one of this kind
    learnt: ClassVar[Mapping[str, Any]] = {}
    """Attribute → what it holds of each column before the fit."""

    def __init__(self) -> None:
        super().__init__()
        vars(self).update({attribute: {} for attribute in self.learnt})

    @property
    def name(self) -> str:
        """The class's name."""
        return type(self).__name__

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns."""
        vars(self).update({attribute: dict.fromkeys(names, start) for attribute, start in self.learnt.items()})

    def setup(self, items: Any = None, train_setup: bool = False) -> Any:
        """Refuse fastai's own way of fitting: a ``TabularFrame`` fits its procs."""
        raise DataError(f"{self.name} prepares a TabularFrame's columns", remedy="Pass it as procs= to a TabularFrame")

    def to_state(self) -> dict[str, Any]:
        """Return the fitted state as tensors, Arrow arrays and JSON values, for ``from_state``."""
        if not self.learnt:  # a proc of one's own would be loaded without what it has learnt
            raise NotImplementedError
        return {"kind": self.name, **settings_of(self), **{n: dict(getattr(self, n)) for n in self.learnt}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FrameProc:
        """Make the proc of a state."""
        proc = cls()
        vars(proc).update({n: state[n] for n in (*settings_of(proc), *cls.learnt)})
        return proc

    def of_column(self, attribute: str, name: str) -> Any:
        """Return what was learnt of a column.

        Raises:
            NotFittedError: it was not in the training rows.
        """
        known = getattr(self, attribute)
        if name not in known:
            raise NotFittedError(f"{self.name} has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return known[name]


class ContProc(FrameProc):
    """Base of what prepares continuous columns, one at a time, all in float64."""

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column.

        Args:
            name: the column.
            values: training rows, float64 ``[n]``, NaN = missing, as the procs before this one leave them.
        """
        raise NotImplementedError

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Prepare values of any rows, float64 ``[m]``; the input is not changed."""
        raise NotImplementedError

    def apply_block(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Prepare values of several columns.

        Args:
            names: the columns.
            values: float64 ``[len(names), m]``; they may be written over.
        """
        return torch.stack([self.apply(n, v) for n, v in zip(names, values, strict=True)])

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Prepare one row: one value of every column, float64 ``[len(names)]``, which may be written over."""
        return self.apply_block(names, values[:, None])[:, 0]

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return the raw values of prepared ones, as far as they can be recovered."""
        return values


def generator_of_that_name(proc: FrameProc) -> str:
    """Return the remedy for a proc that was given a column, as the generator of the same name takes one."""
    return f"For the generator: from fastrec import features, then features.{proc.name}('price') in a FeatureSet"


def _refuse_columns(proc: FrameProc, columns: Sequence[Any]) -> None:
    if columns:
        problem = f"{proc.name}, the proc, prepares all of a TabularFrame's columns and takes none by name, "
        problem += f"but was given {columns[0]!r}"
        raise DataError(problem, remedy=generator_of_that_name(proc))


def _float64(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


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
