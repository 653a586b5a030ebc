"""``plan_embeddings`` against sums, one by one, and against the model that is made by the plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, DeviceMemoryError
from fastrec.models import EmbeddingTables, plan_embeddings
from fastrec.models.placement.plan import cached_rows, found, harmonic, rows_missed

CARDS = {"user": 60_000, "item": 30_000, "city": 900}
WIDTHS = {"user": 30, "item": 32, "city": 6}


@given(n=st.integers(1, 40_000), skew=st.sampled_from([0.0, 0.6, 1.0, 1.05, 2.0]))
@settings(max_examples=25)
def test_the_sum_of_a_power_law(n, skew):
    assert harmonic(n, skew) == pytest.approx((np.arange(1, n + 1.0) ** -skew).sum(), rel=1e-6)


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.1])
def test_the_hottest_rows_of_several_tables(skew):
    rows, slots = [3000, 500, 40], 700
    p = np.concatenate([np.arange(1, n + 1.0) ** -skew / (np.arange(1, n + 1.0) ** -skew).sum() for n in rows])
    table = np.repeat(np.arange(3), rows)
    held = np.bincount(table[np.argsort(-p, kind="stable")[:slots]], minlength=3)
    if skew == 0:  # rows of one table are alike, so that any of them will do
        held = np.array(rows) * slots / sum(rows)
    np.testing.assert_allclose(cached_rows(rows, slots, skew), held, atol=2)
    assert cached_rows(rows, 5000, skew) == rows


def test_what_a_batch_misses():
    n, cached, skew, batch = 5000, 250, 1.05, 400
    p = np.arange(1, n + 1.0) ** -skew
    p /= p.sum()
    assert found(n, cached, skew) == pytest.approx(p[:cached].sum())
    assert rows_missed(n, cached, skew, batch) == pytest.approx((1 - np.exp(-batch * p[cached:])).sum(), rel=0.01)
    assert rows_missed(n, n, skew, batch) == 0


def test_the_plan_is_what_the_model_does(capsys):
    plan = plan_embeddings(CARDS, WIDTHS, 9_000_000, 1.05, batch_size=256)
    shown = capsys.readouterr().out
    assert [t.place for t in plan.tables] == ["cached", "cached", "device"]
    assert all(t in shown for t in ("30 → 32", "6 → 8", "60,000", "cached", "a batch at the measured", "16 bytes"))
    net = EmbeddingTables([(CARDS[n], WIDTHS[n]) for n in CARDS], names=list(CARDS), placement=plan)
    (cache,) = net.placed.values()
    device = cache.slots * (3 * 32 + 1) * 4 + 900 * (3 * 8 + 1) * 4
    assert 0.999 * 9_000_000 < device <= 9_000_000
    assert plan.device_bytes == pytest.approx(device, rel=1e-3)
    g = np.random.default_rng(0)
    p = [np.arange(1, n + 1.0) ** -1.05 for n in CARDS.values()]
    drawn = torch.stack([torch.from_numpy(g.choice(len(w), (500_000,), p=w / w.sum())) for w in p], 1)
    net.count(drawn[10_240:])
    for batch in drawn[:10_240].split(256):
        net(batch)
    planned = (plan.tables[0].hit_rate + plan.tables[1].hit_rate) / 2
    assert cache.found / cache.looked_up == pytest.approx(planned, abs=0.03)


def test_plans_of_other_places(tmp_path, capsys):
    all_fit = plan_embeddings(CARDS, 8)
    assert (all_fit.hit_rate, all_fit.seconds_per_batch) == (1, 0)
    files = plan_embeddings(CARDS, 8, 3_000_000, placement="host", folder=tmp_path, pad=False)
    assert [t.place for t in files.tables] == ["host", "host", "device"]
    assert files.tables[0].hit_rate == 0
    assert files.embeddings.folder == tmp_path
    assert "in files" in capsys.readouterr().out
    shared = plan_embeddings(CARDS, 7, placement="row-sharded")
    assert [t.place for t in shared.tables] == ["row-sharded", "row-sharded", "device"]
    narrow = plan_embeddings(CARDS, 1)
    assert "pad=False saves" in narrow.notes()[-1]


def test_wrong_plans_are_named():
    with pytest.raises(DataError, match=r"column 'city'.*width 0"):
        plan_embeddings(CARDS, {"user": 8, "item": 8})
    with pytest.raises(DataError, match="skew -1"):
        plan_embeddings(CARDS, 8, skew=-1)
    with pytest.raises(DeviceMemoryError, match="device_bytes"):
        plan_embeddings(CARDS, 8, 1000)
