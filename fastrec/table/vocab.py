"""``Vocab``: raw values of a column ⇄ the integer codes that embeddings are indexed by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastcore.foundation import L

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.table.column import Column
from fastrec.table.keys import Coded, Keys
from fastrec.table.lookup import Lookup

MISSING, UNSEEN, RARE = "#na#", "#unseen#", "#rare#"
_PRIME, _WORD = 0x100000001B3, (1 << 64) - 1  # of FNV


class Vocab:
    """Values of a column that have a code.

    The default view is fastai's: code 0 is ``#na#`` (missing or never seen), then the values in sorted order, so that
    codes equal those of fastai's ``Categorify``. Codes for values never seen and for rare ones come right after 0 when
    they are asked for.

    Args:
        values: the distinct kept values, in code order.
        reserved: names of the codes before them; the first stands for missing.
        rare: distinct values that were seen in training but not kept.
        ordered: the values have an order of their own (an ordered categorical).
        name: the column's name, for messages.
    """

    def __init__(
        self,
        values: pa.Array,
        *,
        reserved: tuple[str, ...] = (MISSING,),
        rare: pa.Array | None = None,
        ordered: bool = False,
        name: str = "",
    ) -> None:
        self.values, self.reserved, self.rare, self.ordered, self.name = values, reserved, rare, ordered, name

    @classmethod
    def fit(cls, column: Column, *, min_count: int = 1, max_size: int | None = None, unseen: bool = False) -> Vocab:
        """Learn the codes of a column's values.

        Args:
            column: training rows; its values decide, in sorted order (a categorical's own order is kept).
            min_count: a value seen in fewer rows gets the code ``#rare#``.
            max_size: keep at most this many values, the most frequent (ties: the smaller value); the others are
                ``#rare#``.
            unseen: give values never seen in training the code ``#unseen#`` instead of the one for missing.

        Raises:
            DataError: the column cannot be a key, or ``min_count`` or ``max_size`` is negative.
        """
        coded = column.coded()
        counts = torch.bincount(coded.codes, minlength=coded.size)[1:].cpu()
        options = {"min_count": min_count, "max_size": max_size, "unseen": unseen}
        return cls.of_keys(coded.keys, counts, ordered=column.ordered, name=column.name, **options)[0]

    @classmethod
    def of_keys(
        cls, keys: Keys, counts: torch.Tensor, *, ordered: bool | None = None, name: str = "", min_count: int = 1,
        max_size: int | None = None, unseen: bool = False,
    ) -> tuple[Vocab, torch.Tensor]:  # fmt: skip
        """Learn the codes from a column's distinct values in any order, and their numbers of training rows.

        Args:
            keys: distinct values, one key column.
            counts: int64 ``[K]``.
            ordered: as in ``Column``: None = sorted values, those with a row; else all of them in the order given.
            name: the column's name, for messages.
            min_count, max_size, unseen: see ``fit``.

        Returns:
            The vocabulary, and the codes int64 ``[1 + K]`` of missing and of these values.
        """
        if min_count < 0 or (max_size is not None and max_size < 0):
            problem = f"min_count={min_count}, max_size={max_size}: neither can be negative"
            raise DataError(problem, column=name or None, remedy="Leave it out to keep every value")
        order = counts.nonzero().squeeze(1) if ordered is None else torch.arange(len(counts))
        if ordered is None:
            order = order[(keys if len(order) == len(counts) else keys.take(order)).sort_order()]
        seen = counts[order]
        keep = seen >= min_count if min_count > 1 else torch.ones(len(order), dtype=torch.bool)
        if max_size is not None and int(keep.sum()) > max_size:
            ranked = torch.argsort(torch.where(keep, seen, -1), descending=True, stable=True)
            keep = torch.zeros_like(keep)
            keep[ranked[:max_size]] = True
        has_rare = min_count > 1 or max_size is not None
        reserved = (MISSING, *((UNSEEN,) if unseen else ()), *((RARE,) if has_rare else ()))
        values, rare = (keys.columns[0].take(pa.array(order[some].numpy())) for some in (keep, ~keep))
        options = {"reserved": reserved, "rare": rare if has_rare else None, "ordered": bool(ordered), "name": name}
        vocab = cls(values, **options)
        codes = torch.full((len(counts) + 1,), vocab._absent, dtype=torch.int64)
        codes[0] = 0
        codes[order[keep] + 1] = torch.arange(len(reserved), len(vocab))
        if has_rare:
            codes[order[~keep] + 1] = reserved.index(RARE)
        return vocab, codes

    def __len__(self) -> int:
        """Return the number of codes, reserved ones included: the height of an embedding table."""
        return len(self.reserved) + len(self.values)

    def encode(self, column: Column | Coded) -> torch.Tensor:
        """Return the codes of a column's rows.

        Args:
            column: any rows, values of a compatible type.

        Returns:
            int64 ``[n]`` on the column's device, below ``len(self)``.

        Raises:
            DataError: the column's values cannot be compared with the vocabulary's (strings and numbers, say).
        """
        if isinstance(column, Column) and self.takes(column):
            return self.lookup.numbers(column.values).long().masked_fill_(column.is_missing(), 0)
        coded = column if isinstance(column, Coded) else column.coded()
        return self.codes_of(coded.keys).to(coded.codes.device)[coded.codes]

    def takes(self, column: Column) -> bool:
        """Tell whether a column's numbers are looked up as they are; else only its distinct values are."""
        return column.kind == "number" and self.lookup.takes(column.values.dtype)

    def codes_of(self, keys: Keys) -> torch.Tensor:
        """Return codes int64 ``[1 + K]`` of missing and of distinct values, on the CPU.

        Raises:
            DataError: the values cannot be compared with the vocabulary's (strings and numbers, say).
        """
        table = torch.zeros(len(keys) + 1, dtype=torch.int64)
        table[1:] = self.lookup.distinct(keys.columns[0])
        return table

    @cached_property
    def lookup(self) -> Lookup:
        """Lookup of a value's code, rare and unseen ones included; cached."""
        values, codes = self.values, np.arange(len(self.reserved), len(self))
        if self.rare is not None and len(self.rare):
            values = pa.concat_arrays([values, self.rare])
            codes = np.append(codes, np.full(len(self.rare), self.reserved.index(RARE)))
        return Lookup(values, codes, absent=self._absent, name=self.name)

    @property
    def _absent(self) -> int:
        """Code of an unseen value."""
        return self.reserved.index(UNSEEN) if UNSEEN in self.reserved else 0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "lookup"}  # it is large, and made in no time

    def decode(self, codes: torch.Tensor) -> pa.Array:
        """Return raw values of codes (integers ``[n]``); a reserved code decodes to missing.

        Raises:
            DataError: a code is outside the vocabulary.
        """
        codes = codes.detach().cpu().to(torch.int64)
        bad = (codes < 0) | (codes >= len(self))
        if bad.any():
            row = int(bad.nonzero()[0])
            problem = f"code {int(codes[row])} is outside the vocabulary of {len(self)} codes"
            remedy = "Decode only codes made by this vocabulary"
            raise DataError(problem, column=self.name or None, row=row, remedy=remedy)
        index = codes - len(self.reserved)
        return self.values.take(pa.array(index.numpy(), mask=(index < 0).numpy()))

    @property
    def classes(self) -> list[Any]:
        """Meaning of every code, as fastai's ``classes``: the reserved names, then the values."""
        return [*self.reserved, *self.values.to_pylist()]

    def to_state(self) -> dict[str, Any]:
        """Return a plain description: Arrow arrays and JSON-able values (see ``fastrec.table.state``)."""
        state = {"values": self.values, "reserved": list(self.reserved), "ordered": self.ordered, "name": self.name}
        return state if self.rare is None else {**state, "rare": self.rare}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Vocab:
        """Restore from ``to_state``."""
        return cls(**{**state, "reserved": tuple(state["reserved"])})

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.values[:3].to_pylist()))
        more = ", …" if len(self.values) > 3 else ""
        return f"Vocab({self.name!r}, {len(self)} codes: {', '.join(self.reserved)}, {shown}{more})"


