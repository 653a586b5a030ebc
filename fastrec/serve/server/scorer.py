"""A graph that is loaded and scores columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fastrec.errors import UnreadableFileError
from fastrec.serve.server.columns import RequestColumns, arrays_together, lists_together
from fastrec.serve.server.event_lists import event_arrays
from fastrec.serve.server.reading import columns_of_arrays
from fastrec.serve.server.spec import FILE, Spec, read_spec
from fastrec.serve.server.values import DTYPES, filled, from_values
from fastrec.serve.session import open_session

__all__ = ["Scorer"]

_ONNX = {
    "tensor(string)": "string",
    "tensor(int64)": "int64",
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(bool)": "bool",
}


class Scorer:
    """An export in memory: columns in, scores out, by onnxruntime alone.

    Calls from several threads at once are fine: each runs on the thread that it was called from, and on ``threads - 1``
    others.

    Args:
        folder: what ``fastrec export`` wrote: ``model.onnx`` and ``serving.json``.
        threads: threads of one call; 1 leaves the other cores to other calls.
        device: ``'cpu'``, ``'cuda'`` or ``'tensorrt'``.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or the graph does not take what ``serving.json`` says.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.version: int | None = None  # its number in a registry
        self.events: Any = None  # what makes its columns from events (see ``service.Events``)
        self.spec: Spec = read_spec(folder)
        self._session = open_session(self.spec.model, threads=threads, device=device)
        self._takes = {i.name: _ONNX.get(i.type, i.type) for i in self._session.get_inputs()}
        self._gives = [o.name for o in self.spec.outputs]
        self._check()
        self._listed = self.spec.list if self.spec.list in self._takes else None

    @property
    def label(self) -> str:
        """What answers say they are by: the version's number in a registry, else the beginning of the file's hash."""
        return self.spec.version[:12] if self.version is None else str(self.version)

    def score(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Score rows.

        Args:
            columns: raw columns by name, arrays or lists ``[n]``: as in the training files. Without the column of
                lists all rows are one list.

        Returns:
            float64 ``[n]``, or ``[n, width]`` where the task has several scores a row.

        Raises:
            Refusal: a column is missing, unknown or of another type.
        """
        return self.score_all([columns_of_arrays(self.spec, columns)])[0][0].astype(np.float64, copy=False)

    def score_all(self, batch: Sequence[RequestColumns]) -> list[list[np.ndarray]]:
        """Score several requests together; a refused value's row is right only for a single request."""
        arrays = arrays_together(batch)
        feeds = {name: values for name, values in arrays.items() if name in self._takes}
        if self._listed is not None:
            feeds[self._listed] = lists_together(batch)
        outputs = self.run(feeds)
        if len(batch) == 1:
            return [outputs]
        ends = list(accumulate(one.rows for one in batch))
        return [[o[end - one.rows : end] for o in outputs] for one, end in zip(batch, ends)]

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph on inputs ``[n]`` of the declared types; outputs come in the order of ``spec.outputs``."""
        if not len(next(iter(feeds.values()))):
            return [np.empty((0,) if o.width == 1 else (0, o.width), DTYPES[o.type]) for o in self.spec.outputs]
        return self._session.run(self._gives, feeds)

    def warm(self, *rows: int) -> None:
        """Score rows of missing values, so that the first request does not pay for what happens once."""
        for n in rows or (1, 64):
            plain = [i for i in self.spec.inputs if i.events is None]
            empty = {i.name: filled(i, n) for i in plain} | self._no_events(n)
            empty = {name: values for name, values in empty.items() if name in self._takes}
            try:
                self.run(empty)
            except Exception as error:  # onnxruntime's errors have no common class
                why = f"it cannot score {n} rows of missing values ({' '.join(str(error).split())[:300]})"
                raise UnreadableFileError(why, file=self.spec.model, remedy="Export the run anew") from error

    def _no_events(self, rows: int) -> dict[str, np.ndarray]:
        return {} if self.spec.events_count is None else event_arrays(self.spec, {}, rows, from_values)

    def _check(self) -> None:
        declared = {i.name: i.type for i in self.spec.inputs}
        declared |= {} if self.spec.events_count is None else {self.spec.events_count: "int64"}
        gives = {o.name for o in self._session.get_outputs()}
        wrong = [f"{n} ({t}, {FILE} says {declared.get(n)})" for n, t in self._takes.items() if declared.get(n) != t]
        wrong += [f"{n} (no such output)" for n in self._gives if n not in gives]
        wrong += [] if self._gives else ["no output at all"]
        if wrong:
            said = f"it does not fit {FILE}: {', '.join(wrong)}"
            raise UnreadableFileError(said, file=self.spec.model, remedy="Export the run anew")
