"""OTTO (Kaggle 2022): which items a session will click, put into its cart and order.

Candidates by co-visitation of several kinds and by popularity, then boosted trees for each kind of event. Run it with
``fastrec run competitions/otto --data DIR --out DIR``, or as a script.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import torch

if __package__ in (None, ""):  # run as a script, or loaded by path: the workspace's folders are found from its root
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.otto.objectives import ObjectiveCompetition, ObjectiveData
from fastrec.errors import DataError, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.sequences import CoVisitation, GoalNet, PopularItems, SessionFrame, SessionModel
from fastrec.table import Table
from fastrec.table.column import offsets_of

KINDS = ("clicks", "carts", "orders")
_BLOCK = 1 << 26  # bytes of a file that are parsed at a time: a line must fit


class Otto(ObjectiveCompetition):
    """Events are known up to a moment of each test session; the later ones are to be predicted, by kind."""

    name = "OTTO"
    objectives = {"clicks": 0.10, "carts": 0.30, "orders": 0.60}  # noqa: RUF012 - never changed
    next_only = ("clicks",)
    k = 20

    net: Mapping[str, Any] | None = None  # options of a GoalNet, whose heads are sources too; {}: its own

    def sources(self) -> Mapping[str, SessionModel]:
        kinds = {"event": "type"}
        shared = None if self.net is None else GoalNet(KINDS, **{"max_len": 20, **self.net})
        return {
            **({} if shared is None else {f"net_{goal}": shared.of(goal) for goal in KINDS}),
            "near": CoVisitation(hops=2, own=3.0, gap=86_400.0),
            "to_cart": CoVisitation(window=20, near=10.0, own=6.0, **kinds, weights=dict(zip(KINDS, (1, 6, 3)))),
            "bought": CoVisitation(window=30, near=None, own=None, **kinds, weights=dict(zip(KINDS, (0.05, 1, 1)))),
            "late": CoVisitation(recency=0.1, own=3.0),
            "popular": PopularItems(recency=0.05),
        }

    def read(self, data: Path, rows: int | None) -> ObjectiveData:
        log = _log(data, "train")
        train = pc.count_distinct(log["session"]).as_py()
        if rows is not None and rows < train:
            kept = pc.unique(log["session"]).take(pa.array(range(train - rows, train)))
            log = log.filter(pc.is_in(log["session"], kept))
            train = rows
        asked = _log(data, "test")
        frame = pa.concat_tables([log, asked])
        known = SessionFrame(frame, item="aid", session="session", order="ts", features=["type"])
        test = torch.arange(len(known)) >= train
        if len(known) != train + pc.count_distinct(asked["session"]).as_py():
            raise DataError("a session stands in both files", file=data, column="session", remedy="Number them apart")
        labels = data / "test_labels.jsonl"
        return ObjectiveData(known, test, _labels(labels, known.take(test)) if labels.exists() else None)


def _log(data: Path, name: str) -> pa.Table:
    """Read a file's events, jsonl or Parquet: ``session``, ``aid``, ``ts`` (a time), ``type`` (text)."""
    path = next((p for p in (data / f"{name}.jsonl", data / f"{name}.parquet") if p.is_file()), None)
    if path is None:
        raise MissingFileError(
            "there is no such file", file=data / f"{name}.jsonl", remedy="Give the folder of train and test files"
        )
    table = _events(_json(path), path) if path.suffix == ".jsonl" else Table.read(path).to_arrow()
    absent = next((n for n in ("session", "aid", "ts", "type") if n not in table.column_names), None)
    if absent is not None:
        raise MissingColumnError("it is not there", file=path, column=absent, remedy="Use the competition's files")
    kind, ts = table["type"], table["ts"]
    if pa.types.is_integer(kind.type):  # the files that are passed about as Parquet have numbers, and seconds
        unknown = [v for v in pc.unique(kind).to_pylist() if v is not None and not 0 <= v < len(KINDS)]
        if unknown:
            kinds = ", ".join(f"{i} ({n})" for i, n in enumerate(KINDS))
            raise DataError(
                f"unknown kinds of events: {sorted(unknown)}", file=path, column="type", remedy=f"Use {kinds}"
            )
        kind, ts = pa.array(KINDS).take(kind.combine_chunks()), pc.multiply(ts.cast(pa.int64()), 1000)
    unknown = pc.unique(kind.cast(pa.string())).to_pylist()
    if set(unknown) - set(KINDS):
        raise DataError(
            f"unknown kinds of events: {sorted(set(unknown) - set(KINDS), key=str)}", file=path, column="type",
            remedy=f"Use {', '.join(KINDS)}",
        )  # fmt: skip
    columns = {"session": table["session"], "aid": table["aid"], "ts": ts.cast(pa.int64()).cast(pa.timestamp("ms"))}
    return pa.table({**columns, "type": kind.cast(pa.string())})


def _json(path: Path) -> pa.Table:
    try:
        return pa_json.read_json(path, pa_json.ReadOptions(block_size=_BLOCK))
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableFileError(
            f"it cannot be read ({error})", file=path, remedy="Use the competition's files"
        ) from error


def _events(sessions: pa.Table, path: Path) -> pa.Table:
    """One event a row of one session a row."""
    absent = next((n for n in ("session", "events") if n not in sessions.column_names), None)
    if absent is not None:
        raise MissingColumnError("it is not there", file=path, column=absent, remedy="Use the competition's files")
    lists = sessions["events"].combine_chunks()
    events = lists.flatten()
    parents = pc.list_parent_indices(lists)
    names = [field.name for field in events.type]
    flat = dict(zip(names, events.flatten(), strict=True))
    return pa.table({"session": sessions["session"].combine_chunks().take(parents), **flat})


def _labels(path: Path, test: SessionFrame) -> dict[str, SessionFrame]:
    """Read the later events of each test session, for the final scores alone."""
    table = _json(path)
    absent = next((n for n in ("session", "labels") if n not in table.column_names), None)
    if absent is not None:
        raise MissingColumnError("it is not there", file=path, column=absent, remedy="Use the competition's files")
    of_row = Table({"session": table["session"]})["session"].coded()
    assert test.sessions is not None
    row = torch.full((of_row.size,), -1, dtype=torch.int64)
    row[of_row.codes] = torch.arange(len(table))
    rows = row[test.sessions.coded().recode(of_row.keys)]
    labels = table["labels"].combine_chunks()
    wanted = {}
    for kind in KINDS:
        there = kind in [f.name for f in labels.type]
        found = labels.field(kind) if there else pa.nulls(len(table), pa.list_(pa.int64()))
        items = found.flatten() if pa.types.is_list(found.type) else found.drop_null()
        counts = pc.fill_null(pc.list_value_length(found), 0) if pa.types.is_list(found.type) else found.is_valid()
        offsets = offsets_of(torch.tensor(counts.to_pylist(), dtype=torch.int64))
        codes = test.items.encode(Table({"aid": items})["aid"])
        every = SessionFrame.of(codes, offsets, test.items)
        known = rows.clamp_min(0)
        ends = torch.where(rows >= 0, offsets[known + 1], offsets[known])
        wanted[kind] = every.cut(offsets[known], ends)
    return wanted


if __name__ == "__main__":
    from fastrec.cli import script

    script(Otto)
