"""Prepared rows written into packed ones, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import frames
from fastrec._core.threads import run_parallel
from fastrec.table import Column
from fastrec.tabular.cat_codes import Codes
from fastrec.tabular.columns import FrameColumns, Rows, address_of, as_number, numbers_of, plain_numbers, worth
from fastrec.tabular.packed import Packed, put_rows
from fastrec.tabular.procs.base import ContProc
from fastrec.tabular.procs.procs import FillMissing, Normalize

# Prepared rows made and put in their places by one compiled loop over the columns of a block.


@dataclass(frozen=True)
class PreparedColumns:
    """Columns on their way into packed rows.

    ``flags``: continuous column → place of its ``_na`` column among the codes, where ``shift`` is False. ``ys``: the
    targets ``[n]``, in the frame's order where each of its rows counts once, else in that of packed rows.
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

        ``held``: place among continuous columns → column. ``places``: where each frame row goes. ``order``: that of
        ``made.ys``, if not the frame's.
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
                fill = proc.of_column("fills", name)
            else:
                mean, sd = proc.of_column("means", name), proc.stds[name]
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


class Writer:
    """Writes rows into packed ones, at most ``step`` at a time.

    Rows in an order of their own are read as they stand in the frame, and whole packed rows are put in their places:
    one access to memory for each row, where reading in that order takes one for each number of it.
    """

    def __init__(self, made: PreparedColumns, columns: FrameColumns, packed: Packed, *, step: int, few: int) -> None:
        self.made, self.columns, self.packed = made, columns, packed
        self.fields = packed.layout.fields
        n, words = len(columns), max(packed.layout.words, 1)
        here = on_host(packed)
        block = max(limits.LEAST_BLOCK, 1 << (limits.BLOCK_WORDS // words).bit_length())
        self.step = min(step, block) if here else step
        self.places = columns.places if here else None
        self.front = None if self.places is None or n == columns.size else columns.ascending(n)
        places = {name: i for i, name in enumerate(made.conts)}
        held = {m: i for m, i in places.items() if n <= few or columns.shares(m)}
        self.held = {i: as_number(made.read[m] if m in made.read else columns.raw(m)) for m, i in held.items()}
        self.plain = {i: plain_numbers(c) for i, c in self.held.items()} if here else {}
        self.by_loops = self._loops(n * words) if here else None
        self.apart = [i for i in places.values() if i not in self.held]  # these are copies: one in memory at a time

    def write(self) -> None:
        """Write all rows."""
        n = len(self.columns) if self.packed.layout.words else 0
        if self.by_loops is not None:
            self.by_loops.write()
        else:
            run_parallel(self._write_block, range(0, n, self.step), rows=n)
        run_parallel(self._write_column, self.apart, rows=n)  # after the rows: it overwrites their places
        if self.places is not None and self.by_loops is None:
            order = slice(None) if self.front is not None else self.columns.order
            for i, y in enumerate(self.made.ys):
                self.packed.views[2][:, i] = y[order]

    def _loops(self, numbers: int) -> BlockLoops | None:
        few = 4 * len(self.columns) < self.columns.size  # of the frame's rows, each of which the loops go over
        if not worth(numbers) or few or (self.columns.order is not None and self.places is None):
            return None
        made, order = self.made, None if self.front is None else self.columns.order
        return BlockLoops.of(made, self.held, self.packed, places=self.places, order=order)

    def _write_block(self, start: int) -> None:
        stop = min(start + self.step, len(self.columns))
        if self.places is None:
            rows = self.columns.rows(start, stop)
        else:
            rows = slice(start, stop) if self.front is None else self.front[start:stop]
        # Gathered column by column and turned at once: that writes whole rows, which is twice as fast as columns.
        block = self.packed.buffer.new_empty((self.packed.layout.words, stop - start))
        block[-1:] = 0  # what pads the rows, if anything
        for i, column in enumerate(self.made.codes):
            self._put(block, "cats", i, column.of(rows))
        self._put_numbers(block, rows)
        if self.places is None:
            for i, y in enumerate(self.made.ys):
                self._put(block, "ys", i, y[start:stop])
            self.packed.buffer[start:stop].copy_(block.T)
        else:
            turned = torch.empty((stop - start, len(block)), dtype=block.dtype)
            turned.copy_(block.T)
            put_rows(self.packed.buffer, self.places[rows if isinstance(rows, slice) else rows.numpy()], turned)

    def _put(self, block: torch.Tensor, field: str, i: int, values: torch.Tensor) -> None:
        at, _, dtype = self.fields[field]
        if dtype.itemsize == 4:
            block[at + i].view(dtype).copy_(values)
        else:
            block[at + 2 * i : at + 2 * i + 2].copy_(values.to(dtype).view(torch.int32).view(-1, 2).T)

    def _put_numbers(self, block: torch.Tensor, rows: Rows) -> None:
        at, count, dtype = self.fields["conts"]
        m, out = block.shape[1], block[at : at + count].view(dtype)
        held, size = list(self.held), max(limits.BLOCK_NUMBERS // max(block.shape[1], 1), 1)
        for first in range(0, len(held), size):
            group = held[first : first + size]
            names = [self.made.conts[i] for i in group]
            values = torch.empty((len(group), m), dtype=torch.float64, device=block.device)
            self._read(group, rows, values)
            for row, name in enumerate(names):
                if name in self.made.flags:
                    self._put(block, "cats", self.made.flags[name], values[row].isnan() + self.made.shift)
            for proc in self.made.procs:
                values = proc.apply_block(names, values)
            if group[-1] - group[0] + 1 == len(group):
                out[group[0] : group[-1] + 1].copy_(values)
            else:
                for i, row in zip(group, values, strict=True):
                    out[i].copy_(row)

    def _read(self, group: Sequence[int], rows: Rows, out: torch.Tensor) -> None:
        # numpy's calls cost half of torch's, and a wide table has many columns.
        array = out.numpy() if on_host(out) else None
        places = rows if isinstance(rows, slice) or array is None else rows.numpy()
        for row, i in enumerate(group):
            plain = self.plain.get(i)
            if plain is None:
                out[row] = numbers_of(self.held[i], rows)
            else:
                array[row] = plain[places]

    def _write_column(self, i: int) -> None:
        name = self.made.conts[i]
        column = as_number(self.columns.raw(name))
        for start in range(0, len(self.columns), self.step):
            stop = min(start + self.step, len(self.columns))
            cats, conts = (v[start:stop] for v in self.packed.views[:2])
            values = numbers_of(column, self.columns.rows(start, stop))
            if name in self.made.flags:
                cats[:, self.made.flags[name]] = values.isnan() + self.made.shift
            for proc in self.made.procs:
                values = proc.apply(name, values)
            conts[:, i] = values
