"""Any metric of the registry for a fastai ``Learner``: ``metrics=[fastai_metric('logloss')]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.metrics.callbacks import _CollectingMetric
from fastrec.metrics.registry import Metric, get_metric


def fastai_metric(
    name: str | Metric, groups: Any | Callable[[Any], Any] = None, *, weight: Any | Callable[[Any], Any] = None
) -> RegistryMetric:
    """Make a metric of the registry for ``Learner(metrics=…)``, scored once at the end of an epoch.

    The learner's outputs go through its loss's activation (as in ``get_preds``), in float64, so that a metric of
    probabilities or classes gets such; a metric of scores takes one or two columns as they are.

    Args:
        name: as for :func:`fastrec.metrics.get_metric`.
        groups: ``[n]`` integers, the list of each validation row in the loader's order, or a function learner →
            groups. They are not pickled, nor is the weight.
        weight: ``[n]`` weights of the validation rows, or a function learner → weights; None for equal ones.

    Returns:
        The metric, whose column in fastai's table has the metric's name.

    Raises:
        DataError: an unknown name, or no groups for a metric that needs them.
    """
    return RegistryMetric(get_metric(name), groups, weight)


class RegistryMetric(_CollectingMetric):
    """What :func:`fastai_metric` makes."""

    def __init__(self, metric: Metric, groups: Any = None, weight: Any = None) -> None:
        if metric.needs_groups and groups is None:
            raise DataError(
                "no groups were given", column="groups", remedy="Pass the list number of every validation row"
            )
        self.metric, self.groups, self.weight, self.k = metric, groups, weight, None
        self.needs_groups, self.weighted = groups is not None, weight is not None
        self.reset()

    @property
    def name(self) -> str:
        """Column title in fastai's table, such as ``ndcg@10``."""
        return self.metric.name

    def check(self, learn: Any) -> None:
        """Refuse at once what could not be scored at the end of an epoch; ``RecLearner.fit`` asks before it begins."""
        if "multiclass" not in self.metric.tasks:
            super().check(learn)
        else:
            self._check_groups(learn)

    def reset(self) -> None:
        """Drop the epoch so far."""
        super().reset()
        self._epoch_weight: Any = None

    def accumulate(self, learn: Any) -> None:
        """Keep one batch: ``learn.pred`` is ``[b]`` or ``[b, k]``, its first target ``[b]`` or ``[b, t]``."""
        if self.needs_groups and self._epoch_groups is None:
            self._epoch_groups = self._of_rows(learn, "groups")
        if self.weighted and self._epoch_weight is None:
            self._epoch_weight = self._of_rows(learn, "weight")
        target = learn.yb[0].detach().as_subclass(Tensor).cpu()
        # fastai's regression targets are columns.
        target = target[:, 0] if target.ndim == 2 and target.shape[1] == 1 else target
        self._preds.append(self._activated(learn, target))
        self._targets.append(target)

    def score(self, preds: Tensor, targets: Tensor, groups: Tensor | None) -> float:
        """Score an epoch."""
        return self.metric(targets, preds, groups=groups, weight=self._epoch_weight)

    def _activated(self, learn: Any, target: Tensor) -> Tensor:
        pred = learn.pred
        if not isinstance(pred, Tensor) or pred.ndim not in (1, 2):
            shape = tuple(pred.shape) if isinstance(pred, Tensor) else type(pred).__name__
            raise DataError(f"predictions are {shape}", remedy="Metrics take [b] or [b, k]")
        # In float64, where a sigmoid keeps apart what it would make 1 in half precision.
        p = pred.detach().as_subclass(Tensor).cpu().double()
        if self.metric.wants == "scores" and (p.ndim == 1 or p.shape[1] == 1 or target.ndim == 2):
            return p
        if self.metric.wants == "scores" and p.shape[1] == 2:
            return p[:, 1] - p[:, 0]
        return torch.as_tensor(getattr(learn.loss_func, "activation", _same)(p)).as_subclass(Tensor)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "weight": None, "_epoch_weight": None}


def _same(p: Tensor) -> Tensor:
    return p
