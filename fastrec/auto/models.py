"""The models of a recipe, and how large their trees are: some sizes are tried on the table itself.

If the target depends on several columns at once, such as the hours of one day at one airport, trees of hundreds of
leaves learn in a third of the time what small ones never do; on noise they overfit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.auto.features import Chosen
from fastrec.auto.problem import Problem
from fastrec.auto.trial import QuickTrial, is_worth
from fastrec.errors import FastrecError
from fastrec.estimators import LGBMModel
from fastrec.estimators.wrapped import long_tails
from fastrec.features import Combine
from fastrec.table import Table

SIZES: dict[str, dict[str, dict[str, Any]]] = {  # size → library → its parameters
    "usual": {"lgbm": {}, "xgb": {}},
    "large": {
        "lgbm": {"num_leaves": 127, "min_data_in_leaf": 50},
        "xgb": {"max_depth": 9, "min_child_weight": 5, "native_cats": True},
    },
    # Fine bins: numbers such as 1737 may be keys. All rows: neighbours of a row tell most about it.
    "very large": {
        "lgbm": {"num_leaves": 511, "min_data_in_leaf": 10, "max_bin": 1023, "bagging_fraction": 1.0},
        "xgb": {
            "max_depth": 0, "max_leaves": 511, "grow_policy": "lossguide", "min_child_weight": 3, "max_bin": 1024,
            "subsample": 1.0, "native_cats": True,
        },
    },
    "small": {
        "lgbm": {"num_leaves": 12, "feature_fraction": 0.3, "min_data_in_leaf": 100},
        "xgb": {"max_depth": 4, "colsample_bytree": 0.3, "min_child_weight": 20},
    },
}  # fmt: skip


def choose_trees(
    problem: Problem, chosen: Chosen, *, seconds: float, say: Callable[[str], None] | None = None
) -> Chosen:
    """Try sizes of trees with the chosen features, each in the same time, and note the best in ``chosen``.

    A fifth of the rows is scored; while there is time, the best size is tried on other fifths too. A size other than
    the usual one is taken only if it is better by more than chance.
    """
    say, ends = say or (lambda text: None), time.monotonic() + seconds
    outputs = len(problem.classes) if problem.task == "multiclass" else 1
    size = min(len(problem.train), limits.TREE_TRIAL_ROWS) * max(len(problem.learned), 1) * outputs
    known = problem.task in ("binary", "multiclass", "regression") and len(problem.target) == 1
    # Below 2,000 rows chance decides; of more than 30 million numbers trees take too long to be tried.
    enough = len(problem.train) >= 2_000 and outputs <= 12 and size <= 30e6
    if seconds <= 0 or not (known and enough and find_spec("lightgbm")):
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


def _tried(trial: QuickTrial, ends: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    # A fold's rows are predicted with each size, those of more folds with the usual and the best other one; returned
    # are the rows' targets, and size → predictions of the first of them.
    names, labels = list(SIZES), []
    said: dict[str, list[torch.Tensor]] = {n: [] for n in SIZES}
    for train, valid in trial.parts():
        began, label = time.monotonic(), valid.label
        made: dict[str, torch.Tensor] = {}
        for i, name in enumerate(names):
            left = ends - time.monotonic()
            if made and left < trial.seconds / (2 * len(SIZES)):
                break
            # More rounds would only be hurried by a higher rate if time is short.
            own = SIZES[name]["lgbm"]
            model = LGBMModel("size", rounds=150, early_stopping_rounds=20, learning_rate=0.1, **own)
            model.regrows = False
            model.suit(trial.metric.name)
            model.time_limit = left / (len(names) - i)
            made[name] = model.fit(train, None, seed=0).predict(valid)
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


def _best(scores: dict[str, float], trial: QuickTrial) -> str:
    return (max if trial.metric.greater_is_better else min)(scores, key=scores.__getitem__)


# Which models a table gets, the best first.

_FINER = {"num_leaves": 1023, "feature_fraction": 0.7, "max_bin": 4095}


@dataclass
class ModelLine:
    """A model in a recipe: its class, the expression that makes it, and another import that it needs."""

    cls: str
    text: str
    imports: str = ""


def choose_models(problem: Problem, chosen: Chosen) -> list[ModelLine]:
    """Choose the base models of a recipe: LightGBM, XGBoost and CatBoost if they are installed, and a net.

    Where features were found to pay, one model learns from the files' own columns alone, and CatBoost unless arithmetic
    was found. Where these gains are in doubt, that model comes first, and LightGBM alone learns from the features.
    """
    lgbm, cat = find_spec("lightgbm") is not None, find_spec("catboost") is not None
    if problem.task == "ranking":
        return _rankers(problem, chosen)
    tried = any(f.kept for f in chosen.families if f.gain is not None)
    # Without a trial of sizes large trees are taken from 30,000 rows on: they learn more in less time.
    wide, many = len(problem.learned) > 100, len(problem.train) >= 30_000
    size = chosen.trees or ("large" if many and not wide and problem.task != "multiclass" else "usual")
    lgb, few = _text(SIZES[size]["lgbm"]), _text(SIZES[size]["xgb"])
    if wide and size == "usual":
        few = ", max_depth=5, colsample_bytree=0.3, min_child_weight=5"
    made = [ModelLine("LGBMModel", f'LGBMModel("lgbm"{lgb if chosen.trees or not tried else ""})')] if lgbm else []
    # What helps a trial's few rows may stand in the way of many: the stack sees which it is.
    if tried:
        plain = "LGBMModel" if lgbm else "XGBModel"
        line = ModelLine(plain, f'{plain}("plain", columns=OWN{lgb if lgbm else few})')
        made.insert(0 if chosen.doubt else 1, line)
    own = ", columns=OWN" if chosen.doubt else ""
    made.append(ModelLine("XGBModel", f'XGBModel("xgb"{own}{few})'))
    if lgbm and size == "very large":  # what is found between single rows, found otherwise
        made.append(ModelLine("LGBMModel", f'LGBMModel("finer"{own}{_text({**SIZES[size]["lgbm"], **_FINER})})'))
    net, *logs = _nets(problem, wide=wide)
    made += [net, *(logs if problem.task == "multiclass" else [])]  # there nets count for more than further trees
    many_ids = sum(c.distinct >= limits.IDS_FROM for c in problem.kinds("category")) > 1
    # A saved forest is grown anew where it is read: with more rows that takes too long.
    # Its trees are grown independently, not boosted: the stack gains by models that err differently.
    if len(problem.train) <= 30_000 and not wide and problem.task in ("binary", "multiclass", "regression"):
        kind = "ExtraTreesRegressor" if problem.task == "regression" else "ExtraTreesClassifier"
        forest = f"{kind}(n_estimators=150, min_samples_leaf=2, max_features=0.5)"
        line = f"from sklearn.ensemble import {kind}"
        made.append(ModelLine("SKModel", f'SKModel("forest", {forest}, cats="code")', line))
        # On few rows one weight a column learns what trees and nets miss: blends err 2 % less (BENCHMARKS.md).
        if not many_ids and problem.task != "regression" and len(problem.train) <= limits.FEW_ROWS:
            linear = 'SKModel("linear", LogisticRegression(C=0.1, max_iter=1000))'
            made.append(ModelLine("SKModel", linear, "from sklearn.linear_model import LogisticRegression"))
    # Neighbours err otherwise than trees do (BENCHMARKS.md); of amounts they err too much.
    if problem.task in ("binary", "multiclass") and not wide and len(problem.train) <= limits.FEW_ROWS:
        made.append(ModelLine("NetModel", 'NetModel("neighbours", model="ModernNCA", bs=bs)'))
    # Of many classes CatBoost is slow.
    size_of_all = len(problem.train) * max(len(problem.learned), 1) * len(problem.classes)
    if cat and not (problem.task == "multiclass" and size_of_all > 10e6):
        # Numbers that are text in the files, such as c-8: CatBoost learns more from pairs of categories.
        keys = [c.name for c in problem.kinds("number") if c.numeric_text and c.key]
        named = {"keys": keys} if keys else {}
        found = [f for family in chosen.families if family.kept and family.gain is not None for f in family.features]
        bare = tried and not any(isinstance(f, Combine) for f in found)
        line = ModelLine("CatBoostModel", f'CatBoostModel("catboost"{", columns=OWN" if bare else ""}{_text(named)})')
        made.insert(0 if many_ids else len(made), line)
    # Of ids by the thousand a weight for each value tells about as much as trees, in seconds, and something else.
    if many_ids and problem.task in ("binary", "regression"):
        binary = problem.task == "binary"
        linear = 'LogisticRegression(C=2.0, solver="liblinear")' if binary else "Ridge()"
        line = f"from sklearn.linear_model import {linear.split('(')[0]}"
        made.insert(1, ModelLine("SKModel", f'SKModel("linear", {linear}, columns=OWN, cats="every")', line))
    made += [m for m in logs if m not in made]
    # Of few rows nets learn most that trees do not (BENCHMARKS.md): one of the other kind comes last.
    if problem.task != "multilabel" and not wide and len(problem.train) <= limits.FEW_ROWS:
        kind = "TabM" if problem.task == "regression" else "RealMLP"
        made.append(ModelLine("NetModel", f'NetModel("other_net", model="{kind}", bs=bs)'))
    return made


def _rankers(problem: Problem, chosen: Chosen) -> list[ModelLine]:
    """Choose the models of a ranking: trees and a net by row and by list, whose errors differ.

    Few rows are positive: small trees learn more. A model row by row comes first: it stops by a loss, which is smoother
    than an order, and is the best alone more often than not.
    """
    small, made = {"num_leaves": 15, "min_data_in_leaf": 50}, []
    # Many columns say nearly the same: by a part of them trees overfit less (BENCHMARKS.md).
    small |= {"feature_fraction": 0.4, "lambda_l2": 3} if len(problem.learned) > 30 else {}
    # What is in a log no model finds in the files' own columns, however long it learns.
    own = ", columns=OWN" if chosen.doubt and problem.log is None else ""
    label = problem.train[problem.target[0]]
    flags = pa.types.is_boolean(label.type) or pc.max(label).as_py() <= 1
    lgbm, many = find_spec("lightgbm") is not None, len(problem.train) > limits.SLOW_RANKER_ROWS
    if lgbm:
        by_row = {"objective": "binary" if flags else "regression", **small}
        made.append(ModelLine("LGBMModel", f'LGBMModel("by_row"{_text(by_row)})'))
    made.append(ModelLine("XGBRanker", f'XGBRanker("xgb"{own})'))
    made.append(ModelLine("NetRanker", 'NetRanker("net", bs=bs)'))
    if lgbm:
        made.append(ModelLine("LGBMModel", f'LGBMModel("lgbm"{own}{_text(small)})'))
    # CatBoost compares the rows of a list many times a round.
    if find_spec("catboost") is not None and not many:
        made.append(ModelLine("CatBoostModel", f'CatBoostModel("catboost"{own})'))
    return made


def _nets(problem: Problem, *, wide: bool) -> list[ModelLine]:
    """Return a net and, if there are long tails, one that takes them as logarithms: the two err differently."""
    # Of several classes of few rows TabM learns more; it takes numbers by their ranks.
    many = problem.task == "multiclass" and len(problem.train) > limits.FEW_ROWS
    real = (problem.task == "regression" or many) and not wide
    net = ', model="RealMLP"' if real and many else ""
    made = [ModelLine("NetModel", f'NetModel("net"{net}, bs=bs)')]
    numbers = [c.name for c in problem.kinds("number")]
    if real and long_tails(Table.read(problem.train, numbers), numbers):
        made.append(ModelLine("NetModel", f'NetModel("log_net"{net}, logs=True, bs=bs)'))
    return made


def _text(params: Mapping[str, Any]) -> str:
    return "".join(f", {n}={v!r}" for n, v in params.items())


def own_columns(problem: Problem, chosen: Chosen) -> list[str]:
    """Return the columns of the files, and features of columns that no model can take: parts of times, list values."""
    made = [f for family in chosen.families if family.gain is None for f in family.features]
    return [*(c.name for c in problem.kinds("category", "number")), *(n for f in made for n in f.outputs)]
