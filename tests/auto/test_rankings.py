"""A ranking without code: groups and items are found, what cannot be ranked is refused, the run predicts groups."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fastrec
from fastrec.auto import Fit, new_competition
from fastrec.auto.columns import read_files
from fastrec.auto.problem import Problem
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.cli import load_competition
from fastrec.competition import Competition, SavedRun, check_submission, compare_runs, run_competition, score_submission
from fastrec.competition.forms.lists import form_of_run
from fastrec.competition.predict import predict_run
from fastrec.errors import DataError, DataWarning, MissingColumnError
from fastrec.estimators import XGBRanker
from fastrec.features import CumTarget, FeatureSet
from fastrec.metrics import mrr
from fastrec.monitor.retrain import _joined
from fastrec.validate import Folds
from tests.files import write_csv

C = 5  # candidates of a group


def shop(groups: int, seed: int = 0, first: int = 0) -> pd.DataFrame:
    """Sessions of users, at one moment and on one device; of five products the cheapest is mostly clicked."""
    rng = np.random.default_rng(seed)
    session = np.repeat(np.arange(groups), C)
    item = np.concatenate([rng.choice(40, C, replace=False) for _ in range(groups)])
    price = item % 10 + rng.normal(size=len(item))
    best = (rng.gumbel(size=len(item)) - price).reshape(groups, C).argmax(1)
    return pd.DataFrame(
        {
            "session_id": [f"s{first + i:05d}" for i in session],
            "user_id": rng.integers(0, 60, groups)[session],
            "device": rng.choice(["phone", "tablet", "desk"], groups)[session],
            "at": (pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 9_000, groups), "min"))[session],
            "item_id": [f"i{i}" for i in item],
            "price": price,
            "clicked": (best[:, None] == np.arange(C)).ravel().astype(int),
        }
    )


TRAIN, TEST = shop(120), shop(40, seed=1, first=900)


def folder(tmp_path: Path, train: pd.DataFrame = TRAIN, test: pd.DataFrame | None = None) -> Path:
    return write_csv(tmp_path / "files", train=train, test=test)


def found(tmp_path: Path, train: pd.DataFrame = TRAIN, test: pd.DataFrame | None = None, **asked: object) -> Problem:
    return understand(read_files(folder(tmp_path, train, test)), **{"target": "clicked", **asked})


def decision(problem: Problem, what: str):
    (one,) = [d for d in problem.decisions if d.what == what]
    return one


# What is found


def test_groups_items_and_context_are_found(tmp_path):
    made = found(tmp_path, TRAIN.sample(frac=1, random_state=0), target=None, task="ranking")
    assert (made.task, made.target, made.metric) == ("ranking", ["clicked"], "mrr")
    assert (made.lists, made.item, made.as_shown) == ("session_id", "item_id", True)
    # the oracle: columns with one value in each session, by pandas
    counts = TRAIN.groupby("session_id").nunique()
    assert set(made.shared) == {n for n in counts if (counts[n] == 1).all()} == {"user_id", "device", "at"}
    assert {c.name for c in made.learned} == {"user_id", "device", "at", "price"}
    rows = made.train["session_id"].to_pandas()
    assert (rows != rows.shift()).sum() == 120
    assert "stand apart" in decision(made, "group").why

    # the rows of a group keep their order
    mixed = TRAIN.sample(frac=1, random_state=1).reset_index(drop=True)
    made = found(tmp_path, mixed, group="session_id").train.to_pandas()
    for name, rows in mixed.groupby("session_id"):
        assert made.loc[made["session_id"] == name, "item_id"].tolist() == rows["item_id"].tolist()


def test_a_task_a_metric_or_one_click_in_each_group_makes_a_ranking(tmp_path):
    rng = np.random.default_rng(0)
    flags = TRAIN.assign(clicked=rng.integers(0, 2, len(TRAIN)))
    made = found(tmp_path, target=None)
    assert (made.task, made.lists, decision(made, "task").sure) == ("ranking", "session_id", False)
    assert "one row of each session_id is chosen" in decision(made, "task").why
    assert found(tmp_path, task="binary").task == found(tmp_path, metric="logloss").task == "binary"
    made = found(tmp_path, TRAIN.assign(clicked=rng.permutation(TRAIN["clicked"])))
    assert (made.task, decision(made, "task").sure) == ("binary", True)
    made = found(tmp_path, flags, metric="map@3")
    assert (made.task, made.lists, made.metric) == ("ranking", "session_id", "map@3")
    made = found(tmp_path, TRAIN.assign(**{n: TRAIN[n].str[1:].astype(int) for n in ("session_id", "item_id")}))
    assert (made.task, made.lists, made.item) == ("ranking", "session_id", "item_id")
    labels = {"clicked == 1": "mrr", "1.0 * clicked": "mrr", "4 * clicked + (price < 1)": "ndcg@10"}
    for label, metric in labels.items():  # flags, numbers, grades
        made = found(tmp_path, TRAIN.assign(clicked=TRAIN.eval(label)), task="ranking", group="session_id")
        assert (made.lists, made.metric) == ("session_id", metric)


def test_where_two_columns_may_be_the_group_a_person_is_asked_and_fit_refuses(tmp_path):
    rows = TRAIN.assign(clicked=np.random.default_rng(0).integers(0, 2, len(TRAIN)))
    made = found(tmp_path, rows, task="ranking")
    assert (made.lists, decision(made, "group").sure) == ("session_id", False)
    assert "it might be user_id" in decision(made, "group").why
    rows, asked = rows.drop_duplicates(["user_id", "item_id"]), {"target": "clicked", "task": "ranking", "seconds": 0}

    def ask(question: str, answer: str) -> str:
        return "user_id" if "one group" in question else answer

    assert new_competition(tmp_path / "w", folder(tmp_path, rows), ask=ask, **asked).problem.lists == "user_id"
    with pytest.raises(DataError, match=r"It may be session_id: .*user_id.*Write group='session_id'"):
        fastrec.fit(rows, "clicked", task="ranking", minutes=0.1, quiet=True)


# Lists that teach, and are not scored


def test_lists_that_are_not_counted_stay_with_their_user_and_out_of_the_score(tmp_path):
    users = [f"u{g}" for g in np.arange(len(TRAIN)) // C % 40]
    real = (np.arange(len(TRAIN)) < 40 * C).astype(float)
    rows = TRAIN.assign(user_id=users, real=real, weight=np.where(real, 1, 0.5))
    asked = {"target": "clicked", "group": "session_id", "weight": "weight", "counted": "real"}
    made = new_competition(tmp_path / "w", folder(tmp_path, rows), seconds=0, **asked)
    assert (made.problem.group, decision(made.problem, "folds").value) == ("user_id", "group")
    assert not {"real", "weight", "user_id"} & {c.name for c in made.problem.learned}
    assert QuickTrial(made.problem, [], 60.0).scored.sum() == 40 * C
    recipe = load_competition(made.folder)
    assert (recipe.counted, recipe.weight, recipe.fold_key) == ("real", "weight", "user_id")
    recipe.models = lambda *, bs: [XGBRanker("xgb", rounds=3, nthread=1)]
    run_competition(recipe, folder(tmp_path, rows), tmp_path / "run", device="cpu")
    oof = pd.read_parquet(tmp_path / "run" / "oof" / "stack.parquet")
    both = oof.merge(rows.drop(columns="clicked"), on=["session_id", "item_id"])
    assert (both["counted"] == (both["real"] == 1)).all()
    assert (both.groupby("user_id")["fold"].nunique() == 1).all()
    some = both[both["counted"]]
    place = some.groupby("session_id")["score"].rank(ascending=False, method="first")
    told = (1 / place[some["clicked"] == 1]).mean()
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["oof"]["stack"] == pytest.approx(told)


def made_lists(**more: object) -> pd.DataFrame:
    real = np.arange(len(TRAIN)) < 40 * C
    return TRAIN.assign(user_id=[f"u{g}" for g in np.arange(len(TRAIN)) // C % 40], real=real, **more)


@pytest.mark.parametrize("asked", [{}, {"ids": ["user_id"]}])
def test_folds_keep_the_lists_of_a_user_who_is_not_learned_from(tmp_path, asked):
    events = np.random.default_rng(0).integers(3, 9, 40)[np.arange(len(TRAIN)) // C % 40]
    rows = made_lists(user_events=events + 0.0)  # a count that lists of several users share
    assert found(tmp_path, rows, group="session_id", counted="real", **asked).group == "user_id"
    with pytest.raises(DataError, match="no column says whose the lists are that do not count"):
        found(tmp_path, rows.drop(columns="user_id"), group="session_id", counted="real")


def test_a_trial_draws_as_many_lists_that_count_as_others(tmp_path):
    problem = found(tmp_path, made_lists(), group="session_id", counted="real")
    trial = QuickTrial(problem, [], 60.0, rows=20 * C)
    assert (len(trial.table), int(trial.scored.sum())) == (20 * C, 10 * C)


def test_a_list_counts_as_a_whole(tmp_path):
    rows = made_lists()
    odd = rows.assign(real=rows["real"] & (rows.index != 7))
    with pytest.raises(DataError, match="column 'real', row 7: other rows of its list have another value"):
        found(tmp_path, odd, group="session_id", counted="real")
    none = rows.assign(clicked=rows["clicked"].where(~rows["real"], 0))
    with pytest.raises(DataError, match="column 'real': no list that counts has a positive"):
        found(tmp_path, none, group="session_id", counted="real")


@pytest.mark.parametrize("values", [0, 2, "yes", None])
def test_a_column_that_does_not_say_which_lists_count_is_refused(tmp_path, values):
    with pytest.raises(DataError, match="column 'real': it does not say by 1 and 0 which lists are scored"):
        found(tmp_path, TRAIN.assign(real=values), group="session_id", counted="real")
    with pytest.raises(DataError, match="counted= is of a ranking, and the task is binary"):
        found(tmp_path, TRAIN.assign(real=1), task="binary", counted="real")


# Folds


@pytest.mark.parametrize("case", ["new users", "later", "times differ in a group"])
def test_folds_leave_groups_whole_and_are_those_of_the_test(tmp_path, case):
    rows, test, asked = TRAIN, TEST.drop(columns="clicked"), {}
    if case == "new users":
        test = test.assign(user_id=TEST["user_id"] + 100, at=TRAIN["at"][:200])
    elif case == "later":
        test = test.assign(at=TEST["at"] + pd.Timedelta("7D"))
    else:
        minutes = np.random.default_rng(0).integers(0, 3_000, len(TRAIN))
        rows, test = TRAIN.assign(at=TRAIN["at"] + pd.to_timedelta(minutes, "min")), None
        asked = {"group": "session_id", "time": "at"}
    data = folder(tmp_path, rows, test)
    made = new_competition(tmp_path / "w", data, target="clicked", seconds=0, **asked)
    recipe = load_competition(made.folder)
    found = recipe.load(data, rows=None, device=torch.device("cpu"))
    read, folds = found.train, recipe.folds(found, None)
    folds.check_groups(read["user_id" if case == "new users" else "session_id"].group_numbers())
    assert recipe.time == (None if case == "new users" else "at")
    if case == "new users":
        assert recipe.fold_key == made.problem.group == "user_id"
        assert "user_id" not in {*made.problem.shared, *(c.name for c in made.problem.learned)}
    elif case == "later":
        at = read["at"].number().numpy()
        assert all(at[a.numpy()].max() < at[b.numpy()].min() for a, b in folds)
    else:
        assert "a group's time is that of its first row" in decision(made.problem, "folds").why


class Loyal(Competition):
    """Users whose last session is to be predicted, and what they clicked before."""

    name, task, metric, list_column, n_folds = "loyal", "ranking", "mrr", "session_id", 3
    time, last_of = "at", "user_id"

    def features(self):
        return FeatureSet([CumTarget("user_id", "clicked", order="at", of="price", smooth=1)], key="session_id")

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=10, max_depth=3)]


def test_a_run_scores_the_last_group_of_each_user(tmp_path):
    """The groups that are scored, and what is known of each of them: all earlier clicks of its user, by a loop."""
    last = TRAIN["at"] == TRAIN.groupby("user_id")["at"].transform("max")
    data = folder(tmp_path, TRAIN[~last], TRAIN[last].drop(columns="clicked"))
    made = new_competition(tmp_path / "w", data, target="clicked", group="session_id", seconds=0)
    assert (made.problem.last_of, made.problem.time) == ("user_id", "at")
    assert load_competition(made.folder).last_of == "user_id"
    run = run_competition(Loyal(), data, tmp_path / "run")
    rows = TRAIN[~last].reset_index(drop=True)
    folds = Folds.load(run / "folds.parquet")
    scored = rows["at"] == rows.groupby("user_id")["at"].transform("max")
    np.testing.assert_array_equal(folds.scored.numpy(), scored)
    saved = SavedRun(run)
    new = TRAIN[last].drop(columns="clicked").reset_index(drop=True)
    told = saved.rows(saved.read(new)).table["cumte_user_id__price_by_clicked"].number().cpu().numpy()
    paid, usual = rows[rows["clicked"] == 1], rows.loc[rows["clicked"] == 1, "price"].mean()
    own = paid.groupby("user_id")["price"].agg(["sum", "size"]).reindex(new["user_id"]).fillna(0)
    np.testing.assert_allclose(told, (own["sum"] + usual) / (own["size"] + 1))


# What is refused, with its place and a remedy


@pytest.mark.parametrize(
    ("change", "asked", "said"),
    [
        (lambda f: f.assign(clicked=0), {}, "column 'clicked'.*no row is a positive.*0 in every row. Give 1"),
        (lambda f: f.assign(clicked=1), {}, "column 'clicked'.*every row is a positive.*with label 0"),
        (
            lambda f: f.assign(session_id=[f"s{i}" for i in range(len(f))]),
            {},
            "column 'session_id'.*every group has one row.*Name the column",
        ),
        (
            lambda f: f.assign(item_id=f["item_id"].where(f.index != 1, f["item_id"][0])),
            {},
            "column 'item_id', row 1: the item 'i.*stands twice in the group 's00000'",
        ),
        (lambda f: f.assign(clicked=f["clicked"] - 1), {}, "column 'clicked', row 0: the label is -1"),
        (lambda f: f.assign(clicked=f["clicked"] / 2), {}, "the label is 0.5.*grades"),
        (lambda f: f.assign(clicked=f["clicked"].map({0: "no", 1: "yes"})), {}, "is of type string.*Make it 1"),
        (lambda f: f.assign(clicked=f["clicked"].where(f.index != 7)), {}, "row 7: the label is missing.*Give 0"),
        (
            lambda f: f.assign(session_id=f["session_id"].where(f.index != 9)),
            {},
            "column 'session_id', row 9: the row has no group",
        ),
        (lambda f: f, {"group": "sesion_id"}, "column 'sesion_id': the train rows lack it. Is 'session_id' meant"),
        (lambda f: f, {"item": "item"}, "column 'item': the train rows lack it. Is 'item_id' meant"),
        (lambda f: f, {"time": "when"}, "column 'when': the train rows lack it. There are"),
        (lambda f: f, {"metric": "logloss"}, "logloss is no metric of a ranking"),
        (lambda f: f, {"task": "binary", "item": "item_id"}, "item= is of a ranking, and the task is binary"),
        (lambda f: f, {"target": ["clicked", "price"], "task": "ranking"}, "a ranking has one label"),
    ],
)
def test_what_cannot_be_ranked_is_refused(tmp_path, change, asked, said):
    with pytest.raises((DataError, MissingColumnError), match=said):
        found(tmp_path, change(TRAIN), **{"group": "session_id", **asked})


@pytest.mark.parametrize(
    ("columns", "asked", "said"),
    [
        (["session_id"], {"group": "session_id"}, "session_id (the group)"),
        (["session_id", "item_id"], {"group": "session_id"}, "session_id (the group), item_id (the item)"),
        (
            ["session_id", "row_id", "one", "price"],
            {"group": "session_id", "ids": ["price"]},
            "session_id (the group), row_id (the item), one (one value in all rows), price (as was asked for)",
        ),
        (
            ["row_id", "one"],
            {"task": "binary"},
            "row_id (another whole number in every row), one (one value in all rows)",
        ),
    ],
)
def test_a_table_of_ids_alone_says_which_and_why(tmp_path, columns, asked, said):
    """Each place of a group is clicked as often as the others, and no item comes again: neither tells anything."""
    groups = len(TRAIN) // C
    rows = TRAIN.assign(clicked=np.eye(C, dtype=int)[np.arange(groups) % C].ravel(), one=1)
    rows = rows.assign(item_id=[f"i{i}" for i in range(len(rows))])
    rows = rows.assign(row_id=np.arange(len(rows)) + 700, price=rows["price"].round())
    with pytest.raises(DataError) as caught:
        new_competition(tmp_path / "w", folder(tmp_path, rows[[*columns, "clicked"]]), target="clicked", **asked)
    assert caught.value.problem == f"nothing is left to learn from: {said}"
    assert caught.value.file.endswith("train.csv")
    assert "Add columns" in caught.value.remedy
    assert ("of a group" in caught.value.remedy, "--ids" in caught.value.remedy) == ("group" in asked, "ids" in asked)
    assert not (tmp_path / "w").exists()


def test_items_that_come_again_are_enough(tmp_path):
    """Of 40 items the cheap ones are clicked: what was chosen before tells them, and no column beside."""
    data = folder(tmp_path, TRAIN[["session_id", "item_id", "clicked"]])
    made = new_competition(tmp_path / "w", data, target="clicked", group="session_id", seconds=20)
    assert any("item_id" in repr(f) for f in made.chosen.features)


def tips(rows=200, **more):
    """A plain table: nothing that rows share but few values of a number."""
    rng = np.random.default_rng(0)
    made = {"note": [f"q{i}" for i in range(rows)], "minutes": rng.integers(0, 60, rows), "price": rng.random(rows)}
    return pd.DataFrame({**made, "tip": rng.integers(0, 2, rows), **more})


ONE = np.arange(200) == 7
FLAGS = np.random.default_rng(0).integers(0, 2, len(TRAIN))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (tips(tip=0), r"train.csv', column 'tip': no row is a positive: the label is 0 in every row"),
        (tips().rename(columns={"note": "search"}), r"'search': there is one row for each value.*Name .*--group\)\.$"),
        (tips(), r"--group\): minutes\.$"),
        (tips(minutes=0.5), r"train.csv': no column of more than 20 values has several rows .*leave task= "),
        (tips(tip=ONE, minutes=np.where(ONE, 99, np.arange(200) % 30)), "no column of more than 20 values has several"),
        (
            TRAIN.set_axis(["a", "b", *TRAIN.columns[2:-1], "tip"], axis=1).assign(tip=FLAGS),
            r"not plain.*--group\): a, b",
        ),
    ],
)
def test_rows_without_groups_say_what_is_not_there(tmp_path, rows, said):
    with pytest.raises(DataError, match=said):
        found(tmp_path, rows, target="tip", task="ranking")


@pytest.mark.parametrize(
    ("shown", "clicked"), [(["a", "b"], ["a"]), (["a", "b"], "b"), ("a|b", "a"), ("a, b, c", "b, c"), ("17 8 9", "8")]
)
def test_candidates_in_one_row_are_refused_and_how_to_part_them_is_said(shown, clicked):
    rows = pd.DataFrame({"session_id": range(30), "shown": [shown] * 30, "clicked": [clicked] * 30})
    with pytest.raises(DataError, match=r"no number. Give a row for each of shown .in pandas df.explode.'shown'"):
        fastrec.fit(rows, "clicked", group="session_id", minutes=0.1, quiet=True)


def test_groups_without_a_positive_are_counted_and_those_of_the_test_have_a_column(tmp_path):
    rows = TRAIN.assign(clicked=TRAIN["clicked"].where(TRAIN["session_id"] > "s00009", 0))
    assert "10 groups have no positive" in decision(found(tmp_path, rows, group="session_id"), "group").why
    assert "give time='at' (--time at)" in decision(found(tmp_path, task="ranking"), "folds").why
    with pytest.raises(MissingColumnError, match=r"test.csv', column 'session_id': the test rows lack it"):
        found(tmp_path, test=TEST.drop(columns=["session_id", "clicked"]), task="ranking")


# The order of the rows


def positive_first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["session_id", "clicked"], ascending=[True, False], ignore_index=True)


@pytest.mark.parametrize("place", [0, -1])
def test_a_positive_in_one_place_is_told_of_and_shuffled(tmp_path, place):
    rows = positive_first(TRAIN)
    rows = rows if place == 0 else rows[::-1].reset_index(drop=True)
    data = folder(tmp_path, rows)
    made = new_competition(tmp_path / "w", data, seconds=0)
    assert not made.problem.as_shown
    assert f"the {('first', 'last')[place]} row of its group" in decision(made.problem, "as_shown").why
    assert "as_shown = False" in (made.folder / "competition.py").read_text()
    read = load_competition(made.folder).load(data, rows=None, device=torch.device("cpu")).train
    groups, label = read["session_id"].group_numbers(), read["clicked"].number()
    assert (groups.diff() >= 0).all()
    key = ["session_id", "item_id"]
    same = pd.DataFrame({n: read[n].to_arrow().to_pandas() for n in (*key, "clicked")}).sort_values(key)
    pd.testing.assert_frame_equal(same.reset_index(drop=True), rows[same.columns].sort_values(key, ignore_index=True))
    # Equal scores in the order of the rows are worth what chance gives: the mean of 1, 1/2, … 1/5.
    assert mrr(torch.zeros(len(label)), label, groups, ties="ordinal") == pytest.approx(0.457, abs=0.1)
    # Lists with the best often first stay as shown.
    assert found(tmp_path / "shown", pd.concat([positive_first(TRAIN[: 60 * C]), TRAIN[60 * C :]])).as_shown


# The whole


def quick(recipe):
    """The recipe with a model that is quickly trained."""
    recipe.models = lambda *, bs: [XGBRanker("xgb", rounds=30, max_depth=3)]
    recipe.n_folds = 3
    return recipe


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Fit:
    """A folder as ``fit`` leaves it, with a quick model."""
    where = tmp_path_factory.mktemp("fit")
    data = folder(where, TRAIN, TEST.drop(columns="clicked"))
    TEST[["session_id", "item_id", "clicked"]].to_csv(data / "truth.csv", index=False)
    made = new_competition(where / "competitions" / "mine", data, task="ranking", seconds=0)
    run_competition(quick(load_competition(made.folder)), data, where / "run")
    return Fit(where)


def test_the_recipe_and_its_pages_say_what_was_found(fitted):
    mine = fitted.folder / "competitions" / "mine"
    recipe = load_competition(mine)
    assert (recipe.task, recipe.metric) == ("ranking", "mrr")
    assert (recipe.list_column, recipe.item, recipe.label) == ("session_id", "item_id", "clicked")
    assert "ndcg@10" in recipe.also
    text = (mine / "competition.py").read_text()
    assert "120 groups of 5 rows on average, one positive in each" in text
    assert "# one for a whole group: user_id, device, at" in text
    assert max(map(len, text.splitlines())) <= 200
    assert "which rows of each `session_id` have `clicked`" in (mine / "README.md").read_text()
    cells = json.loads((mine / "notebook.ipynb").read_text())["cells"]
    assert any("sort_values(['session_id', \"score\"]" in "".join(c["source"]) for c in cells)
    assert set(fitted.leaderboard()["model"]) == {"xgb", "stack"}
    assert fitted.leaderboard().columns[1] == "mrr"
    assert fitted.report().is_file()


def test_the_score_is_that_of_the_test(fitted):
    """The score out of fold is found again on groups that nothing has seen; both by a plain loop."""
    made = pd.read_csv(fitted.run / "submission.csv").merge(TEST, on=["session_id", "item_id"])
    ranks = []
    for _, rows in made.groupby("session_id"):
        order = rows.sort_values("score", ascending=False, kind="stable")["clicked"].tolist()
        ranks.append(1 / (1 + order.index(1)))
    assert fitted.scores["models"]["stack"] == pytest.approx(np.mean(ranks))
    assert fitted.score > 0.6
    assert abs(fitted.score - np.mean(ranks)) < 0.1


def test_groups_are_predicted_as_scores_ranks_and_items(fitted):
    rows = TEST.drop(columns="clicked")
    own = fitted.predict(rows)
    rows = rows.assign(own=own).sample(frac=1, random_state=3).set_index("price", drop=False)
    scores = fitted.predict(rows)
    np.testing.assert_allclose(scores, rows["own"])  # predictions go with their rows
    np.testing.assert_array_equal(scores, fitted.predict(rows, form="scores"))
    told = rows.assign(score=scores)
    ranks = told.groupby("session_id")["score"].rank(method="first", ascending=False).astype(int)
    np.testing.assert_array_equal(fitted.predict(rows, form="ranks"), ranks.to_numpy())
    items = fitted.predict(rows, form="items")
    assert items.columns.tolist() == ["session_id", "item_id"]
    assert items["session_id"].tolist() == rows["session_id"].drop_duplicates().tolist()
    best = told.sort_values("score", ascending=False, kind="stable").groupby("session_id")["item_id"].agg(list)
    assert items.set_index("session_id")["item_id"].to_dict() == best.to_dict()
    none = rows[:0]
    assert len(fitted.predict(none)) == len(fitted.predict(none, form="ranks")) == 0
    assert fitted.predict(none, form="items").shape == (0, 2)


def test_what_cannot_be_predicted_or_compared_is_refused(fitted, tmp_path):
    rows = TEST.drop(columns=["session_id", "clicked"]).assign(sesion_id=TEST["session_id"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    said = r"column 'session_id': the rows to predict lack it. Is 'sesion_id' meant\? Rename it; they have "
    with pytest.raises(MissingColumnError, match=said):
        fitted.predict(rows)
    with pytest.raises(MissingColumnError, match=r"new.csv', " + said):
        predict_run(fitted.run, tmp_path / "new.csv", tmp_path / "out.csv")
    with pytest.raises(MissingColumnError, match=r"column 'device'.*One of: length, positives, place\."):
        compare_runs(fitted.run, fitted.run, by="device")
    with pytest.raises(DataError, match="a ranking has scores, which are no probabilities"):
        fitted.predict_proba(TEST)
    with pytest.raises(DataError, match=r"not predicted as 'best'\. Use one of scores, ranks, items"):
        fitted.predict(TEST, form="best")
    twice = pd.concat([TEST, TEST[7:8]]).drop(columns="clicked")
    twice.to_csv(tmp_path / "new.csv", index=False)
    which, group = TEST[["item_id", "session_id"]].iloc[7]
    said = f"column 'item_id', row {len(TEST)}: the item '{which}' stands in the list '{group}' twice. Keep one"
    with pytest.raises(DataError, match=said):
        fitted.predict(twice)
    with pytest.raises(DataError, match=f"new.csv', {said}"):
        predict_run(fitted.run, tmp_path / "new.csv", tmp_path / "out.csv")
    old, new = (fitted._saved.read(t, "train") for t in (TRAIN, pd.concat([TEST, TRAIN[3 * C : 5 * C]])))
    said = f"more.csv', column 'session_id', row {len(TEST)}: 2 lists of the new rows \\(such as s00003\\) are lists of"
    with pytest.raises(DataError, match=said):
        _joined(fitted._saved, old, new, tmp_path / "more.csv")
    assert not (tmp_path / "out.csv").exists()
    assert {c.segment for c in compare_runs(fitted.run, fitted.run, by="length")} == {"all", "length=5"}


def test_a_trial_of_few_groups_says_where_it_measured_nothing(tmp_path):
    data, said = folder(tmp_path, TRAIN[: 34 * C], TEST.drop(columns="clicked")), []
    made = new_competition(tmp_path / "competitions" / "mine", data, task="ranking", seconds=30, say=said.append)
    tried = [line for line in said if line.endswith(("kept", "left out"))]
    nothing = [line for line in tried if ": nothing could be measured (the predictions stay the same), " in line]
    assert 0 < len(nothing) < len(tried)
    assert all(line.endswith("left out") for line in nothing)
    assert "nothing could be measured" in (made.folder / "README.md").read_text()


def test_candidates_without_an_id_are_numbered(tmp_path):
    """Their place in the file names them, in the submission and where it is checked and scored."""
    bare, test = TRAIN.drop(columns="item_id"), TEST.drop(columns="item_id").sample(frac=1, random_state=2)
    data, run = folder(tmp_path, bare, test.drop(columns="clicked")), tmp_path / "run"
    made = new_competition(tmp_path / "competitions" / "mine", data, seconds=0)
    assert made.problem.item is None
    run_competition(quick(load_competition(made.folder)), data, run)
    submission = pd.read_csv(run / "submission.csv")
    assert submission.columns.tolist() == ["session_id", "row_number", "score"]
    placed = submission.set_index("row_number")["score"].sort_index()
    np.testing.assert_allclose(Fit(tmp_path).predict(test), placed.to_numpy())
    form = form_of_run(run)
    assert check_submission(run / "submission.csv", data / "test.csv", form).rows
    test.to_csv(tmp_path / "truth.csv", index=False)
    options = {"metric": "mrr", "target": None, "label": "clicked"}
    scored = score_submission(run / "submission.csv", tmp_path / "truth.csv", form, **options).value
    ranks = test.assign(score=placed.to_numpy()).groupby("session_id")["score"].rank(ascending=False, method="max")
    assert scored == pytest.approx((1 / ranks[test["clicked"] == 1]).mean())


def test_fit_ranks_frames_and_warns_of_what_nobody_asked_for():
    """The frame's rows in any order; groups without a label are those to predict."""
    rows = pd.concat([TRAIN, TEST.assign(clicked=np.nan)]).sample(frac=1, random_state=0)
    with pytest.warns(DataWarning, match="folds: whole groups of session_id at random"):
        fitted = fastrec.fit(rows, "clicked", group="session_id", metric="mrr", minutes=0.06, quiet=True)
    assert fitted.score > 0.6
    assert len(fitted.predict(TEST)) == len(pd.read_csv(fitted.run / "submission.csv")) == len(TEST)
    with pytest.warns(DataWarning) as told:
        fitted = fastrec.fit(positive_first(TRAIN), "clicked", minutes=0.06, quiet=True)
    assert fitted.scores["task"] == "ranking"
    said = " ".join(str(w.message) for w in told)
    assert "task: one row of each session_id is chosen" in said
    assert "as_shown: a positive is the first row of its group" in said
