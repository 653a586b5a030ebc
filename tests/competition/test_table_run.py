"""Recipes of every task without lists: run, predict from the directory alone, go on after a kill."""

import filecmp
import importlib.util
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score

from fastrec.auto.auto_fit import Fit
from fastrec.competition import (
    Competition,
    check_submission,
    compare_runs,
    list_runs,
    log_run,
    predict_run,
    run_competition,
)
from fastrec.competition.forms.rows import SubmissionForm
from fastrec.competition.predict import SavedRun
from fastrec.competition.runs import _metrics
from fastrec.competition.scoring import Scorer
from fastrec.competition.train_models import _settings, choose_columns
from fastrec.errors import (
    DataError,
    DataWarning,
    FastrecError,
    MissingColumnError,
    MissingFileError,
    MissingPackageError,
)
from fastrec.estimators import CatBoostModel, Estimator, LGBMModel, NetModel, OffsetModel, SKModel, XGBModel
from fastrec.features import CountEncode, FeatureSet, GroupStats, TargetEncode, feature
from fastrec.metrics import as_metric, get_metric
from fastrec.monitor.retrain import _classes
from fastrec.stacking import Stack
from tests import fresh
from tests.files import scores_of, write_csv

N, M = 400, 60
TREES = {"rounds": 15, "eta": 0.3, "max_depth": 2, "early_stopping_rounds": None, "nthread": 1}


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    city = rng.choice(list("abcdef"), n)
    x, z = rng.normal(size=n), rng.normal(size=n)
    x[rng.random(n) < 0.05] = np.nan
    signal = np.nan_to_num(x) + (city < "c") + 0.3 * rng.normal(size=n)
    made = {"id": [f"r{seed}-{i}" for i in range(n)], "x": x, "z": z, "city": city}
    made |= {"binary": np.where(signal > 0.5, "Y", "N"), "regression": np.exp(signal), "other": -signal}
    made["multiclass"] = np.array(["low", "mid", "top"])[np.digitize(signal, [0, 1])]
    return pd.DataFrame({**made, "flag1": signal > 0, "flag2": z > 0.5})


TRAIN, TEST = frame(N, 1), frame(M, 2)
TARGETS = {
    "binary": "binary",
    "multiclass": "multiclass",
    "regression": "regression",
    "multilabel": ["flag1", "flag2"],
    "regression2": ["regression", "other"],
}


class Recipe(Competition):
    ids, categories, plain = ("id",), ("city",), ("x", "z")

    def __init__(self, case: str = "binary", **attributes) -> None:
        self.name, self.task, self.target = case, case.removesuffix("2"), TARGETS[case]
        vars(self).update(attributes)

    def features(self):
        made = [CountEncode("city")]
        if self.name == "regression":
            made.append(TargetEncode("city", self.target))
        return FeatureSet(made, key="id")

    def models(self, *, bs):
        return [XGBModel("shallow", **TREES), XGBModel("deep", **{**TREES, "max_depth": 3})]

    def stack(self):
        return Stack(rounds=5)


def write(folder: Path, case: str, *, train: pd.DataFrame = TRAIN, test: pd.DataFrame | None = TEST) -> Path:
    names = TARGETS[case] if isinstance(TARGETS[case], list) else [TARGETS[case]]
    if test is not None:
        write_csv(folder, test=test[["id", "x", "z", "city"]], truth=test[["id", *names]])
    return write_csv(folder, train=train[["id", "x", "z", "city", *names]])


def ran(folder: Path, case: str, *, train: pd.DataFrame = TRAIN, test: pd.DataFrame | None = TEST, **about) -> Path:
    data = write(folder / "data", case, train=train, test=test)
    return run_competition(Recipe(case, **about), data, folder / "run", resume=False)


def oof_of(run: Path, model: str = "stack") -> pd.DataFrame:
    return pq.read_table(run / "oof" / f"{model}.parquet").to_pandas()


def predictions(frame: pd.DataFrame) -> np.ndarray:
    return frame.filter(regex="^prediction").to_numpy().squeeze()


def data_of(runs: dict[str, Path], case: str) -> Path:
    return runs[case].parent / "data" / case


