"""What objectives make of margins, as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastrec.serve.forest._onnx import onnx
from fastrec.serve.forest.forest import Link

_NODES: dict[Link, tuple[str, ...]] = {
    "identity": (),
    "logistic": ("Sigmoid",),
    "softmax": ("Softmax",),
    "exp": ("Exp",),
    "log1p_exp": ("Softplus",),
}


def link_nodes(link: Link, scale: float, margin: str, y: str, *, prefix: str) -> tuple[list[Any], list[Any]]:
    """The ONNX nodes of a link.

    Args:
        link, scale: of a ``Forest``.
        margin, y: names of the margins and of what is made of them, both float64 ``[n, targets]``.
        prefix: what other names begin with.

    Returns:
        Nodes in order, and initializers.
    """
    helper, nodes, initializers = onnx().helper, [], []
    if scale != 1.0:
        initializers.append(onnx().numpy_helper.from_array(np.array(scale), f"{prefix}_scale"))
        nodes.append(helper.make_node("Mul", [margin, f"{prefix}_scale"], [f"{prefix}_scaled"]))
        margin = f"{prefix}_scaled"
    if link == "signed_square":
        nodes.append(helper.make_node("Abs", [margin], [f"{prefix}_abs"]))
        nodes.append(helper.make_node("Mul", [f"{prefix}_abs", margin], [y]))
        return nodes, initializers
    kind, *_ = _NODES[link] or ("Identity",)
    nodes.append(helper.make_node(kind, [margin], [y], **({"axis": 1} if kind == "Softmax" else {})))
    return nodes, initializers
