"""``Vocab``: raw values of a column ⇄ the integer codes that embeddings are indexed by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from fastcore.foundation import L

from fastrec._core import limits
from fastrec.errors import DataError, refuse_rows
from fastrec.table.column import Column
from fastrec.table.keys import Coded, Keys, is_text, match_type

MISSING, UNSEEN, RARE = "#na#", "#unseen#", "#rare#"
_PRIME, _WORD = 0x100000001B3, (1 << 64) - 1  # of FNV


class Vocab:
    """Values of a column that have a code.

    As in fastai, code 0 is ``#na#`` (missing or never seen), then the values in sorted order, so that
    codes equal those of fastai's ``Categorify``. Codes for unseen and for rare values, if requested, follow 0.

    Args:
        values: the distinct kept values, in code order.
        reserved: names of the codes before them; the first means missing.
        rare: distinct training values without a code of their own.
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
            int64 ``[n]`` on the column's device, below ``len(self)``; 0 for missing values.

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
        """Return codes int64 ``[1 + K]`` on the CPU: that of missing (0), then those of ``K`` distinct values."""
        table = torch.zeros(len(keys) + 1, dtype=torch.int64)
        table[1:] = self.lookup.distinct(keys.columns[0])
        return table

    @cached_property
    def lookup(self) -> Lookup:
        """Lookup of a value's code, rare and unseen ones included; cached."""
        values, codes = self.values, np.arange(len(self.reserved), len(self))
        if self.rare is not None:
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
        bad, said = (codes < 0) | (codes >= len(self)), f"is outside the vocabulary of {len(self)} codes"
        about = {"column": self.name or None, "remedy": "Decode only codes made by this vocabulary"}
        refuse_rows(bad, lambda row: f"code {int(codes[row])} {said}", **about)
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
    """Return the 64-bit FNV-1a hash of each value, from ``start``: uint64 ``[K]``.

    Value i begins at ``offsets[i]``. All values go one byte further at a time while there are many; the few longest
    ones are finished one by one.
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
        return plain, dict(zip(vocab.lookup.values.to_pylist(), vocab.lookup.codes.tolist())), vocab.lookup.absent

    def code_of(self, value: Any) -> int | None:
        """Return the code of one raw value; None: use the vocabulary's ``encode``."""
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


# Lookup of values by a table for narrow integer ranges, else by hash: built once per vocabulary.

_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: neighbours end up far apart
_SIGNED = _FACTOR - (1 << 64)  # the same 64 bits


