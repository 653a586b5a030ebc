"""DCN-v2: layers that multiply all inputs with each other explicitly, beside or before an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.fields import hidden_layers, squash
from fastrec.models.mlp import Activation

Structure = Literal["parallel", "stacked"]


class CrossNet(nn.Module):
    """Cross layers: ``x ← x0 ⊙ (W x + b) + x`` (arXiv 2008.13535, equations 1 and 2).

    Args:
        n_layers: number of layers; products of up to ``n_layers + 1`` inputs arise.
        low_rank: rank r of ``W = U Vᵀ``, with U and V of ``width × r``; None keeps W whole.
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

    ``'parallel'`` gives both the inputs and puts their results side by side before the outputs' linear layer;
    ``'stacked'`` gives the MLP what the cross layers made. With d inputs a cross layer has d² + d weights, of rank r
    2 d r + d: where columns of many categories make d large, ``low_rank`` or narrower ``emb_szs`` save most of the
    time.

    Example::

        dls = RecDataLoaders.from_df(df, ".", [Categorify, FillMissing, Normalize], cats, conts, "click", bs=4096)
        learn = rec_learner(dls, DCNv2, cross_layers=3, low_rank=32, structure="stacked", loss_func=BCE())
        learn.fit_one_cycle(1, 1e-2)

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        layers: width of each hidden layer of the MLP; none leaves the cross layers alone.
        cross_layers: number of cross layers.
        low_rank: rank of the cross layers' weights; by default they are whole.
        structure: ``'parallel'`` or ``'stacked'``.
        ps: dropout after each hidden layer, one for all or one each; none by default.
        y_range: ``(low, high)`` that a sigmoid squeezes the outputs into; none by default.
        use_bn: batch norm in the hidden layers.
        act_cls: activation: a module, or a class or function that makes one.
        **inputs: options of the inputs, see ``FieldNet``.

    Raises:
        DataError: another structure, a rank below 1, no input columns at all, or ``ps`` not as long as ``layers``.
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
        self.deep, n_deep = hidden_layers(n_in, layers, ps=ps, use_bn=use_bn, act_cls=act_cls)
        self.parallel = structure == "parallel" and len(layers) > 0
        self.head = nn.Sequential(nn.Linear(n_in + n_deep if self.parallel else n_deep, out_sz), squash(y_range))

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        x0 = side_by_side(self.embed_pieces(x_cat, extras) + self.dense_pieces(x_cont, extras))
        crossed = self.cross(x0)
        return self.head(side_by_side([crossed, self.deep(x0)]) if self.parallel else self.deep(crossed))
