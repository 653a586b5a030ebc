"""What learns from rows and predicts for others, by ``fit``, ``predict``, ``save`` and ``load``.

In: ``Rows`` or ``Lists`` (features, labels, weights, groups). Out: a prediction for every row. ``base.py`` is the
contract; ``constant.py`` predicts without features, ``rule.py`` orders by a column, ``net.py`` and ``net_model.py``
train nets of ``fastrec.models``, ``session_ranker.py`` one that reads the session; ``xgb.py`` XGBoost for lists;
``xgb_model.py``, ``lgbm_model.py``, ``catboost_model.py`` grow trees for any task, ``sk_model.py`` wraps scikit-learn,
``cuml_model.py`` takes cuML's; ``offset_model.py`` corrects what a column foretells, ``centred_model.py`` leaves out
what the rows of a day share, ``pseudo_labelled.py`` learns from rows without labels too.
"""

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
