"""``VectorColumns``: given vectors (of images, of texts) as one vector column of unit length."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.constants import float64
from fastrec.features._engine.lists import list_of
from fastrec.features._engine.options import OfColumns
from fastrec.features._inputs import as_list, masked, number_of
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors
from fastrec.features.selectors import Selector
from fastrec.table import Column, Table
from fastrec.table.offsets import lengths_of, rows_of


class VectorColumns(OfColumns, Fitted):
    """Many number columns, or one column of lists or vectors, as one vector column, L2-normalised.

    A vector of zeros stays one; one with infinite parts points where these do. A vector that is missing, or of which a
    part is, is missing (in a Table: masked, and zeros). Float32 vectors stay float32, all else becomes float64.

    Args:
        cols: number columns, one column of lists or vectors, or generators of such.
        dims: how many numbers a vector has; None: learned from the training rows. A list of another length is an error.
        normalise: divide each vector by its length.
        name: the output's name; None: ``vector_{col}`` of one column (of several it must be given).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import VectorColumns
        >>> df = pd.DataFrame({"image": [[3.0, 4.0], [0.0, 0.0], None]})
        >>> [x if x is None else x.tolist() for x in VectorColumns("image").fit_transform(df)["vector_image"]]
        [[0.6, 0.8], [0.0, 0.0], None]
    """

    def __init__(
        self,
        cols: str | Feature | Selector | Sequence[str | Feature | Selector],
        *,
        dims: int | None = None,
        normalise: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.cols, self.dims, self.normalise, self.name = cols, dims, normalise, name
        chosen = any(isinstance(c, Selector) for c in as_list(cols))  # how many is known once it was fitted
        count = 0 if chosen else len(self.columns)
        if not chosen and not count:
            raise DataError("VectorColumns of no column", remedy="Name one or more")
        if name is None and count != 1:
            raise DataError("VectorColumns of several columns has no name", remedy="Give it one: name='image'")
        if dims is not None and (dims < 1 or (count > 1 and count != dims)):
            raise DataError(f"VectorColumns: {count} columns are no vector of {dims}", remedy="Leave dims out")

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"vector_{self.columns[0]}"]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        return {"dims": torch.tensor([self._width(table)])}

    def merge(self, a: State, b: State) -> State:
        x, y = int(a["dims"]), int(b["dims"])
        if x and y and x != y:
            raise DataError(
                f"VectorColumns: vectors have {x} numbers in one part of the rows and {y} in another",
                column=self.columns[0],
                remedy="Give all rows vectors of one length",
            )
        return a if x else b

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        return state

    def _width(self, table: Table) -> int:
        if self.dims is not None or len(self.columns) > 1:
            return self.dims or len(self.columns)
        column = table[self.columns[0]]
        if column.kind == "vector":
            return column.values.shape[1]
        if self._is_number(column):
            return 1
        lengths = lengths_of(list_of(table, self.columns[0], wanted_by=self).values)
        known = lengths[~column.is_missing().to(lengths.device)]
        return int(known[0]) if len(known) else 0

    @staticmethod
    def _is_number(column: Column) -> bool:
        if column.kind not in ("number", "category") or bool(column.is_missing().all()):
            return False
        try:
            column.number()
        except DataError:  # text
            return False
        return True

    def prepare(self, state: State, table: Table) -> Tensors:
        width = int(state["dims"]) or self._width(table) or 1
        names = self.columns
        if len(names) > 1:
            return {"vector": torch.stack([number_of(table, n, wanted_by=self) for n in names], 1)}
        column = table[names[0]]
        if self._is_number(column):
            self._check(torch.ones(len(column), dtype=torch.int64), column.is_missing().cpu(), width)
            return {"vector": number_of(table, names[0], wanted_by=self).unsqueeze(1)}
        if column.kind == "vector":
            values, missing = column.values, column.is_missing()
            self._check(torch.full((len(column),), values.shape[1]), missing.cpu(), width)
            values = (values if values.dtype == torch.float32 else values.double())[:, :width]
            gone = column.missing is not None
            return {"vector": torch.where(missing.unsqueeze(1), torch.nan, values) if gone else values}
        return {"vector": self._from_lists(list_of(table, names[0], wanted_by=self), width)}

    def _from_lists(self, column: Column, width: int) -> torch.Tensor:
        missing = column.is_missing()
        self._check(lengths_of(column.values), missing, width)
        elements = column.elements
        dtype = torch.float32 if getattr(elements.values, "dtype", None) == torch.float32 else torch.float64
        try:
            numbers = elements.number(dtype)
        except DataError as error:
            row = None if error.row is None else int(rows_of(column.values)[error.row])
            raise DataError(
                "VectorColumns: its lists hold no numbers", column=column.name, row=row, remedy="Choose another column"
            ) from error
        if not bool(missing.any()):
            return numbers.view(len(missing), width)
        result = torch.full((len(missing), width), torch.nan, dtype=dtype, device=missing.device)
        result[~missing] = numbers.view(-1, width)
        return result

    def _check(self, lengths: torch.Tensor, missing: torch.Tensor, width: int) -> None:
        ragged = ((lengths != width) & ~missing).nonzero()
        if len(ragged):
            row = int(ragged[0])
            raise DataError(
                f"VectorColumns: a vector has {int(lengths[row])} numbers where {width} are expected",
                column=self.columns[0],
                row=row,
                remedy="Give all rows vectors of one length, as when it was fitted",
            )

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        values = tensors["vector"]
        return {self.outputs[0]: unit(values) if self.normalise else values}

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        result = {}
        for name, values in tensors.items():
            missing = values.isnan().any(1)
            values = values.masked_fill(missing.unsqueeze(1), 0) if bool(missing.any()) else values
            result[name] = masked(name, values, missing, "vector")
        return result


def unit(values: torch.Tensor) -> torch.Tensor:
    """Divide vectors ``[n, d]`` by their lengths; zeros stay zeros."""
    length = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64)
    # Lengths in between have squares in float32 too; the others are scaled first.
    plain = (length > float64(1e-30)) & (length < float64(1e30))
    result = values / torch.where(plain, length, 1).to(values.dtype).unsqueeze(1)
    odd = (~plain).nonzero().squeeze(1)
    if values.numel():  # not len(odd), which a graph would fix to what it was traced with
        result[odd] = _careful_unit(values[odd])
    return result


def _careful_unit(values: torch.Tensor) -> torch.Tensor:
    # Of zeros, of vectors whose squares are no floats, and of missing ones.
    largest = values.abs().amax(1, keepdim=True)
    endless = torch.where(values.isinf(), values.sign(), 0)
    scaled = torch.where(largest.isinf(), endless, values / torch.where(largest > 0, largest, 1))
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True, dtype=torch.float64)
    return (scaled / torch.where(length > 0, length, 1)).to(values.dtype)
