"""Folds against scikit-learn's splitters and plain loops, the checks they make, and their file."""

import datetime as dt
import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold, PredefinedSplit, StratifiedGroupKFold, StratifiedKFold, TimeSeriesSplit

from fastrec.errors import DataError, DataWarning, LeakageError, MissingFileError, UnreadableFileError
from fastrec.features._engine.folds import row_folds
from fastrec.table import Table
from fastrec.validate import Folds, group_folds
from fastrec.validate.cuts import first_in_group
from tests._core.refusals import refused

RNG = np.random.default_rng(5)
DAY = pd.Timestamp("2019-07-01")
DAYS = pd.Series(DAY + pd.to_timedelta(range(9), unit="D"), name="day")
T = np.arange(60) // 2


def pairs(folds: Folds) -> list[tuple[list[int], list[int]]]:
    return [(train.tolist(), valid.tolist()) for train, valid in folds]


def check_partition(folds: Folds, rows: int) -> None:
    """Every row is scored once, trained on in all other folds; row numbers ascend."""
    assert folds.is_partition
    assert folds.size == rows
    assert bool(folds.scored.all())
    seen = Counter()
    for k, (train, valid) in enumerate(folds):
        assert train.dtype == valid.dtype == torch.int64
        assert train.tolist() == sorted(train.tolist())
        assert valid.tolist() == [i for i in range(rows) if folds.codes[i] == k]
        assert sorted(train.tolist() + valid.tolist()) == list(range(rows))
        seen.update(valid.tolist())
    assert seen == Counter(range(rows))


def class_counts(folds: Folds, y: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(y[valid.numpy()], minlength=y.max() + 1) for _, valid in folds])


@given(rows=st.integers(4, 90), count=st.integers(2, 4), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_folds_at_random_are_a_partition_of_equal_sizes(rows, count, seed):
    folds = Folds.kfold(rows, count, seed=seed)
    check_partition(folds, rows)
    sizes = [len(valid) for _, valid in folds]
    assert sorted(sizes) == sorted(len(v) for _, v in KFold(count).split(np.zeros(rows)))
    assert folds.digest == Folds.kfold(rows, count, seed=seed).digest
    assert f"{count} folds" in folds.method
    assert f"seed {seed}" in folds.method


def test_other_seeds_give_other_folds_and_rows_are_mixed():
    one, other = Folds.kfold(1000, 5), Folds.kfold(1000, 5, seed=1)
    assert 700 < int((one.codes != other.codes).sum()) < 900  # four of five by chance
    assert len(set(one.codes[:50].tolist())) == 5
    assert one.digest != other.digest


@given(y=st.lists(st.integers(0, 3), min_size=30, max_size=120), count=st.integers(2, 5), seed=st.integers(0, 3))
@settings(max_examples=40)
def test_class_shares_are_kept_as_closely_as_whole_rows_allow(y, count, seed):
    y = np.array(y + [0, 1, 2, 3] * count)
    folds = Folds.stratified(len(y), y, count, seed=seed)
    check_partition(folds, len(y))
    counts = class_counts(folds, y)
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(1)) <= 1
    skl = [np.bincount(y[v], minlength=4) for _, v in StratifiedKFold(count).split(y, y)]
    assert (np.ptp(counts, axis=0) <= np.ptp(skl, axis=0)).all()


