"""Prepared rows written into packed ones, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.threads import run_parallel
from fastrec.tabular.block_loops import BlockLoops, PreparedColumns
from fastrec.tabular.column_parts import FrameColumns, Rows, as_number, numbers_of, plain_numbers
from fastrec.tabular.packed import Packed
from fastrec.tabular.training_rows import worth


class Writer:
    """Writes rows into packed ones.

    Rows in an order of their own are read as they stand in the frame, and whole packed rows are put in their places:
    one access to memory for each row, where reading in that order takes one for each number of it.

    Args:
        step: rows at a time, at most.
    """

    def __init__(self, made: PreparedColumns, columns: FrameColumns, packed: Packed, *, step: int, few: int) -> None:
        self.made, self.columns, self.packed = made, columns, packed
        self.fields = packed.layout.fields
        n, words = len(columns), max(packed.layout.words, 1)
        on_host = packed.device.type == "cpu"
        block = max(limits.LEAST_BLOCK, 1 << (limits.BLOCK_WORDS // words).bit_length())
        self.step = min(step, block) if on_host else step
        self.places = columns.places if on_host else None
        self.front = None if self.places is None or n == columns.size else columns.ascending(n)
        places = {name: i for i, name in enumerate(made.conts)}
        held = {m: i for m, i in places.items() if n <= few or columns.shares(m)}
        self.held = {i: as_number(made.read[m] if m in made.read else columns.raw(m)) for m, i in held.items()}
        self.plain = {i: plain_numbers(c) for i, c in self.held.items()} if on_host else {}
        self.by_loops = self._loops(n * words) if on_host else None
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
        rows = self._rows(start, stop)
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
            self._scatter(block, rows)

    def _rows(self, start: int, stop: int) -> Rows:
        if self.places is None:
            return self.columns.rows(start, stop)
        return slice(start, stop) if self.front is None else self.front[start:stop]

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
        array = None if out.is_cuda else out.numpy()
        places = rows if isinstance(rows, slice) or array is None else rows.numpy()
        for row, i in enumerate(group):
            plain = self.plain.get(i)
            if plain is None:
                out[row] = numbers_of(self.held[i], rows)
            else:
                array[row] = plain[places]

    def _scatter(self, block: torch.Tensor, rows: Rows) -> None:
        turned = torch.empty((block.shape[1], block.shape[0]), dtype=block.dtype)
        turned.copy_(block.T)
        whole = np.dtype((np.void, 4 * block.shape[0]))  # numpy moves such a row at once
        places = self.places[rows if isinstance(rows, slice) else rows.numpy()]
        self.packed.buffer.numpy().view(whole)[:, 0][places] = turned.numpy().view(whole)[:, 0]

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
