"""Models that learn from lists of candidates and score others, by ``fit``, ``predict``, ``save`` and ``load``.

In: ``Lists`` (candidates with features, groups, labels). Out: a score for every candidate. ``base.py`` is the contract;
``rule.py`` orders by a column, ``net.py`` trains a net of ``fastrec.models``, ``xgb.py`` XGBoost.
"""

from fastrec.estimators.base import Ranker, Trace
from fastrec.estimators.net import NetRanker
from fastrec.estimators.rule import ColumnRanker
from fastrec.estimators.xgb import XGBRanker

__all__ = ["ColumnRanker", "NetRanker", "Ranker", "Trace", "XGBRanker"]
