"""A run whose models read the session, exported: raw events beside raw candidates, whole, in parts and served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastrec.competition import EventsBefore, run_competition
from fastrec.competition.predict import SavedRun, read_rows, write_layout
from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import SessionRanker
from fastrec.table import Table
from tests.competition.looks import Looks

pytest.importorskip("onnxscript")
pytest.importorskip("starlette")
pytest.importorskip("onnxruntime")

import onnxruntime

from fastrec.serve import Refusal, Scorer, export_run, make_app, verify_export
from fastrec.serve.export import event_feeds, feeds_of
from fastrec.serve.graph.columns import GraphTable
from fastrec.serve.graph.estimators import GraphRows, prediction
from fastrec.serve.graph.lists import events_of
from fastrec.serve.onnx_builder import Graph
from fastrec.serve.server.bodies import Body
from tests.serve.server.calls import post, scores
from tests.serve.server.test_v1 import ARROW, stream
from tests.serve.test_triton import by_ensemble, parse  # noqa: F401 - a fixture


def changed(recipe: Looks, change: Any, **options: Any) -> Any:
    """What ``Looks`` loads, with other columns in each table."""
    found = Looks.load(recipe, **options)
    train, test, log = (t.with_columns(change(t)) for t in (found.train, found.test, found.tables["log"]))
    return replace(found, train=train, test=test, tables={"log": log})


class Timed(Looks):
    def load(self, data: Path, **options: Any) -> Any:
        rng = np.random.default_rng(0)

        def change(table: Table) -> dict[str, np.ndarray]:
            made = {n: table[n].values.double().cpu().numpy() for n in ("t", "place") if n in table}
            gone = {"place": np.where(rng.random(len(table)) < 0.1, np.nan, made["place"])} if "place" in made else {}
            return {"t": (made["t"] * 10**6).astype("M8[us]"), **gone}

        return changed(self, change, data=data, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looks")
    (folder / "data").mkdir()
    run_competition(Timed(), folder / "data", folder / "run", seed=1, resume=False)
    write_layout(Timed(), folder / "data", folder / "layout")
    made = export_run(folder / "run", folder / "out", parts=True)
    assert made.about["events_count"] == "events.count"
    return folder


@pytest.fixture(scope="module")
def asked(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Events of items, kinds and numbers that training has not seen, lists without events, missing values."""
    log = pd.read_parquet(folder / "layout" / "log.parquet")
    rows, rng = pd.read_parquet(folder / "layout" / "test.parquet"), np.random.default_rng(0)
    log.loc[rng.random(len(log)) < 0.2, ["item", "dwell"]] = "new", np.nan
    log.loc[rng.random(len(log)) < 0.05, "item"] = None
    log.loc[rng.random(len(log)) < 0.2, "kind"] = None
    return rows, log[~log.s.isin(rows.s.unique()[:5])]


def test_the_file_says_what_the_run_says(folder: Path, asked: Any, tmp_path: Path) -> None:
    for data in (None, folder / "layout"):
        found = verify_export(folder / "out", folder / "run", data)
        assert (found.rows, found.holds) == (100, True), found
    rows, log = asked
    rows.to_parquet(tmp_path / "test.parquet")
    log.to_parquet(tmp_path / "log.parquet")
    assert verify_export(folder / "out", folder / "run", tmp_path).holds
    said = SavedRun(folder / "run").predict(rows, tables={"log": log}).numpy()
    assert (said != pq.read_table(folder / "run/test/stack.parquet")["score"].to_numpy()).any()


def test_parts_say_together_what_the_file_says(folder: Path, tmp_path: Path, parse: Any) -> None:  # noqa: F811
    about = json.loads((folder / "out" / "serving.json").read_text())
    _, rows = read_rows(SavedRun(folder / "run"), folder / "layout")
    values = {**feeds_of(about, rows.table), **event_feeds(about, rows.groups, rows.events)}
    whole = onnxruntime.InferenceSession(folder / "out" / "model.onnx")
    wanted = whole.run(["score"], {i.name: values[i.name] for i in whole.get_inputs()})[0]
    score = by_ensemble(folder / "out", tmp_path / "repo", values, parse)  # events are as wide as they come
    np.testing.assert_allclose(score, wanted, atol=1e-6)


