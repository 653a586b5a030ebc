"""``NUnique``: how many different values a column has in a group."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.key_counts import count_keys
from fastrec.features._engine.keyed import spread, union_keys
from fastrec.features._engine.options import OfGroups, check_scope
from fastrec.features._inputs import as_list, name_of, names_of
from fastrec.features.base import Cells, Col, Cols, Fitted, Names, Scope, State, Tensors
from fastrec.segments import segment_sum
from fastrec.table import Keys, Table


class NUnique(OfGroups, Fitted):
    """The number of distinct values of a column in the training rows of the row's group, exact in any partitions.

    Missing values do not count. A group that is missing or was not seen has 0.

    Args:
        cols: columns of any kind that can be a key, or generators of one column each.
        by: the columns of the group.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import NUnique
        >>> df = pd.DataFrame({"user": [1, 1, 1, 2], "item": ["a", "b", "a", None]})
        >>> NUnique("item", by="user").fit_transform(df)["nunique_item__user"].tolist()
        [2, 2, 2, 0]
    """

    by_key = (("groups",), ("pairs", "seen"))

    def __init__(self, cols: Cols, *, by: Names, scope: Scope = "train") -> None:
        super().__init__()
        self.cols, self.by, self.scope = cols, by, scope
        if not as_list(by):
            raise DataError("NUnique: no column says which rows are a group", remedy="Name one: by='user'")
        check_scope(self)

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in as_list(self.cols)]

    def _name(self, col: Col) -> str:
        return f"nunique_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        pairs = [count_keys(table, [*as_list(self.by), *names_of(col)], cells) for col in as_list(self.cols)]
        groups, _ = count_keys(table, as_list(self.by), None)
        return {"groups": groups, "pairs": [keys for keys, _ in pairs], "seen": [count > 0 for _, count in pairs]}

    def merge(self, a: State, b: State) -> State:
        merged: State = {"groups": union_keys(a["groups"], b["groups"])[0], "pairs": [], "seen": []}
        for ka, kb, x, y in zip(a["pairs"], b["pairs"], a["seen"], b["seen"], strict=True):
            keys, left, right = union_keys(ka, kb)
            cells = max(len(x), len(y))
            merged["pairs"].append(keys)
            merged["seen"].append(spread(x, left, len(keys), cells) | spread(y, right, len(keys), cells))
        return merged

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        size, tables = len(state["groups"]) + 1, {}
        for col, keys, seen in zip(as_list(self.cols), state["pairs"], state["seen"], strict=True):
            found = (seen if keep is None else seen[keep.to(seen.device)]).any(0)
            group = Keys(keys.columns[: len(as_list(self.by))]).find_in(state["groups"]) + 1
            tables[self._name(col)] = segment_sum(found.long(), group.to(found.device), size)
        return tables

    def prepare(self, state: State, table: Table) -> Tensors:
        return {"group": table.coded(as_list(self.by)).recode(state["groups"])}

    def lookups(self) -> dict[str, str]:
        return dict.fromkeys(self.outputs, "group")
