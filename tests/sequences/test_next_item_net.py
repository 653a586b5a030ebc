"""``NextItemNet`` and ``SessionBlend``: what every model of sessions keeps."""

import pickle
import random

import pandas as pd
import pytest
import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.sequences import NextItemNet, SessionBlend, SessionFrame, SessionModel
from fastrec.sequences.base import standardised
from fastrec.sequences.next_item_net import NETS
from fastrec.sequences.session_net import ItemTower
from tests._core.refusals import refused
from tests.sequences.helpers import cycle, frame

SMALL = {"width": 8, "tokens": 64, "epochs": 3}


@pytest.mark.parametrize("net", ["PooledSASRec", "HSTU"])
def test_a_net_with_times_is_saved_and_wants_them(net, tmp_path):
    rows = [
        (s, "abcdefghijkl"[(s + i) % 12], 1.7e9 + s * 1e5 + i * 3.0**s) for s in range(20) for i in range(2 + s % 5)
    ]
    log = pd.DataFrame(rows, columns=["s", "item", "at"])
    frame = SessionFrame(log, item="item", session="s", order="at")
    model = NextItemNet(net, **SMALL, options={"bias": "both"}).fit(frame, seed=1)
    for table in model.model.bias.tables.values():
        assert bool(table.weight.detach().any())  # it has learned
    items, scores = model.recommend(frame, 5)
    model.save(tmp_path / "m")
    again = SessionModel.load(tmp_path / "m").recommend(frame, 5)
    assert torch.equal(again[0], items)
    torch.testing.assert_close(again[1], scores)
    copied = pickle.loads(pickle.dumps(model.model))
    assert all(torch.equal(a, b) for a, b in zip(copied.state_dict().values(), model.model.state_dict().values()))
    known = frame.take(torch.arange(4))
    known.target = known.values[:4].clone()  # a target's own time is not known
    torch.testing.assert_close(
        NextItemNet(net, **SMALL, options={"bias": "time"}).fit(known).counts.sum(), torch.tensor(14.0)
    )
    bare = SessionFrame.of(frame.values, frame.offsets, frame.items)
    refused(DataError, "no times", lambda: model.recommend(bare, 5))
    refused(DataError, "no times", lambda: NextItemNet(net, **SMALL, options={"bias": "time"}).fit(bare))


@pytest.mark.parametrize("options", [{}, {"net": "BERT4Rec", "warm": False}])
def test_the_same_seed_gives_the_same_model(options):
    first, again = (NextItemNet(**SMALL, **options).fit(cycle(), seed=3).recommend(cycle(), 4)[1] for _ in range(2))
    torch.testing.assert_close(again, first)


def test_a_limit_of_time_is_kept_and_the_rate_reaches_its_end():
    frame = cycle(2000)
    model = NextItemNet(**{**SMALL, "epochs": 100_000}).fit(frame, minutes=0.05)
    assert 0 < len(model.losses) < 100_000
    assert model.losses[-1] < model.losses[0]


@pytest.mark.parametrize("chronological", [True, False])
def test_sessions_come_in_their_order_or_mixed(chronological):
    draw = random.Random(0)
    easy, hard = [["a", "a", "a"]] * 1_500, [draw.choices("abcdefghijkl", k=3) for _ in range(1_500)]
    frame = SessionFrame({"items": easy + hard}, item="items")
    model = NextItemNet(**SMALL, chronological=chronological, warm=False, half=False).fit(frame)
    last = torch.tensor(model.losses).chunk(3)[-1]
    rise = float(last[-1] - last.min())  # the hard ones come at an epoch's end, or all over
    assert rise > 0.5 if chronological else rise < 0.2


def test_side_features_are_saved_with_a_net(tmp_path):
    log = {"s": [i // 3 for i in range(90)], "i": [i % 7 for i in range(90)], "p": [float(i % 4) for i in range(90)]}
    about = {"i": list(range(7)), "v": [0.5 * i for i in range(7)], "b": list("aabbccd")}
    frame = SessionFrame({**log, "k": [("u", "v")[i % 2] for i in range(90)]}, item="i", session="s",
                         features=["p", "k"], item_table=about)  # fmt: skip
    model = NextItemNet(**SMALL).fit(frame)
    model.save(tmp_path / "m")
    torch.testing.assert_close(NextItemNet.load(tmp_path / "m").recommend(frame, 3), model.recommend(frame, 3))
    bare = SessionFrame({"s": [0, 0], "i": [1, 2]}, item="i", session="s")
    with pytest.raises(DataError, match=r"the sessions have 0 side features .none., the net learned from 2"):
        model.recommend(bare, 3)


def test_models_say_what_is_wrong():
    of_gru = "GRU4Rec has no option 'bias'. It has cosine, dropout, layers, max_len, state."
    for error, words, make in (
        (NotFittedError, "has not been trained", lambda: NextItemNet().recommend(cycle(), 1)),
        (DataError, "no session has two events", lambda: NextItemNet().fit(frame([[1], []]))),
        (DataError, "no net", lambda: NextItemNet("GRU5Rec")),
        (DataError, of_gru, lambda: NextItemNet("GRU4Rec", options={"bias": "position"})),
        (DataError, "no models", lambda: SessionBlend({}).fit(cycle())),
        (DataError, "epochs=0", lambda: NextItemNet(epochs=0)),
        (DataError, "width=-1", lambda: NextItemNet(width=-1)),
        (DataError, "k=0", lambda: NextItemNet(**SMALL).fit(cycle()).recommend(cycle(), 0)),
    ):
        refused(error, words, make)


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_options_that_are_named_are_those_that_the_net_takes(net, monkeypatch):
    """By making nets: each option that the refusal names is taken, each other one of any net is not."""
    values = {"attention_dropout": 0.1, "bias": None, "blocks": 1, "cosine": 1.0, "dropout": 0.1, "heads": 1}
    values |= {"layers": 1, "max_len": 9, "state": 4, "items": 1, "codings": (), "nonsense": 1}
    with pytest.raises(DataError) as caught:
        NextItemNet(net, options={"nonsense": 1})
    named = caught.value.remedy.removeprefix("It has ").split(", ")
    items = cycle().items
    for name, value in values.items():
        try:
            NETS[net](ItemTower(len(items), 8, extra=2), **{name: value})
        except TypeError:
            assert name not in named
            continue
        assert (name in named) == (name != "codings")  # the sessions say which side features there are

    class Bare(NETS["GRU4Rec"]):
        def __init__(self, items, codings=(), *, depth=1):
            super().__init__(items, codings)

    monkeypatch.setitem(NETS, "Bare", Bare)  # one of one's own, which hands on nothing
    NextItemNet("Bare", options={"depth": 2})
    with pytest.raises(DataError, match=r"Bare has no option 'dropout'\. It has depth"):
        NextItemNet("Bare", options={"dropout": 0.1})


def test_scores_are_standardised_by_row():
    scores = torch.tensor([[9.0, 1.0, 3.0], [9.0, 5.0, 5.0], [9.0, -torch.inf, 1.0]])
    found = standardised(scores, 1)
    torch.testing.assert_close(found[:2], torch.tensor([[0.0, -1.0, 1.0], [0.0, 0.0, 0.0]]))
    assert bool(found.isfinite().all())
    assert found[2, 2] > found[2, 1]
