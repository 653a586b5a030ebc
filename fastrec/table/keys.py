"""Distinct key values of one or several columns, in Arrow arrays.

Raw values are coded once, and only *distinct* values of new data are looked up.
"""

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
from fastrec.table.coding import code_integers, sort_rows
from fastrec.table.key_types import align_types, match_type
from fastrec.table.text_codes import short_text_order


class _Values:
    """Distinct values to look others up among.

    Args:
        known: ``[K]``, each once, none missing.
    """

    def __init__(self, known: pa.Array) -> None:
        self.known, self.rising = known, _rising(known)

    def find(self, wanted: pa.Array) -> np.ndarray:
        if self.rising is None or wanted.null_count or not len(self.rising):
            found = pc.index_in(wanted, value_set=self.known, skip_nulls=True)
            # -1: not known.
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


def _rising(values: pa.Array) -> np.ndarray | None:
    """Return whole numbers that rise, as a state's keys do; None for others."""
    if not pa.types.is_integer(values.type) or values.null_count:
        return None
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers if bool((numbers[1:] > numbers[:-1]).all()) else None


def _hashes(values: pa.Array) -> np.ndarray | None:
    """Hash each value, for this process alone; None: not for values of this type."""
    if pa.types.is_integer(values.type) and not values.null_count:
        return values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.fromiter(map(hash, values.to_pylist()), np.int64, len(values))
    return None


class _Prepared:
    """Known keys as values of their columns, and as numbers made of those.

    Args:
        columns: the keys' columns.
        make: what values are looked up among.
    """

    def __init__(self, columns: Sequence[pa.Array], make: type[_Values]) -> None:
        self.rows: np.ndarray | None = None
        if len(columns) == 1:  # each value is there once, and its place is the key's
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
        self.rows[-1] = -1  # where a key is not found (-1) the last entry answers


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
        columns = []
        for i, (a, b) in enumerate(zip(self.columns, other.columns, strict=True)):
            columns.append(pa.concat_arrays(align_types(a, b, name=self._name(i))))
        return Keys(tuple(columns), self.names)

    def distinct(self) -> tuple[torch.Tensor, Keys]:
        """Return codes (int64 ``[K]``, from 0 in order of first appearance) and the distinct keys."""
        codes, kept = _dense(self.columns[0])
        rows = _first_rows(codes, len(kept))
        for column in self.columns[1:]:
            other, values = _dense(column)
            codes, kept = _dense(pa.array(codes * max(len(values), 1) + other))
            rows = _first_rows(codes, len(kept))
        return torch.from_numpy(codes), self.take(rows)

    def sort_order(self) -> torch.Tensor:
        """Return the permutation (int64 ``[K]``) that sorts the keys by value, column by column."""
        if len(self.columns) == 1:
            order = short_text_order(self.columns[0])
            if order is not None:
                return torch.from_numpy(order)
            return torch.from_numpy(np.array(pc.array_sort_indices(self.columns[0]), dtype=np.int64))
        table = pa.table(
            {str(i): (c.cast(pa.uint8()) if pa.types.is_boolean(c.type) else c) for i, c in enumerate(self.columns)}
        )
        order = pc.sort_indices(table, sort_keys=[(n, "ascending") for n in table.column_names])
        return torch.from_numpy(np.array(order, dtype=np.int64))

    def find_in(self, known: Keys) -> torch.Tensor:
        """Find the place of each of these keys in ``known``.

        Args:
            known: the keys to look in, each once.

        Returns:
            int64 ``[K]``: the row in ``known``, -1 where it is not there.

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
    """A key column (or several together) as dense codes.

    Args:
        codes: int64 ``[n]``; 0 = missing (for several columns: any of them missing), ``i`` = ``keys`` row ``i - 1``.
        keys: the distinct keys, in any order.
        is_sorted: whether the keys are known to be in ascending order.
    """

    codes: torch.Tensor
    keys: Keys
    is_sorted: bool = False
    _cache: dict[str, Coded] = field(init=False, default_factory=dict, repr=False)
    _lock: RLock = field(init=False, default_factory=RLock, repr=False)

    def in_order(self) -> Coded:
        """Sort the keys, so that equal rows in any order have equal codes; cached."""
        if self.is_sorted:
            return self
        with self._lock:
            if "in_order" not in self._cache:
                self._cache["in_order"] = self._in_order()
            return self._cache["in_order"]

    def _in_order(self) -> Coded:
        order = self.keys.sort_order()
        if bool((order[1:] > order[:-1]).all()):
            return Coded(self.codes, self.keys, True)
        table = torch.zeros(self.size, dtype=torch.int64)
        table[order + 1] = torch.arange(1, len(order) + 1)
        return Coded(table.to(self.codes.device).index_select(0, self.codes), self.keys.take(order), True)

    @property
    def size(self) -> int:
        """Number of codes, the one for missing included."""
        return len(self.keys) + 1

    def recode(self, known: Keys) -> torch.Tensor:
        """Return the rows' codes in a fitted vocabulary.

        Args:
            known: the vocabulary's keys, each once.

        Returns:
            int64 ``[n]``: 0 = missing or not in ``known``, ``i`` = its row ``i - 1``.
        """
        for own in (self, self._cache.get("in_order")):
            if own is not None and (known is own.keys or _same_array(known, own.keys)):
                return own.codes
        table = torch.zeros(self.size, dtype=torch.int64)
        table[1:] = self.keys.find_in(known) + 1
        return table.to(self.codes.device).index_select(0, self.codes)


def _same_array(a: Keys, b: Keys) -> bool:
    x, y = (k.__dict__.get("_columns", ()) for k in (a, b))
    return len(x) == len(y) == 1 and x[0] is y[0]


def join_coded(parts: Sequence[Coded]) -> Coded:
    """Combine coded columns: a code per distinct combination that occurs.

    Args:
        parts: the columns' codes, each ``[n]``.

    Returns:
        Joint codes; a row with any part missing has code 0.
    """
    joined = parts[0]
    for part in parts[1:]:
        size = part.size
        pair = joined.codes * size + part.codes
        gone = (joined.codes == 0) | (part.codes == 0)
        codes, values = code_integers(pair, gone)
        values = values.cpu()
        rows = torch.div(values, size, rounding_mode="floor"), values % size
        keys = _PairedKeys(joined.keys, part.keys, (rows[0] - 1, rows[1] - 1))
        joined = Coded(codes, keys, joined.is_sorted and part.is_sorted)
    return joined


def _dense(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return codes int64 ``[n]`` from 0 (first appearance) and the distinct values."""
    encoded = values.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        codes = codes.fill_null(-1)
    return codes.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _first_rows(codes: np.ndarray, size: int) -> np.ndarray:
    rows = np.empty(size, dtype=np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows
