"""Stacking: combine base models' out-of-fold predictions into one prediction, for every task.

The input is the ``Predictions`` of several models on the same folds, the output is ``Stacked``. Blends are chosen by
their cross-fitted score.
"""

from fastrec.stacking.blends import (
    BoostedBlend,
    LinearBlend,
    LogisticBlend,
    MeanBlend,
    OneBase,
    PoolBlend,
    RankMean,
    RidgeBlend,
    TreeBlend,
)
from fastrec.stacking.hill_climb import HillClimb
from fastrec.stacking.stack import Stack, Stacked, StackModel

__all__ = [
    "BoostedBlend",
    "HillClimb",
    "LinearBlend",
    "LogisticBlend",
    "MeanBlend",
    "OneBase",
    "PoolBlend",
    "RankMean",
    "RidgeBlend",
    "Stack",
    "StackModel",
    "Stacked",
    "TreeBlend",
]
