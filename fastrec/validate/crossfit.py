"""Out-of-fold predictions: the only scores used for tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from fastrec._core.device import on_host
from fastrec._core.threads import half_the_threads
from fastrec.errors import DataError, refuse
from fastrec.validate.rows import Rows


@dataclass
class Trained:
    """A fold's model and its predictions."""

    model: Any
    oof: torch.Tensor  #: float64 ``[m]`` or ``[m, k]``: its predictions of the fold's rows
    test: torch.Tensor  #: float64 ``[n_test]`` or ``[n_test, k]``


class FoldStore(Protocol):
    """Store of trained models during an incomplete run, so that another run can continue it."""

    def find(self, name: str, fold: int) -> Trained | None:
        """Return the model and predictions of an earlier run, or None."""

    def keep(self, name: str, fold: int, trained: Trained) -> None:
        """Store a model that has just been trained. (Called from the thread that trained it.)"""


@dataclass
class Predictions:
    """One estimator's predictions."""

    name: str  #: the estimator
    #: float64 ``[n_train]`` or ``[n_train, k]``: each row is predicted by the model that did not see its fold; NaN for
    #: rows that no fold scores (the first block of time-based folds)
    oof: torch.Tensor
    test: torch.Tensor  #: float64 ``[n_test]`` or ``[n_test, k]``: mean over the folds' models
    curves: list[dict[str, float]] = field(default_factory=list)  #: records of training, each with its ``fold``
    importance: dict[str, float] = field(default_factory=dict)  #: feature → gain, mean over the folds
    models: list[Any] = field(default_factory=list)  #: the folds' models
    #: ``folds_digest`` of the folds used for ``oof``; None: not made by ``CrossFit``. A stack accepts only predictions
    #: made with its own folds
    folds: str | None = None


def folds_digest(folds: Sequence[torch.Tensor] | Any, size: int) -> str:
    """Return a short digest of folds, from the rows that each scores, int64, of ``size`` rows in all."""
    digest = hashlib.sha256(str(size).encode())
    for rows in folds:
        digest.update(b"|" + torch.sort(rows.long()).values.numpy().tobytes())
    return digest.hexdigest()[:16]


