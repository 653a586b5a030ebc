"""The device of tensors, and one memory pool for torch and RAPIDS."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Literal

import torch

from fastrec._core.imports import require
from fastrec.errors import DeviceError, MissingPackageError

DeviceLike = torch.device | str | None
_pooled: list[torch.device] = []  # the device whose pool is shared, if one is


def on_host(x: Any) -> bool:
    """Tell whether a device, or what has one (a tensor, table, frame …), is the CPU's memory."""
    return getattr(x, "device", x).type == "cpu"


def resolve_device(device: DeviceLike | Literal["auto"] = None) -> torch.device:
    """Choose the device to use, and check that it exists.

    Args:
        device: ``'cpu'``, ``'cuda'``, ``'cuda:1'`` or a ``torch.device``. ``'auto'`` takes CUDA, else torch's
            accelerator (but not Apple's, which has no float64), else the CPU. None reads the environment variable
            ``FASTREC_DEVICE``, and is the CPU if that is unset.

    Returns:
        The device; any other than the CPU has its number, so that it equals the device of the tensors on it.

    Raises:
        DeviceError: this machine, or this build of torch, lacks the device.
    """
    if device is None:
        device = os.environ.get("FASTREC_DEVICE") or "cpu"
    if device == "auto":
        known = getattr(torch, "accelerator", None)  # torch 2.6
        device = known.current_accelerator().type if known is not None and known.is_available() else "cpu"
        # Where there are several, CUDA; features compute in float64, which mps has not.
        device = "cuda" if torch.cuda.is_available() else "cpu" if device == "mps" else device
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"{device!r} is not a device", remedy="Use 'auto', 'cpu' or 'cuda'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        remedy = "Use device='auto' or 'cpu', or install a CUDA build of torch on a machine with an NVIDIA GPU"
        raise DeviceError("device 'cuda' was asked for, but torch finds no CUDA device", remedy=remedy)
    if found.type == "cuda" and found.index is not None and found.index >= torch.cuda.device_count():
        problem = f"device {str(found)!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices"
        raise DeviceError(problem, remedy="Count from 0, or use device='cuda'")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if found.type in ("cpu", "cuda"):
        return found
    try:
        return _tried(found)
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        problem = f"device {str(found)!r} was asked for, but it is not usable here"
        raise DeviceError(problem, remedy="Use 'auto', 'cpu' or 'cuda'") from error


@cache
def _tried(device: torch.device) -> torch.device:
    # Other backends differ in what they support: only a trial tells, and it tells the device's number.
    made = torch.zeros(1, device=device)
    made.cpu()
    return made.device


def share_pool(device: DeviceLike = "cuda", *, size: int | None = None) -> torch.device:
    """Let torch, cuDF and CuPy take their memory on a GPU from one pool of RMM.

    Without it torch keeps what it has freed and RMM what it has: each may lack what the other holds idle. To be called
    before anything is on the GPU, as torch's allocator cannot be changed afterwards; a second call changes nothing.
    CUDA graphs are then unavailable (``CudaGraph`` warns and trains without): a shared pool gives memory that a graph
    was recorded with to others. ``torch.cuda.memory_allocated`` and the like do not see RMM's pool.

    Args:
        device: the CUDA device.
        size: bytes that the pool begins with; it grows. None: half of what is free, RMM's default.

    Returns:
        The device.

    Raises:
        MissingPackageError: RMM is not installed.
        DeviceError: there is no such CUDA device, or torch has used it already.
    """
    how = "pip install 'fastrec-tabular[gpu]' on Linux with an NVIDIA GPU"
    rmm = require("rmm", "RMM", how)
    found = torch.device("cuda" if device is None or device == "auto" else device)
    if found.type != "cuda":
        raise DeviceError(f"a pool is shared on a CUDA device, not on {found}", remedy="Use device='cuda'")
    # by its number: asking torch for the current device begins its allocator, which cannot be changed after that
    found = resolve_device(torch.device("cuda", found.index or 0))
    if found in _pooled:
        return found
    if torch.cuda.is_initialized():
        remedy = "Call share_pool() first, before anything of torch's is on the GPU"
        raise DeviceError("torch has begun to use the GPU, its allocator cannot be changed any more", remedy=remedy)
    allocator = require("rmm.allocators.torch", "RMM", how).rmm_torch_allocator
    rmm.reinitialize(pool_allocator=True, initial_pool_size=size, devices=found.index)
    torch.cuda.memory.change_current_allocator(allocator)
    try:
        cupy = require("cupy", "CuPy", how)
    except MissingPackageError:
        pass  # nothing of CuPy's has to be shared
    else:
        cupy.cuda.set_allocator(require("rmm.allocators.cupy", "RMM", how).rmm_cupy_allocator)
    _pooled.append(found)
    return found


def pool_is_shared() -> bool:
    """Tell whether torch uses RMM's pool (see ``share_pool``)."""
    return bool(_pooled)
