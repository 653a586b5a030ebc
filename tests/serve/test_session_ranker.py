"""Rankers that read the session, exported: the file says what the net says, and a server takes lists of events."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import SessionRanker
from fastrec.table import Table, as_column
from fastrec.validate import ListEvents, Lists

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from fastrec.serve.graph.columns import GraphTable, described, input_column, no_text_of
from fastrec.serve.graph.estimators import GraphRows, prediction
from fastrec.serve.graph.features import GraphGroups
from fastrec.serve.graph.lists import COUNT, events_of
from fastrec.serve.onnx_builder import Graph, GraphTensor, N, value_of
from fastrec.serve.session import write_about
from fastrec.serve.verify import Verified, compare_scores, score_rows

KINDS = ["DIN", "BST"]
NAMES = {"session": "s", "order": ["t"], "item": "item", "cats": ["kind"], "conts": ["dwell"], "time": "t"}
ROWS = 4096


def logs(seed: int, rows: int, *, text: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Candidates in lists of 1, 6, then any size, and sessions of 0 to 8 events, some of items that no list has."""
    rng = np.random.default_rng(seed)
    sizes = [1, 6, *rng.integers(1, 12, rows).tolist()]
    ends = np.cumsum(sizes)
    sizes = [*sizes[: int((ends < rows).sum())]]
    sizes.append(rows - sum(sizes))
    names = np.array([f"Hôtel {i}" for i in range(60)], object) if text else np.arange(60) + 2**53 - 30
    lists = np.repeat(np.arange(len(sizes)) * 2 + 5, sizes)
    frame = pd.DataFrame({"list_id": lists, "s": lists, "t": pd.Timestamp("2026-01-01 12:00:00")})
    frame["item"] = names[rng.integers(0, 50, rows)]
    frame["colour"] = rng.choice(np.array(["red", "blue", None], object), rows)
    frame["price"] = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows))
    counts = rng.integers(0, 9, len(sizes))
    counts[:2] = 0, 3
    n = int(counts.sum())
    log = pd.DataFrame({"s": np.repeat(np.unique(lists), counts)})
    log["t"] = frame["t"].iloc[0] - pd.to_timedelta(rng.integers(1, 10_000, n), unit="s")
    log["item"] = names[rng.integers(5, 60, n)]
    log["kind"] = rng.choice(np.array(["look", "save", None], object), n)
    log["dwell"] = np.where(rng.random(n) < 0.2, np.nan, rng.exponential(size=n))
    if text:
        log.loc[rng.random(n) < 0.05, "item"] = None
    return frame, log


def lists_of(frame: pd.DataFrame, log: pd.DataFrame, **names: Any) -> Lists:
    table = Table.read(frame)
    events = ListEvents.before(table, Table.read(log), lists="list_id", **{**NAMES, **names})
    label = torch.zeros(len(frame), dtype=torch.float64)
    label[torch.from_numpy(frame.groupby("list_id").head(1).index.to_numpy(copy=True))] = 1
    return Lists(table, table["list_id"].integer(), cats=["colour"], conts=["price"], label=label, events=events)


def write(model: SessionRanker, rows: Lists, folder: Path, lists: str = "request") -> None:
    """Write a ranker alone as ``export_run`` writes one of a run: raw columns and raw events to scores."""
    graph, inputs, table = Graph(), {}, rows.table

    def given(name: str) -> Any:
        inputs[name] = described(name, table[name])
        return input_column(graph, name, table[name], no_text=no_text_of(table[name]))

    later = GraphTable({}, later={n: (lambda n=n: given(n)) for n in table.names})
    number = torch.empty(N, dtype=torch.int64, device="meta")
    groups = GraphGroups(GraphTensor(graph, graph.input(lists, np.int64), number))
    before, of_events = events_of(graph, [model], rows.events.log, rows.events.item, rows.events.time)
    score = prediction(model, GraphRows(later, "ranking", rows.cats, rows.conts, 1, groups, before))
    graph.output("score", value_of(graph, score, torch.float64), np.float64)
    used = graph.drop_unread_inputs()
    of_list = {"name": lists, "type": "int64", "missing": None, "time": None, "required": True, "made": False}
    about = {"format": 1, "name": model.name, "task": "ranking", "list": lists, "item": rows.events.item}
    about |= {"inputs": [*(d for n, d in inputs.items() if n in used), of_list, *of_events], "events_count": COUNT}
    about |= {"outputs": [{"name": "score", "type": "float64", "width": 1}], "classes": None, "events": None}
    about["ignored"] = {n: None for n in table.names if n not in used}
    folder.mkdir(parents=True)
    graph.export(folder, about)
    write_about(folder, about)


