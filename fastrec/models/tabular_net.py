"""Embeddings and numbers side by side into a multi-layer perceptron: fastai's TabularModel over fused tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import compiled, shared, steps, view
from fastrec.models.embedding import EmbeddingTables
from fastrec.models.fields import Activation, FieldNet, InputOptions, mlp


class TabularNet(FieldNet):
    """Embeddings, then blocks of linear, activation, batch norm and dropout: fastai's TabularModel.

    With equal weights and widths it computes the same numbers as fastai's; names in the state dict are the same but
    for the tables, which lie in ``embeds.weights``.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        layers: width of each hidden layer.
        ps: dropout after each hidden layer, one for all or one each; none by default.
        y_range: ``(low, high)`` that a sigmoid squeezes the outputs into; none by default.
        use_bn: batch norm in the hidden layers.
        bn_final: batch norm on the outputs as well.
        act_cls: activation: a module, or a class or function that makes one.
        lin_first: linear layer first in a block (else batch norm and dropout before it).
        **inputs: options of the inputs, see ``FieldNet``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (200, 100),
        *,
        ps: float | Sequence[float] | None = None,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = True,
        bn_final: bool = False,
        act_cls: Activation = nn.ReLU,
        lin_first: bool = True,
        **inputs: Unpack[InputOptions],
    ) -> None:
        super().__init__(emb_szs, n_cont, **inputs)
        sizes = [self.n_emb + self.n_dense, *layers, out_sz]
        options = {"use_bn": use_bn, "bn_final": bn_final, "act_cls": act_cls, "lin_first": lin_first}
        self.layers = mlp(sizes, ps=ps, y_range=y_range, **options)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        joins = can_join(self.embeds, x_cat)
        by_id = not joins and can_multiply_by_id(self.embeds, x_cat, self.layers)
        if (joins or by_id) and not (self.training and self.emb_drop.p):
            others = [*self.embeds.bags(extras[: self.n_lists]), *self.dense_pieces(x_cont, extras)]
            if joins:
                return self.layers(join(self.embeds, x_cat, others, self.layers))
            hidden = linear_by_id(self.embeds, x_cat, others, self.layers[0][0])
            for module in [*list(self.layers[0])[1:], *list(self.layers)[1:]]:
                hidden = module(hidden)
            return hidden
        return self.layers(self.all_inputs(x_cat, x_cont, extras))


# Faster first steps of a net on a CPU: narrow vectors joined by one compiled loop, wide ones multiplied once per id.
#
# At batch 4,096 an epoch of ``bench_e2e``'s net takes 10 to 13 % less time than by torch's calls (two cores, torch
# 2.13).


def can_join(embeds: EmbeddingTables | None, x_cat: Tensor | None) -> bool:
    """Return whether the loops take these tables and ids: narrow float32 tables on the CPU."""
    if embeds is None or x_cat is None or not embeds.n_columns or embeds.placed or not on_host(x_cat):
        return False
    # gradients of ids that nobody checks would be written outside of the tables
    if embeds.check_ids == "never":
        return False
    if _watched() or x_cat.dtype not in (torch.int32, torch.int64):
        return False
    weights = list(embeds.weights.values())
    plain = all(w.dtype == torch.float32 and on_host(w) and w.is_contiguous() for w in weights)
    narrow = all(w.shape[1] <= limits.NARROW_TABLE for w in weights)
    return plain and narrow and compiled(len(x_cat) * embeds.embedding_dim)


def can_multiply_by_id(embeds: EmbeddingTables | None, x_cat: Tensor | None, layers: nn.Module) -> bool:
    """Return whether ``linear_by_id`` takes the first of a net's ``layers``: on the CPU, with some wide tables."""
    if embeds is None or x_cat is None or embeds.placed or not on_host(x_cat):
        return False
    if _watched() or len(x_cat) < limits.BY_ID_ROWS:  # an export must not see a question about the number of rows
        return False
    return len(_down_to_linear(layers)) == 3 and any(
        s.width >= limits.BY_ID_WIDTH for s in embeds.slices[: embeds.n_columns]
    )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _down_to_linear(layers: nn.Module) -> list[nn.Module]:
    """Return the modules down to the linear layer that reads a net's input; none if hooks or own classes see it."""
    found = [layers]
    while getattr(type(found[-1]), "forward", None) is nn.Sequential.forward and len(found[-1]):
        found.append(found[-1][0])
    plain = type(found[-1]) is nn.Linear and not any(getattr(m, hooks) for m in found for hooks in _HOOKS)
    return found if plain else []


def _watched() -> bool:
    # an export, a compiler and functorch look for torch's own calls
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()


