"""Folds of the model's validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.features._engine.folds import row_folds
from fastrec.table import Table


def group_folds(table: Any, key: str | Sequence[str], folds: int = 5, *, seed: int = 0) -> torch.Tensor:
    """The validation fold of each row: rows with one key share a fold, whatever else is in the table.

    Args:
        table: the rows: a ``Table``, or a frame of any supported library.
        key: the column(s) that must not be split (a session, a user).
        folds: how many folds, at least 2.
        seed: other seeds give other folds.

    Returns:
        int64 ``[n]`` in ``0 … folds - 1`` on the CPU: a stable hash of the key, so that adding features, rows or models
        changes no fold.

    Raises:
        DataError: fewer than two folds, or a fold would be empty.
    """
    if folds < 2:
        raise DataError(f"{folds} folds", remedy="Use at least 2")
    names = [key] if isinstance(key, str) else list(key)
    codes = row_folds(Table.read(table, names), names, folds, seed=seed).cpu()
    sizes = torch.bincount(codes, minlength=folds)
    if bool((sizes == 0).any()):
        empty = int((sizes == 0).nonzero()[0])
        raise DataError(f"fold {empty} of {folds} has no row", remedy="Use fewer folds, or more data")
    return codes
