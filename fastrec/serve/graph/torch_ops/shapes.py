"""Handlers of shapes, dtypes and constants, and of joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError, cast, handler, value_of
from fastrec.serve.graph.torch_ops._values import pick


@handler("to", "long", "double", "float", "int", "bool", "type", "type_as", "half", "byte")
def _to(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> Any:
    return a if a.dtype == made.dtype else cast(graph, a, made.dtype)


@handler("clone", "detach", "contiguous", "cpu", "as_subclass", "requires_grad_", "pin_memory")
def _same(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any, **__: Any) -> str:
    return a.value


def _constants(name: str) -> Callable[..., torch.Tensor]:
    def write(graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any, **options: Any) -> torch.Tensor:
        options.pop("device", None)
        here = torch.empty(a.shape, dtype=a.dtype)
        function = getattr(torch, name) if name.endswith("_like") else getattr(torch.Tensor, name)
        return function(here, *given, **options)

    return write


for _name in ("zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full", "new_tensor"):
    handler(_name)(_constants(_name))


def _sizes(shape: Sequence[int]) -> list[int]:
    if sum(s == N for s in shape) > 1:
        raise NotInGraphError("a tensor has rows twice", remedy="Compute this column outside of the graph")
    return [-1 if s == N else s for s in shape]


def reshape(graph: Graph, value: str, shape: Sequence[int]) -> str:
    """Reshape a value; ``N`` is the number of rows."""
    return graph.op("Reshape", value, graph.constant(np.array(_sizes(shape), dtype=np.int64)))


@handler("reshape", "view", "unsqueeze", "squeeze", "flatten", "ravel", "view_as", "reshape_as")
def _reshape(graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any, **options: Any) -> str:
    if given and isinstance(given[0], torch.dtype):  # the same bits: a bool and a byte
        if {a.dtype, made.dtype} <= {torch.bool, torch.int8, torch.uint8}:
            return cast(graph, a, made.dtype)
        raise NotInGraphError(
            f"the bits of {a.dtype} as {made.dtype} have no form in a graph", remedy="Compute outside"
        )
    return a.value if made.shape == a.shape else reshape(graph, a.value, made.shape)


@handler("expand", "broadcast_to", "expand_as")
def _expand(graph: Graph, made: torch.Tensor, a: GraphTensor, *_: Any) -> str:
    if a.shape and a.shape[0] == N and list(made.shape).count(N) == 1 and made.shape[0] == N:
        sizes = [1, *made.shape[1:]]
        return graph.op("Expand", a.value, graph.constant(np.array(sizes, dtype=np.int64)))
    return a.value  # it is broadcast where it is read


@handler("transpose", "t", "permute", "movedim")
def _transpose(graph: Graph, made: torch.Tensor, a: GraphTensor, *given: Any) -> str:
    probe = torch.arange(a.ndim)
    dims = list(torch.empty(tuple(range(2, 2 + a.ndim))).transpose(*given).shape) if given else []
    order = [d - 2 for d in dims] if dims and len(given) == 2 else list(reversed(probe.tolist()))
    return graph.op("Transpose", a.value, perm=order)


@handler("stack")
def _stack(graph: Graph, made: torch.Tensor, parts: Sequence[Any], dim: int = 0) -> str:
    axis = dim % made.ndim
    if made.ndim == 2 and axis == 1 and len(parts) > 2:  # three nodes, however many columns there are
        joined = graph.op("Concat", *[_rows(graph, p, made.dtype) for p in parts], axis=0)
        shape = graph.constant(np.array([len(parts), -1], dtype=np.int64))
        return graph.op("Transpose", graph.op("Reshape", joined, shape), perm=[1, 0])
    at = graph.constant(np.array([axis], dtype=np.int64))
    values = [graph.op("Unsqueeze", _rows(graph, p, made.dtype), at) for p in parts]
    return graph.op("Concat", *values, axis=axis)


@handler("cat", "concat", "concatenate")
def _cat(graph: Graph, made: torch.Tensor, parts: Sequence[Any], dim: int = 0) -> str:
    if dim % made.ndim == 0 and made.shape[0] != N:
        raise NotInGraphError("rows are joined to rows", remedy="Compute this column outside of the graph")
    if len(parts) == 1:
        return value_of(graph, parts[0], made.dtype)
    return graph.op("Concat", *[_rows(graph, p, made.dtype) for p in parts], axis=dim % made.ndim)


def _rows(graph: Graph, part: Any, dtype: torch.dtype) -> str:
    if isinstance(part, torch.Tensor):
        raise NotInGraphError("a constant column is joined to others", remedy="Leave the column out")
    return value_of(graph, part, dtype)


@handler("unbind")
def _unbind(graph: Graph, made: Any, a: GraphTensor, dim: int = 0) -> list[str]:
    return [pick(graph, a.value, i, dim % a.ndim) for i in range(len(made))]


@handler("select")
def _select(graph: Graph, made: torch.Tensor, a: GraphTensor, dim: int, index: int) -> str:
    return pick(graph, a.value, index, dim % a.ndim)
