"""A run made again from old and new rows: what it learns from, how it is judged, and what is promoted."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score
from typer.testing import CliRunner

from fastrec.cli import app
from fastrec.competition import Competition, SavedRun, SubmissionForm, compare_runs, predict_run, run_competition
from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError
from fastrec.estimators import NetModel, XGBModel
from fastrec.features import CountEncode, FeatureSet, Lag, TargetEncode
from fastrec.metrics import auc, mrr
from fastrec.monitor import judge, retrain
from fastrec.monitor.retrain import Past, _enter, _time_folds, together
from fastrec.registry import Registry
from fastrec.stacking.stack import level_two_folds
from fastrec.table import Table
from fastrec.validate import Rows

TREES = {"rounds": 15, "eta": 0.3, "max_depth": 3, "early_stopping_rounds": None, "nthread": 1}


def days(first: int, count: int, *, changed_from: int = 99, rows: int = 250) -> pd.DataFrame:
    """Days of clicks; from a day on people want the contrary, and a new city appears."""
    frames = []
    for day in range(first, first + count):
        rng = np.random.default_rng(day)
        cities = list("abcd") if day < changed_from else list("abcde")
        frame = pd.DataFrame({"day": day, "x": rng.normal(size=rows), "city": rng.choice(cities, rows)})
        frame["id"] = [f"{day}-{i}" for i in range(rows)]
        sign = 1 if day < changed_from else -1
        wish = sign * (2 * frame["x"] + 2 * (frame["city"] < "c") - 1)
        frame["clicked"] = (rng.random(rows) < 1 / (1 + np.exp(-wish))).astype(int)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


class Clicks(Competition):
    name, task, target, metric, ids, time = "clicks", "binary", "clicked", "auc", ("id",), "day"
    drop, categories, plain = ("day",), ("city",), ("x",)

    def features(self):
        return FeatureSet([CountEncode("city"), TargetEncode("city", "clicked")], key="id")

    def models(self, *, bs):
        net = NetModel("net", model="TabularNet", options={"layers": [8]}, epochs=2, bs=128, keep_best=False)
        return [XGBModel("xgb", **TREES), net]


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serving")
    (folder / "data").mkdir()
    days(0, 8).to_csv(folder / "data" / "train.csv", index=False)
    days(8, 1).drop(columns="clicked").to_csv(folder / "data" / "test.csv", index=False)
    return run_competition(Clicks(), folder / "data", folder / "run", resume=True)


@pytest.fixture(scope="module")
def changed(serving, tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    registry = Registry(folder / "registry")
    registry.promote(serving)
    days(8, 3, changed_from=8).to_parquet(folder / "new.parquet")
    made = retrain(
        registry.folder, folder / "new.parquet", folder / "run", every="value", scored=2, window=3, warm=True
    )
    return made, registry, folder


def test_after_a_change_the_new_run_is_better_and_promoted(changed):
    made, registry, _ = changed
    assert made.verdict.promote, str(made.verdict)
    assert made.verdict.gain.low > 0.2
    assert (made.version, registry.current.number, registry.previous.number) == (2, 2, 1)
    assert made.began == {"xgb": "grown anew: city has new values (e)", "net": "began with the weights that were there"}
    said = json.loads((made.run / "gate.json").read_text())
    assert (said["promote"], said["warm"]) == (True, made.began)
    assert registry.history[-1]["about"]["gain"] == said["gain"]


def test_each_period_is_scored_by_what_came_before_it(changed, serving):
    """The candidate's figures are those of its out-of-fold file, the serving run's those of fastrec predict."""
    made, _, _ = changed
    new = days(8, 3, changed_from=8)
    oof = pq.read_table(made.run / "oof" / "stack.parquet").to_pandas()
    rows = pq.read_table(made.run / "rows.parquet").to_pandas()
    assert len(rows) == 750  # a window of three periods: only new rows are left
    assert rows["id"].tolist() == new["id"].tolist()
    scored = oof["fold"] >= 0
    assert (new["day"][scored.to_numpy()] >= 9).all()
    assert scored.sum() == 500
    truth = new["clicked"].to_numpy()
    served = SavedRun(serving).predict(new.drop(columns="clicked")).numpy()
    by_period = made.verdict.by_period.set_index("period")
    for day in (9, 10):
        some = (new["day"] == day).to_numpy()
        wanted = [roc_auc_score(truth[some], p[some]) for p in (oof["prediction"], served)]
        assert by_period.loc[str(day), ["candidate", "serving"]].tolist() == pytest.approx(wanted)
    assert pq.read_table(made.run / "folds.parquet").num_rows == 750


def test_folds_train_on_what_came_before_and_score_new_rows():
    def cut(codes, new, scored, gap=0.0):
        past = Past(Table({"x": codes}), np.array(codes), np.array(codes) * 10 if gap else None, gap)
        folds, judged, warmed_up = _time_folds(past, list("abcd"), torch.tensor(new, dtype=torch.bool), scored)
        assert warmed_up == (len(folds) > len({codes[i] for i in judged.nonzero()[:, 0].tolist()}))
        return [(a.tolist(), b.tolist()) for a, b in folds], judged.nonzero()[:, 0].tolist()

    # one period more is scored first, old rows or new: from it the second level learns
    codes, new = [0, 0, 1, 2, 2, 3], [0, 0, 0, 1, 1, 1]
    assert cut(codes, new, 2) == ([([0, 1], [2]), ([0, 1, 2], [3, 4]), ([0, 1, 2, 3, 4], [5])], [3, 4, 5])
    assert cut(codes, new, 1) == ([([0, 1, 2], [3, 4]), ([0, 1, 2, 3, 4], [5])], [5])
    # an old row of a judged period is not learned from; where one period alone is older nothing comes first
    assert cut([0, 2, 1, 2], [0, 0, 1, 1], 2) == ([([0], [2]), ([0, 2], [3])], [2, 3])
    assert cut([1, 0, 1], [0, 1, 1], 2) == ([([1], [2])], [2])
    # 15 between what is learned from and what is scored: the period just before is left out
    assert cut(codes, new, 1, 15.0) == ([([0, 1, 2], [5])], [5])
    assert cut([0, 1, 2, 3, 3], [0, 0, 0, 1, 1], 1, 5.0) == ([([0, 1], [2]), ([0, 1, 2], [3, 4])], [3, 4])


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=4, max_size=40), st.integers(1, 4),
    st.sampled_from([0.0, 5.0, 10.0, 25.0]),
)  # fmt: skip
def test_no_blend_of_a_judged_period_learns_from_then_or_later(rows, scored, gap):
    codes, new = (np.array(v) for v in zip(*rows, strict=True))
    past = Past(Table({"x": codes}), codes, codes * 10, gap)
    try:
        folds, judged, warmed_up = _time_folds(past, list("abcdefg"), torch.from_numpy(new), scored)
    except DataError:
        return
    assert not (judged & ~torch.from_numpy(new)).any()
    if not warmed_up:
        return
    y = torch.zeros(len(codes), dtype=torch.float64)
    two = level_two_folds(folds, Rows(Table({"x": codes}), "binary", conts=["x"], label=y))
    for learned, valid in two.pairs:
        if judged[valid].any():
            assert judged[valid].all()
            assert codes[learned].max() * 10 < codes[valid].min() * 10 - gap


def test_the_new_run_predicts_and_is_retrained_in_turn(changed, tmp_path):
    made, registry, _ = changed
    more = days(11, 1, changed_from=8)
    more.drop(columns="clicked").to_csv(tmp_path / "rows.csv", index=False)
    predict_run(made.run, tmp_path / "rows.csv", tmp_path / "p.csv")
    p = pd.read_csv(tmp_path / "p.csv")["clicked"]
    assert roc_auc_score(more["clicked"], p) > 0.75
    more.to_parquet(tmp_path / "more.parquet")
    words = ["retrain", registry.folder, "--data", tmp_path / "more.parquet", "--out", tmp_path / "again"]
    done = CliRunner().invoke(app, [*map(str, words), "--every", "value", "--margin", "0.2", "--warm"])
    assert done.exit_code == 0, done.output
    assert "xgb: grown on the trees that were there" in done.output
    assert "net: began with the weights that were there" in done.output
    assert "version 3 is current" in done.output
    assert len(pq.read_table(tmp_path / "again" / "rows.parquet")) == 1000
    assert [v.number for v in registry.versions] == [1, 2, 3]


class Stopping(Clicks):
    """Models that stop by held-out rows, and every kind of blend."""

    def models(self, *, bs):
        net = NetModel("net", model="TabularNet", options={"layers": [8]}, epochs=3, bs=128, keep_best=True)
        return [XGBModel("xgb", **{**TREES, "rounds": 60, "early_stopping_rounds": 3}), net]


def test_nothing_that_scores_a_period_has_seen_labels_of_then_or_later(serving, tmp_path):
    """Other labels on the last day, and no prediction of a judged row changes: of no model, encoding, stop or blend."""
    new = days(8, 3)
    oof = {}
    options = {"every": "value", "scored": 2, "warm": True, "competition": Stopping()}
    for name, wrong in (("right", new["day"] < 0), ("other", new["day"] == 10)):
        new.assign(clicked=new["clicked"] ^ wrong).to_parquet(tmp_path / f"{name}.parquet")
        made = retrain(serving, tmp_path / f"{name}.parquet", tmp_path / name, **options)
        files = sorted((made.run / "oof").glob("*.parquet"))
        oof[name] = {f.stem: pq.read_table(f).to_pandas()[["fold", "prediction"]] for f in files}
        assert (oof[name]["stack"]["fold"] >= 0).sum() == 750
    assert {"xgb", "net", "stack"} <= set(oof["right"])
    # not the day before: its blend has to learn from these
    judged = (pd.concat([days(0, 8), new])["day"] >= 9).to_numpy()
    for model, right in oof["right"].items():
        some = judged if model == "stack" else slice(None)
        pd.testing.assert_frame_equal(right[some], oof["other"][model][some], obj=model)


def test_a_warm_start_is_cold_on_rows_that_the_run_has_learned_from(serving, tmp_path):
    """From the day before the judged ones the second level learns: warm models would know it by heart."""
    days(8, 3).to_parquet(tmp_path / "new.parquet")
    read = partial(together, SavedRun(serving), tmp_path / "new.parquet", time="day", every="value")
    cold = [read(scored=scored, window=window).cold_folds for scored, window in ((3, None), (2, None), (2, 3), (1, 3))]
    assert cold == [(0,), (), (), ()]


def test_corrupted_labels_are_refused_and_written_down(serving, tmp_path):
    """Wrong labels on two days; the third, by which both are judged, has right ones."""
    new = days(8, 3)
    new.assign(clicked=new["clicked"] ^ (new["day"] < 10)).to_parquet(tmp_path / "new.parquet")
    registry = Registry(tmp_path / "registry")
    registry.promote(serving)
    options = {"registry": registry.folder, "every": "value", "scored": 1, "window": 3}
    made = retrain(serving, tmp_path / "new.parquet", tmp_path / "run", **options)
    assert (made.verdict.promote, made.version, registry.current.number) == (False, None, 1)
    assert "may be worse" in made.verdict.reasons[-1]
    assert registry.history[-1]["what"] == "kept"
    assert "may be worse" in registry.history[-1]["why"]


def test_a_version_that_it_was_not_compared_with_is_not_replaced(changed, serving, tmp_path):
    made, _, _ = changed
    registry = Registry(tmp_path / "registry")
    registry.promote(serving)
    registry.promote(made.run)
    with pytest.raises(DataError, match="version 2 is current, with which it was not compared"):
        _enter(registry, serving, tmp_path / "next", made.verdict, None, (), {})
    assert registry.current.number == 2
    assert registry.history[-1]["what"] == "kept"


def test_labels_that_say_nothing_are_refused(serving, tmp_path):
    """Both models are even on them: it takes the check, and not the difference."""
    new = days(8, 2)
    new["clicked"] = np.random.default_rng(0).permutation(new["clicked"])
    new.to_parquet(tmp_path / "new.parquet")
    made = retrain(serving, tmp_path / "new.parquet", tmp_path / "run", every="value", margin=0.5)
    assert (made.verdict.promote, made.verdict.reasons) == (False, ["its predictions say no more than chance"])
    with pytest.raises(DataError, match=r"gate\.json holds how run compares"):
        compare_runs(serving, made.run)
    # Of one class the metric is undefined: the run is there, and what serves is kept.
    days(8, 1).assign(clicked=1).to_parquet(tmp_path / "new.parquet")
    made = retrain(serving, tmp_path / "new.parquet", tmp_path / "one", every="value")
    undefined = ["the metric is undefined on the newest rows, as where all are of one class"]
    assert (made.verdict.promote, made.verdict.reasons) == (False, undefined)
    assert json.loads((made.run / "gate.json").read_text())["by_period"] == []


def test_wrong_new_rows_are_named_by_their_own_file_and_row(serving, tmp_path):
    new, path = days(8, 1), tmp_path / "new.csv"
    for column, value, words in (
        ("day", None, "a time is missing"),
        ("id", "8-2", "id 8-2 stands in an earlier row too"),
        ("clicked", 2, "2 is no class of the run, whose classes are 0, 1"),
    ):
        wrong = new.copy().astype({column: object})
        wrong.loc[7, column] = value
        wrong.loc[0, "clicked"] = None  # a row that is not learned from, and counts
        wrong.to_csv(path, index=False)
        told = r"new.csv: 1 training rows have no target \(the first is row 0\); they are left out"
        with pytest.warns(DataWarning, match=told), pytest.raises(DataError, match=words) as error:
            retrain(serving, path, tmp_path / "run", every="value")
        assert (Path(error.value.file), error.value.column, error.value.row) == (path, column, 7)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_retrained_is_said(serving, changed, tmp_path):
    new, path, registry = days(8, 1), tmp_path / "new.parquet", changed[1]
    few, gone = days(8, 2).groupby("day").head(20), registry.version(1).folder / "run"
    for run, rows, options, error, says in (
        (serving, new.drop(columns="x"), {}, MissingColumnError, "the new rows lack it"),
        (serving, new.assign(clicked=None), {}, DataError, "no new row with a label"),
        # rows that the run has learned from: the misspelt column comes first
        (serving, days(0, 1), {"time": "nope"}, MissingColumnError, "'nope'"),
        (serving, new.assign(day=-1), {}, DataError, "nothing is older"),
        (serving, few, {"scored": 1}, DataError, r"20 new rows would be scored .*the gate needs 50.*--scored"),
        (serving, new, {"registry": registry.folder}, DataError, r"version \d is current, .* Retrain the registry"),
        (gone, new, {}, MissingFileError, "keeps no rows"),
    ):
        rows.to_parquet(path)
        with pytest.raises(error, match=says):
            retrain(run, path, tmp_path / "run", **{"every": "value", **options})
    with pytest.raises(DataError, match="this is the run that serves"):
        retrain(serving, path, serving)
    with pytest.raises(MissingFileError):
        retrain(serving, tmp_path / "nothing.parquet", tmp_path / "run")
    (tmp_path / "data").mkdir()  # with a test, where no check of a submission's ids would look at them
    days(7, 2).iloc[249:].to_csv(tmp_path / "data" / "train.csv", index=False)
    days(9, 1).drop(columns="clicked").to_csv(tmp_path / "data" / "test.csv", index=False)
    with pytest.raises(DataError, match="has learned from this row already: id 7-249") as error:
        retrain(serving, tmp_path / "data", tmp_path / "run", every="value")
    assert (Path(error.value.file).name, error.value.column, error.value.row) == ("train.csv", "id", 0)
    assert not (tmp_path / "run").exists()


class Slow(Clicks):
    def models(self, *, bs):
        return [XGBModel("xgb", **{**TREES, "rounds": 200_000})]


def test_minutes_bound_the_training(serving, tmp_path):
    days(9, 2).iloc[::-1].to_parquet(tmp_path / "new.parquet")
    options = {"every": "value", "scored": 2, "minutes": 0.05, "competition": Slow()}
    made = retrain(serving, tmp_path / "new.parquet", tmp_path / "run", **options)
    trees = xgboost.Booster(model_file=made.run / "models" / "xgb" / "fold0" / "trees0.ubj")
    assert 0 < trees.num_boosted_rounds() < 200_000
    assert (made.run / "gate.json").is_file()
    assert made.verdict.by_period["period"].tolist() == ["9", "10"]  # in time, whatever the order of the rows


class Kinds(Competition):
    name, task, target, metric, ids, time, drop = "kinds", "multiclass", "kind", "logloss", ("id",), "day", ("day",)
    categories, plain, submission = (), ("x",), SubmissionForm(ids="id", values=("a", "b", "d"))

    def models(self, *, bs):
        return [XGBModel("xgb", **TREES)]


def test_classes_that_join_are_learned_and_judged_by_the_others(tmp_path):
    """The serving run cannot say them: rows of theirs are left out of the comparison, which the verdict tells."""

    def kinds(first, count, cuts, names):
        made = days(first, count)[["day", "id", "x"]]
        return made.assign(kind=np.array(names)[np.digitize(made["x"], cuts)])

    (tmp_path / "data").mkdir()
    kinds(0, 6, [-0.5, 0.5], ["a", "b", "d"]).to_csv(tmp_path / "data" / "train.csv", index=False)
    kinds(6, 1, [0], ["a", "b"]).drop(columns="kind").to_csv(tmp_path / "data" / "test.csv", index=False)
    run = run_competition(Kinds(), tmp_path / "data", tmp_path / "run", resume=True)
    new = kinds(6, 2, [0, 1], ["b", "c", "d"])  # a is gone, c has come
    (tmp_path / "new").mkdir()
    new.to_parquet(tmp_path / "new" / "train.parquet")
    new.drop(columns="kind").to_parquet(tmp_path / "new" / "test.parquet")
    made = retrain(run, tmp_path / "new", tmp_path / "next", every="value", scored=1, window=2, warm=True)
    assert SavedRun(made.run).target.outputs == ["a", "b", "c", "d"]
    assert pd.read_csv(made.run / "submission.csv").columns.tolist() == ["id", "a", "b", "c", "d"]
    last = new[new["day"] == 7]
    known = (last["kind"] != "c").to_numpy()
    assert f"{(~known).sum()} rows of classes that the serving run does not know were left out" in made.verdict.reasons
    assert made.verdict.rows == known.sum()
    served = SavedRun(run).predict(last.drop(columns="kind")).numpy()[known]
    place = last["kind"][known].map({"a": 0, "b": 1, "d": 2}).to_numpy()
    assert made.verdict.serving == pytest.approx(-np.log(served[np.arange(len(place)), place]).mean(), rel=1e-6)
    assert made.began == {"xgb": "grown anew: the classes or targets are others"}


class Sales(Competition):
    name, task, target, metric, time, time_gap = "sales", "regression", "amount", "rmse", "day", 0.5
    history, categories, plain = True, (), ()

    def features(self):
        return FeatureSet([Lag("amount", by="shop", order="day")])

    def models(self, *, bs):
        return [XGBModel("xgb", **TREES)]


def sales(folder: Path, *, moved: bool = False) -> tuple[pd.DataFrame, Path, Path]:
    """Drifting amounts of sixty shops, a run of six days, the file of the others; ``moved``: shop 7 becomes 61."""
    amounts = np.random.default_rng(0).normal(size=(8, 60)).cumsum(0) * 3
    rows = pd.DataFrame({"day": np.arange(8).repeat(60), "shop": np.tile(np.arange(60), 8), "amount": amounts.ravel()})
    if moved:
        rows.loc[(rows["shop"] == 7) & (rows["day"] > 2), "shop"] = 61
    (folder / "data").mkdir()
    rows[rows["day"] < 6].to_csv(folder / "data" / "train.csv", index=False)
    rows[rows["day"] >= 6].to_csv(folder / "new.csv", index=False)
    return rows, run_competition(Sales(), folder / "data", folder / "run", resume=True), folder / "new.csv"


def test_the_serving_run_looks_back_to_all_that_was_known(tmp_path):
    """Also to rows that a window cuts off, and to new rows of the days before."""
    rows, run, new = sales(tmp_path)
    assert json.loads((run / "config.json").read_text())["recipe"]["time_gap"] == 0.5
    made = retrain(run, new, tmp_path / "next", every="value", scored=2, window=3)
    by_period = made.verdict.by_period.set_index("period")["serving"]
    for day in (6, 7):
        of_day = rows[rows["day"] == day]
        said = SavedRun(run).predict(of_day.drop(columns="amount"), history=rows[rows["day"] < day]).numpy()
        assert by_period[str(day)] == pytest.approx(np.sqrt(((of_day["amount"] - said) ** 2).mean()))


def test_a_promoted_export_has_the_events_so_far_where_the_current_one_has_them(tmp_path):
    """A server of it makes each shop's lag from old and new rows; those that the window cuts off are known, too."""
    pytest.importorskip("onnxruntime")
    from fastrec.serve import Online, export_run

    rows, run, new = sales(tmp_path, moved=True)  # the window has no row of shop 7
    rows[rows["day"] == 6].drop(columns="amount").to_csv(tmp_path / "data" / "test.csv", index=False)
    for name, data in (("with", tmp_path / "data"), ("without", None)):
        registry = Registry(tmp_path / name)
        registry.promote(run, export=export_run(run, tmp_path / f"{name}-export", data=data).folder)
        about = {"every": "value", "scored": 2, "window": 3, "margin": 9}
        retrain(registry.folder, new, tmp_path / f"{name}-next", **about)
        assert len(registry.versions) == 2
        assert (registry.current.export / "events").is_dir() == (name == "with")
    online = Online.load(Registry(tmp_path / "with").current.export / "events")
    said = online.features(pd.DataFrame({"day": 9, "shop": [0, 7, 61, 99], "amount": np.nan})).to_pydict()
    online.close()
    last = [rows.loc[rows["shop"] == shop, "amount"].iloc[-1] for shop in (0, 7, 61)]
    assert said == {"lag1_amount__shop": [*last, None]}


