"""TabM: many multi-layer perceptrons in one, which share nearly all of their weights (arXiv 2410.24210)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from fastai.losses import (
    BaseLoss,
    BCEWithLogitsLossFlat,
    CrossEntropyLossFlat,
    LabelSmoothingCrossEntropy,
    LabelSmoothingCrossEntropyFlat,
)
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.losses import BCE
from fastrec.models.embedding import side_by_side
from fastrec.models.field_net import FieldNet, InputOptions
from fastrec.models.fields import squash
from fastrec.models.mlp import Activation, activation, dropouts
from fastrec.models.piecewise import PiecewiseLinear, bins_of

Combine = Literal["mean", "sigmoid", "softmax"]

_SOFTMAX = (CrossEntropyLossFlat, LabelSmoothingCrossEntropy, LabelSmoothingCrossEntropyFlat, nn.CrossEntropyLoss)
_SIGMOID = (BCE, BCEWithLogitsLossFlat, nn.BCEWithLogitsLoss)
_SIZES = ((16, 32, 8), (128, 256, 64), (4, 16, 4))  # members, layers, embedding: least, most, in steps of
# means over rows: one call for all members at once gives the mean over the members as well
_BY_ROW = (*_SOFTMAX, *_SIGMOID, BaseLoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


class TabM(FieldNet):
    """``k`` multi-layer perceptrons over the same inputs, trained each for itself and averaged in prediction.

    The members share the embeddings and the layers' matrices. In the mini form each member scales the inputs by
    numbers of its own (random signs to begin with) and has an output layer of its own; in the full form it scales
    every layer's inputs and outputs and has biases of its own as well (section 3 of arXiv 2410.24210).

    In training ``forward`` returns every member's outputs, ``[b, k, out_sz]``, since each member's loss counts by
    itself: the loss has to be ``MeanOverMembers(loss)``. ``rec_learner`` sees to that; with a stock Learner write
    ``Learner(dls, net, loss_func=net.wrap_loss(CrossEntropyLossFlat()))``. In evaluation it returns ``[b, out_sz]``:
    the members' mean, of probabilities where there are such, as the score that the loss's activation turns into it.

    Args:
        emb_szs: ``(rows, width)`` for each categorical column, in the order of the batch.
        n_cont: number of continuous columns.
        out_sz: number of outputs.
        layers: width of each hidden layer, one or more.
        k: number of members; ``rec_learner`` takes fewer, and smaller layers and vectors, for more than 20 numbers.
        variant: ``'mini'`` or ``'full'``.
        bins: bin edges of each continuous column (``bins_of``; ``rec_learner`` takes them from the training rows), or
            a ``PiecewiseLinear`` made of them; None: the numbers enter as they are.
        d_embedding: width of each number's vector, where there are bins.
        ps: dropout after each hidden layer, one for all or one each.
        y_range: ``(low, high)`` that a sigmoid squeezes each member's outputs into; none by default.
        act_cls: activation: a module, or a class or function that makes one.
        combine: what is averaged over members: outputs (``'mean'``), or probabilities by ``'sigmoid'`` or
            ``'softmax'``; None: as the loss given to ``wrap_loss`` has it, else outputs.
        **inputs: options of the inputs, see ``FieldNet``; ``bn_cont`` is off by default.

    Raises:
        DataError: no input columns or hidden layers at all, ``k`` below 1, an option that is none of those named, bins
            for another number of columns, or ``ps`` not as long as ``layers``.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (256, 256),
        *,
        k: int = 32,
        variant: Literal["mini", "full"] = "mini",
        bins: PiecewiseLinear | Sequence[Tensor] | None = None,
        d_embedding: int = 16,
        ps: float | Sequence[float] | None = 0.1,
        y_range: tuple[float, float] | None = None,
        act_cls: Activation = nn.ReLU,
        combine: Combine | None = None,
        **inputs: Unpack[InputOptions],
    ) -> None:
        super().__init__(emb_szs, n_cont, **{"bn_cont": False, **inputs})
        _check(layers, k, variant, combine)
        if self.embeds is not None:
            self.embeds.reset_parameters(limits.TABM_EMB_STD)
        self.k, self.out_sz, self.combine = k, out_sz, combine
        self.numbers = _embedding_of(bins, n_cont, d_embedding)
        n_numbers = self.numbers.embedding_dim if self.numbers is not None else n_cont
        sizes = [self.n_emb + n_numbers + self.n_dense - n_cont, *layers]
        blocks: list[nn.Module] = []
        for i, p in enumerate(dropouts(ps, len(layers))):
            first, full = i == 0, variant == "full"
            linear = (
                EnsembleLinear(sizes[i], sizes[i + 1], k, signs=first, outputs=full)
                if first or full
                else nn.Linear(sizes[i], sizes[i + 1])
            )
            blocks += [linear, activation(act_cls), *([nn.Dropout(p)] if p else [])]
        self.layers = nn.Sequential(*blocks)
        self.heads = MemberHeads(sizes[-1], out_sz, k)
        self.squeeze = squash(y_range)

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``, except given ones.

        Bins come from the training rows. The class's own sizes are the paper's, for tables of up to 20 numbers; they
        shrink as there are more, down to 16 members, layers of 128 and 16 bins in 4 numbers each from some 80 on.
        """
        n = len(dls.cont_names)
        share = min(1.0, limits.TABM_NARROW / max(n, 1))
        options: dict[str, Any] = {}
        if share < 1:
            k, width, d = (max(low, int(full * share) // step * step) for low, full, step in _SIZES)
            options = {"k": k, "layers": (width, width), "d_embedding": d}
        options = {name: value for name, value in options.items() if name not in given}
        if n and "bins" not in given:
            options["bins"] = bins_of(dls, max(16, int(48 * share)))
        return options

    def wrap_loss(self, loss: Any) -> MeanOverMembers:
        """Return the loss to train with: each member's, averaged.

        Args:
            loss: a loss of ``[b, out_sz]`` and targets; it also settles ``combine`` where that was left open, by its
                kind or an attribute of that name.

        Returns:
            The loss of ``[b, k, out_sz]``, with the given one's activation and decisions.
        """
        own = loss.loss if isinstance(loss, MeanOverMembers) else loss
        if self.combine is None:
            found = "softmax" if isinstance(own, _SOFTMAX) else "sigmoid" if isinstance(own, _SIGMOID) else None
            self.combine = getattr(own, "combine", found)
        return MeanOverMembers(own)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Outputs for a batch.

        Args:
            x_cat: ids ``[b, categorical columns]``, integers; unused where there are none.
            x_cont: numbers ``[b, n_cont]``, float; unused where there are none.
            *extras: a ``ListBatch`` for each list column, then ``[b, d]`` for each vector column.

        Returns:
            ``[b, k, out_sz]`` in training, ``[b, out_sz]`` in evaluation.

        Raises:
            DataError: an id is out of range.
        """
        pieces = self.embed_pieces(x_cat, extras) + self.dense_pieces(x_cont, extras)
        out = self.members(side_by_side(pieces))
        return out if self.training else self._mean(out)

    def dense_pieces(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers of a batch, embedded if there are bins, and its vectors, as pieces ``[b, ·]``."""
        pieces = super().dense_pieces(x_cont, extras)
        return pieces if self.numbers is None else [self.numbers(pieces[0]), *pieces[1:]]

    def members(self, x: Tensor) -> Tensor:
        """Return every member's outputs ``[b, k, out_sz]``, for embedded inputs ``[b, ·]``."""
        return self.squeeze(self.heads(self.layers(x)))

    def _mean(self, out: Tensor) -> Tensor:
        if self.combine == "softmax":
            return torch.logsumexp(out.float().log_softmax(-1), 1)  # a constant less: softmax takes no notice
        if self.combine == "sigmoid":
            out = out.float()
            return torch.logsumexp(F.logsigmoid(out), 1) - torch.logsumexp(F.logsigmoid(-out), 1)
        return out.mean(1)


class EnsembleLinear(nn.Module):
    """One matrix for all members, around which each member scales inputs, and outputs if asked for.

    For member i: ``y_i = (x_i ⊙ r_i) W (⊙ s_i) + b_i``; without ``outputs`` there is no ``s`` and one bias for all.

    Args:
        signs: the inputs' scales begin as random signs (else at 1), and one input ``[b, n_in]`` goes to all members.
    """

    def __init__(self, n_in: int, n_out: int, k: int, *, signs: bool, outputs: bool) -> None:
        super().__init__()
        plain = nn.Linear(n_in, n_out)
        self.weight = plain.weight
        self.r = nn.Parameter(torch.randint(0, 2, (k, n_in)).float() * 2 - 1 if signs else torch.ones(k, n_in))
        self.s = nn.Parameter(torch.ones(k, n_out)) if outputs else None
        bias = plain.bias.detach()
        self.bias = nn.Parameter(bias.expand(k, -1).clone() if outputs else bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, n_in]``, the same for all members, or ``[b, k, n_in]`` to ``[b, k, n_out]``."""
        # Of many rows it is the matrix that is scaled: [b, k, n_in] is never made. A graph, for batches of any size,
        # has no choice.
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if x.ndim == 2 and (traced or len(x) >= len(self.weight)):
            weights = self.weight[None] * self.r[:, None]
            out = F.linear(x, weights.flatten(0, 1)).unflatten(1, (len(self.r), -1))
        else:
            out = F.linear((x[:, None] if x.ndim == 2 else x) * self.r, self.weight)
        return out + self.bias if self.s is None else torch.addcmul(self.bias, out, self.s)

    def extra_repr(self) -> str:
        """Show widths and members."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, members={len(self.r)}, outputs={self.s is not None}"


class MemberHeads(nn.Module):
    """A linear layer for each member."""

    def __init__(self, n_in: int, n_out: int, k: int) -> None:
        super().__init__()
        limit = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(k, n_in, n_out).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.empty(k, n_out).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, k, n_in]`` to ``[b, k, n_out]``."""
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1) + self.bias

    def extra_repr(self) -> str:
        """Show members and widths."""
        k, n_in, n_out = self.weight.shape
        return f"{n_in}, {n_out}, members={k}"


class MeanOverMembers:
    """The mean of the members' losses, for outputs ``[b, k, out_sz]``; for ``[b, out_sz]`` the loss as it is.

    Everything else (``activation``, ``decodes``, ``reduction``, ``n_out`` …) is the given loss's.

    Args:
        loss: a loss of ``[b, out_sz]`` and targets, which averages rows or lists. One of your own that is a mean over
            rows may say so by an attribute ``by_row = True``: all members go through it at once.
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, pred: Tensor, *targets: Tensor, **options: Any) -> Tensor:
        """Compute the loss.

        Args:
            pred: ``[b, k, out_sz]`` in training, ``[b, out_sz]`` in evaluation.
            *targets: as for the loss.
            **options: as for the loss.

        Returns:
            A scalar, or what the loss returns in evaluation.
        """
        if pred.ndim != 3:
            return self.loss(pred, *targets, **options)
        k = pred.shape[1]
        # one call for all members costs less than k, but is the mean of means only for means over rows
        if isinstance(self.loss, _BY_ROW) or getattr(self.loss, "by_row", False):
            return self.loss(pred.flatten(0, 1), *(t.repeat_interleave(k, 0) for t in targets), **options)
        return torch.stack([self.loss(pred[:, i], *targets, **options) for i in range(k)]).mean()

    @property
    def reduction(self) -> Any:
        """The loss's reduction."""
        return self.loss.reduction

    @reduction.setter
    def reduction(self, value: Any) -> None:
        self.loss.reduction = value

    def __getattr__(self, name: str) -> Any:
        if name == "loss" or name.startswith("__"):  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.loss, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.loss!r})"


def _check(layers: Sequence[int], k: int, variant: str, combine: str | None) -> None:
    if not layers or k < 1:
        raise DataError(f"TabM of {k} members and {len(layers)} layers", remedy="Give one of each, or more")
    if variant not in ("mini", "full") or combine not in (None, "mean", "sigmoid", "softmax"):
        raise DataError(
            f"variant={variant!r}, combine={combine!r}",
            remedy="variant is 'mini' or 'full'; combine 'mean', 'sigmoid', 'softmax' or None",
        )


def _embedding_of(bins: Any, n_cont: int, d_embedding: int) -> PiecewiseLinear | None:
    if bins is None or not n_cont:
        return None
    numbers = bins if isinstance(bins, PiecewiseLinear) else PiecewiseLinear(bins, d_embedding)
    if numbers.n_columns != n_cont:
        raise DataError(
            f"bins of {numbers.n_columns} columns for {n_cont} continuous columns", remedy="Give one set of each"
        )
    return numbers
