"""Base models' out-of-fold predictions → one prediction that is better than each, for every task.

In: ``Predictions`` of several models on the same folds. Out: the stack's (``Stacked``). Blends are chosen by their
cross-fitted score.
"""

from fastrec.stacking.blends import (
    AverageBlend,
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
    "AverageBlend",
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
