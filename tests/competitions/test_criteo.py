"""Criteo's recipe and simulator: the files' form, the best score that there can be, and a run from the stream."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from typer.testing import CliRunner

from competitions.criteo import simulate as simulator
from competitions.criteo.competition import Criteo
from competitions.criteo.data import CATEGORIES, COUNTS, days, first_lines, train_and_test
from competitions.criteo.simulate import DAYS, simulate
from fastrec._core.progress import Stages
from fastrec.cli import app
from fastrec.competition import SavedRun, StreamedCompetition, StreamedNet, run_competition
from fastrec.errors import MissingFileError
from fastrec.estimators import Estimator
from fastrec.models import DLRM
from fastrec.stacking import OneBase, StackModel
from fastrec.table import Table
from fastrec.tabular import Categorify, ParquetFrame

pytest.importorskip("numba")

ROWS = 8_000


class Quick(Criteo):
    def nets(self):
        dlrm, dcn = super().nets().values()
        return {
            "dlrm": replace(dlrm, options={"bottom": [16, 8], "top": [16]}, width=8, lr=0.1, bs=128),
            "dcn": replace(dcn, options={"cross_layers": 1, "low_rank": 4, "layers": [16]}, width=4, lr=0.05, bs=128),
        }


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("criteo") / "data"
    simulate(ROWS, folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    return run_competition(Quick(), data, tmp_path_factory.mktemp("runs") / "run", device="cpu")


def _table(data: Path, day: int) -> pd.DataFrame:
    names, kinds = ["label", *COUNTS, *CATEGORIES], dict.fromkeys(CATEGORIES, str)
    return pd.read_csv(data / f"day_{day}.tsv", sep="\t", header=None, names=names, dtype=kinds)


def test_simulated_files_have_the_publishers_form(data):
    tables = [_table(data, day) for day in range(DAYS)]
    assert sum(map(len, tables)) == ROWS
    every = pd.concat(tables)
    assert set(every["label"]) == {0, 1}
    assert 0.1 < every["label"].mean() < 0.3
    for name in CATEGORIES:
        assert every[name].dropna().map(lambda v: re.fullmatch("[0-9a-f]{8}", v) is not None).all()
    assert every["C9"].nunique() == 3  # the publisher's file has so many
    assert every["C22"].isna().mean() == pytest.approx(0.76, abs=0.02)
    top = every["C4"].value_counts()
    assert top.iloc[0] > 20 * top.median()
    for name in COUNTS:
        assert (every[name].dropna() % 1 == 0).all()


def test_the_best_score_is_that_of_the_true_probabilities(data, monkeypatch, tmp_path):
    lines, seen = simulator._lines, []

    def noted(*given):
        made = lines(*given)
        seen.append(made[1:])
        return made

    monkeypatch.setattr(simulator, "_lines", noted)
    done = simulate(ROWS, tmp_path / "again", seed=1)
    p, click = (np.concatenate(part)[-ROWS // DAYS :] for part in zip(*seen, strict=True))
    assert done.oracle_auc == pytest.approx(roc_auc_score(click, p))
    assert done.oracle_logloss == pytest.approx(log_loss(click, p))
    assert click.tolist() == (_table(data, DAYS - 1)["label"] == 1).tolist()
    said = json.loads((data / "bayes.json").read_text())
    assert (said["auc"], said["rows"]) == (done.oracle_auc, ROWS // DAYS)


def test_a_run_learns_and_is_scored_on_the_last_day(run, data):
    scores = json.loads((run / "scores.json").read_text())
    label = _table(data, DAYS - 1)["label"]
    made = {n: pq.read_table(run / "test" / f"{n}.parquet")["prediction"].to_numpy() for n in ("dlrm", "dcn", "stack")}
    weights = Estimator.load(run / "stack" / "fold0").trace.importance
    assert sum(weights.values()) == pytest.approx(1)
    np.testing.assert_allclose(made["stack"], weights["dlrm"] * made["dlrm"] + weights["dcn"] * made["dcn"])
    for name, p in made.items():
        assert scores["models"][name] == pytest.approx(roc_auc_score(label, p))
        assert scores["also"]["logloss"][name] == pytest.approx(log_loss(label, p))
    assert 0.6 < scores["models"]["stack"] < scores["oracle"] == json.loads((data / "bayes.json").read_text())["auc"]
    assert scores["rows"] == {"train rows": ROWS - ROWS // DAYS, "test rows": ROWS // DAYS, "features": 39}
    np.testing.assert_allclose(pd.read_csv(run / "submission.csv")["label"], made["stack"])
    assert (run / "report.html").is_file()


def test_a_saved_run_predicts_raw_rows_as_the_stream_did_and_its_export_too(run, data, tmp_path):
    rows = _table(data, DAYS - 1).drop(columns="label")
    made = SavedRun(run).predict(rows)
    np.testing.assert_allclose(made, pq.read_table(run / "test" / "stack.parquet")["prediction"], atol=1e-6)
    sample = pq.read_table(run / "sample.parquet")
    pd.testing.assert_frame_equal(sample.to_pandas(), rows.head(len(sample)), check_dtype=False)
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    from fastrec.serve import export_run
    from fastrec.serve.export import feeds_of

    one = Path(shutil.copytree(run, tmp_path / "one"))  # a net is enough
    StackModel(["dlrm"], [OneBase("dlrm")]).save(one / "stack")
    about = export_run(one, tmp_path / "out").about
    made = runtime.InferenceSession(tmp_path / "out" / "model.onnx").run(None, feeds_of(about, Table.read(sample)))[0]
    np.testing.assert_allclose(made.ravel(), SavedRun(one).predict(sample), atol=1e-5)


def test_a_single_file_is_cut_at_six_sevenths_and_rows_are_those_before_the_test(data, tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes((data / "day_0.tsv").read_bytes())
    train, test = train_and_test(tmp_path, None)
    frame = Criteo().frame(tmp_path, tmp_path / "cache", rows=None, stages=Stages(quiet=True))
    assert len(frame.train) + len(frame.valid) == ROWS // DAYS
    assert len(frame.valid) == pytest.approx(ROWS // DAYS / 7, rel=0.05)
    lines = first_lines(test, 5).to_pandas()
    wanted = _table(data, 0)[len(frame.train) :].drop(columns="label").head(5).reset_index(drop=True)
    pd.testing.assert_frame_equal(lines, wanted, check_dtype=False)
    fewer = Criteo().frame(data, tmp_path / "cache", rows=1500, stages=Stages(quiet=True))
    assert len(fewer) == pytest.approx(1500, rel=0.05)
    labels = torch.cat([y for *_, y in fewer.dataloaders(256, shuffle=False, drop_last=False, device="cpu").train])
    before = pd.concat([_table(data, day) for day in range(DAYS - 1)])["label"]
    assert labels[:, 0].tolist() == before.tolist()[-len(fewer) :]
    assert train[0].stop == test[0].start


def test_days_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("day_10", "day_2.tsv", "day_0", "day_x", "other"):
        (tmp_path / name).touch()
    assert [p.name for p in days(tmp_path)] == ["day_0", "day_2.tsv", "day_10"]
    with pytest.raises(MissingFileError, match="no click logs"):
        days(tmp_path / "nowhere")


class OfParquet(StreamedCompetition):
    name, target = "mine", "bought"

    def frame(self, data, cache, *, rows, stages):
        return ParquetFrame(
            data / "train.parquet", [Categorify], ["item"], [], "bought", valid=str(data / "test.parquet"),
            y_dtype=torch.float32, cache=cache,
        )  # fmt: skip

    def nets(self):
        return {"only": StreamedNet(DLRM, {"top": [4], "self_interaction": True}, width=4, lr=1.0, bs=32, epochs=3)}

    def sample(self, data, rows):
        return pq.read_table(data / "test.parquet", columns=["item"]).slice(0, rows)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    folder, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    for name, n in (("train", 2_000), ("test", 500)):
        item = rng.integers(0, 10, n)
        bought = (rng.random(n) < item / 10).astype(np.int64)
        pd.DataFrame({"item": [f"i{v}" for v in item], "bought": bought}).to_parquet(folder / f"{name}.parquet")
    return folder


def test_any_streamed_frame_may_be_a_recipes(shop, tmp_path):
    run = run_competition(OfParquet(), shop, tmp_path / "run", device="cpu", seed=1)
    test = pd.read_parquet(shop / "test.parquet")
    score = json.loads((run / "scores.json").read_text())["models"]["only"]
    best = roc_auc_score(test["bought"], test["item"].str[1:].astype(int))
    assert best - 0.02 < score <= best + 0.005


def test_training_ends_when_its_time_is_over(shop, tmp_path, monkeypatch):
    nets = {"only": StreamedNet(DLRM, {"self_interaction": True}, epochs=10**6, bs=64)}
    monkeypatch.setattr(OfParquet, "nets", lambda self: nets)
    run = run_competition(OfParquet(), shop, tmp_path / "run", device="cpu", minutes=0.05)
    assert json.loads((run / "scores.json").read_text())["seconds"]["train only"] < 30


def test_ctrl_c_promises_nothing_that_a_streamed_recipe_cannot_keep(shop, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(OfParquet, "frame", stop)
    monkeypatch.setattr(sys.modules["fastrec.cli.app"], "load_competition", lambda folder: OfParquet())
    words = ["run", str(tmp_path), "--data", str(shop), "--out", str(tmp_path / "run"), "--device", "cpu"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 130
    assert said.output.splitlines()[-1] == "stopped; nothing was written"
