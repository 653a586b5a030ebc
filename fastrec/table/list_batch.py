"""``ListBatch``: a tensor with one list of codes per row, as batches hold list columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fastrec.table.column import lengths_of, offsets_of, runs


class ListBatch(Tensor):
    """Tensor of shape ``[b]`` whose entries are lists of codes, one per row.

    It goes where tensors go: ``to``, ``cpu``, ``detach``, ``clone``, ``torch.cat``, ``len`` and rows by
    ``lists[rows]``, ``lists[a:b]`` or a mask. Models use its parts:
    ``nn.EmbeddingBag(size, width, include_last_offset=True)(lists.values, lists.offsets)``.

    Args:
        values: the lists' codes one after the other, integers ``[m]``.
        offsets: list ``i`` is ``values[offsets[i]:offsets[i + 1]]``, int64 ``[b + 1]``, the first 0.
        missing: bool ``[b]``, True where there is no list, not even an empty one; None: there is one everywhere.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # operations arrive below, already sorted

    @staticmethod
    def __new__(cls, values: Tensor, offsets: Tensor, missing: Tensor | None = None) -> ListBatch:
        """Create a tensor without memory, of as many rows as lists."""
        return Tensor._make_wrapper_subclass(cls, (len(offsets) - 1,), dtype=values.dtype, device=values.device)

    def __init__(self, values: Tensor, offsets: Tensor, missing: Tensor | None = None) -> None:
        self.values, self.offsets, self.missing = values, offsets, missing

    @classmethod
    def of(cls, lists: Iterable[Sequence[int] | None], *, dtype: torch.dtype = torch.int64) -> ListBatch:
        """Build from lists of codes; None is a missing one."""
        rows = list(lists)
        lengths = torch.tensor([0 if r is None else len(r) for r in rows], dtype=torch.int64)
        values = torch.tensor([int(v) for r in rows if r is not None for v in r], dtype=dtype)
        missing = torch.tensor([r is None for r in rows]) if any(r is None for r in rows) else None
        return cls(values, offsets_of(lengths), missing)

    @property
    def lengths(self) -> Tensor:
        """Lengths of the lists, int64 ``[b]``."""
        return lengths_of(self.offsets)

    def nest(self, values: Sequence[Any]) -> list[list[Any] | None]:
        """Nest values ``[m]``, one for each of ``self.values``, by row; a missing list is None."""
        found: list[list[Any] | None] = [list(values[a:b]) for a, b in pairwise(self.offsets.tolist())]
        for row in [] if self.missing is None else self.missing.nonzero().squeeze(1).tolist():
            found[row] = None
        return found

    def tolist(self) -> list[list[int] | None]:
        """Return the lists as Python lists; a missing one is None."""
        return self.nest(self.values.tolist())

    def as_subclass(self, cls: type) -> ListBatch:
        """Return itself: fastai casts model inputs to plain tensors, which cannot hold lists."""
        return self

    def _each(self, change: Callable[[Tensor], Any]) -> ListBatch:
        missing = None if self.missing is None else change(self.missing)
        return ListBatch(change(self.values), change(self.offsets), missing)

    def _used_on(self, stream: Any) -> None:
        for part in (self.values, self.offsets, *([] if self.missing is None else [self.missing])):
            part.record_stream(stream)

    def _take(self, rows: Tensor) -> ListBatch:
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows.to(self.device).long()
        rows = torch.where(rows < 0, rows + len(self), rows)
        starts = self.offsets.index_select(0, rows)
        offsets, places = runs(starts, self.offsets.index_select(0, rows + 1) - starts)
        missing = None if self.missing is None else self.missing.index_select(0, rows)
        return ListBatch(self.values.index_select(0, places), offsets, missing)

    def _between(self, start: int, stop: int) -> ListBatch:
        offsets = self.offsets[start : stop + 1]
        first, last = (int(v) for v in offsets[[0, -1]])
        missing = None if self.missing is None else self.missing[start:stop]
        return ListBatch(self.values[first:last], offsets - first, missing)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer torch's calls by the parts."""
        name = func.overloadpacket.__name__
        first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
        if name not in _OPERATIONS or not isinstance(first, ListBatch):
            raise TypeError(f"{name} is not for lists: use the values and offsets of the ListBatch")
        return _OPERATIONS[name](*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        part = self._each(Tensor.clone)  # a slice would drag all the values into the file
        return ListBatch, (part.values, part.offsets, part.missing)

    def __repr__(self) -> str:
        rest = "" if self.missing is None else f", missing={self.missing}"
        return f"ListBatch(values={self.values}, offsets={self.offsets}{rest})"


# What torch asks of a ListBatch, by the operation's name. ------------------------------------------------------------


def _copied(
    lists: ListBatch, *, dtype: torch.dtype | None = None, device: Any = None, non_blocking: bool = False, **_: Any
) -> ListBatch:
    dtype = dtype or lists.values.dtype
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise TypeError(f"codes of lists cannot be {dtype}")
    moved = lists._each(lambda part: part.to(device or lists.device, non_blocking=non_blocking, copy=True))
    return ListBatch(moved.values.to(dtype), moved.offsets, moved.missing)


def _joined(parts: Sequence[ListBatch], dim: int = 0) -> ListBatch:
    missing = None
    if any(p.missing is not None for p in parts):
        none = [
            torch.zeros(len(p), dtype=torch.bool, device=p.device) if p.missing is None else p.missing for p in parts
        ]
        missing = torch.cat(none)
    return ListBatch(torch.cat([p.values for p in parts]), offsets_of(torch.cat([p.lengths for p in parts])), missing)


def _sliced(lists: ListBatch, dim: int = 0, first: Any = None, end: Any = None, step: int = 1) -> ListBatch:
    start, stop, step = slice(first, end, step).indices(len(lists))
    stop = max(start, stop)
    if step == 1:
        return lists._between(start, stop)
    return lists._take(torch.arange(start, stop, step, device=lists.device))


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "_to_copy": _copied,
    "cat": _joined,
    "slice": _sliced,
    "split": lambda lists, size, dim=0: [
        lists._between(i, min(i + size, len(lists))) for i in range(0, len(lists), size)
    ],
    "index": lambda lists, index: lists._take(index[0]),
    "index_select": lambda lists, dim, index: lists._take(index),
    "select": lambda lists, dim, i: lists._take(torch.tensor([i])).values,
    "clone": lambda lists, **_: lists._each(Tensor.clone),
    "detach": lambda lists: lists._each(Tensor.detach),
    "is_pinned": lambda lists, *_, **__: lists.values.is_pinned(),
    "_pin_memory": lambda lists, *_, **__: lists._each(Tensor.pin_memory),
    "record_stream": lambda lists, stream: lists._used_on(stream),
}
