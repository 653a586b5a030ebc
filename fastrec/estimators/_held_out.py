"""Which training rows say when to stop: an eighth of them, and never a row that is scored."""

from __future__ import annotations

import torch

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
