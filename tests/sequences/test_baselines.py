"""Popularity, co-visitation, session kNN, blends and metrics over all items, against plain loops."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import DataError, MissingColumnError
from fastrec.sequences import (
    STAN,
    VSKNN,
    VSTAN,
    CoVisitation,
    PopularItems,
    SessionBlend,
    SessionFrame,
    SessionModel,
    best_items,
    prefixes,
    sequence_metrics,
    session_blend,
    target_ranks,
)
from fastrec.sequences.items import near_items
from tests._core.refusals import refused
from tests.sequences.helpers import chains, frame, random_lists, scores_of


def test_popularity_counts_events():
    log = [[1, 2], [2, 2, 3], [3, 1]]
    model = PopularItems().fit(frame(log))
    counts = Counter(itertools.chain(*log))
    assert scores_of(model, frame([[1]], items=model.items))[0, 1:].tolist() == [counts[i] for i in (1, 2, 3)]
    recent = PopularItems(recency=0.5).fit(frame(log))
    expected = [1 * math.exp(-2) + 1, math.exp(-2) + 2 * math.exp(-1), math.exp(-1) + 1]
    assert scores_of(recent, frame([[1]], items=model.items))[0, 1:].tolist() == pytest.approx(expected)
    asked = frame([[1], [3, 2], []], items=model.items)
    for seen in (False, True):  # found once for all sessions, as one after the other
        found, wanted = (of(asked, 2, seen) for of in (model.recommend, lambda *a: SessionModel.recommend(model, *a)))
        assert [t.tolist() for t in found] == [t.tolist() for t in wanted]


def plain_near(log, model, items):
    """``w(i, j)`` by two loops."""
    counts = Counter(itertools.chain(*log))
    found = np.zeros((items, items))
    for n, session in enumerate(log):
        age = 0.0 if model.recency is None else (1 - n / (len(log) - 1)) / model.recency
        for p, i in enumerate(session):
            for q, j in enumerate(session):
                d = abs(p - q)
                if i != j and 0 < d <= model.window:
                    found[i, j] += math.exp(-(d - 1) / model.near) * (model.before if q < p else 1) * math.exp(-age)
    for i in range(items):
        for j in range(items):
            seen, shown = model.norm if isinstance(model.norm, list) else (model.norm, model.norm)
            found[i, j] /= max(1, counts[i]) ** seen * max(1, counts[j]) ** shown
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"before": 0.0, "norm": (0.65, 0.25)}, {"recency": 0.4, "norm": 0.7, "window": 3}, {"hops": 2, "hop": 0.3}],
)
def test_co_visitation_is_a_sum_over_pairs(way, options):
    log = [*random_lists(1, 60, 11), list(range(11))]
    model = CoVisitation(keep=30, again=0.0, **options).fit(frame(log))
    asked = random_lists(2, 10, 11)
    weights = plain_near(log, model, 11)
    if "hops" in options:
        shares = weights / weights.sum(1, keepdims=True)
        weights = weights + 0.3 * weights.sum(1, keepdims=True) * (shares @ shares)
        np.fill_diagonal(weights, 0)
    expected = [sum(math.exp(-d / model.own) * weights[i] for d, i in enumerate(q[::-1])) for q in asked]
    got = scores_of(model, frame(asked, items=model.items))
    np.testing.assert_allclose(got[:, 1:], expected, rtol=2e-3, atol=1e-5)  # events below 1e-4 are left out


@pytest.mark.parametrize("hops", [1, 2])
def test_candidates_are_the_best_of_all_scores(way, hops):
    log = random_lists(8, 60, 15)
    model = CoVisitation(hops=hops, keep=6).fit(frame(log))
    asked = frame([*random_lists(9, 20, 16), [], [99]], items=model.items)
    items, found = model.candidates(asked, 9)
    everything, scores = model.recommend(asked, 9)
    near_enough = scores > 1e-20  # the rest is by popularity
    assert ((found > 0) == near_enough).all()
    torch.testing.assert_close(found[near_enough], scores[near_enough])
    same = (items == everything) | ((found[:, :, None] - scores[:, None, :]).abs() < 1e-5).sum(2).gt(1)
    assert same[near_enough].all()
    assert (items[~near_enough] == 0).all()


def test_kinds_gaps_and_own_items(way):
    log = pd.DataFrame({"s": 1, "item": list("abcd"), "t": [0, 1, 2, 500], "kind": ["click", "cart", "view", "cart"]})
    sessions = SessionFrame(log, item="item", session="s", order="t", features=["kind"])
    options = {"norm": 0.0, "near": None, "before": 1.0, "own": None}
    model = CoVisitation(**options, event="kind", weights={"click": 1.0, "cart": 3.0}, gap=10, again=0.5).fit(sessions)
    asked = sessions.take(torch.tensor([0])).cut(torch.tensor([0]), torch.tensor([1]))  # a, clicked
    items, scores = model.recommend(asked, 4)
    assert model.items.decode(items[0]).to_pylist()[:2] == ["b", "a"]
    assert scores[0].tolist()[:2] == [3.0, 1.5]
    assert scores[0, 2] < 1e-20  # c is no kind that counts, d is too late
    refused(MissingColumnError, "kind", lambda: next(model.score(frame([["a"]], items=model.items))))


def test_near_items_count_the_last_events_only(way):
    log = frame([[1, 2]] * 5 + [[1, 3]] * 2)
    one = torch.ones(1)
    items, scores = near_items(log, (one, one), torch.ones(len(log.values)), torch.ones(4), 2, cap=3)
    assert items[1].tolist() == [3, 2]
    assert scores[1].tolist() == [2, 1]


def plain_neighbours(model, log: list[list[int]], query: list[int], items: int) -> list[float]:
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


@pytest.mark.parametrize(
    "model", [VSKNN(k=6, sample=15, idf=0.5), STAN(k=6, sample=15), VSTAN(k=6, sample=15, recency=0.3)]
)
def test_session_knn_sums_over_neighbours(way, model):
    log, asked = [*random_lists(1, 80, 12), list(range(12))], [*random_lists(2, 30, 12, 9), [], [99], [1] * 50]
    model.fit(frame(log))
    expected = [plain_neighbours(model, log, q, 12) for q in asked]
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


def test_a_blend_adds_standardised_scores():
    log = frame(random_lists(6, 60, 9))
    first, second = VSTAN(k=5).fit(log), PopularItems().fit(log)
    asked = frame(random_lists(7, 5, 9), items=log.items)
    total = 0
    for model, weight in ((first, 1.0), (second, 0.5)):
        scores = scores_of(model, asked)[:, 1:]
        total = total + weight * (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0)
    fitted = SessionBlend({"knn": VSTAN(k=5), "popular": PopularItems()}, weights=[1.0, 0.5]).fit(log)
    torch.testing.assert_close(scores_of(fitted, asked)[:, 1:], total)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PopularItems(recency=0), "recency"),
        (lambda: STAN(k=0, sample=5), "neighbours"),
        (lambda: STAN(k=9, sample=5), "neighbours"),
        (lambda: VSTAN(recency="held"), "no recency 'held'"),
        (lambda: VSKNN(weighting="cubic"), "no decay 'cubic'"),
        (lambda: CoVisitation(window=0), "window"),
        (lambda: CoVisitation(norm=[0.5]), "norm"),
        (lambda: PopularItems().fit({"items": [[1, 2]]}), "a dict is no SessionFrame. .*SessionFrame"),
        (lambda: next(PopularItems().fit(frame([[1, 2]])).score([[1]])), "a list is no SessionFrame"),
        (lambda: PopularItems().fit(frame([[1, 2]])).recommend(pd.DataFrame({"items": [[1]]}), 1), "a DataFrame is no"),
        (lambda: sequence_metrics(torch.zeros(1, 3), frame([[1, 2]]).target), "no targets"),
        (lambda: sequence_metrics(torch.rand(2, 4), torch.tensor([1])), "1 targets for 2 sessions"),
        (lambda: sequence_metrics([(torch.tensor([0]), torch.rand(1, 4))], torch.tensor([1, 2])), "not every session"),
        (lambda: sequence_metrics(torch.ones(2, 3, dtype=torch.int64), torch.tensor([1, 2]), 5), "items a session"),
    ],
)
def test_what_makes_no_sense(make, words):
    refused(DataError, words, make)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_the_best_of_a_row_by_loops(seed, k, codes):
    pytest.importorskip("numba")
    random = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (6, codes), generator=random).float()
    scores[torch.rand(scores.shape, generator=random) < 0.3] = -torch.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOOP_NUMBERS", 1 << 62)
        plainly = best_items(scores, k)
        patch.setattr(limits, "LOOP_NUMBERS", 0)
        compiled = best_items(scores, k)
    assert torch.equal(compiled[0], plainly[0])
    assert torch.equal(compiled[1], plainly[1])
    for row, items in zip(scores.tolist(), plainly[0].tolist()):
        order = sorted((c for c in range(codes) if row[c] > -math.inf), key=lambda c: (-row[c], c))[:k]
        assert items == order + [0] * (k - len(order))


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


@given(SCORES, st.integers(1, 7), st.booleans())
def test_metrics_equal_plain_loops_however_they_are_given(device, rows, k, there):
    scores = [[-math.inf, *map(float, r)] for r, _ in rows]
    target = [t for _, t in rows]
    wanted = plain(scores, target, k)
    table, right = torch.tensor(scores, device=device), torch.tensor(target)
    right = right.to(device) if there else right  # targets lie on the host, or where the scores do
    assert sequence_metrics(table, right, k) == pytest.approx(wanted)
    blocks = [(rows, table[rows]) for rows in torch.randperm(len(table)).split(3)]
    assert sequence_metrics(iter(blocks), right, k) == pytest.approx(wanted)
    items = best_items(table, k)[0]
    assert sequence_metrics(items, right, k, codes=7) == pytest.approx(wanted)


def test_a_target_that_is_never_shown_is_not_found():
    scores = torch.tensor([[-torch.inf, -torch.inf, 1.0], [-torch.inf, torch.nan, 1.0]])
    never = torch.iinfo(torch.int64).max
    assert target_ranks(scores, torch.tensor([1, 1])).tolist() == [never, never]
    assert target_ranks(scores, torch.tensor([0, 2])).tolist() == [never, 1]


# A blend's use of its time, and its record of the sessions that it held out

LOG = frame(chains(1, 200, 15))


class Clock:
    """Goes on when it is told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Slow(CoVisitation):
    """Takes ten seconds each time."""

    clock, fits = Clock(), ()

    def _fit(self, sessions, *, seed, minutes):
        self.fits = (*self.fits, len(sessions))
        self.clock.now += 10.0
        super()._fit(sessions, seed=seed, minutes=minutes)


