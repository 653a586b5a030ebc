"""Lookup of values by a table for narrow integer ranges, else by hash; built once per vocabulary, so that a block of
rows costs its own size.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.table.keys import Keys, is_text, match_type

_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: neighbours end up far apart
_SIGNED = _FACTOR - (1 << 64)  # the same 64 bits
_WORD = np.dtype("<u8")


class Lookup:
    """Codes (int32 ``[K]``, from 0) of distinct values ``[K]``, for fast lookup; every other value has the code
    ``absent``.
    """

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
        codes = torch.from_numpy(self.codes)[found.clamp(min=0)].long()
        return torch.where(found >= 0, codes, self.absent)

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
    words = np.ndarray((len(data) - 7,), dtype=_WORD, buffer=data, strides=(1,))  # the eight bytes from each byte on
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
