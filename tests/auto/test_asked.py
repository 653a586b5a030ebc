"""What a person asks for: groups, times, weights, a class, ids; whether rows are candidates; a fit kept in a folder."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import fastrec
from fastrec._core import limits
from fastrec._core.memory import bytes_of, held, memory_limit
from fastrec._core.progress import Stages
from fastrec.auto import new_competition
from fastrec.auto.columns import read_files
from fastrec.auto.problem import Asked
from fastrec.auto.understand import understand
from fastrec.cli import app, load_competition
from fastrec.competition.budget import Budget
from fastrec.competition.run import run_competition
from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError
from fastrec.table import Table
from tests import fresh

N = 600
RNG = np.random.default_rng(5)


def visits(seed: int = 0, **more: object) -> pd.DataFrame:
    """Visits of patients: several of one patient are readmissions, or none is."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(N // 4), 4)
    sick = rng.normal(size=N // 4)[patient]
    made = {
        "patient": [f"p{i:03d}" for i in patient],
        "age": rng.integers(20, 90, N),
        "pulse": sick + rng.normal(size=N),
        "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.permutation(N), "D"),
        "stays": rng.integers(0, 4, N),
        "again": np.where(sick + rng.normal(size=N) > 0.5, "yes", "no"),
    }
    return pd.DataFrame(made | more).sample(frac=1, random_state=seed, ignore_index=True)


ROWS = visits()


def folder(where: Path, train: pd.DataFrame, test: pd.DataFrame | None = None) -> Path:
    where = where / "files"
    where.mkdir(parents=True)
    train.to_parquet(where / "train.parquet", index=False)
    if test is not None:
        test.to_parquet(where / "test.parquet", index=False)
    return where


def known(where: Path, train: pd.DataFrame, test: pd.DataFrame | None = None, **asked: object):
    return understand(read_files(folder(where, train, test)), Asked(**({"target": "again"} | asked)))


def why(problem, what: str):
    (one,) = [d for d in problem.decisions if d.what == what]
    return one


def folds_of(where: Path, train: pd.DataFrame, test: pd.DataFrame | None = None, **asked: object):
    """The folds that the written recipe cuts, beside its training rows."""
    data = folder(where, train, test)
    made = new_competition(where / "mine", data, seconds=0, **({"target": "again"} | asked))
    recipe = load_competition(made.folder)
    found = recipe.load(data, rows=None, device=torch.device("cpu"))
    target = recipe.find_target(found.train)
    return recipe, found.train.to_arrow().to_pandas(), list(recipe.folds(found, target))


# Whether rows of a group are candidates


def of_groups(rows_each: int, groups: int = 150, name: str = "patient", **more) -> pd.DataFrame:
    made = {name: np.repeat(np.arange(groups), rows_each), "x": RNG.normal(size=groups * rows_each)}
    return pd.DataFrame(made | more)


def one_of(rows_each: int, groups: int = 150, share: float = 1.0) -> np.ndarray:
    """A label of one positive in that share of the groups, at a place at random."""
    chosen = RNG.integers(0, rows_each, groups)[:, None] == np.arange(rows_each)
    return (chosen & (RNG.random(groups) < share)[:, None]).ravel().astype(int)


FLAGS, AT_MOST_ONE = RNG.integers(0, 2, 600), one_of(4, share=0.6)
PRODUCTS = np.concatenate([RNG.choice(30, 4, replace=False) for _ in range(150)])
CASES = {
    "one of each group": (of_groups(4, again=one_of(4)), "patient", "ranking", True),
    "one of each, in text": (of_groups(4, again=np.where(one_of(4) > 0, "y", "n")), "patient", "error", True),
    "one at most": (of_groups(4, again=AT_MOST_ONE), "patient", "ranking", False),
    "one at most, of sessions": (of_groups(4, name="session", again=AT_MOST_ONE), "session", "ranking", True),
    "so few that chance gives no pair": (of_groups(4, again=np.arange(600) % 101 == 0), "patient", "binary", True),
    "several": (of_groups(4, again=FLAGS), "patient", "binary", True),
    "several of a query": (of_groups(4, name="qid", again=FLAGS), "qid", "ranking", False),
    "grades of a query": (of_groups(4, name="qid", again=RNG.integers(0, 5, 600)), "qid", "ranking", False),
    "grades of patients": (of_groups(4, again=RNG.integers(0, 5, 600)), "patient", "multiclass", False),
    "several of a user": (of_groups(4, name="user", again=FLAGS), "user", "binary", True),
    "several products of a user": (
        of_groups(4, name="user", product_id=PRODUCTS, again=FLAGS), "user", "ranking", False,
    ),
    "one for a whole group": (of_groups(4, name="session", again=FLAGS[:150].repeat(4)), "session", "binary", True),
    "amounts": (of_groups(4, name="session", again=RNG.normal(size=600)), "session", "regression", True),
    "texts": (of_groups(4, name="session", again=RNG.choice(list("abc"), 600)), "session", "multiclass", True),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_rows_of_a_group_are_candidates_or_samples(tmp_path, case):
    rows, group, task, sure = CASES[case]
    if task == "error":
        with pytest.raises(DataError, match=r"Make it 1 for what was.*To predict each row by itself.*give task="):
            known(tmp_path, rows, group=group)
        return
    made = known(tmp_path, rows, group=group)
    assert (made.task, why(made, "task").sure) == (task, sure)
    assert (made.lists, made.group) == ((group, None) if task == "ranking" else (None, group))
    if task == "ranking" and not sure:
        assert "ask for task = 'binary'" in why(made, "task").why
    if task != "ranking":
        assert "ask for task = 'ranking'" in why(made, "folds").why


@pytest.mark.parametrize(
    ("asked", "task"),
    [({"task": "binary"}, "binary"), ({"positive": 0}, "binary"), ({"metric": "mrr"}, "ranking"), ({}, "ranking")],
)
def test_task_metric_and_class_say_what_the_group_is(tmp_path, asked, task):
    made = known(tmp_path, CASES["one of each group"][0], group="patient", **asked)
    assert (made.task, made.group) == (task, None if task == "ranking" else "patient")


# Folds


def test_no_group_is_on_both_sides_of_a_fold(tmp_path):
    rows = visits(3, patient=RNG.integers(0, 60, N))
    recipe, train, folds = folds_of(tmp_path, rows, group="patient", task="binary")
    assert (recipe.fold_key, recipe.time, len(folds)) == ("patient", None, 5)
    scored = np.concatenate([inside.numpy() for _, inside in folds])
    assert sorted(scored) == list(range(N))  # the oracle: sets of pandas
    for outside, inside in folds:
        assert not set(train["patient"].iloc[outside.numpy()]) & set(train["patient"].iloc[inside.numpy()])


def test_groups_too_few_for_five_folds(tmp_path):
    site = np.array(["oslo", "bergen", "bodo", "tromso", "moss", "hamar", "voss"])[np.arange(N) % 7]
    recipe, train, folds = folds_of(tmp_path / "7", visits(site=site), group="site")
    assert len(folds) == recipe.n_folds in (3, 5)
    assert all(not set(train["site"].iloc[a.numpy()]) & set(train["site"].iloc[b.numpy()]) for a, b in folds)
    with pytest.raises(DataError, match=r"train.parquet', column 'site': its 2 groups do not fill three folds. Name "):
        known(tmp_path / "2", visits(site=np.arange(N) % 2), group="site")


@pytest.mark.parametrize("form", ["dates", "texts", "numbers", "few"])
def test_each_fold_learns_from_earlier_rows_alone(tmp_path, form):
    days = {"dates": ROWS["day"], "texts": ROWS["day"].astype(str), "few": ROWS["day"].dt.month % 4}
    rows = ROWS.assign(day=days.get(form, ROWS["day"].dt.day_of_year * 1.5))
    recipe, train, folds = folds_of(tmp_path, rows, time="day")
    assert (recipe.time, recipe.fold_key, len(folds)) == ("day", None, 3 if form == "few" else 5)
    for outside, inside in folds:
        assert train["day"].iloc[outside.numpy()].max() < train["day"].iloc[inside.numpy()].min()
    assert recipe.refit is True  # the folds' models lack the last rows
    assert known(tmp_path / "no", rows, time="day", refit=False).refit is False


def test_a_test_that_looks_cut_otherwise_is_told_of(tmp_path):
    """The test has new patients: mirrored it would be folds of patients; what was asked for is done."""
    new = ROWS["patient"] > "p110"
    train, test = ROWS[~new], ROWS[new].drop(columns="again")
    assert known(tmp_path / "0", train, test).group == "patient"
    made = known(tmp_path / "1", train, test, group="patient")
    assert (made.group, why(made, "folds").sure) == ("patient", True)
    made = known(tmp_path / "2", train, test, time="day")
    assert (made.time, made.group, why(made, "folds").sure) == ("day", None, False)
    assert "though the test looks cut otherwise: 100 % of the test rows have a patient" in why(made, "folds").why
    late = ROWS["day"] > "2027-06-30"
    made = known(tmp_path / "3", ROWS[~late], ROWS[late].drop(columns="again"), time="day")
    assert made.mirror.horizon == np.timedelta64((ROWS["day"].max() - pd.Timestamp("2027-06-30")).days, "D")
    assert why(made, "folds").sure
    made = known(tmp_path / "4", ROWS[~late], ROWS[late].drop(columns="again"), group="patient")
    assert (made.time, made.group, why(made, "folds").sure) == (None, "patient", False)
    _, train, folds = folds_of(tmp_path / "5", ROWS[~late], ROWS[late].drop(columns="again"), group="patient")
    assert all(not set(train["patient"].iloc[a.numpy()]) & set(train["patient"].iloc[b.numpy()]) for a, b in folds)


# What cannot be


def holed(name: str, row: int, value: object) -> pd.DataFrame:
    values = ROWS[name].astype("object").tolist()
    values[row] = value
    return ROWS.assign(**{name: pd.Series(values) if value is None else values})


@pytest.mark.parametrize(
    ("rows", "asked", "said"),
    [
        (ROWS, {"group": "patients"}, "column 'patients': the train rows lack it. Is 'patient' meant"),
        (ROWS, {"time": "days", "task": "binary"}, "column 'days': the train rows lack it. Is 'day' meant"),
        (ROWS, {"weight": "stay"}, "column 'stay': the train rows lack it. Is 'stays' meant"),
        (ROWS, {"ids": ["patient", "nr"]}, "column 'nr': the train rows lack it"),
        (holed("patient", 7, None), {"group": "patient"}, "column 'patient', row 7: the row has no group. Drop"),
        (holed("day", 9, None), {"time": "day"}, "column 'day', row 9: the row has no time. Drop such rows, or give"),
        (ROWS.assign(day=ROWS["day"].astype(str) + " o'clock"), {"time": "day"}, "train.*column 'day': .*no date"),
        (ROWS.assign(day=np.arange(N) % 2), {"time": "day"}, "column 'day': it has 2 different times, too few"),
        (ROWS.assign(day=1), {"time": "day"}, "column 'day': it has 1 different time, too few for folds"),
        (ROWS.assign(patient="p"), {"group": "patient", "task": "binary"}, "column 'patient': there is one group only"),
        (ROWS.assign(patient=np.arange(N)), {"group": "patient"}, "column 'patient': every group has one row.*Name"),
        (ROWS, {"group": "patient", "time": "day"}, "folds go by group= or by time=, and both are given. Give group="),
        (ROWS.assign(stays=ROWS["stays"] - 1.5), {"weight": "stays"}, r"column 'stays', row \d+: the weight is -"),
        (holed("stays", 4, None), {"weight": "stays"}, r"'stays', row 4: the weight is None"),
        (holed("stays", 3, np.inf).astype({"stays": float}), {"weight": "stays"}, "row 3: the weight is inf"),
        (ROWS.assign(stays="much"), {"weight": "stays"}, "'stays', row 0: the weight is 'much'.*Give a finite number"),
        (ROWS.assign(stays=0), {"weight": "stays"}, "column 'stays': no row has a weight above 0"),
        (ROWS, {"weight": "again"}, "column 'again': the target is weight=, too. Name another column"),
        (ROWS, {"positive": "maybe"}, "column 'again': no row has the class 'maybe'. Give one of no, yes as positive="),
        (ROWS, {"target": "pulse", "positive": 1}, "positive= is of a binary task, and the task is regression. Leave"),
        (ROWS, {"target": "age", "positive": 1, "task": "multiclass"}, "the task is multiclass. .*: each of 20, 21"),
        (CASES["one of each group"][0], {"group": "patient", "task": "ranking", "positive": 1}, "task is ranking"),
        (holed("pulse", 5, np.inf), {"target": "pulse"}, "'pulse', row 5: rmse does not score inf. Drop such rows[.]"),
        (ROWS, {"target": "stays", "task": "regression", "metric": "gamma_deviance"}, "gamma_deviance does not score"),
        (holed("stays", 8, -1), {"target": "stays", "task": "regression", "metric": "poisson_deviance"},
         "column 'stays', row 8: poisson_deviance does not score -1. Give another metric, or drop"),
        (ROWS, {"target": "pulse", "metric": "quadratic_kappa"}, "column 'pulse', row 0: quadratic_kappa does not"),
        *((ROWS, {n: ROWS["stays"].to_numpy()}, f"{n}= names a column, and this is of type ndarray. Make the values")
          for n in ("weight", "group", "time")),
        (ROWS, {"item": ROWS["stays"], "group": "patient"}, "item= names a column, and this is of type Series"),
        (ROWS, {"ids": ROWS["stays"].to_numpy()}, r"ids= names a column, and this is of type int\d*"),
        (ROWS, {"target": []}, "no target is named. Name each column to predict"),
        (ROWS, {"target": ["pulse", "pulse"]}, "targets are named twice: pulse, pulse"),
        (ROWS, {"target": ["pulse", "again"]}, "column 'again': several targets are numbers, or each 0 or 1.*Fit it"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused(tmp_path, rows, asked, said):
    with pytest.raises((DataError, MissingColumnError), match=said) as error:
        known(tmp_path, rows, **asked)
    if place := re.search(r"'(\w+)', row (\d+):", said):
        assert (error.value.column, error.value.row) == (place[1], int(place[2]))


def test_metrics_are_offered_that_score_the_target(tmp_path):
    low = ROWS.assign(pulse=ROWS["pulse"] - 9)
    for i, (rows, target, there) in enumerate(
        (
            (ROWS, "age", {"quadratic_kappa", "gamma_deviance", "poisson_deviance", "rmsle"}),
            (ROWS.assign(age=ROWS["age"] - 20), "age", {"quadratic_kappa", "poisson_deviance", "rmsle"}),
            (low, "pulse", set()),
        )
    ):
        told = why(known(tmp_path / str(i), rows, target=target), "metric").why
        offered = set(told.partition("others are ")[2].split(", "))
        assert {"mae", "gini", "r2", "pinball@0.5"} <= offered
        assert {"quadratic_kappa", "gamma_deviance", "poisson_deviance", "rmsle"} & offered == there


def test_dates_in_text_are_classes_and_it_is_said(tmp_path):
    days = pd.Series(np.resize(pd.date_range("2026-02-01", periods=28).strftime("%Y-%m-%d"), N))
    with pytest.warns(DataWarning, match="column 'again': the target's texts are dates, and each of the 28 is a class"):
        assert known(tmp_path, ROWS.assign(again=days)).task == "multiclass"


def test_neither_ids_weights_nor_groups_are_learned_from(tmp_path):
    rows = ROWS.assign(number=np.random.default_rng(0).permutation(10 * N)[:N])
    assert known(tmp_path / "one", rows, ids="patient").drop == {"patient": "as was asked for"}
    made = known(tmp_path, rows, ids=["number", "patient"])
    # One names a row; the other comes again, and could be no key of a submission.
    assert (made.ids, made.drop) == (["number"], {"patient": "as was asked for"})
    assert {c.name for c in made.learned} == {"age", "pulse", "day", "stays"}
    spread = known(tmp_path / "fractions", rows.assign(place=np.arange(N) / 7), ids="place")
    assert (spread.ids, spread.drop) == ([], {"place": "as was asked for"})  # fractions have no exact text
    made = known(tmp_path / "roles", ROWS, group="patient", weight="stays")
    assert {c.name for c in made.learned} == {"age", "pulse", "day"}
    ranked = known(tmp_path / "r", CASES["one of each group"][0].assign(w=1.5), group="patient", weight="w")
    assert (ranked.task, [c.name for c in ranked.learned]) == ("ranking", ["x"])


def test_several_targets(tmp_path):
    rows = ROWS.assign(a=np.arange(N) % 2, b=np.arange(N) % 3 == 0)
    made = known(tmp_path / "1", rows, target=["a", "b"], group="patient", task="multilabel")
    assert (made.task, made.group) == ("multilabel", "patient")
    assert known(tmp_path / "2", rows, target=["pulse", "age"], time="day").task == "regression"
    # one row of each group is chosen, by one of the targets: with two of them nothing is ranked
    first = rows.assign(b=~rows.duplicated("patient"))
    made = known(tmp_path / "3", first, target=["a", "b"], group="patient")
    assert (made.task, made.group) == ("multilabel", "patient")


# The whole of it


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit with all that can be asked of a table; rows without a target have no weight."""
    rows = ROWS.assign(stays=ROWS["stays"].astype(float))
    rows.loc[:19, ["again", "stays"]] = None
    where = tmp_path_factory.mktemp("fit") / "kept"
    asked = {"group": "patient", "weight": "stays", "positive": "no", "ids": ["age"]}
    return fastrec.fit(rows, "again", **asked, minutes=0.1, folder=where, quiet=True), rows[20:]


def test_weights_count_as_rows_that_come_again(fitted):
    """The oracle: the share of the positive class among repeated rows of the other folds."""
    fit, rows = fitted
    stays, positive = rows["stays"].astype(int).to_numpy(), (rows["again"] == "no").to_numpy()
    said = pd.read_parquet(fit.run / "oof" / "constant.parquet")
    fold = pd.read_parquet(fit.run / "folds.parquet")["fold"].to_numpy()
    score = said.select_dtypes("float64").iloc[:, -1].to_numpy()
    for k in np.unique(fold):
        repeated = np.repeat(positive[fold != k], stays[fold != k])
        np.testing.assert_allclose(score[fold == k], repeated.mean())
    assert abs(positive.mean() - np.repeat(positive, stays).mean()) > 1e-3  # else it would not be seen


def test_columns_with_a_role_are_not_learned_from(fitted):
    fit, rows = fitted
    config = json.loads((fit.run / "config.json").read_text())
    assert not [n for n in config["features"] if any(word in n for word in ("stays", "patient", "age"))]
    recipe = (fit.folder / "competitions" / "mine" / "competition.py").read_text()
    assert 'weight = "stays"  # how much a row counts' in recipe
    assert 'fold_key = "patient"' in recipe
    assert 'positive = "no"' in recipe
    assert not set(fit._saved.inputs) & {"stays", "patient", "age"}
    # probabilities are of the class that was asked for
    new = rows[["pulse", "day"]]
    proba = fit.predict_proba(new)
    assert list(proba.columns) == ["yes", "no"]
    assert proba["no"][rows["again"] == "no"].mean() > proba["no"][rows["again"] == "yes"].mean() + 0.1
    np.testing.assert_array_equal(fit.predict(new), np.where(proba["no"] >= 0.5, "no", "yes"))


def test_a_fit_is_opened_in_a_fresh_process(fitted, tmp_path):
    fit, rows = fitted
    kept = fit.save(tmp_path / "a" / "kept")
    rows[["pulse", "day"]].to_parquet(tmp_path / "rows.parquet")
    script = (
        "import sys, fastrec, pandas as pd; made = fastrec.load(sys.argv[1]); print(made)\n"
        "made.predict_proba(pd.read_parquet(sys.argv[2])).to_parquet(sys.argv[3])"
    )
    said = fresh.run(script, kept, tmp_path / "rows.parquet", tmp_path / "said.parquet", cwd=tmp_path)
    assert said.startswith(f"Fit(binary, auc {fit.score:.5f} out of fold, {kept}")
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "said.parquet"), fit.predict_proba(rows[["pulse", "day"]]), check_exact=False
    )
    assert load_competition(kept / "competitions" / "mine").weight == "stays"
    with pytest.raises(DataError, match=r"there is something in the folder already\. Choose another"):
        fit.save(kept)
    with pytest.raises(MissingFileError, match=r"nothing.: there is no fit in it. Give the folder that Fit.save"):
        fastrec.load(tmp_path / "nothing")


def test_the_command_line_asks_the_same(tmp_path):
    data, mine = folder(tmp_path, ROWS.assign(number=np.arange(N)[::-1])), tmp_path / "mine"

    def new(where: Path, *words: str):
        more = ["--data", str(data), "--target", "again", *words, "--seconds", "0", "--yes"]
        done = CliRunner().invoke(app, ["new", str(where), *more])
        assert done.exit_code == 0, done.output
        return load_competition(where)

    roles = ["--group", "patient", "--weight", "stays", "--positive", "no", "--ids", "age", "--ids", "number"]
    recipe = new(mine, *roles, "--refit")
    assert (recipe.fold_key, recipe.weight, recipe.positive, recipe.refit) == ("patient", "stays", "no", True)
    assert set(recipe.ids) | set(recipe.drop) == {"age", "number"}
    recipe = new(tmp_path / "other", "--time", "day", "--no-refit")
    assert (recipe.time, recipe.refit) == ("day", False)


def test_whole_numbers_are_classes_by_their_text(tmp_path):
    rows = ROWS.assign(again=(ROWS["again"] == "yes").astype(int))
    recipe, train, _ = folds_of(tmp_path, rows, positive="0")
    assert recipe.positive == 0
    target = recipe.find_target(Table.read(train))
    np.testing.assert_array_equal(target.encode(Table.read(train)).numpy(), rows["again"] == 0)


# Memory


def test_sizes_of_memory_and_the_limit_of_a_control_group(tmp_path, monkeypatch):
    sizes = {"4GB": 4 * 2**30, "4 GiB": 4 * 2**30, "1.5m": 3 * 2**19, "1,024 bytes": 1024, 7: 7, "2.5KiB": 2560}
    assert {text: bytes_of(text) for text in sizes} == sizes
    for text in ("", "GB", "4 apples", -1, 0, "nan", "1.2.3GB", "4,5GB", "1,0240"):
        with pytest.raises(DataError, match=r"is no size of memory\. Give bytes, or text such as '4GB'"):
            bytes_of(text)
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, limit in (("max\n", host), ("123456\n", 123_456), (f"{2**63 - 4096}\n", host)):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(limits, "CGROUP_FILES", (str(tmp_path / "absent"), str(tmp_path / "memory.max")))
        assert memory_limit() == limit


def test_models_that_would_not_fit_are_left_out_by_name(fitted, tmp_path):
    fit, _ = fitted
    kept = fit.save(tmp_path / "kept")
    recipe = load_competition(kept / "competitions" / "mine")
    # A net takes 250 MiB beside its rows, trees of few rows do not.
    budget = Budget(3, memory=held() + 240 * 2**20)
    run_competition(recipe, kept / "data", kept / "run", minutes=budget, stages=Stages(quiet=True))
    board = fastrec.load(kept).leaderboard()
    left_out = board.dropna(subset="left_out").set_index("model")
    assert "net" in left_out.index
    assert "net: it would take about 2" in left_out.loc["net", "left_out"]
    assert board["model"].iloc[-len(left_out) :].tolist() == left_out.index.tolist()
    assert {"stack", "lgbm", "xgb"} <= set(board["model"]) - set(left_out.index)
    budget = Budget(3, memory=bytes_of("1MB"))
    with pytest.raises(DataError, match=r"it would take about .* of memory, and 0 bytes of 1\.0 MiB are left"):
        run_competition(recipe, kept / "data", tmp_path / "none", minutes=budget, stages=Stages(quiet=True))