verdict = partial(judge, repeats=100)  # intervals are wide enough for what is asserted of them


def labels(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.4).astype(float)
    return y, y + rng.normal(0, 1, n), rng


def test_the_gates_figures():
    y, good, rng = labels()
    bad = y + rng.normal(0, 3, 2000)
    found, kept = verdict("auc", y, bad, good), verdict("auc", y, good, bad)
    assert (found.promote, kept.promote) == (True, False)
    assert found.candidate == pytest.approx(auc(torch.tensor(good), torch.tensor(y)))
    assert found.gain.mean == pytest.approx(roc_auc_score(y, good) - roc_auc_score(y, bad))
    assert found.gain.low > 0
    assert found.reasons[0] == "it is better"
    assert kept.gain.mean == pytest.approx(-found.gain.mean)
    # a margin lets even ones pass, and none does not
    even = good + rng.normal(0, 0.05, 2000)
    assert verdict("auc", y, good, even, margin=0.01).promote
    assert not verdict("auc", y, good, even - 0.02 * y, margin=0.0).promote
    # of a loss less is better
    y = rng.normal(size=500)
    near, far = y + rng.normal(0, 0.5, 500), y + rng.normal(0, 1, 500)
    found = verdict("rmse", y, far, near)
    assert found.promote
    assert found.gain.mean == pytest.approx(np.sqrt(((far - y) ** 2).mean()) - np.sqrt(((near - y) ** 2).mean()))
    assert not verdict("rmse", y, near, far).promote


