"""Files of text, or parts of them, as stretches of whole lines that are read ahead."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastrec._core import kernels, limits
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.tabular.click_log.tally import tables_of

_LINE_TEXT = ord("\n")


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
    """Whole lines: ``text`` (uint8) is ``limits.LOG_PAD`` bytes longer than they are."""

    text: np.ndarray
    stop: int
    part: LogPart
    first: int

    def lines(self) -> int:
        """Return the number of lines."""
        return int(np.count_nonzero(self.text[: self.stop] == _LINE_TEXT))


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
        if at >= stop and text[length - 1] != _LINE_TEXT:  # the last line has no end
            text[length] = _LINE_TEXT
            length += 1
        end = length
        while end and text[end - 1] != _LINE_TEXT:
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


# Lines of text as rows of 32-bit numbers, by compiled loops where numba is, else by numpy.

_TAB, _LINE, _RETURN, _MINUS = 9, 10, 13, 45


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

    def name_of(self, field: int) -> str:
        """Return the name of a field of the file."""
        return [self.label, *self.conts, *self.cats][field]


def parse(stretch: Stretch, form: LogForm) -> tuple[np.ndarray, np.ndarray]:
    """Parse lines into rows.

    Returns:
        int32 ``[n, words]``: each category's 32-bit value, the numbers (0 where missing), and a word with the label in
        bit 0 and, in bit 1 + j, whether category j is missing; and the smallest value of each number, int64.
    """
    cuts, counts = _shares(stretch)
    rows = np.empty((sum(counts), form.words), dtype=np.int32)
    starts = np.cumsum([0, *counts])
    lows = np.full((len(counts), len(form.conts)), 2**31 - 1, dtype=np.int64)
    one = _compiled if kernels.compiled(rows.size) else _plain

    def take(i: int) -> int:
        return one(stretch.text, cuts[i], cuts[i + 1], form, rows[starts[i] : starts[i + 1]], lows[i])

    for i, fault in enumerate(run_parallel(take, range(len(counts)), rows=len(rows))):
        if fault >= 0:
            raise _fault(stretch, form, int(starts[i]) + fault // 64, fault % 64)
    return rows, lows.min(0)


def _shares(stretch: Stretch) -> tuple[list[int], list[int]]:
    threads = torch.get_num_threads() if stretch.stop > 1 << 20 else 1
    cuts = [0]
    for i in range(1, threads):
        at = max(stretch.stop * i // threads, cuts[-1])
        rest = stretch.text[at : stretch.stop]
        ends = np.flatnonzero(rest[: 1 << 16] == _LINE)
        cuts.append(at + int(ends[0]) + 1 if len(ends) else stretch.stop)
    cuts.append(stretch.stop)
    ends = [int(np.count_nonzero(stretch.text[a:b] == _LINE)) for a, b in itertools.pairwise(cuts)]
    return cuts, ends


def _compiled(text: np.ndarray, at: int, stop: int, form: LogForm, out: np.ndarray, lows: np.ndarray) -> int:
    return kernels.click_logs().parse_rows(text, at, stop, len(form.cats), len(form.conts), out, lows)


def _fault(stretch: Stretch, form: LogForm, row: int, field: int) -> DataError:
    line = bytes(stretch.text[: stretch.stop]).split(b"\n", row + 1)[row]
    fields = line.rstrip(b"\r").split(b"\t")
    wanted = form.words
    before = f" (lines counted from byte {stretch.part.start})" if stretch.part.start else ""
    if len(fields) != wanted:
        said, column = f"the line has {len(fields)} fields, not {wanted}", None
    else:
        shown, column = fields[field].decode("utf-8", "replace"), form.name_of(field)
        kind = "0 or 1" if field == 0 else "a whole number of 32 bits" if field <= len(form.conts) else "8 hex digits"
        said = f"{shown!r} is not {kind}"
    return DataError(
        said + before,
        file=stretch.part.path,
        column=column,
        row=stretch.first + row,
        remedy="A line is the label, then the numbers, then the categories as 8 lower-case hex digits, tabs between, "
        "nothing where a value is missing; for other files use ParquetFrame",
    )


# Without numba -------------------------------------------------------------------------------------------------------


def _plain(text: np.ndarray, at: int, stop: int, form: LogForm, out: np.ndarray, lows: np.ndarray) -> int:
    """Parse by numpy: all fields' places first, then one column after the other."""
    n, width, n_cont = len(out), form.words, len(form.conts)
    if not n:
        return -1
    part = text[at : stop + limits.LOG_PAD]
    ends = np.flatnonzero((part[: stop - at] == _TAB) | (part[: stop - at] == _LINE))
    lines = np.flatnonzero(part[ends] == _LINE)
    odd = np.flatnonzero(np.diff(lines, prepend=-1) != width)
    if len(odd):
        return int(odd[0]) * 64
    starts = np.concatenate([[0], ends[:-1] + 1]).reshape(n, width)
    ends = ends.reshape(n, width).copy()
    ends[:, -1] -= part[np.maximum(ends[:, -1] - 1, 0)] == _RETURN
    faults = []
    label = part[starts[:, 0]].astype(np.int64) - 48
    faults.append((label < 0) | (label > 1) | (ends[:, 0] - starts[:, 0] != 1))
    for j in range(n_cont):
        value, bad = _whole(part, starts[:, 1 + j], ends[:, 1 + j])
        faults.append(bad)
        lows[j] = value.min()
        out[:, len(form.cats) + j] = value
    state = label
    for j in range(len(form.cats)):
        value, missing, bad = _hex(part, starts[:, 1 + n_cont + j], ends[:, 1 + n_cont + j])
        faults.append(bad)
        out[:, j] = value.view(np.int32)
        state |= missing.astype(np.int64) << (1 + j)
    out[:, -1] = state.astype(np.uint32).view(np.int32)
    wrong = np.stack(faults, 1)
    first = np.flatnonzero(wrong.any(1))
    return int(first[0]) * 64 + int(wrong[first[0]].argmax()) if len(first) else -1


