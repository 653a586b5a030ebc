"""Rows that a stream reads: of Parquet files, prepared as they come, or of a folder that holds them packed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from fastrec.column_parts import part_of
from fastrec.convert import column_names
from fastrec.errors import DataError, UnreadableFileError
from fastrec.files import atomic_folder, check_replaceable
from fastrec.packed import Layout, Packed
from fastrec.prepare import Recipe
from fastrec.stream_files import ParquetSource, Paths, Unit
from fastrec.stream_order import Piece
from fastrec.stream_reader import Chunk, take_in_turn
from fastrec.table import Table

_BLOCK = 262_144  # rows of a group decoded at a time, at most
_SCANNED = 131_072  # rows read at a time to learn from them
_PACKED = 65_536  # rows packed at a time: they stay in the cache
_OPEN = 4  # row groups larger than that are read in turn, so many at a time
_CACHED = 8_192  # rows of a cache that are read together
_FILES = ("rows.bin", "about.json")
_VERSION = 1


class Rows:
    """Rows to stream: ``units`` of them, and how they are packed."""

    units: list[Unit]
    layout: Layout
    with_y: bool

    def __len__(self) -> int:
        return sum(u.rows for u in self.units)

    def pieces(self, window: int) -> list[Unit]:
        """What is read together, in order."""
        return self.units

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Packed rows of pieces, in this order but for ``seed``."""
        raise NotImplementedError


