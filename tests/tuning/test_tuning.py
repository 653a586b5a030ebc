"""``tune_run``: scores are those of a plain loop over the folds, a search goes on where another stopped."""

import itertools
import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score
from torch import nn

from fastrec.competition import Competition, run_competition
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.estimators import (
    CatBoostModel,
    CentredModel,
    ConstantModel,
    LGBMModel,
    NetModel,
    NetRanker,
    OffsetModel,
    XGBModel,
    XGBRanker,
)  # fmt: skip
from fastrec.features import CountEncode, FeatureSet, TargetEncode
from fastrec.stacking import Stack
from fastrec.trials.reference import RunColumns
from fastrec.tuning import search, tune_run
from fastrec.tuning.spaces import as_line, is_tree, space_of, with_settings
from tests.cli.test_cli import invoke
from tests.files import scores_of, write_csv

pytest.importorskip("optuna")
TREES = {"rounds": 8, "early_stopping_rounds": None, "nthread": 1, "learning_rate": 0.3, "max_depth": 2}
TREES["subsample"] = 0.6
KINDS = (CatBoostModel, CentredModel, LGBMModel, NetModel, NetRanker, OffsetModel, XGBModel, XGBRanker)
NAMES = {c.__name__: c for c in KINDS} | {"nn": nn}


class Recipe(Competition):
    name, task, target, metric, ids = "Tunes", "binary", "y", "auc", ("id",)
    trees = True

    def features(self):
        return FeatureSet([CountEncode("city"), TargetEncode("city", "y")], key="id")

    def models(self, *, bs):
        net = NetModel("net", model="TabularNet", options={"layers": [4]}, epochs=1, bs=128)
        trees = [XGBModel("xgb", **TREES), XGBModel("weak", **{**TREES, "max_depth": 1, "rounds": 2})]
        return [net, *trees] if self.trees else [net]

    def stack(self):
        return Stack(rounds=2)


