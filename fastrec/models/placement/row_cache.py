"""``RowCache``: rows of large embedding tables on the device, loaded and written back as batches need them.

The parameter has room for some rows, its *slots*; all rows are in a ``RowStore``. Before a lookup the needed rows are
loaded into slots, with their optimizer state; the least used ones are evicted. Lookups, gradients and steps work on
slots with the same arithmetic as without a cache. A thread prefetches rows for the next batch; everything else waits
for it, so that rows and slots have one owner at a time.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError, DeviceMemoryError, TrainingError
from fastrec.models.placement.row_store import RowStore


class Coldest:
    """Counts of each row's batches, and a queue of the coldest slots, which is refilled once in many batches."""

    def __init__(self, rows: int) -> None:
        self.counts = torch.zeros(rows, dtype=torch.int32)
        self._batches = 0
        self._queue = torch.empty(0, dtype=torch.int64)  # slots, the coldest first
        self._queued_row = torch.empty(0, dtype=torch.int64)  # what was in each

    def count(self, ids: Tensor) -> None:
        """Count the rows of a batch, each once: ``ids`` int64 ``[n]``."""
        self.counts.index_copy_(0, ids, self.counts.index_select(0, ids) + 1)  # of equal ids all write the same
        self._batches += 1
        if self._batches % limits.HALVE_COUNTS == 0:
            self.counts >>= 1

    def add(self, ids: Tensor) -> None:
        """Count lookups: ``ids`` int64 ``[n]``, each as often as it is there."""
        self.counts.index_add_(0, ids, torch.ones(len(ids), dtype=torch.int32))

    def hottest(self, wanted: int) -> Tensor:
        """Return the rows that were counted most: int64 ``[wanted]`` or fewer, in order of their numbers."""
        rows = self.counts.nonzero().squeeze(1)
        if len(rows) <= wanted:
            return rows
        counts = self.counts.index_select(0, rows).numpy()
        return torch.sort(rows[torch.from_numpy(np.argpartition(-counts, wanted)[:wanted])]).values

    def take(self, wanted: int, row_at: Tensor, held: Tensor) -> Tensor:
        """Return ``wanted`` slots to be emptied, int64, or all that may go: no ``held`` ones, none without a row."""
        stays = torch.zeros(len(row_at), dtype=torch.bool)
        stays.index_fill_(0, held[held < len(row_at)], True)
        found = self._from_queue(wanted, row_at, stays)
        if len(found) < wanted:
            stays.index_fill_(0, found, True)
            self._look(wanted - len(found), row_at, stays)
            found = torch.cat([found, self._from_queue(wanted - len(found), row_at, stays)])
        return found

    def _from_queue(self, wanted: int, row_at: Tensor, stays: Tensor) -> Tensor:
        fits = ~stays.index_select(0, self._queue) & (row_at.index_select(0, self._queue) == self._queued_row)
        places = fits.nonzero().squeeze(1)[:wanted]
        if not len(places):
            return self._queue[:0]
        found, end = self._queue.index_select(0, places), int(places[-1]) + 1
        self._queue, self._queued_row = self._queue[end:], self._queued_row[end:]
        return found

    def _look(self, wanted: int, row_at: Tensor, stays: Tensor) -> None:
        free = (~stays & (row_at >= 0)).nonzero().squeeze(1)
        counts = self.counts.index_select(0, row_at.index_select(0, free)).numpy()
        many = min(len(free), max(2 * wanted, len(row_at) // 32))
        chosen = np.argpartition(counts, many - 1)[:many] if many < len(free) else np.arange(many)
        chosen = chosen[np.argsort(counts[chosen], kind="stable")]
        self._queue = free.index_select(0, torch.from_numpy(chosen))
        self._queued_row = row_at.index_select(0, self._queue)


@dataclass(eq=False)
class Lease:
    """The slots ``[n]`` that one lookup used: their rows stay until its backward pass, or until its graph is gone."""

    slots: Tensor
    spent: bool = False


class Leases:
    """The leases of one parameter; a lease also ends when its graph is freed without a backward pass."""

    def __init__(self) -> None:
        self._open: list[weakref.ref[Lease]] = []

    def take(self, weight: Tensor, slots: Tensor) -> Tensor:
        """Lease the parameter for a lookup at some places; its graph holds them."""
        if not torch.is_grad_enabled() or not weight.requires_grad:
            return weight
        lease = Lease(slots)
        self._open = [ref for ref in self._open if (one := ref()) is not None and not one.spent]
        self._open.append(weakref.ref(lease))
        return _Leased.apply(weight, lease)

    def held(self, weight: Tensor) -> list[Tensor]:
        """Return the places that must stay: of open leases, and of gradients without a step yet."""
        found = [one.slots for ref in self._open if (one := ref()) is not None and not one.spent]
        if weight.grad is not None:
            found.append(weight.grad._indices()[0].cpu())
        return found


class _Leased(torch.autograd.Function):
    """The parameter itself; its gradient is let through once."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, lease: Lease) -> Tensor:
        ctx.lease = lease
        return weight.data  # no view: the parameter may be changed while this graph is alive

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.lease.spent:
            problem = "a second backward pass through embedding tables that do not lie on the device"
            remedy = "Their rows may have gone since; add the losses up before one backward pass"
            raise TrainingError(problem, remedy=remedy)
        ctx.lease.spent = True
        return grad, None


class RowCache:
    """Rows on the device, of a group of tables whose other rows are in a store."""

    sharded = False

    def __init__(self, store: RowStore, slots: int) -> None:
        self.store, self.slots = store, slots
        self.looked_up = self.found = 0  # ids of training batches, and those whose rows were there
        self._empty()

    def _empty(self) -> None:
        self.weight: nn.Parameter | None = None
        self.state: dict[str, Tensor] = {}  # the optimizer's columns, by slot
        self.slot_of = torch.full((self.store.rows,), -1, dtype=torch.int32)
        self.row_at = torch.full((self.slots,), -1, dtype=torch.int64)
        self._changed = torch.zeros(self.slots, dtype=torch.bool)
        self._free = torch.arange(self.slots)
        self._coldest = Coldest(self.store.rows)
        self._leases, self._ahead, self._counted = Leases(), None, set()
        self._side: Any = None

    def attach(self, weight: nn.Parameter) -> None:
        """Set the parameter ``[slots, width]`` for the rows on the device; they are brought anew."""
        moved = self.weight is not None and self.weight is not weight
        self.weight, weight.placed = weight, self
        if weight.dtype != self.store.columns["weight"].dtype:
            remedy = "Train with amp='bf16', or with placement='device'"
            raise DataError(f"rows off the device are float32, the model is {weight.dtype}", remedy=remedy)
        if moved:  # to another device, or by an assignment
            self.reload()

    def look_up(self, rows: Tensor, key: str = "columns") -> Tensor:
        """Look up the vectors ``[b, k · width]`` of rows ``[b, k]``; the gradient is row-sparse."""
        weight, slots = self.leased(rows, key)
        return F.embedding(slots, weight, sparse=True).flatten(1)

    def leased(self, rows: Tensor, key: str = "columns") -> tuple[Tensor, Tensor]:
        """Bring rows (int64, any shape); return the parameter and their places in it, valid until the gradient."""
        self.wait()
        ids = rows.reshape(-1).cpu()
        # a step is still to come for rows that graphs or gradients hold
        held = self._leases.held(self.weight)
        learns = torch.is_grad_enabled() and self.weight.requires_grad
        with torch.no_grad(), self._stream():
            slots = self._bring(ids, held, must=True, counts=learns and key not in self._counted)
        self._counted.discard(key)  # counted when it was fetched ahead
        if learns:
            self._changed.index_fill_(0, slots, True)
        return self._leases.take(self.weight, slots), slots.to(self.weight.device).view(rows.shape)

    def slots_of(self, rows: Tensor) -> Tensor:
        """Return the slots of rows on the device: int64, of the shape of ``rows``."""
        self.wait()
        return self.slot_of.index_select(0, rows.reshape(-1).cpu()).long().view(rows.shape).to(rows.device)

    def rows_of(self, slots: Tensor) -> Tensor:
        """Return the rows in slots: int64 ``[n]``."""
        self.wait()
        return self.row_at.index_select(0, slots.cpu()).to(slots.device)

    def count(self, rows: Tensor) -> None:
        """Count future lookups and bring the hottest rows, before any row is brought; each row as often as it comes."""
        self.wait()
        if bool((self.row_at >= 0).any()):
            return
        self._coldest.add(rows.reshape(-1).cpu())
        with torch.no_grad(), self._stream():
            for part in self._coldest.hottest(self.slots).split(limits.COPIED_ROWS):
                self._bring(part, [], must=False, counts=False)

    def fetch_ahead(self, rows: Iterable[tuple[str, Tensor]]) -> None:
        """Prefetch the rows of a batch that may come next: each lookup's key and int64 rows."""
        self.wait()
        given = [(key, r.reshape(-1)) for key, r in rows]
        held = self._leases.held(self.weight)
        ready = torch.cuda.current_stream().record_event() if self.weight.is_cuda else None
        self._ahead = _worker().submit(self._fetch, given, held, ready)

    def _fetch(self, given: Sequence[tuple[str, Tensor]], held: list[Tensor], ready: Any) -> None:
        with torch.no_grad(), self._stream(ready):
            for key, rows in given:
                held.append(self._bring(rows.cpu(), held, must=False, counts=True))
                self._counted.add(key)

    def _stream(self, ready: Any = None) -> AbstractContextManager[Any]:
        """Return, on CUDA, a stream of copies that begins after ``ready``."""
        if not self.weight.is_cuda:
            return nullcontext()
        if self._side is None:
            self._side = torch.cuda.Stream(self.weight.device)
        return _finished(self._side, ready)

    def wait(self) -> None:
        """Wait until no other thread works on the rows."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()

    def _bring(self, ids: Tensor, held: list[Tensor], *, must: bool, counts: bool) -> Tensor:
        """Load the rows of a lookup; return the slots of ``ids``, int64. Without ``must``: of those that have room."""
        slots = self.slot_of.index_select(0, ids)
        absent = ids[slots < 0]
        if counts:
            self.looked_up += len(ids)
            self.found += len(ids) - len(absent)
            self._coldest.count(ids)
        if not len(absent):
            return slots.long()
        rows = torch.unique(absent)
        if len(self._free) < len(rows):  # rows that were not asked for go
            kept = torch.cat([*held, slots[slots >= 0].long()])
            gone = self._coldest.take(len(rows) - len(self._free), self.row_at, kept)
            self._write_back(gone[self._changed.index_select(0, gone)])
            self.slot_of.index_fill_(0, self.row_at.index_select(0, gone), -1)
            self.row_at.index_fill_(0, gone, -1)
            self._changed.index_fill_(0, gone, False)
            self._free = torch.cat([self._free, gone])
        free = self._free[: len(rows)]
        if len(free) < len(rows):
            if must:
                problem = f"a batch needs {len(rows):,} more rows of width {self.store.width} on the device, "
                problem += f"{self.slots:,} have room and {len(free):,} of these are free"
                remedy = "Lower the batch size (bs=), accumulate fewer batches, or give a larger device_bytes"
                raise DeviceMemoryError(problem, remedy=remedy)
            rows = rows[: len(free)]
        self._free = self._free[len(rows) :]
        self._fill(rows, free)
        self.slot_of.index_copy_(0, rows, free.int())
        self.row_at.index_copy_(0, free, rows)
        slots = self.slot_of.index_select(0, ids).long()
        return slots if must else slots[slots >= 0]

    def _fill(self, rows: Tensor, slots: Tensor) -> None:
        values, place = self.store.read(rows), slots.to(self.weight.device)
        for name, column in self._columns().items():
            column.index_copy_(0, place, _to(values[name], column.device))

    def _write_back(self, slots: Tensor) -> None:
        if not len(slots):
            return
        place = slots.to(self.weight.device)
        values = {name: _to(c.index_select(0, place), "cpu") for name, c in self._columns().items()}
        self.store.write(self.row_at.index_select(0, slots), values)

    def _columns(self) -> dict[str, Tensor]:
        return {"weight": self.weight.data, **self.state}

    def flush(self) -> RowStore:
        """Write all rows back and return the store."""
        self.wait()
        with torch.no_grad(), self._stream():
            for slots in self._changed.nonzero().squeeze(1).split(limits.COPIED_ROWS):
                self._write_back(slots)  # they stay marked: a step may be to come
            self.store.settle()
        return self.store

    def whole(self) -> Tensor:
        """Return all current rows ``[rows, width]`` in the store's memory."""
        return self.flush().columns["weight"]

    def take_all(self, values: Tensor) -> None:
        """Overwrite all rows with ``[rows, width]``."""
        self.whole().copy_(values)
        self.reload()

    def reload(self) -> None:
        """Bring the rows on the device again after a change of the store."""
        self.wait()
        with torch.no_grad(), self._stream():
            for slots in (self.row_at >= 0).nonzero().squeeze(1).split(limits.COPIED_ROWS):
                self._fill(self.row_at.index_select(0, slots), slots)

    # ---- what an optimizer keeps (see ``fastrec.optim.torch_optimizers``)

    def begin_state(self, name: str, *, wide: bool) -> Tensor:
        """Add a column of zeros for an optimizer, and return its part on the device."""
        if name == "last":
            self.flush()  # what an earlier optimizer still owes rows that are not on the device
        self.wait()
        width = self.store.width if wide else None
        self.store.begin(name, width)
        self.state[name] = self.weight.new_zeros((self.slots, width) if wide else (self.slots,), requires_grad=False)
        if name == "last":  # a new optimizer begins without momentum
            self.store.pending.clear()
            self.state.pop("exp_avg", None)
            self.store.columns.pop("exp_avg", None)
        return self.state[name]

    def settled(self, step: int, betas: tuple[float, float], decays: Tensor) -> None:
        """Record that rows on the device were settled: others are when read, or now if many settlings are pending."""
        self.wait()
        self.store.pending.append((step, tuple(betas)))
        self.store.decays = decays.cpu()
        if len(self.store.pending) > limits.PENDING_SETTLES:
            self.flush()

    def whole_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return an optimizer's state of this parameter with all rows."""
        columns = self.flush().columns
        return {name: columns[name] if name in self.state else value for name, value in state.items()}

    def set_whole_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Load ``whole_state`` and return the state that an optimizer works with."""
        self.flush()
        columns, kept = ("last", "exp_avg_sq", "exp_avg"), {}
        for name in columns:
            self.state.pop(name, None)
            self.store.columns.pop(name, None)
        for name, value in state.items():
            if name in columns:
                self.store.begin(name, None if value.ndim == 1 else value.shape[1]).copy_(value)
                self.state[name] = self.weight.new_zeros((self.slots, *value.shape[1:]), requires_grad=False)
                kept[name] = self.state[name]
            elif isinstance(value, Tensor):  # it will be changed in place
                kept[name] = value.clone() if name == "step" else value.to(self.weight.device, copy=True)
            else:
                kept[name] = value
        self.reload()
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Return the rows, and nothing on the device."""
        return {"store": self.flush(), "slots": self.slots, "looked_up": 0, "found": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._empty()


@contextmanager
def _finished(stream: Any, ready: Any) -> Iterator[None]:
    """Work on a CUDA stream after an event of another; wait for that work at the end of the block."""
    stream.wait_event(ready or torch.cuda.current_stream().record_event())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        stream.synchronize()


def _to(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy values to a device, through pinned memory to and from CUDA."""
    device = torch.device(device)
    if values.device.type == device.type:
        return values
    if not on_host(device):
        return values.pin_memory().to(device, non_blocking=True)
    room = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    room.copy_(values)
    return room


@cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="embedding-rows")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_worker.cache_clear)  # a child has no threads
