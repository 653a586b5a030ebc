"""Which models a table gets, the best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from fastrec.auto.choose_trees import SIZES
from fastrec.auto.chosen import Chosen
from fastrec.auto.problem import Problem
from fastrec.estimators._long_tails import long_tails
from fastrec.table import Table

_FINER = {"num_leaves": 1023, "feature_fraction": 0.7, "max_bin": 4095}


@dataclass
class ModelLine:
    """A model in a recipe.

    Args:
        cls: its class.
        text: the expression that makes it.
        imports: another line that it needs.
    """

    cls: str
    text: str
    imports: str = ""


def choose_models(problem: Problem, chosen: Chosen) -> list[ModelLine]:
    """Choose the base models of a recipe: LightGBM, XGBoost and CatBoost if they are installed, and a net.

    Where features were found to pay, one model and CatBoost learn from the files' own columns alone. Where the trials
    had too little time to be believed that model is the first, and one alone learns from the features.

    Args:
        problem: what is known of the table.
        chosen: its features.
    """
    lgbm, cat = find_spec("lightgbm") is not None, find_spec("catboost") is not None
    tried = any(f.kept for f in chosen.families if f.gain is not None)
    # Without a trial of sizes large trees are taken from 30,000 rows on: they learn more in less time.
    wide, many = len(problem.learned) > 100, len(problem.train) >= 30_000
    size = chosen.trees or ("large" if many and not wide and problem.task != "multiclass" else "usual")
    lgb, few = _text(SIZES[size].lgbm), _text(SIZES[size].xgb)
    if wide and size == "usual":
        few = ", max_depth=5, colsample_bytree=0.3, min_child_weight=5"
    made = [ModelLine("LGBMModel", f'LGBMModel("lgbm"{lgb if chosen.trees or not tried else ""})')] if lgbm else []
    # What helps a trial's few rows may stand in the way of many: the stack sees which it is.
    if tried:
        plain = "LGBMModel" if lgbm else "XGBModel"
        line = ModelLine(plain, f'{plain}("plain", columns=OWN{lgb if lgbm else few})')
        made.insert(0 if chosen.hurried else 1, line)
    # A model that was stopped before it had learned all it could finds help where there is none.
    own = ", columns=OWN" if tried and chosen.hurried else ""
    made.append(ModelLine("XGBModel", f'XGBModel("xgb"{own}{few})'))
    if lgbm and size == "very large":  # what is found between single rows, found otherwise
        made.append(ModelLine("LGBMModel", f'LGBMModel("finer"{own}{_text({**SIZES[size].lgbm, **_FINER})})'))
    if lgbm and size in ("usual", "small") and not (many and wide is False and not chosen.trees):
        share = 0.3 if wide else 0.5
        made.append(ModelLine("LGBMModel", f'LGBMModel("extra"{own}, extra_trees=True, feature_fraction={share})'))
    net, *logs = _nets(problem, wide=wide)
    made += [net, *(logs if problem.task == "multiclass" else [])]  # there nets count for more than further trees
    # A saved forest is grown anew where it is read: with more rows that takes too long.
    if len(problem.train) <= 30_000 and not wide:
        made += [m for m in [_forest(problem.task)] if m is not None]
    if cat and not _is_slow(problem):
        named = {"keys": keys} if (keys := _keys(problem)) else {}
        made.append(
            ModelLine("CatBoostModel", f'CatBoostModel("catboost"{", columns=OWN" if tried else ""}{_text(named)})')
        )
    return made + [m for m in logs if m not in made]


def _nets(problem: Problem, *, wide: bool) -> list[ModelLine]:
    """Return a net and, if there are long tails, one that takes them as logarithms: the two err differently."""
    real = problem.task in ("multiclass", "regression") and not wide
    net = ', model="RealMLP"' if real and problem.task == "multiclass" else ""
    made = [ModelLine("NetModel", f'NetModel("net"{net}, bs=bs)')]
    numbers = [c.name for c in problem.kinds("number")]
    if real and long_tails(Table.read(problem.train, numbers), numbers):
        made.append(ModelLine("NetModel", f'NetModel("log_net"{net}, logs=True, bs=bs)'))
    return made


def _is_slow(problem: Problem) -> bool:
    size = len(problem.train) * max(len(problem.learned), 1) * len(problem.classes)
    return problem.task == "multiclass" and size > 10e6


def _keys(problem: Problem) -> list[str]:
    """Return numbers that are text in the files, such as ``c-8``: CatBoost learns more from pairs of categories."""
    return [c.name for c in problem.kinds("number") if c.numeric_text and c.key]


def _forest(task: str) -> ModelLine | None:
    """Return trees that are grown independently, not boosted: the stack gains by models that err differently."""
    if task not in ("binary", "multiclass", "regression"):
        return None
    kind = "ExtraTreesRegressor" if task == "regression" else "ExtraTreesClassifier"
    text = f'SKModel("forest", {kind}(n_estimators=150, min_samples_leaf=2, max_features=0.5, n_jobs=-1), cats="code")'
    return ModelLine("SKModel", text, f"from sklearn.ensemble import {kind}")


def _text(params: Mapping[str, Any]) -> str:
    return "".join(f", {n}={v!r}" for n, v in params.items())


def own_columns(problem: Problem, chosen: Chosen) -> list[str]:
    """Return the columns of the files, and features of columns that no model can take: parts of times, list values."""
    made = [f for family in chosen.families if family.gain is None for f in family.features]
    return [*(c.name for c in problem.kinds("category", "number")), *(n for f in made for n in f.outputs)]
