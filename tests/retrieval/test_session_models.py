"""What every model of sessions keeps: saving, odd sessions, other vocabularies, a session alone as among others."""

import numpy as np
import pytest
import torch

from fastrec.retrieval import HistoryFilter, RankedCandidates
from fastrec.sequences import (
    STAN,
    VSKNN,
    VSTAN,
    CoVisitation,
    NextItemNet,
    PopularItems,
    SessionBlend,
    SessionFrame,
    SessionModel,
    prefixes,
)
from tests.retrieval.test_filters import FILTERS
from tests.sequences.helpers import frame, random_lists, scores_of

NET = {"width": 8, "tokens": 64, "epochs": 2}
MODELS = {
    "BERT4Rec": lambda: NextItemNet("BERT4Rec", **NET, warm=False),
    "CoVisitation": CoVisitation,
    "HSTU": lambda: NextItemNet("HSTU", **NET, options={"bias": "position"}),
    "NextItemNet": lambda: NextItemNet(**NET),
    "PopularItems": PopularItems,
    "RankedCandidates": lambda: RankedCandidates(rounds=3),
    "STAN": lambda: STAN(k=6, sample=15),
    "SessionBlend": lambda: SessionBlend({"net": NextItemNet(**NET), "knn": VSTAN(k=5)}, weights=[1, 2]),
    "VSKNN": lambda: VSKNN(k=6, sample=15, idf=0.5),
    "VSTAN": lambda: VSTAN(k=6, sample=15, recency=0.3),
    **{f"HistoryFilter {n}": lambda make=make: HistoryFilter(make(), decay=5.0) for n, make in FILTERS.items()},
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request):
    return MODELS[request.param]().fit(frame([*random_lists(5, 60, 9), []]), seed=1)


def test_saved_read_and_asked_for_odd_sessions(model, tmp_path):
    model.save(tmp_path / "m")
    assert {p.suffix for p in (tmp_path / "m").iterdir()} == {".json", ".safetensors"}
    again = SessionModel.load(tmp_path / "m")
    assert type(again) is type(model)
    assert again.settings() == model.settings()
    asked = frame([[], [3], [77], [3] * 5, np.tile([1, 2, 3], 2_000).tolist()], items=model.items)
    torch.testing.assert_close(scores_of(again, asked), scores_of(model, asked))
    items, found = model.recommend(asked, 5)
    assert torch.equal(again.recommend(asked, 5)[0], items)
    assert (items > 0).all()
    assert torch.isfinite(found).all()


def test_scores_come_once_for_every_session_and_never_code_0(model):
    log = frame(random_lists(6, 12, 9), items=model.items)
    asked, rows = prefixes(log), []
    for part, scores in model.score(asked):
        assert scores.dtype == torch.float32
        assert scores.shape == (len(part), len(model.items))
        assert bool((scores[:, 0] == -torch.inf).all())
        assert bool(scores[:, 1:].isfinite().all())
        rows += part.tolist()
    assert sorted(rows) == list(range(len(asked)))
    seen = model.recommend(log, 9, exclude_seen=True)[0]
    for row, own in zip(seen.tolist(), log.values.split(log.lengths.tolist()), strict=True):
        assert set(row) & set(own.tolist()) <= {0}


def test_standard_scores_have_mean_0_and_deviation_1(model):
    asked = frame([*random_lists(7, 12, 9), [], [77]], items=model.items)
    known = scores_of(model, asked)[:, 1:].double()
    expected = (known - known.mean(1, keepdim=True)) / known.std(1, keepdim=True, correction=0).clamp_min(1e-30)
    found = model.standard_scores(asked)
    torch.testing.assert_close(found[:, 1:].double(), expected, rtol=1e-4, atol=1e-4)
    assert not found[:, 0].any()


def test_a_session_alone_scores_as_among_others_and_by_another_vocabulary(model):
    lists = random_lists(4, 12, 9)
    asked = frame(lists, items=model.items)
    together = scores_of(model, asked)
    for i in range(len(asked)):
        torch.testing.assert_close(scores_of(model, asked.take(torch.tensor([i])))[0], together[i])
    other = SessionFrame({"items": [[77, *s] for s in lists]}, item="items")
    torch.testing.assert_close(model.recommend(other, 3), model.recommend(asked, 3))
