"""DLRM: dot products between all pairs of embedded fields, and one vector made of all dense values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.fields import hidden_layers, of_width, squash, table_width
from fastrec.models.mlp import Activation, mlp_blocks


class DLRM(FieldNet):
    """Bottom MLP on the dense values, dot products of all pairs of vectors, top MLP on both (arXiv 1906.00091).

    Every field is embedded at one width, that of the bottom's last layer: ``bottom=[64, 16]`` makes tables of width
    16. With ``pad`` (the default) that width is rounded up to a multiple of 4, in the bottom and the tables alike.
    As published there is no batch norm anywhere, the bottom's last layer has an activation, and a table of n rows
    starts uniform within ± n^-½. The published net for Criteo's Kaggle set is ``bottom=[512, 256, 64, 16]``,
    ``top=[512, 256]``.

    Without dense values there is no bottom; without fields the top works on the bottom's output.

    Example::

        dls = RecDataLoaders.from_df(df, ".", [Categorify, FillMissing, Normalize], cats, conts, "click", bs=4096)
        learn = rec_learner(dls, DLRM, bottom=[64, 16], top=[128, 64], loss_func=BCE(), metrics=AUC())
        learn.fit_one_cycle(1, 1e-2)

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column, in the order of the batch; the width is not used.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        bottom: width of each layer of the bottom MLP, the last being the width of the embeddings; ``(64, emb_dim)``
            by default.
        top: width of each hidden layer of the top MLP.
        emb_dim: width of the embeddings, where ``bottom`` does not tell it; 16 by default.
        self_interaction: each vector's product with itself as well.
        ps: dropout after each hidden layer of the top, one for all or one each; none by default.
        y_range: ``(low, high)`` that a sigmoid squeezes the outputs into; none by default.
        use_bn: batch norm in the layers of both MLPs, and on the continuous columns (``bn_cont`` changes the latter).
        act_cls: activation: a module, or a class or function that makes one.
        **inputs: options of the inputs, see ``FieldNet``.

    Raises:
        DataError: ``bottom`` is empty or does not end with ``emb_dim``; one field without dense values, which leaves
            no pair; no input columns at all; or ``ps`` not as long as ``top``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        *,
        bottom: Sequence[int] | None = None,
        top: Sequence[int] = (200, 100),
        emb_dim: int | None = None,
        self_interaction: bool = False,
        ps: float | Sequence[float] | None = None,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = False,
        act_cls: Activation = nn.ReLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        inputs.setdefault("bn_cont", use_bn)
        *hidden, width = _bottom_widths(bottom, emb_dim)
        width = table_width(width, inputs)
        inputs["list_szs"] = of_width(inputs.get("list_szs", ()), width)
        super().__init__(of_width(emb_szs, width), n_cont, **inputs)
        self.emb_dim, self.n_vectors = width, self.n_fields + bool(self.n_dense)
        rows, columns = torch.tril_indices(self.n_vectors, self.n_vectors, 0 if self_interaction else -1)
        self.register_buffer("_pairs", rows * self.n_vectors + columns, persistent=False)
        self.bottom = None
        if self.n_dense:
            self.bottom, _ = hidden_layers(self.n_dense, [*hidden, width], ps=None, use_bn=use_bn, act_cls=act_cls)
        elif not len(self._pairs):
            raise DataError("one field alone makes no pair", remedy="Give a second column, or self_interaction=True")
        sizes = [width * bool(self.n_dense) + len(self._pairs), *top, out_sz]
        self.top = nn.Sequential(*mlp_blocks(sizes, ps=ps, use_bn=use_bn, act_cls=act_cls), squash(y_range))
        self._reset_tables()

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        bottom = [] if self.bottom is None else [self.bottom(self.dense(x_cont, extras))]
        vectors = side_by_side(bottom + self.embed_pieces(x_cat, extras))
        if not len(self._pairs):
            return self.top(vectors)
        vectors = vectors.unflatten(1, (self.n_vectors, self.emb_dim))
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return self.top(side_by_side([*bottom, products.index_select(1, self._pairs)]))

    def _reset_tables(self) -> None:
        for s in self.embeds.slices if self.embeds is not None else ():
            bound = (s.stop - s.start) ** -0.5
            with self.embeds.writing(s.name, anew=True) as table:
                table.uniform_(-bound, bound)


def _bottom_widths(bottom: Sequence[int] | None, emb_dim: int | None) -> list[int]:
    widths = [64, 16 if emb_dim is None else emb_dim] if bottom is None else list(bottom)
    if not widths or widths[-1] != (widths[-1] if emb_dim is None else emb_dim):
        wanted = "" if emb_dim is None else f", {emb_dim}"
        raise DataError(
            f"a bottom of layers {widths} does not end with the width of the embeddings{wanted}",
            remedy="The bottom's last layer is as wide as the embeddings: give bottom alone, or both alike",
        )
    return widths
