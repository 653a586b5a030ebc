"""Rows that an estimator holds out of its training rows to stop by."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.folds import row_folds
from fastrec.table import Table
from fastrec.validate import Rows


def held_out(rows: Rows, share: float = 1 / 8, seed: int = 0) -> Tensor:
    """Choose training rows to stop by, so that the fold that is scored stays unseen.

    Groups stay whole. Where there is an order the last rows (groups: by their last row) are held out, rows of one time
    together; else rows are drawn by a hash of their number, class by class, or groups by a hash of their id. Rows whose
    label is a guess are left aside: one would stop where the guesses come true.

    Args:
        rows: the training rows, with labels.
        share: how many of them, about.
        seed: other seeds draw others; an order knows no seed.

    Returns:
        Bool ``[n]`` on the CPU. One row, time or group at least is left to train on, and where rows are drawn, one of
        every class; where that cannot be, nothing is held out.
    """
    n = len(rows)
    if rows.guessed is not None and bool(rows.guessed.any()):
        known = ~rows.guessed
        held = torch.zeros(n, dtype=torch.bool)
        held[known] = held_out(replace(rows, table=Table({})).take(known), share, seed)
        return held
    if n < 2:
        return torch.zeros(n, dtype=torch.bool)
    if rows.groups is not None:
        return _groups_out(rows, share, seed)
    if rows.order is not None:
        held = _last(rows.order, share)
        if bool(held.any()):
            return held
    hashed = row_folds(Table({"row": torch.arange(n)}), [], limits.HELD_OUT_HASHES, seed=seed + limits.HELD_OUT_SEED)
    strata = rows.label.long() if rows.task in ("binary", "multiclass") and rows.label is not None else None
    return _drawn(hashed, strata, share)


def rows_to_stop_by(rows: Rows) -> Tensor | None:
    """Return ``held_out``, or None if too few rows, times, groups or classes would be left, or none can be held out."""
    held = held_out(rows)
    if not bool(held.any()) or bool(held.all()):
        return None
    if rows.task in ("binary", "multiclass") and rows.label is not None and len(rows.label[~held].unique()) < 2:
        return None
    return held


def some_held_out(rows: Rows, *, name: str) -> Tensor:
    """Return ``rows_to_stop_by``, which must not be None.

    Args:
        rows: the training rows, with labels.
        name: who is to learn from the others, for messages.
    """
    held = rows_to_stop_by(rows)
    if held is not None:
        return held
    grouped = "lists" if rows.task == "ranking" else "groups"
    what = grouped if rows.groups is not None else "rows" if rows.order is None else "moments"
    raise DataError(
        f"{name} has too few {what} to hold an eighth of them out",
        remedy=f"Give more {what}, or early_stopping_rounds=None",
    )


def _drawn(hashed: Tensor, strata: Tensor | None, share: float) -> Tensor:
    """Choose the rows of the lowest hashes, the same share of each stratum."""
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
    """Choose the last rows, those of one time together, as near to the share as possible, but never all."""
    times, counts = torch.unique(order, return_counts=True)
    if len(times) < 2:
        return torch.zeros(len(order), dtype=torch.bool)
    after = counts.flip(0).cumsum(0).flip(0)[1:]  # rows from each time on; the first time always trains
    first = times[1:][(after - len(order) * share).abs().argmin()]
    return order >= first


def _groups_out(rows: Rows, share: float, seed: int) -> Tensor:
    """Choose whole groups: the last ones if there is an order, else those of the lowest hashes."""
    assert rows.groups is not None
    ids, codes, sizes = torch.unique(rows.groups, return_inverse=True, return_counts=True)
    if len(ids) < 2:
        return torch.zeros(len(codes), dtype=torch.bool)
    if rows.order is not None:
        _, places = torch.unique(rows.order, return_inverse=True)
        rank = -torch.zeros_like(ids).scatter_reduce_(0, codes, places, "amax", include_self=False)
    else:
        rank = row_folds(Table({"group": ids}), ["group"], limits.HELD_OUT_HASHES, seed=seed + limits.HELD_OUT_SEED)
    order = torch.argsort(rank, stable=True)
    sums = sizes[order].cumsum(0)[:-1]  # one group at least trains
    many = int((sums - len(codes) * share).abs().argmin()) + 1
    held = torch.zeros(len(ids), dtype=torch.bool)
    held[order[:many]] = True
    return held[codes]
