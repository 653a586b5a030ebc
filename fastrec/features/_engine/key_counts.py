"""Counts of keys in training rows: base of ``CountEncode`` and ``RankByCount``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import count_by_cell, sort_keys, spread, union_keys
from fastrec.features._inputs import as_list, name_of, names_of
from fastrec.features.base import Cells, Feature, Fitted, State, Tensors
from fastrec.table import Keys, Table


class KeyCounts(Fitted):
    """Generator whose outputs follow from the counts of the rows' keys; each of ``cols`` gives one output."""

    cols: str | Feature | Sequence[str | Feature]
    by_key = (("keys", "count"), ("groups", "rows"))

    def __init__(self) -> None:
        super().__init__()
        if self.scope not in ("train", "all"):
            raise DataError(f"{type(self).__name__} has no scope {self.scope!r}", remedy="Use 'train' or 'all'")

    @abstractmethod
    def _name(self, col: str | Feature) -> str: ...

    def _key(self, col: str | Feature) -> list[str]:
        return names_of(col)

    @property
    def sources(self) -> list[str | Feature]:
        return as_list(self.cols)

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in as_list(self.cols)]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        made = [count_keys(table, self._key(col), cells) for col in as_list(self.cols)]
        return {"keys": [keys for keys, _ in made], "count": [count for _, count in made]}

    def merge(self, a: State, b: State) -> State:
        parts = zip(a["keys"], b["keys"], a["count"], b["count"], strict=True)
        made = [merge_counts(ka, x, kb, y) for ka, kb, x, y in parts]
        return {"keys": [keys for keys, _ in made], "count": [count for _, count in made]}

    def prepare(self, state: State, table: Table) -> Tensors:
        pairs = zip(as_list(self.cols), state["keys"], strict=True)
        return {name_of(col): table.coded(self._key(col)).recode(keys) for col, keys in pairs}

    def lookups(self) -> dict[str, str]:
        return {self._name(col): name_of(col) for col in as_list(self.cols)}

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        found = {name: tensors[codes] for name, codes in self.lookups().items()}
        return {name: fit[name].to(codes.device).index_select(0, codes) for name, codes in found.items()}


def count_keys(table: Table, names: Sequence[str], cells: Cells | None) -> tuple[Keys, torch.Tensor]:
    """Return the distinct keys in sorted order and each cell's number of rows with them: int64 ``[cells, K]``."""
    keys, codes = sort_keys(table.coded(names))
    return keys, count_by_cell(codes, cells, len(keys) + 1)[:, 1:]


def merge_counts(ka: Keys, a: torch.Tensor, kb: Keys, b: torch.Tensor) -> tuple[Keys, torch.Tensor]:
    keys, left, right = union_keys(ka, kb)
    cells = max(len(a), len(b))
    return keys, spread(a, left, len(keys), cells) + spread(b, right, len(keys), cells)
