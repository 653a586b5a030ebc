"""Digests of users' functions, classes and objects: their code and all that it uses from outside.

Libraries count by name and version: their code does not change between two runs.
"""

from __future__ import annotations

import abc
import copyreg
import datetime as dt
import decimal
import dis
import enum
import fractions
import functools
import importlib.util
import pathlib
import random
import re
import site
import sys
import sysconfig
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch


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
