"""``Cross``: one code per combination of several columns' values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError
from fastrec.features._engine.key_counts import merge_counts
from fastrec.features._engine.keyed import count_by_cell, key_text, sort_keys, sum_kept
from fastrec.features._engine.options import OfColumns
from fastrec.features._inputs import as_list, masked, name_of
from fastrec.features.base import Cells, Col, Cols, Fitted, State, Tensors
from fastrec.table import Coded, Column, Keys, Table
from fastrec.table.vocab import hash_codes


class Cross(OfColumns, Fitted):
    """One integer code per combination of values: 1, 2, … in sorted order of the combinations seen in training.

    A combination that was not seen, or with a part missing, is missing. With ``buckets`` nothing is learned: the code
    is a hash of the values in the order of the columns.

    Args:
        cols: two columns or more, or generators of one column each: ``Cross('a', 'b')`` or ``Cross(['a', 'b'])``.
        min_count: a combination seen in fewer training rows is missing.
        buckets: hash into this many codes (1 … buckets) instead of learning them.
        seed: of the hash.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Cross
        >>> df = pd.DataFrame({"a": ["x", "x", "y"], "b": [1, 2, 1]})
        >>> Cross("a", "b").fit_transform(df)["a_x_b"].tolist()
        [1, 2, 3]
    """

    by_key = (("keys", "count"),)

    def __init__(self, cols: Cols, *more: Col, min_count: int = 1, buckets: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.cols = [*as_list(cols), *more] if more else cols
        self.min_count, self.buckets, self.seed = min_count, buckets, seed
        if len(as_list(self.cols)) < 2:
            raise DataError("Cross needs two columns or more", remedy="Name them: Cross('a', 'b')")
        if buckets is not None and buckets < 1:
            raise DataError(f"Cross: {buckets} buckets hold nothing", remedy="Use 1 or more")

    @property
    def outputs(self) -> list[str]:
        return ["_x_".join(name_of(c) for c in as_list(self.cols))]

    def _coded(self, table: Table) -> Coded:
        return table.coded(self.columns)

    def collect(self, table: Table, cells: Cells | None = None) -> State:
        if self.buckets is not None:
            nothing = self._coded(table).keys.take(torch.zeros(0, dtype=torch.int64))
            return {"keys": nothing, "count": torch.zeros(1, 0, dtype=torch.int64)}
        keys, codes = sort_keys(self._coded(table))
        return {"keys": keys, "count": count_by_cell(codes, cells, len(keys) + 1)[:, 1:]}

    def merge(self, a: State, b: State) -> State:
        keys, count = merge_counts(a["keys"], a["count"], b["keys"], b["count"])
        return {"keys": keys, "count": count}

    def finalize(self, state: State, keep: torch.Tensor | None = None) -> State:
        kept = sum_kept(state["count"], keep) >= max(self.min_count, 1)
        return {self.outputs[0]: torch.cat([kept.new_zeros(1).long(), torch.cumsum(kept, 0) * kept])}

    def prepare(self, state: State, table: Table) -> Tensors:
        coded = self._coded(table)
        if self.buckets is None:
            return {"key": coded.recode(state["keys"])}
        hashed = torch.zeros(coded.size, dtype=torch.int64)
        hashed[1:] = torch.from_numpy(hash_codes(_joined_text(coded.keys), self.buckets, seed=self.seed)) + 1
        return {"hash": hashed.to(coded.codes.device).index_select(0, coded.codes)}

    def lookups(self) -> dict[str, str] | None:
        return {self.outputs[0]: "key"} if self.buckets is None else None

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        return super().apply(fit, tensors) if self.buckets is None else {self.outputs[0]: tensors["hash"]}

    def compute_from(self, table: Table, state: State) -> dict[str, Column]:
        if self.buckets is None and self.min_count <= 1:
            coded = self._coded(table).in_order()
            if coded.keys is state["keys"]:  # the rows that were learned from: their codes are at hand
                made = self.wrap({self.outputs[0]: coded.codes})
                kept = Keys((pa.array(np.arange(1, coded.size)),), (self.outputs[0],))
                made[self.outputs[0]]._cache["coded"] = Coded(coded.codes, kept, True)
                return made
        return super().compute_from(table, state)

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        name, codes = self.outputs[0], tensors[self.outputs[0]]
        return {name: masked(name, codes, codes == 0)}


def _joined_text(keys: Keys) -> pa.Array:
    # Each value follows its length: no two tuples of values read the same.
    parts = []
    for column in keys.columns:
        text = key_text(column)
        parts += [pc.binary_length(text).cast(pa.large_string()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))
