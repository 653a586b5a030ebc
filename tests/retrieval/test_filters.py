"""Each collaborative filter against a plain computation of its formula, and what all of them keep."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError, UnreadableFileError
from fastrec.retrieval import (
    EASE,
    CollaborativeFilter,
    HistoryFilter,
    ImplicitALS,
    ItemKNN,
    Popularity,
    RP3Beta,
    SpectralFilter,
    UserKNN,
)
from fastrec.table.state import known_classes, load_state, save_state
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


def test_item_knn_shrinks_and_holds_back_users_and_neighbours(matrix):
    used = matrix / (matrix > 0).sum(1, keepdims=True) ** 0.5
    squares = (used**2).sum(0)
    similar = used.T @ used / (np.outer(squares**0.8, squares**0.2) + 1.5)
    np.fill_diagonal(similar, 0)
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
    to_item, to_user = matrix / matrix.sum(1, keepdims=True), (matrix / matrix.sum(0)).T
    steps = np.einsum("uf,fo,ol->ufl", to_item**0.8, to_user**0.8, to_item**0.8)
    steps[:, np.arange(N_ITEMS), np.arange(N_ITEMS)] = 0  # a walk that comes back
    expected = steps.sum(1) / matrix.sum(0) ** 0.4
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


MODELS = {
    "EASE": lambda: EASE(reg=2.0),
    "EASE of few": lambda: EASE(reg=2.0, max_items=5),
    "ImplicitALS": lambda: ImplicitALS(factors=3, iterations=3, power=1.0),
    "ItemKNN": lambda: ItemKNN(k=5, shrink=1.0),
    "Popularity": Popularity,
    "RP3Beta": lambda: RP3Beta(k=5),
    "SpectralFilter": lambda: SpectralFilter(factors=3),
    "UserKNN": lambda: UserKNN(k=5),
}
FILTERS = {n: make for n, make in MODELS.items() if n != "UserKNN"}
RNG = np.random.default_rng(0)
LOG = [RNG.permutation(9)[:n].tolist() for n in RNG.integers(2, 7, 40)]


@pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)
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
    refused(DataError, "only the users", lambda: HistoryFilter(UserKNN()))
    refused(DataError, "only the users", lambda: UserKNN().score_rows(csr_matrix((1, 3))))


@pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)
def test_a_session_of_nothing_known_gets_the_items_by_popularity(make):
    model = HistoryFilter(make()).fit(frame(LOG))
    counts = Counter(i for items in LOG for i in items)
    scores = scores_of(model, frame([[], [77], LOG[0]], items=model.items))
    for row in (0, 1):
        ranked = torch.argsort(scores[row, 1:], descending=True, stable=True) + 1
        named = [counts[i] for i in model.items.decode(ranked).to_pylist()]
        assert named == sorted(counts.values(), reverse=True)
    torch.testing.assert_close(scores[2], scores_of(model, frame([LOG[0]], items=model.items))[0])


DRAW = np.random.default_rng(5)
PAIRS = pd.DataFrame({"user": DRAW.integers(20, size=120), "item": DRAW.integers(15, size=120)}).drop_duplicates()
EVERY = pd.DataFrame(np.indices((20, 15)).reshape(2, -1).T, columns=["user", "item"])


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def fitted(make, pairs=PAIRS, weight=None) -> CollaborativeFilter:
    return make().fit(pairs.user, pairs.item, weight)


def test_every_class_is_tried():
    ours = {n for n in known_classes(CollaborativeFilter) if ":" not in n}
    assert ours == {type(make()).__name__ for make in MODELS.values()}


def test_order_of_rows_and_repeats_do_not_matter(make):
    expected = fitted(make, weight=np.full(len(PAIRS), 2.0)).score(EVERY.user, EVERY.item)
    twice = pd.concat([PAIRS, PAIRS.iloc[:30]]).assign(w=np.r_[np.full(len(PAIRS), 2.0), np.ones(30)])
    twice = twice.sample(frac=1, random_state=0)
    torch.testing.assert_close(fitted(make, twice, twice.w).score(EVERY.user, EVERY.item), expected, rtol=0, atol=0)


def test_blocks_do_not_change_scores(make, monkeypatch):
    model = fitted(make)
    expected, best = model.score(EVERY.user, EVERY.item), model.recommend(range(20), 4).to_pandas()
    monkeypatch.setattr(limits, "BLOCK", 20)
    torch.testing.assert_close(model.score(EVERY.user, EVERY.item), expected, rtol=0, atol=1e-12)
    pd.testing.assert_frame_equal(model.recommend(range(20), 4).to_pandas(), best)


def test_seen_are_the_pairs_of_fit(make):
    pairs = set(PAIRS.itertuples(index=False, name=None))
    asked = pd.concat([EVERY, pd.DataFrame({"user": [99, 0], "item": [0, 99]})])
    found = fitted(make).seen(asked.user, asked.item)
    assert found.tolist() == [pair in pairs for pair in asked.itertuples(index=False, name=None)]


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_recommends_the_best(make, exclude_seen):
    model = fitted(make)
    pairs = set(PAIRS.itertuples(index=False, name=None))
    popularity = PAIRS.item.value_counts()
    rows = []
    for user in (7, 3, 99):
        scores = model.score([user] * 15, range(15)).tolist()
        ranked = sorted(range(15), key=lambda i: (-scores[i], -popularity[i], i))
        open_items = [i for i in ranked if not (exclude_seen and (user, i) in pairs)]
        rows += [(user, i, scores[i], place) for place, i in enumerate(open_items[:6])]
    found = model.recommend([7, 3, 99], 6, exclude_seen=exclude_seen).to_pandas()
    expected = pd.DataFrame(rows, columns=["user", "item", "score", "place"])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-9, atol=1e-12)


def test_recommends_no_more_than_there_is(make):
    model = fitted(make)
    found = model.recommend([2], 1000).to_pandas()
    assert sorted(found.item) == sorted(set(range(15)) - set(PAIRS.item[PAIRS.user == 2]))
    assert len(model.recommend([], 3)) == len(model.score([], [])) == 0
    assert model.score([99, 0, None, 0], [0, 99, 0, None]).tolist() == [0, 0, 0, 0]  # unknown and missing
    for pairs in ([[1, 1, 1], [1, 2, 3]], [[1, 2, 3], [1, 1, 1]], [[1], [1]]):  # one user or one item
        assert torch.isfinite(make().fit(*pairs).score(*pairs)).all()


def test_save_and_load(make, tmp_path):
    model = fitted(make, weight=np.linspace(1, 2, len(PAIRS)))
    model.save(tmp_path / "m")
    for cls in (CollaborativeFilter, type(model)):
        again = cls.load(tmp_path / "m")
        assert again.settings() == model.settings()
        assert torch.equal(again.score(EVERY.user, EVERY.item), model.score(EVERY.user, EVERY.item))
        pd.testing.assert_frame_equal(again.recommend([1, 2], 3).to_pandas(), model.recommend([1, 2], 3).to_pandas())
    again.save(tmp_path / "m")  # over the earlier one
    other = EASE if not isinstance(model, EASE) else ItemKNN
    refused(DataError, rf"{type(model).__name__}.*no {other.__name__}", lambda: other.load(tmp_path / "m"))
    save_state(tmp_path / "m", {**load_state(tmp_path / "m"), "settings": {"shrunk": 1}})
    refused(UnreadableFileError, "shrunk", lambda: CollaborativeFilter.load(tmp_path / "m"))


def test_bad_input_is_named(make):
    for call in (lambda: make().score([1], [1]), lambda: make().recommend([1], 1)):
        refused(NotFittedError, "has not been trained", call)
    refused(DataError, "no interaction", lambda: make().fit([], []))
    refused(DataError, r"column 'items', row 1: an id is missing", lambda: make().fit([1, 2], [1, None]))
    for weight in (0.0, -1.0, np.nan, np.inf):
        refused(DataError, r"column 'weight', row 1", lambda w=weight: make().fit([1, 2], [1, 2], [1.0, w]))
    refused(DataError, "unequal lengths", lambda: make().fit([1, 2], [1, 2, 3]))
    refused(DataError, "2 users and 3 items", lambda: fitted(make).score([1, 2], [1, 2, 3]))
    for k in (0, 2.5):
        refused(DataError, f"k is {k}", lambda k=k: fitted(make).recommend([2], k))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=30))
def test_any_small_history_is_learned(rows):
    for make in MODELS.values():
        scores = make().fit(*map(list, zip(*rows))).score(*np.indices((7, 7)).reshape(2, -1))
        assert torch.isfinite(scores).all()
