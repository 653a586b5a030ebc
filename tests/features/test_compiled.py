"""Generators whose work compiled loops do, on many random tables and on a few long ones, against plain loops."""

import math

import numpy as np
import pandas as pd
import pytest

from fastrec._core import limits
from fastrec._core.kernels import compiled
from fastrec.features import GroupRank, History, LastAction
from fastrec.segments import groups as compiled_groups

pytestmark = [
    pytest.mark.skipif(not compiled(1 << 30), reason="numba is not installed"),
    pytest.mark.host_only(reason="the loops are compiled for the host"),
]
LONG = (1 << 18) + 77
SHAPES = ("random", "sorted", "one group", "singletons", "runs")
TYPES = ("int64", "int32", "int8", "float64", "float32", "bool", "datetime64[us]", "Int64")
METHODS = ("min", "max", "average", "ordinal", "dense")


@pytest.fixture
def short(monkeypatch):
    """Loops for few rows too."""
    monkeypatch.setattr(limits, "LOOP_NUMBERS", 0)
    monkeypatch.setattr(limits, "COMPILED_ROWS", 0)


@pytest.fixture
def calls(monkeypatch):
    """How often each compiled way was taken."""
    taken = {"rank": 0, "before": 0}

    def counting(name, word):
        inner = getattr(compiled_groups, name)

        def counted(*args, **options):
            found = inner(*args, **options)
            taken[word] += found is not None
            return found

        return counted

    monkeypatch.setattr("fastrec.segments.groups.rank_small_groups", counting("rank_small_groups", "rank"))
    monkeypatch.setattr("fastrec.segments.as_of_join.last_before", counting("last_before", "before"))
    return taken


