"""Tables and help as a terminal of 80 columns shows them: no name and no figure is cut."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from fastrec._core import environment
from fastrec.competition import self_test as module
from fastrec.competition.self_test import SelfCheck
from tests.cli.test_cli import invoke


def shown(*arguments: object, columns: int = 80) -> str:
    code, out, err = invoke(*arguments, columns=columns)
    assert (code, "…" in out) == (0, False), err
    assert all(len(line) <= columns for line in out.splitlines() if not line.startswith(("report", "  pip")))
    return out


@pytest.fixture
def run(tmp_path):
    """A run directory of figures alone, with three other metrics."""
    folder = tmp_path / "runs" / "trees with a name of some length"
    folder.mkdir(parents=True)
    names = ["a_model_with_a_long_name", "net", "stack"]
    also = {m: dict.fromkeys(names, 0.12345) for m in ("logloss", "average_precision", "balanced_accuracy")}
    scores = {
        "metric": "auc", "greater_is_better": True, "task": "binary", "models": dict.fromkeys(names, 0.81234),
        "oof": dict.fromkeys(names, 0.82345), "also": also, "seconds": {"read": 1.5},
        "intervals": {"stack": [0.82345, 0.81, 0.84]}, "rows": {"features": 12},
    }  # fmt: skip
    (folder / "scores.json").write_text(json.dumps(scores))
    (folder / "config.json").write_text(json.dumps({"competition": "A competition's name", "git_revision": "1a2b3c4"}))
    return folder


def test_the_leaderboard_drops_other_metrics_before_names_and_figures(run):
    narrow, wide = shown("report", run), shown("report", run, columns=160)
    for name in ("a_model_with_a_long_name", "net", "stack"):
        assert re.search(rf"{name} +0\.8123 +0\.8235", narrow), narrow
    assert "not shown" in narrow
    assert "balanced_accuracy" in narrow.replace("\n", "")
    assert "not shown" not in wide
    assert wide.count("0.1235") == 9


def test_runs_are_listed_with_whole_names_and_figures(run):
    narrow = " ".join(shown("runs", run.parent).split())
    assert "0.82345" in narrow
    assert "0.81000 to 0.84000" in narrow
    assert "not shown" in narrow
    assert "1a2b3c4" in shown("runs", run.parent, columns=160)
    assert "no finished run in" in shown("runs", run)


def test_tries_are_listed_with_whole_figures(run):
    tried = {
        "when": "2026-11-24T10:00:00", "file": "a_long_name_of_an_idea.py", "columns": ["one_column", "another_column"],
        "metric": "auc", "difference": 0.00123, "low": -0.0001, "high": 0.0025, "verdict": "better", "seconds": 12.3,
    }  # fmt: skip
    again = {**tried, "columns": [f"column_{i}" for i in range(9)], "verdict": "no difference seen"}
    run.with_name(f"{run.name}.tries.jsonl").write_text(f"{json.dumps(tried)}\n{json.dumps(again)}\n")
    for columns in (80, 60):
        narrow = shown("tries", run, columns=columns)
        assert "+0.00123" in narrow
        rows = [line.split("│")[1:-1] for line in narrow.splitlines() if "│" in line]
        head = next(line for line in narrow.splitlines() if "columns" in line).split("┃")[1:-1]
        place = [name.strip() for name in head].index("verdict")
        assert " ".join(" ".join(row[place] for row in rows).split()) == "better no difference seen"
    assert "-0.00010 to +0.00250" in shown("tries", run)


@pytest.mark.parametrize(
    ("metric", "noise", "says"),
    [
        ("logloss", (0.0, 0.3), "a is better than b by"),  # a loss: what is lower is better
        ("logloss", (0.3, 0.0), "b is better than a by"),
        ("auc", (0.0, 0.9), "a is better than b by"),
        ("auc", (0.9, 0.0), "b is better than a by"),
        ("auc", (0.9, 0.9), "which may be chance"),
        ("auc", (0.0, 0.0), "a and b score alike"),
    ],
)
def test_compare_names_the_better_run(tmp_path, metric, noise, says):
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 400).astype(float)
    columns = {"split": ["oof"] * 400, "fold": np.zeros(400, int), "label_y": y}
    for name, share in zip("ab", noise, strict=True):
        (tmp_path / name / "oof").mkdir(parents=True)
        scores = {"metric": metric, "greater_is_better": metric == "auc", "oof": {}}
        (tmp_path / name / "scores.json").write_text(json.dumps(scores))
        pd.DataFrame(columns).to_parquet(tmp_path / name / "rows.parquet")
        mixed = np.clip((1 - share) * (0.1 + 0.8 * y) + share * draw.random(400), 0.01, 0.99)
        pd.DataFrame({"prediction": mixed}).to_parquet(tmp_path / name / "oof" / "stack.parquet")
    page = " ".join(shown("compare", tmp_path / "a", tmp_path / "b").split())
    assert says in page
    assert f"difference: a less b; of {metric} {'higher' if metric == 'auc' else 'lower'} is better" in page
    if "better than" in says:  # sign and size are those of an independent formula
        score = {"auc": roc_auc_score, "logloss": log_loss}[metric]
        a, b = (score(y, pd.read_parquet(tmp_path / n / "oof" / "stack.parquet").prediction) for n in "ab")
        by, low, high = map(float, re.search(r"by (\S+) \[(\S+), (\S+)\]", page).groups())
        assert by == pytest.approx(abs(a - b), abs=6e-6)
        assert 0 < low < by < high
        assert (says[0] == "a") == ((a > b) == (metric == "auc"))


def test_remedies_of_the_doctor_can_be_copied(monkeypatch):
    monkeypatch.setattr(module, "self_test", lambda **_: [SelfCheck("run", True, "well", 0.1)])
    extra = "no_such_part_of_the_package"
    monkeypatch.setattr(environment, "requires", lambda name: [f'no-such-package>=1; extra == "{extra}"'])
    monkeypatch.setattr(environment, "PARTS", {extra: "many things that are of use"})
    assert environment.install_command(extra) in [line.strip() for line in shown("doctor").splitlines()]


def test_help_has_panels_that_hold_every_command():
    page = shown("--help")
    for title in ("Competitions", "Finished runs", "Serving", "Machine"):
        assert f" {title} " in page
    assert " Commands " not in page
