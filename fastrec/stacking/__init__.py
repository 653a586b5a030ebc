"""Base models' out-of-fold predictions → one prediction that is better than each, of every task.

In: ``Predictions`` of several models on the same folds. Out: the stack's (``Stacked``). ``stack.py`` tries blends and
chooses among them by cross-fitted score (``choose.py``), on the folds of ``level_two_folds.py``; ``stack_model.py``
keeps what was chosen. ``blends.py`` holds the blends of lists, ``row_blends.py``, ``rank_mean.py`` and
``tree_blend.py`` those of other rows, ``hill_climb.py`` that of all; ``linear.py`` has the fits of weighted sums and
``row_inputs.py`` what blends of rows are given.
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
