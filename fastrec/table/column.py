"""``Column``: one column's values as tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core.device import DeviceLike, on_host, resolve_device
from fastrec._core.memory import naming_out_of_memory
from fastrec.errors import DataError, refuse_rows, warn
from fastrec.table.coding import code_integers
from fastrec.table.keys import UNITS_PER_SECOND, Coded, Keys, encode, is_huge, is_numeric, is_text

Kind = Literal["number", "datetime", "category", "list", "vector", "opaque"]


@dataclass(frozen=True, eq=False)
class Column:
    """One column's values as tensors.

    Args:
        kind: ``number`` (its own width), ``datetime`` (int64 in ``unit``, UTC), ``category`` (int32 codes, 0 = missing,
            ``i`` = ``distinct[i - 1]``), ``list`` (``values`` = int64 offsets ``[n + 1]`` into ``elements``),
            ``vector`` (``[n, d]``), ``opaque`` (an Arrow array, carried through untouched).
        values: see ``kind``.
        name: the column's name, for messages.
        missing: bool ``[n]``, True = missing; None = nothing is missing, or NaN (float numbers) and code 0 (categories)
            say it.
        distinct: a category's distinct values, in any order unless ``ordered`` is set.
        ordered: None = the values' order means nothing; False, True = categories in an order that the user gave,
            ordinal if True.
        elements: a list's flat elements.
        unit: a datetime's unit: ``s``, ``ms``, ``us`` or ``ns``.
        zone: a datetime's time zone; None = naive.
    """

    kind: Kind
    values: Any
    name: str = ""
    missing: torch.Tensor | None = None
    distinct: pa.Array | None = None
    ordered: bool | None = None
    elements: Column | None = None
    unit: str | None = None
    zone: str | None = None
    _cache: dict[str, Any] = field(init=False, default_factory=dict, repr=False)
    _lock: RLock = field(init=False, default_factory=RLock, repr=False)

    def __len__(self) -> int:
        if self.kind == "opaque":
            return len(self.values)
        return self.values.shape[0] - (self.kind == "list")  # a tensor's own len() takes four times as long

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values alone, as numpy's arrays; caches are recomputed, views are sent alone."""
        values = self.values if self.kind == "opaque" else self.values.cpu().numpy()
        missing = None if self.missing is None else self.missing.cpu().numpy()
        rest = (self.distinct, self.ordered, self.elements, self.unit, self.zone)
        return _revived, (self.kind, values, self.name, missing, *rest)

    def is_missing(self) -> torch.Tensor:
        """Return bool ``[n]``: True where the value is missing."""
        if self.missing is not None:
            return self.missing
        if self.kind == "category":
            return self.values == 0
        if self.kind == "number" and self.values.is_floating_point():
            return self.values.isnan()
        if self.kind == "opaque":
            return torch.from_numpy(np.array(self.values.is_null()))
        return torch.zeros(len(self), dtype=torch.bool, device=self.values.device)

    def number(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return the values as floats.

        Args:
            dtype: a float dtype.

        Returns:
            ``[n]``, NaN where missing. A datetime gives seconds since 1970 in UTC, a category of numbers their values.

        Raises:
            DataError: the column holds no numbers.
        """
        if self.kind == "datetime":
            values = self.values.to(torch.float64) / UNITS_PER_SECOND[self.unit]
            return torch.where(self.is_missing(), torch.nan, values).to(dtype)
        if self.kind == "category":
            if not (is_numeric(self.distinct.type) or len(self.distinct) == 0):
                raise self._refuse("a number")
            if is_huge(self.distinct):  # a float64 would merge neighbours
                huge = np.append(False, pc.greater_equal(self.distinct, pa.scalar(1 << 63, pa.uint64())))
                raise DataError(
                    "holds integers above 2^63, which cannot be used as numbers", column=self.name or None,
                    row=int(np.flatnonzero(huge[self.values.cpu()])[0]), remedy="Use it as a key, or rescale it first",
                )  # fmt: skip
            table = torch.full((len(self.distinct) + 1,), torch.nan, dtype=dtype)
            table[1:] = torch.tensor(self.distinct.cast(pa.float64(), safe=False).to_pylist(), dtype=dtype)
            return table.to(self.values.device)[self.values.long()]
        if self.kind != "number":
            raise self._refuse("a number")
        values = self.values.to(dtype)
        return values if self.missing is None else torch.where(self.missing, torch.nan, values)

    def plain(self) -> Column:
        """Return a category of integers or booleans that int64 holds as a number column, any other as it is."""
        kind = self.distinct.type if self.kind == "category" else None
        if kind is None or not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) or is_huge(self.distinct):
            return self
        wide = self.distinct if pa.types.is_boolean(kind) else self.distinct.cast(pa.int64())
        table = np.zeros(len(wide) + 1, dtype=wide.type.to_pandas_dtype())
        table[1:] = wide.to_numpy(zero_copy_only=False)
        values = torch.from_numpy(table).to(self.values.device)[self.values.long()]
        missing = self.values == 0
        return Column("number", values, name=self.name, missing=missing if bool(missing.any()) else None)

    def integer(self) -> torch.Tensor:
        """Return the values as exact int64 ``[n]``; undefined where missing (see ``is_missing``).

        Raises:
            DataError: the column holds neither integers, booleans nor times.
        """
        if self.kind == "category" and (plain := self.plain()) is not self:
            return plain.integer()
        if self.kind == "datetime" or (self.kind == "number" and not self.values.is_floating_point()):
            return self.values.to(torch.int64)
        raise self._refuse("an integer or a time")

    def refuse_missing(self, problem: str, remedy: str) -> None:
        """Raise a ``DataError`` that names the first row without a value, if there is one."""
        refuse_rows(self.is_missing(), problem, column=self.name or None, remedy=remedy)

    def group_numbers(self) -> torch.Tensor:
        """Return a number for each group, int64 ``[n]``: integers as they are, codes of anything else.

        Raises:
            DataError: a value is missing, or the column is of lists, vectors or opaque values.
        """
        self.refuse_missing("a list id is missing", "Drop such rows, or give each the id of its list")
        whole = self.kind in ("number", "datetime") and not self.values.is_floating_point()
        return self.integer() if whole else self.coded().codes.long()

    def coded(self) -> Coded:
        """Return the column as a key, cached: dense codes (int64 ``[n]``, 0 = missing) and distinct values.

        Raises:
            DataError: lists, vectors and opaque columns cannot be keys.
        """
        with self._lock:
            if "coded" not in self._cache:
                self._cache["coded"] = self._code()
            return self._cache["coded"]

    def _code(self) -> Coded:
        if self.kind == "category":
            return Coded(self.values.long(), Keys((self.distinct,), (self.name,)))
        if self.kind not in ("number", "datetime"):
            raise self._refuse("a key")
        missing = self.is_missing()
        if (whole := self._as_whole(missing)) is not None:
            codes, distinct = code_integers(whole, missing)
            kept = pa.array(distinct.to(self.values.dtype).cpu().numpy())
        else:
            codes, kept = _code_floats(self.values + 0, missing)  # -0.0 and 0.0 are one key
        if self.kind == "datetime":
            kept = kept.cast(pa.timestamp(self.unit, self.zone))
        return Coded(codes, Keys((kept,), (self.name,)), whole is not None)

    def _as_whole(self, missing: torch.Tensor) -> torch.Tensor | None:
        """Return int64 ``[n]``, undefined where missing; None if not all are whole numbers."""
        if not self.values.is_floating_point():
            return self.values.to(torch.int64)
        whole = self.values.to(torch.int64)  # exact wherever it is equal
        return whole if bool(((whole.to(self.values.dtype) == self.values) | missing).all()) else None

    def anew(self) -> Column:
        """Return the same values without caches, in case shared memory was changed in place."""
        return replace(self, elements=None if self.elements is None else self.elements.anew())

    def copy(self) -> Column:
        """Copy the values, except Arrow's arrays, which are immutable."""
        return replace(
            self,
            values=self.values if self.kind == "opaque" else self.values.clone(),
            missing=None if self.missing is None else self.missing.clone(),
            elements=None if self.elements is None else self.elements.copy(),
        )

    def changed(self, **fields: Any) -> Column:
        """Return the column with other fields: ``dataclasses.replace`` in a third of its time."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **fields, _cache={}, _lock=RLock())
        return made

    def take(self, rows: torch.Tensor) -> Column:
        """Return the rows at ``rows`` (int64 ``[m]``), in that order."""
        missing = None if self.missing is None else self.missing[rows]
        if self.kind == "opaque":
            front = torch.where(rows < 0, rows + len(self), rows)  # Arrow counts from the front only
            return replace(self, values=self.values.take(pa.array(front.cpu().numpy())), missing=missing)
        if self.kind == "list":
            offsets, places = runs(self.values[:-1][rows], lengths_of(self.values)[rows])
            return replace(self, values=offsets, elements=self.elements.take(places), missing=missing)
        return self.changed(values=self.values[rows], missing=missing)

    def slice(self, start: int, stop: int) -> Column:
        """Return rows ``start`` up to ``stop`` (0 ≤ start ≤ stop ≤ rows); only list offsets are copied."""
        missing = None if self.missing is None else self.missing[start:stop]
        if self.kind == "opaque":
            return replace(self, values=self.values.slice(start, stop - start), missing=missing)
        if self.kind == "list":
            first, last = (int(self.values[at]) for at in (start, stop))
            offsets, elements = self.values[start : stop + 1] - first, self.elements.slice(first, last)
            return replace(self, values=offsets, elements=elements, missing=missing)
        return self.changed(values=self.values[start:stop], missing=missing)

    def to(self, device: DeviceLike) -> Column:
        """Return the column on another device (opaque values and distinct values stay on the host)."""
        here = None if self.kind == "opaque" else self.values.device
        if here is None or here == device or here == (device := resolve_device(device)):
            return self
        what = f"copying the column {self.name!r} of {len(self):,} rows to {device}"
        with naming_out_of_memory(what, "Keep the table on the host, or read fewer rows or columns", device=device):
            moved = replace(
                self, values=self.values.to(device), missing=None if self.missing is None else self.missing.to(device),
                elements=None if self.elements is None else self.elements.to(device),
            )  # fmt: skip
        if "coded" in self._cache:
            coded = self._cache["coded"]
            moved._cache["coded"] = Coded(coded.codes.to(device), coded.keys)
        return moved

    def to_arrow(self) -> pa.Array:
        """Return the column as an Arrow array of its natural type; missing is null."""
        if self.kind == "opaque":
            return self.values
        values = self.values.cpu()
        if self.kind == "number" and self.missing is None:
            return pa.array(values.numpy(), from_pandas=True)  # NaN is null
        missing = self.is_missing().cpu()
        mask = missing.numpy() if bool(missing.any()) else None
        if self.kind == "category":
            return self.distinct.take(pa.array(values.numpy().astype(np.int64) - 1, mask=mask))
        if self.kind in ("list", "vector"):
            gone = None if mask is None else pa.array(mask)
            if self.kind == "list":
                return pa.LargeListArray.from_arrays(pa.array(values.numpy()), self.elements.to_arrow(), mask=gone)
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1).numpy()), values.shape[1], mask=gone)
        array = pa.array(values.numpy(), mask=mask)
        return array.cast(pa.timestamp(self.unit, self.zone)) if self.kind == "datetime" else array

    @property
    def held(self) -> str:
        """What it holds, for messages: ``'numbers'``, ``'text'``, ``'lists'`` …"""
        if self.kind == "category":
            return "text" if is_text(self.distinct.type) else f"values of type {self.distinct.type}"
        words = {"number": "numbers", "datetime": "times", "list": "lists", "vector": "vectors"}
        return words.get(self.kind, "values of no usable type")

    def as_lists(self) -> Column | None:
        """Return a list column whose first list begins at element 0, or None if this column holds other values.

        Vectors are lists too. If all values are missing, so are all lists.
        """
        if self.kind == "list":
            return packed(self)
        if self.kind == "vector":
            return of_vectors(self)
        missing = self.is_missing()
        if not bool(missing.all()):
            return None
        nothing = Column("number", torch.zeros(0, dtype=torch.float64, device=missing.device), name=self.name)
        return Column("list", offsets_of(missing.long() * 0), name=self.name, missing=missing, elements=nothing)

    def vector_width(self, rows: int | None = None) -> int:
        """Return the length of vectors, or of the first list (among the first ``rows``); 0: there is none."""
        if self.kind == "vector":
            return self.values.shape[1]
        seen = (~self.is_missing())[:rows].nonzero()
        return int(lengths_of(self.values)[seen[0]]) if len(seen) else 0

    def vectors(self, width: int) -> torch.Tensor:
        """Return vectors or lists of numbers as ``[n, width]``, float32 if they are, else float64; NaN where missing.

        Raises:
            DataError: one has another length, or holds what is no number (with its row).
        """
        if self.kind == "vector" and self.values.shape[1] == width:  # nothing to check, so no wait for a device
            values = self.values if self.values.dtype == torch.float32 else self.values.double()
            return values if self.missing is None else torch.where(self.missing[:, None], torch.nan, values)
        lists = self.as_lists()
        if lists is None:
            raise self._refuse("vectors")
        missing, lengths, numbers = lists.is_missing(), lengths_of(lists.values), lists.elements
        odd, remedy = (
            (lengths != width) & ~missing,
            "Give every row a vector of the training rows' length, or none (None)",
        )
        said = f"numbers where {width} are expected"
        refuse_rows(odd, lambda row: f"holds a vector of {int(lengths[row])} {said}", column=self.name, remedy=remedy)
        is_float32 = getattr(numbers.values, "dtype", None) == torch.float32
        try:
            values = numbers.number(torch.float32 if is_float32 else torch.float64)
        except DataError as error:
            row = None if error.row is None else int(rows_of(lists.values)[error.row])
            problem = error.problem.replace("holds", "holds vectors of", 1)
            raise DataError(problem, column=self.name, row=row, remedy=error.remedy) from error
        if not bool(missing.any()):
            return values.view(len(missing), width)
        made = torch.full((len(missing), width), torch.nan, dtype=values.dtype, device=missing.device)
        if width:  # else -1 is ambiguous, and there is nothing to fill
            made[~missing] = values.view(-1, width)
        return made

    def _refuse(self, wanted: str) -> DataError:
        first = (~self.is_missing()).nonzero()
        problem = f"holds {self.held} and cannot be used as {wanted}"
        remedy = "Convert the column first, or choose another one"
        if self.held == "text":
            remedy = "Convert it first, as with pd.to_datetime or pd.to_numeric, or use it as a category"
        return DataError(problem, column=self.name or None, row=int(first[0]) if len(first) else None, remedy=remedy)


def _code_floats(values: torch.Tensor, missing: torch.Tensor) -> tuple[torch.Tensor, pa.Array]:
    """Return codes (0 = missing) and distinct values of floats, in any order."""
    if not on_host(values):
        distinct, codes = torch.unique(values, return_inverse=True)
        used = torch.zeros(len(distinct), dtype=torch.bool, device=values.device)
        used[codes[~missing]] = True
        table = torch.cumsum(used, 0) * used
        return torch.where(missing, 0, table[codes]), pa.array(distinct[used].cpu().numpy())
    encoded = pa.array(values.numpy(), mask=missing.numpy() if bool(missing.any()) else None).dictionary_encode()
    index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return torch.from_numpy(index.astype(np.int64) + 1), encoded.dictionary


def _revived(kind: Kind, *parts: Any) -> Column:
    writable = (v if not isinstance(v, np.ndarray) or v.flags.writeable else v.copy() for v in parts)
    return Column(kind, *(torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in writable))


def mask_of(array: pa.Array) -> torch.Tensor | None:
    """Return bool ``[n]`` of an Arrow array's nulls, None if there are none."""
    return torch.from_numpy(np.array(pc.is_null(array))) if array.null_count else None


# Offsets and lengths of lists, and the rows of their elements.
#
# Sizes come from ``shape``, which a traced graph keeps open; ``len`` would fix them.


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Return the start of each list and the end of the last: int64 ``[n + 1]`` from lengths ``[n]``."""
    offsets = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def lengths_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return the lengths of lists: int64 ``[n]`` from offsets ``[n + 1]``."""
    return offsets[1:] - offsets[:-1]


def rows_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return the row of every element: int64 ``[elements]``."""
    lengths = lengths_of(offsets)
    return torch.repeat_interleave(torch.arange(lengths.shape[0], device=offsets.device), lengths)


def runs(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of runs of neighbours, which begin at ``starts`` and have ``lengths`` (int64 ``[n]`` each).

    The first result is the offsets of the runs, one after the other, int64 ``[n + 1]``. The second is the place of each
    element, int64.
    """
    offsets = offsets_of(lengths)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    return offsets, torch.arange(shift.shape[0], device=starts.device) + shift


def of_vectors(column: Column) -> Column:
    """Convert vectors to lists of equal length; a missing one is a missing list."""
    missing = column.is_missing()
    lengths = torch.where(missing, 0, column.values.shape[1])
    kept = column.values if column.missing is None else column.values[~missing]
    elements = Column("number", kept.reshape(-1), name=column.name)
    return Column("list", offsets_of(lengths), name=column.name, missing=column.missing, elements=elements)


def packed(column: Column) -> Column:
    """Return a list column whose first list begins at element 0 and whose last ends at the last element."""
    first, last = (int(v) for v in column.values[[0, -1]])
    if first == 0 and last == len(column.elements):
        return column
    elements = column.elements.take(torch.arange(first, last, device=column.values.device))
    return replace(column, values=column.values - first, elements=elements)


# types that few kernels support, and wider ones that hold all their values
_WIDE = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64, np.dtype("float16"): np.float32}


