"""List columns in embedding tables against loops over lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, FieldNet, TabularNet
from fastrec.table import ListBatch

POOLS = {"mean": lambda v: v.mean(0), "sum": lambda v: v.sum(0), "max": lambda v: v.amax(0)}


@given(
    lists=st.lists(st.none() | st.lists(st.integers(0, 8), max_size=4), min_size=1, max_size=6),
    pool=st.sampled_from(list(POOLS)),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    tied=st.booleans(),
    grads=st.sampled_from(["dense", "rows"]),
)
def test_lists_are_pooled_as_a_loop_does(lists, pool, dtype, tied, grads):
    tie = {"seen": "item"} if tied else None
    sizes = {"emb_szs": [(5, 4), (9, 8)], "names": ["city", "item"], "list_szs": [(9, 8)], "list_names": ["seen"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrec._core.limits.SPARSE_FROM", 6)
        net = EmbeddingTables(**sizes, pool=pool, tie=tie, std=1.0, grads=grads)
    ids = torch.stack([torch.randint(0, n, (len(lists),)) for n in (5, 9)], 1)
    out = net(ids, ListBatch.of(lists, dtype=dtype))
    table = net.table("item" if tied else "seen")
    wanted = [POOLS[pool](table[torch.tensor(r)]) if r else torch.zeros(8) for r in lists]
    assert out.shape == (len(lists), net.embedding_dim) == (len(lists), 20)
    torch.testing.assert_close(out[:, 12:], torch.stack(wanted))
    torch.testing.assert_close(out[:, 4:12], net.table("item")[ids[:, 1]])
    assert len(net.slices) == 2 + (not tied)
    weight = torch.randn_like(out)
    found = torch.autograd.grad((out * weight).sum(), list(net.parameters()))
    plain = torch.cat([net.table("city")[ids[:, 0]], net.table("item")[ids[:, 1]], torch.stack(wanted)], 1)
    hoped = torch.autograd.grad((plain * weight).sum(), list(net.parameters()))
    for a, b in zip(found, hoped, strict=True):
        torch.testing.assert_close(a.to_dense() if a.is_sparse else a, b)


def test_ids_of_lists_out_of_range_are_named():
    net = EmbeddingTables([(5, 4)], names=["city"], list_szs=[(9, 8)], list_names=["seen"])
    with pytest.raises(DataError, match=r"column 'seen', row 2.*id 9 .*0 to 8"):
        net(torch.zeros(3, 1, dtype=torch.int64), ListBatch.of([[1], [], [3, 9]]))
    with pytest.raises(DataError, match=r"0 list columns were given, 1 are needed"):
        net(torch.zeros(3, 1, dtype=torch.int64))


@pytest.mark.parametrize("tie", [{"seen": "nowhere"}, {"city": "item"}, {"seen": "city"}])
def test_ties_that_cannot_be_are_refused(tie):
    with pytest.raises(DataError, match="cannot use the table of"):
        EmbeddingTables([(5, 4), (9, 8)], names=["city", "item"], list_szs=[(9, 8)], list_names=["seen"], tie=tie)


def test_lists_and_vectors_alone_make_a_net():
    torch.manual_seed(0)
    net = TabularNet([], 0, 1, [8], list_szs=[(9, 4)], vector_szs=[3, 2])
    batch = [ListBatch.of([[1, 2], []]), torch.randn(2, 3), torch.randn(2, 2)]
    net.eval()
    out = net(None, None, *batch)
    vectors = [(v - v.mean(1, keepdim=True)) / (v.var(1, correction=0, keepdim=True) + 1e-5).sqrt() for v in batch[1:]]
    lists = torch.stack([net.embeds.table("list0")[[1, 2]].mean(0), torch.zeros(4)])
    torch.testing.assert_close(out, net.layers(torch.cat([lists, *vectors], 1)))
    with pytest.raises(DataError, match="without any input column"):
        FieldNet([], 0)
