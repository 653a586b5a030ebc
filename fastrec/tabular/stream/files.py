"""Parquet files as a list of row groups: what there is to read, whether the files agree, blocks of a group's rows."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.table.keys import is_text
from fastrec.table.read import check_names

_AGAIN = "Make the ParquetFrame again, and leave its files alone while it is used"

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Unit:
    """Rows that are read together."""

    start: int
    rows: int
    file: int = 0
    group: int = 0


class ParquetSource:
    """The rows of several Parquet files (see ``list_files``), one file after the other."""

    def __init__(self, paths: Paths, columns: Sequence[str]) -> None:
        self.files = list_files(paths)
        self.stamps = [_stamp(file) for file in self.files]
        self._footers: list[str] | None = None
        self._metadata = [_metadata(file) for file in self.files]
        schemas = [m.schema.to_arrow_schema() for m in self._metadata]
        self.columns = list(dict.fromkeys(columns))
        for schema, file in zip(schemas, self.files, strict=True):
            check_names(schema.names, self.columns, file=file)
        self.schema = _agreed(schemas, self.files, self.columns)
        self._text = [f.name for f in self.schema if is_text(f.type)]
        self.units: list[Unit] = []
        self.rows = 0
        for i, metadata in enumerate(self._metadata):
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                if rows:
                    self.units.append(Unit(self.rows, rows, i, group))
                    self.rows += rows

    def __len__(self) -> int:
        return self.rows

    def blocks(
        self, unit: Unit, most: int, columns: Sequence[str] | None = None, *, skip: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield a unit's rows in order, at most ``most`` at a time.

        Each result is the number of the block's first row in the whole source, and the block. ``skip`` and ``stop``
        count rows of the unit.
        """
        names = self.columns if columns is None else list(columns)
        stop = unit.rows if stop is None else stop
        if not names:
            return
        try:
            with self._open(unit) as file:
                at = 0
                for table in self._tables(file, unit, most, names):
                    low, high = max(skip - at, 0), min(stop - at, len(table))
                    if low < high:
                        yield unit.start + at + low, table.slice(low, high - low)
                    at += len(table)
                    if at >= stop:
                        return
                if at < unit.rows:
                    raise pa.ArrowInvalid(f"row group {unit.group} ends after {at} of {unit.rows} rows")
        except (pa.ArrowException, OSError, EOFError) as error:
            if isinstance(error, UnreadableFileError):
                raise
            problem = f"row group {unit.group} cannot be read ({str(error).splitlines()[0]})"
            remedy = "Check that the file is whole and does not change while it is read; fetch or write it again"
            raise UnreadableFileError(problem, file=self.files[unit.file], remedy=remedy) from error

    def scan(self, most: int, columns: Sequence[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Yield all rows in order as ``blocks`` does, reading several small row groups at a time."""
        names = self.columns if columns is None else list(columns)
        waiting: list[Unit] = []
        for unit in [*self.units, None]:
            full = waiting and (
                unit is None or unit.file != waiting[0].file or sum(u.rows for u in waiting) + unit.rows > most
            )
            if full and names:
                yield from self._several(waiting, most, names)
            waiting = [] if full else waiting
            waiting += [unit] if unit is not None else []

    def _several(self, units: list[Unit], most: int, names: list[str]) -> Iterator[tuple[int, pa.Table]]:
        if len(units) == 1:
            yield from self.blocks(units[0], most, names)
            return
        try:
            with self._open(units[0]) as file:
                table = file.read_row_groups([u.group for u in units], columns=names).select(names)
            for column in table.columns:
                column.validate()
        except (pa.ArrowException, OSError, EOFError):  # reading them one by one names the bad one
            for unit in units:
                yield from self.blocks(unit, most, names)
            return
        yield units[0].start, table

    def _open(self, unit: Unit) -> pq.ParquetFile:
        # Text is read as codes and distinct values, as the file stores it: nothing is hashed.
        self._check_unchanged(unit.file)
        path, metadata = self.files[unit.file], self._metadata[unit.file]
        return pq.ParquetFile(path, metadata=metadata, read_dictionary=self._text)

    def _tables(self, file: pq.ParquetFile, unit: Unit, most: int, names: list[str]) -> Iterator[pa.Table]:
        if unit.rows <= most:
            table = file.read_row_group(unit.group, columns=names)
            for column in table.columns:
                column.validate()
            yield table.select(names)
            return
        for batch in file.iter_batches(most, row_groups=[unit.group], columns=names):
            yield pa.Table.from_batches([batch]).select(names)

    def footers(self) -> list[tuple[int, str]]:
        """Return the size in bytes of every file, and the digest of its footer.

        A footer holds types, row groups, places and bounds of all columns.
        """
        if self._footers is None:
            for i in range(len(self.files)):
                self._check_unchanged(i)
            self._footers = []
            for path in self.files:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(size - 8, 0))
                    length = int.from_bytes(file.read(4), "little")  # of the footer before it
                    file.seek(max(size - 8 - length, 0))
                    self._footers.append(hashlib.sha256(file.read()).hexdigest())
        return [(size, footer) for (size, _), footer in zip(self.stamps, self._footers, strict=True)]

    def _check_unchanged(self, i: int) -> None:
        # statistics and the places of pages were read from the footer of the file as it was
        stamp = _stamp(self.files[i])
        if stamp == self.stamps[i]:
            return
        if stamp[0] != self.stamps[i][0] or not _metadata(self.files[i]).equals(self._metadata[i]):
            problem = "the file is not the one any more that was first read"
            raise UnreadableFileError(problem, file=self.files[i], remedy=_AGAIN)

    def where(self, row: int) -> tuple[Path, int]:
        """Return the file that holds a row of the source, and the row's number in that file."""
        unit = next(u for u in reversed(self.units) if u.start <= row)
        return self.files[unit.file], row - next(u.start for u in self.units if u.file == unit.file)


def list_files(paths: Paths) -> list[Path]:
    """List the Parquet files of paths in the order given; those of a folder or a pattern by name."""
    found: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(path).expanduser()
        if path.is_dir():
            below = [p for ending in ("*.parquet", "*.pq") for p in path.rglob(ending)]
            # hidden files and folders may be half written
            hidden = {p for p in below if any(n.startswith((".", "_")) for n in p.relative_to(path).parts)}
            files = sorted({*below} - hidden)
        elif path.exists():
            files = [path]
        else:
            files = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
        if not files:
            raise MissingFileError("there are no Parquet files here", file=path, remedy="Check the path or the pattern")
        found += files
    if not found:
        raise MissingFileError("no Parquet file was named", remedy="Give a file, a folder, a pattern or a list of them")
    return found


def _metadata(file: Path) -> Any:
    try:
        found = pq.read_metadata(file)
        found.schema.to_arrow_schema()  # or an error: a type that Arrow does not know
        return found
    except (pa.ArrowException, OSError) as error:
        why = "is no Parquet file, not all of one, or has a type that Arrow does not know"
        problem = f"the file {why} ({str(error).splitlines()[0]})"
        raise UnreadableFileError(problem, file=file, remedy="Fetch or write it again") from error


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as error:
        problem = f"the file is not there any more ({error.strerror})"
        raise UnreadableFileError(problem, file=file, remedy=_AGAIN) from error
    return found.st_size, found.st_mtime_ns


def _agreed(schemas: Sequence[pa.Schema], files: Sequence[Path], columns: Sequence[str]) -> pa.Schema:
    """Return the columns' types, of the first file that has values in them; all files must agree."""
    fields = []
    for name in columns:
        first = None
        for schema, file in zip(schemas, files, strict=True):
            kind = schema.field(name).type
            if pa.types.is_null(kind):  # a column without a value fits any other
                continue
            if first is None:
                first, where = kind, file
            elif _family(kind) != _family(first):
                problem = f"holds {kind} here, but {first} in {where.name}"
                remedy = "Write the files with the same types, or leave the odd one out"
                raise DataError(problem, file=file, column=name, remedy=remedy)
        fields.append(pa.field(name, first if first is not None else pa.null()))
    return pa.schema(fields)


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_integer(kind):
        return "uint64" if pa.types.is_uint64(kind) else "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    return str(kind)
