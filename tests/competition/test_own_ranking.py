"""A ranking of one's own: candidates in files, a recipe of a few lines, a run that is scored by its truth."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fastrec._core.progress import Stages
from fastrec.cli import app
from fastrec.competition import Competition, CompetitionData, run_competition
from fastrec.competition.train_models import choose_columns
from fastrec.errors import DataError, MissingColumnError
from fastrec.estimators import LGBMModel, XGBRanker
from fastrec.table import Table
from tests.files import scores_of, write_csv

C = 6  # candidates of a list
RECIPE = """
from fastrec.competition import Competition
from fastrec.estimators import LGBMModel, XGBRanker
from fastrec.features import FeatureSet, GroupRank, feature

@feature(inputs=["price", "rating"], outputs=["worth"])
def worth(price, rating):
    return rating / price

class Shop(Competition):
    name, task, metric = "Shop", "ranking", "mrr"
    list_column, item, label = "search", "product", "bought"
    n_folds = 3

    def features(self):
        return FeatureSet([worth, GroupRank("price", by="search")], key="search")

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=10, max_depth=2), LGBMModel("lgbm", rounds=10, early_stopping_rounds=None)]
"""


def candidates(seed: int, lists: int) -> pd.DataFrame:
    """A cheap product of a good rating is bought; shop and seen say nothing."""
    rng = np.random.default_rng(seed)
    price, rating = rng.uniform(1, 9, (lists, C)), rng.integers(1, 6, (lists, C))
    best = (rating - price + rng.normal(size=price.shape)).argmax(1)
    return pd.DataFrame(
        {
            "search": 1000 * seed + np.repeat(np.arange(lists), C),
            "product": np.concatenate([rng.permutation(50)[:C] for _ in range(lists)]),
            "price": price.ravel(),
            "rating": rating.ravel(),
            "shop": rng.choice(["a", "b"], lists * C),
            "express": rng.random(lists * C) < 0.5,
            "seen": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 99, lists * C), "D"),
            "bought": (best[:, None] == np.arange(C)).ravel().astype(int),
        }
    )


TRAIN, TEST = candidates(1, 120), candidates(2, 40)
TRUTH = TEST[["search", "product", "bought"]].sample(frac=1.0, random_state=0)


def write(folder: Path, truth: pd.DataFrame | None = TRUTH, test: pd.DataFrame | None = None) -> Path:
    return write_csv(
        folder, train=TRAIN, test=TEST.drop(columns=["bought", "seen"]) if test is None else test, truth=truth
    )


def mean_reciprocal_rank(made: pd.DataFrame) -> float:
    joined = made.merge(TRUTH, on=["search", "product"])
    assert len(joined) == len(TRUTH)
    ranks = joined.groupby("search")["score"].rank(ascending=False, method="max")
    return float((1 / ranks[joined["bought"] == 1]).sum() / joined["search"].nunique())


def invoke(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "100"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def done(*arguments: object) -> str:
    code, out = invoke(*arguments)
    assert code == 0, out
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    (root / "competitions" / "shop").mkdir(parents=True)
    (root / "competitions" / "shop" / "competition.py").write_text(RECIPE)
    out = done("run", root / "competitions" / "shop", "--data", write(root / "data"), "--out", root / "run")
    assert "not learned from: product, seen\nthe test rows lack seen\n" in out
    return root


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(search="s" + frame["search"].astype(str).str.zfill(6))


def test_lists_may_be_named_by_text(folder, tmp_path):
    run, tables = tmp_path / "run", {"train": TRAIN, "test": TEST.drop(columns="bought"), "truth": TRUTH}
    data = write_csv(tmp_path / "data", **{name: as_text(table) for name, table in tables.items()})
    done("run", folder / "competitions" / "shop", "--data", data, "--out", run)
    made = pd.read_csv(run / "submission.csv")
    assert set(made["search"]) == set(as_text(TEST)["search"])
    oracle = mean_reciprocal_rank(made.assign(search=made["search"].str[1:].astype(int)))
    assert scores_of(run)["models"]["stack"] == pytest.approx(oracle)
    assert oracle > 0.5
    assert pd.read_parquet(run / "oof" / "xgb.parquet")["search"].tolist() == as_text(TRAIN)["search"].tolist()
    as_text(TEST).sample(frac=1.0, random_state=3).to_csv(tmp_path / "new.csv", index=False)
    done("predict", run, "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    keys = ["search", "product"]
    again = pd.read_csv(tmp_path / "p.csv").set_index(keys)["score"]
    pd.testing.assert_series_equal(again.sort_index(), made.set_index(keys)["score"].sort_index(), rtol=1e-6)
    done("score", run / "submission.csv", data / "truth.csv")
    # A served request names its lists by text, or has one list and does not name it.
    for package in ("onnx", "starlette"):
        pytest.importorskip(package)
    from fastrec.serve import Scorer

    done("export", run, "--out", tmp_path / "served")
    scorer = Scorer(tmp_path / "served")
    sent = as_text(TEST)[["search", *(i.name for i in scorer.spec.sent)]]
    wanted = as_text(TEST).merge(made, on=keys)["score"].to_numpy()
    assert scorer.score(sent.to_dict("list")) == pytest.approx(wanted, abs=1e-5)
    one = sent.head(C).drop(columns="search").to_dict("list")
    assert scorer.score(one) == pytest.approx(wanted[:C], abs=1e-5)


@pytest.mark.parametrize(
    ("file", "column", "attribute"),
    [
        ("train", "bought", "label"),
        ("test", "search", "list_column"),
        ("train", "product", "item"),
        ("train", "shop", "fold_key"),
        ("train", "rating", "weight"),
        ("train", "seen", "time"),
    ],
)
def test_a_column_that_is_misspelt_is_named_before_features(folder, tmp_path, file, column, attribute):
    data, recipe = write(tmp_path / "data"), tmp_path / "shop"
    recipe.mkdir()
    own = "" if attribute in ("label", "list_column", "item") else f"    {attribute} = {column!r}\n"
    source = RECIPE.replace("    n_folds = 3\n", f"    n_folds = 3\n{own}")
    (recipe / "competition.py").write_text(source)
    rows = {"train": TRAIN, "test": TEST}[file]
    swapped = column[:-2] + column[-1] + column[-2]
    rows.rename(columns={column: swapped}).to_csv(data / f"{file}.csv", index=False)
    code, out = invoke("run", recipe, "--data", data, "--out", tmp_path / "run")
    message = next(line for line in out.splitlines() if line.startswith("error: "))
    assert code == 1
    where = f"error: file '{data / file}.csv', column {column!r}: the {file} rows lack the recipe's {attribute}. "
    assert message.startswith(f"{where}Did you mean {swapped!r}? There are "), message
    listed = re.search(r"There are ([^.]*)", message)[1].split(", ")
    assert listed == pd.read_csv(data / f"{file}.csv", nrows=0).columns.tolist()
    assert "features:" not in out
    if attribute == "label":
        for name, named in (("target", "boughtt"), ("target", ["express", "boughtt"]), ("drop", ["boughtt"])):
            table = type("Table", (Competition,), {"name": "table", "target": "price", name: named})()
            with pytest.raises(MissingColumnError, match=rf"lack the recipe's {name}. Did you mean 'bo") as told:
                run_competition(table, data, tmp_path / "run", stages=Stages(quiet=True))
            assert (told.value.file, told.value.column) == (str(data / "train.csv"), "boughtt")


def test_a_row_without_a_list_is_refused_before_training(folder, tmp_path):
    data = write(tmp_path / "data")
    TRAIN.assign(search=TRAIN["search"].astype("Int64").mask(TRAIN.index == 7)).to_csv(data / "train.csv", index=False)
    code, out = invoke("run", folder / "competitions" / "shop", "--data", data, "--out", tmp_path / "run")
    assert (code, "column 'search', row 7: a list id is missing" in out, "features:" in out) == (1, True, False), out
    new = TEST.assign(search=TEST["search"].astype("Int64").mask(TEST.index == 4))
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out = invoke("predict", folder / "run", "--data", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert (code, "column 'search', row 4: a list id is missing" in out) == (1, True), out


def test_score_needs_neither_the_recipe_nor_its_features(folder, tmp_path, monkeypatch):
    submission, truth = folder / "run" / "submission.csv", tmp_path / "t.csv"
    oracle = f"mrr {mean_reciprocal_rank(pd.read_csv(submission)):.5f}"
    TRUTH.to_csv(truth, index=False)
    for more in ([], ["--run", folder / "run"], ["--competition", folder / "competitions" / "shop"]):
        code, out = invoke("score", submission, truth, *more)
        assert (code, out.splitlines()[-2:]) == (0, ["relevant: bought above 0", oracle]), out
        said = invoke("check", submission, folder / "data" / "test.csv", *more)
        assert said == (0, f"ok {len(TEST)} rows, {len(TEST)} ids\n")
    # Lists are written together, also if the test's are mixed.
    mixed = tmp_path / "mixed.csv"
    TEST.sample(frac=1.0, random_state=0).to_csv(mixed, index=False)
    assert invoke("check", submission, mixed) == said
    monkeypatch.chdir(folder / "run")  # the path alone does not name the run
    assert invoke("check", "submission.csv", mixed) == said
    for wrong, words in ((["--run", folder / "run", *more], "both"), (["--run", tmp_path / "none"], "config.json")):
        code, out = invoke("check", submission, mixed, *wrong)
        assert (code, words in out) == (1, True), out
    TRUTH.assign(bought=0).to_csv(truth, index=False)
    code, out = invoke("score", submission, truth)
    assert (code, "no line of the submission is relevant" in out) == (1, True)


def test_a_named_plain_is_the_whole_of_it():
    class Named(Small):
        plain, categories = ("price",), ()

    found = CompetitionData(Table.read(TRAIN), Table.read(TEST))
    assert choose_columns(Named(), found, None, ["made"]) == ([], ["price", "made"])
    assert choose_columns(Small(), found, None, []) == (["shop", "express"], ["price", "rating"])
    models = Competition.models(Small(), bs=None)  # LightGBM's ranker where it is installed
    assert [m.name for m in models] == ["net", "lgbm", "xgb"]
    assert isinstance(models[1], LGBMModel)


class Untrainable(XGBRanker):
    def fit(self, *args, **options):
        raise AssertionError("trained")


class Small(Competition):
    name, task = "small", "ranking"
    list_column, item, label = "search", "product", "bought"
    n_folds = 2

    def models(self, *, bs):
        return [XGBRanker("xgb", rounds=3, max_depth=2)]


class NeverTrained(Small):
    def models(self, *, bs):
        return [Untrainable("xgb")]


@pytest.mark.parametrize(
    ("truth", "message", "kind"),
    [
        (TRUTH.drop(columns="search"), "the truth lacks it", MissingColumnError),
        (TRUTH.drop(columns="bought"), "every line of the submission is relevant", DataError),
        (TRUTH.assign(bought=0), "no line of the submission is relevant", DataError),
        (TRUTH.assign(search=TRUTH["search"] + 5_000_000), "the truth has no list of the submission", DataError),
        (TRUTH.head(30), "the truth has no line of the test list in row", DataError),
    ],
)
def test_a_truth_that_cannot_score_is_refused_before_training(tmp_path, truth, message, kind):
    with pytest.raises(kind, match=message):
        run_competition(NeverTrained(), write(tmp_path / "data", truth), tmp_path / "run", stages=Stages(quiet=True))
    assert not (tmp_path / "run").exists()


def test_a_truth_of_the_relevant_candidates_alone_and_labels_in_the_test_file(tmp_path):
    found = []
    pairs = TRUTH[TRUTH["bought"] == 1][["search", "product"]]
    for name, more in (("pairs", {"truth": pairs}), ("test", {"truth": None, "test": TEST}), ("both", {"test": TEST})):
        recipe, data = Small(), write(tmp_path / name, **more)
        if name == "both":  # the test lacks the column of folds
            recipe.fold_key = "user"
            TRAIN.assign(user=TRAIN["search"]).to_csv(data / "train.csv", index=False)
        run = run_competition(recipe, data, tmp_path / f"run_{name}")
        found.append(scores_of(run)["models"]["stack"])
        assert "bought" not in json.loads((run / "config.json").read_text())["features"]
    assert len(set(found)) == 1
    made = pd.read_csv(tmp_path / "run_test" / "submission.csv")
    joined = made.merge(TRUTH, on=["search", "product"])
    first = joined.sort_values("score", ascending=False, kind="stable").groupby("search").head(1)["bought"].mean()
    assert first <= found[0] <= 1
