"""Which device tensors live on."""

from __future__ import annotations

import os
from typing import Literal

import torch

from fastrec.errors import DeviceError

DeviceLike = torch.device | str | None


def resolve_device(device: DeviceLike | Literal["auto"] = None) -> torch.device:
    """The device to use.

    Args:
        device: ``'cpu'``, ``'cuda'``, ``'cuda:1'``, a ``torch.device``; ``'auto'`` takes CUDA where there is one;
            None reads the environment variable ``FASTREC_DEVICE`` and is the CPU where that is unset.

    Returns:
        A device that exists; a CUDA device with its number, so that it equals the device of the tensors on it.

    Raises:
        DeviceError: CUDA was asked for and this machine or this build of torch has none.
    """
    if device is None:
        device = os.environ.get("FASTREC_DEVICE") or "cpu"
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"{device!r} is not a device", remedy="Use 'auto', 'cpu' or 'cuda'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "device 'cuda' was asked for, but torch finds no CUDA device",
            remedy="Use device='auto' or 'cpu', or install a CUDA build of torch on a machine with an NVIDIA GPU",
        )
    if found.type == "cuda" and found.index is not None and found.index >= torch.cuda.device_count():
        raise DeviceError(
            f"device {str(found)!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices",
            remedy="Count from 0, or use device='cuda'",
        )
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if found.type not in ("cpu", "cuda"):
        _check_other(found)
    return found


def _check_other(device: torch.device) -> None:
    """Refuse a device of another kind (Apple's, say) that holds no values on this machine."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
        raise DeviceError(
            f"device {str(device)!r} was asked for, but it is not usable here", remedy="Use 'auto', 'cpu' or 'cuda'"
        ) from error
