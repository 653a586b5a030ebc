"""Every kind of run, used by every command in a process that has imported nothing but the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from competitions.otto.competition import Otto
from competitions.otto.simulate import simulate
from fastrec.competition import (
    Competition,
    CompetitionData,
    NextItemCompetition,
    SavedRun,
    StreamedCompetition,
    StreamedNet,
    StreamedRanking,
    SubmissionForm,
    run_competition,
)
from fastrec.competition.predict import write_layout
from fastrec.estimators import ColumnRanker, SKModel, XGBModel, XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupRank, TargetEncode
from fastrec.models import DLRM, TabularNet
from fastrec.retrieval import EASE, HistoryFilter, RankedCandidates
from fastrec.sequences import CoVisitation, NextItemNet, PopularItems
from fastrec.table import Table
from fastrec.tabular import Categorify, ParquetFrame
from tests.competition.looks import LISTS, Looks, planted

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("predict", "export", "serve", "retrain", "tune", "report", "compare", "score", "monitor")
# Libraries are imported once; every command is a fork of this process, and imports fastrec's own modules itself.
WORKER = """
import importlib, json, os, sys, traceback
from typer.testing import CliRunner
from fastrec.cli import app
for name in ("fastai.tabular.all", "onnxruntime", "onnxscript", "optuna", "orjson", "pandas", "pyarrow.dataset",
             "safetensors.torch", "scipy.sparse", "sklearn.ensemble", "starlette.applications",
             "torch.onnx", "xgboost"):
    importlib.import_module(name)
torch = sys.modules["torch"]
torch.onnx.export(torch.nn.Linear(1, 1), (torch.zeros(1, 1),), dynamo=True, verbose=False)
known = [m for m in sys.modules if m.startswith(("fastrec.estimators", "fastrec.sequences", "fastrec.retrieval"))]
assert not known, known

def serve(folder, path, body):
    from pathlib import Path
    from fastrec.cli.serve import _as_export
    from fastrec.serve.server.app import make_app
    from tests.serve.server.calls import post
    app = make_app(_as_export(Path(folder)))
    answer = post(app, path, json.loads(Path(body).read_text()))
    return {"code": 0 if answer.status == 200 else answer.status, "said": answer.body.decode()}

def work(arguments):
    if arguments[0] == "serve":
        return serve(*arguments[1:])
    done = CliRunner().invoke(app, arguments)
    crashed = done.exception is not None and not isinstance(done.exception, SystemExit)
    trace = "".join(traceback.format_exception(done.exception)) if crashed else ""
    return {"code": done.exit_code, "said": done.output + trace}

asked = json.load(open(sys.argv[1]))
for name, arguments in asked.items():
    if os.fork() == 0:
        try:
            made = work(arguments)
        except BaseException:
            made = {"code": -1, "said": traceback.format_exc()}
        with open(f"{sys.argv[2]}/{name}.json", "w") as file:
            json.dump(made, file)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def table(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n) + 1000 * seed, "x": rng.normal(size=n), "t": np.arange(n) + 1000 * seed})
    frame["city"] = rng.choice(["Ulm", "Bonn", "Köln"], n)
    level = frame["x"] + frame["city"].map({"Ulm": 1.0, "Bonn": -1.0, "Köln": 0.0}) + rng.normal(0, 0.3, n)
    return frame.assign(yes=(level > 0).astype(int))


class Binary(Competition):
    name, ids, n_folds, task, target, drop = "rows", ("id",), 2, "binary", "yes", ("t",)

    def features(self):
        return FeatureSet([CountEncode("city")], key="id")

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=5, max_depth=2), SKModel("sk", LogisticRegression())]


class Ranks(Competition):
    name, task, n_folds, item, categories, plain = "ranks", "ranking", 2, "item", ("item",), ("price",)

    def features(self):
        return FeatureSet([TargetEncode("item", "clicked"), GroupRank("price", by="list_id")], key="list_id")

    def baselines(self):
        return [ColumnRanker("price", ["price"])]

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=5, max_depth=2)]


class WithEvents(Looks):
    def models(self, *, bs):
        return [m for m in super().models(bs=bs) if m.name != "bst"]


