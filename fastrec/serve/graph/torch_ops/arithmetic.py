"""Handlers of sums, products, powers, roundings and functions of one value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, handler, onnx_type, value_of
from fastrec.serve.graph.torch_ops._values import both


def _binary(kind: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, alpha: Any = 1) -> str:
        if alpha != 1:
            b = b * alpha
        if made.dtype == torch.bool:  # ONNX adds no bools: a sum is an or, a product an and
            return graph.op({"Add": "Or", "Mul": "And"}[kind], *both(graph, a, b, torch.bool)[:2])
        return graph.op(kind, *both(graph, a, b, made.dtype)[:2])

    return write


handler("add", "__add__", "__radd__")(_binary("Add"))
handler("sub", "subtract", "__sub__")(_binary("Sub"))
handler("mul", "multiply", "__mul__", "__rmul__")(_binary("Mul"))


@handler("rsub", "__rsub__")
def _rsub(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    return _binary("Sub")(graph, made, b, a)


@handler("div", "true_divide", "divide", "__truediv__")
def _div(graph: Graph, made: torch.Tensor, a: Any, b: Any, *, rounding_mode: str | None = None) -> str:
    if rounding_mode is None:
        return graph.op("Div", *both(graph, a, b, made.dtype)[:2])
    if made.dtype.is_floating_point:
        quotient = graph.op("Div", *both(graph, a, b, made.dtype)[:2])
        if rounding_mode == "floor":
            return graph.op("Floor", quotient)
        return graph.op("Mul", graph.op("Floor", graph.op("Abs", quotient)), graph.op("Sign", quotient))
    x, y, _ = both(graph, a, b, made.dtype)  # ONNX divides integers towards zero, torch's floor division does not
    quotient = graph.op("Div", x, y)
    if rounding_mode == "trunc":
        return quotient
    rest = graph.op("Sub", x, graph.op("Mul", quotient, y))
    zero = value_of(graph, 0, made.dtype)
    below = graph.op("Less", graph.op("Mul", graph.op("Sign", rest), graph.op("Sign", y)), zero)
    return graph.op("Sub", quotient, graph.op("Cast", below, to=onnx_type(graph, made.dtype)))


@handler("__rtruediv__", "__rdiv__")
def _rdiv(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    return _div(graph, made, b, a)


@handler("floor_divide", "__floordiv__")
def _floor_divide(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    return _div(graph, made, a, b, rounding_mode="floor")


@handler("remainder", "__mod__")
def _remainder(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    x, y, dtype = both(graph, a, b, made.dtype)
    if not dtype.is_floating_point:
        return graph.op("Mod", x, y)
    rest, zero = graph.op("Mod", x, y, fmod=1), value_of(graph, 0, dtype)
    other = graph.op("Xor", graph.op("Less", rest, zero), graph.op("Less", y, zero))
    moved = graph.op("And", other, graph.op("Not", graph.op("Equal", rest, zero)))
    return graph.op("Where", moved, graph.op("Add", rest, y), rest)


@handler("fmod")
def _fmod(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    return graph.op("Mod", *both(graph, a, b, made.dtype)[:2], fmod=1)


@handler("pow", "__pow__", "__rpow__")
def _pow(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    if b == 2 and isinstance(a, GraphTensor):
        x = value_of(graph, a, made.dtype)
        return graph.op("Mul", x, x)
    return graph.op("Pow", *both(graph, a, b, made.dtype)[:2])


@handler("square")
def _square(graph: Graph, made: torch.Tensor, a: Any) -> str:
    return _pow(graph, made, a, 2)


@handler("bitwise_left_shift", "__lshift__")
def _shift(graph: Graph, made: torch.Tensor, a: Any, b: int) -> str:
    return graph.op("Mul", *both(graph, a, 1 << b, made.dtype)[:2])


def _unary(kind: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
        return graph.op(kind, value_of(graph, a, made.dtype))

    return write


for _names, _kind in {
    ("neg", "negative", "__neg__"): "Neg",
    ("abs", "absolute", "__abs__"): "Abs",
    ("sign", "sgn"): "Sign",
    ("sqrt",): "Sqrt",
    ("exp",): "Exp",
    ("log",): "Log",
    ("sin",): "Sin",
    ("cos",): "Cos",
    ("tanh",): "Tanh",
    ("sigmoid",): "Sigmoid",
    ("reciprocal",): "Reciprocal",
}.items():
    handler(*_names)(_unary(_kind))


def _rounding(kind: str) -> Callable[..., str]:
    def write(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
        return graph.op(kind, a.value) if made.dtype.is_floating_point else a.value

    return write


for _name, _kind in {"floor": "Floor", "ceil": "Ceil", "round": "Round"}.items():
    handler(_name)(_rounding(_kind))


@handler("trunc", "fix")
def _trunc(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
    if not made.dtype.is_floating_point:
        return a.value
    return graph.op("Mul", graph.op("Floor", graph.op("Abs", a.value)), graph.op("Sign", a.value))


@handler("log1p")
def _log1p(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
    # Kahan: log(u) · x / (u - 1), u = 1 + x, keeps the digits of small x. Source: Goldberg 1991, theorem 4.
    x, one = value_of(graph, a, made.dtype), value_of(graph, 1, made.dtype)
    u = graph.op("Add", x, one)
    rest, log = graph.op("Sub", u, one), graph.op("Log", u)
    same = graph.op("Equal", u, one)
    whole = graph.op("Or", graph.op("IsInf", rest), graph.op("Equal", u, value_of(graph, 0, made.dtype)))
    fine = graph.op("Mul", log, graph.op("Div", x, graph.op("Where", same, one, rest)))
    return graph.op("Where", same, x, graph.op("Where", whole, log, fine))


@handler("expm1")
def _expm1(graph: Graph, made: torch.Tensor, a: GraphTensor) -> str:
    x, one = value_of(graph, a, made.dtype), value_of(graph, 1, made.dtype)
    # sinh and cosh have no rounding near zero that matters: expm1(x) = 2 exp(x/2) sinh(x/2)
    half = graph.op("Mul", x, value_of(graph, 0.5, made.dtype))
    series = graph.op(
        "Mul", graph.op("Mul", value_of(graph, 2, made.dtype), graph.op("Exp", half)), graph.op("Sinh", half)
    )
    small = graph.op("Less", graph.op("Abs", x), one)
    return graph.op("Where", small, series, graph.op("Sub", graph.op("Exp", x), one))


def _test(kind: str) -> Callable[..., Any]:
    def write(graph: Graph, made: torch.Tensor, a: GraphTensor) -> Any:
        # the constant stays a tensor until a node reads it
        return graph.op(kind, a.value) if a.dtype.is_floating_point else torch.zeros_like(made, device="cpu")

    return write


handler("isnan")(_test("IsNaN"))
handler("isinf")(_test("IsInf"))


@handler("isfinite")
def _isfinite(graph: Graph, made: torch.Tensor, a: GraphTensor) -> Any:
    if not a.dtype.is_floating_point:
        return torch.ones_like(made, device="cpu")
    return graph.op("Not", graph.op("Or", graph.op("IsNaN", a.value), graph.op("IsInf", a.value)))


@handler("nan_to_num")
def _nan_to_num(
    graph: Graph, made: torch.Tensor, a: GraphTensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> str:
    if not a.dtype.is_floating_point:
        return a.value
    limits = torch.finfo(a.dtype)
    value = graph.op("Where", graph.op("IsNaN", a.value), value_of(graph, nan or 0.0, a.dtype), a.value)
    for given, usual, sign in (
        (posinf, limits.max, {"detect_negative": 0}),
        (neginf, limits.min, {"detect_positive": 0}),
    ):
        bound = usual if given is None else given
        if not (isinstance(bound, float) and math.isinf(bound)):
            value = graph.op("Where", graph.op("IsInf", a.value, **sign), value_of(graph, bound, a.dtype), value)
    return value
