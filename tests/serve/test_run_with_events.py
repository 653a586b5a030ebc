"""A run whose models read the session, exported: raw events beside raw candidates, whole, in parts and served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fastrec.competition import run_competition
from fastrec.competition.predict import SavedRun, read_rows, write_layout
from fastrec.estimators import Estimator
from tests.competition.looks import Looks

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnxruntime

from fastrec.serve import export_run, verify_export, write_triton
from fastrec.serve.export import event_feeds, feeds_of
from tests.serve.test_export import by_parts


class One(Looks):
    def models(self, *, bs: int | None) -> list[Estimator]:
        return [m for m in super().models(bs=bs) if m.name != "bst"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looks")
    (folder / "data").mkdir()
    run_competition(One(), folder / "data", folder / "run", seed=1, resume=False)
    write_layout(One(), folder / "data", folder / "layout")
    made = export_run(folder / "run", folder / "out", parts=True)
    assert made.about["events_count"] == "events.count"
    return folder


def test_the_file_says_what_the_run_says(folder: Path, tmp_path: Path) -> None:
    for data in (None, folder / "layout"):
        found = verify_export(folder / "out", folder / "run", data)
        assert (found.rows, found.holds) == (100, True), found
    log = pd.read_parquet(folder / "layout" / "log.parquet")
    rows = pd.read_parquet(folder / "layout" / "test.parquet")
    # events of items, kinds and numbers that training has not seen, lists without events, missing values
    rng = np.random.default_rng(0)
    log.loc[rng.random(len(log)) < 0.2, ["item", "dwell"]] = "new", np.nan
    log.loc[rng.random(len(log)) < 0.2, "kind"] = None
    log = log[~log.s.isin(rows.s.unique()[:5])]
    rows.to_parquet(tmp_path / "test.parquet")
    log.to_parquet(tmp_path / "log.parquet")
    assert verify_export(folder / "out", folder / "run", tmp_path).holds
    said = SavedRun(folder / "run").predict(rows, tables={"log": log}).numpy()
    assert (said != pq.read_table(folder / "run/test/stack.parquet")["score"].to_numpy()).any()


def test_parts_say_together_what_the_file_says(folder: Path) -> None:
    about = json.loads((folder / "out" / "serving.json").read_text())
    _, rows = read_rows(SavedRun(folder / "run"), folder / "layout")
    values = {**feeds_of(about, rows.table), **event_feeds(about, rows.groups, rows.events)}
    whole = onnxruntime.InferenceSession(folder / "out" / "model.onnx")
    wanted = whole.run(["score"], {i.name: values[i.name] for i in whole.get_inputs()})[0]
    np.testing.assert_allclose(by_parts(folder / "out", values), wanted, atol=1e-6)


def test_triton_takes_events_as_wide_as_they_come(folder: Path, tmp_path: Path) -> None:
    write_triton(folder / "out", tmp_path / "repo", name="looks")
    said = (tmp_path / "repo" / "looks" / "config.pbtxt").read_text()
    assert "events.count" in said
    at = said.index("events.kind")
    assert "dims: -1\n" in said[at : at + 120].replace("  ", "") or "[-1, -1]" in said[at : at + 120]
    assert (tmp_path / "repo" / "looks_ensemble" / "config.pbtxt").is_file()
