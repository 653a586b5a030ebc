"""Losses of nets over sessions, negative sampling, augmentation and initial item vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.sequences.reading import SessionFrame
from fastrec.sequences.session_net import SessionNet

# Cross-entropy of a linear layer with many outputs, block by block with its own gradient.
#
# Autograd stores the logits, their softmax and its gradient, ``[positions, items]`` each. Here the gradients of a block
# of positions are computed while its logits are in the processor's cache, and only these are stored.


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    own: Tensor | None = None,
    half: bool = False,
) -> Tensor:
    """Return the mean of ``cross_entropy(hidden @ weight.T + bias, target)``; 0 without positions.

    Args:
        hidden: ``[positions, width]``.
        weight: ``[items, width]``.
        target: item of each position, int64 ``[positions]``.
        bias: added to the logits, ``[items]``; without a gradient.
        own: added to the logit of each position's target, ``[positions]``; without a gradient.
        half: compute logits and their gradient in bfloat16, which some processors multiply several times faster.
    """
    return _LinearCrossEntropy.apply(hidden, weight, target, bias, own, half)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, own: Tensor | None, half: bool
    ) -> Tensor:
        learns = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden = torch.zeros_like(hidden) if learns else hidden
        grad_weight = torch.zeros_like(weight) if learns else weight
        h, w = (hidden.bfloat16(), weight.bfloat16()) if half else (hidden, weight)
        bias = None if bias is None else bias.to(h.dtype)
        positions, total = len(h), hidden.new_zeros(())
        rows = max(limits.CHUNKED_LOSS_FEWEST, limits.CHUNKED_LOSS_CELLS // max(len(w), 1))
        for a in range(0, positions, rows):
            b = min(a + rows, positions)
            logits = h[a:b] @ w.T
            if bias is not None:
                logits += bias
            place = target[a:b].unsqueeze(1)
            if own is not None:
                logits.scatter_add_(1, place, own[a:b].unsqueeze(1).to(logits.dtype))
            shares = torch.softmax(logits, 1)
            chance = shares.gather(1, place)
            total -= chance.to(hidden.dtype).clamp_min(limits.CHUNKED_LOSS_TINY).log().sum()
            if learns:
                shares.scatter_(1, place, chance - 1)
                torch.mm(shares, w, out=grad_hidden[a:b]) if not half else grad_hidden[a:b].copy_(shares @ w)
                grad_weight.addmm_(shares.T, h[a:b]) if not half else grad_weight.add_(shares.T @ h[a:b])
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.scale = 1.0 / max(positions, 1)
        return total * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad * ctx.scale
        grads = [g * scale if wanted else None for g, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad)]
        return (*grads, None, None, None, None)


class ItemDraw:
    """Draws negative items for whole batches, uniformly or by ``'popularity'``; code 0 is never drawn.

    ``counts``: number of training events of each code, ``[codes]``; None: equal.
    """

    def __init__(self, codes: int, counts: Tensor | None, sampling: str, *, device: torch.device) -> None:
        self.codes, self.device, self.sampling = codes, device, sampling
        counts = torch.ones(codes) if counts is None else counts.float()
        counts = counts.clone()
        counts[0] = 0.0
        self.shares = (counts / counts.sum().clamp_min(1e-12)).to(device)
        self.sums = self.shares.double().cumsum(0)

    def draw(self, negatives: int) -> Tensor:
        """Return codes int64 ``[negatives]``, drawn with replacement."""
        if self.sampling == "popularity":
            point = torch.rand(negatives, device=self.device, dtype=torch.float64) * self.sums[-1]
            return torch.searchsorted(self.sums, point, right=True).clamp_(1, self.codes - 1)
        return torch.randint(1, max(self.codes, 2), (negatives,), device=self.device)

    def among(self, target: Tensor, negatives: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw ``negatives`` items beside the batch's targets, int64 ``[p]``.

        Returns the codes of all, int64 ``[m]``, where each target is among them, int64 ``[p]``, and each one's chance
        above 0 to be among as many targets drawn by frequency, or among the negatives, ``[m]``.
        """
        drawn = torch.cat([target, self.draw(negatives)]) if negatives else target
        codes, place = torch.unique(drawn, return_inverse=True)
        absent = torch.log1p(-self.shares[codes].clamp_max(0.999)) * len(target)
        if negatives and self.sampling == "popularity":
            absent += torch.log1p(-self.shares[codes].clamp_max(0.999)) * negatives
        elif negatives:
            absent += torch.log1p(torch.tensor(-1.0 / max(self.codes - 1, 2))) * negatives
        return codes, place[: len(target)], (-torch.expm1(absent)).clamp_min(1e-6)


