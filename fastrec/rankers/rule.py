"""``ColumnRanker``: candidates in the order of a column, the yardstick that every model must beat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fastrec.rankers.base import Lists, Ranker, Trace
from fastrec.segments import lexical_order


class ColumnRanker(Ranker):
    """Ranks by columns: the smallest value of the first comes first, ties by the next; missing comes last.

    Args:
        name: the ranker's name.
        columns: the columns, the most important first.
    """

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name, self.columns, self.trace = name, list(columns), Trace()

    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        return self

    def predict(self, data: Lists) -> torch.Tensor:
        keys = [torch.nan_to_num(data.table[c].number(), nan=torch.inf).cpu() for c in self.columns]
        order = lexical_order(keys)
        place = torch.arange(len(data), dtype=torch.float64)
        if order is not None:
            place[order] = torch.arange(len(data), dtype=torch.float64)
        return -place

    def save(self, folder: Any) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "ranker.json").write_text(json.dumps({"columns": self.columns}, indent=1))
