"""Preprocessing of a ``TabularFrame``'s columns: categories to codes, numbers filled and brought to mean 0 and sd 1.

The names and defaults are fastai's, and so are the codes, fill values and scales. The differences, all deliberate:

- Classes come from training rows alone; fastai's default lets validation's strings in.
- ``FillMissing`` learns a value for every continuous column, so that one first missing at test time is filled. Only
  columns missing in training get a ``_na`` column, as in fastai; its classes are always ``#na#``, False, True. A column
  with no training value at all is filled with 0.
- ``Normalize`` takes mean and sd in float64, in two passes. A constant column becomes 0 (and is not scaled where a
  later value differs).
- Statistics are taken of the values as given: fastai first shrinks float64 to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from fastai.data.transforms import Categorize, RegressionSetup
from fastai.data.transforms import Normalize as FastaiNormalize
from fastai.tabular.core import Categorify as FastaiCategorify
from fastai.tabular.core import FillMissing as FastaiFillMissing
from fastai.tabular.core import TabularProc
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec.errors import DataError, NotFittedError
from fastrec.keys import Coded
from fastrec.table import Column
from fastrec.vocab import Vocab

__all__ = [
    "Categorify",
    "ClassList",
    "ContProc",
    "FillMissing",
    "FrameProc",
    "Normalize",
    "as_procs",
    "proc_from_state",
]

FillRule = Literal["median", "constant", "mode"]
_EPS = 1e-7  # fastai adds it to every standard deviation


class FrameProc(TabularProc):
    """Base of what prepares a ``TabularFrame``'s columns."""

    @property
    def name(self) -> str:
        """The class's name."""
        return type(self).__name__

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and make ready to learn these columns."""
        raise NotImplementedError

    def setup(self, items: Any = None, train_setup: bool = False) -> Any:
        """Refuse fastai's own way of fitting: a ``TabularFrame`` fits its procs."""
        raise DataError(f"{self.name} prepares a TabularFrame's columns", remedy="Pass it as procs= to a TabularFrame")

    def to_state(self) -> dict[str, Any]:
        """What was learnt: tensors, Arrow arrays and JSON-able values; ``from_state`` takes it back."""
        raise NotImplementedError

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FrameProc:
        """The inverse of ``to_state``."""
        raise NotImplementedError


class ContProc(FrameProc):
    """Base of what prepares continuous columns, one at a time, all in float64."""

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Learn a column.

        Args:
            name: the column.
            values: training rows, float64 ``[n]``, NaN = missing, as the procs before this one leave them.
        """
        raise NotImplementedError

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The prepared values of any rows, float64 ``[m]``; the input is left as it is."""
        raise NotImplementedError

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The raw values of prepared ones, as far as they can be had."""
        return values


class ClassList(Sequence):
    """The meaning of every code of a column, as fastai's ``CategoryMap``: a sequence with ``items`` and ``o2i``.

    Args:
        vocab: the column's vocabulary. The values are listed only when they are looked at.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    @cached_property
    def items(self) -> L:
        """The names of the reserved codes, then the values, in code order."""
        return L(self.vocab.classes, use_list=True)

    @cached_property
    def o2i(self) -> dict[Any, int]:
        """Value → code."""
        return {value: code for code, value in enumerate(self.items)}

    def __len__(self) -> int:
        return len(self.vocab)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and list(self) == list(other)

    __hash__ = None

    def __repr__(self) -> str:
        return repr(list(self))

    def __getstate__(self) -> dict[str, Any]:
        return {"vocab": self.vocab}


