"""``StopOnNaN``: stop training at a loss that is NaN or infinite, and name its cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import MixedPrecision
from torch import Tensor

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import TrainingError
from fastrec.table import ListBatch


class StopOnNaN(Callback):
    """Callback that stops training if the loss is NaN or infinite.

    The ``TrainingError`` names epoch, batch, loss, learning rate and the cause: a target or an input, by column and
    row, or a weight. On a CPU each batch is checked before its backward pass. On other devices losses are checked
    together, so that nothing waits: the error comes up to ``every`` batches later and names the first bad batch.

    Targets in memory are checked before training, since some losses ignore missing ones silently.

    Args:
        every: batches between two checks; None: 1 on a CPU, else 50.
        targets: whether to check targets; False for losses that ignore missing ones.
    """

    order, run_valid = MixedPrecision.order + 1, False

    def __init__(self, *, every: int | None = None, targets: bool = True) -> None:
        super().__init__()
        self.every, self.targets = every, targets
        self._on, self._seen, self._losses, self._sound = False, [], None, None

    def before_fit(self) -> None:
        """Check the targets."""
        learn = self.learn
        if learn.lock.locked():  # validate or get_preds, perhaps within a training
            return
        self._on, self._seen = not hasattr(learn, "lr_finder"), []
        if not self._on:  # a search of rates goes on until the loss explodes
            return
        device = next(learn.model.parameters()).device
        self._period = self.every or (1 if on_host(device) else limits.NAN_EVERY)
        self._losses = torch.zeros(self._period, device=device)
        self._sound = torch.ones(self._period, 2, dtype=torch.bool, device=device)  # inputs, targets
        y = getattr(learn.dls.train_ds, "y", None)
        self._known_targets = isinstance(y, Tensor) and len(y) > 0
        if self.targets and self._known_targets and (at := _first(y)) is not None:
            data = learn.dls.train_ds
            raise _entry_error("target", y[at].item(), _name(list(data.y_names), at), int(data.rows[at[0]]))

    def after_loss(self) -> None:
        """Check the loss, or store it for a later check."""
        learn = self.learn
        if not self._on or not len(learn.yb):
            return
        place, loss = len(self._seen), learn.loss.detach()
        loss = loss if loss.ndim == 0 else loss.float().sum()
        looks_at_y = self.targets and not self._known_targets
        if self._period == 1 and math.isfinite(loss.item()) and not looks_at_y:
            return
        self._losses[place] = loss
        self._seen.append((learn.epoch, learn.iter, float(learn.opt.hypers[-1]["lr"])))
        if self._period > 1:
            self._sound[place, 0] = _all_finite(learn.xb)
        if looks_at_y:
            self._sound[place, 1] = _all_finite(learn.yb)
        if len(self._seen) == self._period:
            self.check()

    def after_train(self) -> None:
        """Check the remaining losses."""
        if self._on:
            self.check()

    def after_fit(self) -> None:
        """Free the stored losses."""
        if not self.learn.lock.locked():
            self._on, self._seen, self._losses, self._sound = False, [], None, None

    def check(self) -> None:
        """Check the losses since the last check; on a device this waits for it."""
        seen, self._seen = self._seen, []
        if not self._on or not seen:
            return
        losses, sound = self._losses[: len(seen)].cpu(), self._sound[: len(seen)].cpu().clone()
        self._sound.fill_(True)
        bad = ~losses.isfinite()
        scaler = getattr(self.learn, "scaler", None)
        if scaler is not None and scaler.is_enabled() and not bad[-limits.NAN_PATIENCE :].all():
            bad[:] = False
        if self.targets:
            bad |= ~sound[:, 1]
        if bad.any():
            at = int(bad.int().argmax())
            raise self._error(*seen[at], losses[at].item(), *sound[at].tolist())

    def _error(self, epoch: int, batch: int, lr: float, loss: float, inputs: bool, targets: bool) -> TrainingError:
        """Say what was no finite number first; ``inputs`` and ``targets``: those of a batch on a device were finite."""
        learn, data = self.learn, self.learn.dls.train_ds
        where = f"batch {batch} of epoch {epoch} (learning rate {lr:.3g}, loss {loss:.4g})"
        if self._period > 1:
            where = f"{where}, the first of those since the last look"
            if inputs:
                return _loss_error(where) if targets else _entry_error("target", math.nan, where=where)
            x = getattr(data, "x_cont", None)
            at = _first(x) if isinstance(x, Tensor) else None
            known = () if at is None else (_name(list(data.cont_names), at), int(data.rows[at[0]]))
            return _entry_error("input", math.nan if at is None else x[at].item(), *known, where=where)
        names = [list(getattr(data, k, [])) for k in ("y_names", "cont_names", "vector_names")]
        given = ("target", learn.yb, names[:1]), ("input", learn.xb[1:], [names[1], *([n] for n in names[2])])
        for kind, tensors, columns in given:
            if (entry := _locate(tensors, columns)) is not None:
                value, column, row = entry
                number, place = self._row(row, where)
                return _entry_error(kind, value, column, number, where=place)
        weights = (*learn.model.named_parameters(), *learn.model.named_buffers())
        if (name := next((n for n, x in weights if _first(x.detach()) is not None), None)) is not None:
            problem = f"the weights {name} hold NaN or infinity in {where}; inputs and targets are finite"
            return TrainingError(problem, remedy="Load sound weights, or train again with a lower learning rate")
        return _loss_error(where, "inputs, targets and weights are finite")

    def _row(self, row: int, where: str) -> tuple[int | None, str]:
        """Return the row's number in the given frame, if known, and a description of the place."""
        where = f"row {row} of {where}"
        rows, data = getattr(self.learn.dl, "batch_rows", None), self.learn.dls.train_ds
        given = getattr(data, "rows", None)
        if rows is None or not isinstance(given, Tensor) or row >= len(rows):
            return None, where
        return int(given[int(rows[row])]), where


