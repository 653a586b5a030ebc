"""Mixed precision: products of matrices in 16 bits, everything else in 32."""

from __future__ import annotations

import time
import warnings
from functools import cache
from typing import Literal

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import AMPMode, MixedPrecision
from fastai.torch_core import to_float

from fastrec._core import limits
from fastrec.errors import DataError, DeviceError

__all__ = ["BF16Autocast", "Precision", "mixed_precision"]

Precision = Literal["bf16", "fp16"]


class BF16Autocast(Callback):
    """bfloat16 autocast around the model's forward pass, on CPUs as well (fastai's own is for CUDA alone).

    Weights, gradients and the optimizer's state stay float32; outputs are cast back to it before the loss sees them. No
    loss scaling is needed: bfloat16 has float32's range. On a CPU that would take more than twice as long for it as for
    float32, training goes on in float32, with a warning.

    Args:
        force: bfloat16 even where it is slow (for the same rounding as on another machine).
    """

    order = MixedPrecision.order

    def __init__(self, *, force: bool = False) -> None:
        super().__init__()
        self.force, self._context = force, None

    def before_fit(self) -> None:
        """Check that the device is fast enough."""
        self.leave()  # an interrupted training may have left it on
        self._device = next(self.learn.model.parameters()).device.type
        self._used = self.force or self._device != "cpu" or _cpu_is_fast()

    def before_batch(self) -> None:
        """Begin autocast."""
        self.leave()
        self._context = self.context()
        self._context.__enter__()

    def after_pred(self) -> None:
        """End autocast and cast outputs to float32."""
        self.leave()
        self.learn.pred = to_float(self.learn.pred)

    def after_cancel_batch(self) -> None:
        """End autocast."""
        self.leave()

    def context(self, *, cached: bool = True) -> torch.autocast:
        """Return autocast as a context; one without effect on a slow device.

        Args:
            cached: whether weights are cast once within the context; a CUDA graph must not see earlier casts.
        """
        return torch.autocast(self._device, dtype=torch.bfloat16, enabled=self._used, cache_enabled=cached)

    def leave(self) -> None:
        """End autocast, if it is on."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None


def mixed_precision(kind: Precision | None, device: torch.device | str) -> Callback | None:
    """Make the callback that trains in mixed precision.

    Args:
        kind: ``'bf16'``; ``'fp16'`` (CUDA only, with a scaled loss); None for float32 throughout.

    Returns:
        A callback; None for float32.
    """
    if kind is None:
        return None
    if kind not in ("bf16", "fp16"):
        raise DataError(f"no precision {kind!r}", remedy="Give 'bf16', 'fp16' or None")
    if kind == "bf16":
        return BF16Autocast()
    if torch.device(device).type != "cuda":
        raise DeviceError(f"fp16 needs CUDA, and the batches go to {device}", remedy="Use amp='bf16' on a CPU")
    return MixedPrecision(amp_mode=AMPMode.FP16)


@cache
def _cpu_is_fast() -> bool:
    """Return whether bfloat16 is fast on this CPU; warn once if not."""
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # at worst as fast as float32, without a trial
        return True
    slower = _slowdown()
    if slower > limits.BF16_SLOWDOWN:
        warnings.warn(
            f"bfloat16 takes this CPU {slower:.0f} times as long as float32: training goes on in float32 "
            "(BF16Autocast(force=True) uses it all the same)",
            UserWarning,
            stacklevel=2,
        )
    return slower <= limits.BF16_SLOWDOWN


def _slowdown() -> float:
    best = {}
    for dtype in (torch.float32, torch.bfloat16) * 4:
        a, b = torch.ones(512, 128, dtype=dtype), torch.ones(128, 128, dtype=dtype)
        start = time.perf_counter()
        a @ b
        best[dtype] = min(best.get(dtype, float("inf")), time.perf_counter() - start)
    return best[torch.bfloat16] / best[torch.float32]
