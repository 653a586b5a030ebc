"""The model that an idea is tried with: which one of a run's, made lighter; its predictions before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch

from fastrec._core.threads import shared_out
from fastrec.competition.kept_rows import KeptRows, Pair
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError
from fastrec.estimators import Estimator, LGBMModel, XGBModel, XGBRanker
from fastrec.table import Table, load_state
from fastrec.validate import Rows, Target

LIGHT_RATE = 0.3
LIGHT_ROWS = 10_000  # that a fold's light model trains on at most, or some more where lists are whole
REPEATS = 5  # seeds and orders of the shuffled columns
_RATES = {  # class → the name of its learning rate, and the rate where none is given
    XGBRanker: ("eta", 0.1),
    XGBModel: ("eta", XGBModel.defaults["eta"]),
    LGBMModel: ("learning_rate", LGBMModel.defaults["learning_rate"]),
}
_RANDOM_SPLITS = {
    *("feature_fraction", "sub_feature", "feature_fraction_bynode", "sub_feature_bynode", "extra_trees", "extra_tree"),
    *("colsample_bytree", "colsample_bylevel", "colsample_bynode"),
}
_OTHER_NAMES = ("eta", "learning_rate", "shrinkage_rate")


def reference_model(kept: KeptRows, name: str | None = None, *, full: bool = False) -> Estimator:
    """The model that an idea is tried with, untrained.

    Args:
        kept: the run's rows.
        name: one of the run's models; None: of its XGBoost and LightGBM models the one with the best out-of-fold score,
            and where it has none XGBoost as it is.
        full: with the run's own settings; otherwise trees are grown in fewer and larger steps.

    Raises:
        DataError: the run has no such model, or one that learns nothing.
    """
    names = list(kept.config["models"])
    if name is not None and name not in names:
        raise DataError(f"the run has no model {name!r}", file=kept.run, remedy=f"It has {', '.join(names)}")
    trees = [n for n in names if _class_of(kept.run, n) in {c.__name__ for c in _RATES}] if name is None else []
    if name is None and trees:
        scores = json.loads((kept.run / "scores.json").read_text(encoding="utf-8"))
        sign = 1 if scores["greater_is_better"] else -1
        name = max(trees, key=lambda n: sign * scores["oof"][n])
    if name is None:
        model: Estimator = XGBRanker("xgb") if kept.task == "ranking" else XGBModel("xgb")
    else:
        model = Estimator.load(kept.run / "models" / name / "fold0").fresh()
    if not model.learns:
        raise DataError(f"{name} learns nothing from features", file=kept.run, remedy="Choose another --model")
    return model if full else lighter(model)


def _class_of(run: Path, name: str) -> str:
    try:
        return str(
            json.loads((run / "models" / name / "fold0" / "estimator.json").read_text(encoding="utf-8"))["class"]
        )
    except (OSError, ValueError, KeyError):
        return ""


def without_random_splits(model: Estimator) -> Estimator:
    """The same trees with all columns and thresholds in every split: a column more would draw all others anew."""
    kind = next((c for c in _RATES if type(model) is c), None)
    if kind is None:
        return model
    settings = {n: v for n, v in model.settings().items() if n not in _RANDOM_SPLITS}
    return kind(**settings, **{"feature_fraction" if kind is LGBMModel else "colsample_bytree": 1.0})


def lighter(model: Estimator, *, rate: float = LIGHT_RATE, stop: bool = True) -> Estimator:
    """The same trees in fewer and larger steps: rounds times learning rate stays what it is. Other models stay.

    Args:
        model: a model.
        rate: the learning rate; a model that has a higher one keeps it.
        stop: keep early stopping; False: grow all rounds, at most 100.
    """
    kind = next((c for c in _RATES if type(model) is c), None)
    if kind is None:
        return model
    name, usual = _RATES[kind]
    settings = model.settings()
    given = next((settings.pop(n) for n in _OTHER_NAMES if n in settings), usual)
    own = float(given)
    share = min(own / rate, 1.0)
    settings |= {name: max(own, rate), "rounds": max(round(settings["rounds"] * share), 1)}
    early = settings["early_stopping_rounds"]
    settings["early_stopping_rounds"] = max(round(early * share), 5) if early and stop else None
    if not stop:
        settings["rounds"] = min(settings["rounds"], 100)
    return kind(**settings)


def scorer_of(kept: KeptRows) -> Scorer:
    """The run's metric, on the target's own scale."""
    target = None if kept.task == "ranking" else Target.from_state(load_state(kept.run / "target"))
    return Scorer.of(kept.config["metric"], target)


class RunColumns:
    """The columns that a run's models learn from, for the two sides of every fold.

    Args:
        kept: the run's rows.
        without: columns that a change leaves out.
        beside: columns that are not learned from, and are there all the same.

    Raises:
        DataError: a column that is left out is none of them, or nothing is left.
    """

    def __init__(self, kept: KeptRows, without: Sequence[str] = (), beside: Sequence[str] = ()) -> None:
        self.kept, self.without = kept, list(without)
        names = [*kept.cats, *kept.conts]
        odd = next((n for n in without if n not in names), None)
        if odd is not None:
            near = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise DataError("the run's models do not learn from it", column=odd, remedy=f"They learn from {near}")
        self.names = list(dict.fromkeys([*names, *beside]))
        if set(names) <= set(without):
            raise DataError("no column is left to learn from", remedy="Drop fewer columns")
        own = [n for n in self.names if n not in kept.outputs]
        made = [n for n in self.names if n in kept.outputs]
        # what no target passes through has the same values in every fold, and is read once
        self._by_fold = [n for n in made if n in kept.from_targets or not kept.nested]
        self._table = kept.train(own) if own else Table({})
        same = kept.made([n for n in made if n not in self._by_fold])
        self._table = self._table.with_columns({n: same[n] for n in same.names})

    def folds(self, new: Iterator[Pair] | None = None) -> Iterator[tuple[Side, Side]]:
        """The rows that each fold trains on, and those that it scores.

        Args:
            new: other columns of the same rows, fold by fold, to lay beside.
        """
        for k, both in enumerate(self.kept.folds):
            own = self.kept.made_of_fold(k, self._by_fold) if self._by_fold else (None, None)
            more = (None, None) if new is None else next(new)
            train, valid = (Side(self, *side) for side in zip(both, own, more, strict=True))
            yield train, valid

    def table(self, names: Sequence[str], rows: torch.Tensor) -> Table:
        """Columns of some rows that are the same in every fold."""
        found = self._table.select([n for n in self._table.names if n in names])
        return found.take(rows) if found.names else found

    @cached_property
    def places(self) -> torch.Tensor | None:
        """A number for each row: rows of one number are in the same folds on the same sides; None: too few are."""
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
    """The rows that a fold trains on, or those that it scores.

    Args:
        columns: the run's.
        rows: int64 ``[m]``: which rows they are, ascending.
        own: the run's columns that are made for the fold; None: there are none.
        new: those of an idea; None: there are none.
    """

    def __init__(self, columns: RunColumns, rows: torch.Tensor, own: Table | None, new: Table | None) -> None:
        self.columns, self.rows = columns, rows
        self._made = [t for t in (own, new) if t is not None]
        self.new_names = [] if new is None else new.names

    def take(self, at: torch.Tensor | None = None, *, moved: Sequence[str] = (), seed: int = 0) -> Rows:
        """Some of the rows.

        Args:
            at: int64: their places on this side; None: all.
            moved: columns whose values are shuffled, all in the same order.
            seed: of that order, which is the same in every fold: a shuffled column follows its rows as any other.
        """
        at = torch.arange(len(self.rows)) if at is None else at
        table = self._table([*self.columns.names, *self.new_names], at)
        if moved:
            other = self._table(moved, self._order(seed)[at])
            table = table.with_columns({n: other[n] for n in other.names})
        return self.columns.kept.rows(table, self.rows[at], added=self.new_names)

    def _table(self, names: Sequence[str], at: torch.Tensor) -> Table:
        table = self.columns.table(names, self.rows[at])
        for made in self._made:
            some = made.select([n for n in made.names if n in names]).take(at)
            table = table.with_columns({n: some[n] for n in some.names})
        return table

    def _order(self, seed: int) -> torch.Tensor:
        """For each place on this side the one whose values come there."""
        places, draw = self.columns.places, torch.Generator().manual_seed(seed)
        if places is None:
            return torch.randperm(len(self.rows), generator=draw)
        order = torch.randperm(len(places), generator=draw)
        source = torch.empty_like(order)
        source[torch.argsort(places, stable=True)] = order[torch.argsort(places[order], stable=True)]
        return torch.searchsorted(self.rows, source[self.rows])


def _thinned(kept: KeptRows, rows: torch.Tensor, most: int, seed: int) -> torch.Tensor | None:
    """The places of some of the rows, whole lists in a ranking: int64, ascending; None: all."""
    if len(rows) <= most:
        return None
    draw = torch.Generator().manual_seed(seed)
    if kept.task != "ranking":
        return torch.sort(torch.randperm(len(rows), generator=draw)[:most]).values
    lists, codes = torch.unique_consecutive(kept.tensors["groups"][rows], return_inverse=True)
    return (torch.rand(len(lists), generator=draw) < most / len(rows))[codes].nonzero().squeeze(1)


def columns_named_by(model: Estimator, kept: KeptRows) -> list[str]:
    """Columns that a model's settings name and that it does not learn from: where trees start, an offset."""
    known = {*kept.columns, *kept.outputs} - {*kept.cats, *kept.conts}
    return [v for v in model.settings().values() if isinstance(v, str) and v in known]