class Next(NextItemCompetition):
    name, k = "next", 5

    def models(self, *, bs):
        ranked = RankedCandidates({"near": CoVisitation(), "popular": PopularItems()}, k=10, rounds=5)
        return {"net": NextItemNet(width=8, epochs=1), "ranked": ranked, "ease": HistoryFilter(EASE())}


class Clicks(StreamedCompetition):
    name, target = "clicks", "yes"

    def frame(self, data, cache, *, rows, stages):
        own = {"valid": str(data / "test.parquet"), "y_dtype": torch.float32, "cache": cache}
        return ParquetFrame(data / "train.parquet", [Categorify], ["city"], [], "yes", **own)

    def nets(self):
        return {"only": StreamedNet(DLRM, {"top": [4], "self_interaction": True}, width=4, bs=64)}

    def sample(self, data, rows):
        return pq.read_table(data / "test.parquet", columns=["city"]).slice(0, rows)


class Parts(StreamedRanking, Ranks):
    name, together, held_out = "parts", ("list_id",), 2
    submission = SubmissionForm(ids=("list_id",), items="items")

    def split(self, data, folder, *, rows):
        parts = [folder / str(i) for i in range(3)]
        for i, part in enumerate(parts):
            part.mkdir(parents=True)
            for name in ("train", "test"):
                frame = pd.read_parquet(data / f"{name}.parquet")
                frame[frame["list_id"] % 3 == i].to_parquet(part / f"{name}.parquet")
        return parts

    def load_part(self, part):
        train, test = (Table.read(part / f"{n}.parquet") for n in ("train", "test"))
        asked = pd.DataFrame({"list_id": pd.unique(test["list_id"].integer().numpy())})
        return CompetitionData(train, test, Table.read(asked))

    def nets(self):
        return {"net": StreamedNet(TabularNet, {"layers": [4]}, bs=64)}


class Goals(Otto):
    ranker = {"rounds": 3, "k": 10}  # noqa: RUF012


# What a kind of run has no use for is refused in one line.
REFUSED = {
    "Next": {"retrain", "tune", "monitor"},
    "Clicks": {"retrain", "tune", "monitor", "compare"},
    "Parts": {"retrain", "tune", "monitor", "compare"},
    "Goals": {"predict", "export", "retrain", "tune", "monitor", "compare", "score"},
}
# Slow ones that other files test: the graph of a list with its events, and training again.
ASKED = {"WithEvents": {"predict", "report", "compare"}, "Goals": {*COMMANDS} - {"serve"}}
KINDS = {c.__name__: c for c in (Binary, Ranks, WithEvents, Next, Clicks, Parts, Goals)}


def lists(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"list_id": np.repeat(np.arange(n), 4) + 1000 * seed})
    frame["item"] = [f"i{i}" for _ in range(n) for i in rng.permutation(9)[:4]]
    frame["price"] = rng.gamma(2, 50, 4 * n).round(2)
    best = frame.groupby("list_id")["price"].transform("min")
    return frame.assign(clicked=(frame["price"] == best).astype(int))


def write(kind: str, folder: Path) -> None:
    """The files of a kind of recipe: data, in it what is learned from and predicted; new rows, a truth."""
    data = folder / "data"
    if kind == "Goals":
        simulate(200, data, seed=1)
        return
    data.mkdir()
    if kind == "Next":
        walks = [[f"i{(s + j) % 12}" for j in range(2 + s % 4)] for s in range(150)]
        pd.DataFrame({"items": walks}).to_parquet(data / "train.parquet")
        test = pd.DataFrame({"items": [w[:-1] for w in walks[:20]], "target": [w[-1] for w in walks[:20]]})
        test.to_parquet(data / "test.parquet")
        return
    if kind == "WithEvents":  # the recipe makes its own rows
        truth, _ = planted(1, 20, first=LISTS)
        truth.to_csv(folder / "truth.csv", index=False)
        planted(2, 20, first=2 * LISTS)[0].to_parquet(folder / "new.parquet", index=False)
        return
    make, label = (lists, ["clicked"]) if kind in ("Ranks", "Parts") else (table, ["yes"])
    make(160, 0).to_parquet(data / "train.parquet", index=False)
    test = make(20, 1)
    test.drop(columns=[] if kind == "Clicks" else label).to_parquet(data / "test.parquet", index=False)
    if kind == "Parts":
        test = test[test["clicked"] > 0].rename(columns={"item": "reference"})
    test.to_csv(folder / "truth.csv", index=False)
    make(60, 2).to_parquet(folder / "new.parquet", index=False)


