"""``NodeList``: ONNX nodes and initializers with their own names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastrec.serve.forest._onnx import onnx


class NodeList:
    """Nodes in order, and initializers; ``prefix`` begins all names, ``dtype`` is that of ``number``."""

    def __init__(self, prefix: str, dtype: str = "float64") -> None:
        self.prefix, self.dtype = prefix, dtype
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        return self.named(kind, inputs, f"{self.prefix}_{len(self.nodes)}", **attributes)

    def named(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node whose output has a given name."""
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        """Add an initializer; return its name."""
        name = f"{self.prefix}_c{len(self.initializers)}"
        self.initializers.append(onnx().numpy_helper.from_array(value, name))
        return name

    def number(self, value: float) -> str:
        """Add a number of ``dtype``; return its name."""
        return self.constant(np.array(value, self.dtype))

    def integer(self, name: str) -> str:
        """Convert to int64."""
        return self.node("Cast", name, to=onnx().TensorProto.INT64)

    def double(self, name: str) -> str:
        """Convert to float64."""
        return self.node("Cast", name, to=onnx().TensorProto.DOUBLE)

    def lookup(self, name: str, keys: np.ndarray, values: np.ndarray, *, default: int) -> str:
        """Look up int64 values of int64 keys, ``default`` for others."""
        tensors = {"keys": keys, "values": values, "default": np.array([default])}
        attributes = {f"{n}_tensor": onnx().numpy_helper.from_array(v) for n, v in tensors.items()}
        return self.node("LabelEncoder", name, domain="ai.onnx.ml", **attributes)

    def add(self, more: tuple[list[Any], list[Any]]) -> None:
        """Add nodes and initializers of others."""
        self.nodes += more[0]
        self.initializers += more[1]
