"""Rows → frozen folds → out-of-fold predictions: the only scores that anything is tuned on.

In: rows and what must not be split (a session, a user). Out: a fold for each row; every row's score by the models that
did not see it. ``folds.py`` has the folds (``cut_random.py`` and ``cut_time.py`` cut, ``given.py`` reads what to cut
by, ``fold_checks.py`` refuses leaks, ``fold_file.py`` saves), ``crossfit.py`` trains fold by fold; ``rows.py`` and
``lists.py`` are what estimators are given, ``list_events.py`` what was before each list, ``target.py`` makes labels of
a target column. ``mirror.py`` sees how a test set was cut, ``adversarial.py`` whether it is like training rows.
"""

from fastrec.validate.adversarial import AdversarialReport, adversarial_validation
from fastrec.validate.crossfit import CrossFit, Predictions, Trained, folds_digest
from fastrec.validate.folds import Folds, group_folds
from fastrec.validate.list_events import ListEvents
from fastrec.validate.lists import Lists, whole_lists
from fastrec.validate.rows import Rows
from fastrec.validate.target import Target

__all__ = [
    "AdversarialReport",
    "CrossFit",
    "Folds",
    "ListEvents",
    "Lists",
    "Predictions",
    "Rows",
    "Target",
    "Trained",
    "adversarial_validation",
    "folds_digest",
    "group_folds",
    "whole_lists",
]
