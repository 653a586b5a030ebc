"""``NaNPattern``: a row's missing values as one code."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.options import OfColumns, is_open
from fastrec.features.base import Cols, RowWise, Tensors
from fastrec.table import Table


class NaNPattern(OfColumns, RowWise):
    """``Σ 2^i · [column i is missing]`` as int64: rows with the same gaps share a code, 0 = nothing is missing.

    Missing fields often tell a row's source; one code shows them to a tree or an embedding at once.

    Args:
        cols: columns of any type (an empty list is not missing), or generators; at most 62 of them.
        name: the output's name.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import NaNPattern
        >>> df = pd.DataFrame({"age": [None, 30.0, None], "city": [None, "x", "y"]})
        >>> NaNPattern(["age", "city"]).fit_transform(df)["nan_pattern"].tolist()
        [3, 0, 1]
    """

    def __init__(self, cols: Cols, *, name: str = "nan_pattern") -> None:
        self.cols, self.name = cols, name
        if not is_open(cols):
            self._check()

    def _check(self) -> None:
        if not 1 <= len(self.columns) <= 62:
            raise DataError(
                f"NaNPattern: {len(self.columns)} columns, where one code holds 1 to 62",
                remedy="Use several of them, each with a name= of its own",
            )

    @property
    def outputs(self) -> list[str]:
        return [self.name]

    def prepare(self, table: Table) -> Tensors:
        self._check()  # a selector has chosen by now
        return {c: table[c].is_missing().to(table.device) for c in self.columns}

    def apply(self, tensors: Tensors) -> Tensors:
        masks = [tensors[c] for c in self.columns]
        code = torch.zeros(masks[0].shape, dtype=torch.int64, device=masks[0].device)
        for i, missing in enumerate(masks):
            code = code | missing.long() << i
        return {self.name: code}
