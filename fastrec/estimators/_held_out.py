<<<<<<< HEAD
"""Which training rows say when to stop: an eighth of them, and never a row that is scored."""
=======
"""Which of its training rows an estimator holds out to stop by."""
>>>>>>> g-nets

from __future__ import annotations

import torch
<<<<<<< HEAD

from fastrec.errors import DataError
from fastrec.features._engine.folds import row_folds
from fastrec.table import Table
from fastrec.validate import Rows, group_folds

EVERY = 8  # one row, or group, in so many is held out
_FINE = 1 << 30  # so many parts of the hash's range: rows are put in its order


def held_out(rows: Rows, *, name: str) -> torch.Tensor:
    """The rows of an eighth of the training rows that are not learned from.

    The last ones in ``rows.order`` where that is given (moments are not parted; a group counts by its last row). Else
    whole groups, by a hash of the group, where ``rows.groups`` is given. Else rows at random, by a hash of their number
    and as many of each class as of the others.

    Args:
        rows: training rows with labels.
        name: who is to learn from them, for messages.

    Returns:
        Bool ``[n]``, on the CPU.

    Raises:
        DataError: there are too few rows, moments or groups.
    """
    if rows.order is not None:
        held = _last(rows.order, rows.groups)
    elif rows.groups is not None:
        held = _groups(rows.groups)
    else:
        held = _stratified(rows)
    if bool(held.any()) and not bool(held.all()):
        return held
    what = "moments" if rows.order is not None else "rows" if rows.groups is None else "lists"
    raise too_few(name, what if rows.task == "ranking" or what != "lists" else "groups")


def too_few(name: str, what: str) -> DataError:
    """What to raise where nothing can be held out."""
    return DataError(
        f"{name} has too few {what} to hold an eighth of them out",
        remedy=f"Give more {what}, or early_stopping_rounds=None",
    )


def _last(order: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    if groups is not None:
        _, codes = torch.unique(groups, return_inverse=True)
        last = torch.full((int(codes.max()) + 1,), -torch.inf, dtype=torch.float64)
        order = last.scatter_reduce(0, codes, order.double(), "amax")[codes]
    ordered = torch.sort(order).values
    return order >= ordered[len(order) - max(len(order) // EVERY, 1)]


def _groups(groups: torch.Tensor) -> torch.Tensor:
    try:
        return group_folds(Table({"list": groups}), "list", EVERY) == 0
    except DataError:  # there is an eighth without a group
        return torch.zeros(len(groups), dtype=torch.bool)


def _stratified(rows: Rows) -> torch.Tensor:
    place = row_folds(Table({"row": torch.arange(len(rows))}), [], _FINE)
    kind = torch.zeros(len(rows), dtype=torch.int64)
    if rows.task in ("binary", "multiclass") and rows.label is not None:
        kind = rows.label.long()
    order = torch.argsort(place, stable=True)
    order = order[torch.argsort(kind[order], stable=True)]  # by class, in a class by hash
    sizes = torch.bincount(kind)
    within = torch.arange(len(rows)) - (torch.cumsum(sizes, 0) - sizes)[kind[order]]
    held = torch.zeros(len(rows), dtype=torch.bool)
    held[order] = within % EVERY == EVERY - 1  # none of a class of fewer than eight rows
    return held
=======
from torch import Tensor

from fastrec.features._engine.folds import row_folds
from fastrec.table import Table
from fastrec.validate import Rows

_APART = 104_729  # from the seeds that folds are cut by: else what is held out would be a part of one fold
_RANGE = 1 << 30


def held_out(rows: Rows, share: float = 1 / 8, seed: int = 0) -> Tensor:
    """A part of the training rows to stop by, so that the fold that is scored stays unseen.

    Groups stay whole. Where there is an order the last rows (groups: by their last row) are held out, rows of one time
    together; else rows are drawn by a hash of their number, class by class, or groups by a hash of their id.

    Args:
        rows: the training rows, with labels.
        share: how many of them, about.
        seed: other seeds draw others; an order knows no seed.

    Returns:
        Bool ``[n]`` on the CPU. One row, time or group at least is left to train on, and where rows are drawn, one of
        every class; where that cannot be, nothing is held out.
    """
    n = len(rows)
    if n < 2:
        return torch.zeros(n, dtype=torch.bool)
    if rows.groups is not None:
        return _groups_out(rows, share, seed)
    if rows.order is not None:
        held = _last(rows.order, share)
        if bool(held.any()):
            return held
    hashed = row_folds(Table({"row": torch.arange(n)}), [], _RANGE, seed=seed + _APART)
    strata = rows.label.long() if rows.task in ("binary", "multiclass") and rows.label is not None else None
    return _drawn(hashed, strata, share)


def _drawn(hashed: Tensor, strata: Tensor | None, share: float) -> Tensor:
    """The rows of the lowest hashes, the same share of each stratum."""
    order = torch.argsort(hashed, stable=True)
    if strata is not None:
        order = order[torch.argsort(strata[order], stable=True)]  # by stratum, then by hash
        _, sizes = torch.unique_consecutive(strata[order], return_counts=True)
    else:
        sizes = torch.tensor([len(hashed)])
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    wanted = torch.minimum((sizes * share).round().long(), sizes - 1)
    held = torch.zeros(len(hashed), dtype=torch.bool)
    held[order] = torch.arange(len(hashed)) - starts < torch.repeat_interleave(wanted, sizes)
    return held


def _last(order: Tensor, share: float) -> Tensor:
    """The last rows, those of one time together: as near to the share as that lets them be, but never all."""
    times, counts = torch.unique(order, return_counts=True)
    if len(times) < 2:
        return torch.zeros(len(order), dtype=torch.bool)
    after = counts.flip(0).cumsum(0).flip(0)[1:]  # rows from each time on; the first time always trains
    first = times[1:][(after - len(order) * share).abs().argmin()]
    return order >= first


def _groups_out(rows: Rows, share: float, seed: int) -> Tensor:
    """Whole groups: the last ones where there is an order, else those of the lowest hashes."""
    assert rows.groups is not None
    ids, codes, sizes = torch.unique(rows.groups, return_inverse=True, return_counts=True)
    if len(ids) < 2:
        return torch.zeros(len(codes), dtype=torch.bool)
    if rows.order is not None:
        _, places = torch.unique(rows.order, return_inverse=True)
        rank = -torch.zeros_like(ids).scatter_reduce_(0, codes, places, "amax", include_self=False)
    else:
        rank = row_folds(Table({"group": ids}), ["group"], _RANGE, seed=seed + _APART)
    order = torch.argsort(rank, stable=True)
    sums = sizes[order].cumsum(0)[:-1]  # one group at least trains
    many = int((sums - len(codes) * share).abs().argmin()) + 1
    held = torch.zeros(len(ids), dtype=torch.bool)
    held[order[:many]] = True
    return held[codes]
>>>>>>> g-nets
