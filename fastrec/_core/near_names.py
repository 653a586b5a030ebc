"""``nearest``: the name that a misspelt one is likely to stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar of some names; None: no one is similar.

    Args:
        name: the name that is unknown.
        known: the names that it may stand for.
    """
    # The time grows with the square of the length, and names come from outside.
    close = difflib.get_close_matches(name[:100], sorted(known), 1)
    return close[0] if close else None
