"""``RankByCount``: the rank of a key by its count."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.features._engine.key_counts import KeyCounts
from fastrec.features._engine.keyed import sum_kept
from fastrec.features._inputs import as_list, check_choices, name_of
from fastrec.features.base import Col, Cols, Scope, State
from fastrec.segments import rank_in_group


class RankByCount(KeyCounts):
    """Rank of the row's key by how many training rows have it: 1 is the most frequent; 0 if missing or not seen.

    Args:
        cols: key columns, or generators of one column each.
        method: keys of one count share the best rank (``min``), or ranks number the counts (``dense``), or each key has
            its own rank, the smaller key first (``ordinal``).
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RankByCount
        >>> df = pd.DataFrame({"city": ["x", "y", "z", "z", None]})
        >>> RankByCount("city").fit_transform(df)["countrank_city"].tolist()
        [2, 2, 1, 1, 0]
    """

    def __init__(
        self, cols: Cols, *, method: Literal["min", "dense", "ordinal"] = "min", scope: Scope = "train"
    ) -> None:
        self.cols, self.method, self.scope = cols, method, scope
        super().__init__()
        check_choices(self, "method", method, ("min", "dense", "ordinal"))

    def _name(self, col: Col) -> str:
        word = {"min": "", "dense": "dense_", "ordinal": "ordinal_"}[self.method]
        return f"{word}countrank_{name_of(col)}"

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for col, counts in zip(as_list(self.cols), state["count"], strict=True):
            total = sum_kept(counts, keep)
            rank = rank_in_group(-total, torch.zeros_like(total), method=self.method)  # sorted keys: ties by key
            rank = torch.where(total > 0, rank, 0).long()
            tables[self._name(col)] = torch.cat([rank.new_zeros(1), rank])
        return tables