def test_numbers_are_stratified_by_quantile_bins():
    y = RNG.permutation(np.arange(200) ** 1.5)
    for bins, given_bins in ((10, None), (4, 4)):
        folds = Folds.stratified(200, pd.Series(y, name="price"), 5, bins=given_bins)
        check_partition(folds, 200)
        counts = class_counts(folds, pd.qcut(y, bins, labels=False))
        assert (counts == 200 // bins // 5).all()
        assert f"{bins} quantile bins of price" in folds.method
    whole = RNG.permutation(np.repeat(np.arange(100), 5))
    assert "10 quantile bins" in Folds.stratified(500, whole, 5).method
    as_classes = Folds.stratified(500, whole, 5, bins=0)
    assert "classes" in as_classes.method
    assert (class_counts(as_classes, whole) == 1).all()
    y = np.array([0.0] * 60 + [1.5] * 30 + [np.nan] * 10)  # equal numbers share a bin, missing ones are a stratum
    counts = class_counts(Folds.stratified(100, y, 5, bins=3), np.nan_to_num(y * 2, nan=1).astype(int))
    assert counts.tolist() == [[12, 2, 0, 6]] * 5
    y = np.array(["yes", "no", "no"] * 40)
    text = Folds.stratified({"y": y}, "y", 4)
    assert (class_counts(text, (y == "yes").astype(int)) == [20, 10]).all()
    assert text.codes.tolist() == Folds.stratified(120, y == "yes", 4).codes.tolist()
    assert "classes of y" in text.method


def test_rare_classes_are_told_of_and_ids_refused():
    y = pd.Series(["a"] * 50 + ["b"] * 50 + ["rare"] * 2, name="kind")
    with pytest.warns(DataWarning, match="'kind': 1 class has fewer rows than the 5 folds, class 'rare' 2: some.*it"):
        check_partition(Folds.stratified(102, y, 5), 102)
    with pytest.raises(DataError, match=r"'kind'.*no class has as many rows"):
        Folds.stratified(20, pd.Series([f"row {i}" for i in range(20)], name="kind"))


@given(
    rows=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 2)), min_size=40, max_size=200),
    count=st.integers(2, 5),
    seed=st.integers(0, 2),
)
@settings(max_examples=40)
def test_stratified_groups_are_whole_and_no_fold_is_empty(rows, count, seed):
    rows = rows + [(g, y) for g in range(30, 36) for y in (0, 0, 1, 2)]
    groups, y = np.array(rows).T
    folds = Folds.stratified_group(len(rows), y, groups, count, seed=seed, bins=0)
    check_partition(folds, len(rows))
    assert all(len({int(folds.codes[i]) for i in np.flatnonzero(groups == g)}) == 1 for g in set(groups))
    folds.check_groups(groups)


@pytest.mark.parametrize("shape", ["small", "uneven"])
def test_stratified_groups_keep_shares_as_well_as_scikit_learn(shape):
    rng = np.random.default_rng(1)
    ours, theirs = [], []
    for seed in range(5):
        sizes = rng.integers(1, 12, 150) if shape == "small" else (rng.pareto(1.2, 60) * 4 + 1).astype(int)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        y = (rng.random(len(groups)) < rng.beta(1, 3, len(sizes))[groups]).astype(int) + 1
        y[rng.random(len(y)) < 0.05] = 0
        whole = np.bincount(y)
        skl = [np.bincount(y[v], minlength=3) for _, v in StratifiedGroupKFold(5).split(y, y, groups)]
        theirs.append(np.std(np.array(skl) / whole, axis=0).mean())
        folds = Folds.stratified_group(len(y), y, groups, 5, seed=seed)
        ours.append(np.std(class_counts(folds, y) / whole, axis=0).mean())
    assert np.mean(ours) <= 1.05 * np.mean(theirs)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=30, max_size=60), st.randoms())
def test_the_last_group_of_each_is_scored_and_all_others_are_trained_on(lists, random):
    """Lists of two rows, in any order; by a plain loop. A user without a name is scored in no fold."""
    rows = [(i, user, time) for i, (user, time) in enumerate(lists) for _ in range(2)]
    random.shuffle(rows)
    frame = pd.DataFrame(rows, columns=["list", "user", "time"])
    frame["user"] = frame["user"].map(lambda u: None if u == 9 else f"u{u}")
    last = {}
    for i, user, time in zip(frame["list"], frame["user"], frame["time"]):
        if pd.notna(user) and time >= last.get(user, (-1, None))[0]:
            last[user] = (time, i)
    named = frame[frame["user"].notna() & frame["list"].isin([i for _, i in last.values()])]
    both = row_folds(Table.read(frame[["user"]]), ["user"], 2)[named.index]
    assume(bool((torch.bincount(both, minlength=2) > 0).all()))
    folds = Folds.last(frame, "list", "user", "time", 2)
    wanted = frame["list"].isin([i for _, i in last.values()]).to_numpy()
    np.testing.assert_array_equal(folds.scored.numpy(), wanted)
    for train, valid in folds:
        assert sorted([*train.tolist(), *valid.tolist()]) == list(range(len(frame)))
    users = frame.assign(fold=folds.codes.numpy())[wanted].groupby("user")["fold"].nunique()
    assert (users == 1).all()
    assert folds.method == "2 folds of the last list of each user, by time"