@pytest.mark.parametrize("case", TARGETS)
def test_a_run_scores_its_files_submits_the_test_rows_and_predicts_from_its_directory_alone(runs, case, tmp_path):
    run, raw = runs[case], TEST[["city", "z", "id", "x"]]  # columns in another order, and no target
    scores = scores_of(run)
    metric = get_metric(scores["metric"])
    rows = pq.read_table(run / "rows.parquet").to_pandas().query("split == 'oof'")
    y = rows.filter(regex="^label_").to_numpy().squeeze()
    sign = 1 if scores["greater_is_better"] else -1
    assert len(scores["stack_choice"]["of_folds"]) == 5
    assert all(sign * scores["oof"][n] > sign * scores["oof"]["constant"] for n in ("shallow", "deep", "stack"))
    if metric.wants == "scores":  # a constant orders nothing, whatever each fold's is
        assert scores["oof"].pop("constant") == 0.5
    for name, score in scores["oof"].items():
        assert metric(y, predictions(oof_of(run, name))) == pytest.approx(score, rel=1e-9)
    own = pd.read_csv(run / "submission.csv")
    assert own.id.tolist() == TEST.id.tolist()
    form = SubmissionForm(**json.loads((run / "config.json").read_text())["submission"])
    assert str(check_submission(run / "submission.csv", data_of(runs, case) / "test.csv", form)).startswith("ok")
    if case == "multiclass":
        assert (own["multiclass"] == TEST["multiclass"]).mean() > 0.6
    else:
        truth = TEST.assign(binary=(TEST.binary == "Y").astype(float))[TARGETS[case]].to_numpy(dtype=float).squeeze()
        p = predictions(pd.read_parquet(run / "test" / "stack.parquet"))
        assert metric(truth, p) == pytest.approx(scores["models"]["stack"])
    raw.to_csv(tmp_path / "rows.csv", index=False)
    again = pd.read_csv(predict_run(run, tmp_path / "rows.csv", tmp_path / "out.csv"))
    pd.testing.assert_frame_equal(again, own, rtol=0, atol=1e-6)
    # Frames have the index of their rows; no rows have no predictions.
    if case != "regression":
        shutil.copytree(run, tmp_path / "run")
        keyed = TEST.iloc[[7, 3, 5]].set_index(pd.Index(["c", "a", "b"], name="key"))
        made = Fit(tmp_path).predict(keyed) if case == "regression2" else Fit(tmp_path).predict_proba(keyed)
        pd.testing.assert_index_equal(made.index, keyed.index)
    wide = {"multiclass": (0, 3), "multilabel": (0, 2), "regression2": (0, 2)}
    assert tuple(SavedRun(run).predict(raw.head(0)).shape) == wide.get(case, (0,))
    raw.head(0).to_parquet(tmp_path / "none.parquet")
    raw.head(0).to_csv(tmp_path / "none.csv", index=False)
    for none in ("none.parquet", "none.csv"):
        with pytest.warns(DataWarning, match=f"{none}: it has no rows"):
            written = pd.read_csv(predict_run(run, tmp_path / none, tmp_path / "out.csv"))
        assert written.columns.tolist() == own.columns.tolist()
        assert not len(written)


def test_predict_of_rows_never_seen(runs, tmp_path):
    other = TEST.head(3).assign(city=["new", None, "a"], x=[np.nan, 1e30, 0.0])[["id", "x", "z", "city"]]
    write_csv(tmp_path, rows=other, short=other.drop(columns="x"), odd=other.rename(columns={"city": "ctiy"}))
    made = pd.read_csv(predict_run(runs["binary"], tmp_path / "rows.csv", tmp_path / "out.csv"))
    assert made.binary.between(0, 1).all()
    other.to_csv(tmp_path / "semi.csv", index=False, sep=";")
    write_csv(tmp_path / "own", log=pd.DataFrame({"a": [1]}))
    for name, message in (
        ("short.csv", "column 'x'"),
        ("semi.csv", "The file looks separated by ';'"),
        ("odd.csv", "odd.csv', column 'city'.*Is 'ctiy' meant"),
        ("nope.csv", r"nope.csv': there is no such file"),
        ("own", r"no test file \(there is log.csv\).*fastrec layout"),
    ):
        with pytest.raises(FastrecError, match=message):
            predict_run(runs["binary"], tmp_path / name, tmp_path / "no.csv")
        assert not (tmp_path / "no.csv").exists()
    with pytest.raises(MissingFileError):
        predict_run(tmp_path, tmp_path / "rows.csv", tmp_path / "no.csv")
    frame = SavedRun(runs["regression"]).predict(TEST[["id", "x", "z", "city"]])
    own = pd.read_csv(runs["regression"] / "submission.csv")
    np.testing.assert_allclose(frame.numpy(), own.regression, rtol=1e-6)


