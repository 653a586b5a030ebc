"""The classes of saved objects, by name: those of fastrec are found in its rooms, wherever they have been used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, isabstract, signature
from pathlib import Path
from typing import Any, TypeVar

from fastrec.errors import DataError, UnreadableFileError
from fastrec.table.state import load_state

__all__ = ["class_named", "known_classes", "load_as", "saved_name", "settings_of"]

T = TypeVar("T")
# The rooms with classes of saved objects, from the ground up: a class is in its base's room, or in one above it.
_ROOMS = ("features", "tabular", "estimators", "sequences", "retrieval", "stacking")


def saved_name(cls: type) -> str:
    """Return the name that finds a saved object's class again: fastrec's by name, others with module."""
    return cls.__name__ if _is_own(cls) else f"{cls.__module__}:{cls.__qualname__}"


def settings_of(thing: object) -> dict[str, Any]:
    """Return the arguments of an object's constructor, read from its attributes of the same names."""
    arguments = list(signature(type(thing).__init__).parameters.values())[1:]
    return {
        a.name: getattr(thing, a.name)
        for a in arguments
        if a.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    }


def known_classes(base: type[T]) -> dict[str, type[T]]:
    """Return the concrete subclasses of a base that are defined so far, by their saved names."""
    found: dict[str, type[T]] = {}
    for cls in base.__subclasses__():
        found |= {} if isabstract(cls) else {saved_name(cls): cls}
        found |= known_classes(cls)
    return found


def class_named(base: type[Any], name: Any, asked: type[T] | None = None) -> type[T]:
    """Return the class of a saved name. Only fastrec's rooms are imported, never a module that a file names.

    Args:
        base: what all classes that may be saved so have in common, one of fastrec's.
        name: what ``saved_name`` gave.
        asked: the class, or a base of it, that the caller wants; None: ``base``.

    Raises:
        DataError: there is no such class, it is a user's and not imported, or it is not based on ``asked``.
    """
    asked = base if asked is None else asked
    if not _is_own(asked) and isinstance(name, str) and name.endswith(f":{asked.__qualname__}"):
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
        raise DataError(
            f"it holds a {name!r}, which is not known here",
            remedy="Import the module that defines a class of your own first",
        )
    if not issubclass(found[name], asked):
        raise DataError(f"it holds a {name!r}, which is no {asked.__name__}", remedy=f"Use the load of {base.__name__}")
    return found[name]


def load_as(asked: type[T], base: type[Any], folder: str | Path, made_of: Callable[[dict[str, Any]], Any]) -> T:
    """Read an object whose state names its class as ``'class'``.

    Args:
        asked: the class, or a base of it, that the caller wants.
        base: what all classes that may be saved so have in common.
        folder: where it was saved.
        made_of: makes the object of the state.

    Raises:
        MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
        DataError: the class is not known, or is not based on ``asked``.
    """
    state = load_state(folder)
    try:
        class_named(base, state.get("class"), asked)
        return made_of(state)
    except DataError as error:
        raise DataError(error.problem, file=folder, remedy=error.remedy) from error
    except (KeyError, TypeError, ValueError) as error:
        remedy = "Give the folder of a save, or save it again"
        raise UnreadableFileError(f"what is saved cannot be read ({error})", file=folder, remedy=remedy) from error


def _is_own(cls: type) -> bool:
    return cls.__module__.startswith("fastrec.")
