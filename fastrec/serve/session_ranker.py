"""``export_session_ranker``: write a net that reads the events before a list as one ONNX file, and verify it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._version import __version__
from fastrec.errors import DataError
from fastrec.estimators import SessionRanker
from fastrec.estimators.session_ranker import ITEM, known_events, with_items
from fastrec.serve.export import _FILE, SCORE, Exported
from fastrec.serve.graph.builder import Graph, GraphTensor, N, value_of
from fastrec.serve.graph.columns import GraphTable, described, input_column, no_text_of
from fastrec.serve.graph.estimators import GraphRows, prediction
from fastrec.serve.graph.features import GraphGroups, Served
from fastrec.serve.graph.lists import COUNT, events_of
from fastrec.serve.verify import Verified, compare_scores, read_about, score_rows
from fastrec.table import Column, as_column
from fastrec.validate import Lists

__all__ = ["export_session_ranker", "verify_session_ranker"]


def export_session_ranker(model: SessionRanker, rows: Lists, out: str | Path, *, lists: str = "list") -> Exported:
    """Write a ranker that reads the session as a graph: raw columns of candidates and raw events → scores.

    The graph takes the candidates' columns, ``lists`` (equal in the rows of one list), ``events.<column>``
    ``[rows, events]`` for every column of events that is read, padded at the end, and ``events.count`` ``[rows]``. A
    row has the events of its list, the oldest first; the last ``most_events`` of a list's first row are read.
    ``fastrec serve`` takes each ``events.<column>`` as a list per row, and counts itself.

    Args:
        model: the trained ranker.
        rows: some lists with their events, for the columns' names and types.
        out: the folder to create; an earlier export there is replaced when this one is complete.
        lists: name of the input that tells lists apart.

    Raises:
        DataError: it was not trained, the rows come without events, or a column has no form in a graph.
    """
    out = Path(out)
    check_replaceable(out, _FILE)
    events = known_events(rows)
    if model._trained is None or model._events is None:
        raise model.not_fitted()
    coder, frame = model._events, model._trained.frame
    if coder.aged and (events.time is None or events.time not in rows.table):
        raise DataError(
            "candidates lack the time at which they were shown", column=events.time, remedy="Keep it in their table"
        )
    graph = Graph()
    inputs: dict[str, dict[str, Any]] = {}
    if lists in rows.table:
        raise DataError("candidates have a column of this name", column=lists, remedy="Name the lists otherwise")

    @cache
    def given(column: str) -> Column:
        example = with_items(rows).table[column]
        inputs[column] = described(column, example)
        return input_column(graph, column, example, no_text=no_text_of(example))

    table = GraphTable({}, later={n: (lambda n=n: given(n)) for n in rows.table.names})
    number = graph.input(lists, np.int64)
    groups = GraphGroups(GraphTensor(graph, number, torch.empty(N, dtype=torch.int64, device="meta")))
    before, about_events = events_of(graph, [model], events.log, events.item, events.time)
    cats = [n for n in frame.cat_names if n != ITEM]
    score = prediction(model, GraphRows(table, "ranking", cats, list(frame.cont_names), 1, groups, before))
    graph.output(SCORE, value_of(graph, score, torch.float64), np.float64)
    used = graph.drop_unread_inputs()
    about_inputs = [d for n, d in inputs.items() if n in used]
    about_list = {"name": lists, "type": "int64", "missing": None, "time": None, "required": True, "made": False}
    about = {
        "format": 1,
        "fastrec": __version__,
        "name": model.name,
        "task": "ranking",
        "inputs": [*about_inputs, about_list, *about_events],
        "events_count": COUNT,
        "outputs": [{"name": SCORE, "type": "float64", "width": 1}],
        "classes": None,
        "target": None,
        "list": lists,
        "item": events.item,
        "events": None,
    }
    with atomic_folder(out) as part:
        graph.export(part, about)
        (part / _FILE).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    return Exported(out, about, Served())


def verify_session_ranker(folder: str | Path, model: SessionRanker, rows: Lists) -> Verified:
    """Score lists by an exported graph and by its ranker, and compare.

    Args:
        folder: the export.
        model: the ranker.
        rows: whole lists with their events.

    Raises:
        FastrecError: something is not there, or cannot be read.
    """
    folder = Path(folder)
    about = read_about(folder)
    table = rows.table.with_columns({about["list"]: as_column(rows.groups, name=about["list"])})
    scores = score_rows(folder, table, events=known_events(rows))
    return compare_scores(scores, model.predict(rows).numpy(), rows.groups)
