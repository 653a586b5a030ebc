"""What learns from rows and predicts for others, by ``fit``, ``predict``, ``save`` and ``load``.

In: ``Rows`` or ``Lists`` (features, labels, weights, groups). Out: a prediction for every row. ``base.py`` is the
contract; ``rule.py`` orders by a column, ``net.py`` trains a net of ``fastrec.models`` to rank, ``net_model.py`` for
classes, amounts and labels, ``xgb.py`` XGBoost.
"""

from fastrec.estimators.base import Estimator, Ranker, Trace
from fastrec.estimators.net import NetRanker
from fastrec.estimators.net_model import NetModel
from fastrec.estimators.rule import ColumnRanker
from fastrec.estimators.xgb import XGBRanker

__all__ = ["ColumnRanker", "Estimator", "NetModel", "NetRanker", "Ranker", "Trace", "XGBRanker"]
