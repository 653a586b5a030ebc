import math
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.features import CumCount, CumStat, JaccardToHistory, LastKnown
from fastrec.segments.groups import running_sum
from tests.features.frames import of_rows, plain

STATS = ["count", "sum", "mean", "min", "max", "smaller"]
rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 1)),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([1e8, 1e8 + 1])),
    ),
    max_size=20,
)

pytestmark = pytest.mark.usefixtures("few_or_many")
frame_of = partial(of_rows, g="Int64", t="int64", x="float64")


def before(rows, i, *, ahead=False):
    """The rows before row ``i`` in its group, in order; nearest last."""
    group = sorted((j for j, r in enumerate(rows) if r[0] == rows[i][0] is not None), key=lambda j: (rows[j][1], j))
    if i not in group:
        return []
    place = group.index(i)
    return [rows[j] for j in (group[:place:-1] if ahead else group[:place])]


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


key = st.one_of(st.none(), st.sampled_from(["a", "b"]))


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
