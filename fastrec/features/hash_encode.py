"""``HashEncode``: a code for any value, without a vocabulary."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.keyed import key_text
from fastrec.features._inputs import as_list, name_of
from fastrec.features.base import Cols, RowWise, Tensors
from fastrec.table import Table
from fastrec.table.vocab import hash_codes


class HashEncode(RowWise):
    """``1 + hash(value) mod buckets`` as int64, 0 where missing: codes for an embedding of ``buckets + 1`` rows.

    The hash is FNV-1a of the value's text: the same on every machine, in every library, for every type of number.
    Several hashes with other seeds tell values apart that collide in one.

    Args:
        cols: key columns of any type, or generators of one column each.
        buckets: how many codes there are besides 0.
        seed: another one gives another hash.
        name: the outputs' first word.

    Source: Weinberger et al. 2009, "Feature hashing for large scale multitask learning"; the hash: see
    ``fastrec.table.vocab.hash_codes``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import HashEncode
        >>> HashEncode("city", 100).fit_transform(pd.DataFrame({"city": ["x", "y", "x", None]}))["hash_city"].tolist()
        [73, 5, 73, 0]
    """

    def __init__(self, cols: Cols, buckets: int, *, seed: int = 0, name: str = "hash") -> None:
        self.cols, self.buckets, self.seed, self.name = cols, buckets, seed, name
        if buckets < 1:
            raise DataError(f"HashEncode: {buckets} buckets hold nothing", remedy="Use 1 or more")

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_{name_of(c)}" for c in as_list(self.cols)]

    def prepare(self, table: Table) -> Tensors:
        tensors = {}
        for col in as_list(self.cols):
            coded = table[name_of(col)].coded()
            hashed = torch.zeros(coded.size, dtype=torch.int64)
            text = key_text(coded.keys.columns[0])
            hashed[1:] = torch.from_numpy(hash_codes(text, self.buckets, seed=self.seed)) + 1
            tensors[name_of(col)] = hashed.to(coded.codes.device).index_select(0, coded.codes)
        return tensors

    def apply(self, tensors: Tensors) -> Tensors:
        return {o: tensors[name_of(c)] for o, c in zip(self.outputs, as_list(self.cols), strict=True)}
