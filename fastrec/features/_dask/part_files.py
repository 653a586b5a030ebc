"""``PartFiles``: a table in Parquet files, one per partition, with known groups of rows in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastrec.features._dask.blocks import task


class PartFiles:
    """A table in Parquet files with the parts of a Dask frame's interface that a FeatureSet uses.

    Columns are read where they are wanted and not kept in between, and groups of rows that lie in one file need not be
    shuffled.

    Args:
        files: a partition each; some may hold no rows.
        together: columns of which all rows of one value lie in one file, and in the file of the same number all that
            belongs to them of another table that names the column here (it need not have it).
        names: the columns; None: all.
    """

    divisions = None

    def __init__(self, files: Sequence[Path], together: Sequence[str] = (), names: Sequence[str] | None = None) -> None:
        self.files, self.together = list(files), tuple(together)
        self.columns = pq.read_schema(self.files[0]).names if names is None else list(names)

    def __getitem__(self, names: Sequence[str]) -> PartFiles:
        return PartFiles(self.files, self.together, names)

    def to_delayed(self) -> list[Any]:
        return [task(_read, str(file), self.columns) for file in self.files]


class MadeParts:
    """Result of a FeatureSet on ``PartFiles``, computed partition by partition on request.

    Args:
        parts: a task per partition that gives an Arrow table.
        columns: its columns.
    """

    divisions = None

    def __init__(self, parts: Sequence[Any], columns: Sequence[str]) -> None:
        self._parts, self.columns = list(parts), list(columns)

    def __getitem__(self, names: Sequence[str]) -> MadeParts:
        return MadeParts([task(pa.Table.select, p, list(names)) for p in self._parts], names)

    def to_delayed(self) -> list[Any]:
        return list(self._parts)


def _read(file: str, names: list[str]) -> pa.Table:
    return pq.ParquetFile(file).read(columns=names)
