"""Saving what was learned: a folder with one JSON file and one safetensors file, no pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from inspect import Parameter, isabstract, signature
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fastrec._core.atomic import atomic_folder, check_replaceable, recover
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.table.column import Column
from fastrec.table.keys import Keys, is_numeric, is_text
from fastrec.table.vocab import Vocab

# ``state.json`` holds the structure; a tensor or an Arrow array in it is a reference into ``state.safetensors``.

_FIELDS = tuple(f.name for f in fields(Column) if f.init)


def save_state(folder: str | Path, state: dict[str, Any]) -> None:
    """Write a state; an earlier one at ``folder`` is replaced in one step.

    Args:
        folder: where to; made if need be.
        state: nested dicts (keys are text) and lists of tensors, arrays of numbers, sparse matrices of SciPy, Arrow
            arrays, ``Keys``, columns, vocabularies, ``Saved`` parts and JSON values; a tuple comes back as a list, a
            tensor on the CPU, and a vocabulary or part in two places as one object.

    Raises:
        DataError: a value is of none of these kinds.
        WriteError: the file system refused, or ``folder`` holds something else.
    """
    check_replaceable(folder, "state.json", "state.safetensors")
    kept = _Kept()
    structure = _pack(state, kept, "state")
    with atomic_folder(folder) as part:
        (part / "state.json").write_text(json.dumps(structure, indent=1, ensure_ascii=False), encoding="utf-8")
        try:
            save_file(kept.tensors, part / "state.safetensors")
        except SafetensorError as error:  # its own class, also for a full disk
            remedy = "Free disk space or choose another place; what was there before is untouched"
            raise WriteError(f"could not be written ({error})", file=folder, remedy=remedy) from error


def load_state(folder: str | Path) -> dict[str, Any]:
    """Read a state that ``save_state`` wrote.

    Raises:
        MissingFileError: there is none.
        UnreadableFileError: it is damaged.
        DataError: it holds a part of a class that is not known.
    """
    folder = Path(folder)
    recover(folder)
    for name in ("state.json", "state.safetensors"):
        if not (folder / name).exists():
            raise MissingFileError("there is no such file", file=folder / name, remedy="Save the state again")
    try:
        structure = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return _unpack(structure, _Kept(load_file(folder / "state.safetensors")))
    except DataError as error:
        raise DataError(error.problem, file=folder, remedy=error.remedy) from error
    except Exception as error:  # safetensors raises a class of its own for a damaged file
        remedy = "Save it again, or train it again if another version saved it"
        raise UnreadableFileError(f"the saved state cannot be read ({error})", file=folder, remedy=remedy) from error


@dataclass
class _Kept:
    """What the structure refers to: tensors by name, and the vocabularies and parts before, by number."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    objects: list[Any] = field(default_factory=list)


def _pack(value: Any, kept: _Kept, path: str) -> Any:
    if isinstance(value, torch.Tensor):
        return {"$tensor": _keep(value, kept.tensors, path)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"$numbers": _keep(torch.from_numpy(np.asarray(value, order="C")), kept.tensors, path)}
    if isinstance(value, Keys):
        columns = [_pack(c, kept, f"{path}.{i}") for i, c in enumerate(value.columns)]
        return {"$keys": columns, "names": list(value.names)}
    if isinstance(value, Column):
        return {"$column": _pack({f: getattr(value, f) for f in _FIELDS}, kept, path)}
    if isinstance(value, pa.Array):
        return {"$array": _keep(_bytes_of(value, path), kept.tensors, path)}
    if getattr(value, "format", None) == "csr":
        parts = {n: getattr(value, n) for n in ("data", "indices", "indptr")}
        return {"$rows": _pack(parts, kept, path), "shape": list(value.shape)}
    if isinstance(value, Vocab | Saved):
        number = next((i for i, other in enumerate(kept.objects) if other is value), None)
        if number is not None:
            return {"$same": number}
        packed: dict[str, Any] = {"$vocab" if isinstance(value, Vocab) else "$saved": saved_name(type(value))}
        packed["state"] = _pack(value.to_state(), kept, path)
        kept.objects.append(value)
        return packed
    if isinstance(value, dict):
        if odd := [k for k in value if not isinstance(k, str)]:
            raise DataError(f"{path} has the key {odd[0]!r}", remedy="Use text for keys")
        packed = {k: _pack(v, kept, f"{path}.{k}") for k, v in value.items()}
        return {"$dict": [*packed.items()]} if any(k.startswith("$") for k in packed) else packed
    if isinstance(value, list | tuple):
        return [_pack(v, kept, f"{path}.{i}") for i, v in enumerate(value)]
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__name__", type(value).__name__)
    remedy = "Keep tensors, arrays, plain values, and parts of classes based on fastrec.retrieval.Saved"
    raise DataError(f"{path} holds a {name}, which cannot be saved", remedy=remedy)


def _keep(tensor: torch.Tensor, tensors: dict[str, torch.Tensor], path: str) -> str:
    """Store a copy and return its name: the path, numbered if another path reads the same."""
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise DataError(f"{path} holds a {tensor.dtype} tensor that cannot be saved", remedy="Keep dense, real tensors")
    name, number = path, 1
    while name in tensors:
        name, number = f"{path}#{number}", number + 1
    tensors[name] = tensor.detach().cpu().contiguous().clone()
    return name


