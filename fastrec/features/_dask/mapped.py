"""``Mapped``: learned states in a worker's unnamed file instead of its memory.

The system drops or reads its pages as needed, and nothing is left when the worker ends.
"""

from __future__ import annotations

import io
import mmap
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import cloudpickle
import torch

from fastrec._core import limits


class Mapped:
    """A value that is stored in a file on every process that it is sent to.

    Args:
        value: of tensors, Arrow arrays and what else can be pickled.
    """

    def __init__(self, value: Any) -> None:
        self._value, self._lock = value, Lock()
        self._sent: tuple[bytes, Sequence[Any]] | None = None

    @property
    def value(self) -> Any:
        """The value; in a process that received it, its arrays are read-only."""
        with self._lock:
            if self._sent is not None:
                self._value, self._sent = _laid_out(*self._sent), None
            return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays apart from the rest, so that they are not copied on their way."""
        with self._lock:
            head, arrays = self._sent or _apart(self._value)
            return _arrived, (head, [pickle.PickleBuffer(a) for a in arrays])

    def __sizeof__(self) -> int:
        """Return the memory of this process that it takes: by this Dask decides what to move to disk."""
        sent = self._sent  # another thread may lay it out meanwhile
        return 1_000 if sent is None else len(sent[0]) + sum(memoryview(a).nbytes for a in sent[1])


def _arrived(head: bytes, arrays: Sequence[Any]) -> Mapped:
    made = Mapped(None)
    made._sent = head, arrays
    return made


class _Pickler(cloudpickle.Pickler):
    """Dask's pickler, but tensors are buffers: PyTorch's way would copy them into the pickle."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return super().reducer_override(thing)
        flat = thing.reshape(-1).view(torch.uint8).numpy()
        return _as_tensor, (pickle.PickleBuffer(flat), thing.dtype, tuple(thing.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    dense = tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_quantized
    return dense and tensor.device.type == "cpu" and not tensor.requires_grad and tensor.numel() > 0


def _as_tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(shape)


def _apart(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    head, arrays = io.BytesIO(), []
    _Pickler(head, protocol=5, buffer_callback=arrays.append).dump(value)
    return head.getvalue(), arrays


def _laid_out(head: bytes, arrays: Sequence[Any]) -> Any:
    """Load the value with its arrays in a file, or in memory if they are small."""
    views = [memoryview(a).cast("B") for a in arrays]
    places, end = [], 0
    for view in views:
        places.append(end)
        # A tensor of any type may begin at a multiple of 64 bytes.
        end += -(-max(view.nbytes, 1) // 64) * 64
    # A small value stays in memory: a file per value would cost more.
    if end < limits.MAPPED_BYTES:
        return pickle.loads(head, buffers=[bytearray(v) for v in views])
    with tempfile.TemporaryFile(dir=_folder()) as file:
        file.truncate(end)
        for place, view in zip(places, views, strict=True):
            file.seek(place)
            file.write(view)
        file.flush()
        # A copy where it is written to: PyTorch warns of memory that it must not write to, and nothing writes here.
        whole = memoryview(mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY))
    return pickle.loads(head, buffers=[whole[p : p + v.nbytes] for p, v in zip(places, views, strict=True)])


def _folder() -> str | None:
    with suppress(ImportError, ValueError):
        from distributed import get_worker

        return get_worker().local_directory
    return None
