"""``MultiHot``: which values are in a row's list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine.key_counts import merge_counts
from fastrec.features._engine.keyed import sort_keys, sum_by_cell
from fastrec.features._engine.lists import FittedOnLists, coded_elements, list_of
from fastrec.features._engine.options import check_scope
from fastrec.features._inputs import as_columns, as_list, name_of
from fastrec.features.base import Cells, Col, Scope, State, Tensors
from fastrec.table import Column, Keys, Table
from fastrec.table.offsets import rows_of


class MultiHot(FittedOnLists):
    """The values in a row's list, as int8 0 or 1: a column for each given value, or one vector.

    Without ``values`` those in most training rows' lists are learned (ties: the smaller first); the output is one
    vector column of ``max_size`` places, those past the last learned value 0. Missing and empty lists, unseen and
    missing elements give 0.

    Args:
        col: a column of lists or vectors, or a generator of one.
        values: text, numbers or booleans, the values to look for; None: learn them.
        max_size: the largest number of values learned.
        min_count: the least number of training rows' lists with a value.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        name: the outputs' first word; None: the column's.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import MultiHot
        >>> df = pd.DataFrame({"tags": [["a", "b"], ["a"], None]})
        >>> MultiHot("tags", values=["a", "c"]).fit_transform(df)[["tags_has_a", "tags_has_c"]].values.tolist()
        [[1, 0], [1, 0], [0, 0]]
        >>> [x.tolist() for x in MultiHot("tags", max_size=3).fit_transform(df)["tags_multihot"]]
        [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """

    by_key = (("keys", "count"),)

    def __init__(
        self,
        col: Col,
        values: Sequence[str | int | float | bool] | None = None,
        *,
        max_size: int = 64,
        min_count: int = 1,
        scope: Scope = "train",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.col, self.values, self.max_size, self.min_count = col, values, max_size, min_count
        self.scope, self.name = scope, name
        check_scope(self)
        if max_size < 1:
            raise DataError(f"MultiHot: max_size is {max_size}", remedy="Learn at least 1 value")
        if values is not None:
            self._given()

    def _given(self) -> Keys:
        values = as_list(self.values)
        try:
            found = pa.array(values, from_pandas=True)  # NaN is a missing value
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            found = None
        nested = found is not None and pa.types.is_nested(found.type)
        if found is None or nested or not values or found.null_count or len(found.unique()) < len(values):
            raise DataError(
                f"MultiHot: values are to be of one type, each once and none missing, not {values!r}",
                remedy="Leave values out to learn them",
            )
        found = found.cast(pa.large_string()) if pa.types.is_string(found.type) else found
        return Keys((found,), (name_of(self.col),))

    @property
    def outputs(self) -> list[str]:
        word = self.name or name_of(self.col)
        if self.values is None:
            return [f"{word}_multihot"]
        return [f"{word}_has_{v}" for v in as_list(self.values)]

    @property
    def learned(self) -> list[Any]:
        """The values of the vector's places, in order; or the given ones."""
        if self.values is not None:
            return as_list(self.values)
        state, fit = self._learned()
        place = fit["place"][1:].cpu()
        order = torch.argsort(torch.where(place > 0, place, len(place) + 1), stable=True)[: int((place > 0).sum())]
        return state["keys"].take(order).columns[0].to_pylist()

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.values is not None:
            keys = self._given()
            return {"keys": keys, "count": torch.zeros(1 if cells is None else cells.count, len(keys)).long()}
        column = list_of(table, name_of(self.col), wanted_by=self)
        keys, codes = sort_keys(coded_elements(column, wanted_by=self))
        rows = rows_of(column.values)
        # One pair of row and value, however often the value is in the list.
        pairs = torch.unique(rows * (len(keys) + 1) + codes)
        rows, codes = pairs // (len(keys) + 1), pairs % (len(keys) + 1)
        of_pair = None if cells is None else Cells(cells.codes[rows], cells.count)
        return {"keys": keys, "count": sum_by_cell(torch.ones_like(codes), codes, of_pair, len(keys) + 1)[:, 1:]}

    def merge(self, a: State, b: State) -> State:
        if self.values is not None:
            return max(a, b, key=lambda s: len(s["count"]))
        keys, count = merge_counts(a["keys"], a["count"], b["keys"], b["count"])
        return {"keys": keys, "count": count}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return each known key's place, from 1; 0: none."""
        count = state["count"] if keep is None else state["count"][keep.to(state["count"].device)]
        total = count.sum(0)
        place = torch.zeros(len(total) + 1, dtype=torch.int64, device=total.device)
        if self.values is not None:
            place = torch.arange(len(total) + 1, device=total.device)
        else:
            first = torch.sort(total, descending=True, stable=True).indices[: self.max_size]
            first = first[total[first] >= max(self.min_count, 1)]
            place[first + 1] = torch.arange(1, len(first) + 1, device=total.device)
        return {"place": place}

    def prepare(self, state: State, table: Table) -> Tensors:
        column = list_of(table, name_of(self.col), wanted_by=self)
        return {"offsets": column.values, "key": coded_elements(column, wanted_by=self).recode(state["keys"])}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        offsets = tensors["offsets"]
        width = self.max_size if self.values is None else len(as_list(self.values))
        place = fit["place"].to(offsets.device)[tensors["key"]]
        found = place > 0
        at = (rows_of(offsets) * width + place - 1)[found]
        hot = torch.zeros((offsets.shape[0] - 1) * width, dtype=torch.int8, device=offsets.device)
        hot[at] = 1
        hot = hot.view(-1, width)
        if self.values is None:
            return {self.outputs[0]: hot}
        return {name: column.contiguous() for name, column in zip(self.outputs, hot.unbind(1), strict=True)}

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        if self.values is not None:
            return as_columns(tensors)
        return {n: Column("vector", t, name=n) for n, t in tensors.items()}
