"""Handlers over all values of a row: sums, extremes, order, softmax, products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError, cast, handler, value_of
from fastrec.serve.graph.torch_ops._values import both


def _reduce(kind: str) -> Callable[..., str]:
    def write(
        graph: Graph, made: torch.Tensor, a: GraphTensor, dim: Any = None, keepdim: bool = False, **_: Any
    ) -> str:
        dims = [d % a.ndim for d in ([dim] if isinstance(dim, int) else dim or range(a.ndim))]
        if a.shape and a.shape[0] == N and 0 in dims:
            raise NotInGraphError("a value depends on all rows at once", remedy="Compute this column outside")
        axes = graph.constant(np.array(dims, dtype=np.int64))
        return graph.op(kind, value_of(graph, a, made.dtype), axes, keepdims=int(keepdim))

    return write


for _name, _kind in {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin"}.items():
    handler(_name)(_reduce(_kind))


@handler("any")
def _any(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:  # asked of all rows: only whether there may be some
        found = GraphTensor(graph, a.value, made)
        found.some = True
        return found
    ones = GraphTensor(graph, cast(graph, a, torch.int64), a.meta.long())
    return ones.amax(dim, keepdim=keepdim) > 0


@handler("all")
def _all(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> Any:
    raise NotInGraphError("something depends on all rows", remedy="Compute this column outside of the graph")


@handler("sort")
def _sort(
    graph: Graph, made: Any, a: GraphTensor, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    axis = dim % a.ndim
    if a.shape[axis] == N:
        raise NotInGraphError("rows are sorted", remedy="Compute this column outside of the graph")
    value, big = a.value, value_of(graph, math.inf if not descending else -math.inf, a.dtype)
    # NaN comes last, as in torch: it is sorted as infinity and put back by its number in the row
    gone = graph.op("IsNaN", value)
    count = graph.op(
        "ReduceSum", graph.op("Cast", gone, to=graph.type_of(np.int64)), graph.constant(np.array([axis])), keepdims=1
    )
    size = graph.constant(np.array([a.shape[axis]], dtype=np.int64))
    values, places = graph.op(
        "TopK", graph.op("Where", gone, big, value), size, outputs=2, axis=axis, largest=int(descending), sorted=1
    )
    place = np.arange(a.shape[axis]).reshape([-1 if i == axis else 1 for i in range(a.ndim)])
    tail = graph.op("GreaterOrEqual", graph.op("Add", graph.constant(place), count), size)
    return [graph.op("Where", tail, value_of(graph, math.nan, a.dtype), values), places]


@handler("softmax")
def _softmax(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int = -1, **_: Any) -> str:
    return graph.op("Softmax", value_of(graph, a, made.dtype), axis=dim % a.ndim)


@handler("log_softmax")
def _log_softmax(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int = -1, **_: Any) -> str:
    return graph.op("LogSoftmax", value_of(graph, a, made.dtype), axis=dim % a.ndim)


@handler("matmul", "mm", "mv", "__matmul__", "__rmatmul__")
def _matmul(graph: Graph, made: torch.Tensor, a: Any, b: Any) -> str:
    x, y, _ = both(graph, a, b, made.dtype)
    if b.ndim == 1:  # onnxruntime 1.32 joins a transposition with a product by a vector, and gets it wrong
        axis = graph.constant(np.array([1], dtype=np.int64))
        return graph.op("Squeeze", graph.op("MatMul", x, graph.op("Unsqueeze", y, axis)), axis)
    return graph.op("MatMul", x, y)


@handler("logit")
def _logit(graph: Graph, made: torch.Tensor, a: GraphTensor, eps: float | None = None) -> Any:
    inside = a if eps is None else a.clamp(eps, 1 - eps)
    return (inside / (1 - inside)).log()


@handler("einsum")
def _einsum(graph: Graph, made: torch.Tensor, equation: str, *parts: Any) -> str:
    values = [value_of(graph, p, made.dtype) for p in (parts[0] if isinstance(parts[0], list | tuple) else parts)]
    return graph.op("Einsum", *values, equation=equation.replace(" ", ""))


@handler("linalg_vector_norm", "norm")
def _norm(graph: Graph, made: torch.Tensor, a: GraphTensor, ord: Any = 2, dim: Any = None, **options: Any) -> Any:
    if ord not in (2, "fro") or dim is None:
        raise NotInGraphError(f"a norm of order {ord}", remedy="Compute this column outside of the graph")
    wide = a.to(made.dtype)
    return (wide * wide).sum(dim, keepdim=options.get("keepdim", False)).sqrt()
