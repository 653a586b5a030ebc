"""``BayesianRate``: successes over trials, drawn towards the common rate where trials are few."""

from __future__ import annotations

import math

import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors, name_of, number_of
from fastrec.features.keyed import sum_by_cell
from fastrec.table import Table


class BayesianRate(Fitted):
    """``(clicks + m·r) / (views + m)``: the posterior mean of a rate with a beta prior of mean ``r`` and weight ``m``.

    Clicks and views are columns that are known before the row (for instance of ``History``). The prior's mean is given,
    or learned: the training rows' total clicks over their total views. Where the clicks are the target's own kind a
    learned prior is one number that later rows have a share in; give it to rule that out.

    Args:
        clicks: a column of successes so far, or a generator of one.
        views: a column of trials so far, or a generator of one.
        weight: the prior's weight in trials, ``m``.
        prior: the prior's mean, ``r``; None: learned.
        name: the output's name; None: ``rate_{clicks}``.

    Source: Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.4.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import BayesianRate
        >>> df = pd.DataFrame({"clicks": [0, 5], "views": [0, 10]})
        >>> BayesianRate("clicks", "views", weight=10).fit_transform(df)["rate_clicks"].tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        clicks: str | Feature,
        views: str | Feature,
        *,
        weight: float = 20.0,
        prior: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.clicks, self.views, self.weight, self.prior, self.name = clicks, views, weight, prior, name
        if not weight > 0:
            raise DataError(f"BayesianRate: the prior's weight is {weight}", remedy="Use a number above 0")

    @property
    def sources(self) -> list[str | Feature]:
        return [self.clicks, self.views]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"rate_{name_of(self.clicks)}"]

    def _totals(self, table: Table) -> tuple[torch.Tensor, torch.Tensor]:
        clicks = number_of(table, name_of(self.clicks), wanted_by=self).nan_to_num(0, math.inf, -math.inf)
        return clicks, number_of(table, name_of(self.views), wanted_by=self).nan_to_num(0, math.inf, -math.inf)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        clicks, views = (sum_by_cell(v, one, cells, 1).squeeze(1) for v in self._totals(table))
        return {"clicks": clicks, "views": views}

    def merge(self, a: State, b: State) -> State:
        return {n: a[n] + b[n] for n in ("clicks", "views")}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        if self.prior is not None:
            return {"prior": torch.tensor(float(self.prior), dtype=torch.float64)}
        clicks, views = (state[n].sum() if keep is None else state[n][keep].sum() for n in ("clicks", "views"))
        return {"prior": torch.where(views > 0, clicks / views.clamp_min(1e-300), 0.0)}

    def prepare(self, state: State, table: Table) -> Tensors:
        return dict(zip(("clicks", "views"), self._totals(table), strict=True))

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        prior = fit["prior"].to(tensors["clicks"].device)
        return {self.outputs[0]: (tensors["clicks"] + self.weight * prior) / (tensors["views"] + self.weight)}
