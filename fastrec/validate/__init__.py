"""Validation: frozen folds of rows, and out-of-fold predictions, the only scores used for tuning."""

from fastrec.validate.crossfit import CrossFit, Predictions, Trained, folds_digest
from fastrec.validate.cuts import group_folds
from fastrec.validate.folds import Folds
from fastrec.validate.mirror import AdversarialReport, adversarial_validation
from fastrec.validate.rows import ListEvents, Lists, Rows, whole_lists
from fastrec.validate.target import Target

__all__ = [
    "AdversarialReport", "CrossFit", "Folds", "ListEvents", "Lists", "Predictions", "Rows", "Target", "Trained",
    "adversarial_validation", "folds_digest", "group_folds", "whole_lists",
]  # fmt: skip