def linear_by_id(embeds: EmbeddingTables, x_cat: Tensor, others: Sequence[Tensor], linear: nn.Linear) -> Tensor:
    """Apply a linear layer to the columns' vectors and the other values ``[b, ·]`` behind them: ``[b, outputs]``.

    ``W [e₁; e₂; …; x] = W₁ e₁ + W₂ e₂ + … + Wₓ x``, and ``W₁ e₁`` is equal in all rows of an id: a wide vector is
    multiplied once per id of the batch, forward and backward. An epoch with fastai's widths (up to 600) at batch 4,096
    took .78 s instead of 1.45 by this, in bfloat16 .58 instead of .80 (one core, torch 2.13).
    """
    embeds.check(x_cat)
    slices, places = embeds.slices[: embeds.n_columns], {}
    rows: dict[str, dict[int, Tensor]] = {}  # group → column → the rows to look up: one lookup has one gradient
    for i, s in enumerate(slices):
        ids = x_cat[:, i].long()
        if s.width >= limits.BY_ID_WIDTH:
            distinct, place = torch.unique(ids, return_inverse=True)
            if len(distinct) <= limits.REPEATED_IDS * len(ids):
                ids, places[i] = distinct, place
        rows.setdefault(s.group, {})[i] = ids + s.start
    found: dict[int, Tensor] = {}
    for group, own in rows.items():
        vectors = embeds.vectors(group, torch.cat([*own.values()]).unsqueeze(1))
        found |= zip(own, vectors.split([len(r) for r in own.values()]), strict=True)
    values = [found[i] for i in range(len(slices)) if i not in places] + list(others)
    if not places:
        return linear(torch.cat(values, 1))
    weights = linear.weight.split([*(s.width for s in slices), linear.in_features - sum(s.width for s in slices)], 1)
    total = sum(F.linear(found[i], weights[i]).index_select(0, place) for i, place in places.items())
    if not values:
        return total if linear.bias is None else total + linear.bias.to(total.dtype)
    used = [w for i, w in enumerate(weights) if i not in places]
    return total + F.linear(torch.cat(values, 1), torch.cat(used, 1), linear.bias)


def join(embeds: EmbeddingTables, x_cat: Tensor, others: Sequence[Tensor], reader: nn.Module | None = None) -> Tensor:
    """Join the columns' vectors, in their order, and the other values ``[b, ·]``: ``[b, width of all]``.

    The result is float32, or bfloat16 if ``reader`` begins with a linear layer whose input autocast would cast to it.
    """
    if x_cat.shape[1:] != (embeds.n_columns,):
        embeds.check(x_cat)
    columns: dict[str, list[int]] = {}
    for j, s in enumerate(embeds.slices[: embeds.n_columns]):
        columns.setdefault(s.group, []).append(j)
    cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    dtype = torch.bfloat16 if cast and reader is not None and _down_to_linear(reader) else torch.float32
    return _Join.apply(embeds, columns, dtype, x_cat, *(embeds.weights[g] for g in columns), *others)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeds: EmbeddingTables,
        columns: dict[str, list[int]],
        dtype: torch.dtype,
        x_cat: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        slices = embeds.slices[: embeds.n_columns]
        weights, others = tensors[: len(columns)], tensors[len(columns) :]
        places = np.cumsum([0, *(s.width for s in slices)])
        table = {group: w.data_ptr() for group, w in zip(columns, weights, strict=True)}
        rows = [[s.start, s.stop, s.width, at, table[s.group], 0, 0] for s, at in zip(slices, places[:-1], strict=True)]
        ctx.plan, ctx.columns, ctx.kinds = np.array(rows), columns, [(t.shape, t.dtype) for t in tensors]
        at = ctx.width = int(places[-1])
        out = torch.empty(len(x_cat), at + sum(x.shape[1] for x in others), dtype=dtype)
        if not shared(steps().gather, view(x_cat), ctx.plan, view(out), numbers=out.numel()):
            embeds.check(x_cat)  # names the id; a check of its own before takes 2 % of a step in bfloat16
        for value in others:
            out.narrow(1, at, value.shape[1]).copy_(value)
            at += value.shape[1]
        ctx.save_for_backward(x_cat)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x_cat,), wanted, plan, loops = ctx.saved_tensors, ctx.needs_input_grad[4:], ctx.plan, steps()
        grad, at, n_tables = grad.contiguous(), ctx.width, len(ctx.columns)
        found: list[Tensor | None] = []
        for (group, own), (shape, _), needed in zip(ctx.columns.items(), ctx.kinds, wanted, strict=False):
            by_row = group.endswith("_rows")
            room = None
            if needed:
                room = torch.empty(len(x_cat) * len(own), shape[1]) if by_row else torch.zeros(shape)
            plan[own, loops.ADDRESS] = 0 if room is None else room.data_ptr()
            plan[own, loops.VECTORS], plan[own, loops.VECTOR] = len(own) if by_row else 0, range(len(own))
            found.append(room)
        shared(loops.scatter, view(x_cat), plan, view(grad), numbers=len(x_cat) * ctx.width)
        for i, (group, own) in enumerate(ctx.columns.items()):
            if group.endswith("_rows") and found[i] is not None:
                ids = x_cat[:, own].long() + torch.from_numpy(plan[own, loops.START])
                found[i] = torch.sparse_coo_tensor(ids.view(1, -1), found[i], ctx.kinds[i][0], check_invariants=False)
        for (shape, dtype), needed in zip(ctx.kinds[n_tables:], wanted[n_tables:], strict=True):
            found.append(grad.narrow(1, at, shape[1]).to(dtype) if needed else None)
            at += shape[1]
        return None, None, None, None, *found
