"""``RobustScale``: continuous columns by median and quartiles, outliers drawn in smoothly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec._core import limits
from fastrec.errors import NotFittedError
from fastrec.tabular.procs.base import ContProc

__all__ = ["RobustScale"]


class RobustScale(ContProc):
    """Continuous columns less their median, over the distance between their quartiles, within ±3.

    ``z = (x - median) · s`` with ``s = 1 / (q₇₅ - q₂₅)``; where the quartiles are equal ``2 / (max - min)``, and 0 for
    a column of one value. Then ``z / √(1 + (z / 3)²)``, which hardly changes small values and goes no further than 3.
    All over the training rows' finite values; a missing value is 0, as the median is.

    Source: arXiv 2407.04491, section 3 ("robust scaling and smooth clipping").
    """

    order = 99

    def __init__(self) -> None:
        super().__init__()
        self.centers: dict[str, float] = {}
        self.scales: dict[str, float] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns."""
        self.centers, self.scales = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's median and scale."""
        present = values[values.isfinite()].cpu()
        if not len(present):
            return
        self.centers[name], self.scales[name] = _center_and_scale(present)

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Scale and clip values."""
        if name not in self.scales:
            raise NotFittedError(f"RobustScale has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        if self.scales[name] == 0:
            return torch.zeros_like(values)
        scaled = ((values - self.centers[name]) * self.scales[name]).clamp(-limits.ROBUST_LARGE, limits.ROBUST_LARGE)
        return torch.where(values.isnan(), 0.0, scaled / (1 + (scaled / limits.ROBUST_LIMIT) ** 2).sqrt())

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return the raw values up to rounding at the limits; a missing one is the median."""
        if self.scales[name] == 0:
            return torch.full_like(values, self.centers[name])
        scaled = values / (1 - (values / limits.ROBUST_LIMIT) ** 2).clamp(min=1e-12).sqrt()
        return scaled / self.scales[name] + self.centers[name]

    def to_state(self) -> dict[str, Any]:
        """Return centre and scale of every column."""
        return {"kind": self.name, "columns": {n: [self.centers[n], self.scales[n]] for n in self.centers}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RobustScale:
        """Make the proc of a state."""
        proc = cls()
        proc.centers = {n: float(c) for n, (c, _) in state["columns"].items()}
        proc.scales = {n: float(s) for n, (_, s) in state["columns"].items()}
        return proc


def _center_and_scale(values: torch.Tensor) -> tuple[float, float]:
    """Return the median, and the scale by quartiles or by the range, of finite values."""
    ranked = torch.sort(values).values
    places = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64) * (len(ranked) - 1)
    low = places.long()
    high = (low + 1).clamp(max=len(ranked) - 1)
    first, median, third = torch.lerp(ranked[low], ranked[high], places - low).tolist()
    spread, reach = third - first, float(ranked[-1] - ranked[0])
    scale = 1 / spread if spread > 0 else 2 / reach if reach > 0 else 0.0
    return median, scale if scale < float("inf") else 0.0
