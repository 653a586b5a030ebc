"""How large trees should be: some sizes are tried on the table itself.

Where what comes of a row hangs on several columns at once, such as the hours of one day at one airport, trees of
hundreds of leaves learn in a third of the time what small ones never do; on noise they learn the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from fastrec._core import limits
from fastrec.auto.chosen import Chosen
from fastrec.auto.problem import Problem
from fastrec.auto.trial import QuickTrial, is_worth
from fastrec.errors import FastrecError
from fastrec.estimators import LGBMModel
from fastrec.validate import Rows


@dataclass(frozen=True)
class TreeSize:
    """Trees of one size, in the words of two libraries.

    Args:
        lgbm: LightGBM's parameters.
        xgb: XGBoost's.
    """

    lgbm: dict[str, Any]
    xgb: dict[str, Any]


SIZES = {
    "usual": TreeSize({}, {}),
    "large": TreeSize(
        {"num_leaves": 127, "min_data_in_leaf": 50},
        {"max_depth": 9, "min_child_weight": 5, "native_cats": True},
    ),
    # Fine bins: numbers such as 1737 may be keys. All rows: neighbours of a row tell most about it.
    "very large": TreeSize(
        {"num_leaves": 511, "min_data_in_leaf": 10, "max_bin": 1023, "bagging_fraction": 1.0},
        {
            "max_depth": 0,
            "max_leaves": 511,
            "grow_policy": "lossguide",
            "min_child_weight": 3,
            "max_bin": 1024,
            "subsample": 1.0,
            "native_cats": True,
        },
    ),
    "small": TreeSize(
        {"num_leaves": 12, "feature_fraction": 0.3, "min_data_in_leaf": 100},
        {"max_depth": 4, "colsample_bytree": 0.3, "min_child_weight": 20},
    ),
}


def choose_trees(
    problem: Problem, chosen: Chosen, *, seconds: float, say: Callable[[str], None] | None = None
) -> Chosen:
    """Try sizes of trees with the chosen features on a fifth of the rows, and note the one that learned most.

    Each learns from the other rows in the same time. While there is time, the best is tried on other fifths. Another
    size than the usual one is taken where it is better by more than chance may give.

    Args:
        problem: what is known of the table.
        chosen: its features; ``trees`` and ``trees_why`` are set.
        seconds: time for all sizes.
        say: told of each outcome.

    Returns:
        ``chosen``.
    """
    say, ends = say or (lambda text: None), time.monotonic() + seconds
    if seconds <= 0 or not _can_be_tried(problem):
        return chosen
    try:
        # A fifth of the rows judges.
        trial = QuickTrial(problem, chosen.features, seconds, rows=limits.TREE_TRIAL_ROWS, n_folds=5)
        label, said = _tried(trial, ends)
    except FastrecError as error:
        say(f"sizes of trees: not tried ({error.problem})")
        return chosen
    if len(said) < 2:
        return chosen
    scores = {n: trial.metric(label[: len(s)], s) for n, s in said.items()}
    best = _best({n: s for n, s in scores.items() if len(said[n]) == len(label)}, trial)
    # The best of several sizes beats another by chance alone: hence 1.5 standard errors.
    if best != "usual" and not is_worth(*trial.gain(label, said[best], said["usual"]), 1.5):
        best = "usual"
    told = ", ".join(f"{n} {s:.5f}" for n, s in scores.items())
    chosen.trees, chosen.trees_why = best, f"{best}: a trial's {trial.metric.name} is {told}"
    say(f"sizes of trees: {best} ({trial.metric.name} {told})")
    return chosen


def _can_be_tried(problem: Problem) -> bool:
    outputs = len(problem.classes) if problem.task == "multiclass" else 1
    size = min(len(problem.train), limits.TREE_TRIAL_ROWS) * max(len(problem.learned), 1) * outputs
    known = problem.task in ("binary", "multiclass", "regression") and len(problem.target) == 1
    # Below 2,000 rows chance decides; of more than 30 million numbers trees take too long to be tried.
    enough = len(problem.train) >= 2_000 and outputs <= 12 and size <= 30e6
    return known and enough and find_spec("lightgbm") is not None


def _tried(trial: QuickTrial, ends: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Predict the rows of a fold with each size, and those of more folds with the usual size and the best other one.

    Returns:
        The rows' targets, and size → predictions of the first of them.
    """
    names, labels = list(SIZES), []
    said: dict[str, list[torch.Tensor]] = {n: [] for n in SIZES}
    for train, valid in trial.parts():
        began, label = time.monotonic(), valid.label
        assert label is not None
        made: dict[str, torch.Tensor] = {}
        for i, name in enumerate(names):
            left = ends - time.monotonic()
            if made and left < trial.seconds / (2 * len(SIZES)):
                break
            made[name] = _fitted(name, train, left / (len(names) - i)).predict(valid)
        if labels and len(made) < len(names):
            break  # of this fold not all has been said
        labels.append(label)
        for name, values in made.items():
            said[name].append(values)
        if len(names) > 2 and len(made) > 1:
            scores = {n: trial.metric(label, v) for n, v in made.items() if n != "usual"}
            names = ["usual", _best(scores, trial)]
        if len(made) == 1 or ends - time.monotonic() < time.monotonic() - began:
            break
    return torch.cat(labels), {n: torch.cat(v) for n, v in said.items() if v}


def _fitted(name: str, train: Rows, seconds: float) -> LGBMModel:
    own = SIZES[name].lgbm
    # More rounds would only be hurried by a higher rate if time is short.
    model = LGBMModel("size", rounds=150, early_stopping_rounds=20, learning_rate=0.1, **own)
    model.time_limit = seconds
    return model.fit(train, None, seed=0)


def _best(scores: dict[str, float], trial: QuickTrial) -> str:
    return (max if trial.metric.greater_is_better else min)(scores, key=scores.__getitem__)
