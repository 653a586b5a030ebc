"""``ClickLogFrame``: text files of clicks, larger than memory, as fastai batches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastai.data.block import RegressionBlock

from fastrec._core import kernels, limits
from fastrec._core.device import DeviceLike
from fastrec._core.imports import require
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError
from fastrec.table import Vocab, as_column, load_state, save_state
from fastrec.table.vocab import MISSING, UNSEEN
from fastrec.tabular.click_log.text import LogEncoder, LogForm, LogPart, as_text, parse, parts_of, stretches
from fastrec.tabular.columns import TrainingRows
from fastrec.tabular.packed import Layout
from fastrec.tabular.procs.procs import Categorify, LogTransform
from fastrec.tabular.recipe import FrameRecipe, check_unique
from fastrec.tabular.stream.frame import ParquetFrame
from fastrec.tabular.stream.loader import _ROWS, CachedRows, _add_sums, write_rows
from fastrec.tabular.targets import Labels

# Packed rows of a log in a folder: written once from the text, read by every epoch.
#
# The text is read once: parsed rows are written to the final file while values are counted, then encoded in place.

_LEARNT = "learnt"

Advance = Callable[[int], None]


class LogRows(CachedRows):
    """Packed rows of a log in a folder, which are written if they are not there yet.

    Without an ``encoder`` one is learnt from them; ``passes`` is how often rows were read to count values.
    """

    def __init__(
        self,
        parts: Sequence[LogPart],
        form: LogForm,
        layout: Layout,
        cache: Path,
        name: str,
        *,
        encoder: LogEncoder | None = None,
        min_count: int = 1,
        memory: int = 1 << 30,
        advance: Advance | None = None,
    ) -> None:
        self.layout, self.with_y = layout, True
        self._parts, self._form, self._advance = list(parts), form, advance or (lambda lines: None)
        settings: dict[str, Any] = {
            "columns": [list(form.cats), list(form.conts), form.label],
            "learnt": max(int(min_count), 1) if encoder is None else _digest(encoder),
            "version": 1,
        }
        files = []
        for part in self._parts:
            start, stop = part.range()
            files.append([part.path.name, stop - start, part.digest()])
        self._fingerprint = {"files": files, "settings": settings}
        self.passes = 0
        self._open(cache, name, self._fingerprint, lambda folder: self._pack(folder, encoder, min_count, memory))
        if encoder is None:
            state = load_state(self.folder / _LEARNT)
            encoder = LogEncoder([v.to_numpy(zero_copy_only=False) for v in state["values"]], state["lows"])
        self.encoder = encoder
        settings["rows"] = len(self)

    def _pack(self, folder: Path, encoder: LogEncoder | None, min_count: int, memory: int) -> tuple[int, list[int]]:
        path = folder / _ROWS
        if encoder is not None:
            return write_rows(path, self._encoded(encoder))
        encoder, rows = self._learn(path, min_count, memory)
        save_state(folder / _LEARNT, {"values": [pa.array(v) for v in encoder.values], "lows": encoder.lows.tolist()})
        sums: list[int] = []
        words, at = self._form.words, 0
        with path.open("r+b", buffering=0) as file:
            room = np.empty((limits.PACKED_ROWS, words), dtype=np.int32)
            while got := os.preadv(file.fileno(), [memoryview(room).cast("B")], at):
                encoder.encode(room[: got // (words * 4)])
                bytes_ = memoryview(room[: got // (words * 4)]).cast("B")
                os.pwrite(file.fileno(), bytes_, at)
                at = _add_sums(sums, at, bytes_, limits.CACHED_ROWS * words * 4)
        return rows, sums

    def _learn(self, path: Path, min_count: int, memory: int) -> tuple[LogEncoder, int]:
        form, total = self._form, 0
        tally = Tally(len(form.cats), memory, min_count)
        lows = np.full(len(form.conts), 2**31 - 1, dtype=np.int64)
        with path.open("wb") as file:
            for rows, low in self._parsed():
                file.write(memoryview(rows).cast("B"))
                lows, total = np.minimum(lows, low), total + len(rows)
                tally.add(rows)
        values = tally.finish(lambda: _blocks(path, form.words))
        self.passes = tally.passes
        return LogEncoder(values, lows if total else np.zeros_like(lows)), total

    def _encoded(self, encoder: LogEncoder) -> Iterator[np.ndarray]:
        for rows, _ in self._parsed():
            encoder.encode(rows)
            yield rows

    def _parsed(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for stretch in stretches(self._parts, limits.LOG_TEXT_BYTES):
            rows, lows = parse(stretch, self._form)
            self._advance(len(rows))
            yield rows, lows


def _digest(encoder: LogEncoder) -> str:
    found = hashlib.sha256(encoder.lows.tobytes())
    for values in encoder.values:
        found.update(len(values).to_bytes(8, "little") + values.tobytes())
    return found.hexdigest()[:16]


def _blocks(path: Path, words: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while len(block := file.read(limits.PACKED_ROWS * words * 4)):
            yield np.frombuffer(bytearray(block), dtype=np.int32).reshape(-1, words)


_MOST_CATS, _MOST_FIELDS = 31, 63  # a word holds a bit for each category; a fault's field 6 bits

LogPaths = str | Path | LogPart | Sequence[str | Path | LogPart]


class ClickLogFrame(ParquetFrame):
    """Click logs in Criteo's form, prepared for fastai a buffer at a time.

    A line is the label (0 or 1), whole numbers, and categories as 8 lower-case hex digits, with tabs between and
    nothing where a value is missing; there is no header. Numbers become ``log(1 + x - lowest)``, a missing one counting
    as 0, as DLRM has it (see ``LogTransform``). Categories become codes: 0 missing, 1 any value that came less than
    ``min_count`` times in training (or never), then the others in sorted order.

    The text is read once; its packed rows (160 bytes a line of Criteo's) stay in ``cache`` and are reused while files
    and settings are the same. Memory holds ``memory`` bytes of counts (if these do not suffice, rows are read again
    from the cache), 50 MB of text and rows, and some 50 bytes for each value with a code. Batches come from
    ``dataloaders``, as a ``ParquetFrame``'s do.

    Args:
        paths: training rows: files, or each a ``LogPart`` of one.
        cache: a folder for the packed rows.
        valid: validation rows, likewise.
        conts, cats: names of the numbers and the categories; a number of them: ``I1``, … and ``C1``, ….
        label: name of the label.
        min_count: categories' values that come less often share a code.
        memory: bytes that tables of counts may take.
        device: where batches go; None: ``FASTREC_DEVICE``, else fastai's default.
        advance: called with the number of lines just read.

    Raises:
        MissingFileError, UnreadableFileError: a file is not there, or cannot be read.
        DataError: a line is not of this form, naming file, line and column; no line; no or too many columns.
        MissingPackageError: numba, whose loops read the text, is not installed.
    """

    def __init__(
        self,
        paths: LogPaths,
        *,
        cache: str | Path,
        valid: LogPaths | None = None,
        conts: int | Sequence[str] = 13,
        cats: int | Sequence[str] = 26,
        label: str = "label",
        min_count: int = 15,
        memory: int = 1 << 30,
        device: DeviceLike = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        form = LogForm(_names("I", conts), _names("C", cats), label)
        names = [label, *form.conts, *form.cats]
        if not form.cats or len(form.cats) > _MOST_CATS or len(names) > _MOST_FIELDS:
            remedy = f"Give 1 to {_MOST_CATS} categories, and {_MOST_FIELDS} columns in all; else use ParquetFrame"
            raise DataError(f"a log of {len(form.conts)} numbers and {len(form.cats)} categories", remedy=remedy)
        check_unique(names)
        require("numba", "numba", "pip install 'fastrec-tabular[compiled]'")
        categorify, logs = Categorify(min_count=min_count, unseen=True), LogTransform()
        labels = Labels([label], RegressionBlock, dtype=torch.float32)
        labels.fit({label: as_column(np.zeros(1, np.float32), name=label)}, TrainingRows(1))
        self.recipe = FrameRecipe(list(form.cats), list(form.conts), [categorify, logs], labels)
        self.device = device
        layout, folder = self.recipe.layout(with_y=True), Path(cache)
        options: dict[str, Any] = {"memory": memory, "advance": advance}
        train = LogRows(parts_of(paths), form, layout, folder, "train", min_count=min_count, **options)
        if not len(train):
            raise DataError("the files hold no line", file=parts_of(paths)[0].path, remedy="Give files with rows")
        self.train = train
        categorify.reset(form.cats)
        for name, values in zip(form.cats, train.encoder.values, strict=True):
            text = pa.array(as_text(values)).cast(pa.string()) if len(values) else pa.array([], pa.string())
            categorify.set_vocab(name, Vocab(text, reserved=(MISSING, UNSEEN), name=name))
        logs.reset(form.conts)
        logs.lows = dict(zip(form.conts, map(float, train.encoder.lows), strict=True))
        self.valid = None
        if valid is not None:
            self.valid = LogRows(parts_of(valid), form, layout, folder, "valid", encoder=train.encoder, **options)


def _names(letter: str, given: int | Sequence[str]) -> list[str]:
    return [f"{letter}{i + 1}" for i in range(given)] if isinstance(given, int) else list(given)


# How often each value of some categories comes, counted exactly in memory of a stated size.
#
# All values are counted in one pass while their tables fit. If a category's table does not fit, it counts half of its
# values (those whose mixed bits begin with 0), then a quarter, and so on. The other shares are counted afterwards, one
# at a time, from the rows that the first pass wrote. Rare values of each share are dropped.

Blocks = Callable[[], Iterator[np.ndarray]]
"""All rows again, block by block: int32 ``[n, words]``."""


@dataclass
class _Column:
    number: int
    counter: _HashedCounts
    share: tuple[int, int] = (0, 0)  # how many leading bits, and what they are
    left: list[tuple[int, int]] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)
    done: bool = False


class Tally:
    """Counts of the values of the rows' first columns, their ``categories``.

    Its tables take at most ``memory`` bytes, unless they begin with more.
    """

    def __init__(self, categories: int, memory: int, min_count: int) -> None:
        self.memory, self.min_count = memory, min_count
        self.columns = [_Column(j, _HashedCounts(j)) for j in range(categories)]
        self.passes = 1

    def add(self, rows: np.ndarray) -> None:
        """Count rows: int32 ``[n, words]``, as ``parse`` gives them."""
        active = [c for c in self.columns if not c.done]
        places = run_parallel(lambda c: c.counter.add(rows, 0, c.share), active, rows=len(rows))
        for column, at in zip(active, places, strict=True):
            while at < len(rows):
                others = sum(c.counter.table.nbytes for c in self.columns) - column.counter.table.nbytes
                if not column.counter.grow(self.memory - others):
                    # A half of its share; the other half is counted later.
                    bits, part = column.share
                    column.share = (bits + 1, part << 1)
                    column.left.append((bits + 1, (part << 1) | 1))
                    column.counter.move(len(column.counter.table), column.share)
                at = column.counter.add(rows, at, column.share)

    def finish(self, blocks: Blocks) -> list[np.ndarray]:
        """Return the frequent values of each category, uint32, sorted."""
        self._settle()
        while any(not c.done for c in self.columns):
            self.passes += 1
            for rows in blocks():
                self.add(rows)
            self._settle()
        return [np.sort(np.concatenate(c.kept)) for c in self.columns]

    def _settle(self) -> None:
        """Store the counts, and begin the next share of each category that has one."""
        for column in self.columns:
            if column.done:
                continue
            column.kept.append(column.counter.frequent(self.min_count))
            column.counter = _HashedCounts(column.number)
            column.done = not column.left
            if column.left:
                column.share = column.left.pop()


class _HashedCounts:
    """Counts of a share of a category's values in a table with open addressing, see ``table_loops``."""

    def __init__(self, column: int) -> None:
        self.column, self.used = column, 0
        self.table = np.zeros(limits.HASH_SMALLEST, dtype=np.uint64)

    def add(self, rows: np.ndarray, start: int, share: tuple[int, int]) -> int:
        """Count rows from ``start`` on; return the first row that was not counted for lack of room."""
        limit = int(len(self.table) * limits.HASH_FULL)
        count = kernels.click_logs().count_values
        at, self.used = count(rows, start, self.column, self.table, self.used, limit, *share)
        self._share = share
        return at

    def grow(self, most: int) -> bool:
        """Make room within so many bytes; return False if they do not suffice."""
        if 3 * self.table.nbytes > most:  # the old one and one of twice its size are there at the same time
            return False
        self.move(2 * len(self.table), self._share)
        return True

    def move(self, places: int, share: tuple[int, int]) -> None:
        new = np.zeros(places, dtype=np.uint64)
        self.used = kernels.click_logs().move_values(self.table, new, *share)
        self.table = new

    def frequent(self, least: int) -> np.ndarray:
        """Return the values with at least so many rows, uint32, sorted."""
        counts = self.table & np.uint64(0xFFFFFFFF)
        return np.sort((self.table[counts >= max(least, 1)] >> np.uint64(32)).astype(np.uint32))
