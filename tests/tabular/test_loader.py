from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from fastai.data.load import DataLoader
from fastai.torch_core import set_seed
from fasttransform import ItemTransform, Transform
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fastrec.errors import DataError
from fastrec.tabular import TabularFrame, TabularLoader
from tests._core.refusals import refused


def frame(n, groups=None, procs=None, **options):
    """Row i holds code i % 7, numbers i and -i, and target 2 i."""
    i = np.arange(n)
    data = {"c": i % 7, "a": i.astype("float64"), "b": -i.astype("float64"), "y": 2.0 * i}
    if groups is not None:
        data["g"] = np.asarray(groups, dtype=np.int64)
        options["groups"] = "g"
    return TabularFrame(data, procs, "c", ["a", "b"], "y", **options)


def rows_of(batch):
    """The rows of a batch, having checked that its parts belong together."""
    x_cat, x_cont, y = batch
    rows = x_cont[:, 0].long()
    assert torch.equal(x_cat[:, 0].long(), rows % 7)
    assert torch.equal(x_cont[:, 1].long(), -rows)
    assert torch.equal(y[:, 0].long(), 2 * rows)
    return rows.tolist()


def epoch(loader):
    return [rows_of(b) for b in loader]


def flat(loader):
    return [r for batch in epoch(loader) for r in batch]


