"""A next-item competition by ``fastrec run``: files in, run directory out, on logs of several forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.competition import NextItemCompetition, SavedNextItems, run_competition
from fastrec.errors import DataError, MissingFileError
from fastrec.sequences import VSTAN, NextItemNet, SessionModel

# some sessions hold no item that the model knows
pytestmark = pytest.mark.filterwarnings("ignore:no item of")

ROOT = Path(__file__).resolve().parents[2]
WORDS = [f"item-{i:02d}" for i in range(30)]


class Small(NextItemCompetition):
    name = "Small"

    def models(self, *, bs):
        return {"net": NextItemNet(width=16, tokens=128, epochs=10), "knn": VSTAN()}


def walk(start: int, length: int) -> list[str]:
    return [WORDS[(start + i) % 30] for i in range(length)]


def write(folder: Path, *, truth: bool = True) -> Path:
    folder.mkdir()
    pd.DataFrame({"items": [walk(i, 2 + i % 4) for i in range(300)]}).to_parquet(folder / "train.parquet")
    test = pd.DataFrame({"items": [walk(7, 3), [], ["unseen"], walk(20, 50)]})
    if truth:
        test["target"] = [walk(10, 1)[0], WORDS[1], "unseen", walk(70, 1)[0]]
    test.to_parquet(folder / "test.parquet")
    return folder


def test_a_run_has_everything(tmp_path):
    out = run_competition(Small(), write(tmp_path / "data"), tmp_path / "run", minutes=0.5)
    lines = pd.read_csv(out / "submission.csv")["items"].tolist()
    assert len(lines) == 4
    ranked = [line.split(" ") for line in lines]
    assert all(len(set(r)) == 20 and set(r) <= set(WORDS) for r in ranked)
    assert walk(10, 1)[0] in ranked[0][:5]
    scores = json.loads((out / "scores.json").read_text())
    places = [r.index(t) + 1 if t in r else 0 for r, t in zip(ranked, [walk(10, 1)[0], WORDS[1], "unseen", WORDS[10]])]
    assert scores["hr@20"] == pytest.approx(sum(p > 0 for p in places) / 4)
    assert scores["mrr@20"] == pytest.approx(sum(1 / p for p in places if p) / 4)
    assert set(scores["models"]) == {"net", "knn", "blend", "popularity"} == set(scores["oof"])
    assert (out / "report.html").stat().st_size > 1000
    saved = SessionModel.load(out / "models" / "blend")
    test = Small().read(tmp_path / "data", None)[1]
    items = test.decode(saved.recommend(test, 20)[0]).to_pylist()
    assert items == [v for r in ranked for v in r]
    recommender = SavedNextItems(out)
    assert recommender.recommend_items([walk(7, 3), [], ["unseen"], walk(20, 50)]) == ranked
    assert [len(r) for r in recommender.recommend_items([[WORDS[3]], ["unseen", WORDS[3]]], 4)] == [4, 4]
    assert recommender.recommend_items([]) == []
    with pytest.raises(DataError, match=r"list is no SessionFrame.*recommend_items"):
        recommender.recommend([[WORDS[3]]])
    with pytest.raises(DataError, match="'item-03' is no session"):
        recommender.recommend_items([WORDS[3]])


@pytest.mark.parametrize("exclude_seen", [False, True])
def test_popularity_is_a_row_beside_the_models(tmp_path, exclude_seen):
    """Counted by a plain loop: of the training sessions for the test, of those not held out for the held-out rows."""
    rng = np.random.default_rng(0)
    words, p = np.array(WORDS), np.arange(30, 0, -1.0) ** 2
    drawn = [rng.choice(words, size=4, replace=False, p=p / p.sum()).tolist() for _ in range(260)]
    pd.DataFrame({"items": drawn[:200]}).to_parquet(tmp_path / "train.parquet")
    test = pd.DataFrame({"items": [s[:3] for s in drawn[200:]], "target": [s[3] for s in drawn[200:]]})
    test.to_parquet(tmp_path / "test.parquet")
    recipe = type("Own", (NextItemCompetition,), {"name": "own", "k": 5, "exclude_seen": exclude_seen})()
    recipe.models = lambda bs: {"knn": VSTAN()}
    out = run_competition(recipe, tmp_path, tmp_path / "run")
    counts = pd.Series([w for s in drawn[:200] for w in s]).value_counts()
    assert counts.iloc[:9].is_unique
    expected = []
    for seen, target in zip(test["items"], test["target"]):
        shown = [w for w in counts.index if not (exclude_seen and w in seen)][:5]
        expected.append(1 / (1 + shown.index(target)) if target in shown else 0.0)
    scores = json.loads((out / "scores.json").read_text())
    assert scores["models"]["popularity"] == pytest.approx(np.mean(expected), abs=1e-7)
    assert 0.1 < scores["oof"]["popularity"] < 0.9
    rows = pd.read_parquet(out / "next_items.parquet").groupby("split")["rr_popularity"]
    assert rows.mean().to_dict() == pytest.approx({"oof": scores["oof"]["popularity"], "test": np.mean(expected)})
    assert (scores["final"], scores["also"]["hr@5"].keys()) == ("knn", {"popularity", "knn"})
    assert len(pd.read_csv(out / "submission.csv")) == 60


def test_without_targets_there_are_no_test_scores(tmp_path):
    out = run_competition(Small(), write(tmp_path / "data", truth=False), tmp_path / "run", rows=100)
    scores = json.loads((out / "scores.json").read_text())
    assert "hr@20" not in scores
    assert scores["models"] == {}
    assert scores["rows"]["train sessions"] == 100
    assert len(pd.read_csv(out / "submission.csv")) == 4


def test_a_log_of_events_with_numbers_for_ids(tmp_path):
    class Log(Small):
        items, session, order = "item", "session", "time"

    rows = [(s * 7, 1000 + (s + i) % 9, s * 10 - i) for s in range(80) for i in range(3)]
    log = pd.DataFrame(rows, columns=["session", "item", "time"])
    log.to_csv(tmp_path / "train.csv", index=False)
    log[log["session"] < 21].to_csv(tmp_path / "test.csv", index=False)
    out = run_competition(Log(), tmp_path, tmp_path / "run")
    found = pd.read_csv(out / "submission.csv")
    assert found["session"].tolist() == [0, 7, 14]
    assert all(set(map(int, r.split())) == set(range(1000, 1009)) for r in found["item"])


def test_a_target_of_train_is_learned_from(tmp_path):
    train = pd.DataFrame({"items": [["a"], ["b"], ["c"]] * 20, "target": ["b", "c", "d"] * 20})
    train.to_parquet(tmp_path / "train.parquet")
    train[["items"]].head(3).to_parquet(tmp_path / "test.parquet")
    sessions, test = Small().read(tmp_path, None)
    assert sessions.decode(sessions.values[:6]).to_pylist() == list("abbccd")
    assert test.target is None
    assert torch.equal(test.values, sessions.values[[0, 2, 4]])


def test_what_cannot_be_written_or_read_is_named(tmp_path):
    data = write(tmp_path / "data")

    class Spaced(Small):
        separator = "-"

    with pytest.raises(DataError, match="stands between items"):
        run_competition(Spaced(), data, tmp_path / "run", minutes=0.1)
    assert not (tmp_path / "run").exists()
    (data / "test.parquet").unlink()
    with pytest.raises(MissingFileError):
        run_competition(Small(), data, tmp_path / "run")


def test_the_command_runs_the_recipe_for_diginetica(tmp_path):
    data = write(tmp_path / "data")
    command = [sys.executable, "-m", "fastrec.cli", "run", str(ROOT / "competitions" / "diginetica")]
    command += ["--data", str(data), "--out", str(tmp_path / "run"), "--minutes", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "blend" in done.stdout
    assert len(pd.read_csv(tmp_path / "run" / "submission.csv")) == 4
