"""Rows → the fold of each: at random, with each class's share kept, by a hash of what must not be split, or both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastrec.errors import DataError, DataWarning
from fastrec.features._engine.folds import row_folds
from fastrec.table import Column, Table


def group_folds(table: Any, key: str | Sequence[str], folds: int = 5, *, seed: int = 0) -> torch.Tensor:
    """Assign each row its validation fold: rows with one key share a fold, whatever else is in the table.

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


def random_folds(rows: int, folds: int, *, seed: int) -> torch.Tensor:
    """Assign folds int64 ``[n]`` at random; their sizes differ by one at most."""
    return stratified_folds(torch.zeros(rows, dtype=torch.int64), folds, seed=seed)


def stratified_folds(strata: torch.Tensor, folds: int, *, seed: int) -> torch.Tensor:
    """Assign folds at random with the same share of every stratum in each.

    Rows are shuffled, sorted by stratum and dealt out in turn: each stratum's counts in two folds, and the sizes of two
    folds, differ by one at most.

    Args:
        strata: int64 ``[n]``, from 0.
        folds: how many.
        seed: of the shuffling.

    Returns:
        int64 ``[n]``.
    """
    # Dealing shuffled rows out in turn keeps counts within one of each other.
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(len(strata)))
    order = shuffled[torch.sort(strata[shuffled], stable=True).indices]
    codes = torch.empty(len(strata), dtype=torch.int64)
    codes[order] = torch.arange(len(strata)) % folds
    return codes


def stratified_group_folds(strata: torch.Tensor, groups: torch.Tensor, folds: int, *, seed: int) -> torch.Tensor:
    """Assign whole groups to folds, with about the same share of every stratum, and of all rows, in each.

    Greedy, as scikit-learn's ``StratifiedGroupKFold``: groups go, the largest first, each where it adds least to the
    sum over folds and strata of the squared share of the stratum's rows (whose least value is equal shares); that is
    where the fold's shares so far and the group's have the smallest inner product, one small product a group.

    Args:
        strata: int64 ``[n]``, from 0.
        groups: int64 ``[n]``, from 0.
        folds: how many.
        seed: of the order of equal groups.

    Returns:
        int64 ``[n]``.
    """
    _, groups = torch.unique(groups, return_inverse=True)
    size, kinds = int(groups.max()) + 1, int(strata.max()) + 1
    if size < folds:
        raise DataError(f"{size} groups for {folds} folds", remedy="Use fewer folds, or more groups")
    counts = torch.bincount(groups * kinds + strata, minlength=size * kinds).view(size, kinds).double()
    counts = torch.cat([counts, counts.sum(1, keepdim=True)], 1)  # the last: rows of any stratum
    shares = (counts / counts.sum(0).clamp(min=1)).numpy()
    shuffled = np.random.default_rng(seed).permutation(size)
    # Large groups first: small ones can still even out their shares.
    order = shuffled[np.argsort(-np.square(shares[shuffled]).sum(1), kind="stable")]
    held, fold = np.zeros((folds, kinds + 1)), np.empty(size, dtype=np.int64)
    for group, share in zip(order.tolist(), shares[order], strict=True):
        best = int((held @ share).argmin())
        held[best] += share
        fold[group] = best
    return torch.from_numpy(fold)[groups]


def strata_of(column: Column, bins: int | None, folds: int) -> tuple[torch.Tensor, str]:
    """Turn a target into strata: its classes, or quantile bins of its numbers.

    Args:
        column: the target ``[n]``.
        bins: how many quantile bins; 0: the values are classes; None: ``10`` for numbers that have fractions or more
            than 50 distinct values, else classes.
        folds: how many folds there will be.

    Returns:
        int64 ``[n]`` from 0 on the CPU (missing targets are a stratum of their own), and what they are, in words.

    Raises:
        DataError: every class has fewer rows than there are folds, or the bins are of something else than numbers.
    """
    coded = column.coded()
    if bins is None:
        # Whole numbers of few values are classes more often than amounts.
        bins = 10 if column.kind == "number" and (has_fractions(column) or len(coded.keys) > 50) else 0
    if bins:
        return _quantile_bins(column, bins), f"{bins} quantile bins of {column.name}"
    codes = coded.codes.cpu()
    counts = torch.bincount(codes, minlength=coded.size)[1:]
    if len(counts) and int(counts.max()) < folds:
        raise DataError(
            f"no class has as many rows as there are folds ({folds})",
            column=column.name,
            remedy="Give bins= if these are numbers to predict, or use fewer folds",
        )
    few = counts < folds
    if bool(few.any()):
        rarest = int(torch.where(few, counts, counts.max() + 1).argmin())
        value = coded.keys.columns[0][rarest].as_py()
        warnings.warn(
            f"column {column.name!r}: {int(few.sum())} classes have fewer rows than the {folds} folds, class {value!r} "
            f"{int(counts[rarest])}: some folds are without them",
            DataWarning,
            stacklevel=3,
        )
    return codes, f"the classes of {column.name}"


def has_fractions(column: Column) -> bool:
    """Return whether a number column holds numbers that are not whole."""
    values = column.values
    return values.is_floating_point() and bool((values != values.floor())[~column.is_missing()].any())


def _quantile_bins(column: Column, bins: int) -> torch.Tensor:
    if bins < 2:
        raise DataError(f"{bins} bins", column=column.name, remedy="Use 2 or more, or 0 for classes")
    values = column.number().cpu()
    known = values[~values.isnan()].sort().values
    edges = known[(torch.arange(1, bins) * len(known)) // bins] if len(known) else known
    return torch.where(values.isnan(), 0, torch.searchsorted(edges, values, right=True) + 1)
