"""``DeviationFromGroup``: a row's value against its group's centre."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._inputs import as_list, number_of
from fastrec.features.base import Cols, Fitted, Names, Scope, Tensors
from fastrec.features.group_stats import GroupStats
from fastrec.table import Table


class DeviationFromGroup(GroupStats):
    """A row's value against its group's mean or median: the difference, the ratio, or standard deviations.

    Args:
        cols: number columns, or generators.
        by: the columns of the group.
        how: ``'diff'``: value less centre; ``'ratio'``: value by centre, missing where the centre is 0; ``'z'``: the
            difference in the group's sample standard deviations, 0 for the centre itself where the group has none.
        stat: the centre: ``'mean'`` or ``'median'``.
        over: ``'group'``: the rows of the group in the frame at hand; ``'train'``: the group's training rows.
        scope: with ``over='train'``, ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        name: a first word for the outputs' names instead of ``diff``, ``ratio`` or ``z`` and the centre's.

    Missing where the value is, and where the group is missing, was not seen, or has no value.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DeviationFromGroup
        >>> df = pd.DataFrame({"list": [1, 1, 2], "price": [10.0, 30.0, 5.0]})
        >>> DeviationFromGroup("price", by="list").fit_transform(df)["diffmean_price__list"].tolist()
        [-10.0, 10.0, 0.0]
    """

    def __init__(
        self,
        cols: Cols,
        *,
        by: Names,
        how: Literal["diff", "ratio", "z"] = "diff",
        stat: Literal["mean", "median"] = "mean",
        over: Literal["group", "train"] = "group",
        scope: Scope = "train",
        name: str | None = None,
    ) -> None:
        Fitted.__init__(self)
        self.cols, self.by, self.how, self.stat = cols, by, how, stat
        self.over, self.scope, self.name = over, scope, name
        self.order = self.bins = None
        if how not in ("diff", "ratio", "z") or stat not in ("mean", "median"):
            raise DataError(
                f"DeviationFromGroup has no {how!r} from the {stat!r}",
                remedy="Use how='diff', 'ratio' or 'z' and stat='mean' or 'median'",
            )
        self._check()

    @property
    def _wanted(self) -> list[str]:
        return [self.stat, *(["std"] if self.how == "z" else [])]

    @property
    def outputs(self) -> list[str]:
        word = self.name or self.how + self.stat
        return [f"{word}_{c}" + "".join(f"__{b}" for b in as_list(self.by)) for c in self.columns]

    def _inputs(self, table: Table) -> Tensors:
        return {f"value_{i}": number_of(table, c, wanted_by=self) for i, c in enumerate(self.columns)}

    def apply(self, fit: dict[str, torch.Tensor], tensors: Tensors) -> Tensors:
        found, made = super().apply(fit, tensors), {}
        for i, (c, output) in enumerate(zip(self.columns, self.outputs, strict=True)):
            values, centre = tensors[f"value_{i}"], found[self._name(c, self.stat)]
            away = values - centre
            if self.how == "ratio":
                made[output] = torch.where(centre != 0, values / torch.where(centre != 0, centre, 1), torch.nan)
            elif self.how == "z":
                spread = found[self._name(c, "std")]
                some = spread > 0
                none = torch.where(away == 0, 0, torch.nan)
                made[output] = torch.where(some, away / torch.where(some, spread, 1), none)
            else:
                made[output] = away
        return made
