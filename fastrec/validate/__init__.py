"""Rows → frozen folds → out-of-fold predictions: the only scores that anything is tuned on.

In: rows and what must not be split (a session, a user). Out: a fold for each row; every row's score by the models that
did not see it. ``folds.py`` has them (``cut_random.py`` and ``cut_time.py`` cut, ``given.py`` reads what to cut by,
``fold_checks.py`` refuses leaks, ``fold_file.py`` saves), ``crossfit.py`` trains fold by fold, ``lists.py`` is what
estimators are given. ``mirror.py`` sees how a test set was cut, ``adversarial.py`` whether it is like training rows.
"""

from fastrec.validate.adversarial import AdversarialReport, adversarial_validation
from fastrec.validate.crossfit import CrossFit, Predictions
from fastrec.validate.folds import Folds, group_folds
from fastrec.validate.lists import Lists, whole_lists

__all__ = [
    "AdversarialReport",
    "CrossFit",
    "Folds",
    "Lists",
    "Predictions",
    "adversarial_validation",
    "group_folds",
    "whole_lists",
]
