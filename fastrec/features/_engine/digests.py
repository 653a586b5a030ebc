"""Digests: short text that two columns, parameters or functions share if they are equal."""

from __future__ import annotations

import abc
import copyreg
import datetime as dt
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib.util
import os
import pathlib
import random
import re
import site
import sys
import sysconfig
import types
import typing
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.imports import library_of
from fastrec.errors import FastrecError
from fastrec.features.base import Feature
from fastrec.features.columns import Selector
from fastrec.table import Column, Keys, Table, as_column

# Digests of users' functions, classes and objects: their code and all that it uses from outside.
#
# Libraries count by name and version: their code does not change between two runs.


class NoDigestError(TypeError):
    """Error for a value without a lasting digest, such as an open file or a random generator."""


_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.CodeType,
    types.BuiltinFunctionType,
    property,
    staticmethod,
    classmethod,
    functools.partial,
    functools.cached_property,
    np.ufunc,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)
_PLAIN = (dt.date, dt.time, dt.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID, range)
_PLAIN += (slice, pathlib.PurePath, type(Ellipsis), type(NotImplemented), type(None), bytearray, np.dtype)
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
_BARE = (object, abc.ABC, typing.Generic, typing.Protocol)  # bases that hold nothing
_ABOUT = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__abstractmethods__", "__classcell__"}
_ABOUT |= {"__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__annotations__"}
_ABOUT |= {"__annotate__", "__annotate_func__", "__annotations_cache__", "__dataclass_fields__", "__dataclass_params__"}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"}
_LOADS |= {"LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"}


