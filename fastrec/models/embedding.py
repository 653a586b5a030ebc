"""All embedding tables of a model in as few parameters as possible: one per width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from fastai.layers import trunc_normal_
from torch import Tensor, nn

from fastrec.errors import DataError, MissingColumnError

ALIGN = 4  # floats: a row of 4k floats starts on a 16-byte boundary, which wide loads need
NARROW = 32  # floats: up to here, on CPUs, index_select's backward is 1.3 to 6 times faster than F.embedding's

CheckIds = Literal["auto", "always", "never"]


def emb_sz_rule(n: int, *, cap: int = 600) -> int:
    """The width of an embedding table, by fastai's rule of thumb.

    Args:
        n: number of rows (categories, the one for missing included).
        cap: the largest width to give.

    Returns:
        ``min(cap, round(1.6 * n ** 0.56))``, at least 1.
    """
    return max(1, min(cap, round(1.6 * n**0.56)))


def embedding_sizes(
    classes: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    *,
    widths: Mapping[str, int] | None = None,
    cap: int = 600,
) -> list[tuple[int, int]]:
    """Rows and width of every column's table.

    Args:
        classes: column name to its categories (``dls.classes``), the one for missing included.
        names: the categorical columns, in the order of the batch.
        widths: column name to the width it must have; the other columns follow ``emb_sz_rule``.
        cap: the largest width the rule gives.

    Returns:
        One ``(rows, width)`` per name.

    Raises:
        MissingColumnError: ``widths`` names a column that is not among ``names``.
    """
    widths = dict(widths or {})
    if unknown := [n for n in widths if n not in names]:
        raise MissingColumnError(
            f"a width was given for {unknown[0]!r}, which is not a categorical column",
            column=unknown[0],
            remedy=f"The categorical columns are {list(names)}",
        )
    rows = [len(classes[n]) for n in names]
    return [(r, widths.get(n, emb_sz_rule(r, cap=cap))) for n, r in zip(names, rows, strict=True)]


@dataclass(frozen=True)
class TableSlice:
    """Where one column's table lies: rows ``start:stop`` of the parameter ``weights.<group>``."""

    name: str
    group: str
    start: int
    stop: int
    width: int


