"""Rows packed side by side in one buffer, so that a shuffled batch is one gather; what models get are views of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastrec._core.device import pool_is_shared
from fastrec._core.memory import naming_out_of_memory
from fastrec.errors import DataError

_FEWER = (
    "Keep the rows on the host (device='cpu', and place='host' for the loader), stream them with ParquetFrame, or give "
    "fewer rows or columns"
)


@dataclass(frozen=True)
class Layout:
    """Where a row's fields lie in a row-major buffer of 4-byte words.

    Fields of 8 bytes come first and the row is padded to whole 8 bytes where there are any, so that all are aligned.
    Without ``n_y`` the rows have no targets.
    """

    n_cat: int
    n_cont: int
    n_y: int | None = None
    cat_dtype: torch.dtype = torch.int32
    y_dtype: torch.dtype = torch.int64

    def __post_init__(self) -> None:
        known = (torch.float32, torch.float64, torch.int64)
        if self.cat_dtype not in (torch.int32, torch.int64) or self.y_dtype not in known:
            problem = f"rows cannot be packed with codes of {self.cat_dtype} and targets of {self.y_dtype}"
            raise DataError(problem, remedy="Use int32 or int64 codes, and float32, float64 or int64 targets")

    @property
    def fields(self) -> dict[str, tuple[int, int, torch.dtype]]:
        """Field → (first word, number of words, dtype), in the order of the buffer."""
        wanted = [("cats", self.n_cat, self.cat_dtype), ("conts", self.n_cont, torch.float32)]
        if self.n_y is not None:
            wanted.append(("ys", self.n_y, self.y_dtype))
        found, at = {}, 0
        for name, count, dtype in sorted(wanted, key=lambda f: -f[2].itemsize):
            words = count * dtype.itemsize // 4
            found[name] = (at, words, dtype)
            at += words
        return found

    @property
    def words(self) -> int:
        """4-byte words in a row."""
        fields = self.fields.values()
        total = sum(words for _, words, _ in fields)
        return total + total % 2 if any(dtype.itemsize == 8 and words for _, words, dtype in fields) else total

    def views(self, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split a buffer, int32 ``[b, words]``, into ``(cats, conts)`` and ``ys``, if any, that share its memory."""
        views = []
        for start, words, dtype in (self.fields[n] for n in ("cats", "conts", "ys") if n in self.fields):
            if words == 0 or len(buffer) == 0:
                views.append(buffer.new_empty((len(buffer), words * 4 // dtype.itemsize), dtype=dtype))
            else:  # a view with another dtype costs no copy
                part = buffer[:, start : start + words]
                views.append(part if dtype == torch.int32 else part.view(dtype))
        return tuple(views)


class Packed:
    """Rows of codes, numbers and targets in one buffer, int32 ``[n, layout.words]``."""

    def __init__(self, buffer: torch.Tensor, layout: Layout) -> None:
        self.buffer, self.layout = buffer, layout
        self._views: tuple[torch.Tensor, ...] | None = None
        self._copies: dict[torch.device, Packed] = {}

    @classmethod
    def empty(cls, n: int, layout: Layout, *, device: torch.device | str | None = None) -> Packed:
        """Allocate ``n`` rows, their values undefined (see ``clear_pad``)."""
        shape, where = (n, layout.words), torch.device(device or "cpu")
        with naming_out_of_memory(f"making room for {n:,} packed rows", _FEWER, device=where, need=4 * n * shape[1]):
            if where.type == "cpu":
                # numpy requests pages of 2 MB: allocation takes a fifth of the time, and gathering is a third faster.
                return cls(torch.from_numpy(np.empty(shape, dtype=np.int32)), layout)
            return cls(torch.empty(shape, dtype=torch.int32, device=where), layout)

    def clear_pad(self, start: int, stop: int) -> None:
        """Set the padding of rows ``start`` up to ``stop`` to 0, so that equal rows are equal bytes."""
        if sum(words for _, words, _ in self.layout.fields.values()) < self.layout.words:
            self.buffer[start:stop, -1] = 0

    @classmethod
    def of(cls, cats: torch.Tensor, conts: torch.Tensor, ys: torch.Tensor | None, layout: Layout) -> Packed:
        """Pack tensors ``[n, n_cat]``, ``[n, n_cont]`` and ``[n, n_y]`` (copied)."""
        packed = cls.empty(len(cats), layout, device=cats.device)
        packed.clear_pad(0, len(cats))
        for view, values in zip(packed.views, (cats, conts, ys), strict=False):
            view.copy_(values)
        return packed

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def views(self) -> tuple[torch.Tensor, ...]:
        """``(cats, conts)`` or ``(cats, conts, ys)``, sharing the buffer's memory."""
        if self._views is None:
            self._views = self.layout.views(self.buffer)
        return self._views

    @property
    def device(self) -> torch.device:
        """Where the buffer is."""
        return self.buffer.device

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.buffer.numel() * 4

    def rows(self, start: int, stop: int) -> Packed:
        """Return rows ``start`` up to ``stop``, sharing memory."""
        return Packed(self.buffer[start:stop], self.layout)

    def take(self, rows: torch.Tensor) -> Packed:
        """Return the rows at ``rows`` (int32 or int64 ``[m]`` on the buffer's device), copied."""
        return Packed(self.buffer.index_select(0, rows), self.layout)

    def on(self, device: torch.device) -> Packed:
        """Return the rows on another device; the copy is cached for the next call."""
        if device == self.device:
            return self
        if device not in self._copies:
            self._copies[device] = self.copy_to(device)
        return self._copies[device]

    def copy_to(self, device: torch.device) -> Packed:
        """Copy the rows to another device without caching the copy."""
        what = f"copying {len(self):,} packed rows to {device}"
        with naming_out_of_memory(what, _FEWER, device=device, need=self.nbytes):
            return Packed(self.buffer.to(device), self.layout)

    def fits(self, device: torch.device) -> bool:
        """Return whether a CUDA device holds a copy already, or has twice its memory free."""
        if device in self._copies:
            return True
        # As much again is left to the model and its gradients.
        return device.type == "cuda" and self.nbytes < torch.cuda.mem_get_info(device)[0] / 2

    def __getstate__(self) -> dict[str, Any]:
        # A slice would save the whole buffer, and a copy on another device would be saved too.
        return {"buffer": self.buffer.clone(), "layout": self.layout, "_views": None, "_copies": {}}


def put_rows(room: torch.Tensor, places: np.ndarray, rows: torch.Tensor) -> None:
    """Write whole rows to places of ``room``; numpy, which moves each at once, is several times as fast as torch."""
    whole = np.dtype((np.void, room.shape[1] * 4))
    room.numpy().view(whole)[:, 0][places] = rows.numpy().view(whole)[:, 0]


def one_ahead(begin: Callable[[int, Any], Any], end: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``end(begin(i % 2, item))`` of every item, each begun before its predecessor is yielded.

    ``end`` waits for the work and returns its result; only then is the place (``i % 2``) used again.
    """
    waiting: list[Any] = []
    for i, item in enumerate(items):
        waiting.append(begin(i % 2, item))
        if i:
            yield end(waiting.pop(0))
    yield from map(end, waiting)


class HostGather:
    """Gatherer of up to ``rows`` rows into two pinned buffers; one is copied to a GPU while the other is filled."""

    def __init__(self, packed: Packed, device: torch.device, rows: int) -> None:
        self.packed, self.device, self.stream = packed, device, torch.cuda.Stream(device)
        shape = (rows, packed.layout.words)
        with naming_out_of_memory(f"pinning room for twice {rows:,} rows on the host", "Lower bs="):
            self.room = [torch.empty(shape, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self.copied: list[torch.cuda.Event | None] = [None, None]

    def begin(self, place: int, index: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Gather rows and start to copy them."""
        before = self.copied[place]
        if before is not None:
            before.synchronize()  # the buffer is being read until then
        room = self.room[place][: len(index)]
        torch.index_select(self.packed.buffer, 0, index, out=room)
        if pool_is_shared():  # record_stream does nothing in RMM's pool: memory freed by now may still be read
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            block = room.to(self.device, non_blocking=True)
            done = self.stream.record_event()
        self.copied[place] = done
        return block, done

    def end(self, work: tuple[torch.Tensor, torch.cuda.Event]) -> torch.Tensor:
        """Return the rows on the GPU once its current work has waited for them."""
        block, done = work
        current = torch.cuda.current_stream(self.device)
        current.wait_event(done)
        block.record_stream(current)  # its memory is not given to another copy before the model has read it
        return block