class FileRows(Rows):
    """Rows of Parquet files.

    Args:
        source: the files.
        paths: what the user called them.
        recipe: how rows are prepared.
    """

    def __init__(self, source: ParquetSource, paths: Paths, recipe: Recipe) -> None:
        self.source, self.paths, self.recipe, self.units = source, paths, recipe, source.units
        self.with_y = bool(recipe.labels.names)
        self.made: Table | None = None

    @property
    def layout(self) -> Layout:
        """How rows are packed."""
        return self.recipe.layout(with_y=self.with_y)

    def make_features(self, *, fit: bool) -> None:
        """Compute the columns of ``features``, of all rows at once."""
        features = self.recipe.features
        if features is None:
            return
        wanted = getattr(features, "fit_inputs" if fit else "inputs", None)
        source = ParquetSource(self.paths, wanted if wanted is not None else self.source.schema.names)
        tables = [table for _, table in source.scan(_SCANNED)]
        frame = pa.concat_tables(tables, promote_options="permissive") if tables else source.schema.empty_table()
        made = features.fit_transform(frame) if fit else features.transform(frame)
        there = set(column_names(made))
        self.made = Table.read(made, [n for n in features.outputs if n in there])

    def tables(self) -> Iterator[tuple[int, Table]]:
        """All rows in order, with the columns of ``features``, block by block; and each block's first row."""
        for start, block in self.source.scan(_SCANNED):
            yield start, self._table(start, block)

    def _table(self, start: int, block: pa.Table) -> Table:
        table = Table.read(block.combine_chunks())
        if self.made is None:
            return table
        stop = start + len(block)
        return table.with_columns({n: part_of(self.made[n], start, stop) for n in self.made.names})

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Packed rows of pieces; of large row groups several are open, and read in turn."""
        large = any(p.unit.rows > _BLOCK for p in pieces)
        sources = (self._unit_chunks(p) for p in pieces)
        return take_in_turn(sources, _OPEN if large else 1, seed)

    def _unit_chunks(self, piece: Piece) -> Iterator[Chunk]:
        for start, block in self.source.blocks(piece.unit, _BLOCK, skip=piece.skip, stop=piece.stop):
            for at in range(0, len(block), _PACKED):
                part = block.slice(at, _PACKED)
                yield len(part), self._writer(start + at, part)

    def _writer(self, first: int, block: pa.Table) -> Callable[[int, int], Callable[[Packed], None]]:
        def part(start: int, stop: int) -> Callable[[Packed], None]:
            def write(room: Packed) -> None:
                self.pack(first + start, self._table(first + start, block.slice(start, stop - start)), room)

            return write

        return part

    def pack(self, start: int, table: Table, room: Packed) -> None:
        """Prepare a block that begins at row ``start``.

        Raises:
            DataError: naming the file, and the row in it.
        """
        try:
            self.recipe.pack(table, device=None, into=room)
        except DataError as error:
            file, row = self.source.where(start + (error.row or 0))
            row = row if error.row is not None else None
            raise type(error)(error.problem, file=file, column=error.column, row=row, remedy=error.remedy) from error

    def fingerprint(self) -> dict[str, Any]:
        """What the packed rows depend on."""
        files = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in self.source.files]
        recipe = self.recipe
        procs = [json.dumps(_plain(p.to_state()), sort_keys=True) for p in recipe.procs]
        labels = [recipe.labels.names, recipe.labels.kind, _plain(recipe.labels.values)]
        layout = {k: str(v) for k, v in asdict(self.layout).items()}
        made = self.made.names if self.made is not None else []
        given = {"files": files, "cats": recipe.cats, "conts": recipe.conts, "procs": procs, "made": made}
        given |= {"labels": labels, "layout": layout, "rows": len(self), "version": _VERSION}
        return json.loads(json.dumps(given))


def _plain(value: Any) -> Any:
    """States as JSON values, large arrays as a digest of their bytes."""
    import hashlib

    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.cpu().contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, pa.Array):
        return hashlib.sha256(repr((str(value.type), value.to_pylist())).encode()).hexdigest()
    return value if isinstance(value, str | int | float | bool | type(None)) else repr(value)


class CachedRows(Rows):
    """Packed rows in a folder, written from other rows where they are not there yet.

    Args:
        rows: where they come from.
        folder: where they are kept.

    Raises:
        WriteError: the folder holds something else, or cannot be written.
    """

    def __init__(self, rows: FileRows, folder: Path) -> None:
        self.layout, self.with_y, self.folder = rows.layout, rows.with_y, folder
        given = rows.fingerprint()
        if not self._holds(given):
            self._write(rows, given)
        self.units = _cut(len(rows), _CACHED)

    @classmethod
    def none(cls, recipe: Recipe) -> CachedRows:
        """No rows at all."""
        empty = cls.__new__(cls)
        empty.layout, empty.with_y = recipe.layout(with_y=bool(recipe.labels.names)), bool(recipe.labels.names)
        empty.units, empty.folder = [], Path()
        return empty

    def pieces(self, window: int) -> list[Unit]:
        """Pieces small enough that many of them are mixed."""
        return _cut(len(self), min(_CACHED, max(window // 32, 1)))

    def _holds(self, given: dict[str, Any]) -> bool:
        try:
            about = json.loads((self.folder / "about.json").read_text())
            size = (self.folder / "rows.bin").stat().st_size
        except (OSError, ValueError):
            return False
        return about == given and size == given["rows"] * self.layout.words * 4

    def _write(self, rows: FileRows, given: dict[str, Any]) -> None:
        check_replaceable(self.folder, *_FILES)
        with atomic_folder(self.folder) as folder:
            with (folder / "rows.bin").open("wb") as file:
                for start, table in rows.tables():
                    room = Packed.empty(len(table), self.layout)
                    rows.pack(start, table, room)
                    file.write(memoryview(room.buffer.numpy()).cast("B"))
            (folder / "about.json").write_text(json.dumps(given))

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Packed rows as they lie in the file."""
        path = self.folder / "rows.bin"
        width = self.layout.words * 4
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise _gone(path) from error
        try:
            for piece in pieces:
                yield piece.rows, _reader(path, file, piece.unit.start + piece.skip, width)
        finally:
            os.close(file)


def _cut(rows: int, size: int) -> list[Unit]:
    return [Unit(start, min(size, rows - start)) for start in range(0, rows, size)]


def _reader(path: Path, file: int, first: int, width: int) -> Callable[[int, int], Callable[[Packed], None]]:
    def part(start: int, stop: int) -> Callable[[Packed], None]:
        def write(room: Packed) -> None:
            bytes_ = memoryview(room.buffer.numpy()).cast("B")
            at = 0
            while at < len(bytes_):
                got = os.preadv(file, [bytes_[at:]], (first + start) * width + at)
                if not got:
                    raise _gone(path)
                at += got

        return write

    return part


def _gone(path: Path) -> UnreadableFileError:
    return UnreadableFileError(
        "the cache is not whole any more", file=path, remedy="Make the ParquetFrame again: it writes the cache anew"
    )
