"""Ranking metrics over groups (lists, sessions, users): vectorised, in float64, on any device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from fastrec._core.device import on_host
from fastrec.errors import DataError, refuse

Ties = Literal["worst", "ordinal", "best"]
Empty = Literal["zero", "skip"]


class ListRules(TypedDict, total=False):
    """Options that the metrics of lists share, see ``mrr``."""

    ties: Ties
    empty: Empty
    sample_weight: Any


class ScoredLists:
    """Scores and labels as float64 with groups as dense codes, and the reductions that the metrics share."""

    def __init__(
        self, scores: Tensor, labels: Tensor, ids: Tensor, codes: Tensor, sample_weight: Tensor | None
    ) -> None:
        self.scores, self.labels, self.ids, self.codes = scores, labels, ids, codes
        self.n_rows = torch.bincount(codes, minlength=len(ids))
        self.sample_weight = sample_weight
        self.relevant = labels > 0
        self.has_relevant = torch.bincount(codes[self.relevant], minlength=len(ids)) > 0

    def sums(self, values: Tensor, codes: Tensor) -> Tensor:
        """Sum the values of each group, for rows whose groups are ``codes``."""
        return torch.zeros(len(self.ids), dtype=values.dtype, device=values.device).index_add_(0, codes, values)

    def position(self, sorted_codes: Tensor) -> Tensor:
        """Return the position of each row in its list, from 0, for rows that are sorted by group."""
        starts = self.n_rows.cumsum(0) - self.n_rows
        return torch.arange(len(sorted_codes), device=sorted_codes.device) - starts[sorted_codes]

    def mean(self, values: Tensor, empty: Empty) -> float:
        """Return the weighted mean of one value per group; groups without a relevant row count as 0 or are left out."""
        values = torch.where(self.has_relevant, values, 0.0)
        if self.sample_weight is None:
            weight = torch.ones_like(values)
        else:
            weight = self.sums(self.sample_weight, self.codes) / self.n_rows
        if choice(empty, "empty", ("zero", "skip")) == "skip":
            weight = weight * self.has_relevant
        return float((values * weight).sum() / weight.sum())


def prepare(scores: Any, labels: Any, groups: Any, sample_weight: Any = None) -> ScoredLists:
    """Check the inputs of a metric and move them to one device; without groups, all rows form one group."""
    raw = flat_tensor(scores, "scores")
    # Apple's GPU has no float64.
    device = torch.device("cpu") if raw.device.type == "mps" else raw.device
    s = raw.to(device).double()
    if not len(s):
        raise DataError("there are no rows to score", column="scores", remedy="Give at least one row")
    given = {"labels": labels, "groups": groups, "sample_weight": sample_weight}
    columns = {name: flat_tensor(x, name).to(device) for name, x in given.items() if x is not None}
    for name, x in columns.items():
        if len(x) != len(s):
            remedy = "Give one for each row"
            raise DataError(f"{name} has {len(x)} rows, scores has {len(s)}", column=name, remedy=remedy)
    y = columns.get("labels", torch.zeros_like(s)).double()
    refuse(y.isnan(), "labels", "a value is missing", "Leave out rows without a known label")
    weight = columns.get("sample_weight")
    weight = None if weight is None else check_weights(weight, "sample_weight")
    group = columns.get("groups", torch.zeros(len(s), dtype=torch.int64, device=device))
    check_integers(group)
    group = group.long()
    # groups that are already in order need no sort
    in_order = bool((group[1:] >= group[:-1]).all())
    ids, codes = (torch.unique_consecutive if in_order else torch.unique)(group, return_inverse=True)
    return ScoredLists(s, y, ids, codes, weight)


def check_weights(weight: Tensor, name: str) -> Tensor:
    """Return weights as float64; refuse any that are not finite numbers >= 0."""
    weight = weight.double()
    refuse(~(weight >= 0) | weight.isinf(), name, "a value is missing, infinite or below 0", "Weights are >= 0")
    return weight


def check_integers(groups: Tensor) -> None:
    """Refuse groups that are not integers."""
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise DataError(f"groups are {groups.dtype}, not integers", column="groups", remedy="Give codes, one per list")


def order_rows(lists: ScoredLists, ties: Ties) -> Tensor:
    """Sort rows by group, then score from high to low with NaN last, then by the tie rule."""
    order = None if ties == "ordinal" else then(None, lists.labels if ties == "worst" else -lists.labels)
    return then(then(order, -lists.scores), lists.codes)  # ascending sorts put NaN last


def then(order: Tensor | None, key: Tensor) -> Tensor:
    """Sort by a key that takes precedence over those already sorted by; earlier keys break its ties."""
    if order is None:
        return torch.sort(key, stable=True).indices
    return order[torch.sort(key[order], stable=True).indices]


def runs(codes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the run of equal (group, score) that each sorted row is in, and where each run starts."""
    same = (scores[1:] == scores[:-1]) | (scores[1:].isnan() & scores[:-1].isnan())
    change = torch.cat([codes.new_ones(1, dtype=torch.bool), ~same | (codes[1:] != codes[:-1])])
    return change.long().cumsum(0) - 1, change.nonzero()[:, 0]


