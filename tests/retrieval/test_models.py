"""Each collaborative filter against a plain computation of its formula."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics.pairwise import cosine_similarity

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.retrieval import (
    EASE,
    HistoryFilter,
    ImplicitALS,
    ItemKNN,
    Popularity,
    RP3Beta,
    SpectralFilter,
    UserKNN,
)
from fastrec.sequences import SessionModel
from tests._core.refusals import refused
from tests.sequences.helpers import frame, scores_of

N_USERS, N_ITEMS = 30, 12


@pytest.fixture(scope="module")
def matrix() -> np.ndarray:
    """Weights of who took what: every user and every item has some."""
    rng = np.random.default_rng(3)
    made = (rng.random((N_USERS, N_ITEMS)) < 0.3) * rng.integers(1, 4, (N_USERS, N_ITEMS)).astype(float)
    made[np.arange(N_USERS), np.arange(N_USERS) % N_ITEMS] = 2.0
    return made


def all_scores(model, matrix: np.ndarray, *, weighted: bool = True) -> np.ndarray:
    """The model's scores of all pairs, fitted to the matrix as a list of pairs in another order."""
    users, items = matrix.nonzero()
    order = np.random.default_rng(0).permutation(len(users))
    users, items = users[order], items[order]
    model.fit(users, [f"i{j:02d}" for j in items], matrix[users, items] if weighted else None)
    every = np.indices(matrix.shape).reshape(2, -1)
    return model.score(every[0], [f"i{j:02d}" for j in every[1]]).numpy().reshape(matrix.shape)


def test_popularity_is_the_sum_of_weights(matrix):
    np.testing.assert_allclose(all_scores(Popularity(), matrix), np.tile(matrix.sum(0), (N_USERS, 1)))
    counts = np.tile((matrix > 0).sum(0), (N_USERS, 1))
    np.testing.assert_allclose(all_scores(Popularity(), matrix, weighted=False), counts)


def test_ease_is_the_ridge_regression_of_every_item_on_the_others(matrix):
    expected = np.zeros_like(matrix)
    for j in range(N_ITEMS):
        others = np.delete(matrix, j, axis=1)
        ridge = others.T @ others + 5.0 * np.eye(N_ITEMS - 1)
        expected[:, j] = others @ np.linalg.solve(ridge, others.T @ matrix[:, j])
    np.testing.assert_allclose(all_scores(EASE(reg=5.0), matrix), expected, atol=1e-10)


def test_ease_of_some_items_is_ease_without_the_others(matrix):
    counts = (matrix > 0).sum(0)
    kept = np.sort(np.argsort(-counts, kind="stable")[:7])
    found = all_scores(EASE(reg=5.0, max_items=7), matrix)
    small = all_scores(EASE(reg=5.0), matrix[:, kept])
    np.testing.assert_allclose(found[:, kept], small, atol=1e-12)
    assert (np.delete(found, kept, axis=1) == 0).all()
    refused(DataError, "reg=0", lambda: EASE(reg=0))


def test_item_knn_sums_cosines(matrix):
    cosines = cosine_similarity(matrix.T)
    np.fill_diagonal(cosines, 0)
    np.testing.assert_allclose(all_scores(ItemKNN(), matrix), matrix @ cosines)


def test_item_knn_shrinks_and_holds_back_users_and_neighbours(matrix):
    used = matrix / (matrix > 0).sum(1, keepdims=True) ** 0.5
    similar = np.zeros((N_ITEMS, N_ITEMS))
    for i in range(N_ITEMS):
        for j in range(N_ITEMS):
            squares = (used[:, i] ** 2).sum() ** 0.8, (used[:, j] ** 2).sum() ** 0.2
            similar[i, j] = 0 if i == j else used[:, i] @ used[:, j] / (squares[0] * squares[1] + 1.5)
    for row in similar:
        row[np.argsort(-row)[4:]] = 0
    found = all_scores(ItemKNN(k=4, shrink=1.5, asymmetry=0.2, user_power=0.5), matrix)
    np.testing.assert_allclose(found, matrix @ similar)


def test_user_knn_sums_cosines_of_users(matrix):
    used = matrix / (matrix > 0).sum(0) ** 0.3
    cosines = used @ used.T
    lengths = np.linalg.norm(used, axis=1)
    cosines /= lengths[:, None] * lengths + 0.7
    np.fill_diagonal(cosines, 0)
    for row in cosines:
        row[np.argsort(-row)[9:]] = 0
    np.testing.assert_allclose(all_scores(UserKNN(k=9, shrink=0.7, item_power=0.3), matrix), cosines @ matrix)


def test_rp3beta_walks_three_steps(matrix):
    expected = np.zeros_like(matrix)
    to_item, to_user = matrix / matrix.sum(1, keepdims=True), (matrix / matrix.sum(0)).T
    for u in range(N_USERS):
        for first in range(N_ITEMS):
            for other in range(N_USERS):
                for last in range(N_ITEMS):
                    if last != first:
                        steps = to_item[u, first] * to_user[first, other] * to_item[other, last]
                        expected[u, last] += steps**0.8 / matrix[:, last].sum() ** 0.4
    np.testing.assert_allclose(all_scores(RP3Beta(alpha=0.8, beta=0.4), matrix), expected)