class Lookup:
    """Codes (int32 ``[K]``, from 0) of distinct values ``[K]``; every other value has the code ``absent``."""

    def __init__(self, values: pa.Array, codes: np.ndarray, *, absent: int, name: str = "") -> None:
        self.values, self.codes, self.absent, self.name = values, codes.astype(np.int32), absent, name
        self.kind = _domain(values.type)
        self._tensors: dict[torch.device, _NarrowCodes | _HashedCodes] = {}
        self._text: _TextCodes | None = None
        if is_text(values.type) and len(values) >= limits.ARROW_LOOKUPS:
            self._text = _TextCodes.of(values)

    def takes(self, dtype: torch.dtype) -> bool:
        """Tell whether numbers of a dtype can be looked up as they are (see ``numbers``)."""
        return self.kind == ("float" if dtype.is_floating_point else "whole")

    def numbers(self, values: torch.Tensor) -> torch.Tensor:
        """Return codes int32 ``[m]`` of numbers ``[m]`` of a dtype that it ``takes``; NaN counts as absent."""
        if self.kind == "float":
            values = (values.to(torch.float64) + 0).view(torch.int64)  # the bits; -0.0 is 0.0
        elif values.dtype != torch.int64:
            values = values.to(torch.int64)
        return self._on(values.device).find(values)

    def table(self) -> tuple[torch.Tensor, int, int] | None:
        """Return codes int32 of a whole range of integers, on the CPU, if stored as such.

        Beside them the numbers that the first and the last are of: any smaller or larger one has their codes.
        """
        found = self._on(torch.device("cpu")) if self.kind == "whole" else None
        return (found.table, found.low, found.high) if isinstance(found, _NarrowCodes) else None

    def distinct(self, values: pa.Array) -> torch.Tensor:
        """Return codes int64 ``[m]`` of distinct Arrow values of any comparable type, on the CPU."""
        if not len(values) or not len(self.values):  # no values, no type to disagree about
            return torch.full((len(values),), self.absent, dtype=torch.int64)
        if self._text is not None and is_text(values.type):
            found = self._text.find(values)
        elif self.kind == "whole" and _domain(values.type) == "whole":
            numbers = match_type(values, self.values.type, name=self.name)
            return torch.where(
                torch.from_numpy(np.array(pc.is_null(numbers))), self.absent, self.numbers(_as_tensor(numbers)).long()
            )
        else:
            found = Keys((values,), (self.name,)).find_in(Keys((self.values,), (self.name,)))
        return torch.where(found >= 0, torch.from_numpy(self.codes)[found.clamp(min=0)].long(), self.absent)

    def _on(self, device: torch.device) -> _NarrowCodes | _HashedCodes:
        if device not in self._tensors:
            keys = _as_tensor(self.values)
            keys = (keys.to(torch.float64) + 0).view(torch.int64) if self.kind == "float" else keys.to(torch.int64)
            # A table beats hashing, but its memory grows with the range.
            low, high = (int(v) for v in torch.aminmax(keys)) if len(keys) else (0, -1)
            narrow = high - low < max(limits.NARROW_SPAN, limits.NARROW_SPARE * len(keys))
            made = _NarrowCodes if narrow else _HashedCodes
            self._tensors[device] = made(keys.numpy(), self.codes, self.absent, device)
        return self._tensors[device]


def _domain(kind: pa.DataType) -> str | None:
    """Return ``'whole'`` or ``'float'`` for numbers that 64 bits tell apart."""
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "float"
    whole = (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)) or pa.types.is_boolean(kind)
    return "whole" if whole else None


def _as_tensor(values: pa.Array) -> torch.Tensor:
    """Return numbers as a tensor, int64 for whole ones; missing ones are 0."""
    whole = _domain(values.type) == "whole"
    values = values.cast(pa.int64()) if whole else values
    return torch.from_numpy(np.array((values.fill_null(0) if values.null_count else values).to_numpy()))


# Codes of int64 numbers on one device: ``find`` takes int64 ``[m]`` and returns int32 ``[m]``.


class _NarrowCodes:
    """Table of the whole range, with a place at either end for what is outside."""

    def __init__(self, keys: np.ndarray, codes: np.ndarray, absent: int, device: torch.device) -> None:
        low, high = (int(keys.min()), int(keys.max())) if len(keys) else (1, 0)
        ends = np.iinfo(np.int64)
        self.low, self.high = max(low - 1, ends.min), min(high + 1, ends.max)
        table = np.full(self.high - self.low + 1, absent, dtype=np.int32)
        table[keys - self.low] = codes
        self.table = torch.from_numpy(table).to(device)

    def find(self, values: torch.Tensor) -> torch.Tensor:
        return self.table.index_select(0, values.clamp(self.low, self.high).sub_(self.low))


