"""Base models' out-of-fold scores → one score that is better than each.

In: ``Predictions`` of several models on the same folds. Out: the stack's. ``stack.py`` chooses among the blends by
cross-fitted score, ``blends.py`` holds them.
"""

from fastrec.stacking.blends import AverageBlend, BoostedBlend, LinearBlend
from fastrec.stacking.stack import Stack

__all__ = ["AverageBlend", "BoostedBlend", "LinearBlend", "Stack"]
