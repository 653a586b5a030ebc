from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.device import standin
from tests.rapids import rehearsal

if os.environ.get("FASTREC_DEVICE", "").startswith(standin.NAME):
    if reason := standin.missing():
        pytest.exit(f"nothing was tested: {reason}", returncode=0)
    standin.load()

# The same examples in every run, so that a change is accepted or refused for what it changes;
# HYPOTHESIS_PROFILE=search draws new ones. A machine that stands still for a second fails none.
slow = {"deadline": None, "max_examples": 50, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeat", derandomize=True, **slow)
settings.register_profile("search", **slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(autouse=True)
def threads_stay():
    """A test that leaves another number of threads changes the sums of those after it."""
    before = torch.get_num_threads()
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(before)
    assert left == before, f"the test leaves {left} threads, and began with {before}"


@pytest.fixture(autouse=True)
def host_only(request: pytest.FixtureRequest):
    """A test that is marked so is of the host's own ways: it runs there, whatever FASTREC_DEVICE says."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("host_only"):
            patch.delenv("FASTREC_DEVICE", raising=False)
            if torch_core := sys.modules.get("fastai.torch_core"):  # fastai's loaders take CUDA where there is one
                patch.setattr(torch_core.defaults, "use_cuda", False)
        yield


@pytest.fixture
def set_threads(threads_stay):
    """Sets torch's number of threads, until the test is over."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def in_this_thread():
    """Dask computes here, and text stays as it is."""
    dask = pytest.importorskip("dask")
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        yield


@pytest.fixture(scope="module", params=["as few rows", "as many rows"])
def few_or_many(request: pytest.FixtureRequest):
    """Take tables of all sizes as small ones, of which pairs are compared, or as large ones, which are sorted."""
    from fastrec._core import limits  # after the stand-in is loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "REQUEST_ROWS", 1 << 40 if request.param == "as few rows" else -1)
        if request.param == "as many rows":
            patch.setattr(limits, "PAIRED_ROWS", -1)
        yield


class FrameLibrary:
    """One dataframe library: builds a frame from a dict of Python lists, and reads one back."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name, self.module = name, module

    def frame(self, columns: dict[str, list]) -> object:
        """Make a frame of these columns; None is missing."""
        return self.module.table(columns) if self.name == "pyarrow" else self.module.DataFrame(dict(columns))

    def values(self, frame: object, name: str) -> list:
        """Read a column as a Python list; missing is None."""
        column = frame[name].to_arrow() if self.name == "cudf" else frame[name]
        if self.name == "pandas":
            column = column.astype(object).where(column.notna(), None)
        found = column.to_list() if self.name in ("pandas", "polars") else column.to_pylist()
        return [None if isinstance(v, float) and v != v else v for v in found]

    def __repr__(self) -> str:
        return self.name


@pytest.fixture(params=["pandas", "polars", "pyarrow", "cudf"])
def df_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FrameLibrary:
    """Every dataframe library that is installed, one after the other; of cuDF at least a rehearsal."""
    try:
        module = importlib.import_module(request.param)
    except ImportError:
        if request.param != "cudf":
            pytest.skip(f"{request.param} is not installed")
        module = rehearsal.bring(monkeypatch)
    return FrameLibrary(request.param, module)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets: FASTREC_DATA, or ../shared/data beside the repository."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("FASTREC_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set FASTREC_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device to test on: FASTREC_DEVICE, or the CPU."""
    return torch.device(os.environ.get("FASTREC_DEVICE") or "cpu")
