"""Small tables are sorted in another way than large ones: every test here goes both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastrec._core import limits


@pytest.fixture(autouse=True, scope="module", params=["as few rows", "as many rows"])
def few_or_many(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tables of all sizes taken as small ones or as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REQUEST_ROWS", 1 << 40 if request.param == "as few rows" else -1)
        if request.param == "as many rows":
            patch.setattr(limits, "PAIRED_ROWS", -1)
        yield
