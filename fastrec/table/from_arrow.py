"""A column of an Arrow array."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError, warn
from fastrec.table import keys as text_codes
from fastrec.table.column import Column, mask_of, offsets_of
from fastrec.table.keys import UNITS_PER_SECOND, is_huge, is_numeric, is_text

# types that few kernels take, and what they are widened to: every value is kept
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
    """Offers an array's memory without its read-only mark: torch warns of it, and nothing here writes to its input."""

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
        codes, distinct = text_codes.encode(array)
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
