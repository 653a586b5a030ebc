"""Nets of sessions: what they see, what they must not see, how large they are, and that they learn."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec._core.device import resolve_device
from fastrec.errors import DataError
from fastrec.sequences import (
    HSTU,
    ESASRec,
    GRU4Rec,
    ItemTower,
    NextItemMetric,
    SampledSoftmax,
    SASRec,
    SessionFrame,
    SessionLearner,
    ppmi_svd,
    session_dataloaders,
    session_learner,
)
from fastrec.sequences.next_item_net import NETS
from fastrec.sequences.session_net import ByteDropout, gap_sizes
from tests._core.refusals import refused
from tests.sequences.helpers import cycle
from tests.training.helpers import Kill, quiet_fit
from tests.training.test_checkpoint import check_resumes

DEVICE = resolve_device()
WIDTH, CODES = 8, 20
NAMES = sorted(NETS)


def net_of(name: str, **options):
    torch.manual_seed(0)
    made = NETS[name](ItemTower(CODES, WIDTH, extra=1), max_len=7, dropout=0.3, **options)
    for p in made.parameters():  # places and distances begin at zero, and would say nothing
        if p.abs().max() == 0:
            torch.nn.init.normal_(p, std=0.3)
    return made.eval().requires_grad_(False).to(DEVICE)


def near(name: str) -> dict[str, float]:
    """cuDNN multiplies a GRU's matrices in TF32."""
    return {"rtol": 2e-3, "atol": 2e-3} if DEVICE.type == "cuda" and name in ("GRU4Rec", "NARM") else {}


@pytest.mark.parametrize("name", NAMES)
def test_a_session_alone_scores_as_in_a_batch(name):
    net = net_of(name)
    items = torch.tensor([[3, 4, 5, 6], [7, 3, 0, 0], [9, 0, 0, 0]], device=DEVICE)
    lengths = torch.tensor([4, 2, 1], device=DEVICE)
    together = net.scores(items, lengths)
    for row, n in enumerate(lengths.tolist()):
        alone = net.scores(items[row : row + 1, :n], lengths[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], **near(name))
    garbage = items.clone()
    garbage[1, 2:] = torch.tensor([11, 12], device=DEVICE)  # what stands behind the end is nothing
    torch.testing.assert_close(net.scores(garbage, lengths)[1], together[1], **near(name))


def test_a_pooled_session_is_a_mean_of_its_items_by_weights_of_distance_and_attention():
    net = net_of("PooledSASRec")
    torch.nn.init.normal_(net.ask.weight), torch.nn.init.normal_(net.ago)
    items, lengths = torch.tensor([[3, 4, 5], [6, 4, 0]], device=DEVICE), torch.tensor([3, 2], device=DEVICE)
    inputs = net.input(items)
    x = SASRec.hidden(net, inputs, lengths)
    found = net(items, lengths)
    for row, place in ((0, 0), (0, 1), (0, 2), (1, 1)):
        logits = [
            float(net.ask(x[row, place]) @ net.offer(x[row, j])) / WIDTH**0.5 + float(net.ago[place - j])
            for j in range(place + 1)
        ]
        weights = torch.tensor(logits, device=DEVICE).softmax(0)
        mean = sum(w * inputs[row, j] for j, w in enumerate(weights))
        torch.testing.assert_close(found[row, place], mean + net.share * x[row, place])


def test_a_hidden_event_is_told_by_others_and_not_by_itself():
    items, length = torch.tensor([[3, CODES, 5, 6]], device=DEVICE), torch.tensor([4], device=DEVICE)
    for net in map(net_of, ("BERT4Rec", "XLNet")):
        for place in (0, 2, 3):
            other = items.clone()
            other[0, place] = 9
            assert float((net(other, length)[0, 1] - net(items, length)[0, 1]).abs().max()) > 1e-4


def test_permuted_events_see_only_those_told_before():
    net = net_of("XLNet")
    items, lengths, order = (torch.tensor(v, device=DEVICE) for v in ([[3, 4, 5, 6]], [4], [[2, 0, 1, 3]]))
    outputs = net(items, lengths, order)[0]
    for changed in range(4):
        other = items.clone()
        other[0, changed] = 9
        moved = (net(other, lengths, order)[0] - outputs).abs().amax(1) > 1e-5
        for asked in (0, 2, 3):
            assert bool(moved[asked]) == (int(order[0, changed]) < int(order[0, asked]))


BIASED = [(n, b) for n in ("SASRec", "PooledSASRec", "ESASRec", "HSTU") for b in ("position", "time", "both")]
CAUSAL = [(name, None) for name in NAMES if NETS[name].task == "causal"]
GAPS = st.lists(st.floats(0, 1e6), min_size=7, max_size=7)
TIMES = torch.tensor([[5.0, 5.0, 60.0, 4000.5], [1.7e9, 1.7e9 + 9e5, 0, 0]], dtype=torch.float64, device=DEVICE)


