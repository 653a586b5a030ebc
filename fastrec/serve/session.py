"""An export on disk: ``serving.json`` and its graph, opened in onnxruntime on the CPU or on an NVIDIA GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastrec._core.atomic import file_digest
from fastrec._core.imports import require
from fastrec.errors import DataError, DeviceError, MissingFileError, UnreadableFileError

FILE = "serving.json"
_PROVIDERS = {
    "cpu": [],
    "cuda": ["CUDAExecutionProvider"],
    "tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],
}


def read_about(folder: str | Path) -> dict[str, Any]:
    """Read ``serving.json``; say where it should be if it is not there."""
    file = Path(folder) / FILE
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError as error:
        remedy = "Give a folder that `fastrec export` wrote"
        raise MissingFileError("there is no such file", file=file, remedy=remedy) from error
    except ValueError as error:
        raise UnreadableFileError(f"this is no JSON ({error})", file=file, remedy="Export the run anew") from error


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write ``serving.json``."""
    (folder / FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")


def check_hash(graph: Path, sha: str) -> None:
    """Check that a graph is the one that ``serving.json`` was written for."""
    try:
        actual = file_digest(graph)
    except OSError as error:
        raise MissingFileError(f"the graph cannot be read ({error})", file=graph, remedy="Export anew") from error
    if actual != sha:
        why = f"its SHA-256 is {actual[:12]}…, {FILE} says {sha[:12]}…"
        raise UnreadableFileError(why, file=graph, remedy="The two are not of one export: export the run anew")


def open_session(path: str | Path, *, threads: int = 1, device: str = "cpu") -> Any:
    """Open a graph's session of onnxruntime, on ``'cpu'``, ``'cuda'``, or ``'tensorrt'`` (with CUDA for other nodes).

    On a GPU, nodes for text and vocabularies run on the CPU: onnxruntime has no such operators there.
    """
    if device not in _PROVIDERS:
        raise DataError(f"there is no device {device!r} to serve on", remedy=f"Choose one of {', '.join(_PROVIDERS)}")
    runtime = require("onnxruntime", "onnxruntime", "pip install 'fastrec-tabular[serve]'")
    wanted = _PROVIDERS[device]
    if not set(wanted) <= set(runtime.get_available_providers()):
        raise _not_there(device, f"onnxruntime {runtime.__version__} has no {wanted[0]}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1  # nodes of one call run in turn
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
    remedy = "Install onnxruntime-gpu (in place of onnxruntime) with the CUDA libraries that it names, or take cpu"
    return DeviceError(f"{device} was asked for, but {why}", remedy=remedy)
