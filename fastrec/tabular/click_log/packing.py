"""Packed rows of a log in a folder: written once from the text, read by every epoch.

The text is read once: parsed rows go into the file in which the packed ones are to be, values are counted on the way,
and once all is known the rows are changed where they lie, block by block.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.leftovers import remove_leftovers
from fastrec.table import load_state, save_state
from fastrec.tabular.click_log.codes import LogEncoder
from fastrec.tabular.click_log.parse import LogForm, parse
from fastrec.tabular.click_log.tally import Tally
from fastrec.tabular.click_log.text import LogPart, stretches
from fastrec.tabular.packed import Layout
from fastrec.tabular.stream.cache import CachedRows, _add_sums, _cut

_ROWS, _ABOUT, _LEARNT = "rows.bin", "about.json", "learnt"

Advance = Callable[[int], None]


class LogRows(CachedRows):
    """Packed rows of a log in a folder, written where they are not there yet.

    Args:
        encoder: what training rows have taught; None: these are the training rows.

    Attributes:
        encoder: what makes packed rows.
        passes: how often the rows were gone over to count values; 0: they were there already.
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
        digest = hashlib.sha256(json.dumps(self._fingerprint, sort_keys=True).encode()).hexdigest()[:16]
        self.folder, self.passes = cache / f"{name}-{digest}", 0
        held = self._about()
        if held is None:
            held = self._pack(encoder, min_count, memory)
        self.units = _cut(held["rows"], limits.CACHED_ROWS)
        self._sums = np.array(held["sums"], dtype=np.uint32)
        self._known: tuple[int, ...] = ()
        self._checked = np.zeros(len(self._sums), dtype=bool)
        self.encoder = encoder if encoder is not None else self._read_learnt()
        self._fingerprint["settings"]["rows"] = held["rows"]

    def _about(self) -> dict[str, Any] | None:
        """Describe existing rows; None if they are missing or incomplete."""
        try:
            about = json.loads((self.folder / _ABOUT).read_text())
            size, rows, sums = (self.folder / _ROWS).stat().st_size, about["rows"], about["sums"]
            known = about["fingerprint"] == json.loads(json.dumps(self._fingerprint))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        whole = known and size == rows * self.layout.words * 4 and len(sums) == len(_cut(rows, limits.CACHED_ROWS))
        return about if whole else None

    def _pack(self, encoder: LogEncoder | None, min_count: int, memory: int) -> dict[str, Any]:
        check_replaceable(self.folder, _ROWS, _ABOUT)
        remove_leftovers(self.folder.parent)
        with atomic_folder(self.folder) as folder:
            path = folder / _ROWS
            if encoder is None:
                encoder, rows = self._learn(path, min_count, memory)
                texts = [pa.array(v) for v in encoder.values]
                save_state(folder / _LEARNT, {"values": texts, "lows": encoder.lows.tolist()})
                sums = _rewrite(path, encoder, self._form.words)
            else:
                rows, sums = self._write(path, encoder)
            about = {"fingerprint": self._fingerprint, "rows": rows, "sums": sums}
            (folder / _ABOUT).write_text(json.dumps(about))
        return about

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

    def _write(self, path: Path, encoder: LogEncoder) -> tuple[int, list[int]]:  # type: ignore[override]
        sums: list[int] = []
        width, at, total = self._form.words * 4, 0, 0
        with path.open("wb") as file:
            for rows, _ in self._parsed():
                encoder.encode(rows)
                bytes_ = memoryview(rows).cast("B")
                file.write(bytes_)
                at, total = _add_sums(sums, at, bytes_, limits.CACHED_ROWS * width), total + len(rows)
        return total, sums

    def _parsed(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for stretch in stretches(self._parts, limits.LOG_TEXT_BYTES):
            rows, lows = parse(stretch, self._form)
            self._advance(len(rows))
            yield rows, lows

    def _read_learnt(self) -> LogEncoder:
        state = load_state(self.folder / _LEARNT)
        return LogEncoder([v.to_numpy(zero_copy_only=False) for v in state["values"]], state["lows"])


def _digest(encoder: LogEncoder) -> str:
    found = hashlib.sha256(encoder.lows.tobytes())
    for values in encoder.values:
        found.update(len(values).to_bytes(8, "little") + values.tobytes())
    return found.hexdigest()[:16]


def _blocks(path: Path, words: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while len(block := file.read(limits.PACKED_ROWS * words * 4)):
            yield np.frombuffer(bytearray(block), dtype=np.int32).reshape(-1, words)


def _rewrite(path: Path, encoder: LogEncoder, words: int) -> list[int]:
    sums: list[int] = []
    at = 0
    with path.open("r+b", buffering=0) as file:
        room = np.empty((limits.PACKED_ROWS, words), dtype=np.int32)
        while got := os.preadv(file.fileno(), [memoryview(room).cast("B")], at):
            rows = room[: got // (words * 4)]
            encoder.encode(rows)
            bytes_ = memoryview(rows).cast("B")
            os.pwrite(file.fileno(), bytes_, at)
            at = _add_sums(sums, at, bytes_, limits.CACHED_ROWS * words * 4)
    return sums
