"""Retrieve, filter, score, order: each stage against plain loops."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError, WriteError
from fastrec.estimators import XGBModel
from fastrec.retrieval import (
    EASE,
    MMR,
    Available,
    Boost,
    CandidateFeatures,
    Candidates,
    CandidateSource,
    HistoryFilter,
    InSegment,
    NearestVectors,
    Quota,
    RankedCandidates,
    Recommender,
    RepeatedItems,
    Saved,
    Seen,
    SegmentPopularity,
)
from fastrec.retrieval.candidates.sources import sessions_of
from fastrec.sequences import VSTAN, CoVisitation, NextItemNet, PopularItems, SessionFrame
from fastrec.sequences.losses import ppmi_svd
from fastrec.table import Table
from tests._core.refusals import refused
from tests.sequences.helpers import chains, frame

LOG = frame(chains(1, 200, 15))


def lists_of(table: Table, sessions: int) -> list[list]:
    found = [[] for _ in range(sessions)]
    for row in table.to_arrow().to_pylist():
        assert row["rank"] == len(found[row["session"]]) + 1
        found[row["session"]].append(row["item"])
    return found


def test_a_model_alone_gives_what_it_recommends(monkeypatch):
    asked = frame([*chains(2, 30, 15), [], [99]], items=LOG.items)
    model = VSTAN(k=20).fit(LOG)
    expected = [LOG.items.decode(row).to_pylist() for row in model.recommend(asked, 5)[0]]
    shop = Recommender(VSTAN(k=20), depth=10).fit(LOG)
    assert lists_of(shop.recommend(asked, 5), 32) == expected
    assert list(shop.seconds) == ["retrieve", "filter", "score", "order"]
    assert all(s > 0 for s in shop.seconds.values())
    monkeypatch.setattr(limits, "BLOCK", 70)  # blocks of seven sessions
    assert lists_of(shop.recommend(asked, 5), 32) == expected


def test_several_sources_without_a_ranker_by_their_ranks():
    asked = LOG.take(torch.arange(20))
    sources = Candidates({"near": CoVisitation(), "popular": PopularItems(), "own": RepeatedItems()}, 6)
    shown = Recommender(sources).fit(LOG).recommend(asked, 30).to_pandas()
    union = sources.union(asked)
    rows = pd.DataFrame({"session": union["session"].values, "item": LOG.items.decode(union["item"].values)})
    rows["score"] = sources.fused(union).numpy()
    rows = rows.sort_values(["session", "score"], ascending=[True, False], kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(shown[list(rows)], rows, check_dtype=False)


def test_one_session_as_in_a_batch():
    shop = Recommender(CoVisitation(), filters=[Seen()]).fit(LOG)
    lists = [[3, 4], [7], [], [99, 5], [1] * 9]
    batch = lists_of(shop.recommend(frame(lists, items=LOG.items), 4), 5)
    assert [shop.recommend_one(items, 4)["item"].to_arrow().to_pylist() for items in lists] == batch
    assert batch[2] == []


def segments() -> SessionFrame:
    lists = [c[:3] for c in chains(3, 120, 12)]
    logged = pd.DataFrame({"s": np.repeat(np.arange(120), [len(c) for c in lists]), "item": np.concatenate(lists)})
    logged["land"] = np.where(logged.s % 2 == 0, "dé", "fr")
    return SessionFrame(logged, item="item", session="s", features=["land"])


def test_filters():
    sessions, stock = segments(), Available([1, 2, 3, 4, 77])
    owns = [set(sessions.decode(codes).to_pylist()) for codes in sessions.values.split(sessions.lengths.tolist())]
    of_land = InSegment("land", {"dé": [1, 2], "at": [3]})
    shop = Recommender(PopularItems(), filters=[Seen(), stock, of_land], depth=20).fit(sessions)
    ranked = sessions.items.decode(PopularItems().fit(sessions).recommend(sessions, 12)[0][0]).to_pylist()
    found = lists_of(shop.recommend(sessions, 9), 120)
    for s, own in enumerate(owns):
        allowed = {1, 2} if s % 2 == 0 else {1, 2, 3, 4}
        assert found[s] == [i for i in ranked if i in allowed - own]
    stock.set([5])
    for s, items in enumerate(lists_of(shop.recommend(sessions, 9), 120)):
        assert items == ([] if s % 2 == 0 or 5 in owns[s] else [5])
    shop = Recommender(PopularItems(), filters=[InSegment("land", {"#na#": [2], "": [1]})], depth=20).fit(sessions)
    nowhere = sessions.new(pd.DataFrame({"s": [0], "item": [3], "land": [None]}))
    assert lists_of(shop.recommend(nowhere, 9), 1) == [[2]]
    shop = Recommender(PopularItems(), filters=[of_land]).fit(LOG)
    refused(KeyError, "column 'land': sessions have no such side feature", lambda: shop.recommend(LOG, 3))


def test_a_ranker_learns_to_order_candidates():
    log, walks = frame(chains(4, 600, 15)), chains(5, 100, 15)
    asked = frame([c[:-1] for c in walks], items=log.items)
    sources = Candidates({"popular": PopularItems(), "near": CoVisitation(before=1.0, again=1.0)}, 15)

    def trained():
        ranker = XGBModel(rounds=30, early_stopping_rounds=None, max_depth=3)
        return Recommender(sources, ranker=ranker).fit(log, share=0.3, seed=1)

    def rate(recommender):
        found = lists_of(recommender.recommend(asked, 1), 100)
        return np.mean([items[0] == walk[-1] for items, walk in zip(found, walks)])

    shop = trained()
    assert rate(shop) > 0.45 > 0.3 > rate(Recommender(sources).fit(log))
    assert str(trained().recommend(asked, 5).to_pandas()) == str(shop.recommend(asked, 5).to_pandas())


def test_features_of_candidates():
    log = frame([[1, 2], [1, 3], [2, 2]])
    asked = frame([[3, 2], []], items=log.items)
    table = Candidates({"own": RepeatedItems(decay=1.0), "pop": PopularItems()}, 5).fit(log).union(asked)
    made = CandidateFeatures().fit(log)(table, asked)
    rows = made.to_pandas()
    ids = log.items.decode(made["item"].values).to_pylist()
    assert [(s, i) for s, i in zip(rows.session, ids)] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert rows.item_events.tolist() == [2, 3, 1] * 2
    assert rows.item_events_recent.tolist() == [0, 2, 0] * 2
    assert rows.session_length.tolist() == [2] * 3 + [0] * 3
    assert rows.is_last_item.tolist() == [0, 1, 0, 0, 0, 0]
    assert rows.last_item_events.tolist() == [3] * 3 + [0] * 3
    np.testing.assert_allclose(rows.own_score_of_top[1:3], [1, np.exp(-1)], rtol=1e-6)
    np.testing.assert_allclose(rows.pop_score_of_sum, np.array([2, 3, 1] * 2) / 6, rtol=1e-6)
    assert np.isnan(rows.own_score_of_top[0])


def test_a_candidate_is_compared_with_the_vectors_of_the_session(monkeypatch):
    log = frame(chains(1, 60, 9))
    queries = frame([*chains(2, 30, 9), []], items=log.items)
    table = Candidates({"pop": PopularItems()}, 9).fit(log).union(queries)
    vectors = ppmi_svd(log, limits.CANDIDATE_VECTORS).double().numpy()

    def unit(vector):
        return vector / (np.linalg.norm(vector) or 1.0)

    wanted = []
    for session, item in zip(table["session"].values.tolist(), table["item"].values.tolist()):
        own = queries.values[queries.offsets[session] : queries.offsets[session + 1]].tolist()[::-1]
        latest = [unit(vectors[i]) for i in own]
        mean = sum((v * 0.7**back for back, v in enumerate(latest)), np.zeros(vectors.shape[1]))
        wanted.append([unit(vectors[item]) @ v for v in [*[*latest, mean * 0, mean * 0][:2], unit(mean)]])
    assert np.abs(wanted).max() > 0.9
    few = table.take(table["session"].values.flip(0) == 7)
    assert len(sessions_of(few, queries)[0]) == 1  # a stream's block costs no more than its own sessions
    for block in (limits.BLOCK, 1):
        monkeypatch.setattr(limits, "BLOCK", block)
        made = CandidateFeatures().fit(log)(table, queries)
        found = np.stack([made[f"similar_to_{n}"].values.numpy() for n in ("last", "previous", "session")], 1)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


ITEMS = frame([list(range(12))]).items


def candidates(seed: int):
    """Sessions 0, 2 and 3 with some items each, best first."""
    rng = np.random.default_rng(seed)
    session, item, score = [], [], []
    for s in (0, 2, 3):
        n = int(rng.integers(1, 11))
        session += [s] * n
        item += (rng.permutation(12)[:n] + 1).tolist()
        score += sorted(rng.integers(0, 6, n).tolist(), reverse=True)
    return torch.tensor(session), torch.tensor(item), torch.tensor(score, dtype=torch.float32)


def by_session(session, item, score):
    found = {0: [], 2: [], 3: []}
    for s, i, x in zip(session.tolist(), item.tolist(), score.tolist()):
        found[s].append((i, x))
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_boost(seed):
    session, item, score = candidates(seed)
    rows, made = Boost([2, 5, 77], 0.5)(session, item, score, ITEMS, 4)
    for s, pairs in by_session(session, item, score).items():
        spread = pairs[0][1] - pairs[-1][1]
        raised = [(i, x + 0.5 * spread * (i in (3, 6))) for i, x in pairs]
        expected = sorted(raised, key=lambda p: -p[1])
        assert by_session(session[rows], item[rows], made)[s] == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_quota(seed, most):
    session, item, score = candidates(seed)
    groups = {i: "ab"[i % 2] for i in range(9)}  # the last three have none
    rows, made = Quota(list(groups), list(groups.values()), most)(session, item, score, ITEMS, 4)
    for s, pairs in by_session(session, item, score).items():
        first, rest, held = [], [], {"a": 0, "b": 0}
        for i, x in pairs:
            group = groups.get(i - 1)
            if group is not None:
                held[group] += 1
            (rest if group is not None and held[group] > most else first).append((i, x))
        assert by_session(session[rows], item[rows], made)[s] == first + rest


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(1, 5))
def test_mmr(seed, share, k):
    session, item, score = candidates(seed)
    vectors = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed))
    rows, made = MMR(vectors, list(range(9)), share=share, depth=2)(session, item, score, ITEMS, k)
    normal = torch.nn.functional.normalize(vectors, dim=1)

    def cosine(a, b):
        return float(normal[a - 1] @ normal[b - 1]) if max(a, b) <= 9 else 0.0

    for s, pairs in by_session(session, item, score).items():
        low, high = pairs[-1][1], pairs[0][1]
        left, chosen = pairs[: 2 * k], []
        while left and len(chosen) < k:
            values = [
                share * (x - low) / ((high - low) or 1) - (1 - share) * max([0.0, *(cosine(i, j) for j, _ in chosen)])
                for i, x in left
            ]
            best = next(n for n, v in enumerate(values) if v > max(values) - 1e-6)
            chosen.append(left.pop(best))
        expected = chosen + [p for p in pairs if p not in chosen]
        assert by_session(session[rows], item[rows], made)[s] == expected


def test_orders_follow_one_another():
    shop = Recommender(PopularItems(), order=[Boost([3], 9.0), Quota([3, 4], ["x", "x"], 1)]).fit(LOG)
    found = lists_of(shop.recommend(LOG.take(torch.arange(2)), 15), 2)
    assert found[0][0] == 3
    assert found[0][-1] == 4
    assert len(shop.recommend(LOG.take(torch.zeros(0, dtype=torch.int64)), 3)) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Recommender(PopularItems(), ranker="runs/x"), "no ranker"),
        (lambda: Recommender(PopularItems()).fit(LOG).recommend(LOG, 2.5), "k is 2.5"),
        (lambda: Recommender(PopularItems()).recommend_one([1]), "not been fitted"),
        (lambda: Quota([1], ["a", "b"], 1), "2 groups"),
        (lambda: Quota([1], ["a"], 0), "at most 0"),
        (lambda: MMR(torch.ones(2, 2), [1]), "1 ids"),
        (lambda: MMR(torch.ones(1, 2), [1], share=2), "share=2"),
    ],
)
def test_what_makes_no_sense(make, words):
    refused(DataError, words, make)


# A saved recommender gives what it gave, and says what it cannot save or read


SAVED_LOG = frame(chains(1, 150, 15))
ASKED = frame([*chains(2, 20, 15), [], [99], [3]], items=SAVED_LOG.items)


class OddOnes(Saved):
    def _state(self):
        return {}

    def __call__(self, table, sessions):
        return table["item"].values % 2 == 1


class Mine(CandidateSource):
    def _fit(self, sessions):
        pass

    def _best(self, sessions, k):
        return torch.ones(len(sessions), k, dtype=torch.int64), torch.ones(len(sessions), k)


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "shop",
    [
        Recommender(CoVisitation(hops=2), filters=[Seen(), Available(range(2, 12))], order=[Boost([3, 4], 0.5)]),
        Recommender(HistoryFilter(EASE()), order=[Quota([1, 2, 3], ["a", "a", "b"], 1), MMR(vectors(5), range(5))]),
        Recommender(
            Candidates(
                {
                    "near": VSTAN(k=20),
                    "own": RepeatedItems(decay=2.0),
                    "popular": SegmentPopularity(most=7),
                    "like": NearestVectors(vectors(9), range(3, 12)),
                },
                {"near": 9, "own": 3, "popular": 4, "like": 5},
            ),
            filters=[OddOnes()],
        ),
        Recommender(Candidates({"near": CoVisitation(), "popular": PopularItems()}, 8), ranker=XGBModel(rounds=5)),
        Recommender(RankedCandidates(rounds=5), depth=12),
        Recommender(NextItemNet(width=8, epochs=1), depth=12),
    ],
    ids=["filters", "orders", "sources", "ranker", "ranked", "net"],
)
def test_what_was_saved_gives_the_same(shop, tmp_path):
    refused((NotFittedError, DataError), r"fitted|trained", lambda: shop.save(tmp_path / "shop"))
    shop.fit(SAVED_LOG)
    shop.save(tmp_path / "shop")
    again = Recommender.load(shutil.copytree(tmp_path / "shop", tmp_path / "moved"))
    for k in (1, 6):
        assert again.recommend(ASKED, k).to_arrow().equals(shop.recommend(ASKED, k).to_arrow())
    assert again.recommend_one([3, 4], 3).to_arrow().equals(shop.recommend_one([3, 4], 3).to_arrow())
    assert list(again.seconds) == ["retrieve", "filter", "score", "order"]
    shop.save(tmp_path / "shop")  # over the earlier one
    files = {p.suffix for p in (tmp_path / "shop").rglob("*") if p.is_file()}
    assert files <= {".json", ".safetensors", ".ubj", ".parquet"}


def test_side_features_are_read_as_before(tmp_path):
    log = segments()
    sources = Candidates({"of": SegmentPopularity("land"), "near": CoVisitation()}, 6)
    shop = Recommender(sources, filters=[InSegment("land", {"dé": [1, 2, 3]})]).fit(log)
    shop.save(tmp_path / "shop")
    again = Recommender.load(tmp_path / "shop")
    asked = pd.DataFrame({"s": [1, 1, 2], "item": [4, 5, 4], "land": ["dé", "dé", "fr"]})
    read = SessionFrame.of_form(again.form, again.items).new(asked)
    assert torch.equal(read.values, log.new(asked).values)
    found = again.recommend(read, 5)
    assert found.to_arrow().equals(shop.recommend(log.new(asked), 5).to_arrow())
    items = found.to_arrow().to_pandas()
    assert set(items[items.session == 0]["item"]) <= {1, 2, 3}
    assert len(SessionFrame.of_form(again.form, again.items)) == 0


class ByWeight:
    """A ranker of its own: it sees the features, and the context's columns by session."""

    def predict(self, table):
        assert set(table.names) == {"session", "item", "found_score", "found_rank", "sources", "twice", "weight"}
        assert table["weight"].values.tolist() == [float(s) for s in table["session"].values]
        assert torch.equal(table["twice"].values, 2 * table["found_score"].values)
        return table["item"].number()


