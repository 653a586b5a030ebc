"""A linear layer on embeddings, where wide vectors are multiplied once for every id of the batch, not for every row.

``W [e₁; e₂; …; x] = W₁ e₁ + W₂ e₂ + … + Wₓ x``, and ``W₁ e₁`` is the same for all rows of one id. A batch of 4,096 rows
has some 2,500 ids of a skewed column of 100,000, one of 65,536 rows some 22,000: what is saved is arithmetic and memory
traffic, forward and backward, and the gradient of a table comes out with every row once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.models.embedding import EmbeddingTables

__all__ = ["WideLinear"]


class WideLinear:
    """Which columns a linear layer multiplies by id.

    Args:
        linear: a layer on ``[embeddings, other values]``.
    """

    def __init__(self, embeds: EmbeddingTables, linear: nn.Linear) -> None:
        self.embeds, self.linear = embeds, linear
        self.wide, self.narrow, at = [], [], 0  # number of the column, first and last place in the layer's input
        for i, s in enumerate(embeds.slices[: embeds.n_columns]):
            (self.wide if s.width >= limits.WIDE_TABLE else self.narrow).append((i, at, at + s.width))
            at += s.width

    def __call__(self, x_cat: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Compute the layer's output.

        Args:
            x_cat: ids ``[b, columns]``, already checked.
            others: values ``[b, ·]`` that stand behind the columns' embeddings in the layer's input.

        Returns:
            ``[b, outputs]``.
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