def predict_sides(
    kept: KeptRows,
    model: Estimator,
    columns: RunColumns,
    new: Iterator[Pair] | None,
    *,
    device: torch.device,
    light: bool,
) -> tuple[torch.Tensor, dict[str, float]]:
    """A model's out-of-fold predictions before and after a change, ``REPEATS`` times each.

    Both sides have the same columns: before the change the new ones are shuffled, after it those that are left out. In
    one repeat both have the same rows and the same seed.

    Args:
        kept: the run's rows.
        model: untrained.
        columns: the run's, and which of them are left out.
        new: other columns of the same rows, fold by fold.
        device: where to train.
        light: train on at most ``LIGHT_ROWS`` rows of a fold, others in each repeat.

    Returns:
        Float64 ``[2, REPEATS, n]`` or ``[2, REPEATS, n, k]``, before and after, NaN for rows that no fold scores;
        feature → gain after the change, mean over folds and repeats.

    Raises:
        DataError: the model predicts NaN.
    """
    made: torch.Tensor | None = None
    jobs = [(after, r) for r in range(REPEATS) for after in (False, True)]
    gains: dict[str, float] = {}
    at_once = min(torch.get_num_threads(), len(jobs)) if model.beside and device.type == "cpu" else 1
    with shared_out(at_once) as pool:
        for k, (train, valid) in enumerate(columns.folds(new)):

            def predicted(
                job: tuple[bool, int], k: int = k, train: Side = train, valid: Side = valid
            ) -> tuple[torch.Tensor, dict[str, float]]:
                after, r = job
                moved, seed = columns.without if after else train.new_names, kept.seed + k + 1000 * r
                some = _thinned(kept, train.rows, LIGHT_ROWS, seed) if light else None
                scored = valid.take(moved=moved, seed=r)
                fitted = model.fresh().fit(train.take(some, moved=moved, seed=r), scored, seed=seed, device=device)
                return fitted.predict(scored), dict(fitted.trace.importance) if after else {}

            for (after, r), (scores, found) in zip(jobs, pool.map(predicted, jobs)):
                if bool(scores.isnan().any()):
                    raise DataError(f"{model.name} predicts NaN in fold {k}", remedy="Choose another --model")
                if made is None:
                    made = torch.zeros((2, REPEATS, len(kept), *scores.shape[1:]), dtype=torch.float64)
                made[int(after), r, valid.rows] += scores
                for name, gain in found.items():
                    gains[name] = gains.get(name, 0.0) + gain / REPEATS / len(kept.folds)
    assert made is not None  # folds are two at least
    times = sum(torch.zeros(len(kept)).index_fill_(0, inside, 1.0) for _, inside in kept.folds)
    return made / times.reshape(-1, *[1] * (made.dim() - 3)), gains  # 0 / 0: a row that no fold scores
