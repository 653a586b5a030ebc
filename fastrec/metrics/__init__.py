"""Predictions, targets and groups → numbers that say how good a model is, and how sure that is.

In: predictions, targets and list numbers of any library. Out: floats, or an ``Interval``. ``registry.py`` has every
metric by name (``get_metric('auc')``) with one signature, ``metric.py`` what a metric is and how a function becomes
one; the formulas are in ``classification.py``, ``regression.py`` and ``ranking.py``. ``callbacks.py`` has the ranking
metrics for a fastai ``Learner`` (``MRR``, ``NDCG``, …), ``intervals.py`` the bootstrap; ``lists.py``, ``inputs.py``
and ``weighted.py`` what the formulas share.
"""

from typing import TYPE_CHECKING

from fastrec._core.lazy import lazily
from fastrec.metrics.intervals import Interval, bootstrap_interval, paired_difference
from fastrec.metrics.metric import Metric, as_metric
from fastrec.metrics.ranking import (
    auc,
    gauc,
    group_ranks,
    hit_rate,
    mean_average_precision,
    mrr,
    ndcg,
    recall,
    reciprocal_ranks,
)
from fastrec.metrics.registry import default_metric, get_metric, metrics_for

if TYPE_CHECKING:
    from fastrec.metrics.callbacks import AUC, MAP, MRR, NDCG, Recall

__all__ = [
    "AUC",
    "MAP",
    "MRR",
    "NDCG",
    "Interval",
    "Metric",
    "Recall",
    "as_metric",
    "auc",
    "bootstrap_interval",
    "default_metric",
    "gauc",
    "get_metric",
    "group_ranks",
    "hit_rate",
    "mean_average_precision",
    "metrics_for",
    "mrr",
    "ndcg",
    "paired_difference",
    "recall",
    "reciprocal_ranks",
]

# The plain functions work where fastai is not installed: its classes are loaded at first use.
__getattr__ = lazily(__name__, dict.fromkeys(("AUC", "MAP", "MRR", "NDCG", "Recall"), "callbacks"))
