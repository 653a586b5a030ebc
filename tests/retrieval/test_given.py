"""``score_candidates``: scores of given candidates and lists made by hiding events, against plain loops and frames."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GroupKFold

from fastrec.errors import DataError, DataWarning, MissingColumnError
from fastrec.retrieval import EASE, ItemKNN, score_candidates
from tests._core.refusals import refused

NAMES = {"user": "who", "item": "what", "label": "taken"}


def simulated(seed: int, users: int = 24, items: int = 30) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lists of six candidates with one positive each, and a log of other pairs in random order; ids are text."""
    rng = np.random.default_rng(seed)
    lists, log = [], []
    for user in range(users):
        drawn = rng.permutation(items)[: 6 + rng.integers(1, 9)]
        taken = rng.integers(6)
        lists += [(f"u{user}", f"i{i}", int(place == taken)) for place, i in enumerate(drawn[:6])]
        log += [(f"u{user}", f"i{i}", rng.choice(["view", "buy"]), float(rng.integers(1, 6))) for i in drawn[6:]]
    frame = pd.DataFrame(log, columns=["who", "what", "act", "stars"])
    return pd.DataFrame(lists, columns=["who", "what", "taken"]), frame.sample(frac=1, random_state=seed)


def pairs_of(frame: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(frame["who"], frame["what"]))


