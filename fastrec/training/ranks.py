"""Training shared by several processes."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as group
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.progress import ProgressCallback
from fastai.callback.training import GradientAccumulation
from fastai.learner import AvgLoss, AvgMetric, Learner, ValueMetric
from fastai.torch_core import find_bs
from fastcore.basics import noop
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastrec._core.device import DeviceLike, on_host, resolve_device
from fastrec._core.ranks import agree, all_rows, broadcast, is_first, naming_lost_ranks, rank, summed, world_size
from fastrec.errors import DataError, DeviceError, RankError, warn
from fastrec.optim.torch_optimizers import BatchPlaces, SparseRows


def is_sharded(parameter: nn.Parameter) -> bool:
    """Return whether each rank holds other rows (``Embeddings("row-sharded")``) with their gradients."""
    return bool(getattr(getattr(parameter, "placed", None), "sharded", False))


class JoinedGrads:
    """Sums of the parameters' gradients over the ranks.

    Of a row-sparse gradient only the touched rows are sent, each once.

    Attributes:
        sent: bytes that this rank has sent so far, row-sparse and dense.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self.parameters = [p for p in trained if not is_sharded(p)]
        self.sharded = [p for p in trained if is_sharded(p)]
        self.sent = {"rows": 0, "dense": 0}
        self._kinds: list[int] | None = None
        self._places = BatchPlaces()

    @torch.no_grad()
    def join(self) -> None:
        """Replace every gradient by its sum over the ranks."""
        if self._kinds is None:  # 0: no gradient, 1: row-sparse, 2: dense; the same on all ranks
            kinds = [0 if p.grad is None else 1 if p.grad.is_sparse else 2 for p in self.parameters]
            self._kinds = all_rows([torch.tensor([kinds])], "comparing gradients")[0].max(0).values.tolist()
        rows, dense = ([p for p, k in zip(self.parameters, self._kinds, strict=True) if k == kind] for kind in (1, 2))
        for p in dense:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.to_dense()
        grads = [p.grad for p in dense]
        summed(grads, "adding up gradients")
        self.sent["dense"] += sum(g.numel() * g.element_size() for g in grads)
        parts: list[Tensor] = []
        for p in rows:
            if p.grad is None:
                parts += [torch.zeros(0, dtype=torch.int64, device=p.device), p.new_zeros(0, *p.shape[1:])]
                continue
            if not p.grad.is_sparse:
                remedy = "Use grads='dense' for this model"
                raise RankError("a table's gradient was row-sparse before and is dense now", remedy=remedy)
            own = SparseRows.of(p.grad, self._places)
            parts += [own.ids, own.grads]
        self.sent["rows"] += sum(t.numel() * t.element_size() for t in parts)
        found = all_rows(parts, "adding up the gradients of embedding rows")
        for p, ids, values in zip(rows, found[::2], found[1::2], strict=True):
            grad = torch.sparse_coo_tensor(ids[None], values, p.shape, check_invariants=False)
            # On a GPU sums must not depend on which thread comes first: ranks would drift apart.
            p.grad = grad if on_host(p) else grad.coalesce()
        for p in self.sharded:  # their gradients came from all ranks in the backward pass, as a mean over ranks
            if p.grad is not None:
                p.grad = p.grad * world_size()


