"""Session kNN against plain loops over the papers' sums."""

import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import kernels, limits
from fastrec.errors import DataError
from fastrec.sequences import STAN, VSKNN, VSTAN, SessionFrame
from tests._core.refusals import refused
from tests.sequences.helpers import frame, random_lists, scores_of

NAMES = ("VSKNN", "STAN", "VSTAN")


def plain(model, log: list[list[int]], query: list[int], items: int) -> list[float]:
    """The sums, session by session; age by the session's place."""
    holding = [len({i for i, s in enumerate(log) if item in s}) for item in range(items)]
    alike = []
    for n, session in enumerate(log):
        shared = set(session) & set(query)
        if not shared:
            continue
        steps = {item: query[::-1].index(item) for item in shared}
        age = 1 - n / (len(log) - 1)
        if isinstance(model, VSKNN):
            sim = sum(1 / (d + 1) for d in steps.values())
        else:
            sim = sum(math.exp(-d / model.own) for d in steps.values())
            sim *= math.exp(-age / model.recency) / math.sqrt(len(session))
        alike.append((n, sim, min(steps.values())))
    latest = sorted(alike, reverse=True)[: model.sample]
    scores = defaultdict(float)
    for n, sim, back in sorted(latest, key=lambda x: (-np.float32(x[1]), -x[0]))[: model.k]:
        last = len(log[n]) - 1 - log[n][::-1].index(query[len(query) - 1 - back])
        for place, item in enumerate(log[n]):
            if isinstance(model, VSKNN):
                scores[item] += sim / (back + 1)
            elif isinstance(model, STAN):
                scores[item] += sim * math.exp(-abs(place - last) / model.near)
            else:
                near = math.exp(-abs(place - last) / model.near) * (model.before if place < last else 1)
                scores[item] += sim * math.exp(-back / model.back) * near
    idf = getattr(model, "idf", 0.0)
    return [scores[i] * (1 + idf * math.log(len(log) / max(1, holding[i]))) for i in range(items)]


MODELS = {
    "VSKNN": lambda **o: VSKNN(k=6, sample=15, idf=0.5, **o),
    "STAN": lambda **o: STAN(k=6, sample=15, **o),
    "VSTAN": lambda **o: VSTAN(k=6, sample=15, recency=0.3, **o),
}


@pytest.mark.parametrize("name", NAMES)
def test_plain_loops_give_the_same_scores(way, name):
    log, asked = random_lists(1, 80, 12), random_lists(2, 30, 12, 9)
    model = MODELS[name]().fit(frame([*log, list(range(12))]))
    expected = [plain(model, [*log, list(range(12))], q, 12) for q in asked]
    got = scores_of(model, frame(asked, items=model.items))
    np.testing.assert_allclose(got[:, 1:], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:no item of")
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 60))
def test_loops_and_tensors_agree(seed, k, sample):
    pytest.importorskip("numba")
    log, asked = random_lists(seed, 50, 20), random_lists(seed + 1, 8, 22)
    model = VSTAN(k=min(k, sample), sample=sample, recency=0.31, own=2.7).fit(frame(log))
    with kernels.without_compiled():
        plainly = scores_of(model, frame(asked))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOOP_NUMBERS", 0)
        compiled = scores_of(model, frame(asked))
    torch.testing.assert_close(compiled, plainly, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_odd_sessions(way, name):
    log = [[1, 2], [2, 3], [3, 3, 3], [5], [1, 2, 3]]
    model = MODELS[name]().fit(frame([*log, []]))
    long = np.tile([1, 2, 3], 33_334).tolist()
    asked = frame([[], [1], [99], [1, 1, 1], long], items=model.items)
    items, found = model.recommend(asked, 4)
    ids = model.items.decode(items.reshape(-1)).to_pylist()
    assert ids[:4] == ids[8:12] == [2, 3, 1, 5] or ids[:2] in ([2, 3], [3, 2])  # nobody's: by popularity
    assert (found[0] < 1e-20).all()
    assert set(ids[4:7]) == {1, 2, 3}
    assert torch.isfinite(found).all()
    one = scores_of(model, frame([long[:7]], items=model.items))
    assert torch.isfinite(one[:, 1:]).all()


def test_times_put_the_log_in_order():
    log = pd.DataFrame({"s": [1, 1, 2, 2, 3, 3], "item": list("abacad"), "t": [50, 51, 10, 11, 30, 31]})
    sessions = SessionFrame(log, item="item", session="s", order="t")
    model = STAN(k=1, sample=1).fit(sessions)
    items, _ = model.recommend(SessionFrame(pd.DataFrame({"item": [["a"]]}), item="item", items=sessions.items), 2)
    assert model.items.decode(items[0]).to_pylist() == ["a", "b"]  # the session that ended last


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: STAN(k=0, sample=5), "neighbours"),
        (lambda: STAN(k=9, sample=5), "neighbours"),
        (lambda: VSTAN(recency="held"), "no recency 'held'"),
        (lambda: VSKNN(weighting="cubic"), "no decay 'cubic'"),
    ],
)
def test_what_makes_no_sense(make, words):
    refused(DataError, words, lambda: make())


@pytest.mark.parametrize("model", [STAN, VSTAN])
def test_recency_is_what_held_out_events_ask_for(model):
    rng = np.random.default_rng(0)
    always = [[i, (i + 1) % 30, (i + 2) % 30] for i in rng.integers(0, 30, 300).tolist()]
    changed = [[i, (i + 7) % 30, (i + 14) % 30] for i in rng.integers(0, 30, 60).tolist()]
    log = frame([*always, *changed])
    asked = frame([[i] for i in range(30)], items=log.items)
    lately = model(recency="held-out").fit(log)
    assert torch.equal(scores_of(lately, asked), scores_of(model(recency=0.03).fit(log), asked))  # what follows changed
    assert lately.settings()["recency"] == "held-out"
    hurried = model(recency="held-out").fit(log, minutes=1e-9)
    assert torch.equal(scores_of(hurried, asked), scores_of(model(recency=1.0).fit(log), asked))
    # nothing to choose by; and what comes before the held-out ones follows nothing
    for few in (frame([[1, 2]]), frame([[1]] * 18 + [[1, 2, 3], [2, 3]])):
        one, fixed = frame([[1]], items=few.items), model(recency=1.0).fit(few)
        assert torch.equal(scores_of(model(recency="held-out").fit(few), one), scores_of(fixed, one))
