"""A background thread that fills one buffer with packed rows while batches are gathered from the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import torch

from fastrec.packed import Layout, Packed

Write = Callable[[Packed], None]
"""Writes rows into room for as many."""
Chunk = tuple[int, Callable[[int, int], Write]]
"""So many rows, and how to write those between two places among them."""


class Filled:
    """Packed rows in the order in which they are read, a buffer at a time.

    Args:
        chunks: what is read, made and used in the background thread.
        layout: of the rows.
        rows: of a buffer; there are two, or one where ``rows`` is all there is.
        buffers: how many.

    Use it as a context: leaving it ends the thread.
    """

    def __init__(self, chunks: Callable[[], Iterator[Chunk]], layout: Layout, rows: int, *, buffers: int = 2) -> None:
        self._chunks, self._layout, self._rows, self._buffers = chunks, layout, rows, buffers
        self._free: SimpleQueue[Packed | None] = SimpleQueue()
        self._full: SimpleQueue[tuple[Packed, int] | BaseException | None] = SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastrec-reader", daemon=True)

    def __enter__(self) -> Filled:
        for _ in range(self._buffers):
            self._free.put(Packed.empty(self._rows, self._layout))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._free.put(None)  # wakes the thread, should it wait for room
        self._thread.join()

    def __iter__(self) -> Iterator[Packed]:
        """Rows that are valid until the next ones are asked for.

        Raises:
            BaseException: what reading them raised, after the rows that were read before.
        """
        while (item := self._full.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            buffer, rows = item
            yield buffer.rows(0, rows)
            self._free.put(buffer)

    def _run(self) -> None:
        buffer, at = None, 0
        try:
            for rows, part in self._chunks():
                done = 0
                while done < rows:
                    if buffer is None:
                        buffer, at = self._free.get(), 0
                    if buffer is None or self._closed.is_set():
                        return
                    take = min(rows - done, self._rows - at)
                    part(done, done + take)(buffer.rows(at, at + take))
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
    """Chunks of several sources that are open at the same time, the next one's drawn at random.

    Args:
        sources: iterators of chunks, opened in this order.
        at_once: how many are open.
        seed: of the draw; None: one source after the other.
    """
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


def gather_batches(
    filled: Iterator[Packed], sizes: list[int], layout: Layout, *, seed: int | None, chunk_bytes: int = 1 << 22
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of rows, those of a buffer in random order.

    Args:
        filled: buffers of rows, each valid until the next.
        sizes: rows of every batch.
        layout: of the rows.
        seed: of the order; None: as they come.
        chunk_bytes: gathered at once, at most, unless a batch is larger.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    most = max(1, chunk_bytes // max(4 * layout.words, 1))
    begun: list[torch.Tensor] = []  # rows of a batch that buffers before have begun
    batch = have = 0
    for packed in filled:
        order = torch.randperm(len(packed), generator=generator) if generator is not None else None
        at = 0
        while at < len(packed) and batch < len(sizes):
            need = sizes[batch] - have
            if begun or need > len(packed) - at:
                step = min(need, len(packed) - at)
                begun.append(_rows(packed, order, at, at + step))
                at, have = at + step, have + step
                if step == need:
                    yield layout.views(begun[0] if len(begun) == 1 else torch.cat(begun))
                    begun, have, batch = [], 0, batch + 1
                continue
            last, stop = batch + 1, at + need
            while last < len(sizes) and stop + sizes[last] <= min(len(packed), at + most):
                stop, last = stop + sizes[last], last + 1
            parts = [view.split(sizes[batch:last]) for view in layout.views(_rows(packed, order, at, stop))]
            yield from zip(*parts, strict=True)
            at, batch = stop, last
        if batch == len(sizes):
            return


def _rows(packed: Packed, order: torch.Tensor | None, start: int, stop: int) -> torch.Tensor:
    """Copied: the buffer is filled anew later."""
    return packed.buffer[start:stop].clone() if order is None else packed.buffer.index_select(0, order[start:stop])
