"""Sessions of onnxruntime: the device that was asked for, or an error that says what to do."""

from __future__ import annotations

import pytest

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from fastrec.errors import DataError, DeviceError, UnreadableFileError  # noqa: E402
from fastrec.serve.session import open_session  # noqa: E402


@pytest.fixture
def graph(tmp_path):
    """x → -x."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [None]) for n in "xy")
    made = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", [x], [y])
    path = tmp_path / "model.onnx"
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_gpu_that_onnxruntime_cannot_use_is_named(graph, device):
    wanted = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}[device]
    if wanted in ort.get_available_providers():
        pytest.skip("it can")
    with pytest.raises(DeviceError, match=f"{device} was asked for.*{wanted}.*onnxruntime-gpu"):
        open_session(graph, device=device)


def test_a_provider_that_does_not_load_is_not_replaced_by_the_cpu(graph, monkeypatch):
    """onnxruntime falls back to the CPU where CUDA's libraries are missing."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    if "CUDAExecutionProvider" in open_session(graph).get_providers():
        pytest.skip("it can")
    real = ort.InferenceSession
    monkeypatch.setattr(ort, "InferenceSession", lambda *a, providers: real(*a, providers=["CPUExecutionProvider"]))
    with pytest.raises(DeviceError, match="could not load CUDAExecutionProvider"):
        open_session(graph, device="cuda")


def test_other_devices_and_damaged_files_are_refused(graph):
    with pytest.raises(DataError, match=r"no device 'tpu'.*cpu, cuda, tensorrt"):
        open_session(graph, device="tpu")
    graph.write_bytes(b"not a graph")
    with pytest.raises(UnreadableFileError, match="onnxruntime cannot load it"):
        open_session(graph)
