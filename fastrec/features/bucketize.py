"""``Bucketize``: numbers as the bucket they fall into."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.column_stats import count_values, merge_values, quantiles, total_counts
from fastrec.features._engine.options import ascending, check_scope
from fastrec.features._inputs import as_list, masked, name_of, number_of
from fastrec.features.base import Cells, Col, Fitted, Scope, State, Tensors
from fastrec.table import Column, Table


class Bucketize(Fitted):
    """The bucket of a number: 0 below the first edge, ``i`` from the ``i``-th edge on; missing stays missing.

    With ``edges`` nothing is learned and nothing needs to be fitted.

    Args:
        col: a number column, or a generator of one.
        edges: ascending numbers.
        quantiles: learn the edges from training rows instead: exact quantiles (linear between neighbours, as numpy's),
            at ``1/k … (k-1)/k`` for a whole number ``k``, or at the shares given. Equal edges become one.
        name: the output's name; None: ``{col}_bucket``, with quantiles ``{col}_qbucket``.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Bucketize
        >>> df = pd.DataFrame({"gap": [3, 10, 99, 10]})
        >>> Bucketize("gap", [10, 60]).fit_transform(df)["gap_bucket"].tolist()
        [0, 1, 2, 1]
        >>> Bucketize("gap", quantiles=2).fit_transform(df)["gap_qbucket"].tolist()
        [0, 1, 1, 1]
    """

    def __init__(
        self,
        col: Col,
        edges: Sequence[float] | None = None,
        *,
        quantiles: int | Sequence[float] | None = None,
        name: str | None = None,
        scope: Scope = "train",
    ) -> None:
        super().__init__()
        self.col, self.edges, self.quantiles, self.name, self.scope = col, edges, quantiles, name, scope
        check_scope(self)
        if (edges is None) == (quantiles is None):
            raise DataError("Bucketize needs edges, or quantiles to learn them", remedy="Give one of the two")
        if edges is not None and (not len(edges) or not ascending(edges)):
            raise DataError(
                f"Bucketize: the edges {list(edges)} do not ascend", remedy="Give ascending numbers, each once"
            )
        shares = self._shares()
        if edges is None and not (shares and ascending(shares) and shares[0] >= 0 and shares[-1] <= 1):
            raise DataError(
                f"Bucketize: {quantiles} makes no quantiles", remedy="Give 2 or more, or ascending shares from 0 to 1"
            )

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "fitted" if self.edges is None else "row"

    @property
    def online(self) -> str:  # type: ignore[override]
        return self.kind

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.col)}_{'q' if self.edges is None else ''}bucket"]

    def _shares(self) -> list[float]:
        if self.quantiles is None or isinstance(self.quantiles, list | tuple):
            return [float(q) for q in as_list(self.quantiles)]
        parts = float(self.quantiles)
        return [i / parts for i in range(1, int(parts))] if parts.is_integer() else []

    def _learned(self) -> tuple[State, State]:
        return super()._learned() if self.edges is None else ({}, self.finalize({}))

    def learn(self, state: State) -> None:
        if self.edges is None:
            super().learn(state)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.edges is not None:
            return {}
        return count_values(number_of(table, name_of(self.col), wanted_by=self), cells)

    def merge(self, a: State, b: State) -> State:
        return merge_values(a, b) if self.edges is None else {}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        if self.edges is not None:
            return {"edges": torch.tensor([float(e) for e in self.edges], dtype=torch.float64)}
        edges = torch.unique_consecutive(quantiles(*total_counts(state, keep), self._shares()))
        return {"edges": edges[~edges.isnan()]}

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"value": number_of(table, name_of(self.col), wanted_by=self)}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        value = tensors["value"]
        bucket = torch.bucketize(value, fit["edges"].to(value.device), right=True)
        return {self.outputs[0]: torch.where(value.isnan(), -1, bucket)}

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        name, bucket = self.outputs[0], tensors[self.outputs[0]]
        return {name: masked(name, bucket, bucket < 0)}