class Surroundings:
    """Digests of code and objects; ``of`` digests several values and comes back here for objects.

    A function, a class or an object that was met before is named by its number, so that what refers to itself ends.

    Args:
        of: the digest of several values.
    """

    def __init__(self, of: Callable[..., str]) -> None:
        self.of = of
        self.met: dict[int, tuple[int, Any]] = {}  # the objects are kept, or another might get their id
        self.depth = 0  # of functions, within which a fitted generator's state counts as well

    def once(self, value: Any, make: Callable[[], str]) -> str:
        """Return what ``make`` returns, or the number of a value that was met before."""
        if id(value) in self.met:
            return f"again:{self.met[id(value)][0]}"
        self.met[id(value)] = (len(self.met), value)
        return make()

    def of_thing(self, value: Any) -> str:
        """Digest anything that is no plain value, column, tensor or frame."""
        if isinstance(value, _FUNCTIONS) or type(value).__name__ == "cython_function_or_method":
            return f"function:{self._of_function(value)}"
        if isinstance(value, type):
            return f"class:{self.of_class(value)}"
        if isinstance(value, types.ModuleType):
            if is_library(value.__name__):
                return f"module:{_version_of(value.__name__)}"
            raise NoDigestError(f"the module {value.__name__}, used as a whole, has no digest")
        if isinstance(value, enum.Enum):
            return f"enum:{self.of(type(value), value.name, value.value)}"
        if isinstance(value, re.Pattern):
            return f"pattern:{self.of(value.pattern, value.flags)}"
        if isinstance(value, _PLAIN) and (is_library(type(value).__module__)):
            return f"{type(value).__name__}:{value!r}"
        return self.once(value, lambda: f"object:{self._of_object(value)}")

    # Functions -------------------------------------------------------------------------------------------------------

    def _of_function(self, value: Any) -> str:
        if isinstance(value, property):
            return self.of(value.fget, value.fset, value.fdel)
        if isinstance(value, functools.partial):
            return self.of(value.func, list(value.args), dict(value.keywords))
        if isinstance(value, functools.cached_property):
            return self.of(value.func)
        if isinstance(value, staticmethod | classmethod):
            return self.of(type(value).__name__, value.__func__)
        if isinstance(value, types.CodeType):
            return self._of_code(value)
        if isinstance(value, types.MethodType):
            return self.of("method", value.__func__, value.__self__)
        if not isinstance(value, types.FunctionType):
            owner = getattr(value, "__self__", None)
            bound = () if owner is None or isinstance(owner, types.ModuleType) else (owner,)
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
            module = getattr(value, "__module__", None) or getattr(
                getattr(value, "__objclass__", None), "__module__", None
            )
            home = _version_of(module) if isinstance(module, str) else ""
            return self.of(type(value).__name__, home, name, *bound)
        home = value.__globals__.get("__name__")  # not __module__, which ``functools.wraps`` copies
        if is_library(home) and vars(sys.modules.get(home or "", self)) is value.__globals__:
            return self.of(_version_of(home), value.__qualname__, value.__code__.co_code)
        return self.once(value, lambda: self._of_own_function(value))

    def _of_own_function(self, function: types.FunctionType) -> str:
        parts: list[Any] = [self._of_code(function.__code__)]
        around = {**(function.__kwdefaults__ or {}), **function.__dict__}
        around |= {str(i): v for i, v in enumerate(function.__defaults__ or ())}
        self.depth += 1
        try:
            for name, value in [*sorted(around.items()), *_used(function)]:
                try:
                    parts += [name, self.of(value)]
                except NoDigestError as error:
                    raise NoDigestError(f"{function.__qualname__} uses {name!r}: {error}") from error
        finally:
            self.depth -= 1
        return self.of(*parts)

    def _of_code(self, code: types.CodeType) -> str:
        consts = [self._of_code(c) if isinstance(c, types.CodeType) else self.of(c) for c in code.co_consts]
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        names = [list(code.co_names), list(code.co_varnames), list(code.co_freevars)]
        return self.of(code.co_code, code.co_exceptiontable, counts, *names, *consts)

    # Classes and objects ---------------------------------------------------------------------------------------------

    def of_class(self, cls: type) -> str:
        """Digest a class by its name and, unless a library defines it, by all that it holds."""
        return self.once(cls, lambda: self._of_class(cls))

    def _of_class(self, cls: type) -> str:
        parts: list[Any] = [cls.__qualname__]
        for base in cls.__mro__:
            if is_library(base.__module__):
                parts += [_version_of(base.__module__), base.__qualname__]
                continue
            parts += [base.__module__, base.__qualname__]
            for name, value in sorted(vars(base).items()):
                if name in _ABOUT or name.startswith("_abc_"):
                    continue
                try:
                    parts += [name, self.of(value)]
                except NoDigestError as error:
                    raise NoDigestError(f"the class {base.__qualname__} holds {name!r}: {error}") from error
        return self.of(*parts)

    def _of_object(self, value: Any) -> str:
        kind = type(value)
        if kind is object and not self.depth:  # as a parameter it says nothing; a function's may be a mark of its own
            raise NoDigestError("an object has no digest")
        if isinstance(value, _RANDOM):
            raise NoDigestError(f"a {kind.__name__} has no digest, for it changes with every use")
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType) and is_library(kind.__module__):  # lru_cache, numba's functions
            return self.of(kind, wrapped)
        if is_library(kind.__module__):
            return self.of(kind, _reduced(value))
        if any(is_library(b.__module__) and b not in _BARE for b in kind.__mro__):
            parts: list[Any] = [kind, _reduced(value)]  # it holds more than its attributes
        else:
            parts = [kind]
        for name, held in sorted(_state_of(value)):
            try:
                parts += [name, self.of(held)]
            except NoDigestError as error:
                raise NoDigestError(f"a {kind.__name__} holds {name!r}: {error}") from error
        return self.of(*parts)


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the outside names, with values, that a function and its inner functions use."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    free = {n: _cell(c) for n, c in cells}
    for name, attributes in sorted(_loads(function.__code__)):
        if name.startswith("import "):
            yield from _attributes(name, _imported(name.removeprefix("import "), function), attributes)
        elif name in free or name in function.__globals__:
            value = free[name] if name in free else function.__globals__[name]
            yield from _attributes(name, value, attributes)
        elif "." not in name:
            yield name, "not there, or Python's own"


def _imported(name: str, function: types.FunctionType) -> types.ModuleType | None:
    """Return the module that a local import names; None: a library's that is not loaded."""
    if name.startswith("."):
        name = importlib.util.resolve_name(name, function.__globals__.get("__package__") or None)
    if name not in sys.modules and not is_library(name):
        raise NoDigestError(f"the module {name}, which is not imported yet, has no digest")
    return sys.modules.get(name)


