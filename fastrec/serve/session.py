"""``open_session``: load an exported graph in onnxruntime, on the CPU or on an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastrec._core.imports import require
from fastrec.errors import DataError, DeviceError, UnreadableFileError

_PROVIDERS = {
    "cpu": [],
    "cuda": ["CUDAExecutionProvider"],
    "tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],
}


def open_session(path: str | Path, *, threads: int = 1, device: str = "cpu") -> Any:
    """Open a session of onnxruntime.

    On a GPU what works on text and on vocabularies stays on the CPU: onnxruntime has no such operators there.

    Args:
        path: the graph's file.
        threads: of one call.
        device: ``'cpu'``, ``'cuda'``, or ``'tensorrt'`` (what it cannot do goes to CUDA).

    Raises:
        DataError: there is no such device.
        DeviceError: onnxruntime cannot use it on this machine.
        MissingPackageError: onnxruntime is not installed.
        UnreadableFileError: the file is damaged, or of another kind.
    """
    if device not in _PROVIDERS:
        raise DataError(f"there is no device {device!r} to serve on", remedy=f"Choose one of {', '.join(_PROVIDERS)}")
    runtime = require("onnxruntime", "onnxruntime", "pip install 'fastrec-tabular[serve]'")
    wanted = _PROVIDERS[device]
    if not set(wanted) <= set(runtime.get_available_providers()):
        raise _not_there(device, f"onnxruntime {runtime.__version__} has no {wanted[0]}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # warnings about nodes on the CPU are nothing that a reader could act on
    # A thread that spins while it waits for work takes the core that an event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = runtime.InferenceSession(str(path), options, providers=[*wanted, "CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        why = f"onnxruntime cannot load it ({' '.join(str(error).split())[:300]})"
        raise UnreadableFileError(why, file=path, remedy="Export the run anew") from error
    if not set(wanted) <= set(session.get_providers()):  # it goes to the CPU without a word that a program could read
        raise _not_there(device, f"onnxruntime could not load {wanted[0]}")
    return session


def _not_there(device: str, why: str) -> DeviceError:
    return DeviceError(
        f"{device} was asked for, but {why}",
        remedy="Install onnxruntime-gpu (in place of onnxruntime) with the CUDA libraries that it names, or take cpu",
    )
