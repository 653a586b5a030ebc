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
import torch.nn.functional as F
from torch import Tensor

from fastrec._core import limits
from fastrec.models._lookup.compiled import can_compile, compiled_join
from fastrec.models.embedding import EmbeddingTables

__all__ = ["can_join", "drop_first", "join"]


class _Run(NamedTuple):
    """Neighbouring columns of one group: ``size`` floats, from ``source`` of the gathered to ``place``."""

    source: int
    place: int
    size: int


def can_join(embeds: EmbeddingTables | None, x_cat: Tensor | None) -> bool:
    """Return whether the tables are narrow ones on a CPU."""
    if embeds is None or x_cat is None or not embeds.n_columns or x_cat.device.type != "cpu":
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    groups = {s.group for s in embeds.slices[: embeds.n_columns]}
    return all(embeds.weights[g].shape[1] <= limits.NARROW_TABLE for g in groups)


def join(embeds: EmbeddingTables, x_cat: Tensor, others: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Join the columns' vectors and the other values.

    Args:
        x_cat: ids ``[b, columns]``.
        others: values ``[b, ·]``.

    Returns:
        ``[b, width of all columns and values]``, the columns in their order.
    """
    if can_compile(embeds, x_cat, dtype):
        embeds.check_shape(x_cat)
        return compiled_join(embeds, x_cat, others, dtype)
    embeds.check(x_cat)
    # Row-sparse gradients are made by torch's own lookup; what it finds is one more value to join.
    ids = embeds.rows_by_group(x_cat)
    found = {g: embeds.vectors(g, rows) for g, rows in ids.items() if _is_sparse(g)}
    places: dict[str, list[_Run]] = {g: [] for g in ids}
    filled, at = dict.fromkeys(ids, 0), 0
    for group, size in embeds.runs:
        places[group].append(_Run(filled[group], at, size))
        filled[group] += size
        at += size
    dense = [g for g in ids if g not in found]
    given = [(found[g], places[g]) for g in found]
    for other in others:
        given.append((other, [_Run(0, at, other.shape[1])]))
        at += other.shape[1]
    plan = _JoinPlan(len(x_cat), at, [places[g] for g in dense], [runs for _, runs in given], dtype)
    flat = [ids[g].flatten() for g in dense]
    return _Join.apply(plan, flat, *(embeds.weights[g] for g in dense), *(value for value, _ in given))


def drop_first(values: Tensor, width: int, p: float) -> Tensor:
    """Apply dropout in place to the first columns of what ``join`` returned.

    The mask is drawn as ``nn.Dropout`` draws it for those columns alone: the same seed, the same numbers.

    Args:
        values: ``[b, columns]``.
    """
    mask = F.dropout(torch.ones(len(values), width), p)  # in float32, whatever the type that is multiplied in
    return _DropFirst.apply(values, mask.to(values.dtype))


class _DropFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.mark_dirty(values)
        values.narrow(1, 0, mask.shape[1]).mul_(mask)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        grad = grad.clone()  # it may be another's too
        grad.narrow(1, 0, mask.shape[1]).mul_(mask)
        return grad, None


def _is_sparse(group: str) -> bool:
    return group.endswith("_rows")


class _JoinPlan(NamedTuple):
    """The layout of a lookup."""

    rows: int
    width: int
    tables: list[list[_Run]]
    values: list[list[_Run]]
    dtype: torch.dtype


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _JoinPlan, ids: list[Tensor], *tensors: Tensor) -> Tensor:
        weights, values = tensors[: len(ids)], tensors[len(ids) :]
        out = tensors[0].new_empty(plan.rows, plan.width, dtype=plan.dtype)
        for own, weight, runs in zip(ids, weights, plan.tables, strict=True):
            _put(weight.index_select(0, own).view(plan.rows, _width(runs)), runs, out)
        for value, runs in zip(values, plan.values, strict=True):
            _put(value, runs, out)
        ctx.save_for_backward(*ids)
        ctx.plan, ctx.kinds = plan, [(t.shape, t.dtype) for t in tensors]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, ids = ctx.plan, ctx.saved_tensors
        found: list[Tensor | None] = []
        for i, ((shape, dtype), runs) in enumerate(zip(ctx.kinds, [*plan.tables, *plan.values], strict=True)):
            if not ctx.needs_input_grad[2 + i]:
                found.append(None)
                continue
            part = grad.new_empty(plan.rows, _width(runs), dtype=dtype)
            for run in runs:
                part.narrow(1, run.source, run.size).copy_(grad.narrow(1, run.place, run.size))
            if i < len(ids):
                part = part.view(len(ids[i]), shape[1])
                part = grad.new_zeros(shape, dtype=dtype).index_add_(0, ids[i], part)
            found.append(part)
        return None, None, *found


def _put(value: Tensor, runs: Sequence[_Run], out: Tensor) -> None:
    for run in runs:
        out.narrow(1, run.place, run.size).copy_(value.narrow(1, run.source, run.size))


def _width(runs: Sequence[_Run]) -> int:
    return sum(run.size for run in runs)
