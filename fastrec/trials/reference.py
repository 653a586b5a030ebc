"""Choose the model that an idea is tried with, make it lighter, and predict before and after the change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.threads import shared_out
from fastrec.competition.kept_rows import KeptRows, Pair
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError
from fastrec.estimators import Estimator, LGBMModel, XGBModel, XGBRanker
from fastrec.metrics import Interval, Metric, bootstrap_metric
from fastrec.table import Table
from fastrec.validate import Rows, Target

_RATES: dict[type[Estimator], str] = {XGBRanker: "eta", XGBModel: "eta", LGBMModel: "learning_rate"}
_RANDOM_THRESHOLDS = ("extra_trees", "extra_tree")
_RANDOM_SPLITS = {
    *("feature_fraction", "sub_feature", "feature_fraction_bynode", "sub_feature_bynode", *_RANDOM_THRESHOLDS),
    *("colsample_bytree", "colsample_bylevel", "colsample_bynode"),
}


def reference_model(kept: KeptRows, name: str | None = None, *, full: bool = False) -> Estimator:
    """Choose the model that an idea is tried with, untrained: the run's of this name, or its best XGBoost or LightGBM.

    Trees of random thresholds (``extra_trees``) come last. Unless ``full``, trees grow in fewer, larger steps.
    """
    names = list(kept.config["models"])
    if name is not None and name not in names:
        raise DataError(f"the run has no model {name!r}", file=kept.run, remedy=f"It has {', '.join(names)}")
    known = {c.__name__ for c in _RATES}
    about: dict[str, dict[str, Any]] = {}
    for n in names if name is None else []:
        with suppress(OSError, ValueError):  # another model is damaged
            file = kept.run / "models" / n / "fold0" / "estimator.json"
            about[n] = dict(json.loads(file.read_text(encoding="utf-8")))
    if trees := [n for n, saved in about.items() if saved.get("class") in known]:
        scores = json.loads((kept.run / "scores.json").read_text(encoding="utf-8"))
        sign = 1 if scores["greater_is_better"] else -1
        # such trees differ by chance: a new column would change all their draws
        random = {n: any(about[n]["settings"].get(s) for s in _RANDOM_THRESHOLDS) for n in trees}
        name = max(trees, key=lambda n: (not random[n], sign * scores["oof"][n]))
    if name is None:
        model: Estimator = XGBRanker("xgb") if kept.task == "ranking" else XGBModel("xgb")
    else:
        model = Estimator.load(kept.run / "models" / name / "fold0").fresh()
    if not model.learns:
        raise DataError(f"{name} learns nothing from features", file=kept.run, remedy="Choose another --model")
    return model if full else lighter(model)


def without_random_splits(model: Estimator) -> Estimator:
    """Return the same trees with all columns and thresholds in every split; the name tells of thresholds."""
    # if columns were drawn at random, one column more would change all draws
    kind = type(model)
    if kind not in _RATES:
        return model
    given = model.settings()
    settings = {n: v for n, v in given.items() if n not in _RANDOM_SPLITS}
    if any(given.get(n) for n in _RANDOM_THRESHOLDS):
        settings["name"] += " without random splits"
    return kind(**settings, **{"feature_fraction" if kind is LGBMModel else "colsample_bytree": 1.0})


def lighter(model: Estimator, *, stop: bool = True) -> Estimator:
    """Return trees with fewer and larger steps, of .3 at least: rounds times learning rate stays. Other models stay.

    ``stop``: keep early stopping; False: grow all rounds, at most 100.
    """
    kind = type(model)
    if kind not in _RATES:
        return model
    name, settings = _RATES[kind], model.settings()
    usual = model.defaults[name]
    before = float(next((settings.pop(n) for n in ("eta", "learning_rate", "shrinkage_rate") if n in settings), usual))
    share = min(before / 0.3, 1.0)
    settings |= {name: max(before, 0.3), "rounds": max(round(settings["rounds"] * share), 1)}
    early = settings["early_stopping_rounds"]
    # larger steps need fewer rounds to stop
    settings["early_stopping_rounds"] = max(round(early * share), 5) if early and stop else None
    if not stop:
        settings["rounds"] = min(settings["rounds"], 100)
    light = kind(**settings)
    light.regrows = False
    return light


def scorer_of(kept: KeptRows) -> Scorer:
    """Return the run's metric, on the target's scale."""
    target = None if kept.task == "ranking" else Target.load(kept.run / "target")
    return Scorer.of(kept.config["metric"], target)


class RunColumns:
    """The columns that a run's models learn from, for the two sides of every fold.

    ``without``: columns that a change leaves out; ``beside``: further columns, which a model's settings name.
    """

    def __init__(self, kept: KeptRows, without: Sequence[str] = (), beside: Sequence[str] = ()) -> None:
        self.kept, self.without = kept, list(without)
        names = [*kept.cats, *kept.conts]
        if (odd := next((n for n in without if n not in names), None)) is not None:
            near = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise DataError("the run's models do not learn from it", column=odd, remedy=f"They learn from {near}")
        self.names = list(dict.fromkeys([*names, *beside]))
        if set(names) <= set(without):
            raise DataError("no column is left to learn from", remedy="Drop fewer columns")
        raw = [n for n in self.names if n not in kept.outputs]
        features = [n for n in self.names if n in kept.outputs]
        # features without targets have the same values in every fold, and are read once
        self._by_fold = [n for n in features if n in kept.from_targets or not kept.nested]
        same = kept.made([n for n in features if n not in self._by_fold])
        self._table = (kept.train(raw) if raw else Table({})).with_columns({n: same[n] for n in same.names})

    def folds(self, new: Iterator[Pair] | None = None) -> Iterator[tuple[Side, Side]]:
        """Yield the rows that each fold trains on, and those that it scores; ``new``: further columns, fold by fold."""
        for k, both in enumerate(self.kept.folds):
            of_fold = self.kept.made_of_fold(k, self._by_fold) if self._by_fold else (None, None)
            more = (None, None) if new is None else next(new)
            train, valid = (Side(self, *side) for side in zip(both, of_fold, more, strict=True))
            yield train, valid

    def rows(self) -> Rows:
        """Return all training rows; features with targets are those out of fold."""
        made = self.kept.made(self._by_fold)
        return self.kept.rows(self._table.with_columns({n: made[n] for n in made.names}))

    def table(self, names: Sequence[str], rows: torch.Tensor) -> Table:
        """Take some rows of the columns that are the same in every fold."""
        some = self._table.select([n for n in self._table.names if n in names])
        return some.take(rows) if some.names else some

    @cached_property
    def places(self) -> torch.Tensor | None:
        """A number for each row: rows of one number are on the same side of every fold. None: folds are repeated."""
        if self.kept.folds.is_repeated:
            return None
        codes = torch.zeros(len(self.kept), dtype=torch.int64)
        for outside, inside in self.kept.folds:
            codes = codes * 3
            codes[outside] += 1
            codes[inside] += 2
            codes = torch.unique(codes, return_inverse=True)[1]
        return codes


class Side:
    """The rows that a fold trains on, or those that it scores (``rows``, ascending numbers).

    ``of_fold`` has the run's columns that were computed for the fold, ``new`` those of an idea.
    """

    def __init__(self, columns: RunColumns, rows: torch.Tensor, of_fold: Table | None, new: Table | None) -> None:
        self.columns, self.rows = columns, rows
        self._tables = [t for t in (of_fold, new) if t is not None]
        self.new_names = [] if new is None else new.names

    def take(self, at: torch.Tensor | None = None, *, moved: Sequence[str] = (), seed: int = 0) -> Rows:
        """Take rows by their places ``at`` on this side, None: all; columns in ``moved`` are shuffled in one order."""
        at = torch.arange(len(self.rows)) if at is None else at
        table = self._table([*self.columns.names, *self.new_names], at)
        if moved:
            other = self._table(moved, self._order(seed)[at])
            table = table.with_columns({n: other[n] for n in other.names})
        return self.columns.kept.rows(table, self.rows[at], added=self.new_names)

    def _table(self, names: Sequence[str], at: torch.Tensor) -> Table:
        table = self.columns.table(names, self.rows[at])
        for more in self._tables:
            some = more.select([n for n in more.names if n in names]).take(at)
            table = table.with_columns({n: some[n] for n in some.names})
        return table

    def _order(self, seed: int) -> torch.Tensor:
        """Draw for each place on this side the place whose values it gets."""
        places, draw = self.columns.places, torch.Generator().manual_seed(seed)
        if places is None:
            return torch.randperm(len(self.rows), generator=draw)
        # one order for all folds: as any other column, a shuffled one has the same value of a row in every fold
        order = torch.randperm(len(places), generator=draw)
        source = torch.empty_like(order)
        source[torch.argsort(places, stable=True)] = order[torch.argsort(places[order], stable=True)]
        return torch.searchsorted(self.rows, source[self.rows])


def thinned(count: int, groups: torch.Tensor | None, most: int, seed: int) -> torch.Tensor | None:
    """Draw about ``most`` rows, or whole groups: their places, int64, ascending; None: all."""
    if count <= most:
        return None
    draw = torch.Generator().manual_seed(seed)
    if groups is None:
        return torch.sort(torch.randperm(count, generator=draw)[:most]).values
    lists, codes = torch.unique_consecutive(groups, return_inverse=True)
    return (torch.rand(len(lists), generator=draw) < most / count)[codes].nonzero().squeeze(1)


def columns_named_by(model: Estimator, kept: KeptRows) -> list[str]:
    """List the columns that a model's settings name and that it does not learn from, such as an offset."""
    known = {*kept.columns, *kept.outputs} - {*kept.cats, *kept.conts}
    return [v for v in model.settings().values() if isinstance(v, str) and v in known]