@given(
    n=st.integers(0, 60),
    world_size=st.integers(1, 5),
    bs=st.integers(1, 70),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    chunk=st.sampled_from([1, 60, 1 << 22]),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_every_row_comes_exactly_once_on_one_rank_or_another(n, world_size, bs, drop_last, shuffle, chunk, seed):
    to, options = frame(n), {"bs": bs, "drop_last": drop_last, "shuffle": shuffle, "seed": seed}
    if 0 < n < world_size:
        with pytest.raises(DataError, match=f"{n} rows for {world_size} ranks"):
            TabularLoader(to, rank=0, world_size=world_size, **options)
        return
    loaders = [TabularLoader(to, rank=r, world_size=world_size, **options) for r in range(world_size)]
    alone = TabularLoader(to, **options)
    most, fewest = math.ceil(n / world_size), n // world_size
    batches = fewest // bs if drop_last else min(math.ceil(most / bs), fewest) if world_size > 1 else math.ceil(n / bs)
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastrec._core.limits.GATHER_BYTES", chunk)
            made = [epoch(loader) for loader in loaders]
        assert {len(loader) for loader in loaders} == {len(own) for own in made} == {batches}
        assert all(b for own in made for b in own)
        seen = [r for own in made for b in own for r in b]
        if drop_last:
            assert all(len(b) == bs for own in made for b in own)
            assert len(set(seen)) == len(seen)
            assert shuffle or world_size > 1 or seen == list(range(len(seen)))
            continue
        assert sorted(seen) == list(range(n))
        assert seen == (flat(alone) if shuffle else list(range(n)))
        assert world_size > 1 or all(len(b) == bs for b in made[0][: n // bs])


@given(
    ids=st.lists(st.integers(0, 12), max_size=60),
    world_size=st.integers(1, 4),
    bs=st.integers(1, 70),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_groups_come_whole_and_once_on_one_rank_or_another(ids, world_size, bs, shuffle, drop_last):
    to, n, groups = frame(len(ids), ids), len(ids), len(set(ids))
    options = {"bs": bs, "shuffle": shuffle, "seed": 3, "groups": True, "drop_last": drop_last}
    if 0 < groups < world_size:
        with pytest.raises(DataError, match=f"{groups} groups for {world_size} ranks"):
            TabularLoader(to, rank=world_size - 1, world_size=world_size, **options)
        return
    loaders = [TabularLoader(to, rank=r, world_size=world_size, **options) for r in range(world_size)]
    made = [epoch(loader) for loader in loaders]
    assert {len(loader) for loader in loaders} == {len(own) for own in made} == {len(made[0])}
    batches = [b for own in made for b in own]
    assert sorted(r for b in batches for r in b) == list(range(n))
    homes = [{ids[r] for r in b} for b in batches]
    assert all(homes)
    assert sum(map(len, homes)) == groups
    for b, home in zip(batches, homes, strict=True):
        for g in home:
            own = [r for r in b if ids[r] == g]
            assert own == sorted(own)
            assert b.index(own[-1]) - b.index(own[0]) == len(own) - 1
    if world_size > 1:
        return
    assert len(batches) == min(-(-n // bs), groups)
    if n and all(ids.count(g) * len(batches) <= n for g in set(ids)):
        assert max(map(len, batches)) < bs + max(ids.count(g) for g in set(ids))
    if not shuffle:
        assert [ids[r] for b in batches for r in b] == [g for g in dict.fromkeys(ids) for _ in range(ids.count(g))]


def test_ranks_in_new_loaders():
    to = frame(40, splits=(range(30), range(30, 40)))
    dls = to.dataloaders(bs=4, seed=1, rank=1, world_size=2, drop_last=False)
    assert len(flat(dls.train)) == 15
    assert epoch(dls.valid) == [[35, 36, 37, 38], [39]]  # rows of the same frame are shared out too
    other = pd.DataFrame({"c": [1, 2], "a": [1.0, 2.0], "b": [-1.0, -2.0], "y": [2.0, 4.0]})
    assert epoch(dls.test_dl(other)) == [[1, 2]]  # those of another one come whole
    assert dls.train.new(rank=0).rank == 0
    refused(DataError, "rank=2 of world_size=2", lambda: TabularLoader(to, rank=2, world_size=2))
    refused(DataError, "seed=", lambda: TabularLoader(to, rank=0, world_size=2, shuffle=True))
    options = {"shuffle": True, "seed": 1, "wgts": [1.0] * 40}
    drawn = [TabularLoader(to, rank=r, world_size=2, **options).get_idxs() for r in (0, 1)]
    assert np.concatenate(drawn).tolist() == TabularLoader(to, **options).get_idxs().tolist()


def test_groups_are_shuffled_and_the_batch_knows_its_groups():
    ids = np.repeat(np.arange(30), 4)
    loader = TabularLoader(frame(120, ids), bs=20, shuffle=True, groups=True, seed=1)
    first = []
    for batch in loader:
        rows = rows_of(batch)
        assert loader.batch_rows.tolist() == rows
        assert loader.batch_groups.tolist() == loader.dataset.groups[rows].tolist()
        first += rows
    assert first not in (flat(loader), list(range(120)))
    assert TabularLoader(frame(9), bs=3).batch_groups is None


@pytest.mark.parametrize("ids", [[3, 3, 5, 8, 8, 8], [5, 3, 8, 3, 8, 8]])
def test_groups_are_permuted_alike_whether_they_lie_together_or_not(ids):
    loader = TabularLoader(frame(6, ids), bs=6, shuffle=True, groups=True, seed=4)
    seen = {tuple(ids[r] for b in epoch(loader) for r in b) for _ in range(60)}
    assert seen == {tuple(i for g in order for i in ids if i == g) for order in itertools.permutations((3, 5, 8))}


def test_groups_can_be_given_as_ids_and_must_fit_and_so_must_weights():
    loader = TabularLoader(frame(6), bs=3, groups=torch.tensor([5, 5, 2, 2, 9, 9]))
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5]]
    given = {"has no groups": {"groups": True}, "for 6 rows": {"groups": [1, 2]}}
    for wgts in ([1.0], [np.nan] * 6, [-1, *[1] * 5], [0] * 6):
        refused(DataError, "weights", lambda w=wgts: TabularLoader(frame(6), bs=2, shuffle=True, wgts=w))
    for words, options in {**given, "Choose one": {"groups": [0, 0, 1, 1, 2, 2], "wgts": [1] * 6}}.items():
        refused(DataError, words, lambda o=options: TabularLoader(frame(6), bs=2, shuffle=True, **o))
    refused(DataError, "bs is 0", lambda: TabularLoader(frame(9), bs=0))


def test_same_seed_same_order():
    to = frame(500)
    one, two = (TabularLoader(to, bs=64, shuffle=True, seed=7) for _ in range(2))
    epochs = [epoch(one) for _ in range(3)]
    assert epochs == [epoch(two) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert epoch(TabularLoader(to, bs=64, shuffle=True, seed=8)) != epochs[0]
    assert epoch(one.new()) == epochs[0]
    orders, state = [], random.getstate()
    try:
        for _ in range(2):  # without a seed fastai's decides
            set_seed(3)
            orders.append(epoch(TabularLoader(to, bs=64, shuffle=True)))
    finally:
        random.setstate(state)
    assert orders[0] == orders[1]


def test_the_permutation_is_uniform():
    loader, counts = TabularLoader(frame(4), bs=4, shuffle=True, seed=0), Counter()
    for _ in range(2400):
        counts[tuple(loader.get_idxs())] += 1
        loader.randomize()
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 0.001


def test_batches_are_copies_and_views_of_one_gather():
    batch = next(iter(TabularLoader(frame(8), bs=8, shuffle=True)))
    assert len({t.untyped_storage().data_ptr() for t in batch}) == 1
    assert pd.DataFrame(batch[1].cpu().numpy()).shape == (8, 2)
    to = frame(10)
    for loader in (TabularLoader(to, bs=5), TabularLoader(to, bs=5, shuffle=True)):
        for x_cat, x_cont, y in loader:
            x_cat.zero_(), x_cont.zero_(), y.zero_()
    assert to.x_cont[:, 0].tolist() == list(range(10))


def test_weights_draw_with_replacement_in_training_only():
    weights = np.array([0, 1, 3, 0, 4.0] * 40)
    loader = TabularLoader(frame(200), bs=50, shuffle=True, wgts=weights, seed=0)
    drawn = np.bincount([r for _ in range(60) for r in flat(loader)], minlength=200)
    assert drawn.sum() == 60 * 200
    assert (drawn[weights == 0] == 0).all()
    by_weight = [drawn[weights == w].sum() / drawn.sum() for w in (1, 3, 4)]
    np.testing.assert_allclose(by_weight, [1 / 8, 3 / 8, 4 / 8], atol=0.02)
    assert sorted(flat(loader.new(shuffle=False))) == list(range(200))
    dls = frame(20, splits=(range(15), range(15, 20))).dataloaders(bs=5, wgts=[0.0] * 14 + [1.0])
    assert set(flat(dls.train)) == {14}
    assert flat(dls.valid) == [15, 16, 17, 18, 19]
    assert TabularLoader(frame(4), bs=2, shuffle=True, wgts=[1, 1, 1, 1]).new(frame(6)).wgts is None


def test_fastais_hooks_work():
    seen = []

    class Double(ItemTransform):
        order = 5

        def encodes(self, b):
            seen.append("batch")
            return b[0], b[1] * 2, b[2]

    hooks = {f"{when}_iter": partial(seen.append, when) for when in ("before", "after")}
    loader = TabularLoader(frame(6), bs=3, after_batch=[Double()], **hooks)
    assert [b[1][:, 0].tolist() for b in loader] == [[0, 2, 4], [6, 8, 10]]
    assert seen == ["before", "batch", "batch", "after"]
    shown = loader.decode(loader.one_batch())
    assert isinstance(shown, TabularFrame)
    assert shown.decode().items["a"].tolist() == [0, 2, 4]


def test_indices_given_from_outside_are_followed():
    loader = TabularLoader(frame(10), bs=3)
    assert epoch(loader.new(get_idxs=lambda: [4, 2, 9, 0])) == [[4, 2, 9], [0]]
    assert list(map(rows_of, loader.create_batches(iter([1, 8])))) == [[1, 8]]
    assert list(map(rows_of, loader.create_batches(torch.tensor([3])))) == [[3]]
    assert rows_of(loader.do_batch([5, 6])) == [5, 6]


def test_first_rows_only_and_the_whole_set_as_a_batch():
    assert sorted(flat(TabularLoader(frame(10), bs=4, n=6, shuffle=True))) == list(range(6))
    assert sum(map(len, epoch(TabularLoader(frame(4, [0, 0, 1, 1]), bs=4, n=3, groups=True)))) == 3
    assert [len(b) for b in epoch(TabularLoader(frame(9), bs=9, shuffle=True, drop_last=True))] == [9]
    assert [len(b) for b in epoch(TabularLoader(frame(9), bs=None))] == [9]


def test_one_batch_and_early_breaks_leave_the_loader_whole():
    loader = TabularLoader(frame(30), bs=4, shuffle=True, seed=0)
    assert len(rows_of(loader.one_batch())) == 4
    for _ in loader:
        break
    assert sorted(flat(loader)) == list(range(30))
    ahead, behind = iter(loader), iter(loader)
    mixed = [(rows_of(a), rows_of(b)) for a, b in zip(ahead, behind, strict=True)]
    for side in zip(*mixed, strict=True):
        assert sorted(r for b in side for r in b) == list(range(30))


def test_new_for_other_rows_takes_their_groups():
    ids = np.repeat([3, 1, 2], 4)
    train = TabularLoader(frame(12, ids), bs=4, shuffle=True, groups=True, seed=2)
    other = train.new(frame(6, [1, 1, 1, 0, 0, 0]), shuffle=False)
    assert epoch(other) == [[0, 1, 2], [3, 4, 5]]
    assert epoch(train.new(frame(5), shuffle=False)) == [[0, 1, 2, 3], [4]]


def test_it_is_fastais_loader_and_batches_and_their_transforms_go_to_its_device():
    loader = TabularLoader(frame(8), bs=4, num_workers=3, device="meta", place="host")
    assert isinstance(loader, DataLoader)
    assert loader.fake_l.num_workers == 0
    for place in ("host", "device"):
        loader.place = place
        assert all(t.device.type == "meta" for t in next(iter(loader)))
    loader.to("cpu")
    assert rows_of(next(iter(loader))) == [0, 1, 2, 3]

    class Shift(Transform):
        parameters, by, moved = "by", torch.ones(1), []

        def to(self, device):
            self.moved.append(device)

    shift = Shift()
    loader = TabularLoader(frame(6), bs=3, after_batch=[shift])
    loader.to("cpu")
    assert shift.moved[-1] == loader.device == torch.device("cpu")