def _unpack(value: Any, kept: _Kept) -> Any:
    tensors = kept.tensors
    if isinstance(value, list):
        return [_unpack(v, kept) for v in value]
    if not isinstance(value, dict):
        return value
    if "$dict" in value:  # of keys such as those here
        return {k: _unpack(v, kept) for k, v in value["$dict"]}
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$numbers" in value:
        return tensors[value["$numbers"]].numpy()
    if "$keys" in value:
        return Keys(tuple(_unpack(c, kept) for c in value["$keys"]), tuple(value["names"]))
    if "$column" in value:
        return Column(**_unpack(value["$column"], kept))
    if "$rows" in value:
        from scipy.sparse import csr_matrix

        rows = csr_matrix(tuple(_unpack(value["$rows"], kept).values()), shape=tuple(value["shape"]))
        rows.check_format()  # damaged indices would be followed out of the memory
        return rows
    if "$same" in value:
        return kept.objects[value["$same"]]
    if "$vocab" in value or "$saved" in value:
        state = _unpack(value["state"], kept)
        kind = Vocab if "$vocab" in value else class_named(Saved, value["$saved"])
        kept.objects.append(kind.from_state(state))
        return kept.objects[-1]
    if "$array" in value:
        # Copied: Arrow's numbers begin at multiples of 8 bytes, a file's bytes anywhere.
        with pa.ipc.open_stream(pa.py_buffer(tensors[value["$array"]].clone().numpy())) as stream:
            (batch,) = stream  # up to its end, which damage may have moved
        batch.validate(full=True)
        return batch.column(0)
    return {k: _unpack(v, kept) for k, v in value.items()}


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


# The classes of saved objects by name; those of fastrec are found in its rooms.

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
        for above in _ROOMS[_ROOMS.index(room) :] if room in _ROOMS else _ROOMS:
            if name in found:
                break
            getattr(import_module(f"fastrec.{above}"), name, None)  # some names are imported when they are asked for
            found = known_classes(base)
    if name not in found:
        remedy = "Import the module that defines a class of your own first"
        raise DataError(f"it holds a {name!r}, which is not known here", remedy=remedy)
    if not issubclass(found[name], asked):
        raise DataError(f"it holds a {name!r}, which is no {asked.__name__}", remedy=f"Use {found[name].__name__}.load")
    return found[name]


class Saved:
    """Something that can be saved: by its settings and by what it has learned.

    A class of your own keeps the constructor's arguments as attributes of their names, and names in ``learned`` the
    attributes that its training sets (none: ``()``), or it defines ``_state`` and ``_restore``. Both hold what
    ``save_state`` takes. An argument that is learned too is saved as it was learned.
    """

    learned: ClassVar[Sequence[str] | None] = None
    #: attributes with what it was fitted to, None before, such as the items' codes; ``_restore`` finds them set
    fitted_to: ClassVar[Sequence[str]] = ()
    constructed: ClassVar[bool] = True  #: whether reading it calls the constructor; if not, all of it is ``learned``

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments: by default the attributes of the same names."""
        return settings_of(self) if self.constructed else {}

    def _state(self) -> dict[str, Any]:
        """Return the learned state."""
        if self.learned is None:  # else it would be saved without what it has learned
            remedy = "Name in `learned` what it learns, or define _state and _restore (see fastrec.retrieval.Saved)"
            raise DataError(f"{type(self).__name__} cannot be saved", remedy=remedy)
        return {name: getattr(self, name) for name in self.learned}

    def _restore(self, state: dict[str, Any]) -> None:
        """Restore what ``_state`` returned."""
        vars(self).update(state, **{name: state[name] for name in self.learned or ()})  # all of it, or an error

    def to_state(self) -> dict[str, Any]:
        """Return settings and the learned state, as ``save_state`` takes them.

        Raises:
            NotFittedError: nothing was learned.
            DataError: a class of your own does not say what it learns.
        """
        fitted_to = {name: getattr(self, name) for name in self.fitted_to}
        if any(value is None for value in fitted_to.values()):
            raise NotFittedError(f"{type(self).__name__} has not been trained", remedy="Call fit first")
        settings, learned = self.settings(), self.learned or ()
        alone = {n: v for n, v in settings.items() if n not in learned}
        given = [n for n in settings if n in learned]  # a subclass may take them by ``**``
        return {"settings": alone, "given": given, "fitted_to": fitted_to, "learned": self._state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        learned = {n: state["learned"][n] for n in state["given"]}
        made = cls(**state["settings"], **learned) if cls.constructed else cls.__new__(cls)
        vars(made).update(state["fitted_to"])
        made._restore(state["learned"])
        return made

    def save(self, folder: str | Path) -> None:
        """Write settings and the learned state, without pickle; an earlier save at ``folder`` is replaced in one step.

        Raises:
            NotFittedError: nothing was learned.
            WriteError: the file system refused, or ``folder`` holds something else.
        """
        save_state(folder, {"class": saved_name(type(self)), **self.to_state()})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
            DataError: it holds something of another class, or of one that is not known.
        """
        state = load_state(folder)
        try:
            # A run's target is saved without the name of its class.
            return class_named(Saved, state.get("class", saved_name(cls)), cls).from_state(state)
        except DataError as error:
            raise DataError(error.problem, file=folder, remedy=error.remedy) from error
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            problem = f"it holds no {cls.__name__} that can be read ({type(error).__name__}: {first})"
            remedy = "Give the folder of a save, or save it again"
            raise UnreadableFileError(problem, file=folder, remedy=remedy) from error