def _all_finite(tensors: Sequence[Any]) -> Tensor | bool:
    found: Tensor | bool = True
    for x in tensors:
        if isinstance(x, Tensor) and not isinstance(x, ListBatch) and x.is_floating_point():
            found = x.isfinite().all() & found
    return found


def _first(x: Tensor) -> tuple[int, ...] | None:
    if not x.is_floating_point() or bool(x.isfinite().all()):
        return None
    return tuple((~x.isfinite()).nonzero()[0].tolist())


def _locate(tensors: Sequence[Any], names: Sequence[Sequence[str]]) -> tuple[float, str | None, int] | None:
    """Return the first entry of some tensors that is not finite; ``names`` are those of their columns."""
    dense = [x for x in tensors if isinstance(x, Tensor) and not isinstance(x, ListBatch)]
    for i, x in enumerate(dense):
        if (at := _first(x)) is not None:
            own = names[i] if i < len(names) else []
            return x[at].item(), own[0] if len(own) == 1 else _name(own, at), at[0]
    return None


def _name(names: Sequence[str], at: tuple[int, ...]) -> str | None:
    column = at[1] if len(at) > 1 else 0
    return names[column] if column < len(names) else None


_REMEDIES = {
    "target": "Fill it or leave such rows out; StopOnNaN(targets=False) is for losses that pass over them",
    "input": "Add FillMissing to the procs, or mend the feature",
}


def _entry_error(
    kind: str, value: float, column: str | None = None, row: int | None = None, *, where: str = ""
) -> TrainingError:
    article, place = "an" if kind == "input" else "a", f" in {where}" if where else ""
    return TrainingError(f"{article} {kind} is {value:.4g}{place}", column=column, row=row, remedy=_REMEDIES[kind])


def _loss_error(where: str, sound: str = "its inputs and targets are finite") -> TrainingError:
    remedy = "Lower the learning rate, clip gradients (fastai's GradientClip), or scale inputs with Normalize"
    return TrainingError(f"the loss is no finite number in {where}; {sound}", remedy=remedy)
