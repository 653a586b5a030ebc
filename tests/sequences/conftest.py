"""Both ways of computing."""

import pytest

from fastrec._core import kernels, limits


@pytest.fixture(params=["loops", "tensors"])
def way(request, monkeypatch):
    """Compiled loops and tensors, however few sessions there are, and in several parts."""
    if request.param == "loops":
        pytest.importorskip("numba")
        monkeypatch.setattr(limits, "LOOP_NUMBERS", 0)
        monkeypatch.setattr(kernels, "threads_for", lambda numbers: 3)
        yield
    else:
        monkeypatch.setattr(limits, "BLOCK", 40)
        monkeypatch.setattr(limits, "LOOP_NUMBERS", 1 << 62)
        yield