def known_to(user: int | None, lists: pd.DataFrame, log: pd.DataFrame) -> pd.DataFrame:
    """The log, and what every second user took, but for those of a user's own part; ``None``: of all five parts."""
    at = lists["who"].map({u: i for i, u in enumerate(lists["who"].unique())})
    own = (at // 2 % 5 == user // 2 % 5) if user is not None and user % 2 else False
    return pd.concat([log, lists.loc[(lists["taken"] == 1) & (at % 2 == 1) & ~own, ["who", "what"]]], ignore_index=True)


def test_given_lists_keep_their_rows_and_get_scores_counts_and_ratings():
    lists, log = simulated(0)
    made = score_candidates(lists, log, kind="act", rating="stars", **NAMES).train.to_pandas()
    real = made[made["weight"] == 1].reset_index(drop=True)
    order = lists.assign(at=lists["who"].map({u: i for i, u in enumerate(lists["who"].unique())}))
    pd.testing.assert_frame_equal(real[["who", "what"]], order[["who", "what"]], check_dtype=False)
    assert (real["list"] == real["who"]).all()
    assert (real["counted"] == (real["who"].str[1:].astype(int) % 2 == 0)).all()
    assert real["taken"].tolist() == lists["taken"].tolist()
    bought = log[log["act"] == "buy"]
    for row in real.itertuples():
        seen = known_to(int(row.who[1:]), lists, log)
        owners = {i: set(part["who"]) for i, part in seen.groupby("what")}
        sums = 0.0
        for other in set(seen.loc[seen["who"] == row.who, "what"]):
            both = owners.get(row.what, set()) & owners[other]
            size = (len(owners.get(row.what, ())) * len(owners[other])) ** 0.5
            sums += len(both) / (size + 5) if other != row.what else 0
        assert row.knn == pytest.approx(sums, abs=1e-6)
        assert row.item_events == (seen["what"] == row.what).sum()
        assert row.user_events_of_buy == (bought["who"] == row.who).sum()
        mean = log.loc[log["what"] == row.what, "stars"].mean()
        assert row.item_rating == pytest.approx(mean, nan_ok=True)
    known = EASE(reg=300).fit(bought["who"], bought["what"])
    assert np.allclose(real["ease_of_buy"], known.score(real["who"], real["what"]), atol=1e-6)
    high = log[log["stars"] >= log["stars"].mean()]
    knn = ItemKNN(shrink=5).fit(high["who"], high["what"])
    assert np.allclose(real["knn_good"], knn.score(real["who"], real["what"]), atol=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_places_and_distances_are_those_of_pandas(seed):
    lists, log = simulated(seed, users=8, items=16)
    made = score_candidates(lists, log, hide=0, **NAMES).train.to_pandas()
    by = made.groupby("list", sort=False)
    filters = [n.removesuffix("_place") for n in made if n.endswith("_place") and n[:4] not in ("near", "item")]
    assert len(filters) == 14
    for name in filters:
        values = made[name].astype(float)
        spread = by[name].transform(lambda v: v.astype(float).std(ddof=0))
        assert (made[f"{name}_place"] == by[name].rank(method="min", ascending=False) - 1).all()
        some = spread > 1e-4  # smaller ones are rounding of float32
        for how, center in (("gap", by[name].transform("max")), ("z", by[name].transform("mean"))):
            expected = (values - center) / spread
            assert np.allclose(made.loc[some, f"{name}_{how}"], expected[some], atol=2e-3, rtol=2e-3)
    mean = made[[f"{n}_z" for n in filters]].mean(axis=1)
    assert np.allclose(made["filters_z"], mean, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_made_lists_hide_an_event_and_are_scored_without_it(seed, hide):
    lists, log = simulated(seed, users=10, items=18)
    made = score_candidates(lists, log, hide=hide, seed=seed, **NAMES)
    train = made.train.to_pandas()
    hidden = train[train["weight"] < 1]
    counts = log.groupby("who")["what"].nunique()
    expected = sum(min(n, hide) for n in counts if n >= 3)
    assert made.hidden == hidden["list"].nunique() == hidden["taken"].sum() == expected
    assert made.lists == train.loc[train["weight"] == 1, "list"].nunique() == len(lists["who"].unique())
    assert (hidden["weight"] == 0.7).all()
    positives = hidden[hidden["taken"] == 1]
    assert not positives.duplicated(["who", "what"]).any()
    assert pairs_of(positives) <= pairs_of(log)
    assert pairs_of(hidden[hidden["taken"] == 0]) <= pairs_of(lists[lists["taken"] == 0])
    for turn in range(1, hide + 1):
        part = hidden[hidden["list"] == hidden["who"] + f" without {turn}"]
        gone = pairs_of(part[part["taken"] == 1])
        seen = known_to(None, lists, log)
        left = seen[[pair not in gone for pair in zip(seen["who"], seen["what"])]]
        if part.empty:
            continue
        again = ItemKNN(shrink=5).fit(left["who"], left["what"]).score(part["who"], part["what"])
        assert np.allclose(part["knn"], again, atol=1e-6)
        of_item = part["what"].map(left["what"].value_counts()).fillna(0)
        assert (part["item_events"] == of_item).all()


def test_only_targets_are_hidden_and_all_events_of_the_pair():
    lists, log = simulated(3)
    log = pd.concat([log, log[log["act"] == "buy"].assign(act="view")])  # every pair bought was seen, too
    made = score_candidates(lists, log, kind="act", targets=["buy"], **NAMES).train.to_pandas()
    positives = made[(made["weight"] < 1) & (made["taken"] == 1)]
    assert len(positives)
    assert pairs_of(positives) <= pairs_of(log[log["act"] == "buy"])
    first = positives[positives["list"].str.endswith("without 1")]
    left = log[[pair not in pairs_of(first) for pair in zip(log["who"], log["what"])]]
    counts = left.loc[left["act"] == "view", "what"].value_counts()
    assert (first["item_events_of_view"] == first["what"].map(counts).fillna(0)).all()


def test_columns_are_those_of_the_whole_log_whatever_is_hidden():
    lists, log = simulated(12)
    log["act"] = np.random.default_rng(0).choice(list("abcd"), len(log))  # of nearly equal counts
    log.loc[log.index[0], "act"] = "rare"
    made = score_candidates(lists, log.assign(stars=0.1), kind="act", rating="stars", hide=9, **NAMES).train
    suffixes = {n.removeprefix("knn_of_") for n in made.names if n.startswith("knn_of_")}
    assert suffixes == set(log["act"].value_counts().index[:3])
    real = made.to_pandas().query("weight == 1")
    again = ItemKNN(shrink=5).fit(log["who"], log["what"]).score(real["who"], real["what"])
    assert np.allclose(real["knn_good"], again)  # all ratings are the mean


def test_kinds_are_numbers_or_any_text_and_targets_are_known():
    lists, log = simulated(13)
    numbers = log.assign(act=(log["act"] == "buy").astype(int))
    made = score_candidates(lists, numbers, kind="act", targets=[1], hide=1, **NAMES)
    again = score_candidates(
        lists, log.assign(act=log["act"].replace("buy", "users")), kind="act", targets=["users"], hide=1, **NAMES
    )
    assert made.hidden == again.hidden > 0
    assert np.allclose(made.train["knn_of_1"].values, again.train["knn_of_users"].values)
    assert np.allclose(made.train["knn_users"].values, again.train["knn_users"].values)
    refused(
        DataError,
        "column 'act': no event is of kind 'sold'. Give some of buy, view",
        lambda: score_candidates(lists, log, kind="act", targets=["sold"], **NAMES),
    )


def test_a_list_made_so_has_a_name_of_its_own():
    lists, log = simulated(14)
    lists["who"], log["who"] = lists["who"] + " without 1", log["who"] + " without 1"
    made = score_candidates(lists, log, **NAMES)
    assert made.train.to_pandas()["list"].nunique() == made.lists + made.hidden


def test_a_made_list_has_its_positive_where_the_list_had_one():
    lists, log = simulated(4)
    whole = score_candidates(lists, log, hide=1, **NAMES).train.to_pandas()
    made = whole[whole["weight"] < 1]
    place = {u: part["taken"].to_numpy().argmax() for u, part in lists.groupby("who")}
    for user, part in made.groupby("who"):
        own = lists.loc[lists["who"] == user, "what"].tolist()
        own[place[user]] = part.loc[part["taken"] == 1, "what"].item()
        assert part["what"].tolist() == [i for i in own if i in set(part["what"])]


def test_a_long_list_made_so_keeps_thirty_others_with_their_places_in_the_whole():
    rng = np.random.default_rng(0)
    lists = pd.DataFrame({"who": np.repeat(np.arange(5), 60), "what": np.tile(np.arange(60), 5)})
    lists["taken"] = (lists["what"] == 7).astype(int)
    log = pd.DataFrame({"who": rng.integers(0, 9, 300), "what": rng.integers(60, 90, 300)})
    log = pd.concat(
        [log, pd.DataFrame({"who": 8, "what": np.repeat(np.arange(60), np.arange(60))})]
    )  # only other users have candidates
    made = score_candidates(lists, log, hide=1, **NAMES).train.to_pandas()
    hidden = made[made["weight"] < 1]
    assert (hidden.groupby("who").size() == 31).all()
    assert hidden["item_events_place"].max() > 31


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000))
def test_labels_that_count_are_in_no_column_and_others_in_none_of_their_own_part(seed):
    lists, log = simulated(seed)
    asked = lists[lists["who"].isin(["u20", "u21", "u22", "u23"])].drop(columns="taken")
    known = lists.drop(asked.index)
    made = score_candidates(known, log, kind="act", targets=["buy"], test=asked, **NAMES)
    test, seen = made.test.to_pandas(), pd.concat([log, known.loc[known["taken"] == 1, ["who", "what"]]])
    seen = seen.fillna({"act": "buy"})
    assert np.allclose(test["knn"], ItemKNN(shrink=5).fit(seen["who"], seen["what"]).score(test["who"], test["what"]))
    bought = seen.loc[seen["act"] == "buy", "what"].value_counts()
    assert (test["item_events_of_buy"] == test["what"].map(bought).fillna(0)).all()
    assert made.test.names == [n for n in made.train.names if n not in ("taken", "weight", "counted")]
    before = made.train.to_pandas().query("weight == 1").drop(columns="taken")
    for user, blind in (("u2", set(known["who"])), ("u3", {"u3", "u13"})):
        rolled = known.groupby("who")["taken"].transform(lambda y: np.roll(y, 1))
        other = known.assign(taken=known["taken"].where(known["who"] != user, rolled))
        again = score_candidates(other, log, kind="act", targets=["buy"], test=asked, **NAMES).train.to_pandas()
        after = again.query("weight == 1").drop(columns="taken")
        assert ((before == after).all(axis=1) == before["who"].isin(blind)).all()


def test_answers_of_chance_stay_chance():
    rng, users, items, others = np.random.default_rng(0), 400, 40, 8
    lists = pd.DataFrame({"who": np.repeat(np.arange(users), others)})
    lists["what"] = np.concatenate([rng.permutation(items)[:others] for _ in range(users)])
    lists["taken"] = (np.arange(len(lists)) % others == np.repeat(rng.integers(others, size=users), others)).astype(int)
    log = pd.DataFrame({"who": rng.integers(users, size=1500), "what": items + rng.integers(items, size=1500)})
    log = pd.concat([log, pd.DataFrame({"who": users + np.arange(items), "what": np.arange(items)})])
    made = score_candidates(lists, log, hide=0, **NAMES).train.to_pandas()
    x = made.drop(columns=["who", "list", "taken", "weight", "counted"])
    x["usual"] = x["item_events"] - x.groupby("what")["item_events"].transform("mean")  # this had told them (.46)
    out = np.zeros(len(made))
    for train, valid in GroupKFold(5).split(x, groups=made["who"]):
        model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0)
        out[valid] = model.fit(x.iloc[train], made["taken"].iloc[train]).predict_proba(x.iloc[valid])[:, 1]
    ranks = pd.Series(-out).groupby(made["who"]).rank()[(made["taken"] == 1) & (made["counted"] == 1)]
    places = 1 / np.arange(1, others + 1)
    assert abs((1 / ranks).mean() - places.mean()) < 3 * places.std() / len(ranks) ** 0.5


