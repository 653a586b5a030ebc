"""Splits: which rows are for training and which for validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from fastcore.foundation import L

from fastrec._core import limits
from fastrec.errors import DataError, DataWarning


def split_rows(splits: Any, n: int) -> list[torch.Tensor]:
    """Return the row numbers of each split, int64; lists, arrays, ranges, slices and masks are taken."""
    splits = list(splits)
    if any(not isinstance(s, slice | Iterable) or getattr(s, "ndim", 1) == 0 for s in splits):
        raise DataError(
            "splits are row numbers themselves",
            remedy="Give one list for training and one for validation, as in (a, b)",
        )
    rows = [_row_numbers(s, n) for s in splits]
    for part in rows:
        if len(part) and not (int(part.min()) >= 0 and int(part.max()) < n):
            bad = part[(part < 0) | (part >= n)]
            raise DataError(
                f"splits name row {int(bad[0])}, but there are {n} rows", remedy="Make the splits for this frame"
            )
    _warn_of_overlap(rows, n)
    return rows


def joined_rows(rows: Sequence[torch.Tensor], n: int) -> torch.Tensor | None:
    """Concatenate the rows of several splits, int64 ``[m]``; None if they are all ``n`` rows in order."""
    places = np.cumsum([0, *map(len, rows)]).tolist()
    if places[-1] == n and all(
        torch.equal(part, torch.arange(start + i, start + i + len(part)))
        for split, start in zip(rows, places, strict=False)
        for i, part in zip(range(0, len(split), limits.FRAME_BLOCK), split.split(limits.FRAME_BLOCK), strict=False)
    ):
        return None
    return torch.cat(list(rows))


def _warn_of_overlap(rows: Sequence[torch.Tensor], n: int) -> None:
    if len(rows) < 2:
        return
    trained = np.zeros(n, dtype=np.bool_)
    trained[rows[0].numpy()] = True
    both = torch.cat(list(rows[1:])) if len(rows) > 2 else rows[1]
    also = trained[both.numpy()]
    if also.any():
        both = both[torch.from_numpy(also)]
        warnings.warn(
            f"{len(both)} rows are in training and in validation (the first is row {int(both[0])}): "
            "the validation score is not to be trusted",
            DataWarning,
            stacklevel=4,
        )


def _row_numbers(split: Any, n: int) -> torch.Tensor:
    if isinstance(split, range | slice):
        start, stop, step = (split.start, split.stop, split.step) if isinstance(split, range) else split.indices(n)
        return torch.from_numpy(np.arange(start, stop, step, dtype=np.int64))
    if isinstance(split, torch.Tensor):
        split = split.cpu().numpy()
    if not isinstance(split, np.ndarray):
        split = split.items if isinstance(split, L) and isinstance(split.items, list) else list(split)
        # with a known type numpy passes through the list once less
        split = np.array(split, dtype=np.int64 if split and isinstance(split[0], np.int64) else None)
    rows = split
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=not rows.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(rows))
