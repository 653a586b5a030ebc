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

    Models are fitted one after the other in the recipe's order, on all cores, each on all folds. A model gets a share
    of the remaining time, the first ones more than the last; unused time goes to later models. A model that cannot
    finish all folds in its share is left out, and ``left_out`` has the reason.

    Args:
        minutes: wall time.
        began: start, by the clock; None: now.
        clock: returns seconds.
        memory: bytes that the process may use; a model whose estimated peak exceeds the remaining memory is left out.
            None: no limit.

    Attributes:
        left_out: model → why it is not in the run.
        threads: torch's threads; each step and each model uses those with a free core.
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
        self._refits: dict[str, float] = {}  # model → seconds reserved for its model of all rows

    @property
    def left(self) -> float:
        """Seconds left for models; negative past the limit."""
        return self.began + self.minutes * 60 - self._end - sum(self._refits.values()) - self.clock()

    @property
    def late(self) -> bool:
        """Whether a stack must end: files and report take a fifth of the time reserved for the end."""
        return self.clock() > self.began + self.minutes * 60 - self._end / 5

    def keep_for_refit(self, model: Estimator, seconds: float) -> None:
        """Reserve the time of a model of all rows, so that no other model gets it."""
        self._refits[model.name] = max(seconds, limits.LEAST_FIT_SECONDS)

    def refit(self, models: Sequence[Estimator]) -> float:
        """Return the seconds that the first of the remaining models may train on all rows.

        A model that keeps a limit has its reserved time, even if another was late; others need the time of their folds.
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
        """Reserve the time of stacking and writing, by rows, numbers in a prediction, and base models.

        ``metric``: measured seconds of the metric on as many rows as a stack is fitted on, which reflect a busy
        machine.
        """
        from fastrec.stacking.stack import rows_of_a_blend  # imports all estimators

        whole = self.minutes * 60
        learned = min(rows, rows_of_a_blend(outputs))
        seconds = limits.END_SECONDS_PER_MILLION * learned + limits.END_SECONDS_PER_FURTHER_MILLION * (rows - learned)
        stack = seconds * outputs * models / 1e6
        stack = max(stack, metric * (limits.END_METRICS + limits.END_METRICS_OF_A_MODEL * models))
        self._end = min(max(limits.END_SHARE * whole, 3.0, stack), 0.3 * whole)

    def share(self, left_models: Sequence[Estimator]) -> float:
        """Return the seconds for all folds of the first of the remaining models.

        The second gets two thirds of it, the third half, the fourth two fifths: a strong, fully trained model is better
        than several undertrained ones.
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

        Its share ends at ``ends``, by the clock. If nothing else has been fitted yet, it is ``needed`` and has no
        limit. The previous fold had ``before`` seconds, and took ``beside`` more to compute its rows, predict and
        store. The more folds are done, the more of other models' time the rest may use, as dropping the model would
        waste them.
        """
        left = ends - self.clock()
        each = left / (folds - fold)
        if each < limits.LEAST_FIT_SECONDS and fold == 0 and not needed:
            raise OutOfTimeError(f"{model.name}: {max(left, 0):.0f} s are left for {folds} folds")
        more = max(self.left, 0.0) * fold / folds
        # Work besides training may exceed the share by a quarter.
        if model.keeps_time and not needed and beside * (folds - fold) > max(1.25 * left, more):
            raise OutOfTimeError(
                f"{model.name}: a fold takes {beside:.0f} s beside its learning, and {max(left, 0):.0f} s are left for "
                f"{folds - fold} more"
            )
        own = min(each * limits.FIT_SHARE, each - beside)
        as_before = min(before, more / (folds - fold) - beside)  # the folds' models should train equally long
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
        """Return how many rows can be predicted for every column in half of the remaining time.

        They are ``PERMUTED_ROWS`` at most, and 0 instead of fewer than 500.
        """
        part = rows.take(torch.arange(min(len(rows), 2_000)))
        began = self.clock()
        model.predict(part)
        each = (self.clock() - began) / max(len(part), 1)
        seconds = (self.began + self.minutes * 60 - self.clock()) / 2
        fit = int(seconds / max(each * len(rows.names), 1e-12))
        # A permutation of fewer than 500 rows is noise.
        return min(fit, limits.PERMUTED_ROWS) if fit >= 500 else 0

    def check(self, model: Estimator, *, took: float, fold: int, folds: int, needed: bool) -> None:
        """Stop a model that keeps no limit and would not finish in time."""
        if not model.keeps_time and not needed and took * (folds - fold - 1) > self.left:
            raise OutOfTimeError(f"{model.name}: a fold takes {took:.0f} s, and {max(self.left, 0):.0f} s are left")
