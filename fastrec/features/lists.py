"""Features of list columns: length, slices, membership."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import sort_keys, sum_by_cell
from fastrec.features._engine.options import OfColumns, coded_elements, list_of
from fastrec.features.base import Cells, Col, Cols, RowWise, Scope, State, Tensors
from fastrec.features.columns import as_columns, as_list, masked, name_of
from fastrec.features.encode import SumsByKey
from fastrec.table import Column, Keys, Table, as_column
from fastrec.table.column import lengths_of, rows_of, runs
from fastrec.table.table import concat_columns


class ListLength(OfColumns, RowWise):
    """Number of elements of a row's list, missing ones included, as int64; missing for a missing list.

    Args:
        cols: list or vector columns, or generators.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import ListLength
        >>> df = pd.DataFrame({"tags": [["a", "b"], [], None]})
        >>> ListLength("tags").fit_transform(df)["length_tags"].tolist()
        [2, 0, <NA>]
    """

    _word = "length"

    def __init__(self, cols: Cols) -> None: ...

    def prepare(self, table: Table) -> Tensors:
        return {name: list_of(table, name, wanted_by=self).values for name in self.columns}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self._name(name): lengths_of(offsets) for name, offsets in tensors.items()}

    def compute(self, table: Table) -> dict[str, Column]:
        lengths = self.apply(self.prepare(table))
        columns = {self._name(c): table[c] for c in self.columns}
        return {n: masked(n, lengths[n], c.is_missing().to(lengths[n].device)) for n, c in columns.items()}


Pad = bool | int | float | str


class ListSlice(RowWise):
    """Slice ``list[start:end]`` of a row's list; with ``pad`` all lists have the same length.

    A missing list stays missing; with ``pad`` it is filled entirely.

    Args:
        col: a list or vector column, or a generator.
        start, end: as in a Python slice.
        pad: fill lists to ``end - start`` elements with this value, of the elements' type; None: do not fill. Both
            bounds must then count from the same end (``start=-3`` and no end: the last three).
        pad_side: fill on the ``'right'``, or on the ``'left'`` so that the last elements stay last.
        name: the output's name; None: ``slice_{start}_{end}_{col}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import ListSlice
        >>> df = pd.DataFrame({"items": [[1, 2, 3], [4], None]})
        >>> [x.tolist() for x in ListSlice("items", 0, 2, pad=0).fit_transform(df)["slice_0_2_items"]]
        [[1, 2], [4, 0], [0, 0]]
    """

    def __init__(
        self,
        col: Col,
        start: int = 0,
        end: int | None = None,
        *,
        pad: Pad | None = None,
        pad_side: Literal["right", "left"] = "right",
        name: str | None = None,
    ) -> None:
        if pad is not None and not self.width > 0:
            last = "the end" if end is None else end
            problem = f"ListSlice: the slice from {start} to {last} has no length to pad to"
            raise DataError(problem, remedy="Count start and end from the same end of the list, start first")

    @property
    def width(self) -> int:
        """The maximal slice length if both bounds count from the same end; else 0."""
        if self.start >= 0:
            return self.end - self.start if self.end is not None and self.end >= 0 else 0
        end = 0 if self.end is None else self.end
        return end - self.start if self.end is None or end < 0 else 0

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"slice_{self.start}_{'end' if self.end is None else self.end}_{name_of(self.col)}"]

    def prepare(self, table: Table) -> Tensors:
        return {"offsets": list_of(table, name_of(self.col), wanted_by=self).values}

    def apply(self, tensors: Tensors) -> Tensors:
        """Return new offsets and each new element's old position; one past the last for ``pad``."""
        offsets = tensors["offsets"]
        lengths = lengths_of(offsets)
        first = self._bound(self.start, lengths)
        last = lengths if self.end is None else self._bound(self.end, lengths)
        count = (last - first).clamp_min(0)
        if self.pad is None:  # ragged: no padded matrix is needed
            new, places = runs(offsets[:-1] + first, count)
            return {"offsets": new, "places": places}
        place = torch.arange(self.width, device=offsets.device)
        place = place if self.pad_side == "right" else place - (self.width - count.unsqueeze(1))
        inside = (place >= 0) & (place < count.unsqueeze(1))
        places = torch.where(inside, (offsets[:-1] + first).unsqueeze(1) + place, offsets[-1])
        new = torch.arange(lengths.shape[0] + 1, device=offsets.device) * self.width
        return {"offsets": new, "places": places.reshape(-1)}

    @staticmethod
    def _bound(at: int, lengths: torch.Tensor) -> torch.Tensor:
        return lengths.clamp_max(at) if at >= 0 else (lengths + at).clamp_min(0)

    def compute(self, table: Table) -> dict[str, Column]:
        column = list_of(table, name_of(self.col), wanted_by=self)
        made = self.apply({"offsets": column.values})
        elements, missing = column.elements, column.missing
        if self.pad is not None:
            elements, missing = self._with_pad(column), None
        name = self.outputs[0]
        taken = replace(elements.take(made["places"]), name=name)
        return {name: Column("list", made["offsets"], name=name, missing=missing, elements=taken)}

    def _with_pad(self, column: Column) -> Column:
        """Append ``pad`` to the elements, in their type if they have one."""
        elements, pad = column.elements, None
        kind = elements.distinct.type if elements.kind == "category" else elements.slice(0, 0).to_arrow().type
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            if elements.kind == "category":
                pad = pa.array([self.pad], kind)
            elif elements.kind == "number" and isinstance(self.pad, str):  # lists without a value are of any type
                pad = pa.array([self.pad]) if pa.types.is_floating(kind) and bool(elements.is_missing().all()) else None
            elif elements.kind == "number":
                pad = pa.array([float(self.pad) if pa.types.is_floating(kind) else self.pad]).cast(kind, safe=False)
                pad = pad if pa.types.is_floating(kind) or pad[0].as_py() == self.pad else None
        if pad is None:
            filled = lengths_of(column.values).nonzero()
            problem = f"ListSlice: pad={self.pad!r} is no value of lists of {str(kind).removeprefix('large_')}"
            row, remedy = int(filled[0]) if len(filled) else None, "Give a pad of that type, or none"
            raise DataError(problem, column=column.name or None, row=row, remedy=remedy)
        return concat_columns([elements, as_column(pad)], column.values.device)


