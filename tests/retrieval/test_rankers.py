"""Trees that order candidates: as a model of sessions, and for several goals with features by kinds of events."""

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError, NotFittedError, UnreadableFileError
from fastrec.estimators._tree_model import Deadline
from fastrec.retrieval import (
    EventFeatures,
    ObjectiveRanker,
    RankedCandidates,
    cut_anywhere,
    events_of,
    rankers,
    recall_of_sets,
)
from fastrec.retrieval.rankers import _grown, _matrix, log_odds
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionFrame, SessionModel
from fastrec.table import Table, load_state, save_state
from tests._core.refusals import refused
from tests.sequences.helpers import chains, frame, lists_of, scores_of


@pytest.fixture(scope="module")
def fitted():
    """Models that say nothing of direction, with trees that can learn it."""
    models = {"popular": PopularItems(), "around": CoVisitation(before=1.0), "next": CoVisitation(before=0.0, window=1)}
    return RankedCandidates(models, k=15, share=0.3, rounds=20).fit(frame(chains(1, 500, 15)), seed=1)


def first_right(model: SessionModel, walks: list[list[int]]) -> float:
    asked = frame([w[:-1] for w in walks], items=model.items)
    best = model.items.decode(model.recommend(asked, 1)[0][:, 0]).to_pylist()
    return float(np.mean([b == w[-1] for b, w in zip(best, walks)]))


def test_trees_order_better_than_the_first_model(fitted):
    walks = chains(2, 150, 15)
    assert first_right(fitted, walks) > 0.6
    assert first_right(fitted.models["around"], walks) < 0.5


def test_scores_are_log_odds_above_the_least_candidates(fitted):
    asked = frame([[1, 2], [], [99], [3] * 50], items=fitted.items)
    for rows, scores in fitted.score(asked):
        table = fitted._candidates.union(asked.take(rows))
        there = torch.zeros_like(scores, dtype=torch.bool)
        there[table["session"].values, table["item"].values] = True
        x = _matrix(fitted._features(table, asked.take(rows))).numpy()
        odds = torch.logit(torch.from_numpy(fitted._trees.predict(xgb.DMatrix(x))).double())
        for row, row_scores in enumerate(scores):
            own = odds[table["session"].values == row]
            expected = (own - own.min()).float()
            torch.testing.assert_close(row_scores[there[row]], expected, rtol=1e-4, atol=1e-4)
            assert (row_scores[1:][~there[row, 1:]] < row_scores[there[row]].min()).all()


def test_the_time_given_is_shared_out():
    given = []

    class Slow(PopularItems):
        def _fit(self, sessions, *, seed, minutes):
            given.append(minutes)
            super()._fit(sessions, seed=seed, minutes=minutes)

    models = {"slow": Slow(), "quick": PopularItems(recency=0.5)}
    RankedCandidates(models, k=5, rounds=2).fit(frame(chains(5, 60, 15)), minutes=10)
    assert given[0] == pytest.approx(5, abs=0.5)  # half of the time for the past, the quick model took none
    assert given[1] == pytest.approx(10, abs=0.5)


def test_trees_stop_when_the_time_is_over(monkeypatch):
    models, log, seen = {"around": CoVisitation(before=1.0)}, frame(chains(1, 200, 15)), []
    monkeypatch.setattr(limits, "BLOCK", 500)  # a few sessions a block

    def grown(x, *given):
        seen.append(x.nan_to_num(-9.0))
        return _grown(x, *given)

    monkeypatch.setattr(rankers, "_grown", grown)
    for seed in (0, 1):
        ranker = RankedCandidates(models, share=0.3, rounds=200_000, negatives=1_000)
        assert ranker.fit(log, minutes=1e-6, seed=seed)._trees.num_boosted_rounds() < 200_000
    RankedCandidates(models, share=0.3, rounds=1, negatives=1_000).fit(log)
    few, others, whole = seen
    assert 0 < len(few) < len(whole) / 5  # of one block, and of all
    assert len(others) != len(few) or not torch.equal(others, few)  # of any sessions, not of the first


