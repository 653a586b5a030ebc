"""Embedding tables against separate ones, and list columns against loops over lists."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.block import RegressionBlock
from fastai.tabular.core import Categorify as StockCategorify
from fastai.tabular.core import TabularPandas
from fastai.tabular.model import emb_sz_rule as fastai_rule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrec.errors import DataError, MissingColumnError, MissingFileError
from fastrec.models import EmbeddingTables, FieldNet, TabularNet, emb_sz_rule, embedding_sizes
from fastrec.table import ListBatch
from fastrec.tabular import Categorify, TabularFrame
from fastrec.training import rec_learner
from tests.models.plain import DEVICE

SIZES = [(10, 3), (7, 8), (20, 4), (5, 6), (3, 1)]
NAMES = ["city", "item", "user", "device", "hour"]


def make_ids(sizes, b, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (b,), generator=g) for n, _ in sizes], 1).to(DEVICE)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=7),
    pad=st.booleans(),
    b=st.integers(0, 9),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int8]),
)
def test_one_gather_equals_a_loop_over_separate_embeddings(sizes, pad, b, dtype):
    fused = EmbeddingTables(sizes, pad=pad).to(DEVICE)
    separate = [nn.Embedding.from_pretrained(fused.table(str(i)).detach().clone(), False) for i in range(len(sizes))]
    ids = make_ids(sizes, b)
    out = fused(ids.to(dtype))
    wanted = torch.cat([e(ids[:, i]) for i, e in enumerate(separate)], 1)
    assert torch.equal(out, wanted)
    up = torch.randn_like(out)
    out.backward(up)
    wanted.backward(up)
    for s, e in zip(fused.slices, separate, strict=True):
        assert torch.allclose(fused.weights[s.group].grad[s.start : s.stop], e.weight.grad, atol=1e-6)


def test_widths_are_padded_to_16_bytes_and_grouped_or_kept():
    fused = EmbeddingTables(SIZES, names=NAMES)
    assert [s.width for s in fused.slices] == [4, 8, 4, 8, 4]
    assert {k: tuple(p.shape) for k, p in fused.named_parameters()} == {"weights.w4": (33, 4), "weights.w8": (12, 8)}
    assert fused.embedding_dim == 28
    assert fused.parameter_segments() == {"weights.w4": (0, 10, 30, 33), "weights.w8": (0, 7, 12)}
    exact = EmbeddingTables(SIZES, names=NAMES, pad=False)
    assert [tuple(exact.table(n).shape) for n in NAMES] == SIZES
    assert sum(p.numel() for p in exact.parameters()) == sum(n * w for n, w in SIZES)


def test_tables_by_name():
    fused = EmbeddingTables(SIZES, names=NAMES)
    new = torch.randn(20, 4)
    others = {n: fused.table(n).detach().clone() for n in NAMES if n != "user"}
    fused.load_table("user", new.double())
    assert torch.equal(fused.table("user"), new)
    assert all(torch.equal(fused.table(n), w) for n, w in others.items())
    assert fused.table("user").data_ptr() == fused.weights["w4"][10:].data_ptr()
    fused.table("user").sum().backward()
    assert fused.weights["w4"].grad.sum() == 80
    with pytest.raises(DataError, match=r"column 'user'.*\[20, 4\].*\[19, 4\]"):
        fused.load_table("user", new[:19])
    with pytest.raises(MissingColumnError, match=r"column 'nobody'.*city"):
        fused.table("nobody")


def test_the_check_can_be_switched_off_and_another_number_of_columns_is_refused():
    fused = EmbeddingTables([(4, 4), (4, 4)], check_ids="never").to(DEVICE)
    neighbours = fused(torch.tensor([[5, 0]], device=DEVICE))[0, :4]  # unchecked
    assert torch.equal(neighbours, fused.table("1")[1])
    with pytest.raises(DataError, match=r"\[b, 5\] are needed, not \[2, 4\]"):
        EmbeddingTables(SIZES)(torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(DataError, match=r"0 list columns were given, 1 are needed"):
        EmbeddingTables([], list_szs=[(9, 8)])(None)


@pytest.mark.parametrize(
    ("sizes", "names"), [([(0, 4)], ["a"]), ([(3, 0)], ["a"]), ([(3, 4)] * 2, ["a", "a"]), (SIZES, ["a"])]
)
def test_bad_sizes_and_names_are_refused(sizes, names):
    with pytest.raises(DataError):
        EmbeddingTables(sizes, names=names)


def test_tables_start_as_truncated_normals():
    torch.manual_seed(0)
    fused = EmbeddingTables([(4000, 4), (3000, 4), (2000, 8)])
    for name in "012":
        table = fused.table(name)
        assert table.abs().max() < 0.02
        assert 0.0085 < table.std() < 0.0092  # a normal of .01 wrapped at two scales
    torch.manual_seed(0)
    assert torch.equal(EmbeddingTables([(4000, 4), (3000, 4), (2000, 8)]).table("1"), fused.table("1"))


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: m.double(),
        lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True) and m,
    ],
)
def test_parameters_keep_their_segments(copied):
    fused = copied(EmbeddingTables(SIZES))
    assert {k: p.segments for k, p in fused.named_parameters()} == fused.parameter_segments()
    assert len(fused.parameter_segments()) == 2


def test_the_rule_is_fastais_with_a_cap():
    for n in [1, 2, 3, 10, 77, 1000, 50_000, 10**6]:
        assert emb_sz_rule(n) == fastai_rule(n)
    assert emb_sz_rule(10**6, cap=64) == 64


def test_sizes_from_classes_and_overrides():
    classes = {"a": ["#na#", "x", "y"], "b": list(range(101)), "c": [0]}
    assert embedding_sizes(classes, ["b", "a"]) == [(101, 21), (3, 3)]
    assert embedding_sizes(classes, ["a", "b"], widths={"b": 5}, cap=2) == [(3, 2), (101, 5)]
    with pytest.raises(MissingColumnError, match="'z'"):
        embedding_sizes(classes, ["a"], widths={"z": 5})


# ---- list columns


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
        net = EmbeddingTables(**sizes, pool=pool, tie=tie, std=1.0, grads=grads).to(DEVICE)
    ids = torch.stack([torch.randint(0, n, (len(lists),), device=DEVICE) for n in (5, 9)], 1)
    out = net(ids, ListBatch.of(lists, dtype=dtype).to(DEVICE))
    table = net.table("item" if tied else "seen")
    wanted = [POOLS[pool](table[torch.tensor(r)]) if r else torch.zeros(8, device=DEVICE) for r in lists]
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


@pytest.mark.parametrize("tie", [{"seen": "nowhere"}, {"city": "item"}, {"seen": "city"}])
def test_ties_that_cannot_be_are_refused(tie):
    with pytest.raises(DataError, match="cannot use the table of"):
        EmbeddingTables([(5, 4), (9, 8)], names=["city", "item"], list_szs=[(9, 8)], list_names=["seen"], tie=tie)


def test_lists_and_vectors_alone_make_a_net():
    torch.manual_seed(0)
    net = TabularNet([], 0, 1, [8], list_szs=[(9, 4)], vector_szs=[3, 2]).to(DEVICE)
    batch = [x.to(DEVICE) for x in (ListBatch.of([[1, 2], []]), torch.randn(2, 3), torch.randn(2, 2))]
    net.eval()
    out = net(None, None, *batch)
    vectors = [(v - v.mean(1, keepdim=True)) / (v.var(1, correction=0, keepdim=True) + 1e-5).sqrt() for v in batch[1:]]
    lists = torch.stack([net.embeds.table("list0")[[1, 2]].mean(0), torch.zeros(4, device=DEVICE)])
    torch.testing.assert_close(out, net.layers(torch.cat([lists, *vectors], 1)))
    with pytest.raises(DataError, match="without any input column"):
        FieldNet([], 0)


# Tables by the names of columns and categories


def learner(cities, *, stock=False, **options):
    n = len(cities)
    df = pd.DataFrame({"city": cities, "brand": ["x", "y", *["x"] * (n - 2)], "y": np.arange(n, dtype=float)})
    kind, categorify = (TabularPandas, StockCategorify) if stock else (TabularFrame, Categorify)
    to = kind(df, [categorify], ["city", "brand"], [], "y", RegressionBlock())
    return rec_learner(to.dataloaders(2, drop_last=False), layers=[4], **options)


@pytest.mark.parametrize("stock", [False, True])
def test_a_table_is_a_frame_of_category_and_vector(stock):
    learn = learner(["Rome", "Oslo", "Bern"], stock=stock)
    frame = learn.table("city")
    assert list(frame.index) == ["#na#", "Bern", "Oslo", "Rome"]
    assert frame.index.name == "city"
    vectors = learn.model.embeds(torch.tensor([[2, 0]]))[0, : frame.shape[1]]
    assert frame.loc["Oslo"].tolist() == vectors.tolist()
    frame.loc["Oslo"] = 7.0  # a copy
    assert not (learn.model.embeds.table("city") == 7).any()
    with pytest.raises(MissingColumnError, match="citty"):
        learn.table("citty")


@pytest.mark.parametrize("stock", [False, True])
def test_a_grown_vocabulary_starts_from_what_was_known(tmp_path, stock):
    old = learner(["Rome", "Oslo", "Bern"], stock=stock)
    old.save_tables(tmp_path / "tables")
    new = learner(["Wien", "Bern", "Rome", "Graz"], emb_szs={"city": old.table("city").shape[1]})
    before = new.table("city")
    assert new.load_tables(tmp_path / "tables") == {"city": 3, "brand": 3}
    after = new.table("city")
    for known in ("#na#", "Bern", "Rome"):
        assert after.loc[known].tolist() == old.table("city").loc[known].tolist()
    for grown in ("Wien", "Graz"):
        assert after.loc[grown].tolist() == before.loc[grown].tolist()
    assert {p.suffix for p in (tmp_path / "tables").iterdir()} == {".json", ".safetensors"}


def test_only_the_columns_that_are_named(tmp_path):
    old, new = learner(["Rome", "Oslo"]), learner(["Rome", "Oslo"])
    old.save_tables(tmp_path / "t", ["city"])
    kept = new.table("brand")
    assert new.load_tables(tmp_path / "t") == {"city": 3}
    assert new.table("brand").equals(kept)
    with pytest.raises(MissingColumnError, match="brand"):
        new.load_tables(tmp_path / "t", ["brand"])
    with pytest.raises(DataError, match=r"city.*vectors have 4 numbers, the model's 8.*emb_szs=\{'city': 4\}"):
        learner(["Rome", "Oslo"], emb_szs={"city": 8}).load_tables(tmp_path / "t")
    with pytest.raises(MissingFileError, match="there is no such file"):
        new.load_tables(tmp_path / "none")
