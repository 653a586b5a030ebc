"""The state of events of an export: what its made inputs are made from, and what ``serving.json`` says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastrec.competition.predict import SavedRun, _files
from fastrec.errors import DataError
from fastrec.serve.graph.columns import described
from fastrec.serve.online import write_online_state
from fastrec.serve.online.plan import HISTORY
from fastrec.table import Table

FEATURES, EVENTS = "features", "events"


def write_events(
    part: Path, saved: SavedRun, made: Sequence[str], data: str | Path | Mapping[str, Table]
) -> tuple[dict[str, Any], list[str]]:
    """Write the features that are made outside of a graph and the events so far that they are made from.

    Args:
        part: the export's folder.
        saved: the run.
        made: the graph's inputs that are outputs of features.
        data: the data with the tables of events (see ``predict_run``), or these tables by name, ``train`` or
            ``history`` among them where features look back to the rows.

    Returns:
        What ``serving.json`` says of the events, and the columns that requests must have for them.

    Raises:
        DataError: a feature cannot be made from events, by name.
        MissingFileError: a table is not there.
    """
    assert saved.features is not None
    saved.features.save(part / FEATURES)
    if isinstance(data, Mapping):
        frames = dict(data)
    else:
        files = _files(Path(data), saved.reading)
        frames = {n: saved.read(p, n) for n, p in files.items() if n != "test"}
    history = frames.pop("history", frames.pop("train", None)) if saved.config["history"] else None
    online = write_online_state(part / EVENTS, saved.features, frames, history, outputs=list(made))
    types = {**frames, **({} if history is None else {HISTORY: history})}
    lacking = [t for t in online.tables if t not in types and t not in online.optional_tables]
    if lacking:
        raise DataError(
            f"the table of events {lacking[0]!r} is not there",
            file=None if isinstance(data, Mapping) else data,
            remedy="fastrec layout writes it",
        )
    said = {t: {"columns": _columns(types[t], names)} for t, names in online.tables.items() if t in types}
    return {"tables": said, "history": history is not None}, online.inputs


def _columns(table: Table, names: Sequence[str]) -> dict[str, Any]:
    return {n: described(n, table[n]) for n in names}
