from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.block import CategoryBlock

import fastrec._core.device
from fastrec._core.device import pool_is_shared, share_pool
from fastrec._core.memory import free_memory, naming_out_of_memory, shown_bytes
from fastrec.errors import DataError, DeviceError, DeviceMemoryError, FastrecError, MissingPackageError
from fastrec.estimators.xgboost import handed
from fastrec.table import Table
from fastrec.tabular import Categorify, TabularFrame
from fastrec.tabular.packed import Layout, Packed
from fastrec.tabular.procs.features import apply_features, fit_features
from fastrec.training import rec_learner
from tests._core.refusals import refused

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 5.32 GiB is "
    "free. Of the allocated memory 60.00 GiB is allocated by PyTorch."
)
TORCH = torch.cuda.OutOfMemoryError  # torch.OutOfMemoryError under the name that torch 2.4 has too
SAID = [
    (TORCH(CUDA), 20 * 2**30),
    (MemoryError("std::bad_alloc: out_of_memory: Maximum pool size exceeded (failed to allocate 1.5 GiB)"), 3 * 2**29),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), 4096),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
    (ValueError("Memory allocation error: bad_alloc\n- Free memory: 2GB\n- Requested memory: 3GB"), 3 * 2**30),
]


def failing(error: Exception) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise error

    return run


def named(error: Exception, what: Any = "a", remedy: str = "b", **how: Any) -> DeviceMemoryError:
    with pytest.raises(DeviceMemoryError) as found, naming_out_of_memory(what, remedy, **how):
        raise error
    return found.value


@pytest.mark.parametrize(("error", "asked"), SAID)
def test_what_libraries_say_becomes_one_named_error(error: Exception, asked: int | None) -> None:
    found = named(error, "sorting 7 rows", "Give fewer rows", device="cpu")
    assert (found.__cause__, found.asked, found.remedy) == (error, asked, "Give fewer rows")
    assert "ran out of memory while sorting 7 rows" in str(found)
    assert str(found).endswith("Give fewer rows.")
    assert (f"{shown_bytes(asked)} asked for" in str(found)) if asked else ("asked for" not in str(found))
    assert all(isinstance(found, kind) for kind in (DeviceError, FastrecError, MemoryError))


def test_the_device_that_the_error_names_what_is_needed_and_what_is_free_are_said() -> None:
    assert str(named(TORCH(CUDA))).startswith("the device cuda:1 ran out of memory")
    assert str(named(TORCH(CUDA), device="cuda:0")).startswith("the device cuda:0 ran out of memory")
    with pytest.raises(MemoryError) as found:
        np.empty(1 << 52)
    assert str(named(found.value, device="cuda:0")).startswith("the host ran out of memory")  # numpy's is the host's
    said = named(TORCH(CUDA), device="cpu", need=3 << 20)
    assert ": 3.0 MiB needed, 20.0 GiB asked for, " in str(said)
    assert " free of " in str(said)
    assert said.free == pytest.approx(free_memory("cpu")[0], rel=0.5)
    assert free_memory("cuda:77") is None


def test_of_nested_ones_the_innermost_speaks_and_a_function_says_it_only_then() -> None:
    calls = []
    inner = named(MemoryError(), lambda: calls.append(1) or "inside")
    assert calls == [1]
    with pytest.raises(DeviceMemoryError, match="while inside") as found, naming_out_of_memory("outside", "x"):
        raise inner
    assert found.value is inner
    with naming_out_of_memory(lambda: calls.append(2) or "", ""):
        pass
    assert calls == [1]


