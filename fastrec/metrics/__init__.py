"""Predictions, targets and groups → numbers that say how good a ranking is, and how sure that is.

In: scores, labels and list numbers of any library. Out: floats, or an ``Interval``. ``ranking.py`` has the metrics,
``callbacks.py`` the same for a fastai ``Learner`` (``MRR``, ``NDCG``, …), ``intervals.py`` the bootstrap,
``lists.py`` what all of them do with lists.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily
from fastrec.metrics.intervals import Interval, bootstrap_interval, paired_difference
from fastrec.metrics.ranking import (
    auc,
    gauc,
    group_ranks,
    mean_average_precision,
    mrr,
    ndcg,
    recall,
    reciprocal_ranks,
)

if TYPE_CHECKING:
    from fastrec.metrics.callbacks import AUC, MAP, MRR, NDCG, Recall

__all__ = [
    "AUC",
    "MAP",
    "MRR",
    "NDCG",
    "Interval",
    "Recall",
    "auc",
    "bootstrap_interval",
    "gauc",
    "group_ranks",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "paired_difference",
    "recall",
    "reciprocal_ranks",
]

# The plain functions work where fastai is not installed: its classes are loaded at first use.
__getattr__ = lazily(__name__, dict.fromkeys(("AUC", "MAP", "MRR", "NDCG", "Recall"), "callbacks"))
