"""``CentredModel``: an estimator that is not asked to explain what all rows of a day share."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch

from fastrec.errors import DataError
from fastrec.estimators.base import Estimator, Wrapper
from fastrec.validate import Rows


class CentredModel(Wrapper):
    """An estimator that learns labels less a share of what the labels of one day have in common.

    For rows of many stores, series or users on the same days. An error that all rows of a day share (the weather, a
    strike) cannot be predicted for later days, and a model would explain it by chance. Each training label loses
    ``share`` of its day's mean label and gains the same share of the mean of all labels. Effects of a day that features
    tell (a weekday, a promotion) are lost too: use it inside ``OffsetModel``, whose offset has them. Rows without a
    value of the column are a day of their own.

    Args:
        model: what learns; its name is this estimator's name, too. None: ``read`` brings it.
        column: says which rows have something in common, as a day does.
        share: of the mean of such rows, above 0, at most 1.

    Raises:
        DataError: ``share`` is out of its range, or the rows lack the column.
    """

    tasks = ("regression",)

    def __init__(self, model: Estimator | None, column: str, *, share: float = 0.7) -> None:
        if not 0 < share <= 1:
            raise DataError(f"no share of {share} is taken off", remedy="Give one above 0, at most 1")
        self.model, self.column, self.share = model, column, share
        self.forget()

    def fit(self, train: Rows, valid: Rows | None = None, *, seed: int = 0, device: torch.device | None = None) -> Self:
        """Learn from centred labels; ``valid`` is reported on as it is."""
        self.check_task(train)
        if train.label is None:
            raise DataError(f"{self.name} was given rows without labels to learn from", remedy="Give label=")
        if self.model is None:
            raise self.not_fitted()
        self.forget()
        self.model.fit(replace(train, label=self._centred(train)), valid, seed=seed, device=device)
        self.trace = self.model.trace
        return self

    def _centred(self, train: Rows) -> torch.Tensor:
        """Take the share of their day's weighted mean off the labels; rows of weight 0 do not count."""
        assert train.label is not None
        label = train.label.double().reshape(len(train), -1)  # several targets are centred one by one
        weight = torch.ones(len(train)) if train.weight is None else train.weight
        weight = weight.double()[:, None]
        days = train.table[self.column].coded().codes.cpu().long()
        n_days = int(days.max()) + 1 if len(days) else 1
        total = label.new_zeros(n_days, label.shape[1]).index_add_(0, days, weight * label)
        of_all = label.new_zeros(n_days, 1).index_add_(0, days, weight)
        mean = total.sum(0) / of_all.sum().clamp_min(1e-300)
        day = torch.where(of_all > 0, total / of_all.clamp_min(1e-300), mean)
        return (label - self.share * (day[days] - mean)).reshape(train.label.shape)
