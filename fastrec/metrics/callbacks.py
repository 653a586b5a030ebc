"""Metrics for a fastai ``Learner``: they collect an epoch's predictions and score them once, at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from fastai.data.transforms import get_c
from fastai.learner import Metric
from fastai.losses import CrossEntropyLossFlat
from torch import Tensor

from fastrec._core.ranks import all_rows
from fastrec.errors import DataError
from fastrec.metrics import registry
from fastrec.metrics.ranking import check_integers, cut, flat_tensor

__all__ = ["AUC", "MAP", "MRR", "NDCG", "Recall", "fastai_metric"]


class RegistryMetric(Metric):
    """Metric that scores an epoch's predictions and targets, collected on the host; see :func:`fastai_metric`."""

    _widest: ClassVar[int | None] = None  # columns of predictions; None: any number
    _takes: ClassVar[str] = "Metrics take [b] or [b, k]"

    def __init__(self, metric: registry.Metric, groups: Any = None, weight: Any = None) -> None:
        if metric.needs_groups and groups is None:
            raise DataError("no groups were given", column="groups", remedy="Pass the list of every validation row")
        self.metric, self.groups, self.weight = metric, groups, weight
        self.needs_groups, self.weighted = groups is not None, weight is not None
        self.reset()

    @property
    def name(self) -> str:
        """Column title in fastai's table, such as ``ndcg@10``."""
        return self.metric.name

    def check(self, learn: Any) -> None:
        """Refuse early what could not be scored at the end of an epoch; ``RecLearner.fit`` calls it before training."""
        loss = getattr(learn.loss_func, "loss", learn.loss_func)  # TabM wraps the given loss
        classes = get_c(learn.dls)
        several = isinstance(loss, CrossEntropyLossFlat) and isinstance(classes, int) and classes > 2
        if several and "multiclass" not in self.metric.tasks:
            remedy = "Take a metric of several classes, such as fastai's accuracy or RocAuc, or a target of two"
            raise DataError(f"{self.name} takes one score a row, but there are {classes} classes", remedy=remedy)
        if self.needs_groups and self.groups is not None and not callable(self.groups) and len(learn.dls.loaders) > 1:
            groups, valid = flat_tensor(self.groups, "groups"), learn.dls.valid
            check_integers(groups)
            rows = getattr(valid, "n", None)
            if rows is not None and not getattr(valid, "drop_last", False):
                self._check_length(groups, rows)

    def _check_length(self, groups: Tensor, rows: int) -> None:
        if len(groups) != rows:
            problem = f"{self.name} has {len(groups)} groups for {rows} validated rows"
            remedy = "Give one group per row of the loader that is validated, in its order"
            raise DataError(problem, column="groups", remedy=remedy)

    def reset(self) -> None:
        """Drop what was collected in this epoch."""
        self._preds: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._epoch_groups: Any = None
        self._epoch_weight: Any = None

    def accumulate(self, learn: Any) -> None:
        """Store one batch: ``learn.pred`` is ``[b]`` or ``[b, k]``, its first target ``[b]`` or ``[b, t]``."""
        if self.needs_groups and self._epoch_groups is None:
            self._epoch_groups = self._of_rows(learn, "groups")
        if self.weighted and self._epoch_weight is None:
            self._epoch_weight = self._of_rows(learn, "weight")
        target = learn.yb[0].detach().as_subclass(Tensor).cpu()
        # fastai's regression targets are columns.
        target = target[:, 0] if target.ndim == 2 and target.shape[1] == 1 else target
        self._preds.append(self._activated(learn, target))
        self._targets.append(target)

    def _activated(self, learn: Any, target: Tensor) -> Tensor:
        pred, most = learn.pred, self._widest
        if not isinstance(pred, Tensor) or pred.ndim not in (1, 2) or (most and pred.shape[1:] > (most,)):
            shape = tuple(pred.shape) if isinstance(pred, Tensor) else type(pred).__name__
            raise DataError(f"predictions are {shape}", remedy=self._takes)
        if most and target.ndim == 2:
            remedy = "Use fastai_metric('auc'), the mean over several"
            raise DataError(f"{self.name} takes one target, and there are {target.shape[1]}", remedy=remedy)
        # In float64: half-precision logits then tie less, and a sigmoid does not round distinct ones to 1.
        p = pred.detach().as_subclass(Tensor).cpu().double()
        if self.metric.wants == "scores" and (p.ndim == 1 or p.shape[1] == 1 or target.ndim == 2):
            return p
        if self.metric.wants == "scores" and p.shape[1] == 2:
            return p[:, 1] - p[:, 0]
        return torch.as_tensor(getattr(learn.loss_func, "activation", lambda x: x)(p)).as_subclass(Tensor)

    def join_ranks(self) -> None:
        """Join the predictions and targets of all ranks, in their order; every rank has to call it."""
        if not self._preds:
            return
        joined = all_rows([torch.cat(self._preds), torch.cat(self._targets)], f"putting {self.name} together")
        self._preds, self._targets = [joined[0]], [joined[1]]

    def _of_rows(self, learn: Any, name: str) -> Any:
        given = getattr(self, name)
        if given is None:
            raise DataError(f"this metric was loaded without its {name}", remedy=f"Set its {name} attribute before use")
        if callable(given):
            return given(learn)
        if getattr(learn, "training", False):
            remedy = f"Pass a function of the learner as {name}, or leave train_metrics off"
            raise DataError(f"{self.name} was asked for on training batches, whose rows are shuffled", remedy=remedy)
        return given

    @property
    def value(self) -> float | None:
        """The metric over the epoch so far; None before any batch."""
        if not self._preds:
            return None
        preds, targets, groups = torch.cat(self._preds), torch.cat(self._targets), None
        if self.needs_groups:
            groups = flat_tensor(self._epoch_groups, "groups").cpu()
            self._check_length(groups, len(preds))
        return self.score(preds, targets, groups)

    def score(self, preds: Tensor, targets: Tensor, groups: Tensor | None) -> float:
        """Score one epoch, all ``[n]``."""
        return self.metric(targets, preds, groups=groups, weight=self._epoch_weight)

    def __getstate__(self) -> dict[str, Any]:
        # An exported learner has no validation rows, so their groups, weights and predictions are not saved.
        dropped = {"groups": None, "weight": None, "_preds": [], "_targets": []}
        return {**self.__dict__, **dropped, "_epoch_groups": None, "_epoch_weight": None}


