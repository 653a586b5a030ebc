"""Values among sorted edges: in two steps over blocks of edges, or by trees that search by halves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from fastrec.serve.graph.tensor import GraphTensor, N, value_of

_LEQ, _LT = 0, 1  # a TreeEnsemble's modes
_IN_BLOCKS = 4096  # edges: beyond, the blocks that each value meets are longer than a tree is deep


def count_below(values: GraphTensor, edges: Sequence[torch.Tensor], *, right: bool) -> GraphTensor:
    """How many of a column's sorted edges lie below each of its values (``right``: at or below); NaN is above all.

    Args:
        values: ``[rows, m]`` numbers, compared as float64.
        edges: for each of the columns its edges, float64 ``[K]``, one at least.
        right: as torch's ``bucketize`` has it.

    Returns:
        int64 ``[rows, m]``.
    """
    longest = max(len(e) for e in edges)
    if longest <= _IN_BLOCKS:
        return _by_blocks(values, edges, right=right)
    return _by_trees(values, edges, right=right)


def _by_blocks(values: GraphTensor, edges: Sequence[torch.Tensor], *, right: bool) -> GraphTensor:
    """As ``count_below``: how many of each block's last edges lie below, then how many edges of the block they lead to.

    Every value meets 2 √K edges in place of log K, without a branch that a processor can guess wrongly: 61 columns of
    1,000 edges took half as long as trees do.
    """
    sizes = torch.tensor([len(e) for e in edges])
    side = math.isqrt(int(sizes.max())) + 1  # blocks of ``side`` edges, the last of each being its upper end
    padded = torch.full((len(edges), side * side), torch.inf, dtype=torch.float64)
    for row, own in zip(padded, edges, strict=True):
        row[: len(own)] = own.double()
    blocks = padded.reshape(-1, side, side)
    wide = values.to(torch.float64)[:, :, None]
    block = _below(wide, blocks[None, :, :-1, -1], right)
    inner = blocks[:, :, :-1].reshape(-1, side - 1)[block + torch.arange(len(edges)) * side]
    found = block * side + _below(wide, inner, right)
    return torch.minimum(found, sizes)  # the padding is below NaN, and at infinity


def _below(values: GraphTensor, edges: GraphTensor | torch.Tensor, right: bool) -> GraphTensor:
    """How many of its edges lie below each value, ``[rows, m]``: all less those above, so that NaN is above all."""
    above = values < edges if right else values <= edges
    return edges.shape[-1] - above.float().sum(2).long()


def _by_trees(values: GraphTensor, edges: Sequence[torch.Tensor], *, right: bool) -> GraphTensor:
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
    few = [i for i, (x, _) in enumerate(knots) if len(x) == 2]  # as flags have them: nothing to search
    more = [i for i, (x, _) in enumerate(knots) if len(x) > 2]
    groups = sorted((own for own in (few, more) if own), key=lambda own: own[0])
    parts = [_of_columns(values, own, knots) for own in groups]
    made = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    order = [i for own in groups for i in own]
    if order != sorted(order):
        made = made[:, torch.tensor(order).argsort()]
    return torch.where(values.isnan(), missing, made)


def _of_columns(
    values: GraphTensor, columns: list[int], knots: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> GraphTensor:
    """``interpolated`` for some columns, all of two knots or all of more; what NaN becomes is left open."""
    own = [knots[i] for i in columns]
    begin, end = columns[0], columns[-1] + 1
    neighbours = end - begin == len(columns)  # a slice is cheaper than a gather
    some = values[:, begin:end] if neighbours else values[:, torch.tensor(columns)]
    lengths = torch.tensor([len(x) for x, _ in own])
    starts = torch.cumsum(lengths, 0) - lengths
    x, y = (torch.cat([k[i] for k in own]).double() for i in (0, 1))
    slopes = torch.cat([torch.nn.functional.pad(y.diff() / x.diff(), (0, 1)) for x, y in own]).double()
    first, last = x[starts], x[starts + lengths - 1]
    clipped = torch.minimum(torch.maximum(torch.where(some.isnan(), first, some), first), last)
    left = starts
    if lengths.max() > 2:
        left = torch.clamp(count_below(clipped, [k for k, _ in own], right=False), min=1) - 1 + starts
    return y[left] + slopes[left] * (clipped - x[left])
