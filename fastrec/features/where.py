"""``Where``: a column's values where another column is above zero."""

from __future__ import annotations

import torch

from fastrec.features._inputs import name_of, number_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.table import Table


class Where(RowWise):
    """The value where the condition is above 0, else missing: ``Where('position', 'touches')``.

    Args:
        col: a number column, or a generator of one.
        condition: likewise; missing counts as 0.
        name: the output's name; None: ``{col}_where_{condition}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Where
        >>> df = pd.DataFrame({"position": [1, 2], "touched": [0, 3]})
        >>> Where("position", "touched").fit_transform(df)["position_where_touched"].tolist()
        [nan, 2.0]
    """

    def __init__(self, col: Col, condition: Col, *, name: str | None = None) -> None:
        self.col, self.condition, self.name = col, condition, name

    @property
    def sources(self) -> list[Col]:
        return [self.col, self.condition]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.col)}_where_{name_of(self.condition)}"]

    def prepare(self, table: Table) -> Tensors:
        names = {"value": name_of(self.col), "condition": name_of(self.condition)}
        return {word: number_of(table, name, wanted_by=self) for word, name in names.items()}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self.outputs[0]: torch.where(tensors["condition"] > 0, tensors["value"], torch.nan)}
