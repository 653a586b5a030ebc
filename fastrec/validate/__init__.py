"""Rows → frozen folds → out-of-fold predictions: the only scores that anything is tuned on.

In: rows and what must not be split (a session, a user). Out: a fold for each row; every row's score by the models that
did not see it. ``folds.py`` cuts, ``crossfit.py`` trains fold by fold, ``lists.py`` is what estimators are given.
"""

from fastrec.validate.crossfit import CrossFit, Predictions
from fastrec.validate.folds import group_folds
from fastrec.validate.lists import Lists, whole_lists

__all__ = ["CrossFit", "Lists", "Predictions", "group_folds", "whole_lists"]
