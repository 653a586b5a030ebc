"""Search values among sorted edges by branch-free bisection, and interpolate between knots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastrec.serve.graph.tensor import GraphTensor, N, value_of


def count_below(values: GraphTensor, edges: Sequence[torch.Tensor], *, right: bool) -> GraphTensor:
    """Count for each value the sorted edges below it (``right``: at or below); NaN is above all. int64 ``[rows, m]``.

    Each step halves the edges of all columns at once: one number of a table is read and compared, and the result is the
    next binary digit of the place. No branch can be mispredicted: 40 columns of 1,000 edges take 1,024 rows .8 ms,
    comparisons with 2 √K of the edges 3.4.

    Args:
        values: ``[rows, m]`` numbers, compared as float64.
        edges: at least one for each column, float64 ``[K]``.
        right: as in torch's ``bucketize``.
    """
    graph = values.graph
    sizes = torch.tensor([len(e) for e in edges])
    depth = int(sizes.max()).bit_length()
    falling = np.full((len(edges), 2**depth - 1), np.inf)  # from the highest, for NaN is not below an edge
    for row, own in zip(falling, edges, strict=True):
        row[len(row) - len(own) :] = own.detach().cpu().double().numpy()[::-1]
    whole = np.int32 if falling.size < np.iinfo(np.int32).max >> 1 else np.int64
    value = value_of(graph, values, torch.float64)
    line, in_line = graph.constant(np.array([-1])), graph.constant(np.array([-1, len(edges)]))
    compare = "Less" if right else "LessOrEqual"
    flat = graph.op("Reshape", value, line)
    place = ""  # column · 2^level + how many of the level's edges are above, of which there are 2^level - 1 in all
    for level in range(depth):
        step = 1 << (depth - level)
        table = falling[:, step // 2 - 1 :: step]
        if not level:
            above = graph.op(compare, value, graph.constant(table[:, 0]))
            start = graph.constant(2 * np.arange(len(edges), dtype=whole))
            place = graph.op("Add", graph.op("Cast", above, to=graph.type_of(whole)), start)
            place = graph.op("Reshape", place, line)
            continue
        edge = graph.op("GatherElements", graph.constant(table.ravel()), place, axis=0)
        digit = graph.op("Cast", graph.op(compare, flat, edge), to=graph.type_of(whole))
        place = graph.op("Add", graph.op("Add", place, place), digit)
    place = graph.op("Cast", graph.op("Reshape", place, in_line), to=graph.type_of(np.int64))
    found = GraphTensor(graph, place, torch.empty((N, len(edges)), dtype=torch.int64, device="meta"))
    ends = torch.arange(1, len(edges) + 1) * 2**depth - 1  # a column's place less which it has this many below
    return torch.minimum(ends - found, sizes)  # the padding is below NaN, and at infinity


def interpolated(
    values: GraphTensor, knots: Sequence[tuple[torch.Tensor, torch.Tensor]], *, missing: float
) -> GraphTensor:
    """Interpolate columns linearly between knots, constant beyond their ends, as ``RankGauss.apply`` does.

    ``knots`` has at least two ``x`` (growing) and ``y`` for each column, float64 ``[K]``; NaN becomes ``missing``.
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
    """Interpolate some columns, all of two knots or all of more, without regard to NaN."""
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
