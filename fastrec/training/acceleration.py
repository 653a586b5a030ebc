"""Faster steps: mixed precision, CUDA graphs, compiled models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

import torch
from fastai.callback.core import Callback, CancelBatchException, CancelStepException
from fastai.callback.fp16 import AMPMode, MixedPrecision
from fastai.optimizer import OptimWrapper
from fastai.torch_core import to_float
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import pool_is_shared
from fastrec.errors import DataError, DeviceError, warn
from fastrec.table import ListBatch
from fastrec.training.stop_on_nan import StopOnNaN

Precision = Literal["bf16", "fp16"]


class BF16Autocast(Callback):
    """Callback of bfloat16 autocast around the forward pass, on CPUs as well (fastai's own needs CUDA).

    Weights, gradients and optimizer state stay float32; outputs are cast to float32 before the loss. On a CPU where
    bfloat16 takes more than twice as long, training uses float32, with a warning.

    Args:
        force: use bfloat16 even if it is slow, for the same rounding as on another machine.
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

    def context(self, *, cached: bool = True) -> torch.autocast:
        """Return autocast as a context; one without effect on a slow device.

        ``cached``: weights are cast once within the context; a CUDA graph must not see earlier casts.
        """
        return torch.autocast(self._device, dtype=torch.bfloat16, enabled=self._used, cache_enabled=cached)

    def leave(self) -> None:
        """End autocast, if it is on."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None

    after_cancel_batch = leave


def mixed_precision(kind: Precision | None, device: torch.device | str) -> Callback | None:
    """Make the callback that trains in mixed precision; ``'fp16'`` (with a scaled loss) on CUDA only."""
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
    best: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16) * 4:
        a, b = torch.ones(512, 128, dtype=dtype), torch.ones(128, 128, dtype=dtype)
        start = time.perf_counter()
        a @ b
        best[dtype] = min(best.get(dtype, float("inf")), time.perf_counter() - start)
    slower = best[torch.bfloat16] / best[torch.float32]
    if slower > limits.BF16_SLOWDOWN:
        warn(
            f"bfloat16 takes this CPU {slower:.0f} times as long as float32: training goes on in float32 "
            "(BF16Autocast(force=True) uses it all the same)",
            UserWarning,
        )
    return slower <= limits.BF16_SLOWDOWN


Record = Callable[[Callable[[], Any], torch.device, int], Callable[[], Any]]

_WITHIN = ("after_pred", "after_loss", "before_backward")  # events between what one graph holds


class CudaGraph(Callback):
    """Callback that trains batches of full size by replaying a CUDA graph.

    Forward pass, loss and backward pass are one graph. The step of a fused Adam or AdamW is another one, as long as
    only the learning rate changes (``moms`` of one value in ``fit_one_cycle``). Other steps run normally on the graph's
    gradients, and callbacks of ``after_backward``, ``before_step`` and ``after_step`` are called.

    Without CUDA, with lists, row-sparse gradients or callbacks that change outputs or loss, or if recording fails,
    training runs without a graph; one warning and ``learn.graph_reason`` (None: a graph is in use) give the reason.

    Dropout rates and frozen modules stay as they were recorded. ``learn.pred`` and ``learn.loss`` are overwritten by
    the next batch: callbacks must copy them.

    Args:
        record: function of a function, a device and a number of warm-up runs that returns a replay; None: a CUDA graph.
    """

    order, run_valid = 100, False  # after all that prepares a batch

    def __init__(self, *, record: Record | None = None) -> None:
        super().__init__()
        self._record, self._told = record, False
        self._forget()

    def _forget(self) -> None:
        self._pass: _Pass | None = None
        self._opt_step: _OptStep | None = None
        self._warm, self._loss_func, self._hypers = 0, None, None

    def before_fit(self) -> None:
        """Check whether a graph can be used."""
        if self.learn.lock.locked():  # validate or get_preds
            return
        self._forget()
        self._loss_func = self.learn.loss_func
        self.learn.graph_reason = None
        if reason := self._why_not():
            self._give_up(reason)

    def before_batch(self) -> None:
        """Replay the step, if the batch fits it."""
        learn = self.learn
        # validation and prediction run as ever: their batches are of other sizes
        if not learn.training or learn.graph_reason is not None or not len(learn.yb):
            return
        if self._pass is None and not (self._ready() and self._record_step()):
            return
        if not self._pass.takes(learn.xb, learn.yb):
            return
        if learn.loss_func is not self._loss_func:
            self._give_up("a callback replaces the loss")
            return
        for cb in learn.cbs:
            if isinstance(cb, BF16Autocast):
                cb.leave()
        learn.pred, learn.loss, grads = self._pass(learn.xb, learn.yb)
        # callbacks of the loss and the step come as ever
        learn.loss_grad = learn.loss
        for cb in learn.cbs:
            if isinstance(cb, StopOnNaN):
                cb("after_loss")
        for p, grad in grads:
            p.grad = grad
        learn("after_backward")
        learn._with_events(self._step_weights, "step", CancelStepException)
        for p, _ in grads:
            p.grad = None  # the graph writes them, it does not add to them
        raise CancelBatchException

    def after_backward(self) -> None:
        """Check the gradients of the first batches."""
        learn = self.learn
        if learn.graph_reason is None and self._pass is None and any(_is_sparse(p) for p in learn.model.parameters()):
            self._give_up("the gradients of some tables are row-sparse")

    def after_fit(self) -> None:
        """Free the graphs' memory."""
        if not self.learn.lock.locked():
            self._forget()

    def _why_not(self) -> str | None:
        learn = self.learn
        device = next(learn.model.parameters()).device
        if self._record is None and device.type != "cuda":
            return f"the model is on the device {device.type}, and graphs are for CUDA"
        if self._record is None and pool_is_shared():  # it has no memory of a graph's own: a replay would write others'
            return "torch shares RMM's pool (share_pool), which keeps no memory for a graph"
        for cb in learn.cbs:
            events = [e for e in _WITHIN if e in vars(cb) or callable(getattr(type(cb), e, None))]
            if events and not isinstance(cb, BF16Autocast | StopOnNaN):
                return f"the callback {type(cb).__name__} does something in {events[0]}"
        return None

    def _ready(self) -> bool:
        learn = self.learn
        if any(isinstance(x, ListBatch) or not isinstance(x, Tensor) for x in (*learn.xb, *learn.yb)):
            self._give_up("lists have another length in every batch")
            return False
        self._warm += 1
        return self._warm > limits.GRAPH_WARM_UP and len(learn.yb[0]) == learn.dl.bs

    def _record_step(self) -> bool:
        learn = self.learn
        learn.pred = learn.loss = learn.loss_grad = None  # they hold on to a graph of another stream
        amp = [cb for cb in learn.cbs if isinstance(cb, BF16Autocast)]
        for cb in amp:
            cb.leave()
        try:
            self._pass = _Pass(learn, amp[0] if amp else None, self._record or _captured)
        except Exception as error:  # whatever a graph cannot hold; the batch itself is trained as ever
            self._give_up(f"recording failed: {error}")
            for cb in amp:
                cb.before_batch()
            return False
        return True

    def _give_up(self, reason: str) -> None:
        self._pass = self._opt_step = None
        self.learn.graph_reason = reason
        if not self._told:
            warn(f"training goes on without a CUDA graph: {reason}", UserWarning)
        self._told = True

    def _step_weights(self) -> None:
        opt, hypers = self.learn.opt, _constants(self.learn.opt)
        if self._opt_step is not None and self._opt_step.hypers == hypers:
            self._opt_step()
            return
        if hypers is not None and hypers == self._hypers and self._opt_step is None:
            try:
                self._opt_step = _OptStep(opt, hypers, self._record or _captured)
            except Exception as error:  # the gradients are a graph's still; from now on the step is not
                self._hypers = None
                warn(f"the optimizer's step is not in a CUDA graph: {error}", UserWarning)
                opt.step()
                return
            self._opt_step()
            return
        self._hypers = hypers if self._opt_step is None else self._hypers
        opt.step()


class _Pass:
    """Forward, loss and backward pass on inputs at fixed addresses."""

    def __init__(self, learn: Any, amp: BF16Autocast | None, record: Record) -> None:
        self.inputs = [x.detach().clone(memory_format=torch.contiguous_format) for x in (*learn.xb, *learn.yb)]
        n_inputs, model, loss_func = len(learn.xb), learn.model, learn.loss_func
        params = [p for p in model.parameters() if p.requires_grad]

        def run() -> tuple[Any, Tensor, list[tuple[Tensor, Tensor]]]:
            for p in params:
                p.grad = None
            with nullcontext() if amp is None else amp.context(cached=False):
                pred = model(*self.inputs[:n_inputs])
            pred = to_float(pred) if amp is not None else pred
            loss = loss_func(pred, *self.inputs[n_inputs:])
            loss.backward()
            return pred.detach(), loss.detach(), [(p, p.grad) for p in params if p.grad is not None]

        try:
            with undone(model):
                self.replay = record(run, next(model.parameters()).device, limits.GRAPH_WARM_UP)
        finally:
            for p in params:
                p.grad = None

    def takes(self, xb: Any, yb: Any) -> bool:
        given = [*xb, *yb]
        return len(given) == len(self.inputs) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(given, self.inputs, strict=True)
        )

    def __call__(self, xb: Any, yb: Any) -> tuple[Any, Tensor, list[tuple[Tensor, Tensor]]]:
        for mine, given in zip(self.inputs, (*xb, *yb), strict=True):
            mine.copy_(given, non_blocking=True)
        return self.replay()


