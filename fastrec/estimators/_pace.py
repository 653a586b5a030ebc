"""``Pace``: how a fit keeps a limit of time: a higher rate where the rounds asked for would not fit, and a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastrec.errors import OutOfTimeError

WANTED = 400  # rounds at the default rate after which most tables have gained what they gain
_MEASURED = 8  # rounds by which the time of one is judged
_JUDGED_BY = 0.1  # of the time: where the rounds take more than it, fewer of them must do
_FIRST_ROWS = 500  # by which it is judged how long all rows take; twice as many then, and so on
_TRIED = 0.05  # of the time may be used to judge it
_STEEPEST = 3.0  # the time grows with this power of the rows at most
_CATBOOST_WANTED = 1000  # the same of CatBoost, whose trees ask one question a level
_CATBOOST_SHARE = 0.85  # of the time is planned for, as rounds get slower
_FASTEST = 6.0  # times the default rate, at most: beyond, trees overshoot


@dataclass
class Pace:
    """The time that one booster may take.

    Args:
        seconds: how long, from now on.
        began: when it began, by the clock; None: now.
        clock: what tells the time in seconds.
    """

    seconds: float
    began: float | None = None
    clock: Callable[[], float] = time.monotonic
    _first: float | None = field(default=None, init=False)
    _is_judged: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.began = self.clock() if self.began is None else self.began

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.left == 0

    @property
    def left(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(self.seconds - (self.clock() - self.began), 0.0)

    def faster(self, done: int, wanted: int) -> float:
        """By how much the learning rate is to be raised after some rounds; 1: it stays.

        Args:
            done: rounds that are done; the first is not measured, it prepares.
            wanted: rounds that training would need at the rate as it is.
        """
        if self._first is None:
            self._first = self.clock()
            return 1.0
        took = self.clock() - self._first
        if self._is_judged or (done < _MEASURED and took < _JUDGED_BY * self.seconds):
            return 1.0
        self._is_judged = True
        each = took / (done - 1)
        possible = self.left / max(each, 1e-9)
        return min(max(wanted / max(possible, 1.0), 1.0), _FASTEST)


class XGBPace:
    """What XGBoost is to do after each round; made into a callback by ``callback``."""

    def __init__(self, pace: Pace, rate: float, wanted: int) -> None:
        self.pace, self.rate, self.wanted = pace, rate, wanted

    def callback(self) -> Any:
        """The callback."""
        import xgboost as xgb

        outer = self

        class InTime(xgb.callback.TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                times = outer.pace.faster(epoch + 1, outer.wanted)
                if times > 1:
                    model.set_param({"eta": outer.rate * times})
                return outer.pace.is_over

        return InTime()


def lightgbm_pace(pace: Pace, rate: float, wanted: int, stop: type[Exception]) -> Any:
    """LightGBM's callback that keeps the time.

    Args:
        pace: the time.
        rate: the learning rate as it was asked for.
        wanted: see ``Pace.faster``.
        stop: LightGBM's ``EarlyStopException``.
    """

    def in_time(env: Any) -> None:
        times = pace.faster(env.iteration + 1, wanted)
        if times > 1:
            env.model.reset_parameter({"learning_rate": rate * times})
        if pace.is_over:
            raise stop(env.iteration, env.evaluation_result_list or [])

    in_time.order = 40  # type: ignore[attr-defined]  # after early stopping (30) and what records the curve (20)
    return in_time


class CatBoostPace:
    """CatBoost's callback that keeps the time."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def after_iteration(self, info: Any) -> bool:
        """Whether to go on."""
        return not self.pace.is_over


def catboost_in_time(pace: Pace, library: Any, params: Mapping[str, Any], pool: Any, rounds: int) -> dict[str, Any]:
    """CatBoost's parameters for as many rounds as fit into the time, judged by a few, at the rate that so few need.

    Args:
        pace: the time.
        library: CatBoost.
        params: its parameters.
        pool: the training rows.
        rounds: how many there are to be at most.

    Raises:
        OutOfTimeError: a round takes longer than what is left.
    """

    def seconds(few: int) -> float:
        began = pace.clock()
        library.CatBoost({**params, "iterations": few}).fit(pool)
        return pace.clock() - began

    first = each = seconds(1)
    beside = 0.0
    if first > pace.left:
        raise OutOfTimeError(f"CatBoost takes {first:.1f} s for a round, and {pace.left:.1f} s are left")
    if _MEASURED * first <= pace.left:
        each = max(seconds(_MEASURED) - first, 1e-4) / (_MEASURED - 1)
        beside = max(first - each, 0.0)  # what comes before the first round, again
    possible = max(int(_CATBOOST_SHARE * (pace.left - beside) / max(each, 1e-4)), 1)
    faster = min(max(min(_CATBOOST_WANTED, rounds) / possible, 1.0), _FASTEST)
    return {**params, "iterations": min(rounds, possible), "learning_rate": params["learning_rate"] * faster}


def seconds_for(n: int, fit: Callable[[int], Any], pace: Pace) -> float:
    """What a fit of all rows will take, judged by few rows, then by twice as many, while that takes little of the time.

    Args:
        n: how many rows there are.
        fit: learns from so many rows.
        pace: the time.

    Returns:
        Seconds; 0 where the rows are too few to judge by.
    """
    sizes, times = [_FIRST_ROWS], []
    while sizes[-1] <= n // 2 and sum(times) <= _TRIED * pace.seconds:
        began = pace.clock()
        fit(sizes[-1])
        times.append(max(pace.clock() - began, 1e-9))
        sizes.append(2 * sizes[-1])
    if not times:
        return 0.0
    far = min(len(times) - 1, 2)  # two doublings: one is told from the noise with more difficulty
    power = math.log2(times[-1] / times[-1 - far]) / far if far else 1.0
    return times[-1] * (n / sizes[len(times) - 1]) ** min(max(power, 1.0), _STEEPEST)
