"""A background thread that reads packed rows ahead, and the buffer through which they are mixed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from fastrec.tabular.loader import permutation
from fastrec.tabular.packed import Layout, Packed, put_rows
from fastrec.tabular.stream.files import Unit

Chunk = tuple[int, Callable[[int, int, Packed], None]]
"""So many rows, and what writes those between two places among them into room for as many."""


class ReadAhead:
    """Packed rows in the order in which they are read, ``rows`` at a time; a thread reads the next ones meanwhile.

    Use it as a context: leaving it ends the thread.
    """

    def __init__(self, chunks: Callable[[], Iterator[Chunk]], layout: Layout, rows: int) -> None:
        self._chunks, self._layout, self._rows = chunks, layout, rows
        self._free: SimpleQueue[Packed | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[Packed, int] | BaseException | None] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastrec-reader", daemon=True)

    def __enter__(self) -> ReadAhead:
        for _ in range(2):
            self._free.put(Packed.empty(self._rows, self._layout))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._free.put(None)  # wakes the thread, should it wait for room
        self._thread.join()

    def __iter__(self) -> Iterator[Packed]:
        """Yield rows that are valid until the next ones are requested."""
        while (item := self._full.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            buffer, rows = item
            yield buffer.rows(0, rows)
            self._free.put(buffer)

    def _run(self) -> None:
        buffer, at = None, 0
        try:
            for rows, write in self._chunks():
                done = 0
                while done < rows:
                    if buffer is None:
                        buffer, at = self._free.get(), 0
                    if buffer is None or self._closed.is_set():
                        return
                    take = min(rows - done, self._rows - at)
                    write(done, done + take, buffer.rows(at, at + take))
                    at, done = at + take, done + take
                    if at == self._rows:
                        self._full.put((buffer, at))
                        buffer = None
            end: BaseException | None = None
        except BaseException as error:  # the reader's caller gets it, whatever it is
            end = error
        if buffer is not None and at:
            self._full.put((buffer, at))
        self._full.put(end)


def take_in_turn(sources: Iterator[Iterator[Chunk]], at_once: int, seed: int | None) -> Iterator[Chunk]:
    """Yield chunks of several open sources, the next source drawn at random; ``seed`` None: one after the other."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    open_ones: list[Iterator[Chunk]] = []
    while True:
        while len(open_ones) < (at_once if generator is not None else 1):
            source = next(sources, None)
            if source is None:
                break
            open_ones.append(source)
        if not open_ones:
            return
        i = int(torch.randint(len(open_ones), (), generator=generator)) if len(open_ones) > 1 else 0
        chunk = next(open_ones[i], None)
        if chunk is None:
            open_ones.pop(i)
        else:
            yield chunk


class Mixer:
    """Rows in random order through a buffer; without a ``seed`` they come as they are read.

    Each row that is taken leaves its place to one that is read. All places are emptied once, in random order, before
    any is emptied again. On average, a row stays while as many others are taken as the buffer holds, and at most twice
    as many. The rows that are left at the end are permuted.
    """

    def __init__(self, filled: Iterator[Packed], layout: Layout, rows: int, seed: int | None) -> None:
        self._filled, self._layout = filled, layout
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._room = torch.empty((0 if seed is None else rows, layout.words), dtype=torch.int32)
        self._read, self._at = self._room[:0], 0  # what was read, and how far it has been used
        self._places, self._next = np.empty(0, dtype=np.int64), 0  # the order in which places are emptied
        self._ended = self._filled_up = self._draining = False
        self._held = 0
        self.error: BaseException | None = None

    def _more(self) -> bool:
        if self._at == len(self._read) and not self._ended:
            try:
                packed = next(self._filled, None)
            except BaseException as error:  # it is raised when the rows before it have been handed on
                packed, self.error = None, error
            self._ended = packed is None
            self._read, self._at = self._room[:0] if packed is None else packed.buffer, 0
        return self._at < len(self._read)

    def take(self, rows: int) -> torch.Tensor:
        """Return the next rows, int32 ``[at most rows, words]``; fewer at the end, or if ``error`` is set."""
        out = torch.empty((rows, self._layout.words), dtype=torch.int32)
        move = self._move if self._rng is not None else self._copy
        done = 0
        while done < rows and (step := move(out[done:])):
            done += step
        return out[:done]

    def _copy(self, out: torch.Tensor) -> int:
        if not self._more():
            return 0
        step = min(len(out), len(self._read) - self._at)
        out[:step] = self._read[self._at : self._at + step]
        self._at += step
        return step

    def _move(self, out: torch.Tensor) -> int:
        if not self._filled_up:
            self._fill()
        if not self._draining and not self._more():
            if self.error is not None:
                return 0
            self._draining = True
            self._places, self._next = self._order(), 0
        if self._next == len(self._places):
            if self._draining:
                return 0
            self._places, self._next = self._order(), 0
        step = min(len(out), len(self._places) - self._next)
        step = step if self._draining else min(step, len(self._read) - self._at)
        places = self._places[self._next : self._next + step]
        torch.index_select(self._room, 0, torch.from_numpy(places), out=out[:step])
        if not self._draining:
            put_rows(self._room, places, self._read[self._at : self._at + step])
            self._at += step
        self._next += step
        return step

    def _order(self) -> np.ndarray:
        return permutation(self._held, int(self._rng.integers(1 << 62)), torch.device("cpu")).numpy()

    def _fill(self) -> None:
        while self._held < len(self._room) and self._more():
            step = min(len(self._room) - self._held, len(self._read) - self._at)
            self._room[self._held : self._held + step] = self._read[self._at : self._at + step]
            self._held, self._at = self._held + step, self._at + step
        self._filled_up = True
        self._places = self._order()


