"""Searching vectors: exactly against a plain sort, approximately as well as the index says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.retrieval import Index
from tests._core.refusals import refused


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
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 50), st.booleans())
def test_exact_search_is_a_sort(seed, count, k, masked):
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-2, 3, (count, 3), generator=random).float()  # many equal scores
    queries = torch.randint(-2, 3, (4, 3), generator=random).float()
    mask = torch.rand(count, generator=random) < 0.5 if masked else None
    places, scores = Index(vectors, verbose=False).search(queries, k, allowed=mask)
    order, best = plain(vectors, queries, k, mask)
    order = order.masked_fill(best == -torch.inf, -1)
    width = order.shape[1]
    assert torch.equal(places[:, :width], order)
    assert torch.equal(scores[:, :width], best.float())
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


def test_where_lists_are_poor_all_are_compared(many):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "INDEX_FEW", 1_000)
        assert Index(many[0], recall=0.9, verbose=False).kind == "ivf"
        index = Index(many[0], recall=1.01, verbose=False)
    assert (index.kind, index.recall) == ("exact", 1.0)
    assert torch.equal(index.search(many[1], 7)[0], plain(*many, 7)[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Index(torch.zeros(0, 3)), "no vector"),
        (lambda: Index(torch.zeros(3)), "vectors of"),
        (lambda: Index(torch.tensor([[1.0], [float("nan")]])), "not finite"),
        (lambda: Index(torch.zeros(2, 1), ["a", "a"]), "1 of them different"),
        (lambda: Index(torch.zeros(2, 1), ["a", None]), "of them different"),
        (lambda: Index(torch.zeros(2, 1), ["a"]), "1 ids"),
        (lambda: Index(torch.zeros(2, 1), metric="l2"), "metric='l2'"),
        (lambda: Index(torch.zeros(2, 1)).search(torch.zeros(1, 2), 1), r"give float \[n, 1\]"),
        (lambda: Index(torch.zeros(2, 1)).search(torch.zeros(1, 1), 0), "k=0"),
        (lambda: Index(torch.zeros(2, 1)).search(torch.zeros(1, 1), 1, allowed=[5]), "not in the index"),
        (lambda: Index(torch.zeros(2, 1)).search(torch.zeros(1, 1), 1, allowed=torch.ones(3).bool()), "a mask"),
    ],
)
def test_odd_input(make, words):
    refused(DataError, f"(?i){words}", lambda: make())


def test_nothing_asked_and_nothing_saved(tmp_path):
    places, scores = Index(torch.ones(3, 2), verbose=False).search(torch.zeros(0, 2), 4)
    assert places.shape == scores.shape == (0, 4)
    with pytest.raises(MissingFileError):
        Index.load(tmp_path / "none")
    Index(torch.ones(3, 2), verbose=False).save(tmp_path / "i")
    (tmp_path / "i" / "state.json").write_text('{"kind": "exact"}')
    with pytest.raises(UnreadableFileError):
        Index.load(tmp_path / "i")


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