def test_repeats_are_the_folds_of_the_seeds_that_follow():
    y, g = RNG.integers(0, 2, 120), RNG.integers(0, 40, 120)
    for cut in (
        lambda **kw: Folds.kfold(120, 3, **kw),
        lambda **kw: Folds.stratified(120, y, 3, **kw),
        lambda **kw: Folds.group(120, g, 3, **kw),
        lambda **kw: Folds.stratified_group(120, y, g, 3, **kw),
    ):
        folds = cut(repeats=3, seed=7)
        assert len(folds) == 9
        assert not folds.is_partition
        assert folds.is_repeated
        assert not cut(seed=7).is_repeated
        assert bool(folds.scored.all())
        singly = [pair for r in range(3) for pair in cut(seed=7 + r)]
        assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(folds, singly, strict=True))
        assert "3 times, seeds 7 to 9" in folds.method
        with pytest.raises(DataError, match=r"row 0.*scored in several folds"):
            _ = folds.codes


def test_a_given_column_makes_the_folds_of_scikit_learns_predefined_split():
    fold = np.array([2, 0, -1, 7, 2, 0, -1, 7, 7, 0] * 3)
    folds = Folds.predefined({"fold": fold}, "fold")
    wanted = PredefinedSplit(fold).split()
    assert pairs(folds) == [(train.tolist(), valid.tolist()) for train, valid in wanted]
    assert torch.equal(folds.scored, torch.from_numpy(fold >= 0))
    assert not folds.is_partition
    assert folds.codes.tolist() == [{-1: -1, 0: 0, 2: 1, 7: 2}[f] for f in fold.tolist()]
    names = Folds.predefined(8, pd.Series(["b", "a", None, "b", "a", "b", "a", "b"], name="part"))
    assert names.codes.tolist() == [1, 0, -1, 1, 0, 1, 0, 1]
    assert names.method == "2 folds of the column part"


