"""Digests: equal short texts for equal columns, parameters or functions.

A user's function is digested by its code and everything it uses from outside, any other object by its pickle. Libraries
are digested by name and version, as their code does not change between runs.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.util
import os
import random
import site
import sys
import sysconfig
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.imports import library_of
from fastrec.features.base import Feature
from fastrec.features.columns import Selector
from fastrec.table import Column, Keys, Table


class NoDigestError(TypeError):
    """Error for a value without a stable digest, such as an open file or a random generator."""


_KNOWN: WeakKeyDictionary[Column, str] = WeakKeyDictionary()  # columns of the current run
_LISTS, _SETS = (list, tuple), (set, frozenset)
_DICTS = (dict, OrderedDict, types.MappingProxyType, Counter)
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_LOADS |= {"LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"}


def digest(*parts: Any) -> str:
    """Return 32 hexadecimal digits for values: text, numbers, tensors, columns, functions, generators, …"""
    return _guarded(lambda of: of.all(parts))


def column_digest(column: Column) -> str:
    """Digest a column's contents: values, missing, distinct values and their order, unit, zone."""
    about = (column.kind, column.ordered, column.unit, column.zone)
    return digest("column", *about, column.values, column.missing, column.distinct, column.elements)


def remember(column: Column, known: str) -> None:
    """Set a column's digest for this run, from its origin instead of its contents."""
    _KNOWN[column] = known


def columns_digest(table: Table, names: Iterable[str]) -> str:
    """Digest the names and contents of columns; absent columns are skipped."""
    there = [n for n in names if n in table]
    for name in there:
        # Computed once per run. A user may change memory in place, but the next run has new column objects.
        if table[name] not in _KNOWN:
            _KNOWN[table[name]] = column_digest(table[name])
    return digest(len(table), table.device.type, *(v for n in there for v in (n, _KNOWN[table[n]])))


def generator_digest(step: Feature) -> str:
    """Digest a generator's class and parameters, including its inner generators."""
    return _guarded(lambda of: of.generator(step))


def class_digest(cls: type) -> str:
    """Digest a class by its name and, unless it belongs to fastrec or a library, by its members."""
    return _guarded(lambda of: of.once(cls, of.of_class))


def _guarded(make: Callable[[_Digests], str]) -> str:
    try:
        return make(_Digests())
    except RecursionError as error:
        raise NoDigestError("a value that goes too deep has no digest") from error


