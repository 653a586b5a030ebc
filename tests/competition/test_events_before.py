"""Recipes whose rankers read the session: run, predicted, exported, served, tried, without the recipe's code."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from fastrec.competition import EventsBefore, SavedRun, predict_run, run_competition
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.predict import write_layout
from fastrec.errors import DataError, FastrecError, MissingColumnError, MissingFileError
from fastrec.estimators import Estimator
from fastrec.validate import ListEvents, Lists
from tests.competition.looks import EVENTS, Looks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looks")
    (folder / "data").mkdir()
    out = run_competition(Looks(), folder / "data", folder / "run", seed=1, resume=True)
    write_layout(Looks(), folder / "data", folder / "layout")
    return out


def test_models_of_a_run_read_the_session(run: Path) -> None:
    """A guess finds the clicked one first in 1 of 5 lists: an MRR of .457; the trees know the place alone."""
    scores = json.loads((run / "scores.json").read_text())
    assert scores["oof"]["din"] > 0.8 > 0.6 > scores["oof"]["xgb"]
    assert scores["oof"]["stack"] >= scores["oof"]["din"]
    assert json.loads((run / "config.json").read_text())["events"] == json.loads(json.dumps(asdict(EVENTS)))


def test_the_run_predicts_what_a_loop_over_its_folds_predicts(run: Path) -> None:
    found = Looks().load(run, rows=None, device=torch.device("cpu"))
    names = {"lists": "list_id", "session": "s", "order": ["t"], "item": "item", "cats": ["kind"], "conts": ["dwell"]}
    events = ListEvents.before(found.test, found.tables["log"], **names, time="t")
    rows = Lists(found.test, found.test["list_id"].integer(), conts=["place"], events=events)
    for name in ("din", "bst"):
        said = sum(Estimator.load(run / f"models/{name}/fold{k}").predict(rows) for k in range(2)) / 2
        kept = pq.read_table(run / f"test/{name}.parquet")["score"].to_numpy()
        np.testing.assert_allclose(said.numpy(), kept, atol=1e-6)


def test_predict_without_the_recipe(run: Path, tmp_path: Path) -> None:
    layout = run.parent / "layout"
    predict_run(run, layout, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (run / "submission.csv").read_bytes()
    tables = {"log": pd.read_parquet(layout / "log.parquet")}
    rows = pd.read_parquet(layout / "test.parquet")
    said = SavedRun(run).predict(rows[["t", "item", "s", "place", "list_id"]], tables=tables)
    np.testing.assert_allclose(said, pq.read_table(run / "test/stack.parquet")["score"].to_numpy(), atol=1e-6)
    with pytest.raises(DataError, match="log"):
        SavedRun(run).predict(rows)
    with pytest.raises(MissingColumnError, match="lack"):
        SavedRun(run).predict(rows.drop(columns="s"), tables=tables)
    rows.to_parquet(tmp_path / "test.parquet")
    with pytest.raises(MissingFileError, match="log"):
        predict_run(run, tmp_path, tmp_path / "none.csv")


def test_kept_rows_bring_their_events(run: Path) -> None:
    kept = KeptRows(run)
    _, inside = kept.folds[0]
    rows = kept.rows(kept.train(["place"]).take(inside), inside)
    found = Estimator.load(run / "models/din/fold0").predict(rows)
    oof = pq.read_table(run / "oof/din.parquet")["score"].to_numpy()
    np.testing.assert_allclose(found, oof[inside.numpy()], atol=1e-6)


def test_a_resumed_run_is_the_same(run: Path, tmp_path: Path) -> None:
    """Other events: the models that read them are trained again, and the trees are not."""
    again = run_competition(Looks(), run.parent / "data", run.parent / "run", seed=1, resume=True)
    everything = json.loads((again / "scores.json").read_text())["reused"]

    class Shorter(Looks):
        events = replace(EVENTS, conts=())

    shutil.copytree(run.parent / ".run.parts", tmp_path / ".run.parts")
    other = run_competition(Shorter(), run.parent / "data", tmp_path / "run", seed=1, resume=True)
    assert json.loads((other / "scores.json").read_text())["reused"] == everything - 2 * 2  # folds of DIN and BST
    for name, same in (("xgb", True), ("din", False), ("bst", False)):
        before, after = ((r / f"oof/{name}.parquet").read_bytes() for r in (again, other))
        assert (before == after) is same, name


def test_refusals(tmp_path: Path) -> None:
    for events, error, said in (
        (None, DataError, "din reads the events before a list, and the recipe names none"),
        (replace(EVENTS, table="clicks"), DataError, r"clicks.*log"),
        (replace(EVENTS, cats=("kin",)), MissingColumnError, "kin"),
    ):
        with pytest.raises(error, match=said):
            run_competition(type("Other", (Looks,), {"events": events})(), tmp_path, tmp_path / "run")
    with pytest.raises(FastrecError, match="order"):
        EventsBefore("log", session="s", order=[], item="item")
    assert EventsBefore(**json.loads(json.dumps(asdict(EVENTS)))) == EVENTS
    assert not (tmp_path / "run").exists()
