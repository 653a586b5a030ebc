"""Times → what each fold scores and what it trains on: only on the past, or without labels that overlap."""

from __future__ import annotations

import torch

from fastrec.errors import DataError

Cut = tuple[torch.Tensor, dict[int, torch.Tensor]]  # fold int64 [n] (-1: never scored), fold → training rows bool [n]


def time_folds(
    ticks: torch.Tensor, folds: int, *, gap: float, window: float | None, horizon: float | None, name: str
) -> Cut:
    """Cut folds that train on the past alone.

    Args:
        ticks: times int64 or float64 ``[n]``.
        gap: training rows are more than this before the fold's first scored row.
        window: and no more than ``gap + window`` before it; None: all of them.
        horizon: how long each fold's scored rows last, the last fold's up to the last row; None: ``folds + 1`` blocks
            of about as many rows each, of which the first is never scored.
        name: the column, for messages.

    Returns:
        The fold in which each row is scored, -1 for none; and each fold's training rows.
    """
    if horizon is None:
        codes = blocks(ticks, folds + 1, name=name) - 1
    else:
        codes = torch.full((len(ticks),), -1, dtype=torch.int64)
        for k in range(folds):
            until = ticks.max() - horizon * (folds - 1 - k)
            codes[(ticks > until - horizon) & (ticks <= until)] = k
    train = {}
    for k in range(folds):
        scored = ticks[codes == k]
        if not len(scored):
            raise DataError(
                f"fold {k} of {folds} has no row to score", column=name, remedy="Use fewer folds, or another horizon"
            )
        first = scored.min()
        train[k] = ticks < first - gap
        if window is not None:
            train[k] &= ticks >= first - gap - window
        if not bool(train[k].any()):
            raise DataError(
                f"fold {k} of {folds} has no row to train on",
                column=name,
                remedy="Use fewer folds, a smaller gap or horizon, or a larger window",
            )
    return codes, train


def purged_folds(start: torch.Tensor, end: torch.Tensor, folds: int, *, embargo: float, names: tuple[str, str]) -> Cut:
    """Cut blocks of time, each scored by models of rows whose labels do not overlap its own.

    Purging and embargo of López de Prado (Advances in Financial Machine Learning, 2018, sections 7.4.1 and 7.4.2): a
    row's label is known at ``end`` from what happens since ``start``; a training row whose closed span meets the closed
    span of a scored row is left out, and so is one that starts within ``embargo`` after the last scored span's end.

    Args:
        start: int64 or float64 ``[n]``, in the ticks of ``end``.
        end: ``[n]``, at or after ``start``.
        embargo: in the same ticks.
        names: the two columns, for messages.

    Returns:
        As for :func:`time_folds`; every row is scored.
    """
    bad = end < start
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(
            f"the span ends at {end[row].item()}, before it starts at {start[row].item()}",
            column=names[1],
            row=row,
            remedy="Give the time at which the label is known, at or after the row's own",
        )
    codes = blocks(start, folds, name=names[0])
    train = {}
    for k in range(folds):
        scored = codes == k
        train[k] = ((end < start[scored].min()) | (start > end[scored].max() + embargo)) & ~scored
        if not bool(train[k].any()):
            raise DataError(
                f"fold {k} of {folds} has no row to train on: the labels of all others overlap its own",
                column=names[0],
                remedy="Use fewer folds or a smaller embargo, or shorter spans",
            )
    return codes, train


def blocks(ticks: torch.Tensor, count: int, *, name: str) -> torch.Tensor:
    """Cut consecutive blocks of about as many rows each, between distinct times: int64 ``[n]`` from 0."""
    _, place, sizes = torch.unique(ticks, return_inverse=True, return_counts=True)
    if len(sizes) < count:
        raise DataError(
            f"{len(sizes)} distinct times, and {count} are needed", column=name, remedy="Use fewer folds, or more rows"
        )
    before = (sizes.cumsum(0) - sizes).double()  # rows before each distinct time
    starts = torch.searchsorted(before, len(ticks) * torch.arange(count).double() / count).tolist()
    for i in range(1, count):  # a busy time may hold several ends: each block has one distinct time at least
        starts[i] = min(max(starts[i], starts[i - 1] + 1), len(sizes) - (count - i))
    return torch.bucketize(place, torch.tensor(starts), right=True) - 1