def flat_tensor(x: Any, name: str) -> Tensor:
    """Turn a tensor, array, Series, list or an array on a GPU into one flat plain tensor."""
    t = plain_tensor(x, name)
    if t.ndim != 1 and (t.ndim != 2 or t.shape[1] != 1):
        raise DataError(f"{name} has shape {tuple(t.shape)}", column=name, remedy="Give one value per row")
    return t.reshape(-1)


def plain_tensor(x: Any, name: str) -> Tensor:
    """Turn a tensor, array, Series, frame, list or an array on a GPU into a plain tensor of any shape."""
    if isinstance(x, Tensor):
        return x.detach().as_subclass(Tensor)
    if hasattr(x, "__cuda_array_interface__"):
        return torch.as_tensor(x, device="cuda")
    a = np.asarray(x)
    if a.dtype == object:  # nullable columns come as objects, with None or pandas' NA among them
        a = np.array([np.nan if v is None or type(v).__name__ == "NAType" else v for v in a.tolist()])
    if a.dtype.kind not in "biuf":
        raise DataError(f"{a.dtype} values are not numbers", column=name, remedy="Give numbers; code text first")
    if a.dtype == np.uint64 and a.size and a.max() > np.iinfo(np.int64).max:
        raise DataError("a value is above 2^63 - 1", column=name, remedy="Code such ids as smaller integers first")
    a = a.astype({"b": bool, "f": np.float64}.get(a.dtype.kind, np.int64), copy=False)
    # torch warns about read-only arrays, such as pandas'
    return torch.from_numpy(a if a.flags.writeable and a.flags.c_contiguous else a.copy())


def choice(value: Any, name: str, allowed: tuple[str, ...]) -> Any:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise DataError(f"{name}={value!r} is not one of {', '.join(allowed)}", remedy=f"Choose {name} among them")
    return value


def cut(k: int | None) -> int:
    """Return the cutoff k as a number."""
    if k is None:
        return torch.iinfo(torch.int64).max
    if int(k) != k or k < 1:
        raise DataError(f"k={k!r} is not a whole number above 0", remedy="Use k=None for the whole list")
    return int(k)


