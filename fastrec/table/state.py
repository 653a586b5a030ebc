"""Saving what was learned: a folder with one JSON file and one safetensors file, no pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from inspect import Parameter, isabstract, signature
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fastrec._core.atomic import atomic_folder, check_replaceable, recover
from fastrec.errors import DataError, MissingFileError, UnreadableFileError, WriteError
from fastrec.table.column import Column
from fastrec.table.keys import Keys, is_numeric, is_text

# ``state.json`` holds the structure; a tensor or an Arrow array in it is a reference into ``state.safetensors``.

_FIELDS = tuple(f.name for f in fields(Column) if f.init)


def save_state(folder: str | Path, state: dict[str, Any]) -> None:
    """Write a state; an earlier one at ``folder`` is replaced in one step.

    Args:
        folder: where to; made if need be.
        state: nested dicts (keys are text) and lists of tensors, Arrow arrays, ``Keys``, columns and JSON values; a
            tuple comes back as a list, a tensor on the CPU.

    Raises:
        DataError: a value is of none of these kinds.
        WriteError: the file system refused, or ``folder`` holds something else.
    """
    check_replaceable(folder, "state.json", "state.safetensors")
    tensors: dict[str, torch.Tensor] = {}
    structure = _pack(state, tensors, "state")
    with atomic_folder(folder) as part:
        (part / "state.json").write_text(json.dumps(structure, indent=1, ensure_ascii=False), encoding="utf-8")
        try:
            save_file(tensors, part / "state.safetensors")
        except SafetensorError as error:  # its own class, also for a full disk
            remedy = "Free disk space or choose another place; what was there before is untouched"
            raise WriteError(f"could not be written ({error})", file=folder, remedy=remedy) from error


def load_state(folder: str | Path) -> dict[str, Any]:
    """Read a state that ``save_state`` wrote.

    Raises:
        MissingFileError: there is none.
        UnreadableFileError: it is damaged.
    """
    folder = Path(folder)
    recover(folder)
    for name in ("state.json", "state.safetensors"):
        if not (folder / name).exists():
            raise MissingFileError("there is no such file", file=folder / name, remedy="Save the state again")
    try:
        structure = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return _unpack(structure, load_file(folder / "state.safetensors"))
    except Exception as error:  # safetensors raises a class of its own for a damaged file
        remedy = "Save it again"
        raise UnreadableFileError(f"the saved state cannot be read ({error})", file=folder, remedy=remedy) from error


def _pack(value: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    if isinstance(value, torch.Tensor):
        return {"$tensor": _keep(value, tensors, path)}
    if isinstance(value, Keys):
        columns = [_pack(c, tensors, f"{path}.{i}") for i, c in enumerate(value.columns)]
        return {"$keys": columns, "names": list(value.names)}
    if isinstance(value, Column):
        return {"$column": _pack({f: getattr(value, f) for f in _FIELDS}, tensors, path)}
    if isinstance(value, pa.Array):
        return {"$array": _keep(_bytes_of(value, path), tensors, path)}
    if isinstance(value, dict):
        odd = [k for k in value if not isinstance(k, str) or k.startswith("$")]
        if odd:
            raise DataError(f"{path} has the key {odd[0]!r}", remedy="Use text that does not begin with $ for keys")
        return {k: _pack(v, tensors, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    remedy = "Keep tensors, arrays and plain values"
    raise DataError(f"{path} holds a {type(value).__name__}, which cannot be saved", remedy=remedy)


def _keep(tensor: torch.Tensor, tensors: dict[str, torch.Tensor], path: str) -> str:
    """Store a copy and return its name: the path, numbered if another path reads the same."""
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise DataError(f"{path} holds a {tensor.dtype} tensor that cannot be saved", remedy="Keep dense, real tensors")
    name, number = path, 1
    while name in tensors:
        name, number = f"{path}#{number}", number + 1
    tensors[name] = tensor.detach().cpu().contiguous().clone()
    return name


def _unpack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$keys" in value:
        return Keys(tuple(_unpack(c, tensors) for c in value["$keys"]), tuple(value["names"]))
    if "$column" in value:
        return Column(**_unpack(value["$column"], tensors))
    if "$array" in value:
        # Copied: Arrow's numbers begin at multiples of 8 bytes, a file's bytes anywhere.
        with pa.ipc.open_stream(pa.py_buffer(tensors[value["$array"]].clone().numpy())) as stream:
            (batch,) = stream  # up to its end, which damage may have moved
        batch.validate(full=True)
        return batch.column(0)
    return {k: _unpack(v, tensors) for k, v in value.items()}


def _bytes_of(array: pa.Array, path: str) -> torch.Tensor:
    """Return keys as the bytes of an Arrow stream: uint8 ``[b]``."""
    if array.null_count:
        raise DataError(f"{path} holds missing values, which a key never does", remedy="Drop them first")
    array = array.cast(pa.large_string()) if is_text(array.type) else array
    if not (pa.types.is_large_string(array.type) or pa.types.is_timestamp(array.type) or is_numeric(array.type)):
        problem = f"{path} holds keys of type {array.type}, which cannot be saved"
        raise DataError(problem, remedy="Use text, numbers or times as keys")
    batch, sink = pa.record_batch([array], names=["keys"]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return torch.from_numpy(np.frombuffer(sink.getvalue(), dtype=np.uint8).copy())


# The classes of saved objects, by name: those of fastrec are found in its rooms, wherever they have been used.

T = TypeVar("T")
# The rooms with classes of saved objects, from the ground up: a class is in its base's room, or in one above it.
_ROOMS = ("features", "tabular", "estimators", "sequences", "retrieval", "stacking")


def saved_name(cls: type) -> str:
    """Return the name that finds a saved object's class again: fastrec's by name, others with module."""
    return cls.__name__ if cls.__module__.startswith("fastrec.") else f"{cls.__module__}:{cls.__qualname__}"


def settings_of(thing: object) -> dict[str, Any]:
    """Return the arguments of an object's constructor, read from its attributes of the same names.

    The values of ``**params`` are those of an attribute ``params``; without one they are the base class's arguments.
    """
    given: dict[str, Any] = {}
    for kind in (c for c in type(thing).__mro__ if "__init__" in vars(c)):
        passed_on = False
        for name, argument in list(signature(kind.__init__).parameters.items())[1:]:
            if hasattr(thing, name):
                value = getattr(thing, name)
                given |= value if argument.kind is Parameter.VAR_KEYWORD else {name: value}
            elif argument.kind is Parameter.VAR_KEYWORD:
                passed_on = True
            elif argument.kind is not Parameter.VAR_POSITIONAL:
                remedy = "Keep the constructor's arguments as attributes of their names, or define settings()"
                raise DataError(f"{type(thing).__name__} keeps no attribute {name!r} to be saved by", remedy=remedy)
        if not passed_on:
            break
    return given


def known_classes(base: type[T]) -> dict[str, type[T]]:
    """Return the concrete subclasses of a base that are defined so far, by their saved names."""
    found: dict[str, type[T]] = {}
    for cls in base.__subclasses__():
        found |= {} if isabstract(cls) else {saved_name(cls): cls}
        found |= known_classes(cls)
    return found


def class_named(base: type[Any], name: Any, asked: type[T] | None = None) -> type[T]:
    """Return the class of a saved name, a kind of ``base`` and of ``asked``.

    Only fastrec's rooms are imported, never a module that a file names: a user's class must be there already.
    """
    asked = base if asked is None else asked
    is_own = asked.__module__.startswith("fastrec.")
    if not is_own and isinstance(name, str) and name.endswith(f":{asked.__qualname__}"):
        return asked  # it may have been defined in a script, or in a module that moved
    found = known_classes(base)
    if isinstance(name, str) and name.isidentifier():
        room = base.__module__.split(".")[1]
        for above in _ROOMS[_ROOMS.index(room) :]:
            if name in found:
                break
            getattr(import_module(f"fastrec.{above}"), name, None)  # some names are imported when they are asked for
            found = known_classes(base)
    if name not in found:
        remedy = "Import the module that defines a class of your own first"
        raise DataError(f"it holds a {name!r}, which is not known here", remedy=remedy)
    if not issubclass(found[name], asked):
        raise DataError(f"it holds a {name!r}, which is no {asked.__name__}", remedy=f"Use the load of {base.__name__}")
    return found[name]


def load_as(asked: type[T], base: type[Any], folder: str | Path, made_of: Callable[[dict[str, Any]], Any]) -> T:
    """Read an object, a kind of ``asked`` and ``base``, whose state names its class as ``'class'``."""
    state = load_state(folder)
    try:
        class_named(base, state.get("class"), asked)
        return made_of(state)
    except DataError as error:
        raise DataError(error.problem, file=folder, remedy=error.remedy) from error
    except (KeyError, TypeError, ValueError) as error:
        remedy = "Give the folder of a save, or save it again"
        raise UnreadableFileError(f"what is saved cannot be read ({error})", file=folder, remedy=remedy) from error
