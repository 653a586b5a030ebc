"""Links of objectives, from margins to predictions, as ONNX nodes."""

from __future__ import annotations

from typing import Any

from fastrec.serve.forest._graph import NodeList
from fastrec.serve.forest.forest import Link

_NODES: dict[Link, str] = {
    "identity": "Identity",
    "logistic": "Sigmoid",
    "softmax": "Softmax",
    "exp": "Exp",
    "log1p_exp": "Softplus",
}


def link_nodes(link: Link, scale: float, margin: str, y: str, *, prefix: str) -> tuple[list[Any], list[Any]]:
    """Build the ONNX nodes of a link, from ``margin`` to ``y``: float64 ``[n, targets]``."""
    graph = NodeList(prefix)
    if scale != 1.0:
        margin = graph.node("Mul", margin, graph.number(scale))
    if link == "signed_square":
        graph.named("Mul", [graph.node("Abs", margin), margin], y)
    else:
        graph.named(_NODES[link], [margin], y, **({"axis": 1} if link == "softmax" else {}))
    return graph.nodes, graph.initializers
