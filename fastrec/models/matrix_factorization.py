"""Matrix factorization: the product of two columns' vectors, and a bias for each id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from fastai.layers import SigmoidRange
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models.embedding import EmbeddingTables
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.placement.settings import share_out
from fastrec.models.training_rows import training_rows


class MatrixFactorization(FieldNet):
    """A score of two ids: the dot product of their vectors, a bias of each, and one for all.

    With equal weights (and ``mean=0``) it computes what fastai's ``EmbeddingDotBias`` does.

    Args:
        emb_szs: ``(rows, width)`` of the two columns (user and item, say); the widths give way to ``dim``.
        n_cont: number of continuous columns: none.
        out_sz: number of outputs: 1.
        dim: width of the vectors, rounded up to a multiple of 4 unless ``pad=False``.
        bias: each id has a bias.
        mean: the common bias, on the scale of the targets; it is not trained. ``rec_learner`` takes the mean of the
            training rows' targets. None: 0 before any sigmoid.
        y_range: ``(low, high)`` that a sigmoid squeezes the score into; none by default.
        std: scale of the truncated normal that vectors and biases start from.
        **inputs: options of the inputs, see ``FieldNet``; no lists or vectors.

    Raises:
        DataError: other than two categorical columns and one output, or ``mean`` outside ``y_range``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int = 0,
        out_sz: int = 1,
        *,
        dim: int = 50,
        bias: bool = True,
        mean: float | None = None,
        y_range: tuple[float, float] | None = None,
        std: float = 0.01,
        **inputs: Unpack[InputOptions],
    ) -> None:
        others = n_cont + len(inputs.get("list_szs", ())) + len(inputs.get("vector_szs", ()))
        if len(emb_szs) != 2 or others or out_sz != 1:
            raise DataError(
                f"matrix factorization of {len(emb_szs)} categorical columns, {others} others and {out_sz} outputs",
                remedy="Give two categorical columns and a numeric target (y_block=RegressionBlock), or n_out=1",
            )
        own, of_biases = share_out(inputs.get("placement"), [dim, 1])
        super().__init__([(rows, dim) for rows, _ in emb_szs], 0, **{**inputs, "placement": own})
        self.embeds.reset_parameters(std)
        self.biases: EmbeddingTables | None = None
        if bias:
            tables = {k: v for k, v in inputs.items() if k in ("check_ids", "grads")} | {"placement": of_biases}
            ones = [(rows, 1) for rows, _ in emb_szs]
            self.biases = EmbeddingTables(ones, names=inputs.get("cat_names"), pad=False, std=std, **tables)
        self.register_buffer("mean", torch.tensor([_start(mean, y_range)]))
        self.squeeze = SigmoidRange(*y_range) if y_range is not None else nn.Identity()

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``: the mean of numeric targets, if none is given."""
        if "mean" in given:
            return {}
        y = training_rows(dls)[2]
        if y is None or getattr(dls, "vocab", None) is not None:  # codes of classes have no mean
            return {}
        mean, y_range = float(y.double().mean()), given.get("y_range")
        return {"mean": mean} if y_range is None or y_range[0] < mean < y_range[1] else {}

    def forward(self, x_cat: Tensor, x_cont: Tensor | None = None) -> Tensor:
        """Score a batch.

        Args:
            x_cat: ids ``[b, 2]``, integers.
            x_cont: not used.

        Returns:
            ``[b, 1]``.

        Raises:
            DataError: an id is out of range.
        """
        one, other = self.fields(x_cat).unbind(1)
        out = (one * other).sum(1, keepdim=True) + self.mean
        if self.biases is not None:
            out = out + self.biases(x_cat).sum(1, keepdim=True)
        return self.squeeze(out)

    def user_vectors(self) -> Tensor:
        """Return vectors of all codes of the first column, biases included: ``[rows, width + 2]``.

        Their products with ``item_vectors`` are the scores but for the common bias and any sigmoid, so that they put
        items in the same order.
        """
        vectors, bias = self._side(0)
        return torch.cat([vectors, bias, torch.ones_like(bias)], 1)

    def item_vectors(self) -> Tensor:
        """Return vectors of all codes of the second column, as ``user_vectors``."""
        vectors, bias = self._side(1)
        return torch.cat([vectors, torch.ones_like(bias), bias], 1)

    def _side(self, column: int) -> tuple[Tensor, Tensor]:
        name = self.embeds.slices[column].name
        vectors = self.embeds.table(name)
        bias = vectors.new_zeros(len(vectors), 1) if self.biases is None else self.biases.table(name)
        return vectors, bias


def _start(mean: float | None, y_range: tuple[float, float] | None) -> float:
    if mean is None or y_range is None:
        return mean or 0.0
    low, high = y_range
    if not low < mean < high:
        raise DataError(f"mean={mean} is outside y_range={y_range}", remedy="Give a wider y_range, or mean=None")
    share = (mean - low) / (high - low)
    return math.log(share / (1 - share))
