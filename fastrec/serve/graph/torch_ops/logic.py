"""Handlers of comparisons, logic, choices and bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, handler, value_of
from fastrec.serve.graph.torch_ops._values import both


def _compare(kind: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
        x, y, dtype = both(graph, a, b)
        if dtype == torch.bool and kind != "Equal":
            x, y, _ = both(graph, a, b, torch.int64)
        return graph.op(kind, x, y)

    return write


for _name, _kind in {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    handler(_name, f"__{_name}__")(_compare(_kind))


@handler("ne", "not_equal", "__ne__")
def _ne(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    return graph.op("Not", _compare("Equal")(graph, made, a, b))


def _logic(kind: str, bits: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
        x, y, dtype = both(graph, a, b, made.dtype)
        return graph.op(kind if dtype == torch.bool else bits, x, y)

    return write


for _names, _kinds in {
    ("bitwise_and", "logical_and", "__and__", "__rand__"): ("And", "BitwiseAnd"),
    ("bitwise_or", "logical_or", "__or__", "__ror__"): ("Or", "BitwiseOr"),
    ("bitwise_xor", "logical_xor", "__xor__"): ("Xor", "BitwiseXor"),
}.items():
    handler(*_names)(_logic(*_kinds))


@handler("bitwise_not", "logical_not", "__invert__")
def _not(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
    return graph.op("Not" if made.dtype == torch.bool else "BitwiseNot", value_of(graph, a, made.dtype))


@handler("where")
def _where(graph: Graph, made: torch.Tensor, condition: Any, a: Any, b: Any) -> str:
    x, y, _ = both(graph, a, b, made.dtype)
    if made.dtype == torch.bool:  # onnxruntime's Where takes no bool
        mask = value_of(graph, condition, torch.bool)
        return graph.op("Or", graph.op("And", mask, x), graph.op("And", graph.op("Not", mask), y))
    return graph.op("Where", value_of(graph, condition, torch.bool), x, y)


@handler("masked_fill")
def _masked_fill(graph: Graph, made: torch.Tensor, a: GraphTensor, mask: Any, value: Any) -> str:
    return _where(graph, made, mask, value, a)


def _extreme(kind: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
        return graph.op(kind, *both(graph, a, b, made.dtype)[:2])

    return write


handler("maximum", "fmax_")(_extreme("Max"))
handler("minimum", "fmin_")(_extreme("Min"))


@handler("clamp", "clip")
def _clamp(graph: Graph, made: torch.Tensor, a: GraphTensor, min: Any = None, max: Any = None) -> str:
    value = value_of(graph, a, made.dtype)
    value = value if min is None else graph.op("Max", value, value_of(graph, min, made.dtype))
    return value if max is None else graph.op("Min", value, value_of(graph, max, made.dtype))


@handler("clamp_min")
def _clamp_min(graph: Graph, made: torch.Tensor, a: GraphTensor, min: Any) -> str:
    return _clamp(graph, made, a, min)


@handler("clamp_max")
def _clamp_max(graph: Graph, made: torch.Tensor, a: GraphTensor, max: Any) -> str:
    return _clamp(graph, made, a, None, max)
