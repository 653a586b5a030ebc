"""Wide & Deep: a linear model that remembers, and an MLP that generalises, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.fields import LinearTerms, squash
from fastrec.models.mlp import Activation, mlp_blocks
from fastrec.models.placement.settings import share_out


class WideAndDeep(FieldNet):
    """A weight for each category and dense value, plus an MLP on embeddings and dense values (arXiv 1606.07792).

    The crossed columns that the wide part is known for are made by a feature, as any other categorical column:
    ``Cross("city", "device")``. The deep part embeds them too; an entry in ``emb_szs`` keeps them narrow there.

    Example::

        dls = RecDataLoaders.from_df(
            df, ".", [Categorify, FillMissing, Normalize], [*cats, "city_x_device"], conts, "click",
            features=FeatureSet([Cross("city", "device")]), bs=4096,
        )
        learn = rec_learner(dls, WideAndDeep, layers=[200, 100], emb_szs={"city_x_device": 4}, loss_func=BCE())
        learn.fit_one_cycle(1, 1e-2)

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs; the wide part has a weight for each.
        layers: width of each hidden layer of the deep part.
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
        sizes = [self.n_emb + self.n_dense, *layers, out_sz]
        self.deep = nn.Sequential(*mlp_blocks(sizes, ps=ps, use_bn=use_bn, act_cls=act_cls))
        self.squash = squash(y_range)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        embedded = self.embed_pieces(x_cat, extras)
        dense = [self.dense(x_cont, extras)] if self.n_dense else []
        wide = self.wide(x_cat, extras[: self.n_lists], dense[0] if dense else None)
        return self.squash(wide + self.deep(side_by_side(embedded + dense)))
