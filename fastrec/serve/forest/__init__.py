"""Convert trees of XGBoost, LightGBM, CatBoost and scikit-learn to ONNX nodes.

A ``Forest`` has flat arrays, the attributes of a ``TreeEnsemble`` node (``ai.onnx.ml`` 5).
"""
