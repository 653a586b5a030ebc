"""A table in memory whose rows the workers of a cluster read from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from fastrec._core import limits
from fastrec.features._dask.blocks import task
from fastrec.table import Table


class SplitTable:
    """A table as a Dask frame of partitions in files.

    Args:
        table: the rows.
        folder: where the workers find the files.
        partitions: how many.
        names: the columns; None: all.
    """

    divisions = None

    def __init__(self, table: Table, folder: Path, partitions: int, names: Sequence[str] | None = None) -> None:
        self.table, self._folder, self._partitions = table, folder, partitions
        self.columns = table.names if names is None else list(names)
        self._files: list[Path] = []

    def __getitem__(self, names: Sequence[str]) -> SplitTable:
        self._write()
        made = SplitTable(self.table, self._folder, self._partitions, names)
        made._files = self._files
        return made

    def to_delayed(self) -> list[Any]:
        self._write()
        return [task(_read, str(file), self.columns) for file in self._files]

    def _write(self) -> None:
        if self._files:
            return
        size, name = max(-(-len(self.table) // self._partitions), 1), uuid4().hex
        whole = self.table.to_arrow().combine_chunks()
        for i, start in enumerate(range(0, max(len(whole), 1), size)):
            file = self._folder / f"{name}-{i}.arrow"
            part = whole.slice(start, size)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, part.schema) as writer:
                writer.write_table(part)
            self._files.append(file)


def _read(file: str, names: list[str]) -> pa.Table:
    with pa.memory_map(file) as source:
        return pa.ipc.open_file(source).read_all().select(names)


def splitter(folder: Path, partitions: int) -> Callable[[Table | None], Any]:
    """Return a function that splits tables, each once, for the workers of a cluster.

    Args:
        folder: where the workers find the files.
        partitions: how many each table has.
    """
    known: dict[int, SplitTable] = {}

    def split(table: Table | None) -> Any:
        if table is None:
            return None
        if id(table) not in known:  # the table is kept with it, so that its id stays its own
            known[id(table)] = SplitTable(table, folder, partitions)
            if len(known) > limits.SPLIT_TABLES:
                known.pop(next(iter(known)))
        return known[id(table)]

    return split