def cut_batches(mixer: Mixer, sizes: list[int], layout: Layout, *, chunk_bytes: int = 1 << 22) -> Iterator[Any]:
    """Yield batches of these sizes, taking several small ones, up to ``chunk_bytes``, at once."""
    most = max(1, chunk_bytes // max(4 * layout.words, 1))
    batch = 0
    while batch < len(sizes):
        last, total = batch + 1, sizes[batch]
        while last < len(sizes) and total + sizes[last] <= most:
            total, last = total + sizes[last], last + 1
        block = mixer.take(total)
        while last > batch and total > len(block):  # an error came between
            last -= 1
            total -= sizes[last]
        yield from zip(*(view.split(sizes[batch:last]) for view in layout.views(block[:total])), strict=True)
        if mixer.error is not None:
            raise mixer.error
        batch = last


# The order in which a stream reads its pieces, and each rank's share of it.
#
# A plain permutation of pieces leaves stretches of a sorted file together: of ten pieces that are drawn at random,
# seven from one half of the file are no rarity. Here the places in the file follow a sequence of low discrepancy
# (multiples of a badly approximable number modulo 1, from a random start; Kuipers, Niederreiter, Uniform Distribution
# of Sequences, 1974, chapter 2.3), so that any few pieces in a row come from all over the file; a random shift of each,
# as far as its neighbours in the buffer are apart, keeps the same pieces from always meeting.

_STEPS = ((5**0.5 - 1) / 2, 2**0.5 - 1, (13**0.5 - 3) / 2, 5**0.5 - 2)  # continued fractions of 1, 2, 3 and 4 alone


@dataclass(frozen=True)
class Piece:
    """Rows ``skip`` up to ``stop`` of a unit."""

    unit: Unit
    skip: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.skip


def shuffled_units(units: Sequence[Unit], window: int, rng: np.random.Generator) -> list[Unit]:
    """Shuffle units so that any few in a row come from all over the file."""
    if not units:
        return []
    mean = sum(u.rows for u in units) / len(units)
    together = np.clip(window / mean, 1, len(units))  # pieces that are in the buffer at a time
    place = (np.arange(len(units)) * rng.choice(_STEPS) + rng.random()) % 1
    place += (rng.random(len(units)) - 0.5) / together
    turn = np.empty(len(units), dtype=np.int64)
    turn[np.argsort(place, kind="stable")] = np.arange(len(units))
    return [units[i] for i in (turn if rng.random() < 0.5 else turn[::-1])]


def share(units: Sequence[Unit], rank: int, world_size: int) -> list[Piece]:
    """Return a rank's rows of an epoch: as many as every other rank has, give or take one."""
    total = sum(u.rows for u in units)
    low, high = total * rank // world_size, total * (rank + 1) // world_size
    found, at = [], 0
    for unit in units:
        skip, stop = max(low - at, 0), min(high - at, unit.rows)
        if skip < stop:
            found.append(Piece(unit, skip, stop))
        at += unit.rows
    return found
