"""``ListSlice``: a part of a row's list, filled up to a fixed length where asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._engine.lists import list_of
from fastrec.features._inputs import name_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.table import Column, Table, as_column
from fastrec.table.offsets import lengths_of, runs

Pad = bool | int | float | str


class ListSlice(RowWise):
    """A part of a row's list, ``list[start:end]`` as Python slices it; with ``pad`` every list gets the same length.

    A missing list stays missing; with ``pad`` it becomes a list of nothing but ``pad``.

    Args:
        col: a column of lists or vectors, or a generator of one.
        start: the first element, from 0; below 0: from the list's end.
        end: the first element that is left out; below 0: from the list's end; None: none is.
        pad: fill lists up to ``end - start`` elements with this value, of the elements' own type; None: do not. Both
            bounds must then count from the same end (``start=-3`` and no end: the last three).
        pad_side: fill on the ``'right'`` or, so that the last elements stay last, on the ``'left'``.
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
        self.col, self.start, self.end = col, start, end
        self.pad, self.pad_side, self.name = pad, pad_side, name
        if pad_side not in ("right", "left"):
            raise DataError(f"ListSlice cannot pad on the side {pad_side!r}", remedy="Use 'right' or 'left'")
        if pad is not None and not self.width > 0:
            raise DataError(
                f"ListSlice: the slice from {start} to {'the end' if end is None else end} has no length to pad to",
                remedy="Count start and end from the same end of the list, start first",
            )

    @property
    def width(self) -> int:
        """The largest length of a slice if both bounds count from the same end; else 0."""
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
        """Return new offsets, and each new element's place among the old ones; for ``pad`` one past the last."""
        offsets = tensors["offsets"]
        lengths = lengths_of(offsets)
        first = self._bound(self.start, lengths)
        last = lengths if self.end is None else self._bound(self.end, lengths)
        count = (last - first).clamp_min(0)
        if self.pad is None:  # ragged: runs of places, without a matrix
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
        """Return the elements and ``pad`` after them, in the elements' type; without a type, in that of ``pad``."""
        elements = column.elements
        if elements.kind == "category":
            return self._after_keys(column)
        if elements.kind != "number":
            raise self._refuse(column)
        kind = elements.values.dtype
        if isinstance(self.pad, str):
            if not (kind.is_floating_point and bool(elements.is_missing().all())):
                raise self._refuse(column)
            only = as_column(pa.array([self.pad]), name=elements.name).to(elements.values.device)
            missing = only.values.new_zeros(len(elements))
            return replace(only, values=torch.cat([missing, only.values]))
        pad = self._number(kind)
        if pad is None:
            raise self._refuse(column)
        missing = elements.missing
        missing = None if missing is None else torch.cat([missing, missing.new_zeros(1)])
        values = torch.cat([elements.values, pad.to(elements.values.device)])
        return replace(elements, values=values, missing=missing)

    def _number(self, kind: torch.dtype) -> torch.Tensor | None:
        """Return ``pad`` as a number of this type, ``[1]``; None if the type cannot hold it."""
        if kind.is_floating_point:
            return torch.tensor([self.pad], dtype=kind)
        if self.pad != self.pad or abs(self.pad) == float("inf") or int(self.pad) != self.pad:
            return None
        low, high = (0, 1) if kind == torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        return torch.tensor([int(self.pad)]).to(kind) if low <= self.pad <= high else None

    def _after_keys(self, column: Column) -> Column:
        elements = column.elements
        try:
            pad = pa.array([self.pad], elements.distinct.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise self._refuse(column) from None
        at = elements.distinct.index(pad[0]).as_py()
        distinct = elements.distinct if at >= 0 else pa.concat_arrays([elements.distinct, pad])
        code = elements.values.new_tensor([(at if at >= 0 else len(elements.distinct)) + 1])
        return replace(elements, values=torch.cat([elements.values, code]), distinct=distinct)

    def _refuse(self, column: Column) -> DataError:
        elements = column.elements
        what = {"category": elements.distinct, "number": elements.values}.get(elements.kind)
        held = elements.kind if what is None else str(getattr(what, "dtype", getattr(what, "type", "")))
        filled = lengths_of(column.values).nonzero()
        return DataError(
            f"ListSlice: pad={self.pad!r} is no value of lists of {held.removeprefix('torch.').removeprefix('large_')}",
            column=column.name or None,
            row=int(filled[0]) if len(filled) else None,
            remedy="Give a pad of the elements' own type, or slice without pad",
        )
