"""A plain call of ``check_leakage`` names every planted leak, and no column of pipelines that are clean."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.features import check_leakage
from fastrec.features.leakage.report import REMEDIES
from fastrec.features.leakage.rows import (
    CheckedRows,
    cut_places,
    key_codes,
    moved,
    probe_rows,
    sample_rows,
    with_rows_of,
)
from fastrec.features.leakage.statistics import (
    HeldTarget,
    by_group,
    change,
    followers,
    follows,
    movers,
    of_key,
    one_sided,
    one_to_one,
    patterns,
    row_order,
    says_target,
    scattered,
    told_within,
)
from fastrec.table import Table
from tests.features.frames import clicks
from tests.features.leak_pipelines import CLEAN, GUILTY, PLANTED, frame

OUTSIDE = [n for n in PLANTED if "table of" in n or "outside" in n or "already" in n]
KINDS = {**dict.fromkeys(OUTSIDE, "outside"), "2 y + 1 of an outer frame": "copy", "one rare key": "own target"}
KINDS |= {"row number of sorted rows": "row order"}
KINDS |= dict.fromkeys(["sum", "max of small groups", "missing where the target is 1"], "own target")
# A row's own target does not move its mean of the others. But (S - y) / (n - 1) falls with y within a key, and a model
# reads S and n off the key's other rows.
KINDS |= {n: "leave-one-out" for n in PLANTED if n.startswith("leave one out")}
SAID = {
    "a table of target means": ["for each 'item' it is the mean of 'y'", "JoinTable", "pipeline, out of fold"],
    "a table of smoothed target means": ["for each 'item'", "'y'"],
    "means of two keys outside": ["'user' and 'city'", "the mean"],
    "2 z + 1 of an outer frame": ["'z', times a number, plus a number"],
    "ids given in the order of the target": ["an id", "order of 'y'", "number the rows"],
    "a bit of the mantissa": ["its last digits changed when 'y' of this row alone went from"],
}
NOTED = {
    "a separating predictor": "orders the rows as 'y' does",
    "stratified folds": "folds that are drawn by the targets",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_named_and_nothing_else(name):
    pipeline, df, target, options = PLANTED[name](frame())
    report = check_leakage(pipeline, df, target, **options)
    assert report.columns == [GUILTY.get(name, "x")], str(report)
    assert all(leak.kind in REMEDIES and leak.detail for leak in report.leaks)
    assert name not in KINDS or {leak.kind for leak in report.leaks} == {KINDS[name]}
    assert all(word in str(report) for word in SAID.get(name, [])), str(report)


def test_what_is_said_is_said_of_planted_leaks():
    assert KINDS.keys() | SAID.keys() <= PLANTED.keys()
    assert NOTED.keys() <= CLEAN.keys()


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_pipeline_is_left_alone(name):
    pipeline, df, target, options = CLEAN[name](frame())
    report = check_leakage(pipeline, df, target, **options)
    assert report.ok, str(report)
    assert name not in NOTED or any("'x'" in note and NOTED[name] in note for note in report.notes), str(report)


def test_means_of_all_rows_are_found_though_a_part_is_checked():
    pipeline, df, target, options = PLANTED["a table of target means"](frame(2000))
    report = check_leakage(pipeline, df, target, max_rows=500, **options)
    assert {leak.kind for leak in report.leaks} == {"outside"}


def test_a_row_number_beside_a_time_is_noted():
    df = frame().sort_values("y", kind="stable").assign(t=np.arange(600))
    report = check_leakage(lambda d: d.assign(x=np.arange(len(d))), df, "y", "t")
    assert report.ok
    assert any("the place of each row" in note for note in report.notes)


def test_a_plain_call_runs_the_pipeline_some_twenty_times():
    runs = 0

    def pipeline(d):
        nonlocal runs
        runs += 1
        return d.assign(x=d["price"] * 2, n=d.groupby("item")["item"].transform("count"))

    assert check_leakage(pipeline, frame(), "y")
    assert runs <= 20


def test_every_row_is_changed_in_some_runs_and_in_none_at_the_same_rate_as_another():
    known = torch.ones(4000, dtype=torch.bool)
    known[::7] = False
    flips = patterns(known, torch.Generator().manual_seed(0))
    assert not flips[:, ~known].any()
    counts = flips[:, known].sum(0)
    assert counts.min() >= 1
    assert counts.max() <= len(flips) - 1
    assert len(torch.unique(flips[:, known].T, dim=0)) == 2 ** len(flips) - 2


def test_rows_that_follow_their_own_target_are_found_among_those_that_follow_others():
    n = 3000
    rng = np.random.default_rng(0)
    flips = patterns(torch.ones(n, dtype=torch.bool), torch.Generator().manual_seed(0))
    own = set(rng.choice(n, 20, replace=False).tolist())
    neighbour = rng.permutation(n)

    def values(flipped):
        f = np.zeros(n) if flipped is None else flipped.numpy().astype(float)
        return Table({"x": np.array([f[i] if i in own else f[neighbour[i]] for i in range(n)]) + 5})["x"]

    found = followers(torch.stack([change(values(None), values(f)) for f in flips]), flips, exact=False)
    assert own <= set(found.rows.tolist())
    assert len(found.rows) < 20 + 0.03 * n  # rows whose neighbour was changed in the same runs, or in the others
    for seed in range(8):
        flipped = torch.zeros(n, dtype=torch.bool)
        flipped[found.rows] = torch.rand(len(found.rows), generator=torch.Generator().manual_seed(seed)) < 0.6
        found = found.left(change(values(None), values(flipped)), flipped)
    assert set(found.rows.tolist()) == own


def test_movers_are_the_few_rows_that_targets_move():
    flips = patterns(torch.ones(100, dtype=torch.bool), torch.Generator().manual_seed(0))

    def column(f, share):
        moving = torch.arange(100) < share
        return Table({"x": (torch.arange(100) + moving * f.double().roll(1)).numpy()})["x"]

    still = torch.zeros(100, dtype=torch.bool)
    for share, expected in ((10, set(range(10))), (60, set()), (0, set())):
        found = movers(torch.stack([change(column(still, share), column(f, share)) for f in flips]), flips)
        assert set(found.tolist()) == expected


groups = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=24)


@settings(max_examples=200, deadline=None)
@given(rows=groups, follow=st.sampled_from([-1, 0, 1]))
def test_what_is_told_within_groups_agrees_with_a_plain_loop(rows, follow):
    codes, y, values = (np.array(c) for c in zip(*rows, strict=True))
    values = values if not follow else codes * 10 + follow * y
    ups = downs = pairs = equal = 0
    against = False
    for k in set(codes.tolist()):
        t, v = y[codes == k], values[codes == k]
        if len(set(t.tolist())) < 2:
            continue
        for a in range(len(t)):
            for b in range(len(t)):
                against |= t[a] == t[b] and v[a] != v[b]
                against |= t[a] < t[b] and v[a] == v[b]
                ups, downs = ups + (t[a] < t[b] and v[a] < v[b]), downs + (t[a] < t[b] and v[a] > v[b])
        if len(t) >= 4:
            pairs, equal = pairs + len(t) - 1, equal + len(t) - len(set(t.tolist()))
    if against or (ups and downs):
        pairs = equal = 0
    got = told_within(*(torch.from_numpy(a) for a in (codes, y.astype(float), values.astype(float))))
    assert got == (pairs, equal)


def test_few_pairs_say_nothing():
    y = torch.arange(60).double() % 2
    codes = torch.arange(60) // 5
    assert not says_target([(codes, y, -y)], "drawn")
    assert says_target([(codes, y, -y)] * 12, "drawn")
    assert not says_target([*[(codes, y, -y)] * 12, (codes, y, torch.zeros(60))], "drawn")
    assert not says_target([], "moved")


def test_disorder_is_told_from_values_that_move_together():
    rng = np.random.default_rng(0)
    means = np.repeat(rng.normal(size=30), 20)
    column = Table({"x": means})["x"]
    assert not scattered(column, Table({"x": means * 1.01})["x"])
    assert not scattered(column, Table({"x": np.where(means == means[0], 9, means)})["x"])
    assert scattered(column, Table({"x": means + 0.01 * rng.normal(size=600)})["x"])
    assert one_sided([0.9] * 19 + [0.1])
    assert one_sided([0.1] * 20)
    assert not one_sided([0.9] * 18 + [0.1] * 2)
    assert not one_sided([0.9] * 8)


def held(y, rows=None):
    column = Table({"y": y})["y"]
    return HeldTarget("y", column, column, torch.arange(len(column)) if rows is None else rows)


def test_one_to_one_needs_every_row_and_enough_of_them():
    y = np.arange(60) % 2
    for values, expected in (
        (2 * y + 1, True),
        (np.where(y == 1, "yes", "no"), True),
        (np.where(np.arange(60) == 3, 7, y), False),
        (y + np.arange(60) * 10, False),
        (np.zeros(60), False),
    ):
        assert bool(one_to_one(Table({"x": values})["x"], held(y))) is expected
        assert not one_to_one(Table({"x": values[:15]})["x"], held(y[:15]))
    z = np.random.default_rng(0).normal(size=60)
    assert one_to_one(Table({"x": 3 - 2 * z})["x"], held(z))
    assert one_to_one(Table({"x": (3 - 2 * z).astype("float32")})["x"], held(z))
    assert not one_to_one(Table({"x": z + 1e-4 * np.random.default_rng(1).normal(size=60)})["x"], held(z))
    assert follows(Table({"x": np.exp(z)})["x"], held(z))
    assert not follows(Table({"x": np.where(z == z.max(), -9, z)})["x"], held(z))


def test_a_place_that_follows_the_target_must_be_a_place():
    y = np.repeat([0, 1], 30)
    for values, expected in (
        (np.arange(60), True),
        (1000 - np.arange(60), True),
        (np.arange(60) ** 3, False),
        (np.arange(60) / 7, False),
        (np.arange(60) // 2, False),
        (np.random.default_rng(0).permutation(60), False),
    ):
        assert bool(row_order(Table({"x": values})["x"], held(y))) is expected


STATISTICS = {
    "mean": lambda g: g.mean(),
    "sum": lambda g: g.sum() * 3,
    "std": lambda g: g.std(),
    "max": lambda g: g.max(),
    "smoothed": lambda g: (g.sum() + 4 * 0.3) / (g.count() + 4),
    "rounded": lambda g: g.mean().round(2),
    "float32": lambda g: g.mean().astype("float32"),
}


def told(df, values):
    """What is said of a column that has one value for each key."""
    column, codes = Table({"x": df["k"].map(values).to_numpy()})["x"], torch.from_numpy(df["k"].to_numpy() + 1)
    target = held(df["y"].to_numpy())
    return of_key(column, {("k",): (codes, by_group(codes, target.y))}, lambda name: codes, target)


@pytest.mark.parametrize("how", STATISTICS)
def test_statistics_by_key_are_told_and_near_ones_are_not(how):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"k": rng.integers(0, 40, 800), "y": rng.normal(size=800)})
    stat = STATISTICS[how](df.groupby("k")["y"])
    assert told(df, stat)
    assert not told(df, stat + pd.Series(rng.normal(size=40), index=stat.index) * 0.05)
    assert not told(df, df.groupby("k")["y"].count().astype(float))
    assert not told(df, pd.Series(rng.integers(0, 2, 40), index=stat.index))


def test_a_function_of_count_and_sum_is_told_and_one_of_the_count_is_not():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"k": rng.integers(0, 300, 1500), "y": rng.integers(0, 2, 1500)})
    stats = df.groupby("k")["y"].agg(["sum", "count"])
    woe = np.log((stats["sum"] + 0.5) / (stats["count"] - stats["sum"] + 0.5))
    assert "count and the sum" in told(df, woe)
    assert "count and the sum" in told(df, (woe * 2).round(0))
    assert not told(df, np.log(stats["count"]))
    assert not told(df, woe.where(stats.index % 50 != 0, 0.123))


# The rows that ``check_leakage`` looks at: which are taken, changed and cut, and what counts as moved


def choice_of(df, **names):
    return CheckedRows.of(df, names.get("targets", ["clicked"]), names.get("order", []), names.get("keys", []), 0)


def test_the_part_holds_whole_keys_or_the_earliest_rows():
    df = clicks(1000)
    rows = sample_rows(choice_of(df, keys=["user"]), 300)
    users = df.iloc[rows.tolist()]["user"]
    assert 75 <= len(rows) <= 300
    assert len(rows) == df["user"].isin(set(users)).sum()
    rows = sample_rows(choice_of(df, order=["t"]), 300)
    assert sorted(df.iloc[rows.tolist()]["t"]) == list(range(300))
    assert rows.tolist() == sorted(rows.tolist())
    one_key = df.assign(user=1)
    assert len(sample_rows(choice_of(one_key, keys=["user"]), 300)) == 300
    assert len(sample_rows(choice_of(df), 300)) == 300
    assert sample_rows(choice_of(df), 1000).tolist() == list(range(1000))


def test_rows_to_change_are_of_rare_keys_and_of_frequent_ones_with_both_targets():
    df = pd.DataFrame({"key": [0] * 50 + [1, 1] * 5 + list(range(100, 140)), "clicked": [0, 1] * 50})
    choice = choice_of(df)
    sizes = [torch.where(c > 0, torch.bincount(c)[c], 0) for c in key_codes(df, choice).values()]
    rows = probe_rows(choice, sizes, 8)
    assert len(set(rows)) == 8
    assert df.iloc[rows]["clicked"].sum() == 4
    sizes = df.groupby("key")["key"].transform("count").iloc[rows]
    assert {1, 10, 50} <= set(sizes)


def test_times_to_cut_at_fall_inside_keys():
    df = pd.DataFrame({"s": np.arange(300) // 3, "t": np.arange(300), "clicked": [0, 1, 1] * 100})
    cuts = cut_places(choice_of(df, order=["t"], keys=["s"]), df)
    assert len(cuts) == 3
    assert all(c % 3 for c in cuts)
    assert cut_places(choice_of(df.assign(t=1), order=["t"]), df) == []
    assert cut_places(choice_of(df.iloc[:2], order=["t"]), df.iloc[:2]) == [1]


def test_mixing_the_future_moves_whole_rows_and_targets_for_themselves():
    df = clicks(200)
    choice = choice_of(df, order=["t"])
    names = list(df.columns)
    source = {name: rows.cpu() for name, rows in choice.mixed_future(100, names).items()}
    later = torch.tensor((df["t"] >= 100).to_numpy())
    assert set(source) == set(names) - {"t"}
    for rows in source.values():
        assert torch.equal(rows[~later], torch.arange(200)[~later])
        assert torch.equal(rows[later].sort().values, torch.arange(200)[later])
    assert torch.equal(source["price"], source["user"])
    assert (source["price"] != torch.arange(200))[later].sum() > 80
    assert (source["clicked"] != source["price"])[later].sum() > 80


def test_other_targets_are_far_ones():
    df = pd.DataFrame({"clicked": [0.0, 1.0, 9.0, 10.0, None]})
    choice = choice_of(df)
    assert choice.other_targets(torch.tensor([0, 2, 4]))["clicked"].tolist() == [3, 1, 0, 3, 4]
    one = choice.one_target(torch.tensor([True, False, False, False, True]))["clicked"]
    assert one.tolist() == [3, 1, 2, 3, 4]
    one = choice.one_target(torch.tensor([False, False, True, True, False]))["clicked"]
    assert one.tolist() == [0, 1, 0, 0, 4]


SECONDS = pd.Series(pd.to_datetime(["2024-01-01", "2024-01-02"])).dt.as_unit("s")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 2.0], [1.0 + 1e-12, 2.1], [False, True]),
        ([1e8, 1e-3], [1e8 + 1e-3, 1e-3 + 1e-8], [False, True]),
        ([0.0, 1.0, 5.0], [1e-13, 1.0, 5.0], [False, False, False]),
        ([None, 1.0], [None, None], [False, True]),
        ([float("inf"), float("inf"), -1.0], [float("inf"), 1.0, float("-inf")], [False, True, True]),
        ([2**53, 2**53], [2**53, 2**53 + 1], [False, True]),
        ([1, 2], [1.0, 2.5], [False, True]),
        (["a", "b", None], ["a", "c", "x"], [False, True, True]),
        (["a", "b"], [1, 2], [True, True]),
        ([[1.0], [1.0, 2.0], [1.0], None], [[1.0 + 1e-12], [1.0], [2.0], []], [False, True, True, True]),
        ([["a"], ["b"]], [["a"], ["c"]], [False, True]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], [False, True]),
        ([True, False, None], [True, True, None], [False, True, False]),
        (SECONDS, SECONDS.dt.as_unit("ms"), [False, False]),
        (SECONDS, SECONDS[[0, 0]], [False, True]),
        (np.array([[1.0, np.nan], [0.0, 2.0]]), np.array([[1.0, np.nan], [0.0, 2.1]]), [False, True]),
    ],
)
def test_what_counts_as_moved(before, after, expected):
    a, b = Table({"x": before})["x"], Table({"x": after})["x"]
    assert moved(a, b).tolist() == expected


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "dict"])
def test_values_from_other_rows_keep_type_and_index(library):
    frame = pd.DataFrame(
        {
            "a": pd.Categorical(["x", "y", "x"], ordered=True),
            "b": pd.Series([1, None, 3], dtype="Int64"),
            "c": [1, 2, 3],
        },
        index=["p", "q", "q"],
    )
    if library == "pyarrow":
        frame = pa.Table.from_pandas(frame, preserve_index=False)
    elif library == "dict":
        frame = {n: frame[n] for n in frame}
    made = with_rows_of(frame, {"a": torch.tensor([1, 1, 2]), "b": torch.tensor([2, 1, 0])})
    if library == "pandas":
        assert made.dtypes.equals(frame.dtypes)
        assert made.index.equals(frame.index)
    elif library == "pyarrow":
        assert made.schema.equals(frame.schema)
    assert list(made["a"].to_pylist() if library == "pyarrow" else made["a"]) == ["y", "y", "x"]
    assert list(made["c"].to_pylist() if library == "pyarrow" else made["c"]) == [1, 2, 3]
