"""Validation: rows → frozen folds → out-of-fold predictions, the only scores that anything is tuned on."""

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
