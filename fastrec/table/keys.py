"""Distinct key values of one or several columns as Arrow arrays, and their lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec._core.kernels import compiled, frames
from fastrec.errors import DataError
from fastrec.table.coding import code_integers, sort_rows

# Exact conversion of key values between types, or none.
#
# An id is int64 in one file and float64 in another, because pandas met a missing value.

UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def common_type(a: pa.DataType, b: pa.DataType, *, name: str | None = None) -> pa.DataType:
    """Return a type that holds the values of both, those known and those that come; refuse two that have none."""
    if a.equals(b):
        return a
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    if is_text(a) and is_text(b):
        return pa.large_string()
    if is_numeric(a) and is_numeric(b):
        if pa.types.is_floating(a) or pa.types.is_floating(b):
            return pa.float64()
        return pa.uint64() if pa.types.is_uint64(a) or pa.types.is_uint64(b) else pa.int64()
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        return pa.timestamp(max(a.unit, b.unit, key=UNITS_PER_SECOND.__getitem__), a.tz if a.tz == b.tz else "UTC")
    kinds = {"text": is_text, "true or false": pa.types.is_boolean, "whole numbers": _is_whole, "numbers": is_numeric}
    here, before = (next((word for word, is_kind in kinds.items() if is_kind(t)), str(t)) for t in (b, a))
    remedy = "Give the column the same type in every frame"
    raise DataError(f"holds {here} here, but {before} before", column=name or None, remedy=remedy)


def match_type(values: pa.Array, kind: pa.DataType, *, name: str | None = None) -> pa.Array:
    """Convert ``values`` to a comparable ``kind``, exactly; one that it cannot hold becomes missing."""
    if values.type.equals(kind):
        return values
    if len(values) == values.null_count:
        return pa.nulls(len(values), kind)
    common_type(kind, values.type, name=name)
    if is_text(kind):
        return values.cast(kind)
    made = values.cast(kind, safe=False)
    # There and back: a value that the type does not hold comes back as another one,
    held = pc.equal(made.cast(values.type, safe=False), values)
    kinds = (values.type, kind)
    if any(map(_is_whole, kinds)):
        unsigned = any(map(pa.types.is_unsigned_integer, kinds))
        for side in (values, made):
            # but for a float at the end of 64 bits, which may come back from the last integer, and a sign that wraps.
            if pa.types.is_floating(side.type):
                held = pc.and_(held, pc.less(side, 2.0 ** (64 if any(map(pa.types.is_uint64, kinds)) else 63)))
            elif unsigned and pa.types.is_signed_integer(side.type):
                held = pc.and_(held, pc.greater_equal(side, 0))
    return pc.if_else(held, made, pa.scalar(None, kind))


def align_types(a: pa.Array, b: pa.Array, *, name: str | None = None) -> tuple[pa.Array, pa.Array]:
    """Convert both arrays to one type that holds every value of them exactly; refuse two that have none.

    Integers and floats become integers if all floats are whole: such floats are ids that once met a missing value.
    """
    if a.type.equals(b.type):
        return a, b
    if len(a) == a.null_count or len(b) == b.null_count:
        kind = b.type if len(a) == a.null_count else a.type
        return match_type(a, kind), match_type(b, kind)
    common = common_type(a.type, b.type, name=name)
    whole = [pa.uint64() if pa.types.is_uint64(a.type) or pa.types.is_uint64(b.type) else pa.int64()]
    for kind in (*(whole if _is_whole(a.type) or _is_whole(b.type) else ()), common):
        left, right = match_type(a, kind, name=name), match_type(b, kind, name=name)
        if left.null_count == a.null_count and right.null_count == b.null_count:
            return left, right
    problem = f"holds {b.type} here, but {a.type} before, and no one type holds all the values exactly"
    remedy = "Give the column the same type in every frame (ids with missing values: nullable Int64)"
    raise DataError(problem, column=name or None, remedy=remedy)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type holds strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type holds integers, booleans or floats."""
    return _is_whole(kind) or pa.types.is_floating(kind)


def is_huge(values: pa.Array) -> bool:
    """Tell whether some integers are above the largest of int64."""
    return pa.types.is_uint64(values.type) and (pc.max(values).as_py() or 0) >= 1 << 63


