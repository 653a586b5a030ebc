from __future__ import annotations

import os

import pytest

from tests.device import standin


@pytest.fixture(autouse=True, scope="session")
def _on_the_stand_in():
    """An accelerator is the whole process's: these tests have one of their own."""
    if reason := standin.missing():
        pytest.skip(reason)
    if os.environ.get("FASTREC_DEVICE") != standin.NAME:
        pytest.skip(f"it runs where FASTREC_DEVICE is {standin.NAME!r}: make test-device")
