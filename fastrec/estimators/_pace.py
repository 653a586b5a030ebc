"""``Deadline``: how a fit keeps a limit of time: by a higher learning rate, fewer rounds, and a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastrec._core import limits
from fastrec.errors import OutOfTimeError


@dataclass
class Deadline:
    """The time that a fit, or one booster of it, may take.

    Args:
        seconds: how long, from now on.
        clock: what tells the time in seconds.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _first: float | None = field(default=None, init=False)
    _is_judged: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.left == 0

    @property
    def left(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(self.seconds - (self.clock() - self.began), 0.0)

    def share(self, parts: int) -> Deadline:
        """Return the time of the next of so many parts that are left."""
        return Deadline(self.left / parts, self.clock)

    def faster(self, done: int, wanted: int) -> float:
        """Return the factor by which to raise the learning rate after some rounds; 1: it stays.

        Args:
            done: rounds that are done; the first is not measured, it prepares.
            wanted: rounds that training would need at the rate as it is.
        """
        if self._first is None:
            self._first = self.clock()
            return 1.0
        took = self.clock() - self._first
        if self._is_judged or (done < limits.JUDGED_ROUNDS and took < 0.1 * self.seconds):
            return 1.0
        self._is_judged = True
        possible = self.left / max(took / (done - 1), 1e-9)
        return min(max(wanted / max(possible, 1.0), 1.0), limits.FASTEST_TREES)

    def after_round(self, done: int, wanted: int, rate: float, set_rate: Callable[[float], Any]) -> bool:
        """Raise the rate of boosting if needed, and return whether to stop.

        Args:
            done: rounds that are done.
            wanted: how many there are to be at most.
            rate: the learning rate as it was asked for.
            set_rate: gives the booster another rate.
        """
        times = self.faster(done, min(limits.BOOSTED_ROUNDS, wanted))
        if times > 1:
            set_rate(rate * times)
        return self.is_over


def catboost_in_time(
    deadline: Deadline, library: Any, params: Mapping[str, Any], pool: Any, rounds: int
) -> dict[str, Any]:
    """Return CatBoost's parameters for as many rounds as fit into the time, at the rate that so few need.

    Its rate cannot change while it trains: a few rounds are timed beforehand.

    Args:
        rounds: how many there are to be at most.
    """

    def seconds(few: int) -> float:
        began = deadline.clock()
        library.CatBoost({**params, "iterations": few}).fit(pool)
        return deadline.clock() - began

    first = each = seconds(1)
    beside = 0.0
    if first > deadline.left:
        raise OutOfTimeError(f"CatBoost takes {first:.1f} s for a round, and {deadline.left:.1f} s are left")
    if limits.JUDGED_ROUNDS * first <= deadline.left:
        each = max(seconds(limits.JUDGED_ROUNDS) - first, 1e-4) / (limits.JUDGED_ROUNDS - 1)
        beside = max(first - each, 0.0)  # preparation before the first round, which comes again
    # 85 % of the time is planned for, as rounds get slower
    possible = max(int(0.85 * (deadline.left - beside) / max(each, 1e-4)), 1)
    faster = min(max(min(limits.CATBOOST_ROUNDS, rounds) / possible, 1.0), limits.FASTEST_TREES)
    return {**params, "iterations": min(rounds, possible), "learning_rate": params["learning_rate"] * faster}


def seconds_for(n: int, fit: Callable[[int], Any], deadline: Deadline) -> float:
    """Estimate the seconds of a fit of all rows from fits of few rows, then of twice as many, and so on.

    Args:
        n: how many rows there are.
        fit: learns from so many rows.
        deadline: the time; a twentieth of it may go into the estimate.

    Returns:
        Seconds; 0 if the rows are too few to judge by.
    """
    sizes, times = [500], []
    while sizes[-1] <= n // 2 and sum(times) <= 0.05 * deadline.seconds:
        began = deadline.clock()
        fit(sizes[-1])
        times.append(max(deadline.clock() - began, 1e-9))
        sizes.append(2 * sizes[-1])
    if not times:
        return 0.0
    far = min(len(times) - 1, 2)  # the growth over two doublings: over one it drowns in the noise
    power = math.log2(times[-1] / times[-1 - far]) / far if far else 1.0
    return times[-1] * (n / sizes[len(times) - 1]) ** min(max(power, 1.0), 3.0)  # cubic at most, against outliers
