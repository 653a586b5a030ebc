"""Trees of XGBoost, LightGBM, CatBoost and scikit-learn as a node of an ONNX graph.

In: what a library has trained. Out: a ``Forest``, flat arrays that are the attributes of one ``TreeEnsemble`` node
(``ai.onnx.ml`` 5), with all that a margin needs beside it. ``of_estimator.py`` takes fastrec's own estimators.
"""

from fastrec.serve.forest.forest import Forest
from fastrec.serve.forest.from_catboost import forest_of_catboost
from fastrec.serve.forest.from_lightgbm import forest_of_lightgbm
from fastrec.serve.forest.from_sklearn import forest_of_sklearn
from fastrec.serve.forest.from_xgboost import booster_of_margins, forest_of_xgboost
from fastrec.serve.forest.links import link_nodes
from fastrec.serve.forest.of_estimator import EstimatorForests, forests_of

__all__ = [
    "EstimatorForests",
    "Forest",
    "booster_of_margins",
    "forest_of_catboost",
    "forest_of_lightgbm",
    "forest_of_sklearn",
    "forest_of_xgboost",
    "forests_of",
    "link_nodes",
]