class EmbeddingTables(nn.Module):
    """Embedding tables of several columns, those of one width held as one parameter.

    A forward pass gathers once per width, a backward pass scatters once per width, and an optimizer sees one
    parameter per width; ``parameter_segments`` (also set as ``segments`` on each parameter) tells layer-wise
    optimizers which rows are which table.

    Args:
        emb_szs: ``(rows, width)`` for each column, in the order of the batch's columns.
        names: the columns' names; ``'0'``, ``'1'``, … where not given.
        pad: round every width up to a multiple of 4 floats (16 bytes); the padded width is then the table's width.
            False keeps the widths as they are.
        check_ids: when to look for ids out of range before the lookup: ``'auto'`` on the CPU only, since on CUDA the
            look costs a wait for the device; ``'always'``; ``'never'``. Never inside a compiled or exported graph.
        std: scale of the truncated normal (at two scales) that the tables start from.

    Raises:
        DataError: a size below 1, or names that repeat or are not as many as the sizes.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        *,
        names: Sequence[str] | None = None,
        pad: bool = True,
        check_ids: CheckIds = "auto",
        std: float = 0.01,
    ) -> None:
        super().__init__()
        names = [str(i) for i in range(len(emb_szs))] if names is None else list(names)
        _check_sizes(emb_szs, names)
        self.check_ids = check_ids
        self.slices = _lay_out(emb_szs, names, pad)
        self._by_name = {s.name: s for s in self.slices}
        self._runs = _runs(self.slices)
        self.embedding_dim = sum(s.width for s in self.slices)
        self.weights = nn.ParameterDict()
        for group in dict.fromkeys(s.group for s in self.slices):
            own = [s for s in self.slices if s.group == group]
            self.weights[group] = nn.Parameter(torch.empty(own[-1].stop, own[0].width))
            columns = torch.tensor([i for i, s in enumerate(self.slices) if s.group == group])
            self.register_buffer(f"_columns_{group}", columns, persistent=False)
        self.register_buffer("_offsets", torch.tensor([s.start for s in self.slices]), persistent=False)
        self.register_buffer("_rows", torch.tensor([s.stop - s.start for s in self.slices]), persistent=False)
        self.reset_parameters(std)
        self._tag()
        self.register_load_state_dict_post_hook(_tag_after_load)

    def reset_parameters(self, std: float = 0.01) -> None:
        """Draw every table anew, column by column, from a normal of scale ``std`` truncated at two scales."""
        with torch.no_grad():
            for s in self.slices:
                trunc_normal_(self.weights[s.group][s.start : s.stop], std=std)

    def forward(self, x_cat: Tensor) -> Tensor:
        """Look up every column.

        Args:
            x_cat: ids ``[b, columns]``, integers from 0 to the column's rows less one.

        Returns:
            ``[b, embedding_dim]``: the columns' vectors side by side, in column order.

        Raises:
            DataError: an id is out of range (see ``check_ids``), or the number of columns is another.
        """
        pieces = self.pieces(x_cat)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def pieces(self, x_cat: Tensor) -> list[Tensor]:
        """As ``forward``, before the vectors are copied into one tensor.

        Args:
            x_cat: ids ``[b, columns]``.

        Returns:
            Tensors ``[b, ·]`` whose concatenation along dimension 1 is what ``forward`` returns; a caller that
            has more columns to append saves a copy.
        """
        self._check(x_cat)
        ids = x_cat + self._offsets  # int64 from any integer type
        parts: dict[str, list[Tensor]] = {}
        for group, weight in self.weights.items():
            own = ids if len(self.weights) == 1 else ids.index_select(1, getattr(self, f"_columns_{group}"))
            found = _gather(weight, own)
            widths = [w for g, w in self._runs if g == group]
            parts[group] = [found] if len(widths) == 1 else list(found.split(widths, 1))
        taken = {group: iter(part) for group, part in parts.items()}
        return [next(taken[group]) for group, _ in self._runs]

    def table(self, name: str) -> Tensor:
        """One column's table, as a view that gradients flow through.

        Args:
            name: the column.

        Returns:
            ``[rows, width]`` view of the shared parameter.

        Raises:
            MissingColumnError: there is no such column.
        """
        s = self._slice(name)
        return self.weights[s.group][s.start : s.stop]

    def load_table(self, name: str, weights: Tensor) -> None:
        """Overwrite one column's table.

        Args:
            name: the column.
            weights: ``[rows, width]``, any float dtype and device.

        Raises:
            MissingColumnError: there is no such column.
            DataError: the shape is not the table's.
        """
        table = self.table(name)
        if weights.shape != table.shape:
            raise DataError(
                f"the table is {list(table.shape)} (rows, width) but the weights are {list(weights.shape)}",
                column=name,
                remedy="Give weights of the table's own shape; pad=False keeps widths that are no multiple of 4",
            )
        with torch.no_grad():
            table.copy_(weights)

    def parameter_segments(self) -> dict[str, tuple[int, ...]]:
        """Row bounds of the tables inside each parameter.

        Returns:
            Parameter name (as in ``named_parameters``) to ``(0, …, rows)``: table ``i`` of that parameter is rows
            ``bounds[i]:bounds[i + 1]``.
        """
        groups = dict.fromkeys(s.group for s in self.slices)
        return {f"weights.{g}": (0, *(s.stop for s in self.slices if s.group == g)) for g in groups}

    def extra_repr(self) -> str:
        """Tables as ``name: rows×width``."""
        return ", ".join(f"{s.name}: {s.stop - s.start}×{s.width}" for s in self.slices)

    def _slice(self, name: str) -> TableSlice:
        if name not in self._by_name:
            raise MissingColumnError(
                "there is no such embedding table", column=name, remedy=f"Tables: {[*self._by_name]}"
            )
        return self._by_name[name]

    def _check(self, x_cat: Tensor) -> None:
        if x_cat.ndim != 2 or x_cat.shape[1] != len(self.slices):
            raise DataError(
                f"ids of shape [b, {len(self.slices)}] are needed, not {list(x_cat.shape)}",
                remedy=f"Give one column of ids for each of {[*self._by_name]}",
            )
        wanted = self.check_ids == "always" or (self.check_ids == "auto" and x_cat.device.type == "cpu")
        if not wanted or torch.compiler.is_compiling() or torch.jit.is_tracing() or not len(x_cat):
            return
        low, high = torch.aminmax(x_cat, dim=0)
        if ((low < 0) | (high >= self._rows)).any():
            self._refuse(x_cat)

    def _refuse(self, x_cat: Tensor) -> None:
        row, column = ((x_cat < 0) | (x_cat >= self._rows)).nonzero()[0].tolist()
        s = self.slices[column]
        raise DataError(
            f"id {int(x_cat[row, column])} is outside the embedding table's 0 to {s.stop - s.start - 1}",
            column=s.name,
            row=row,
            remedy="Encode rows with the vocabulary that the model was built from (the row is counted in the batch)",
        )

    def _tag(self) -> None:
        for name, bounds in self.parameter_segments().items():
            self.weights[name.removeprefix("weights.")].segments = bounds

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tag()  # copying a parameter drops what was set on it

    def _apply(self, fn: Any, recurse: bool = True) -> EmbeddingTables:
        super()._apply(fn, recurse)
        self._tag()
        return self


def _gather(weight: Tensor, ids: Tensor) -> Tensor:
    """``[b, k · width]`` rows of ``weight``, for ids ``[b, k]``."""
    if ids.device.type == "cpu" and weight.shape[1] <= NARROW:
        return weight.index_select(0, ids.flatten()).view(ids.shape[0], ids.shape[1] * weight.shape[1])
    return F.embedding(ids, weight).flatten(1)


def _tag_after_load(module: EmbeddingTables, incompatible_keys: Any) -> None:
    module._tag()  # load_state_dict(assign=True) puts other parameters in place


def _check_sizes(emb_szs: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
    if len(names) != len(emb_szs) or len(set(names)) != len(names):
        raise DataError(
            f"{len(emb_szs)} tables need as many different names, not {list(names)}", remedy="Name every column once"
        )
    for name, (rows, width) in zip(names, emb_szs, strict=True):
        if rows < 1 or width < 1:
            raise DataError(
                f"an embedding table of {rows} rows and width {width} cannot be", column=name, remedy="Both must be ≥ 1"
            )


def _lay_out(emb_szs: Sequence[tuple[int, int]], names: Sequence[str], pad: bool) -> tuple[TableSlice, ...]:
    filled: dict[int, int] = {}
    slices = []
    for name, (rows, width) in zip(names, emb_szs, strict=True):
        width = -(-width // ALIGN) * ALIGN if pad else width
        start = filled.get(width, 0)
        filled[width] = start + rows
        slices.append(TableSlice(name, f"w{width}", start, start + rows, width))
    return tuple(slices)


def _runs(slices: Sequence[TableSlice]) -> tuple[tuple[str, int], ...]:
    """Neighbouring columns of one group, as (group, floats): each run stays one piece of the output."""
    runs: list[tuple[str, int]] = []
    for s in slices:
        if runs and runs[-1][0] == s.group:
            runs[-1] = (s.group, runs[-1][1] + s.width)
        else:
            runs.append((s.group, s.width))
    return tuple(runs)
