"""Helpers of handlers: common dtypes and shapes, constants, indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastrec.serve.graph.builder import Graph
from fastrec.serve.graph.tensor import GraphTensor, value_of

INT64 = torch.int64


def common(*given: Any) -> torch.dtype:
    """Return the dtype in which torch compares or joins values."""
    metas = [g.meta if isinstance(g, GraphTensor) else g for g in given]
    found = metas[0].dtype if isinstance(metas[0], torch.Tensor) else None
    for other in metas[1:]:
        a = metas[0] if found is None else torch.empty(dims(metas[0]), dtype=found, device="meta")
        found = torch.result_type(a, other if not isinstance(other, torch.Tensor) else other.to("meta"))
    assert found is not None
    return found


def dims(given: Any) -> tuple[int, ...]:
    """Return a shape of as many dimensions: torch's rules for dtypes need no more."""
    return (1,) * given.ndim if isinstance(given, torch.Tensor) else ()


def both(graph: Graph, a: Any, b: Any, dtype: torch.dtype | None = None) -> tuple[str, str, torch.dtype]:
    """Convert two operands to values of one dtype."""
    dtype = dtype or common(a, b)
    return value_of(graph, a, dtype), value_of(graph, b, dtype), dtype


def pick(graph: Graph, value: str, place: int, axis: int) -> str:
    """Take one place of an axis, and drop the axis."""
    return graph.op("Gather", value, graph.constant(np.array(place, dtype=np.int64)), axis=axis)
