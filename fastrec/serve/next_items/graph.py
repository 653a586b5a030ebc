"""``NextItemGraph``: an exported net in memory, by onnxruntime alone: raw item ids → the best items."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core import limits
from fastrec._core.atomic import is_plain_name
from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.serve.session import open_session

__all__ = ["NextItemGraph", "read_next_items"]

_FILE, _TASK = "serving.json", "next_item"


class NextItemGraph:
    """An export of a run for next items.

    Args:
        folder: what ``export_next_items`` wrote.
        threads: of one call.
        device: ``'cpu'``, ``'cuda'`` or ``'tensorrt'``.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or damaged.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.about = read_next_items(folder)
        self.type: str = self.about["inputs"][0]["type"]
        self.missing = self.about["inputs"][0]["missing"]
        path = self.folder / self.about["model"]["file"]
        self._session = open_session(path, threads=threads, device=device)
        try:
            # a first call: a damaged graph fails here and not at the first request
            self.recommend([[]], 1)
        except Exception as error:  # onnxruntime's errors have no common class
            why = f"onnxruntime cannot use it ({' '.join(str(error).split())[:300]})"
            raise UnreadableFileError(why, file=path, remedy="Export the run anew") from error

    def recommend(self, sessions: Sequence[Sequence[Any]], k: int) -> list[tuple[list[Any], list[float]]]:
        """Recommend the best items of each session.

        Args:
            sessions: ids of items, the last event last; unknown ones are ignored.
            k: at most so many.

        Returns:
            For each session ids, the best first, and their scores.
        """
        lengths = np.array([len(s) for s in sessions], np.int64)
        order = np.argsort(lengths, kind="stable")
        best: list[Any] = [None] * len(sessions)
        step = max(1, limits.NEXT_ITEM_CELLS // max(int(self.about["items"]), 1))
        at = 0
        while at < len(order):  # sessions of similar length together, few enough for the memory
            rows = order[at : at + step]
            fits = max(1, int(np.searchsorted(lengths[rows] * np.arange(1, len(rows) + 1), limits.NEXT_ITEM_CELLS)))
            rows = rows[:fits]
            ids, scores = self.run([sessions[i] for i in rows], k)
            shown = (scores > -np.inf).sum(1)
            for i, items, values, n in zip(rows, ids, scores, shown, strict=True):
                best[i] = items[:n].tolist(), values[:n].tolist()
            at += len(rows)
        return best

    def run(self, sessions: Sequence[Sequence[Any]], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Run the graph: ids and float32 scores, ``[sessions, k]``."""
        width = max(map(len, sessions))
        dtype = object if self.type == "string" else np.int64
        items = np.full((len(sessions), max(width, 1)), self.missing, dtype)
        for row, session in zip(items, sessions, strict=True):
            row[: len(session)] = session
        return tuple(self._session.run(["ids", "scores"], {"items": items, "k": np.array([k], np.int64)}))


def read_next_items(folder: str | Path) -> dict[str, Any]:
    """Read ``serving.json``, and check that the graph is the one that it describes.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: it is not of this form, or the graph has another hash.
    """
    file = Path(folder) / _FILE
    try:
        about = json.loads(file.read_bytes())
        kinds = [i["type"] for i in about["inputs"]]
        name, sha = about["model"]["file"], about["model"]["sha256"]
        known = about["format"] == 1 and about["task"] == _TASK and kinds[0] in ("int64", "string")
        if not (known and is_plain_name(name) and "missing" in about["inputs"][0]):
            raise ValueError(f"format {about['format']!r}, task {about['task']!r}, inputs {kinds}")
    except FileNotFoundError as error:
        raise MissingFileError("there is no such file", file=file, remedy="Give what fastrec export wrote") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UnreadableFileError(
            f"its form is not that of an export ({error})", file=file, remedy="Export the run anew"
        ) from error
    path = Path(folder) / name
    if not path.is_file():
        raise MissingFileError("the graph is not there", file=path, remedy="Export the run anew")
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha:
        raise UnreadableFileError(
            f"its SHA-256 is {found[:12]}…, {_FILE} has {sha[:12]}…", file=path, remedy="Export the run anew"
        )
    return about