def groups_of(shape, n, rng):
    """Keys float64 ``[n]``, NaN = missing."""
    keys = {
        "random": lambda: rng.integers(0, max(n // 4, 1), n),
        "sorted": lambda: np.sort(rng.integers(0, max(n // 4, 1), n)),
        "one group": lambda: np.zeros(n),
        "singletons": lambda: np.arange(n),
        "runs": lambda: np.arange(n) // 9,
    }[shape]().astype(float)
    if shape != "singletons" and rng.random() < 0.3:
        keys[rng.random(n) < 0.2] = np.nan
    return keys


def ranks(keys, values, method, *, descending=False, normalise=False):
    """pandas' ranks, where None has none."""
    groups = pd.Series(values, dtype="float64").groupby(keys)
    rank = groups.rank(method={"ordinal": "first"}.get(method, method), ascending=not descending)
    return (rank - 1) / (groups.transform("count") - 1).clip(lower=1) if normalise else rank


def values_of(kind, n, rng):
    """A column of many ties, missing values where its type has them, and its values as Python's, None = missing."""
    values = rng.integers(0, 2 if kind == "bool" else 5, n) - (0 if kind == "bool" else 2)
    gaps = rng.random(n) < (0.2 if kind in ("float64", "float32", "datetime64[us]", "Int64") else 0)
    column = pd.Series(values).astype(kind)
    column[gaps] = None
    return column, [None if gap else int(v) for gap, v in zip(gaps, values, strict=True)]


@pytest.mark.parametrize("seeds", [range(i, i + 50) for i in range(0, 200, 50)], ids=str)
def test_ranks_of_200_random_tables(short, calls, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n, shape, kind = int(rng.integers(1, 40)), SHAPES[seed % 5], TYPES[seed % 8]
        keys, (column, values) = groups_of(shape, n, rng), values_of(kind, n, rng)
        options = {"descending": bool(rng.integers(2)), "normalise": seed % 7 == 0}
        frame = pd.DataFrame({"g": keys, "x": column})
        for method in {METHODS[seed % 4], METHODS[seed // 8 % 5]}:
            if options["normalise"] and method == "dense":
                continue
            made = GroupRank("x", by="g", method=method, **options).fit_transform(frame).iloc[:, -1]
            message = f"{seed}, {shape}, {kind}, {method}"
            np.testing.assert_allclose(made, ranks(keys, values, method, **options), rtol=1e-12, err_msg=message)
    assert calls["rank"] > 20


def plain_history(rows, log):
    """For each row: events of its key strictly before it, time since the last of them, and what that was."""
    found = []
    for key, time in rows:
        before = [(t, i, kind) for i, (k, t, kind) in enumerate(log) if k == key and t < time]
        last = max(before) if before else None
        found.append((len(before), math.nan if last is None else time - last[0], None if last is None else last[2]))
    return found


@pytest.mark.parametrize("seeds", [range(i, i + 50) for i in range(0, 200, 50)], ids=str)
def test_events_before_rows_of_200_random_tables(short, calls, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n, e, shape = int(rng.integers(1, 30)), int(rng.integers(1, 30)), SHAPES[seed % 5]
        times = [rng.integers(-3, 6, m).astype(("int64", "float64", "int32", "float32")[seed % 4]) for m in (n, e)]
        keys = [groups_of(shape, m, rng) for m in (n, e)]
        rows = pd.DataFrame({"k": keys[0], "t": times[0]})
        log = pd.DataFrame({"k": keys[1], "t": times[1], "kind": rng.choice(list("abc"), e)})
        expected = plain_history(rows.to_numpy().tolist(), list(zip(log["k"], log["t"], log["kind"], strict=True)))
        expected = [(0, math.nan, None) if key != key else found for key, found in zip(keys[0], expected, strict=True)]
        made = History("k", order="t", table="log").fit_transform(rows, tables={"log": log})
        last = LastAction("k", order="t", action="kind", table="log").fit_transform(rows, tables={"log": log})
        message = f"{seed}, {shape}"
        np.testing.assert_array_equal(made["history_count"], [c for c, _, _ in expected], err_msg=message)
        np.testing.assert_array_equal(made["history_since"], [s for _, s, _ in expected], err_msg=message)
        assert [v if isinstance(v, str) else None for v in last["last1_kind__k"]] == [k for *_, k in expected], message
    assert calls["before"] > 20


@pytest.mark.parametrize(("kind", "method"), [("int64", "min"), ("float64", "average"), ("float64", "ordinal")])
def test_ranks_of_a_long_table(calls, kind, method):
    rng = np.random.default_rng(3)
    keys = np.sort(rng.integers(0, LONG // 5, LONG))
    values = rng.integers(0, 9, LONG).astype(kind)
    if kind == "float64":
        values[rng.random(LONG) < 0.1] = np.nan
    for descending in (False, True):
        made = GroupRank("x", by="g", method=method, descending=descending)
        made = made.fit_transform(pd.DataFrame({"g": keys, "x": values})).iloc[:, -1].to_numpy()
        np.testing.assert_array_equal(made, ranks(keys, values, method, descending=descending))
    assert calls["rank"] == 2


def test_events_before_the_rows_of_a_long_table(calls):
    rng = np.random.default_rng(4)
    rows = pd.DataFrame({"k": rng.integers(0, 5_000, LONG), "t": rng.integers(0, 200, LONG)})
    log = pd.DataFrame({"k": rng.integers(0, 5_500, LONG // 2), "t": rng.integers(0, 200, LONG // 2)})
    made = History("k", order="t", table="log").fit_transform(rows, tables={"log": log})
    # A number for a key and a time: what stands before it in the sorted log, less what stands before its key.
    places = np.sort(log["k"].to_numpy() * 1_000 + log["t"].to_numpy())
    own, first = rows["k"].to_numpy() * 1_000 + rows["t"].to_numpy(), rows["k"].to_numpy() * 1_000
    before = np.searchsorted(places, own, side="left")
    count = before - np.searchsorted(places, first, side="left")
    np.testing.assert_array_equal(made["history_count"], count)
    since = np.where(count > 0, own - places[before.clip(1) - 1], np.nan)
    np.testing.assert_array_equal(made["history_since"], since)
    assert calls["before"] >= 1


def test_few_rows_go_without(calls):
    GroupRank("x", by="g").fit_transform(pd.DataFrame({"g": [1, 1], "x": [2, 1]}))
    assert calls == {"rank": 0, "before": 0}