@contextmanager
def synced_norms(model: nn.Module) -> Iterator[None]:
    """Take mean and variance of batch norms over all ranks' batches within the block (torch's are for GPUs only)."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    for norm in norms:
        norm.forward = partial(_forward, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor:
    if not norm.training:
        return type(norm).forward(norm, x)
    given, x = x.dtype, x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    over = [0, *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    sums = _Sum.apply(torch.cat([x.sum(over), x.new_tensor([x.numel() // x.shape[1]])]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    # a second sum, of squares about the common mean, cancels less than E[x²] - E[x]²
    apart = x - mean.view(shape)
    var = _Sum.apply(apart.square().sum(over)) / count
    if norm.track_running_stats and norm.running_mean is not None:
        with torch.no_grad():
            norm.num_batches_tracked += 1
            share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
            norm.running_var.lerp_((var * count / (count - 1).clamp(min=1)).to(norm.running_var.dtype), share)
    y = apart * (var + norm.eps).rsqrt().view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(given)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.detach().clone()
        summed([x], "normalising a batch")
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        summed([grad], "normalising a batch, backwards")
        return grad


class DataParallel(Callback):
    """Callback of synchronous data parallelism; ``fastrec.scale.distributed`` adds it to a Learner.

    Every rank has the whole net and a share of every batch. Before each step gradients are summed over the ranks: the
    step is that of the mean loss over the whole batch, even if shares are unequal. Of row-sparse gradients only the
    touched rows are exchanged. The net stays unwrapped, so that names in the state dict do not change.

    Args:
        sync_bn: batch norms take their statistics over all ranks.
    """

    order = MixedPrecision.order - 2  # gradients are whole before scaling, clipping and the step; accumulated before

    def __init__(self, *, sync_bn: bool = True) -> None:
        super().__init__()
        self.sync_bn = sync_bn
        self._loaders: list[tuple[Any, int, int]] = []
        self._norms: Any = None
        self._accumulates: list[GradientAccumulation] = []
        self._grads: JoinedGrads | None = None

    def before_fit(self) -> None:
        """Share the rows out, and send rank 0's weights."""
        learn = self.learn
        if learn.lock.locked():  # validate or get_preds, which every rank does by itself
            return
        if world_size() > 1 and hasattr(learn, "lr_finder"):  # it saves and loads the weights on the first rank alone
            raise DataError("lr_find works in one process", remedy="Find the rate without torchrun, then train with it")
        self.leave()  # a training before this one may not have come to its end
        for dl in learn.dls.loaders:
            if not hasattr(dl, "set_rank"):
                problem = f"a {type(dl).__name__} does not share its rows out to {world_size()} ranks"
                raise DataError(problem, remedy="Make the loaders by TabularFrame or ParquetFrame")
            self._loaders.append((dl, dl.rank, dl.world_size))
            dl.set_rank()
        placed = [p.placed for p in learn.model.parameters() if getattr(p, "placed", None) is not None]
        if any(getattr(one, "ranks", 1) != world_size() for one in placed):
            remedy = "Call fastrec.scale.join_ranks() first in the script, and give placement='row-sharded'"
            raise DataError("the model's embedding tables were placed before the processes were joined", remedy=remedy)
        parameters = {n: p for n, p in learn.model.named_parameters() if not is_sharded(p)}
        agree([(n, str(p.dtype), tuple(p.shape)) for n, p in parameters.items()], "model")
        agree([learn.n_epoch, *map(len, learn.dls.loaders)], "number of epochs and batches")
        # buffers that no checkpoint holds are made alike on every rank
        kept = learn.model.state_dict().keys()
        state = [*parameters.values(), *(b for n, b in learn.model.named_buffers() if n in kept)]
        broadcast(state, "sending rank 0's weights")
        self._accumulates = [cb for cb in learn.cbs if isinstance(cb, GradientAccumulation)]
        own = learn.loss_func.parameters() if isinstance(learn.loss_func, nn.Module) else []  # a loss may train too
        self._grads = JoinedGrads([*learn.model.parameters(), *own])
        if self.sync_bn:
            self._norms = synced_norms(learn.model)
            self._norms.__enter__()
        if not is_first():
            learn.logger = noop
            torch.manual_seed(int(torch.randint(1 << 62, ())) + rank())  # dropout of its own

    def after_fit(self) -> None:
        """Restore every loader."""
        if not self.learn.lock.locked():
            self.leave()

    def leave(self) -> None:
        """Restore what was changed for the training, even if it was interrupted."""
        for dl, own, ranks in self._loaders:
            dl.set_rank(own, ranks)
        self._loaders = []
        if self._norms is not None:
            self._norms.__exit__(None, None, None)
            self._norms = None

    @property
    def _shared(self) -> bool:
        return bool(self._loaders) and getattr(self.learn.dl, "world_size", 1) > 1

    def after_loss(self) -> None:
        """Set the loss of all ranks' batches together, and this rank's part of it for the gradients."""
        if not self.training or not self._shared:
            return
        learn = self.learn
        rows, part = float(find_bs(learn.yb)), learn.loss_grad.as_subclass(Tensor)
        loss = part.detach()
        for cb in self._accumulates:  # what it has scaled down by now
            loss = loss * (cb.n_acc / rows)
        # Shares differ in rows: the mean over ranks weighs each loss by what it is a mean over.
        inner = learn.loss_func if hasattr(learn.loss_func, "denominator") else getattr(learn.loss_func, "loss", None)
        own = torch.tensor(rows)
        if hasattr(inner, "denominator"):
            own = inner.denominator(*(y.as_subclass(Tensor) for y in learn.yb)).detach()
        own = own.double().to(loss.device)
        sums = torch.stack([loss.double() * own, own, torch.full_like(own, rows)])
        summed([sums], "adding up the loss")
        total = torch.where(sums[1] > 0, sums[1], 1.0)
        learn.loss = (sums[0] / total).to(loss.dtype)
        learn.loss_grad = part * (own / total).to(loss.dtype)
        if self._accumulates:  # by its own rows each rank would take its step at another batch
            learn.loss_grad = learn.loss_grad * (float(sums[2]) / world_size() / rows)
            for cb in self._accumulates:
                cb.count += -(-int(sums[2]) // world_size()) - rows  # whole numbers: every rank must count alike

    def before_step(self) -> None:
        """Add the gradients up over the ranks."""
        if self._shared:
            self._grads.join()

    def after_train(self) -> None:
        """Combine metrics of training batches."""
        if self._shared and self.learn.recorder.train_metrics:
            self._join(self.learn.recorder._train_mets[1:])

    def after_validate(self) -> None:
        """Combine the validation loss and the metrics of all ranks before they are recorded."""
        if self._shared:
            self._join(self.learn.recorder._valid_mets)

    def _join(self, metrics: Any) -> None:
        for metric in metrics:
            if hasattr(metric, "join_ranks"):
                metric.join_ranks()
            elif isinstance(metric, AvgMetric | AvgLoss):
                sums = torch.tensor([float(metric.total), float(metric.count)], dtype=torch.float64)
                summed([sums], f"putting {metric.name} together")
                metric.total, metric.count = sums[0], int(sums[1])
            elif hasattr(metric, "preds") and hasattr(metric, "targs"):  # fastai's AccumMetric
                if not metric.preds:  # there are no such rows, on any rank
                    continue
                parts = [torch.cat(x).as_subclass(Tensor) for x in (metric.preds, metric.targs)]
                joined = all_rows(parts, f"putting {metric.name} together")
                metric.preds, metric.targs = [joined[0]], [joined[1]]
            elif not isinstance(metric, ValueMetric) and is_first():
                warn(f"{metric.name} is of rank 0's rows alone: a {type(metric).__name__} cannot be put together")


@contextmanager
def distributed(learn: Learner, *, sync_bn: bool = True, timeout: float = 60.0) -> Iterator[Learner]:
    """Train on the processes that ``torchrun`` has started.

    Write ``with distributed(learn): learn.fit_one_cycle(3, 1e-2)`` in a script that ``torchrun --nproc-per-node 2
    train.py`` starts twice. Within the block every fit distributes the rows of each batch over the processes. ``bs`` is
    per process: two processes with ``bs=512`` learn from batches of 1,024. Metrics and losses are of all rows;
    ``validate`` and ``get_preds`` return all rows on every process. ``learn.distrib_ctx()`` is the same.

    Args:
        learn: the Learner, with loaders of this library.
        sync_bn: batch norms take their statistics over all processes.
        timeout: seconds to wait for another process that hangs; a killed one is noticed at once. Ignored if the
            processes are already joined.

    Raises:
        RankError: another process has ended or does something else.
    """
    place = getattr(learn.dls, "device", None) or next(learn.model.parameters(), torch.zeros(0)).device
    if join_ranks(place, timeout=timeout) == 1 or any(isinstance(cb, DataParallel) for cb in learn.cbs):
        yield learn
        return
    place = torch.device(place)
    if place.type == "cuda" and place.index not in (None, torch.cuda.current_device()):
        problem = f"rank {rank()} has its batches on GPU {place.index}, and its own is {torch.cuda.current_device()}"
        remedy = "Call fastrec.scale.join_ranks() at the beginning of the script, before data go to a GPU"
        raise DeviceError(problem, remedy=remedy)
    cb, logger = DataParallel(sync_bn=sync_bn), learn.logger
    # one progress bar for all
    hidden = [] if is_first() else [c for c in learn.cbs if isinstance(c, ProgressCallback)]
    learn.remove_cbs(hidden)
    learn.add_cb(cb)
    try:
        yield learn
    finally:
        cb.leave()
        learn.remove_cb(cb)
        learn.add_cbs(hidden)
        learn.logger = logger


def join_ranks(place: DeviceLike = "auto", *, timeout: float = 60.0) -> int:
    """Join the processes that ``torchrun`` has started, for the rest of their lives.

    ``distributed`` calls it if needed. On GPUs, call it first in a script: it sets each process's GPU.

    Args:
        place: the device of the nets: processes use gloo on a CPU, NCCL on GPUs.
        timeout: seconds to wait for another process.

    Returns:
        The number of processes; 1 if not started by ``torchrun``.

    Raises:
        RankError: the others cannot be reached.
        DeviceError: this machine has fewer GPUs than processes.
    """
    if group.is_available() and group.is_initialized():
        return world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return 1
    if not group.is_available():
        raise DataError("this torch has no torch.distributed", remedy="Install torch with it, or start one process")
    on_gpu = resolve_device(place).type == "cuda"
    if on_gpu:
        own = int(os.environ.get("LOCAL_RANK", "0"))
        if own >= torch.cuda.device_count():
            problem = f"process {own} of this machine has no GPU of its own: there are {torch.cuda.device_count()}"
            raise DeviceError(problem, remedy="Start as many processes as there are GPUs, or train on the CPU")
        torch.cuda.set_device(own)
    with naming_lost_ranks("joining the others"):
        group.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(seconds=timeout))
    atexit.register(lambda: group.is_initialized() and group.destroy_process_group())
    return world_size()
