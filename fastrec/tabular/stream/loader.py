"""``StreamLoader``: batches of rows that are read while the net trains."""

from __future__ import annotations

import hashlib
import json
import os
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastai.data.core import TfmdDL

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable, remove_leftovers
from fastrec._core.memory import Growth
from fastrec.errors import DataError, UnreadableFileError, check_whole, warn
from fastrec.table import Table, column_names
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import Shared, TabularLoader, _with_reader, batch_sizes
from fastrec.tabular.packed import Layout, Packed
from fastrec.tabular.procs.features import apply_features
from fastrec.tabular.recipe import FrameRecipe
from fastrec.tabular.stream.files import ParquetSource, Paths, Unit
from fastrec.tabular.stream.reader import (
    Chunk,
    Mixer,
    Piece,
    ReadAhead,
    cut_batches,
    share,
    shuffled_units,
    take_in_turn,
)


class StreamRows:
    """Rows to stream: ``units`` of them, how they are packed, and in subclasses ``chunks`` and ``fingerprint``."""

    units: list[Unit]
    layout: Layout
    with_y: bool
    cached = False

    def __len__(self) -> int:
        return sum(u.rows for u in self.units)

    def pieces(self, window: int) -> list[Unit]:
        """Return what is read together, in order."""
        return self.units


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

    def make_features(self, *, fit: bool, history: pa.Table | None = None) -> None:
        """Compute the columns of ``features``, of all rows at once; ``history``: earlier rows, not to fit on."""
        features = self.recipe.features
        if features is None:
            return
        if not fit and history is None:
            self.recipe.warn_of_history()
        frame = self.read_inputs("fit_inputs" if fit else "inputs")
        about = {"history": history, "targets": self.recipe.labels.names}
        made = features.fit_transform(frame) if fit else apply_features(features, frame, **about)
        there = set(column_names(made))
        self.made = Table.read(made, [n for n in features.outputs if n in there], device="cpu")

    def read_inputs(self, of: str = "inputs") -> pa.Table:
        """Read the columns that ``features`` need to transform, or to fit (``fit_inputs``)."""
        wanted = getattr(self.recipe.features, of, None)
        source = ParquetSource(self.paths, wanted if wanted is not None else self.source.schema.names)
        tables = [table for _, table in source.scan(limits.SCANNED_ROWS)]
        return pa.concat_tables(tables, promote_options="permissive") if tables else source.schema.empty_table()

    def tables(self) -> Iterator[tuple[int, Table]]:
        """Yield all rows in order with the columns of ``features``, block by block; and each block's first row."""
        for start, block in self.source.scan(limits.SCANNED_ROWS):
            yield start, self._table(start, block)

    def _table(self, start: int, block: pa.Table) -> Table:
        table = Table.read(block.combine_chunks(), device="cpu")
        if self.made is None:
            return table
        made = self.made.slice(start, start + len(block))
        return table.with_columns({n: made[n] for n in made.names})

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Yield packed rows of pieces; several large row groups are open and read in turn."""
        large = any(p.unit.rows > limits.DECODED_ROWS for p in pieces)
        return take_in_turn((self._unit_chunks(p) for p in pieces), limits.OPEN_GROUPS if large else 1, seed)

    def _unit_chunks(self, piece: Piece) -> Iterator[Chunk]:
        for start, block in self.source.blocks(piece.unit, limits.DECODED_ROWS, skip=piece.skip, stop=piece.stop):
            for at in range(0, len(block), limits.PACKED_ROWS):
                part = block.slice(at, limits.PACKED_ROWS)
                yield len(part), partial(self._write, start + at, part)

    def _write(self, first: int, block: pa.Table, start: int, stop: int, room: Packed) -> None:
        self.pack(first + start, self._table(first + start, block.slice(start, stop - start)), room)

    def pack(self, start: int, table: Table, room: Packed) -> None:
        """Prepare a block that begins at row ``start``."""
        try:
            self.recipe.pack(table, device=None, into=room)
        except DataError as error:
            file, row = self.source.where(start + (error.row or 0))
            row = row if error.row is not None else None
            raise type(error)(error.problem, file=file, column=error.column, row=row, remedy=error.remedy) from error

    def fingerprint(self) -> dict[str, Any]:
        """Return what packed rows depend on, as JSON values, independent of the files' folder.

        ``files`` holds name, bytes and the footer's digest of each; ``settings`` digests of what was given and learnt.
        """
        from fastrec.features._engine.digests import NoDigestError, digest

        recipe, labels, made = self.recipe, self.recipe.labels, self.made
        classes = None if labels.vocab is None else [repr(v) for v in labels.vocab]
        procs = []
        for state in (p.to_state() for p in recipe.procs):
            try:
                procs.append(digest(state))
            except NoDigestError:  # a proc of one's own
                procs.append(digest(repr(state)))
        settings = {
            "columns": [recipe.cats, recipe.conts, labels.names], "procs": procs,
            "features": None if made is None else digest(made), "targets": [labels.kind, classes],
            "layout": {k: str(v) for k, v in asdict(self.layout).items()}, "rows": len(self), "version": 2,
        }  # fmt: skip
        files = [[f.name, size, footer] for f, (size, footer) in zip(self.source.files, self.source.footers())]
        return {"files": files, "settings": settings}


class StreamedFrame(TabularFrame):
    """The data of a stream for fastai: a frame with its number of rows that holds none."""

    streamed_rows = 0

    def __len__(self) -> int:
        return self.streamed_rows if self._raw is None and len(self._packed) == 0 else super().__len__()

    def _like(self, kind: type[TabularFrame] | None = TabularFrame, **state: Any) -> TabularFrame:
        return super()._like(kind, **state)


class StreamLoader(Shared, TfmdDL):
    """Batches ``(x_cat, x_cont, y)`` of Parquet rows, read as they are needed (see ``ParquetFrame.dataloaders``).

    ``num_workers`` is not used: rows are read in a thread.
    """

    def __init__(
        self,
        frame: Any,
        rows: StreamRows | None = None,
        bs: int = 64,
        shuffle: bool = False,
        drop_last: bool = False,
        after_batch: Any = None,
        num_workers: int = 0,
        *,
        buffer_rows: int = 1_000_000,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_whole("a loader", bs=bs or 0, buffer_rows=buffer_rows)
        self.frame, self.rows, self.buffer_rows, self.seed = frame, rows, buffer_rows, seed
        self._growth: Growth | None = None
        dataset = kwargs.pop("dataset", None)
        if dataset is None:
            dataset = frame._frame(len(rows), with_y=rows.with_y)
        super().__init__(
            dataset, bs=bs, shuffle=shuffle, drop_last=drop_last, after_batch=_with_reader(after_batch, dataset),
            num_workers=0, **kwargs,
        )  # fmt: skip
        if seed is not None:
            self.rng = random.Random(seed)
        self.set_rank(rank, world_size)
        window = self._window()
        large = shuffle and len(rows) > buffer_rows and max(u.rows for u in rows.pieces(window))
        if large and large > max(window, len(rows) // 4):
            warn(
                f"a row group holds {max(u.rows for u in rows.units)} of the {len(rows)} rows, and {window} rows are "
                "mixed at a time: they will come nearly in the file's order. Write the files with smaller row groups, "
                "or give cache="
            )

    def _window(self) -> int:
        # Two buffers of rows are read ahead; the others are mixed.
        ahead = 2 * max(self.buffer_rows // limits.READ_AHEAD, 1)
        return len(self.rows) if len(self.rows) <= self.buffer_rows else max(self.buffer_rows - ahead, 1)

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> TfmdDL:
        """Make a loader with the same settings; of rows in memory (``test_dl``) a ``TabularLoader``."""
        if dataset is not None and not isinstance(dataset, StreamedFrame):
            own = {"bs": self.bs, "device": self.device, "shuffle": False, "drop_last": False}
            return TabularLoader(dataset, **{**own, **kwargs})
        kwargs.pop("get_idxs", None)  # rows come in the file's order where they are not shuffled
        own = {"buffer_rows": self.buffer_rows, "seed": self.seed, "rows": self.rows, "frame": self.frame}
        own |= {"rank": self.rank, "world_size": self.world_size, "after_batch": self.after_batch}
        own |= {"bs": self.bs, "shuffle": self.shuffle, "drop_last": self.drop_last, "device": self.device}
        return (cls or type(self))(dataset=dataset or self.dataset, **{**own, **kwargs})

    def __len__(self) -> int:
        return len(self._sizes())

    def _sizes(self) -> np.ndarray:
        return batch_sizes(len(self.rows), self.bs, self.drop_last, self.rank, self.world_size)

    def get_idxs(self) -> np.ndarray:
        """Return this rank's rows in the files' order (a shuffled epoch's order is not known in advance)."""
        return np.arange(*self._places(len(self.rows)))

    def __iter__(self) -> Iterator[Any]:
        self.randomize()
        self.before_iter()
        with closing(self.create_batches()) as batches:
            for batch in batches:
                yield self.after_batch(batch)
        self.after_iter()

    def create_batches(self, samps: Any = None) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield one epoch's batches on the loader's device, without ``after_batch``."""
        sizes, rows, window = self._sizes().tolist(), self.rows, self._window()
        if not sizes:
            return
        seed = self._draw_seed(62)
        units = rows.pieces(window)
        if seed is not None:
            units = shuffled_units(units, window, np.random.default_rng(seed))
        pieces, layout = share(units, self.rank, self.world_size), rows.layout
        here = sum(p.rows for p in pieces)
        ahead = min(max(self.buffer_rows // limits.READ_AHEAD, 1), max(here, 1))
        with ReadAhead(lambda: rows.chunks(pieces, window, seed), layout, ahead) as read:
            mixer = Mixer(iter(read), layout, min(window, here), None if seed is None else seed + 1)
            self._growth = growth = self._growth or Growth()  # one for all epochs
            for batch in cut_batches(mixer, sizes, layout):
                growth.check()
                yield tuple(t.to(self.device) for t in batch) if self.device is not None else batch

    def stream_fingerprint(self) -> dict[str, Any]:
        """Return what an epoch's batches depend on besides random numbers, as JSON values."""
        found = self.rows.fingerprint()
        files = found.get("files", [])
        digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        told = {"files": f"{len(files)} of {sum(size for _, size, _ in files)} bytes, digest {digest}"}
        return {**told, **found.get("settings", {}), "buffer_rows": self.buffer_rows, "cached": self.rows.cached}

    def do_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """Return a batch without rows, whose form fastai reads."""
        return Packed.empty(0, self.rows.layout).views

    def create_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """Refuse to pick out rows."""
        raise DataError("rows of a stream cannot be picked out", remedy="Iterate, or use TabularFrame on some rows")


# Packed rows of a stream in a folder: written once, checked when they are first read, the same for all who read.
#
# A folder's name holds the digest of the files and settings that its rows come from. Another configuration has another
# folder, so that nothing is taken away from a loader that still reads, in this process or another; what is written
# again (because it was damaged) takes the place of the same rows.

_ROWS, _ABOUT = "rows.bin", "about.json"


class CachedRows(StreamRows):
    """Packed rows in a folder, written from other rows where they are not there yet."""

    cached = True

    def __init__(self, rows: FileRows, cache: Path, name: str) -> None:
        self.layout, self.with_y = rows.layout, rows.with_y
        if not self.layout.words:
            raise DataError("no column was named, so that there is nothing to keep in a cache", remedy="Name columns")
        self._fingerprint = rows.fingerprint()
        source = rows.source
        places = [[str(f.resolve()), written] for f, (_, written) in zip(source.files, source.stamps, strict=True)]
        blocks = partial(self._blocks, rows)
        if self._open(cache, name, {**self._fingerprint, "places": places}, lambda f: write_rows(f / _ROWS, blocks())):
            _warn_of_others(cache, name, self.folder)

    def _open(
        self, cache: Path, name: str, given: dict[str, Any], write: Callable[[Path], tuple[int, list[int]]]
    ) -> bool:
        """Open existing rows, or write them; return whether they were written."""
        digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = cache / f"{name}-{digest}"
        about = self._held(given)
        absent = about is None
        if absent:
            check_replaceable(self.folder, _ROWS, _ABOUT)
            remove_leftovers(cache)
            with atomic_folder(self.folder) as folder:
                rows, sums = write(folder)
                about = {"given": given, "rows": rows, "sums": sums}
                (folder / _ABOUT).write_text(json.dumps(about))
        self.units = _cut(about["rows"], limits.CACHED_ROWS)
        self._sums = np.array(about["sums"], dtype=np.uint32)
        self._known: tuple[int, ...] = ()
        self._checked = np.zeros(len(self._sums), dtype=bool)
        return absent

    def _held(self, given: dict[str, Any]) -> dict[str, Any] | None:
        # Reads about.json if rows of the same files and settings are complete.
        try:
            about = json.loads((self.folder / _ABOUT).read_text())
            size, rows, sums = (self.folder / _ROWS).stat().st_size, about["rows"], about["sums"]
            known = about["given"] == json.loads(json.dumps(given))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        whole = size == rows * self.layout.words * 4 and len(sums) == len(_cut(rows, limits.CACHED_ROWS))
        return about if known and whole else None

    @classmethod
    def none(cls, recipe: FrameRecipe) -> CachedRows:
        """Return no rows."""
        empty = cls.__new__(cls)
        empty.layout, empty.with_y = recipe.layout(with_y=bool(recipe.labels.names)), bool(recipe.labels.names)
        empty.units, empty.folder, empty._fingerprint = [], Path(), {}
        return empty

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the rows that were packed."""
        return self._fingerprint

    def pieces(self, window: int) -> list[Unit]:
        """Cut units into pieces small enough that many of them are mixed."""
        return _cut(len(self), min(limits.CACHED_ROWS, max(window // 32, 1)))

    def _blocks(self, rows: FileRows) -> Iterator[np.ndarray]:
        for start, table in rows.tables():
            room = Packed.empty(len(table), self.layout)
            rows.pack(start, table, room)
            yield room.buffer.numpy()

    def chunks(self, pieces: Sequence[Piece], window: int, seed: int | None) -> Iterator[Chunk]:
        """Yield packed rows from the file."""
        path = self.folder / _ROWS
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise _gone(path) from error
        try:
            found = os.fstat(file)
            known = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if known != self._known:  # another file, or one that was written to: nothing is known of it
                self._known, self._checked = known, np.zeros(len(self._sums), dtype=bool)
            checked = self._checked
            for piece in pieces:
                yield piece.rows, partial(self._read, path, file, piece.unit.start + piece.skip, checked)
        finally:
            os.close(file)

    def _read(
        self, path: Path, file: int, first: int, checked: np.ndarray, start: int, stop: int, room: Packed
    ) -> None:
        low, high = first + start, first + stop
        for i in range(low // limits.CACHED_ROWS, -(-high // limits.CACHED_ROWS)):
            if not checked[i]:
                self._check(path, file, i)
                checked[i] = True
        _read_into(memoryview(room.buffer.numpy()).cast("B"), path, file, low * self.layout.words * 4)

    def _check(self, path: Path, file: int, i: int) -> None:
        unit, width = self.units[i], self.layout.words * 4
        room = memoryview(bytearray(unit.rows * width))
        _read_into(room, path, file, unit.start * width)
        if zlib.crc32(room) != self._sums[i]:
            raise _gone(path, f"rows {unit.start} to {unit.start + unit.rows - 1} are not those that were written")


def _cut(rows: int, size: int) -> list[Unit]:
    return [Unit(start, min(size, rows - start)) for start in range(0, rows, size)]


def write_rows(path: Path, blocks: Iterable[np.ndarray]) -> tuple[int, list[int]]:
    """Write blocks of packed rows, int32 ``[n, words]``; return how many rows there are, and their check sums."""
    sums: list[int] = []
    at = total = 0
    with path.open("wb") as file:
        for rows in blocks:
            bytes_ = memoryview(rows).cast("B")
            file.write(bytes_)
            at = _add_sums(sums, at, bytes_, limits.CACHED_ROWS * 4 * rows.shape[1])
            total += len(rows)
    return total, sums


def _add_sums(sums: list[int], at: int, bytes_: memoryview, size: int) -> int:
    """Add to ``sums`` the CRC-32 of every ``size`` bytes, of which ``at`` came before; return how many have come."""
    done = 0
    while done < len(bytes_):
        step = min(size - at % size, len(bytes_) - done)
        if at % size == 0:
            sums.append(0)
        sums[-1] = zlib.crc32(bytes_[done : done + step], sums[-1])
        at, done = at + step, done + step
    return at


def _read_into(room: memoryview, path: Path, file: int, first: int) -> None:
    at = 0
    while at < len(room):
        got = os.preadv(file, [room[at:]], first + at)
        if not got:
            raise _gone(path)
        at += got


def _gone(path: Path, problem: str = "the cache is not whole any more") -> UnreadableFileError:
    return UnreadableFileError(
        problem, file=path, remedy=f"Remove {path.parent} and make the ParquetFrame again: it writes the cache anew"
    )


def _warn_of_others(cache: Path, name: str, mine: Path) -> None:
    count, size = 0, 0
    with suppress(OSError):  # somebody removes them just now
        for other in cache.glob(f"{name}-*"):
            if other != mine and (other / _ABOUT).exists():
                count, size = count + 1, size + sum(f.stat().st_size for f in other.iterdir())
    if count:
        problem = f"{cache} also holds {count} {name!r} caches of other files or settings, {size / 1e6:,.1f} MB. "
        problem += "They stay; remove the folders that are not needed any more"
        warn(problem)
