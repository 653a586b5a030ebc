"""``Rows``: rows of a table with what is to be learned from them, as estimators take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate.list_events import ListEvents
from fastrec.validate.tasks import Task, check_label, check_task

_ON_THE_CPU = ("label", "weight", "groups", "order", "guessed")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with their features, and what is to be predicted of them.

    Labels, weights, groups and order are kept on the CPU, wherever the table is: a few values per row, which metrics,
    trees and blends read there.

    Args:
        table: ``[n]`` rows.
        task: ``'ranking'``, ``'binary'``, ``'multiclass'``, ``'regression'`` or ``'multilabel'``.
        cats: the columns that are categories.
        conts: the columns that are numbers.
        label: what is to be predicted, None where it is not known. Ranking: float ``[n]``, how relevant a candidate is
            (1 = clicked). Binary: 0 and 1, ``[n]``. Multiclass: codes from 0, ``[n]``. Regression: ``[n]``, or
            ``[n, t]`` for several targets. Multilabel: 0 and 1, ``[n, k]``.
        weight: float ``[n]``, 0 or above: how much a row (in a list: its list) counts; None: all alike.
        groups: int64 ``[n]``: what must not be parted where an estimator holds rows out; in ranking the lists.
        order: ``[n]``, a time: where it is given, the rows that an estimator holds out are the last ones.
        n_outputs: how many classes a multiclass task has, how many columns one with several targets; else 1.
        guessed: bool ``[n]``: the label was predicted. Such a row is learned from, and never held out to stop by; None:
            none is.
        events: of a ranking task what was in the session before each list; some of the rows have all of it.

    Raises:
        DataError: a label does not fit the task, a weight is below 0 or not a number, or the lengths differ.
    """

    table: Table
    task: Task
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    label: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    order: torch.Tensor | None = None
    n_outputs: int = 1
    guessed: torch.Tensor | None = None
    events: ListEvents | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        for name in _ON_THE_CPU:
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, torch.as_tensor(values).cpu())  # the dataclass is frozen
        sizes = {n: len(v) for n in _ON_THE_CPU if (v := getattr(self, n)) is not None}
        # A table without columns does not know its length.
        sizes |= {"table": len(self.table)} if self.table.names else {}
        if len(set(sizes.values())) > 1:
            raise DataError(f"rows of unequal lengths: {sizes}", remedy="Give one of each for every row")
        if self.label is not None:
            check_label(self.label, self.task, self.n_outputs)
        self._check_weight()

    def _check_weight(self) -> None:
        if self.weight is not None and bool((bad := ~(self.weight >= 0) | self.weight.isinf()).any()):
            raise DataError(
                "a weight is below 0, missing or infinite",
                row=int(bad.nonzero()[0]),
                remedy="Use 0 for what is not to count",
            )

    def __len__(self) -> int:
        known = next((v for n in _ON_THE_CPU if (v := getattr(self, n)) is not None), None)
        return len(self.table) if known is None else len(known)

    @property
    def n_scores(self) -> int:
        """How many numbers are predicted for a row; 1: predictions are ``[n]``, else ``[n, n_scores]``."""
        return self.n_outputs if self.task in ("multiclass", "multilabel", "regression") else 1

    @property
    def names(self) -> list[str]:
        """The columns that are learned from."""
        return [*self.cats, *self.conts]

    def with_table(self, table: Table) -> Self:
        """Return the same rows with other columns."""
        return replace(self, table=table)

    def take(self, rows: torch.Tensor) -> Self:
        """Return some of the rows.

        Args:
            rows: bool ``[n]``, or int64 ``[m]``; ascending where the rows are lists.
        """
        rows = rows.cpu()
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        some: dict[str, Any] = {n: None if (v := getattr(self, n)) is None else v[rows] for n in _ON_THE_CPU}
        return replace(self, table=self.table.take(rows), **some)
