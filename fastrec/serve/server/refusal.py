"""A request that is refused: a status of HTTP, and what is wrong with it."""

from __future__ import annotations

import reprlib
from typing import Any

from fastrec.errors import FastrecError

__all__ = ["Refusal", "shortened"]


class Refusal(FastrecError):
    """What a client is told instead of an answer.

    Args:
        status: the status of HTTP, 400 to 599.
        problem: what is wrong, in one sentence.
        column: the column it was found in, if any.
        row: number of the first offending row of the request, counted from 0.
        remedy: what the client can do about it.
        retry_after: seconds after which the same request may be sent again, for 503.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        *,
        column: str | None = None,
        row: int | None = None,
        remedy: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(problem, column=None if column is None else shortened(column), row=row, remedy=remedy)
        self.status, self.retry_after = status, retry_after

    def body(self) -> dict[str, Any]:
        """Return the error as the client gets it: ``error``, and ``column`` and ``row`` if known."""
        said: dict[str, Any] = {"error": str(self)}
        for name in ("column", "row"):
            if getattr(self, name) is not None:
                said[name] = getattr(self, name)
        return said


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def shortened(value: Any) -> str:
    """Write a client's value for a message: long values are cut, half characters are escaped."""
    text = value if isinstance(value, str) and len(value) <= 60 else _BRIEF.repr(value)
    return text.encode("utf-8", "backslashreplace").decode()
