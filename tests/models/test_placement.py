"""Tables whose rows are not on the device: the same numbers as with all rows there, step by step."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec._core.device import on_host, resolve_device
from fastrec.errors import DataError, DeviceMemoryError, MissingColumnError, MissingFileError, TrainingError
from fastrec.models import (
    DLRM,
    DeepFM,
    Embeddings,
    EmbeddingTables,
    MatrixFactorization,
    RealMLP,
    TabularNet,
    WideAndDeep,
)
from fastrec.models.placement.plan import bytes_per_row
from fastrec.optim import AdamW, Lamb
from fastrec.table import ListBatch

SIZES = [(600, 8), (5, 8), (800, 16), (700, 8)]
NAMES = ["a", "b", "c", "d"]
DEVICE = resolve_device()
# a GPU adds a row's gradients up in no fixed order; a state that is lost moves weights by the rate
NEAR = {"rtol": 0, "atol": 0} if on_host(DEVICE) else {"rtol": 1e-3, "atol": 1e-4}
LIMIT = 30_000  # bytes: room for some 130 rows of width 8 and 80 of width 16, of 1,300 and 800
PLACEMENTS = {
    "host": lambda folder: Embeddings("host", device_bytes=LIMIT),
    "cached": lambda folder: Embeddings("cached", device_bytes=LIMIT),
    "files": lambda folder: Embeddings("cached", device_bytes=LIMIT, folder=folder),
    "mixed": lambda folder: Embeddings("cached", device_bytes=150_000, tables={"a": "device", "d": "host"}),
}


@pytest.fixture(autouse=True)
def small_tables_count_as_large(monkeypatch):
    monkeypatch.setattr(limits, "SPARSE_FROM", 50)


@pytest.fixture(params=PLACEMENTS)
def placement(request, tmp_path):
    return PLACEMENTS[request.param](tmp_path)


def make(placement=None, kind=TabularNet, sizes=SIZES, **options):
    """A net of four tables; by the same seed of the same weights."""
    torch.manual_seed(0)
    options = {"layers": [16], **options} if kind in (TabularNet, WideAndDeep, DeepFM, RealMLP) else options
    options = {"cat_names": NAMES[: len(sizes)], "grads": "rows", "placement": placement, **options}
    return kind(sizes, options.pop("n_cont", 3), 1, check_ids="always", **options).to(DEVICE)


def batch(seed, b=20, sizes=SIZES, share=1):
    """Ids, some of them several times, numbers and targets."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(0, max(rows // share, 2), (b,), generator=g) for rows, _ in sizes], 1)
    return [x.to(DEVICE) for x in (ids, torch.randn(b, 3, generator=g), torch.randn(b, 1, generator=g))]


def step(net, opt, seed, *, ahead=None, update=True, **options):
    """One batch; the loss."""
    ids, x, y = batch(seed, **options)
    found = net(ids, x)
    if ahead is not None:
        net.fetch_ahead(*batch(ahead, **options)[:2])
    loss = (found - y).square().mean()
    loss.backward()
    if update:
        opt.step()
        opt.zero_grad()
    return loss.item()


def steps(nets, opts, *args, near=None, **options):
    """One batch of each net: the same loss."""
    one, other = (step(net, opt, *args, **options) for net, opt in zip(nets, opts, strict=True))
    if near is None:
        assert_near(one, other)
    else:
        assert one == pytest.approx(other, rel=near)


def twins(placement=None, kind=AdamW, **options):
    """A plain net and one whose tables lie elsewhere, and their optimizers."""
    placement = Embeddings("cached", device_bytes=LIMIT) if placement is None else placement
    nets = make(**options), make(placement, **options)
    return nets, [kind(net.parameters(), lr=0.05, weight_decay=0.1) for net in nets]


def tables_of(net):
    """Every table, wherever it is."""
    return {n: net.embeds.table(n).detach().cpu().clone() for n in NAMES[: len(net.embeds.slices)]}


def assert_near(a, b):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **NEAR)


