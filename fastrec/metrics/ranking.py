"""Ranking metrics over groups (lists, sessions, users): vectorised, in float64, on whatever device the scores are.

A *group* is one list of candidates. Groups are any integers, in any order, and need not be contiguous. A candidate is
relevant when its label is above 0. Two rules hold everywhere unless an argument says otherwise:

- **Ties count against the model** (``ties='worst'``): for MRR the rank of a relevant candidate is the number of
  candidates in its list whose score is at or above its own; for NDCG, recall and MAP the less relevant of equal scores
  come first. A model that gives everything the same score gains nothing from the order of the rows.
- **A missing score ranks last**: NaN is below every number, minus infinity included, and equal to other NaN.

A group without a relevant candidate counts as 0 (``empty='zero'``) or is left out (``empty='skip'``).
``MRR``, ``NDCG``, ``Recall``, ``MAP`` and ``AUC`` are the same metrics for a fastai ``Learner``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fastrec.metrics.lists import Empty, ScoredLists, Ties, choice, cut, order_rows, prepare, refuse_rows, runs, then

__all__ = [
    "auc",
    "gauc",
    "group_ranks",
    "hit_rate",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "recall",
    "reciprocal_ranks",
]


def mrr(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None = None,
    ties: Ties = "worst",
    empty: Empty = "zero",
    sample_weight: Any = None,
) -> float:
    """Compute the mean reciprocal rank of the best placed relevant candidate of each group.

    Args:
        scores: ``[n]`` numbers, higher is better; tensor, array or Series.
        labels: ``[n]`` numbers, above 0 is relevant.
        groups: ``[n]`` integers.
        k: ranks below the k-th count 0; None for no cut.
        ties: rank of a relevant candidate among equal scores: ``'worst'`` (how many are at or above it), ``'ordinal'``
            (input order) or ``'best'`` (one more than are above it).
        empty: what a group without a relevant candidate counts: ``'zero'``, or ``'skip'`` to leave it out.
        sample_weight: ``[n]`` weights >= 0; a group weighs the mean of its rows' weights. None for equal weights.

    Returns:
        The mean over groups; NaN where no group is left to count.

    Raises:
        DataError: lengths differ, no rows, a label is missing, groups are not integers.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    return lists.mean(_reciprocal(lists, k, ties), empty)


def reciprocal_ranks(
    scores: Any, labels: Any, groups: Any, *, k: int | None = None, ties: Ties = "worst", empty: Empty = "zero"
) -> tuple[Tensor, Tensor]:
    """Compute the reciprocal rank of each group, for intervals and paired comparisons.

    Args:
        scores, labels, groups: as for :func:`mrr`.
        k: ranks below the k-th count 0; None for no cut.
        ties, empty: as for :func:`mrr`.

    Returns:
        Group ids ``[g]`` in ascending order, and their reciprocal ranks ``[g]`` float64, on the device of the scores.

    Raises:
        DataError: lengths differ, no rows, a label is missing, groups are not integers.
    """
    lists = prepare(scores, labels, groups)
    values = _reciprocal(lists, k, ties)
    if choice(empty, "empty", ("zero", "skip")) == "skip":
        return lists.ids[lists.has_relevant], values[lists.has_relevant]
    return lists.ids, values


def ndcg(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None = 10,
    gains: Literal["exp2", "linear"] = "exp2",
    ties: Ties = "worst",
    empty: Empty = "zero",
    sample_weight: Any = None,
) -> float:
    """Compute the mean normalised discounted cumulative gain at k.

    Discount 1 / log2(rank + 1) and gain 2^label - 1 as in Burges et al. 2005 (RankNet), section 6.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` grades >= 0.
        groups: ``[n]`` integers.
        k: length of the list that counts; None for all of it.
        gains: ``'exp2'`` for 2^label - 1, ``'linear'`` for the label itself. Equal where labels are 0 and 1.
        ties: among equal scores, lower grades first (``'worst'``), higher first (``'best'``) or input order.
        empty, sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.

    Raises:
        DataError: as for :func:`mrr`, or a label below 0 or infinite.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    refuse_rows(lists.labels.isinf() | (lists.labels < 0), "labels", "is below 0 or infinite", "Grades start at 0")
    choice(gains, "gains", ("exp2", "linear"))
    gain = torch.exp2(lists.labels) - 1 if gains == "exp2" else lists.labels
    order = order_rows(lists, choice(ties, "ties", ("worst", "ordinal", "best")))
    ideal = then(then(None, -gain), lists.codes)
    return lists.mean(_discounted(lists, gain, order, k) / _discounted(lists, gain, ideal, k), empty)


def hit_rate(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None,
    ties: Ties = "worst",
    empty: Empty = "zero",
    sample_weight: Any = None,
) -> float:
    """Compute the share of the groups that have a relevant candidate among their first k (HR@k).

    Args:
        scores, labels, groups: as for :func:`mrr`.
        k: length of the list that counts; None for all of it.
        ties, empty, sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    return lists.mean((_reciprocal(lists, k, ties) > 0).double(), empty)


