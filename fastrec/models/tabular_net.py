"""Embeddings and numbers side by side into a multi-layer perceptron: fastai's TabularModel over fused tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from fastrec.models.fields import Activation, FieldNet, InputOptions, mlp
from fastrec.models.joined_lookup import can_join, can_multiply_by_id, join, linear_by_id


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