def _vector_column(values: np.ndarray, *, name: str, missing: torch.Tensor | None = None) -> Column:
    too_big = values.dtype == np.uint64 and values.size > 0 and int(values.max()) >= 1 << 63
    if values.dtype.kind not in "iufb" or values.dtype.itemsize > 8 or too_big:
        what = "integers above 2^63" if too_big else f"vectors of type {values.dtype}"
        raise DataError(f"holds {what}", column=name or None, remedy="Vectors must hold numbers of at most 64 bits")
    if values.dtype == np.uint64:
        values = values.astype(np.int64)
    return Column("vector", _shared(values), name=name, missing=missing)


def _shared(values: np.ndarray) -> torch.Tensor:
    """Return numbers as a tensor that shares memory if type and layout allow."""
    values = np.ascontiguousarray(values.astype(_WIDE.get(values.dtype, values.dtype), copy=False))
    if not values.flags.writeable:
        values = values.copy() if values.size == 0 else np.asarray(_WritableView(values))
    return torch.from_numpy(values)


class _WritableView:
    """An array's memory without its read-only flag, of which torch would warn; nothing here writes to it."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values  # keeps the memory alive
        address, _ = values.__array_interface__["data"]
        self.__array_interface__ = {**values.__array_interface__, "data": (address, False)}


def arrow_column(array: pa.Array, *, name: str) -> Column:
    """Convert an Arrow array: numbers and times as they are, text and wide integers as codes, lists by offsets."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dictionary_column(array, name=name)
    if pa.types.is_null(kind):
        return Column("number", torch.full((len(array),), torch.nan, dtype=torch.float64), name=name)
    if pa.types.is_decimal(kind):
        return arrow_column(plain_decimals(array, name=name), name=name)
    if is_text(kind) or is_huge(array):
        # float64 would merge such keys: they are coded by their exact values.
        codes, distinct = encode(array)
        return Column("category", torch.from_numpy(codes), name=name, distinct=distinct)
    if pa.types.is_floating(kind):
        return Column("number", _shared(array.to_numpy(zero_copy_only=False)), name=name)
    if is_numeric(kind):
        array = array.cast(pa.int64()) if pa.types.is_uint64(kind) else array
        filled = array.fill_null(False if pa.types.is_boolean(kind) else 0) if array.null_count else array
        return Column("number", _shared(filled.to_numpy(zero_copy_only=False)), name=name, missing=mask_of(array))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        array = _date_as_time(array)
        numbers = _shared(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
        unit, zone = array.type.unit, array.type.tz
        return Column("datetime", numbers, name=name, missing=mask_of(array), unit=unit, zone=zone)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):  # a time of day: seconds since midnight
        whole = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        seconds = whole.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return Column("number", torch.from_numpy(seconds / UNITS_PER_SECOND[kind.unit]), name=name)
    return _arrow_nested(array, name=name)