def test_whatever_predicts_a_table_is_a_ranker(tmp_path):
    def twice(table, sessions):
        return table.with_columns({"twice": 2 * table["found_score"].values})

    shop = Recommender(PopularItems(), ranker=ByWeight(), features=twice).fit(SAVED_LOG)
    context = Table({"weight": torch.arange(len(ASKED)).double()})
    assert lists_of(shop.recommend(ASKED, 4, context=context), len(ASKED)) == [[14, 13, 12, 11]] * len(ASKED)
    with pytest.raises(DataError, match="1 rows of context for 23 sessions"):
        shop.recommend(ASKED, 2, context=context.take(torch.tensor([0])))
    refused(DataError, "ByWeight cannot be saved", lambda: shop.save(tmp_path / "shop"))


def test_what_cannot_be_saved_or_read_is_named(tmp_path):
    shop, path = Recommender(PopularItems(), filters=[OddOnes()]).fit(SAVED_LOG), tmp_path / "shop"
    of_lambda = Recommender(PopularItems(), filters=[lambda table, sessions: None])
    refused(DataError, r"lambda.* cannot be saved", lambda: of_lambda.fit(SAVED_LOG).save(path))
    refused(DataError, "Mine cannot be saved", lambda: Recommender(Mine()).fit(SAVED_LOG).save(path))
    assert not path.exists()
    refused(MissingFileError, r"recommender\.json", lambda: Recommender.load(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    refused(WriteError, "holds other things", lambda: shop.save(tmp_path / "other"))
    shop.save(path)
    state, about = (path / "stages" / "state.json"), path / "recommender.json"
    text = state.read_text()
    for file, damaged, error, words in (
        (state, text.replace('OddOnes"', 'EvenOnes"'), DataError, "EvenOnes', which is not known here"),
        (state, text.replace('"filters"', '"filtres"'), UnreadableFileError, "cannot be read"),
        (about, json.dumps({"ranker": "run"}), DataError, "its ranker is a run"),
        (about, "{}", UnreadableFileError, "cannot be read"),
    ):
        state.write_text(text)
        file.write_text(damaged)
        refused(error, words, lambda: Recommender.load(path))