def test_classes_are_judged_as_each_model_makes_them():
    y, good, rng = labels(600)
    near, far = 1 / (1 + np.exp(-(good - 2))), 1 / (1 + np.exp(-(y + rng.normal(0, 2, 600))))
    cut = (far > 0.7).astype(int), (near > 0.2).astype(int)
    options = {"periods": np.arange(600) // 300, "repeats": 60}
    found = verdict("f1", y, far, near, classes=cut, **options)
    halves = slice(300), slice(300, 600)
    f1 = [[f1_score(y[h], c[h]) for h in halves] for c in cut]
    assert [found.serving, found.candidate] == pytest.approx([np.mean(f) for f in f1])
    assert found.gain.mean == pytest.approx(np.mean(f1[1]) - np.mean(f1[0]))
    assert found.promote
    assert found.by_period["candidate"].tolist() == f1[1]
    # one that never says 1 may say more than chance all the same
    never = verdict("accuracy", y, far, near, classes=(cut[0], np.zeros(600, dtype=int)), **options)
    assert all(never.checks.values())


def test_periods_of_different_models_are_not_pooled():
    # The candidate ranks every period as well as the serving model; its models' scores are not on one scale.
    y, good, _ = labels()
    period = np.arange(2000) % 5
    shifted = good + 10 * period
    assert roc_auc_score(y, shifted) < roc_auc_score(y, good) - 0.1
    found = verdict("auc", y, good, shifted, periods=period)
    assert found.promote
    auc_of = [roc_auc_score(y[period == k], good[period == k]) for k in range(5)]
    assert found.candidate == pytest.approx(np.mean(auc_of))
    assert (found.gain.mean, found.gain.low) == pytest.approx((0, 0))
    # a draw may lack the only positive of some periods: they are left out of it
    rare, y = np.arange(2800) // 200, np.tile(np.arange(200) == 7, 14).astype(float)
    gain = verdict("auc", y, np.random.default_rng(0).random(2800), y, periods=rare).gain
    assert gain.low < gain.mean - 0.05 < gain.mean + 0.05 < gain.high


def test_lists_are_judged_as_lists():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(300), 5)
    y = np.zeros(1500)
    y[np.arange(300) * 5 + rng.integers(0, 5, 300)] = 1
    good, bad = y + rng.normal(0, 0.5, 1500), y + rng.normal(0, 2, 1500)
    found = verdict("mrr", y, bad, good, groups=groups, periods=groups // 100)
    assert found.promote
    assert found.rows == 300
    assert found.serving == pytest.approx(float(mrr(torch.tensor(bad), torch.tensor(y), torch.tensor(groups))))
    assert found.by_period["period"].tolist() == ["0", "1", "2"]
    assert found.by_period["candidate"].mean() == pytest.approx(found.candidate)
    # lists have equal weight, however long
    groups = np.r_[np.repeat(np.arange(300), 2), 300 + np.repeat(np.arange(60), 15)]
    found = verdict("mrr", y, bad, good, groups=groups, periods=groups // 300)
    assert found.candidate == pytest.approx(float(mrr(torch.tensor(good), torch.tensor(y), torch.tensor(groups))))
    assert found.gain.low < found.gain.mean < found.gain.high


def test_checks():
    y, good, _ = labels(200)
    broken = good.copy()
    broken[3] = np.nan
    assert verdict("auc", y, good, broken).reasons == ["some of its predictions are not finite"]
    said = verdict("auc", y, good, broken).to_dict()
    assert (said["candidate"], said["gain"], said["by_period"]) == (None, [None] * 3, [])
    alike = verdict("auc", 0 * y, good, good)
    assert alike.reasons == ["the metric is undefined on the newest rows, as where all are of one class"]
    assert alike.said_gain() == "not to be compared"
    one = verdict("auc", y, good, good, periods=y).to_dict()  # of one class the AUC is none
    assert [p["gain"] for p in one["by_period"]] == [None, None]
    json.dumps([said, one], allow_nan=False)
    assert verdict("auc", y, good, np.ones(200)).reasons == ["its predictions are all alike"]
    assert verdict("auc", y[:30], good[:30], good[:30]).reasons == ["there are not at least 50 rows"]
    worse = verdict("auc", y, good, -good)
    assert f"worse by {-worse.gain.mean:.5f} [{-worse.gain.high:.5f}, {-worse.gain.low:.5f}]" in str(worse)
    assert "better by" in str(verdict("auc", y, -good, good))
    with pytest.raises(DataError, match="200 labels, 200 and 199 predictions"):
        verdict("auc", y, good, good[:199])
    with pytest.raises(DataError, match="margin"):
        verdict("auc", y, good, good, margin=-1)