def test_rows_and_columns_of_any_library(df_module):
    columns = {"y": ["u", "v", "v", "u"] * 10, "g": [i // 3 for i in range(40)]}
    frame, table = df_module.frame(columns), Table(columns)
    wanted = Folds.stratified_group(table, "y", "g", 3)
    assert torch.equal(Folds.stratified_group(frame, "y", "g", 3).codes, wanted.codes)
    assert torch.equal(Folds.stratified_group(len(table), frame["y"], frame["g"], 3).codes, wanted.codes)
    assert torch.equal(Folds.kfold(frame, 3).codes, Folds.kfold(40, 3).codes)
    wanted.check_groups(frame["g"]).check_groups("g", frame)
    folds = Folds.group(frame, ["y", "g"], 4, seed=3)
    check_partition(folds, 40)
    assert torch.equal(folds.codes, group_folds(table, ["y", "g"], 4, seed=3))
    assert torch.equal(Folds.group(40, frame["g"], 2).codes, group_folds(table, "g", 2))
    assert folds.method == "4 folds by a hash of y, g, seed 3"


@pytest.mark.parametrize(
    ("error", "message", "cut"),
    [
        (DataError, "1 folds", lambda: Folds.kfold(10, 1)),
        (DataError, "0 times", lambda: Folds.kfold(10, 2, repeats=0)),
        (DataError, "2.5 folds.*whole numbers", lambda: Folds.kfold(10, 2.5)),
        (DataError, "3 rows for 5 folds", lambda: Folds.kfold(3)),
        (KeyError, "column 'user'", lambda: Folds.group({"x": [1, 2]}, "user")),
        (DataError, "has no row", lambda: Folds.group(8, [1] * 8, 2)),
        (DataError, r"'target'.*3 values for 4 rows", lambda: Folds.stratified(4, [0, 1, 0], 2)),
        (DataError, "2 groups for 3 folds", lambda: Folds.stratified_group(6, [0, 1] * 3, [5, 5, 5, 6, 6, 6], 3)),
        (DataError, "Use 2 or more", lambda: Folds.stratified(40, np.linspace(0, 1, 40), 2, bins=1)),
        (DataError, r"'part'.*20 folds for 20 rows", lambda: Folds.predefined({"part": np.arange(20)}, "part")),
        (DataError, "numbered -1 to -1", lambda: Folds.predefined(4, [-1, -1, -1, -1])),
        (DataError, "3 distinct times, and 5 are needed", lambda: Folds.time_series(5, [1, 2, 3, 3, 3], 4)),
        (DataError, "fold 0 of 2 has no row to train on", lambda: Folds.time_series(9, range(9), 2, gap=3)),
        (DataError, "fold 0 of 2 has no row to score", lambda: Folds.time_series(6, [0, 1, 2, 3, 4, 20], 2, horizon=3)),
        (DataError, "0 folds", lambda: Folds.time_series(9, range(9), 0)),
        (DataError, r"'day'.*gap is 7 and the times are dates", lambda: Folds.time_series(9, DAYS, 2, gap=7)),
        (DataError, "window is '7D', the times are numbers", lambda: Folds.time_series(9, range(9), 2, window="7D")),
        (DataError, "horizon is 'soon', no length", lambda: Folds.time_series(9, DAYS, 2, horizon="soon")),
        (DataError, "gap is -1", lambda: Folds.time_series(9, range(9), 2, gap=-1)),
        (DataError, "gap is nan", lambda: Folds.time_series(9, range(9), 2, gap=float("nan"))),
        (DataError, r"'day', row 4.*a time is missing", lambda: Folds.time_series(9, DAYS.where(DAYS[4] != DAYS), 2)),
        (DataError, r"row 1.*infinite", lambda: Folds.time_series(3, [0.0, np.inf, 1.0], 1)),
        (DataError, r"'city'.*no date", lambda: Folds.time_series({"city": ["Rome", "Oslo", "Bern"]}, "city", 2)),
        (DataError, r"row 2.*ends at 1, before it starts at 2", lambda: Folds.purged(4, range(4), [0, 1, 1, 3], 2)),
        (DataError, "the labels of all others overlap", lambda: Folds.purged(4, range(4), [9, 9, 9, 9], 2)),
        (DataError, "holds dates, the other numbers", lambda: Folds.purged(2, DAYS[:2], [1, 2], 2)),
        (DataError, "1 folds", lambda: Folds.purged(4, range(4), range(4), 1)),
        (DataError, "fold 1 of 3 has no row to score", lambda: Folds([0, 2, 0])),
        (DataError, "fold 0 of 1 has no row to train on", lambda: Folds([0, 0, 0])),
        (DataError, "two lines", lambda: Folds([[0, 1, 1], [0, 2, 2]])),
        (DataError, "numbered 0 to 4294967296", lambda: Folds([0, 1, 2**32])),  # which int32 would take for 0
        (DataError, "training rows of fold 2, and no such", lambda: Folds([0, 1], {2: torch.tensor([True, True])})),
        (DataError, "numbered -2", lambda: Folds([0, 1, -2])),
        (DataError, r"float64 of shape \(2,\)", lambda: Folds([0.0, 1.0])),
        (DataError, "no bool", lambda: Folds([0, 1], {0: torch.tensor([True])})),
        (LeakageError, "fold 0 trains on a row that", lambda: Folds([0, 0, 1], {0: torch.tensor([False, True, True])})),
        (IndexError, "no fold 2", lambda: Folds([0, 1])[2]),
    ],
)
def test_what_cannot_be_cut_is_named(error, message, cut):
    refused(error, message, cut)


def test_folds_cut_elsewhere():
    folds = Folds(np.array([0, 0, 1, -1, 1]), {0: torch.tensor([False, False, False, True, True])}, method="mine")
    assert pairs(folds) == [([3, 4], [0, 1]), ([0, 1, 3], [2, 4])]
    assert folds[-1][0].tolist() == folds[1][0].tolist() == [0, 1, 3]
    assert repr(folds) == "Folds(2 folds of 5 rows: mine)"
    codes = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    folds = Folds(codes)
    codes[:] = 0
    folds.codes[:] = 0
    assert folds.codes.tolist() == [0, 1, 0, 1]  # folds do not change with what made them


@given(
    rows=st.lists(st.tuples(st.integers(-1, 2), st.sampled_from([None, "a", "b", "c", "d", "e"])), min_size=3),
    data=st.data(),
)
@settings(max_examples=80)
def test_split_groups_are_found_as_a_loop_finds_them(rows, data):
    rows = [*rows, (0, "f"), (1, "g"), (2, "h")]
    codes, groups = [c for c, _ in rows], [g for _, g in rows]
    masks = {1: torch.tensor([c != 1 and data.draw(st.booleans()) for c in codes[:-1]] + [True])}
    folds = Folds(codes, masks)
    pairs_of = [(k, int(i), int(j)) for k, (train, valid) in enumerate(folds) for i in train for j in valid]
    bad = [(k, i, j) for k, i, j in pairs_of if groups[i] is not None and groups[i] == groups[j]]
    if not bad:
        assert folds.check_groups(groups) is folds
        return
    k, row, other = bad[0]
    message = f"row {row}.*group {groups[row]} is split: fold {k} trains on row {row} and scores row {other}"
    refused(LeakageError, message, lambda: folds.check_groups(pd.Series(groups, name="user")))


@given(rows=st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 6)), min_size=3))
@settings(max_examples=80)
def test_time_that_runs_backwards_is_found_as_a_loop_finds_it(rows):
    rows = [*rows, (0, 3), (1, 3)]
    codes, time = [c for c, _ in rows], [t for _, t in rows]
    folds = Folds(codes)
    bad = any(time[i] > time[j] for train, valid in folds for i in train for j in valid)
    if not bad:
        assert folds.check_time(time) is folds
        return
    with pytest.raises(LeakageError, match=r"time runs backwards: fold . trains on row") as error:
        folds.check_time(pd.Series(pd.to_datetime(time, unit="D"), name="day"))
    found = re.search(r"fold (\d+) trains on row (\d+), which is later than row (\d+)", str(error.value))
    k, late, early = map(int, found.groups())
    assert error.value.column == "day"
    assert time[late] > time[early]
    assert late in folds[k][0]
    assert early in folds[k][1]


