"""``judge``: decide whether a candidate may replace a serving model, by predictions of the newest rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.messages import plain
from fastrec.errors import DataError
from fastrec.metrics import Interval, Metric, bootstrap_metric, get_metric, loss_of


@dataclass(frozen=True)
class Verdict:
    """The gate's decision."""

    promote: bool  #: whether the candidate may replace the serving model
    reasons: list[str]  #: for the decision
    metric: str
    serving: float  #: its metric on the newest rows
    candidate: float  #: its metric on the newest rows
    gain: Interval  #: paired improvement by the candidate (below 0: worse), with its 95 % interval
    margin: float  #: the loss that is allowed
    checks: dict[str, bool]  #: name of a check → whether it holds
    #: one row a period: ``period``, ``rows``, ``serving``, ``candidate``, ``gain``, ``low``, ``high``
    by_period: pd.DataFrame
    rows: int  #: number of rows (or lists) compared

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; None for values that could not be computed."""
        return plain({**vars(self), "gain": list(self.gain)})

    def said_gain(self) -> str:
        """Describe the candidate's improvement or loss, with the interval."""
        mean, low, high = self.gain
        if np.isnan(mean):
            return "not to be compared"
        return f"worse by {Interval(-mean, -high, -low)}" if mean < 0 else f"better by {self.gain}"

    def __str__(self) -> str:
        head = "promoted" if self.promote else "kept what serves"
        told = f"{self.metric} {self.candidate:.5f}, serving {self.serving:.5f}, {self.said_gain()}"
        return f"{head}: {told}; {'; '.join(self.reasons)}"


def judge(
    metric: str | Metric,
    label: Any,
    serving: Any,
    candidate: Any,
    *,
    periods: Any = None,
    groups: Any = None,
    clusters: Any = None,
    classes: tuple[Any, Any] | None = None,
    margin: float = 0.01,
    repeats: int = 500,
    seed: int = 0,
) -> Verdict:
    """Compare two models' predictions of rows that neither was trained on.

    The candidate passes if the 95 % interval of the paired difference lies above minus ``margin`` times the serving
    model's metric, and if all checks hold. The checks: enough rows, finite and non-constant predictions, and a better
    score than the same predictions shuffled across rows (with labels that are noise, the two models would tie).

    Args:
        metric: a name, or a ``Metric``.
        label: the truth, as the metric takes it.
        serving: the serving model's predictions.
        candidate: the candidate's predictions of the same rows.
        periods: ``[n]`` names or numbers of periods, in order; None: one. The metric is the mean over periods, weighted
            by rows (of lists, the mean of all): scores of different periods' models may differ in scale.
        groups: ``[n]`` integers, the list of each row, if the metric is of lists.
        clusters: ``[n]`` integers, the unit of resampling (users, sessions); None: lists, or rows.
        classes: the classes of the serving model and of the candidate, each by its thresholds, for a metric of classes;
            None: the metric derives them from the predictions. The check against chance uses the loss of the
            predictions.
        margin: allowed loss, as a share of the serving model's metric.
        repeats: resamples.
        seed: of the resamples.

    Raises:
        DataError: lengths differ, or the margin is below 0.
    """
    metric = get_metric(metric)
    if not margin >= 0:
        raise DataError(f"a margin of {margin}", remedy="Give 0 or a small share, such as 0.01")
    y, old, new = (torch.as_tensor(np.asarray(v)) for v in (label, serving, candidate))
    if not len(y) == len(old) == len(new):
        raise DataError(f"{len(y)} labels, {len(old)} and {len(new)} predictions", remedy="Give one for each row")
    lists = None if groups is None else torch.as_tensor(np.asarray(groups))
    units = len(y) if lists is None else len(torch.unique(lists))
    checks = {
        f"at least {limits.GATE_UNITS} {'rows' if lists is None else 'lists'}": units >= limits.GATE_UNITS,
        "its predictions are finite": bool(new.isfinite().all()),
        "its predictions are not all alike": len(y) > 0 and bool((new != new[0]).any()),
    }
    options = {"groups": lists, "clusters": clusters, "repeats": repeats, "seed": seed}
    if not all(checks.values()):
        nothing = Interval(float("nan"), float("nan"), float("nan"))
        return _verdict(metric, checks, nothing, {}, margin, pd.DataFrame(), units)
    # Each period of a candidate has its own model, the serving run has one: pooled, scores of several models would be
    # compared.
    parts = None if periods is None else np.unique(np.asarray(periods), return_inverse=True)[1]
    dealt = new[torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))]
    two = bool(((y == 0) | (y == 1)).all())
    loss = metric if classes is None else loss_of(metric, "binary" if two else "regression")
    chance = bootstrap_metric(loss, y, {"candidate": new, "dealt": dealt}, parts=parts, **options)
    over_chance = chance.difference("candidate", "dealt")
    if np.isnan(over_chance.mean):  # neither better than chance nor worse
        checks["its metric is defined"] = False
        return _verdict(metric, checks, over_chance, {}, margin, pd.DataFrame(), units)
    checks["its predictions say more than chance"] = (
        over_chance.low > 0 if loss.greater_is_better else over_chance.high < 0
    )
    if classes is not None:
        old, new = (torch.as_tensor(np.asarray(c)) for c in classes)
    made = bootstrap_metric(metric, y, {"serving": old, "candidate": new}, parts=parts, **options)
    by_period = _by_period(metric, y, old, new, periods, options)
    return _verdict(metric, checks, _gain(metric, made), made.values, margin, by_period, units)


