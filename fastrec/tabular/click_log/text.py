"""Files of text, or parts of them, as stretches of whole lines that are read ahead."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastrec._core import limits
from fastrec.errors import DataError, MissingFileError, UnreadableFileError

_LINE = ord("\n")


@dataclass(frozen=True)
class LogPart:
    """A file of lines, or the lines of it that begin in a stretch of bytes.

    Args:
        path: the file.
        start: lines that begin at this byte or later.
        stop: and before this one; None: to the file's end.
    """

    path: Path
    start: int = 0
    stop: int | None = None

    def range(self) -> tuple[int, int]:
        """Return the first and last byte, as the file has them.

        Raises:
            MissingFileError: there is no such file.
        """
        try:
            size = os.stat(self.path).st_size
        except OSError as error:
            raise MissingFileError("there is no such file", file=self.path, remedy="Give files that exist") from error
        return min(self.start, size), size if self.stop is None else min(self.stop, size)

    def digest(self) -> str:
        """Hash the part's bounds, the time its file was written, and its first and last bytes."""
        start, stop = self.range()
        found = hashlib.sha256(f"{start} {stop} {os.stat(self.path).st_mtime_ns}".encode())
        with open(self.path, "rb") as file:
            for at in (start, max(start, stop - limits.LOG_DIGEST_BYTES)):
                file.seek(at)
                found.update(file.read(min(limits.LOG_DIGEST_BYTES, stop - at)))
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class Stretch:
    """Whole lines.

    Args:
        text: uint8, ``limits.LOG_PAD`` bytes longer than the lines.
    """

    text: np.ndarray
    stop: int
    part: LogPart
    first: int

    def lines(self) -> int:
        """Return the number of lines."""
        return int(np.count_nonzero(self.text[: self.stop] == _LINE))


def parts_of(paths: str | Path | LogPart | Sequence[str | Path | LogPart]) -> list[LogPart]:
    """Read what a user gives as parts of files."""
    given = [paths] if isinstance(paths, str | Path | LogPart) else list(paths)
    found = [p if isinstance(p, LogPart) else LogPart(Path(p)) for p in given]
    if not found:
        raise DataError("no file was given", remedy="Give one or more files of text")
    for part in found:
        part.range()
        if part.path.suffix in (".gz", ".zip", ".zst", ".bz2", ".xz"):
            raise DataError("the file is compressed", file=part.path, remedy="Unpack it first")
    return found


def stretches(parts: Sequence[LogPart], size: int) -> Iterator[Stretch]:
    """Yield the lines of parts in order, reading the next stretch while one is used."""
    source = _read(parts, size)
    with ThreadPoolExecutor(1, "fastrec-text") as pool:
        waiting = pool.submit(next, source, None)
        while (stretch := waiting.result()) is not None:
            waiting = pool.submit(next, source, None)
            yield stretch


def _read(parts: Sequence[LogPart], size: int) -> Iterator[Stretch]:
    for part in parts:
        start, stop = part.range()
        try:
            with open(part.path, "rb", buffering=0) as file:
                start, stop = _line_from(file.fileno(), start), _line_from(file.fileno(), stop)
                yield from _stretches_of(file.fileno(), part, start, stop, size)
        except OSError as error:
            raise UnreadableFileError(
                f"cannot be read ({error})", file=part.path, remedy="Give another file"
            ) from error


def _line_from(file: int, at: int) -> int:
    if at == 0:
        return 0
    at -= 1  # the byte before may end a line
    while block := os.pread(file, 1 << 16, at):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return at


def _stretches_of(file: int, part: LogPart, at: int, stop: int, size: int) -> Iterator[Stretch]:
    rest, first = np.empty(0, dtype=np.uint8), 0
    while at < stop:
        length = len(rest) + min(size, stop - at)
        text = np.empty(length + 1 + limits.LOG_PAD, dtype=np.uint8)
        text[: len(rest)] = rest
        got = os.preadv(file, [memoryview(text)[len(rest) : length]], at)
        if not got:
            raise UnreadableFileError(
                "the file became shorter", file=part.path, remedy="Leave it alone, and begin again"
            )
        at, length = at + got, len(rest) + got
        if at >= stop and text[length - 1] != _LINE:  # the last line has no end
            text[length] = _LINE
            length += 1
        end = length
        while end and text[end - 1] != _LINE:
            end -= 1
        text[length : length + limits.LOG_PAD] = 0
        rest = text[end:length].copy()
        if len(rest) > limits.LOG_LINE_BYTES:
            raise DataError(
                "a line does not end", file=part.path, row=first, remedy="Give a file of text, line by line"
            )
        if end:
            stretch = Stretch(text, end, part, first)
            first += stretch.lines()
            yield stretch
