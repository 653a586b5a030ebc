"""What the models of interactions share: fields of one width, and the linear part that stands beside them."""

from __future__ import annotations

from collections.abc import Sequence

from fastai.layers import SigmoidRange
from torch import Tensor, nn

from fastrec.models.embedding import EmbeddingTables
from fastrec.models.embedding_layout import padded
from fastrec.models.field_net import InputOptions
from fastrec.models.mlp import Activation, mlp_blocks


def table_width(width: int, inputs: InputOptions) -> int:
    """Return a table's stored width: with ``pad`` (the default) rounded up to a multiple of 4."""
    return padded(width) if inputs.get("pad", True) else width


def of_width(sizes: Sequence[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """Return the same numbers of rows, each with that width."""
    return [(rows, width) for rows, _ in sizes]


def squash(y_range: tuple[float, float] | None) -> nn.Module:
    """Squash outputs by a sigmoid onto ``y_range``; without one, return them as they are."""
    return nn.Identity() if y_range is None else SigmoidRange(*y_range)


def hidden_layers(
    n_in: int, layers: Sequence[int], *, ps: float | Sequence[float] | None, use_bn: bool, act_cls: Activation
) -> tuple[nn.Sequential, int]:
    """Return hidden layers without an output layer, and their last width."""
    sizes = [n_in, *layers]
    blocks = mlp_blocks(sizes, ps=ps, use_bn=use_bn, last_is_output=False, act_cls=act_cls)
    return nn.Sequential(*blocks), sizes[-1]


class LinearTerms(nn.Module):
    """One weight for each category and output, and one for each dense value: a linear model without its bias.

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column; the width is not used.
    """

    def __init__(
        self, emb_szs: Sequence[tuple[int, int]], n_dense: int, out_sz: int, inputs: InputOptions | None = None
    ) -> None:
        super().__init__()
        given = inputs or {}
        list_szs = given.get("list_szs", ())
        self.n_fields, self.out_sz = len(emb_szs) + len(list_szs), out_sz
        # Ids are checked where the model's embeddings are looked up, before these.
        self.tables = (
            EmbeddingTables(
                of_width(emb_szs, out_sz),
                names=given.get("cat_names"),
                list_szs=of_width(list_szs, out_sz),
                list_names=given.get("list_names"),
                pool=given.get("pool", "mean"),
                tie=given.get("tie"),
                grads=given.get("grads", "dense"),
                placement=given.get("placement"),
                pad=False,
                check_ids="never",
            )
            if self.n_fields
            else None
        )
        self.dense = nn.Linear(n_dense, out_sz, bias=False) if n_dense else None

    def forward(self, x_cat: Tensor | None, lists: Sequence[Tensor], dense: Tensor | None) -> Tensor:
        """Add up the weights of a row's categories, and of its dense values times theirs.

        Args:
            x_cat: ids ``[b, categorical columns]``, in range.
            dense: ``[b, n_dense]``; None where there are none.

        Returns:
            ``[b, out_sz]``.
        """
        terms = []
        if self.tables is not None:
            terms.append(self.tables(x_cat, *lists).unflatten(1, (self.n_fields, self.out_sz)).sum(1))
        if self.dense is not None:
            terms.append(self.dense(dense))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
