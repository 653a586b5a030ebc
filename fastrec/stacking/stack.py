"""Stacking: a second model over the base models' out-of-fold predictions, for every task.

In ranking, level-2 inputs do not depend on the offset of a model's scores in a list. Out-of-fold scores (one model) and
test scores (mean of the folds' models) are therefore comparable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError, LeakageError, MissingFileError, UnreadableFileError
from fastrec.estimators import Estimator, XGBRanker
from fastrec.features._engine.folds import fold_numbers, row_folds
from fastrec.metrics import Interval, Metric, as_scored, bootstrap_metric, default_metric, get_metric, loss_of
from fastrec.metrics.registry import MRR_AS_SHOWN
from fastrec.stacking.blends import (
    BoostedBlend,
    LinearBlend,
    MeanBlend,
    OneBase,
    RankMean,
    TreeBlend,
    by_row,
    in_columns,
    level_two,
    linear_blend,
    names_of,
)
from fastrec.stacking.hill_climb import HillClimb, best_of
from fastrec.table import Table, as_column
from fastrec.validate import Lists, Predictions, Rows, folds_digest

_FILE = "stack.json"


class StackModel:
    """The fitted blends of a stack's folds, which predict by their mean, and the names of the base models they need.

    Args:
        models: the base models' names.
        blends: fitted blends, one per fold; only one if nothing was fitted.
        extra: columns of level 1 that the blends also use.
    """

    def __init__(self, models: Sequence[str], blends: Sequence[Estimator], extra: Sequence[str] = ()) -> None:
        self.models, self.blends, self.extra = list(models), list(blends), list(extra)

    @property
    def name(self) -> str:
        """The blend's name."""
        return self.blends[0].name

    def predict(self, base: Mapping[str, torch.Tensor], data: Rows) -> torch.Tensor:
        """Blend predictions of the base models.

        Args:
            base: base model → float64 ``[n]`` or ``[n, k]``, each the mean of its folds' models; other models are
                ignored.
            data: the predicted rows, with their task and the ``extra`` columns; for a ranking, with their lists.

        Returns:
            float64 ``[n]`` or ``[n, k]``.

        Raises:
            DataError: a base model is missing, or its predictions are not of these rows.
        """
        missing = [m for m in self.models if m not in base]
        if missing:
            blended = f"It blends {', '.join(self.models)}"
            raise DataError(f"the stack needs predictions of {missing[0]}", remedy=blended)
        tensors = {m: v if isinstance(v := base[m], torch.Tensor) else torch.tensor(v) for m in self.models}
        two = level_two_of(tensors, data, self.extra)
        return sum(blend.predict(two) / len(self.blends) for blend in self.blends)

    def save(self, folder: str | Path) -> None:
        """Write the stack, without pickle, to a folder; an earlier stack in it is replaced in one step."""
        check_replaceable(folder, _FILE)
        with atomic_folder(folder) as part:
            for k, blend in enumerate(self.blends):
                blend.save(part / f"fold{k}")
            about = {"models": self.models, "extra": self.extra, "blends": len(self.blends)}
            (part / _FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> StackModel:
        """Read what ``save`` wrote."""
        path = Path(folder) / _FILE
        if not path.is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Give the folder of a saved stack")
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            models, extra, count = list(about["models"]), list(about["extra"]), int(about["blends"])
        except (ValueError, TypeError, KeyError) as error:
            problem = f"the saved stack cannot be read ({type(error).__name__}: {error})"
            raise UnreadableFileError(problem, file=path, remedy="Save it again") from error
        return cls(models, [Estimator.load(path.parent / f"fold{k}") for k in range(count)], extra)


def level_two_of(predicted: Mapping[str, torch.Tensor], data: Rows, extra: Sequence[str]) -> Rows:
    """Return the rows with the level-2 inputs of their task."""
    for model, values in predicted.items():
        if len(values) != len(data):
            raise DataError(f"{model} has {len(values)} predictions for {len(data)} rows", remedy="Give one for each")
    if isinstance(data, Lists):
        return level_two(predicted, data, extra)
    if data.task == "ranking":
        raise DataError("the rows of a ranking task are no Lists", remedy="Give Lists(table, groups, …)")
    return by_row(predicted, data, extra)


@dataclass(frozen=True)
class LevelTwoFolds:
    """Folds of level 2: ``pairs`` of training rows and scored rows, int64, ascending.

    Neither contains rows that no base model scored (``scored``, bool ``[n]``). ``digest`` identifies the base models'
    folds. ``ahead`` lists the first time-based folds, whose blends learn from later ones. ``is_one``: the base models
    have a single fold, and these folds are parts of it.
    """

    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    scored: torch.Tensor
    digest: str
    ahead: tuple[int, ...] = ()
    is_one: bool = False

    @property
    def codes(self) -> torch.Tensor:
        """The last of the base models' folds that scores each row: int64 ``[n]``; -1: none does."""
        codes = torch.full((len(self.scored),), -1, dtype=torch.int64)
        for k, (_, valid) in enumerate(self.pairs):
            codes[valid] = 0 if self.is_one else k
        return codes


def level_two_folds(folds: Any, data: Rows) -> LevelTwoFolds:
    """Make the level-2 folds from those of the base models.

    A fold's blend learns from out-of-fold predictions of the rows that the fold's base models were trained on. The
    first time-based fold has no such rows: its blend learns from the other folds, as with random folds. If there is
    only one fold (the last weeks, held out), its rows are split into five parts: by whole groups, and in order of time,
    if the rows have them. Folds are numbers ``[n]`` from 0 (-1: in no fold), or ``Folds``.
    """
    size = len(data)
    are_codes = isinstance(folds, torch.Tensor) or not isinstance(folds, Iterable)
    if not are_codes:
        first = next(iter(folds), None)
        are_codes = not (isinstance(first, tuple) and len(first) == 2)
    if are_codes:
        if len(folds) != size:
            raise DataError(f"{len(folds)} folds for {size} rows", remedy="Give the base models' own folds")
        unscored = torch.zeros(size, dtype=torch.bool)
        if isinstance(folds, torch.Tensor):
            unscored = (folds == -1).cpu()
            folds = torch.where(folds == -1, 0, folds)
        codes = torch.where(unscored, -1, fold_numbers(as_column(folds, name="folds")).cpu())
        present = torch.unique(codes[codes >= 0])
        folds = [((codes != k).nonzero().squeeze(1), (codes == k).nonzero().squeeze(1)) for k in present]
    given = [(a.cpu(), b.cpu()) for a, b in folds]
    if not given:
        raise DataError("there are no folds", remedy="Give the base models' own folds")
    digest = folds_digest([valid for _, valid in given], size)
    scored = torch.zeros(size, dtype=torch.bool)
    for _, valid in given:
        if len(valid) and int(valid.max()) >= size:
            raise DataError(f"the folds are of more rows than the {size} given", remedy="Give the base models' own")
        scored[valid] = True
    if data.task == "ranking":
        _refuse_split_lists([v for _, v in given], data)
    # there is no other fold to learn from, so this one is split
    if len(given) == 1:
        return LevelTwoFolds(_parts(given[0][1], data), scored, digest, is_one=True)
    pairs, ahead = [], []
    for k, (train, valid) in enumerate(given):
        rows = train[scored[train]]
        if not len(rows):
            ahead.append(k)
            others = scored.clone()
            others[valid] = False
            rows = others.nonzero().squeeze(1)
        pairs.append((rows.sort().values, valid.sort().values))
    return LevelTwoFolds(pairs, scored, digest, tuple(ahead))


def _parts(rows: torch.Tensor, data: Rows) -> list[tuple[torch.Tensor, torch.Tensor]]:
    parts, rows = 5, rows.sort().values
    if data.groups is not None:
        part = row_folds(Table({"group": data.groups[rows]}), ["group"], parts).cpu()
    elif data.order is not None:
        later = torch.argsort(data.order[rows], stable=True)
        part = torch.empty(len(rows), dtype=torch.int64)
        part[later] = torch.arange(len(rows)) * parts // len(rows)
    else:
        part = row_folds(Table({"row": rows}), ["row"], parts).cpu()
    pairs = [(rows[part != k], rows[part == k]) for k in range(parts) if bool((part == k).any())]
    if len(pairs) < 2:
        raise DataError("one fold of one group has nothing for level 2 to learn from", remedy="Use two folds or more")
    return pairs


def _refuse_split_lists(valid: list[torch.Tensor], data: Rows) -> None:
    ids, codes = torch.unique(data.groups, return_inverse=True)
    whole = torch.bincount(codes, minlength=len(ids))
    if len(ids) == 1 and len(data) > 1:
        remedy = "Where the rows are no list, name the task: Rows(…, task='binary'), 'regression' or 'multiclass'"
        raise DataError("all rows are one list: a ranking has no other list to learn from", remedy=remedy)
    for k, rows in enumerate(valid):
        inside = torch.bincount(codes[rows], minlength=len(ids))
        split = (inside > 0) & (inside < whole)
        if bool(split.any()):
            row = int(rows[split[codes[rows]]][0])
            remedy = "Make folds of whole lists; where the rows are no lists, name the task: Rows(…, task='binary')"
            raise DataError(f"a list is not whole in fold {k}", row=row, remedy=remedy)


# Cross-fitting of level 2, and of the choice among its blends.


@dataclass(frozen=True)
class Judge:
    """Scorer of out-of-fold predictions by one metric, over the ``counted`` rows, bool ``[n]``.

    ``folds`` int64 ``[n]``: the fold that scores each row; -1: none does. ``restore`` converts predictions and
    ``data``'s labels to the scale of the metric; None: they are on it already.
    """

    metric: Metric
    data: Rows
    counted: torch.Tensor
    folds: torch.Tensor
    restore: Callable[[torch.Tensor], torch.Tensor] | None = None

    def values(self, oof: torch.Tensor) -> torch.Tensor:
        """Convert out-of-fold predictions to the metric's input, see ``as_scored``: ``[n]`` or ``[n, k]``."""
        raw = oof if self.restore is None else self.restore(oof)
        if self.metric.wants != "classes" or self.data.task not in ("binary", "regression"):
            return raw
        known, classes = self.folds >= 0, raw.clone()
        classes[known] = as_scored(self.metric, self.data.label[known], raw[known], self.folds[known]).to(classes)
        return classes

    def __call__(self, values: torch.Tensor, rows: torch.Tensor | None = None) -> float:
        """Score ``values`` over the counted rows, restricted to ``rows`` (bool ``[n]``) if given."""
        used = self.counted if rows is None else self.counted & rows
        if rows is not None and not bool(used.any()):
            used = rows
        groups = None if self.data.groups is None else self.data.groups[used]
        return self.metric(self.data.label[used], values[used], groups=groups)


def cross_fit(
    blend: Estimator,
    two: Rows,
    folds: LevelTwoFolds,
    test: Rows,
    seed: int,
    late: Callable[[], bool] | None = None,
    *,
    one_scale: bool = False,
) -> Predictions | None:
    """Predict rows by blends that were not fitted on them, and test rows by the mean of the folds' blends.

    Return None if ``late`` reports before a fold that time is up.

    Rows that no fold scores get NaN; fold k's blend gets ``seed + k``. Except in ranking, a blend learns from at most
    500,000 rows, sampled at random. With several outputs, the limit is divided by their number, but is at least
    100,000. If ``one_scale``, a fold keeps the order that its blend gives, with the values of the mean of all blends;
    not if folds are time-based: the values would depend on later labels.
    """
    shape = (two.n_scores,) if two.n_scores > 1 else ()
    oof = torch.zeros((len(two), *shape), dtype=torch.float64)
    tested = torch.zeros((len(test), *shape), dtype=torch.float64)
    predictions = Predictions(blend.name, oof, tested, folds=folds.digest)
    times, count = torch.zeros(len(two), dtype=torch.int64), len(folds.pairs)
    found: list[torch.Tensor] = []
    for k, (rows, valid) in enumerate(folds.pairs):
        if blend.learns and late is not None and late():
            return None
        if blend.learns or not predictions.models:
            model = blend.fresh().fit(two.take(_some(rows, two, seed + k)), seed=seed + k)
            predicted = model.predict(test) if len(test) else tested
        found.append(model.predict(two.take(valid)))
        times[valid] += 1
        if blend.learns:
            tested += predicted / count
        predictions.models.append(model)
        for name, share in model.trace.importance.items():
            predictions.importance[name] = predictions.importance.get(name, 0.0) + share / count
    one_scale &= blend.learns and all(len(a) + len(b) == int(folds.scored.sum()) for a, b in folds.pairs)
    for own, (_, valid) in zip(found, folds.pairs, strict=True):
        if one_scale:
            mean = sum(m.predict(two.take(valid)) for m in predictions.models) / count
            own = in_values_of(mean, own)
        oof[valid] += own
    oof /= times.reshape(-1, *[1] * len(shape))  # a row that no fold scores: 0 / 0
    return predictions if blend.learns else replace(predictions, test=predicted)


def rows_of_a_blend(outputs: int) -> int:
    """Return the maximum of training rows for a blend, depending on the numbers in a prediction."""
    return max(limits.BLEND_ROWS // outputs, limits.BLEND_ROWS_OF_MANY)


def _some(rows: torch.Tensor, data: Rows, seed: int) -> torch.Tensor:
    most = rows_of_a_blend(data.n_scores)
    if data.task == "ranking" or len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most].sort().values]


