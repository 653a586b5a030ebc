"""Several goals over one net: targets, heads, losses and scores against plain loops."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fastrec.errors import DataError, MissingColumnError
from fastrec.sequences import FullSoftmax, GoalHeads, GoalLoss, GoalNet, ItemTower, SASRec, SessionFrame, SessionLoader
from fastrec.sequences.base import SessionModel
from tests.sequences.helpers import scores_of

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


@pytest.mark.parametrize(("call", "match"), [
    (lambda: GoalNet([]), "goals"),
    (lambda: GoalNet(KINDS, goal="view"), "view"),
    (lambda: GoalNet(KINDS, goal_weights=[1.0]), "weight"),
    (lambda: GoalHeads("mixed", 3, 4), "mmoe"),
    (lambda: GoalNet(KINDS, augment=["crop"]), "crop"),
    (lambda: GoalNet(KINDS, net="BERT4Rec"), "net='BERT4Rec'.*SASRec.*GRU4Rec"),
    (lambda: GoalNet(KINDS, event="kind", epochs=1).fit(log(0)), "side feature"),
    (
        lambda: GoalNet(["click", "by"], epochs=1).fit(log(0)),
        "column 'type': there is no event of the kind 'by'. Name one of buy, cart, click",
    ),
])  # fmt: skip
def test_errors_say_what_to_do(call, match):
    with pytest.raises((DataError, MissingColumnError), match=match):
        call()


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