# A *group* is one list of candidates. Groups are any integers, in any order, and need not be contiguous. A candidate is
# relevant when its label is above 0. Ties count against the model unless ``ties`` says otherwise, so that equal scores
# gain nothing from the order of the rows. A missing score ranks last: NaN is below every number, minus infinity
# included, and equal to other NaN.


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
        k: ranks beyond the k-th count 0; None for no cutoff.
        ties: rank of a relevant candidate among equal scores: ``'worst'`` (how many are at or above it), ``'ordinal'``
            (input order) or ``'best'`` (one more than are above it).
        empty: the value of a group without a relevant candidate: ``'zero'``, or ``'skip'`` to leave it out.
        sample_weight: ``[n]`` weights >= 0; a group's weight is the mean of its rows' weights. None for equal weights.

    Returns:
        The mean over groups; NaN if no group is left to count.

    Raises:
        DataError: lengths differ, no rows, a label is missing, groups are not integers.
    """
    return _mean_of(_reciprocal, scores, labels, groups, k, ties, empty, sample_weight)


def reciprocal_ranks(
    scores: Any, labels: Any, groups: Any, *, k: int | None = None, ties: Ties = "worst", empty: Empty = "zero"
) -> tuple[Tensor, Tensor]:
    """Compute the reciprocal rank of each group, for intervals and paired comparisons; see :func:`mrr`.

    Returns:
        Group ids ``[g]`` in ascending order, and their reciprocal ranks ``[g]`` float64, on the device of the scores.
    """
    lists = prepare(scores, labels, groups)
    values = _reciprocal(lists, k, ties)
    if choice(empty, "empty", ("zero", "skip")) == "skip":
        return lists.ids[lists.has_relevant], values[lists.has_relevant]
    return lists.ids, values


def score_groups(
    metric: Callable[..., float], scores: Any, labels: Any, groups: Any, *, k: int | None = None, ties: Ties = "worst"
) -> Tensor:
    """Score every group separately by ``gauc`` (without k and ties) or another metric of lists; see :func:`mrr`.

    Return float64 ``[g]``, in ascending order of the group ids. A group without a relevant candidate scores 0; ``gauc``
    gives NaN for a group with a single class.
    """
    lists = prepare(scores, labels, groups)
    if metric is gauc:
        return _auc_by_group(lists)[0]
    return torch.where(lists.has_relevant, _BY_GROUP[metric](lists, k, ties), 0.0)


def ndcg(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    k: int | None = 10,
    gains: Literal["exp2", "linear"] = "exp2",
    **rules: Unpack[ListRules],
) -> float:
    """Compute the mean normalised discounted cumulative gain at k.

    Discount 1 / log2(rank + 1) and gain 2^label - 1 as in Burges et al. 2005 (RankNet), section 6.

    Args:
        scores, groups, empty, sample_weight: as for :func:`mrr`.
        labels: ``[n]`` grades >= 0.
        k: the number of top places that count; None for the whole list.
        gains: ``'exp2'`` for 2^label - 1, ``'linear'`` for the label itself. They are equal for labels 0 and 1.
        ties: among equal scores, lower grades first (``'worst'``), higher first (``'best'``) or input order.

    Returns:
        The mean over groups; NaN if no group is left to count.

    Raises:
        DataError: as for :func:`mrr`, or a label below 0 or infinite.
    """
    return _mean_of(partial(_ndcg, gains=gains), scores, labels, groups, k, **rules)


def hit_rate(scores: Any, labels: Any, groups: Any, *, k: int | None, **rules: Unpack[ListRules]) -> float:
    """Compute the share of groups with a relevant candidate among their first k (HR@k); see :func:`mrr`."""
    return _mean_of(_hit, scores, labels, groups, k, **rules)


def recall(scores: Any, labels: Any, groups: Any, *, k: int | None, **rules: Unpack[ListRules]) -> float:
    """Compute the mean share of each group's relevant candidates that are among its first k; see :func:`mrr`.

    Among equal scores, irrelevant candidates come first (``ties='worst'``), or relevant ones, or input order applies.
    """
    return _mean_of(_recall, scores, labels, groups, k, **rules)


def mean_average_precision(
    scores: Any, labels: Any, groups: Any, *, k: int | None = None, **rules: Unpack[ListRules]
) -> float:
    """Compute the mean over groups of the average precision at k (MAP@k); see :func:`mrr` and :func:`recall`.

    A group's average precision is the sum of the precisions at its relevant ranks up to k, over min(relevant, k).
    """
    return _mean_of(_average_precision, scores, labels, groups, k, **rules)


def auc(scores: Any, labels: Any, sample_weight: Any = None) -> float:
    """Compute the area under the ROC curve: the chance that a relevant row outscores another; ties count half.

    It is exact, by counting (Mann and Whitney 1947). Rows with NaN scores are below all others and tie with each other.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        sample_weight: ``[n]`` weights >= 0, or None.

    Returns:
        The area; NaN if all rows are of one class.
    """
    lists = prepare(scores, labels, None, sample_weight)
    if bool((lists.scores == lists.scores.floor()).all()):  # with fractional labels, the arguments are swapped
        remedy = "Give auc(scores, labels), or get_metric('auc')(labels, scores)"
        refuse(lists.labels != lists.labels.floor(), "labels", "a value is no whole number, and all scores are", remedy)
    if sample_weight is None and on_host(lists.scores) and not bool(lists.scores.isnan().any()):
        # NumPy's sort of plain numbers is several times as fast as an argsort.
        others, relevant = (np.sort(lists.scores[rows].numpy()) for rows in (~lists.relevant, lists.relevant))
        pairs = len(others) * len(relevant)
        if not pairs:
            return float("nan")
        below = np.searchsorted(others, relevant, "left").sum() + np.searchsorted(others, relevant, "right").sum()
        return float(below) / 2 / pairs
    return float(_auc_by_group(lists)[0][0])


def gauc(
    scores: Any, labels: Any, groups: Any, *, weights: Literal["rows", "equal"] = "rows", sample_weight: Any = None
) -> float:
    """Compute the mean over groups of the area under the ROC curve within the group.

    Groups with a single class have no area and are left out (Zhou et al. 2018, Deep Interest Network, section 6).

    Args:
        scores, labels, groups: as for :func:`mrr`.
        weights: ``'rows'`` weights a group by its rows (or the sum of their weights), ``'equal'`` all groups alike.
        sample_weight: ``[n]`` weights >= 0, or None.

    Returns:
        The mean over groups; NaN if no group has both classes.
    """
    area, weight = _auc_by_group(prepare(scores, labels, groups, sample_weight))
    weight = weight if choice(weights, "weights", ("rows", "equal")) == "rows" else torch.ones_like(weight)
    both = ~area.isnan()
    return float((area * weight)[both].sum() / weight[both].sum())


def group_ranks(scores: Any, groups: Any, ties: Ties = "worst") -> Tensor:
    """Rank every row within its group, int64 from 1 for the highest score, in row order.

    Args:
        scores: ``[n]`` numbers; NaN ranks last.
        groups: ``[n]`` integers.
        ties: equal scores get the lowest rank of the tie (``'worst'``), the highest (``'best'``), or ranks in input
            order (``'ordinal'``).
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


