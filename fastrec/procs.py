"""Preprocessing of a ``TabularFrame``'s columns: categories to codes, numbers filled and brought to mean 0 and sd 1.

The names and defaults are fastai's, and so are the codes, fill values and scales. The differences, all deliberate:

- Classes come from training rows alone; fastai's default lets validation's strings in.
- ``FillMissing`` learns a value for every continuous column, so that one first missing at test time is filled. Only
  columns missing in training get a ``_na`` column, as in fastai; its classes are always ``#na#``, False, True. A column
  with no training value at all is filled with 0.
- ``Normalize`` takes mean and sd in float64, block by block, each in two passes. A constant column becomes 0 (and is
  not scaled where a later value differs).
- Statistics are taken of the values as given: fastai first shrinks float64 to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

from fastrec.class_list import ClassList
from fastrec.errors import DataError, NotFittedError
from fastrec.keys import Coded
from fastrec.stream_fit import Moments
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
_CONSTANT = 1e-12  # a spread below this share of the mean may be rounding
_BLOCK = 1 << 15  # rows whose moments are taken at a time: they stay in the cache


class FrameProc(TabularProc):
    """Base of what prepares a ``TabularFrame``'s columns."""

    several = False  # whether a frame may have more than one of this kind

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

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """The prepared values of one row: of every column in ``names`` one, float64 ``[len(names)]``."""
        return torch.cat([self.apply(n, v) for n, v in zip(names, values.split(1), strict=True)])

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The raw values of prepared ones, as far as they can be had."""
        return values


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
        self.classes[column.name] = ClassList(Vocab.fit(column, **self.options_of(column.name)))

    def options_of(self, name: str) -> dict[str, Any]:
        """What ``Vocab.fit`` is asked for a column."""
        minimum = self.min_count.get(name, 1) if isinstance(self.min_count, Mapping) else self.min_count
        largest = self.max_size.get(name) if isinstance(self.max_size, Mapping) else self.max_size
        return {"min_count": minimum, "max_size": largest, "unseen": self.unseen}

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
        # The sum tells at a tenth of the cost that nothing is missing.
        gaps = int(values.isnan().sum()) if bool(values.sum().isnan()) else 0
        self.was_missing[name] = gaps > 0
        if self.fill_strategy == "median":
            self.fills[name] = _median(values.cpu().numpy(), len(values) - gaps)
        else:
            self.fills[name] = self._fill_of(name, values[~values.isnan()] if gaps else values)

    def _fill_of(self, name: str, present: torch.Tensor) -> float:
        constant = float(self.fill_vals.get(name, 0))
        if self.fill_strategy == "constant":
            return constant
        if callable(self.fill_strategy):
            import pandas as pd

            return float(self.fill_strategy(pd.Series(present.cpu().numpy(), name=name), constant))
        return _mode(present.cpu().numpy()) if len(present) else 0.0

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The values with every missing one filled."""
        return values.nan_to_num(_learnt(self, self.fills, name), torch.inf, -torch.inf)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """One row of several columns."""
        return torch.where(values.isnan(), _float64(_learnt(self, self.fills, n) for n in names), values)

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


def _median(values: np.ndarray, present: int) -> float:
    """The median of the numbers that are ``present``; the others are NaN, which numpy ranks last."""
    if not present:
        return 0.0
    middle = present // 2
    ranked = np.partition(values, middle)
    upper = float(ranked[middle])
    return upper if present % 2 else (float(ranked[:middle].max()) + upper) / 2


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
        moments = Moments()
        for part in values.split(max(len(values), 1) if values.is_cuda else _BLOCK):
            moments.add(part[~part.isnan()] if bool(part.sum().isnan()) else part, extremes=False)
        if moments.count:
            self.means[name], self.stds[name] = moments.mean, moments.std + _EPS
            # Rounding may leave a constant column a little spread.
            if moments.std <= _CONSTANT * abs(moments.mean):
                low, high = (float(v) for v in torch.aminmax(values[~values.isnan()]))
                if low == high:
                    self.means[name], self.stds[name] = low, 1.0

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """``(value - mean) / sd``."""
        return (values - _learnt(self, self.means, name)).div_(self.stds[name])

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """One row of several columns."""
        means = _float64(_learnt(self, self.means, n) for n in names)
        return (values - means).div_(_float64(self.stds[n] for n in names))

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """``value * sd + mean``."""
        return values * self.stds[name] + self.means[name]

    def to_state(self) -> dict[str, Any]:
        """Names, and float64 tensors of means and standard deviations."""
        means, stds = _float64(self.means.values()), _float64(self.stds.values())
        return {"kind": self.name, "names": list(self.means), "means": means, "stds": stds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Normalize:
        """The inverse of ``to_state``."""
        proc = cls()
        proc.means = dict(zip(state["names"], state["means"].tolist(), strict=True))
        proc.stds = dict(zip(state["names"], state["stds"].tolist(), strict=True))
        return proc


def _learnt(proc: FrameProc, known: Mapping[str, float], name: str) -> float:
    if name not in known:
        raise NotFittedError(f"{proc.name} has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
    return known[name]


def _float64(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def proc_from_state(state: Mapping[str, Any]) -> FrameProc:
    """The proc that ``to_state`` described."""
    from fastrec.feature_proc import Features  # these build on this module
    from fastrec.log_transform import LogTransform
    from fastrec.rank_gauss import RankGauss

    known = (Categorify, Features, FillMissing, LogTransform, Normalize, RankGauss)
    return {c.__name__: c for c in known}[state["kind"]].from_state(state)


def as_procs(procs: Any) -> list[FrameProc]:
    """Procs in the order they work in: classes made, fastai's own translated, a ``Pipeline`` taken apart.

    Args:
        procs: None, one or several of this library's or fastai's procs, classes or instances, or another frame's
            ``procs``.

    Raises:
        DataError: something else, or two of a kind.
    """
    given = procs.fs if isinstance(procs, Pipeline) else L(procs)
    found = [_as_proc(p) for p in given if not isinstance(p, Categorize | RegressionSetup)]
    kinds = [type(p) for p in found if not p.several]
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
        remedy="Use Categorify, FillMissing and Normalize (fastrec's or fastai's), LogTransform, RankGauss, Features, "
        "or subclass fastrec.procs.ContProc",
    )
