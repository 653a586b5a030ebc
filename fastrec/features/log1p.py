"""``Log1p``: numbers on a logarithmic scale that keeps 0 at 0."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns
from fastrec.features._inputs import number_of
from fastrec.features.base import Cols, RowWise, Tensors
from fastrec.table import Table


class Log1p(OfColumns, RowWise):
    """``log(1 + x)`` as float64; missing stays missing.

    A value of -1 or less has no such logarithm and is an error that names its row, unless ``signed`` is set.

    Args:
        cols: number columns, or generators.
        signed: give ``sign(x)·log(1 + |x|)``, which is defined everywhere, odd, and the same for ``x ≥ 0``.

    Source: the signed form is the "log-modulus" transformation of John and Draper 1980, "An alternative family of
    transformations", eq. 2.

    Example:
        >>> import math
        >>> import pandas as pd
        >>> from fastrec.features import Log1p
        >>> df = pd.DataFrame({"gain": [0.0, math.e - 1, 1 - math.e]})
        >>> Log1p("gain", signed=True).fit_transform(df)["signed_log1p_gain"].round(6).tolist()
        [0.0, 1.0, -1.0]
    """

    def __init__(self, cols: Cols, *, signed: bool = False) -> None:
        self.cols, self.signed = cols, signed

    @property
    def outputs(self) -> list[str]:
        return [f"{'signed_' if self.signed else ''}log1p_{c}" for c in self.columns]

    def prepare(self, table: Table) -> Tensors:
        tensors = {c: number_of(table, c, wanted_by=self) for c in self.columns}
        for name, values in tensors.items():
            low = values <= -1
            if not self.signed and bool(low.any()):
                row = int(low.nonzero()[0])
                raise DataError(
                    f"Log1p: {values[row].item()} has no log(1 + x)",
                    column=name,
                    row=row,
                    remedy="Use signed=True or Clip",
                )
        return tensors

    def apply(self, tensors: Tensors) -> Tensors:
        made = {}
        for name, output in zip(self.columns, self.outputs, strict=True):
            values = tensors[name]
            made[output] = torch.sign(values) * torch.log1p(values.abs()) if self.signed else torch.log1p(values)
        return made
