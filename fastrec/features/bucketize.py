"""``Bucketize``: numbers as the bucket they fall into."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features.base import Feature, RowWise, Tensors, name_of, number_of
from fastrec.table import Column, Table


class Bucketize(RowWise):
    """The bucket of a number: 0 below the first edge, ``i`` from the ``i``-th edge on; missing stays missing.

    Args:
        col: a number column, or a generator of one.
        edges: ascending numbers.
        name: the output's name; None: ``{col}_bucket``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Bucketize
        >>> Bucketize("gap", [10, 60]).fit_transform(pd.DataFrame({"gap": [3, 10, 99]}))["gap_bucket"].tolist()
        [0, 1, 2]
    """

    def __init__(self, col: str | Feature, edges: Sequence[float], *, name: str | None = None) -> None:
        self.col, self.edges, self.name = col, edges, name
        if list(edges) != sorted(set(edges)) or not len(edges):
            raise DataError(
                f"Bucketize: the edges {list(edges)} do not ascend", remedy="Give ascending numbers, each once"
            )

    @property
    def sources(self) -> list[str | Feature]:
        return [self.col]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.col)}_bucket"]

    def prepare(self, table: Table) -> Tensors:
        return {"value": number_of(table, name_of(self.col), wanted_by=self)}

    def apply(self, tensors: Tensors) -> Tensors:
        value = tensors["value"]
        edges = torch.tensor(list(self.edges), dtype=torch.float64, device=value.device)
        bucket = torch.bucketize(value, edges, right=True)
        return {self.outputs[0]: torch.where(value.isnan(), -1, bucket)}

    def compute(self, table: Table) -> dict[str, Column]:
        name, bucket = self.outputs[0], self.apply(self.prepare(table))[self.outputs[0]]
        missing = bucket < 0
        return {name: Column("number", bucket, name=name, missing=missing if bool(missing.any()) else None)}
