"""Features of a ranking beside plain loops, without a leak, and a trial that hears of signal and not of noise."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fastrec.auto import rankings
from fastrec.auto.columns import Files, look_at
from fastrec.auto.features import choose_features
from fastrec.auto.models import choose_models
from fastrec.auto.problem import Problem, feature_key
from fastrec.auto.trial import QuickTrial
from fastrec.auto.understand import understand
from fastrec.auto.workspace import _attributes
from fastrec.features import FeatureSet, check_leakage
from fastrec.metrics import get_metric

pytest.importorskip("lightgbm")
C = 6  # candidates of a group


def shop(groups: int, *, signal: bool, seed: int = 0) -> pd.DataFrame:
    """Lists at one price level each: what is cheap beside the others is clicked, or anything is."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(groups), C)
    item = np.concatenate([rng.choice(30, C, replace=False) for _ in range(groups)])
    price = rng.integers(1, 100, groups)[of] * 10.0 + rng.normal(size=len(of))
    best = (rng.gumbel(size=len(of)) - signal * 4 * price).reshape(groups, C).argmax(1)
    frame = {
        "list": of, "user": [f"u{u}" for u in rng.integers(0, groups // 3, groups)[of]],
        "device": rng.choice(["phone", "desk"], groups)[of],
        "at": (pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.permutation(groups) * 61, "min"))[of],
        "item": item, "price": price, "clicked": (best[:, None] == np.arange(C)).ravel().astype(int),
    }  # fmt: skip
    return pd.DataFrame(frame)


def as_files(**frames: pd.DataFrame) -> Files:
    tables = {n: pa.Table.from_pandas(t, preserve_index=False) for n, t in frames.items()}
    return Files(Path(), {n: n for n in tables}, tables, why=dict.fromkeys(tables, ""))


def problem_of(frame: pd.DataFrame, **more: object) -> Problem:
    files = as_files(train=frame)
    given = {"lists": "list", "item": "item", "shared": ["user", "device", "at"], **more}
    return Problem(files, look_at(files.tables["train"], ["clicked"]), ["clicked"], "ranking", "mrr", **given)


SMALL = shop(60, signal=True)


@pytest.fixture(scope="module")
def small() -> tuple[Problem, QuickTrial]:
    problem = problem_of(SMALL)
    return problem, QuickTrial(problem, [], 60.0)


def by_list(values: str, what) -> np.ndarray:
    return np.concatenate([what(part[values].to_numpy()) for _, part in SMALL.groupby("list")])


def test_features_of_groups_and_items_are_those_of_plain_loops(small):
    names = ["ranks in the group and differences from it", "extremes of the group and next values", "counts of items"]
    names += ["place in the group and the rows beside", "differences from what is usual of an item"]
    ideas = [f for name in names for f in dict(rankings.IDEAS)[name](*small)]
    made = FeatureSet(list({repr(f): f for f in ideas}.values()), key="list").fit_transform(SMALL)
    of_item, places = SMALL.groupby("item")["price"], pd.Series(np.tile(np.arange(C), 60))
    counts = of_item.transform("size")
    above = [[sum(w > v for w in part) for v in part] for _, part in counts.groupby(SMALL["list"])]
    for name, expected in {
        "count_list__list": C,
        "rank_price__list": by_list("price", lambda v: [1 + (v < x).sum() for x in v]),
        "diffmean_price__list": by_list("price", lambda v: v - v.mean()),
        "ratiomean_price__list": by_list("price", lambda v: v / v.mean()),
        "zmean_price__list": by_list("price", lambda v: (v - v.mean()) / v.std(ddof=1)),
        "min_price__list": by_list("price", lambda v: [v.min()] * C),
        "above_price__list": by_list("price", lambda v: [min((w - x for w in v if w > x), default=np.nan) for x in v]),
        "cumcount_list": places,
        "diff_next1_price__list": by_list("price", lambda v: np.append(v[:-1] - v[1:], np.nan)),
        "log_count_item": np.log1p(counts),
        "descrank_log_count_item__list": 1 + np.concatenate(above),
        "diffmean_price__item": SMALL["price"] - of_item.transform("mean"),
        "mean_cumcount_list__item": places.groupby(SMALL["item"]).transform("mean"),
    }.items():
        np.testing.assert_allclose(made[name].astype(float), expected, rtol=1e-6, atol=1e-9, err_msg=name)


OWNED = shop(90, signal=True).rename(columns={"user": "user_id"})  # some three lists a user


def test_features_of_owners_are_those_of_plain_loops():
    """Of earlier lists of the user: whether the item was chosen, and the mean price of what was chosen."""
    frame = OWNED
    problem = problem_of(frame, shared=["user_id", "device", "at"])
    assert problem.keys == ["user_id"]
    trial = QuickTrial(problem, [], 60.0)
    made, chosen = (
        FeatureSet(make(problem, trial), key="list").fit_transform(frame)
        for make in (rankings._owned_items, rankings._owned_choices)
    )
    for i, row in frame.iterrows():
        before = frame[frame["at"] < row["at"]]
        own = before[before["user_id"] == row["user_id"]]
        prior = before["clicked"].mean() if len(before) else 0.0
        same = own.loc[own["item"] == row["item"], "clicked"]
        assert made.loc[i, "cumte_user_id_x_item__clicked"] == pytest.approx((same.sum() + prior) / (len(same) + 1))
        paid, usual = own.loc[own["clicked"] == 1, "price"], before.loc[before["clicked"] == 1, "price"]
        mean = (paid.sum() + 0.1 * (usual.mean() if len(usual) else 0)) / (len(paid) + 0.1)
        name = "cumte_user_id__price_by_clicked"
        assert chosen.loc[i, name] == pytest.approx(mean)
        assert chosen.loc[i, f"price_minus_{name}"] == pytest.approx(row["price"] - mean)
    prices = frame["price"].where(frame.index != 3, np.inf)
    endless = QuickTrial(problem_of(frame.assign(price=prices), shared=["user_id", "device", "at"]), [], 60.0)
    assert not [n for f in rankings._owned_choices(endless.problem, endless) for n in f.outputs if "price" in n]
    # The half-life is the usual pause between two lists of a user.
    pauses = frame.drop_duplicates("list").sort_values("at").groupby("user_id")["at"].diff().dt.total_seconds()
    (last,) = [f for f in rankings._owned_items(problem, trial) if f.half_life]
    assert last.half_life == pauses.quantile(interpolation="lower")


@pytest.mark.parametrize(
    "change",
    [
        {"at": lambda f: f["at"] + pd.to_timedelta(np.arange(len(f)), "s")},  # a row would see others of its group
        {"user_id": lambda f: f["list"].map("u{}".format)},
        {"at": lambda f: pd.Timestamp("2026-01-01")},
    ],
)
def test_without_earlier_groups_nothing_is_made_of_owners(change):
    frame = OWNED.assign(**change)
    counts = frame.groupby("list").nunique()
    problem = problem_of(frame, shared=[n for n in ("user_id", "device", "at") if (counts[n] == 1).all()])
    trial = QuickTrial(problem, [], 60.0)
    assert rankings._owned_items(problem, trial) == rankings._owned_choices(problem, trial) == []


def loyal(groups: int, seed: int = 0) -> pd.DataFrame:
    """Users come back after an hour, and mostly take again what they took before, if it is there."""
    rng = np.random.default_rng(seed)
    frame = shop(groups, signal=False, seed=seed).rename(columns={"user": "user_id"})
    user = rng.permutation(np.arange(groups) // 3)
    frame["user_id"] = [f"u{u}" for u in user[frame["list"]]]
    frame["item"] = frame.groupby("list").cumcount() + C * (user[frame["list"]] % 5)
    taste = rng.integers(0, C, groups)[user] * (rng.random(groups) < 0.9)
    return frame.assign(clicked=(frame.groupby("list").cumcount() == taste[frame["list"]]).astype(int))


def understood(held: pd.Series, rows: pd.DataFrame) -> Problem:
    """Rows of which those held are the test."""
    files = as_files(train=rows[~held], test=rows[held].drop(columns="clicked"))
    return understand(files, target="clicked", group="list", item="item")


def test_what_users_take_again_is_found_and_the_folds_are_those_of_the_test():
    """Each user's last list is the test: folds score the last list that is left, and the trial with them."""
    rows = loyal(600)
    last = rows["at"] == rows.groupby("user_id")["at"].transform("max")
    problem = understood(last, rows)
    assert (problem.last_of, problem.time) == ("user_id", "at")
    trial = QuickTrial(problem, [], 60.0)
    family = trial.family("", rankings._owned_items(problem, trial))
    assert family.kept
    assert family.gain > 3 * family.error
    attributes = "\n".join(_attributes("shop", problem))
    assert 'last_of = "user_id"' in attributes
    assert 'time = "at"' in attributes
    # a split at random has no last groups
    rows = loyal(300)
    assert understood(rows["list"].isin(np.random.default_rng(1).permutation(300)[:100]), rows).last_of is None


def test_no_feature_tells_the_label():
    """Means of the label never see a row of the same list; rates of items are of earlier times alone."""
    problem = problem_of(SMALL, time="at")
    trial = QuickTrial(problem, [], 60.0)
    assert feature_key(problem) == "list"
    for name, make in rankings.IDEAS:
        order = "at" if "so far" in name or "earlier groups" in name else None
        features = FeatureSet(make(problem, trial), key="list")
        check_leakage(features, SMALL, "clicked", order, key="list").raise_for_leaks()


def test_means_of_the_label_keep_whole_users_of_a_new_test_together():
    train, test = SMALL, SMALL.assign(user="new").drop(columns="clicked")
    problem = problem_of(train)
    problem.files = files = as_files(train=train, test=test)
    infos = {c.name: c for c in problem.columns}
    assert infos["user"].distinct >= 20 - 1
    key = feature_key(problem)
    assert key == ("user" if "user" in problem.keys else "list")
    # the test has train's users: nothing is kept from learning about them
    files.tables["test"] = files.tables["train"].drop(["clicked"])
    assert feature_key(problem) == "list"
    assert feature_key(problem_of(train, group="user")) == "user"


def test_a_trial_takes_whole_lists_and_cuts_none():
    problem = problem_of(SMALL.sample(frac=1, random_state=1))
    for more in ({}, {"time": "at"}, {"group": "user"}):
        for name, value in {"time": None, "group": None, **more}.items():
            setattr(problem, name, value)
        trial = QuickTrial(problem, [], 60.0, rows=100)
        rows = trial.table.to_arrow().to_pandas()
        assert (rows.groupby("list").size() == C).all()
        assert C <= len(rows) <= 100
        fold = pd.Series(trial.folds.codes.numpy())
        assert (fold.groupby(rows["list"]).nunique() == 1).all()
        if more.get("time"):
            ends = rows.assign(fold=fold).groupby("fold")["at"].agg(["min", "max"])
            assert (ends["max"].to_numpy()[:-1] < ends["min"].to_numpy()[1:]).all()
        if more.get("group"):
            assert (fold.groupby(rows["user"]).nunique() == 1).all()


@pytest.fixture(scope="module")
def signal() -> tuple[Problem, dict]:
    problem = problem_of(shop(300, signal=True))
    chosen = choose_features(problem, seconds=120)
    return problem, chosen, {f.name: f for f in chosen.families}


def test_what_is_cheap_beside_others_is_found(signal):
    """No price tells by itself, its rank in the list tells nearly all; the gain is that of the metric asked for."""
    problem, chosen, families = signal
    ranks = families["ranks in the group and differences from it"]
    assert ranks.kept
    assert ranks.gain > 10 * ranks.error
    assert chosen.metric == "mrr"
    frame = problem.train.to_pandas()
    label, price, lists = (torch.tensor(frame[n].to_numpy()) for n in ("clicked", "price", "list"))
    assert get_metric("mrr")(label, -price, groups=lists) > 0.85  # what the rank can tell


def test_columns_of_the_group_that_do_not_pay_are_left_out(signal):
    problem, _, families = signal
    for name, column in (("few", "device"), ("many", "user")):
        assert not families[f"columns of the group of {name} values"].kept
        assert "no better" in problem.drop[column]
        assert column not in [c.name for c in problem.learned]


def test_noise_is_heard_as_noise():
    """Where any row may be chosen no family gains more than chance gives: 3 standard errors of 10 tries."""
    families = choose_features(problem_of(shop(200, signal=False)), seconds=120).families
    tried = [f for f in families if f.gain is not None]
    assert len(tried) >= 8
    assert all(f.gain <= 3 * f.error for f in tried)


def test_a_ranking_gets_models_by_row_and_by_list(signal):
    problem, chosen, _ = signal
    made = [m.text for m in choose_models(problem, chosen)]
    assert [t.split('"')[1] for t in made][:4] == ["by_row", "xgb", "net", "lgbm"]
    assert 'objective="binary"' in made[0].replace("'", '"')
    graded = problem_of(SMALL.assign(clicked=SMALL.clicked * 3))
    assert 'objective="regression"' in choose_models(graded, chosen)[0].text.replace("'", '"')
    wide = choose_models(problem_of(SMALL.assign(**{f"n{i}": SMALL.price * i for i in range(30)})), chosen)
    assert ["feature_fraction=0.4, lambda_l2=3" in m.text for m in wide[:4]] == [True, False, False, True]
    assert "feature_fraction" not in "".join(made)