class _OneScore(RegistryMetric):
    """A metric of one score a row, which may be missing: it ranks last."""

    _widest, _takes = 2, "Ranking metrics take [b], [b, 1] or two-class [b, 2]"

    def score(self, preds: Tensor, targets: Tensor, groups: Tensor | None) -> float:
        """Score one epoch; the metric itself would refuse missing scores."""
        return self.metric.function(targets, flat_tensor(preds, "predictions"), groups=groups, weight=None)


class _ListMetric(_OneScore):
    """A metric of lists for ``Learner(metrics=…)``, by the function of the same name; a missing score ranks last.

    ``groups``: each validation row's list, integers ``[n]`` in the loader's order, or a function learner → groups. They
    are not pickled: set ``groups`` again on a loaded metric before validating with it. ``options`` are passed to the
    function.
    """

    base_name: ClassVar[str]

    def __init__(self, groups: Any = None, k: int | None = None, **options: Any) -> None:
        cut(k)  # a bad k should fail here, not after the first epoch
        self.k, self.options, name = k, options, self.base_name if k is None else f"{self.base_name}@{k}"
        metric = registry.get_metric(f"{self.base_name}@1")
        super().__init__(replace(metric, name=name, function=partial(metric.function, k=k, **options)), groups)
        pair = torch.tensor([1.0, 0.0])
        self.score(pair, pair, torch.zeros(2, dtype=torch.int64))  # and so should a bad option


class MRR(_ListMetric):
    """Mean reciprocal rank for ``Learner(metrics=…)``: :func:`fastrec.metrics.mrr`; ties count against the model."""

    base_name = "mrr"


class NDCG(_ListMetric):
    """Normalised discounted cumulative gain for ``Learner(metrics=…)``: :func:`fastrec.metrics.ndcg`."""

    base_name = "ndcg"

    def __init__(self, groups: Any | Callable[[Any], Any], k: int | None = 10, **options: Any) -> None:
        super().__init__(groups, k, **options)


class Recall(NDCG):
    """Share of the relevant candidates among the first k: :func:`fastrec.metrics.recall`."""

    base_name = "recall"


class MAP(_ListMetric):
    """Mean average precision for ``Learner(metrics=…)``: :func:`fastrec.metrics.mean_average_precision`."""

    base_name = "map"


class AUC(_OneScore):
    """Area under the ROC curve over all validated rows for ``Learner(metrics=…)``."""

    def __init__(self) -> None:
        super().__init__(replace(registry.get_metric("auc"), tasks=("binary",)))


def fastai_metric(
    name: str | registry.Metric, groups: Any | Callable[[Any], Any] = None, *, weight: Any | Callable[[Any], Any] = None
) -> RegistryMetric:
    """Make a metric of the registry for ``Learner(metrics=…)``, scored once at the end of an epoch.

    The learner's outputs go through its loss's activation (as in ``get_preds``), in float64, to give the metric
    probabilities or classes if it needs them. A metric of scores takes one or two columns unchanged.

    Args:
        name: as for :func:`fastrec.metrics.get_metric`.
        groups: ``[n]`` integers, the list of each validation row in the loader's order, or a function learner → groups.
            They are not pickled, and neither is the weight.
        weight: ``[n]`` weights of the validation rows, or a function learner → weights; None: equal weights.
    """
    return RegistryMetric(registry.get_metric(name), groups, weight)
