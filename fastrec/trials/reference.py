"""The model that an idea is tried with: which one of a run's, made lighter, and its predictions out of fold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fastrec import __version__
from fastrec._core.atomic import atomic_folder
from fastrec.competition.kept_rows import KeptRows, Pair
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.estimators import Estimator, LGBMModel, XGBModel, XGBRanker
from fastrec.features._engine.digests import NoDigestError, class_digest, digest
from fastrec.table import Table, load_state
from fastrec.validate import CrossFit, Rows, Target

LIGHT_RATE = 0.3
LIGHT_ROWS = 40_000  # that a fold's light model trains on at most, or some more where lists are whole
_RATES = {  # class → the name of its learning rate, and the rate where none is given
    XGBRanker: ("eta", 0.1),
    XGBModel: ("eta", XGBModel.defaults["eta"]),
    LGBMModel: ("learning_rate", LGBMModel.defaults["learning_rate"]),
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
        without: columns to leave out.
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
        self.names = [n for n in dict.fromkeys([*names, *beside]) if n not in without or n in beside]
        if set(names) <= set(without):
            raise DataError("no column is left to learn from", remedy="Drop fewer columns")
        own = [n for n in self.names if n not in kept.outputs]
        made = [n for n in self.names if n in kept.outputs]
        # what no target passes through has the same values in every fold, and is read once
        self._by_fold = [n for n in made if n in kept.from_targets or not kept.nested]
        self._table = kept.train(own) if own else Table({})
        same = kept.made([n for n in made if n not in self._by_fold])
        self._table = self._table.with_columns({n: same[n] for n in same.names})

    def folds(self, new: Iterator[Pair] | None = None, *, most: int | None = None) -> Iterator[tuple[Rows, Rows]]:
        """The rows that each fold trains on, and those that it scores.

        Args:
            new: other columns of the same rows, fold by fold, to lay beside.
            most: of more training rows so many are taken at random, whole lists in a ranking; None: all.
        """
        for k, (outside, inside) in enumerate(self.kept.folds):
            own = self.kept.made_of_fold(k, self._by_fold) if self._by_fold else (None, None)
            more = (None, None) if new is None else next(new)
            chosen = self._thinned(outside, most, self.kept.seed + k)
            yield self._side(outside, own[0], more[0], chosen), self._side(inside, own[1], more[1], None)

    def _thinned(self, rows: torch.Tensor, most: int | None, seed: int) -> torch.Tensor | None:
        """Which of a fold's training rows are taken: int64, ascending; None: all."""
        if most is None or len(rows) <= most:
            return None
        draw = torch.Generator().manual_seed(seed)
        if self.kept.task != "ranking":
            return torch.sort(torch.randperm(len(rows), generator=draw)[:most]).values
        lists, codes = torch.unique_consecutive(self.kept.tensors["groups"][rows], return_inverse=True)
        return (torch.rand(len(lists), generator=draw) < most / len(rows))[codes].nonzero().squeeze(1)

    def _side(self, rows: torch.Tensor, own: Table | None, new: Table | None, chosen: torch.Tensor | None) -> Rows:
        """A fold's side: its rows, the columns that are made for it, and the new ones; ``chosen`` of them."""
        at = rows if chosen is None else rows[chosen]
        table = self._table.take(at) if self._table.names else self._table
        for other in (own, new):
            if other is not None:
                other = other if chosen is None else other.take(chosen)
                table = table.with_columns({n: other[n] for n in other.names})
        return self.kept.rows(table, at, without=self.without, added=() if new is None else new.names)


def columns_named_by(model: Estimator, kept: KeptRows) -> list[str]:
    """Columns that a model's settings name and that it does not learn from: where trees start, an offset."""
    known = {*kept.columns, *kept.outputs} - {*kept.cats, *kept.conts}
    return [v for v in model.settings().values() if isinstance(v, str) and v in known]


def predict_folds(
    kept: KeptRows, model: Estimator, folds: Iterator[tuple[Rows, Rows]], *, device: torch.device, light: bool = False
) -> tuple[torch.Tensor, dict[str, float]]:
    """A model's out-of-fold predictions: every fold's model gets the seed that it got in the run.

    Args:
        kept: the run's rows.
        model: untrained.
        folds: as ``RunColumns.folds`` gives them.
        device: where to train.
        light: the folds have few rows, so that several are trained at once where that is faster.

    Returns:
        Float64 ``[n]`` or ``[n, k]``, NaN for rows that no fold scores; feature → gain, mean over the folds.
    """
    cross = CrossFit(
        [model],
        len(kept),
        0,
        seed=kept.seed,
        device=device,
        scored=kept.folds.scored,
        repeated=not kept.folds.is_partition,
    )
    sides = ((*rows, inside, outside) for rows, (outside, inside) in zip(folds, kept.folds, strict=True))
    at_once = min(torch.get_num_threads(), len(kept.folds)) if model.beside and device.type == "cpu" else 1
    if light and at_once > 1:
        cross.side_by_side(sides, at_once)
    else:
        for train, valid, inside, outside in sides:
            cross.fold(train, valid, inside, None, train_rows=outside)
    made = cross.finish()[model.name]
    return made.oof, made.importance


def baseline(kept: KeptRows, model: Estimator, *, device: torch.device) -> torch.Tensor:
    """The light model's out-of-fold predictions with the run's columns as they are; kept among the run's parts.

    Args:
        kept: the run's rows.
        model: untrained.
        device: where to train.
    """
    settings = json.dumps(model.settings(), sort_keys=True, default=str)
    about = (__version__, kept.name, settings, LIGHT_ROWS, device.type, torch.get_num_threads())
    try:
        place = kept.parts.folder_of("baseline", digest(class_digest(type(model)), *about)[:20])
    except NoDigestError:  # a class of one's own that cannot be known again
        place = None
    if place is not None and (place / "oof.safetensors").is_file():
        with suppress(OSError, SafetensorError, KeyError):  # damaged: made anew
            return load_file(place / "oof.safetensors")["oof"]
    columns = RunColumns(kept, beside=columns_named_by(model, kept))
    made, _ = predict_folds(kept, model, columns.folds(most=LIGHT_ROWS), device=device, light=True)
    if place is not None:
        with atomic_folder(place) as part:
            save_file({"oof": made.contiguous()}, part / "oof.safetensors")
    return made


def predictions_of_run(kept: KeptRows, name: str) -> torch.Tensor:
    """A model's out-of-fold predictions as the run has written them, on the target's own scale."""
    path = kept.run / "oof" / f"{name}.parquet"
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Give a complete run directory")
    try:
        table = Table.read(path)
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"it cannot be read ({error})", file=path, remedy="Run the recipe again") from error
    names = ["score"] if kept.task == "ranking" else [n for n in table.names if n.startswith("prediction")]
    values: list[Any] = [table[n].number(torch.float64).cpu() for n in names]
    return values[0] if len(values) == 1 else torch.stack(values, 1)