def verify(folder: str | Path, model: SessionRanker, rows: Lists) -> Verified:
    table = rows.table.with_columns({"request": as_column(rows.groups, name="request")})
    return compare_scores(score_rows(folder, table, events=rows.events), model.predict(rows).numpy(), rows.groups)


@cache
def exported(kind: str, folder: str) -> tuple[SessionRanker, str]:
    model = SessionRanker(kind, model=kind, layers=[16], epochs=2, bs=256, lr=1e-2, most_events=5)
    model.fit(lists_of(*logs(0, 600)), None, seed=1)
    write(model, lists_of(*logs(1, 50)), Path(f"{folder}/{kind}"))
    return model, f"{folder}/{kind}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("rankers"))


@pytest.mark.parametrize("rows", [1, 7, ROWS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_says_what_the_net_says(kind, rows, folder):
    """Lists of several lengths, sessions without events and with more than are read, unseen and missing items."""
    model, path = exported(kind, folder)
    frame, log = logs(2, ROWS)
    frame = frame.iloc[:rows]
    found = verify(path, model, lists_of(frame, log))
    assert found.holds, found
    assert found.rows == rows
    nothing = verify(path, model, lists_of(frame, log.iloc[:0]))
    assert nothing.holds, nothing


def test_integers_above_2_to_the_53_events_of_items_alone_and_no_columns_of_candidates(tmp_path):
    frame, log = logs(3, 400, text=False)
    rows = lists_of(frame, log, cats=[], conts=[], time=None)
    rows = Lists(rows.table, rows.groups, label=rows.label, conts=["price"], events=rows.events)
    model = SessionRanker("din", layers=[8], epochs=1, bs=128, most_events=3).fit(rows, None, seed=1)
    write(model, rows, tmp_path / "export")
    found = verify(tmp_path / "export", model, rows)
    assert found.holds, found
    assert found.rows == 400
    other = model.fresh().fit(rows, None, seed=2)
    assert not verify(tmp_path / "export", other, rows).holds


def columns(frame: pd.DataFrame, log: pd.DataFrame) -> dict[str, list[Any]]:
    """Rows as a client sends them: raw values, a list of raw events beside each."""
    log = log.sort_values("t", kind="stable")
    sent: dict[str, list[Any]] = {
        "item": frame["item"].tolist(),
        "colour": [None if v is None or v != v else v for v in frame["colour"]],
        "price": frame["price"].tolist(),
        "t": frame["t"].dt.strftime("%Y-%m-%dT%H:%M:%S").tolist(),
        "request": frame["list_id"].tolist(),
    }
    for name in ("item", "kind", "dwell", "t"):
        values = log["t"].dt.strftime("%Y-%m-%dT%H:%M:%S") if name == "t" else log[name]
        values = values.astype(object).where(values.notna(), None)
        by = values.groupby(log["s"]).apply(list)
        sent[f"events.{name}"] = [by.get(s) for s in frame["s"]]
    return sent


def test_a_server_takes_lists_of_events(folder):
    """As rows of JSON with the events in the context, as columns, as Arrow; several requests together."""
    pytest.importorskip("starlette")
    pytest.importorskip("orjson")
    from fastrec.serve import Scorer, make_app
    from fastrec.serve.server.bodies import Body
    from tests.serve.server.calls import post
    from tests.serve.server.test_v1 import ARROW, stream

    model, path = exported("BST", folder)
    frame, log = logs(4, 60)
    wanted = model.predict(lists_of(frame, log)).numpy()
    sent, scorer = columns(frame, log), Scorer(path)
    scorer.warm()
    np.testing.assert_allclose(scorer.score(sent), wanted, atol=1e-5)
    app = make_app(path)
    try:
        answer = post(app, "/v1/score", {"columns": sent})
        assert answer.status == 200, answer.body
        np.testing.assert_allclose(answer.json()["scores"], wanted, atol=1e-5)
        table = pa.table({**sent, "t": pa.array(frame["t"].to_numpy("M8[us]"))})
        assert table.schema.field("events.kind").type == pa.list_(pa.string())
        np.testing.assert_allclose(post(app, "/v1/score", stream(table), ARROW).json()["scores"], wanted, atol=1e-5)
        one = frame["list_id"] == frame["list_id"].iloc[1]
        names = [n for n in sent if n not in ("request", "t") and not n.startswith("events.")]
        rows = [{n: sent[n][i] for n in names} for i in np.flatnonzero(one)]
        context = {n: sent[n][1] for n in sent if n == "t" or n.startswith("events.")}
        ranked = post(app, "/v1/rank", {"rows": json.loads(json.dumps(rows)), "context": context})
        assert ranked.status == 200, ranked.body
        assert ranked.json()["positions"] == np.argsort(-wanted[one.to_numpy()], kind="stable").tolist()
    finally:
        app.state.service.close()
    first = Body("columns", {n: v[:7] for n, v in sent.items()}, {})
    for rest in (Body("table", pa.table(sent).slice(7), {}), Body("columns", {n: v[7:] for n, v in sent.items()}, {})):
        both = scorer.score_all([body.columns(scorer.spec, 99) for body in (first, rest)])
        np.testing.assert_allclose(np.concatenate([b[0] for b in both]), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"events.kind": ["look", ["look"]]}, "'events.kind', row 0: look is no list of events' values"),
        ({"events.dwell": [[1.0], ["soon"]]}, "'events.dwell', row 1: an event: "),
        ({"events.kind": [["look"], None]}, "'events.kind', row 1: the row has 0 events here and 1 in 'events.item'"),
        ({"events.kind": None}, "'events.kind': the column is missing, and other columns of events are there"),
        ({"events.colour": [[], [1]]}, "'events.colour': the model has no such column"),
        ({"events.t": [["2026-01-01T10:00:00"], ["soon"]]}, "'events.t', row 1: an event: soon is not a time"),
    ],
)
def test_odd_events_are_refused_by_column_and_row(change, said, folder):
    pytest.importorskip("starlette")
    from fastrec.serve import Refusal, Scorer

    _, path = exported("DIN", folder)
    sent = {
        "item": ["Hôtel 1", "Hôtel 2"], "colour": ["red", None], "price": [1.0, None],
        "t": ["2026-01-01T12:00:00"] * 2, "events.item": [["Hôtel 1"]] * 2, "events.kind": [["look"]] * 2,
        "events.dwell": [[1.0], [None]], "events.t": [["2026-01-01T10:00:00"]] * 2,
    }  # fmt: skip
    scorer = Scorer(path)
    assert scorer.score(sent).shape == (2,)
    changed = {n: v for n, v in {**sent, **change}.items() if v is not None}
    with pytest.raises(Refusal, match=said):
        scorer.score(changed)
    plain = {n: v for n, v in sent.items() if not n.startswith("events.")}
    without = {**plain, **{n: [[], None] for n in sent if n.startswith("events.")}}
    np.testing.assert_array_equal(scorer.score(plain), scorer.score(without))  # no events are no events


def test_what_cannot_be_exported_is_said(tmp_path, folder):
    model, _ = exported("DIN", folder)
    frame, log = logs(5, 20)
    rows = lists_of(frame, log)
    with pytest.raises(NotFittedError):
        write(model.fresh(), rows, tmp_path / "x")
    with pytest.raises(DataError, match="reads the events before a list"):
        prediction(model, GraphRows(GraphTable({}), "ranking", ["colour"], ["price"]))