class _Digests:
    """State of one digest: visited values, and the depth of nested functions."""

    def __init__(self) -> None:
        self.met: dict[tuple[int, bool], tuple[Any, str]] = {}
        self.depth = 0  # within a function a fitted generator's state counts too

    def all(self, parts: Iterable[Any]) -> str:
        return hashlib.sha256("\x1f".join(map(self.text, parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def named(self, where: str, items: Iterable[tuple[Any, Any]]) -> str:
        """Digest names with their values; errors name the path to a value."""
        parts = []
        for name, value in items:
            try:
                parts += [name, self.text(value)]
            except NoDigestError as error:
                raise NoDigestError(f"{where} {name!r}: {error}") from error
        return self.all(parts)

    def once(self, value: Any, make: Callable[[Any], str]) -> str:
        """Return ``make(value)``, computed once; a recursive reference becomes a number, so that recursion ends."""
        key = (id(value), self.depth > 0)
        if key not in self.met:  # the value is stored too, as its id could be reused
            self.met[key] = (value, f"within:{len(self.met)}")
            self.met[key] = (value, make(value))
        return self.met[key][1]

    def text(self, value: Any) -> str:
        kind = type(value)
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return f"{kind.__name__}:{value!r}"
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                raise NoDigestError(f"a {value.layout} tensor has no digest")
            flat = value.detach().cpu().contiguous().reshape(-1)
            if len(flat) == 1:  # one element is contiguous for any stride, but may have no byte view
                flat = flat.as_strided((1,), (1,))
            data = flat.view(torch.uint8).numpy() if len(flat) else np.zeros(0, np.uint8)
            return f"tensor:{value.dtype}:{tuple(value.shape)}:{_of_bytes(data)}"
        if isinstance(value, Column):
            return column_digest(value)
        if isinstance(value, Table):
            return f"table:{self.all(v for n in value.names for v in (n, value[n]))}:{value.device.type}"
        if isinstance(value, Keys):
            return f"keys:{self.all([*value.names, '|', *value.columns])}"
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return f"array:{_of_arrow(value)}"
        if isinstance(value, np.ndarray | np.generic):
            return f"numpy:{value.dtype}:{value.shape}:{self._of_numpy(value)}"
        if isinstance(value, torch.dtype | torch.device | pa.DataType):
            return f"{kind.__name__}:{value}"
        if isinstance(value, Feature):
            learned = vars(value) if self.depth else {}  # a function may use the fitted state
            return f"generator:{self.generator(value)}:{self.all(learned.items())}"
        if isinstance(value, Selector):
            return f"selector:{self.all([repr(value), value.names_])}"
        if isinstance(value, types.ModuleType):
            if not is_library(value.__name__):
                raise NoDigestError(f"the module {value.__name__}, used as a whole, has no digest")
            return f"module:{_version_of(value.__name__)}"
        if isinstance(value, type):
            return f"class:{self.once(value, self.of_class)}"
        if kind in _LISTS + _SETS + _DICTS:
            return self.once(value, self._of_container)
        if isinstance(value, types.FunctionType | types.CodeType):
            return f"function:{self.once(value, self._of_function)}"
        if library_of(value) == "cudf" and hasattr(value, "to_pandas"):
            value = value.to_pandas()
        return f"{kind.__name__}:{self.once(value, self._of_object)}"

    def generator(self, step: Feature) -> str:
        return self.all([type(step), *(v for item in step.get_params().items() for v in item)])

    def _of_container(self, value: Any) -> str:
        if isinstance(value, _LISTS):
            return f"list:{len(value)}:{self.all(value)}"
        if isinstance(value, _SETS):  # in an order independent of the process's hash seed
            return f"set:{len(value)}:{self.all(sorted(map(self.text, value)))}"
        return f"dict:{len(value)}:{self.all(v for item in value.items() for v in item)}"

    def _of_numpy(self, value: np.ndarray | np.generic) -> str:
        if np.ma.isMaskedArray(value):
            return self.all([np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value])
        if value.dtype.hasobject:
            return self.all([value.tolist()])
        return _of_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8))

    def _of_function(self, function: types.FunctionType | types.CodeType) -> str:
        # Compiled code, because ``inspect.getsource`` reads the file as it is now, not as it was imported.
        if isinstance(function, types.CodeType):
            counts = [function.co_argcount, function.co_posonlyargcount, function.co_kwonlyargcount, function.co_flags]
            names = [function.co_names, function.co_varnames, function.co_freevars]
            return self.all([function.co_code, function.co_exceptiontable, counts, *names, *function.co_consts])
        home = function.__globals__.get("__name__")  # not __module__: ``functools.wraps`` copies it
        if is_library(home) and getattr(sys.modules.get(home), "__dict__", None) is function.__globals__:
            return self.all([_version_of(home), function.__qualname__, function.__code__.co_code])
        around = {**(function.__kwdefaults__ or {}), **function.__dict__}
        around |= {str(i): v for i, v in enumerate(function.__defaults__ or ())}
        self.depth += 1
        try:
            used = self.named(f"{function.__qualname__} uses", [*sorted(around.items()), *_used(function)])
            return self.all([function.__code__, used])
        finally:
            self.depth -= 1

    def of_class(self, cls: type) -> str:
        parts: list[Any] = [cls.__qualname__]
        for base in cls.__mro__:
            parts += [_version_of(base.__module__), base.__qualname__]
            if not is_library(base.__module__):
                # Of the names that Python sets, only methods affect behaviour.
                held = {n: v for n, v in vars(base).items() if callable(v) or not n.startswith("__")}
                held = {n: v for n, v in held.items() if not n.startswith(("_abc_", "__annot"))}
                parts.append(self.named(f"the class {base.__qualname__} holds", sorted(held.items())))
        return self.all(parts)

    def _of_object(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, property):
            return self.all([value.fget, value.fset, value.fdel])
        wrapped = value.func if isinstance(value, functools.cached_property) else getattr(value, "__wrapped__", None)
        if callable(wrapped) and is_library(kind.__module__):  # static and class methods, lru_cache, numba's functions
            return self.all([kind, wrapped])
        if isinstance(value, _RANDOM):
            raise NoDigestError(f"a {kind.__name__} has no digest, for it changes with every use")
        try:
            if kind is object and not self.depth:  # meaningless as a parameter; in a function it may be a sentinel
                raise TypeError(value)
            made = copyreg.dispatch_table.get(kind, lambda v: v.__reduce_ex__(2))(value)
            home = getattr(value, "__module__", None) or kind.__module__
            if isinstance(made, str) and not is_library(home):
                raise TypeError(made)
        except Exception as error:
            raise NoDigestError(f"a {kind.__name__} has no digest") from error
        if isinstance(made, str):
            return self.all([_version_of(home), made])
        make, args, state, *items = made if len(made) > 2 else (*made, None)
        if isinstance(state, dict):
            state = self.named(f"a {kind.__name__} holds", sorted(state.items(), key=lambda item: str(item[0])))
        return self.all([kind, make, args, state, *(None if i is None else list(i) for i in items)])


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the outside names, with values, that a function and its inner functions use."""
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, *attributes in sorted(_loads(function.__code__)):
        if name.startswith("import "):
            module = name.removeprefix("import ")
            if module.startswith("."):
                module = importlib.util.resolve_name(module, function.__globals__.get("__package__") or None)
            if module not in sys.modules and not is_library(module):
                raise NoDigestError(f"the module {module}, which is not imported yet, has no digest")
            value = sys.modules.get(module)
        elif name in free:
            try:
                value = free[name].cell_contents
            except ValueError:  # not yet filled
                value = "empty"
        elif name in function.__globals__:
            value = function.__globals__[name]
        else:  # a builtin, or not defined yet
            continue
        while isinstance(value, types.ModuleType) and attributes:
            name, value = f"{name}.{attributes[0]}", getattr(value, attributes.pop(0), "not there")
        yield name, value


@functools.cache
def _loads(code: types.CodeType) -> frozenset[tuple[str, ...]]:
    """Return the names that code loads from outside, each followed by the attributes read from it directly."""
    found: set[tuple[str, ...]] = set()
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            taken = [i.argval for i in steps[at + 1 :] if i.opname == "IMPORT_FROM"]
            found |= {(f"import {'.' * steps[at - 2].argval}{step.argval}", n) for n in taken or code.co_names}
        elif step.opname in _LOADS:
            end = next(
                (j for j in range(at + 1, len(steps)) if steps[j].opname not in ("LOAD_ATTR", "LOAD_METHOD")), at
            )
            found.add(tuple(i.argval for i in steps[at:end]) or (step.argval,))
    return frozenset(found).union(*(_loads(c) for c in code.co_consts if isinstance(c, types.CodeType)))


@functools.cache
def is_library(module: str | None) -> bool:
    """Tell whether a module is Python's, fastrec's or installed, so that its code does not change."""
    top = (module or "builtins").partition(".")[0]
    if top == "fastrec" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None and top not in sys.modules:
        file = getattr(importlib.util.find_spec(top), "origin", None)
    places = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    return file is not None and any(Path(place) in Path(file).parents for place in places if place)


def _version_of(module: str | None) -> str:
    """Return a library's name and version, any other module's name."""
    top = (module or "builtins").partition(".")[0]
    return f"{module} {getattr(sys.modules.get(top), '__version__', '')}"


def _of_arrow(array: pa.Array | pa.ChunkedArray) -> str:
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    written = pa.RecordBatch.from_arrays([array], names=["x"]).serialize()
    return digest(str(array.type), len(array), _of_bytes(np.frombuffer(written, dtype=np.uint8)))


def _of_bytes(data: np.ndarray) -> str:
    if len(data) <= limits.DIGEST_CHUNK:
        return hashlib.sha256(data.data).hexdigest()
    # In pieces, so that several threads can hash large arrays.
    pieces = [data[i : i + limits.DIGEST_CHUNK] for i in range(0, len(data), limits.DIGEST_CHUNK)]
    with ThreadPoolExecutor(max(min(torch.get_num_threads(), os.cpu_count() or 1), 1)) as pool:
        found = list(pool.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces))
    return hashlib.sha256(b"".join(found)).hexdigest()
