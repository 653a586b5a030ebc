"""Mistakes in a recipe are a line before its data are read."""

import importlib
import re
from pathlib import Path

import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fastrec.competition import Competition, NextItemCompetition, StreamedCompetition, run_competition
from fastrec.competition.recipe import check_recipe
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import XGBModel
from fastrec.features import CountEncode, FeatureSet, feature
from fastrec.validate import Folds

ROOT = Path(__file__).resolve().parents[2] / "competitions"


class Clicks(Competition):
    name = "clicks"
    target = "clicked"
    model = "a helper that is no mistake: there is `models`, too"

    def models(self, *, bs):
        return [XGBModel("xgb")]


def models(self):
    return []


def made(kind: type[Competition], **attributes: object) -> Competition:
    recipe = type("Own", (kind,), {"name": "own", "__module__": __name__, **attributes})
    recipe.__abstractmethods__ = frozenset()
    return recipe()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (made(Clicks, metrik="auc"), r"Own has the attribute metrik.* Write metric"),
        (made(NextItemCompetition, exclude_sen=True), "attribute exclude_sen.* Write exclude_seen"),
        (made(StreamedCompetition, bufer_rows=10), "attribute bufer_rows.* Write buffer_rows"),
        (
            made(Clicks, features=lambda _: FeatureSet([CountEncode("city", lgo=True)])),
            r"test_recipe_check.py'.*line \d+: .*CountEncode.*unexpected keyword argument 'lgo'",
        ),
        (made(Clicks, models=models), r"check.py': own: models\(\) got .*'bs'. Write def .*models\(self, \*, bs\)"),
        (made(NextItemCompetition, models=models), r"own: .*models\(\) got .*'bs'. Write def .*\(self, \*, bs\)"),
        (
            made(Clicks, models=lambda _, bs: [XGBModel("xgb", "hist", 3)]),
            r"test_recipe_check.py'.*line \d+: XGBModel.*positional argument",
        ),
        (made(Clicks, also=["accurcy"]), "there is no metric 'accurcy'"),
        (made(Clicks, drop="city"), r"own: drop is 'city'. Give a list of names"),
        (made(Clicks, n_folds="3"), r"own: n_folds is '3'. Give a whole number"),
        (made(Clicks, submission=("id", "clicked")), r"own: submission is \('id', .*. Give SubmissionForm\("),
        (made(Clicks, stack="greedy"), r"own: stack is 'greedy', and no method. Write def stack\(self\)"),
        (made(Clicks, stack=lambda _: "greedy"), r"stack\(\) returns a str. Return Stack"),
        (made(Clicks, features=lambda _: FeatureSet([feature(inputs="c", outputs="n")(len)])), "found again.* top of"),
        (made(Clicks, features=lambda _: [CountEncode("city")]), r"features\(\) returns a list. Return FeatureSet"),
        (made(Clicks, models=lambda _, bs: None), r"models\(\) returns nothing. Return a list of models"),
        (made(Clicks, models=lambda _, bs: XGBModel("xgb")), r"models\(\) returns a XGBModel. Return a list of models"),
        (made(Clicks, models=lambda _, bs: [XGBModel]), r"returns the class XGBModel. Write XGBModel\("),
        (made(Clicks, models=lambda _, bs: [LogisticRegression()]), "LogisticRegression, which is no.* Write SKModel"),
    ],
)
def test_a_mistake_is_named_before_the_data_are_read(recipe, message, tmp_path):
    with pytest.raises(DataError, match=message):
        run_competition(recipe, tmp_path / "no data", tmp_path / "run")


@pytest.mark.parametrize(("recipe", "remedy"), [(Clicks, r"Write Clicks\(\)"), (7, "Give a Competition")])
def test_what_is_no_recipe_is_refused(recipe, remedy, tmp_path):
    with pytest.raises(DataError, match=remedy):
        run_competition(recipe, tmp_path, tmp_path / "run")


@pytest.mark.parametrize("folds", [3, Folds([0, 1, 2] * 3)])
def test_folds_of_another_type_or_length_are_refused(folds, tmp_path):
    pd.DataFrame({"city": [1, 2] * 5, "clicked": [0, 1] * 5}).to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(DataError, match=r"own: folds\(\) returns .*(type int|of 9 rows).*, and 10 rows"):
        run_competition(made(Clicks, task="binary", folds=lambda *_: folds), tmp_path, tmp_path / "run")


def test_a_folder_is_a_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "no data"))):
        run_competition(ROOT / "census", tmp_path / "no data", tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no recipe here"):
        run_competition(str(tmp_path / "no recipe here"), tmp_path, tmp_path / "run")


def test_helpers_and_data_that_are_not_read_yet_are_no_mistake():
    recipe = Clicks()
    recipe.n_fold = 3  # attributes of the object are looked at, too
    with pytest.raises(DataError, match="Write n_folds"):
        check_recipe(recipe, bs=None)
    check_recipe(Clicks(), bs=None)
    check_recipe(made(Clicks, features=lambda self: self.read_before), bs=None)  # only known when the data were read
    own = {"models": lambda self, bs: [XGBModel("xgb", class_weight=self.class_weight)]}
    check_recipe(made(Clicks, class_weight="balanced", **own), bs=None)
    with pytest.warns(DataWarning, match=r"own: its models\(\) does not use class_weight"):
        check_recipe(made(Clicks, class_weight="balanced"), bs=None)


def test_a_line_that_is_no_python_is_named(tmp_path):
    (tmp_path / "competition.py").write_text("import fastrec\nclass Own(\n")
    with pytest.raises(DataError, match=r"competition.py': line 2 is no Python \('\(' was never closed\). Correct it"):
        load_competition(tmp_path)


@pytest.mark.parametrize("file", sorted(p.parent.name for p in ROOT.glob("*/competition.py")))
def test_the_recipes_here_have_no_mistakes(file):
    importlib.invalidate_caches()
    check_recipe(load_competition(ROOT / file), bs=None)