def _mean_of(
    of: Callable[[ScoredLists, int | None, Ties], Tensor], scores: Any, labels: Any, groups: Any, k: int | None,
    ties: Ties = "worst", empty: Empty = "zero", sample_weight: Any = None,
) -> float:  # fmt: skip
    lists = prepare(scores, labels, groups, sample_weight)
    return lists.mean(of(lists, k, ties), empty)


def _reciprocal(lists: ScoredLists, k: int | None, ties: Ties) -> Tensor:
    # By counting, without a sort: the top relevant candidate is the one with the highest relevant score.
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


def _ndcg(lists: ScoredLists, k: int | None, ties: Ties, gains: Literal["exp2", "linear"] = "exp2") -> Tensor:
    refuse(lists.labels.isinf() | (lists.labels < 0), "labels", "a value is below 0 or infinite", "Grades start at 0")
    choice(gains, "gains", ("exp2", "linear"))
    gain = torch.exp2(lists.labels) - 1 if gains == "exp2" else lists.labels
    order = order_rows(lists, choice(ties, "ties", ("worst", "ordinal", "best")))
    return _discounted(lists, gain, order, k) / _discounted(lists, gain, then(then(None, -gain), lists.codes), k)


def _hit(lists: ScoredLists, k: int | None, ties: Ties) -> Tensor:
    return (_reciprocal(lists, k, ties) > 0).double()


def _recall(lists: ScoredLists, k: int | None, ties: Ties) -> Tensor:
    codes, relevant, position = _relevant_in_order(lists, ties)
    return lists.sums((relevant & (position < cut(k))).double(), codes) / lists.sums(relevant.double(), codes)


def _average_precision(lists: ScoredLists, k: int | None, ties: Ties) -> Tensor:
    codes, relevant, position = _relevant_in_order(lists, ties)
    total = lists.sums(relevant.double(), codes)
    so_far = relevant.double().cumsum(0) - (total.cumsum(0) - total)[codes]
    precision = so_far / (position + 1)
    return lists.sums(precision * (relevant & (position < cut(k))), codes) / total.clamp(max=cut(k))


def _relevant_in_order(lists: ScoredLists, ties: Ties) -> tuple[Tensor, Tensor, Tensor]:
    order = order_rows(lists, choice(ties, "ties", ("worst", "ordinal", "best")))
    codes = lists.codes[order]
    return codes, lists.relevant[order], lists.position(codes)


def _discounted(lists: ScoredLists, gain: Tensor, order: Tensor, k: int | None) -> Tensor:
    codes = lists.codes[order]
    position = lists.position(codes)
    return lists.sums(gain[order] * (position < cut(k)) / torch.log2(position.double() + 2), codes)


def _auc_by_group(lists: ScoredLists) -> tuple[Tensor, Tensor]:
    """Return the area of each group (NaN for a single class) and its weight, the sum over its rows."""
    order = order_rows(lists, "ordinal")
    codes, relevant = lists.codes[order], lists.relevant[order]
    weight = torch.ones_like(lists.scores) if lists.sample_weight is None else lists.sample_weight[order]
    positive, negative = weight * relevant, weight * ~relevant
    run, starts = runs(codes, lists.scores[order])
    tied = torch.zeros(len(starts), dtype=weight.dtype, device=weight.device).index_add_(0, run, negative)
    up_to = tied.cumsum(0)
    negatives = lists.sums(negative, codes)
    below = negatives.cumsum(0)[codes] - up_to[run]  # rows are in descending order within a group
    area = lists.sums(positive * (below + tied[run] / 2), codes) / (lists.sums(positive, codes) * negatives)
    return area, lists.sums(weight, codes)


_BY_GROUP: dict[Callable[..., float], Callable[[ScoredLists, int | None, Ties], Tensor]] = {
    mrr: _reciprocal, ndcg: _ndcg, hit_rate: _hit, recall: _recall, mean_average_precision: _average_precision
}  # fmt: skip