def test_checks_want_the_rows_that_were_cut():
    folds = Folds.kfold(6, 2)
    for check in (folds.check_groups, folds.check_time):
        refused(DataError, "5 values for 6 rows", lambda c=check: c([1, 2, 3, 4, 5]))
        refused(DataError, "5 values for folds of 6 rows", lambda c=check: c("x", {"x": [1, 2, 3, 4, 5]}))
    two, rows = Folds([0, 1, 0, 1]), {"s": list("abbb"), "t": [1, 2, 2, 3]}
    refused(LeakageError, r"'s, t'.*group b, 2 is split", lambda: two.check_groups(["s", "t"], rows))


@pytest.mark.parametrize(
    ("folds", "names"),
    [
        (Folds.kfold(60, 4), ["fold"]),
        (Folds.stratified(60, T % 3, 3, repeats=2), ["fold_0", "fold_1"]),
        (Folds.time_series(60, T, 3, gap=2, window=8), None),
        (Folds.purged(60, T, T + 3, 3, embargo=1), None),
        (Folds.like({"x": T % 4}, {"x": T[:9] % 4}), None),
    ],
    ids=["random", "repeated", "time", "purged", "like"],
)
def test_a_file_gives_the_same_folds(folds, names, tmp_path):
    folds.save(tmp_path / "folds.parquet")
    got = Folds.load(tmp_path / "folds.parquet")
    assert (len(got), got.size, got.method, got.why) == (len(folds), folds.size, folds.method, folds.why)
    assert pairs(got) == pairs(folds)
    assert got.digest == folds.digest
    assert (got.is_partition, got.scored.tolist()) == (folds.is_partition, folds.scored.tolist())
    if names is not None:  # other libraries read the file
        assert list(frame := pd.read_parquet(tmp_path / "folds.parquet")) == names
        assert names != ["fold"] or frame.fold.tolist() == folds.codes.tolist()


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "folds.parquet"
    Folds.kfold(600, 4).save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:200], whole[:-9], b"PAR1" + whole[:40]):
        path.write_bytes(damaged)
        refused(UnreadableFileError, r"folds\.parquet", lambda: Folds.load(path))
    pd.DataFrame({"fold": [0, 1]}).to_parquet(path)
    refused(UnreadableFileError, "cannot be read", lambda: Folds.load(path))
    refused(MissingFileError, r"none\.parquet", lambda: Folds.load(tmp_path / "none.parquet"))


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "folds.parquet"
    Folds.kfold(600, 4).save(path)
    table = pq.read_table(path)
    about, fold = json.loads(table.schema.metadata[b"fastrec.folds"]), table["fold"].to_numpy()
    other = np.where(np.arange(600) == 17, (fold + 1) % 4, fold)
    for codes, changed in ((other, about), (fold[:-1], about), (fold, {**about, "method": "another"})):
        table = pa.table({"fold": codes}).replace_schema_metadata({"fastrec.folds": json.dumps(changed)})
        pq.write_table(table, path)
        refused(UnreadableFileError, "digest differs", lambda: Folds.load(path))


