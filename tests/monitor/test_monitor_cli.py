import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fastrec.cli import app
from tests.monitor.test_monitor import log


def call(*words, code=0):
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    made = {"folder": tmp_path}
    for name, shift in (("old", 0.0), ("same", 0.0), ("new", 1.0)):
        day = np.repeat(np.arange(4), 500) * 86_400
        frame = pd.DataFrame({"x": rng.normal(shift, 1, 2000), "c": rng.choice(list("abc"), 2000), "at": day})
        made[name] = tmp_path / f"{name}.parquet"
        frame.to_parquet(made[name])
    y = (rng.random(2000) < 0.4).astype(float)
    pd.DataFrame({"y": y}).to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"prediction": y + rng.normal(size=2000)}).to_csv(tmp_path / "scores.csv", index=False)
    pd.DataFrame({"prediction": 0.1 + 0.1 * y}).to_csv(tmp_path / "low.csv", index=False)
    return made


def test_the_exit_code_says_whether_something_was_found(files):
    pair, limits = ("monitor", files["old"], files["new"], "--drop", "at"), ("--psi", 9, "--js", 9, "--ks", 9)
    assert "nothing found" in call("monitor", files["old"], files["same"], "--drop", "at", "--no-trees")
    out, figures = files["folder"] / "a.html", files["folder"] / "a.json"
    assert "x: values are spread otherwise" in call(*pair, "--out", out, "--json", figures, code=3)
    assert json.loads(figures.read_text())["adversarial"]["auc"][0] > 0.6
    assert out.read_text().startswith("<!doctype html>")
    call(*pair, *limits, "--no-trees")


def test_labels_give_the_metric_over_time(files):
    pair = ("monitor", files["old"], files["same"], "--no-trees")
    labels = ("--labels", files["folder"] / "labels.csv", "--time", "at")
    scores, low = (("--scores", files["folder"] / name) * 2 for name in ("scores.csv", "low.csv"))
    assert "1970-01-04" in call(*pair, *scores, *labels, "--metric", "auc")
    assert "Give --scores and --time too" in call(*pair, *labels, "--metric", "auc", code=1)
    assert "which metric is not known" in call(*pair, *scores, *labels, code=1)
    # classes are cut as a run's are: the best threshold is far from 0.5
    done = CliRunner().invoke(app, [str(w) for w in (*pair, *low, *labels, "--metric", "f1")])
    assert "1970-01-04   500 1.0000" in done.output, done.output


def test_a_run_of_sessions_is_refused_with_a_remedy(files):
    run = files["folder"] / "run"
    run.mkdir()
    (run / "config.json").write_text('{"task": "next_item"}')
    labels = ("--labels", files["new"], "--scores", files["new"], "--time", "at")
    again = ("retrain", run, "--data", files["new"], "--out", files["folder"] / "next")
    for words in (("monitor", run, files["new"]), ("monitor", run, files["new"], *labels), again):
        said = call(*words, code=1)
        assert "has sessions, not rows" in said
        assert "run the recipe again" in said


def test_wrong_input_is_one_line(files):
    assert call("monitor", files["folder"] / "nothing.csv", files["same"], code=1).startswith("error: ")
    call("monitor", files["old"], files["same"], "--correction", "none", code=1)


def test_event_metrics(tmp_path):
    shown, clicks = log(60)
    shown.to_parquet(tmp_path / "lists.parquet")
    clicks.to_csv(tmp_path / "clicks.csv", index=False)
    out = tmp_path / "f.json"
    call("event-metrics", tmp_path / "lists.parquet", tmp_path / "clicks.csv", "--time", "at", "--json", out)
    assert len(json.loads(out.read_text())) == 4
