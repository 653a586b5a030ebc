"""DIN and BST: scores worked event by event, gradients, and what must not matter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastrec.errors import DataError
from fastrec.models import BST, DIN
from fastrec.models.history import EventBatch, EventNet
from tests.models.plain import DEVICE, NONDET, to_device

NETS = [DIN, BST]
# two lists, of 3 and 2 candidates; the first has 3 events before it, the second one
EVENTS = EventBatch(
    lists=torch.tensor([0, 0, 0, 1, 1]),
    items=torch.tensor([[1, 2, 3], [4, 0, 0]]),
    cats=torch.tensor([[[1], [0], [2]], [[2], [0], [0]]]),
    conts=torch.tensor([[[0.5], [1.0], [-1.0]], [[2.0], [0.0], [0.0]]]),
    listed=torch.tensor([[-1, 1, 2], [3, -1, -1]]),
    steps=torch.tensor([[2, 1, 0], [0, -1, -1]]),
)
EVENTS = EventBatch(*to_device(*EVENTS))
CATS = torch.tensor([[1, 4], [2, 2], [0, 3], [1, 4], [2, 1]], device=DEVICE)
CONTS = torch.tensor([[0.1], [-0.4], [1.2], [0.0], [2.0]], device=DEVICE)


def net(kind: type[EventNet], **options) -> EventNet:
    torch.manual_seed(0)
    options = {"event_szs": [3], "n_event_cont": 1, "max_events": 3, "width": 8, "bn_cont": False, **options}
    made = kind([(3, 4), (6, 8)], 1, 1, [5], **options).to(DEVICE).eval()
    for name, p in made.named_parameters():  # those that begin at 0 as well
        if name in ("about", "near"):
            nn.init.normal_(p)
    return made


def plain(made: EventNet) -> torch.Tensor:
    """The scores by loops: candidate by candidate, event by event."""
    rows = [torch.cat([made.embed(CATS[i : i + 1, :1]), CONTS[i : i + 1]], 1)[0] for i in range(5)]
    said = [made.row(r) for r in rows]
    scores = []
    for i in range(5):
        own = made.candidate_norm(said[i] + made.item.weight[CATS[i, -1]])
        one = int(EVENTS.lists[i])
        events, same = [], []
        for j in range(int((EVENTS.steps[one] >= 0).sum())):
            value = made.item.weight[EVENTS.items[one, j]] + made.step.weight[EVENTS.steps[one, j]]
            value = value + made.kinds[0].weight[EVENTS.cats[one, j, 0]] + made.numbers(EVENTS.conts[one, j])
            listed = int(EVENTS.listed[one, j])
            value = value + (said[listed] if listed >= 0 else 0)
            events.append(made.event_norm(value))
            same.append(float(listed == i))
        read = (by_din if isinstance(made, DIN) else by_bst)(made, own, events, same)
        scores.append(made.layers(torch.cat([rows[i], own, read])))
    return torch.stack(scores)


def by_din(made, own, events, same):
    total = torch.zeros(8, device=DEVICE)
    for event, is_it in zip(events, same, strict=True):
        both = torch.cat([event * own, torch.tensor([is_it], device=DEVICE)])
        weight = made.weigh(made.of_event(event) + made.of_candidate(own) + made.of_both(both))
        total = total + weight * (event + is_it * made.about)
    return total


def by_bst(made, own, events, same):
    """torch's own attention, a head at a time, over the events and the candidate."""
    found = []
    for head in range(made.heads):
        part = slice(head * 2, head * 2 + 2)
        keys = torch.stack([made.key(e) for e in [*events, own]])[:, part]
        values = torch.stack(
            [made.value(e) + s * made.about for e, s in zip(events, same, strict=True)] + [made.value(own)]
        )
        bias = torch.tensor([[s * float(made.near[head].detach()) for s in [*same, 0.0]]], device=DEVICE)
        query = made.query(own)[None, part]
        found.append(nn.functional.scaled_dot_product_attention(query, keys, values[:, part], attn_mask=bias)[0])
    made_of = made.first(own + made.out(torch.cat(found)))
    return made.second(made_of + made.back(made.wide(made_of)))


@pytest.mark.parametrize("kind", NETS)
def test_scores_are_those_worked_event_by_event(kind):
    made = net(kind)
    torch.testing.assert_close(made(CATS, CONTS, *EVENTS), plain(made))


@pytest.mark.parametrize("kind", NETS)
def test_gradients_are_those_of_small_steps(kind):
    made = net(kind, width=4, **({"heads": 2} if kind is BST else {})).double()
    events = EVENTS._replace(conts=EVENTS.conts.double())

    def scores(conts, numbers):
        return made(CATS, conts, *events._replace(conts=numbers))

    given = (CONTS.double().requires_grad_(), EVENTS.conts.double().requires_grad_())
    assert torch.autograd.gradcheck(scores, given, nondet_tol=NONDET)
    made(CATS, CONTS.double(), *events).square().sum().backward()
    # a softmax does not see what is added to all its keys
    still = {n for n, p in made.named_parameters() if p.grad is None or not p.grad.abs().sum() > 1e-12}
    assert still <= {"key.bias"}


def test_odd_options_are_refused():
    with pytest.raises(DataError, match="3 heads"):
        net(BST, heads=3)
    with pytest.raises(DataError, match="without a column of items"):
        DIN([], 1, 1)
