"""Packed rows of a stream in a folder: written once, checked when they are first read, the same for all who read.

A folder's name holds the digest of the files and settings that its rows come from. Another configuration has another
folder, so that nothing is taken away from a loader that still reads, in this process or another; what is written again
(because it was damaged) takes the place of the same rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.leftovers import remove_leftovers
from fastrec.errors import DataError, DataWarning, UnreadableFileError
from fastrec.tabular.packed import Packed
from fastrec.tabular.recipe import FrameRecipe
from fastrec.tabular.stream.files import Unit
from fastrec.tabular.stream.order import Piece
from fastrec.tabular.stream.reader import Chunk
from fastrec.tabular.stream.rows import FileRows, StreamRows

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
        places = [(str(f.resolve()), written) for f, (_, written) in zip(source.files, source.stamps, strict=True)]
        given = json.loads(json.dumps({**self._fingerprint, "places": places}))
        digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = cache / f"{name}-{digest}"
        self.units = _cut(len(rows), limits.CACHED_ROWS)
        sums = self._held(given)
        if sums is None:
            sums = self._write(rows, given)
            _warn_of_others(cache, name, self.folder)
        self._sums = np.array(sums, dtype=np.uint32)
        self._known: tuple[int, ...] = ()
        self._checked = np.zeros(len(sums), dtype=bool)

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

    def _held(self, given: dict[str, Any]) -> list[int] | None:
        """Return the checksums of existing rows of the right number of bytes; None if there are none."""
        try:
            about = json.loads((self.folder / _ABOUT).read_text())
            size, sums = (self.folder / _ROWS).stat().st_size, about.pop("sums")
        except (OSError, ValueError, KeyError, AttributeError):
            return None
        whole = about == given and size == len(self) * self.layout.words * 4 and len(sums) == len(self.units)
        return sums if whole else None

    def _write(self, rows: FileRows, given: dict[str, Any]) -> list[int]:
        check_replaceable(self.folder, _ROWS, _ABOUT)
        remove_leftovers(self.folder.parent)
        width, sums, at = self.layout.words * 4, [], 0
        with atomic_folder(self.folder) as folder:
            with (folder / _ROWS).open("wb") as file:
                for start, table in rows.tables():
                    room = Packed.empty(len(table), self.layout)
                    rows.pack(start, table, room)
                    bytes_ = memoryview(room.buffer.numpy()).cast("B")
                    file.write(bytes_)
                    at = _add_sums(sums, at, bytes_, limits.CACHED_ROWS * width)
            (folder / _ABOUT).write_text(json.dumps({**given, "sums": sums}))
        return sums

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
                yield piece.rows, self._reader(path, file, piece.unit.start + piece.skip, checked)
        finally:
            os.close(file)

    def _reader(self, path: Path, file: int, first: int, checked: np.ndarray) -> Callable[[int, int], Any]:
        width = self.layout.words * 4

        def part(start: int, stop: int) -> Callable[[Packed], None]:
            def write(room: Packed) -> None:
                low, high = first + start, first + stop
                for i in range(low // limits.CACHED_ROWS, -(-high // limits.CACHED_ROWS)):
                    if not checked[i]:
                        self._check(path, file, i)
                        checked[i] = True
                _read_into(memoryview(room.buffer.numpy()).cast("B"), path, file, low * width)

            return write

        return part

    def _check(self, path: Path, file: int, i: int) -> None:
        unit, width = self.units[i], self.layout.words * 4
        room = memoryview(bytearray(unit.rows * width))
        _read_into(room, path, file, unit.start * width)
        if zlib.crc32(room) != self._sums[i]:
            raise _gone(path, f"rows {unit.start} to {unit.start + unit.rows - 1} are not those that were written")


def _cut(rows: int, size: int) -> list[Unit]:
    return [Unit(start, min(size, rows - start)) for start in range(0, rows, size)]


def _add_sums(sums: list[int], at: int, bytes_: memoryview, size: int) -> int:
    """Add the CRC-32 of every ``size`` bytes.

    Args:
        sums: of those before; it grows.

    Returns:
        How many bytes have come.
    """
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
        warnings.warn(
            f"{cache} also holds {count} {name!r} caches of other files or settings, {size / 1e6:,.1f} MB. "
            "They stay; remove the folders that are not needed any more",
            DataWarning,
            stacklevel=4,
        )
