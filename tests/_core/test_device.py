from __future__ import annotations

import pytest
import torch

from fastrec._core.device import resolve_device
from fastrec.errors import DeviceError
from tests._core.refusals import refused

HAS_CUDA = torch.cuda.is_available()


def test_named_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if HAS_CUDA else "cpu")


def test_the_environment_decides_where_nothing_is_said(monkeypatch):
    monkeypatch.delenv("FASTREC_DEVICE", raising=False)
    assert resolve_device() == torch.device("cpu")
    monkeypatch.setenv("FASTREC_DEVICE", "")
    assert resolve_device() == torch.device("cpu")
    monkeypatch.setenv("FASTREC_DEVICE", "auto")
    assert resolve_device() == resolve_device("auto")
    monkeypatch.setenv("FASTREC_DEVICE", "no such thing")
    assert resolve_device("cpu") == torch.device("cpu")
    refused(DeviceError, "no such thing", lambda: resolve_device())


@pytest.mark.parametrize("device", ["", "gpu", "cuda:x", "CPU ", 1.5, ["cpu"]])
def test_what_is_no_device_is_named(device):
    refused(DeviceError, "is not a device", lambda: resolve_device(device))


@pytest.mark.skipif(HAS_CUDA, reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_that_is_not_there(device):
    refused(DeviceError, r"'cuda' was asked for.*device='auto'", lambda: resolve_device(device))


@pytest.mark.skipif(not HAS_CUDA, reason="this machine has no CUDA")
def test_a_gpu_too_many():
    assert resolve_device("cuda:0") == torch.device("cuda:0")
    assert resolve_device("cuda") == torch.zeros(1, device="cuda").device
    refused(DeviceError, "CUDA devices", lambda: resolve_device(f"cuda:{torch.cuda.device_count()}"))


def test_a_device_of_another_kind_that_holds_nothing_here():
    refused(DeviceError, "not usable here", lambda: resolve_device("meta"))
    if not torch.backends.mps.is_available():
        refused(DeviceError, "not usable here", lambda: resolve_device("mps"))
