"""``row-sharded`` tables on two gloo ranks against one process."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models import Embeddings, EmbeddingTables, TabularNet
from fastrec.models.placement.row_store import ShardedRows
from fastrec.optim import AdamW, Lamb
from fastrec.table import ListBatch

SIZES, NAMES, STEPS = [(600, 8), (5, 8), (801, 16)], ["a", "b", "c"], 6
KINDS = {"AdamW": AdamW, "Lamb": Lamb}


def make(placement=None):
    limits.SPARSE_FROM = 50
    torch.manual_seed(0)
    lists = {"list_szs": [(600, 8)], "list_names": ["likes"], "tie": {"likes": "a"}}
    options = {"use_bn": False, "bn_cont": False, **lists}
    return TabularNet(SIZES, 2, 1, [8], cat_names=NAMES, grads="rows", placement=placement, **options)


def batch(seed, share=slice(None)):
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(0, rows, (24,), generator=g) for rows, _ in SIZES], 1)
    ids[:3, 0] = 7  # on both ranks
    ids[20:, 0] = 7
    likes = ListBatch.of([[], *torch.randint(0, 600, (23, 2), generator=g).tolist()])
    found = (ids, torch.randn(24, 2, generator=g), likes, torch.randn(24, 1, generator=g))
    return [x[share] for x in found]


def table_grads(net):
    """Gradients of this process' rows of each group of large tables, in their places among all rows."""
    found = []
    for group in ("w8", "w16"):
        weight = net.embeds.weights.get(f"{group}_rows", net.embeds.weights.get(f"{group}_sharded_rows"))
        grad, placed = weight.grad.coalesce(), getattr(weight, "placed", None)
        rows = grad.indices()[0] if placed is None else placed.rows_of(grad.indices()[0])
        found.append(torch.zeros({"w8": 600, "w16": 801}[group], weight.shape[1]).index_copy(0, rows, grad.values()))
    return found


def train(placement=None, share=slice(None), ranks=1, kind="AdamW"):
    """Losses, the tables and the dense weights after some steps."""
    net = make(placement)
    opt, losses = KINDS[kind](net.parameters(), lr=0.05, weight_decay=0.1), []
    grads = None
    for i in range(STEPS):
        *xs, y = batch(i, share)
        loss = (net(*xs) - y).square().mean()
        loss.backward()
        grads = table_grads(net) if i == 0 else grads
        for p in net.parameters():
            if ranks > 1 and not hasattr(p, "placed"):
                dist.all_reduce(p.grad)
                p.grad /= ranks
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    opt.settle()
    with torch.no_grad():
        seen = net.eval()(*batch(50, share)[:-1])
    tables = {n: net.embeds.table(n).detach().clone() for n in NAMES}
    dense = {n: p.detach() for n, p in net.named_parameters() if "weights." not in n}
    return {"losses": losses, "tables": tables, "dense": dense, "seen": seen, "grads": grads, "state": net.state_dict()}


def rank_of_two(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    share = slice(12 * rank, 12 * rank + 12)
    found = {kind: train("row-sharded", share, 2, kind) for kind in KINDS}
    try:
        make(Embeddings("cached", device_bytes=30_000))
    except DataError as error:
        found["refused"] = str(error)
    torch.save(found, os.path.join(folder, f"rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    mp.start_processes(rank_of_two, (folder,), nprocs=2, start_method="spawn")
    return [torch.load(os.path.join(folder, f"rank{rank}.pt"), weights_only=True) for rank in range(2)]


@pytest.fixture(autouse=True)
def small_tables_count_as_large(monkeypatch):
    monkeypatch.setattr(limits, "SPARSE_FROM", 50)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_are_one_process(ranks, kind):
    one, own = train(kind=kind), [r[kind] for r in ranks]
    near = {"rtol": 2e-5, "atol": 2e-6}
    for i in range(STEPS):
        assert sum(r["losses"][i] for r in own) / 2 == pytest.approx(one["losses"][i], rel=1e-5)
    for r in own:
        assert r["state"]["embeds.weights.w8_sharded_rows"].shape == (300, 8)
        for what in ("tables", "dense"):
            for name, value in one[what].items():
                torch.testing.assert_close(r[what][name], value, **near)
    for a, b, whole in zip(*(r["grads"] for r in own), one["grads"], strict=True):  # Adam's steps do not tell a scale
        torch.testing.assert_close(a + b, whole, **near)
    torch.testing.assert_close(torch.cat([r["seen"] for r in own]), one["seen"], **near)


def test_tables_on_the_host_are_refused_where_ranks_train(ranks):
    assert "placement='row-sharded'" in ranks[0]["refused"]


def test_weights_come_from_a_plain_net_and_from_the_same_rank():
    plain, one, other = make(), make("row-sharded"), make("row-sharded")
    one.load_state_dict({k: v + 1 if v.is_floating_point() else v for k, v in plain.state_dict().items()})
    other.load_state_dict(one.state_dict())
    for net in (one, other):
        assert all(torch.equal(net.embeds.table(n), plain.embeds.table(n) + 1) for n in NAMES)
    with pytest.raises(DataError, match="one rank's rows"):
        plain.load_state_dict(one.state_dict())


@pytest.mark.parametrize("rows", [1, 7, 100, 1_640_531_527 // 1000])
def test_every_row_has_one_place(rows):
    seen = []
    for rank in range(3):
        shard = ShardedRows(rows, 4)
        shard.ranks, shard.rank = 3, rank
        shard.slots = max(0, -(-(rows - rank) // 3))
        mine = shard.rows_of(torch.arange(shard.slots))
        owner, slots = shard.owner(mine)
        assert (owner == rank).all()
        assert torch.equal(slots, torch.arange(shard.slots))
        seen.append(mine)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(rows))


def test_one_process_alone_is_a_plain_net():
    plain, alone = train(), train("row-sharded")
    assert plain["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    tables = EmbeddingTables([(60, 4)], placement="row-sharded")
    ids = torch.tensor([[3], [3], [59]])
    assert torch.equal(tables(ids), tables.table("0")[ids[:, 0]])
