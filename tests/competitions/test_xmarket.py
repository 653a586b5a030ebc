"""The XMarket recipe's reading: what is a candidate, which files teach, what nothing may know, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from competitions.xmarket2022.competition import XMarket2022
from competitions.xmarket2022.data import read
from competitions.xmarket2022.simulate import simulate
from fastrec.competition import run_competition
from fastrec.errors import DataError, DataWarning, MissingColumnError, UnreadableFileError
from fastrec.estimators import ColumnRanker, XGBRanker
from fastrec.retrieval import ItemKNN
from fastrec.retrieval.candidates import given

CPU = torch.device("cpu")


def tsv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t")


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("xmarket") / "market"
    simulate(120, folder, seed=1)
    return folder


@pytest.fixture
def few_filters(monkeypatch):
    """Three filters: what is tried here does not depend on the others."""
    monkeypatch.setattr(given, "_FILTERS", {n: given._FILTERS[n] for n in given._OF_KIND})


@pytest.fixture
def copy(market, tmp_path) -> Path:
    return Path(shutil.copytree(market, tmp_path / "copy"))


def lists_of(frame: pd.DataFrame) -> dict[str, list[str]]:
    return frame.groupby("userId", sort=False).itemId.apply(list).to_dict()


def test_lists_are_those_of_the_run_file(market, few_filters):
    found = read(market, device=CPU)
    run = [line.split("\t") for line in (market / "valid_run.tsv").read_text().splitlines()]
    offered = {user: items.split(",") for user, items in run}
    answers = dict(tsv(market / "valid_qrel.tsv")[["userId", "itemId"]].itertuples(index=False))
    held = dict(tsv(market / "test_qrel.tsv")[["userId", "itemId"]].itertuples(index=False))
    train, test = found.train.to_pandas(), found.test.to_pandas()
    real = train[train.weight == 1]
    assert lists_of(real) == {u: offered[u] for u in offered if u in answers}
    assert lists_of(test) == {u: offered[u] for u in offered if u in held}
    assert found.targets.to_pandas().userId.tolist() == [u for u in offered if u in held]
    assert (real.itemId == real.userId.map(answers)).equals(real.taken == 1)
    assert (found.truth.numpy() == (test.itemId == test.userId.map(held))).all()
    assert (real.counted == (pd.factorize(real.userId)[0] % 2 == 0)).all()
    assert "taken" not in test


def test_interactions_of_the_core_are_hidden(market, few_filters):
    train = read(market, device=CPU).train.to_pandas()
    hidden = train[(train.weight < 1) & (train.taken == 1)]
    core = pd.MultiIndex.from_frame(tsv(market / "train_5core.tsv")[["userId", "itemId"]])
    assert len(hidden) > 100
    assert pd.MultiIndex.from_frame(hidden[["userId", "itemId"]]).isin(core).all()
    assert (hidden.weight == 0.7).all()
    assert not hidden.counted.any()


def test_real_scores_are_learned_from_both_files_and_other_users_answers(market, copy, few_filters):
    found = read(market, device=CPU)
    both = pd.concat([tsv(market / n)[["userId", "itemId"]] for n in ("train.tsv", "train_5core.tsv")])
    real = found.train.to_pandas().query("weight == 1")
    answers, at = real[real.taken == 1], pd.Series(pd.factorize(real.userId)[0], real.index)
    part = (at // 2 % 5).where(at % 2 == 1, 5)
    for i in range(6):
        seen = pd.concat([both, answers.loc[(part != i) & (part != 5), ["userId", "itemId"]]])
        mine = real[part == i]
        expected = ItemKNN(shrink=5).fit(seen.userId, seen.itemId).score(mine.userId, mine.itemId)
        np.testing.assert_allclose(mine.knn, expected, rtol=1e-5, atol=1e-7)
    rated = tsv(market / "train.tsv")
    expected = ItemKNN(shrink=5).fit(rated.userId, rated.itemId).score(real.userId, real.itemId)
    np.testing.assert_allclose(real.knn_of_rated, expected, rtol=1e-5, atol=1e-7)
    stars = rated.groupby("itemId").rating.mean()  # the core's ratings say nothing
    np.testing.assert_allclose(real.item_rating, real.itemId.map(stars), rtol=1e-6)
    # other answers of one part's users: the same columns of theirs
    qrel = tsv(copy / "valid_qrel.tsv")
    run = dict(line.split("\t") for line in (copy / "valid_run.tsv").read_text().splitlines())
    own = qrel.userId.isin(real.userId[part == 2])
    qrel.loc[own, "itemId"] = [run[u].split(",")[0] for u in qrel.userId[own]]
    qrel.to_csv(copy / "valid_qrel.tsv", sep="\t", index=False)
    other = read(copy, device=CPU).train.to_pandas().query("weight == 1")
    named = real.columns.drop("taken")
    pd.testing.assert_frame_equal(other.loc[part == 2, named], real.loc[part == 2, named])
    assert not other.taken.equals(real.taken)
    assert not other.knn.equals(real.knn)


def test_all_answers_known_leaves_no_test(copy, few_filters):
    known, held = (tsv(copy / n) for n in ("valid_qrel.tsv", "test_qrel.tsv"))
    pd.concat([known, held]).to_csv(copy / "valid_qrel.tsv", sep="\t", index=False)
    found = read(copy, device=CPU)
    assert (found.test, found.targets, found.truth) == (None, None, None)


def test_rows_are_the_first_lists(market, few_filters):
    train = read(market, device=CPU, rows=450).train.to_pandas()
    whole = read(market, device=CPU).train.to_pandas()
    assert train.query("weight == 1").userId.unique().tolist() == whole.userId.unique().tolist()[:5]


def rewrite(path: Path, change) -> None:
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def test_an_answer_that_is_no_candidate_is_left_out(copy, few_filters):
    rewrite(copy / "valid_qrel.tsv", lambda lines: [lines[0], lines[1].split("\t")[0] + "\tP9\t1", *lines[2:]])
    with pytest.warns(DataWarning, match=r"1 answers are not among.*row 0"):
        assert len(read(copy, device=CPU).targets) == len(tsv(copy / "test_qrel.tsv")) + 1


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("valid_run.tsv", lambda x: [*x, x[0]], DataError, "valid_run.tsv.*earlier line"),
        ("valid_run.tsv", lambda x: [x[0] + "," + x[0].split(",")[3], *x[1:]], DataError, "row 0.*listed twice"),
        ("valid_run.tsv", lambda x: [x[0], x[1] + ",", *x[2:]], DataError, "row 1.*empty"),
        ("valid_run.tsv", lambda x: [x[0], x[1] + "\tmore", *x[2:]], UnreadableFileError, "valid_run.tsv"),
        ("valid_qrel.tsv", lambda x: [*x, x[1]], DataError, "two answers"),
        ("valid_qrel.tsv", lambda x: [*x, "nobody\tP1\t1"], DataError, "no line in the run"),
        ("valid_qrel.tsv", lambda x: x[:1], DataError, "valid_qrel.tsv"),
        ("train.tsv", lambda x: ["user\titem\trating", *x[1:]], MissingColumnError, "train.tsv.*userId"),
        ("train_5core.tsv", lambda x: [x[0], "u\t\t1.0", *x[1:]], DataError, "train_5core.tsv.*itemId.*row 0"),
    ],
)
def test_bad_files_are_named(copy, few_filters, name, change, error, words):
    rewrite(copy / name, change)
    with pytest.raises(error, match=words):
        read(copy, device=CPU)


def test_no_answer_is_in_the_simulated_train_files(market):
    answers = pd.concat([tsv(market / n) for n in ("valid_qrel.tsv", "test_qrel.tsv")])
    for name in ("train.tsv", "train_5core.tsv"):
        assert tsv(market / name).merge(answers, on=["userId", "itemId"]).empty


def test_a_run_writes_a_line_for_each_candidate_of_the_test(market, few_filters, monkeypatch, tmp_path):
    """The targets name lists alone; the submission's ids are those of the candidates."""
    recipe = XMarket2022()
    recipe.baselines = lambda: [ColumnRanker("knn", ["knn_place"])]
    recipe.models = lambda *, bs: [XGBRanker("xgb", rounds=2)]
    monkeypatch.setattr(XMarket2022, "plain", ["knn_place", "ease_place"])
    run_competition(recipe, data=market, out=tmp_path / "run")
    written, test = tsv(tmp_path / "run/submission.csv"), read(market, device=CPU).test.to_pandas()
    assert lists_of(written).keys() == lists_of(test).keys()
    assert all(set(items) == set(lists_of(test)[user][:100]) for user, items in lists_of(written).items())
