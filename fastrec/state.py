"""Saving what was learned: a folder with one JSON file and one safetensors file, no pickle.

``state.json`` holds the structure; a tensor or an Arrow array in it is a reference into ``state.safetensors``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file

from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.files import atomic_folder
from fastrec.keys import Keys


def save_state(folder: str | Path, state: dict[str, Any]) -> None:
    """Write a state; what was at ``folder`` is replaced in one step.

    Args:
        folder: where to; made if need be.
        state: nested dicts and lists of tensors, Arrow arrays, ``Keys`` and JSON values.

    Raises:
        DataError: a value is of none of these kinds.
        WriteError: the file system refused.
    """
    tensors: dict[str, torch.Tensor] = {}
    structure = _pack(state, tensors, "state")
    with atomic_folder(folder) as part:
        (part / "state.json").write_text(json.dumps(structure, indent=1, ensure_ascii=False), encoding="utf-8")
        save_file(tensors, part / "state.safetensors")


def load_state(folder: str | Path) -> dict[str, Any]:
    """Read a state that ``save_state`` wrote.

    Raises:
        MissingFileError: there is none.
        UnreadableFileError: it is damaged.
    """
    folder = Path(folder)
    for name in ("state.json", "state.safetensors"):
        if not (folder / name).exists():
            raise MissingFileError("there is no such file", file=folder / name, remedy="Save the state again")
    try:
        structure = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "state.safetensors")
        return _unpack(structure, tensors)
    except Exception as error:  # safetensors raises a class of its own for a damaged file
        raise UnreadableFileError(f"the saved state cannot be read ({error})", file=folder, remedy="Save it again") from error


def _pack(value: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"$tensor": path}
    if isinstance(value, Keys):
        columns = [_pack(c, tensors, f"{path}.{i}") for i, c in enumerate(value.columns)]
        return {"$keys": columns, "names": list(value.names)}
    if isinstance(value, pa.Array):
        return {"$array": _pack_array(value, tensors, path)}
    if isinstance(value, dict):
        return {str(k): _pack(v, tensors, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"{path} holds a {type(value).__name__}, which cannot be saved", remedy="Keep tensors, arrays and plain values")


def _unpack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$keys" in value:
        return Keys(tuple(_unpack(c, tensors) for c in value["$keys"]), tuple(value["names"]))
    if "$array" in value:
        return _unpack_array(value["$array"], tensors)
    return {k: _unpack(v, tensors) for k, v in value.items()}


def _pack_array(array: pa.Array, tensors: dict[str, torch.Tensor], path: str) -> dict[str, Any]:
    if array.null_count:
        raise DataError(f"{path} holds missing values, which a key never does", remedy="Drop them first")
    kind = array.type
    if pa.types.is_decimal(kind):
        plain, about = array.cast(pa.large_string()), {"type": "decimal", "precision": kind.precision, "scale": kind.scale}
    elif pa.types.is_timestamp(kind):
        plain, about = array.cast(pa.int64()), {"type": "time", "unit": kind.unit, "zone": kind.tz}
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        plain, about = array.cast(pa.large_string()), {"type": "text"}
    elif pa.types.is_boolean(kind):
        plain, about = array.cast(pa.uint8()), {"type": "bool"}
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        plain, about = array, {"type": str(pa.DataType.to_pandas_dtype(kind)().dtype)}
    else:
        raise DataError(f"{path} holds keys of type {kind}, which cannot be saved", remedy="Use text, numbers or times as keys")
    if pa.types.is_large_string(plain.type):
        offsets = np.frombuffer(plain.buffers()[1], dtype=np.int64)[plain.offset : plain.offset + len(plain) + 1]
        data = np.frombuffer(plain.buffers()[2] or b"", dtype=np.uint8)
        start, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        tensors[f"{path}.bytes"] = torch.from_numpy(data[start:end].copy())
        tensors[f"{path}.offsets"] = torch.from_numpy(offsets - start) if len(offsets) else torch.zeros(1, dtype=torch.int64)
    else:
        numbers = plain.to_numpy(zero_copy_only=False)
        tensors[path] = torch.from_numpy(np.array(numbers.view(f"i{numbers.itemsize}") if numbers.dtype.kind == "u" else numbers))
    return {**about, "at": path, "length": len(array)}


def _unpack_array(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> pa.Array:
    kind, path = about["type"], about["at"]
    if kind in ("text", "decimal"):
        offsets, data = tensors[f"{path}.offsets"].numpy(), tensors[f"{path}.bytes"].numpy()
        text = pa.LargeStringArray.from_buffers(about["length"], pa.py_buffer(offsets), pa.py_buffer(data))
        return text if kind == "text" else text.cast(pa.decimal256(about["precision"], about["scale"]) if about["precision"] > 38 else pa.decimal128(about["precision"], about["scale"]))
    numbers = tensors[path].numpy()
    if kind == "time":
        return pa.array(numbers).cast(pa.timestamp(about["unit"], about["zone"]))
    if kind == "bool":
        return pa.array(numbers.astype(bool))
    return pa.array(numbers.view(kind) if np.dtype(kind).kind == "u" else numbers.astype(kind))
