"""Compress a net's model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal, get_args

from fastrec._core.optional import require
from fastrec.errors import DataError

Compress = Literal["float16", "int8"]


def compressed(model: Any, how: Compress) -> Any:
    """Convert a net's model (``onnx.ModelProto``) to weights of 16 bits, or matrix products of 8.

    Inputs and outputs stay as they are. ``'int8'`` has a scale for each weight, and one for the activations of a batch.

    Raises:
        DataError: there is no such way.
    """
    if how not in get_args(Compress):
        raise DataError(f"a net cannot be compressed to {how!r}", remedy="Use 'float16' or 'int8'")
    hint = "pip install 'fastrec-tabular[export]'"
    if how == "float16":
        made = require("onnxruntime.transformers.float16", "onnxruntime", hint)
        return made.convert_float_to_float16(model, keep_io_types=True)
    tools = require("onnxruntime.quantization", "onnxruntime", hint)
    onnx = require("onnx", "onnx", hint)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "net.onnx", Path(folder) / "int8.onnx"
        onnx.save_model(model, str(source))
        tools.quantize_dynamic(str(source), str(target), weight_type=tools.QuantType.QInt8)
        return onnx.load_model(str(target))