class Whole(Looks):
    """Items above 2^53, whose events have nothing else."""

    events = EventsBefore("log", session="s", order="t", item="item")

    def load(self, data: Path, **options: Any) -> Any:
        return changed(self, lambda t: {"item": t["item"].coded().codes.cpu().numpy() + 2**53}, data=data, **options)

    def models(self, *, bs: int | None) -> list[SessionRanker]:
        return [SessionRanker("din", layers=[8], epochs=1, bs=128, most_events=3)]


def test_items_alone_that_are_integers_above_2_to_the_53(tmp_path: Path) -> None:
    run = run_competition(Whole(), tmp_path, tmp_path / "run", seed=1, resume=False)
    export_run(run, tmp_path / "out")
    assert verify_export(tmp_path / "out", run).holds


def columns(rows: pd.DataFrame, log: pd.DataFrame) -> dict[str, list[Any]]:
    """Rows as a client sends them: raw values, a list of raw events beside each."""
    log = log[log["t"] < rows["t"].iloc[0]].sort_values("t", kind="stable")
    as_text = [f.assign(t=f["t"].dt.strftime("%Y-%m-%dT%H:%M:%S")) for f in (rows, log)]
    sent = {n: as_text[0][n].tolist() for n in ("list_id", "item", "place", "t")}
    for name in ("item", "kind", "dwell", "t"):
        values = as_text[1][name].astype(object)
        by = values.where(values.notna(), None).groupby(log["s"]).apply(list)
        sent[f"events.{name}"] = [by.get(s) for s in rows["s"]]
    return sent


def test_a_server_takes_lists_of_events(folder: Path, asked: Any) -> None:
    wanted = SavedRun(folder / "run").predict(asked[0], tables={"log": asked[1]}).numpy()
    sent, scorer, app = columns(*asked), Scorer(folder / "out"), make_app(folder / "out")
    table = pa.table({**sent, "t": pa.array(asked[0]["t"].to_numpy("M8[us]"))})
    assert table.schema.field("events.kind").type == pa.list_(pa.string())
    one = np.flatnonzero(asked[0]["list_id"] == sent["list_id"][-1])
    context = {n: v[-1] for n, v in sent.items() if n == "t" or n.startswith("events.")}
    candidates = [{n: sent[n][i] for n in ("item", "place")} for i in one]
    try:
        for said in (scorer.score(sent), scores(app, {"columns": sent}), scores(app, stream(table), ARROW)):
            np.testing.assert_allclose(said, wanted, atol=1e-5)
        ranked = post(app, "/v1/rank", {"rows": candidates, "context": context})
        assert ranked.json()["positions"] == np.argsort(-wanted[one], kind="stable").tolist()
    finally:
        app.state.service.close()
    first = Body("columns", {n: v[:5] for n, v in sent.items()}, {})
    for rest in (Body("table", pa.table(sent).slice(5), {}), Body("columns", {n: v[5:] for n, v in sent.items()}, {})):
        both = scorer.score_all([body.columns(scorer.spec, 999) for body in (first, rest)])
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
def test_odd_events_are_refused_by_column_and_row(change: dict[str, Any], said: str, folder: Path) -> None:
    plain = {"item": ["hôtel 1", "hôtel 2"], "place": [0, 1], "t": ["2026-01-01T12:00:00"] * 2}
    sent = {"events.item": [["hôtel 1"]] * 2, "events.kind": [["look"]] * 2, "events.dwell": [[1.0], [None]]}
    sent |= {"events.t": [["2026-01-01T10:00:00"]] * 2}
    scorer = Scorer(folder / "out")
    with pytest.raises(Refusal, match=said):
        scorer.score({n: v for n, v in {**plain, **sent, **change}.items() if v is not None})
    # no events are no events
    np.testing.assert_array_equal(scorer.score(plain), scorer.score({**plain, **{n: [[], None] for n in sent}}))


def test_what_cannot_be_exported_is_said() -> None:
    model = SessionRanker("din")
    with pytest.raises(NotFittedError):
        events_of(Graph(), [model], None, "item", None)
    with pytest.raises(DataError, match="reads the events before a list"):
        prediction(model, GraphRows(GraphTable({}), "ranking", [], []))
