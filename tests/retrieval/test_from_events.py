"""Candidates made from a log of events, against plain loops over the log."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError, WriteError
from fastrec.retrieval import (
    CandidateFeatures,
    Candidates,
    EventFeatures,
    ModelSource,
    PastFeatures,
    RepeatedItems,
    make_candidates,
)
from fastrec.sequences import CoVisitation, PopularItems, SessionFrame
from fastrec.table import Table
from tests._core.refusals import refused
from tests.sequences.helpers import frame, lists_of, random_lists

ITEMS = 15


def simulated(seed: int, users: int = 30, *, first: int = 1) -> pd.DataFrame:
    """Events in order of time: a row each, ids as text, times in seconds."""
    rng = np.random.default_rng(seed)
    rows = [(f"u{u:02d}", f"i{i:02d}") for u in range(users) for i in rng.integers(ITEMS, size=rng.integers(first, 9))]
    log = pd.DataFrame(rows, columns=["who", "what"]).sample(frac=1, random_state=seed, ignore_index=True)
    return log.assign(when=np.arange(len(log)) * 60.0)


def histories(log: pd.DataFrame) -> dict[str, list[str]]:
    return {u: part["what"].tolist() for u, part in log.groupby("who", sort=False)}


def made_of(log: pd.DataFrame, **options) -> tuple[pd.DataFrame, pd.DataFrame]:
    options = {"user": "who", "item": "what", "sources": {"popular": PopularItems()}, "k": 40, **options}
    made = make_candidates(log, **options)
    return made.train.to_pandas(), made.test.to_pandas()


def scores_by_pair(table: pd.DataFrame, column: str) -> dict[tuple, float]:
    return dict(zip(zip(table["who"], table["what"]), table[column].tolist()))


def test_users_without_times_are_cut_before_their_last_event():
    log = simulated(0)
    train, test = made_of(log[["who", "what"]], seen="drop")
    past, last = {}, {}
    for user, items in histories(log).items():
        past[user], last[user] = (items[:-1], items[-1]) if len(items) > 1 else (items, None)
    counts = Counter(i for items in past.values() for i in items)
    expected = {}
    for user, items in past.items():
        rows = {(user, i): float(i == last[user]) for i in counts if i not in items}
        expected |= rows if any(rows.values()) else {}
    assert scores_by_pair(train, "label") == expected
    assert scores_by_pair(train, "popular_score") == {pair: counts[pair[1]] for pair in expected}
    whole = Counter(log["what"])
    wanted = {(u, i): whole[i] for u, items in histories(log).items() for i in whole if i not in items}
    assert scores_by_pair(test, "popular_score") == wanted
    assert list(test) == [c for c in train if c != "label"]


@pytest.mark.parametrize("form", ["number", "text", "datetime"])
def test_users_with_times_are_cut_at_one_moment(form):
    log, moment = simulated(1), 60.0 * 70
    times = pd.to_datetime(log["when"], unit="s")
    given_ = {"number": log["when"], "text": times.dt.strftime("%Y-%m-%d %H:%M:%S"), "datetime": times}[form]
    cut = moment if form == "number" else str(pd.Timestamp(moment, unit="s"))
    train, test = made_of(log.assign(when=given_), time="when", cut=cut, seen="keep")
    early, late = log[log["when"] < moment], log[log["when"] >= moment]
    before, after, counts = histories(early), histories(late), Counter(early["what"])
    groups = [u for u in before if set(after.get(u, ())) & set(counts)]
    expected = {(u, i): float(i in after[u]) for u in groups for i in counts}
    assert scores_by_pair(train, "label") == expected
    for name, column, place in (("session_idle", "who", 0), ("item_idle", "what", 1)):
        last = early.groupby(column)["when"].max()
        assert scores_by_pair(train, name) == {p: early["when"].max() - last[p[place]] for p in expected}
    assert len(test) == log["who"].nunique() * log["what"].nunique()


def test_the_usual_cut_leaves_a_tenth_of_the_events_behind_it():
    log = simulated(2)
    moment = log["when"].sort_values().iloc[int(len(log) * 0.9)]
    usual = made_of(log, time="when")[0]
    pd.testing.assert_frame_equal(usual, made_of(log, time="when", cut=moment)[0])


def test_late_sessions_are_cut_somewhere_and_the_rest_is_learned_from():
    log = simulated(3, 60, first=3).sort_values("who", kind="stable")
    train, test = made_of(log[["who", "what"]], user=None, session="who", seen="keep")
    early, late = log[log["who"] < "u54"], log[log["who"] >= "u54"]
    counts, of = Counter(early["what"]), histories(late)
    assert set(train["who"]) <= set(of)
    assert scores_by_pair(train, "popular_score") == {(u, i): counts[i] for u in train["who"].unique() for i in counts}
    lengths = dict(zip(train["who"], train["session_length"].astype(int)))
    for (user, item), label in scores_by_pair(train, "label").items():
        assert 1 <= lengths[user] < len(of[user])
        assert label == (item in of[user][lengths[user] :])
    assert set(test["who"]) == set(of)
    assert dict(zip(test["who"], test["session_length"])) == {u: len(i) for u, i in of.items()}


def test_sessions_with_times_learn_from_what_was_before_the_first_late_one():
    log = simulated(4, 60)
    made = make_candidates(log, session="who", item="what", time="when", cut=6000.0, sources=["popular"], seen="keep")
    begins = log.groupby("who")["when"].min()
    train = made.train.to_pandas()
    assert set(begins[train["who"]] >= 6000.0) == {True}
    counts = Counter(log["what"][log["when"] < 6000.0])
    assert {i: s for (_, i), s in scores_by_pair(train, "popular_score").items()} == counts


@given(seed=st.integers(0, 10_000), by=st.sampled_from(["order", "time", "session"]))
@settings(max_examples=15, deadline=None)
def test_the_future_is_in_no_feature(seed, by):
    rng = np.random.default_rng(seed)
    log = simulated(seed, 40, first=2)
    if by == "session":  # each a stretch of time of its own
        log = log.sort_values("who", kind="stable", ignore_index=True).assign(when=np.arange(len(log)) * 60.0)
        names = {"user": None, "session": "who", "time": "when", "cut": 60.0 * int(len(log) * 0.7)}
        place = log.groupby("who").cumcount()
        future = (log["when"] >= names["cut"]) & (place >= 1)  # before it a session is cut nowhere
    elif by == "time":
        names = {"time": "when", "cut": 60.0 * int(len(log) * 0.7)}
        future = log["when"] >= names["cut"]
    else:
        names, future = {}, ~log.duplicated("who", keep="last")
    options = {"sources": ["next", "near", "ease", "knn", "popular", "own"], "seen": "keep", "k": 12, **names}
    other = log.copy()
    other.loc[future, "what"] = [f"i{i:02d}" for i in rng.integers(ITEMS + 5, size=int(future.sum()))]
    tables = [made_of(x, **options)[0] for x in (log, other)]
    if by == "session":  # of sessions whose own past is the same
        tables = [t[t["session_length"] == 1] for t in tables]
    one, two = (t.drop(columns="label").set_index(["who", "what"]) for t in tables)
    both = one.index.intersection(two.index)
    groups = set(one.reset_index()["who"]) & set(two.reset_index()["who"])
    assert {p for p in one.index if p[0] in groups} == {p for p in two.index if p[0] in groups}
    pd.testing.assert_frame_equal(one.loc[both], two.loc[both])


def test_repeats_decide_whether_own_items_are_candidates():
    log = simulated(5, 80, first=3)
    made = make_candidates(log[["who", "what"]], user="who", item="what", sources=["popular"])
    repeated = [items[-1] in items[:-1] for items in histories(log).values()]
    assert made.repeats == pytest.approx(sum(repeated) / len(repeated))
    assert made.seen
    fresh = pd.DataFrame([(u, i) for u in range(9) for i in range(u, u + 4)], columns=["who", "what"])
    made = make_candidates(fresh, user="who", item="what", sources=["popular"])
    assert (made.repeats, made.seen) == (0, False)
    own = set(map(tuple, fresh.to_numpy().tolist()))
    assert not own & set(zip(*(made.test.to_pandas()[c] for c in ("who", "what"))))


def test_kinds_say_what_is_a_positive_and_what_was_only_shown():
    log = simulated(6, 40, first=4)
    kinds = np.random.default_rng(0).choice(["click", "buy", "view"], len(log))
    log = log.assign(kind=kinds)
    options = {"kind": "kind", "targets": ["buy"], "shown": "view", "time": "when", "cut": 60.0 * 120, "seen": "keep"}
    train, _ = made_of(log, **options, negatives=2)
    early, late = log[log["when"] < 7200], log[log["when"] >= 7200]
    acts = early[early["kind"] != "view"]

    def of_kind(part: pd.DataFrame, kind: str) -> Counter:
        return Counter(zip(part["who"][part["kind"] == kind], part["what"][part["kind"] == kind]))

    pairs, seen_later, counts = set(of_kind(late, "buy")), set(of_kind(late, "view")), Counter(acts["what"])
    known, labels = set(early["what"]), scores_by_pair(train, "label")
    assert {p for p, label in labels.items() if label} == {
        p for p in pairs if p[0] in set(acts["who"]) and p[1] in known
    }
    assert scores_by_pair(train, "popular_score") == {(u, i): counts[i] for u, i in labels}
    assert {p for p in seen_later if p[0] in set(train["who"]) and p[1] in known} <= set(labels)
    for user in set(train["who"]):
        rows = {p for p in labels if p[0] == user}
        fixed = rows & (pairs | seen_later)  # positives, and negatives that were shown
        assert len(rows - fixed) == min(2, len(known) - len(fixed))
    own = of_kind(early, "view")
    assert scores_by_pair(train, "own_view") == {p: own[p] for p in labels}


def test_recall_is_that_of_loops():
    log = simulated(7, 60, first=3)[["who", "what"]]
    made = make_candidates(log, user="who", item="what", sources=["next", "popular"], k=4, seen="drop")
    past = {u: i[:-1] for u, i in histories(log).items()}
    last = {u: i[-1] for u, i in histories(log).items()}
    sessions = SessionFrame(pd.DataFrame({"items": list(past.values())}), item="items")
    near = {"next": CoVisitation(window=20, before=0.0, near=4.0, own=3.0, norm=(0.65, 0.25), again=0.0)}
    found = {}
    for name, model in {**near, "popular": PopularItems()}.items():
        items, _ = ModelSource(model, exclude_seen=True).fit(sessions).best(sessions, 4)
        found[name] = [set(sessions.decode(row[row > 0]).to_pylist()) for row in items]
    found["union"] = [a | b for a, b in zip(*found.values())]
    for row in made.recall.to_arrow().to_pylist():
        if row["source"] in found:
            hits = [last[u] in items for u, items in zip(past, found[row["source"]])]
            assert row["recall"] == pytest.approx(np.mean(hits)), row
            assert row["candidates"] == pytest.approx(np.mean([len(x) for x in found[row["source"]]]))
    train, taken = made.train.to_pandas(), made.recall.to_arrow().to_pylist()[-1]
    share = pytest.approx(train["label"].sum() / len(past))
    assert (taken["source"], taken["recall"], taken["gain"], made.found) == ("taken", share, share, share)
    assert taken["candidates"] == pytest.approx(np.mean([min(len(x), 4) for x in found["union"]]))
    assert made.groups == len(past)
    assert train.groupby("who").size().max() <= 4


def test_groups_to_rank_may_be_given_as_events_or_as_ids():
    log = simulated(8)
    later = pd.DataFrame({"who": ["new", "new", "other"], "what": ["i01", "i02", "i03"], "when": [1e6, 2e6, 3e6]})
    test = made_of(log, time="when", test=later, seen="drop")[1]
    assert set(test["who"]) == {"new", "other"}
    assert set(zip(test["who"], test["what"])).isdisjoint(zip(later["who"], later["what"]))
    some = pd.DataFrame({"who": ["u07", "nobody", "u03", "nobody", "u07"]})  # each is ranked once
    test = made_of(log, time="when", test=some, seen="drop")[1]
    whole = made_of(log, time="when", seen="drop")[1]
    assert list(test["who"].unique()) == ["u07", "nobody", "u03"]
    assert not test.duplicated(["who", "what"]).any()
    bad = pd.DataFrame({"who": ["u07", None]})
    refused(DataError, "'who', row 1: a row names no group", lambda: made_of(log, time="when", test=bad))
    pd.testing.assert_frame_equal(*(t[t["who"] == "u03"].reset_index(drop=True) for t in (test, whole)))
    assert (test["session_length"][test["who"] == "nobody"] == 0).all()


def test_groups_are_drawn_and_may_be_lists():
    log = simulated(9, 40, first=3)[["who", "what"]]
    whole = made_of(log, seen="keep")[0]
    some = made_of(log, seen="keep", groups=10)[0]
    assert 0 < some["who"].nunique() <= 10
    both = whole[whole["who"].isin(some["who"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(both, some)
    lists = log.groupby("who", sort=False)["what"].agg(list).reset_index()
    pd.testing.assert_frame_equal(made_of(lists, seen="keep")[0], whole)


def test_features_of_the_past():
    lists = random_lists(3, 20, 9)
    log = frame(lists)
    rows = [(s, i) for s in range(len(lists)) for i in range(1, len(log.items))]
    table = Table({"session": [s for s, _ in rows], "item": [i for _, i in rows]})
    found = PastFeatures().fit(log)(table, log).to_pandas()
    coded = [p.tolist() for p in log.values.split(log.lengths.tolist())]
    counts = Counter(i for items in coded for i in items)
    near: Counter = Counter()
    for items in coded:
        for p, a in enumerate(items):
            for q in range(p + 1, len(items)):
                if items[q] != a:
                    near[a, items[q]] += math.exp(-(q - p - 1) / 4) * counts[a] ** -0.65 * counts[items[q]] ** -0.25
    for row, (s, i) in zip(found.to_dict("records"), rows):
        back = [near[own, i] for own in coded[s][::-1]]
        for place in range(3):
            assert row[f"near_{place + 1}"] == pytest.approx(back[place] if place < len(back) else 0.0, rel=1e-5)
        assert row["near_most"] == pytest.approx(max(back), rel=1e-5)


def test_shares_of_late_events():
    log = SessionFrame({"s": [1] * 5, "i": [*"abbba"], "t": [0.0, 90, 95, 99, 100]}, item="i", session="s", order="t")
    table = Table({"session": [0, 0], "item": [1, 2]})
    found = PastFeatures(windows=[0.01, 0.1]).fit(log)(table, log).to_pandas()
    assert found["item_share_0.01"].tolist() == [0.5, 0.5]
    assert found["item_share_0.1"].tolist() == [0.25, 0.75]
    assert found["item_age"].tolist() == [100, 10]
    assert found["item_idle"].tolist() == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=60))
def test_what_is_recent_goes_by_time_and_not_by_the_rows(rows):
    log = pd.DataFrame(rows, columns=["s", "i", "t"])
    least = sorted(log["t"])[-max(1, len(log) // 20)]
    late = Counter(log["i"][log["t"] >= least])  # all that are as late as the first of the last twentieth
    for table in (log, log[::-1]):
        known = SessionFrame(table, item="i", session="s", order="t")
        codes = torch.arange(1, len(known.items))
        found = CandidateFeatures().fit(known)(Table({"session": codes * 0, "item": codes}), known)
        assert found["item_events_recent"].values.tolist() == [late[i] for i in known.decode(codes).to_pylist()]


def test_a_source_may_leave_out_what_was_seen():
    log = frame(random_lists(4, 60, 20))
    asked = frame([*random_lists(5, 20, 20), []], items=log.items)
    for model in (CoVisitation(), PopularItems()):
        source = ModelSource(model, exclude_seen=True).fit(log)
        items, scores = source.best(asked, 7)
        everything = ModelSource(model, fitted=True).best(asked, 100)
        for s, own in enumerate(lists_of(asked)):
            ids = log.decode(everything[0][s]).to_pylist()
            expected = [(i, v) for i, v in zip(ids, everything[1][s].tolist()) if i is not None and i not in own][:7]
            got = [(i, v) for i, v in zip(log.decode(items[s]).to_pylist(), scores[s].tolist()) if i is not None]
            assert got == expected
        again = Candidates.from_state(Candidates({"one": source}, 7).to_state())
        assert torch.equal(again.sources["one"].best(asked, 7)[0], items)


def test_without_kinds_all_events_are_of_one():
    log = frame([[1, 2, 1], [2]])
    table = Table({"session": [0, 0, 1], "item": [1, 2, 1]})
    found = EventFeatures(None).fit(log)(table, log).to_pandas()
    assert found["own_events"].tolist() == [2, 1, 0]
    assert found["session_events"].tolist() == [3, 3, 1]
    assert found["item_events"].tolist() == [2, 2, 2]
    assert found["own_steps_ago"].fillna(-1).tolist() == [0, 1, -1]


def test_what_was_made_is_written(tmp_path):
    sources = {"popular": PopularItems(), "own": RepeatedItems()}
    made = make_candidates(simulated(0), user="who", item="what", sources=sources)
    made.write(tmp_path / "out")
    made.write(tmp_path / "out")
    for name in ("train", "test"):
        read = pd.read_parquet(tmp_path / "out" / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, getattr(made, name).to_pandas(), check_dtype=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    refused(WriteError, "train.parquet", lambda: made.write(tmp_path / "mine"))


LOG = simulated(0)


WHEN, LATE = {"time": "when"}, np.where(LOG.index == 3, "soon", "2024-01-01")
BUY, OWN = {"kind": "kind", "targets": ["buy"]}, {"who": [1, 1, 2, 2], "what": [1, 2, 2, 1]}
NEW = {"who": [1, 1, 1, 2, 2, 2], "what": [1, 2, 8, 2, 1, 9]}


@pytest.mark.parametrize(
    ("words", "log", "options"),
    [
        ("a group is a user or a session", LOG, {"session": "who"}),
        ("a group is a user or a session", LOG, {"user": None}),
        ("'thing'", LOG, {"item": "thing"}),
        ("column 'what': the log has no event.", LOG[:0], {}),
        ("no event has an item", LOG.assign(what=None), {}),
        ("row 2: a row belongs to no session", LOG.assign(who=LOG["who"].where(LOG.index != 2)), {}),
        ("no 'who' has two events", LOG.drop_duplicates("who"), {}),
        ("column 'when', row 3: 'soon' is no time", LOG.assign(when=LATE), WHEN),
        ("column 'when', row 4: an event has no time", LOG.assign(when=LOG["when"].where(LOG.index != 4)), WHEN),
        ("no group has events before and after the cut", LOG, {**WHEN, "cut": -1.0}),
        ("'soon' is no time", LOG, {**WHEN, "cut": "soon"}),
        ("a log without times cannot be cut", LOG, {"cut": 3.0}),
        ("no source 'magic'", LOG, {"sources": ["magic"]}),
        ("no column of kinds", LOG, {"targets": ["buy"]}),
        ("column 'kind': there is no event of the kind 'buy'", LOG.assign(kind="click"), BUY),
        ("Rename the column", LOG.rename(columns={"who": "label"}), {"user": "label"}),
        ("Rename the column", LOG.rename(columns={"who": "fused"}), {"user": "fused"}),
        ("no source finds any of the 2 positives", pd.DataFrame(NEW), {}),
        ("before the cut no group has two events", pd.DataFrame(OWN), {}),
        ("k is 0", LOG, {"k": 0}),
        ("seen='kept'", LOG, {"seen": "kept"}),
        ("column 'who': it is named as groups and as items", LOG, {"item": "who"}),
    ],
)
def test_wrong_logs_and_options_are_named(words, log, options):
    refused((DataError, MissingColumnError), words, lambda: made_of(log, **options))


def test_whole_ids_that_pandas_made_floats_are_integers():
    log = simulated(0)
    numbers = {n: log[n].str[1:].astype(float) for n in ("who", "what")}
    log = log.assign(who=numbers["who"], what=numbers["what"].where(log.index % 7 != 3))
    made = make_candidates(log, user="who", item="what", sources={"popular": PopularItems()}, k=5)
    for table in (made.train, made.test):
        assert [str(table[n].to_arrow().type) for n in ("who", "what")] == ["int64", "int64"]
        assert set(table["what"].to_arrow().to_pylist()) <= set(log["what"].dropna().astype(int))
