"""A ranking recipe whose rows are never all in memory: its run directory is like any other's."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("dask")

from fastrec._core import atomic as leftovers
from fastrec.competition import CompetitionData, SavedRun, StreamedNet, StreamedRanking, SubmissionForm, run_competition
from fastrec.errors import DataError
from fastrec.estimators import XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupRank, History, TargetEncode
from fastrec.models import TabularNet
from fastrec.table import Table
from tests.fresh import start

PARTS = 4


class Tiny(StreamedRanking):
    name = "tiny"
    together = ("user", "list_id")
    submission = SubmissionForm(ids=("user", "asked"), items="items")
    counted = "last"
    held_out = 4

    def split(self, data, folder, *, rows):
        parts = [folder / str(i) for i in range(PARTS)]
        for i, part in enumerate(parts):
            part.mkdir(parents=True)
            for name in ("train", "test", "log"):
                frame = pd.read_parquet(data / f"{name}.parquet")
                frame[frame["user"].str[1:].astype(int) % PARTS == i].to_parquet(part / f"{name}.parquet")
        return parts

    def load_part(self, part):
        train, test, log = (Table.read(part / f"{n}.parquet") for n in ("train", "test", "log"))
        first = torch.ones(len(test), dtype=torch.bool)
        first[1:] = test["list_id"].integer()[1:] != test["list_id"].integer()[:-1]
        keys = test.take(first)
        keys = keys.with_columns({"asked": keys["list_id"]}).select(["user", "asked"])
        return CompetitionData(train, test.drop(["clicked"]), keys, {"log": log})

    def features(self):
        seen = History("item", order="time", table="log", stats=["count"], name="seen")
        own = History("user", order="time", table="log", stats=["count"], name="own")
        ranks = [GroupRank("price", by="list_id"), GroupRank(seen, by="list_id")]
        return FeatureSet([seen, own, *ranks, CountEncode("item", scope="all"), TargetEncode("item", "clicked")],
                          key="list_id")  # fmt: skip

    item = "item"
    categories = ("item",)
    plain = ("price",)

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=8, max_depth=3, nthread=1)]

    def nets(self):
        return {"net": StreamedNet(TabularNet, {"layers": [8]}, bs=256)}


def rows(lists, seed, start):
    rng = np.random.default_rng(seed)
    n = lists * 5
    ids = np.repeat(np.arange(start, start + lists), 5)
    frame = pd.DataFrame({"list_id": ids, "user": [f"u{v % 23}" for v in ids], "item": rng.permuted(
        np.tile(np.arange(40), (lists, 1)), axis=1)[:, :5].ravel()})  # fmt: skip
    frame["price"], frame["time"] = rng.gamma(2, 50, n).round(2), np.repeat(rng.integers(0, 99, lists), 5)
    score = -frame["price"].to_numpy().reshape(lists, 5) + rng.normal(0, 20, (lists, 5))
    frame["clicked"] = (score == score.max(1, keepdims=True)).ravel().astype(float)
    frame["last"] = (ids % 3 == 0).astype(int)
    return frame


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed")
    train, test = rows(240, 0, 0), rows(60, 1, 1000)
    for name, frame in {"train": train, "test": test, "log": train[train["clicked"] > 0]}.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    answers = test[test["clicked"] > 0].rename(columns={"list_id": "asked", "item": "reference"})
    answers[["user", "asked", "reference"]].to_csv(folder / "ground_truth.csv", index=False)
    run = run_competition(Tiny(), folder, folder / "run", device="cpu")
    return folder, run, train, test


def test_scores_are_of_the_users_that_nothing_was_learned_from(made):
    folder, run, train, _ = made
    assert sorted(p.stem for p in folder.iterdir()) == ["ground_truth", "log", "run", "test", "train"]  # nothing else
    scores = json.loads((run / "scores.json").read_text())
    held = train[train["user"].str[1:].astype(int) % PARTS == PARTS - 1]
    assert scores["rows"] == {"train candidates": len(train) - len(held), "valid candidates": len(held),
                              "test candidates": 300}  # fmt: skip
    for name in ("net", "xgb", "stack"):
        said = pd.read_parquet(run / "oof" / f"{name}.parquet")
        assert said["item"].tolist() == held["item"].tolist()
        found = []
        for _, own in said.assign(last=held["last"].to_numpy()).groupby("list_id"):
            if own["last"].iloc[0]:
                best = own.sort_values("score", ascending=False, kind="stable")["clicked"].tolist()
                found.append(1 / (best.index(1) + 1))
        assert scores["oof"][name] == pytest.approx(np.mean(found))
    assert scores["oof"]["xgb"] > 0.6  # by chance .457
    assert scores["oof"]["stack"] == max(scores["oof"].values())  # the net has learned nearly nothing


def test_the_submission_has_every_list_best_first(made):
    _, run, _, test = made
    lines = pd.read_csv(run / "submission.csv", dtype=str)
    said = pd.read_parquet(run / "test" / "stack.parquet")
    assert len(lines) == test["list_id"].nunique() == 60
    ranks = []
    said["asked"] = said["list_id"] & ((1 << 32) - 1)
    for _, line in lines.iterrows():
        own = said[said["asked"] == int(line["asked"])].sort_values("score", ascending=False, kind="stable")
        assert line["items"].split() == own["item"].astype(str).tolist()
        answer = test[(test["list_id"] == int(line["asked"])) & (test["clicked"] > 0)]["item"].iloc[0]
        ranks.append(1 / (own["item"].tolist().index(answer) + 1))
        assert set(own["item"]) == set(test[test["list_id"] == int(line["asked"])]["item"])
    scores = json.loads((run / "scores.json").read_text())["models"]
    assert set(scores) == {"net", "xgb", "stack"}
    assert scores["stack"] == pytest.approx(np.mean(ranks))


def test_features_and_predictions_are_those_of_memory(made, tmp_path):
    folder, run, train, test = made
    recipe, known = Tiny(), train[train["user"].str[1:].astype(int) % PARTS != PARTS - 1]
    features, log = recipe.features(), train[train["clicked"] > 0]
    features.fit(known, tables={"log": log}, unlabeled=test)
    expected = features.transform(test.drop(columns="clicked"), tables={"log": log})
    order = np.argsort(test["user"].str[1:].astype(int).to_numpy() % PARTS, kind="stable")
    sample = pq.read_table(run / "sample.parquet").to_pandas()
    assert len(sample) == 80  # of the first part
    for name in features.outputs:
        assert sample[name].tolist() == pytest.approx(expected[name].to_numpy()[order[:80]].tolist(), rel=1e-6), name
    saved = SavedRun(run)
    again = saved.predict(test.drop(columns="clicked"), tables={"log": log})
    assert again[order].tolist() == pytest.approx(pd.read_parquet(run / "test" / "stack.parquet")["score"].tolist())
    recipe.split = lambda *args, **options: Tiny.split(recipe, *args, **options)[:1]
    with pytest.raises(DataError, match="not cut into parts"):
        run_competition(recipe, folder, tmp_path / "run", device="cpu")
    assert not any(tmp_path.iterdir())


FRESH = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from fastrec.cli import script
    from test_streamed_ranking import Tiny

    class Fresh(Tiny):
        fresh_from = 0

        def split(self, *args, **options):
            print("split", os.getpid(), flush=True)
            return super().split(*args, **options)

        def models(self, *, bs):
            print("models", os.getpid(), flush=True)
            return super().models(bs=bs)

    script(Fresh)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes begin anew on Linux")
def test_a_process_that_begins_anew_between_the_steps_makes_the_same_run(made, tmp_path):
    folder, run, _, _ = made
    code = textwrap.dedent(FRESH).format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, "--data", folder, "--out", tmp_path / "run", "--device", "cpu"]
    threads = str(torch.get_num_threads())  # as in this process: other sums are rounded otherwise
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": threads}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    said, progress = child.stdout, child.stderr
    assert child.returncode == 0, progress
    told = [line.split() for line in said.splitlines() if line.startswith(("split", "models"))]
    steps = [n for n, _ in told]
    assert steps.count("split") == 1
    assert steps.count("models") > 5  # begun five times
    assert len({pid for _, pid in told}) == 1
    assert progress.count("parts: ") == progress.count("features: ") == progress.count("train xgb: ") == 1
    again = tmp_path / "run"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    for name in ("submission.csv", "oof/stack.parquet", "test/net.parquet", "test/xgb.parquet", "sample.parquet"):
        assert (again / name).read_bytes() == (run / name).read_bytes(), name
    scores, expected = (json.loads((r / "scores.json").read_text()) for r in (again, run))
    assert scores.pop("seconds").keys() == expected.pop("seconds").keys()
    assert scores == expected


SLOW = """
    import pathlib, sys, time
    sys.path.insert(0, {tests!r})
    from fastrec.cli import script
    from test_streamed_ranking import Tiny

    class Slow(Tiny):
        def features(self):
            if any(pathlib.Path(sys.argv[-1]).parent.rglob("*.parquet")):  # the parts are in their files
                print("ready", flush=True)
                time.sleep(60)
            return super().features()

    script(Slow)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told apart by /proc")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_files_of_a_run_that_was_ended_from_outside_go_at_once_or_with_the_next_run(made, tmp_path, how, code):
    slow = textwrap.dedent(SLOW).format(tests=str(Path(__file__).parent))
    with start(slow, "--data", made[0], "--out", tmp_path / "run") as child:
        assert child.stdout.readline() == "ready\n"
        (spilled,) = (p for p in tmp_path.iterdir() if p.name != ".run.lock")
        assert any(spilled.rglob("*.parquet"))
        child.send_signal(how)
        assert child.wait(30) == code
        assert ("stopped; " in child.stderr.read()) == (how == signal.SIGTERM)
    assert spilled.exists() == (how == signal.SIGKILL)
    with leftovers.alone_at(tmp_path / "run"):  # the killed run's lock is free, and its file goes with the next run
        pass
    with leftovers.working_folder(tmp_path / "spilled") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not any(tmp_path.iterdir())
