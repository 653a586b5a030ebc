"""ONNX, if it is installed."""

from types import ModuleType

from fastrec._core.optional import require


def onnx() -> ModuleType:
    """Import ONNX with its helpers.

    Raises:
        MissingPackageError: it is not installed.
    """
    how = "pip install fastrec-tabular[export]"
    for module in ("onnx.helper", "onnx.numpy_helper"):
        require(module, "ONNX", how)
    return require("onnx", "ONNX", how)
