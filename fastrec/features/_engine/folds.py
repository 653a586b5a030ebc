"""Folds of rows: a stable hash of their key, or given numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.errors import DataError, refuse
from fastrec.features._engine.keyed import hash_keys, sort_keys
from fastrec.table import Column, Keys, Table, as_column

FOLD_SEED, INNER_SEED = 0, 1
_GAMMA, _MIX_1, _MIX_2 = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def row_folds(table: Table, key: Sequence[str], folds: int, *, seed: int = FOLD_SEED) -> torch.Tensor:
    """Assign folds by a stable hash of each row's key (empty: its number): int64 ``[n]`` in ``0 … folds - 1``.

    A fold does not depend on other rows, nor on the type or library of the key.
    """
    if not key:
        return number_folds(torch.arange(len(table), device=table.device), folds, seed)
    coded = table.coded(list(key))
    fold = torch.zeros(coded.size, dtype=torch.int64)  # rows without a key share fold 0
    fold[1:] = hash_keys(coded.keys, folds, seed)
    return fold.to(coded.codes.device).index_select(0, coded.codes)


def number_folds(numbers: torch.Tensor, folds: int, seed: int) -> torch.Tensor:
    """Assign folds int64 ``[n]`` by row number and seed with SplitMix64 (Steele, Lea, Flood 2014, fig. 16)."""
    state = numbers * _GAMMA
    state += torch.tensor(seed + 1, device=numbers.device) * _MIX_2  # spreads the seeds
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        # int64 is signed: mask the sign bits that the shift brings in from the left.
        state ^= (state >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        state *= factor
    return (state >> 32).bitwise_and_((1 << 32) - 1).mul_(folds) >> 32


def given_folds(df: Any, folds: Any, work: Table) -> torch.Tensor:
    """Validate folds (``Folds``, integers from 0 or a column of ``df``): int64 ``[n]`` on the rows' device."""
    name = folds if isinstance(folds, str) else None
    others = getattr(folds, "is_partition", True)  # of ``Folds``: each fold trains on all other rows
    folds = folds.codes if hasattr(folds, "is_partition") else folds
    column = Table.read(df, [name])[name] if name is not None else as_column(folds, name="folds")
    none = (column.values == -1).nonzero() if column.kind == "number" else ()
    if not others or len(none):
        problem = "the fold is -1, as in folds by time" if len(none) else "a fold does not train on all other rows"
        remedy = "Fold by fold: features.fit_transform(df.iloc[train]), then features.transform(df.iloc[valid])"
        raise DataError(problem, column=name, row=int(none[0]) if len(none) else None, remedy=remedy)
    if len(column) != len(work):
        problem = f"{len(column)} folds of kind {column.kind} for {len(work)} rows"
        raise DataError(problem, column=name, remedy="Give one fold number per row")
    return fold_numbers(column, name).to(work.device)


def given_fold_keys(table: Table, column: str) -> tuple[Keys, torch.Tensor]:
    """Return the sorted values of a fold column, and each row's position among them: int64 ``[n]``, from 0."""
    keys, codes = sort_keys(table.coded(column))
    refuse(codes == 0, column, "a row has no fold", "Give every training row a fold")
    return keys, codes - 1


def fold_numbers(column: Column, name: str | None = None) -> torch.Tensor:
    """Return the fold numbers in a column, int64 ``[n]``; ``name``: the column's name in errors."""
    if column.kind != "number":
        problem = f"{len(column)} folds of kind {column.kind}"
        raise DataError(problem, column=name, remedy="Give one fold number per row")
    values, missing = column.values, column.is_missing()
    bad = missing | ((values < 0) if values.dtype != torch.bool else False)
    if values.is_floating_point():
        bad = bad | (values != torch.floor(values)) | (values >= 2.0**63)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        held = "missing" if bool(missing[row]) else f"{values[row].item()}"
        raise DataError(f"the fold is {held}", column=name, row=row, remedy="Number the folds 0, 1, 2, …")
    return values.to(torch.int64)
