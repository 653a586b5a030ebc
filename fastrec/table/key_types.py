"""Exact conversion of key values between types, or none.

An id is int64 in one file, float64 in another because pandas met a missing value, a decimal in the next.
"""

from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa

from fastrec.errors import DataError

UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_WIDE_INTEGER = pa.decimal128(20, 0)  # the whole of int64 and of uint64


def common_type(a: pa.DataType, b: pa.DataType, *, name: str | None = None) -> pa.DataType:
    """Return a type that holds the values of both.

    Args:
        a: the type of the values known so far.
        b: the type of those that come now.
        name: the column's name, for messages.

    Raises:
        DataError: there is none (strings and numbers, times with and without a zone).
    """
    if a.equals(b):
        return a
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    if is_text(a) and is_text(b):
        return pa.large_string()
    if is_numeric(a) and is_numeric(b):
        return _common_number(a, b)
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        unit = max(a.unit, b.unit, key=UNITS_PER_SECOND.__getitem__)
        return pa.timestamp(unit, a.tz if a.tz == b.tz else "UTC")
    raise DataError(
        f"holds {b} here, but {a} before", column=name or None, remedy="Give the column the same type in every frame"
    )


def _common_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return pa.float64()
    if pa.types.is_decimal(a) or pa.types.is_decimal(b):
        a, b = (t if pa.types.is_decimal(t) else _WIDE_INTEGER for t in (a, b))
        scale = max(a.scale, b.scale)
        digits = scale + max(a.precision - a.scale, b.precision - b.scale)
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(min(digits, 76), scale)
    if not (pa.types.is_uint64(a) or pa.types.is_uint64(b)):
        return pa.int64()
    signed = pa.types.is_signed_integer(a) or pa.types.is_signed_integer(b)
    return _WIDE_INTEGER if signed else pa.uint64()


def match_type(values: pa.Array, kind: pa.DataType, *, name: str | None = None) -> pa.Array:
    """Convert ``values`` to ``kind``, exactly.

    One that ``kind`` cannot hold becomes missing: it cannot be among values of that kind. A float and a decimal are
    equal if the float's shortest text says so: 0.1 is the decimal 0.1.

    Args:
        values: ``[K]`` of any key type.
        kind: the type wanted.
        name: the column's name, for messages.

    Raises:
        DataError: the two kinds cannot be compared (strings and numbers, say).
    """
    if values.type.equals(kind):
        return values
    if len(values) == values.null_count:
        return pa.nulls(len(values), kind)
    common_type(kind, values.type, name=name)
    if is_text(kind):
        return values.cast(kind)
    if pa.types.is_timestamp(kind):
        return _match_times(values, kind)
    if pa.types.is_decimal(kind) or pa.types.is_decimal(values.type):
        matched = [None if v is None else _match_one(v, kind) for v in values.to_pylist()]
        return pa.array([bool(v) if v is not None and pa.types.is_boolean(kind) else v for v in matched], kind)
    if pa.types.is_floating(values.type):
        return _match_floats(values, kind)
    return _match_integers(values, kind)


def align_types(a: pa.Array, b: pa.Array, *, name: str | None = None) -> tuple[pa.Array, pa.Array]:
    """Convert both arrays to one type that holds every value of them exactly.

    Integers and floats become integers where all the floats are whole numbers: such floats are ids that once met a
    missing value.

    Raises:
        DataError: there is no such type, naming the column.
    """
    if a.type.equals(b.type):
        return a, b
    if len(a) == a.null_count or len(b) == b.null_count:
        kind = b.type if len(a) == a.null_count else a.type
        return match_type(a, kind), match_type(b, kind)
    for kind in (*_integer_choices(a.type, b.type), common_type(a.type, b.type, name=name)):
        left, right = match_type(a, kind, name=name), match_type(b, kind, name=name)
        if left.null_count == a.null_count and right.null_count == b.null_count:
            return left, right
    raise DataError(
        f"holds {b.type} here, but {a.type} before, and no one type holds all the values exactly",
        column=name or None,
        remedy="Give the column the same type in every frame (ids with missing values: nullable Int64)",
    )