class _OptStep:
    """A fused optimizer's step; the learning rate is read from the device."""

    def __init__(self, opt: OptimWrapper, hypers: Any, record: Record) -> None:
        self.hypers, self.groups = hypers, opt.opt.param_groups
        device = next(p.device for g in self.groups for p in g["params"])
        self.rates = [torch.tensor(float(g["lr"]), device=device) for g in self.groups]

        def run() -> None:
            kept = [(g["lr"], g.get("capturable", False)) for g in self.groups]
            for group, rate in zip(self.groups, self.rates, strict=True):
                group["lr"], group["capturable"] = rate, device.type == "cuda"
            try:
                opt.step()
            finally:
                for group, (rate, capturable) in zip(self.groups, kept, strict=True):
                    group["lr"], group["capturable"] = rate, capturable

        self.replay = record(run, device, 0)  # the state that a step needs has been made by the steps before

    def __call__(self) -> None:
        for group, rate in zip(self.groups, self.rates, strict=True):
            rate.fill_(float(group["lr"]))
        self.replay()


def _captured(run: Callable[[], Any], device: torch.device, warm_up: int) -> Callable[[], Any]:
    """Record ``run`` as a CUDA graph; its replay returns the same tensors, overwritten."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # libraries make their workspaces, which recording does not allow
        for _ in range(warm_up):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = run()

    def replay() -> Any:
        graph.replay()
        return found

    return replay


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the random numbers at the end of the block."""
    device = next(model.parameters()).device
    buffers = [(b, b.clone()) for b in model.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)


def _is_sparse(p: Tensor) -> bool:
    return p.grad is not None and p.grad.is_sparse


def _constants(opt: Any) -> list[dict[str, Any]] | None:
    """Return what a recorded step of a fused optimizer holds fixed, by group; None for other optimizers."""
    inner = opt.opt if isinstance(opt, OptimWrapper) else None
    if not isinstance(inner, torch.optim.Adam | torch.optim.AdamW):
        return None
    groups = inner.param_groups
    if not all(g.get("fused") for g in groups) or any(_is_sparse(p) for g in groups for p in g["params"]):
        return None
    return [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in groups]


class CompiledModel(Callback):
    """Callback that compiles the model at the first training batch.

    If that fails, training uses the model as it is; one warning and ``learn.compile_reason`` (None: compiled) give the
    reason. State dict and exports are those of the plain model; outputs agree within rounding.
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
        warn(f"the model is not compiled: {reason}", UserWarning)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_model": None}
