"""The XMarket recipe's reading: what is a candidate, what is hidden, what nothing may know, and what is refused."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from competitions.xmarket2022 import data, describe
from competitions.xmarket2022.competition import XMarket2022
from competitions.xmarket2022.data import read, read_market
from competitions.xmarket2022.simulate import simulate
from fastrec.competition import run_competition
from fastrec.errors import DataError, DataWarning, MissingColumnError, UnreadableFileError
from fastrec.estimators import ColumnRanker, XGBRanker
from fastrec.retrieval import EASE, ItemKNN

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
    """Two filters for all, and two turns of hiding: what is tried here does not depend on them."""
    monkeypatch.setattr(describe, "filters", lambda: {"knn": ("all", ItemKNN()), "ease_core": ("core", EASE())})
    monkeypatch.setattr(describe, "PLACED", ["knn", "ease_core", "near1_all"])
    monkeypatch.setattr(data, "ROUNDS", 2)


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
    real = train[train.is_real == 1]
    assert lists_of(real) == {u: offered[u] for u in offered if u in answers}
    assert lists_of(test) == {u: offered[u] for u in offered if u in held}
    assert found.targets.to_pandas().userId.tolist() == [u for u in offered if u in held]
    assert (real.itemId == real.userId.map(answers)).equals(real.taken == 1)
    assert (found.truth.numpy() == (test.itemId == test.userId.map(held))).all()
    assert (real.weight == 1).all()
    assert "taken" not in test


def test_hidden_interactions_make_lists_like_the_real_ones(market, few_filters):
    train = read(market, device=CPU).train.to_pandas()
    made, real = train[train.is_real == 0], train[train.is_real == 1]
    core = tsv(market / "train_5core.tsv")
    had = core.groupby("userId").itemId.apply(set)
    answers = tsv(market / "valid_qrel.tsv").set_index("userId").itemId
    assert made.list_id.nunique() == 2 * (had[answers.index].str.len() >= 3).sum()
    assert (np.diff(train.list_id) >= 0).all()
    offered = lists_of(real)
    hidden: dict[str, list[str]] = {}
    shares = []
    for _, rows in made.groupby("list_id"):
        user, item = rows.userId.iloc[0], rows.itemId[rows.taken == 1].item()
        assert item in had[user]
        hidden.setdefault(user, []).append(item)
        whole = [item if i == answers[user] else i for i in offered[user]]
        kept = set(rows.itemId)
        assert [i for i in whole if i in kept] == rows.itemId.tolist()  # some of the real list, in its order
        shares.append(len(rows) / len(whole))
    assert 0.2 < np.mean(shares) < 0.45
    assert all(len(set(items)) == len(items) for items in hidden.values())


def test_scores_of_hidden_lists_are_learned_without_what_is_hidden(market, few_filters):
    train = read(market, device=CPU).train.to_pandas()
    first = train[(train.is_real == 0) & ~train.duplicated(["userId", "itemId", "is_real"])]
    first = first[first.list_id < first.list_id.min() + first.userId.nunique()]  # the first turn
    assert not first.userId.groupby(first.list_id).first().duplicated().any()
    gone = first[first.taken == 1][["userId", "itemId"]]
    both = pd.concat([tsv(market / n)[["userId", "itemId"]] for n in ("train.tsv", "train_5core.tsv")])
    left = both.drop_duplicates().merge(gone, how="left", indicator=True).query("_merge == 'left_only'")
    expected = ItemKNN().fit(left.userId, left.itemId).score(first.userId, first.itemId)
    np.testing.assert_allclose(first.knn, expected)
    np.testing.assert_allclose(first.item_count_all, first.itemId.map(left.itemId.value_counts()).fillna(0))


def test_real_scores_are_learned_from_both_files_and_no_answer(market, copy, few_filters):
    found = read(market, device=CPU)
    both = pd.concat([tsv(market / n)[["userId", "itemId"]] for n in ("train.tsv", "train_5core.tsv")])
    real = found.train.to_pandas().query("is_real == 1")
    np.testing.assert_allclose(real.knn, ItemKNN().fit(both.userId, both.itemId).score(real.userId, real.itemId))
    # other answers: the same columns
    qrel = tsv(copy / "valid_qrel.tsv")
    run = dict(line.split("\t") for line in (copy / "valid_run.tsv").read_text().splitlines())
    qrel["itemId"] = [run[u].split(",")[0] for u in qrel.userId]
    qrel.to_csv(copy / "valid_qrel.tsv", sep="\t", index=False)
    other = read(copy, device=CPU).train.to_pandas().query("is_real == 1")
    named = describe.columns()
    pd.testing.assert_frame_equal(other[named], real[named])
    assert not other.taken.equals(real.taken)


def test_place_gap_and_z_are_within_the_list():
    lists = describe.Lists(np.array([1, 2]), np.array([1, 2, 3, 1, 2]), np.array([3, 2]))
    found = describe._in_list("s", np.array([1.0, 3.0, 3.0, 5.0, 2.0]), lists)
    assert found["s_place"].tolist() == [2, 0, 0, 0, 1]
    spread = np.std([1, 3, 3])
    np.testing.assert_allclose(found["s_gap"], [-2 / spread, 0, 0, 0, -3 / 1.5])
    np.testing.assert_allclose(found["s_z"], [(1 - 7 / 3) / spread, *[(3 - 7 / 3) / spread] * 2, 1, -1])


def test_what_filters_say_together_is_the_mean_of_their_own(market, few_filters):
    market_ = read_market(market)
    found = describe.describe(market_.rated, market_.core, market_.lists)
    table = pd.DataFrame({n: found[n] for n in ("knn", "ease_core")})  # near1_all is placed too, and no filter
    by_list = table.groupby(market_.lists.of)
    spread = by_list.transform("std", ddof=0) + 1e-12
    mean, best = by_list.transform("mean"), by_list.transform("max")
    np.testing.assert_allclose(found["together_z"], ((table - mean) / spread).mean(axis=1), atol=1e-9)
    np.testing.assert_allclose(found["together_gap"], ((table - best) / spread).mean(axis=1), atol=1e-9)


def test_columns_are_those_that_are_named(market):
    market_ = read_market(market)
    found = describe.describe(market_.rated, market_.core, market_.lists)
    assert list(found) == describe.columns()
    assert all(len(v) == len(market_.lists.items) for v in found.values())
    assert all(np.isfinite(v).all() for n, v in found.items() if n not in ("item_rating", "user_rating"))


def test_all_answers_known_leaves_no_test(copy, few_filters):
    known, held = (tsv(copy / n) for n in ("valid_qrel.tsv", "test_qrel.tsv"))
    pd.concat([known, held]).to_csv(copy / "valid_qrel.tsv", sep="\t", index=False)
    found = read(copy, device=CPU)
    assert (len(found.test), len(found.targets), found.truth) == (0, 0, None)
    assert found.test.names == read(copy, device=CPU).test.names


def test_rows_are_the_first_lists(market, few_filters):
    train = read(market, device=CPU, rows=450).train.to_pandas()
    whole = read(market, device=CPU).train.to_pandas()
    assert train.query("is_real == 1").userId.unique().tolist() == whole.userId.unique().tolist()[:5]


def rewrite(path: Path, change) -> None:
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def test_an_interaction_that_is_a_candidate_is_left_out(copy, few_filters):
    run = (copy / "valid_run.tsv").read_text().splitlines()
    user, items = run[3].split("\t")
    rewrite(copy / "train.tsv", lambda lines: [lines[0], f"{user}\t{items.split(',')[7]}\t5.0", *lines[1:]])
    with pytest.warns(DataWarning, match=r"train.tsv: 1 interactions are candidates.*row 0"):
        market_ = read_market(copy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(market_.rated.users) == len(tsv(copy / "train.tsv")) - 1


def test_an_answer_that_is_no_candidate_is_left_out(copy):
    rewrite(copy / "valid_qrel.tsv", lambda lines: [lines[0], lines[1].split("\t")[0] + "\tP9\t1", *lines[2:]])
    with pytest.warns(DataWarning, match=r"1 answers are not among.*row 0"):
        assert (read_market(copy).answers == 0).sum() == len(tsv(copy / "test_qrel.tsv")) + 1


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
    monkeypatch.setattr(XMarket2022, "plain", ["knn_place", "ease_core_place"])
    run_competition(recipe, data=market, out=tmp_path / "run")
    written, test = tsv(tmp_path / "run/submission.csv"), read(market, device=CPU).test.to_pandas()
    assert lists_of(written).keys() == lists_of(test).keys()
    assert all(set(items) == set(lists_of(test)[user][:100]) for user, items in lists_of(written).items())