class MultiHot(SumsByKey):
    """Indicators (int8) of the values in a row's list: one column per given value, or one vector.

    Without ``values``, those in the most training lists are learned (ties: smaller first). The output is then one
    vector column of length ``max_size``, zero past the last learned value. Missing and empty lists, and unseen and
    missing elements, give 0.

    Args:
        col: a list or vector column, or a generator.
        values: text, numbers or booleans to look for; None: learn them.
        max_size: the maximal number of learned values.
        min_count: the minimal number of training lists with a value.
        name: the prefix of the outputs' names; None: the column's name.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import MultiHot
        >>> df = pd.DataFrame({"tags": [["a", "b"], ["a"], None]})
        >>> MultiHot("tags", values=["a", "c"]).fit_transform(df)[["tags_has_a", "tags_has_c"]].values.tolist()
        [[1, 0], [1, 0], [0, 0]]
        >>> [x.tolist() for x in MultiHot("tags", max_size=3).fit_transform(df)["tags_multihot"]]
        [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """

    by_row = False
    by_key = (("keys", "count"),)
    _least: ClassVar = {"max_size": 1}

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
            problem = f"MultiHot: values are to be of one type, each once and none missing, not {values!r}"
            raise DataError(problem, remedy="Leave values out to learn them")
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
        """The values of the vector's positions, in order; or the given ones."""
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
        # Repetitions within a list count once.
        pairs = torch.unique(rows * (len(keys) + 1) + codes)
        rows, codes = pairs // (len(keys) + 1), pairs % (len(keys) + 1)
        of_pair = None if cells is None else Cells(cells.codes[rows], cells.count)
        return {"keys": keys, "count": sum_by_cell(torch.ones_like(codes), codes, of_pair, len(keys) + 1)[:, 1:]}

    def merge(self, a: State, b: State) -> State:
        return super().merge(a, b) if self.values is None else max(a, b, key=lambda s: len(s["count"]))

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        """Return each known key's position, from 1; 0: none."""
        total = (state["count"] if keep is None else state["count"][keep.to(state["count"].device)]).sum(0)
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
        at = (rows_of(offsets) * width + place - 1)[place > 0]
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
