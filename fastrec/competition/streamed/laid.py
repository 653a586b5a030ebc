"""``Laid``: the parts of a streamed ranking on the disk, a file for each part and kind of rows."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from fastrec.competition.data import CompetitionData
from fastrec.errors import DataError, DataWarning
from fastrec.table import Table


class _Recipe(Protocol):
    name: str
    list_column: str
    held_out: int

    def load_part(self, part: Path) -> CompetitionData: ...


@dataclass
class Laid:
    """Parts on the disk, a file for each part and kind of rows."""

    folder: Path
    parts: int
    tables: list[str]
    counts: dict[str, int]

    def lines(self, model: str) -> Path:
        """Return the file of a model's submission."""
        return self.folder / f"{model}.csv"

    def files(self, kind: str) -> list[Path]:
        """Return the files of one kind of rows."""
        return [self.folder / kind / f"{i:05d}.parquet" for i in range(self.parts)]


def lay_out(recipe: _Recipe, parts: Sequence[Path], folder: Path, advance: Callable[[int], None]) -> Laid:
    """Read each part and write its rows: those to learn from, those held out, the test's, and the other tables."""
    if len(parts) < 2:
        raise DataError(f"{recipe.name}: the files were not cut into parts", remedy="Make two parts or more")
    counts, names, said = dict.fromkeys(("train", "valid", "test"), 0), [], 0
    for i, part in enumerate(parts):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            found = recipe.load_part(part)
        said += len(caught)
        if found.test is None or found.targets is None:
            raise DataError(f"{recipe.name}: a part has no test table", file=part, remedy="Give one, without rows")
        held = i % recipe.held_out == min(recipe.held_out, len(parts)) - 1
        none = found.train.slice(0, 0)
        rows = {"train": none if held else found.train, "valid": found.train if held else none, "test": found.test}
        counts = {n: counts[n] + len(t) for n, t in rows.items()}
        names = list(found.tables)
        tables = {f"table-{n}": t for n, t in found.tables.items()}
        for kind, table in {**rows, **tables}.items():
            write_part(folder / kind, i, _numbered(table, recipe.list_column, i))
        write_part(folder / "targets", i, found.targets)  # the submission's keys stay as the files have them
        shutil.rmtree(part)
        advance(len(found.train) + len(found.test))
    if said:
        warnings.warn(f"{said} warnings of {len(parts)} parts are not shown one by one", DataWarning, stacklevel=2)
    return Laid(folder, len(parts), names, counts)


def _numbered(table: Table, column: str, part: int) -> Table:
    """Give the lists ids that no other part has."""
    if column not in table:
        return table
    # The low 32 bits are the list's number in its part, the high ones the part's.
    return table.with_columns({column: table[column].integer() + (part << 32)})


def write_part(folder: Path, i: int, table: Table | pa.Table) -> None:
    """Write one part of a kind of rows."""
    folder.mkdir(exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else table.to_arrow(), folder / f"{i:05d}.parquet")
