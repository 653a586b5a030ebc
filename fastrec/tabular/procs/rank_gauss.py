"""``RankGauss``: continuous columns onto a normal distribution by rank, so that a net sees no odd scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import NotFittedError
from fastrec.tabular.procs.base import ContProc


class RankGauss(ContProc):
    """Continuous columns to the normal quantiles of their ranks in the training rows.

    Quantiles are cut at 3 standard deviations, then brought to mean 0 and sd 1 over the training rows; a missing value
    is 0, and so is every value of a column with fewer than two. Between training values it is linear, beyond them flat.
    Equal values stay equal.

    Source: M. Jahrer, first place of Porto Seguro's Safe Driver Prediction, Kaggle 2018 ("RankGauss").
    """

    order = 99

    def __init__(self) -> None:
        super().__init__()
        self.knots: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns."""
        nothing = torch.zeros(1, dtype=torch.float64)
        self.knots = dict.fromkeys(names, (nothing, nothing))

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
        if len(distinct) > limits.GAUSS_KNOTS:
            chosen = torch.unique(
                torch.searchsorted(share, torch.linspace(0, 1, limits.GAUSS_KNOTS, dtype=torch.float64)).clamp(
                    max=len(distinct) - 1
                )
            )
            distinct, scaled = distinct[chosen], scaled[chosen]
        self.knots[name] = (distinct, scaled)

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Interpolate the normal quantiles of values linearly."""
        x, y = (k.to(values.device) for k in self._knots_of(name))
        if len(x) == 1:
            return torch.zeros_like(values)
        clipped = torch.nan_to_num(values, nan=float(x[0])).clamp(x[0], x[-1])
        right = torch.searchsorted(x, clipped).clamp(1, len(x) - 1)
        left = right - 1
        part = (clipped - x[left]) / (x[right] - x[left])
        return torch.where(values.isnan(), 0, y[left] + part * (y[right] - y[left]))

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Transform one row of several columns."""
        made = [_interpolate(*self._knots_of(n), v) for n, v in zip(names, values.tolist(), strict=True)]
        return torch.tensor(made, dtype=torch.float64)

    def _knots_of(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name not in self.knots:
            raise NotFittedError(f"RankGauss has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return self.knots[name]

    def to_state(self) -> dict[str, Any]:
        """Return the knots of every column."""
        return {"kind": self.name, "knots": {n: {"x": x, "y": y} for n, (x, y) in self.knots.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RankGauss:
        """Make the proc of a state."""
        proc = cls()
        proc.knots = {n: (k["x"], k["y"]) for n, k in state["knots"].items()}
        return proc


def _interpolate(x: torch.Tensor, y: torch.Tensor, value: float) -> float:
    if len(x) == 1 or value != value:
        return 0.0
    x, y = x.numpy(), y.numpy()
    clipped = min(max(value, x[0]), x[-1])
    right = min(max(int(x.searchsorted(clipped)), 1), len(x) - 1)
    left = right - 1
    part = (clipped - x[left]) / (x[right] - x[left])
    return float(y[left] + part * (y[right] - y[left]))