@pytest.mark.parametrize(("seconds", "fits"), [(14.0, 1), (16.0, 2), (60.0, 2)])
def test_a_model_that_has_no_time_to_learn_anew_stays_as_it_is(seconds, fits, monkeypatch):
    monkeypatch.setattr(session_blend, "time", Slow.clock)
    slow = Slow()
    blend = SessionBlend({"slow": slow, "popular": PopularItems()}, k=5)
    for times in (1, 2):  # the second time it begins anew
        blend.weights = None
        blend.fit(LOG, minutes=seconds / 60)
        assert len(slow.fits) == fits * times
    assert slow.fits[0] < len(LOG)
    assert fits == 1 or slow.fits[-1] == len(LOG)


@pytest.mark.parametrize(("most", "first", "fits"), [(8, 85.0, 1), (400, 50.0, 2)])
def test_few_held_out_events_leave_the_first_training_most_of_the_time(most, first, fits, monkeypatch):
    given = []

    class Long(Slow):
        def _fit(self, sessions, *, seed, minutes):
            given.append(60 * minutes)
            self.clock.now += 60 * minutes - 10.0
            super()._fit(sessions, seed=seed, minutes=minutes)

    monkeypatch.setattr(session_blend, "time", Slow.clock)
    SessionBlend({"long": Long(), "popular": PopularItems()}, k=5, most=most).fit(LOG, minutes=100 / 60)
    assert given == pytest.approx([first, 100.0 - first][:fits])  # popularity takes no time


