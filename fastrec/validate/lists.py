"""``Lists``: candidates in lists, as estimators take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fastrec.errors import DataError
from fastrec.table import Table


@dataclass(frozen=True, eq=False)
class Lists:
    """Candidates in lists, with their features.

    Groups, labels and weights are kept on the CPU, wherever the table is: a few values per candidate, which metrics,
    trees and blends read there.

    Args:
        table: ``[n]`` candidates.
        groups: int64 ``[n]``: the list of each candidate; a list's candidates stand together, lists in ascending order.
        cats: the columns that are categories.
        conts: the columns that are numbers.
        label: float ``[n]``: how relevant a candidate is (1 = clicked); None where it is not known.
        weight: float ``[n]``, 0 or above: how much each candidate's list counts; None: all alike.

    Raises:
        DataError: the lists are not in order, a weight is below 0 or not a number, or the lengths differ.
    """

    table: Table
    groups: torch.Tensor
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    label: torch.Tensor | None = None
    weight: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("groups", "label", "weight"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, values.cpu())  # the dataclass is frozen
        sizes = {n: len(v) for n, v in (("label", self.label), ("weight", self.weight)) if v is not None}
        sizes |= {"groups": len(self.groups)} | ({"table": len(self.table)} if self.table.names else {})
        if len(set(sizes.values())) > 1:
            raise DataError(f"lists of unequal lengths: {sizes}", remedy="Give one of each for every candidate")
        self._check_order_and_weights()

    def _check_order_and_weights(self) -> None:
        if len(self.groups) > 1 and bool((self.groups[1:] < self.groups[:-1]).any()):
            row = int((self.groups[1:] < self.groups[:-1]).nonzero()[0]) + 1
            raise DataError("lists are not in ascending order", row=row, remedy="Sort the candidates by list first")
        if self.weight is not None and bool((bad := ~(self.weight >= 0) | self.weight.isinf()).any()):
            raise DataError(
                "a weight is below 0, missing or infinite",
                row=int(bad.nonzero()[0]),
                remedy="Use 0 for a list that is not to count",
            )

    def __len__(self) -> int:
        return len(self.groups)

    def with_table(self, table: Table) -> Lists:
        """The same lists with other columns."""
        return replace(self, table=table)

    def take(self, rows: torch.Tensor) -> Lists:
        """The candidates at ``rows`` (bool ``[n]`` or ascending int64 ``[m]``)."""
        rows = rows.cpu()
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        some = {n: None if v is None else v[rows] for n, v in (("label", self.label), ("weight", self.weight))}
        return replace(self, table=self.table.take(rows), groups=self.groups[rows], **some)


def whole_lists(data: Lists, *, name: str = "the ranker") -> Lists:
    """The lists that can teach a ranking: those of two candidates or more, one of them relevant, of a weight above 0.

    Args:
        data: lists with labels.
        name: who is to learn from them, for messages.

    Raises:
        DataError: there are no labels, or no such list.
    """
    if data.label is None:
        raise DataError(f"{name} was given lists without labels to learn from", remedy="Give label=")
    _, codes, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
    label = data.label.double() if data.weight is None else data.label.double() * (data.weight > 0)
    relevant = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, codes, label)
    chosen = ((sizes > 1) & (relevant > 0))[codes]  # not those where a label is NaN
    if not bool(chosen.any()):
        raise DataError(
            f"{name} has no list to learn from",
            remedy="Give lists of two candidates or more, one of them relevant, of a weight above 0",
        )
    return data if bool(chosen.all()) else data.take(chosen)
