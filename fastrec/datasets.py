"""Synthetic data with a known truth, so that the best score that any model can reach is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastai.data.block import RegressionBlock
from torch import Tensor

from fastrec._core.threads import run_parallel
from fastrec.errors import DataError, NotFittedError
from fastrec.metrics import auc
from fastrec.table import Vocab
from fastrec.tabular import Categorify, TabularFrame
from fastrec.tabular.packed import Packed
from fastrec.tabular.recipe import FrameRecipe
from fastrec.tabular.targets import Labels

__all__ = ["CTRTruth", "PlantedCTR", "planted_ctr"]

CARDINALITIES = (1_000_000, 200_000, 50_000, 10_000, 2_000, 500, 100, 24, 7, 3)
TARGET = "click"
_CHUNK = 1 << 15  # rows: each chunk has random numbers of its own, so that it can be made alone, and by any thread
_PILOT = 8  # chunks that set the scale of the truth
_RANK = 2  # length of the planted vectors
_SHARES = {"ids": 0.6, "pairs": 0.2, "numbers": 0.2}  # of the logit's variance
_MAIN, _ROWS, _PILOT_ROWS = range(3)  # uses of random numbers


@dataclass(frozen=True)
class CTRTruth:
    """The distribution that a planted table's clicks are drawn from.

    With ids ``a_1 … a_m`` and numbers ``x_1 … x_k`` a row is clicked with probability ``σ(logit)``,
    ``logit = b + Σ_i e_i[a_i] + Σ_{i odd} ⟨v_i[a_i], v_{i+1}[a_{i+1}]⟩ + Σ_j (w_j x_j + u_j (x_j² - 1) / √2)``:
    effects ``e`` and vectors ``v`` (of length 2; the first column goes with the second, the third with the fourth, and
    so on) of ids are normal, numbers are standard normal. Ids, pairs and numbers make up 60, 20 and 20 % of the
    logit's variance, and ``b`` gives the base rate (both set on 262,144 rows of their own).
    The id of rank ``r = 0, 1, …`` by frequency comes with probability ``∫ (1 + t)^-exponent dt`` from ``r`` to
    ``r + 1``, up to a factor: a power law but for the first ranks. Which id has which rank is drawn.
    """

    cardinalities: tuple[int, ...]  # number of ids of each categorical column
    n_cont: int  # number of continuous columns
    seed: int  # other seeds give other laws and other rows
    base_rate: float  # mean click probability
    signal: float  # standard deviation of the logit
    exponent: float  # of the power law

    def __post_init__(self) -> None:
        wrong = [
            (min(self.cardinalities, default=0) < 2, "cardinalities must be 2 or more, of one column or more"),
            (max(self.cardinalities, default=0) >= 2**31 - 1, "cardinalities must be below 2,147,483,647"),
            (self.n_cont < 0, "n_cont must be 0 or more"),
            (not 0 < self.base_rate < 1, "base_rate must lie between 0 and 1"),
            (not (self.signal >= 0 and self.exponent > 0), "signal must be ≥ 0 and exponent > 0"),
        ]
        if found := [remedy for bad, remedy in wrong if bad]:
            raise DataError(f"no table of clicks can be drawn by {self}", remedy=found[0])

    def logits(self, start: int, stop: int) -> Tensor:
        """Return the true logits of rows ``start`` up to ``stop``, float32, computed anew."""
        if start >= stop:
            return torch.empty(0)
        places = range(start // _CHUNK, -(-stop // _CHUNK))
        self._intercept  # noqa: B018 - made before the threads start
        made = torch.cat(run_parallel(lambda i: self._logit(self._draw(i)[2]), places, rows=stop - start))
        return made[start - places[0] * _CHUNK :][: stop - start]

    def effects(self, column: int) -> Tensor:
        """Return the effect ``e`` of every id of a column, float32 ``[cardinality]``, code ``c`` at ``c - 1``."""
        table, codes = self._tables[column]
        found = torch.empty(len(table))
        found[codes.long() - 1] = table[:, 0] * self._scales["ids"]
        return found

    def fill(self, packed: Packed) -> None:
        """Draw rows and their clicks into ``packed``, from the first one on."""
        self._intercept  # noqa: B018 - made before the threads start

        def fill_chunk(i: int) -> None:
            rows = slice(i * _CHUNK, min((i + 1) * _CHUNK, len(packed)))
            n = rows.stop - rows.start
            ids, x, parts, uniform = self._draw(i)
            cats, numbers, clicks = (view[rows] for view in packed.views)
            packed.clear_pad(rows.start, rows.stop)
            codes = torch.stack([codes[ranks] for (_, codes), ranks in zip(self._tables, ids, strict=True)])
            cats.copy_(codes[:, :n].T)
            numbers.copy_(x[:n])
            clicks[:, 0] = (uniform < self._logit(parts).sigmoid_())[:n]

        run_parallel(fill_chunk, range(-(-len(packed) // _CHUNK)), rows=len(packed))

    def _logit(self, parts: dict[str, Tensor]) -> Tensor:
        total = torch.full_like(parts["ids"], self._intercept)
        for name, values in parts.items():
            total.add_(values, alpha=self._scales[name])
        return total

    def _random(self, what: int, which: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence([self.seed, what, which])))

    def _draw(self, i: int, what: int = _ROWS) -> tuple[list[Tensor], Tensor, dict[str, Tensor], Tensor]:
        """Draw chunk ``i``; a row depends on the seed and its own number alone.

        Returns ids less 1 ``[n_cat, n]``, numbers ``[n, n_cont]``, three parts of the logit, and a uniform number.
        """
        random = self._random(what, i)
        ids = [self._ranks(random, n) for n in self.cardinalities]
        parts = {"ids": torch.zeros(_CHUNK), "pairs": torch.zeros(_CHUNK), "numbers": torch.zeros(_CHUNK)}
        before = torch.zeros(_CHUNK, 1 + _RANK)
        for k, ((table, _), a) in enumerate(zip(self._tables, ids, strict=True)):
            found = table.index_select(0, a)
            parts["ids"] += found[:, 0]
            if k % 2:  # the second of a pair
                parts["pairs"] += (before[:, 1:] * found[:, 1:]).sum(1)
            before = found
        x = torch.from_numpy(random.standard_normal((_CHUNK, self.n_cont), dtype=np.float32))
        if self.n_cont:
            linear, square = self._weights
            parts["numbers"] += x @ linear + (x * x - 1) @ square
        return ids, x, parts, torch.from_numpy(random.random(_CHUNK, dtype=np.float32))

    def _ranks(self, random: np.random.Generator, size: int) -> Tensor:
        """Draw ranks by frequency, int64 ``[_CHUNK]``, by the inverse of the distribution function."""
        x = torch.from_numpy(random.random(_CHUNK))  # float64: float32 is too coarse for the ids that come seldom
        power = 1 - self.exponent
        if abs(power) < 1e-9:
            x.mul_(math.log1p(size)).exp_()
        else:
            x.mul_((1 + size) ** power - 1).add_(1).log_().mul_(1 / power).exp_()
        return x.sub_(1).clamp_(0, size - 1).long()

    @cached_property
    def _tables(self) -> list[tuple[Tensor, Tensor]]:
        """Effects and vectors ``[cardinality, 1 + _RANK]`` and codes int32 of each column, both by rank."""
        tables = []
        for i, size in enumerate(self.cardinalities):
            random = self._random(_MAIN, i)
            values = random.standard_normal((size, 1 + _RANK), dtype=np.float32)
            codes = random.permutation(size).astype(np.int32) + 1  # code 0 stands for missing
            tables.append((torch.from_numpy(values), torch.from_numpy(codes)))
        return tables

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        made = self._random(_MAIN, len(self.cardinalities)).standard_normal((2, self.n_cont), dtype=np.float32)
        linear, square = torch.from_numpy(made)
        return linear, square / (2 * math.sqrt(2))

    @cached_property
    def _pilot(self) -> dict[str, Tensor]:
        self._tables, self._weights  # noqa: B018 - made before the threads start
        drawn = run_parallel(lambda i: self._draw(i, _PILOT_ROWS)[2], range(_PILOT), rows=_PILOT * _CHUNK)
        return {name: torch.cat([d[name] for d in drawn]).double() for name in _SHARES}

    @cached_property
    def _scales(self) -> dict[str, float]:
        """Factor of each part of the logit."""
        there = {name: share for name, share in _SHARES.items() if float(self._pilot[name].std()) > 0}
        whole = sum(there.values())
        scales = dict.fromkeys(_SHARES, 0.0)
        for name, share in there.items():
            scales[name] = self.signal * math.sqrt(share / whole) / float(self._pilot[name].std())
        total = sum(self._pilot[name] * scale for name, scale in scales.items())
        spread = float(total.std())  # the parts are all but independent
        return {name: scale * (self.signal / spread if spread else 1.0) for name, scale in scales.items()}

    @cached_property
    def _intercept(self) -> float:
        logit = sum(self._pilot[name] * scale for name, scale in self._scales.items())
        low, high = -60.0, 60.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if float((logit + middle).sigmoid().mean()) < self.base_rate else (low, middle)
        return middle

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}  # the tables are made again


class PlantedCTR(TabularFrame):
    """A ``TabularFrame`` of planted clicks, as ``planted_ctr`` makes it.

    ``truth`` is the law of the clicks (None on parts of the frame).
    """

    truth: CTRTruth | None = None

    @cached_property
    def bayes_auc(self) -> float:
        """AUC of the true click probability on validation rows (if there are none, on all): the best expected score.

        Raises:
            NotFittedError: this is only a part of the frame.
        """
        if self.truth is None:
            raise NotFittedError("a part of the table does not know its truth", remedy="Ask the whole table")
        start = self.split if self.split < len(self) else 0
        return auc(self.truth.logits(start, len(self)), self.y[start:, 0])


def planted_ctr(
    rows: int,
    *,
    valid: int | None = None,
    cardinalities: Sequence[int] = CARDINALITIES,
    n_cont: int = 4,
    seed: int = 0,
    base_rate: float = 0.2,
    signal: float = 1.3,
    exponent: float = 1.1,
    cat_dtype: torch.dtype = torch.int32,
) -> PlantedCTR:
    """Return a table of clicks with a known truth (see ``CTRTruth``), drawn straight into packed rows.

    Same arguments, same rows; a longer table begins with the rows of a shorter one. It takes the memory of its packed
    rows: 60 bytes each with the defaults.

    Args:
        rows: how many, validation included.
        valid: how many of them, the last ones, are for validation; a tenth by default.
        cardinalities: number of ids of each categorical column ``c0``, ``c1``, …
        n_cont: number of continuous columns ``x0``, ``x1``, …
        seed: a whole number ≥ 0; other seeds give other laws and other rows.
        base_rate: mean click probability.
        signal: standard deviation of the logit; 1.3 gives a Bayes AUC of about .80.
        exponent: of the power law of ids.
        cat_dtype: dtype of codes, int32 or int64; codes count from 1, as 0 stands for missing.

    Returns:
        The frame; its target ``click`` is 0 or 1, float32. ``to.dataloaders(bs)`` is for ``rec_learner`` with
        ``loss_func=BCE()``.

    Raises:
        DataError: a number out of its range.
    """
    valid = rows // 10 if valid is None else valid
    if rows < 1 or not 0 <= valid < rows or seed < 0:
        problem = f"{rows} rows, {valid} of them for validation, seed {seed}"
        raise DataError(problem, remedy="Give one row or more, fewer for validation, and a seed ≥ 0")
    truth = CTRTruth(tuple(cardinalities), n_cont, seed, base_rate, signal, exponent)
    cats, conts = [f"c{i}" for i in range(len(cardinalities))], [f"x{i}" for i in range(n_cont)]
    categorify, labels = Categorify(), Labels([TARGET], RegressionBlock(n_out=1), dtype=torch.float32)
    for name, size in zip(cats, cardinalities, strict=True):
        categorify.set_vocab(name, Vocab(pa.array(np.arange(1, size + 1)), name=name))
    frame = PlantedCTR.__new__(PlantedCTR)
    frame._assign(FrameRecipe(cats, conts, [categorify], labels, cat_dtype=cat_dtype), device=None)
    frame._packed = Packed.empty(rows, frame._recipe.layout(with_y=True))
    truth.fill(frame._packed)
    frame._split, frame.truth = rows - valid, truth
    return frame
