"""Embedded columns and other values side by side in one step, on a CPU: looked up, cast and joined in one pass.

Of a batch of some thousand rows the arithmetic takes less time than the calls between which tensors are looked up,
split, joined, cast and, going back, split, joined and copied again. Here each group of tables is gathered once and
copied straight to its place in the result, in the type that the next layer multiplies in; backwards each group's
gradient is copied once and added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.kernels import compiled, net, shared, view
from fastrec.models.embedding import EmbeddingTables
from fastrec.models.embedding_layout import TableSlice

# ``joined_lookup`` by compiled loops: each group of tables read once and written straight to its place.


class _Group(NamedTuple):
    """A parameter that holds tables: its name, its columns ``[k]``, and the first row of each one's table."""

    name: str
    by_row: bool
    columns: Tensor
    starts: Tensor


class _CompiledPlan(NamedTuple):
    """The layout of a lookup: each column's group, a row of 9 numbers a column, and the floats of all vectors."""

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
    if embeds.placed:  # places in a cache are always in range: ids are checked before they become such
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
        # the loop says whether all ids were in range, which costs nothing there
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
    """Join the columns' vectors, in their order, and the other values ``[b, ·]``: ``[b, width of all]``."""
    if can_compile(embeds, x_cat, dtype):
        embeds.check_shape(x_cat)
        return compiled_join(embeds, x_cat, others, dtype)
    embeds.check(x_cat)
    # Row-sparse gradients are made by torch's own lookup; what it finds is one more value to join.
    ids = embeds.rows_by_group(x_cat)
    found = {g: embeds.vectors(g, rows) for g, rows in ids.items() if g.endswith("_rows")}
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
            # one copy a run, in the table's own type
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


# A linear layer on embeddings, where wide vectors are multiplied once for every id of the batch, not for every row.
#
# ``W [e₁; e₂; …; x] = W₁ e₁ + W₂ e₂ + … + Wₓ x``, and ``W₁ e₁`` is the same for all rows of one id. A batch of 4,096
# rows has some 2,500 ids of a skewed column of 100,000, one of 65,536 rows some 22,000: what is saved is arithmetic and
# memory traffic, forward and backward, and the gradient of a table comes out with every row once.


class WideLinear:
    """Which columns a linear layer on ``[embeddings, other values]`` multiplies by id."""

    def __init__(self, embeds: EmbeddingTables, linear: nn.Linear) -> None:
        self.embeds, self.linear = embeds, linear
        self.wide, self.narrow, at = [], [], 0  # number of the column, first and last place in the layer's input
        for i, s in enumerate(embeds.slices[: embeds.n_columns]):
            (self.wide if s.width >= limits.WIDE_ROW else self.narrow).append((i, at, at + s.width))
            at += s.width

    def __call__(self, x_cat: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Compute the layer's output ``[b, outputs]``.

        Args:
            x_cat: ids ``[b, columns]``, already checked.
            others: values ``[b, ·]`` that stand behind the columns' embeddings in the layer's input.
        """
        weight, total, plain = self.linear.weight, None, list(self.narrow)
        for i, start, stop in self.wide:
            ids, place = torch.unique(x_cat[:, i], return_inverse=True)
            if len(ids) > limits.REPEATED_IDS * len(x_cat):
                plain.append((i, start, stop))
                continue
            part = F.linear(self.embeds.look_up(i, ids), weight[:, start:stop]).index_select(0, place)
            total = part if total is None else total + part
        end = sum(s.width for s in self.embeds.slices[: self.embeds.n_columns])
        values = [*(self.embeds.look_up(i, x_cat[:, i]) for i, _, _ in plain), *others]
        if values:
            used = [weight[:, a:b] for _, a, b in plain] + ([weight[:, end:]] if others else [])
            rest = F.linear(torch.cat(values, 1), torch.cat(used, 1), self.linear.bias)
            return rest if total is None else total + rest
        return total if self.linear.bias is None else total + self.linear.bias
