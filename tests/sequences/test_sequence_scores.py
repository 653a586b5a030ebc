"""Metrics over all items against plain loops, with ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.sequences import best_items, sequence_metrics, target_ranks
from tests._core.refusals import refused

# few distinct scores, so that ties are common
SCORES = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 6)), min_size=1, max_size=8
)


def plain(scores: list[list[float]], target: list[int], k: int) -> dict[str, float]:
    hits, mrr, ndcg, shown = 0, 0.0, 0.0, set()
    for row, right in zip(scores, target, strict=True):
        ranking = sorted(range(1, len(row)), key=lambda i: (-row[i], i))[:k]
        shown.update(ranking)
        if right in ranking:
            place = ranking.index(right) + 1
            hits, mrr, ndcg = hits + 1, mrr + 1 / place, ndcg + 1 / math.log2(place + 1)
    n = len(target)
    found = {"hr": hits / n, "mrr": mrr / n, "ndcg": ndcg / n, "coverage": len(shown) / (len(scores[0]) - 1)}
    return {f"{name}@{k}": value for name, value in found.items()}


@given(SCORES, st.integers(1, 7))
def test_metrics_equal_plain_loops_however_they_are_given(rows, k):
    scores = [[-math.inf, *map(float, r)] for r, _ in rows]
    target = [t for _, t in rows]
    wanted = plain(scores, target, k)
    table, right = torch.tensor(scores), torch.tensor(target)
    assert sequence_metrics(table, right, k) == pytest.approx(wanted)
    blocks = [(rows, table[rows]) for rows in torch.randperm(len(table)).split(3)]
    assert sequence_metrics(iter(blocks), right, k) == pytest.approx(wanted)
    items = best_items(table, k)[0]
    assert sequence_metrics(items, right, k, codes=7) == pytest.approx(wanted)


def test_a_target_that_is_never_shown_is_not_found():
    scores = torch.tensor([[-torch.inf, -torch.inf, 1.0], [-torch.inf, torch.nan, 1.0]])
    assert target_ranks(scores, torch.tensor([1, 1])).tolist() == [3, 3]
    assert target_ranks(scores, torch.tensor([0, 2])).tolist() == [3, 1]


def test_what_cannot_be_scored_is_refused():
    scores = torch.rand(2, 4)
    refused(DataError, "targets", lambda: sequence_metrics(scores, torch.tensor([1])))
    with pytest.raises(DataError, match="not every session"):
        sequence_metrics([(torch.tensor([0]), scores[:1])], torch.tensor([1, 2]))
    with pytest.raises(DataError, match="items a session"):
        sequence_metrics(torch.ones(2, 3, dtype=torch.int64), torch.tensor([1, 2]), 5)


# What RecTools 0.19.0 gives: HitRate, Recall, MRR, NDCG(divide_by_achievable=True), CatalogCoverage(normalize=True).
RECTOOLS = {
    1: {"hr": 0.08333333333333333, "mrr": 0.08333333333333333, "ndcg": 0.08333333333333333, "coverage": 0.375},
    3: {"hr": 0.08333333333333333, "mrr": 0.08333333333333333, "ndcg": 0.08333333333333333, "coverage": 0.75},
    5: {"hr": 0.25, "mrr": 0.12083333333333333, "ndcg": 0.15146078044232789, "coverage": 1.0},
}


@pytest.mark.parametrize("k", sorted(RECTOOLS))
def test_metrics_equal_those_of_rectools(k, device):
    # 12 sessions, 8 items, scores of 0 to 3: where they are equal RecTools was given the lower item first
    session, code = torch.arange(12).unsqueeze(1), torch.arange(9)
    scores = ((7 * session + 5 * code + session * code) % 4).double()
    scores[:, 0] = -torch.inf  # no item
    target = (3 * torch.arange(12) + torch.arange(12) // 4) % 9  # 0: an item that is never recommended
    wanted = pytest.approx({f"{n}@{k}": v for n, v in RECTOOLS[k].items()})
    best = best_items(scores, k)[0]
    for own in (target, target.to(device)):  # targets lie on the host, or where the scores do
        assert sequence_metrics(scores.to(device), own, k) == wanted
        assert sequence_metrics(best.to(device), own, k, codes=9) == wanted