# Folds by time and purged folds, against scikit-learn and plain loops over rows


SPLITS = {"gap": st.integers(0, 3), "window": st.none() | st.integers(1, 6), "horizon": st.none() | st.integers(1, 4)}


def cut_or_problem(cut, *args, **kwargs) -> tuple[Folds | None, str]:
    try:
        return cut(*args, **kwargs), ""
    except DataError as error:
        return None, str(error)


@given(times=st.lists(st.integers(-5, 30), min_size=12, max_size=60), count=st.integers(1, 4), **SPLITS)
@settings(max_examples=150)
def test_each_fold_trains_on_the_past_it_was_given(times, count, gap, window, horizon):
    folds, problem = cut_or_problem(
        Folds.time_series, len(times), times, count, gap=gap, window=window, horizon=horizon
    )
    if folds is None:
        assert "no row" in problem or "distinct times" in problem  # see test_too_little_time_is_named
        return
    assert len(folds) == count
    last, scored = None, []
    for k, (train, valid) in enumerate(pairs(folds)):
        first = min(times[i] for i in valid)
        wanted = [i for i, t in enumerate(times) if first - t > gap and (window is None or first - t <= gap + window)]
        assert train == wanted
        assert valid == [i for i, t in enumerate(times) if first <= t <= max(times[j] for j in valid)]
        assert last is None or first > last
        last = max(times[i] for i in valid)
        scored += valid
        if horizon is not None:
            until = max(times) - (count - 1 - k) * horizon
            assert valid == [i for i, t in enumerate(times) if until - horizon < t <= until]
    assert last == max(times)
    assert sorted(scored) == folds.scored.nonzero().squeeze(1).tolist()
    assert not folds.is_partition
    assert not folds.is_repeated  # rows that no fold scores, and none that two do
    assert all(folds.codes[i] == k for k, (_, valid) in enumerate(folds) for i in valid)
    folds.check_time(times)


@pytest.mark.parametrize(("count", "gap", "window"), [(4, 0, None), (4, 3, None), (5, 2, 7), (2, 0, 1)])
def test_single_rows_in_order_are_split_as_scikit_learn_does(count, gap, window):
    rows = 12 * (count + 1)
    folds = Folds.time_series(rows, np.arange(rows) + 100, count, gap=gap, window=window)
    wanted = TimeSeriesSplit(count, gap=gap, max_train_size=window).split(np.zeros(rows))
    assert pairs(folds) == [(train.tolist(), valid.tolist()) for train, valid in wanted]


def test_busy_times_stay_whole():
    times = [0, 1, 2, 3, 4, 5, 6, 7, 8] + [9] * 60 + [10, 11, 12]
    folds = Folds.time_series(len(times), times, 4)
    assert [sorted({times[i] for i in valid}) for _, valid in pairs(folds)] == [[9], [10], [11], [12]]