def write_data(folder: Path) -> Path:
    rng = np.random.default_rng(11)
    frame = pd.DataFrame({"id": range(360), "x": rng.normal(size=360), "city": rng.choice(list("abcd"), 360)})
    frame["y"] = (frame.x + (frame.city < "c") + rng.normal(size=360) > 0.5).astype(int)
    return write_csv(folder, train=frame[:300], test=frame[300:].drop(columns="y"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    return run_competition(Recipe(), write_data(folder / "data"), folder / "run", resume=True)


@pytest.fixture
def run(made, tmp_path) -> Path:
    """The run and its parts, without the trials of other tests."""
    for name in ("data", "run", ".run.parts"):
        shutil.copytree(made.parent / name, tmp_path / name)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> None:
    """A second passes whenever the search looks at the clock: before each trial and each fold."""
    ticks = itertools.count()
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def test_a_trials_score_is_that_of_a_plain_loop(run):
    """The oracle trains the printed line on the run's folds, and scores by scikit-learn."""
    found = tune_run(run, minutes=0.8, data=run.parent / "data")
    assert found.model == "xgb"  # its trees have the better score; the net may not be asked
    assert found.own.score == pytest.approx(scores_of(run)["oof"]["xgb"], abs=1e-12)
    assert found.new >= 2
    trial = next(t for t in found.trials if t.number is not None and not t.pruned)
    model = eval(trial.line, NAMES)
    assert {n: model.settings()[n] for n in trial.settings} == trial.settings
    rows = pq.read_table(run / "rows.parquet").to_pandas().query("split == 'oof'")
    oof = np.full(len(rows), np.nan)
    for k, (train, valid) in enumerate(RunColumns(KeptRows(run)).folds()):
        assert list(np.flatnonzero(rows.fold == k)) == valid.rows.tolist()
        oof[valid.rows] = model.fresh().fit(train.take(), None, seed=k).predict(valid.take())
    assert trial.score == pytest.approx(roc_auc_score(rows.label_y, oof), abs=1e-12)
    assert trial.folds == 5


def test_trials_are_in_order_and_the_next_search_goes_on(run):
    first = tune_run(run, minutes=0.8)
    again = tune_run(run, minutes=0.8)
    assert first.storage == run.parent / "run.tune.db"
    assert len(again.trials) == len(first.trials) + again.new
    assert first.new == len(first.trials) > 7  # 48 seconds; a trial that is not given up takes six
    assert {t.line for t in first.trials} <= {t.line for t in again.trials}
    numbered = [t.settings["eta"] for t in again.trials if t.settings]
    assert len(set(numbered)) == len(numbered)  # nothing is drawn twice
    whole = [t for t in again.trials if not t.pruned]
    assert whole == sorted(whole, key=lambda t: -t.score)
    assert again.best.score == max(t.score for t in whole)
    assert sum(t.number is None for t in again.trials) == 1
    assert all(t.folds == 5 for t in whole)
    assert any(t.pruned for t in again.trials)


def test_other_rows_settings_or_models_are_another_search(run):
    first = tune_run(run, minutes=0.3)
    other = tune_run(run, minutes=0.3, model="weak")
    assert other.own.score == pytest.approx(scores_of(run)["oof"]["weak"], abs=1e-12)
    assert len(other.trials) == other.new
    run_competition(Recipe(), run.parent / "data", run, rows=250, resume=True)
    fewer = tune_run(run, minutes=0.3)
    assert len(fewer.trials) == fewer.new
    assert first.model == fewer.model == "xgb"


def test_nets_are_tuned_where_there_are_no_trees(tmp_path):
    recipe = Recipe()
    recipe.trees = False
    run = run_competition(recipe, write_data(tmp_path / "data"), tmp_path / "run", resume=True)
    found = tune_run(run, minutes=0.8)
    assert found.model == "net"
    assert set(found.trials[0].settings or found.trials[1].settings) == {"lr", "wd", "epochs", "ps", "embed_p"}
    assert eval(found.trials[-1].line, NAMES).options["layers"] == [4]


def test_the_test_rows_are_not_needed(run):
    KeptRows(run)._file("test").unlink()
    shutil.rmtree(run / "test")
    (run / "submission.csv").unlink()
    assert tune_run(run, minutes=0.3).own.score == pytest.approx(scores_of(run)["oof"]["xgb"], abs=1e-12)
    with sqlite3.connect(run.parent / "run.tune.db") as file:  # a search closes it
        assert file.execute("select count(*) from trials").fetchone()[0] > 0
    file.close()


def test_the_command_prints_a_table_and_a_line(run):
    code, out, err = invoke("tune", run, "--minutes", 0.8, columns=160)
    assert code == 0, err
    assert re.search(r"one trial took [\d.]+ s: at least \d+ fit in 0\.\d minutes", err)
    assert re.search(rf"│ the run's │ {scores_of(run)['oof']['xgb']:.5f} │ 5 +│ its own +│", out)
    assert re.search(r"\d+ trials, \d+ given up early, \d+ new; kept in .*run\.tune\.db", out)
    line = next(part for part in out.splitlines() if part.startswith("XGBModel("))
    assert eval(line, NAMES).name == "xgb"


def test_what_cannot_be_tuned_is_refused(run, tmp_path):
    for options, said in (
        ({"minutes": 0}, "0 minutes"),
        ({"minutes": 1e-9}, "no time to train the model once"),
        ({"model": "xgbb"}, r"no model 'xgbb'.*It has constant, net, xgb, weak"),
        ({"model": "constant"}, r"'constant' \(ConstantModel\) cannot be tuned.*--model with one of net, xgb"),
        ({"data": run.parent}, "other files than those of the run"),
    ):
        with pytest.raises(DataError, match=said):
            tune_run(run, **{"minutes": 1, **options})
    with pytest.raises(MissingFileError, match="Give a run directory"):
        tune_run(tmp_path / "none", minutes=1)
    (run.parent / "run.tune.db").write_bytes(b"no database" * 100)
    with pytest.raises(UnreadableFileError, match=r"run\.tune\.db.*no file of trials.*Delete it"):
        tune_run(run, minutes=1)
    shutil.rmtree(run.parent / ".run.parts")
    with pytest.raises(MissingFileError, match="its parts are not there"):
        tune_run(run, minutes=1)


MODELS = [
    XGBModel("a", rounds=40, learning_rate=0.2, reg_alpha=1.0, columns=["x"]),
    XGBModel("a", rounds=40, early_stopping_rounds=None),
    XGBRanker("b", eta=0.2, **{"lambda": 3.0}),
    LGBMModel("c", eta=0.1, min_child_samples=7, subsample=0.7, class_weight="balanced"),
    CatBoostModel("d", max_depth=5, reg_lambda=2.0),
    NetModel("e", stop_by="auc", options={"k": 4, "layers": [8]}, model="TabM"),
    NetModel("f"),
    NetRanker("g", layers=[8], lr=1e-3),
    OffsetModel(LGBMModel("h", rounds=30, early_stopping_rounds=None), "before"),
    OffsetModel(CentredModel(XGBModel("i", rounds=30, early_stopping_rounds=None), "before", share=0.5), "before"),
]


class Middle:
    """An Optuna trial that says the middle of everything."""

    def suggest_float(self, name, low, high, *, log=False):
        return (low * high) ** 0.5 if log else (low + high) / 2

    def suggest_int(self, name, low, high, *, log=False):
        return round(self.suggest_float(name, low, high, log=log))


def inmost(model):
    """The model that learns, inside those that change its labels."""
    while isinstance(model, CentredModel | OffsetModel):
        model = model.model
    return model


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_settings_are_taken_and_the_line_makes_the_same_model(run, model):
    rows = next(RunColumns(KeptRows(run)).folds())[0].take()
    dims = space_of(model, rows)
    assert ("rounds" in {d.name for d in dims}) == (is_tree(model) and inmost(model).early_stopping_rounds is None)
    values = {d.name: d.suggest(Middle()) for d in dims}
    made = with_settings(model, dims, values)
    again = eval(as_line(made), NAMES)
    for one in (made, again):
        inner = inmost(one)
        own = inner.settings()
        net = inner if isinstance(inner, NetModel) else getattr(inner, "architecture", None)
        options = getattr(net, "options", {})
        assert all((options if d.option else own)[d.name] == values[d.name] for d in dims)
    assert as_line(again) == as_line(made)
    assert str(again.settings()) == str(made.settings())
    first = inmost(model)
    kept = {n: v for n, v in first.settings().items() if n in ("columns", "class_weight", "reg_alpha", "name")}
    last = inmost(again)
    assert all(last.settings()[n] == v for n, v in kept.items())
    for other in ("learning_rate", "lambda", "min_child_samples", "subsample", "max_depth", "reg_lambda"):
        if other not in values:  # the recipe's own under another name has given way
            assert other not in getattr(last, "params", {})


def test_a_run_without_a_model_to_tune_is_refused_by_name(tmp_path):
    class Rules(Recipe):
        def models(self, *, bs):
            return [ConstantModel("rule")]

    rules = run_competition(Rules(), write_data(tmp_path / "data"), tmp_path / "rules", resume=True)
    with pytest.raises(DataError, match=r"no model that can be tuned: it has constant, rule.*Add XGBoost"):
        tune_run(rules, minutes=1)
