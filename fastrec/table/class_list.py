"""``ClassList``: the meaning of every code of a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from fastcore.foundation import L

from fastrec._core import limits
from fastrec.table.vocab import RARE, UNSEEN, Vocab

_PLAIN = (
    (str, lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
    (int, pa.types.is_integer),
    (float, pa.types.is_float64),
    (bool, pa.types.is_boolean),
)


class ClassList(Sequence):
    """Sequence of the meanings of a column's codes, as fastai's ``CategoryMap`` with ``items`` and ``o2i``.

    Args:
        vocab: the column's vocabulary. The values are listed only when they are looked at.
    """

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    @cached_property
    def items(self) -> L:
        """Names of the reserved codes, then the values, in code order."""
        return L(self.vocab.classes, use_list=True)

    @cached_property
    def o2i(self) -> dict[Any, int]:
        """Value → code."""
        return {value: code for code, value in enumerate(self.items)}

    @cached_property
    def _codes(self) -> tuple[type | None, dict[Any, int], int]:
        """Type of the values that can be looked up one by one, their codes, and the code of others."""
        vocab, kind = self.vocab, self.vocab.values.type
        plain = next((t for t, holds in _PLAIN if holds(kind)), None)
        if plain is None or len(vocab) > limits.LISTED_CLASSES:
            return None, {}, 0
        codes = {v: vocab.reserved.index(RARE) for v in vocab.rare.to_pylist()} if vocab.rare is not None else {}
        codes |= {v: i + len(vocab.reserved) for i, v in enumerate(vocab.values.to_pylist())}
        return plain, codes, vocab.reserved.index(UNSEEN) if UNSEEN in vocab.reserved else 0

    def code_of(self, value: Any) -> int | None:
        """Return the code of one raw value; None: the vocabulary itself must be asked."""
        kind, codes, other = self._codes
        value = value.item() if isinstance(value, np.generic) else value
        own = type(value)
        if value is None or (own is float and value != value):
            return 0
        # Up to 2^53 whole numbers are floats without loss.
        if own is kind or ({own, kind} == {int, float} and -(2**53) <= value <= 2**53):  # 2.0 and 2 are one key
            return codes.get(value, other)
        return None

    def __len__(self) -> int:
        return len(self.vocab)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and list(self) == list(other)

    __hash__ = None

    def __repr__(self) -> str:
        return repr(list(self))

    def __getstate__(self) -> dict[str, Any]:
        return {"vocab": self.vocab}
