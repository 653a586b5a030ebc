"""``Normalize``: numbers brought to mean 0 and standard deviation 1."""

from __future__ import annotations

import torch

from fastrec.features._engine.column_stats import column_moments, merge_column_moments, total_moments
from fastrec.features._engine.options import OfColumns, check_scope
from fastrec.features._inputs import as_list, names_of, number_of
from fastrec.features.base import Cells, Cols, Fitted, Scope, State, Tensors
from fastrec.table import Table


class Normalize(OfColumns, Fitted):
    """``(x - mean) / sd`` by the training rows' mean and (population) standard deviation; missing stays missing.

    Exact in any partitions: 1e8 ± 1 becomes ±1. Missing and infinite training values do not count. A column constant in
    training becomes 0, and later values that differ are not scaled. For a ``TabularFrame`` use
    ``fastrec.tabular.Normalize``, which changes its columns in place.

    Args:
        cols: number columns, or generators; the flags of ``FillMissing`` are left as they are.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    The outputs are float64, named ``norm_{col}``. Source: Chan, Golub, LeVeque 1979, eq. 2.1.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Normalize
        >>> Normalize("x").fit_transform(pd.DataFrame({"x": [1e8 - 1, 1e8 + 1]}))["norm_x"].tolist()
        [-1.0, 1.0]
    """

    def __init__(self, cols: Cols, *, scope: Scope = "train") -> None:
        super().__init__()
        self.cols, self.scope = cols, scope
        check_scope(self)

    @property
    def columns(self) -> list[str]:
        """The columns that are scaled: of ``FillMissing`` the values, not the flags."""
        return [n for c in as_list(self.cols) for n in names_of(c) if n not in getattr(c, "flags", ())]

    @property
    def outputs(self) -> list[str]:
        return [f"norm_{c}" for c in self.columns]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        return {"columns": [column_moments(number_of(table, c, wanted_by=self), cells) for c in self.columns]}

    def merge(self, a: State, b: State) -> State:
        return {"columns": [merge_column_moments(x, y) for x, y in zip(a["columns"], b["columns"], strict=True)]}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        fit = {}
        for name, moments in zip(self.columns, state["columns"], strict=True):
            total = total_moments(moments, keep)
            varies = total["high"] > total["low"]
            sd = (total["m2"] / total["count"].clamp_min(1)).sqrt()
            mean = torch.where(total["high"] == total["low"], total["low"], total["mean"])
            fit[name] = torch.stack([mean, torch.where(varies & (sd > 0), sd, 1)])
        return fit

    def prepare(self, state: State, table: Table) -> Tensors:
        return {c: number_of(table, c, wanted_by=self) for c in self.columns}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            mean, sd = fit[name].to(tensors[name].device)
            made[f"norm_{name}"] = (tensors[name] - mean) / sd
        return made
