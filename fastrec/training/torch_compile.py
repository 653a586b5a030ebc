"""``CompiledModel``: torch.compile of a Learner's model, where there is a compiler."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
from fastai.callback.core import Callback
from torch import nn

from fastrec.table import ListBatch
from fastrec.training.amp import BF16Autocast
from fastrec.training.cuda_graph import undone

__all__ = ["CompiledModel"]


class CompiledModel(Callback):
    """Compiles the model at the first training batch, and tries it there.

    If that fails (no compiler, or a model that it cannot take), training goes on with the model as it is, a warning
    says why, once, and so does ``learn.compile_reason`` (None while the compiled one is in use). Names in the state
    dict are the same, an exported Learner holds the model as it was. Outputs agree within rounding.
    """

    order, run_valid = 90, False  # after what prepares a batch, before a CUDA graph is recorded

    def __init__(self) -> None:
        super().__init__()
        self._model: nn.Module | None = None  # which was tried

    def before_batch(self) -> None:
        """Compile the model."""
        learn = self.learn
        if not learn.training or not len(learn.yb) or self._model is learn.model:
            return
        self._model, learn.compile_reason = learn.model, None
        if any(isinstance(x, ListBatch) for x in learn.xb):
            self._give_up("the compiler does not take lists")
            return
        learn.model.compile()
        try:
            self._try()
        except Exception as error:  # of many kinds: no compiler, an operation that it lacks, a defect of its own
            learn.model._compiled_call_impl = None  # as it is before compile(); torch has no other way back
            self._give_up(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)

    def _try(self) -> None:
        learn = self.learn
        amp = next((cb for cb in learn.cbs if isinstance(cb, BF16Autocast)), None)
        kept = [(p, p.grad) for p in learn.model.parameters()]
        try:
            with undone(learn.model), torch.enable_grad():
                with nullcontext() if amp is None else amp.context():
                    pred = learn.model(*learn.xb)
                learn.loss_func(pred.float(), *learn.yb).backward()
        finally:
            for p, grad in kept:
                p.grad = grad

    def _give_up(self, reason: str) -> None:
        self.learn.compile_reason = reason
        warnings.warn(f"the model is not compiled: {reason}", UserWarning, stacklevel=2)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_model": None}
