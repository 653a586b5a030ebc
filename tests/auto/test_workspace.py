"""``fastrec new`` and ``fastrec.fit`` as a whole: what is written runs, scores honestly and keeps its form."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import fastrec
from fastrec.auto import auto_fit, new_competition
from fastrec.cli import app, load_competition
from fastrec.competition import Competition, SavedRun, run_competition
from fastrec.errors import DataError, DataWarning, FastrecError, MissingColumnError, WriteError
from fastrec.estimators import ConstantModel, XGBModel
from tests.files import write_csv

N = 900


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two categories that say something only together, a number, a time in text, tags, a constant."""
    rng = np.random.default_rng(0)
    n = 3 * N
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "a": rng.choice(list("uvwxyz"), n),
            "b": rng.choice(list("klmnop"), n),
            "x": rng.normal(size=n),
            "sold": pd.to_datetime("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "tags": ["|".join(rng.choice(["red", "big", "old"], 1 + i % 3, replace=False)) for i in range(n)],
            "one": 1,
        }
    )
    together = (frame.a.map("uvwxyz".index) + frame.b.map("klmnop".index)) % 2
    score = 2.5 * together + frame.x + rng.logistic(size=n) * 0.5
    frame["bought"] = np.where(score > score.median(), "yes", "no")
    frame["sold"] = frame.sold.dt.strftime("%d/%m/%Y")
    folder, test = tmp_path_factory.mktemp("data"), frame[2 * N :]
    write_csv(folder.parent, truth=test[["id", "bought"]])
    sample = test[["id"]].assign(bought=0.5)
    return write_csv(folder, train=frame[: 2 * N], test=test.drop(columns="bought"), sample_submission=sample)


@pytest.fixture(scope="module")
def workspace(data, tmp_path_factory):
    return new_competition(tmp_path_factory.mktemp("w") / "competitions" / "shop", data)


def test_the_recipe_says_what_was_found(workspace):
    recipe = load_competition(workspace.folder)
    assert isinstance(recipe, Competition)
    assert (recipe.task, recipe.metric, recipe.target, recipe.positive) == ("binary", "auc", "bought", "yes")
    assert list(recipe.ids) == ["id"]
    assert set(recipe.drop) == {"one", "tags"}  # of the tags features are made
    assert recipe.reading.dates == {"sold": "%d/%m/%Y"}
    made = recipe.features().outputs
    assert any("sold" in n for n in made)
    assert any("tags" in n for n in made)
    text = (workspace.folder / "competition.py").read_text()
    assert len(text.splitlines()) < 150
    assert max(map(len, text.splitlines())) <= 200
    assert "the sample submission" in text
    assert "features alone are made of tags" in text


def test_the_pair_that_says_something_together_is_kept(workspace):
    (family,) = [f for f in workspace.chosen.families if f.name == "target means of pairs"]
    assert family.kept
    assert "Cross(cols=['b', 'a'])" in repr(family.features)
    assert family.gain > 0.02


@pytest.fixture(scope="module")
def run(workspace, data, tmp_path_factory):
    recipe = load_competition(workspace.folder)  # with models that are quickly trained
    recipe.models = lambda *, bs: [XGBModel("xgb", rounds=40, eta=0.2)]
    recipe.baselines = lambda: [ConstantModel("constant")]
    return run_competition(recipe, data, tmp_path_factory.mktemp("r") / "run", minutes=2)


def test_its_submission_is_of_the_samples_form_and_as_good_as_the_score_says(run, data):
    """Honest: what was scored out of fold is found again on rows that nothing has seen."""
    made, sample = pd.read_csv(run / "submission.csv"), pd.read_csv(data / "sample_submission.csv")
    assert list(made.columns) == list(sample.columns)
    assert made.id.tolist() == sample.id.tolist()
    assert made.bought.between(0, 1).all()
    test = roc_auc_score(pd.read_csv(data.parent / "truth.csv").bought == "yes", made.bought)
    oof = json.loads((run / "scores.json").read_text())["oof"]["stack"]
    assert oof > 0.9
    assert abs(test - oof) < 0.03
    # saved runs read times as the recipe does
    again = SavedRun(run).predict(pd.read_csv(data / "test.csv")).numpy()
    np.testing.assert_allclose(again, made.bought, atol=1e-6)


def test_questions_are_asked_in_turn(data, tmp_path):
    asked = []

    def answer(question, usual):
        asked.append(question)
        return {"metric": "logloss"}.get(question.split()[1], usual)

    made = new_competition(tmp_path / "x", data, ask=answer, seconds=0)
    assert made.problem.metric == "logloss"
    assert len(asked) == 1  # the metric: the rest the files say
    assert not [f for f in made.chosen.families if f.gain is not None]  # no time to try any


def test_command(data, tmp_path):
    words = ["new", str(tmp_path / "shop"), "--data", str(data)]
    nobody = CliRunner().invoke(app, words, input="")
    assert nobody.exit_code == 1
    assert "Give --yes" in nobody.output
    assert "Aborted" not in nobody.output
    made = CliRunner().invoke(app, [*words, "--yes", "--seconds", "0"])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "shop" / "README.md").read_text().startswith("# shop")
    assert json.loads((tmp_path / "shop" / "notebook.ipynb").read_text())["nbformat"] == 4
    with pytest.raises(DataError, match="recipe already"):
        new_competition(tmp_path / "shop", data)
    with pytest.raises(DataError, match="something else"):
        new_competition(tmp_path, data)