def test_events_that_tell_the_label_are_left_out():
    lists, log = simulated(6)
    leak = lists.loc[lists["taken"] == 1, ["who", "what"]].assign(act="buy", stars=5.0)
    with pytest.warns(DataWarning, match=rf"{len(leak)} events are candidates of .*, too \(the first is in row "):
        told = score_candidates(lists, pd.concat([log, leak]), **NAMES)
    pd.testing.assert_frame_equal(told.train.to_pandas(), score_candidates(lists, log, **NAMES).train.to_pandas())
    with pytest.warns(DataWarning, match="every candidate of test is a labelled one"):
        score_candidates(lists, log, test=lists, **NAMES)


def test_lists_of_a_column_and_lists_without_a_positive():
    lists, log = simulated(7)
    twice = pd.concat([lists.assign(search="a" + lists["who"]), lists.assign(search="b" + lists["who"], taken=0)])
    made = score_candidates(twice, log, group="search", **NAMES)
    train = made.train.to_pandas()
    assert made.lists == lists["who"].nunique()
    assert train["list"].str.startswith("a").all()
    assert "search" not in train


def test_further_columns_stay_and_no_lists_are_made():
    lists, log = simulated(8)
    with pytest.warns(DataWarning, match="as price of a hidden item is not known"):
        made = score_candidates(lists.assign(price=np.arange(len(lists))), log, **NAMES)
    assert made.hidden == 0
    assert sorted(made.train.to_pandas()["price"]) == list(range(len(lists)))


