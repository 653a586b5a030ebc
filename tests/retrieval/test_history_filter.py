"""Collaborative filters as models of sessions: scores as if a session were a user of the log."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

from fastrec.errors import DataError
from fastrec.retrieval import (
    EASE,
    BPRFactors,
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


@pytest.mark.parametrize("make", FILTERS)
def test_saved_and_odd_sessions(tmp_path, make):
    model = HistoryFilter(make(), decay=5.0).fit(frame([*LOG, []]))
    model.save(tmp_path / "m")
    again = SessionModel.load(tmp_path / "m")
    assert again.settings() == model.settings()
    asked = frame([[], [3], [77], [3] * 4, [1, 2, 3] * 2000], items=model.items)
    assert torch.equal(scores_of(again, asked), scores_of(model, asked))
    assert torch.isfinite(scores_of(model, asked)[:, 1:]).all()


@pytest.mark.parametrize("make", [UserKNN, BPRFactors])
def test_filters_of_known_users_are_refused(make):
    refused(DataError, "only the users", lambda: HistoryFilter(make()))
    refused(DataError, "only the users", lambda: make().score_rows(csr_matrix((1, 3))))


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
