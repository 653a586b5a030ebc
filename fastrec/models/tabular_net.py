"""Embeddings and numbers side by side into a multi-layer perceptron: fastai's TabularModel over fused tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from fastai.layers import LinBnDrop, SigmoidRange
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import CheckIds, EmbeddingTables


class TabularNet(nn.Module):
    """Embeddings, then blocks of linear, activation, batch norm and dropout: fastai's TabularModel.

    With equal weights and widths it computes the same numbers as fastai's; names in the state dict are the same but
    for the tables, which lie in ``embeds.weights``.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        layers: width of each hidden layer.
        ps: dropout after each hidden layer, one for all or one each; none by default.
        embed_p: dropout on the embeddings.
        y_range: ``(low, high)`` that a sigmoid squeezes the outputs into; none by default.
        use_bn: batch norm in the hidden layers.
        bn_final: batch norm on the outputs as well.
        bn_cont: batch norm on the continuous columns.
        act_cls: activation: a module, or a class or function that makes one.
        lin_first: linear layer first in a block (else batch norm and dropout before it).
        cat_names: names of the categorical columns, for ``embeds.table(name)`` and for messages.
        pad: round the tables' widths up to multiples of 4 floats.
        check_ids: when to look for ids out of range, see ``EmbeddingTables``.

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
        embed_p: float = 0.0,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = True,
        bn_final: bool = False,
        bn_cont: bool = True,
        act_cls: nn.Module | Callable[[], nn.Module] = nn.ReLU,
        lin_first: bool = True,
        cat_names: Sequence[str] | None = None,
        pad: bool = True,
        check_ids: CheckIds = "auto",
    ) -> None:
        super().__init__()
        emb_szs = list(emb_szs)
        if not emb_szs and not n_cont:
            raise DataError("a net without any input column cannot be", remedy="Give cat_names or cont_names")
        self.embeds = EmbeddingTables(emb_szs, names=cat_names, pad=pad, check_ids=check_ids) if emb_szs else None
        self.n_emb = self.embeds.embedding_dim if self.embeds is not None else 0
        self.n_cont = n_cont
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(n_cont) if bn_cont and n_cont else None
        sizes = [self.n_emb + n_cont, *layers, out_sz]
        drops = [*_dropouts(ps, len(layers)), 0.0]
        last = len(layers)
        blocks: list[nn.Module] = [
            LinBnDrop(
                sizes[i],
                sizes[i + 1],
                bn=use_bn and (i != last or bn_final),
                p=p,
                act=_activation(act_cls) if i != last else None,
                lin_first=lin_first,
            )
            for i, p in enumerate(drops)
        ]
        if y_range is not None:
            blocks.append(SigmoidRange(*y_range))
        self.layers = nn.Sequential(*blocks)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None) -> Tensor:
        """Outputs for a batch.

        Args:
            x_cat: ids ``[b, categorical columns]``, integers; unused where there are none.
            x_cont: numbers ``[b, n_cont]``, float; unused where there are none.

        Returns:
            ``[b, out_sz]``.

        Raises:
            DataError: an id is out of range.
        """
        pieces: list[Tensor] = []
        if self.embeds is not None:
            pieces = self.embeds.pieces(x_cat)
            if self.training and self.emb_drop.p:
                pieces = [self.emb_drop(torch.cat(pieces, 1))]
        if self.n_cont:
            pieces.append(x_cont if self.bn_cont is None else self.bn_cont(x_cont))
        return self.layers(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1))


def _dropouts(ps: float | Sequence[float] | None, n: int) -> list[float]:
    drops = [0.0] * n if ps is None else [float(ps)] * n if isinstance(ps, int | float) else [float(p) for p in ps]
    if len(drops) != n:
        raise DataError(f"{len(drops)} dropouts for {n} layers", remedy="Give one number, or one for each layer")
    return drops


def _activation(act_cls: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    if isinstance(act_cls, nn.Module):
        return act_cls
    return nn.ReLU(inplace=True) if act_cls is nn.ReLU else act_cls()
