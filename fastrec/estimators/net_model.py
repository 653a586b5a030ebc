"""``NetModel``: a net of ``fastrec.models`` for tables with a target: classification, regression or labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from fastai.callback.core import Callback
from fastai.data.block import RegressionBlock
from fastai.torch_core import set_seed
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.ranks import world_size
from fastrec.errors import DataError, check_whole
from fastrec.estimators._net_training import (
    Architecture,
    KeepBest,
    StopInTime,
    default_model,
    epochs_in_time,
    name_of,
    recipe_of,
    train_one_cycle,
    train_real_mlp,
)
from fastrec.estimators._on_ranks import fit_on_ranks, is_for_ranks, share_of
from fastrec.estimators._trained_net import STARTED, NetStart, TrainedNet, missing_flags, net_columns, outputs_of
from fastrec.estimators._tree_model import Deadline
from fastrec.estimators.base import (
    ClassWeight,
    Estimator,
    Trace,
    check_class_weight,
    check_classes,
    held_out,
    learnable,
    output_weight,
)
from fastrec.estimators.wrapped import long_tails
from fastrec.metrics import Metric, get_metric
from fastrec.models import RealMLP
from fastrec.tabular import LogTransform, TabularFrame
from fastrec.validate import Rows
from fastrec.validate.target import Task

_POSITIVE, _LEAST = ("poisson_deviance", "gamma_deviance"), 1e-3  # minimum of predictions as a share of the mean
OBJECTIVES = ("mae", "pinball", *_POSITIVE)


@dataclass(frozen=True)
class Head:
    """The outputs of a net for a task.

    Binary: one output, the logit of class 1. Multiclass: one per class. Multilabel: one logit per label. Regression:
    each target is standardised by ``mean`` and ``sd``, and predictions are clipped to the range of the training
    targets, as in RealMLP (arXiv 2407.04491, section 3). ``quantile``: the quantile to learn; None: the mean.
    """

    task: Task
    n_out: int
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    quantile: float | None = None

    @classmethod
    def fit(cls, data: Rows, objective: str | None = None) -> Head:
        """Fit the head to rows with labels; ``objective``: see ``NetModel``."""
        n_out = data.n_outputs if data.task in ("multiclass", "multilabel", "regression") else 1
        if data.task != "regression":
            return cls(data.task, n_out)
        y = _matrix(data)
        sd, mean = torch.std_mean(y, 0, correction=0)
        name, _, number = (objective or "").partition("@")
        low = y.amin(0) if name not in _POSITIVE else torch.maximum(y.amin(0), mean * _LEAST)
        moments = mean, torch.where(sd > 1e-12 * mean.abs(), sd, 1.0), low, y.amax(0)
        quantile = 0.5 if name == "mae" else float(number) if name == "pinball" else None
        return cls(data.task, n_out, *(tuple(m.tolist()) for m in moments), quantile)

    def targets(self, data: Rows) -> Tensor:
        """Return targets for the loss: float64 ``[n, 1]`` for binary and multiclass, else ``[n, n_out]``."""
        y = _matrix(data)
        if self.task != "regression":
            return y
        return (y - y.new_tensor(self.mean)) / y.new_tensor(self.sd)

    def loss(self, smoothing: float = 0.0) -> RowLoss:
        """Return the loss function of outputs, targets and weights."""
        return RowLoss(self.task, self.n_out, smoothing, self.quantile)

    def predict(self, outputs: Tensor) -> Tensor:
        """Turn outputs float64 ``[n, n_out]`` into predictions ``[n]`` or ``[n, k]``."""
        if self.task == "regression":
            values = outputs * outputs.new_tensor(self.sd) + outputs.new_tensor(self.mean)
            values = values.clamp(outputs.new_tensor(self.low), outputs.new_tensor(self.high))
            return values.squeeze(1) if self.n_out == 1 else values
        if self.task == "multiclass":
            return outputs.softmax(1)
        return outputs.sigmoid().squeeze(1) if self.task == "binary" else outputs.sigmoid()


class RowLoss(nn.Module):
    """The task's loss of each row times its weight, averaged over the rows.

    Binary and multilabel: cross-entropy of sigmoids (mean over the labels). Multiclass: cross-entropy of the softmax.
    Regression: squared error or, for a ``quantile``, pinball loss (mean over the targets). Targets are ``[b, m + 1]``;
    the last column is the row's weight, with mean 1 over all rows. During training only, label smoothing ε turns
    targets into ``y (1 - ε) + ε / classes`` (arXiv 1512.00567, section 7).
    """

    by_row = True  # each member of a TabM counts as a row
    weighted = True  # the last target is the row's weight

    def __init__(self, task: Task, n_out: int, smoothing: float = 0.0, quantile: float | None = None) -> None:
        super().__init__()
        if not 0 <= smoothing < 1:
            raise DataError(f"label smoothing of {smoothing}", remedy="Give a number from 0 up to, not including, 1")
        self.task, self.n_out, self.smoothing, self.quantile = task, n_out, smoothing, quantile
        self.combine = {"regression": "mean", "multiclass": "softmax"}.get(task, "sigmoid")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of outputs ``[b, n_out]``: a scalar."""
        outputs, targets = outputs.as_subclass(Tensor), targets.as_subclass(Tensor).to(outputs.dtype)
        return (self.each(outputs, targets[:, :-1], self.smoothing) * targets[:, -1]).mean()

    def each(self, outputs: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return each row's loss ``[b]``, for targets ``[b, m]``."""
        if self.task == "multiclass":
            return F.cross_entropy(outputs, y[:, 0].long(), reduction="none", label_smoothing=smoothing)
        if self.task == "regression":
            over = y - outputs
            # squared error leads to the mean
            if self.quantile is None:
                return over.square().mean(1)
            return torch.maximum(self.quantile * over, (self.quantile - 1) * over).mean(1)
        y = y * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)