def _gain(metric: Metric, made: Any) -> Interval:
    """Return candidate less serving, above 0 if the candidate is better."""
    found = made.difference("candidate", "serving")
    return found if metric.greater_is_better else Interval(-found.mean, -found.high, -found.low)


_FAILED = {
    "its predictions are finite": "some of its predictions are not finite",
    "its predictions are not all alike": "its predictions are all alike",
    "its metric is defined": "the metric is undefined on the newest rows, as where all are of one class",
    "its predictions say more than chance": "its predictions say no more than chance",
}


def _verdict(
    metric: Metric,
    checks: dict[str, bool],
    gain: Interval,
    values: Mapping[str, float],
    margin: float,
    by_period: pd.DataFrame,
    rows: int,
) -> Verdict:
    serving, candidate = (values.get(n, float("nan")) for n in ("serving", "candidate"))
    allowed = margin * abs(serving)
    reasons = [_FAILED.get(name, f"there are not {name}") for name, holds in checks.items() if not holds]
    if gain.low <= -allowed or (np.isnan(gain.low) and not reasons):
        reasons.append(f"it may be worse by more than {allowed:.5f} (the interval's low end is {gain.low:+.5f})")
    promote = not reasons
    if promote:
        reasons = ["it is better" if gain.low > 0 else f"it is no worse by more than {allowed:.5f}", "all checks hold"]
    return Verdict(promote, reasons, metric.name, serving, candidate, gain, margin, checks, by_period, rows)


def _by_period(
    metric: Metric, y: torch.Tensor, old: torch.Tensor, new: torch.Tensor, periods: Any, options: Mapping[str, Any]
) -> pd.DataFrame:
    names = np.asarray(["all"] * len(y) if periods is None else periods)
    rows = []
    for name in dict.fromkeys(names.tolist()):
        some = torch.from_numpy(names == name)
        given = {n: v for n in ("groups", "clusters") if (v := options[n]) is not None}
        own = {n: torch.as_tensor(np.asarray(v))[some] for n, v in given.items()}
        record: dict[str, Any] = {"period": str(name), "rows": int(some.sum())}
        try:
            made = bootstrap_metric(
                metric, y[some], {"serving": old[some], "candidate": new[some]},
                **{**options, "groups": None, "clusters": None, **own},
            )  # fmt: skip
            record |= {"serving": made.values["serving"], "candidate": made.values["candidate"]}
            record |= dict(zip(("gain", "low", "high"), _gain(metric, made), strict=True))
        except DataError:  # labels of one class
            record |= dict.fromkeys(("serving", "candidate", "gain", "low", "high"), float("nan"))
        rows.append(record)
    return pd.DataFrame(rows)