def _integer_choices(a: pa.DataType, b: pa.DataType) -> list[pa.DataType]:
    kinds = (a, b)
    if (
        not all(is_numeric(k) for k in kinds)
        or not any(_is_whole(k) for k in kinds)
        or any(map(pa.types.is_decimal, kinds))
    ):
        return []
    return [pa.uint64()] if any(map(pa.types.is_uint64, kinds)) else [pa.int64()]


def _missing(values: pa.Array) -> np.ndarray:
    return values.is_null().to_numpy(zero_copy_only=False)


def _as_numpy(values: pa.Array) -> np.ndarray:
    filled = values.fill_null(False if pa.types.is_boolean(values.type) else 0) if values.null_count else values
    return filled.to_numpy(zero_copy_only=False)


def _match_times(values: pa.Array, kind: pa.TimestampType) -> pa.Array:
    numbers, missing = _as_numpy(values.cast(pa.int64())), _missing(values)
    have, want = UNITS_PER_SECOND[values.type.unit], UNITS_PER_SECOND[kind.unit]
    if want >= have:
        factor = want // have
        top = np.iinfo(np.int64).max // factor
        missing |= (numbers > top) | (numbers < -top)
        numbers = np.where(missing, 0, numbers) * factor
    else:
        missing |= numbers % (have // want) != 0
        numbers = numbers // (have // want)
    return pa.array(numbers, mask=missing).cast(kind)


def _match_floats(values: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers, missing = _as_numpy(values), _missing(values)
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            matched = numbers.astype(kind.to_pandas_dtype())
        return pa.array(matched, mask=missing | (matched.astype(np.float64) != numbers))
    low, high = _integer_bounds(kind)
    numbers = numbers.astype(np.float64)
    whole = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (numbers >= low) & (numbers < high)
    return pa.array(np.where(whole, numbers, 0).astype(kind.to_pandas_dtype()), mask=missing | ~whole)


def _match_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers, missing = _as_numpy(values), _missing(values)
    numbers = numbers.astype(np.uint8) if numbers.dtype == bool else numbers
    if pa.types.is_floating(kind):
        floats = numbers.astype(kind.to_pandas_dtype())
        inside = floats.astype(np.float64) < 2.0 ** (
            64 if numbers.dtype.kind == "u" else 63
        )  # else rounded up and out of range
        back = np.where(inside, floats, 0).astype(numbers.dtype)
        return pa.array(floats, mask=missing | ~inside | (back != numbers))
    low, high = _integer_bounds(kind)
    own = np.iinfo(numbers.dtype)
    inside = (numbers >= max(low, own.min)) & (numbers <= min(high - 1, own.max))
    return pa.array(np.where(inside, numbers, 0).astype(kind.to_pandas_dtype()), mask=missing | ~inside)


def _match_one(value: bool | int | float | decimal.Decimal, kind: pa.DataType) -> int | float | decimal.Decimal | None:
    exact = decimal.Decimal(repr(value)) if isinstance(value, float) else decimal.Decimal(value)
    if not exact.is_finite():
        return None
    if pa.types.is_floating(kind):
        found = float(np.dtype(kind.to_pandas_dtype()).type(float(exact)))
        return found if decimal.Decimal(repr(found)) == exact else None
    with decimal.localcontext(prec=200):
        if pa.types.is_decimal(kind):
            if abs(exact) >= decimal.Decimal(10) ** (kind.precision - kind.scale):
                return None
            found = exact.quantize(decimal.Decimal(1).scaleb(-kind.scale))
            return found if found == exact else None
        low, high = _integer_bounds(kind)
        return int(exact) if exact == exact.to_integral_value() and low <= exact < high else None


def _integer_bounds(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_boolean(kind):
        return 0, 2
    signed, bits = pa.types.is_signed_integer(kind), kind.bit_width
    return (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type holds strings."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"


def _is_whole(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type holds integers, booleans, floats or decimals."""
    return _is_whole(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
