"""Folds, and out-of-fold predictions: the only scores that anything is tuned on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from fastrec._core.threads import half_the_threads
from fastrec.errors import DataError
from fastrec.validate.lists import Lists


class Model(Protocol):
    """What ``CrossFit`` asks of what it trains; ``fastrec.estimators.Ranker`` says what each part means."""

    name: str
    trace: Any
    beside: bool
    learns: bool

    def fresh(self) -> Model:
        """An untrained copy with the same settings."""
        ...

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Model:
        """Learn."""
        ...

    def predict(self, data: Lists) -> torch.Tensor:
        """Scores, float64 ``[n]`` on the CPU."""
        ...


@dataclass
class Predictions:
    """One ranker's scores.

    Args:
        name: the ranker.
        oof: float64 ``[n_train]``: every training candidate's score by the model that did not see its fold.
        test: float64 ``[n_test]``: mean over the folds' models.
        curves: records of training, each with its ``fold``.
        importance: feature → gain, mean over the folds.
        models: the folds' models.
    """

    name: str
    oof: torch.Tensor
    test: torch.Tensor
    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)
    models: list[Model] = field(default_factory=list)


_Trained = tuple[Model, torch.Tensor, torch.Tensor]  # a model, its scores of the fold and of the test rows


class CrossFit:
    """Trains rankers fold by fold, all on the same frozen folds, and keeps their out-of-fold and test scores.

    Test scores are the mean of the folds' models' scores (no refit on all rows): the mean of several is steadier than
    one, and each part of it has been scored out of fold.

    Args:
        rankers: what to train.
        size: number of training candidates.
        test_size: number of test candidates.
        seed: of everything random; fold k's models get ``seed + k``.
        device: where to train.
        advance: called with the number of rows trained on, after each model, from the thread that trained it.
    """

    def __init__(
        self,
        rankers: Sequence[Model],
        size: int,
        test_size: int,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        self.rankers, self.seed, self.device, self.advance = list(rankers), seed, device, advance
        self.results = {
            r.name: Predictions(
                r.name, torch.full((size,), torch.nan, dtype=torch.float64), torch.zeros(test_size, dtype=torch.float64)
            )
            for r in self.rankers
        }
        self._folds, self._done = 0, torch.zeros(size, dtype=torch.bool)
        if len(self.results) < len(self.rankers):
            raise DataError("two rankers have one name", remedy="Give each its own")

    def fold(self, train: Lists, valid: Lists, valid_rows: torch.Tensor, test: Lists) -> None:
        """Train every ranker on one fold.

        Args:
            train: the other folds' lists, with labels.
            valid: the fold's lists, with labels (to report on, nothing else).
            valid_rows: int64, where the fold's candidates stand among all training candidates.
            test: the test lists.

        Raises:
            DataError: ``valid_rows`` are not as many as ``valid``, or were in an earlier fold; or a model scores NaN.
        """
        k, valid_rows = self._folds, valid_rows.cpu()
        if len(valid_rows) != len(valid):
            raise DataError(
                f"{len(valid_rows)} rows for {len(valid)} validation candidates", remedy="Give one for each"
            )
        if bool(self._done[valid_rows].any()):
            row = int(valid_rows[self._done[valid_rows]][0])
            raise DataError(
                "the candidate was in an earlier fold", row=row, remedy="Put every training row in one fold"
            )
        # Trees and nets share the cores: trees train in a second thread while this one trains the nets.
        beside = [r for r in self.rankers if r.beside and _is_cpu(self.device)]
        own = [r for r in self.rankers if r not in beside]
        shared = half_the_threads() if beside and any(r.learns for r in own) else nullcontext()
        with shared, ThreadPoolExecutor(max_workers=1) as second:
            train_one = partial(self._train, train=train, valid=valid, test=test)
            waiting = {r.name: second.submit(train_one, r) for r in beside}
            try:
                made = {r.name: train_one(r) for r in own}
                made |= {name: job.result() for name, job in waiting.items()}
            except BaseException:  # Ctrl-C as well: what has not begun is not to begin
                second.shutdown(wait=False, cancel_futures=True)
                raise
        for name, (model, oof, tested) in made.items():
            result = self.results[name]
            result.oof[valid_rows] = oof
            result.test += tested
            result.curves += [{"fold": k, **record} for record in model.trace.curves]
            for feature, gain in model.trace.importance.items():
                result.importance[feature] = result.importance.get(feature, 0.0) + gain
            result.models.append(model)
        self._folds += 1
        self._done[valid_rows] = True

    def _train(self, ranker: Model, *, train: Lists, valid: Lists, test: Lists) -> _Trained:
        k = self._folds
        model = ranker.fresh().fit(train, valid, seed=self.seed + k, device=self.device)
        made = model, _numbers(model.predict(valid), ranker.name, k), _numbers(model.predict(test), ranker.name, k)
        if self.advance is not None and ranker.learns:
            self.advance(len(train))
        return made

    def finish(self) -> dict[str, Predictions]:
        """The predictions, once every fold is done.

        Raises:
            DataError: a training candidate was in no fold.
        """
        if not bool(self._done.all()):
            row = int((~self._done).nonzero()[0])
            raise DataError("there is no out-of-fold score", row=row, remedy="Put every training row in one fold")
        count = max(self._folds, 1)
        return {
            name: replace(r, test=r.test / count, importance={n: g / count for n, g in r.importance.items()})
            for name, r in self.results.items()
        }


def _is_cpu(device: torch.device | None) -> bool:
    return device is None or device.type == "cpu"


def _numbers(scores: torch.Tensor, name: str, fold: int) -> torch.Tensor:
    if bool(scores.isnan().any()):
        row = int(scores.isnan().nonzero()[0])
        raise DataError(
            f"{name} of fold {fold} scores candidates NaN", row=row, remedy="Its training went astray: lower its rate"
        )
    return scores
