"""``NextItemNet`` and ``GoalNet``: learning, saving, and several goals over one net against plain loops."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fastrec.errors import DataError, MissingColumnError, NotFittedError
from fastrec.sequences import (
    FullSoftmax,
    GoalHeads,
    GoalLoss,
    GoalNet,
    NextItemNet,
    SASRec,
    SessionBlend,
    SessionFrame,
    SessionLoader,
    SessionModel,
)
from fastrec.sequences.base import standardised
from fastrec.sequences.next_item_net import NETS
from fastrec.sequences.session_net import ItemTower
from tests._core.refusals import refused
from tests.sequences.helpers import cycle, frame, scores_of

SMALL = {"width": 8, "tokens": 64, "epochs": 3}


@pytest.mark.parametrize("net", ["PooledSASRec", "HSTU"])
def test_a_net_with_times_is_saved_and_wants_them(net, tmp_path):
    rows = [(s, chr(97 + (s + i) % 12), 1.7e9 + s * 1e5 + i * 3.0**s) for s in range(20) for i in range(2 + s % 5)]
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
    no_kind = "column 'type': there is no event of the kind 'by'. Name one of buy, cart, click"
    for error, words, make in (
        (NotFittedError, "has not been trained", lambda: NextItemNet().recommend(cycle(), 1)),
        (DataError, "no session has two events", lambda: NextItemNet().fit(frame([[1], []]))),
        (DataError, "no net", lambda: NextItemNet("GRU5Rec")),
        (DataError, of_gru, lambda: NextItemNet("GRU4Rec", options={"bias": "position"})),
        (DataError, "no models", lambda: SessionBlend({}).fit(cycle())),
        (DataError, "epochs=0", lambda: NextItemNet(epochs=0)),
        (DataError, "width=-1", lambda: NextItemNet(width=-1)),
        *(
            (DataError, f"k is {k}", lambda k=k: NextItemNet(**SMALL).fit(cycle()).recommend(cycle(), k))
            for k in (0, 2.5)
        ),
        (DataError, "goals", lambda: GoalNet([])),
        (DataError, "view", lambda: GoalNet(KINDS, goal="view")),
        (DataError, "weight", lambda: GoalNet(KINDS, goal_weights=[1.0])),
        (DataError, "mmoe", lambda: GoalHeads("mixed", 3, 4)),
        (DataError, "crop", lambda: GoalNet(KINDS, augment=["crop"])),
        (DataError, "net='BERT4Rec'.*SASRec.*GRU4Rec", lambda: GoalNet(KINDS, net="BERT4Rec")),
        (MissingColumnError, "side feature", lambda: GoalNet(KINDS, event="kind", epochs=1).fit(log(0))),
        (DataError, no_kind, lambda: GoalNet(["click", "by"], epochs=1).fit(log(0))),
    ):
        refused(error, words, make)


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_options_that_are_named_are_those_that_the_net_takes(net):
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


def test_scores_are_standardised_by_row():
    scores = torch.tensor([[9.0, 1.0, 3.0], [9.0, 5.0, 5.0], [9.0, -torch.inf, 1.0]])
    found = standardised(scores, 1)
    torch.testing.assert_close(found[:2], torch.tensor([[0.0, -1.0, 1.0], [0.0, 0.0, 0.0]]))
    assert bool(found.isfinite().all())
    assert found[2, 2] > found[2, 1]


# Several goals over one net


KINDS = ["click", "cart", "buy"]


def log(seed: int, sessions: int = 60) -> SessionFrame:
    """A session is of one of six families, which has an item for each kind of event."""
    rng = np.random.default_rng(seed)
    rows = []
    for s in range(sessions):
        family = rng.integers(6)
        kinds = rng.choice(3, rng.integers(2, 9), p=[0.6, 0.25, 0.15])
        rows += [(s, 6 * kind + family, KINDS[kind]) for kind in kinds]
    frame = pd.DataFrame(rows, columns=["session", "item", "type"])
    return SessionFrame(frame, item="item", session="session", features=["type"])


def next_of(sessions: SessionFrame, i: int, t: int, kind: str) -> int:
    a, b = sessions.offsets[i : i + 2].tolist()
    kinds = [sessions.kinds("type")[c] for c in sessions.sides["type"][a:b].tolist()]
    return next((int(sessions.values[a + u]) for u in range(t + 1, b - a) if kinds[u] == kind), 0)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_targets_are_the_next_events_of_each_kind(seed, max_len):
    sessions, kinds = log(seed, 12), [*KINDS, "view"]
    loader = SessionLoader(sessions, tokens=64, max_len=max_len, goals=("type", kinds))
    expected = []
    for i, n in enumerate(sessions.lengths.tolist()):
        items = sessions.values[sessions.offsets[i] :][:n].tolist()
        asked = [[next_of(sessions, i, t, kind) for kind in kinds] for t in range(n - 1)]
        expected += [(items[:-1][-max_len:], asked[-max_len:])] * (n > 1)
    found = []
    for items, lengths, _, target in loader:
        assert target.shape == (*items.shape, 4)
        for row, length, asked in zip(items.tolist(), lengths.tolist(), target.tolist(), strict=True):
            assert not np.any(asked[length:])
            found.append((row[:length], asked[:length]))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("kind", "allowed"), [
    ("shared", [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    ("mmoe", [[1, 1]] * 3),
    ("ple", [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]]),
])  # fmt: skip
def test_heads_are_mixtures_of_the_experts_that_a_goal_may_see(kind, allowed):
    torch.manual_seed(0)
    heads = GoalHeads(kind, 3, 4, experts=2)
    hidden = torch.randn(5, 4)
    for goal in range(3):
        assert torch.equal(heads(hidden, goal), hidden)  # at first a goal says what the net says
    for tower in heads.towers:
        torch.nn.init.normal_(tower.weight)
    for goal in range(3):
        made = heads(hidden, goal)
        for row, h in zip(made, hidden, strict=True):
            experts = heads.experts(h).view(-1, 4)
            gates = heads.gates(h).view(3, -1)[goal].tolist()
            weights = [math.exp(g) * a for g, a in zip(gates, allowed[goal], strict=True)]
            mixed = sum(w / sum(weights) * F.gelu(e) for w, e in zip(weights, experts, strict=True))
            assert torch.allclose(row, h + heads.towers[goal](mixed), atol=1e-5)


@pytest.mark.parametrize("weights", [None, [0.1, 0.3, 0.6]])
def test_the_loss_is_the_weighted_sum_of_the_goals(weights):
    torch.manual_seed(0)
    net = SASRec(ItemTower(9, 4), max_len=6, dropout=0.0)
    net.heads = GoalHeads("ple", 3, 4)
    torch.nn.init.normal_(net.heads.log_var)
    hidden, target = torch.randn(2, 5, 4), torch.randint(0, 9, (2, 5, 3))
    expected = 0.0
    for goal in range(3):
        asked = target[..., goal] > 0
        query, keys = (F.normalize(v, dim=1) for v in (net.heads(hidden[asked], goal), net.items.all()[1:]))
        value = F.cross_entropy(net.cosine * query @ keys.T, target[..., goal][asked] - 1)
        s = net.heads.log_var[goal]
        expected = expected + (torch.exp(-s) * value + s / 2 if weights is None else weights[goal] * value)
    found = GoalLoss(FullSoftmax(), weights)(hidden, target, net)
    assert torch.allclose(found, expected, atol=1e-5)
    found.backward()
    assert bool((net.heads.log_var.grad is not None) == (weights is None))


def test_one_training_serves_every_goal(tmp_path):
    sessions = log(0, 300)
    net = GoalNet(KINDS, width=16, epochs=8, lr=1e-2, tokens=256, options={"dropout": 0.0})
    parts = {k: net.of(k) for k in KINDS}
    for part in parts.values():
        part.fit(sessions)
    assert len({id(p.model) for p in parts.values()}) == 1
    asked = log(1, 50).recode(sessions.items)
    last = sessions.decode(asked.at_ends(asked.values)).to_pylist()
    for step, (kind, part) in enumerate(parts.items()):
        best = sessions.decode(part.recommend(asked, 1)[0].view(-1)).to_pylist()
        assert np.mean([b == a % 6 + 6 * step for a, b in zip(last, best, strict=True)]) > 0.9, kind
        part.save(tmp_path / kind)
        again = SessionModel.load(tmp_path / kind)
        assert torch.equal(scores_of(again, asked), scores_of(part, asked))
        assert torch.equal(scores_of(pickle.loads(pickle.dumps(part)), asked), scores_of(part, asked))
    before = parts["buy"].model
    parts["buy"].fit(sessions)  # asked once more, it learns once more
    assert parts["buy"].model is not before


def test_goals_may_be_numbers_or_yes_and_no():
    sessions = log(3)
    for made in (lambda code: code - 1, lambda code: code == 2):
        kinds = [None if c == 0 else made(c) for c in range(4)]
        said = pd.Series([kinds[c] for c in sessions.sides["type"]])
        said = said.astype("category" if said.dtype != bool else bool)
        items = sessions.decode(sessions.values).to_pylist()
        rows = torch.repeat_interleave(sessions.lengths).numpy()
        again = SessionFrame(pd.DataFrame({"s": rows, "i": items, "k": said}), item="i", session="s", features=["k"])
        net = GoalNet([kinds[1], kinds[2]], event="k", goal=kinds[1], epochs=1, width=8).fit(again)
        assert torch.equal(scores_of(net.of(kinds[1]), again), scores_of(net, again))
        assert not torch.equal(scores_of(net.of(kinds[2]), again), scores_of(net, again))
