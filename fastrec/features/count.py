"""``CountEncode``: the count of a key."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.key_counts import KeyCounts, count_keys, merge_counts
from fastrec.features._engine.keyed import sum_by_cell, sum_kept
from fastrec.features._inputs import as_list, name_of, names_of
from fastrec.features.base import Cells, Col, Cols, Names, Scope, State
from fastrec.table import Keys, Table


class CountEncode(KeyCounts):
    """How many training rows have the row's key; 0 for a key that is missing or was not seen.

    Args:
        cols: key columns, or generators of one column each.
        log: return ``log(1 + count)``.
        scope: ``'all'`` learns from ``fit``'s unlabeled rows too (reported as transductive).
        by: the columns of groups to count in; 0 where one is missing.
        normalise: return the share ``count / rows`` of all rows, or of the group's; rows without a key count as rows.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import CountEncode
        >>> df = pd.DataFrame({"city": ["x", "y", "x", None], "user": [1, 1, 1, 2]})
        >>> CountEncode("city").fit_transform(df)["count_city"].tolist()
        [2, 1, 2, 0]
        >>> CountEncode("city", normalise=True).fit_transform(df)["share_city"].tolist()
        [0.5, 0.25, 0.5, 0.0]
        >>> CountEncode("city", by="user").fit_transform(df)["count_city__user"].tolist()
        [2, 1, 2, 0]
    """

    def __init__(
        self, cols: Cols, *, log: bool = False, scope: Scope = "train", by: Names | None = None, normalise: bool = False
    ) -> None:
        self.cols, self.log, self.scope, self.by, self.normalise = cols, log, scope, by, normalise
        super().__init__()
        if log and normalise:
            raise DataError("CountEncode: a share has no logarithm of 1 + count", remedy="Use log or normalise, or two")

    @property
    def sources(self) -> list[Col]:
        return [*as_list(self.cols), *as_list(self.by)]

    def _name(self, col: Col) -> str:
        word = "share" if self.normalise else "log_count" if self.log else "count"
        return f"{word}_{name_of(col)}" + "".join(f"__{b}" for b in as_list(self.by))

    def _key(self, col: Col) -> list[str]:
        return [*as_list(self.by), *names_of(col)]

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        state = super().collect(table, cells)
        if self.normalise and as_list(self.by):
            state["groups"], state["rows"] = count_keys(table, as_list(self.by), cells)
        elif self.normalise:
            one = torch.zeros(len(table), dtype=torch.int64, device=table.device)
            state["rows"] = sum_by_cell(torch.ones_like(one), one, cells, 1)
        return state

    def merge(self, a: State, b: State) -> State:
        merged = super().merge(a, b)
        if "groups" in a:
            merged["groups"], merged["rows"] = merge_counts(a["groups"], a["rows"], b["groups"], b["rows"])
        elif "rows" in a:
            x, y = (a["rows"], b["rows"]) if len(a["rows"]) >= len(b["rows"]) else (b["rows"], a["rows"])
            merged["rows"] = x.clone()
            merged["rows"][: len(y)] += y
        return merged

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        tables = {}
        for col, keys, counts in zip(as_list(self.cols), state["keys"], state["count"], strict=True):
            total = sum_kept(counts, keep)
            if self.normalise:
                rows = sum_kept(state["rows"], keep)
                if "groups" in state:
                    group = Keys(keys.columns[: len(as_list(self.by))]).find_in(state["groups"])
                    rows = rows[group.to(rows.device)] if len(rows) else total
                total = total.double() / rows.clamp_min(1)
            table = torch.cat([total.new_zeros(1), total])
            tables[self._name(col)] = torch.log1p(table.double()) if self.log else table
        return tables