def commands(kind: str, folder: Path) -> dict[str, list[str]]:
    run, new = folder / "run", folder / "new.parquet"
    served = "run" if kind == "Next" else "export"
    truth = folder / "data" / "test.parquet" if kind == "Next" else folder / "truth.csv"
    return {
        "predict": ["predict", run, "--data", folder / "layout", "--out", folder / "predicted.csv"],
        "export": ["export", run, "--out", folder / "export", *([] if kind == "Next" else ["--fold", 0])],
        "serve": ["serve", folder / served, "/v1/recommend" if kind == "Next" else "/v1/score", folder / "body.json"],
        "retrain": ["retrain", run, "--data", new, "--out", folder / "again", "--every", "value", "--scored", 20],
        "tune": ["tune", run, "--minutes", 0.05],
        "report": ["report", run],
        "compare": ["compare", run, run],
        "score": ["score", run / "submission.csv", truth, "--run", run],
        "monitor": ["monitor", run, new],
    }


def make(kind: str, folder: Path) -> None:
    """The run of a kind of recipe, what it is to predict, and a body for a server."""
    recipe = KINDS[kind]
    write(kind, folder)
    run_competition(recipe(), folder / "data", folder / "run", device="cpu", resume=True)
    if kind in ("Parts", "Clicks", "Goals"):
        shutil.copytree(folder / "data", folder / "layout")
    else:
        write_layout(recipe(), folder / "data", folder / "layout")
    if kind == "Goals":
        return
    test = pd.read_parquet(folder / "layout" / "test.parquet")  # its rows are the body of a request
    if kind == "Next":
        body = {"sessions": [{"items": list(v)} for v in test["items"]], "k": 5}
    else:
        body = {"columns": {n: test[n].tolist() for n in SavedRun(folder / "run").inputs if n in test}}
    (folder / "body.json").write_text(json.dumps(body))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run of every kind of recipe, and what the commands said of each in a fresh process."""
    for package in ("onnxruntime", "onnxscript", "optuna", "orjson", "starlette"):
        pytest.importorskip(package)
    base = tmp_path_factory.mktemp("fresh")
    asked = {}
    for kind in KINDS:
        (base / kind).mkdir()
        make(kind, base / kind)
        wanted = commands(kind, base / kind)
        asked |= {f"{kind} {n}": list(map(str, c)) for n, c in wanted.items() if n in ASKED.get(kind, COMMANDS)}
    (base / "asked.json").write_text(json.dumps(asked))
    (base / "said").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER, base / "asked.json", base / "said"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return base


@pytest.mark.parametrize(("kind", "command"), [(k, c) for k in KINDS for c in COMMANDS if c in ASKED.get(k, COMMANDS)])
def test_a_command_works_or_says_why_not(made, kind, command):
    said = json.loads((made / "said" / f"{kind} {command}.json").read_text())
    if command not in REFUSED.get(kind, ()):
        late = command == "tune" and "there was no time" in said["said"]  # on a busy machine
        assert said["code"] in (0, 3) or late, said["said"]
    else:
        assert said["code"] == 1
        assert "error: " in said["said"]
        assert "Traceback" not in said["said"]


@pytest.mark.parametrize("kind", [k for k in KINDS if "predict" not in REFUSED.get(k, ())])
def test_what_is_predicted_is_what_the_run_predicted(made, kind):
    own, again = (pd.read_csv(made / kind / name) for name in ("run/submission.csv", "predicted.csv"))
    # parts have an order of their own
    own, again = (f.sort_values(f.columns[0], ignore_index=True) for f in (own, again))
    pd.testing.assert_frame_equal(own, again, rtol=1e-6)
