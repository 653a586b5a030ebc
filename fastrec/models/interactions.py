"""Models of interactions: DCNv2, DeepFM, DLRM, Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from fastai.layers import trunc_normal_
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import side_by_side
from fastrec.models.embedding_layout import padded
from fastrec.models.fields import Activation, FieldNet, InputOptions, LinearTerms, mlp, of_width, squash
from fastrec.models.placement.plan import share_out

Structure = Literal["parallel", "stacked"]


class CrossNet(nn.Module):
    """Cross layers: ``x ← x0 ⊙ (W x + b) + x`` (arXiv 2008.13535, equations 1 and 2).

    Products of up to ``n_layers + 1`` inputs arise. With a ``low_rank`` r ``W = U Vᵀ``, U and V of ``width × r``.
    """

    def __init__(self, width: int, n_layers: int, *, low_rank: int | None = None) -> None:
        super().__init__()
        if low_rank is not None and low_rank < 1:
            raise DataError(f"cross layers of rank {low_rank}", remedy="Give a rank of 1 or more, or None")
        self.layers = nn.ModuleList([_weights(width, low_rank) for _ in range(n_layers)])

    def forward(self, x0: Tensor) -> Tensor:
        """Cross ``[b, width]`` with itself, keeping the width."""
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


def _weights(width: int, low_rank: int | None) -> nn.Module:
    if low_rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, low_rank, bias=False), nn.Linear(low_rank, width))


class DCNv2(FieldNet):
    """Cross layers and an MLP over embeddings and dense values (arXiv 2008.13535).

    ``'parallel'``: both get the inputs, and a linear layer their outputs; ``'stacked'``: the MLP gets the outputs of
    the cross layers. With d inputs a cross layer has d² + d weights, of rank r 2 d r + d: if d is large, ``low_rank``
    or narrower ``emb_szs`` save most of the time.

    Example::

        learn = rec_learner(dls, DCNv2, cross_layers=3, low_rank=32, structure="stacked", loss_func=BCE())

    Args:
        layers: width of each hidden layer of the MLP; empty: cross layers only.
        cross_layers: number of cross layers.
        low_rank: rank of the cross layers' weights; None: full rank.
        emb_szs, n_cont, out_sz, ps, y_range, use_bn, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        *,
        layers: Sequence[int] = (200, 100),
        cross_layers: int = 3,
        low_rank: int | None = None,
        structure: Structure = "parallel",
        ps: float | Sequence[float] | None = None,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = True,
        act_cls: Activation = nn.ReLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        if structure not in ("parallel", "stacked"):
            raise DataError(f"structure {structure!r}", remedy="Give 'parallel' or 'stacked'")
        super().__init__(emb_szs, n_cont, **inputs)
        n_in = self.n_emb + self.n_dense
        self.cross = CrossNet(n_in, cross_layers, low_rank=low_rank)
        sizes = [n_in, *layers]
        self.deep = mlp(sizes, ps=ps, use_bn=use_bn, act_cls=act_cls, last_is_output=False)
        self.parallel = structure == "parallel" and len(layers) > 0
        self.head = nn.Sequential(nn.Linear(n_in * self.parallel + sizes[-1], out_sz), squash(y_range))

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        x0 = self.all_inputs(x_cat, x_cont, extras)
        crossed = self.cross(x0)
        return self.head(side_by_side([crossed, self.deep(x0)]) if self.parallel else self.deep(crossed))