def recall(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None,
    ties: Ties = "worst",
    empty: Empty = "zero",
    sample_weight: Any = None,
) -> float:
    """Compute the mean share of each group's relevant candidates that are among its first k.

    Args:
        scores, labels, groups: as for :func:`mrr`.
        k: length of the list that counts; None for all of it.
        ties: among equal scores, non-relevant first (``'worst'``), relevant first or input order.
        empty, sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    codes, relevant, position = _relevant_in_order(lists, ties)
    hits = lists.sums((relevant & (position < cut(k))).double(), codes)
    return lists.mean(hits / lists.sums(relevant.double(), codes), empty)


def mean_average_precision(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None = None,
    ties: Ties = "worst",
    empty: Empty = "zero",
    sample_weight: Any = None,
) -> float:
    """Compute the mean over groups of the average precision at k (MAP@k).

    A group's average precision is the sum of the precisions at its relevant ranks up to k, over min(relevant, k).

    Args:
        scores, labels, groups: as for :func:`mrr`.
        k: length of the list that counts; None for all of it.
        ties: among equal scores, non-relevant first (``'worst'``), relevant first or input order.
        empty, sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    codes, relevant, position = _relevant_in_order(lists, ties)
    total = lists.sums(relevant.double(), codes)
    so_far = relevant.double().cumsum(0) - (total.cumsum(0) - total)[codes]
    precision = so_far / (position + 1)
    counted = relevant & (position < cut(k))
    return lists.mean(lists.sums(precision * counted, codes) / total.clamp(max=cut(k)), empty)


def auc(scores: Any, labels: Any, sample_weight: Any = None) -> float:
    """Compute the area under the ROC curve: the chance that a relevant row scores above another, equal scores half.

    Exact, by counting (Mann and Whitney 1947). Rows with NaN scores are below all others and tie among themselves.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        sample_weight: ``[n]`` weights >= 0, or None.

    Returns:
        The area; NaN where all rows are of one class.

    Raises:
        DataError: lengths differ, no rows, a label is missing.
    """
    lists = prepare(scores, labels, None, sample_weight)
    if sample_weight is None and lists.scores.device.type == "cpu" and not bool(lists.scores.isnan().any()):
        return _area_of_two(lists.scores[~lists.relevant].numpy(), lists.scores[lists.relevant].numpy())
    return float(_auc_by_group(lists)[0][0])


def gauc(
    scores: Any, labels: Any, groups: Any, *, weights: Literal["rows", "equal"] = "rows", sample_weight: Any = None
) -> float:
    """Compute the mean over groups of the area under the ROC curve within the group.

    Groups of one class have no area and are left out (Zhou et al. 2018, Deep Interest Network, metrics of section 6).

    Args:
        scores, labels, groups: as for :func:`mrr`.
        weights: ``'rows'`` weighs a group by its rows (or the sum of their weights), ``'equal'`` all groups alike.
        sample_weight: ``[n]`` weights >= 0, or None.

    Returns:
        The mean over groups; NaN where no group holds both classes.

    Raises:
        DataError: as for :func:`mrr`.
    """
    lists = prepare(scores, labels, groups, sample_weight)
    area, weight = _auc_by_group(lists)
    weight = weight if choice(weights, "weights", ("rows", "equal")) == "rows" else torch.ones_like(weight)
    both = ~area.isnan()
    return float((area * weight)[both].sum() / weight[both].sum())