def test_scores_are_ranked_by_their_mrr():
    lists, log = simulated(9)
    made = score_candidates(lists, log, hide=0, **NAMES)
    train, worth = made.train.to_pandas(), made.scores.to_pandas().set_index("score")["mrr"]
    assert worth.is_monotonic_decreasing
    assert "item_events" in worth
    for name in ("ease", "item_events"):
        right = train[train["taken"] == 1].set_index("list")[name]
        worst = [(part[name] >= right[of]).sum() for of, part in train.groupby("list")]
        assert worth[name] == pytest.approx(np.mean(1 / np.array(worst)), abs=0.05)  # ties are broken otherwise


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hide": -1}, "hide=-1 and seed=0. Give whole numbers of 0 or more"),
        ({"seed": -1}, "hide=4 and seed=-1. Give whole numbers of 0 or more"),
        ({"hide": 2.5}, "hide=2.5 and seed=0. Give whole numbers of 0 or more"),
        ({"lists": lambda x: x.assign(taken=2 * x["taken"] - 1)}, "column 'taken', row 1: the label is -1"),
        ({"targets": ["buy"]}, "kinds of events were named, and no column of kinds. Name it: kind=…"),
        (
            {"lists": lambda x: x.assign(taken=0)},
            "column 'taken': no list has a positive. Give the labels of some lists",
        ),
        (
            {"lists": lambda x: pd.concat([x, x[:1]])},
            "column 'what', row 144: the list has this item in an earlier row",
        ),
        (
            {"lists": lambda x: x.assign(search="one"), "group": "search"},
            "column 'who', row 6: the list has another user in an earlier row (138 such rows in all). Name the column",
        ),
        ({"lists": lambda x: x.assign(what="j" + x["what"])}, "column 'what': no candidate's item is in the log"),
        ({"lists": lambda x: x.assign(knn=1)}, "column 'knn': a new column has this name. Rename the column"),
        ({"log": lambda x: x.assign(stars=np.nan), "rating": "stars"}, "column 'stars': no event has a rating"),
        ({"log": lambda x: x.assign(who=x["who"].where(x["who"] != "u3"))}, "a value is missing"),
    ],
)
@pytest.mark.filterwarnings("ignore::fastrec.errors.DataWarning")
def test_refusals(change, words):
    lists, log = simulated(10)
    change = dict(change)
    lists, log = change.pop("lists", lambda x: x)(lists), change.pop("log", lambda x: x)(log)
    refused(DataError, re.escape(words), lambda: score_candidates(lists, log, **NAMES, **change))


def test_absent_columns_are_named():
    lists, log = simulated(11)
    refused(MissingColumnError, "taken", lambda: score_candidates(lists.drop(columns="taken"), log, **NAMES))
    without = log.drop(columns="act")
    refused(MissingColumnError, "act", lambda: score_candidates(lists, without, kind="act", **NAMES))
