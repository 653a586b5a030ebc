"""Lines of text as rows of 32-bit numbers, by compiled loops where numba is, else by numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastrec._core import kernels, limits
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.tabular.click_log.text import Stretch

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
