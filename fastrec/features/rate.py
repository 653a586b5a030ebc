"""``BayesianRate``: successes over trials, drawn towards the common rate where trials are few."""

from __future__ import annotations

import math

import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import merge_moments, sum_by_cell
from fastrec.features._inputs import name_of, number_of
from fastrec.features.base import Cells, Col, Fitted, State, Tensors
from fastrec.table import Table


class BayesianRate(Fitted):
    """``(clicks + m·r) / (views + m)``: the posterior mean of a rate with a beta prior of mean ``r`` and weight ``m``.

    Clicks and views are known before the row (as from ``History``). The prior's mean is given, or the training rows'
    total clicks over total views: one number that later rows have a share in.

    A learned weight (empirical Bayes, method of moments) is ``m = 1/ρ - 1`` with
    ``ρ = (S/(r(1 - r)) - (k - 1)) / (N - Σn²/N - (k - 1))`` over the ``k`` rows with trials: trials ``n``, rates ``p``,
    ``N = Σn``, ``S = Σn(p - r)²``. It is at most ``N`` (rates that differ by chance alone), and 20 if nothing can be
    learned (no row has two trials, all rates are 0 or all 1, clicks exceed views overall).

    Args:
        clicks: a column of successes so far, or a generator of one.
        views: a column of trials so far, or a generator of one.
        weight: the prior's weight in trials, ``m``; None: learned.
        prior: the prior's mean, ``r``; None: learned. With a given one ``k`` and ``N`` replace ``k - 1`` and
            ``N - Σn²/N``.
        name: the output's name; None: ``rate_{clicks}``.

    Source: Gelman et al., "Bayesian Data Analysis", 3rd ed., section 2.4; Kleinman 1973, "Proportions with extraneous
        variance: single and independent samples", JASA 68, the moment estimator with weights ``n``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import BayesianRate
        >>> df = pd.DataFrame({"clicks": [0, 5], "views": [0, 10]})
        >>> BayesianRate("clicks", "views", weight=10).fit_transform(df)["rate_clicks"].tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        clicks: Col,
        views: Col,
        *,
        weight: float | None = 20.0,
        prior: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.clicks, self.views, self.weight, self.prior, self.name = clicks, views, weight, prior, name
        if weight is not None and not 0 < weight < math.inf:
            raise DataError(
                f"BayesianRate: the prior's weight is {weight}", remedy="Use a number above 0, None to learn it"
            )
        if prior is not None and not math.isfinite(prior):
            raise DataError(f"BayesianRate: the prior is {prior}", remedy="Use a rate, None to learn it")

    @property
    def sources(self) -> list[Col]:
        return [self.clicks, self.views]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"rate_{name_of(self.clicks)}"]

    def _numbers(self, table: Table) -> tuple[torch.Tensor, torch.Tensor]:
        clicks = number_of(table, name_of(self.clicks), wanted_by=self).nan_to_num(0, math.inf, -math.inf)
        return clicks, number_of(table, name_of(self.views), wanted_by=self).nan_to_num(0, math.inf, -math.inf)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        one = torch.zeros(len(table), dtype=torch.int64, device=table.device)

        def summed(values: torch.Tensor) -> torch.Tensor:
            return sum_by_cell(values, one, cells, 1).squeeze(1)

        clicks, views = self._numbers(table)
        finite = clicks.isfinite() & views.isfinite()
        clicks, views = torch.where(finite, clicks, 0), torch.where(finite, views, 0)
        state = {"clicks": summed(clicks), "views": summed(views)}
        if self.weight is None:
            tried = views > 0
            trials, rate = torch.where(tried, views, 0), torch.where(tried, clicks / torch.where(tried, views, 1), 0)
            total = summed(trials)
            mean = summed(trials * rate) / torch.where(total > 0, total, 1)
            own = mean[0 if cells is None else cells.codes]
            state |= {"rows": summed(tried.double()), "squares": summed(trials**2), "trials": total, "mean": mean}
            state["m2"] = summed(trials * (rate - own) ** 2)
        return state

    def merge(self, a: State, b: State) -> State:
        cells = max(len(a["clicks"]), len(b["clicks"]))
        a, b = ({n: torch.cat([v, v.new_zeros(cells - len(v))]) for n, v in s.items()} for s in (a, b))
        return _joined(a, b)

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        kept = state if keep is None else {n: v[keep.to(v.device)] for n, v in state.items()}
        total = {n: v.new_zeros(()) for n, v in kept.items()}
        for i in range(len(kept["clicks"])):
            total = _joined(total, {n: v[i] for n, v in kept.items()})
        clicks, views = total["clicks"], total["views"]
        prior = torch.where(views > 0, clicks / views.clamp_min(1e-300), 0.0)
        if self.prior is not None:
            prior = torch.full_like(prior, self.prior)
        if self.weight is not None:
            return {"prior": prior, "weight": torch.full_like(prior, self.weight)}
        return {"prior": prior, "weight": _learned_weight(total, prior, given=self.prior is not None)}

    def prepare(self, state: State, table: Table) -> Tensors:
        return dict(zip(("clicks", "views"), self._numbers(table), strict=True))

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        prior, weight = (fit[n].to(tensors["clicks"].device) for n in ("prior", "weight"))
        rate = (tensors["clicks"] + weight * prior) / (tensors["views"] + weight)
        return {self.outputs[0]: torch.where((weight == 0) & (tensors["views"] == 0), prior, rate)}


def _joined(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {n: a[n] + b[n] for n in a if n not in ("mean", "m2")}
    if "m2" in a:
        first, second = ((s["trials"], s["mean"], s["m2"]) for s in (a, b))
        _, made["mean"], made["m2"] = merge_moments(first, second)
    return made


def _learned_weight(total: dict[str, torch.Tensor], prior: torch.Tensor, *, given: bool) -> torch.Tensor:
    # The method of moments (see BayesianRate).
    rows, trials, m2 = total["rows"], total["trials"], total["m2"]
    around = torch.where(trials > 0, trials, 1)
    if given:
        spread, most, least = m2 + trials * (total["mean"] - prior) ** 2, trials, rows
    else:
        spread, most, least = m2, trials - total["squares"] / around, rows - 1
    single = prior * (1 - prior)
    known = (single > 0) & (most - least > 1e-9 * around)
    share = (spread / torch.where(known, single, 1) - least) / torch.where(known, most - least, 1)
    # A share of 1 / (N + 1) is a weight of N, the surest that N trials can make one.
    share = share.clamp(1 / (1 + around), torch.ones_like(share))
    return torch.where(known, 1 / share - 1, 20.0)