def _attributes(name: str, value: Any, attributes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    while isinstance(value, types.ModuleType) and attributes:
        name, value, attributes = (
            f"{name}.{attributes[0]}",
            getattr(value, attributes[0], "not there"),
            attributes[1:],
        )
    if isinstance(value, types.ModuleType) and not is_library(value.__name__):
        raise NoDigestError(f"{name!r}: the module {value.__name__}, used as a whole, has no digest")
    yield name, value


@cache
def _loads(code: types.CodeType) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Return the names that code loads from outside, each with the attributes taken from it at once."""
    found = set()
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for at, step in enumerate(steps):
        attributes: list[str] = []
        if step.opname == "IMPORT_NAME":
            taken = [i.argval for i in steps[at + 1 :] if i.opname == "IMPORT_FROM"]
            name = "." * steps[at - 2].argval + step.argval
            found |= {(f"import {name}", (n,)) for n in taken or code.co_names}
            continue
        if step.opname not in _LOADS:
            continue
        for after in steps[at + 1 :]:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            attributes.append(after.argval)
        found.add((step.argval, tuple(attributes)))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _loads(const)
    return frozenset(found)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return "empty"


def _state_of(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            name = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _reduced(value: Any) -> Any:
    """Return what pickle would write of an object."""
    kind = type(value)
    try:
        made = value.__reduce_ex__(2)
    except Exception as error:
        raise NoDigestError(f"a {kind.__name__} has no digest") from error
    if isinstance(made, str):
        if not is_library(kind.__module__):
            raise NoDigestError(f"a {kind.__name__} has no digest")
        return made
    make, args, state, *items = [*made, None, None, None, None][:5]
    if make in (copyreg.__newobj__, object.__reduce_ex__) or make.__module__ == "copyreg":
        make = "new"
    return [make, list(args), state, *(None if i is None else list(i) for i in items)]


@cache
def is_library(module: str | None) -> bool:
    """Tell whether a module is Python's, fastrec's or installed, so that its code does not change."""
    top = (module or "builtins").partition(".")[0]
    if top in ("fastrec", "builtins") or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None and top not in sys.modules:
        spec = importlib.util.find_spec(top)
        file = None if spec is None else spec.origin
    return file is not None and any(place in pathlib.Path(file).parents for place in _installed())


@cache
def _installed() -> tuple[pathlib.Path, ...]:
    places = {sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(map(pathlib.Path, filter(None, {*places, *site.getsitepackages(), site.getusersitepackages()})))


def _version_of(module: str | None) -> str:
    """Return a library's name and version, any other module's name."""
    top = (module or "builtins").partition(".")[0]
    return f"{module} {getattr(sys.modules.get(top), '__version__', '')}"


_KNOWN: WeakKeyDictionary[Column, str] = WeakKeyDictionary()  # of one run's columns, for its steps


def digest(*parts: Any) -> str:
    """Return 32 hexadecimal digits for several values: text, numbers, tensors, columns, functions, generators, …"""
    return _guarded(lambda of: of.all(parts))


def column_digest(column: Column) -> str:
    """Digest a column's contents: values, missing, distinct values and their order, unit, zone."""
    about = (column.kind, column.ordered, column.unit, column.zone)
    return digest("column", *about, column.values, column.missing, column.distinct, column.elements)


def remember(column: Column, known: str) -> None:
    """Set a column's digest for this run: one of its origin instead of its contents."""
    _KNOWN[column] = known


def columns_digest(table: Table, names: Iterable[str]) -> str:
    """Digest columns of one run's table and their names; absent columns are left out.

    A column's digest is found once. Memory may be shared with what a user changes in place: a run's columns are its own
    objects, and those of the next run are looked at anew.
    """
    there = [n for n in names if n in table]
    for name in there:
        if table[name] not in _KNOWN:
            _KNOWN[table[name]] = column_digest(table[name])
    return digest(len(table), table.device.type, *(v for n in there for v in (n, _KNOWN[table[n]])))


def generator_digest(step: Feature) -> str:
    """Digest a generator's class and parameters, including the generators that it reads."""
    return _guarded(lambda of: of.generator(step))


def class_digest(cls: type) -> str:
    """Digest a class by its name and, unless it is fastrec's or a library's, by all that it holds."""
    return _guarded(lambda of: of.around.of_class(cls))


def _guarded(make: Any) -> str:
    try:
        return make(_Digests())
    except RecursionError as error:
        raise NoDigestError("a value that goes too deep has no digest") from error


class _Digests:
    """State of one digest: the values met so far."""

    def __init__(self) -> None:
        self.around = Surroundings(lambda *parts: self.all(parts))
        self.within: list[int] = []  # the containers around what is looked at

    def all(self, parts: Iterable[Any]) -> str:
        text = "\x1f".join(map(self.text, parts))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                raise NoDigestError(f"a {value.layout} tensor has no digest")
            flat = value.detach().cpu().contiguous().reshape(-1)
            if len(flat) == 1:  # one element counts as contiguous whatever its stride, but has no view as bytes then
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
        if type(value) in (list, tuple, set, frozenset, dict, OrderedDict, MappingProxyType, Counter):
            return self._of_container(value)
        return self._of_thing(value)

    def _of_container(self, value: Any) -> str:
        if id(value) in self.within:
            return f"within:{self.within.index(id(value))}"
        self.within.append(id(value))
        try:
            if isinstance(value, list | tuple):
                return f"list:{len(value)}:{self.all(value)}"
            if isinstance(value, set | frozenset):
                return f"set:{len(value)}:{self.all(sorted(self.text(v) for v in value))}"
            return f"dict:{len(value)}:{self.all(v for item in value.items() for v in item)}"
        finally:
            self.within.pop()

    def _of_thing(self, value: Any) -> str:
        if isinstance(value, Feature):
            learned = vars(value) if self.around.depth else {}  # a function may use what it was fitted on
            return f"generator:{self.generator(value)}:{self.all(learned.items())}"
        if isinstance(value, Selector):
            return f"selector:{self.all([repr(value), value.names_])}"
        if isinstance(value, np.ndarray | np.generic):
            return f"numpy:{value.dtype}:{value.shape}:{self._of_numpy(value)}"
        if isinstance(value, torch.dtype | torch.device | pa.DataType):
            return f"{type(value).__name__}:{value}"
        if library_of(value) in ("pandas", "polars", "cudf", "pyarrow") and not isinstance(value, type):
            return f"frame:{self._of_frame(value)}"
        return self.around.of_thing(value)

    def generator(self, step: Feature) -> str:
        return self.all([self.around.of_class(type(step)), *(v for item in step.get_params().items() for v in item)])

    def _of_numpy(self, value: np.ndarray | np.generic) -> str:
        if np.ma.isMaskedArray(value):
            return self.all([np.ma.getdata(value), np.ma.getmaskarray(value), value.fill_value])
        if value.dtype.hasobject:
            return self.all([value.tolist()])
        return _of_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8))

    def _of_frame(self, value: Any) -> str:
        kind = type(value).__name__
        if kind in ("Series", "DataFrame") and hasattr(value, "index"):
            if kind == "Series":
                return self.all([kind, value.name, value.index, self._of_series(value)])
            columns = [self._of_series(value.iloc[:, i]) for i in range(value.shape[1])]
            return self.all([kind, list(value.columns), value.index, *columns])
        if hasattr(value, "to_frame") and hasattr(value, "get_level_values"):
            levels = [self._of_series(value.get_level_values(i).to_series()) for i in range(value.nlevels)]
            return self.all([kind, list(value.names), *levels])
        try:
            return self.all([kind, as_column(value) if kind == "Series" else Table.read(value)])
        except FastrecError:
            return self.around.of_thing(value)

    def _of_series(self, series: Any) -> str:
        try:
            return self.all([str(series.dtype), as_column(series)])
        except FastrecError:  # objects of several kinds
            return self.all([str(series.dtype), series.tolist()])


def _of_arrow(array: pa.Array | pa.ChunkedArray) -> str:
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    written = pa.RecordBatch.from_arrays([array], names=["x"]).serialize()
    return digest(str(array.type), len(array), _of_bytes(np.frombuffer(written, dtype=np.uint8)))


def _of_bytes(data: np.ndarray) -> str:
    if len(data) <= limits.DIGEST_CHUNK:
        return hashlib.sha256(data.data).hexdigest()
    # In pieces, so that several threads hash large arrays.
    pieces = [data[i : i + limits.DIGEST_CHUNK] for i in range(0, len(data), limits.DIGEST_CHUNK)]
    with ThreadPoolExecutor(max(min(torch.get_num_threads(), os.cpu_count() or 1), 1)) as pool:
        found = list(pool.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces))
    return hashlib.sha256(b"".join(found)).hexdigest()
