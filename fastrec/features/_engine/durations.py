"""Durations as users write them, exact."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Real

from fastrec.errors import DataError

_SECONDS = {
    "W": Fraction(604_800),
    "D": Fraction(86_400),
    "h": Fraction(3_600),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1_000),
    "us": Fraction(1, 1_000_000),
    "ns": Fraction(1, 1_000_000_000),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(W|D|h|min|ms|us|ns|s)\s*", re.ASCII)


def seconds_in(text: str, *, wanted_by: str, what: str) -> Fraction:
    """Return the seconds in a duration such as ``'42D'``, ``'90s'``, ``'1.5h'`` or ``'1h 30min'``.

    Args:
        text: numbers, each with a unit: W, D, h, min, s, ms, us or ns.
        wanted_by: the generator's name, for errors.
        what: the argument's name, for errors.
    """
    parts, end = [], 0
    stripped = text.strip()
    while (found := _PART.match(stripped, end)) is not None:
        parts.append(Fraction(found[1]) * _SECONDS[found[2]])
        end = found.end()
    if not stripped or end < len(stripped) or sum(parts) <= 0:
        raise DataError(
            f"{wanted_by}: {what}={text!r} is not a length of time",
            remedy="Write a number above 0 and a unit (W, D, h, min, s, ms, us or ns), as in '42D' or '1h 30min'",
        )
    return sum(parts, Fraction(0))


def positive(value: object, *, wanted_by: str, what: str) -> Fraction:
    """Check that a number is above 0 and return it, exactly."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
        raise DataError(f"{wanted_by}: {what}={value!r} is not a number above 0", remedy="Give a number above 0")
    return Fraction(float(value)) if not isinstance(value, int | Fraction) else Fraction(value)


def short(value: object) -> str:
    """Shorten a duration for a column's name: ``'1h 30min'`` → ``'1h30min'``, ``7.0`` → ``'7'``."""
    if isinstance(value, str):
        return "".join(value.split())
    number = float(value)  # type: ignore[arg-type]
    return str(int(number)) if number.is_integer() else repr(number)
