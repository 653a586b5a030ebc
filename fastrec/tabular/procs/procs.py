"""The procs: categories to codes, numbers filled and scaled; and procs by name, fastai's own among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from fastai.data.transforms import Categorize, RegressionSetup
from fastai.data.transforms import Normalize as FastaiNormalize
from fastai.tabular.core import Categorify as FastaiCategorify
from fastai.tabular.core import FillMissing as FastaiFillMissing
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError, MissingColumnError, NotFittedError
from fastrec.table import ClassList, Coded, Column, Vocab
from fastrec.table.state import class_named
from fastrec.tabular.columns import Moments, Summary, median_between, sample_bounds
from fastrec.tabular.procs.base import (
    MAKES_FEATURES,
    ContProc,
    FrameProc,
    _float64,
    _refuse_columns,
    generator_of_that_name,
)


class Categorify(FrameProc):
    """Categorical columns to codes: 0 = ``#na#`` (missing or never seen), then the training rows' values, sorted.

    Args:
        min_count: values in fewer training rows share the code ``#rare#``; a number, or column → number.
        max_size: keep at most this many values of a column, the most frequent; a number, or column → number.
        unseen: give values never seen in training a code of their own, ``#unseen#``.
    """

    order = 1
    learnt: ClassVar = {"classes": None}

    def __init__(
        self,
        *columns: Any,
        min_count: int | Mapping[str, int] = 1,
        max_size: int | Mapping[str, int] | None = None,
        unseen: bool = False,
    ) -> None:
        super().__init__()
        _refuse_columns(self, columns)
        self.min_count, self.max_size, self.unseen = min_count, max_size, unseen

    def fit(self, column: Column) -> None:
        """Fit a column's classes on its training rows."""
        self.classes[column.name] = ClassList(Vocab.fit(column, **self.options_of(column.name)))

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of ``Vocab.fit`` for a column."""
        minimum = self.min_count.get(name, 1) if isinstance(self.min_count, Mapping) else self.min_count
        largest = self.max_size.get(name) if isinstance(self.max_size, Mapping) else self.max_size
        return {"min_count": minimum, "max_size": largest, "unseen": self.unseen}

    def set_vocab(self, name: str, vocab: Vocab) -> None:
        """Set a column's vocabulary."""
        self.classes[name] = ClassList(vocab)

    def vocab_of(self, name: str) -> Vocab:
        """Return the vocabulary of a column (see ``of_column``)."""
        classes = self.of_column("classes", name)
        if classes is None:
            raise NotFittedError(f"Categorify has not learnt column {name!r}", remedy="Fit it in a TabularFrame first")
        return classes.vocab

    def encode(self, name: str, column: Column | Coded) -> torch.Tensor:
        """Encode any rows, int64 ``[m]``."""
        return self.vocab_of(name).encode(column)

    def __getitem__(self, name: str) -> ClassList:
        return self.classes[name]

    def to_state(self) -> dict[str, Any]:
        """Return the fitted state as plain values and Arrow arrays."""
        return {**super().to_state(), "classes": {n: c.vocab.to_state() for n, c in self.classes.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Categorify:
        """Make the proc of a state."""
        classes = {n: ClassList(Vocab.from_state(s)) for n, s in state["classes"].items()}
        return super().from_state({**state, "classes": classes})  # type: ignore[return-value]


FillRule = Literal["median", "constant", "mode"]


class FillMissing(ContProc):
    """Missing values of continuous columns filled with one learnt from training rows.

    Args:
        fill_strategy: ``'median'`` (exact), ``'constant'``, ``'mode'`` (among equals the one seen first), or a function
            of a pandas Series and the column's entry in ``fill_vals``.
        add_col: add a categorical column ``<name>_na`` for every column with a value missing in training.
        fill_vals: column → constant; 0 where there is none.
    """

    order = 0
    learnt: ClassVar = {"fills": 0.0, "was_missing": False}

    def __init__(
        self,
        fill_strategy: FillRule | Callable[[Any, float], float] = "median",
        add_col: bool = True,
        fill_vals: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if not callable(fill_strategy) and fill_strategy not in ("median", "constant", "mode"):
            remedy = f"Use 'median', 'constant' or 'mode'. {generator_of_that_name(self)}"
            raise DataError(f"FillMissing, the proc: {fill_strategy!r} is no fill strategy", remedy=remedy)
        self.fill_strategy, self.add_col, self.fill_vals = fill_strategy, add_col, dict(fill_vals or {})

    @property
    def na_dict(self) -> dict[str, float]:
        """Column → fill value, of the columns with a value missing in training."""
        return {n: self.fills[n] for n, missing in self.was_missing.items() if missing}

    @property
    def flagged(self) -> list[str]:
        """The columns that get a ``_na`` column."""
        return list(self.na_dict) if self.add_col else []

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's fill value."""
        gaps = 0 if bool(values.sum().isfinite()) else int(values.isnan().sum())
        fill = None
        present = len(values) - gaps
        if self.fill_strategy == "median" and values.device.type != "cpu":  # a sort costs less than the way to the host
            fill = float(values.sort().values[(present - 1) // 2 : present // 2 + 1].mean()) if present else 0.0
        elif self.fill_strategy == "median":
            fill = _median(values.numpy(), present)
        elif self.fill_strategy == "mode" and gaps < len(values):
            known = (values[~values.isnan()] if gaps else values).cpu().numpy()
            distinct, first, counts = np.unique(known, return_index=True, return_counts=True)
            fill = float(distinct[np.lexsort((first, -counts))[0]])
        elif callable(self.fill_strategy):
            import pandas as pd

            known = pd.Series((values[~values.isnan()] if gaps else values).cpu().numpy(), name=name)
            fill = float(self.fill_strategy(known, float(self.fill_vals.get(name, 0))))
        self.learn(name, Summary(Moments(), gaps, fill))

    def learn(self, name: str, summary: Summary) -> None:
        """Fit a column by its summary, which is then that of the filled column."""
        fill = summary.fill
        if fill is None:
            fill = 0.0 if self.fill_strategy == "mode" else float(self.fill_vals.get(name, 0))
        self.was_missing[name], self.fills[name] = summary.gaps > 0, fill
        if summary.gaps:
            moments = summary.moments
            moments.merge(summary.gaps, fill, 0.0)
            moments.low, moments.high = min(moments.low, fill), max(moments.high, fill)

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Fill missing values; return the input itself if none is missing."""
        value = self.of_column("fills", name)
        return values if _none_missing(values) else values.nan_to_num(value, torch.inf, -torch.inf)

    def apply_block(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Fill several columns."""
        fills = _float64(self.of_column("fills", n) for n in names).to(values.device)
        return values if _none_missing(values) else torch.where(values.isnan(), fills[:, None], values)

    def to_state(self) -> dict[str, Any]:
        """Return the fitted state; of a fill function its name."""
        rule = self.fill_strategy
        return {**super().to_state(), "fill_strategy": rule if isinstance(rule, str) else rule.__name__}


def _none_missing(values: torch.Tensor) -> bool:
    """Return whether a sum, at a tenth of a scan's cost, tells that nothing is missing."""
    return on_host(values) and bool(values.sum().isfinite())


def _median(values: np.ndarray, present: int) -> float:
    if not present:
        return 0.0
    values = values if present == len(values) else values[~np.isnan(values)]
    # A sample tells a narrow interval, and only what lies in it is sorted. Partitioning takes ten times as long where
    # numbers differ, and three hundred times where most are equal, as counts are.
    if len(values) >= 4 * limits.MEDIAN_SAMPLE:
        sample = np.sort(values[:: min(len(values) // limits.MEDIAN_SAMPLE, limits.MEDIAN_SAMPLED)])
        first, last = sample_bounds(sample)
        low, high = values <= first, values < last
        between = values[low != high]
        counts = [np.count_nonzero(some) for some in (values < first, low, high, values <= last)]
        middle = median_between(present, first, last, [*counts, len(between)], between)
        if middle is not None:
            return middle
    upper = present // 2
    ranked = np.partition(values, upper)
    return float(ranked[upper]) if present % 2 else float((ranked[:upper].max() + ranked[upper]) / 2)


class LogTransform(ContProc):
    """Continuous columns to ``log(value - lowest + 1)``, ``lowest`` being the smallest value of the training rows.

    A missing value counts as 0, in training too, unless ``FillMissing`` filled it before. A value below ``lowest`` at
    test time is taken for ``lowest``. It works after ``FillMissing`` and before ``Normalize``, with either or both left
    out; infinite values do not move ``lowest``.

    Args:
        names: the columns to change; the others stay as they are. None: all.

    Source: M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
    2019 (arXiv 1906.00091), the preprocessing of Criteo's counts in its reference code.
    """

    order = 50
    learnt: ClassVar = {"lows": 0.0}  # None: the column stays as it is

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.names = None if names is None else [names] if isinstance(names, str) else list(names)

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns.

        Raises:
            MissingColumnError: a column that was to be changed is not among them.
        """
        absent = next((n for n in self.names or () if n not in names), None)
        if absent is not None:
            problem = "LogTransform is to change it, but it is no continuous column"
            remedy = "Add it to cont_names, or leave it out of LogTransform's names"
            raise MissingColumnError(problem, column=absent, remedy=remedy)
        self.lows = {n: 0.0 if self.names is None or n in self.names else None for n in names}

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's smallest value."""
        if self.lows[name] is None:
            return
        filled = values.nan_to_num(0.0, torch.inf, -torch.inf)
        finite = filled[filled.isfinite()]
        self.lows[name] = float(finite.min()) if len(finite) else 0.0

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``log(value - lowest + 1)``."""
        low = self.of_column("lows", name)
        return values if low is None else _log(values, low)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Transform one row of several columns."""
        lows = [self.of_column("lows", n) for n in names]
        chosen = torch.tensor([low is not None for low in lows], dtype=torch.bool)
        shift = torch.tensor([low or 0.0 for low in lows], dtype=torch.float64)
        return torch.where(chosen, _log(values, shift), values)

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``exp(value) - 1 + lowest``."""
        low = self.of_column("lows", name)
        return values if low is None else values.expm1() + low


def _log(values: torch.Tensor, low: float | torch.Tensor) -> torch.Tensor:
    return (values.nan_to_num(0.0, torch.inf, -torch.inf) - low).clamp_(min=0).log1p_()


_INFINITE = "Replace such numbers before, or use RankGauss or RobustScale, which take them for the largest"


class Normalize(ContProc):
    """Continuous columns to mean 0 and standard deviation 1 over the training rows (missing values left out)."""

    order = 99
    learnt: ClassVar = {"means": 0.0, "stds": 1.0}

    def __init__(self, *columns: Any) -> None:
        super().__init__()
        _refuse_columns(self, columns)

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's mean and standard deviation."""
        moments = Moments()
        for part in values.split(limits.FRAME_BLOCK if on_host(values) else max(len(values), 1)):
            moments.add(part[~part.isnan()] if bool(part.sum().isnan()) else part, extremes=False)
        # Rounding may leave a constant column a little spread: then its range decides.
        if moments.count and moments.std <= limits.ROUNDING_SPREAD * abs(moments.mean):
            moments.low, moments.high = (float(v) for v in torch.aminmax(values[~values.isnan()]))
        infinite = () if math.isfinite(moments.mean) else values.isinf().nonzero()
        self.learn(name, Summary(moments, 0), row=int(infinite[0]) if len(infinite) else None)

    def learn(self, name: str, summary: Summary, *, row: int | None = None) -> None:
        """Fit a column by its summary; ``row``: where the first infinite number is, if known."""
        moments = summary.moments
        if not math.isfinite(moments.mean):
            raise DataError("an infinite number, or ones too large for a mean", column=name, row=row, remedy=_INFINITE)
        if moments.count:
            constant = moments.low == moments.high
            self.means[name] = moments.low if constant else moments.mean
            self.stds[name] = 1.0 if constant else moments.std + 1e-7  # as fastai adds it

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``(value - mean) / sd``."""
        return (values - self.of_column("means", name)).div_(self.stds[name])

    def apply_block(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Normalize several columns in place."""
        means, stds = (
            _float64(self.of_column(a, n) for n in names).to(values.device)[:, None] for a in ("means", "stds")
        )
        return values.sub_(means).div_(stds)

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``value * sd + mean``."""
        return values * self.stds[name] + self.means[name]


class RankGauss(ContProc):
    """Continuous columns to the normal quantiles of their ranks in the training rows.

    Quantiles are cut at 3 standard deviations, then brought to mean 0 and sd 1 over the training rows; a missing value
    is 0, and so is every value of a column with fewer than two. Between training values it is linear, beyond them flat.
    Equal values stay equal.

    Source: M. Jahrer, first place of Porto Seguro's Safe Driver Prediction, Kaggle 2018 ("RankGauss").
    """

    order = 99
    learnt: ClassVar = {"knots": (torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))}

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's values and the normal quantiles of their ranks."""
        present = values[values.isfinite()].cpu()
        if not len(present):
            return
        distinct, counts = torch.unique(present, return_counts=True)
        counts = counts.double()  # single precision would lose ranks beyond 16 million rows
        share = (torch.cumsum(counts, 0) - counts / 2) / len(present)  # the middle of a value's ranks
        quantile = torch.special.ndtri(share).clamp(-limits.GAUSS_EDGE, limits.GAUSS_EDGE)
        mean = (quantile * counts).sum() / len(present)
        sd = ((quantile - mean) ** 2 * counts).sum().div(len(present)).sqrt()
        scaled = (quantile - mean) / sd if sd > 0 else torch.zeros_like(quantile)
        chosen = spread_places(share, limits.GAUSS_KNOTS)
        self.knots[name] = (distinct[chosen], scaled[chosen])

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Interpolate the normal quantiles of values linearly."""
        x, y = (k.to(values.device) for k in self.of_column("knots", name))
        if len(x) == 1:
            return torch.zeros_like(values)
        clipped = torch.nan_to_num(values, nan=float(x[0])).clamp(x[0], x[-1])
        return torch.where(values.isnan(), 0, interpolated(clipped, x, y))


def spread_places(shares: torch.Tensor, most: int) -> torch.Tensor | slice:
    """Choose about ``most`` places of ascending shares ``[n]``, spread evenly; all where there are fewer."""
    if len(shares) <= most:
        return slice(None)
    wanted = torch.linspace(0, 1, most, dtype=shares.dtype)
    return torch.searchsorted(shares, wanted).clamp(max=len(shares) - 1).unique_consecutive()


def interpolated(values: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Interpolate linearly between two or more knots, ascending ``x`` and their values ``y``; flat beyond."""
    right = torch.searchsorted(x, values).clamp(1, len(x) - 1)
    low, high = x[right - 1], x[right]
    part = ((values - low) / (high - low)).clamp(0, 1)
    return y[right - 1] + part * (y[right] - y[right - 1])


class RobustScale(ContProc):
    """Continuous columns less their median, over the distance between their quartiles, within ±3.

    ``z = (x - median) · s`` with ``s = 1 / (q₇₅ - q₂₅)``; where the quartiles are equal ``2 / (max - min)``, and 0 for
    a column of one value. Then ``z / √(1 + (z / 3)²)``, which hardly changes small values and goes no further than 3.
    All over the training rows' finite values; a missing value is 0, as the median is.

    Source: arXiv 2407.04491, section 3 ("robust scaling and smooth clipping").
    """

    order = 99
    learnt: ClassVar = {"centers": 0.0, "scales": 0.0}

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's median and scale."""
        ranked = torch.sort(values[values.isfinite()].cpu()).values
        if not len(ranked):
            return
        places = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64) * (len(ranked) - 1)
        low = places.long()
        high = (low + 1).clamp(max=len(ranked) - 1)
        first, self.centers[name], third = torch.lerp(ranked[low], ranked[high], places - low).tolist()
        spread, reach = third - first, float(ranked[-1] - ranked[0])
        scale = 1 / spread if spread > 0 else 2 / reach if reach > 0 else 0.0
        self.scales[name] = scale if scale < float("inf") else 0.0

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Scale and clip values."""
        scale = self.of_column("scales", name)
        if scale == 0:
            return torch.zeros_like(values)
        scaled = ((values - self.centers[name]) * scale).clamp(-limits.ROBUST_LARGE, limits.ROBUST_LARGE)
        return torch.where(values.isnan(), 0.0, scaled / (1 + (scaled / limits.ROBUST_LIMIT) ** 2).sqrt())

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return the raw values up to rounding at the limits; a missing one is the median."""
        if self.scales[name] == 0:
            return torch.full_like(values, self.centers[name])
        scaled = values / (1 - (values / limits.ROBUST_LIMIT) ** 2).clamp(min=1e-12).sqrt()
        return scaled / self.scales[name] + self.centers[name]


def proc_from_state(state: Mapping[str, Any]) -> FrameProc:
    """Make the proc that ``to_state`` described."""
    return class_named(FrameProc, state["kind"]).from_state(state)


def as_procs(procs: Any) -> list[FrameProc]:
    """Return procs in the order they work in: classes instantiated, fastai's translated, a ``Pipeline`` taken apart."""
    given = procs.fs if isinstance(procs, Pipeline) else L(procs)
    found = [_as_proc(p) for p in given if not isinstance(p, Categorize | RegressionSetup)]
    kinds = [type(p) for p in found if not p.several]
    if len(set(kinds)) < len(kinds):
        raise DataError(f"{[k.__name__ for k in kinds]} names a proc twice", remedy="Give each kind of proc once")
    return sorted(found, key=lambda p: p.order)


def _as_proc(proc: Any) -> FrameProc:
    if all(hasattr(proc, n) for n in MAKES_FEATURES):
        kind = proc if isinstance(proc, type) else type(proc)
        remedy = "Give it in features=FeatureSet([…])"
        if kind.__name__ in (c.__name__ for c in (Categorify, FillMissing, Normalize)):
            remedy += f", or the proc of that name: fastrec.tabular.{kind.__name__}"
        shown = kind.__name__ if proc is kind else repr(proc)
        raise DataError(f"{shown} makes columns of features and is no proc", remedy=remedy)
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
    problem = f"{made!r} cannot prepare a TabularFrame's columns"
    remedy = "Use Categorify, FillMissing and Normalize (fastrec's or fastai's), LogTransform, RankGauss, "
    remedy += "RobustScale, Features, or subclass fastrec.tabular.procs.ContProc"
    raise DataError(problem, remedy=remedy)