@pytest.mark.parametrize("form", ["ns", "us", "s", "text", "iso", "zoned", "table"])
@pytest.mark.parametrize(
    "week", [dt.timedelta(days=7), np.timedelta64(7, "D"), pd.Timedelta(weeks=1), "7D"], ids=["py", "np", "pd", "text"]
)
def test_dates_of_any_form_and_spans_of_any_form(form, week):
    days = pd.Series(DAY + pd.to_timedelta(np.arange(80) // 2, unit="D"), name="day")
    given_as = {
        "text": days.dt.strftime("%Y-%m-%d"),
        "iso": days.dt.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "zoned": days.dt.tz_localize("UTC"),
        "table": Table({"day": days.to_numpy()})["day"],
    }
    times = given_as[form] if form in given_as else days.astype(f"datetime64[{form}]")
    folds = Folds.time_series(80, times, 2, gap=week, window=week, horizon=week)
    by_number = Folds.time_series(80, np.arange(80) // 2, 2, gap=7, window=7, horizon=7)
    assert pairs(folds) == pairs(by_number)
    said = "2 folds by time (day), gap 7 days, training on the last 7 days, scoring 7 days each"
    assert folds.method == said


def test_numbers_with_fractions_and_categories_in_order():
    times = np.arange(40) / 8
    folds = Folds.time_series(40, times, 2, gap=0.5, horizon=1.25)
    assert pairs(folds) == [(list(range(16)), list(range(20, 30))), (list(range(26)), list(range(30, 40)))]
    months = pd.Categorical(["mar", "jan", "feb"] * 6, categories=["jan", "feb", "mar"], ordered=True)
    folds = Folds.time_series(18, months, 2)
    assert folds.codes.tolist() == [1, -1, 0] * 6
    folds = Folds.time_series(6, 2**53 + np.arange(6), 5)  # equal as floats
    assert pairs(folds) == [(list(range(k + 1)), [k + 1]) for k in range(5)]


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=8, max_size=50),
    count=st.integers(2, 4),
    embargo=st.integers(0, 4),
)
@settings(max_examples=150)
def test_no_label_overlaps_a_scored_one(spans, count, embargo):
    start, end = [a for a, _ in spans], [a + length for a, length in spans]
    folds, problem = cut_or_problem(Folds.purged, len(spans), start, end, count, embargo=embargo)
    if folds is None:
        assert "no row to train on" in problem or "distinct times" in problem
        return
    assert bool(folds.scored.all())
    for train, valid in pairs(folds):
        until = max(end[j] for j in valid)
        kept = []
        for i in range(len(spans)):
            overlaps = any(start[i] <= end[j] and end[i] >= start[j] for j in valid)
            waits = until < start[i] <= until + embargo
            if i not in valid and not overlaps and not waits:
                kept.append(i)
        assert train == kept
        first, last = min(start[j] for j in valid), max(start[j] for j in valid)
        assert valid == [i for i in range(len(spans)) if first <= start[i] <= last]


def test_purged_by_dates_of_two_units():
    start = pd.Series(DAY + pd.to_timedelta(range(12), unit="D"), name="bought").astype("datetime64[s]")
    end = (start + pd.Timedelta(days=2)).astype("datetime64[ns]").rename("sold")
    folds = Folds.purged({"bought": start, "sold": end}, "bought", "sold", 3, embargo="1D")
    assert pairs(folds) == pairs(Folds.purged(12, np.arange(12), np.arange(12) + 2, 3, embargo=1))
    said = "3 blocks of time, purged of labels (bought to sold) that overlap, embargo 1 day"
    assert folds.method == said
    mixed = Folds.purged(12, np.arange(12), np.arange(12) + 2.0, 3, embargo=1)
    assert pairs(mixed) == pairs(folds)


def test_the_first_row_of_each_group():
    assert first_in_group(torch.tensor([5, 5, 2, 7, 7, 7, 5])).tolist() == [0, 0, 2, 3, 3, 3, 6]
