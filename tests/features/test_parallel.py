"""Steps side by side give the values, the states and the errors that they give one after the other."""

from __future__ import annotations

import threading

import pytest
import torch

import fastrec.features as ff
from fastrec._core import limits
from fastrec.errors import DataError
from tests.features.frames import columns, to_arrow

pytestmark = pytest.mark.host_only(reason="steps run side by side on the host alone")


@pytest.fixture
def threads(monkeypatch):
    """Four threads for torch, and no row too few for them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(limits, "PARALLEL_STEPS_FROM", 1)
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4
    torch.set_num_threads(before)


def features():
    te = ff.TargetEncode(ff.Cross("city", "item"), "y", smooth=2)
    return ff.FeatureSet(
        [
            te,
            ff.GroupRank(te, by="user"),
            ff.CountEncode(["city", ff.Cross("city", "item")], scope="all"),
            ff.Lag("price", by="user", order="when"),
            ff.CumStat("views", by=["user", "city"], order="when", stats=["mean", "max"]),
            ff.GroupStats("views", by=["city", "item"], stats=["mean", "std"]),
            ff.Combine(ff.CountEncode("item"), "*", te),
        ],
        key="row",
    )


def run():
    fs, data, new = features(), to_arrow(columns(400)), to_arrow(columns(90, seed=3))
    made = [fs.fit_transform(data, unlabeled=new), fs.transform(new)]
    made += [part for pair in fs.cross_fit(data, [i % 3 for i in range(400)]) for part in pair]
    return [t.select(fs.outputs) for t in made]


def test_as_one_after_the_other(threads, monkeypatch):
    beside = [run() for _ in range(3)]
    monkeypatch.setattr(limits, "PARALLEL_STEPS_FROM", 10**9)
    alone = run()
    for other in beside:
        assert all(a.equals(b) for a, b in zip(alone, other, strict=True))


def test_several_threads_are_at_work(threads):
    seen = set()

    class Noting(ff.CountEncode):
        def collect(self, table, cells=None):
            seen.add(threading.current_thread().name)
            barrier.wait(timeout=120)  # passes only while another step is under way
            return super().collect(table, cells)

    barrier = threading.Barrier(2)
    ff.FeatureSet([Noting("city"), Noting("item")]).fit_transform(to_arrow(columns()))
    assert len(seen) == 2


def test_the_first_error_is_the_one_that_is_raised(threads):
    fs = ff.FeatureSet([ff.CountEncode("city"), ff.GroupRank("other", by="user"), ff.GroupStats("other", by="city")])
    for _ in range(3):
        with pytest.raises(DataError, match="GroupRank") as caught:
            fs.fit_transform(to_arrow(columns()))
        assert caught.value.column == "other"


def test_a_users_own_function_runs_alone(threads):
    seen = []
    mine = ff.RowFunction(lambda x: seen.append(threading.current_thread()) or x, "views", "mine")
    ff.FeatureSet([mine, ff.CountEncode("city")]).fit_transform(to_arrow(columns()))
    assert seen == [threading.main_thread()]