def hash_codes(values: pa.Array, buckets: int, *, seed: int = 0) -> np.ndarray:
    """Return the hash bucket of each *distinct* value of any key type: the 64-bit FNV-1a hash of its text's UTF-8.

    The hash's low half is mixed with its high half (``h ^= h >> 32``, then one more multiplication by FNV's prime), and
    the bucket is ``(h >> 1) % buckets``, int64: the plain hash's low bits depend on the text's low bits alone. The text
    does not depend on the device or the frame library, so neither does the bucket. Other seeds, which are xor-ed into
    FNV's start value, give other hashes.

    Source: Fowler, Noll, Vo; IETF draft-eastlake-fnv.
    """
    if buckets < 1:
        raise DataError(f"{buckets} hash buckets were asked for", remedy="Give at least one bucket")
    text = values.cast(pa.large_string()).cast(pa.large_binary())
    if not len(text):
        return np.zeros(0, dtype=np.int64)
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(text.buffers()[2] or b"", dtype=np.uint8)
    state = _fnv(data, offsets, 0xCBF29CE484222325 ^ (seed % (1 << 64)))
    state = (state ^ (state >> np.uint64(32))) * np.uint64(_PRIME)
    return ((state >> np.uint64(1)) % np.uint64(buckets)).astype(np.int64)


def _fnv(data: np.ndarray, offsets: np.ndarray, start: int) -> np.ndarray:
    """Return the 64-bit FNV-1a hash of each value, from ``start``: uint64 ``[K]``; value ``i`` begins at
    ``offsets[i]``.

    All values go one byte further at a time while there are many; the few longest ones are finished one by one.
    """
    order = np.argsort(-np.diff(offsets), kind="stable")  # longest first: those with an i-th byte stand in front
    starts, ends = offsets[:-1][order], offsets[1:][order]
    lengths, state = ends - starts, np.full(len(starts), start, dtype=np.uint64)
    few = limits.HASHED_IN_PYTHON
    together = int(lengths[few]) if len(lengths) > few else 0  # so far more than a few have bytes left
    alive = np.searchsorted(-lengths, -np.arange(1, together + 1), side="right")
    prime = np.uint64(_PRIME)
    for i, count in enumerate(alive.tolist()):
        state[:count] = (state[:count] ^ data[starts[:count] + i]) * prime
    for i in range(np.count_nonzero(lengths[:few] > together)):
        value = int(state[i])
        for byte in data[starts[i] + together : ends[i]].tobytes():
            value = (value ^ byte) * _PRIME & _WORD
        state[i] = value
    hashes = np.empty_like(state)
    hashes[order] = state
    return hashes


# ``ClassList``: the meaning of every code of a column.

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
