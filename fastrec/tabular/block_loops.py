"""Prepared rows made and put in their places by one compiled loop over the columns of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.kernels import frames
from fastrec._core.threads import run_parallel
from fastrec.table import Column
from fastrec.tabular.cat_codes import Codes
from fastrec.tabular.column_parts import numbers_of, plain_numbers
from fastrec.tabular.packed import Packed
from fastrec.tabular.procs.base import ContProc
from fastrec.tabular.procs.fill_missing import FillMissing
from fastrec.tabular.procs.normalize import Normalize
from fastrec.tabular.training_rows import address_of


@dataclass(frozen=True)
class PreparedColumns:
    """Columns on their way into packed rows.

    Args:
        flags: continuous column → place of its ``_na`` column among the codes.
        shift: code of False in a ``_na`` column.
        ys: the targets ``[n]``: in the frame's order where each of its rows counts once, else in that of packed rows.
    """

    codes: Sequence[Codes]
    conts: Sequence[str]
    flags: Mapping[str, int]
    shift: int
    procs: Sequence[ContProc]
    ys: Sequence[torch.Tensor]
    read: Mapping[str, Column]


class BlockLoops:
    """Writes rows into packed ones, wherever in the frame they stand.

    Columns in one piece of memory are read where they are; of others each block is first made as it is without loops.
    """

    def __init__(self, packed: Packed, places: np.ndarray | None) -> None:
        self.packed, self.fields = packed, packed.layout.fields
        self.places = np.empty(0, np.int64) if places is None else places
        self.columns: list[list[int]] = []
        self.scales: list[tuple[float, float, float]] = []
        self.kept: list[np.ndarray] = []  # whose memory the loop reads
        self.odd: list[tuple[int, Codes | Column]] = []  # place among the columns, and what makes a block
        self.shift = 0

    @classmethod
    def of(
        cls,
        made: PreparedColumns,
        held: Mapping[int, Column],
        packed: Packed,
        *,
        places: np.ndarray | None,
        order: torch.Tensor | None,
    ) -> BlockLoops | None:
        """Return the loops for columns; None if a proc does more than fill and scale.

        Args:
            held: place among continuous columns → column, of those that are written.
            places: where each of the frame's rows goes; None: where it stands.
            order: the frame's rows that count, where ``made.ys`` is in their order; None: it is in the frame's.
        """
        if not all(type(p) in (FillMissing, Normalize) for p in made.procs):
            return None
        loops = cls(packed, places)
        loops.shift = made.shift
        for i, codes in enumerate(made.codes):
            loops._add_codes("cats", i, codes)
        for i, column in held.items():
            loops._add_number(made, i, column)
        for i, y in enumerate(made.ys):
            whole = y if order is None else y.new_zeros(len(places)).index_put_((order,), y)
            if y.is_floating_point():
                loops._add("ys", i, whole.numpy(), scale=(np.nan, 0.0, 1.0))
            else:
                loops._add_codes("ys", i, Codes(whole))
        return loops

    def _add_codes(self, field: str, i: int, codes: Codes) -> None:
        values, table = codes.values, codes.lookup.table() if codes.lookup is not None else None
        values = values.view(torch.uint8) if values.dtype == torch.bool else values
        if values.is_floating_point() or codes.missing is not None or (codes.lookup is not None and table is None):
            self._add(field, i, codes)
        elif table is None:
            self._add(field, i, values.numpy())
        else:
            self.kept.append(table[0].numpy())
            self._add(field, i, values.numpy(), table=(self.kept[-1].ctypes.data, *table[1:]))

    def _add_number(self, made: PreparedColumns, i: int, column: Column) -> None:
        name, fill, mean, sd = made.conts[i], np.nan, 0.0, 1.0
        for proc in made.procs:
            if isinstance(proc, FillMissing):
                fill = proc.fill_of(name)
            else:
                mean, sd = proc.scale_of(name)
        plain = plain_numbers(column)
        flag = self._word("cats", made.flags[name]) if name in made.flags else -1
        self._add("conts", i, column if plain is None else plain, scale=(fill, mean, sd), flag=flag)

    def _word(self, field: str, i: int) -> int:
        at, _, dtype = self.fields[field]
        return at + i * dtype.itemsize // 4

    def _add(
        self,
        field: str,
        i: int,
        source: np.ndarray | Codes | Column,
        *,
        scale: tuple[float, float, float] | None = None,
        table: tuple[int, int, int] = (0, 0, 0),
        flag: int = -1,
    ) -> None:
        # The loop reads arrays by their address; what it cannot read is made block by block before it runs.
        found = address_of(source) if isinstance(source, np.ndarray) else None
        if found is None:
            if isinstance(source, np.ndarray):  # an array in strides, say
                source = Column("number", torch.from_numpy(source)) if scale else Codes(torch.from_numpy(source))
            self.odd.append((len(self.columns), source))
        else:
            self.kept.append(source)
        wide = self.fields[field][2].itemsize == 8
        self.columns.append([*(found or (0, 0)), self._word(field, i), wide, scale is not None, *table, flag])
        self.scales.append(scale or (np.nan, 0.0, 1.0))

    def write(self) -> None:
        """Write all rows."""
        size = len(self.places) or len(self.packed)
        run_parallel(self._write_block, range(0, size, limits.FRAME_BLOCK), rows=size)

    def _write_block(self, start: int) -> None:
        size = len(self.places) or len(self.packed)
        stop = min(start + limits.FRAME_BLOCK, size)
        columns, made = np.array(self.columns, dtype=np.int64).reshape(-1, frames().FIELDS), []
        for at, source in self.odd:
            rows = slice(start, stop)
            values = source.of(rows).to(torch.int64) if isinstance(source, Codes) else numbers_of(source, rows)
            made.append(values.contiguous().numpy())
            address, kind = address_of(made[-1])
            # the loop counts from the frame's first row, the block begins at ``start``
            columns[at, :2] = address - start * made[-1].itemsize, kind
        scales, wide = np.array(self.scales).reshape(-1, 3), self.fields["cats"][2].itemsize == 8
        frames().pack(columns, scales, self.shift, wide, self.places, start, stop, self.packed.buffer.numpy())
