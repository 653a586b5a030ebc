import math
from collections import defaultdict
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastrec.features import CoVisit
from fastrec.features.co_visit import _group_hash
from fastrec.table import Table
from tests.features.frames import of_rows

some = settings(max_examples=15)
few = settings(max_examples=8)
item = st.one_of(st.none(), st.sampled_from("abcd"))
events = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 7)), st.integers(0, 5), item, st.sampled_from(["see", "buy", "x"])),
    min_size=1,
    max_size=25,
)
WEIGHTS = {"see": 0.5, "buy": 2, "never": 1}
STATS = ["sum", "max", "mean"]


frame_of = partial(of_rows, s="Int64", t="int64", item=object, kind=object)


def folds_of(data, folds):
    frame = pd.DataFrame({"s": pd.array([r[0] for r in data], "Int64")})
    return [h % folds for h in _group_hash(Table.read(frame), ["s"]).tolist()]


def usable(data, weights):
    """Groups' events that count, in order: (time, item, weight, row)."""
    found = defaultdict(list)
    for i, (s, t, thing, kind) in enumerate(data):
        weight = 1.0 if weights is None else weights.get(kind, 0)
        if s is not None and thing is not None and weight:
            found[s].append((t, thing, weight, i))
    return {s: sorted(v) for s, v in found.items()}


def scores(groups, window, half_life):
    """The scores of all pairs of items, by a plain loop over pairs of events."""
    together, own = defaultdict(float), defaultdict(float)
    for seen in groups:
        for i, (t, a, w, _) in enumerate(seen):
            own[a] += w * w
            for u, b, v, _ in seen[i + 1 : i + 1 + window]:
                if a != b:
                    decay = 1.0 if half_life is None else 0.5 ** ((u - t) / half_life)
                    together[frozenset((a, b))] += w * v * decay
    return {pair: w / math.sqrt(math.prod(own[x] for x in pair)) for pair, w in together.items()}


def by_loop(data, log, learned, *, window=5, last=5, half_life=None, weights=None, folds=5):
    """The statistics of each row of ``data`` with its past in ``log``, learned from ``learned``."""
    known = usable(learned, weights)
    fold = dict(zip([r[0] for r in learned], folds_of(learned, folds), strict=True))
    tables = {
        f: scores([v for s, v in known.items() if fold[s] != f], window, half_life) for f in (None, *range(folds))
    }
    past, made = usable(log, weights), []
    for s, t, thing, _ in data:
        before = [e for e in past.get(s, []) if e[0] < t][-last:]
        table = tables[fold[s] if s in known else None]
        found = [table.get(frozenset((thing, e[1])), 0.0) for e in before if e[1] != thing]
        if thing is None or not found:
            made.append([math.nan] * 3)
        else:
            made.append([sum(found), max(found), sum(found) / len(found)])
    return made


OPTIONS = [
    {},
    {"window": 1, "last": 2, "folds": 2},
    {"half_life": 1.5, "window": 3},
    {"weights": WEIGHTS, "half_life": 2, "folds": 3},
]
every = pytest.mark.parametrize("options", OPTIONS)


def scored(options, **more):
    """A generator of these options, and a check of what it made against the loop with the same ones."""
    event = {"event": "kind"} if "weights" in options else {}
    feature = CoVisit("item", by="s", order="t", stats=STATS, **options, **event, **more)

    def check(made, *loop):
        for a, b in zip(made[feature.outputs].values.tolist(), by_loop(*loop, **options), strict=True):
            assert a == pytest.approx(b, rel=1e-9, nan_ok=True)

    return feature, check


def many(n=200):
    rng = np.random.default_rng(1)
    parts = (rng.integers(0, 30, n), rng.integers(0, 20, n), rng.choice(list("abcdefgh"), n))
    return list(zip(*(p.tolist() for p in parts), rng.choice(["see", "buy", "x"], n).tolist(), strict=True))


@every
@few
@example(train=many(), new=many())
@given(train=events, new=events)
def test_scores_of_the_rows_themselves_equal_a_loop(options, train, new):
    feature, check = scored(options)
    check(feature.fit_transform(frame_of(train)), train, train, train)
    check(feature.transform(frame_of(new)), new, new, train)


@every
@few
@given(rows=events, log=events, later=events)
def test_scores_from_a_log_equal_a_loop(options, rows, log, later):
    feature, check = scored(options, table="log", name="c")
    assert feature.outputs == ["c_sum", "c_max", "c_mean"]
    frame = frame_of(rows)[["s", "t", "item"]]
    check(feature.fit_transform(frame, tables={"log": frame_of(log)}), rows, log, log)
    # Later the log holds other events: they are a row's past, and nothing is learned from them.
    check(feature.transform(frame, tables={"log": frame_of(later)}), rows, later, log)


@some
@given(data=events, more=events, group=st.integers(0, 7), now=st.integers(0, 5))
def test_what_a_rows_own_group_does_later_never_moves_it(data, more, group, now):
    kept = [r for r in data if r[0] != group or r[1] < now]
    changed = [*kept, *(r for r in more if r[0] == group and r[1] >= now)]
    feature = CoVisit("item", by="s", order="t", stats=STATS)
    found = []
    for rows in (data, changed):
        made = feature.fit_transform(frame_of(rows))
        mine = made[(made["s"] == group) & (made["t"] < now)]
        found.append(mine[feature.outputs].values.tolist())
    for a, b in zip(*found, strict=True):
        assert a == pytest.approx(b, rel=1e-12, nan_ok=True)


def test_a_row_does_not_meet_its_own_pairs_whatever_type_holds_its_groups_key(tmp_path):
    # Only one group ever had a and b together.
    frame = pd.DataFrame({"s": [1, 1, 2, 2, 3, 3], "t": [1, 2] * 3, "item": list("abacbc")})
    feature = CoVisit("item", by="s", order="t", stats="sum")
    assert feature.fit_transform(frame)["covisit_sum"][1] == 0
    assert feature.transform(frame)["covisit_sum"][1] == 0  # the group is known to be one that was learned from
    again = frame.assign(s=frame["s"] + 100)
    assert feature.transform(again)["covisit_sum"][1] == pytest.approx(0.5)
    feature.save(tmp_path / "f")
    for loaded in (feature, CoVisit.load(tmp_path / "f")):
        for kind in ("int8", "float64", "Int64"):
            assert loaded.transform(frame.astype({"s": kind}))["covisit_sum"][1] == 0


def test_times_decay_in_seconds():
    times = pd.to_datetime(["2024-01-01 00:00:00", "2024-01-01 00:01:00"] * 2)
    train = pd.DataFrame({"s": [1, 1, 2, 2], "t": times, "item": list("abab")})
    new = train.assign(s=9).iloc[:2]
    made = CoVisit("item", by="s", order="t", half_life=60, stats="max").fit(train).transform(new)
    assert made["covisit_max"].tolist() == pytest.approx([math.nan, 0.5], nan_ok=True)


def test_a_chain_of_blocks_gives_the_same_pairs(monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"s": rng.integers(0, 40, 500), "t": np.arange(500), "item": rng.integers(0, 30, 500)})
    feature = CoVisit("item", by="s", order="t", half_life=50)
    whole = feature.collect(Table.read(frame))
    monkeypatch.setattr("fastrec._core.limits.PAIRED_PLACES", 77)
    parts = feature.collect(Table.read(frame))
    for name in ("low", "high", "own", "groups"):
        assert torch.equal(whole[name], parts[name])
    torch.testing.assert_close(whole["weight"], parts["weight"], rtol=1e-12, atol=0)
