"""``joined_lookup`` by compiled loops: each group of tables read once and written straight to its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastrec._core.kernels import compiled, net, shared, view
from fastrec.models.embedding import EmbeddingTables
from fastrec.models.embedding_layout import TableSlice

__all__ = ["can_compile", "compiled_join"]


class _Group(NamedTuple):
    """A parameter that holds tables: its name, and its columns.

    Args:
        columns: int64 ``[k]``.
        starts: the first row of each one's table, int64 ``[k]``.
    """

    name: str
    by_row: bool
    columns: Tensor
    starts: Tensor


class _CompiledPlan(NamedTuple):
    """The layout of a lookup.

    Args:
        group_of: which of these each column's is, int64 ``[columns]``.
        columns: int64 ``[columns, 9]``.
        width: floats of all vectors.
    """

    groups: tuple[_Group, ...]
    group_of: np.ndarray
    columns: np.ndarray
    width: int

    def at(self, addresses: Sequence[int]) -> np.ndarray:
        """Return the plan for parameters, or gradients, at these addresses."""
        plan = self.columns.copy()
        plan[:, net().ADDRESS] = np.array(addresses)[self.group_of]
        return plan


def can_compile(embeds: EmbeddingTables, x_cat: Tensor, dtype: torch.dtype) -> bool:
    """Return whether there are loops for these tables and ids, which are on a CPU; the tables may be elsewhere."""
    weights = embeds.weights.values()
    return (
        compiled(len(x_cat) * embeds.embedding_dim)
        and x_cat.dtype in (torch.int32, torch.int64)
        and dtype in (torch.float32, torch.bfloat16)
        and not any(placed.sharded for placed in embeds.placed.values())
        and all(w.dtype == torch.float32 and w.device.type == "cpu" and w.is_contiguous() for w in weights)
    )


def compiled_join(embeds: EmbeddingTables, x_cat: Tensor, others: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Join as ``joined_lookup.join``, for tables for which ``can_compile`` holds."""
    plan = _plan(embeds)
    if embeds.placed:
        embeds.check(x_cat)
    found, x_cat = embeds.on_device(x_cat)
    weights = [found[g.name] for g in plan.groups]
    return _CompiledJoin.apply(embeds, plan, x_cat, dtype, *weights, *others)


def _plan(embeds: EmbeddingTables) -> _CompiledPlan:
    known = embeds.__dict__.get("_compiled_plan")
    if known is None:
        slices = embeds.slices[: embeds.n_columns]
        here = {group: {"start": 0, "stop": placed.slots} for group, placed in embeds.placed.items()}
        slices = [replace(s, **here[s.group]) if s.group in here else s for s in slices]
        known = embeds.__dict__["_compiled_plan"] = _make_plan(slices)
    return known


def _make_plan(slices: Sequence[TableSlice]) -> _CompiledPlan:
    names = list(dict.fromkeys(s.group for s in slices))
    places = np.cumsum([0, *(s.width for s in slices)])
    held = {name: [i for i, s in enumerate(slices) if s.group == name] for name in names}
    by_width = sorted(range(len(slices)), key=lambda i: -slices[i].width)  # dealt out to threads, the widest first
    rows = []
    for i, s in enumerate(slices):
        own, by_row = held[s.group], s.group.endswith("_rows")
        vectors = len(own) if by_row else 0
        rows.append([i, s.start, s.stop - s.start, s.width, places[i], 0, vectors, own.index(i), by_width.index(i)])
    groups = tuple(
        _Group(name, name.endswith("_rows"), torch.tensor(own), torch.tensor([slices[i].start for i in own]))
        for name, own in held.items()
    )
    return _CompiledPlan(groups, np.array([names.index(s.group) for s in slices]), np.array(rows), int(places[-1]))


class _CompiledJoin(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embeds: EmbeddingTables, plan: _CompiledPlan, x_cat: Tensor, dtype: torch.dtype, *tensors: Tensor
    ) -> Tensor:
        weights, others = tensors[: len(plan.groups)], tensors[len(plan.groups) :]
        rows = len(x_cat)
        out = torch.empty(rows, plan.width + sum(x.shape[1] for x in others), dtype=dtype)
        table = plan.at([w.data_ptr() for w in weights])
        if not shared(net().gather, x_cat.numpy(), table, view(out), numbers=rows * plan.width):
            embeds.refuse(x_cat)
        at = plan.width
        for value in others:
            out.narrow(1, at, value.shape[1]).copy_(value)
            at += value.shape[1]
        ctx.save_for_backward(x_cat)
        ctx.plan, ctx.kinds = plan, [(t.shape, t.dtype) for t in tensors]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, (x_cat,), wanted = ctx.plan, ctx.saved_tensors, ctx.needs_input_grad[4:]
        found = _table_grads(plan, x_cat, grad.contiguous(), [shape for shape, _ in ctx.kinds], wanted)
        at = plan.width
        for (shape, dtype), needed in zip(ctx.kinds[len(found) :], wanted[len(found) :], strict=True):
            found.append(grad.narrow(1, at, shape[1]).to(dtype) if needed else None)
            at += shape[1]
        return None, None, None, None, *found


def _table_grads(
    plan: _CompiledPlan, x_cat: Tensor, grad: Tensor, shapes: Sequence[torch.Size], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the gradient of each parameter; row-sparse if its optimizer wants that."""
    room: list[Tensor | None] = [
        None
        if not needed
        else torch.empty(len(x_cat) * len(group.columns), shape[1])
        if group.by_row
        else torch.zeros(shape)
        for group, shape, needed in zip(plan.groups, shapes, wanted, strict=False)
    ]
    columns = plan.at([0 if r is None else r.data_ptr() for r in room])
    if any(r is None for r in room):
        columns = columns[columns[:, net().ADDRESS] != 0]
    shared(net().scatter, x_cat.numpy(), columns, view(grad), numbers=len(x_cat) * plan.width)
    for i, group in enumerate(plan.groups):
        if group.by_row and room[i] is not None:
            ids = x_cat.index_select(1, group.columns).add(group.starts).view(1, -1)
            room[i] = torch.sparse_coo_tensor(ids, room[i], shapes[i], check_invariants=False)
    return room
