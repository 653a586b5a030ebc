"""Estimators: they learn from ``Rows`` or ``Lists`` and predict for others (``fit``, ``predict``, ``save``)."""

from fastrec._core.lazy import lazily
from fastrec.estimators.base import Estimator, Ranker, Trace
from fastrec.estimators.catboost_model import CatBoostModel
from fastrec.estimators.centred_model import CentredModel
from fastrec.estimators.constant import ConstantModel
from fastrec.estimators.cuml_model import CuMLModel
from fastrec.estimators.lgbm_model import LGBMModel
from fastrec.estimators.offset_model import OffsetModel
from fastrec.estimators.pseudo_labelled import PseudoLabelled
from fastrec.estimators.rule import ColumnRanker
from fastrec.estimators.sk_model import SKModel
from fastrec.estimators.xgb import XGBRanker
from fastrec.estimators.xgb_model import XGBModel

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