def assert_same(one, other, **close):
    """Two nets of one kind hold the same weights, to the bit on the host unless ``close`` says how near."""
    dense = [[p for n, p in net.named_parameters() if "weights." not in n] for net in (one, other)]
    pairs = list(zip(*dense, strict=True)) + list(zip(tables_of(one).values(), tables_of(other).values(), strict=True))
    for a, b in pairs:
        torch.testing.assert_close(a, b, **(close or NEAR))


def assert_settled(nets, opts, **close):
    for opt in opts:
        opt.settle()
    assert_same(*nets, **close)


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_every_step_is_that_of_a_plain_net_to_the_bit(kind, placement):
    nets, opts = twins(placement, kind)
    assert all(p.slots < p.store.rows for p in nets[1].embeds.placed.values())
    assert_same(*nets)
    for i in range(12):
        for opt in opts:
            opt.param_groups[0]["lr"] = 0.05 / (1 + i % 3)
        steps(nets, opts, i, ahead=i + 1, share=1 + i % 2 * 3)
        if i % 5 == 4:  # a validation between batches
            for opt in opts:
                opt.settle()
            with torch.no_grad():
                ids, x, _ = batch(100 + i, b=60)
                assert_near(*(net.eval()(ids, x) for net in nets))
            for net in nets:
                net.train()
    assert_settled(nets, opts)


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_gradients_added_up_over_batches_are_those_of_a_plain_net(kind):
    nets, opts = twins(Embeddings("cached", device_bytes=21_000), kind)
    for i in range(12):
        steps(nets, opts, i, ahead=i + 1, update=i % 3 == 2, b=12, near=1e-5)
    assert_same(*nets, rtol=2e-5, atol=1e-6)


BETWEEN = ["train", "ahead", "look", "forward", "settle", "begin", "save"]


