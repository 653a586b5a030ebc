"""Checks of folds: no group is split, nothing trains on rows later than those it scores."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fastrec.errors import LeakageError
from fastrec.table import Table
from fastrec.validate.given import Times

Pairs = Iterable[tuple[torch.Tensor, torch.Tensor]]  # each fold's training rows and scored rows, int64


def refuse_split_groups(folds: Pairs, key: Table) -> None:
    """Raise a LeakageError where a fold trains on a group of rows and scores other rows of it.

    Args:
        folds: training rows and scored rows.
        key: the key of each row; rows without one belong to no group.
    """
    coded = key.coded(key.names)
    codes, name = coded.codes.cpu(), ", ".join(key.names)
    for k, (train, valid) in enumerate(folds):
        # A mask over groups: one pass over the rows, whatever the number of groups.
        scored = torch.zeros(coded.size, dtype=torch.bool)
        scored[codes[valid]] = True
        scored[0] = False  # no key
        split = scored[codes[train]]
        if bool(split.any()):
            row = int(train[split][0])
            other = int(valid[codes[valid] == codes[row]][0])
            values = ", ".join(str(c[int(codes[row]) - 1].as_py()) for c in coded.keys.columns)
            raise LeakageError(
                f"the group {values} is split: fold {k} trains on row {row} and scores row {other}",
                column=name,
                row=row,
                remedy="Cut by it: Folds.group(data, groups)",
            )


def refuse_time_backwards(folds: Pairs, times: Times) -> None:
    """Raise a LeakageError where a fold trains on a row that is later than one it scores.

    Args:
        folds: training rows and scored rows.
        times: the time of each row.
    """
    for k, (train, valid) in enumerate(folds):
        # If the latest training row is not too late, none is.
        latest, first = times.ticks[train].argmax(), times.ticks[valid].argmin()
        late, early = int(train[latest]), int(valid[first])
        if bool(times.ticks[late] > times.ticks[early]):
            raise LeakageError(
                f"time runs backwards: fold {k} trains on row {late}, which is later than row {early} that it scores",
                column=times.name,
                row=late,
                remedy="Cut by time: Folds.time_series(data, time)",
            )
