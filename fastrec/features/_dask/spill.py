"""Tables that lie in files while others are worked on, in one process whose memory holds few of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask

from fastrec._core.leftovers import working_folder
from fastrec.table import Table

_SETTING = "fastrec.spill"


@dataclass(frozen=True)
class Spilled:
    """A table in a file."""

    path: str


@contextmanager
def spilled(beside: Path, *, made: Path | None = None) -> Iterator[Path]:
    """While it lasts Dask works in this thread, and rows that change partitions go through files.

    Args:
        beside: the folder of the files, gone at the end, is made in this one; what killed processes left there goes.
        made: the folder, where this process has made it before it began anew.
    """
    beside.mkdir(parents=True, exist_ok=True)
    with (
        working_folder(beside / "spilled", made=made) as folder,
        dask.config.set({"scheduler": "synchronous", _SETTING: str(folder)}),
    ):
        yield folder


def spill_folder() -> str | None:
    """Where tables that wait go; None: they stay in memory."""
    return dask.config.get(_SETTING, None)


def kept(table: Table) -> Table | Spilled:
    """The table, or the file that has it."""
    folder = spill_folder()
    if folder is None:
        return table
    path = Path(folder) / uuid4().hex
    with open(path, "wb") as file:
        pickle.dump(table, file, protocol=5)
    return Spilled(str(path))


def loaded(piece: Any, *, last: bool = False) -> Table:
    """The table of a piece; ``last``: nobody reads it again."""
    if not isinstance(piece, Spilled):
        return piece
    with open(piece.path, "rb") as file:
        table = pickle.load(file)
    if last:
        Path(piece.path).unlink()
    return table