@pytest.fixture(scope="module")
def fitted(data):
    train = pd.read_csv(data / "train.csv")
    with pytest.warns(DataWarning, match="later ones.*time = 'sold'"):
        return fastrec.fit(train, "bought", minutes=0.2, quiet=True)


def test_fit_in_three_lines(fitted, data):
    board = fitted.leaderboard()
    assert board.loc[0, "auc"] == board.auc.max() > 0.85
    assert "stack" in set(board.model)
    assert fitted.report().is_file()
    test = pd.read_csv(data / "test.csv")
    truth = pd.read_csv(data.parent / "truth.csv").bought
    assert (fitted.predict(test) == truth).mean() > 0.8
    proba = fitted.predict_proba(test)
    assert list(proba.columns) == ["no", "yes"]
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert repr(fitted).startswith("Fit(binary, auc 0.")


NOISE = pd.DataFrame({"x": np.arange(200) % 7 + 0.5, "y": np.arange(200) % 2})


@pytest.mark.parametrize(
    ("asked", "minutes"),
    [({}, 5), ({"preset": "quick"}, 2), ({"preset": "good"}, 10), ({"preset": "best"}, 60), ({"minutes": 0.5}, 0.5)],
)
def test_a_preset_is_a_name_of_minutes(asked, minutes, monkeypatch):
    class Begun(Exception):
        pass

    def begin(given, **more):
        assert given == minutes
        raise Begun

    monkeypatch.setattr(auto_fit, "Budget", begin)
    with pytest.raises(Begun):
        fastrec.fit(NOISE, "y", **asked)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(({"minutes": m}, r"Give 0\.05 or more") for m in (float("nan"), 0, -1, 0.049)),
        *((a, r"quick, good, best, or minutes=") for a in ({"preset": "fast"}, {"preset": "good", "minutes": 5})),
        ({"minutes": "5"}, "minutes='5' is no number"),
        ({"seed": "x"}, "seed='x' is no whole number"),
        ({"seed": 1.5}, "seed=1.5 is no whole number"),
        ({"memory": 4}, r"memory=4 is 4 bytes, and this process holds [\d.]+ [MG]iB already.*text such as '4GB'"),
        ({"memory": "1MB"}, r"memory='1MB' is 1.0 MiB, and this process holds"),
        ({"folder": Path(__file__) / "x"}, r"no folder can be made there \(Not a directory\)"),
        ({"test": pd.DataFrame({"q": [1, 2]})}, "the test has none of the training rows' columns: it has q"),
    ],
)
def test_fit_refuses_before_it_learns(asked, said):
    with pytest.raises((DataError, WriteError), match=said):
        fastrec.fit(NOISE, "y", **{"quiet": True, **asked})


def test_fit_warns_of_what_the_recipe_alone_would_say(monkeypatch):
    """Columns that give the target away, those that the test lacks, and amounts that may be classes."""

    def enough(*args, **options):
        raise DataError("enough", remedy="")

    monkeypatch.setattr(auto_fit, "run_competition", enough)
    y = np.arange(200) % 4 * 10
    rows = NOISE.assign(y=y, leak=np.array(list("abcd"))[y // 10], more=np.arange(200) % 9)
    with pytest.warns(DataWarning) as told, pytest.raises(DataError, match="enough"):
        fastrec.fit(rows, "y", test=rows[["x", "leak", "y"]], minutes=0.05, quiet=True)
    said = {str(w.message).partition(":")[0]: str(w.message) for w in told}
    assert set(said) == {"task", "leak", "test columns", "test target"}
    assert "leak is left out: it alone tells the target" in said["leak"]
    assert "are they classes, write task = 'multiclass'" in said["task"]


def test_fit_that_fails_leaves_no_data_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for rows, target, where, said in (
        (NOISE, "z", None, "'z'"),
        (NOISE.assign(y=1), "y", None, "one value only"),
        (NOISE.assign(y=1), "y", tmp_path / "own", "one value only"),
    ):
        with pytest.raises(FastrecError, match=said) as error:
            fastrec.fit(rows, target, quiet=True, folder=where)
        assert not [p for p in tmp_path.rglob("*") if p.is_file()]
        assert where or not (str(tmp_path) in str(error.value) or "--target" in str(error.value))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.parquet").write_text("mine")
    with pytest.raises(DataError, match="Choose another folder"):
        fastrec.fit(NOISE, "y", quiet=True, folder=tmp_path)
    assert (tmp_path / "data" / "train.parquet").read_text() == "mine"


@pytest.mark.parametrize(("names", "said"), [("x", "x"), (["x", "k"], "x, k")])
def test_an_index_is_not_dropped_without_a_word(names, said):
    frame = NOISE.assign(k=np.arange(200)).set_index(names)
    said = rf"index \({said}\) is not learned from.*reset_index"
    with pytest.warns(DataWarning, match=said) as told, pytest.raises(MissingColumnError):
        fastrec.fit(frame, "z", test=frame, quiet=True)
    assert len(told) == 1