@given(events=st.lists(st.sampled_from(BETWEEN), min_size=4, max_size=16), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_whatever_happens_between_batches(events, seed):
    nets, opts = twins()
    for i, event in enumerate(events, seed):
        if event == "train":
            steps(nets, opts, i)
        elif event == "ahead":  # of a batch that never comes
            nets[1].fetch_ahead(*batch(1000 + i)[:2])
        elif event in ("look", "forward"):  # without gradients, and without a backward pass
            with torch.set_grad_enabled(event == "forward"):
                ids, x, _ = batch(2000 + i)
                assert_near(*(net(ids, x) for net in nets))
        elif event in ("settle", "begin"):
            for opt in opts:
                opt.settle()
            if event == "begin":  # another optimizer goes on with the rows as this one has left them
                opts = [AdamW(net.parameters(), lr=0.05, weight_decay=0.1) for net in nets]
        else:
            groups = ("w16_rows", "w16_cached_rows")
            assert_near(*(n.state_dict()[f"embeds.weights.{g}"].cpu() for n, g in zip(nets, groups, strict=True)))
    assert_settled(nets, opts)


MODELS = {
    "deep fm": lambda p: make(p, DeepFM, emb_dim=8),
    "wide and deep": lambda p: make(p, WideAndDeep),
    "dlrm": lambda p: make(p, DLRM, bottom=[8, 8], top=[8]),
    "real mlp": lambda p: make(p, RealMLP, max_one_hot=9, ps=None),
    "dropout": lambda p: make(p, TabularNet, embed_p=0.3),
    "wide": lambda p: make(p, TabularNet, sizes=[(600, 64), (700, 8)]),
    "factors": lambda p: make(p, MatrixFactorization, sizes=SIZES[2:], n_cont=0, dim=8),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_it(name):
    plain, placed = MODELS[name](None), MODELS[name](Embeddings("cached", device_bytes=4 * LIMIT))
    sizes = {"wide": [(600, 64), (700, 8)], "factors": SIZES[2:]}.get(name, SIZES)
    opts = [AdamW(net.parameters(), lr=0.05) for net in (plain, placed)]
    assert sum(bool(m.placed) for m in placed.modules() if isinstance(m, EmbeddingTables)) >= 1
    for i in range(4):
        losses = []
        for net, opt in zip((plain, placed), opts, strict=True):
            torch.manual_seed(i)
            losses.append(step(net, opt, i, ahead=i + 1, sizes=sizes, b=8))
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_lists_that_use_the_table_of_a_column(pool):
    options = {"list_szs": [(600, 8), (90, 8)], "list_names": ["likes", "tags"], "tie": {"likes": "a"}, "pool": pool}
    (plain, placed), opts = twins(**options)
    for i in range(5):
        g = torch.Generator().manual_seed(i)
        lists = [ListBatch.of([[], *torch.randint(0, n, (19, 3), generator=g).tolist()]).to(DEVICE) for n in (600, 90)]
        ids, x, y = batch(i)
        losses = []
        for net, opt in zip((plain, placed), opts, strict=True):
            loss = (net(ids, x, *lists) - y).square().mean()
            net.fetch_ahead(ids, x, *lists)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for opt in opts:
        opt.settle()
    for name in ("a", "tags", "c"):  # of a table that a batch uses twice, gradients are added up in another order
        found = [net.embeds.table(name).cpu() for net in (plain, placed)]
        torch.testing.assert_close(*found, rtol=2e-5, atol=1e-6)


def test_a_maximum_over_lists():
    options = {"list_szs": [(90, 8)], "list_names": ["tags"], "pool": "max", "sizes": [(5, 8)]}
    plain, placed = make(**options), make(Embeddings("cached", device_bytes=LIMIT), **options)
    lists, (ids, x, _) = ListBatch.of([[], [3, 80], [3, 3, 4]]).to(DEVICE), batch(0, b=3, sizes=[(5, 8)])
    grads = []
    for net in (plain, placed):
        net(ids, x, lists).square().sum().backward()
        cache = net.embeds.placed.get("w8_cached_rows")
        grad = net.embeds.weights["w8_rows" if cache is None else "w8_cached_rows"].grad.to_dense().cpu()
        grads.append(grad if cache is None else torch.zeros(90, 8).index_add(0, cache.row_at.clamp(min=0), grad))
    torch.testing.assert_close(*grads)


# ---- saving and loading


def trained(placement, kind=AdamW, steps=range(4)):
    net = make(placement)
    opt = kind(net.parameters(), lr=0.05, weight_decay=0.1)
    for i in steps:
        step(net, opt, i, ahead=i + 1)
    return net, opt


def through_a_file(what, *, weights_only=True):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_training_goes_on_from_what_was_saved(kind, placement):
    net, opt = trained(placement, kind)
    weights, state = through_a_file([net.state_dict(), opt.state_dict()])
    twin = make(placement)
    other = kind(twin.parameters(), lr=0.05, weight_decay=0.1)
    step(twin, other, 77)  # so that rows are on its device and its optimizer has begun
    twin.load_state_dict(weights)
    other.load_state_dict(state)
    for i in range(4, 8):
        assert_near(step(net, opt, i), step(twin, other, i))
    assert_settled((net, twin), (opt, other))


@pytest.mark.parametrize("grads", ["dense", "rows"])
def test_weights_go_from_one_placement_to_another(placement, grads):
    net, _ = trained(placement)
    torch.manual_seed(1)
    plain = TabularNet(SIZES, 3, 1, [16], cat_names=NAMES, grads=grads).to(DEVICE)
    plain.load_state_dict(net.state_dict())
    assert_same(plain, net)
    other = make(Embeddings("cached", device_bytes=LIMIT, tables={"c": "host"}))
    other(*batch(0)[:2])  # rows are there that give way
    other.load_state_dict(plain.state_dict())
    assert_same(other, net)
    again = make(placement)
    again.load_state_dict(other.state_dict())
    assert_same(again, net)


def test_a_copy_is_a_net_of_its_own(placement):
    net, _ = trained(placement)
    before = tables_of(net)
    for twin in (copy.deepcopy(net), through_a_file(net, weights_only=False)):
        assert_same(net, twin)
        step(twin, AdamW(twin.parameters(), lr=0.1), 5)
        assert all(torch.equal(t, tables_of(net)[n]) for n, t in before.items())


# ---- what is kept on the device


def cached_table():
    """5,000 rows, 100 of which have room on the device."""
    return EmbeddingTables([(5000, 8)], placement=Embeddings("cached", device_bytes=100 * bytes_per_row(8))).to(DEVICE)


def test_rows_that_are_asked_for_most_stay():
    tables = cached_table()
    cache = tables.placed["w8_cached_rows"]
    g = torch.Generator().manual_seed(0)
    for i in range(60):  # half of the hot rows are in every other batch only
        cold = torch.randint(60, 5000, (40, 1), generator=g)
        tables(torch.cat([torch.arange(25)[:, None] + 25 * (i % 2), cold]).to(DEVICE))
    assert cache.slots == 100
    assert (cache.slot_of[:50] >= 0).all()
    assert cache.found / cache.looked_up == pytest.approx(25 / 65, abs=0.03)


def test_counted_rows_are_there_from_the_start():
    tables = cached_table()
    ids = torch.cat([torch.arange(900, 1000).repeat(3), torch.arange(2000)])[:, None]
    tables.count(ids.to(DEVICE))
    assert (tables.placed["w8_cached_rows"].slot_of[900:1000] >= 0).all()
    assert torch.equal(tables(ids[:40].to(DEVICE)).cpu(), tables.table("0")[ids[:40, 0]])
    few = cached_table()
    few.count(torch.tensor([[7]], device=DEVICE))
    assert (few.placed["w8_cached_rows"].slot_of >= 0).nonzero().tolist() == [[7]]


# ---- wrong input


def test_a_batch_that_does_not_fit_names_what_to_do():
    net = make(Embeddings("cached", device_bytes=LIMIT))
    told = r"more rows of width 8 on the device, 13. have room.*Lower the batch size"
    with pytest.raises(DeviceMemoryError, match=told):
        net(*batch(0, b=500)[:2])
    ids, x, _ = batch(1)
    assert torch.equal(net(ids, x), make()(ids, x))


def test_a_plain_net_exceeds_the_limit():
    with pytest.raises(DeviceMemoryError, match=r"more than the 29.3 KiB of device_bytes.*placement='auto'"):
        make(Embeddings("device", device_bytes=LIMIT))
    with pytest.raises(DeviceMemoryError, match="leaves room for"):
        make(Embeddings("cached", device_bytes=2_000))
    fits = make(Embeddings("auto", device_bytes=10_000_000))
    assert not fits.embeds.placed
    some = make(Embeddings("auto", device_bytes=200_000))
    assert {s.name: "cached" in s.group for s in some.embeds.slices} == {"a": False, "b": False, "c": True, "d": True}


def test_wrong_settings_are_named(tmp_path):
    for call, error, match in (
        (lambda: make("gpu"), DataError, r"'gpu' is no placement.*'row-sharded'"),
        (lambda: Embeddings(device_bytes=0), DataError, "device_bytes=0"),
        (lambda: make(Embeddings(tables={"x": "host"})), DataError, r"'x': there is no embedding table .*a, b, c, d"),
        (lambda: make(3), DataError, "placement=3"),
        (lambda: make(Embeddings("cached", folder=tmp_path / "none")), MissingFileError, "no such folder"),
        (lambda: make("host").double(), DataError, "rows off the device are float32"),
        (lambda: make("host").embeds.table("x"), MissingColumnError, "'x'"),
    ):
        with pytest.raises(error, match=match):
            call()


def test_ids_out_of_range_are_refused_and_do_no_harm_ahead():
    net = make(Embeddings("cached", device_bytes=LIMIT))
    ids, x, _ = batch(0)
    ids[3, 2] = 800
    net.fetch_ahead(ids, x)
    with pytest.raises(DataError, match="column 'c', row 3: id 800"):
        net(ids, x)


def test_a_second_backward_pass_is_refused():
    net = make(Embeddings("cached", device_bytes=LIMIT))
    ids, x, y = batch(0)
    loss = (net(ids, x) - y).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(TrainingError, match="second backward pass"):
        loss.backward()


def test_files_go_with_the_net(tmp_path):
    net = make(Embeddings("cached", device_bytes=LIMIT, folder=tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    del net
    gc.collect()
    assert not list(tmp_path.iterdir())
