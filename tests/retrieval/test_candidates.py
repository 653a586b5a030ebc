"""Candidates of several sources side by side, against plain loops over their lists."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError, NotFittedError
from fastrec.retrieval import (
    Candidates,
    Index,
    ModelSource,
    NearestVectors,
    RepeatedItems,
    SegmentPopularity,
    cut_at,
    sample_negatives,
)
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionFrame
from fastrec.table import Table
from tests._core.refusals import refused
from tests.sequences.helpers import frame, lists_of, random_lists

LOG = frame(random_lists(1, 80, 20))


def both(k=6) -> Candidates:
    return Candidates({"near": CoVisitation(hops=2), "own": RepeatedItems(), "popular": PopularItems()}, k).fit(LOG)


def rows_of_table(table: Table) -> list[dict]:
    return table.to_arrow().to_pylist()


def test_a_source_gives_rows():
    source = ModelSource(VSTAN(k=9)).fit(LOG)
    asked = frame([[1, 2], [], [99], [5]], items=LOG.items)
    items, scores = source.model.recommend(asked, 5)
    expected = [(s, int(items[s, p]), float(scores[s, p]), p + 1) for s in range(4) for p in range(5) if items[s, p]]
    assert [tuple(r.values()) for r in rows_of_table(source.find(asked, 5))] == expected
    fitted = ModelSource(source.model, fitted=True).fit(frame([[1, 2], [1, 2]], items=LOG.items))
    assert torch.equal(fitted.best(asked, 5)[0], items)  # it stays as it is
    assert len(both().union(LOG.take(torch.zeros(0, dtype=torch.int64)))) == 0


def test_the_union_is_that_of_the_lists(monkeypatch):
    candidates, asked = both(), frame([*random_lists(2, 30, 22), []], items=LOG.items)
    whole = candidates.union(asked).to_pandas()
    found = [source.find(asked, 6).to_pandas().set_index(["session", "item"]) for source in candidates.sources.values()]
    wanted = pd.concat([t.add_prefix(f"{n}_") for n, t in zip(candidates.sources, found)], axis=1).sort_index()
    wanted["sources"] = wanted.notna().sum(axis=1) // 2
    pd.testing.assert_frame_equal(whole, wanted.reset_index(), check_dtype=False)
    monkeypatch.setattr(limits, "BLOCK", 18 * 4)  # blocks of four sessions
    blocks = [block.to_pandas() for block in candidates.stream(asked)]
    assert len(blocks) == 8
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), whole)
    assert set(candidates.seconds) == {"near", "own", "popular"}


def test_what_a_source_is_worth():
    candidates, asked = both(), frame(random_lists(3, 40, 20), items=LOG.items)
    wanted = frame([[*s[:3], 77] for s in random_lists(4, 40, 20)], items=LOG.items)
    table = candidates.union(asked)
    rows, owns = table.to_pandas(), [set(codes.tolist()) for codes in wanted.values.split(wanted.lengths.tolist())]
    total, right = sum(map(len, owns)), np.array([i in owns[s] for s, i in zip(rows["session"], rows["item"])])
    there = {n: (rows[f"{n}_rank"] <= 4).to_numpy() for n in candidates.sources}
    every = np.any([*there.values()], axis=0)
    found = candidates.recall(table, wanted, at=4).to_pandas().set_index("source")
    assert list(found.index) == ["near", "own", "popular", "union"]
    assert found["recall"]["union"] == pytest.approx((every & right).sum() / total)
    for name, own in there.items():
        others = np.any([t for n, t in there.items() if n != name], axis=0)
        values = (own & right).sum() / total, (every & right & ~others).sum() / total, own.sum() / 40
        assert found.loc[name, ["recall", "gain", "candidates"]].tolist() == pytest.approx(values)
    assert candidates.label(table, wanted).tolist() == right.tolist()
    one = torch.tensor([min(own, default=0) for own in owns])
    assert candidates.label(table, one).tolist() == [i == one[s] for s, i in zip(rows["session"], rows["item"])]


def test_ranks_become_one_score_by_weights():
    candidates, asked = both(), frame(random_lists(3, 40, 20), items=LOG.items)
    table = candidates.union(asked)
    ranks = table.to_pandas()[[f"{n}_rank" for n in candidates.sources]].to_numpy()
    terms = np.nan_to_num(1 / (60 + ranks))
    assert candidates.fused(table).tolist() == pytest.approx(terms.sum(1), rel=1e-6)
    weights = torch.tensor([2.0, 0.0, 0.5])
    assert candidates.fused(table, weights).tolist() == pytest.approx(terms @ [2, 0, 0.5], rel=1e-6)


def test_own_items():
    asked = frame([[1, 2, 1], [], [3, 99]], items=LOG.items)
    source = RepeatedItems(decay=2.0).fit(LOG)
    rows = rows_of_table(source.find(asked, 5))
    ids = LOG.items.decode(torch.tensor([r["item"] for r in rows])).to_pylist()
    assert [(r["session"], i) for r, i in zip(rows, ids)] == [(0, 1), (0, 2), (2, 3)]
    assert [r["score"] for r in rows] == pytest.approx([1 + math.exp(-1), math.exp(-0.5), 1.0])


def test_popularity_of_segments():
    rng = np.random.default_rng(5)
    log = pd.DataFrame({"s": np.repeat(np.arange(60), 3), "item": rng.integers(9, size=180)})
    log["land"] = np.where(log.s % 3 == 0, "de", "fr")
    sessions = SessionFrame(log, item="item", session="s", features=["land"])
    source = SegmentPopularity("land", recency=0.5).fit(sessions)
    items, _ = source.best(sessions, 12)
    for session, land in ((0, "de"), (1, "fr")):
        sums = Counter()
        for row in log[log.land == land].itertuples():
            sums[row.item] += math.exp(-(1 - row.s / 59) / 0.5)
        expected = sorted(sums, key=lambda i: (-sums[i], i))
        assert sessions.items.decode(items[session]).to_pylist() == expected + [None] * (12 - len(expected))
    other = sessions.new(log.assign(land="xx"))
    assert (source.best(other, 3)[0] == 0).all()  # nothing was seen there
    refused(MissingColumnError, "city", lambda: SegmentPopularity("city").fit(sessions))
    everywhere = SegmentPopularity(recency=None).fit(LOG)
    assert torch.equal(everywhere.best(LOG, 4)[0], PopularItems().fit(LOG).recommend(LOG, 4)[0])


def test_items_with_near_vectors():
    random = torch.Generator().manual_seed(0)
    vectors, ids = torch.randn(12, 4, generator=random), [*range(10), 500, 501]  # two are no items of the log
    vectors[10:] = torch.tensor([[9.0], [-9.0]])  # these would be nearest to anything
    source = NearestVectors(vectors, ids, decay=2.0, metric="dot").fit(LOG)
    asked = frame([[1, 2, 3], [], [15], [99, 4]], items=LOG.items)
    items, scores = source.best(asked, 3)
    query = vectors[3] + math.exp(-0.5) * vectors[2] + math.exp(-1) * vectors[1]
    for row, wanted in ((0, query), (3, vectors[4])):
        best = torch.argsort(vectors[:10] @ wanted, descending=True)[:3]
        assert LOG.items.decode(items[row]).to_pylist() == best.tolist()
        torch.testing.assert_close(scores[row], (vectors[:10] @ wanted)[best])
    assert (items[[1, 2]] == 0).all()  # 15 has no vector


def test_a_log_parted_by_time_hides_the_future():
    rng = np.random.default_rng(6)
    log = pd.DataFrame({n: rng.integers(most, size=200) for n, most in (("s", 20), ("item", 9), ("t", 99))})
    sessions = SessionFrame(log, item="item", session="s", order="t")
    known, asked, wanted = cut_at(sessions, 60)
    assert known.times.max() < 60 <= wanted.times.min()
    assert len(known.values) == (log.t < 60).sum()
    early, late = log[log.t < 60], log[log.t >= 60]
    some = [s for s in sessions.sessions.to_arrow().to_pylist() if (early.s == s).any() and (late.s == s).any()]
    assert asked.sessions.to_arrow().to_pylist() == wanted.sessions.to_arrow().to_pylist() == some
    for part, rows in ((asked, early), (wanted, late)):
        assert list(map(sorted, lists_of(part))) == [sorted(rows.item[rows.s == s]) for s in some]
    # what comes later changes no candidate
    changed = log.assign(item=np.where(log.t >= 60, (log.item + 1) % 9, log.item))
    other = cut_at(SessionFrame(changed, item="item", session="s", order="t", items=sessions.items), 60)
    sources = {"near": CoVisitation(), "own": RepeatedItems()}
    tables = [rows_of_table(Candidates(sources, 4).fit(k).union(a)) for k, a in ((known, asked), other[:2])]
    assert str(tables[0]) == str(tables[1])
    refused(DataError, "no times", lambda: cut_at(LOG, 60))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 5))
def test_negatives(seed, most):
    random = torch.Generator().manual_seed(seed)
    session = torch.randint(0, 6, (40,), generator=random)
    label = (torch.rand(40, generator=random) < 0.15).float()
    rows = sample_negatives(Table({"session": session}), label, most, seed=seed)
    assert rows.tolist() == sorted(set(rows.tolist()))
    for s in range(6):
        mine = session == s
        kept = rows[session[rows] == s]
        positives, negatives = int((label[mine] > 0).sum()), int((label[mine] == 0).sum())
        assert int((label[kept] > 0).sum()) == positives
        assert int((label[kept] == 0).sum()) == (min(most, negatives) if positives else 0)
    assert torch.equal(rows, sample_negatives(Table({"session": session}), label, most, seed=seed))


# Searching vectors: exactly against a plain sort, approximately as well as the index says


def clustered(count: int, clusters: int, spread: float, queries: int = 50, width: int = 16):
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, width, generator=random)

    def draw(n):
        return centres[torch.randint(clusters, (n,), generator=random)] + spread * torch.randn(
            n, width, generator=random
        )

    return draw(count), draw(queries)


def plain(vectors, queries, k, mask=None):
    scores = queries.double() @ vectors.double().T
    if mask is not None:
        scores[:, ~mask] = -torch.inf
    order = torch.argsort(scores, dim=1, descending=True, stable=True)[:, :k]
    return order, scores.gather(1, order)


def recall(found, expected):
    return float((found[:, :, None] == expected[:, None, :]).any(2).double().mean())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 50), st.integers(0, 4), st.booleans())
def test_exact_search_is_a_sort(seed, count, k, asked, masked):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-2, 3, (count, 3), generator=random).float()  # many equal scores
    queries = torch.randint(-2, 3, (asked, 3), generator=random).float()
    mask = torch.rand(count, generator=random) < 0.5 if masked else None
    places, scores = Index(vectors, verbose=False).search(queries, k, allowed=mask)
    order, best = plain(vectors, queries, k, mask)
    order = order.masked_fill(best == -torch.inf, -1)
    width = order.shape[1]
    assert torch.equal(places[:, :width], order)
    assert torch.equal(scores[:, :width], best.float())
    assert places.shape == scores.shape == (asked, k)
    assert (places[:, width:] == -1).all()
    assert (scores[:, width:] == -torch.inf).all()


def test_the_cosine_does_not_look_at_lengths():
    vectors, queries = clustered(60, 5, 0.3)
    lengths = torch.rand(60, 1) * 9 + 0.1
    places, scores = Index(vectors * lengths, metric="cosine", verbose=False).search(queries * 7, 5)
    normal = torch.nn.functional.normalize
    order, best = plain(normal(vectors, dim=1), normal(queries, dim=1), 5)
    assert torch.equal(places, order)
    torch.testing.assert_close(scores, best.float())


@pytest.mark.parametrize("ids", [None, [f"item {i}" for i in range(60)], np.arange(60) * 2**40, list(range(60, 0, -1))])
def test_ids_of_any_kind(tmp_path, ids):
    vectors, queries = clustered(60, 5, 0.3)
    index = Index(vectors, ids, verbose=False)
    places, _ = index.search(queries, 3)
    named = list(range(60)) if ids is None else list(ids)
    expected = [named[p] for p in places.reshape(-1).tolist()]
    assert index.decode(places).to_arrow().to_pylist() == expected
    index.save(tmp_path / "i")
    again = Index.load(tmp_path / "i")
    assert again.decode(again.search(queries, 3)[0]).to_arrow().to_pylist() == expected
    some = [named[7], named[3]]
    only, scores = index.search(queries, 3, allowed=some)
    assert {named[p] for p in only[:, :2].reshape(-1).tolist()} == set(some)
    assert (only[:, 2] == -1).all()
    assert (scores[:, 2] == -torch.inf).all()
    assert index.decode(only[:1]).to_arrow().to_pylist()[2] is None


@pytest.fixture(scope="module")
def many():
    pytest.importorskip("faiss")
    return clustered(12_000, 40, 0.5)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_recall_is_what_the_index_says(tmp_path, capsys, many, kind):
    vectors, queries = many
    index = Index(vectors, kind=kind, recall=0.9)
    assert index.kind == kind
    assert f"{index.recall:.4f}" in capsys.readouterr().out
    expected = plain(vectors, queries, 100)[0]
    places, scores = index.search(queries, 100)
    found = recall(places, expected)
    assert found > (0.9 if kind == "ivf" else 0.8)
    assert abs(found - index.recall) < 0.05
    torch.testing.assert_close(scores, (queries @ vectors.T).gather(1, places), rtol=1e-4, atol=1e-4)
    index.save(tmp_path / "i")
    again = Index.load(tmp_path / "i")
    assert (again.kind, again.recall, again.about) == (index.kind, index.recall, index.about)
    assert torch.equal(again.search(queries, 100)[0], places)


def test_exact_search_takes_the_place_of_lists_that_do_not_pay(monkeypatch, many):
    monkeypatch.setattr(limits, "INDEX_FEW", 5_000)
    assert Index(many[0], verbose=False).kind == "ivf"
    tight = clustered(12_000, 600, 0.3)[0]
    lists = Index(tight, kind="ivf", verbose=False)
    assert lists.recall >= 0.98
    assert "128 lists, 64 probed" in lists.about
    index = Index(tight, verbose=False)
    assert (index.kind, index.recall) == ("exact", 1.0)


def test_queries_of_ones_own_are_what_recall_is_measured_on(many):
    vectors, _ = many
    random = torch.Generator().manual_seed(3)
    far = torch.randn(200, 16, generator=random)
    index = Index(vectors, kind="ivf", recall=0.9, queries=far, verbose=False)
    asked = torch.randn(100, 16, generator=random)
    assert abs(recall(index.search(asked, 100)[0], plain(vectors, asked, 100)[0]) - index.recall) < 0.06


def test_filters_of_an_approximate_index(many):
    vectors, queries = many
    index = Index(vectors, kind="ivf", recall=0.95, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "INDEX_FEW", 5_000)  # more are allowed than are searched exactly
        patch.setattr(index, "_exact", lambda *a: pytest.fail("every vector was compared"))
        mask = torch.arange(12_000) % 4 > 0
        places, scores = index.search(queries, 10, allowed=mask)
    assert mask[places].all()
    assert recall(places, plain(vectors, queries, 10, mask)[0]) > 0.9
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    few = torch.zeros(12_000, dtype=torch.bool)
    few[[5, 9, 11]] = True
    places, _ = index.search(queries, 5, allowed=few)
    assert torch.equal(places[:, :3], plain(vectors, queries, 3, few)[0])
    assert (places[:, 3:] == -1).all()


def flat() -> Index:
    return Index(torch.zeros(2, 1), verbose=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Candidates({}), "sources"),
        (lambda: Candidates({"a": RepeatedItems()}, {"b": 3}), "k of"),
        (lambda: RepeatedItems(decay=0), "decay"),
        (lambda: SegmentPopularity(recency=0), "recency"),
        (lambda: NearestVectors(torch.ones(1, 1), [1], decay=0), "decay"),
        (lambda: RepeatedItems().fit(LOG).find(LOG, 2.5), "k is 2.5"),
        (lambda: RepeatedItems().find(LOG, 3), "not been fitted"),
        (lambda: sample_negatives(Table({"session": [1]}), torch.zeros(2), 1), "2 labels"),
        (lambda: Index(torch.zeros(0, 3)), "no vector"),
        (lambda: Index(torch.zeros(3)), "vectors of"),
        (lambda: Index(torch.tensor([[1.0], [float("nan")]])), "not finite"),
        (lambda: Index(torch.zeros(2, 1), ["a", "a"]), "1 of them different"),
        (lambda: Index(torch.zeros(2, 1), ["a", None]), "of them different"),
        (lambda: Index(torch.zeros(2, 1), ["a"]), "1 ids"),
        (lambda: Index(torch.zeros(2, 1), metric="l2"), "metric='l2'"),
        (lambda: flat().search(torch.zeros(1, 2), 1), r"give float \[n, 1\]"),
        (lambda: flat().search(torch.zeros(1, 1), 0), "k is 0"),
        (lambda: flat().search(torch.zeros(1, 1), 1, allowed=[5]), "not in the index"),
        (lambda: flat().search(torch.zeros(1, 1), 1, allowed=torch.ones(3).bool()), "a mask"),
    ],
)
def test_odd_input(make, words):
    refused((DataError, NotFittedError), f"(?i){words}", make)


def test_as_many_are_found_as_were_asked_for():
    pytest.importorskip("faiss")
    vectors, queries = clustered(3_000, 40, 0.3, queries=5)
    for kind in ("ivf", "hnsw"):
        index = Index(vectors, kind=kind, verbose=False)
        places, scores = index.search(queries, 2_500)
        assert bool((places >= 0).all())
        assert bool(torch.isfinite(scores).all())
        assert all(len(set(row)) == 2_500 for row in places.tolist())
        places, scores = index.search(queries, 3_010)  # more than there are
        assert bool((places[:, :3_000] >= 0).all())
        assert bool((places[:, 3_000:] == -1).all())