@pytest.mark.parametrize(("name", "bias"), [*((name, None) for name in NAMES), *BIASED])
def test_gradients_reach_every_parameter_and_times_matter(name, bias):
    net = net_of(name, **({"bias": bias, "heads": 2} if bias else {})).train().requires_grad_(True)
    items, lengths = torch.randint(1, CODES, (2, 4), device=DEVICE), torch.tensor([4, 2], device=DEVICE)
    if NETS[name].task == "masked":
        items[:, 2] = CODES
    times = [TIMES] if net.timed else []
    out = net.query(net(items, lengths, *times))[:, 1:3] @ net.keys(net.items.all()).T
    right = torch.randint(1, CODES, (4,), device=DEVICE)
    torch.nn.functional.cross_entropy(out.flatten(0, 1), right).backward()
    assert all(bool(p.grad.isfinite().all()) and bool(p.grad.abs().sum() > 0) for p in net.parameters())
    if net.timed:
        net.eval().requires_grad_(False)
        assert float((net(items, lengths, TIMES * 3) - net(items, lengths, TIMES)).abs().max()) > 1e-4


def test_gaps_are_sized_by_their_logarithm():
    gaps = torch.tensor(
        [-5.0, 0.0, 1.0, 1.34, 1.36, 60.0, 3600.0, 86400.0, 1e12, torch.inf, torch.nan], dtype=torch.float64
    )
    # log(60) = 4.09 is 13.6 steps of .301, log(3600) = 8.19 27.2, log(86400) = 11.37 37.8
    assert gap_sizes(gaps).tolist() == [0, 0, 0, 0, 1, 13, 27, 37, 63, 63, 0]


def by_hand(net, x: np.ndarray, times: np.ndarray, number: int, pointwise: bool) -> np.ndarray:
    """Attention of one session's normed events ``[L, width]`` by plain loops, before it is written."""
    block, heads = net.blocks[number], net.blocks[number].attention.heads if not pointwise else net.blocks[number].heads
    read = block.read if pointwise else block.attention.read
    out = x @ read.weight.cpu().numpy().T + read.bias.cpu().numpy()
    if pointwise:
        out = out / (1 + np.exp(-out))
    parts = np.split(out, 4 if pointwise else 3, axis=1)
    v, q, k = parts[1:] if pointwise else (parts[2], parts[0], parts[1])
    tables = {n: t.weight.cpu().numpy() for n, t in net.bias.tables.items()}
    found, wide = np.zeros_like(x), WIDTH // heads
    for h in range(heads):
        own = slice(h * wide, (h + 1) * wide)
        for i in range(len(x)):
            logits = []
            for j in range(i + 1):
                logit = float(q[i, own] @ k[j, own]) / (1 if pointwise else math.sqrt(wide))
                if "position" in tables:
                    logit += tables["position"][i - j, number * heads + h]
                if "time" in tables:
                    gap = max(float(times[i] - times[j]), 1.0)
                    logit += tables["time"][min(int(math.log(gap) / 0.301), 63), number * heads + h]
                logits.append(logit)
            powers = [math.exp(v) for v in logits]
            shares = (
                [v / (1 + math.exp(-v)) / (i + 1) for v in logits] if pointwise else [v / sum(powers) for v in powers]
            )
            found[i, own] = sum(s * v[j, own] for j, s in enumerate(shares))
    return found


@pytest.mark.parametrize("bias", ["position", "time", "both"])
@pytest.mark.parametrize("name", ["SASRec", "HSTU"])
def test_attention_with_a_bias_is_that_of_plain_loops(name, bias):
    net = net_of(name, bias=bias, blocks=2, heads=2)
    x = torch.randn(2, 4, WIDTH, device=DEVICE)
    masks = net.bias(torch.arange(4, device=DEVICE), TIMES)
    for number, block in enumerate(net.blocks):
        found = block(x, masks[number].expand(2, -1, -1, -1))
        for row, length in ((0, 4), (1, 2)):
            own, times = x[row, :length], TIMES[row, :length].cpu().numpy()
            normed = (block.before if name == "HSTU" else block.before_attention)(own)
            seen = by_hand(net, normed.cpu().numpy(), times, number, name == "HSTU")
            seen = torch.from_numpy(seen).to(DEVICE)
            if name == "HSTU":
                gate = torch.nn.functional.silu(normed @ block.read.weight[:WIDTH].T + block.read.bias[:WIDTH])
                wanted = own + block.write(gate * block.after(seen))
            else:
                wanted = own + block.attention.write(seen)
                wanted = wanted + block.net(block.before_net(wanted))
            torch.testing.assert_close(found[row, :length], wanted, rtol=1e-4, atol=1e-5)


