"""``Lists``: candidates in lists, as estimators take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate.list_events import ListEvents
from fastrec.validate.rows import Rows


class Lists(Rows):
    """Candidates in lists, with their features: the ``Rows`` of a ranking task.

    Args:
        table: ``[n]`` candidates.
        groups: int64 ``[n]``: the list of each candidate; a list's candidates stand together, lists in ascending order.
        cats: the columns that are categories.
        conts: the columns that are numbers.
        label: float ``[n]``: how relevant a candidate is (1 = clicked); None where it is not known.
        weight: float ``[n]``, 0 or above: how much each candidate's list counts; None: all alike.
        order: ``[n]``, a time: where it is given, the lists that an estimator holds out are the last ones.
        events: what was in the session before each list, for rankers that read it; None: not known.

    Raises:
        DataError: the lists are not in order, a weight is below 0 or not a number, or the lengths differ.
    """

    groups: torch.Tensor

    def __init__(
        self,
        table: Table,
        groups: torch.Tensor,
        cats: Sequence[str] = (),
        conts: Sequence[str] = (),
        label: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
        events: ListEvents | None = None,
        **as_replaced: Any,
    ) -> None:
        given = {"table": table, "groups": groups, "cats": cats, "conts": conts, "label": label, "weight": weight}
        # ``dataclasses.replace`` hands over every field, these two as they are for every list
        super().__init__(**given, order=order, events=events, **{"task": "ranking", **as_replaced})
        if len(self.groups) > 1 and bool((self.groups[1:] < self.groups[:-1]).any()):
            row = int((self.groups[1:] < self.groups[:-1]).nonzero()[0]) + 1
            raise DataError("lists are not in ascending order", row=row, remedy="Sort the candidates by list first")


def whole_lists(data: Lists, *, name: str = "the ranker") -> Lists:
    """Return the lists that can teach a ranking: two candidates or more, one of them relevant, a weight above 0.

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