def test_a_model_that_takes_its_share_leaves_the_trees_their_events(monkeypatch):
    seen, now = [], [0.0]

    class Slow(PopularItems):
        def _fit(self, sessions, *, seed, minutes):
            now[0] += 60 * minutes
            super()._fit(sessions, seed=seed, minutes=minutes)

    def grown(x, *given):
        seen.append(len(x))
        return _grown(x, *given)

    monkeypatch.setattr(limits, "BLOCK", 1_000)
    monkeypatch.setattr(rankers, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    monkeypatch.setattr(rankers, "_grown", grown)
    for minutes in (None, 5):
        RankedCandidates({"slow": Slow() if minutes else PopularItems()}, share=0.3, rounds=1).fit(
            frame(chains(1, 200, 15)), minutes=minutes
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("rows", [60, 5_000])  # trees of few rows are a split deep, or none
def test_leaves_are_added_up_as_xgboost_does(rows):
    draw = np.random.default_rng(rows)
    x = draw.integers(-3, 4, (rows, 5)).astype("f4")  # values stand at thresholds too
    x[:, 3] = draw.normal(size=rows)
    y = (np.nan_to_num(x).sum(1) + draw.normal(size=rows) > 0).astype("f4")
    x[draw.random(x.shape) < 0.3] = np.nan
    grown = _grown(torch.from_numpy(x), torch.from_numpy(y), 40, 0)
    asked = np.tile(x, (5_000 // rows + 1, 1))  # enough for the compiled loop
    asked[::7] = np.nan
    found = log_odds(grown, torch.from_numpy(asked))
    np.testing.assert_array_equal(found, grown.predict(xgb.DMatrix(asked, missing=np.nan), output_margin=True))
    assert len(found.unique()) > 2
    params = {"objective": "binary:logistic", "max_depth": 9, "min_child_weight": 0}  # a saved model's own depth counts
    deep = xgb.train(params, xgb.DMatrix(x, y), 5)
    found = log_odds(deep, torch.from_numpy(np.tile(asked, (8, 1)))).view(8, -1)
    assert (found.numpy() == deep.predict(xgb.DMatrix(asked, missing=np.nan), output_margin=True)).all()


def test_the_recency_of_neighbours_is_chosen_once():
    class Choosing(VSTAN):
        chosen = 0

        def _held_out_recency(self, sessions, minutes):
            self.chosen += 1
            return [0.3, 0.1][self.chosen - 1]

    log, neighbours = frame(chains(1, 60, 15)), Choosing(recency="held-out")
    RankedCandidates({"knn": neighbours}, k=5, rounds=2).fit(log)
    assert neighbours.chosen == 1
    assert neighbours.settings()["recency"] == "held-out"  # another fit chooses anew
    assert torch.equal(scores_of(neighbours, log), scores_of(VSTAN(recency=0.3).fit(log), log))
    assert scores_of(neighbours.fit(log), log).equal(scores_of(VSTAN(recency=0.1).fit(log), log))


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


def visits(seed: int = 0, sessions: int = 60) -> SessionFrame:
    return SessionFrame(log(seed, sessions), item="item", session="session", order="t", features=["type"])


@pytest.fixture(scope="module")
def trained():
    known = visits()
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


def test_a_frame_of_other_kinds_and_items_gets_what_it_got_among_all(trained):
    """A frame of its own numbers kinds and items by its own: a session of clicks alone, or one with a kind more."""
    ranker, asked, _ = trained
    whole = ranker.recommend(asked, 5)
    ids = asked.items.values.to_pylist()
    kinds = [asked.kinds("type")[c] for c in asked.sides["type"]]
    parts = [slice(*asked.offsets[i : i + 2].tolist()) for i in range(len(asked))]
    clicked = [i for i, part in enumerate(parts) if set(kinds[part]) == {"clicks"}][:2]
    assert len(clicked) == 2
    for i in clicked:
        rows = {"s": 0, "item": [ids[c - 1] for c in asked.values[parts[i]]], "t": asked.times[parts[i]]}
        rows = pd.DataFrame({**rows, "type": "clicks"})
        fresh = SessionFrame(rows, item="item", session="s", order="t", features=["type"])
        assert len(fresh.codings["type"].vocab) < len(asked.codings["type"].vocab)
        got = ranker.recommend(fresh, 5)
        assert all(torch.equal(got[n][0], whole[n][i]) for n in KINDS)


def test_events_of_a_kind_that_was_not_there_count_for_none():
    known = visits(3, 12)
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


def test_features_by_kinds_of_events():
    known = visits(3, 12)
    features = EventFeatures("type").fit(known)
    session, item = (x.ravel() for x in np.indices((12, len(known.items) - 1)))  # every item for every session
    got = features(Table({"session": session, "item": item + 1}), known).to_pandas()
    events, names = log(3, 12), known.items.values.to_pylist()
    for row in got.to_dict("records"):
        own = events[events.session == row["session"]].reset_index(drop=True)
        about, every = (part[part["item"] == names[row["item"] - 1]] for part in (own, events))
        for kind in KINDS:
            assert row[f"own_{kind}"] == (about.type == kind).sum()
            assert row[f"session_{kind}"] == (own.type == kind).sum()
            assert row[f"item_{kind}"] == (every.type == kind).sum()
            assert row[f"item_{kind}_share"] == pytest.approx((every.type == kind).mean())
        steps = len(own) - 1 - about.index[-1] if len(about) else np.nan
        ago = own.t.iloc[-1] - about.t.iloc[-1] if len(about) else np.nan
        np.testing.assert_equal((row["own_steps_ago"], row["own_seconds_ago"]), (float(steps), float(ago)))


def test_sessions_are_cut_with_an_event_on_either_side():
    known = visits(5, 40)
    asked, later = cut_anywhere(known, seed=3)
    assert (asked.lengths > 0).all()
    assert (later.lengths > 0).all()
    assert asked.sessions.to_arrow().equals(later.sessions.to_arrow())
    assert [a + b for a, b in zip(lists_of(asked), lists_of(later))] == lists_of(known)
    again = cut_anywhere(known, seed=3)[0]
    assert torch.equal(again.offsets, asked.offsets)
    assert not torch.equal(cut_anywhere(known, seed=4)[0].offsets, asked.offsets)
    cuts = (asked.lengths.double() / known.lengths).tolist()
    assert min(cuts) < 0.4 < 0.7 < max(cuts)
    short = SessionFrame(pd.DataFrame({"items": [["a"], ["a", "b"], []]}), item="items")
    assert cut_anywhere(short)[0].values.tolist() == [1]


def test_events_of_a_kind():
    known, events = visits(7, 20), log(7, 20)
    for kind in KINDS:
        own = [events[(events.session == i) & (events.type == kind)]["item"].tolist() for i in range(20)]
        assert lists_of(events_of(known, "type", kind)) == own
        assert lists_of(events_of(known, "type", kind, first=True)) == [items[:1] for items in own]
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


def test_errors(trained, tmp_path):
    known, models = visits(0, 10), {"popular": PopularItems()}
    ranker = ObjectiveRanker(["clicks"], models)
    nothing = {"clicks": events_of(known, "type", "orders")}
    numbers = SessionFrame(log(0, 5), item="item", session="session", features=["t"])
    refused(DataError, "0 goals", lambda: ObjectiveRanker([], models))
    refused(NotFittedError, "Call find first", lambda: ranker.recommend(known))
    refused(NotFittedError, "Call learn first", lambda: ranker.find(known).recommend(known))
    refused(NotFittedError, "Call learn first", lambda: ranker.save(tmp_path / "bare"))
    refused(DataError, "wanted lacks the goal 'clicks'", lambda: ranker.learn(known, {}))
    refused(DataError, "no candidate is right for 'clicks'", lambda: ranker.learn(known, nothing))
    refused(MissingColumnError, "no such side feature", lambda: events_of(known, "kind", "clicks"))
    refused(DataError, "no kind of event", lambda: EventFeatures("t").fit(numbers))
    refused(DataError, "k is 2.5", lambda: trained[0].recommend(known, 2.5))
    refused(DataError, "sessions without times", lambda: trained[0].recommend(numbers, 5))
    refused(DataError, "0 models", lambda: RankedCandidates({}))
    trained[0].save(tmp_path / "damaged")
    state = load_state(tmp_path / "damaged")
    learned = {**state["learned"], "_trees": dict.fromkeys(KINDS, torch.zeros(9, dtype=torch.uint8))}
    save_state(tmp_path / "damaged", {**state, "learned": learned})
    refused(UnreadableFileError, "no ObjectiveRanker", lambda: ObjectiveRanker.load(tmp_path / "damaged"))