# Text coded by its distinct values; without compiled loops, text of one width up to eight bytes is coded as integers,
# two to three times as fast as text.
_WORD = 8  # bytes
_OFFSETS = {"string": np.int32, "large_string": np.int64}


def encode(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Code any Arrow values ``[n]``.

    Returns codes int32 ``[n]``, 0 where missing, and the distinct values (text as ``large_string``) in the order in
    which they first appear: value ``i`` has code ``i + 1``.
    """
    array = array.cast(pa.large_string()) if str(array.type) == "string_view" else array
    # Compiled loops take a third of Arrow's time; few rows are not worth compiling.
    if str(array.type) in _OFFSETS and compiled(len(array), limits.COMPILED_TEXT_ROWS):
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, dtype=_OFFSETS[str(array.type)])[array.offset : array.offset + len(array) + 1]
        valid = pc.is_valid(array).to_numpy(zero_copy_only=False) if array.null_count else np.empty(0, np.bool_)
        codes, rows = np.empty(len(array), dtype=np.int32), np.empty(len(array), dtype=np.int64)
        count = frames().code_text(offsets, data.address if data is not None else 0, valid, codes, rows)
        return codes, array.take(pa.array(rows[:count])).cast(pa.large_string())
    words, width = _words(array)
    encoded = (array if words is None else pa.array(words)).dictionary_encode()
    distinct = encoded.dictionary
    if words is not None:
        distinct = _text(distinct.to_numpy(), width)
        if array.null_count:
            codes = np.zeros(len(array), dtype=np.int32)
            codes[pc.is_valid(array).to_numpy(zero_copy_only=False)] = _plus_one(encoded.indices)
            return codes, distinct
    return _plus_one(encoded.indices), distinct.cast(pa.large_string()) if is_text(distinct.type) else distinct


def short_text_order(array: pa.Array) -> np.ndarray | None:
    """Sort distinct text of up to eight bytes as machine words, in a third of Arrow's time: int64 ``[n]``.

    The order is that of ``array_sort_indices``; None where values are not text, longer, or missing.
    """
    dtype = _OFFSETS.get(str(array.type))
    if dtype is None or array.null_count or not len(array):
        return None
    _, ends, data = array.buffers()
    ends = np.frombuffer(ends, dtype=dtype)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends)
    if lengths.max() > _WORD or data is None:
        return None
    raw = np.zeros(int(ends[-1] - ends[0]) + _WORD, dtype=np.uint8)  # eight bytes from each value's first one on
    raw[:-_WORD] = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    words = np.ndarray((len(raw) - _WORD + 1,), dtype=">u8", buffer=raw, strides=(1,))[ends[:-1] - ends[0]]
    beyond = (8 * (_WORD - np.maximum(lengths, 1))).astype(np.uint64)  # bits of the value behind it
    words = np.where(lengths == 0, 0, words.astype(np.uint64) >> beyond << beyond)
    order = np.argsort(words)
    words = words[order]
    # "a" and "a\0" are one word.
    return None if (words[1:] == words[:-1]).any() else order


def _plus_one(indices: pa.Array) -> np.ndarray:
    indices = indices.fill_null(-1) if indices.null_count else indices  # without missing ones that would be a copy
    return np.add(indices.to_numpy(zero_copy_only=False), 1, dtype=np.int32)


def _words(array: pa.Array) -> tuple[np.ndarray | None, int]:
    """Return the bytes of present values as words int64, and their width; None if widths differ."""
    dtype, n = _OFFSETS.get(str(array.type)), len(array) - array.null_count
    if dtype is None or not n:
        return None, 0
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=dtype)[array.offset : array.offset + len(array) + 1]
    first, last = int(ends[0]), int(ends[-1])
    width = (last - first) // n
    if not 0 < width <= _WORD or last - first != width * n:
        return None, 0
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False) if array.null_count else None
    for start in range(0, len(array), limits.TEXT_BLOCK):
        lengths = np.diff(ends[start : start + limits.TEXT_BLOCK + 1])
        # An empty value, or bytes where one is missing, would shift all that follow.
        if not (lengths == (width if valid is None else width * valid[start : start + limits.TEXT_BLOCK])).all():
            return None, 0
    raw = np.frombuffer(data, dtype=np.uint8)[first:last]
    if width in (1, 2, 4, _WORD):
        return raw.view(f"<i{width}"), width
    words = np.empty(n, dtype="<i8")
    safe = max(n - _WORD // width - 1, 0)  # the last ones have no eight bytes behind their first
    mask = np.int64((1 << 8 * width) - 1)
    np.bitwise_and(np.ndarray((safe,), dtype="<i8", buffer=raw, strides=(width,)), mask, out=words[:safe])
    words[safe:] = 0
    words[safe:].view(np.uint8).reshape(-1, _WORD)[:, :width] = raw[safe * width :].reshape(-1, width)
    return words, width


def _text(words: np.ndarray, width: int) -> pa.LargeStringArray:
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)[:, :width]
    offsets = np.arange(len(words) + 1, dtype=np.int64) * width
    return pa.LargeStringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw)))


# Distinct key values of one or several columns, in Arrow arrays.
#
# Raw values are coded once, and only *distinct* values of new data are looked up.


class _Values:
    """Distinct values ``[K]`` to look others up among, none missing."""

    def __init__(self, known: pa.Array) -> None:
        self.known, self.rising = known, None  # ascending integers, as a state's keys are
        if pa.types.is_integer(known.type) and not known.null_count:
            numbers = known.to_numpy(zero_copy_only=False)
            self.rising = numbers if bool((numbers[1:] > numbers[:-1]).all()) else None

    def find(self, wanted: pa.Array) -> np.ndarray:
        if self.rising is None or wanted.null_count or not len(self.rising):
            found = pc.index_in(wanted, value_set=self.known, skip_nulls=True)
            return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        # By halving: Arrow's kernel would make a table of all known values, some 60 bytes each.
        sought = wanted.to_numpy(zero_copy_only=False)
        place = np.searchsorted(self.rising, sought).clip(max=len(self.rising) - 1)
        return np.where(self.rising[place] == sought, place, -1)


class _HashedValues(_Values):
    """Values with sorted hashes: Arrow's kernel would rebuild its table for every lookup."""

    def __init__(self, known: pa.Array) -> None:
        super().__init__(known)
        hashes = None if self.rising is not None else _hashes(known)
        self._order = None if hashes is None else np.argsort(hashes, kind="stable")
        self._hashes = None if hashes is None else hashes[self._order]

    def find(self, wanted: pa.Array) -> np.ndarray:
        hashes = None if self._order is None else _hashes(wanted)
        if hashes is None or not len(hashes):
            return super().find(wanted)
        place = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
        alike, found = self._hashes[place] == hashes, self._order[place]
        same = pc.equal(self.known.take(pa.array(found)), wanted).fill_null(False).to_numpy(zero_copy_only=False)
        if (alike & ~same).any():  # two values of one hash: the other one may be the next
            return super().find(wanted)
        return np.where(alike, found, -1)


def _hashes(values: pa.Array) -> np.ndarray | None:
    """Hash each value, for this process alone; None: not for values of this type."""
    if pa.types.is_integer(values.type) and not values.null_count:
        return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.fromiter(map(hash, values.to_pylist()), np.int64, len(values))
    return None


class _Prepared:
    """Known keys as values of their columns, and as numbers made of those; ``make``: what to look values up among."""

    def __init__(self, columns: Sequence[pa.Array], make: type[_Values]) -> None:
        self.rows: np.ndarray | None = None
        if len(columns) == 1:  # each value occurs once, at its key's place
            self.columns: list[tuple[_Values, _Values | None]] = [(make(columns[0]), None)]
            return
        theirs, values = _dense(columns[0])
        self.columns = [(make(values), None)]
        for column in columns[1:]:
            codes, values = _dense(column)
            theirs, pairs = _dense(pa.array(theirs * max(len(values), 1) + codes))
            self.columns.append((make(values), make(pairs)))
        self.rows = np.empty(len(theirs) + 1, dtype=np.int64)
        self.rows[theirs] = np.arange(len(theirs))
        self.rows[-1] = -1  # the entry of keys that are not found (-1)


class Keys:
    """``K`` distinct keys: row ``i`` of every array together is key ``i``; no value is missing.

    Args:
        columns: one Arrow array of length ``K`` per key column.
        names: the columns' names, for messages.
    """

    def __init__(self, columns: tuple[pa.Array, ...], names: tuple[str, ...] = ()) -> None:
        self._columns, self.names = columns, names

    @property
    def columns(self) -> tuple[pa.Array, ...]:
        """Arrow arrays of length ``K``, one per key column."""
        return self._columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getstate__(self) -> dict[str, Any]:
        """Drop lookup caches: another process has other hashes."""
        return {n: v for n, v in self.__dict__.items() if n not in ("_prepared", "_asked")}

    def take(self, rows: torch.Tensor | np.ndarray) -> Keys:
        """Return the keys at ``rows`` (int64 ``[m]``)."""
        index = pa.array(np.asarray(rows))
        return Keys(tuple(c.take(index) for c in self.columns), self.names)

    def concat(self, other: Keys) -> Keys:
        """Return these keys, then those of ``other``, brought to one type per column.

        Raises:
            DataError: no type holds the values of both exactly.
        """
        pairs = enumerate(zip(self.columns, other.columns, strict=True))
        return Keys(tuple(pa.concat_arrays(align_types(a, b, name=self._name(i))) for i, (a, b) in pairs), self.names)

    def distinct(self) -> tuple[torch.Tensor, Keys]:
        """Return codes (int64 ``[K]``, from 0 in order of first appearance) and the distinct keys."""
        codes, kept = _dense(self.columns[0])
        for column in self.columns[1:]:
            other, values = _dense(column)
            codes, kept = _dense(pa.array(codes * max(len(values), 1) + other))
        rows = np.empty(len(kept), dtype=np.int64)
        rows[codes] = np.arange(len(codes))
        return torch.from_numpy(codes), self.take(rows)

    def sort_order(self) -> torch.Tensor:
        """Return the permutation (int64 ``[K]``) that sorts the keys by value, column by column."""
        if len(self.columns) == 1:
            order = short_text_order(self.columns[0])
            if order is not None:
                return torch.from_numpy(order)
            return torch.from_numpy(np.array(pc.array_sort_indices(self.columns[0]), dtype=np.int64))
        columns = [c.cast(pa.uint8()) if pa.types.is_boolean(c.type) else c for c in self.columns]
        table = pa.table(columns, names=[str(i) for i in range(len(columns))])
        order = pc.sort_indices(table, sort_keys=[(n, "ascending") for n in table.column_names])
        return torch.from_numpy(np.array(order, dtype=np.int64))

    def find_in(self, known: Keys) -> torch.Tensor:
        """Find the place of each of these keys in ``known``.

        Args:
            known: the keys to look in, each once.

        Returns:
            int64 ``[K]``: the row in ``known``, -1 if it is not there.

        Raises:
            DataError: a column here and there hold values that cannot be compared (strings and numbers, say).
        """
        if not len(known) or not len(self):  # no values, no type to disagree about
            return torch.full((len(self),), -1, dtype=torch.int64)
        prepared, mine = known._to_find_in(len(self)), None
        for i, (column, (values, joint)) in enumerate(zip(self.columns, prepared.columns, strict=True)):
            codes = values.find(match_type(column, values.known.type, name=self._name(i)))
            if mine is None:
                mine = codes
                continue
            absent = (mine < 0) | (codes < 0)
            mine = joint.find(pa.array(np.where(absent, -1, mine * max(len(values.known), 1) + codes)))
        return torch.from_numpy(mine if prepared.rows is None else prepared.rows[mine])

    def _to_find_in(self, count: int) -> _Prepared:
        """Prepare a lookup of ``count`` keys; cached if few are looked up again and again, as requests do."""
        prepared = self.__dict__.get("_prepared")
        if prepared is not None:
            return prepared
        if count * limits.FEW_KEYS_IN > len(self):
            return _Prepared(self.columns, _Values)
        self._asked = self.__dict__.get("_asked", 0) + 1
        if self._asked <= limits.FEW_LOOKUPS:
            return _Prepared(self.columns, _Values)
        self._prepared = _Prepared(self.columns, _HashedValues)
        return self._prepared

    def _name(self, i: int) -> str | None:
        return self.names[i] if i < len(self.names) else None


class _PairedKeys(Keys):
    """Keys of several columns as rows of their distinct keys; the arrays are built when needed."""

    def __init__(self, left: Keys, right: Keys, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.left, self.right, self.rows, self.names = left, right, rows, left.names + right.names

    @property
    def columns(self) -> tuple[pa.Array, ...]:
        if not hasattr(self, "_columns"):
            left, right = self.left.take(self.rows[0]), self.right.take(self.rows[1])
            self._columns = left.columns + right.columns
        return self._columns

    def __len__(self) -> int:
        return len(self.rows[0])

    def take(self, rows: torch.Tensor | np.ndarray) -> Keys:
        index = torch.as_tensor(np.asarray(rows))
        return _PairedKeys(self.left, self.right, (self.rows[0][index], self.rows[1][index]))

    def sort_order(self) -> torch.Tensor:
        place = []
        for keys, rows in zip((self.left, self.right), self.rows, strict=True):
            order = keys.sort_order()
            place.append(torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))[rows])
        return sort_rows(place[0] * max(len(self.right), 1) + place[1])[0]


