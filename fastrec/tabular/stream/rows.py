"""Rows that a stream reads from Parquet files, prepared as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.table import Table, column_names
from fastrec.tabular.packed import Layout, Packed
from fastrec.tabular.recipe import FrameRecipe
from fastrec.tabular.stream.files import ParquetSource, Paths, Unit
from fastrec.tabular.stream.order import Piece
from fastrec.tabular.stream.reader import Chunk, take_in_turn


class StreamRows:
    """Rows to stream: ``units`` of them, and how they are packed."""

    units: list[Unit]
    layout: Layout
    with_y: bool
    cached = False

    def __len__(self) -> int:
        return sum(u.rows for u in self.units)

    def pieces(self, window: int) -> list[Unit]:
        """Return what is read together, in order."""
        return self.units

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Yield packed rows of pieces, in this order unless ``seed`` shuffles."""
        raise NotImplementedError

    def fingerprint(self) -> dict[str, Any]:
        """Return what the rows depend on, as JSON values."""
        raise NotImplementedError


class FileRows(StreamRows):
    """Rows of Parquet files."""

    def __init__(self, source: ParquetSource, paths: Paths, recipe: FrameRecipe, *, with_y: bool = True) -> None:
        self.source, self.paths, self.recipe, self.units = source, paths, recipe, source.units
        self.with_y = with_y and bool(recipe.labels.names)
        self.made: Table | None = None

    @property
    def layout(self) -> Layout:
        """The layout of packed rows."""
        return self.recipe.layout(with_y=self.with_y)

    def make_features(self, *, fit: bool) -> None:
        """Compute the columns of ``features``, of all rows at once."""
        features = self.recipe.features
        if features is None:
            return
        wanted = getattr(features, "fit_inputs" if fit else "inputs", None)
        source = ParquetSource(self.paths, wanted if wanted is not None else self.source.schema.names)
        tables = [table for _, table in source.scan(limits.SCANNED_ROWS)]
        frame = pa.concat_tables(tables, promote_options="permissive") if tables else source.schema.empty_table()
        made = features.fit_transform(frame) if fit else features.transform(frame)
        there = set(column_names(made))
        self.made = Table.read(made, [n for n in features.outputs if n in there])

    def tables(self) -> Iterator[tuple[int, Table]]:
        """Yield all rows in order with the columns of ``features``, block by block; and each block's first row."""
        for start, block in self.source.scan(limits.SCANNED_ROWS):
            yield start, self._table(start, block)

    def _table(self, start: int, block: pa.Table) -> Table:
        table = Table.read(block.combine_chunks())
        if self.made is None:
            return table
        made = self.made.slice(start, start + len(block))
        return table.with_columns({n: made[n] for n in made.names})

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Yield packed rows of pieces; several large row groups are open and read in turn."""
        large = any(p.unit.rows > limits.DECODED_ROWS for p in pieces)
        sources = (self._unit_chunks(p) for p in pieces)
        return take_in_turn(sources, limits.OPEN_GROUPS if large else 1, seed)

    def _unit_chunks(self, piece: Piece) -> Iterator[Chunk]:
        for start, block in self.source.blocks(piece.unit, limits.DECODED_ROWS, skip=piece.skip, stop=piece.stop):
            for at in range(0, len(block), limits.PACKED_ROWS):
                part = block.slice(at, limits.PACKED_ROWS)
                yield len(part), self._writer(start + at, part)

    def _writer(self, first: int, block: pa.Table) -> Callable[[int, int], Callable[[Packed], None]]:
        def part(start: int, stop: int) -> Callable[[Packed], None]:
            def write(room: Packed) -> None:
                self.pack(first + start, self._table(first + start, block.slice(start, stop - start)), room)

            return write

        return part

    def pack(self, start: int, table: Table, room: Packed) -> None:
        """Prepare a block that begins at row ``start``."""
        try:
            self.recipe.pack(table, device=None, into=room)
        except DataError as error:
            file, row = self.source.where(start + (error.row or 0))
            row = row if error.row is not None else None
            raise type(error)(error.problem, file=file, column=error.column, row=row, remedy=error.remedy) from error

    def fingerprint(self) -> dict[str, Any]:
        """Return what packed rows depend on, as JSON values, independent of where the files lie.

        Returns:
            ``files``: name, bytes and the footer's digest of each; ``settings``: digests of all that was given and
            learned.
        """
        from fastrec.features._engine.digests import digest

        recipe, labels, made = self.recipe, self.recipe.labels, self.made
        classes = None if labels.vocab is None else [repr(v) for v in labels.vocab]
        settings = {
            "columns": [recipe.cats, recipe.conts, labels.names],
            "procs": [_digest_of_state(p.to_state()) for p in recipe.procs],
            "features": None if made is None else digest(made),
            "targets": [labels.kind, classes],
            "layout": {k: str(v) for k, v in asdict(self.layout).items()},
            "rows": len(self),
            "version": 2,
        }
        files = [[f.name, size, footer] for f, (size, footer) in zip(self.source.files, self.source.footers())]
        return {"files": files, "settings": settings}


def _digest_of_state(state: Any) -> str:
    from fastrec.features._engine.digests import NoDigestError, digest

    try:
        return digest(state)
    except NoDigestError:  # a proc of one's own
        return digest(repr(state))