def predict_sides(
    kept: KeptRows, model: Estimator, columns: RunColumns, new: Iterator[Pair] | None, *, device: torch.device,
    light: bool,
) -> tuple[torch.Tensor, dict[str, float]]:  # fmt: skip
    """Predict out of fold before and after a change, ``limits.TRY_REPEATS`` times each.

    Before the change the ``new`` columns are shuffled, after it those that are left out; a repeat has the same rows and
    seed for both. ``light``: train on at most ``limits.TRY_ROWS`` rows of a fold. Returns float64 ``[2, repeats, n]``
    or ``[2, repeats, n, k]``, NaN for rows that no fold scores; feature → mean gain after the change.
    """
    total: torch.Tensor | None = None
    repeats = limits.TRY_REPEATS
    jobs = [(after, r) for r in range(repeats) for after in (False, True)]
    gains: dict[str, float] = {}
    groups = kept.tensors["groups"] if kept.task == "ranking" else None
    # trees of one thread each are trained side by side
    at_once = min(torch.get_num_threads(), len(jobs)) if model.beside and on_host(device) else 1
    with shared_out(at_once) as pool:
        for k, (train, valid) in enumerate(columns.folds(new)):

            def predicted(
                job: tuple[bool, int], k: int = k, train: Side = train, valid: Side = valid
            ) -> tuple[torch.Tensor, dict[str, float]]:
                after, r = job
                moved, seed = columns.without if after else train.new_names, kept.seed + k + 1000 * r
                own = None if groups is None else groups[train.rows]
                some = thinned(len(train.rows), own, limits.TRY_ROWS, seed) if light else None
                # one draw of rows and one shuffle for both sides of a repeat
                scored = valid.take(moved=moved, seed=r)
                fitted = model.fresh().fit(train.take(some, moved=moved, seed=r), scored, seed=seed, device=device)
                return fitted.predict(scored), dict(fitted.trace.importance) if after else {}

            for (after, r), (scores, importance) in zip(jobs, pool.map(predicted, jobs)):
                if bool(scores.isnan().any()):
                    raise DataError(f"{model.name} predicts NaN in fold {k}", remedy="Choose another --model")
                if total is None:
                    total = torch.zeros((2, repeats, len(kept), *scores.shape[1:]), dtype=torch.float64)
                total[int(after), r, valid.rows] += scores
                for name, gain in importance.items():
                    gains[name] = gains.get(name, 0.0) + gain / repeats / len(kept.folds)
    assert total is not None  # there are at least two folds
    times = sum(torch.zeros(len(kept)).index_fill_(0, inside, 1.0) for _, inside in kept.folds)
    return total / times.reshape(-1, *[1] * (total.dim() - 3)), gains  # 0 / 0 is NaN: a row that no fold scores


