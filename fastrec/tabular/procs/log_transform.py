"""``LogTransform``: continuous columns onto a logarithmic scale, as the DLRM recipe does with counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastrec.errors import MissingColumnError, NotFittedError
from fastrec.tabular.procs.base import ContProc

__all__ = ["LogTransform"]


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

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.names = None if names is None else [names] if isinstance(names, str) else list(names)
        self.lows: dict[str, float | None] = {}

    def reset(self, names: Sequence[str]) -> None:
        """Forget what was learnt and prepare to fit these columns.

        Raises:
            MissingColumnError: a column that was to be changed is not among them.
        """
        absent = next((n for n in self.names or () if n not in names), None)
        if absent is not None:
            raise MissingColumnError(
                "LogTransform is to change it, but it is no continuous column",
                column=absent,
                remedy="Add it to cont_names, or leave it out of LogTransform's names",
            )
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
        low = self._low(name)
        return values if low is None else _log(values, low)

    def apply_row(self, names: Sequence[str], values: torch.Tensor) -> torch.Tensor:
        """Transform one row of several columns."""
        lows = [self._low(n) for n in names]
        chosen = torch.tensor([low is not None for low in lows], dtype=torch.bool)
        shift = torch.tensor([low or 0.0 for low in lows], dtype=torch.float64)
        return torch.where(chosen, _log(values, shift), values)

    def invert(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return ``exp(value) - 1 + lowest``."""
        low = self._low(name)
        return values if low is None else values.expm1() + low

    def _low(self, name: str) -> float | None:
        if name not in self.lows:
            raise NotFittedError(f"LogTransform has not seen column {name!r}", remedy="Fit it in a TabularFrame first")
        return self.lows[name]

    def to_state(self) -> dict[str, Any]:
        """Return the smallest value of every column, None if it is not transformed."""
        return {"kind": self.name, "names": self.names, "lows": dict(self.lows)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LogTransform:
        """Make the proc of a state."""
        proc = cls(state["names"])
        proc.lows = dict(state["lows"])
        return proc


def _log(values: torch.Tensor, low: float | torch.Tensor) -> torch.Tensor:
    return (values.nan_to_num(0.0, torch.inf, -torch.inf) - low).clamp_(min=0).log1p_()