def _matrix(data: Rows) -> Tensor:
    if data.label is None:
        raise DataError("rows came without labels", remedy="Give label=, or leave valid out")
    return (data.label if data.label.ndim == 2 else data.label[:, None]).double()


_TARGETS, _WEIGHT = "__target_{}__", "__weight__"  # names that no feature may have


class NetModel(Estimator):
    """A net for binary, multiclass, regression and multilabel tasks, with strong defaults for tables.

    It trains on seven eighths of its rows and is scored on the rest after every epoch; the best epoch's weights are
    kept. The hold-out consists of whole groups, of the last rows if there is an order, or of rows stratified by class.
    Missing-value flags are further inputs. The loss is the weighted mean of cross-entropy, or of the squared error of
    standardised targets.

    If an option is None, the model's default is used; these defaults bound the rows seen by ``max_rows``.

    Args:
        model: a class of ``fastrec.models``, its name, or a class of your own with the same interface; ``'auto'``: the
            best one on tables of this kind.
        options: the model's own options.
        epochs: the number of epochs, unless ``max_rows`` allows fewer.
        max_rows: limit epochs so that at most about this many rows are seen; at least one epoch.
        bs: rows in a batch.
        lr: the schedule's highest rate.
        wd: weight decay.
        patience: stop after this many epochs without improvement; None: with at most 10,000 rows and default epochs
            30 for a TabM and 20 for a ModernNCA, otherwise never.
        seeds: the number of nets to train, each with another hold-out; predictions are their mean.
        objective: for regression, ``'mae'`` learns the median and ``'pinball@0.9'`` that quantile.
            ``'poisson_deviance'`` and ``'gamma_deviance'`` keep predictions above 0. None: the mean (runs set it).
        stop_by: a metric (name or ``Metric``) that determines the best epoch; None: the task's loss.
        class_weight: ``'balanced'``, or class number → weight, multiplied with the rows' weights; probabilities shift
            accordingly. For binary and multiclass tasks; None: equal weights.
        smoothing: label smoothing. It blurs probabilities, so use it for accuracy and similar metrics.
        keep_best: hold rows out and keep the best epoch's weights. False: learn from all rows and keep the last
            weights; this pays if the newest rows matter more than early stopping.
        logs: use logarithms (above the lowest value) of numbers with a long tail: their furthest value is more than
            eight quartile distances from the median. This helps with counts that are mostly 0. A net with logs and one
            without make different errors, so a stack gains from both.
    """

    tasks = ("binary", "multiclass", "regression", "multilabel")
    keeps_time = True

    def __init__(
        self,
        name: str = "net",
        *,
        model: type[nn.Module] | str = "auto",
        options: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        max_rows: int | None = None,
        bs: int | None = None,
        lr: float | None = None,
        wd: float | None = None,
        patience: int | None = None,
        seeds: int = 1,
        objective: str | None = None,
        stop_by: str | Metric | None = None,
        class_weight: ClassWeight = None,
        smoothing: float = 0.0,
        keep_best: bool = True,
        logs: bool = False,
    ) -> None:
        check_whole(name, epochs=epochs, max_rows=max_rows, bs=bs, patience=patience, seeds=seeds)
        self.name, self.model, self.options = name, model, dict(options or {})
        self.epochs, self.max_rows, self.bs, self.lr, self.wd = epochs, max_rows, bs, lr, wd
        self.patience, self.seeds, self.smoothing = patience, seeds, smoothing
        self.class_weight = check_class_weight(class_weight, name=name)
        self.keep_best, self.logs, self.objective = keep_best, logs, objective
        self.start_anew()
        self.stop_by = None if stop_by is None else get_metric(stop_by)
        if model != "auto":
            self.model = Architecture(model, self.options).model
        self.forget()

    def suit(self, metric: str) -> None:
        """Take a regression metric as the objective, unless one was given."""
        if metric.partition("@")[0] in OBJECTIVES:
            self.objective = self.objective or metric

    def forget(self) -> None:
        """Drop the nets."""
        super().forget()
        self._nets: list[TrainedNet] = []
        self._head: Head | None = None
        self._deadline: Deadline | None = None  # deadline of the net that is being trained

    @classmethod
    def of_net(
        cls,
        name: str,
        architecture: Architecture,
        plan: dict[str, Any],
        net: nn.Module,
        frame: TabularFrame,
        task: Task,
    ) -> NetModel:
        """Make an estimator from a net that was trained elsewhere, on rows that ``frame`` has prepared.

        The net returns a logit of class 1, of each class or of each label; the frame's rows are not used.
        """
        estimator = cls(name, model=architecture.model, options=architecture.options)
        estimator._head = Head(task, plan["n_out"])
        estimator._nets = [TrainedNet(architecture, plan, net.eval(), frame, {})]
        return estimator

    @property
    def nets(self) -> list[nn.Module]:
        """The trained nets, one per seed."""
        return [trained.net for trained in self._nets]

    def start_from(self, other: Estimator) -> bool:
        """Begin with the weights of another's nets: embeddings by value, all else by name; half the epochs follow."""
        if not isinstance(other, NetModel) or not other._nets:
            return False
        self._starts = [NetStart(net) for net in other._nets]
        self.began_with = str(self._starts)
        return True

    def start_anew(self) -> None:
        """Let the next nets begin with initial weights."""
        self._starts: list[NetStart] = []
        self.began_with = ""  # identifies the first weights: cached results of a run depend on it

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Train the nets; the curves show the hold-out and ``valid``."""
        self.check_task(train)
        if is_for_ranks():
            fit_on_ranks(self, train, valid, seed=seed, device=device)
            return self
        self.forget()
        check_classes(train, self.class_weight, name=self.name)
        if self.class_weight is not None and train.task == "multilabel":  # a row has one weight for all labels
            raise DataError(f"{self.name} has no class weights for several labels", remedy="Leave out class_weight")
        train = learnable(train, name=self.name)
        valid = valid if valid is not None and len(valid) else None
        self._head = head = Head.fit(train, self.objective)
        curves: list[dict[str, float]] = []
        whole = None if self.time_limit is None else Deadline(self.time_limit)
        for i in range(self.seeds):
            # Unused time of a net is passed on to the next ones.
            self._deadline = None if whole is None else whole.share(self.seeds - i)
            records = self._train(train, valid, head, seed=seed + i * limits.BAG_SEEDS, device=device)
            curves += records if self.seeds == 1 else [{"seed": i, **record} for record in records]
        self._deadline, began = None, STARTED if self._starts else ""
        if self._starts and self._starts[0].model is not self._nets[0].architecture.model:
            began = f"trained anew: the net that was there is a {self._starts[0].model.__name__}"
        self.trace = Trace(curves=curves, began=began)
        return self

    def predict(self, data: Rows) -> Tensor:
        """Return the mean prediction of the nets, probabilities or values: float64 ``[n]`` or ``[n, k]`` on the CPU."""
        if self._head is None or not self._nets:
            raise self.not_fitted()
        if not len(data):
            return self._head.predict(torch.zeros((0, self._head.n_out), dtype=torch.float64))
        outputs = (outputs_of(n.net, n.frame_of(data), limits.ROWS_AT_ONCE) for n in self._nets)
        return torch.stack([self._head.predict(o) for o in outputs]).mean(0)

    def _row_weights(self, data: Rows) -> Tensor:
        """Return each row's weight in the loss, float64 ``[n]``, before scaling to a mean of 1."""
        if data.label is None:
            raise DataError(f"{self.name} was given rows without labels to report on", remedy="Give label=")
        weights = output_weight(data, data.label, self.class_weight)
        return torch.ones(len(data), dtype=torch.float64) if weights is None else weights

    def _train(
        self, data: Rows, valid: Rows | None, head: Head, *, seed: int, device: torch.device | None
    ) -> list[dict[str, float]]:
        set_seed(seed)
        weights = self._row_weights(data)
        held = held_out(data, 1 / 8, seed) if self.keep_best else torch.zeros(len(data), dtype=torch.bool)
        train = data.take(~held)
        asked = Architecture(default_model(data) if self.model == "auto" else self.model, self.options)
        recipe, flags = recipe_of(asked.model, data.task), missing_flags(train)
        if not bool(held.any()):  # nothing would stop long training
            recipe = replace(recipe, long_epochs=0)
        architecture = replace(asked, options={**recipe.options, **self.options})
        long = long_tails(train.table, train.conts) if self.logs else []
        n, m = len(train), head.targets(train).shape[1]
        names = [*(_TARGETS.format(i) for i in range(m)), _WEIGHT]
        # The weight is passed as a last target, so that it goes through the loader with its row.
        targets = torch.cat([head.targets(train), (weights[~held] / weights[~held].mean())[:, None]], 1)
        frame = TabularFrame(
            net_columns(train, flags, train.names, dict(zip(names, targets.unbind(1), strict=True))),
            procs=[*recipe.procs, *([LogTransform(long)] if long else [])],
            cat_names=list(train.cats),
            cont_names=[*train.conts, *flags],
            y_names=names,
            y_block=RegressionBlock(),
            y_dtype=torch.float32,
            device=device,
        )
        bs = min(self.bs or recipe.batch(n), n)
        # batch norm needs a variance, which a batch of one row lacks: that row comes in another epoch
        lone = n % bs == 1 and n > bs and share_of(bs) == bs
        dls = frame.dataloaders(bs=share_of(bs), seed=seed, device=device or torch.device("cpu"), drop_last=lone)
        start = self._starts[len(self._nets) % len(self._starts)] if self._starts else None
        start = None if start is None or start.model is not architecture.model else start
        trained = TrainedNet.begin(architecture, dls, frame, flags, head.n_out, start=start)
        net = trained.net
        out = data.take(held) if bool(held.any()) else None
        report = _Report(trained, head, self.stop_by)
        if out is not None:
            report.add("held_out", out, weights[held])
        if valid is not None:
            report.add("valid", valid, self._row_weights(valid))
        best = KeepBest(
            report,
            None if out is None else "held_out_loss" if self.stop_by is None else f"held_out_{self.stop_by.name}",
            greater_is_better=self.stop_by is not None and self.stop_by.greater_is_better,
            patience=self.patience or (recipe.patience if recipe.is_long(n) and self.epochs is None else None),
        )
        epochs = max(1, min(self.epochs or recipe.epochs_for(n), math.ceil((self.max_rows or recipe.max_rows) / n)))
        epochs = epochs if start is None else start.epochs(epochs)
        wd = recipe.wd if self.wd is None else self.wd
        rate = recipe.lr if self.lr is None else self.lr
        loss = head.loss(self.smoothing)
        cbs: list[Callback] = [best]
        if self._deadline is not None:
            epochs = epochs_in_time(self._deadline, dls, net, loss, report, epochs, name=self.name)
            cbs.append(StopInTime(self._deadline))
        if isinstance(net, RealMLP):
            train_real_mlp(dls, net, loss, epochs, lr=rate, wd=wd, cbs=cbs)
        else:
            bs = dls.train.bs * world_size()
            train_one_cycle(dls, net, loss, epochs, lr=rate, bs=bs, base_bs=recipe.base_bs, wd=wd, cbs=cbs)
        net.eval()
        self._nets.append(trained)
        return best.records

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except options and your own metric, which ``write`` saves."""
        given = {n: v for n, v in super().settings().items() if n != "options"}
        model = self.model if isinstance(self.model, str) else name_of(self.model)
        stop_by = None if self.stop_by is None or self.stop_by.is_own else self.stop_by.name
        return {**given, "model": model, "stop_by": stop_by}

    def write(self, folder: Path) -> dict[str, Any]:
        """Write a folder for each net of the bag (see ``TrainedNet.write``)."""
        if self._head is None or not self._nets:
            raise self.not_fitted()
        about = []
        for i, net in enumerate(self._nets):
            (folder / f"net_{i}").mkdir()
            about.append(net.write(folder / f"net_{i}"))
        own_metric = self.stop_by.to_state() if self.stop_by is not None and self.stop_by.is_own else None
        options = {"own_options": list(self.options), "own_metric": own_metric}
        return {"nets": about, "head": vars(self._head), **options}

    def read(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Restore what ``write`` wrote."""
        self._head = Head(**{n: tuple(v) if isinstance(v, list) else v for n, v in about["head"].items()})
        nets = enumerate(about["nets"])
        self._nets = [TrainedNet.read(folder / f"net_{i}", own, self._head.loss()) for i, own in nets]
        if about.get("own_metric") is not None:
            self.stop_by = Metric.from_state(about["own_metric"])
        self.options = {n: self._nets[0].architecture.options[n] for n in about["own_options"]}


class _Report:
    """Scorer of a net after an epoch: the loss on hold-out and other rows, and the metric if one is given."""

    def __init__(self, trained: TrainedNet, head: Head, metric: Metric | None) -> None:
        self.trained, self.head, self.metric, self.loss = trained, head, metric, head.loss()
        self.sets: dict[str, tuple[TabularFrame, Rows, Tensor, Tensor]] = {}

    def add(self, name: str, data: Rows, weights: Tensor) -> None:
        self.sets[name] = self.trained.frame_of(data), data, self.head.targets(data), weights

    def __call__(self, net: nn.Module) -> dict[str, float]:
        scores: dict[str, float] = {}
        for name, (frame, data, targets, weights) in self.sets.items():
            outputs = outputs_of(net, frame, limits.ROWS_AT_ONCE)
            scores[f"{name}_loss"] = float((self.loss.each(outputs, targets) * weights).sum() / weights.sum())
            if self.metric is not None:
                score = self.metric(data.label, self.head.predict(outputs), groups=data.groups, weight=data.weight)
                scores[f"{name}_{self.metric.name}"] = score
        return scores
