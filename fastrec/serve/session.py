"""An export on disk: ``serving.json`` and its graph, opened in onnxruntime on the CPU or on an NVIDIA GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastrec._core.atomic import file_digest, is_plain_name
from fastrec._core.imports import require
from fastrec.errors import DataError, DeviceError, FastrecError, MissingFileError, UnreadableFileError

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


@contextmanager
def of_an_export(folder: str | Path) -> Iterator[None]:
    """Say that ``serving.json`` has another form where it is read in the block."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = f"its form is not that of an export ({type(error).__name__}: {error})"
        raise UnreadableFileError(why, file=Path(folder) / FILE, remedy="Export the run anew") from error


def read_export(folder: str | Path) -> dict[str, Any]:
    """Read ``serving.json``, and check that the graph beside it is the one that it was written for."""
    about = read_about(folder)
    with of_an_export(folder):
        file, sha = about["model"]["file"], about["model"]["sha256"]
        if about["format"] != 1:
            raise ValueError(f"format is {about['format']!r}, this fastrec reads 1")
        if not is_plain_name(file):
            raise ValueError(f"model.file {file!r} is no plain name")
    graph = Path(folder) / file
    try:
        actual = file_digest(graph)
    except OSError as error:
        raise MissingFileError(f"the graph cannot be read ({error})", file=graph, remedy="Export anew") from error
    if actual != sha:
        why = f"its SHA-256 is {actual[:12]}…, {FILE} says {str(sha)[:12]}…"
        raise UnreadableFileError(why, file=graph, remedy="The two are not of one export: export the run anew")
    return about


@contextmanager
def cannot(what: str, file: str | Path, remedy: str = "Export the run anew") -> Iterator[None]:
    """Name the file where a library fails in the block: onnxruntime's errors have no common class."""
    try:
        yield
    except FastrecError:
        raise
    except Exception as error:
        why = f"{what} ({' '.join(str(error).split())[:300]})"
        raise UnreadableFileError(why, file=file, remedy=remedy) from error


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
    with cannot("onnxruntime cannot load it", path):
        session = runtime.InferenceSession(str(path), options, providers=[*wanted, "CPUExecutionProvider"])
    if not set(wanted) <= set(session.get_providers()):  # it goes to the CPU without a word that a program could read
        raise _not_there(device, f"onnxruntime could not load {wanted[0]}")
    return session


def _not_there(device: str, why: str) -> DeviceError:
    remedy = "Install onnxruntime-gpu (in place of onnxruntime) with the CUDA libraries that it names, or take cpu"
    return DeviceError(f"{device} was asked for, but {why}", remedy=remedy)