def _arrow_nested(array: pa.Array, *, name: str) -> Column:
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        if kind.list_size and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
            flat = array if not array.null_count else array.fill_null(pa.scalar([0] * kind.list_size, kind))
            values = flat.flatten().to_numpy(zero_copy_only=False).reshape(len(array), kind.list_size)
            return _vector_column(values, name=name, missing=mask_of(array))
        array = array.cast(pa.large_list(kind.value_type))
    elif str(kind).startswith(("list_view", "large_list_view")):
        array = array.cast(pa.large_list(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return Column("opaque", array, name=name)
    offsets = offsets_of(torch.from_numpy(np.array(pc.list_value_length(array).fill_null(0))))
    elements = arrow_column(array.flatten(), name=name)
    return Column("list", offsets, name=name, missing=mask_of(array), elements=elements)


def _dictionary_column(array: pa.DictionaryArray, *, name: str) -> Column:
    values = array.dictionary
    kind = values.type
    if is_text(kind):
        values = values.cast(pa.large_string())
    elif pa.types.is_date(kind):
        values = _date_as_time(values)
    elif pa.types.is_decimal(kind):
        values = plain_decimals(values, name=name)
    elif pa.types.is_float16(kind):
        values = pa.array(values.to_numpy(zero_copy_only=False).astype(np.float32))
    elif not (is_numeric(kind) or pa.types.is_timestamp(kind)):
        return arrow_column(array.dictionary_decode(), name=name)
    values = _plain_zero(values)
    has_nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    if values.null_count or has_nan or len(values.unique()) < len(values):
        return arrow_column(pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode(), name=name)
    codes = array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) + 1
    ordered = True if array.type.ordered else None
    return Column("category", torch.from_numpy(codes), name=name, distinct=values, ordered=ordered)


def _date_as_time(array: pa.Array) -> pa.Array:
    if pa.types.is_date(array.type):
        return array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms"))
    return array


def plain_decimals(values: pa.Array, *, name: str = "") -> pa.Array:
    """Convert whole decimals to int64, or to text where that does not hold them, and others to float64."""
    kind = values.type
    if kind.bit_width < 128:  # few of Arrow's kernels take these
        values = values.cast(pa.decimal128(kind.precision, kind.scale))
    if kind.scale <= 0:
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid:
            warn(f"column {name!r}: whole numbers beyond 64 bits are read as text")
            return values.cast(pa.large_string())
    text = values.cast(pa.string())
    if (pc.max(pc.utf8_length(text)).as_py() or 0) > 17:  # 15 digits, sign and point: all that a float64 keeps
        warn(f"column {name!r}: decimals of more than 15 digits are read as float64")
    return text.cast(pa.float64())  # the nearest float, as of a CSV file; Arrow's own cast may be one off


def _plain_zero(values: pa.Array) -> pa.Array:
    """Replace negative zeros, which would be a second key for the same number."""
    return pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values