def group_ranks(scores: Any, groups: Any, ties: Ties = "worst") -> Tensor:
    """Rank every row within its group, 1 for the highest score.

    Args:
        scores: ``[n]`` numbers; NaN ranks last.
        groups: ``[n]`` integers.
        ties: equal scores get the lowest place of the tie (``'worst'``), the highest (``'best'``), or their places in
            input order (``'ordinal'``).

    Returns:
        Ranks ``[n]`` int64, in the order of the rows.

    Raises:
        DataError: lengths differ, no rows, groups are not integers.
    """
    choice(ties, "ties", ("worst", "ordinal", "best"))
    lists = prepare(scores, None, groups)
    order = order_rows(lists, "ordinal")
    place = lists.position(lists.codes[order])
    if ties != "ordinal":
        run, starts = runs(lists.codes[order], lists.scores[order])
        last = torch.cat([starts[1:] - 1, starts.new_tensor([len(order) - 1])])
        place = place[(starts if ties == "best" else last)[run]]
    return torch.empty_like(place).scatter_(0, order, place + 1)


def _reciprocal(lists: ScoredLists, k: int | None, ties: Ties) -> Tensor:
    # By counting, without a sort: the best placed relevant candidate is the one with the highest relevant score.
    missing, codes, n = lists.scores.isnan(), lists.codes, len(lists.ids)
    s = torch.where(missing, -torch.inf, lists.scores)
    usable = lists.relevant & ~missing
    best = torch.full((n,), -torch.inf, dtype=s.dtype, device=s.device)
    best = best.scatter_reduce(0, codes[usable], s[usable], "amax")
    all_missing = torch.bincount(codes[usable], minlength=n) == 0
    equal = torch.where(all_missing[codes], missing, (s == best[codes]) & ~missing)
    above = torch.where(all_missing[codes], ~missing, s > best[codes])
    rank = torch.bincount(codes[above], minlength=n)
    if choice(ties, "ties", ("worst", "ordinal", "best")) == "worst":
        rank = rank + torch.bincount(codes[equal], minlength=n)
    elif ties == "best":
        rank = rank + 1
    else:
        row = torch.arange(len(s), device=s.device)
        first = torch.full((n,), len(s), device=s.device)
        hit = equal & lists.relevant
        first = first.scatter_reduce(0, codes[hit], row[hit], "amin")
        rank = rank + torch.bincount(codes[equal & (row <= first[codes])], minlength=n)
    return torch.where(lists.has_relevant & (rank <= cut(k)), 1.0 / rank.double(), 0.0)


def _relevant_in_order(lists: ScoredLists, ties: Ties) -> tuple[Tensor, Tensor, Tensor]:
    order = order_rows(lists, choice(ties, "ties", ("worst", "ordinal", "best")))
    codes = lists.codes[order]
    return codes, lists.relevant[order], lists.position(codes)


def _discounted(lists: ScoredLists, gain: Tensor, order: Tensor, k: int | None) -> Tensor:
    codes = lists.codes[order]
    position = lists.position(codes)
    return lists.sums(gain[order] * (position < cut(k)) / torch.log2(position.double() + 2), codes)


def _area_of_two(others: np.ndarray, relevant: np.ndarray) -> float:
    # NumPy sorts plain numbers several times as fast as an order of rows is found.
    others, relevant = np.sort(others), np.sort(relevant)
    pairs = len(others) * len(relevant)
    if not pairs:
        return float("nan")
    below = np.searchsorted(others, relevant, "left").sum() + np.searchsorted(others, relevant, "right").sum()
    return float(below) / 2 / pairs


def _auc_by_group(lists: ScoredLists) -> tuple[Tensor, Tensor]:
    """Return the area of each group (NaN if it is of one class) and its weight, the sum over its rows."""
    order = order_rows(lists, "ordinal")
    codes, relevant = lists.codes[order], lists.relevant[order]
    weight = torch.ones_like(lists.scores) if lists.sample_weight is None else lists.sample_weight[order]
    positive, negative = weight * relevant, weight * ~relevant
    run, starts = runs(codes, lists.scores[order])
    tied = torch.zeros(len(starts), dtype=weight.dtype, device=weight.device).index_add_(0, run, negative)
    up_to = tied.cumsum(0)
    negatives = lists.sums(negative, codes)
    below = negatives.cumsum(0)[codes] - up_to[run]  # rows are from high to low within a group
    area = lists.sums(positive * (below + tied[run] / 2), codes) / (lists.sums(positive, codes) * negatives)
    return area, lists.sums(weight, codes)
