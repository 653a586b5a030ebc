"""Handlers of indexing, slices, and searches among sorted edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, N, NotInGraphError, handler, value_of
from fastrec.serve.graph.torch_ops._values import INT64, common, pick


@handler("index_select")
def _index_select(graph: Graph, made: torch.Tensor, table: Any, dim: int, index: Any) -> str:
    return _looked_up(graph, table, index, dim)


def _looked_up(graph: Graph, table: Any, index: Any, dim: int = 0) -> str:
    value = _table(graph, table)
    place = value_of(graph, index, INT64)
    if table.ndim > 1 or not index.ndim:
        return graph.op("Gather", value, place, axis=dim)
    # onnxruntime copies single numbers by GatherElements five times as fast
    if index.ndim == 1:
        return graph.op("GatherElements", value, place, axis=0)
    flat = graph.op("Reshape", place, graph.constant(np.array([-1])))
    found = graph.op("GatherElements", value, flat, axis=0)
    shape = [-1 if size == N else size for size in index.shape]
    return graph.op("Reshape", found, graph.constant(np.array(shape)))


def _table(graph: Graph, table: Any) -> str:
    # a constant stays whole, even if its length is N by chance
    return table.value if isinstance(table, GraphTensor) else graph.constant(table.detach().cpu().numpy())


@handler("__getitem__")
def _getitem(graph: Graph, made: Any, a: Any, place: Any) -> Any:
    if isinstance(place, GraphTensor):
        if place.dtype == torch.bool:
            raise NotInGraphError("some rows are taken out", remedy="Compute this column outside of the graph")
        return _looked_up(graph, a, place)
    places = place if isinstance(place, tuple) else (place,)
    value, axis = _table(graph, a), 0
    for p in places:
        if p is None:
            value = graph.op("Unsqueeze", value, graph.constant(np.array([axis], dtype=np.int64)))
            axis += 1
        elif isinstance(p, GraphTensor):
            value = graph.op("Gather", value, p.value, axis=axis)
            axis += p.ndim
        elif isinstance(p, slice):
            value = _slice(graph, value, p, axis)
            axis += 1
        elif isinstance(p, torch.Tensor) and p.dtype == torch.int64:
            value = graph.op("Gather", value, graph.constant(p.numpy()), axis=axis)
            axis += p.ndim
        elif isinstance(p, int):
            value = pick(graph, value, p, axis)
        else:
            raise NotInGraphError(f"rows are taken at {p!r}", remedy="Compute this column outside of the graph")
    return value


def _slice(graph: Graph, value: str, part: slice, axis: int) -> str:
    if part == slice(None):
        return value
    given = (part.start or 0, np.iinfo(np.int64).max if part.stop is None else part.stop, axis, part.step or 1)
    return graph.op("Slice", value, *[graph.constant(np.array([g], dtype=np.int64)) for g in given])


@handler("gather")
def _gather(graph: Graph, made: torch.Tensor, a: Any, dim: int, index: Any) -> str:
    return graph.op(
        "GatherElements", value_of(graph, a, made.dtype), value_of(graph, index, INT64), axis=dim % made.ndim
    )


@handler("bucketize")
def _bucketize(
    graph: Graph, made: torch.Tensor, values: GraphTensor, edges: torch.Tensor, *, right: bool = False, **_: Any
) -> str:
    return search(graph, edges, values, right=right)


@handler("searchsorted")
def _searchsorted(
    graph: Graph, made: torch.Tensor, edges: torch.Tensor, values: GraphTensor, *, right: bool = False, **_: Any
) -> str:
    return search(graph, edges, values, right=right)


def search(graph: Graph, edges: torch.Tensor, values: GraphTensor, *, right: bool) -> Any:
    """Count the sorted edges below each value (``right``: at or below): int64. NaN is above all."""
    if isinstance(edges, GraphTensor):
        raise NotInGraphError("edges are searched that are not learned", remedy="Compute this column outside")
    # a whole number beyond 2^53 is rounded, but not across an edge that is not
    exact = common(values, edges).is_floating_point or not len(edges) or int(edges.abs().max()) < 1 << 53
    # few edges are compared with all at once: fewer nodes than a bisection (8 is not measured)
    if len(edges) > 8 and values.ndim == 1 and exact:
        from fastrec.serve.graph.search import count_below

        return count_below(values[:, None], [edges], right=right)[:, 0]
    edges = edges.detach().cpu().to(common(values, edges))
    value = value_of(graph, values, edges.dtype)
    axis = graph.constant(np.array([values.ndim], dtype=np.int64))
    wide = graph.op("Unsqueeze", value, axis)
    above = graph.op("Less" if right else "LessOrEqual", wide, graph.constant(edges.numpy()))  # NaN is below none
    ones = graph.op("Cast", graph.op("Not", above), to=graph.type_of(np.int64))
    return graph.op("ReduceSum", ones, axis, keepdims=0)
