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

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastrec.errors import DataError

if TYPE_CHECKING:
    from fastrec.metric_callbacks import AUC, MAP, MRR, NDCG, Recall

__all__ = [
    "AUC",
    "MAP",
    "MRR",
    "NDCG",
    "Interval",
    "Recall",
    "auc",
    "bootstrap_interval",
    "gauc",
    "group_ranks",
    "mean_average_precision",
    "mrr",
    "ndcg",
    "paired_difference",
    "recall",
    "reciprocal_ranks",
]

Ties = Literal["worst", "ordinal", "best"]
Empty = Literal["zero", "skip"]

_CALLBACKS = ("AUC", "MAP", "MRR", "NDCG", "Recall")
_BLOCK = 1 << 22  # numbers drawn at once by the bootstrap: 32 MiB of them


def __getattr__(name: str) -> Any:
    """Load the fastai classes at first use: the plain functions work where fastai is not installed."""
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fastrec import metric_callbacks

    return getattr(metric_callbacks, name)


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
    """Mean reciprocal rank of the best placed relevant candidate of each group.

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
    lists = _prepare(scores, labels, groups, sample_weight)
    return lists.mean(_reciprocal(lists, k, ties), empty)


def reciprocal_ranks(
    scores: Any, labels: Any, groups: Any, *, k: int | None = None, ties: Ties = "worst", empty: Empty = "zero"
) -> tuple[Tensor, Tensor]:
    """Reciprocal rank of each group, for intervals and paired comparisons.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        groups: ``[n]`` integers.
        k: ranks below the k-th count 0; None for no cut.
        ties: as for :func:`mrr`.
        empty: as for :func:`mrr`.

    Returns:
        Group ids ``[g]`` in ascending order, and their reciprocal ranks ``[g]`` float64, on the device of the scores.

    Raises:
        DataError: lengths differ, no rows, a label is missing, groups are not integers.
    """
    lists = _prepare(scores, labels, groups)
    values = _reciprocal(lists, k, ties)
    if _choice(empty, "empty", ("zero", "skip")) == "skip":
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
    """Mean normalised discounted cumulative gain at k.

    Discount 1 / log2(rank + 1): Järvelin and Kekäläinen 2002, section 2; gain 2^label - 1: Burges et al. 2005, section 6.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` grades >= 0.
        groups: ``[n]`` integers.
        k: length of the list that counts; None for all of it.
        gains: ``'exp2'`` for 2^label - 1, ``'linear'`` for the label itself. Equal where labels are 0 and 1.
        ties: among equal scores, lower grades first (``'worst'``), higher first (``'best'``), input order (``'ordinal'``).
        empty: as for :func:`mrr`.
        sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.

    Raises:
        DataError: as for :func:`mrr`, or a label below 0 or infinite.
    """
    lists = _prepare(scores, labels, groups, sample_weight)
    _refuse_rows(lists.labels.isinf() | (lists.labels < 0), "labels", "is below 0 or infinite", "Grades start at 0")
    _choice(gains, "gains", ("exp2", "linear"))
    gain = torch.exp2(lists.labels) - 1 if gains == "exp2" else lists.labels
    order = _order(lists, _choice(ties, "ties", ("worst", "ordinal", "best")))
    ideal = _then(_then(None, -gain), lists.codes)
    return lists.mean(_discounted(lists, gain, order, k) / _discounted(lists, gain, ideal, k), empty)


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
    """Mean share of each group's relevant candidates that are among its first k.

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        groups: ``[n]`` integers.
        k: length of the list that counts; None for all of it.
        ties: among equal scores, non-relevant first (``'worst'``), relevant first or input order.
        empty: as for :func:`mrr`.
        sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.

    Raises:
        DataError: as for :func:`mrr`.
    """
    lists = _prepare(scores, labels, groups, sample_weight)
    codes, relevant, position = _relevant_in_order(lists, ties)
    hits = lists.sums((relevant & (position < _cut(k))).double(), codes)
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
    """Mean over groups of the average precision at k (MAP@k).

    A group's average precision is the sum of the precisions at its relevant ranks up to k, over min(relevant, k).

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        groups: ``[n]`` integers.
        k: length of the list that counts; None for all of it.
        ties: among equal scores, non-relevant first (``'worst'``), relevant first or input order.
        empty: as for :func:`mrr`.
        sample_weight: as for :func:`mrr`.

    Returns:
        The mean over groups; NaN where no group is left to count.

    Raises:
        DataError: as for :func:`mrr`.
    """
    lists = _prepare(scores, labels, groups, sample_weight)
    codes, relevant, position = _relevant_in_order(lists, ties)
    total = lists.sums(relevant.double(), codes)
    so_far = relevant.double().cumsum(0) - (total.cumsum(0) - total)[codes]
    precision = so_far / (position + 1)
    counted = relevant & (position < _cut(k))
    return lists.mean(lists.sums(precision * counted, codes) / total.clamp(max=_cut(k)), empty)


def auc(scores: Any, labels: Any, sample_weight: Any = None) -> float:
    """Area under the ROC curve: the chance that a relevant row scores above another, equal scores half.

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
    lists = _prepare(scores, labels, None, sample_weight)
    return float(_auc_by_group(lists)[0][0])


def gauc(
    scores: Any, labels: Any, groups: Any, *, weights: Literal["rows", "equal"] = "rows", sample_weight: Any = None
) -> float:
    """Mean over groups of the area under the ROC curve within the group.

    Groups of one class have no area and are left out (Zhou et al. 2018, Deep Interest Network, metrics of section 6).

    Args:
        scores: ``[n]`` numbers, higher is better.
        labels: ``[n]`` numbers, above 0 is relevant.
        groups: ``[n]`` integers.
        weights: ``'rows'`` weighs a group by its rows (or the sum of their weights), ``'equal'`` all groups alike.
        sample_weight: ``[n]`` weights >= 0, or None.

    Returns:
        The mean over groups; NaN where no group holds both classes.

    Raises:
        DataError: as for :func:`mrr`.
    """
    lists = _prepare(scores, labels, groups, sample_weight)
    area, weight = _auc_by_group(lists)
    weight = weight if _choice(weights, "weights", ("rows", "equal")) == "rows" else torch.ones_like(weight)
    both = ~area.isnan()
    return float((area * weight)[both].sum() / weight[both].sum())


def group_ranks(scores: Any, groups: Any, ties: Ties = "worst") -> Tensor:
    """Rank of every row within its group, 1 for the highest score.

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
    _choice(ties, "ties", ("worst", "ordinal", "best"))
    lists = _prepare(scores, None, groups)
    order = _order(lists, "ordinal")
    place = lists.position(lists.codes[order])
    if ties != "ordinal":
        run, starts = _runs(lists.codes[order], lists.scores[order])
        last = torch.cat([starts[1:] - 1, starts.new_tensor([len(order) - 1])])
        place = place[(starts if ties == "best" else last)[run]]
    return torch.empty_like(place).scatter_(0, order, place + 1)


class Interval(NamedTuple):
    """A mean and the interval that holds it at the asked level."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.5f} [{self.low:.5f}, {self.high:.5f}]"


def bootstrap_interval(values: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of a mean (Efron and Tibshirani 1993, section 13.3).

    Args:
        values: ``[g]`` finite numbers, one per independent unit (a group's reciprocal rank, a session's mean).
        repeats: how many resamples.
        level: share of the resampled means inside the interval, between 0 and 1.
        seed: the same seed gives the same interval.

    Returns:
        The mean of the values and the two ends of its interval.

    Raises:
        DataError: no values, a value that is not finite, or ``repeats`` or ``level`` out of range.
    """
    x = _tensor(values, "values").double().cpu().numpy()
    if not len(x):
        raise DataError("there are no values", column="values", remedy="Give at least one")
    _refuse_rows(torch.from_numpy(~np.isfinite(x)), "values", "is not a finite number", "Drop or fill it first")
    if repeats < 1 or not 0 < level < 1:
        raise DataError(
            f"repeats {repeats} or level {level} is out of range", remedy="Use repeats >= 1 and a level between 0 and 1"
        )
    means = _resampled_means(x, repeats, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(x.mean()), float(low), float(high))


def paired_difference(a: Any, b: Any, *, repeats: int = 2000, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of ``a - b`` over the same groups, with its bootstrap interval.

    Args:
        a: ``[g]`` values of one model, one per group.
        b: ``[g]`` values of another on the same groups in the same order.
        repeats: how many resamples of the groups.
        level: share of the resampled means inside the interval.
        seed: the same seed gives the same interval.

    Returns:
        The mean difference and its interval; one that leaves out 0 tells the two models apart.

    Raises:
        DataError: lengths differ, or as for :func:`bootstrap_interval`.
    """
    first, second = _tensor(a, "a").double().cpu(), _tensor(b, "b").double().cpu()
    if len(first) != len(second):
        raise DataError(f"a has {len(first)} values, b has {len(second)}", remedy="Compare the same groups")
    return bootstrap_interval(first - second, repeats=repeats, level=level, seed=seed)


def _resampled_means(x: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    # Resampling n values with replacement draws how often each *distinct* value comes from a multinomial. Reciprocal
    # ranks take a few dozen values, so this is the same bootstrap at a small part of the cost.
    distinct, counts = np.unique(x, return_counts=True)
    few = len(distinct) * 16 <= len(x)
    width = len(distinct) if few else len(x)
    step = max(1, _BLOCK // width)
    blocks = []
    for start in range(0, repeats, step):
        rows = min(step, repeats - start)
        if few:
            blocks.append(rng.multinomial(len(x), counts / len(x), size=rows) @ distinct / len(x))
        else:
            blocks.append(x[rng.integers(0, len(x), size=(rows, len(x)))].mean(axis=1))
    return np.concatenate(blocks)


class _Lists:
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
        return torch.zeros(len(self.ids), dtype=values.dtype, device=values.device).index_add_(0, codes, values)

    def position(self, sorted_codes: Tensor) -> Tensor:
        """Place of each row in its list, from 0, for rows that are sorted by group."""
        starts = self.n_rows.cumsum(0) - self.n_rows
        return torch.arange(len(sorted_codes), device=sorted_codes.device) - starts[sorted_codes]

    def mean(self, values: Tensor, empty: Empty) -> float:
        values = torch.where(self.has_relevant, values, 0.0)
        if self.sample_weight is None:
            weight = torch.ones_like(values)
        else:
            weight = self.sums(self.sample_weight, self.codes) / self.n_rows
        if _choice(empty, "empty", ("zero", "skip")) == "skip":
            weight = weight * self.has_relevant
        return float((values * weight).sum() / weight.sum())


def _prepare(scores: Any, labels: Any, groups: Any, sample_weight: Any = None) -> _Lists:
    raw = _tensor(scores, "scores")
    # Apple's GPU has no float64.
    device = torch.device("cpu") if raw.device.type == "mps" else raw.device
    s = raw.to(device).double()
    if not len(s):
        raise DataError("there are no rows to score", column="scores", remedy="Give at least one row")
    given = {"labels": labels, "groups": groups, "sample_weight": sample_weight}
    columns = {name: _tensor(x, name).to(device) for name, x in given.items() if x is not None}
    for name, x in columns.items():
        if len(x) != len(s):
            raise DataError(
                f"{name} has {len(x)} rows, scores has {len(s)}", column=name, remedy="Give one value per scored row"
            )
    y = columns.get("labels", torch.zeros_like(s)).double()
    _refuse_rows(y.isnan(), "labels", "is missing", "Leave out rows without a known label")
    weight = columns.get("sample_weight")
    if weight is not None:
        weight = weight.double()
        _refuse_rows(
            ~(weight >= 0) | weight.isinf(), "sample_weight", "is missing, infinite or below 0", "Weights are >= 0"
        )
    ids, codes = _group_codes(columns.get("groups", torch.zeros(len(s), dtype=torch.int64, device=device)))
    return _Lists(s, y, ids, codes, weight)


def _group_codes(groups: Tensor) -> tuple[Tensor, Tensor]:
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise DataError(
            f"groups are {groups.dtype}, not integers", column="groups", remedy="Give integer codes, one per list"
        )
    groups = groups.long()
    if bool((groups[1:] >= groups[:-1]).all()):  # already in order: no sort
        return torch.unique_consecutive(groups, return_inverse=True)
    return torch.unique(groups, return_inverse=True)


def _reciprocal(lists: _Lists, k: int | None, ties: Ties) -> Tensor:
    """Reciprocal rank by group, by counting: no sort. A list's best relevant candidate has its highest relevant score."""
    missing, codes, n = lists.scores.isnan(), lists.codes, len(lists.ids)
    s = torch.where(missing, -torch.inf, lists.scores)
    usable = lists.relevant & ~missing
    best = torch.full((n,), -torch.inf, dtype=s.dtype, device=s.device)
    best = best.scatter_reduce(0, codes[usable], s[usable], "amax")
    all_missing = torch.bincount(codes[usable], minlength=n) == 0
    equal = torch.where(all_missing[codes], missing, (s == best[codes]) & ~missing)
    above = torch.where(all_missing[codes], ~missing, s > best[codes])
    rank = torch.bincount(codes[above], minlength=n)
    if _choice(ties, "ties", ("worst", "ordinal", "best")) == "worst":
        rank = rank + torch.bincount(codes[equal], minlength=n)
    elif ties == "best":
        rank = rank + 1
    else:
        row = torch.arange(len(s), device=s.device)
        first = torch.full((n,), len(s), device=s.device)
        hit = equal & lists.relevant
        first = first.scatter_reduce(0, codes[hit], row[hit], "amin")
        rank = rank + torch.bincount(codes[equal & (row <= first[codes])], minlength=n)
    return torch.where(lists.has_relevant & (rank <= _cut(k)), 1.0 / rank.double(), 0.0)


def _order(lists: _Lists, ties: Ties) -> Tensor:
    """Rows by group, then score from high to low with NaN last, then by the tie rule."""
    order = None
    if ties != "ordinal":
        order = _then(None, lists.labels if ties == "worst" else -lists.labels)
    return _then(_then(order, -lists.scores), lists.codes)  # ascending sorts put NaN last


def _then(order: Tensor | None, key: Tensor) -> Tensor:
    if order is None:
        return torch.sort(key, stable=True).indices
    return order[torch.sort(key[order], stable=True).indices]


def _relevant_in_order(lists: _Lists, ties: Ties) -> tuple[Tensor, Tensor, Tensor]:
    order = _order(lists, _choice(ties, "ties", ("worst", "ordinal", "best")))
    codes = lists.codes[order]
    return codes, lists.relevant[order], lists.position(codes)


def _discounted(lists: _Lists, gain: Tensor, order: Tensor, k: int | None) -> Tensor:
    codes = lists.codes[order]
    position = lists.position(codes)
    return lists.sums(gain[order] * (position < _cut(k)) / torch.log2(position.double() + 2), codes)


def _runs(codes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Number of the run of equal (group, score) that each sorted row is in, and where each run starts."""
    same = (scores[1:] == scores[:-1]) | (scores[1:].isnan() & scores[:-1].isnan())
    change = torch.cat([codes.new_ones(1, dtype=torch.bool), ~same | (codes[1:] != codes[:-1])])
    return change.long().cumsum(0) - 1, change.nonzero()[:, 0]


def _auc_by_group(lists: _Lists) -> tuple[Tensor, Tensor]:
    """Area of each group (NaN where it is of one class) and its weight, the sum over its rows."""
    order = _order(lists, "ordinal")
    codes, relevant = lists.codes[order], lists.relevant[order]
    weight = torch.ones_like(lists.scores) if lists.sample_weight is None else lists.sample_weight[order]
    positive, negative = weight * relevant, weight * ~relevant
    run, starts = _runs(codes, lists.scores[order])
    tied = torch.zeros(len(starts), dtype=weight.dtype, device=weight.device).index_add_(0, run, negative)
    up_to = tied.cumsum(0)
    negatives = lists.sums(negative, codes)
    below = negatives.cumsum(0)[codes] - up_to[run]  # rows are from high to low within a group
    area = lists.sums(positive * (below + tied[run] / 2), codes) / (lists.sums(positive, codes) * negatives)
    return area, lists.sums(weight, codes)


def _tensor(x: Any, name: str) -> Tensor:
    """One flat plain tensor from a tensor, array, Series or list."""
    if isinstance(x, Tensor):
        t = x.detach().as_subclass(Tensor)
    else:
        a = np.asarray(x)
        if a.dtype == object:  # nullable columns come as objects
            a = np.array(a.tolist())
        if a.dtype.kind == "u":
            a = a.astype(np.int64)
        if a.dtype.kind not in "bif":
            raise DataError(f"{a.dtype} values are not numbers", column=name, remedy="Give numbers; code text first")
        t = torch.from_numpy(a if a.flags.writeable and a.flags.c_contiguous else a.copy())
    if t.ndim != 1 and (t.ndim != 2 or t.shape[1] != 1):
        raise DataError(f"{name} has shape {tuple(t.shape)}", column=name, remedy="Give one value per row")
    return t.reshape(-1)


def _refuse_rows(bad: Tensor, column: str, problem: str, remedy: str) -> None:
    if bool(bad.any()):
        raise DataError(
            f"a value {problem} ({int(bad.sum())} in all)", column=column, row=int(bad.nonzero()[0]), remedy=remedy
        )


def _choice(value: Any, name: str, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise DataError(f"{name}={value!r} is not one of {', '.join(allowed)}", remedy=f"Choose {name} among them")
    return value


def _cut(k: int | None) -> int:
    if k is None:
        return torch.iinfo(torch.int64).max
    if int(k) != k or k < 1:
        raise DataError(f"k={k!r} is not a whole number above 0", remedy="Use k=None for the whole list")
    return int(k)