@pytest.mark.parametrize("error", [ValueError("no"), DataError("no"), RuntimeError("shape"), KeyError("out of memory")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as found, naming_out_of_memory("a", "b"):
        raise error
    assert found.value is error
    assert [shown_bytes(n) for n in (0, 1023, 1024, 3 << 39)] == ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 TiB"]


class _Full:
    to = staticmethod(failing(TORCH(CUDA)))

    def __len__(self) -> int:
        return 40_000_000

    def numel(self) -> int:
        return 1_000_000_000


def test_packed_rows_that_do_not_fit_a_host_or_a_device() -> None:
    said = r"making room for 70,368,744,177,664 packed rows: 2\.0 PiB needed"
    refused(DeviceMemoryError, said, lambda: Packed.empty(1 << 46, Layout(4, 4)))
    said = r"copying 40,000,000 packed rows to cuda:0: 3\.7 GiB needed, 20\.0.*place='host'"
    refused(DeviceMemoryError, said, lambda: Packed(_Full(), Layout(4, 4)).copy_to(torch.device("cuda:0")))


def test_a_column_that_does_not_fit_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    column = Table.read({"price": [1.0, 2.0]})["price"]
    monkeypatch.setattr(torch.Tensor, "to", failing(TORCH(CUDA)))
    monkeypatch.setattr("fastrec.table.column.resolve_device", torch.device)
    refused(DeviceMemoryError, r"copying the column 'price' of 2 rows to cuda:0", lambda: column.to("cuda:0"))


@pytest.fixture
def frame() -> TabularFrame:
    df = pd.DataFrame({"city": [1, 2, 3, 1] * 4, "price": np.arange(16.0), "y": [0, 1] * 8})
    return TabularFrame(df, [Categorify], ["city"], ["price"], "y", CategoryBlock, device="cpu")


def test_making_features_and_preparing_a_frame(monkeypatch: pytest.MonkeyPatch, frame: TabularFrame) -> None:
    for call, method in ((fit_features, "fit_transform"), (apply_features, "transform")):
        features = SimpleNamespace(outputs=["x"], **{method: failing(MemoryError("std::bad_alloc"))})
        said = r"making .*features.*fewer rows or generators"
        refused(DeviceMemoryError, said, lambda c=call, f=features: c(f, pd.DataFrame({"a": [1]})))
    new = frame.new(pd.DataFrame({"city": [1], "price": [2.0]}))
    monkeypatch.setattr("fastrec.tabular.recipe.FrameRecipe.pack", failing(TORCH(CUDA)))
    refused(DeviceMemoryError, r"preparing 1 rows.*fewer rows", new.process)


def test_a_batch_or_a_model_that_does_not_fit(frame: TabularFrame) -> None:
    learn = rec_learner(frame.dataloaders(bs=8), layers=[4])
    learn.model.forward = failing(TORCH(CUDA))
    said = r" a batch of 8 rows.*Lower the batch size \(bs=\)"
    with learn.no_bar(), learn.no_logging():
        refused(DeviceMemoryError, "training on" + said, lambda: learn.fit(1, 1e-3))
        refused(DeviceMemoryError, "predicting" + said, lambda: learn.get_preds(ds_idx=0))
        learn.model.to = learn.opt_func = failing(TORCH(CUDA))
        learn.opt = None
        refused(DeviceMemoryError, "beginning to train", lambda: learn.fit(1, 1e-3))


@pytest.fixture
def rapids(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """RMM, CuPy and a CUDA device that only write down what is asked of them."""
    calls: list[Any] = []
    names = ["rmm", "rmm.allocators", "rmm.allocators.torch", "rmm.allocators.cupy", "cupy"]
    modules = {n: ModuleType(n) for n in names}
    modules["rmm"].reinitialize = lambda **how: calls.append(("rmm", how))
    modules["rmm.allocators.torch"].rmm_torch_allocator = "torch's"
    modules["rmm.allocators.cupy"].rmm_cupy_allocator = "cupy's"
    modules["cupy"].cuda = SimpleNamespace(set_allocator=lambda a: calls.append(("cupy", a)))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", failing(AssertionError("this would begin torch's allocator")))
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", lambda a: calls.append(("torch", a)))
    monkeypatch.setattr(fastrec._core.device, "_pooled", [])
    return calls


def test_one_pool_of_rmm_is_made_once(rapids: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pool_is_shared()
    assert share_pool(size=1 << 30) == torch.device("cuda:0")
    how = {"pool_allocator": True, "initial_pool_size": 1 << 30, "devices": 0}
    assert rapids == [("rmm", how), ("torch", "torch's"), ("cupy", "cupy's")]
    assert pool_is_shared()
    share_pool("cuda:0")
    assert len(rapids) == 3
    monkeypatch.setitem(sys.modules, "cupy", None)  # without CuPy the other two share
    assert share_pool("cuda:1") == torch.device("cuda:1")
    assert [name for name, _ in rapids[3:]] == ["rmm", "torch"]
    monkeypatch.setitem(sys.modules, "rmm", None)
    monkeypatch.setattr(fastrec._core.device, "_pooled", [])
    refused(MissingPackageError, r"RMM is needed.*fastrec-tabular\[gpu\]", lambda: share_pool())


def test_a_pool_is_refused_once_torch_has_begun(rapids: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    refused(DeviceError, r"begun to use the GPU.*share_pool\(\) first", lambda: share_pool())
    refused(DeviceError, "on a CUDA device, not on cpu", lambda: share_pool("cpu"))
    refused(DeviceError, "there are 2 CUDA devices", lambda: share_pool("cuda:5"))
    assert rapids == []


def test_a_graph_is_not_recorded_in_a_shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastrec.training import CudaGraph

    monkeypatch.setattr(fastrec._core.device, "_pooled", [torch.device("cuda:0")])
    on_gpu = SimpleNamespace(device=torch.device("cuda:0"))
    graph = CudaGraph()
    graph.learn = SimpleNamespace(model=SimpleNamespace(parameters=lambda: iter([on_gpu])), cbs=[])
    assert "shares RMM's pool" in graph._why_not()
    monkeypatch.setattr(fastrec._core.device, "_pooled", [])
    assert graph._why_not() is None


def test_columns_on_a_gpu_go_to_xgboost_as_cupy_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = SimpleNamespace(is_cuda=True, cpu=lambda: torch.ones(2))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=lambda t: ("cupy", t)))
    assert handed(on_gpu, on_gpu=True) == ("cupy", on_gpu)
    assert isinstance(handed(on_gpu, on_gpu=False), np.ndarray)  # trees grow on the host
    assert isinstance(handed(torch.ones(2), on_gpu=True), np.ndarray)  # the table is there
    assert handed(None, on_gpu=True) is None
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert isinstance(handed(on_gpu, on_gpu=True), np.ndarray)
