"""Embeddings and numbers side by side into a multi-layer perceptron: fastai's TabularModel over fused tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.models.embedding import EmbeddingTables, side_by_side
from fastrec.models.fields import Activation, FieldNet, InputOptions, mlp_blocks, squash
from fastrec.models.joined_lookup import can_join, join

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

    Raises:
        DataError: no input columns at all, or ``ps`` not as long as ``layers``.
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
        blocks = mlp_blocks(sizes, ps=ps, use_bn=use_bn, bn_final=bn_final, act_cls=act_cls, lin_first=lin_first)
        self.layers = nn.Sequential(*blocks, *([] if y_range is None else [squash(y_range)]))

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        first = self._first_linear()
        if first is not None:
            self.embeds.check(x_cat)
            hidden = first(x_cat, [*self.embeds.bags(extras[: self.n_lists]), *self.dense_pieces(x_cont, extras)])
            for module in [*list(self.layers[0])[1:], *list(self.layers)[1:]]:
                hidden = module(hidden)
            return hidden
        if can_join(self.embeds, x_cat) and not (self.training and self.emb_drop.p):
            others = [*self.embeds.bags(extras[: self.n_lists]), *self.dense_pieces(x_cont, extras)]
            return self.layers(join(self.embeds, x_cat, others))
        pieces = self.embed_pieces(x_cat, extras) + self.dense_pieces(x_cont, extras)
        return self.layers(side_by_side(pieces))

    def _first_linear(self) -> WideLinear | None:
        """Compute the first layer by ids if there are wide tables and nothing between them and the layer."""
        if self.embeds is None or not self.embeds.n_columns or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        on_cpu = on_host(next(self.embeds.parameters()))
        drops = self.training and self.emb_drop.p > 0
        if drops or not isinstance(self.layers[0][0], nn.Linear) or not on_cpu:
            return None
        # of narrow tables a gather costs less than finding the batch's different ids
        wide = WideLinear(self.embeds, self.layers[0][0])
        return wide if wide.wide else None
