"""``Normalize``: continuous columns to mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec._core import limits
from fastrec.tabular.moments import Moments
from fastrec.tabular.procs.base import ContProc, _float64, _learnt, _refuse_columns
from fastrec.tabular.training_rows import Summary

__all__ = ["Normalize"]


class Normalize(ContProc):
    """Continuous columns to mean 0 and standard deviation 1 over the training rows (missing values left out)."""

    order = 99

    def __init__(self, *columns: Any) -> None:
        super().__init__()
        _refuse_columns(self, columns)
        self.means: dict[str, float] = {}
        self.stds: dict[str, float] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns."""
        self.means, self.stds = dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0)

    def fit(self, name: str, values: torch.Tensor) -> None:
        """Fit a column's mean and standard deviation."""
        moments = Moments()
        for part in values.split(max(len(values), 1) if values.is_cuda else limits.FRAME_BLOCK):
            moments.add(part[~part.isnan()] if bool(part.sum().isnan()) else part, extremes=False)
        # Rounding may leave a constant column a little spread: then its range decides.
        if moments.count and moments.std <= limits.ROUNDING_SPREAD * abs(moments.mean):
            moments.low, moments.high = (float(v) for v in torch.aminmax(values[~values.isnan()]))
        self.learn(name, Summary(moments, 0))

    def learn(self, name: str, summary: Summary) -> None:
        """Fit a column by its summary."""
        moments = summary.moments
        if moments.count:
            constant = moments.low == moments.high
            self.means[name] = moments.low if constant else moments.mean
            self.stds[name] = 1.0 if constant else moments.std + 1e-7  # as fastai adds it

    def scale_of(self, name: str) -> tuple[float, float]:
        """Return a column's mean and standard deviation."""
        return _learnt(self, self.means, name), self.stds[name]

    def apply(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``(value - mean) / sd``."""
        return (values - _learnt(self, self.means, name)).div_(self.stds[name])

    def apply_block(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Normalize several columns in place."""
        means, stds = (
            _float64(known).to(values.device)[:, None]
            for known in ((_learnt(self, self.means, n) for n in names), (self.stds[n] for n in names))
        )
        return values.sub_(means).div_(stds)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Normalize one row of several columns."""
        means = _float64(_learnt(self, self.means, n) for n in names)
        return (values - means).div_(_float64(self.stds[n] for n in names))

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``value * sd + mean``."""
        return values * self.stds[name] + self.means[name]

    def to_state(self) -> dict[str, Any]:
        """Return names, and float64 tensors of means and standard deviations."""
        means, stds = _float64(self.means.values()), _float64(self.stds.values())
        return {"kind": self.name, "names": list(self.means), "means": means, "stds": stds}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Normalize:
        """Make the proc of a state."""
        proc = cls()
        proc.means = dict(zip(state["names"], state["means"].tolist(), strict=True))
        proc.stds = dict(zip(state["names"], state["stds"].tolist(), strict=True))
        return proc
