"""Tables in files while others are processed, in one process with little memory."""

from __future__ import annotations

import os
import pickle
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import dask

from fastrec._core.leftovers import working_folder
from fastrec.table import Table

_SETTING = "fastrec.spill"


@contextmanager
def spilled(beside: Path, *, made: Path | None = None) -> Iterator[Path]:
    """Let Dask work in this thread, and move rows between partitions through files, meanwhile.

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
    """Return the folder for waiting tables; None: they stay in memory."""
    return dask.config.get(_SETTING, None)


class Shelf:
    """Numbered files of tables, removed when no task can read them any more.

    Args:
        folder: where the files lie.
        places: how many places there are; each may get many tables.
    """

    def __init__(self, folder: str, places: int) -> None:
        own = Path(folder) / uuid4().hex
        own.mkdir()
        self._files = [own / str(i) for i in range(places)]
        self._gone = weakref.finalize(self, shutil.rmtree, own, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._files)

    def put(self, at: int, table: Table) -> None:
        with open(self._files[at], "ab") as file:
            pickle.dump(table, file, protocol=5)

    def tables(self, at: int) -> list[Table]:
        found, path = [], self._files[at]
        if not path.exists():
            return found
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            while file.tell() < end:
                found.append(pickle.load(file))
        return found
