"""Metrics: the score of predictions from any library, and its uncertainty.

``get_metric('auc')`` finds every metric by name.
"""

from typing import TYPE_CHECKING

from fastrec._core.imports import lazily
from fastrec.metrics.boosting import catboost_metric, lightgbm_metric, xgboost_metric
from fastrec.metrics.intervals import Interval, Resampled, bootstrap_interval, bootstrap_metric, paired_difference
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
from fastrec.metrics.registry import Metric, as_metric, default_metric, get_metric, metrics_for
from fastrec.metrics.thresholds import (
    apply_cuts,
    as_scored,
    best_rounding,
    best_threshold,
    cross_fitted_classes,
    loss_of,
)

if TYPE_CHECKING:
    from fastrec.metrics.callbacks import AUC, MAP, MRR, NDCG, Recall, fastai_metric

__all__ = [
    "AUC",
    "MAP",
    "MRR",
    "NDCG",
    "Interval",
    "Metric",
    "Recall",
    "Resampled",
    "apply_cuts",
    "as_metric",
    "as_scored",
    "auc",
    "best_rounding",
    "best_threshold",
    "bootstrap_interval",
    "bootstrap_metric",
    "catboost_metric",
    "cross_fitted_classes",
    "default_metric",
    "fastai_metric",
    "gauc",
    "get_metric",
    "group_ranks",
    "hit_rate",
    "lightgbm_metric",
    "loss_of",
    "mean_average_precision",
    "metrics_for",
    "mrr",
    "ndcg",
    "paired_difference",
    "recall",
    "reciprocal_ranks",
    "xgboost_metric",
]

# The plain functions work without fastai: the classes that need it are loaded at first use.
__getattr__ = lazily(__name__, dict.fromkeys(("AUC", "MAP", "MRR", "NDCG", "Recall", "fastai_metric"), "callbacks"))