@pytest.mark.parametrize("factors", [3, 50])
def test_spectral_filter_is_gf_cf(matrix, factors):
    degree = matrix.sum(0)
    normal = matrix / np.sqrt(matrix.sum(1, keepdims=True)) / np.sqrt(degree)
    vectors = np.linalg.svd(normal)[2][: min(factors, N_ITEMS - 1)]
    low = np.diag(degree**-0.5) @ vectors.T @ vectors @ np.diag(degree**0.5)
    expected = matrix @ (normal.T @ normal + 0.6 * low)
    np.testing.assert_allclose(all_scores(SpectralFilter(factors=factors, alpha=0.6), matrix), expected, atol=1e-10)


def als_loss(model: ImplicitALS, matrix: np.ndarray, users: np.ndarray, items: np.ndarray) -> float:
    """Hu's objective with the ridge's power, pair by pair."""
    confidence = 1 + model.alpha * matrix
    total = (confidence * ((matrix > 0) - users @ items.T) ** 2).sum()
    for vectors, theirs in ((users, matrix), (items, matrix.T)):
        for vector, row in zip(vectors, theirs):
            total += model.reg * (1 + model.alpha * row[row > 0]).sum() ** model.power * (vector**2).sum()
    return total


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize("factors", [2, 6, 20])  # shorter and longer than histories: both ways to solve
def test_als_solves_for_users_and_lowers_its_loss(matrix, power, factors):
    losses = []
    for iterations in range(1, 8):
        model = ImplicitALS(factors=factors, reg=0.2, alpha=3.0, iterations=iterations, power=power)
        scores = all_scores(model, matrix)
        users, items = model._learned["users"], model._learned["items"]
        np.testing.assert_allclose(scores, users @ items.T)
        losses.append(als_loss(model, matrix, users, items))
    assert (np.diff(losses) < 1e-9).all()
    assert losses[-1] < losses[0]
    for u, row in enumerate(matrix):
        confidence = np.diag(1 + 3.0 * row)
        ridge = 0.2 * (1 + 3.0 * row[row > 0]).sum() ** power * np.eye(factors)
        expected = np.linalg.solve(items.T @ confidence @ items + ridge, items.T @ confidence @ (row > 0))
        np.testing.assert_allclose(users[u], expected, atol=1e-9)


@pytest.mark.parametrize("at_once", [7, 1 << 16])
def test_nearest_are_the_largest_similarities_with_the_history(matrix, monkeypatch, at_once):
    monkeypatch.setattr(limits, "ITEM_KNN_AT_ONCE", at_once)
    model = ItemKNN(shrink=1.0)
    all_scores(model, matrix)
    similar = matrix.T @ matrix / (np.linalg.norm(matrix, axis=0)[:, None] * np.linalg.norm(matrix, axis=0) + 1.0)
    np.fill_diagonal(similar, 0)
    every = np.indices(matrix.shape).reshape(2, -1)
    expected = [np.sort(matrix[u] * similar[i])[::-1][:3] for u, i in every.T]
    found = model.nearest(every[0], [f"i{j:02d}" for j in every[1]], 3)
    np.testing.assert_allclose(found, expected)
    assert model.nearest([99, 0], ["i00", "none"]).tolist() == [[0.0], [0.0]]


# Collaborative filters as models of sessions: scores as if a session were a user of the log


FILTERS = [
    lambda: EASE(reg=3.0),
    lambda: EASE(reg=3.0, max_items=4),
    lambda: ImplicitALS(factors=3, iterations=3),
    lambda: ItemKNN(k=4),
    Popularity,
    RP3Beta,
    lambda: SpectralFilter(factors=3),
]


RNG = np.random.default_rng(0)
LOG = [RNG.permutation(9)[:n].tolist() for n in RNG.integers(2, 7, 40)]


@pytest.mark.parametrize("make", FILTERS)
def test_sessions_of_the_log_score_as_its_users(make):
    sessions = frame(LOG)
    model = HistoryFilter(make()).fit(sessions)
    filter = make().fit(*zip(*[(user, item) for user, items in enumerate(LOG) for item in items]))
    every = np.indices((len(LOG), 9)).reshape(2, -1)
    expected = filter.score(*every).reshape(len(LOG), 9)
    torch.testing.assert_close(scores_of(model, sessions)[:, 1:], expected.float(), rtol=1e-4, atol=1e-5)


def test_older_items_count_less():
    model = HistoryFilter(EASE(reg=3.0), decay=2.0).fit(frame(LOG))
    weights = model.filter.score_rows(csr_matrix(np.eye(9)))
    got = scores_of(model, frame([[1, 4, 1, 7]], items=model.items))[0, 1:]
    expected = weights[7] + np.exp(-0.5) * weights[1] + np.exp(-1) * weights[4]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_filters_of_known_users_are_refused():
    refused(DataError, "only the users", lambda: HistoryFilter(UserKNN()))
    refused(DataError, "only the users", lambda: UserKNN().score_rows(csr_matrix((1, 3))))


@pytest.mark.parametrize("make", FILTERS)
def test_a_session_of_nothing_known_gets_the_items_by_popularity(make, tmp_path):
    model = HistoryFilter(make()).fit(frame(LOG))
    counts = pd.Series([i for items in LOG for i in items]).value_counts()
    model.save(tmp_path / "model")
    for one in (model, SessionModel.load(tmp_path / "model")):
        scores = scores_of(one, frame([[], [77], LOG[0]], items=model.items))
        for row in (0, 1):
            ranked = torch.argsort(scores[row, 1:], descending=True, stable=True)
            named = [counts[model.items.decode(ranked[i : i + 1] + 1).to_pylist()[0]] for i in range(9)]
            assert named == sorted(counts, reverse=True)
        torch.testing.assert_close(scores[2], scores_of(model, frame([LOG[0]], items=model.items))[0])