class Categorify(FrameProc):
    """Categorical columns to codes: 0 = ``#na#`` (missing or never seen), then the training rows' values, sorted.

    Args:
        min_count: values in fewer training rows share the code ``#rare#``; a number, or column → number.
        max_size: keep at most this many values of a column, the most frequent; a number, or column → number.
        unseen: give values never seen in training a code of their own, ``#unseen#``.
    """

    order = 1

    def __init__(
        self,
        *,
        min_count: int | Mapping[str, int] = 1,
        max_size: int | Mapping[str, int] | None = None,
        unseen: bool = False,
    ) -> None:
        super().__init__()
        self.min_count, self.max_size, self.unseen = min_count, max_size, unseen
        self.classes: dict[str, ClassList] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and make ready to learn these columns."""
        self.classes = dict.fromkeys(names)

    def fit(self, column: Column) -> None:
        """Learn a column's classes from its training rows."""
        minimum = self.min_count.get(column.name, 1) if isinstance(self.min_count, Mapping) else self.min_count
        largest = self.max_size.get(column.name) if isinstance(self.max_size, Mapping) else self.max_size
        self.classes[column.name] = ClassList(
            Vocab.fit(column, min_count=minimum, max_size=largest, unseen=self.unseen)
        )

    def set_vocab(self, name: str, vocab: Vocab) -> None:
        """Give a column a vocabulary that is known beforehand."""
        self.classes[name] = ClassList(vocab)

    def vocab_of(self, name: str) -> Vocab:
        """The vocabulary of a column.

        Raises:
            NotFittedError: it was not learnt.
        """
        if self.classes.get(name) is None:
            raise NotFittedError(f"Categorify has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return self.classes[name].vocab

    def encode(self, name: str, column: Column | Coded) -> torch.Tensor:
        """Codes of any rows, int64 ``[m]``."""
        return self.vocab_of(name).encode(column)

    def __getitem__(self, name: str) -> ClassList:
        return self.classes[name]

    def to_state(self) -> dict[str, Any]:
        """What was learnt, as plain values and Arrow arrays."""
        options = {"min_count": self.min_count, "max_size": self.max_size, "unseen": self.unseen}
        return {"kind": self.name, **options, "vocabs": {n: c.vocab.to_state() for n, c in self.classes.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categorify:
        """The inverse of ``to_state``."""
        proc = cls(min_count=state["min_count"], max_size=state["max_size"], unseen=state["unseen"])
        proc.classes = {n: ClassList(Vocab.from_state(s)) for n, s in state["vocabs"].items()}
        return proc


class FillMissing(ContProc):
    """Missing values of continuous columns filled with one learnt from training rows.

    Args:
        fill_strategy: ``'median'`` (exact), ``'constant'``, ``'mode'`` (among equals the one seen first), or a function
            of a pandas Series and the column's entry in ``fill_vals``.
        add_col: add a categorical column ``<name>_na`` for every column with a value missing in training.
        fill_vals: column → constant; 0 where there is none.
    """

    order = 0

    def __init__(
        self,
        fill_strategy: FillRule | Callable[[Any, float], float] = "median",
        add_col: bool = True,
        fill_vals: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if not callable(fill_strategy) and fill_strategy not in ("median", "constant", "mode"):
            raise DataError(f"{fill_strategy!r} is no fill strategy", remedy="Use 'median', 'constant' or 'mode'")
        self.fill_strategy, self.add_col, self.fill_vals = fill_strategy, add_col, dict(fill_vals or {})
        self.fills: dict[str, float] = {}
        self.was_missing: dict[str, bool] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and make ready to learn these columns."""
        self.fills, self.was_missing = dict.fromkeys(names, 0.0), dict.fromkeys(names, False)

    @property
    def na_dict(self) -> dict[str, float]:
        """Column → fill value, of the columns with a value missing in training."""
        return {n: self.fills[n] for n, missing in self.was_missing.items() if missing}

    @property
    def flagged(self) -> list[str]:
        """The columns that get a ``_na`` column beside them."""
        return list(self.na_dict) if self.add_col else []

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Learn a column's fill value."""
        missing = values.isnan()
        self.was_missing[name] = bool(missing.any())
        self.fills[name] = self._fill_of(name, values[~missing] if self.was_missing[name] else values)

    def _fill_of(self, name: str, present: torch.Tensor) -> float:
        constant = float(self.fill_vals.get(name, 0))
        if self.fill_strategy == "constant":
            return constant
        if callable(self.fill_strategy):
            import pandas as pd

            return float(self.fill_strategy(pd.Series(present.cpu().numpy(), name=name), constant))
        if len(present) == 0:
            return 0.0
        return (_median if self.fill_strategy == "median" else _mode)(present.cpu().numpy())

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The values with every missing one filled."""
        if name not in self.fills:
            raise NotFittedError(f"FillMissing has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return values.nan_to_num(self.fills[name], torch.inf, -torch.inf)

    def to_state(self) -> dict[str, Any]:
        """What was learnt; of a fill function its name."""
        rule = self.fill_strategy if isinstance(self.fill_strategy, str) else self.fill_strategy.__name__
        options = {"fill_strategy": rule, "add_col": self.add_col, "fill_vals": self.fill_vals}
        return {"kind": self.name, **options, "fills": dict(self.fills), "was_missing": dict(self.was_missing)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FillMissing:
        """The inverse of ``to_state``."""
        known = state["fill_strategy"] in ("median", "constant", "mode")
        proc = cls(state["fill_strategy"] if known else "median", state["add_col"], state["fill_vals"])
        proc.fill_strategy = state["fill_strategy"]
        proc.fills, proc.was_missing = dict(state["fills"]), dict(state["was_missing"])
        return proc


def _median(values: np.ndarray) -> float:
    middle = len(values) // 2
    ranked = np.partition(values, middle)
    upper = float(ranked[middle])
    return upper if len(values) % 2 else (float(ranked[:middle].max()) + upper) / 2


def _mode(values: np.ndarray) -> float:
    distinct, first, counts = np.unique(values, return_index=True, return_counts=True)
    best = np.flatnonzero(counts == counts.max())
    return float(distinct[best[np.argmin(first[best])]])


class Normalize(ContProc):
    """Continuous columns to mean 0 and standard deviation 1 over the training rows (missing values left out)."""

    order = 99

    def __init__(self) -> None:
        super().__init__()
        self.means: dict[str, float] = {}
        self.stds: dict[str, float] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and make ready to learn these columns."""
        self.means, self.stds = dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0)

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Learn a column's mean and standard deviation."""
        present = values
        if bool(values.sum().isnan()):
            present = values[~values.isnan()]
        if len(present) == 0:
            return
        low, high = torch.aminmax(present)
        if low == high:
            self.means[name] = float(low)
            return
        mean = present.mean()
        rest = present - mean
        mean, rest = mean + rest.mean(), rest - rest.mean()  # a second look takes the first one's rounding out
        self.means[name] = float(mean)
        self.stds[name] = float((torch.dot(rest, rest) / len(rest)).sqrt()) + _EPS

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """``(value - mean) / sd``."""
        if name not in self.means:
            raise NotFittedError(f"Normalize has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return (values - self.means[name]).div_(self.stds[name])

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """``value * sd + mean``."""
        return values * self.stds[name] + self.means[name]

    def to_state(self) -> dict[str, Any]:
        """Names, and float64 tensors of means and standard deviations."""
        means, stds = (torch.tensor(list(d.values()), dtype=torch.float64) for d in (self.means, self.stds))
        return {"kind": self.name, "names": list(self.means), "means": means, "stds": stds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Normalize:
        """The inverse of ``to_state``."""
        proc = cls()
        proc.means = dict(zip(state["names"], state["means"].tolist(), strict=True))
        proc.stds = dict(zip(state["names"], state["stds"].tolist(), strict=True))
        return proc


def proc_from_state(state: Mapping[str, Any]) -> FrameProc:
    """The proc that ``to_state`` described."""
    from fastrec.rank_gauss import RankGauss  # it builds on this module

    return {c.__name__: c for c in (Categorify, FillMissing, Normalize, RankGauss)}[state["kind"]].from_state(state)


def as_procs(procs: Any) -> list[FrameProc]:
    """Procs in the order they work in: classes made, fastai's own translated, a ``Pipeline`` taken apart.

    Args:
        procs: None, one or several of this module's or fastai's ``Categorify``, ``FillMissing``, ``Normalize``, classes
            or instances, or another frame's ``procs``.

    Raises:
        DataError: something else, or two of a kind.
    """
    given = procs.fs if isinstance(procs, Pipeline) else L(procs)
    found = [_as_proc(p) for p in given if not isinstance(p, Categorize | RegressionSetup)]
    kinds = [type(p) for p in found]
    if len(set(kinds)) < len(kinds):
        raise DataError(f"{[k.__name__ for k in kinds]} names a proc twice", remedy="Give each kind of proc once")
    return sorted(found, key=lambda p: p.order)


def _as_proc(proc: Any) -> FrameProc:
    made = proc() if isinstance(proc, type) else proc
    if isinstance(made, FrameProc):
        return made
    if isinstance(made, FastaiCategorify):
        return Categorify()
    if isinstance(made, FastaiFillMissing):
        rule = made.fill_strategy
        name = rule if isinstance(rule, str) else rule.__name__
        return FillMissing(name if name in ("median", "constant", "mode") else rule, made.add_col, made.fill_vals)
    if isinstance(made, FastaiNormalize):
        return Normalize()
    raise DataError(
        f"{made!r} cannot prepare a TabularFrame's columns",
        remedy="Use Categorify, FillMissing and Normalize (fastrec's or fastai's), or subclass fastrec.procs.ContProc",
    )
