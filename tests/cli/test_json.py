"""``--json``: one JSON document on standard output with what the command prints, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.cli.app import print_json
from fastrec.competition import Competition, compare_runs, list_runs, run_competition
from fastrec.estimators import XGBModel
from fastrec.metrics import Interval
from fastrec.report.data import read_run
from fastrec.trials import list_tries
from tests.cli.test_cli import invoke, refused


class Recipe(Competition):
    name, task, target, metric, ids, n_folds, also = "flats", "binary", "sold", "auc", ("id",), 3, ("logloss",)

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def models(self, *, bs):
        return [XGBModel("xgb", rounds=6, max_depth=self.depth, eta=0.3, early_stopping_rounds=None, nthread=1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("json")
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"]).assign(id=range(300))
    x["sold"] = (x.a + x.b + rng.normal(size=300) > 0).astype(int)
    x[:240].to_csv(folder / "data" / "train.csv", index=False)
    x[240:].drop(columns="sold").to_csv(folder / "data" / "test.csv", index=False)
    options = {"resume": True, "stages": Stages(quiet=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "EXPLAINED_SECONDS", 0.0)
        made = (run_competition(Recipe(d), folder / "data", folder / "runs" / f"depth{d}", **options) for d in (1, 3))
        return tuple(made)


def document(*arguments: object) -> object:
    code, out, err = invoke(*arguments)
    assert code == 0, err

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(out, parse_constant=refuse)


def test_runs(runs):
    made = document("runs", runs[0].parent, "--json")
    listed = [(r.name, r.score, list(r.interval), None) for r in list_runs(runs[0].parent)]
    assert [(r["name"], r["score"], r["interval"], r["leaderboard"]) for r in made] == listed


def test_compare(runs):
    made = document("compare", *runs, "--by", "fold", "--json")
    found = compare_runs(*runs, by="fold")
    assert (made["a"], made["b"]) == ("depth1", "depth3")
    assert made["sentence"] == found[0].sentence("depth1", "depth3")
    assert [s["segment"] for s in made["segments"]] == ["all", "fold=0", "fold=1", "fold=2"]
    for one, same in zip(made["segments"], found, strict=True):
        assert (one["rows"], one["a"], one["b"]) == (same.rows, same.a, same.b)
        assert one["difference"] == dict(zip(("mean", "low", "high"), same.difference, strict=True))


def test_report(runs):
    made, results = document("report", runs[1], "--json"), read_run(runs[1])
    assert Path(made["report"]) == runs[1] / "report.html"
    assert (made["run"], made["metric"], made["best"]) == ("depth3", "auc", results.best)
    oof = json.loads((runs[1] / "scores.json").read_text())["oof"]
    scores = [m["oof"] for m in made["models"]]
    assert {m["model"]: m["oof"] for m in made["models"]} == oof
    assert scores == sorted(scores, reverse=True)
    assert all(m["test"] is None for m in made["models"])  # its truth is not known
    assert all(0 < m["also"]["logloss"] < 1 for m in made["models"])
    stack = next(m for m in made["models"] if m["model"] == "stack")
    assert stack["oof_interval"][0] < stack["oof"] < stack["oof_interval"][1]


def test_try(runs, tmp_path):
    idea = tmp_path / "idea.py"
    idea.write_text("print('read')\n\n\ndef total(df):\n    return (df['a'] + df['b']).rename('total')\n")
    made = document("try", idea, "--on", runs[0], "--json")
    noted = list_tries(runs[0])[-1]
    assert made["columns"] == ["total"]
    assert (made["verdict"], made["metric"]) == (noted["verdict"], "auc")
    assert made["difference"]["mean"] == pytest.approx(noted["difference"])
    assert made["after"] - made["before"] == pytest.approx(made["difference"]["mean"], abs=0.02)


def test_what_is_no_figure_is_null(capsys):
    print_json({"three": np.int64(3), "yes": np.bool_(True)})
    assert json.loads(capsys.readouterr().out) == {"three": 3, "yes": True}
    print_json({"nan": np.float64("nan"), "inf": -np.inf, "pair": Interval(1.0, 0.5, 2.0), 3: [Path("a"), True, None]})
    made = json.loads(capsys.readouterr().out)
    pair = {"mean": 1.0, "low": 0.5, "high": 2.0}
    assert made == {"nan": None, "inf": None, "pair": pair, "3": ["a", True, None]}


def test_blend_and_errors(runs, tmp_path):
    code, out, err = invoke("blend", *runs, "--out", tmp_path / "blend")
    assert code == 0, err
    assert out.splitlines()[-1] == f"report {tmp_path / 'blend' / 'report.html'}"
    made = document("report", tmp_path / "blend", "--json")
    assert {m["model"] for m in made["models"]} == {"depth1", "depth3", "stack"}
    for arguments in (["compare", runs[0], tmp_path], ["runs", tmp_path / "none"], ["report", tmp_path / "none"]):
        refused([*arguments, "--json"], "")
