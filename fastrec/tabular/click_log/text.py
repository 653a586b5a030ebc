"""Files of text, or parts of them, as stretches of whole lines that are read ahead."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fastrec._core import kernels, limits
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError, MissingFileError, UnreadableFileError

_LINE_END = ord("\n")


@dataclass(frozen=True)
class LogPart:
    """A file of lines, or the lines of it that begin in a stretch of bytes."""

    path: Path  #: the file
    start: int = 0  #: lines that begin at this byte or later
    stop: int | None = None  #: and before this one; None: to the file's end

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
    """Whole lines: ``text`` (uint8) is ``limits.LOG_PAD`` bytes longer than they are."""

    text: np.ndarray
    stop: int
    part: LogPart
    first: int


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
            remedy = "Give another file"
            raise UnreadableFileError(f"cannot be read ({error})", file=part.path, remedy=remedy) from error


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
            remedy = "Leave it alone, and begin again"
            raise UnreadableFileError("the file became shorter", file=part.path, remedy=remedy)
        at, length = at + got, len(rest) + got
        if at >= stop and text[length - 1] != _LINE_END:  # the last line has no end
            text[length] = _LINE_END
            length += 1
        end = length
        while end and text[end - 1] != _LINE_END:
            end -= 1
        text[length : length + limits.LOG_PAD] = 0
        rest = text[end:length].copy()
        if len(rest) > limits.LOG_LINE_BYTES:
            remedy = "Give a file of text, line by line"
            raise DataError("a line does not end", file=part.path, row=first, remedy=remedy)
        if end:
            yield Stretch(text, end, part, first)
            first += int(np.count_nonzero(text[:end] == _LINE_END))


@dataclass(frozen=True)
class LogForm:
    """The columns of a log."""

    conts: Sequence[str]
    cats: Sequence[str]
    label: str = "label"

    @property
    def words(self) -> int:
        """4-byte words of a row: categories, numbers, and the label with what is missing."""
        return len(self.cats) + len(self.conts) + 1


def parse(stretch: Stretch, form: LogForm) -> tuple[np.ndarray, np.ndarray]:
    """Parse lines into rows, int32 ``[n, words]``, and the smallest value of each number, int64.

    A row is each category's 32-bit value, the numbers (0 where missing), and a word with the label in bit 0 and, in bit
    1 + j, whether category j is missing.
    """
    cuts, counts = _shares(stretch)
    rows = np.empty((sum(counts), form.words), dtype=np.int32)
    starts = np.cumsum([0, *counts])
    lows = np.full((len(counts), len(form.conts)), 2**31 - 1, dtype=np.int64)
    loop, sizes = kernels.click_logs().parse_rows, (len(form.cats), len(form.conts))

    def take(i: int) -> int:
        return loop(stretch.text, cuts[i], cuts[i + 1], *sizes, rows[starts[i] : starts[i + 1]], lows[i])

    for i, fault in enumerate(run_parallel(take, range(len(counts)), rows=len(rows))):
        if fault >= 0:
            raise _fault(stretch, form, int(starts[i]) + fault // 64, fault % 64)
    return rows, lows.min(0)


def _shares(stretch: Stretch) -> tuple[list[int], list[int]]:
    threads = torch.get_num_threads() if stretch.stop > 1 << 20 else 1
    cuts = [0]
    for i in range(1, threads):
        at = max(stretch.stop * i // threads, cuts[-1])
        ends = np.flatnonzero(stretch.text[at : stretch.stop][: 1 << 16] == _LINE_END)
        cuts.append(at + int(ends[0]) + 1 if len(ends) else stretch.stop)
    cuts.append(stretch.stop)
    ends = [int(np.count_nonzero(stretch.text[a:b] == _LINE_END)) for a, b in itertools.pairwise(cuts)]
    return cuts, ends


def _fault(stretch: Stretch, form: LogForm, row: int, field: int) -> DataError:
    fields = bytes(stretch.text[: stretch.stop]).split(b"\n", row + 1)[row].rstrip(b"\r").split(b"\t")
    wanted = form.words
    before = f" (lines counted from byte {stretch.part.start})" if stretch.part.start else ""
    if len(fields) != wanted:
        said, column = f"the line has {len(fields)} fields, not {wanted}", None
    else:
        shown = fields[field].decode("utf-8", "replace")
        column = [form.label, *form.conts, *form.cats][field]
        kind = "0 or 1" if field == 0 else "a whole number of 32 bits" if field <= len(form.conts) else "8 hex digits"
        said = f"{shown!r} is not {kind}"
    remedy = "A line is the label, then the numbers, then the categories as 8 lower-case hex digits, tabs between, "
    remedy += "nothing where a value is missing; for other files use ParquetFrame"
    return DataError(said + before, file=stretch.part.path, column=column, row=stretch.first + row, remedy=remedy)


class LogEncoder:
    """Encoder that turns parsed rows into packed ones.

    The ``values`` (uint32, sorted) of each category get codes from 2 on. ``lows`` are subtracted from the numbers
    before ``log(1 + x)``.
    """

    def __init__(self, values: Sequence[np.ndarray], lows: Sequence[int]) -> None:
        self.values, self.lows = list(values), np.asarray(lows, dtype=np.int64)
        # most numbers of a log are small: their logarithms are looked up
        self._logs = torch.arange(1 << 16, dtype=torch.float64).log1p_().float().numpy()

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where each category's lookup table begins, and all of them: value ``i`` has the code ``i + 2``."""
        starts = np.cumsum([0, *(max(4, 1 << int(2 * len(v)).bit_length()) for v in self.values)])
        tables = np.zeros(int(starts[-1]), dtype=np.uint64)
        for j, own in enumerate(self.values):
            words = (own.astype(np.uint64) << np.uint64(32)) | (np.arange(len(own), dtype=np.uint64) + np.uint64(2))
            kernels.click_logs().move_values(words, tables[starts[j] : starts[j + 1]], 0, 0)
        return starts, tables

    def encode(self, rows: np.ndarray) -> None:
        """Make packed rows of parsed rows, int32 ``[n, words]``, in place."""
        starts, tables = self._tables
        loop, n_cat = kernels.click_logs().encode_rows, len(self.values)
        shares = np.array_split(rows, torch.get_num_threads())
        run_parallel(lambda part: loop(part, n_cat, starts, tables, self.lows, self._logs), shares, rows=2 * rows.size)


def as_text(values: np.ndarray) -> np.ndarray:
    """Format 32-bit values as 8 hex digits each: bytes ``[n]``, sorted as the values are."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    nibbles = (values[:, None] >> np.arange(28, -1, -4, dtype=np.uint32)) & np.uint32(15)
    return np.ascontiguousarray(digits[nibbles]).view("S8")[:, 0]