@dataclass(frozen=True, eq=False)
class Coded:
    """A key column (or several together) as dense codes."""

    #: int64 ``[n]``; 0 = missing (for several columns: any of them missing), ``i`` = ``keys`` row ``i - 1``
    codes: torch.Tensor
    keys: Keys  #: the distinct keys, in any order
    is_sorted: bool = False  #: whether the keys are known to be in ascending order
    _cache: dict[str, Coded] = field(init=False, default_factory=dict, repr=False)
    _lock: RLock = field(init=False, default_factory=RLock, repr=False)

    def in_order(self) -> Coded:
        """Sort the keys, so that equal rows in any order have equal codes; cached."""
        if self.is_sorted:
            return self
        with self._lock:
            if "in_order" not in self._cache:
                order, codes, keys = self.keys.sort_order(), self.codes, self.keys
                if not bool((order[1:] > order[:-1]).all()):
                    table = torch.zeros(self.size, dtype=torch.int64)
                    table[order + 1] = torch.arange(1, len(order) + 1)
                    codes, keys = table.to(codes.device).index_select(0, codes), keys.take(order)
                self._cache["in_order"] = Coded(codes, keys, True)
            return self._cache["in_order"]

    @property
    def size(self) -> int:
        """Number of codes, the one for missing included."""
        return len(self.keys) + 1

    def recode(self, known: Keys) -> torch.Tensor:
        """Return the rows' codes in a fitted vocabulary.

        Args:
            known: the vocabulary's keys, each once.

        Returns:
            int64 ``[n]``: 0 if missing or not in ``known``, otherwise 1 plus its row there.
        """
        for own in (self, self._cache.get("in_order")):
            if own is None:
                continue
            a, b = (k.__dict__.get("_columns", ()) for k in (known, own.keys))
            if known is own.keys or (len(a) == len(b) == 1 and a[0] is b[0]):
                return own.codes
        table = torch.zeros(self.size, dtype=torch.int64)
        table[1:] = self.keys.find_in(known) + 1
        return table.to(self.codes.device).index_select(0, self.codes)


def join_coded(parts: Sequence[Coded]) -> Coded:
    """Combine coded columns ``[n]``: one code per combination that occurs, 0 for a row with any part missing."""
    joined = parts[0]
    for part in parts[1:]:
        size = part.size
        codes, values = code_integers(joined.codes * size + part.codes, (joined.codes == 0) | (part.codes == 0))
        values = values.cpu()
        rows = torch.div(values, size, rounding_mode="floor"), values % size
        keys = _PairedKeys(joined.keys, part.keys, (rows[0] - 1, rows[1] - 1))
        joined = Coded(codes, keys, joined.is_sorted and part.is_sorted)
    return joined


def _dense(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return codes int64 ``[n]`` from 0 (first appearance) and the distinct values."""
    encoded = values.dictionary_encode()
    codes = encoded.indices.fill_null(-1) if encoded.indices.null_count else encoded.indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary
