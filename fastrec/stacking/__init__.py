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
)
from fastrec.stacking.stack import Stack, Stacked, StackModel
from fastrec.stacking.trees import HillClimb, TreeBlend

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
