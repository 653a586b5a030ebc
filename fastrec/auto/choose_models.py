"""Which models a table gets, the best first."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from fastrec.auto.choose_features import Chosen
from fastrec.auto.problem import Problem


@dataclass
class ModelLine:
    """A model in a recipe.

    Args:
        cls: its class.
        text: the expression that makes it.
    """

    cls: str
    text: str


def choose_models(problem: Problem, chosen: Chosen) -> list[ModelLine]:
    """The base models of a recipe: LightGBM, XGBoost and CatBoost as far as they are installed, and a net.

    Args:
        problem: what is known of the table.
        chosen: its features.
    """
    lgbm, cat = find_spec("lightgbm") is not None, find_spec("catboost") is not None
    made = [ModelLine("LGBMModel", 'LGBMModel("lgbm")')] if lgbm else []
    made.append(ModelLine("XGBModel", 'XGBModel("xgb")'))
    if cat:
        made.append(ModelLine("CatBoostModel", 'CatBoostModel("catboost")'))
    made.append(ModelLine("NetModel", 'NetModel("net", bs=bs)'))
    return made