@given(st.sampled_from([*BIASED, *CAUSAL]), GAPS, st.integers(1, 6), st.integers(0, 99))
def test_neither_a_later_event_nor_its_time_nor_padding_moves_an_output(which, gaps, place, seed):
    net = net_of(which[0], **({"bias": which[1], "blocks": 2, "heads": 2} if which[1] else {}))
    random = torch.Generator().manual_seed(seed)
    items = torch.randint(1, CODES, (2, 7), generator=random).to(DEVICE)
    times = 1.7e9 + torch.tensor([gaps, gaps[::-1]], dtype=torch.float64, device=DEVICE).cumsum(1)
    lengths = torch.full((2,), 7, device=DEVICE)
    given_times = [times] if net.timed else []
    outputs = net(items, lengths, *given_times)
    other, later = items.clone(), times.clone()
    other[:, place:] = other[:, place:] % (CODES - 1) + 1
    later[:, place:] *= 1.5
    changed = net(other, lengths, *([later] if net.timed else []))
    torch.testing.assert_close(changed[:, :place], outputs[:, :place])
    assert float((changed[:, place] - outputs[:, place]).abs().max()) > 1e-4
    alone = net.last(items[:, :place], torch.full((2,), place, device=DEVICE), *(t[:, :place] for t in given_times))
    padded = net.last(other, torch.full((2,), place, device=DEVICE), *([later] if net.timed else []))
    torch.testing.assert_close(alone, padded, **{"rtol": 1e-4, "atol": 1e-5, **near(which[0])})


def test_what_does_not_fit_is_refused():
    frame, short = cycle(20), session_dataloaders(SessionFrame({"items": [[1], [2]]}, item="items"))
    refused(DataError, "learns 'causal'", lambda: session_learner(session_dataloaders(frame, task="masked"), GRU4Rec))
    refused(DataError, "two events", lambda: session_learner(short, SASRec))
    refused(DataError, "no metric", lambda: NextItemMetric("auc"))
    refused(DataError, "no times", lambda: session_dataloaders(frame, timed=True))
    config = {"bias": "time"}
    refused(DataError, "reads times", lambda: session_learner(session_dataloaders(frame), HSTU, config=config))
    refused(DataError, "no bias 'days'", lambda: net_of("SASRec", bias="days"))
    refused(DataError, "BERT4Rec has no bias", lambda: net_of("BERT4Rec", bias="position"))


def test_side_features_reach_an_item_that_no_session_has():
    about = {"items": [1, 2, 3], "v": [0.0, 0.0, 9.0], "brand": ["a", "a", "b"]}
    frame = SessionFrame({"items": [[1, 2], [2, 1, 3]]}, item="items", item_table=about)
    tower = ItemTower(len(frame.items), 4, codings=frame.item_codings, sides=frame.item_sides).to(DEVICE)
    torch.nn.init.zeros_(tower.table.weight)
    for reader in tower.readers:
        torch.nn.init.ones_(reader.weight if hasattr(reader, "weight") else reader.linear.weight)
    found = tower.all().detach()
    torch.testing.assert_close(found[1], found[2])
    assert float((found[3] - found[1]).abs().sum()) > 0
    torch.testing.assert_close(tower(torch.tensor([[3, 1]], device=DEVICE))[0, 0].detach(), found[3])


@pytest.mark.parametrize(("name", "task"), [*((n, NETS[n].task) for n in NAMES), ("XLNet", "permuted")])
def test_nets_learn_what_always_follows(name, task):
    torch.manual_seed(0)
    frame = cycle(200)
    dls = session_dataloaders(frame, frame.take(torch.arange(40)), task=task, tokens=128, max_len=8, seed=0)
    learn = session_learner(dls, NETS[name], width=16, config={"dropout": 0.0})
    quiet_fit(learn, 12 if task == "causal" else 25, 2e-2)
    assert learn.validate()[1] == 1.0  # HR@20 of 12 items
    assert learn.validate()[2] > (0.9 if task == "masked" else 0.95)
    test = frame.new({"items": [[3, 4], [11]]})
    items, scores = learn.recommend(test, 3)
    assert frame.decode(items[:, 0]).to_pylist() == [5, 0]
    assert bool((scores[:, 0] >= scores[:, 1]).all())
    hidden, _ = learn.recommend(test, 12, exclude_seen=True)
    assert not {3, 4} & set(frame.decode(hidden[0]).to_pylist())


