import math
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.errors import FastrecError
from fastrec.features import CumCount, CumStat, JaccardToHistory, LastKnown
from fastrec.features._engine.order import Clock, EarlierRows, TimeRanks, running_sum
from fastrec.table import Table
from tests.features.frames import of_rows, plain

some = settings(max_examples=50, deadline=None)
STATS = ["count", "sum", "mean", "min", "max", "smaller"]
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 1)),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1])),
    ),
    max_size=20,
)


@pytest.fixture(autouse=True, scope="module", params=["of a request", "of many rows"])
def way(request):
    """Of few rows all pairs are compared, many are sorted."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "of many rows":
            patch.setattr(limits, "PAIRED_ROWS", -1)
            patch.setattr(limits, "REQUEST_ROWS", -1)
        yield


frame_of = partial(of_rows, g="Int64", t="int64", x="float64")


def before(rows, i, *, ahead=False):
    """The rows before row ``i`` in its group, in order; nearest last."""
    group = sorted((j for j, r in enumerate(rows) if r[0] == rows[i][0] is not None), key=lambda j: (rows[j][1], j))
    if i not in group:
        return []
    place = group.index(i)
    return [rows[j] for j in (group[:place:-1] if ahead else group[:place])]


@some
@given(rows)
def test_running_statistics_equal_a_loop(data):
    made = CumStat("x", by="g", order="t", stats=STATS).fit_transform(frame_of(data))
    for i, row in enumerate(data):
        known = [r[2] for r in before(data, i) if r[2] is not None]
        expected = {
            "count": len(known),
            "sum": sum(known),
            "mean": sum(known) / len(known) if known else None,
            "min": min(known, default=None),
            "max": max(known, default=None),
            "smaller": None if row[2] is None or row[0] is None else sum(v < row[2] for v in known),
        }
        for stat, value in expected.items():
            assert plain(made[f"cum{stat}_x__g"])[i] == pytest.approx(value), stat


@some
@given(rows, st.booleans())
def test_the_last_known_value_equals_a_loop(data, ahead):
    feature = LastKnown("x", by="g", order="t", ahead=ahead)
    made = plain(feature.fit_transform(frame_of(data))[feature.outputs[0]])
    for i in range(len(data)):
        known = [r[2] for r in before(data, i, ahead=ahead) if r[2] is not None]
        assert made[i] == (known[-1] if known else None)
    assert feature.uses_future is ahead


def test_a_sum_keeps_to_its_group():
    frame = pd.DataFrame({"g": [1, 1, 2, 2], "x": [math.inf, 1e20, 0.25, 0.5]})
    made = CumStat("x", by="g", stats=["sum", "min", "max"]).fit_transform(frame)
    assert made["cumsum_x__g"].tolist() == [0, math.inf, 0, 0.25]
    assert plain(made["cummax_x__g"]) == [None, math.inf, None, 0.25]


item = st.one_of(st.none(), st.sampled_from("abcz"))


@some
@given(
    st.lists(st.tuples(st.integers(0, 1), item, st.integers(0, 5)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 1), item, st.integers(0, 5)), max_size=12),
    st.lists(st.sets(st.sampled_from("pqr")), min_size=3, max_size=3),
    st.integers(1, 3),
)
def test_likeness_to_the_past_equals_a_loop(data, log, sets, last):
    tags = dict(zip("abc", sets, strict=True))
    frame, events = (
        pd.DataFrame(r, columns=["u", "i", "t"]).astype({"i": object, "u": "int64", "t": "int64"}) for r in (data, log)
    )
    items = pd.DataFrame({"i": list("abc"), "tags": [sorted(s) for s in sets]})
    feature = JaccardToHistory("u", item="i", properties="tags", order="t", table="log", items="items", last=last)
    made = feature.fit_transform(frame, tables={"log": events, "items": items})
    for n, (user, mine, when) in enumerate(data):
        past = sorted((e for e in log if e[0] == user and e[2] < when), key=lambda e: e[2])[-last:]
        like = [
            len(tags[mine] & tags[e[1]]) / len(tags[mine] | tags[e[1]]) if tags[mine] | tags[e[1]] else 0.0
            for e in past
            if mine in tags and e[1] in tags
        ]
        expected = [sum(like) / len(like), max(like)] if like else [None, None]
        assert plain(made.loc[n, ["jaccard_mean", "jaccard_max"]]) == pytest.approx(expected, abs=1e-6)


def test_of_an_items_rows_the_last_one_counts():
    items = pd.DataFrame({"i": list("abac"), "tags": [["x"], ["x", "y"], ["y", "z"], ["x"]]})
    items["i"] = items["i"].astype(pd.CategoricalDtype(list("abcd")))
    log = pd.DataFrame({"u": [1, 2], "i": ["a", "d"], "t": [1, 1]})
    frame = pd.DataFrame({"u": [1, 2], "i": ["b", "b"], "t": [2, 2]})
    feature = JaccardToHistory("u", item="i", properties="tags", order="t", table="log", items="items")
    made = feature.fit_transform(frame, tables={"log": log, "items": items})
    assert plain(made["jaccard_max"]) == pytest.approx([1 / 3, None])
    made = feature.fit(frame, tables={"log": log}).transform(frame, tables={"log": log})  # no table of items
    assert plain(made["jaccard_max"]) == [None, None]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 150), max_size=4), st.booleans(), st.integers(0, 9))
def test_running_sums_equal_a_loop_in_groups_of_any_length(sizes, with_factor, seed):
    torch.manual_seed(seed)
    n = sum(sizes)
    place = torch.cat([torch.arange(s) for s in sizes]) if sizes else torch.zeros(0, dtype=torch.int64)
    values, factor = torch.randn(2, n, dtype=torch.float64), torch.rand(n, dtype=torch.float64)
    made = running_sum(values, place, factor if with_factor else None)
    expected, total = torch.zeros_like(values), torch.zeros(2, dtype=torch.float64)
    for i in range(n):
        total = values[:, i] + (total * (factor[i] if with_factor else 1) if place[i] else 0)
        expected[:, i] = total
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)


def test_a_running_sum_of_thousands_of_rows():
    values = torch.ones(1, 70_000, dtype=torch.float64)
    place = torch.arange(70_000) % 50_000
    assert torch.equal(running_sum(values, place)[0], (place + 1).double())
    half = running_sum(values, place, torch.full((70_000,), 0.5, dtype=torch.float64))[0]
    assert half[[0, 1, 49_999, 50_000, 50_001]].tolist() == [1.0, 1.5, 2.0, 1.0, 1.5]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 120), st.integers(0, 60), st.integers(0, 9))
def test_neither_later_rows_nor_other_groups_touch_the_rounding_of_a_sum(size, more, seed):
    torch.manual_seed(seed)
    values, factor = torch.randn(1, size + more, dtype=torch.float64), torch.rand(size + more, dtype=torch.float64)
    place = torch.arange(size + more)
    alone = running_sum(values[:, :size], place[:size], factor[:size])
    assert torch.equal(running_sum(values, place, factor)[:, :size], alone)
    other = torch.randn(1, 7, dtype=torch.float64)
    beside = running_sum(
        torch.cat([other, values], 1), torch.cat([torch.arange(7), place]), torch.cat([factor[:1].repeat(7), factor])
    )
    assert torch.equal(beside[:, 7 : 7 + size], alone)


def test_rows_at_one_point_in_time_do_not_see_each_other():
    table = Table({"t": [3, 1, 3, 2, 1], "u": [0, 5, 0, 5, 5]})
    ranks = TimeRanks.of(table, ["t"])
    assert ranks.rank.tolist() == [2, 0, 2, 1, 0]
    ones = torch.ones(1, 5, dtype=torch.float64)
    every = torch.ones(5, dtype=torch.bool)
    total, age = EarlierRows.of(ranks).sums(ones, every)
    assert total[0].tolist() == [3, 0, 3, 2, 0]
    assert age.tolist() == [0] * 5  # no clock: nothing grows old
    clock = Clock.of(table, "t")
    seen = torch.tensor([False, True, True, False, True])
    faded, age = EarlierRows.of(ranks).sums(ones * seen, seen, clock, half_life=1.0)
    assert faded[0].tolist() == [2, 0, 2, 2, 0]  # as they were at t = 1, the last time that counts
    assert age[[0, 2, 3]].tolist() == [2, 2, 1]
    grouped, _ = EarlierRows.of(ranks, table["u"].integer()).sums(ones, every)
    assert grouped[0].tolist() == [0, 0, 0, 2, 0]
    assert TimeRanks.of(table, ["u", "t"]).rank.tolist() == [0, 1, 0, 2, 1]


def test_a_clock_is_exact():
    big = 2**62
    clock = Clock.of(Table({"t": [big, big + 1, -big]}), "t")
    assert clock.since(clock[torch.tensor([1, 0, 2])]).tolist() == [-1, 1, 0]
    assert clock.since(clock[torch.tensor([2, 2, 2])]).tolist() == [2.0**63, 2.0**63, 0]
    fine = Clock.of(Table({"t": torch.tensor([0.25, -0.25, 1e300, -torch.inf], dtype=torch.float64)}), "t")
    assert fine.since(fine[torch.tensor([1, 0, 2, 3])]).tolist() == [0.5, -0.5, 0, 0]
    assert fine.after(fine[torch.tensor([1, 0, 2, 0])]).tolist() == [True, False, False, False]
    with pytest.raises(FastrecError, match="missing"):
        Clock.of(Table({"t": [1.0, None]}), "t")


key = st.one_of(st.none(), st.sampled_from(["a", "b"]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(key, key, st.integers(0, 3)), min_size=1, max_size=15))
def test_it_equals_a_loop(rows):
    frame = pd.DataFrame(rows, columns=["x", "y", "t"]).astype({"x": object, "y": object})
    for by, order in ((["x"], "t"), (["x", "y"], "t"), (["y"], None)):
        made = CumCount(by, order=order).fit_transform(frame)["cumcount_" + "_x_".join(by)]
        place = [(r[2] if order else 0, i) for i, r in enumerate(rows)]
        keys = [tuple(r["xyt".index(b)] for b in by) for r in rows]
        for i in range(len(rows)):
            before = sum(k == keys[i] and p < place[i] for k, p in zip(keys, place, strict=True))
            assert made[i] == (0 if None in keys[i] else before)


def test_a_count_sees_the_tail_of_training_rows():
    frame = pd.DataFrame({"u": [1, 2, 1, 1, 2], "t": [5, 1, 2, 3, 9]})
    later = pd.DataFrame({"u": [1, 3], "t": [10, 10]})
    assert CumCount("u", order="t").transform(later, history=frame)["cumcount_u"].tolist() == [3, 0]
