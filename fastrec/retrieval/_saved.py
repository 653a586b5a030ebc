"""``Saved``: parts of a recommender as plain state, without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa

from fastrec.errors import DataError
from fastrec.table import Column, as_column
from fastrec.table.state import class_named, saved_name, settings_of

__all__ = ["Saved", "ids_of", "part_of", "state_of"]


class Saved:
    """A part of a recommender that can be saved.

    A class of your own keeps the constructor's arguments as attributes of their names and names in ``learned`` the
    attributes that ``fit`` sets (none: ``()``); or it defines ``to_state`` and ``from_state``.
    """

    learned: ClassVar[Sequence[str] | None] = None

    def to_state(self) -> dict[str, Any]:
        """Return what it is made of, as ``fastrec.table.save_state`` takes it."""
        if self.learned is None:  # else it would be saved without what it has learned
            raise _not_saved(self)
        state = settings_of(self) | {name: getattr(self, name) for name in self.learned}
        return {n: ids_of(v, n) if isinstance(v, Column) else v for n, v in state.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        made = cls(**{n: v for n, v in state.items() if n not in (cls.learned or ())})
        vars(made).update({n: state[n] for n in cls.learned or ()})
        return made


def state_of(part: Any) -> dict[str, Any]:
    """Return a part's state with the name of its class.

    Raises:
        DataError: it is a function, or of a class that says no state.
    """
    if not isinstance(part, Saved):
        raise _not_saved(part)
    return {"class": saved_name(type(part)), "state": part.to_state()}


def part_of(state: dict[str, Any]) -> Any:
    """Undo ``state_of``.

    Raises:
        DataError: the class is not known here.
    """
    return class_named(Saved, state["class"]).from_state(state["state"])


def ids_of(ids: Any, name: str = "item") -> pa.Array:
    """Return ids of any library as an Arrow array."""
    if not len(ids):
        return pa.array([], pa.int64())
    found = as_column(ids, name=name).to_arrow()
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _not_saved(part: Any) -> DataError:
    name = getattr(part, "__name__", type(part).__name__)
    remedy = "Make it a class with to_state and from_state, based on fastrec.retrieval.Saved"
    return DataError(f"{name} cannot be saved", remedy=remedy)
