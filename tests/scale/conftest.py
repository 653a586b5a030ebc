from __future__ import annotations

import pytest


@pytest.fixture
def in_this_thread():
    """Dask computes here, and text stays as it is."""
    dask = pytest.importorskip("dask")
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        yield
