from __future__ import annotations

from collections.abc import Callable

import pytest


def refused(error: type[BaseException], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=words):
        call()
