"""Digests: short text that two columns, parameters or functions share if they are the same."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch

from fastrec.features.base import Feature
from fastrec.features.choosing import Selector
from fastrec.keys import Keys
from fastrec.table import Column, Table

_CHUNK = 1 << 24  # bytes that one thread hashes at a time
_KNOWN: WeakKeyDictionary[Column, str] = WeakKeyDictionary()  # a column is never changed, so that its digest holds


class NoDigestError(TypeError):
    """A value that nothing lasting can be said about: an open file, a random generator, …"""


def digest(*parts: Any) -> str:
    """32 hexadecimal digits of several values together: text, numbers, tensors, columns, functions, generators, …

    Raises:
        NoDigestError: a value is of no kind that is known to stay what it is.
    """
    return hashlib.sha256("\x1f".join(_text(p) for p in parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def column_digest(column: Column) -> str:
    """The digest of a column's contents: values, missing, distinct values and their order, unit, zone; found once."""
    known = _KNOWN.get(column)
    if known is None:
        about = (column.kind, column.ordered, column.unit, column.zone)
        known = digest("column", *about, column.values, column.missing, column.distinct, column.elements)
        _KNOWN[column] = known
    return known


def remember(column: Column, known: str) -> None:
    """Give a column a digest that says where it came from, instead of one of its contents."""
    _KNOWN[column] = known


def columns_digest(table: Table, names: Iterable[str]) -> str:
    """The digest of some columns of a table and of their names; columns that are not there are left out."""
    return digest(len(table), table.device.type, *(v for n in names if n in table for v in (n, table[n])))


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, torch.Tensor):
        return f"tensor:{value.dtype}:{tuple(value.shape)}:{_of_tensor(value)}"
    if isinstance(value, Column):
        return column_digest(value)
    if isinstance(value, Table):
        return f"table:{columns_digest(value, value.names)}"
    if isinstance(value, Keys):
        return f"keys:{digest(*value.names, '|', *value.columns)}"
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return f"array:{_of_arrow(value)}"
    if isinstance(value, list | tuple):
        return f"list:{len(value)}:{digest(*value)}"
    if isinstance(value, Mapping):
        return f"dict:{len(value)}:{digest(*(v for item in value.items() for v in item))}"
    if isinstance(value, set | frozenset):
        return f"set:{len(value)}:{digest(*sorted(_text(v) for v in value))}"
    return _of_thing(value)


def _of_thing(value: Any) -> str:
    if isinstance(value, Feature):
        return f"generator:{generator_digest(value)}"
    if isinstance(value, Selector):
        return f"selector:{digest(repr(value), value.names_)}"
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return f"numpy:{value.dtype}:{value.shape}:{_of_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8))}"
    if isinstance(value, FunctionType | MethodType | CodeType | property | staticmethod | classmethod | partial):
        return f"function:{_of_function(value, ())}"
    if isinstance(value, type):
        return f"class:{class_digest(value)}"
    if isinstance(value, torch.dtype | torch.device | np.dtype | pa.DataType):
        return f"{type(value).__name__}:{value}"
    try:  # frames
        return f"frame:{digest(Table.read(value))}"
    except Exception as error:
        raise NoDigestError(f"a {type(value).__name__} has no digest") from error


def generator_digest(step: Feature) -> str:
    """The digest of a generator's class and parameters, of what it reads from other generators among them."""
    return digest(class_digest(type(step)), *(v for item in step.get_params().items() for v in item))


def class_digest(cls: type) -> str:
    """The digest of a class: of its name, and of its code where it is not fastrec's own."""
    parts: list[Any] = [cls.__module__, cls.__qualname__]
    for base in cls.__mro__:
        module = (base.__module__ or "").split(".")[0]
        if module in ("fastrec", "builtins", "abc", "typing"):
            continue
        for name, value in sorted(vars(base).items()):
            is_code = isinstance(value, FunctionType | property | staticmethod | classmethod)
            if is_code or (_is_plain(value) and not name.startswith(("__", "_abc_"))):
                parts += [name, value]
    return digest(*parts)


def _of_function(function: Any, seen: tuple[Any, ...]) -> str:
    """The digest of what a function does: its code, defaults, closure, and the plain globals and functions it uses."""
    if isinstance(function, property):
        return digest(*(None if f is None else _of_function(f, seen) for f in (function.fget, function.fset)))
    if isinstance(function, partial):
        return digest(_of_function(function.func, seen), list(function.args), dict(function.keywords))
    if isinstance(function, MethodType | staticmethod | classmethod):
        return _of_function(function.__func__, seen)
    if isinstance(function, CodeType):
        return _of_code(function)
    if not isinstance(function, FunctionType):
        return digest(getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__))
    if function.__code__ in seen:
        return digest("again", function.__qualname__)
    seen = (*seen, function.__code__)
    used = inspect.getclosurevars(function)
    parts: list[Any] = [_of_code(function.__code__)]
    around = {**used.globals, **used.nonlocals, **(function.__kwdefaults__ or {})}
    around |= {str(i): v for i, v in enumerate(function.__defaults__ or ())}
    for name, value in sorted(around.items()):
        parts += [name, _of_surrounding(value, seen)]
    return digest(*parts)


def _of_surrounding(value: Any, seen: tuple[Any, ...]) -> Any:
    """Something that a function uses from outside itself."""
    if isinstance(value, FunctionType | MethodType | partial):
        return _of_function(value, seen)
    if isinstance(value, ModuleType | type):
        return getattr(value, "__name__", "")
    if _is_plain(value) or isinstance(value, torch.Tensor | np.ndarray | Selector):
        return value
    return type(value).__qualname__


def _of_code(code: CodeType) -> str:
    consts = [_of_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return digest(code.co_code, *code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *consts)


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str, bytes)


def _of_tensor(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return _of_bytes(flat.view(torch.uint8).numpy() if len(flat) else np.zeros(0, np.uint8))


def _of_arrow(array: pa.Array | pa.ChunkedArray) -> str:
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    written = pa.RecordBatch.from_arrays([array], names=["x"]).serialize()
    return digest(str(array.type), len(array), _of_bytes(np.frombuffer(written, dtype=np.uint8)))


def _of_bytes(data: np.ndarray) -> str:
    """The digest of bytes ``[n]``, in pieces and by several threads where they are many."""
    if len(data) <= _CHUNK:
        return hashlib.sha256(data.data).hexdigest()
    pieces = [data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK)]
    with ThreadPoolExecutor(max(min(torch.get_num_threads(), os.cpu_count() or 1), 1)) as pool:
        found = list(pool.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces))
    return hashlib.sha256(b"".join(found)).hexdigest()
