"""Estimators: they learn from ``Rows`` or ``Lists`` and predict for others (``fit``, ``predict``, ``save``)."""

from fastrec._core.imports import lazily
from fastrec.estimators.base import Estimator, Ranker, Trace
from fastrec.estimators.catboost_model import CatBoostModel
from fastrec.estimators.lgbm_model import LGBMModel
from fastrec.estimators.sklearn import CuMLModel, SKModel
from fastrec.estimators.wrapped import CentredModel, ColumnRanker, ConstantModel, OffsetModel, PseudoLabelled
from fastrec.estimators.xgboost import XGBModel, XGBRanker

__all__ = [
    "CatBoostModel",
    "CentredModel",
    "ColumnRanker",
    "ConstantModel",
    "CuMLModel",
    "Estimator",
    "LGBMModel",
    "NetModel",
    "NetRanker",
    "OffsetModel",
    "PseudoLabelled",
    "Ranker",
    "SKModel",
    "SessionRanker",
    "Trace",
    "XGBModel",
    "XGBRanker",
]

__getattr__ = lazily(__name__, {"NetRanker": "net", "NetModel": "net_model", "SessionRanker": "session_ranker"})