class BlendChoice:
    """Choice among cross-fitted blends: the default one, unless another is better by more than two standard errors.

    Blends of the same models differ by less than the uncertainty of their scores. The highest score is then chance, and
    a blend chosen by chance without a fold does worse than others on that fold. Another blend must therefore beat the
    default: its mean gain over folds must exceed two standard errors of that mean. (This is the one-standard-error rule
    of Breiman et al. 1984, section 3.4.3, adapted to several rivals.) Among those, the best score over all rows wins.
    The constant is taken if it beats the winner by more than one standard error. ``usual`` and ``constant`` are
    positions in ``tried``; ``constant`` may be None.
    """

    def __init__(
        self, tried: Sequence[Predictions], usual: int, folds: LevelTwoFolds, judge: Judge, *, constant: int | None
    ) -> None:
        self.tried, self.usual, self.folds, self.judge, self.constant = list(tried), usual, folds, judge, constant
        masks = [self._mask(valid) for _, valid in folds.pairs]
        self._values = [judge.values(p.oof) for p in tried]
        self._by_fold = torch.tensor([[judge(v, m) for m in masks] for v in self._values], dtype=torch.float64)
        if not judge.metric.greater_is_better:
            self._by_fold = -self._by_fold

    def _mask(self, rows: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(len(self.judge.data), dtype=torch.bool)
        mask[rows] = True
        return mask

    def best(self, among: torch.Tensor | None = None) -> int:
        """Return the position of the blend to take, judged on the rows of ``among`` (bool ``[n]``; None: all).

        If some rows are excluded, the first time-based folds are ignored: their blends have learned from later ones.
        """
        if among is not None and self.folds.ahead:
            among = among.clone()
            for k in self.folds.ahead:
                among[self.folds.pairs[k][1]] = False
            if not bool((among & self.judge.counted).any()):
                return self.usual
        whole = [i for i, (_, v) in enumerate(self.folds.pairs) if among is None or bool(among[v].all())]
        chosen = self._best(among, whole)
        if self.constant is None or len(whole) < 2:
            return chosen
        level, score = (self.judge(self._values[i], among) for i in (self.constant, chosen))
        gain = self._by_fold[self.constant, whole] - self._by_fold[chosen, whole]
        doubtful = bool(gain.mean() <= gain.std() / len(whole) ** 0.5)  # False if a deviance is infinite
        return self.constant if self.judge.metric.better(level, score) and not doubtful else chosen

    def _best(self, among: torch.Tensor | None, whole: list[int]) -> int:
        if len(whole) < 2:  # a gain of one fold has no error
            return self.usual
        # Paired by fold: folds differ more than blends do.
        gain = self._by_fold[:, whole] - self._by_fold[self.usual, whole]
        error = limits.CHOICE_ERRORS * gain.std(1) / len(whole) ** 0.5
        better = [i for i in range(len(self.tried)) if bool(gain[i].mean() > error[i])]
        if not better:
            return self.usual
        return better[best_of(self.judge.metric, [self.judge(self._values[i], among) for i in better])]

    def nested(self) -> tuple[torch.Tensor, list[str]]:
        """Predict each fold by the blend chosen without it (NaN where no fold scores); return also the choices' names.

        For metrics of the order a fold takes the values of the overall best blend, see ``in_values_of``; scores of
        lists take its mean and spread, as they may be calibrated.
        """
        oof, whole = torch.zeros_like(self.tried[0].oof), self.tried[self.best()]
        times = torch.zeros(len(oof), dtype=torch.int64)
        names, lists, level = [], self.judge.data.task == "ranking", _level(whole.oof)
        for rows, valid in self.folds.pairs:
            taken = self.tried[self.best(self._mask(rows))]
            found = taken.oof[valid]
            if taken is not whole and of_the_order(self.judge.metric):
                found = in_values_of(whole.oof[valid], found)
            if lists:
                centre, spread = _level(found)
                found = (found - centre) / spread * level[1] + level[0]
            oof[valid] += found
            times[valid] += 1
            names.append(taken.name)
        return oof / times.reshape(-1, *[1] * (oof.ndim - 1)), names


def _level(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of the finite scores; 0 and 1 if there are none."""
    known = scores[scores.isfinite()]
    spread = known.std(correction=0) if len(known) else scores.new_zeros(())
    return (known.mean() if len(known) else spread), torch.where(spread > 0, spread, 1.0)


def of_the_order(metric: Metric) -> bool:
    """Return whether the metric compares rows across folds by their order alone; a user's own may use the values."""
    return metric.wants == "scores" and not metric.needs_groups and not metric.is_own


def in_values_of(known: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Give the rows of a fold the values ``known`` in their own order; each ``[n]`` or ``[n, k]``.

    Blends have different scales, as have the blends of two folds. A metric of the order over all rows would mistake
    that for differences between folds.
    """
    new, old = (v.reshape(len(v), -1).T.contiguous() for v in (own, known))
    ranked = new.sort().values
    places = torch.searchsorted(ranked, new) + torch.searchsorted(ranked, new, right=True) - 1
    return old.sort().values.gather(1, places // 2).T.reshape(own.shape)  # the middle of ties


def restored(metric: Metric, restore: Callable[[torch.Tensor], torch.Tensor] | None) -> Metric:
    """Return the metric on the target's original scale, if targets are learned on another one."""
    if restore is None:
        return metric

    def of_raw(y: torch.Tensor, p: torch.Tensor, *, groups: torch.Tensor | None, weight: torch.Tensor | None) -> float:
        return metric(restore(y), restore(p), groups=groups, weight=weight)

    # With another name: after loading, a blend saved with it must not climb on the wrong scale.
    wants = metric.wants if metric.wants == "scores" else "values"
    return replace(metric, name=f"{metric.name} of raw values", function=of_raw, wants=wants)


def refuse_same_names(blends: Sequence[Estimator]) -> None:
    """Refuse two blends of the same name."""
    names = [b.name for b in blends]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if twice is not None:
        raise DataError(f"two blends have the name {twice!r}", remedy="Give the base model another name")


@dataclass(frozen=True)
class Stacked:
    """Result of a stack; unpacks into ``predictions`` and ``tried``."""

    #: the stack's predictions, named ``stack``. Out of fold: by the blend chosen without the row's fold. Test rows: by
    #: the blend chosen on all folds
    predictions: Predictions
    #: blend or single base model → its out-of-fold score. The best of them is optimistic, as it was selected by it
    tried: dict[str, float]
    score: float  #: the score of ``predictions.oof``: each fold is scored by the choice made without it
    best_base: str  #: the base model with the best out-of-fold score
    chosen: str  #: the blend that makes the test predictions
    choices: list[str]  #: the blend chosen for each fold
    #: ``'stack'`` and the best base model → score with its bootstrap interval, resampled by group if there are groups
    scores: dict[str, Interval]
    difference: Interval  #: stack minus best base model, paired, with its interval
    model: StackModel = field(repr=False)  #: predicts other rows

    def __iter__(self) -> Iterator[Any]:
        return iter((self.predictions, self.tried))


class Stack:
    """Trainer of level 2 on the base models' out-of-fold predictions, fold by fold on the base models' own folds.

    All blends (see ``blends``) and each single base model are tried. The default is the fitted weighted sum for lists
    and hill climbing otherwise; it is taken unless another is clearly better (see ``BlendChoice``). This choice is
    cross-fitted too: the stack's score uses, for each fold, the choice made without it.

    The best base model may score higher, but its score is optimistic: it was selected on the same rows.

    Args:
        extra: columns of level 1 that the trees also use.
        rounds: the number of trees of the XGBoost ranker in a ranking task.
        **params: that ranker's own parameters.
    """

    def __init__(self, *, extra: Sequence[str] = (), rounds: int = 60, **params: Any) -> None:
        self.extra, self.rounds = list(extra), rounds
        self.params = {"max_depth": 3, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8, **params}

    def blends(self, models: Sequence[str], data: Rows, metric: Metric) -> list[Estimator]:
        """Return the blends to try.

        Lists: an XGBoost ranker, a fitted linear blend, an XGBoost ranker that starts from it, and two plain means.
        Other rows: the plain mean, the mean rank (for metrics of the order), a fitted weighted sum, and, except for
        several classes, trees that start from it. All: hill climbing on the metric, and each base model alone. Blends
        rise with each model's predictions.

        Args:
            models: the base models' names.
            data: the training rows.
            metric: the metric that hill climbing optimises.
        """
        blends: list[Estimator]
        if data.task == "ranking":
            signs = {"rank": -1, "gap": 1, "softmax": 1}
            rising = {"monotone_constraints": {f"{m}_{word}": sign for m in models for word, sign in signs.items()}}
            blends = [
                XGBRanker("xgb_ranker", rounds=self.rounds, **{**rising, **self.params}),
                LinearBlend(models),
                BoostedBlend(models, max_depth=3, eta=0.05, min_child_weight=20, subsample=0.7, **rising),
                MeanBlend(models, of="log_softmax"),
                MeanBlend(models, of="rank"),
            ]
        else:
            blends = [MeanBlend(models), linear_blend(models, data.task)]
            blends += [RankMean(models)] if metric.wants == "scores" and data.task in RankMean.tasks else []
            # Each output has its own trees: for many outputs they take too long. Trees of several classes cannot be
            # made to rise with the predictions, see ``minimum``.
            blends += [TreeBlend(models, data.task)] if data.task != "multiclass" and data.n_scores <= 20 else []
        return [*blends, HillClimb(models, metric=metric), *(OneBase(m) for m in models)]

    def fit(
        self,
        base: Sequence[Predictions] | Mapping[str, Predictions],
        train: Rows,
        folds: Any,
        test: Rows | None = None,
        *,
        metric: str | Metric | None = None,
        counted: torch.Tensor | None = None,
        seed: int = 0,
        restore: Callable[[torch.Tensor], torch.Tensor] | None = None,
        constant: Predictions | None = None,
        late: Callable[[], bool] | None = None,
    ) -> Stacked:
        """Stack base models.

        Args:
            base: their out-of-fold and test predictions, such as ``CrossFit.finish()``.
            train: the training rows, with labels.
            folds: the base models' folds: whole numbers ``[n]`` from 0, or ``Folds``. Rows that no fold scores are not
                used.
            test: the test rows; None: there are none.
            metric: the metric to choose by, a name or a ``Metric``; None: the task's default (lists: MRR, ties in
                display order). It is not weighted. Class thresholds are learned on other folds.
            counted: bool ``[n]``: the training rows (lists: candidates) to base the choice on; None: all.
            seed: the seed of all random numbers.
            restore: converts labels and predictions to the scale of the metric (``Target.restore``); None: no
                conversion.
            constant: a constant's predictions. It is chosen if it is better by more than one standard error. Hill
                climbing may use it unless folds are time-based. Metrics of the order ignore it.
            late: whether time is up: learned blends not tried by then are skipped, except the default. None: all are
                tried.

        Returns:
            The stack's predictions, the out-of-fold score of every blend tried, and a model that predicts other rows.

        Raises:
            LeakageError: predictions were not made by these folds.
            DataError: there is nothing to stack, the metric is of another task, or lists, folds or shapes do not match.
        """
        base = list(base.values()) if isinstance(base, Mapping) else base
        if not base:
            raise DataError("there is nothing to stack", remedy="Give at least one base model")
        if train.label is None:
            raise DataError("the training rows have no labels", remedy="Give label=")
        ours = level_two_folds(folds, train)
        test = train.take(torch.arange(0)) if test is None else test
        chosen_by = _metric_of(metric, train)
        names = [p.name for p in base]
        every = [*base] if constant is None or chosen_by.wants == "scores" else [*base, constant]
        refuse_others(every, train, test, ours)
        blends = self.blends(names, train, restored(loss_of(chosen_by, train.task), restore))
        for one in every[len(base) :]:
            # Hill climbing may use the constant, unless folds are time-based: the first ones know too little of models.
            for blend in blends:
                if isinstance(blend, HillClimb):
                    blend.models = [*(m for m in blend.models if m != one.name), *([] if ours.ahead else [one.name])]
            if one.name not in [b.name for b in blends]:
                blends.append(OneBase(one.name))
        # Scores are reported by name.
        refuse_same_names(blends)
        two = level_two_of({p.name: p.oof for p in every}, train, self.extra)
        # A fold's constant is high if the fold's labels are low: trees would learn that.
        hidden = {n for p in every[len(base) :] for n in names_of(p.name, train)}
        two = replace(two, conts=[n for n in two.conts if n not in hidden])
        two_test = level_two_of({p.name: p.test for p in every}, test, self.extra)
        raw = replace(train, label=train.label if restore is None else restore(train.label))
        counts = ours.scored if counted is None else counted.cpu().bool() & ours.scored
        if not bool(counts.any()):
            raise DataError("no counted row is scored by a fold", remedy="Count other rows, or give other folds")
        judge = Judge(chosen_by, raw, counts, ours.codes, restore)
        kind = LinearBlend if train.task == "ranking" else HillClimb
        usual = next((b for b in blends if isinstance(b, kind)), blends[0])
        # Trees come last, as they take longest.
        order = sorted(blends, key=lambda b: (b is not usual, isinstance(b, XGBRanker | BoostedBlend | TreeBlend)))
        done = {
            b.name: cross_fit(
                b, two, ours, two_test, seed, None if b is usual else late, one_scale=of_the_order(chosen_by)
            )
            for b in order
        }
        tried = [p for b in blends if (p := done[b.name]) is not None]
        blends = [b for b in blends if done[b.name] is not None]
        # metrics of the order cannot use the constant: then it is not among the blends
        level = next((i for i, b in enumerate(blends) if constant in every and b.name == constant.name), None)
        choice = BlendChoice(tried, blends.index(usual), ours, judge, constant=level)
        return self._outcome(base, every, choice, seed=seed)

    def _outcome(
        self, base: Sequence[Predictions], every: Sequence[Predictions], choice: BlendChoice, *, seed: int
    ) -> Stacked:
        judge, tried = choice.judge, choice.tried
        scores = {p.name: judge(judge.values(p.oof)) for p in tried}
        best_base = base[best_of(judge.metric, [judge(judge.values(p.oof)) for p in base])]
        oof, choices = choice.nested()
        best = tried[choice.best()]
        predictions = Predictions("stack", oof, best.test, [], best.importance, best.models, choice.folds.digest)
        rows, data = judge.counted, judge.data
        groups = None if data.groups is None else data.groups[rows]
        both = {"stack": judge.values(oof)[rows], best_base.name: judge.values(best_base.oof)[rows]}
        sampled = bootstrap_metric(judge.metric, data.label[rows], both, groups=groups, seed=seed)
        blends = best.models if best.models[0].learns else best.models[:1]
        # the constant is required only if the blend uses it
        used = {*getattr(blends[0], "models", ()), getattr(blends[0], "model", "")}
        return Stacked(
            predictions=predictions,
            tried=scores,
            score=judge(judge.values(oof)),
            best_base=best_base.name,
            chosen=best.name,
            choices=choices,
            scores={n: sampled.interval(n) for n in both},
            difference=sampled.difference("stack", best_base.name),
            model=StackModel([p.name for p in every if p in base or p.name in used], blends, self.extra),
        )


def _metric_of(metric: str | Metric | None, data: Rows) -> Metric:
    if metric is None:
        return MRR_AS_SHOWN if data.task == "ranking" else get_metric(default_metric(data.task))
    chosen = get_metric(metric)
    if data.task not in chosen.tasks:
        problem = f"{chosen.name} is a metric of {', '.join(chosen.tasks)} tasks, not of a {data.task} task"
        raise DataError(problem, remedy="Give a metric of the rows' task, or name another task")
    return chosen


def refuse_others(base: Sequence[Predictions], train: Rows, test: Rows, folds: LevelTwoFolds) -> None:
    """Refuse predictions of other rows or folds: a blend would trust a model that has seen its answers."""
    for one in base:
        if len(one.oof) != len(train) or len(one.test) != len(test):
            problem = f"{one.name} has {len(one.oof)} and {len(one.test)} predictions for {len(train)} training and "
            problem += f"{len(test)} test rows"
            raise DataError(problem, remedy="Give one for each row")
        if one.folds != folds.digest:
            how = "are not known to be out of fold" if one.folds is None else "were made by other folds"
            problem = f"the training predictions of {one.name} {how}"
            remedy = "Cross-fit all models on the stack's folds; to vouch for predictions made elsewhere, but out of "
            remedy += "these folds, give Predictions(…, folds=folds_digest(rows of each fold, n))"
            raise LeakageError(problem, remedy=remedy)
        if train.task == "ranking":
            continue  # a missing score ranks a candidate last
        for values, rows in ((one.oof, folds.scored), (one.test, torch.ones(len(test), dtype=torch.bool))):
            bad = rows & ~in_columns(values).isfinite().all(1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise DataError(f"a prediction of {one.name} is no number", row=row, remedy="Look at what predicted it")