Sampling = Literal["uniform", "popularity", "in_batch"]


class SessionLoss(nn.Module):
    """A loss of a net's outputs ``[b, L, width]`` at the positions with a target, codes ``[b, L]`` (0: none).

    Attributes:
        counts: number of training events of each code, ``[codes]``; set by ``session_learner``.
    """

    counts: Tensor | None = None
    draw: ItemDraw | None = None  # of a loss of drawn items

    def forward(self, hidden: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the mean over the positions with a target; 0 if there are none."""
        asked = target > 0
        return self.of(net.query(hidden[asked]), target[asked], net)

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss of queries ``[p, width]`` with the targets ``[p]``."""
        raise NotImplementedError


class FullSoftmax(SessionLoss):
    """Cross-entropy over all items; ``half``: see ``linear_cross_entropy``."""

    def __init__(self, *, half: bool = False) -> None:
        super().__init__()
        self.half = half

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss, see ``SessionLoss.of``."""
        return linear_cross_entropy(query, net.keys(net.items.all())[1:], target - 1, half=self.half)


class SampledSoftmax(SessionLoss):
    """Cross-entropy over the batch's targets and drawn negatives, shared by all positions.

    Each logit is reduced by the logarithm of the item's chance to be in the batch (logQ), except a position's own
    target (arXiv 2507.09331 gives the reason).

    Args:
        negatives: number of drawn items, at most.
        sampling: ``'uniform'``, by ``'popularity'``, or only the batch's targets (``'in_batch'``).
        log_q: whether logits are corrected.
        half: see ``linear_cross_entropy``.
    """

    def __init__(
        self, negatives: int = 2048, sampling: Sampling = "uniform", *, log_q: bool = True, half: bool = False
    ) -> None:
        super().__init__()
        self.negatives, self.sampling, self.log_q, self.half = negatives, sampling, log_q, half

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss, see ``SessionLoss.of``."""
        self.draw = self.draw or ItemDraw(net.items.codes, self.counts, self.sampling, device=target.device)
        codes, place, chance = self.draw.among(target, self.negatives if self.sampling != "in_batch" else 0)
        keys = net.keys(net.items(codes))
        bias = -chance.log() if self.log_q else None
        own = None if bias is None else -bias[place]
        return linear_cross_entropy(query, keys, place, bias=bias, own=own, half=self.half)


class GoalLoss(SessionLoss):
    """Weighted sum of a loss over the goals of a net with ``heads``; targets are ``[b, L, goals]``.

    Args:
        loss: of each goal.
        weights: of each goal; None: learned uncertainty weights ``exp(-s) loss + s / 2`` (Kendall, Gal, Cipolla 2018).
    """

    def __init__(self, loss: SessionLoss, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.loss, self.weights = loss, weights

    def forward(self, hidden: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the sum over goals."""
        self.loss.counts, total = self.counts, hidden.new_zeros(())
        for goal, spread in enumerate(net.heads.log_var):
            net.goal = goal
            value = self.loss(hidden, target[..., goal], net)
            if self.weights is None:
                value = torch.exp(-spread) * value + spread / 2
            total = total + (value if self.weights is None else self.weights[goal] * value)
        return total


class GBCE(SessionLoss):
    """Calibrated binary cross-entropy of the target and drawn negatives (gSASRec, arXiv 2308.07192).

    Args:
        negatives: number of drawn items, shared by all positions.
        calibration: 0: plain binary cross-entropy, 1: fully calibrated probabilities (``t`` in the paper).
    """

    def __init__(self, negatives: int = 256, calibration: float = 0.75) -> None:
        super().__init__()
        if not 0 <= calibration <= 1:
            raise DataError(f"calibration={calibration}", remedy="Give a number from 0 to 1")
        self.negatives, self.calibration = negatives, calibration

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss, see ``SessionLoss.of``."""
        self.draw = self.draw or ItemDraw(net.items.codes, None, "uniform", device=target.device)
        codes = self.draw.draw(self.negatives)
        share = min(len(codes) / max(net.items.codes - 1, 1), 1.0)
        beta = share * (self.calibration * (1 - 1 / share) + 1 / share)
        right = (query * net.keys(net.items(target))).sum(1)
        wrong = query @ net.keys(net.items(codes)).T
        wrong = wrong.masked_fill(codes == target.unsqueeze(1), -math.inf)
        return (-beta * F.logsigmoid(right) + F.softplus(wrong).sum(1)).sum() / max(len(target), 1)


class BPRMax(SessionLoss):
    """Pairs of the target and drawn negatives, weighted by the softmax of the negatives' scores (arXiv 1706.03847).

    Args:
        negatives: number of drawn items, shared by all positions.
        decay: weight of the negatives' squared scores.
    """

    def __init__(self, negatives: int = 512, decay: float = 0.01) -> None:
        super().__init__()
        self.negatives, self.decay = negatives, decay

    def of(self, query: Tensor, target: Tensor, net: SessionNet) -> Tensor:
        """Return the loss, see ``SessionLoss.of``."""
        self.draw = self.draw or ItemDraw(net.items.codes, None, "uniform", device=target.device)
        codes = self.draw.draw(self.negatives)
        right = (query * net.keys(net.items(target))).sum(1, keepdim=True)
        wrong = query @ net.keys(net.items(codes)).T
        itself = codes == target.unsqueeze(1)
        shares = wrong.masked_fill(itself, -1e4).softmax(1).masked_fill(itself, 0.0)
        won = (shares * torch.sigmoid(right - wrong)).sum(1)
        return (-(won + 1e-10).log() + self.decay * (shares * wrong.square()).sum(1)).sum() / max(len(target), 1)


# Augmentation of training sessions, new in every epoch.
#
# ``prefix``: a random number of first events. ``crop``: a random window. ``reversed``: half of the sessions backwards.
# ``reorder``: in half of the sessions, a window of a third of the length in random order. ``mask``: a tenth of the
# inputs replaced by a virtual item, so that no single event is indispensable. Side features move with their events.
#
# Source of ``crop``, ``mask`` and ``reorder``: Xie et al. 2020, "Contrastive Learning for Sequential Recommendation".

AUGMENTATIONS = ("prefix", "crop", "reversed", "reorder", "mask")


def augmented(
    names: Sequence[str], starts: Tensor, ends: Tensor, longest: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the sessions' starts and ends after ``prefix`` and ``crop``; at least two events remain.

    ``starts`` and ``ends`` are int64 ``[n]``, two events or more apart; at most ``longest`` are kept.
    """
    if "prefix" in names:
        ends = starts + 2 + _drawn(ends - starts - 1, generator)
    if "crop" in names:
        length = 2 + _drawn((ends - starts).clamp_max(longest) - 1, generator)
        starts = starts + _drawn(ends - starts - length + 1, generator)
        ends = starts + length
    return torch.maximum(starts, ends - longest), ends


def moved(names: Sequence[str], lengths: Tensor, longest: int, *, generator: torch.Generator) -> Tensor:
    """Return the event shown at each place after ``reversed`` and ``reorder``, int64 ``[n, longest]``.

    Past a session's end, given by ``lengths``, it is the place itself.
    """
    place = torch.arange(longest, device=lengths.device).repeat(len(lengths), 1)
    ends = lengths.unsqueeze(1)
    if "reversed" in names:
        turned = (torch.rand(len(lengths), generator=generator) < 0.5).to(lengths.device)
        place = torch.where(turned.unsqueeze(1) & (place < ends), ends - 1 - place, place)
    if "reorder" in names:
        size = torch.div(lengths, 3, rounding_mode="floor")
        first = _drawn((lengths - size + 1).cpu(), generator).to(lengths.device)
        size = size * (torch.rand(len(lengths), generator=generator) < 0.5).to(lengths.device)
        at = torch.arange(longest, device=lengths.device)
        inside = (at >= first.unsqueeze(1)) & (at < (first + size).unsqueeze(1))
        draw = torch.rand(place.shape, generator=generator).to(lengths.device)
        # the keys of a window lie between those of its neighbours
        key = torch.where(inside, first.unsqueeze(1) + draw, at.double())
        place = place.gather(1, key.argsort(dim=1, stable=True))
    return place


def _drawn(below: Tensor, generator: torch.Generator) -> Tensor:
    """Return uniform whole numbers from 0 to below the given ones."""
    return (torch.rand(len(below), generator=generator, dtype=torch.float64) * below).long()


def ppmi_svd(
    sessions: SessionFrame, dims: int = 64, *, window: int = 5, shift: float = 1.0, rounds: int = 3, seed: int = 0
) -> torch.Tensor:
    """Return item vectors from the positive pointwise mutual information of items near each other in sessions.

    Two items ``d`` events apart, up to ``window``, count ``1 / d``. The vectors are the matrix's largest singular
    vectors, weighted by the roots of their values (Levy and Goldberg 2014), by randomised subspace iteration (Halko,
    Martinsson, Tropp 2011). The cost is proportional to events times ``window``.

    Args:
        dims: width of the vectors.
        shift: information below its logarithm counts as none.
        rounds: of the iteration.
        seed: of its start.

    Returns:
        float32 ``[codes, dims]``, root mean square length 1; zeros for codes without neighbours.
    """
    size = len(sessions.items)
    near = _nearness(sessions, window, size)
    total = np.asarray(near.sum(1)).ravel().astype(np.float64)
    rows = np.repeat(np.arange(size), np.diff(near.indptr))
    expected = total[rows] * total[near.indices] / max(total.sum(), 1e-12)
    data = np.maximum(np.log(near.data / expected) - np.log(shift), 0).astype(np.float32)
    information = csr_matrix((data, near.indices, near.indptr), shape=near.shape)
    information.eliminate_zeros()
    basis = information @ np.random.default_rng(seed).standard_normal((size, min(dims + 16, size)), dtype=np.float32)
    for _ in range(rounds):
        basis = information @ np.linalg.qr(basis)[0]
    basis = np.linalg.qr(basis)[0]
    values, turn = np.linalg.eigh(basis.T @ (information @ basis))
    largest = np.argsort(-np.abs(values))[:dims]
    vectors = (basis @ turn[:, largest]) * np.sqrt(np.abs(values[largest]))
    found = torch.zeros(size, dims)
    found[:, : len(largest)] = torch.from_numpy(vectors.astype(np.float32))
    found[torch.from_numpy(np.diff(information.indptr) == 0)] = 0.0  # but for rounding it is
    return found / found.square().sum(1).mean().sqrt().clamp_min(1e-12)


def _nearness(sessions: SessionFrame, window: int, size: int) -> csr_matrix:
    """Return the symmetric matrix of co-occurrence weights."""
    values = sessions.values.numpy()
    session = np.repeat(np.arange(len(sessions)), sessions.lengths.numpy())
    found = csr_matrix((size, size), dtype=np.float32)
    for apart in range(1, window + 1):
        same = session[apart:] == session[:-apart]
        a, b = values[:-apart][same], values[apart:][same]
        known = (a != b) & (a > 0) & (b > 0)
        if not len(a):
            break
        weight = np.full(int(known.sum()), 1 / apart, dtype=np.float32)
        found = found + csr_matrix((weight, (a[known], b[known])), shape=(size, size))
    return (found + found.T).tocsr()
