"""``DataParallel``: a training shared by several processes, each of which learns from its share of every batch."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.training import GradientAccumulation
from fastai.learner import AvgLoss, AvgMetric, ValueMetric
from fastai.torch_core import find_bs
from fastcore.basics import noop
from torch import Tensor, nn

from fastrec._core.ranks import agree, all_rows, broadcast, is_first, rank, summed, world_size
from fastrec.errors import DataError, DataWarning
from fastrec.training.joined_grads import JoinedGrads, is_sharded
from fastrec.training.synced_norm import synced_norms

__all__ = ["DataParallel"]


class DataParallel(Callback):
    """Trains one net on the rows of all ranks (synchronous data parallelism, as torch's ``DistributedDataParallel``).

    Every rank has the whole net and a share of every batch. Gradients are added up over the ranks before each step, so
    that all take the same one: that of the mean loss over the whole batch, however unequal the shares are. Embedding
    tables with row-sparse gradients exchange the rows that the batch has touched. The net stays unwrapped: callbacks,
    checkpoints and ``learn.save`` see the same names as ever.

    ``fastrec.scale.distributed`` adds it to a Learner.

    Args:
        sync_bn: batch norms take their statistics over all ranks, as in one process.
    """

    order = MixedPrecision.order - 2  # gradients are whole before scaling, clipping and the step; accumulated before

    def __init__(self, *, sync_bn: bool = True) -> None:
        super().__init__()
        self.sync_bn = sync_bn
        self._loaders: list[tuple[Any, int, int]] = []
        self._norms: Any = None
        self._accumulates: list[GradientAccumulation] = []
        self._grads: JoinedGrads | None = None

    # ---- a training's beginning and end

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
                raise DataError(
                    f"a {type(dl).__name__} does not share its rows out to {world_size()} ranks",
                    remedy="Make the loaders by TabularFrame or ParquetFrame",
                )
            self._loaders.append((dl, dl.rank, dl.world_size))
            dl.set_rank()
        placed = [p.placed for p in learn.model.parameters() if getattr(p, "placed", None) is not None]
        if any(getattr(one, "ranks", 1) != world_size() for one in placed):
            raise DataError(
                "the model's embedding tables were placed before the processes were joined",
                remedy="Call fastrec.scale.join_ranks() first in the script, and give placement='row-sharded'",
            )
        parameters = {n: p for n, p in learn.model.named_parameters() if not is_sharded(p)}
        agree([(n, str(p.dtype), tuple(p.shape)) for n, p in parameters.items()], "model")
        agree([learn.n_epoch, *map(len, learn.dls.loaders)], "number of epochs and batches")
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

    # ---- batches

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
        own = _denominator(learn.loss_func, learn.yb).double().to(loss.device)
        sums = torch.stack([loss.double() * own, own, torch.full_like(own, rows)])
        summed([sums], "adding up the loss")
        total = torch.where(sums[1] > 0, sums[1], 1.0)
        learn.loss = (sums[0] / total).to(loss.dtype)
        learn.loss_grad = part * (own / total).to(loss.dtype)
        if self._accumulates:  # by its own rows each rank would take its step at another batch
            mean = float(sums[2]) / world_size()
            learn.loss_grad = learn.loss_grad * (mean / rows)
            for cb in self._accumulates:
                cb.count += -(-int(sums[2]) // world_size()) - rows  # whole numbers: every rank must count alike

    def before_step(self) -> None:
        """Add the gradients up over the ranks."""
        if self._shared:
            self._grads.join()

    # ---- an epoch's end

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
                warnings.warn(
                    f"{metric.name} is of rank 0's rows alone: a {type(metric).__name__} cannot be put together",
                    DataWarning,
                    stacklevel=2,
                )


def _denominator(loss_func: Any, yb: Any) -> Tensor:
    """Return the denominator of a batch's mean loss: the loss's own, else the rows."""
    inner = loss_func if hasattr(loss_func, "denominator") else getattr(loss_func, "loss", None)
    if hasattr(inner, "denominator"):
        return inner.denominator(*(y.as_subclass(Tensor) for y in yb)).detach()
    return torch.tensor(float(find_bs(yb)))