def test_a_loaded_run_reads_its_models_once(runs, tmp_path):
    run = shutil.copytree(runs["binary"], tmp_path / "run")
    saved, rows = SavedRun(run), TEST[["id", "x", "z", "city"]]
    said = saved.predict(rows)
    shutil.rmtree(run / "models")
    assert torch.equal(saved.predict(rows), said)


def test_runs_are_listed_the_best_first_and_compared_on_the_same_rows(runs, tmp_path):
    listed = {s.name: s for s in list_runs(runs["binary"].parent)}
    one = listed["binary"]
    assert (set(listed), one.metric, one.features) == (set(TARGETS), "auc", 4)
    assert one.interval[0] <= one.score <= one.interval[1]
    weak = ran(tmp_path, "binary", models=lambda bs: [XGBModel("shallow", **{**TREES, "rounds": 1})])
    all_rows, *_ = compare_runs(runs["binary"], weak)
    scores = [scores_of(r)["oof"]["stack"] for r in (runs["binary"], weak)]
    assert (all_rows.a, all_rows.b, all_rows.rows) == (pytest.approx(scores[0]), pytest.approx(scores[1]), N)
    assert all_rows.difference.low <= scores[0] - scores[1] <= all_rows.difference.high
    parts = compare_runs(runs["binary"], weak, by="fold")
    assert sum(p.rows for p in parts[1:]) == N
    with pytest.raises(DataError, match="scored by auc"):
        compare_runs(runs["binary"], runs["regression"])
    with pytest.raises(MissingFileError, match=r"no predictions of 'nope'.* stack"):
        compare_runs(runs["binary"], weak, model="nope")


def test_classes_for_a_metric_of_classes(tmp_path):
    train = TRAIN.assign(binary=np.where(TRAIN.x > 1.3, "Y", "N"))
    run = ran(tmp_path, "binary", train=train, metric="f1", also=["auc"])
    assert set(pd.read_csv(run / "submission.csv").binary) == {"N", "Y"}
    scores = scores_of(run)
    oof = scores["oof"]
    assert oof["stack"] > 0.8
    assert scores["also"]["auc"]["stack"] > 0.9
    mean, low, high = scores["intervals"]["stack"]
    assert low < oof["stack"] < high  # of F1, cut as the score is
    assert mean == pytest.approx(oof["stack"])
    assert scores["stack_over_best"][0] == pytest.approx(oof["stack"] - max(oof["shallow"], oof["deep"]))
    alone = compare_runs(run, run, model="shallow")[0]
    assert (alone.a, compare_runs(run, run)[0].a) == pytest.approx((oof["shallow"], oof["stack"]))
    made = SavedRun(run)
    classes = _classes(run, Scorer.of("f1", made.target)).numpy()
    assert f1_score((train.binary == "Y").astype(int), classes) == pytest.approx(oof["stack"])
    (part,) = list_runs(run.parent)
    assert part.interval[0] < part.score < part.interval[1]


def test_the_metric_of_amounts_says_what_is_learned(tmp_path):
    scaled = ran(tmp_path / "log", "regression", scale="log", metric="rmspe")
    error = np.sqrt((((TRAIN.regression - oof_of(scaled).prediction) / TRAIN.regression) ** 2).mean())
    assert scores_of(scaled)["oof"]["stack"] == pytest.approx(error)
    made = pd.read_csv(scaled / "submission.csv").regression
    assert np.corrcoef(np.log(made), np.log(TEST.regression))[0, 1] > 0.8
    run = ran(tmp_path, "regression", metric="pinball@0.9")
    oof = {n: oof_of(run, n) for n in ("stack", "constant")}
    assert 0.8 < (TRAIN.regression <= oof["stack"].prediction).mean() < 0.97
    for k, rows in oof["constant"].groupby("fold"):
        others = TRAIN.regression[oof["constant"].fold != k]
        assert rows.prediction.unique() == pytest.approx(np.quantile(others, 0.9, method="averaged_inverted_cdf"))
    about = json.loads((run / "models" / "deep" / "fold0" / "estimator.json").read_text())["settings"]
    assert (about["objective"], about["quantile_alpha"]) == ("reg:quantileerror", 0.9)


def test_rows_without_a_target_are_left_out_and_named(tmp_path):
    train = TRAIN.copy()
    train.loc[[3, 7], "binary"] = None
    with pytest.warns(DataWarning, match="2 training rows have no target .the first is row 3"):
        run = ran(tmp_path, "binary", train=train)
    assert scores_of(run)["rows"]["train rows"] == N - 2


