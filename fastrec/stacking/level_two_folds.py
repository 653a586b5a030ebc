"""Folds of level 2, made of the base models' own folds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.features._engine.folds import fold_numbers, row_folds
from fastrec.table import Table, as_column
from fastrec.validate import Rows, folds_digest


@dataclass(frozen=True)
class LevelTwoFolds:
    """Folds of level 2.

    Args:
        pairs: of each fold, the rows that are learned from and those that are scored: int64, ascending. Neither holds a
            row that no base model scored.
        scored: bool ``[n]``: the rows that base models scored.
        digest: what ``folds_digest`` says of the base models' folds.
        ahead: folds by time that come first: their blends learn from later ones.
    is_one: there is one fold of base models, of which these are parts.
    """

    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    scored: torch.Tensor
    digest: str
    ahead: tuple[int, ...] = ()
    is_one: bool = False

    @property
    def codes(self) -> torch.Tensor:
        """The (last) of the base models' folds that scores each row: int64 ``[n]``; -1: none does."""
        codes = torch.full((len(self.scored),), -1, dtype=torch.int64)
        for k, (_, valid) in enumerate(self.pairs):
            codes[valid] = 0 if self.is_one else k
        return codes


def level_two_folds(folds: Any, data: Rows) -> LevelTwoFolds:
    """Make folds of level 2 of those of the base models.

    A fold's blend learns from the out-of-fold predictions of the rows that the fold's base models were trained on. In
    folds by time the first one has no such rows: its blend learns from the other folds, as it does in folds at random.
    Where there is one fold alone (the last weeks, held out), its rows are cut into five parts, whole groups where there
    are groups, in order of time where there is one.

    Args:
        folds: whole numbers ``[n]`` from 0 (-1: in no fold), or ``Folds``: pairs of rows trained on and rows scored.
    """
    size = len(data)
    are_codes = isinstance(folds, torch.Tensor) or not isinstance(folds, Iterable)
    if not are_codes:
        first = next(iter(folds), None)
        are_codes = not (isinstance(first, tuple) and len(first) == 2)
    given = _pairs_of_codes(folds, size) if are_codes else [(a.cpu(), b.cpu()) for a, b in folds]
    if not given:
        raise DataError("there are no folds", remedy="Give the base models' own folds")
    digest = folds_digest([valid for _, valid in given], size)
    scored = torch.zeros(size, dtype=torch.bool)
    for _, valid in given:
        if len(valid) and int(valid.max()) >= size:
            raise DataError(f"the folds are of more rows than the {size} given", remedy="Give the base models' own")
        scored[valid] = True
    if data.task == "ranking":
        _refuse_split_lists([v for _, v in given], data)
    if len(given) == 1:
        return LevelTwoFolds(_parts(given[0][1], data), scored, digest, is_one=True)
    pairs, ahead = [], []
    for k, (train, valid) in enumerate(given):
        rows = train[scored[train]]
        if not len(rows):
            ahead.append(k)
            others = scored.clone()
            others[valid] = False
            rows = others.nonzero().squeeze(1)
        pairs.append((rows.sort().values, valid.sort().values))
    return LevelTwoFolds(pairs, scored, digest, tuple(ahead))


def _pairs_of_codes(folds: Any, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(folds) != size:
        raise DataError(f"{len(folds)} folds for {size} rows", remedy="Give the base models' own folds")
    unscored = torch.zeros(size, dtype=torch.bool)
    if isinstance(folds, torch.Tensor):
        unscored = (folds == -1).cpu()
        folds = torch.where(folds == -1, 0, folds)
    codes = torch.where(unscored, -1, fold_numbers(as_column(folds, name="folds")).cpu())
    present = torch.unique(codes[codes >= 0])
    return [((codes != k).nonzero().squeeze(1), (codes == k).nonzero().squeeze(1)) for k in present]


def _parts(rows: torch.Tensor, data: Rows) -> list[tuple[torch.Tensor, torch.Tensor]]:
    parts = 5
    rows = rows.sort().values
    if data.groups is not None:
        part = row_folds(Table({"group": data.groups[rows]}), ["group"], parts).cpu()
    elif data.order is not None:
        later = torch.argsort(data.order[rows], stable=True)
        part = torch.empty(len(rows), dtype=torch.int64)
        part[later] = torch.arange(len(rows)) * parts // len(rows)
    else:
        part = row_folds(Table({"row": rows}), ["row"], parts).cpu()
    pairs = [(rows[part != k], rows[part == k]) for k in range(parts) if bool((part == k).any())]
    if len(pairs) < 2:
        raise DataError("one fold of one group has nothing for level 2 to learn from", remedy="Use two folds or more")
    return pairs


def _refuse_split_lists(valid: list[torch.Tensor], data: Rows) -> None:
    assert data.groups is not None
    ids, codes = torch.unique(data.groups, return_inverse=True)
    whole = torch.bincount(codes, minlength=len(ids))
    if len(ids) == 1 and len(data) > 1:
        raise DataError(
            "all rows are one list: a ranking has no other list to learn from",
            remedy="Where the rows are no list, name the task: Rows(…, task='binary'), 'regression' or 'multiclass'",
        )
    for k, rows in enumerate(valid):
        inside = torch.bincount(codes[rows], minlength=len(ids))
        split = (inside > 0) & (inside < whole)
        if bool(split.any()):
            row = int(rows[split[codes[rows]]][0])
            raise DataError(
                f"a list is not whole in fold {k}", row=row,
                remedy="Make folds of whole lists; where the rows are no lists, name the task: Rows(…, task='binary')",
            )  # fmt: skip
