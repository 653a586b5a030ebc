"""Embedded columns and other values side by side in one step, on a CPU: looked up, cast and joined in one pass.

Of a batch of some thousand rows the arithmetic takes less time than the calls between which tensors are looked up,
split, joined, cast and, going back, split, joined and copied again. Here each group of tables is gathered once and
copied straight to its place in the result, in the type that the next layer multiplies in; backwards each group's
gradient is copied once and added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastrec.models.embedding import NARROW, EmbeddingTables

__all__ = ["can_join", "join"]


class _Run(NamedTuple):
    """Neighbouring columns of one group: ``size`` floats, from ``source`` of what is gathered to ``place``."""

    source: int
    place: int
    size: int


def can_join(embeds: EmbeddingTables | None, x_cat: Tensor | None) -> bool:
    """Whether the tables are of the kind that this is for: narrow ones with dense gradients, on a CPU."""
    if embeds is None or x_cat is None or not embeds.n_columns or x_cat.device.type != "cpu":
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    groups = {s.group for s in embeds.slices[: embeds.n_columns]}
    return all(not g.endswith("_rows") and embeds.weights[g].shape[1] <= NARROW for g in groups)


def join(embeds: EmbeddingTables, x_cat: Tensor, others: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The columns' vectors, then the other values.

    Args:
        embeds: tables for which ``can_join`` holds.
        x_cat: ids ``[b, columns]``.
        others: values ``[b, ·]``.
        dtype: of the result.

    Returns:
        ``[b, width of all columns and values]``, the columns in their order.

    Raises:
        DataError: an id is out of range (see ``EmbeddingTables``).
    """
    embeds.check(x_cat)
    ids = embeds.ids(x_cat)
    runs: dict[str, list[_Run]] = {g: [] for g in ids}
    filled, at = dict.fromkeys(ids, 0), 0
    for group, size in embeds.runs:
        runs[group].append(_Run(filled[group], at, size))
        filled[group] += size
        at += size
    flat = [i.flatten() for i in ids.values()]
    weights = [embeds.weights[g] for g in ids]
    return _Join.apply(list(runs.values()), flat, len(x_cat), at, dtype, *weights, *others)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        runs: list[list[_Run]],
        ids: list[Tensor],
        rows: int,
        embedded: int,
        dtype: torch.dtype,
        *tensors: Tensor,
    ) -> Tensor:
        weights, others = tensors[: len(ids)], tensors[len(ids) :]
        out = weights[0].new_empty(rows, embedded + sum(o.shape[1] for o in others), dtype=dtype)
        for own, weight, places in zip(ids, weights, runs, strict=True):
            found = weight.index_select(0, own).view(rows, sum(run.size for run in places))
            for run in places:
                out.narrow(1, run.place, run.size).copy_(found.narrow(1, run.source, run.size))
        at = embedded
        for other in others:
            out.narrow(1, at, other.shape[1]).copy_(other)
            at += other.shape[1]
        ctx.save_for_backward(*ids)
        ctx.runs, ctx.rows, ctx.embedded = runs, rows, embedded
        ctx.shapes = [(w.shape, w.dtype) for w in weights], [(o.shape[1], o.dtype) for o in others]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tables, values = ctx.shapes
        found: list[Tensor | None] = []
        for i, (own, (shape, dtype)) in enumerate(zip(ctx.saved_tensors, tables, strict=True)):
            if not ctx.needs_input_grad[5 + i]:
                found.append(None)
                continue
            parts = grad.new_empty(ctx.rows, sum(run.size for run in ctx.runs[i]), dtype=dtype)
            for run in ctx.runs[i]:
                parts.narrow(1, run.source, run.size).copy_(grad.narrow(1, run.place, run.size))
            found.append(grad.new_zeros(shape, dtype=dtype).index_add_(0, own, parts.view(len(own), shape[1])))
        at = ctx.embedded
        for i, (width, dtype) in enumerate(values):
            wanted = ctx.needs_input_grad[5 + len(tables) + i]
            found.append(grad.narrow(1, at, width).to(dtype) if wanted else None)
            at += width
        return None, None, None, None, None, *found
