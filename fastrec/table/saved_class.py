"""``load_as``: what ``save_state`` wrote of an object of some known class, as an object again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastrec.errors import DataError, UnreadableFileError
from fastrec.table.state import load_state

__all__ = ["load_as"]

T = TypeVar("T")


def load_as(
    asked: type[T], folder: str | Path, classes: Mapping[str, type[Any]], made_of: Callable[[dict[str, Any]], Any]
) -> T:
    """Read an object whose state names its class as ``'class'``. Nothing is imported that a file names.

    Args:
        asked: the class, or a base of it, that the caller wants.
        folder: where it was saved.
        classes: those that may be, by name.
        made_of: makes the object of the state.

    Raises:
        MissingFileError, UnreadableFileError: there is nothing usable at ``folder``.
        DataError: the class is not known, or is not based on ``asked``.
    """
    state = load_state(folder)
    found = classes.get(str(state.get("class")))
    if found is None or not issubclass(found, asked):
        known = "not known here" if found is None else f"no {asked.__name__}"
        raise DataError(
            f"it holds a {state.get('class')!r}, which is {known}",
            file=folder,
            remedy="Use the load of the class that they have in common; import the module of a class of your own first",
        )
    try:
        return made_of(state)
    except (KeyError, TypeError, ValueError) as error:
        remedy = "Give the folder of a save, or save it again"
        raise UnreadableFileError(f"what is saved cannot be read ({error})", file=folder, remedy=remedy) from error
