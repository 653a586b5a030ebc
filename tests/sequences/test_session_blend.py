"""What a blend does with its time, and what it notes of the sessions that it held out."""

import pytest
import torch

from fastrec.sequences import CoVisitation, PopularItems, SessionBlend, prefixes, sequence_metrics
from fastrec.sequences import session_blend as module
from tests.sequences.helpers import chains, frame

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
    monkeypatch.setattr(module, "time", Slow.clock)
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

    monkeypatch.setattr(module, "time", Slow.clock)
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


def test_a_blend_is_never_worse_than_one_model_alone():
    for seed in range(8):
        rng = torch.Generator().manual_seed(seed)
        target = torch.randint(1, 41, (60,), generator=rng)
        codes = torch.arange(1, 41).expand(60, 40)
        scores = torch.randn(60, 40, 3, generator=rng)
        scores[torch.arange(60), target - 1, 0] += 2.0  # the first model knows most, the others little or nothing
        scores[torch.arange(60), target - 1, 1] += 0.3
        blend = SessionBlend(dict.fromkeys("abc", CoVisitation()), k=10)
        blend._weigh(module._Candidates(codes, scores, target))
        for i in range(3):
            order = torch.argsort(scores[:, :, i], dim=1, descending=True, stable=True)
            place = (codes.gather(1, order) == target[:, None]).long().argmax(1) + 1.0
            alone = torch.where(place <= 10, 1 / torch.log2(place + 1), 0.0).double().mean()
            assert blend.valid["blend"]["ndcg@10"] >= alone - 1e-12
