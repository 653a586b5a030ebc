"""Rows → frozen folds → out-of-fold predictions: the only scores that anything is tuned on.

In: rows and what must not be split (a session, a user). Out: a fold for each row; every row's score by the models that
did not see it. ``folds.py`` cuts, ``crossfit.py`` trains fold by fold; ``rows.py`` and ``lists.py`` are what estimators
are given, ``tasks.py`` the kinds of task and ``target.py`` what makes labels of a target column.
"""

from fastrec.validate.crossfit import CrossFit, Predictions, Trained, folds_digest
from fastrec.validate.folds import group_folds
from fastrec.validate.lists import Lists, whole_lists
from fastrec.validate.rows import Rows
from fastrec.validate.target import Target
from fastrec.validate.tasks import TASKS, Task

__all__ = [
    "TASKS",
    "CrossFit",
    "Lists",
    "Predictions",
    "Rows",
    "Target",
    "Task",
    "Trained",
    "folds_digest",
    "group_folds",
    "whole_lists",
]
