"""``ObjectiveRanker`` and what it is made of: features by kinds of events, cuts, recall of sets; against loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError, NotFittedError, UnreadableFileError
from fastrec.retrieval import EventFeatures, ObjectiveRanker, cut_anywhere, events_of, recall_of_sets
from fastrec.sequences import CoVisitation, PopularItems, SessionFrame
from fastrec.table import Table, load_state, save_state
from tests._core.refusals import refused

KINDS = ["clicks", "carts"]


def log(seed: int = 0, sessions: int = 60) -> pd.DataFrame:
    """An item is clicked; what goes into the cart is one of those clicked, mostly one of an even number."""
    rng = np.random.default_rng(seed)
    rows = []
    for s in range(sessions):
        t, start = 0, rng.integers(0, 20)
        for _ in range(rng.integers(3, 9)):
            t += int(rng.integers(1, 50))
            item = int((start + rng.integers(0, 5)) % 20)
            rows.append((s, item, t, "clicks"))
            if item % 2 == 0 and rng.random() < 0.7:
                rows.append((s, item, t + 1, "carts"))
                t += 1
    return pd.DataFrame(rows, columns=["session", "item", "t", "type"])


def frame(seed: int = 0, sessions: int = 60) -> SessionFrame:
    return SessionFrame(log(seed, sessions), item="item", session="session", order="t", features=["type"])


@pytest.fixture(scope="module")
def trained():
    known = frame()
    asked, later = cut_anywhere(known, seed=1)
    models = {"near": CoVisitation(), "popular": PopularItems()}
    ranker = ObjectiveRanker(KINDS, models, k=8, rounds=20)
    wanted = {n: events_of(later, "type", n) for n in KINDS}
    return ranker.find(asked).learn(asked, wanted, seed=0), asked, wanted


def test_each_goal_has_an_order_of_its_own(trained):
    ranker, asked, wanted = trained
    best = ranker.recommend(asked, 5)
    even = torch.tensor([0, *(v % 2 == 0 for v in asked.items.values.to_pylist())])
    share = {n: float(even[items[:, 0]].double().mean()) for n, items in best.items()}
    assert share["carts"] > 0.8 > share["clicks"]
    found = {n: recall_of_sets(best[n], wanted[n]) for n in KINDS}
    assert found["carts"] > recall_of_sets(best["clicks"], wanted["carts"])
    assert all(len(set(row[row > 0].tolist())) == int((row > 0).sum()) for row in best["carts"])


def test_a_session_alone_is_scored_as_beside_others(trained):
    ranker, asked, _ = trained
    whole = ranker.recommend(asked, 5)
    for i in (0, 17):
        alone = ranker.recommend(asked.take(torch.tensor([i])), 5)
        assert all(torch.equal(alone[n][0], whole[n][i]) for n in KINDS)


def test_a_source_in_place_of_the_trees(trained, tmp_path):
    """Its order first, what it did not find behind, by the trees; the other goal as before."""
    ranker, asked, _ = trained
    before = ranker.recommend(asked, 12)
    alone, there = ranker.candidates.sources["near"].best(asked, 8)
    ranker.instead = {"carts": "near"}
    try:
        best = ranker.recommend(asked, 12)
        ranker.save(tmp_path / "kept")
    finally:
        ranker.instead = {}
    assert torch.equal(best["clicks"], before["clicks"])
    for row, items in enumerate(best["carts"]):
        own = alone[row][there[row] > -torch.inf].tolist()
        behind = [i for i in before["carts"][row].tolist() if i and i not in own][: 12 - len(own)]
        shown = items.tolist()
        assert shown[: len(own)] == own
        assert shown[len(own) : len(own) + len(behind)] == behind
    again = ObjectiveRanker.load(tmp_path / "kept").recommend(asked, 12)
    assert all(torch.equal(again[n], best[n]) for n in KINDS)


def test_a_frame_of_other_kinds_and_items_gets_what_it_got_among_all(trained, tmp_path):
    """A frame of its own numbers kinds and items by its own: a session of clicks alone, or one with a kind more."""
    ranker, asked, _ = trained
    whole = ranker.recommend(asked, 5)
    ids = asked.items.values.to_pylist()
    kinds = ["", *asked.codings["type"].vocab.values.to_pylist()]
    clicked = [i for i in range(len(asked)) if set(side(asked, i, kinds)) == {"clicks"}][:2]
    assert len(clicked) == 2
    for i in clicked:
        part = slice(int(asked.offsets[i]), int(asked.offsets[i + 1]))
        rows = {"s": 0, "item": [ids[c - 1] for c in asked.values[part]], "t": asked.times[part], "type": "clicks"}
        fresh = SessionFrame(pd.DataFrame(rows), item="item", session="s", order="t", features=["type"])
        assert len(fresh.codings["type"].vocab) < len(asked.codings["type"].vocab)
        got = ranker.recommend(fresh, 5)
        assert all(torch.equal(got[n][0], whole[n][i]) for n in KINDS)


def side(frame, i, kinds):
    return [kinds[c] for c in frame.sides["type"][frame.offsets[i] : frame.offsets[i + 1]]]


def test_events_of_a_kind_that_was_not_there_count_for_none():
    known = frame(3, 12)
    features = EventFeatures("type").fit(known)
    item = known.items.values.to_pylist()[0]
    own = pd.DataFrame({"s": 0, "item": [item] * 3, "t": [0, 1, 2], "type": ["added", "carts", "added"]})
    asked = SessionFrame(own, item="item", session="s", order="t", features=["type"]).recode(known.items)
    table = Table({"session": torch.tensor([0]), "item": asked.values[:1]})
    for made in (features, EventFeatures.from_state(features.to_state())):
        got = made(table, asked)
        assert got.names == features(table, known).names
        assert [float(got[f"own_{n}"].values) for n in KINDS] == [0, 1]
        events = log(3, 12)
        assert float(got["item_clicks"].values) == ((events["item"] == item) & (events.type == "clicks")).sum()


def test_sessions_with_times_and_without_are_told_apart(trained):
    ranker, _, _ = trained
    bare = SessionFrame(log(0, 5), item="item", session="session", features=["type"])
    refused(DataError, "sessions without times", lambda: ranker.recommend(bare, 5))


def test_features_by_kinds_of_events():
    known = frame(3, 12)
    features = EventFeatures("type").fit(known)
    rng = np.random.default_rng(0)
    pairs = sorted(
        {(int(s), int(i)) for s, i in zip(rng.integers(0, 12, 60), rng.integers(1, len(known.items), 60), strict=True)}
    )
    session, item = (torch.tensor(x) for x in zip(*pairs, strict=True))
    got = features(Table({"session": session, "item": item}), known)
    events = log(3, 12)
    names = known.items.values.to_pylist()
    for row, (s, code) in enumerate(pairs):
        own = events[events.session == s].reset_index(drop=True)
        about = own[own["item"] == names[code - 1]]
        every = events[events["item"] == names[code - 1]]
        for kind in KINDS:
            assert got[f"own_{kind}"].values[row] == (about.type == kind).sum()
            assert got[f"session_{kind}"].values[row] == (own.type == kind).sum()
            assert got[f"item_{kind}"].values[row] == (every.type == kind).sum()
            np.testing.assert_allclose(got[f"item_{kind}_share"].values[row], (every.type == kind).mean(), rtol=1e-6)
        steps = len(own) - 1 - about.index[-1] if len(about) else np.nan
        ago = own.t.iloc[-1] - about.t.iloc[-1] if len(about) else np.nan
        np.testing.assert_equal(float(got["own_steps_ago"].values[row]), float(steps))
        np.testing.assert_equal(float(got["own_seconds_ago"].values[row]), float(ago))


def test_sessions_are_cut_with_an_event_on_either_side():
    known = frame(5, 40)
    asked, later = cut_anywhere(known, seed=3)
    assert (asked.lengths > 0).all()
    assert (later.lengths > 0).all()
    assert asked.sessions.to_arrow().equals(later.sessions.to_arrow())
    for i in range(len(known)):
        whole = known.take(torch.tensor([i])).values.tolist()
        parts = [f.take(torch.tensor([i])).values.tolist() for f in (asked, later)]
        assert parts[0] + parts[1] == whole
    again = cut_anywhere(known, seed=3)[0]
    assert torch.equal(again.offsets, asked.offsets)
    assert not torch.equal(cut_anywhere(known, seed=4)[0].offsets, asked.offsets)
    cuts = (asked.lengths.double() / known.lengths).tolist()
    assert min(cuts) < 0.4 < 0.7 < max(cuts)
    short = SessionFrame(pd.DataFrame({"items": [["a"], ["a", "b"], []]}), item="items")
    assert cut_anywhere(short)[0].values.tolist() == [1]


def test_events_of_a_kind():
    known = frame(7, 20)
    events = log(7, 20)
    names = known.items.values.to_pylist()
    for kind in KINDS:
        made = events_of(known, "type", kind)
        first = events_of(known, "type", kind, first=True)
        for i in range(20):
            own = events[(events.session == i) & (events.type == kind)]["item"].tolist()
            got = [names[c - 1] for c in made.values[made.offsets[i] : made.offsets[i + 1]]]
            one = [names[c - 1] for c in first.values[first.offsets[i] : first.offsets[i + 1]]]
            assert got == own
            assert one == own[:1]
    assert not len(events_of(known, "type", "orders").values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_recall_of_sets_is_that_of_a_loop(seed):
    """The formula of the OTTO competition: hits of all sessions / their ``min(20, wanted)``; some items are unknown."""
    rng = np.random.default_rng(seed)
    n, k, known = int(rng.integers(1, 6)), int(rng.integers(1, 5)), list("abcd")
    truth = [rng.choice([*known, "x", "y"], rng.integers(0, 7)).tolist() for _ in range(n)]
    said = [rng.permutation(5)[:k].tolist() for _ in range(n)]  # 0: none
    items = SessionFrame(pd.DataFrame({"items": [known]}), item="items").items
    wanted = SessionFrame(pd.DataFrame({"items": [known, *truth]}), item="items", items=items, unknown="keep")
    hits = possible = 0
    for asked, given_ in zip(truth, said, strict=True):
        hits += len(set(asked) & {known[c - 1] for c in given_ if c})
        possible += min(k, len(set(asked) & set(known)) + sum(a not in known for a in asked))
    got = recall_of_sets(torch.tensor(said).view(n, -1), wanted.take(torch.arange(1, n + 1)))
    np.testing.assert_allclose(got, hits / possible if possible else np.nan)


def test_errors_of_saving_and_of_what_is_wanted(trained, tmp_path):
    ranker, asked, wanted = trained
    bare = ObjectiveRanker(KINDS, {"popular": PopularItems()}).find(asked)
    refused(NotFittedError, "Call learn first", lambda: bare.save(tmp_path / "bare"))
    refused(DataError, "wanted lacks the goal 'carts'", lambda: bare.learn(asked, {"clicks": wanted["clicks"]}))
    save_state(tmp_path / "other", {"a": 1})
    refused(UnreadableFileError, "no ObjectiveRanker", lambda: ObjectiveRanker.load(tmp_path / "other"))
    ranker.save(tmp_path / "damaged")
    state = load_state(tmp_path / "damaged")
    learned = {**state["learned"], "_trees": dict.fromkeys(KINDS, torch.zeros(9, dtype=torch.uint8))}
    save_state(tmp_path / "damaged", {**state, "learned": learned})
    refused(UnreadableFileError, "no ObjectiveRanker", lambda: ObjectiveRanker.load(tmp_path / "damaged"))


def test_errors():
    known = frame(0, 10)
    models = {"popular": PopularItems()}
    refused(DataError, "0 goals", lambda: ObjectiveRanker([], models))
    ranker = ObjectiveRanker(["clicks"], models)
    refused(NotFittedError, "Call find first", lambda: ranker.recommend(known))
    refused(NotFittedError, "Call learn first", lambda: ranker.find(known).recommend(known))
    nothing = {"clicks": events_of(known, "type", "orders")}
    refused(DataError, "no candidate is right for 'clicks'", lambda: ranker.learn(known, nothing))
    refused(MissingColumnError, "no such side feature", lambda: events_of(known, "kind", "clicks"))
    numbers = SessionFrame(log(0, 5), item="item", session="session", features=["t"])
    refused(DataError, "no kind of event", lambda: EventFeatures("t").fit(numbers))
