"""Values among sorted edges: one node for all columns, whose trees are searches by halves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec.serve.graph.tensor import GraphTensor, N, value_of

_LEQ, _LT = 0, 1  # a TreeEnsemble's modes


def count_below(values: GraphTensor, edges: Sequence[torch.Tensor], *, right: bool) -> GraphTensor:
    """How many of a column's sorted edges lie below each of its values (``right``: at or below); NaN is above all.

    Args:
        values: ``[rows, m]`` numbers, compared as float64.
        edges: for each of the columns its edges, float64 ``[K]``, one at least.
        right: as torch's ``bucketize`` has it.

    Returns:
        int64 ``[rows, m]``.
    """
    graph = values.graph
    parts = [_halves(e.detach().cpu().double().numpy(), i) for i, e in enumerate(edges)]
    nodes = np.cumsum([0, *(len(p["split"]) for p in parts)])
    leaves = np.cumsum([0, *(len(p["leaf"]) for p in parts)])
    joined = {n: np.concatenate([p[n] for p in parts]) for n in ("split", "column", "leaf", "target")}
    for side in ("left", "right"):
        is_leaf = [p[f"{side}_leaf"] for p in parts]
        joined[f"{side}_leaf"] = np.concatenate(is_leaf)
        joined[side] = np.concatenate(
            [p[side] + np.where(w, leaves[i], nodes[i]) for i, (p, w) in enumerate(zip(parts, is_leaf, strict=True))]
        )
    made = graph.op(
        "TreeEnsemble", value_of(graph, values, torch.float64), domain="ai.onnx.ml",
        n_targets=len(parts), aggregate_function=1, post_transform=0,
        tree_roots=nodes[:-1].tolist(),
        nodes_featureids=joined["column"].tolist(),
        nodes_splits=joined["split"],
        nodes_modes=np.full(len(joined["split"]), _LT if right else _LEQ, np.uint8),
        nodes_truenodeids=joined["left"].tolist(),
        nodes_falsenodeids=joined["right"].tolist(),
        nodes_trueleafs=joined["left_leaf"].astype(np.int64).tolist(),
        nodes_falseleafs=joined["right_leaf"].astype(np.int64).tolist(),
        leaf_targetids=joined["target"].tolist(),
        leaf_weights=joined["leaf"],
    )  # fmt: skip
    counts = graph.op("Cast", made, to=graph.type_of(np.int64))
    return GraphTensor(graph, counts, torch.empty((N, len(parts)), dtype=torch.int64, device="meta"))


def _halves(edges: np.ndarray, column: int) -> dict[str, np.ndarray]:
    """A tree that goes left below its middle edge: nodes in the order of their levels, its leaves the counts."""
    size = len(edges)
    low, high = np.array([0]), np.array([size])  # the leaves below each node of a level, both ends in
    splits, children = [], []
    count = 0
    while len(low):
        middle = (low + high) // 2  # counts up to middle are left of edge ``middle``
        splits.append(edges[middle])
        sides = (low, middle), (middle + 1, high)
        inner = [a < b for a, b in sides]
        count += len(low)
        number = count + np.cumsum(np.stack(inner, 1).ravel()) - 1
        number = number.reshape(-1, 2)
        for i, (a, _) in enumerate(sides):
            number[:, i] = np.where(inner[i], number[:, i], a)
        children.append((number, ~np.stack(inner, 1)))
        chosen = np.stack(inner, 1).ravel()
        low = np.stack([sides[0][0], sides[1][0]], 1).ravel()[chosen]
        high = np.stack([sides[0][1], sides[1][1]], 1).ravel()[chosen]
    number, leaf = (np.concatenate([c[i] for c in children]) for i in (0, 1))
    return {
        "split": np.concatenate(splits).astype(np.float64),
        "column": np.full(len(number), column),
        "left": number[:, 0],
        "right": number[:, 1],
        "left_leaf": leaf[:, 0],
        "right_leaf": leaf[:, 1],
        "leaf": np.arange(size + 1, dtype=np.float64),
        "target": np.full(size + 1, column),
    }


def interpolated(
    values: GraphTensor, knots: Sequence[tuple[torch.Tensor, torch.Tensor]], *, missing: float
) -> GraphTensor:
    """Columns by linear interpolation between knots, constant beyond their ends, as ``RankGauss.apply`` does it.

    Args:
        values: float64 ``[rows, m]``.
        knots: for each column ``x`` (growing) and ``y``, float64 ``[K]``, two at least.
        missing: what NaN becomes.
    """
    lengths = torch.tensor([len(x) for x, _ in knots])
    starts = torch.cumsum(lengths, 0) - lengths
    x, y = (torch.cat([k[i] for k in knots]).double() for i in (0, 1))
    first, last = x[starts], x[starts + lengths - 1]
    gone = values.isnan()
    clipped = torch.minimum(torch.maximum(torch.where(gone, first, values), first), last)
    right = count_below(clipped, [k[0] for k in knots], right=False)
    right = torch.minimum(torch.clamp(right, min=1), lengths - 1) + starts
    left = right - 1
    x_left, y_left = x[left], y[left]
    part = (clipped - x_left) / (x[right] - x_left)
    return torch.where(gone, missing, y_left + part * (y[right] - y_left))
