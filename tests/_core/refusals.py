"""A call that is refused, on one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refused(error: type[BaseException], words: str, call: Callable[[], object]) -> None:
    """Check that the call raises the error, whose text matches ``words``."""
    with pytest.raises(error, match=words):
        call()