class _HashedCodes:
    """Open addressing with linear probing; at most a quarter full, so that few values move on."""

    def __init__(self, keys: np.ndarray, codes: np.ndarray, absent: int, device: torch.device) -> None:
        bits = max(int(4 * len(keys) - 1).bit_length(), 1)
        self.shift, self.mask, self.absent = 64 - bits, (1 << bits) - 1, absent
        slot_keys, slot_codes = np.zeros(1 << bits, dtype=np.int64), np.full(1 << bits, -1, dtype=np.int32)
        place = (keys.view(np.uint64) * np.uint64(_FACTOR)) >> np.uint64(self.shift)
        place, left = place.astype(np.int64), np.arange(len(keys))
        while len(left):
            free = slot_codes[place] < 0
            slot_codes[place[free]] = codes[left[free]]  # of several the last one stays
            slot_keys[place[free]] = keys[left[free]]
            moved = ~free | (slot_keys[place] != keys[left])
            left, place = left[moved], (place[moved] + 1) & self.mask
        self.keys, self.codes = torch.from_numpy(slot_keys).to(device), torch.from_numpy(slot_codes).to(device)

    def find(self, values: torch.Tensor) -> torch.Tensor:
        # An arithmetic shift leaves copies of the sign above the place's bits: the mask takes them off.
        place = (values * _SIGNED).bitwise_right_shift_(self.shift).bitwise_and_(self.mask)
        found = self.codes.index_select(0, place)
        left = ((self.keys.index_select(0, place) != values) & (found >= 0)).nonzero().squeeze(1)
        place, values = place[left], values[left]
        while len(left):
            place = (place + 1) & self.mask
            code = self.codes.index_select(0, place)
            found[left] = code
            again = ((self.keys.index_select(0, place) != values) & (code >= 0)).nonzero().squeeze(1)
            left, place, values = left[again], place[again], values[again]
        return found.masked_fill_(found < 0, self.absent)


class _TextCodes:
    """Places of text by a 64-bit hash; hits are compared, so that no collision passes."""

    def __init__(self, values: pa.Array, hashed: np.ndarray) -> None:
        self.values = values
        self.places = _HashedCodes(hashed, np.arange(len(values), dtype=np.int32), -1, torch.device("cpu"))

    @classmethod
    def of(cls, values: pa.Array) -> _TextCodes | None:
        """Build the lookup; None if two values have one hash."""
        values = values.cast(pa.large_string())
        hashed = hash_text(values)
        return None if len(np.unique(hashed)) < len(hashed) else cls(values, hashed)

    def find(self, values: pa.Array) -> torch.Tensor:
        """Return places int64 ``[m]`` of distinct values, -1 for absent ones."""
        values = values.cast(pa.large_string())
        found = self.places.find(torch.from_numpy(hash_text(values))).numpy()
        same = pc.equal(values, self.values.take(pa.array(found.clip(min=0)))).fill_null(False)
        return torch.from_numpy(np.where(same.to_numpy(zero_copy_only=False), found, -1).astype(np.int64))


def hash_text(values: pa.LargeStringArray) -> np.ndarray:
    """Hash the UTF-8 of each value with 64 bits, eight bytes at a time, as int64 ``[K]``.

    Only for tables in memory: it depends on nothing but the bytes, but is no part of any saved form.
    """
    buffers, first = values.buffers(), values.offset
    offsets = np.frombuffer(buffers[1], dtype=np.int64)[first : first + len(values) + 1]
    used = slice(int(offsets[0]), int(offsets[-1])) if len(values) else slice(0, 0)
    data = np.zeros(used.stop - used.start + 8, dtype=np.uint8)
    if used.stop > used.start:
        data[:-8] = np.frombuffer(buffers[2], dtype=np.uint8)[used]
    # The eight bytes from each byte on.
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    starts, left = offsets[:-1] - used.start, np.diff(offsets)
    state = left.astype(np.uint64) * np.uint64(_FACTOR)
    rows: np.ndarray | slice = slice(None)
    while True:
        short = (8 * (8 - left.clip(0, 8))).astype(np.uint64)
        word = np.where(left > 0, words[starts] << np.where(left > 0, short, 0), 0)  # bytes of the next value drop out
        mixed = (state[rows] ^ word) * np.uint64(_FACTOR)
        state[rows] = mixed ^ (mixed >> np.uint64(29))
        more = np.flatnonzero(left > 8)
        if not len(more):
            break
        rows = more if isinstance(rows, slice) else rows[more]
        starts, left = starts[more] + 8, left[more] - 8
    state = (state ^ (state >> np.uint64(32))) * np.uint64(_FACTOR)
    return state.view(np.int64)
