"""``Budget``: a run's time limit, shared among its models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from fastrec._core import limits
from fastrec._core.memory import held, shown_bytes
from fastrec.errors import DataError, OutOfTimeError

if TYPE_CHECKING:
    from fastrec.estimators import Estimator
    from fastrec.validate import Rows


class Budget:
    """A run's time limit.

    Models are fitted one after the other in the order of the recipe, on all cores, each on all folds. A model gets a
    share of the remaining time, the first ones more than the last; unused time goes to later models. A model that
    cannot finish all folds in its share is left out, and ``left_out`` has the reason.

    Args:
        minutes: wall time.
        began: since when, by the clock; None: from now on.
        clock: tells the seconds.
        memory: bytes that the process may hold; a model whose estimated peak is above what is left is left out. None:
            no limit.

    Attributes:
        left_out: model → why it is not in the run.
        threads: how many torch has; each step, and each model, has those of them that have a free core.
    """

    def __init__(
        self,
        minutes: float,
        *,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory: int | None = None,
    ) -> None:
        self.minutes, self.clock, self.memory = minutes, clock, memory
        self.began = clock() if began is None else began
        self.left_out: dict[str, str] = {}
        self.threads = torch.get_num_threads()
        self._end = limits.END_SHARE * minutes * 60
        self._refits: dict[str, float] = {}  # model → what is set aside for its model of all rows

    @property
    def left(self) -> float:
        """Seconds left for models; negative past the limit."""
        return self.began + self.minutes * 60 - self._end - sum(self._refits.values()) - self.clock()

    @property
    def late(self) -> bool:
        """Whether a stack is to end: files and report take a fifth of what is set aside for the end."""
        return self.clock() > self.began + self.minutes * 60 - self._end / 5

    def keep_for_refit(self, model: Estimator, seconds: float) -> None:
        """Set aside what a model of all rows will take, so that no other model is given it."""
        self._refits[model.name] = max(seconds, limits.LEAST_FIT_SECONDS)

    def refit(self, models: Sequence[Estimator]) -> float:
        """Return the seconds that the first of the remaining models may learn from all rows.

        One that keeps a limit has what was set aside for it, though another was late; others need what they took in the
        folds.
        """
        model = models[0]
        took = self._refits.get(model.name, 0.0)
        seconds = took + self.share(models)
        self._refits.pop(model.name, None)
        seconds = max(seconds, took) if model.keeps_time else seconds
        if seconds < max(took, limits.LEAST_FIT_SECONDS):
            problem = f"{model.name}: all rows would take {took:.0f} s, and {max(seconds, 0):.0f} s are left for it"
            raise OutOfTimeError(problem)
        return seconds

    def keep_for_end(self, rows: int, outputs: int, models: int, metric: float = 0.0) -> None:
        """Set aside what stacking and writing will take, by rows, numbers in a prediction, and base models.

        ``metric``: seconds that the metric takes now of as many rows as a stack learns from: on a machine with other
        work it tells what the end will take better than the rows do.
        """
        from fastrec.stacking.stack import rows_of_a_blend  # imports all estimators

        whole = self.minutes * 60
        learned = min(rows, rows_of_a_blend(outputs))
        seconds = limits.END_SECONDS_PER_MILLION * learned + limits.END_SECONDS_PER_FURTHER_MILLION * (rows - learned)
        stack = seconds * outputs * models / 1e6
        stack = max(stack, metric * (limits.END_METRICS + limits.END_METRICS_OF_A_MODEL * models))
        wanted = max(limits.END_SHARE * whole, 3.0, stack)
        self._end = min(wanted, 0.3 * whole)

    def share(self, left_models: Sequence[Estimator]) -> float:
        """Return the seconds for all folds of the first of the remaining models.

        The second is to get two thirds of it, the third half, the fourth two fifths. A strong model that has learned
        all it can is worth more than several that have not.
        """
        return self.left / sum(2 / (2 + i) for i in range(max(len(left_models), 1)))

    def begin(
        self,
        model: Estimator,
        *,
        fold: int,
        folds: int,
        ends: float,
        needed: bool,
        beside: float = 0.0,
        before: float = 0.0,
    ) -> float | None:
        """Return the seconds that the fit of the next ``fold`` of ``folds`` may take; None: the model keeps no limit.

        Its share ends at ``ends``, by the clock. If nothing else has been fitted yet it is ``needed``, whatever it
        takes. The fold before had ``before`` seconds, and took ``beside`` seconds more, to make its rows, to predict
        and to keep. The more folds are done, the more of the other models' time may go into the rest: without it they
        were for nothing.
        """
        left = ends - self.clock()
        each = left / (folds - fold)
        if each < limits.LEAST_FIT_SECONDS and fold == 0 and not needed:
            raise OutOfTimeError(f"{model.name}: {max(left, 0):.0f} s are left for {folds} folds")
        more = max(self.left, 0.0) * fold / folds
        # What is not learning may exceed the share by a quarter.
        if model.keeps_time and not needed and beside * (folds - fold) > max(1.25 * left, more):
            raise OutOfTimeError(
                f"{model.name}: a fold takes {beside:.0f} s beside its learning, and {max(left, 0):.0f} s are left for "
                f"{folds - fold} more"
            )
        own = min(each * limits.FIT_SHARE, each - beside)
        as_before = min(before, more / (folds - fold) - beside)  # the folds' models are to have learned alike
        return max(own, as_before, limits.LEAST_FIT_SECONDS) if model.keeps_time else None

    def check_memory(self, model: Estimator, rows: Rows) -> None:
        """Refuse a model whose estimated peak is above the memory that is left."""
        if self.memory is None or not model.learns:
            return
        while hasattr(inner := getattr(model, "model", None), "keeps_time"):  # a wrapper's peak is that of its model
            model = inner
        kind = next((k.__name__ for k in type(model).__mro__ if k.__name__ in limits.PEAK_BYTES), "NetModel")
        cell, output, least = limits.PEAK_BYTES[kind]
        output *= getattr(getattr(model, "estimator", None), "n_estimators", 1)  # of scikit-learn's forests
        # The rows of a fold are a copy of 8 bytes a cell.
        need = least + len(rows) * ((8 + cell) * len(rows.names) + output * rows.n_scores)
        if kind == "LGBMModel":  # two sums for each bin of each column, for every leaf
            params = {"num_leaves": 31, "max_bin": 255, **model.params}
            need += 16 * params["num_leaves"] * len(rows.names) * min(params["max_bin"], len(rows))
        if need > (left := max(self.memory - held(), 0)):
            told = f"{shown_bytes(need)} of memory, and {shown_bytes(left)} of {shown_bytes(self.memory)} are left"
            raise DataError(f"{model.name}: it would take about {told}", remedy="Give more memory, or fewer rows")

    def rows_in_time(self, rows: Rows, model: Estimator) -> int:
        """Return how many rows can be predicted for every column in half of the remaining time, 10,000 at most.

        It is 0 where fewer than some hundred can.
        """
        part = rows.take(torch.arange(min(len(rows), 2_000)))
        began = self.clock()
        model.predict(part)
        each = (self.clock() - began) / max(len(part), 1)
        seconds = (self.began + self.minutes * 60 - self.clock()) / 2
        fit = int(seconds / max(each * len(rows.names), 1e-12))
        # With fewer than 500 rows a permutation says nothing.
        return min(fit, 10_000) if fit >= 500 else 0

    def check(self, model: Estimator, *, took: float, fold: int, folds: int, needed: bool) -> None:
        """Stop a model that keeps no limit of its own and would not be done in time."""
        more = took * (folds - fold - 1)
        if not model.keeps_time and not needed and more > self.left:
            raise OutOfTimeError(f"{model.name}: a fold takes {took:.0f} s, and {max(self.left, 0):.0f} s are left")
