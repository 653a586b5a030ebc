"""Errors of missing memory that tell the task, the requested and the free size, and what to lower."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch

from fastrec.errors import DeviceMemoryError, FastrecError

__all__ = ["FEWER_FEATURES", "free_memory", "is_out_of_memory", "naming_out_of_memory", "shown_bytes"]

FEWER_FEATURES = "Make them of a frame on the host, give fewer rows or generators, or go through Parquet files in parts"

# torch.OutOfMemoryError came with torch 2.5; it is the same class under its older name.
_TORCH_ERROR: type[Exception] = torch.cuda.OutOfMemoryError
# What libraries raise without a class of its own: torch on a CPU and while it pins, cuBLAS, cuDNN, XGBoost.
_TEXTS = re.compile(
    r"out of memory|can't allocate memory|_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|bad_alloc", re.IGNORECASE
)
_ASKED = re.compile(
    r"(?:tried to allocate|unable to allocate|failed to allocate|requested memory:?)\s*([\d.,]+)\s*([KMGTP]?i?B|bytes)",
    re.IGNORECASE,
)
_GPU = re.compile(r"\bGPU (\d+)\b")
_POWERS = "KMGTP"


@contextmanager
def naming_out_of_memory(
    what: str | Callable[[], str],
    remedy: str,
    *,
    device: torch.device | str | None = None,
    need: int | None = None,
) -> Iterator[None]:
    """Raise a ``DeviceMemoryError`` if anything inside runs out of memory.

    Of several around one another the innermost speaks: it knows best what was being done.

    Args:
        what: what is being done, to follow "while": ``'copying 40,000,000 rows to the device'``; a function
            is called only where memory does not suffice.
        remedy: what to lower, as a sentence without its full stop.
        device: where memory is wanted; None: as the error says.
        need: bytes that all of it takes, where that is known; None: what the error says was asked for last.

    Raises:
        DeviceMemoryError: the memory of a device or of the host was not enough.
    """
    try:
        yield
    except DeviceMemoryError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _refuse(error, what if isinstance(what, str) else what(), remedy, _where(error, device), need)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch, numpy, RMM, cuDF, CuPy, Arrow or XGBoost is about memory.

    Args:
        error: any exception.
    """
    if isinstance(error, MemoryError | _TORCH_ERROR):  # RMM's, CuPy's, Arrow's and numpy's are MemoryErrors
        return True
    if isinstance(error, FastrecError):  # it says what happened, whatever else its words speak of
        return False
    return isinstance(error, RuntimeError | ValueError) and bool(_TEXTS.search(str(error)))


def free_memory(device: torch.device | str) -> tuple[int, int] | None:
    """Return free and total memory of a device in bytes, or None if unknown.

    What torch holds for later counts as taken, as it is to other libraries.

    Args:
        device: a CUDA device, or the CPU for the host.
    """
    device = torch.device(device)
    try:
        if device.type == "cuda":
            return torch.cuda.mem_get_info(device)
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    except (RuntimeError, AssertionError, ValueError, OSError, AttributeError):
        return None


def shown_bytes(count: int) -> str:
    """Format bytes for people: ``'20.0 GiB'``.

    Args:
        count: bytes.
    """
    if count < 1024:
        return f"{count} bytes"
    power = min((int(count).bit_length() - 1) // 10, len(_POWERS))
    return f"{count / 1024**power:.1f} {_POWERS[power - 1]}iB"


def _refuse(error: Exception, what: str, remedy: str, device: torch.device, need: int | None) -> NoReturn:
    asked, free = _asked(error), free_memory(device)
    wanted = [f"{shown_bytes(need)} needed"] if need is not None else []
    wanted += [f"{shown_bytes(asked)} asked for"] if asked is not None and asked != need else []
    wanted += [f"{shown_bytes(free[0])} free of {shown_bytes(free[1])}"] if free is not None else []
    amounts = f": {', '.join(wanted)}" if wanted else ""
    where = "the host" if device.type == "cpu" else f"the device {device}"
    raise DeviceMemoryError(
        f"{where} ran out of memory while {what}{amounts}",
        remedy=remedy,
        asked=need if asked is None else asked,
        free=None if free is None else free[0],
    ) from error


def _where(error: Exception, device: torch.device | str | None) -> torch.device:
    """Return the device that ran out: numpy's and torch's host allocators name the host."""
    text = str(error)
    if "DefaultCPUAllocator" in text or type(error).__module__.split(".", 1)[0] in ("numpy", "pyarrow"):
        return torch.device("cpu")
    if device is not None:
        return torch.device(device)
    if found := _GPU.search(text):
        return torch.device("cuda", int(found[1]))
    on_gpu = isinstance(error, _TORCH_ERROR) or torch.cuda.is_initialized()
    return torch.device("cuda" if on_gpu else "cpu")


def _asked(error: Exception) -> int | None:
    """Parse the requested bytes from an error."""
    found = _ASKED.search(str(error))
    if found is None:
        return None
    unit = found[2].upper()
    power = _POWERS.find(unit[0]) + 1 if unit != "BYTES" else 0
    try:
        return round(float(found[1].rstrip(".,").replace(",", "")) * 1024**power)
    except ValueError:
        return None