class CrossFit:
    """Trainer of estimators on the same frozen folds, which collects out-of-fold and test predictions.

    Test predictions are the mean over the folds' models, without a refit on all rows. This mean is more stable than one
    model, and each of its models has been scored out of fold.

    Args:
        models: the models to train, such as ``fastrec.estimators.Estimator``.
        size: the number of training rows.
        test_size: the number of test rows, 0 or more.
        seed: the seed of all random numbers; fold k's models get ``seed + k``.
        device: the device to train on.
        advance: called after each model with the number of rows trained on, from the thread that trained it.
        scored: bool ``[size]``: the rows that folds score; None: all.
        repeated: allow a row in several folds; its prediction is their mean.
        store: stores trained models, and returns those of an earlier run.
    """

    def __init__(
        self,
        models: Sequence[Any],
        size: int,
        test_size: int,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        advance: Callable[[int], None] | None = None,
        scored: torch.Tensor | None = None,
        repeated: bool = False,
        store: FoldStore | None = None,
    ) -> None:
        self.models, self.seed, self.device, self.advance = list(models), seed, device, advance
        kind = next((m for m in self.models if isinstance(m, type)), None)
        if kind is not None or not self.models:
            problem = "there is no estimator to train" if kind is None else f"{kind.__name__} is a class, no estimator"
            raise DataError(problem, remedy="Give one or more, such as XGBModel()")
        self.time_limit: float | None = None  # limit in seconds for the fit of a model with keeps_time
        self.size, self.test_size, self.repeated, self.store = size, test_size, repeated, store
        self.cold_folds: Collection[int] = ()  # folds in which no model begins with what another has learned
        self.left_out: dict[str, str] | None = None  # if a dict: model → why it cannot learn; None: raise its error
        self.watch: Callable[[str, int, torch.Tensor], None] | None = None  # called with model, fold and predictions
        self.scored = torch.ones(size, dtype=torch.bool) if scored is None else scored.cpu()
        self._trained: dict[str, list[Trained]] = {m.name: [] for m in self.models}
        self._rows: list[torch.Tensor] = []  # the rows that each fold scores
        self._times = torch.zeros(size, dtype=torch.int64)
        if len(self._trained) < len(self.models):
            raise DataError("two estimators have one name", remedy="Give each its own")

    def fold(
        self,
        train: Rows | None,
        valid: Rows | None,
        valid_rows: torch.Tensor | np.ndarray,
        test: Rows | None = None,
        *,
        train_rows: torch.Tensor | np.ndarray | None = None,
        unlabeled: Rows | None = None,
    ) -> None:
        """Train every estimator on one fold.

        Args:
            train: the other folds' rows, with labels; None if ``store`` has all of the fold's models.
            valid: the fold's rows, with labels, used only for reporting.
            valid_rows: int64 (tensor or array), the positions of the fold's rows among all training rows.
            test: the test rows; None: there are none.
            train_rows: likewise, the positions of ``train``; if given, they are checked against ``valid_rows``.
            unlabeled: the test rows for learning without labels. Their features must contain nothing of the targets
                that this fold scores. (Features of ``test`` may be computed from all training rows.)

        Raises:
            DataError: ``valid_rows`` do not match ``valid`` in length, were in an earlier fold or are also trained on;
                a model predicts NaN, or wants ``unlabeled`` but only ``test`` is given.
        """
        valid_rows = self._places(valid_rows)
        self._check_rows(valid, valid_rows, None if train_rows is None else self._places(train_rows))
        stored = {m.name: self.store.find(m.name, len(self._rows)) if self.store else None for m in self.models}
        # Trees and nets share the cores: trees train in a second thread while this one trains the nets.
        missing = [m for m in self.models if stored[m.name] is None]
        for name, one in stored.items():
            if one is not None and self.watch is not None:
                self.watch(name, len(self._rows), one.oof)
        beside = [m for m in missing if m.beside and (self.device is None or on_host(self))]
        here = [m for m in missing if m not in beside]
        # Otherwise two trainings at once would each start a thread per core.
        shared = half_the_threads() if beside and any(m.learns for m in here) else nullcontext()
        with shared, ThreadPoolExecutor(max_workers=1) as second:
            k = len(self._rows)
            train_one = partial(self._train_or_leave, k=k, train=train, valid=valid, test=test, unlabeled=unlabeled)
            waiting = {m.name: second.submit(train_one, m) for m in beside}
            try:
                trained = {m.name: train_one(m) for m in here}
                trained |= {name: job.result() for name, job in waiting.items()}
            except BaseException:  # including Ctrl-C: pending trainings must not start
                second.shutdown(wait=False, cancel_futures=True)
                raise
        for name in self.left_out or ():
            self._trained.pop(name, None)
        self.models = [m for m in self.models if m.name in self._trained]
        for model in self.models:
            self._trained[model.name].append(trained.get(model.name) or stored[model.name])
        self._rows.append(valid_rows)
        self._times[valid_rows] += 1

    def _places(self, rows: Any) -> torch.Tensor:
        if not isinstance(rows, torch.Tensor):
            given = np.asarray(rows)
            if given.dtype.kind not in "iub" and len(given):
                raise DataError(f"places of rows are {given.dtype}", remedy="Give row numbers from 0, or a mask")
            rows = torch.from_numpy(given.astype(bool if given.dtype == bool else np.int64))
        rows = rows.cpu()
        bad = rows[(rows < 0) | (rows >= self.size)] if rows.dtype != torch.bool else rows[:0]
        if len(bad):
            problem = f"the place of a row is {bad[0].item()}, and there are {self.size} training rows"
            raise DataError(problem, remedy="Give row numbers from 0 (get_indexer says -1 where it finds none)")
        return rows

    def _check_rows(self, valid: Rows | None, valid_rows: torch.Tensor, train_rows: torch.Tensor | None) -> None:
        if valid is not None and len(valid_rows) != len(valid):
            raise DataError(f"{len(valid_rows)} rows for {len(valid)} validation rows", remedy="Give one for each")
        again = self._times[valid_rows] > 0
        if bool(again.any()) and not self.repeated:
            row = int(valid_rows[again][0])
            raise DataError("the row was in an earlier fold", row=row, remedy="Put every training row in one fold")
        if train_rows is not None:
            seen = torch.zeros(self.size, dtype=torch.bool)
            seen[train_rows] = True
            if bool(seen[valid_rows].any()):
                row = int(valid_rows[seen[valid_rows]][0])
                problem = f"fold {len(self._rows)} is trained on a row that it scores"
                raise DataError(problem, row=row, remedy="Leave the fold's rows out of what its models are trained on")

    def _train_or_leave(self, model: Any, **about: Any) -> Trained | None:
        """Return the trained model; None: it cannot learn, but others do."""
        try:
            return self._train(model, **about)
        except DataError as error:
            others = [m for m in self.models if m.learns and m is not model and m.name not in (self.left_out or ())]
            if self.left_out is None or not model.learns or not others:
                raise
            self.left_out[model.name] = error.problem
            return None

    def _train(
        self,
        model: Any,
        *,
        k: int,
        train: Rows | None,
        valid: Rows | None,
        test: Rows | None = None,
        unlabeled: Rows | None = None,
    ) -> Trained:
        if train is None or valid is None:
            raise DataError(f"fold {k} came without rows to train {model.name} on", remedy="Give train and valid")
        more = {"unlabeled": unlabeled} if getattr(model, "wants_unlabeled", False) else {}
        if more and unlabeled is None and test is not None:
            problem = f"{model.name} learns from rows without labels too, and fold {k} came without them"
            remedy = "Give fold(unlabeled=…), test rows whose features hold nothing of the fold's targets"
            raise DataError(problem, remedy=remedy)
        fresh = model.fresh()
        # A model that was trained on this fold's rows must not be the starting point: that would leak.
        if k in self.cold_folds:
            fresh.start_anew()
        if self.time_limit is not None:
            fresh.time_limit = self.time_limit
        fitted = fresh.fit(train, valid, seed=self.seed + k, device=self.device, **more)
        oof = fitted.predict(valid)
        tested = fitted.predict(test) if test is not None and len(test) else oof.new_zeros((0, *oof.shape[1:]))
        for scores in (oof, tested):
            problem = f"{model.name} of fold {k} predicts NaN"
            refuse(scores.isnan(), None, problem, "Its training went astray: lower its rate")
        trained = Trained(fitted, oof, tested)
        if self.store is not None:
            self.store.keep(model.name, k, trained)
        if self.advance is not None and model.learns:
            self.advance(len(train))
        if self.watch is not None:
            self.watch(model.name, k, oof)
        return trained

    def finish(self) -> dict[str, Predictions]:
        """Return the predictions, once every fold is done.

        Raises:
            DataError: a row to be scored was in no fold.
        """
        left = self.scored & (self._times == 0)
        refuse(left, None, "there is no out-of-fold score", "Put every training row in one fold")
        # A stack uses the digest to refuse predictions of other folds.
        digest = folds_digest(self._rows, self.size)
        return {name: self._predictions(name, trained, digest) for name, trained in self._trained.items()}

    def _predictions(self, name: str, trained: list[Trained], digest: str) -> Predictions:
        count, shape = max(len(trained), 1), trained[0].oof.shape[1:] if trained else ()
        oof = torch.zeros((self.size, *shape), dtype=torch.float64)
        test = torch.zeros((self.test_size, *shape), dtype=torch.float64)
        predictions = Predictions(name, oof, test, folds=digest)
        for k, (one, rows) in enumerate(zip(trained, self._rows, strict=True)):
            oof[rows] += one.oof
            test += one.test
            predictions.curves += [{"fold": k, **record} for record in one.model.trace.curves]
            for feature, gain in one.model.trace.importance.items():
                predictions.importance[feature] = predictions.importance.get(feature, 0.0) + gain
            predictions.models.append(one.model)
        oof /= self._times.reshape(-1, *[1] * len(shape))  # a row that no fold scores: 0 / 0
        test /= count
        predictions.importance = {n: g / count for n, g in predictions.importance.items()}
        return predictions
