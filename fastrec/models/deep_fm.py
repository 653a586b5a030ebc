"""DeepFM: a factorization machine and an MLP over the same embedded fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from fastai.layers import trunc_normal_
from torch import Tensor, nn

from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.fields import LinearTerms, of_width, squash, table_width
from fastrec.models.mlp import Activation, mlp_blocks
from fastrec.models.placement.settings import share_out


class DeepFM(FieldNet):
    """Linear terms, products of all pairs of fields, and an MLP over all fields, summed (arXiv 1703.04247).

    A categorical or list column is a field by its embedding, a continuous column by a vector of its own times the
    number, a vector column by a linear map of the whole vector. The three parts share the fields.

    The sum over pairs is ``½ ((Σ v)² - Σ v²)``, summed over the width for one output, as published; several outputs
    each weigh the width's entries by weights of their own, since one sum for all would tell no class from another.

    Example::

        dls = RecDataLoaders.from_df(df, ".", [Categorify, FillMissing, Normalize], cats, conts, "click", bs=4096)
        learn = rec_learner(dls, DeepFM, emb_dim=16, layers=[400, 400], ps=0.1, loss_func=BCE())
        learn.fit_one_cycle(1, 1e-2)

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column, in the order of the batch; the width is not used.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        layers: width of each hidden layer of the MLP.
        emb_dim: width of every field; with ``pad`` (the default) rounded up to a multiple of 4.
        ps: dropout after each hidden layer, one for all or one each; none by default.
        y_range: ``(low, high)`` that a sigmoid squeezes the outputs into; none by default.
        use_bn: batch norm in the hidden layers.
        act_cls: activation: a module, or a class or function that makes one.
        **inputs: options of the inputs, see ``FieldNet``.

    Raises:
        DataError: no input columns at all, or ``ps`` not as long as ``layers``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        *,
        layers: Sequence[int] = (200, 100),
        emb_dim: int = 16,
        ps: float | Sequence[float] | None = None,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = True,
        act_cls: Activation = nn.ReLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        width = table_width(emb_dim, inputs)
        inputs["list_szs"] = of_width(inputs.get("list_szs", ()), width)
        own, inputs["placement"] = share_out(inputs.get("placement"), [width, out_sz])
        super().__init__(of_width(emb_szs, width), n_cont, **{**inputs, "placement": own})
        self.emb_dim = width
        vector_szs = inputs.get("vector_szs", ())
        self.n_vectors = self.n_fields + n_cont + len(vector_szs)
        self.linear = LinearTerms(emb_szs, self.n_dense, out_sz, inputs)
        self.number_vectors = nn.Parameter(trunc_normal_(torch.empty(n_cont, width), std=0.01)) if n_cont else None
        self.vector_maps = nn.ModuleList([nn.Linear(d, width, bias=False) for d in vector_szs])
        signs = torch.randint(0, 2, (width, out_sz)) * 2.0 - 1  # of the published size, and not alike
        self.pair_weights = nn.Parameter(signs) if out_sz > 1 else None
        sizes = [self.n_vectors * width, *layers, out_sz]
        self.deep = nn.Sequential(*mlp_blocks(sizes, ps=ps, use_bn=use_bn, act_cls=act_cls))
        self.squash = squash(y_range)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        embedded = self.embed_pieces(x_cat, extras)
        dense = self.dense_pieces(x_cont, extras)
        linear = self.linear(x_cat, extras[: self.n_lists], side_by_side(dense) if dense else None)
        fields = side_by_side(embedded + self._dense_fields(dense))
        return self.squash(linear + self._pairs(fields) + self.deep(fields))

    def _dense_fields(self, dense: list[Tensor]) -> list[Tensor]:
        numbers, vectors = dense[: bool(self.n_cont)], dense[bool(self.n_cont) :]
        own = [(x.unsqueeze(2) * self.number_vectors).flatten(1) for x in numbers]
        return own + [to_field(v) for to_field, v in zip(self.vector_maps, vectors, strict=True)]

    def _pairs(self, fields: Tensor) -> Tensor:
        vectors = fields.unflatten(1, (self.n_vectors, self.emb_dim))
        # ½ ((Σ v)² - Σ v²) is linear in the number of fields, the sum over pairs quadratic
        products = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1))
        return products.sum(1, keepdim=True) if self.pair_weights is None else products @ self.pair_weights