def test_results_are_shown_by_name():
    frame = SessionFrame({"items": [["tea", "cup"], ["cup", "tea"], ["pot"]]}, item="items")
    learn = session_learner(session_dataloaders(frame, frame, seed=0), SASRec, width=4)
    shown = learn.show_results(k=2)
    assert isinstance(learn, SessionLearner)
    assert shown["session"].tolist()[:2] == [["tea"], ["cup"]]
    assert shown["next"].tolist()[:2] == ["cup", "tea"]
    assert {v for row in shown["best"] for v in row} <= {"tea", "cup", "pot"}


def test_row_sparse_gradients_train_as_well():
    torch.manual_seed(0)
    dls = session_dataloaders(cycle(200), tokens=128, max_len=8, seed=0)
    learn = session_learner(dls, SASRec, width=16, sparse=True, loss=SampledSoftmax(4), config={"dropout": 0.0})
    quiet_fit(learn, 12, 2e-2)
    assert learn.validate()[2] > 0.95


@pytest.mark.parametrize(
    ("lists", "dims", "window"),
    [
        ([[1, 2], [2, 3], [1, 2, 3], [3, 4]], 5, 1),  # all of the matrix
        ([[g * 10 + i for i in torch.randperm(10).tolist()[:5]] for g in range(3) for _ in range(60)], 3, 5),
    ],
)
def test_ppmi_vectors_are_those_of_the_matrix(lists, dims, window):
    frame = SessionFrame({"items": lists}, item="items")
    near = torch.zeros(len(frame.items), len(frame.items), dtype=torch.float64)
    for own in frame.values.split(frame.lengths.tolist()):
        for i, a in enumerate(own.tolist()):
            for apart, b in enumerate(own[i + 1 : i + 1 + window].tolist(), 1):
                near[a, b] += 1 / apart
                near[b, a] += 1 / apart
    total = near.sum(1)
    information = (near * total.sum() / (total.unsqueeze(1) * total).clamp_min(1e-9)).clamp_min(1e-9).log().clamp_min(0)
    values, turn = torch.linalg.eigh(information)
    largest = values.abs().argsort(descending=True)[:dims]
    wanted = (turn[:, largest] * values[largest].abs()) @ turn[:, largest].T  # the vectors' products, signs left out
    vectors = ppmi_svd(frame, dims, window=window).double()
    found = vectors @ vectors.T
    torch.testing.assert_close(found / found.norm(), wanted / wanted.norm(), rtol=1e-3, atol=1e-4)


def test_dropout_by_bytes_keeps_the_mean_and_drops_as_asked():
    torch.manual_seed(3)
    x = torch.full((500, 403), 2.0, requires_grad=True)
    dropout = ByteDropout(0.3)
    found = dropout(x)
    dropped = (found == 0).double()
    assert abs(float(dropped.mean()) - 77 / 256) < 0.004  # four deviations
    # every one of the eight bytes of a draw, and neighbours apart
    shares = dropped.flatten()[: 8 * 25_000].view(-1, 8)
    assert bool(((shares.mean(0) - 77 / 256).abs() < 0.012).all())
    assert float((torch.corrcoef(shares.T) - torch.eye(8)).abs().max()) < 0.03
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 2 * 256 / 179))
    found.sum().backward()
    torch.testing.assert_close(x.grad, found.detach() / 2)
    assert dropout.eval()(x) is x
    for p in (0.0, 0.001, 0.999, 1.0):
        assert abs(float((ByteDropout(p)(torch.ones(100_000)) == 0).double().mean()) - p) < 0.0005


def test_attention_has_a_dropout_of_its_own():
    options = {"max_len": 7, "dropout": 0.3}
    assert [b.attention.dropout for b in SASRec(ItemTower(CODES, WIDTH), **options).blocks] == [0.3]
    assert SASRec(ItemTower(CODES, WIDTH), attention_dropout=0.0, **options).blocks[0].attention.dropout == 0.0
    net = ESASRec(ItemTower(CODES, WIDTH), attention_dropout=0.1, **options)
    assert net.blocks[0].attention.dropout == 0.1
    assert net.blocks[0].dropout.p == 0.3


# A training that was killed goes on and ends with the same weights


def resumed(model):
    lists = [[(i * 7 + j * j) % 40 for j in range(2 + i % 6)] for i in range(80)]
    frame = SessionFrame({"items": lists}, item="items")
    dls = session_dataloaders(frame, frame.take(torch.arange(9)), tokens=64, max_len=8, augment=["mask"], seed=2)
    return session_learner(dls, model, width=8)


@pytest.mark.parametrize(("model", "at"), [(SASRec, 3), (SASRec, 11), (GRU4Rec, 8)])
def test_killed_anywhere_it_ends_with_the_same_weights(tmp_path, model, at):
    check_resumes(partial(resumed, model), tmp_path / "c", [Kill(at)], epochs=3)
