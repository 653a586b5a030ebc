"""``CountEncode``: how often a key occurs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors, as_list, name_of, names_of
from fastrec.features.keyed import sort_keys, spread, sum_by_cell, union_keys
from fastrec.table import Table


class CountEncode(Fitted):
    """How many training rows have the row's key; 0 for a key that is missing or was not seen.

    Args:
        cols: key columns, or generators of one column each.
        log: give ``log(1 + count)`` instead.
        scope: ``'all'`` counts the unlabeled rows given to ``fit`` too (no target is in them; the run reports it as
            transductive).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode
        >>> CountEncode("city").fit_transform(pd.DataFrame({"city": ["x", "y", "x", None]}))["count_city"].tolist()
        [2, 1, 2, 0]
    """

    def __init__(
        self,
        cols: str | Feature | Sequence[str | Feature],
        *,
        log: bool = False,
        scope: Literal["train", "all"] = "train",
    ) -> None:
        super().__init__()
        self.cols, self.log, self.scope = cols, log, scope
        if scope not in ("train", "all"):
            raise DataError(f"CountEncode has no scope {scope!r}", remedy="Use 'train' or 'all'")

    @property
    def sources(self) -> list[str | Feature]:
        return as_list(self.cols)

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in as_list(self.cols)]

    def _name(self, col: str | Feature) -> str:
        return f"{'log_' if self.log else ''}count_{name_of(col)}"

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        state: State = {"keys": [], "count": []}
        for col in as_list(self.cols):
            keys, codes = sort_keys(table.coded(names_of(col)))
            state["keys"].append(keys)
            state["count"].append(sum_by_cell(torch.ones_like(codes), codes, cells, len(keys) + 1)[:, 1:])
        return state

    def merge(self, a: State, b: State) -> State:
        merged: State = {"keys": [], "count": []}
        for ka, kb, x, y in zip(a["keys"], b["keys"], a["count"], b["count"], strict=True):
            keys, left, right = union_keys(ka, kb)
            cells = max(len(x), len(y))
            merged["keys"].append(keys)
            merged["count"].append(spread(x, left, len(keys), cells) + spread(y, right, len(keys), cells))
        return merged

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for col, counts in zip(as_list(self.cols), state["count"], strict=True):
            total = (counts if keep is None else counts[keep.to(counts.device)]).sum(0)
            table = torch.cat([total.new_zeros(1), total])
            tables[self._name(col)] = torch.log1p(table.double()) if self.log else table
        return tables

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(as_list(self.cols), state["keys"], strict=True)
        return {name_of(col): table.coded(names_of(col)).recode(keys) for col, keys in pairs}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        names = {self._name(col): tensors[name_of(col)] for col in as_list(self.cols)}
        return {name: fit[name].to(codes.device)[codes] for name, codes in names.items()}
