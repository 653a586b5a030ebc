"""The state of events of an export: what its made inputs are made from, and what ``serving.json`` says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fastrec.competition.predict import SavedRun, _files
from fastrec.errors import DataError
from fastrec.serve.graph.columns import NO_INTEGER, type_of_input
from fastrec.serve.online import write_online_state
from fastrec.serve.online.plan import HISTORY
from fastrec.table import Column, Table

FEATURES, EVENTS = "features", "events"


def write_events(
    part: Path, saved: SavedRun, made: Sequence[str], data: str | Path
) -> tuple[dict[str, Any], list[str]]:
    """Write the features that are made outside of a graph and the events so far that they are made from.

    Args:
        part: the export's folder.
        saved: the run.
        made: the graph's inputs that are outputs of features.
        data: the data with the tables of events (see ``predict_run``).

    Returns:
        What ``serving.json`` says of the events, and the columns that requests must have for them.

    Raises:
        DataError: a feature cannot be made from events, by name.
        MissingFileError: a table is not there.
    """
    assert saved.features is not None
    saved.features.save(part / FEATURES)
    files = _files(Path(data), saved.reading)
    frames = {n: Table.read(saved.reading.read(p)) for n, p in files.items() if n != "test"}
    history = frames.pop("history", frames.pop("train", None)) if saved.config["history"] else None
    online = write_online_state(part / EVENTS, saved.features, frames, history, outputs=list(made))
    types = {**frames, **({} if history is None else {HISTORY: history})}
    lacking = [t for t in online.tables if t not in types]
    if lacking:
        raise DataError(
            f"the table of events {lacking[0]!r} is not there", file=data, remedy="fastrec layout writes it"
        )
    said = {t: {"columns": _columns(types[t], names)} for t, names in online.tables.items()}
    return {"tables": said, "history": history is not None}, online.inputs


def _columns(table: Table, names: Sequence[str]) -> dict[str, Any]:
    return {n: described(n, table[n]) for n in names}


def described(name: str, column: Column) -> dict[str, Any]:
    """A column as ``serving.json`` describes inputs."""
    kind = type_of_input(column)
    missing: Any = {"string": "", "int64": int(NO_INTEGER)}.get(kind)
    time = {"unit": column.unit, "zone": column.zone} if column.kind == "datetime" else None
    return {"name": name, "type": kind, "missing": missing, "time": time}


def features_of(folder: Path, requests: Mapping[str, Any] | pa.Table) -> pa.Table:
    """The made columns of requests, from an export's events."""
    from fastrec.serve.online import Online

    online = Online.load(Path(folder) / EVENTS)
    try:
        return online.features(requests)
    finally:
        online.close()
