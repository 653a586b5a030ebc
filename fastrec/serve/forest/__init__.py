"""Convert trees of XGBoost, LightGBM, CatBoost and scikit-learn to ONNX nodes.

A ``Forest`` has flat arrays, the attributes of a ``TreeEnsemble`` node (``ai.onnx.ml`` 5).
"""

from fastrec.serve.forest.catboost import forest_of_catboost
from fastrec.serve.forest.forest import Forest
from fastrec.serve.forest.libraries import (
    EstimatorForests,
    booster_of_margins,
    forest_of_lightgbm,
    forest_of_sklearn,
    forest_of_xgboost,
    forests_of,
)

__all__ = [
    "EstimatorForests",
    "Forest",
    "booster_of_margins",
    "forest_of_catboost",
    "forest_of_lightgbm",
    "forest_of_sklearn",
    "forest_of_xgboost",
    "forests_of",
]