class DeepFM(FieldNet):
    """Linear terms, products of all pairs of fields, and an MLP over all fields, summed (arXiv 1703.04247).

    The field of a categorical or list column is its embedding, of a continuous column a vector times the number, of a
    vector column a linear map. The sum over pairs is ``½ ((Σ v)² - Σ v²)``, summed over the width for one output, as
    published; each of several outputs weighs the width's entries.

    Example::

        learn = rec_learner(dls, DeepFM, emb_dim=16, layers=[400, 400], ps=0.1, loss_func=BCE())

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column, in the order of the batch; the width is not used.
        emb_dim: width of every field; with ``pad`` (the default) rounded up to a multiple of 4.
        n_cont, out_sz, layers, ps, y_range, use_bn, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
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
        width = padded(emb_dim, pad=inputs.get("pad", True))
        inputs["list_szs"] = of_width(inputs.get("list_szs", ()), width)
        # the linear terms' tables have the same rows and share the limit of memory
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
        self.deep = mlp([self.n_vectors * width, *layers, out_sz], ps=ps, use_bn=use_bn, act_cls=act_cls)
        self.squash = squash(y_range)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        embedded = self.embed_pieces(x_cat, extras)
        dense = self.dense_pieces(x_cont, extras)
        linear = self.linear(x_cat, extras[: self.n_lists], side_by_side(dense) if dense else None)
        numbers, vectors = dense[: bool(self.n_cont)], dense[bool(self.n_cont) :]
        own = [(x.unsqueeze(2) * self.number_vectors).flatten(1) for x in numbers]
        own += [to_field(v) for to_field, v in zip(self.vector_maps, vectors, strict=True)]
        fields = side_by_side(embedded + own)
        return self.squash(linear + self._pairs(fields) + self.deep(fields))

    def _pairs(self, fields: Tensor) -> Tensor:
        vectors = fields.unflatten(1, (self.n_vectors, self.emb_dim))
        # ½ ((Σ v)² - Σ v²) is linear in the number of fields, the sum over pairs quadratic
        products = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1))
        return products.sum(1, keepdim=True) if self.pair_weights is None else products @ self.pair_weights


class DLRM(FieldNet):
    """Bottom MLP on the dense values, dot products of all pairs of vectors, top MLP on both (arXiv 1906.00091).

    Every field is embedded at the width of the bottom's last layer, which ``pad`` (the default) rounds up to a multiple
    of 4. As published there is no batch norm, the bottom's last layer has an activation, and a table of n rows starts
    uniform within ± n^-½. The published net for Criteo's Kaggle set is ``bottom=[512, 256, 64, 16]``,
    ``top=[512, 256]``. Without dense values there is no bottom.

    Example::

        learn = rec_learner(dls, DLRM, bottom=[64, 16], top=[128, 64], loss_func=BCE(), metrics=AUC())

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column, in the order of the batch; the width is not used.
        bottom: width of each layer of the bottom MLP, the last one that of the embeddings; None: ``(64, emb_dim)``.
        top: width of each hidden layer of the top MLP.
        emb_dim: width of the embeddings without ``bottom``; None: 16.
        self_interaction: also each vector's product with itself.
        ps: dropout after hidden layers of the top, one for all or one each.
        use_bn: batch norm in both MLPs, and on the continuous columns unless ``bn_cont`` is given.
        n_cont, out_sz, y_range, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
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
        widths = [64, 16 if emb_dim is None else emb_dim] if bottom is None else list(bottom)
        if not widths or emb_dim not in (None, widths[-1]):
            wanted = "" if emb_dim is None else f", {emb_dim}"
            problem = f"a bottom of layers {widths} does not end with the width of the embeddings{wanted}"
            remedy = "The bottom's last layer is as wide as the embeddings: give bottom alone, or both alike"
            raise DataError(problem, remedy=remedy)
        hidden, width = widths[:-1], padded(widths[-1], pad=inputs.get("pad", True))
        inputs["list_szs"] = of_width(inputs.get("list_szs", ()), width)
        super().__init__(of_width(emb_szs, width), n_cont, **inputs)
        self.emb_dim, self.n_vectors = width, self.n_fields + bool(self.n_dense)
        rows, columns = torch.tril_indices(self.n_vectors, self.n_vectors, 0 if self_interaction else -1)
        # places of the pairs in the flattened table of products
        self.register_buffer("_pairs", rows * self.n_vectors + columns, persistent=False)
        self.bottom = None
        if self.n_dense:
            self.bottom = mlp([self.n_dense, *hidden, width], use_bn=use_bn, act_cls=act_cls, last_is_output=False)
        elif not len(self._pairs):
            raise DataError("one field alone makes no pair", remedy="Give a second column, or self_interaction=True")
        sizes = [width * bool(self.n_dense) + len(self._pairs), *top, out_sz]
        self.top = mlp(sizes, ps=ps, use_bn=use_bn, act_cls=act_cls, y_range=y_range)
        for s in self.embeds.slices if self.embeds is not None else ():
            bound = (s.stop - s.start) ** -0.5
            with self.embeds.writing(s.name, anew=True) as table:
                table.uniform_(-bound, bound)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        bottom = [] if self.bottom is None else [self.bottom(self.dense(x_cont, extras))]
        vectors = side_by_side(bottom + self.embed_pieces(x_cat, extras))
        if not len(self._pairs):
            return self.top(vectors)
        vectors = vectors.unflatten(1, (self.n_vectors, self.emb_dim))
        # all products at once, then one of each two that are alike
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return self.top(side_by_side([*bottom, products.index_select(1, self._pairs)]))


class WideAndDeep(FieldNet):
    """A weight for each category and dense value, plus an MLP on embeddings and dense values (arXiv 1606.07792).

    Make crossed columns by a feature, ``Cross("city", "device")``; the deep part embeds them too.

    Example::

        dls = RecDataLoaders.from_df(
            df, ".", [Categorify, FillMissing, Normalize], [*cats, "city_x_device"], conts, "click",
            features=FeatureSet([Cross("city", "device")]), bs=4096,
        )
        learn = rec_learner(dls, WideAndDeep, layers=[200, 100], emb_szs={"city_x_device": 4}, loss_func=BCE())

    Args:
        layers: width of each hidden layer of the deep part.
        emb_szs, n_cont, out_sz, ps, y_range, use_bn, act_cls: see ``TabularNet``.
        **inputs: options of the inputs, see ``FieldNet``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        *,
        layers: Sequence[int] = (200, 100),
        ps: float | Sequence[float] | None = None,
        y_range: tuple[float, float] | None = None,
        use_bn: bool = True,
        act_cls: Activation = nn.ReLU,
        **inputs: Unpack[InputOptions],
    ) -> None:
        widest = max((width for _, width in emb_szs), default=1)
        own, inputs["placement"] = share_out(inputs.get("placement"), [widest, out_sz])
        super().__init__(emb_szs, n_cont, **{**inputs, "placement": own})
        self.wide = LinearTerms(emb_szs, self.n_dense, out_sz, inputs)
        self.deep = mlp([self.n_emb + self.n_dense, *layers, out_sz], ps=ps, use_bn=use_bn, act_cls=act_cls)
        self.squash = squash(y_range)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        embedded = self.embed_pieces(x_cat, extras)
        dense = [self.dense(x_cont, extras)] if self.n_dense else []
        wide = self.wide(x_cat, extras[: self.n_lists], dense[0] if dense else None)
        return self.squash(wide + self.deep(side_by_side(embedded + dense)))