# for every fold the numbers of the rows that it scores, its training rows, and the rows that it scores
FoldRows = tuple[torch.Tensor, Rows, Rows]


def permuted_losses(
    model: Estimator, folds: Iterable[FoldRows], metric: Metric, restore: Callable[[torch.Tensor], torch.Tensor] | None,
    clusters: torch.Tensor | None, *, seed: int = 0, device: torch.device | None = None,
) -> dict[str, Interval]:  # fmt: skip
    """Measure by how much a metric is worse if one column is shuffled (Breiman 2001, section 10), out of fold.

    ``restore`` takes labels and predictions to the target's scale; ``clusters`` (int64 ``[n]``, all rows; None: lists
    or rows) are resampled whole. Returns column → the loss, above 0 if the metric is worse, with its 95 % interval.
    """
    restore = restore or (lambda values: values)
    draw = torch.Generator().manual_seed(seed)
    parts: dict[str | None, list[torch.Tensor]] = {None: []}
    numbers, labels, groups = [], [], []
    for k, (at, train, valid) in enumerate(folds):
        fitted = model.fresh().fit(train, None, seed=seed + k, device=device)
        gains, base = fitted.trace.importance, fitted.predict(valid)
        for name in valid.names:
            order = torch.randperm(len(valid), generator=draw)
            predicted = base
            # a column without gain is not in the model: shuffling it changes nothing
            if not gains or gains.get(name, 0.0) > 0:
                table = valid.table.with_columns({name: valid.table[name].take(order.to(valid.table.device))})
                predicted = fitted.predict(valid.with_table(table))
            parts.setdefault(name, []).append(restore(predicted))
        parts[None].append(restore(base))
        numbers.append(at)
        labels.append(restore(valid.label))
        groups.append(valid.groups)
    y, rows = torch.cat(labels), torch.cat(numbers)
    lists = torch.cat(groups) if valid.task == "ranking" else None
    units = None if clusters is None else clusters[rows]
    predictions = {n: torch.cat(values) for n, values in parts.items()}
    base, losses = predictions.pop(None), {}
    for name, shuffled in predictions.items():
        if torch.equal(shuffled, base):
            losses[name] = Interval(0.0, 0.0, 0.0)
            continue
        pair = {"a": base, "b": shuffled} if metric.greater_is_better else {"a": shuffled, "b": base}
        # 200 resamples bound the time, as every column draws its own (not measured)
        result = bootstrap_metric(metric, y, pair, groups=lists, clusters=units, repeats=200)
        losses[name] = result.difference("a", "b")
    return losses