def _whole(text: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whole numbers int64 ``[n]``, 0 if missing; and which do not fit."""
    negative = (text[start] == _MINUS) & (end > start)
    first = start + negative
    length = end - first
    value, bad = np.zeros(len(start), dtype=np.int64), (negative & (length == 0)) | (length > 10)
    for k in range(min(int(length.max(initial=0)), 10)):
        inside = k < length
        digit = text[np.where(inside, first + k, start)].astype(np.int64) - 48
        bad |= inside & ((digit < 0) | (digit > 9))
        value = np.where(inside, value * 10 + digit, value)
    bad |= value > 2**31 - 1
    return np.where(bad, 0, np.where(negative, -value, value)), bad


def _hex(text: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values uint32 ``[n]``, 0 if missing; which are missing; and which are not 8 hex digits."""
    missing = end == start
    digits = text[start[:, None] + np.arange(8)].astype(np.int64)
    number, letter = (digits >= 48) & (digits <= 57), (digits >= 97) & (digits <= 102)
    bad = ~missing & ((end - start != 8) | ~(number | letter).all(1))
    powers = 16 ** np.arange(7, -1, -1, dtype=np.int64)
    value = np.where(number, digits - 48, digits - 87) @ powers
    return np.where(missing | bad, 0, value).astype(np.uint32), missing, bad


# Rows of 32-bit values → packed rows: codes of categories, logarithms of numbers, the label.

MISSING, OTHER = 0, 1  # codes: of a missing value, and of any that has no code of its own


class LogEncoder:
    """What makes packed rows of parsed ones.

    ``values`` (uint32, sorted) of each category have codes of their own, from 2 on; ``lows`` are taken from each
    number before ``log(1 + x)``.
    """

    def __init__(self, values: Sequence[np.ndarray], lows: Sequence[int]) -> None:
        self.values, self.lows = list(values), np.asarray(lows, dtype=np.int64)
        # most numbers of a log are small: their logarithms are looked up
        self._logs = torch.arange(1 << 16, dtype=torch.float64).log1p_().float().numpy()
        self._tables: tuple[np.ndarray, np.ndarray] | None = None

    def encode(self, rows: np.ndarray) -> None:
        """Make packed rows of parsed rows, int32 ``[n, words]``, in place."""
        if not kernels.compiled(rows.size):
            self._plain(rows)
            return
        if self._tables is None:
            self._tables = tables_of(self.values)
        starts, tables = self._tables
        loop, n_cat = kernels.click_logs().encode_rows, len(self.values)
        shares = np.array_split(rows, torch.get_num_threads())
        run_parallel(lambda part: loop(part, n_cat, starts, tables, self.lows, self._logs), shares, rows=2 * rows.size)

    def _plain(self, rows: np.ndarray) -> None:
        state, n_cat = rows[:, -1].view(np.uint32).copy(), len(self.values)
        for j, own in enumerate(self.values):
            values = np.ascontiguousarray(rows[:, j]).view(np.uint32)
            codes = np.full(len(rows), OTHER, dtype=np.int32)
            if len(own):
                place = np.minimum(np.searchsorted(own, values), len(own) - 1)
                codes = np.where(own[place] == values, place + 2, OTHER).astype(np.int32)
            rows[:, j] = np.where((state >> np.uint32(j + 1)) & np.uint32(1), MISSING, codes)
        numbers = rows.view(np.float32)
        for j, low in enumerate(self.lows):
            shifted = np.maximum(rows[:, n_cat + j].astype(np.int64) - low, 0)
            numbers[:, n_cat + j] = np.log1p(shifted.astype(np.float64)).astype(np.float32)
        numbers[:, -1] = (state & np.uint32(1)).astype(np.float32)


def as_text(values: np.ndarray) -> np.ndarray:
    """Format 32-bit values as 8 hex digits each: bytes ``[n]``, sorted as the values are."""
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    shifts = np.arange(28, -1, -4, dtype=np.uint32)
    nibbles = (values[:, None] >> shifts) & np.uint32(15)
    return np.ascontiguousarray(digits[nibbles]).view("S8")[:, 0]
