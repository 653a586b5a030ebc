"""Candidates put in order by trees, as a model of sessions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xgboost as xgb

from fastrec.errors import DataError
from fastrec.retrieval import RankedCandidates
from fastrec.retrieval.rankers import _grown, _matrix, log_odds
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionModel
from tests._core.refusals import refused
from tests.retrieval.walks import chains
from tests.sequences.helpers import frame, scores_of


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


def test_few_sessions_and_the_usual_models(tmp_path):
    model = RankedCandidates(rounds=3).fit(frame([["a", "b"], ["a", "c"], ["a", "b"]]))
    items, _ = model.recommend(frame([["a"], []], items=model.items), 3)
    assert (items > 0).all()
    model.save(tmp_path / "m")
    assert torch.equal(SessionModel.load(tmp_path / "m").recommend(frame([["a"]], items=model.items), 3)[0], items[:1])


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


def test_what_makes_no_sense():
    refused(DataError, "0 models", lambda: RankedCandidates({}))


def test_trees_stop_when_the_time_is_over():
    models = {"around": CoVisitation(before=1.0)}
    model = RankedCandidates(models, share=0.3, rounds=500).fit(frame(chains(1, 200, 15)), minutes=1e-6)
    assert model._trees.num_boosted_rounds() == 10


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
    np.testing.assert_array_equal(
        log_odds(deep, torch.from_numpy(np.tile(asked, (8, 1)))),
        np.tile(deep.predict(xgb.DMatrix(asked, missing=np.nan), output_margin=True), 8),
    )


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
