import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fastrec.cli import app
from tests.monitor.test_monitor import log


def call(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)

    def write(name, rows=2000, shift=0.0):
        day = np.repeat(np.arange(4), rows // 4) * 86_400
        frame = pd.DataFrame({"x": rng.normal(shift, 1, rows), "c": rng.choice(list("abc"), rows), "at": day})
        frame.to_parquet(tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.parquet"

    y = (rng.random(2000) < 0.4).astype(float)
    pd.DataFrame({"y": y}).to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"prediction": y + rng.normal(size=2000)}).to_csv(tmp_path / "scores.csv", index=False)
    return {n: write(n, shift=s) for n, s in (("old", 0), ("same", 0), ("new", 1))} | {"folder": tmp_path}


def test_the_exit_code_says_whether_something_was_found(files):
    done = call("monitor", files["old"], files["same"], "--drop", "at", "--no-trees")
    assert done.exit_code == 0, done.output
    assert "nothing found" in done.output
    out, figures = files["folder"] / "a.html", files["folder"] / "a.json"
    done = call("monitor", files["old"], files["new"], "--drop", "at", "--out", out, "--json", figures)
    assert done.exit_code == 3, done.output
    assert "x: values are spread otherwise" in done.output
    assert json.loads(figures.read_text())["adversarial"]["auc"][0] > 0.6
    assert out.read_text().startswith("<!doctype html>")
    assert call("monitor", files["old"], files["new"], "--drop", "at", "--psi", 9, "--js", 9, "--ks", 9,
                "--no-trees").exit_code == 0  # fmt: skip


def test_labels_give_the_metric_over_time(files):
    folder = files["folder"]
    scores = ("--scores", folder / "scores.csv", "--scores", folder / "scores.csv")
    labels = ("--labels", folder / "labels.csv", "--time", "at", "--metric", "auc")
    done = call("monitor", files["old"], files["same"], "--no-trees", *scores, *labels)
    assert done.exit_code == 0, done.output
    assert "1970-01-04" in done.output
    done = call("monitor", files["old"], files["same"], *labels)
    assert done.exit_code == 1
    assert "Give --scores and --time too" in done.output
    done = call("monitor", files["old"], files["same"], *scores, *labels[:4])
    assert done.exit_code == 1
    assert "which metric is not known" in done.output


def test_classes_are_cut_as_a_runs_are(files):
    """Predictions whose best threshold is far from 0.5, for a metric of classes."""
    folder = files["folder"]
    y = pd.read_csv(folder / "labels.csv")["y"]
    pd.DataFrame({"prediction": 0.1 + 0.1 * y}).to_csv(folder / "low.csv", index=False)
    scores = ("--scores", folder / "low.csv", "--scores", folder / "low.csv")
    labels = ("--labels", folder / "labels.csv", "--time", "at", "--metric", "f1")
    done = call("monitor", files["old"], files["same"], "--no-trees", *scores, *labels)
    assert "1970-01-04   500 1.0000" in done.output, done.output


def test_a_run_of_sessions_is_refused_with_a_remedy(files):
    run = files["folder"] / "run"
    run.mkdir()
    (run / "config.json").write_text('{"task": "next_item"}')
    labels = ("--labels", files["new"], "--scores", files["new"], "--time", "at")
    for words in (["monitor", run, files["new"]], ["monitor", run, files["new"], *labels],
                  ["retrain", run, "--data", files["new"], "--out", files["folder"] / "next"]):  # fmt: skip
        done = call(*words)
        assert done.exit_code == 1
        assert "has sessions, not rows" in done.output
        assert "run the recipe again" in done.output


def test_wrong_input_is_one_line(files):
    done = call("monitor", files["folder"] / "nothing.csv", files["same"])
    assert done.exit_code == 1
    assert done.output.startswith("error: ")
    assert call("monitor", files["old"], files["same"], "--correction", "none").exit_code == 1


def test_event_metrics(tmp_path):
    shown, clicks = log(60)
    shown.to_parquet(tmp_path / "lists.parquet")
    clicks.to_csv(tmp_path / "clicks.csv", index=False)
    out = tmp_path / "f.json"
    done = call("event-metrics", tmp_path / "lists.parquet", tmp_path / "clicks.csv", "--time", "at", "--json", out)
    assert done.exit_code == 0, done.output
    assert len(json.loads(out.read_text())) == 4
