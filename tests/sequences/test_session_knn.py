"""Session kNN against plain loops over the papers' sums."""

import math
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
import torch

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
    log, asked = [*random_lists(1, 80, 12), list(range(12))], [*random_lists(2, 30, 12, 9), [], [99], [1] * 50]
    model = MODELS[name]().fit(frame(log))
    expected = [plain(model, log, q, 12) for q in asked]
    got = scores_of(model, frame(asked, items=model.items))
    np.testing.assert_allclose(got[:, 1:], expected, rtol=2e-5, atol=1e-6)
    counts = Counter(item for session in log for item in set(session))
    ranked = got[-2, 1:].argsort(descending=True, stable=True)  # the items for nobody's session go by popularity
    assert [counts[i] for i in ranked.tolist()] == sorted(counts.values(), reverse=True)


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
    refused(DataError, words, make)


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