def test_without_test_rows_the_submission_is_out_of_fold(tmp_path):
    run = ran(tmp_path, "regression", test=None)
    made = pd.read_csv(run / "submission.csv")
    assert made.id.tolist() == TRAIN.id.tolist()
    np.testing.assert_allclose(made.regression, oof_of(run).prediction)


@feature(inputs="regression", outputs="before", by="city")
def past(amount):
    return torch.cat([torch.full((1,), torch.nan), amount[:-1]])


def test_a_function_of_earlier_targets_is_let_through_by_a_word(tmp_path):
    run = ran(tmp_path, "regression", history=True, features=lambda: FeatureSet([past], target=[]))
    assert json.loads((run / "features" / "features.json").read_text())["target"] == []


@pytest.mark.parametrize(
    ("case", "attributes", "message"),
    [
        ("binary", {"target": None}, "names no target"),
        ("binary", {"metric": "ndcg@10"}, "scores no binary task"),
        ("binary", {"target": "nowhere"}, "nowhere"),
        ("binary", {"metric": "gauc"}, "gauc scores lists, which a binary task has not"),
        ("regression", {"metric": "quadratic_kappa"}, r"quadratic_kappa scores classes.*the target is an amount"),
        ("binary", {"models": lambda bs: [Untrainable("a/b")]}, "name .a/b. cannot be that of a folder"),
        ("binary", {"features": lambda: FeatureSet([GroupStats("binary", by="city")])}, "GroupStats reads the target"),
        (
            "regression",
            {"features": lambda: FeatureSet([past])},
            r"Function reads the target.*earlier rows alone.*target=\[\]",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_its_data_says_so(tmp_path, case, attributes, message):
    with pytest.raises(MissingColumnError if message == "nowhere" else DataError, match=message):
        ran(tmp_path, case, **attributes)
    assert not (tmp_path / "run").exists()


def test_the_index_that_pandas_keeps_in_a_parquet_file_is_no_feature(tmp_path):
    for name, frame in (("train", TRAIN), ("test", TEST)):
        kept = frame[["id", "x", "city", "binary"]].sample(frac=1, random_state=0)
        kept.to_parquet(tmp_path / f"{name}.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "train.parquet").names
    recipe = Competition.__new__(type("Own", (Competition,), {"name": "own", "target": "binary", "ids": ("id",)}))
    found = recipe.load(tmp_path, rows=None, device=torch.device("cpu"))
    assert choose_columns(recipe, found, recipe.find_target(found.train), []) == (["city"], ["x"])


class Untrainable(XGBModel):
    def fit(self, *args, **options):
        raise AssertionError("trained")


@pytest.mark.parametrize(
    ("test", "truth", "message", "column", "file"),
    [
        (TEST.assign(binary="Z"), None, "the truth of the test: .* no training row has", "binary", "data"),
        (TEST, TEST.assign(binary="Z"), "the truth of the test: .* no training row has", "binary", "truth.csv"),
        (TEST, TEST.head(50), "id r2-50 is no row of truth.csv", "id", "truth.csv"),
        (TEST, TEST[["binary"]].head(50), "the truth has 50 rows, the test 60", None, "truth.csv"),
        (TEST.assign(id="one"), None, "id one stands in an earlier row too .59 such", "id", "data"),
        (TEST.assign(id=[None, *TEST.id[1:]]), None, "an id is missing", "id", None),
    ],
)
def test_what_cannot_be_scored_or_written_is_found_before_training(tmp_path, test, truth, message, column, file):
    data = write(tmp_path / "data", "binary", test=None)
    test[["id", "x", "z", "city", "binary"]].to_csv(data / "test.csv", index=False)
    if truth is not None:
        truth[[n for n in ("id", "binary") if n in truth]].to_csv(data / "truth.csv", index=False)
    with pytest.raises(FastrecError, match=message) as caught:
        run_competition(Recipe("binary", models=lambda bs: [Untrainable("x")]), data, tmp_path / "run", resume=False)
    assert caught.value.column == column
    assert (None if caught.value.file is None else Path(caught.value.file).name) == file


def test_a_truth_in_another_order_is_read_by_its_ids(runs, tmp_path):
    data = write(tmp_path / "data", "regression")
    TEST.sample(frac=1.0, random_state=1)[["id", "regression"]].to_csv(data / "truth.csv", index=False)
    run = run_competition(Recipe("regression"), data, tmp_path / "run", resume=False)
    rows = pq.read_table(run / "rows.parquet").to_pandas().query("split == 'test'")
    assert rows.label_regression.tolist() == TEST.regression.tolist()
    assert scores_of(run)["models"] == scores_of(runs["regression"])["models"]


def test_a_model_of_a_blends_name_is_refused_before_it_is_trained(tmp_path):
    for name in ("logistic", "mean", "hill_climb"):
        with pytest.raises(DataError, match=f"two blends have the name '{name}'"):
            ran(tmp_path, "binary", models=lambda bs, name=name: [XGBModel("shallow", **TREES), Untrainable(name)])


def same_files(a: Path, b: Path) -> list[str]:
    """Files that differ, but for those that hold times."""
    names = {p.relative_to(r) for r in (a, b) for p in r.rglob("*") if p.is_file()}
    timed = {"config.json", "scores.json", "report.html"}
    return [str(n) for n in sorted(names) if n.name not in timed and not filecmp.cmp(a / n, b / n, shallow=False)]


def reused(run: Path) -> int:
    return scores_of(run)["reused"]


def test_a_second_run_makes_only_what_has_changed_or_is_damaged(tmp_path):
    data, run = write(tmp_path / "data", "binary"), tmp_path / "run"

    def again(name: str, **about) -> Path:
        return run_competition(Recipe("binary", **about), data, run, resume=True).rename(tmp_path / name)

    first, second = again("first"), again("second")
    assert same_files(first, second) == []
    assert reused(second) == 3 * 5 + 1 + 1  # every model of every fold, the features of all rows and of a fold
    (damaged,) = tmp_path.glob(".run.parts/model-deep-1-*")
    (damaged / "said" / "state.safetensors").write_bytes(b"no tensors")
    with pytest.warns(DataWarning, match="cannot be read and is made again"):
        mended = again("mended")
    assert same_files(first, mended) == []
    assert reused(mended) == 3 * 5 - 1 + 1 + 1 + 1  # the features of that fold are read too
    other = {"models": lambda bs: [XGBModel("shallow", **TREES), XGBModel("deep", **{**TREES, "max_depth": 4})]}
    changed = again("changed", **other)
    assert reused(changed) == 2 * 5 + 1 + 5  # but for the deep trees
    assert filecmp.cmp(first / "oof" / "shallow.parquet", changed / "oof" / "shallow.parquet", shallow=False)
    assert not filecmp.cmp(first / "oof" / "deep.parquet", changed / "oof" / "deep.parquet", shallow=False)
    fresh = run_competition(Recipe("binary", **other), data, tmp_path / "fresh", resume=False)
    assert scores_of(changed)["oof"] == scores_of(fresh)["oof"]
    assert same_files(fresh, changed) == []
    write(data, "binary", train=TRAIN.assign(x=TRAIN.x + 1))
    assert reused(again("rows")) == 0


KILLED = """
import sys
from tests.competition.test_table_run import Recipe
from fastrec.competition import run_competition
print("ready", flush=True)
run_competition(Recipe("regression"), sys.argv[1], sys.argv[2], resume=True)
"""


def test_a_run_killed_at_random_moments_goes_on_to_the_same_bytes(tmp_path):
    data = write(tmp_path / "data", "regression")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the killed processes: kept models are of so many threads
    try:
        begun = time.perf_counter()
        whole = run_competition(Recipe("regression"), data, tmp_path / "whole", resume=False)
        takes = time.perf_counter() - begun
        moments, killed = random.Random(0), 0
        for k in range(20 if os.environ.get("FUZZ") == "all" else 3):
            process = fresh.start(KILLED, data, tmp_path / "run")
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            time.sleep(moments.uniform(0.05, 1 if k else 0.1) * takes)  # the first one surely before its end
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
        assert killed
        again = run_competition(Recipe("regression"), data, tmp_path / "run", resume=True)
    finally:
        torch.set_num_threads(threads)
    assert same_files(whole, again) == []
    left = {p.name for p in tmp_path.iterdir()} - {"data", "whole", "run", ".run.parts"}
    assert not left


@pytest.mark.parametrize("minutes", [None, 0.2])
def test_a_model_that_cannot_learn_is_left_out_by_name(tmp_path, minutes):
    """In float32, CatBoost's, amounts of 1e12 ± 1e3 are one number."""
    pytest.importorskip("catboost")
    train = TRAIN.head(200).assign(regression=lambda f: 1e12 + 1e3 * f.x.fillna(0))
    data = write(tmp_path / "data", "regression", train=train, test=None)
    few = {"rounds": 5, "early_stopping_rounds": None}
    models = {"cat": CatBoostModel("cat", **few), "lgbm": LGBMModel("lgbm", **few)}
    recipe = Recipe("regression", models=lambda bs: list(models.values()))
    run = run_competition(recipe, data, tmp_path / "run", minutes=minutes)
    config, scores = (json.loads((run / f"{n}.json").read_text()) for n in ("config", "scores"))
    assert set(config["left_out"]) == {"cat"}
    assert "All train targets are equal" in config["left_out"]["cat"]
    assert set(scores["oof"]) == {"constant", "lgbm", "stack"}
    recipe = Recipe("regression", models=lambda bs: [models["cat"]])
    with pytest.raises(DataError, match="All train targets are equal"):
        run_competition(recipe, data, tmp_path / "none", minutes=minutes)


def held_by_contents() -> list[Estimator]:
    """Models that hold objects whose ``repr`` is an address, made anew."""

    def own_error(y, prediction):
        return float(abs(y - prediction).mean())

    metric = as_metric(own_error, greater_is_better=False, wants="probabilities")
    offsets = [OffsetModel(XGBModel("x", **{**TREES, "rounds": r}), "x") for r in (3, 4)]
    nets = [NetModel("net", stop_by=metric), NetModel("net", stop_by="auc"), NetModel("net")]
    return [*nets, SKModel("forest", RandomForestClassifier(3)), *offsets]


def test_what_a_model_holds_counts_by_its_contents():
    made, again = held_by_contents(), held_by_contents()  # both are there: no object has an earlier one's address
    said = [str(_settings(m)) for m in made]
    assert said == [str(_settings(m)) for m in again]
    assert len(set(said)) == len(said)


class Holding(XGBModel):
    def __init__(self, name: str, **options) -> None:
        super().__init__(name, **options)
        self.source = np.random.default_rng(1)


def test_a_model_that_holds_what_has_no_lasting_name_is_trained_every_time(tmp_path):
    data = write(tmp_path / "data", "binary")
    recipe = Recipe("binary", models=lambda bs: [XGBModel("shallow", **TREES), Holding("deep", **TREES)])
    run_competition(recipe, data, tmp_path / "run", resume=True)
    assert {p.name.split("-")[1] for p in tmp_path.glob(".run.parts/model-*")} == {"shallow", "constant"}
    again = run_competition(recipe, data, tmp_path / "run", resume=True)
    assert reused(again) == 2 * 5 + 1 + 5  # models, features of all rows and of each fold


def test_metrics_are_scores_by_model_of_names_that_mlflow_takes():
    scores = {"oof": {"a": 0.5, "stack": 0.75}, "models": {"stack": 0.5, "b": None}, "seconds": {"x": 1.5, "y": 2}}
    assert _metrics(scores) == {"oof_a": 0.5, "oof_stack": 0.75, "test_stack": 0.5, "seconds": 3.5}
    assert _metrics({"oof": {"net (big), 2×": 0.5}, "models": {}}) == {"oof_net _big__ 2_": 0.5, "seconds": 0.0}


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_mlflow_the_remedy_is_said(tmp_path: Path):
    with pytest.raises(MissingPackageError, match="pip install mlflow"):
        log_run(tmp_path)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_run_is_noted(tmp_path: Path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where files go beside a database
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'noted.db'}")
    run = run_competition(Recipe("binary"), write(tmp_path / "data", "binary"), tmp_path / "run")
    found = mlflow.get_run(log_run(run))
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    config, scores = (json.loads((run / f).read_text()) for f in ("config.json", "scores.json"))
    assert found.data.params["task"] == "binary"
    assert found.data.params["seed"] == str(config["seed"])
    assert found.data.params["models"] == ", ".join(m for m in scores["oof"] if m != "stack")
    for model, score in scores["oof"].items():
        assert found.data.metrics[f"oof_{model}"] == pytest.approx(score)
    files = {f.path for f in mlflow.MlflowClient().list_artifacts(found.info.run_id)}
    assert files == {"report.html", "config.json", "scores.json"}
    with mlflow.start_run(run_name="of somebody") as active:  # theirs is used, and stays open
        assert log_run(run, name="first") == active.info.run_id
        assert mlflow.active_run() is not None
    assert mlflow.get_run(active.info.run_id).data.metrics["oof_stack"] == pytest.approx(scores["oof"]["stack"])