def test_what_was_held_out_is_noted():
    models = {"popular": PopularItems(), "near": CoVisitation()}
    blend = SessionBlend(models, k=5, most=50).fit(LOG)
    asked, held = prefixes(LOG), blend.held
    n = len(held["target"])
    assert 30 < n <= 50
    assert torch.equal(held["target"], asked.target[-n:])
    assert torch.equal(held["length"], asked.lengths[-n:])
    for name in (*models, "blend"):
        items = torch.zeros(n, 5, dtype=torch.int64)
        shown = (held[name] <= 5).nonzero().squeeze(1)
        items[shown, held[name][shown] - 1] = 1
        of_ranks = sequence_metrics(items, torch.ones(n, dtype=torch.int64), 5)
        assert of_ranks == pytest.approx({n: blend.valid[name][n] for n in of_ranks})
    assert blend.weights[1] > blend.weights[0]
    each = blend.recommend_each(LOG, 2)
    assert list(each) == ["popular", "near", "blend"]
    torch.testing.assert_close(blend.recommend(LOG, 2), each["blend"])
    assert SessionBlend(models, k=1, weights=[1.0, 0.0]).fit(LOG).valid == {}


def test_a_blend_is_never_worse_than_one_model_alone_and_scored_on_events_that_did_not_choose_it():
    def weighed(rows):
        blend = SessionBlend(dict.fromkeys("abc", CoVisitation()), k=10)
        blend._weigh(codes[rows], scores[rows], target[rows])
        return blend

    def places(weights):
        order = torch.argsort(scores @ torch.tensor(weights), dim=1, descending=True, stable=True)
        return (codes.gather(1, order) == target[:, None]).long().argmax(1) + 1

    def ndcg(place):
        return float(torch.where(place <= 10, 1 / torch.log2(place + 1.0), 0.0).double().mean())

    for seed in range(8):
        rng = torch.Generator().manual_seed(seed)
        target = torch.randint(1, 41, (60,), generator=rng)
        codes = torch.arange(1, 41).expand(60, 40)
        scores = torch.randn(60, 40, 3, generator=rng)
        scores[torch.arange(60), target - 1, 0] += 2.0  # the first model knows most, the others little or nothing
        scores[torch.arange(60), target - 1, 1] += 0.3
        blend = weighed(torch.arange(60))
        alone = max(ndcg(places(one)) for one in torch.eye(3).tolist())
        assert ndcg(places(blend.weights)) >= alone - 1e-7
        first, last = (places(weighed(rows).weights) for rows in torch.arange(60).split(30))
        assert torch.equal(blend.held["blend"].clamp(max=11), torch.cat([last[:30], first[30:]]).clamp(max=11))
        assert blend.valid["blend"]["ndcg@10"] == pytest.approx(ndcg(blend.held["blend"]))
