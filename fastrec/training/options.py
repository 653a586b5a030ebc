"""Options of ``rec_learner`` about how it trains, as callbacks."""

from __future__ import annotations

from typing import Any

import torch
from fastai.callback.core import Callback

from fastrec.training.amp import Precision, mixed_precision
from fastrec.training.cuda_graph import CudaGraph
from fastrec.training.stop_on_nan import StopOnNaN
from fastrec.training.torch_compile import CompiledModel

__all__ = ["training_callbacks"]


def training_callbacks(
    device: torch.device | str,
    *,
    amp: Precision | None = None,
    stop_on_nan: bool = True,
    graph: bool = False,
    compile: bool = False,
) -> list[Callback]:
    """Make the callbacks of ``rec_learner``'s training options.

    Args:
        amp: mixed precision: ``'bf16'``, ``'fp16'`` (CUDA only) or None, see ``fastrec.training.amp``.
        stop_on_nan: whether a loss that is no finite number ends the training with an error, see ``StopOnNaN``.
        graph: whether steps are replayed from a CUDA graph, see ``CudaGraph``.
        compile: whether the model is compiled, see ``CompiledModel``.

    Returns:
        Callbacks, in no order.
    """
    found: list[Any] = [mixed_precision(amp, device)]
    found += [made() for made, on in ((StopOnNaN, stop_on_nan), (CudaGraph, graph), (CompiledModel, compile)) if on]
    return [cb for cb in found if cb is not None]
