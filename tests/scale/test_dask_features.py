"""Generators on Dask frames: what one frame in memory gives, whatever the partitions."""

from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from fastrec._core import limits

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fastrec.errors import DataError, DataWarning, MissingColumnError, NotFittedError  # noqa: E402
from fastrec.estimators import XGBRanker  # noqa: E402
from fastrec.features import (  # noqa: E402
    Bucketize,
    Categorify,
    Combine,
    CountEncode,
    Cross,
    CumTarget,
    DeviationFromGroup,
    Diff,
    Ewm,
    FeatureCache,
    FeatureSet,
    GroupRank,
    GroupStats,
    ImageEmbed,
    JoinTable,
    Lag,
    NUnique,
    PctChange,
    Rolling,
    RowFunction,
    TargetEncode,
    TextEmbed,
    TimeSince,
    category,
    number,
)
from fastrec.features._dask import plan, states  # noqa: E402
from fastrec.features._dask.files import spilled  # noqa: E402
from fastrec.features._dask.frames import as_blocks  # noqa: E402
from fastrec.features._dask.gathered import ByKey, ByTime, GatheredInFiles, gather  # noqa: E402
from fastrec.features.base import Cells  # noqa: E402
from fastrec.scale import fit_on_dask  # noqa: E402
from fastrec.table import Table  # noqa: E402
from tests.features.examples import EXAMPLES  # noqa: E402
from tests.features.frames import columns, tables, to_pandas  # noqa: E402
from tests.features.partitions import events  # noqa: E402
from tests.features.test_contract import assert_equal, outputs_of  # noqa: E402
from tests.features.test_partitions import chained  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*come together on one worker"),
    # pandas, of the way in which Dask puts partitions with categories and many columns together
    pytest.mark.filterwarnings("ignore:DataFrame is highly fragmented"),
]


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        yield


def parted(frame, ends):
    """A Dask frame whose partitions end at these rows; some may hold none."""
    ends = [*sorted(ends), len(frame)]
    parts = [frame.iloc[a:b] for a, b in zip([0, *ends[:-1]], ends)]
    return dd.from_delayed([dask.delayed(p) for p in parts], meta=frame.iloc[:0], verify_meta=False)


def in_files(frame, ends, folder):
    """The same from a folder of small files, which Dask's optimization puts together as it likes."""
    folder.mkdir()
    for i, part in enumerate(dask.compute(parted(frame, ends).to_delayed())[0]):
        part.to_parquet(folder / f"part-{i}.parquet")
    return dd.read_parquet(folder)


def sets():
    """The contract's examples of every generator, together as far as names and targets allow."""
    found: list[tuple[tuple[bool, bool], list]] = []
    for feature in (make() for makers in EXAMPLES.values() for make in makers):
        tainted = bool(FeatureSet([feature])._chain().tainted), _of_a_net(feature)  # targets' ways are nested
        for kind, own in found:
            try:
                FeatureSet([*own, feature])._chain().check_targets()
            except DataError:
                continue
            if kind == tainted:
                own.append(feature)
                break
        else:
            found.append((tainted, [feature]))
    return [own for _, own in found]


def _of_a_net(feature):
    """Whether its float32 numbers differ in the last digits with the rows of a batch."""
    return isinstance(feature, ImageEmbed | TextEmbed)


SETS = sets()


def fresh(features, **options):
    """Features that nobody has fitted."""
    return FeatureSet(features, key="row", **options).__sklearn_clone__()


def frames(seed):
    return to_pandas(columns(seed=seed)).reset_index(drop=True)


def test_all_examples_are_compared():
    assert sum(map(len, SETS)) == sum(map(len, EXAMPLES.values()))


@pytest.mark.parametrize("chosen", range(len(SETS)))
def test_every_generator_gives_what_one_frame_gives(chosen):
    ends = [11, 11, 30]
    whole, parts = fresh(SETS[chosen]), fresh(SETS[chosen])
    train, new, others = frames(0), frames(5), tables()
    near = {"exact": False, "near_zero": 1e-6 if all(map(_of_a_net, SETS[chosen])) else 1e-12}
    expected = whole.fit_transform(train, tables=others, unlabeled=new)
    log = {"log": parted(others["log"], [7, 20]), "items": others["items"]}
    made = parts.fit_transform(parted(train, ends), tables=log, unlabeled=parted(new, ends))
    got = made.compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)
    pd.testing.assert_frame_equal(got[list(train)], train)
    assert list(made.dtypes) == list(got.dtypes) == list(made._meta.dtypes)
    expected = whole.transform(new, tables=others)
    got = parts.transform(parted(new, ends), tables=log).compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)
    assert got.index.equals(new.index)


@pytest.mark.parametrize("chosen", range(len(SETS)))
def test_every_generator_reads_a_folder_of_small_files(chosen, tmp_path):
    ends = [11, 20, 30]
    whole, parts = fresh(SETS[chosen]), fresh(SETS[chosen])
    train, new, others = frames(0), frames(5), tables()
    near = {"exact": False, "near_zero": 1e-6 if all(map(_of_a_net, SETS[chosen])) else 1e-12}
    log = {"log": in_files(others["log"], [7, 20], tmp_path / "log"), "items": others["items"]}
    files, more = in_files(train, ends, tmp_path / "train"), in_files(new, ends, tmp_path / "new")
    expected = whole.fit_transform(train, tables=others, unlabeled=new)
    got = parts.fit_transform(files, tables=log, unlabeled=more).compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)
    expected = whole.transform(new, tables=others)
    got = parts.transform(more, tables=log).compute()
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(got, whole.outputs), **near)


@pytest.mark.parametrize("key", ["id", None])
def test_groups_and_folds_of_a_folder_are_those_of_the_frame(key, tmp_path):
    train = events(160).assign(wide="w" * 50, more=1.0, rest=2.0)
    features = [GroupRank("price", by="user"), Lag("price", by="user", order="id"), TargetEncode("item", "y")]
    whole, parts = FeatureSet(features, key=key), FeatureSet(features, key=key).__sklearn_clone__()
    files = in_files(train, range(20, 160, 20), tmp_path / "train")
    assert files.npartitions == 8
    expected, made = whole.fit_transform(train), parts.fit_transform(files)
    assert made.npartitions == 8
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(made.compute(), whole.outputs), exact=False)
    given = FeatureSet([TargetEncode("item", "y")], key=key)
    made = given.__sklearn_clone__().fit_transform(files.drop(columns="y"), files["y"]).compute()
    expected = given.fit_transform(train)
    assert_equal(outputs_of(expected, given.outputs), outputs_of(made, given.outputs), exact=False)
    folds = np.arange(160) % 4
    for a, b in zip(whole.cross_fit(train, folds), parts.cross_fit(files, folds), strict=True):
        for mine, theirs in zip(a, b, strict=True):
            assert_equal(outputs_of(mine, whole.outputs), outputs_of(theirs.compute(), whole.outputs), exact=False)


@settings(max_examples=4)
@given(ends=st.lists(st.integers(0, 120), max_size=6), seed=st.integers(0, 3), keyed=st.booleans())
def test_random_partitions_change_nothing(ends, seed, keyed):
    features = [
        CountEncode(["item", Cross("user", "item")]),
        TargetEncode("item", ["y", "z"], smooth=2, stats=["mean", "std"]),
        GroupRank("price", by="user"),
        NUnique(Categorify("item", min_count=12), by="user"),
        Bucketize("price", quantiles=5),
    ]
    assert_same_as_whole(features, events(120, seed=seed), ends, "id" if keyed else None)


def test_chained_generators_do_not_depend_on_the_partitions():
    assert_same_as_whole(chained(), events(120), [0, 30, 90], "id")


def assert_same_as_whole(features, train, ends, key):
    whole, parts = FeatureSet(features, key=key), FeatureSet(features, key=key).__sklearn_clone__()
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        a, b = whole.fit_transform(train), parts.fit_transform(parted(train, ends)).compute()
    for name in whole.outputs:
        near = 1e-7 if "std" in name and name.endswith("__z") else 1e-12  # z lies at 1e8
        x, y = a[name].astype("float64"), b[name].astype("float64")
        assert y.tolist() == pytest.approx(x.tolist(), rel=near, abs=near, nan_ok=True), name
        if any(word in name for word in ("count_", "nunique", "bucket", "rank", "level")) and "norm" not in name:
            assert x.equals(y), name


def nested(by_column):
    item = TargetEncode(["item", Cross("item", "user")], "y", smooth=2)
    return [
        GroupStats(item, by="user", stats=["median", "max", "mean"]),
        GroupRank(TargetEncode("item", "y", stats="count"), by="user"),
        CumTarget("user", "y", order="id", smooth=1),
        Lag("y", by="user", order="id"),
        Combine(CountEncode("item"), "*", TargetEncode("user", "y", fold_column="fold" if by_column else None)),
        DeviationFromGroup(TargetEncode("item", "y", stats="count"), by="user"),
    ]


@pytest.mark.parametrize("key", ["id", None, "user"])
def test_cross_fit_hides_the_same_rows(key):
    train = events(150)
    train["fold"] = np.arange(150) % 4
    folds = train["user"].fillna(9).astype("int64") % 2 if key == "user" else np.arange(150) % 2
    train = train.assign(outer=np.asarray(folds, dtype="int64"))
    whole, parts = (FeatureSet(nested(key == "id"), key=key, folds=2) for _ in "ab")
    frame = parted(train, [40, 41])
    done, pairs = parts.fit_transform_folds(frame, "outer")
    expected = whole.fit_transform(train)
    assert_equal(outputs_of(expected, whole.outputs), outputs_of(done.compute(), whole.outputs), exact=False)
    numbers = parts.cross_fit(frame, train["outer"].to_numpy(), only=[1]) if key is None else iter(())
    for k, (pair, mine) in enumerate(zip(whole.cross_fit(train, "outer"), pairs, strict=True)):
        for side, got in zip(pair, mine, strict=True):
            got = got.compute()
            assert got["id"].tolist() == side["id"].tolist()
            assert_equal(outputs_of(side, whole.outputs), outputs_of(got, whole.outputs), exact=False)
        for again in numbers if k == 1 else ():
            for side, got in zip(pair, again, strict=True):
                assert_equal(outputs_of(side, whole.outputs), outputs_of(got.compute(), whole.outputs), exact=False)


def test_history_and_y_and_what_is_kept():
    train, new = events(60), events(30, seed=2)
    features = [Lag("price", by="user", order="id"), TargetEncode("item", "y")]
    a, b = FeatureSet(features, key="id", keep=["id"]), FeatureSet(features, key="id", keep=["id"])
    bare = train.drop(columns="y")
    expected = a.fit_transform(bare, train["y"])
    got = b.fit_transform(parted(bare, [20]), parted(train, [20])["y"]).compute()
    assert list(got) == list(expected) == b.get_feature_names_out()
    assert_equal(outputs_of(expected, a.outputs), outputs_of(got, a.outputs), exact=False)
    expected = a.transform(new, history=train)
    for history in (train, parted(train, [10, 50])):
        got = b.transform(parted(new, [3]), history=history).compute()
        assert_equal(outputs_of(expected, a.outputs), outputs_of(got, a.outputs), exact=False)
        assert got.index.equals(new.index)


def test_a_generator_alone_and_a_saved_one(tmp_path):
    train = events(60)
    count = CountEncode("item")
    made = count.fit_transform(parted(train, [20, 40])).compute()
    assert made["count_item"].tolist() == CountEncode("item").fit_transform(train)["count_item"].tolist()
    count.save(tmp_path / "count")
    again = CountEncode.load(tmp_path / "count").transform(parted(train, [5])).compute()
    assert again["count_item"].tolist() == made["count_item"].tolist()


def test_selectors_choose_what_they_choose_in_memory():
    train = events(90)
    train["flag"] = train["y"] > 0
    # No partition by itself has as many values as all have together.
    cards = [CountEncode(category(min_card=9)), GroupRank(number() - ["y", "z"], by="user")]
    a, b = FeatureSet(cards), FeatureSet(cards).__sklearn_clone__()
    a.fit(train)
    b.fit(parted(train.sort_values("item", ignore_index=True), [30, 60]))
    assert a.outputs == b.outputs
    assert "count_item" in a.outputs
    assert "count_flag" not in a.outputs


def test_rows_come_together_once_for_all_that_need_the_same_groups():
    deep = Combine(Lag("price", by="user", order="id"), "-", GroupStats("price", by=["user", "item"], over="group"))
    steps = FeatureSet([GroupRank(deep, by="user"), CountEncode("item")]).steps
    (groups,) = plan.rounds(steps, training=True)
    assert [g.key for g in groups] == [None, ("user",)]
    assert len(groups[1].steps) == 4
    (groups,) = plan.rounds(steps, training=False)
    assert [len(g.steps) for g in groups] == [1, 4]


def test_a_shuffle_is_said_and_one_worker_for_all_rows_is_warned_of(caplog):
    frame = parted(events(30), [10])
    with caplog.at_level("INFO", logger="fastrec.features"):
        FeatureSet([GroupRank("price", by="user")]).fit_transform(frame)
    assert "rows are shuffled by user for rank_price__user" in caplog.text
    with pytest.warns(DataWarning, match="lead1_price: made of all rows in order"):
        FeatureSet([Lag("price", order="id", n=-1)]).fit_transform(frame)


@pytest.mark.parametrize("buckets", [1, 3])
def test_groups_are_whole_and_in_order_and_rows_come_back(buckets):
    train = events(120)
    blocks = as_blocks(parted(train, [0, 50, 51]), ["user", "id"])
    gathered = gather(blocks, ["user", "id"], ByKey(["user"], buckets))
    parts = [t.to_pandas() for t in dask.compute(*gathered.tables)]
    assert sum(map(len, parts)) == 120
    for user, own in train.groupby("user", dropna=False)["id"]:
        there = [p["id"][p["user"].isna() if pd.isna(user) else p["user"] == user].tolist() for p in parts]
        assert [ids for ids in there if ids] == [own.tolist()]
    made = gathered.back(gathered.tables)
    assert len({id(task.dask) for task in made}) == 1  # else it takes partitions times buckets walks of the graph
    back = dask.compute(*made)
    assert [i for t in back for i in t["id"].values.tolist()] == train["id"].tolist()
    assert len(back) == 4


@pytest.mark.parametrize("buckets", [1, 3])
def test_rows_that_go_through_files_are_those_of_memory_and_leave_no_file(tmp_path, buckets):
    train = events(120)
    blocks = as_blocks(parted(train, [0, 50, 51]), ["user", "id"])
    wanted = dask.compute(*gather(blocks, ["user", "id"], ByKey(["user"], buckets)).tables)
    with spilled(tmp_path) as folder:
        gathered = gather(blocks, ["user", "id"], ByKey(["user"], buckets))
        assert isinstance(gathered, GatheredInFiles)
        for _ in range(2):  # learned from first, then made into columns
            for table, other in zip(dask.compute(*gathered.tables), wanted, strict=True):
                pd.testing.assert_frame_equal(table.to_pandas(), other.to_pandas())
        back = gathered.back(gathered.tables)
        del gathered
        gc.collect()
        assert len(list(folder.iterdir())) == 1  # of the columns that went back
        tables = dask.compute(*back)
        assert [i for t in tables for i in t["id"].values.tolist()] == train["id"].tolist()
        assert list(map(len, tables)) == [len(t) for t in dask.compute(*blocks.select(["id"]))]
        del back
        gc.collect()
        assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("categories", "ordered", "kept"), [(5000, False, False), (5000, True, True), (9, False, True)]
)
def test_a_bucket_has_the_categories_of_its_rows_where_they_are_ids(categories, ordered, kept):
    kinds = pd.CategoricalDtype([f"c{i}" for i in reversed(range(categories))], ordered=ordered)
    frame = pd.DataFrame({"user": [i % 7 for i in range(60)], "word": [f"c{i * 5 % 9}" for i in range(60)]})
    blocks = as_blocks(parted(frame.astype({"word": kinds}), [0, 20, 41]), ["user", "word"])
    tables = dask.compute(*gather(blocks, ["user", "word"], ByKey(["user"], 3)).tables)
    assert sum(map(len, tables)) == 60
    for table in tables:
        rows = table.to_pandas()
        assert rows["word"].astype(str).tolist() == [
            w for u, w in zip(frame["user"], frame["word"], strict=True) if u in set(rows["user"])
        ]
        if kept:
            assert table["word"].distinct.to_pylist() == kinds.categories.tolist()
            assert table["word"].ordered == ordered
        else:
            assert set(table["word"].distinct.to_pylist()) == set(rows["word"].astype(str))


# Many keys -----------------------------------------------------------------------------------------------------------

MANY = [
    CountEncode(["item", Cross("item", "user")], normalise=True),
    CountEncode("item", by="user", normalise=True),
    TargetEncode(["item", "id"], ["y", "q"], stats=["mean", "std", "count"], weight="w"),
    GroupStats("price", by="item", stats=["mean", "max", "count"]),
    NUnique("item", by="user"),
    Categorify(["item", "user"], min_count=3),
]


def test_many_keys_are_merged_by_their_hash(monkeypatch):
    train = events(150).assign(w=lambda f: f["id"] % 3, q=lambda f: f["price"] / 7)
    whole, parts = FeatureSet(MANY, key="id"), FeatureSet(MANY, key="id").__sklearn_clone__()
    whole.fit(train)
    used = []
    monkeypatch.setattr(limits, "MANY_KEYS", 1)
    monkeypatch.setattr(limits, "BUCKET_KEYS", 40)
    by_hash = states._by_hash

    def noted(step, parts, keys):
        buckets = by_hash(step, parts, keys)
        used.append((step, keys, len(buckets)))
        return buckets

    monkeypatch.setattr(states, "_by_hash", noted)
    parts.fit(parted(train, [30, 60, 100]))
    assert all(count == min(4, max(2, math.ceil(keys / 40))) for _, keys, count in used)
    assert {count for _, _, count in used} == {2, 3, 4}
    assert {type(s).__name__ for s, _, _ in used} == {
        "CountEncode",
        "Cross",
        "TargetEncode",
        "GroupStats",
        "NUnique",
        "Categorify",
    }
    a, b = whole.transform(train), parts.transform(train)
    assert_equal(outputs_of(a, whole.outputs), outputs_of(b, whole.outputs), exact=False)


@pytest.mark.parametrize("step", MANY)
def test_no_bucket_has_another_ones_keys(step):
    table = Table.read(events(150).assign(w=1.0, q=0.5))
    (step,) = FeatureSet([step]).__sklearn_clone__().features[-1:]
    for inner in step.sources:
        if not isinstance(inner, str):
            table = table.with_columns(inner.__class__(*inner.cols).fit_transform(table)._columns)
    state = step.collect(table, Cells((table["id"].values % 3), 3))
    parts = [p[0] for p in states._split(step, [state], 4)]
    (sizes,) = {tuple(map(len, _keys(state)))}
    found = [tuple(map(len, _keys(p))) for p in parts]
    assert tuple(map(sum, zip(*found))) == sizes
    assert all(max(column) < size or size < 9 for column, size in zip(zip(*found), sizes))
    merged = states._halves(step, parts)
    for mine, theirs in zip(_keys(merged), _keys(state), strict=True):
        assert [c.to_pylist() for c in mine.columns] == [c.to_pylist() for c in theirs.columns]


def _keys(state):
    found = []
    for value in state.values():
        for part in value if isinstance(value, list) else [value]:
            found += _keys(part) if isinstance(part, dict) else [part] if hasattr(part, "find_in") else []
    return found


# Errors --------------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_frames_in_memory():
    train = events(40)
    frame = parted(train, [10])
    with pytest.raises(MissingColumnError, match="no_such"):
        CountEncode("no_such").fit(frame)
    with pytest.raises(NotFittedError, match="has not been fitted"):
        CountEncode("item").transform(frame)
    with pytest.raises(DataError, match="TargetEncode: the target holds classes"):
        TargetEncode("user", "item").fit(frame)
    with pytest.raises(DataError, match=r"column 'w', row 0: .*\(the row is counted in its partition\)"):
        TargetEncode("item", "y", weight="w").fit(parted(train.assign(w=train.index - 10), [9]))
    with pytest.raises(DataError, match="y is not of Dask"):
        TargetEncode("user", "y").fit(frame.drop(columns="y"), train["y"])
    with pytest.raises(DataError, match="39 folds for 40 rows"):
        next(TargetEncode("user", "y").cross_fit(frame, np.zeros(39, dtype=int)))
    with pytest.raises(DataError, match="cannot come back as polars"):
        FeatureSet([CountEncode("item")]).set_output(transform="polars").fit(frame)
    with pytest.raises(DataError, match="a row has no fold"):
        TargetEncode("user", "y", fold_column="item").fit(frame)
    with pytest.warns(DataWarning, match="cache is not used on Dask"):
        FeatureSet([CountEncode("item")], cache=FeatureCache()).fit(frame)


def test_without_a_cluster_there_is_an_error():
    frame = parted(events(20), [10])
    with pytest.raises(DataError, match="there is no Dask cluster"):
        fit_on_dask(XGBRanker("xgb"), frame, columns=["price"], target="y", groups="id")


def test_a_table_of_a_dask_frame_is_joined_whole():
    train = events(40)
    items = pd.DataFrame({"item": [f"i{k}" for k in range(9)], "size": range(9)})
    join = JoinTable("items", on="item", columns="size")
    expected = join.fit_transform(train, tables={"items": items})
    got = join.fit_transform(parted(train, [7]), tables={"items": parted(items, [4])}).compute()
    assert_equal(outputs_of(expected, join.outputs), outputs_of(got, join.outputs))


def test_a_function_of_ones_own():
    train = events(40)
    feature = RowFunction(lambda price: price * 2, "price", "double")
    made = FeatureSet([feature]).fit_transform(parted(train, [7, 20])).compute()
    assert made["double"].equals(train["price"] * 2)


def test_a_table_that_travels_is_the_same_and_a_part_travels_alone():
    table = Table.read(to_pandas(columns()).reset_index(drop=True))
    table.coded(["user", "item"])  # what is kept for later stays behind
    again = pickle.loads(pickle.dumps(table))
    assert again.to_arrow().equals(table.to_arrow())
    assert [c.kind for c in again._columns.values()] == [c.kind for c in table._columns.values()]
    long = Table({"x": np.arange(100_000)})
    assert len(pickle.dumps(long.slice(0, 10))) < 2_000


def test_dask_computes_after_a_fit_in_a_fresh_process():
    program = (
        "import dask.dataframe as dd, pandas as pd; from fastrec.features import CountEncode, FeatureSet;"
        "rows = dd.from_pandas(pd.DataFrame({'a': [1, 2, 1]}), npartitions=2);"
        "print(FeatureSet([CountEncode('a')]).fit_transform(rows).compute()['count_a'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["[2,", "1,", "2]"], done.stderr[-2000:]


def test_dask_knows_what_a_table_and_a_state_weigh():
    from dask.sizeof import sizeof

    table = Table({"x": np.arange(100_000), "city": [f"c{i}" for i in range(100_000)], "few": ["a", None] * 50_000})
    weight = 100_000 * (8 + 4 + 4) + table["city"].distinct.nbytes
    assert weight < sizeof(table) < weight + 5_000
    state = CountEncode("city").fit(table).state_
    assert sizeof(state) > 100_000 * 8 + table["city"].distinct.nbytes / 2


# Causal generators: rows in ranges of time, each with what the ranges before have collected.


def in_parts(frame, parts):
    """A Dask frame of so many partitions, one of them without a row."""
    return parted(frame, [*(len(frame) * i // (parts - 1) for i in range(1, parts - 1)), len(frame)])


def timed(n, seed=0, times=50):
    """Rows in no order of time, with ties, missing keys and targets, and weights."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n), "user": rng.integers(0, 6, n), "item": rng.choice(list("abc"), n)})
    frame["item"] = frame["item"].where(rng.random(n) > 0.1)
    frame["y"] = np.where(rng.random(n) < 0.1, np.nan, rng.integers(0, 2, n))
    frame["t"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, times, n) * 1801, unit="s")
    frame["place"], frame["w"] = rng.random(n).round(2), rng.integers(0, 3, n) / 2
    return frame


def a_row_at_a_time(frame, cols, *, order, smooth, half_life, weight):
    """A row at a time: the mean of the key's earlier rows, smoothed towards that of all earlier ones."""
    made = []
    for _, row in frame.iterrows():
        past = frame[(frame[order] < row[order]) & frame["y"].notna()]
        age = row[order] - past[order]
        age = (age.dt.total_seconds() if order == "t" else age).to_numpy(dtype=float)
        w = past["w"].to_numpy() if weight else np.ones(len(past))
        w, y = w * 0.5 ** (age / half_life) if half_life else w, past["y"].to_numpy()
        prior = (w * y).sum() / w.sum() if w.sum() > 0 else 0.0
        own = np.array([all(other == row[c] for c, other in zip(cols, keys)) for keys in past[cols].to_numpy()], bool)
        count, total = w[own].sum(), (w * y)[own].sum()
        made.append((total + smooth * prior) / (count + smooth) if count + smooth > 0 else prior)
    return made


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    parts=st.integers(3, 6),
    order=st.sampled_from(["t", "place", "id"]),
    smooth=st.sampled_from([0.0, 2.0]),
    decays=st.booleans(),
    weight=st.sampled_from([None, "w"]),
)
def test_every_row_sees_all_rows_before_it(seed, parts, order, smooth, decays, weight):
    frame = timed(60, seed)
    half_life = {"t": 20_000.0, "place": 0.2, "id": 15.0}[order] if decays else None
    options = {"order": order, "smooth": smooth, "half_life": half_life, "weight": weight}
    ct = CumTarget(["item", "user"], "y", **options)
    made = ct.fit_transform(in_parts(frame, parts)).compute()
    for col in ("item", "user"):
        wanted = a_row_at_a_time(frame, [col], **options)
        assert made[f"cumte_{col}__y"].tolist() == pytest.approx(wanted, abs=1e-9)
    alone = CumTarget(["item", "user"], "y", **options).fit(frame)
    new = timed(10, seed + 1)
    got, expected = ct.transform(in_parts(new, 3)).compute(), alone.transform(new)
    assert got["cumte_item__y"].tolist() == pytest.approx(expected["cumte_item__y"].tolist(), abs=1e-12)


def test_old_sums_do_not_wear_down_to_nothing():
    frame = pd.DataFrame({"k": list("aababba"), "y": [1, 0, 1, 1, 0, 1, 0], "t": [0, 1, 2, 9e6, 9e6 + 1, 2e7, 3e7]})
    ct = CumTarget("k", "y", order="t", smooth=0, half_life=1.0)
    made = ct.fit_transform(in_parts(frame, 5)).compute()["cumte_k__y"].tolist()
    assert made == pytest.approx(
        CumTarget("k", "y", order="t", smooth=0, half_life=1.0).fit_transform(frame).iloc[:, -1]
    )
    assert all(map(math.isfinite, made))


@pytest.mark.parametrize("spills", [False, True])
def test_hidden_folds_and_generators_after_it(spills, tmp_path):
    frame = timed(90)
    frame["outer"] = np.arange(90) % 2

    def made():
        so_far = CumTarget("user", "y", order="t", smooth=1)
        other = CumTarget("item", "y", order=["t", "id"], smooth=3, name="so_far")
        return FeatureSet([Combine(so_far, "-", TargetEncode("item", "y", smooth=1)), other], key="id", folds=3)

    whole, parts = made(), made()
    wanted = whole.fit_transform(frame)
    pairs = list(whole.cross_fit(frame, "outer"))
    ours = in_parts(frame, 4)
    if not spills:
        done, mine = parts.fit_transform_folds(ours, "outer")
        assert_all_near(wanted, done.compute(), whole.outputs)
        for pair, got in zip(pairs, mine, strict=True):
            for side, own in zip(pair, got, strict=True):
                assert_all_near(side, own.compute(), whole.outputs)
    else:
        with spilled(tmp_path):
            assert_all_near(wanted, parts.fit_transform(ours).compute(), whole.outputs)


def assert_all_near(wanted, made, names):
    for name in names:
        assert made[name].tolist() == pytest.approx(wanted[name].tolist(), abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("ranges", [1, 2, 5])
def test_ranges_are_even_in_order_and_keep_ties_together(ranges):
    frame = timed(3_000, times=40)
    blocks = as_blocks(in_parts(frame, 4), ["t"])
    cut = ByTime(blocks, "t", ranges)
    tables = dask.compute(*blocks.select(["t"]))
    number = np.concatenate([cut.of(t).numpy() for t in tables])
    span = frame.groupby(number)["t"].agg(["min", "max", "size"])
    assert len(span) == cut.count == ranges
    assert (span["max"].to_numpy()[:-1] < span["min"].to_numpy()[1:]).all()
    assert span["size"].max() <= 3_000 / ranges + 3_000 / 40 * 2


def test_times_of_other_units_are_one_order():
    frame = timed(40)
    parts = [frame.iloc[:20].assign(t=frame["t"][:20].astype("datetime64[s]")), frame.iloc[20:]]
    ours = dd.from_delayed([dask.delayed(p) for p in parts], meta=frame.iloc[:0], verify_meta=False)
    made = CumTarget("user", "y", order="t").fit_transform(ours).compute()["cumte_user__y"].tolist()
    assert made == pytest.approx(CumTarget("user", "y", order="t").fit_transform(frame)["cumte_user__y"].tolist())


def test_what_comes_together_is_said_and_a_missing_time_has_a_name(caplog):
    frame = timed(40)
    with caplog.at_level("INFO", logger="fastrec.features"):
        CumTarget("user", "y", order="t").fit_transform(in_parts(frame, 3))
    assert "rows are put in ranges of t for cumte_user__y" in caplog.text
    frame.loc[7, "t"] = pd.NaT
    with pytest.raises(DataError) as error:
        CumTarget("user", "y", order="t").fit_transform(in_parts(frame, 3))
    assert error.value.column == "t"


# Generators that look back over all rows: each partition gets what it needs of those before it.


def looked_at(n, seed=0):
    """Rows in no order of time, with ties, gaps, missing values and now and then an infinite one."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.arange(n), "x": rng.normal(size=n).round(2), "k": rng.integers(0, 9, n)})
    frame.loc[rng.random(n) < 0.15, "x"] = np.nan
    frame.loc[rng.random(n) < 0.01, "x"] = np.inf
    frame["word"] = rng.choice(["a", "b", None], n)
    frame["bought"] = rng.random(n) < 0.1
    seconds = rng.integers(0, max(n // 2, 1), n) * 1801 + (rng.random(n) < 0.2) * 400_000
    frame["t"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(seconds, unit="s")
    frame["place"] = rng.random(n).round(2) * 50
    return frame


def every_one(order):
    """All generators that look back, over all rows."""
    made = [
        Lag(["x", "k", "word"], order=order, n=[1, 3]),
        Diff("k", order=order),
        PctChange("k", order=order, n=2),
        Rolling("x", ["mean", "count", "std", "min", "median"], order=order, window=[1, 4]),
        Rolling("x", "sum", order=order, window=3, closed="both", min_count=0),
        Ewm(["x", "k"], order=order, half_life=[0.5, 3]),
    ]
    if order in ("t", "place"):
        length, wide = ("2h", "3D") if order == "t" else ("2s", "20s")
        made += [
            Lag("x", order=order, n=[1, 2], horizon=length),
            Rolling("x", ["mean", "max"], order=order, window=[length, wide], closed="right", name="timed"),
            Ewm(["x", "k"], order=order, half_life=[length, wide]),
            TimeSince(["bought"], order=order),
            TimeSince(["bought"], order=order, first=True),
            TimeSince(order=order),
        ]
    return FeatureSet(made)


def assert_near(wanted, made, names):
    for name in names:
        a, b = wanted[name].tolist(), made[name].tolist()
        if wanted[name].dtype == object or str(wanted[name].dtype) in ("category", "str"):
            assert [None if pd.isna(v) else v for v in a] == [None if pd.isna(v) else v for v in b], name
        else:
            a, b = (pd.to_numeric(pd.Series(v), errors="coerce").astype(float).tolist() for v in (a, b))
            assert b == pytest.approx(a, rel=1e-9, abs=1e-9, nan_ok=True), name


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 1_000),
    cuts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    order=st.sampled_from([None, "t", "place", "id"]),
)
def test_the_rows_get_what_they_get_in_one_table(n, seed, cuts, order):
    frame = looked_at(n, seed)
    cuts = [min(c, n) for c in cuts]
    whole, parts = every_one(order), every_one(order)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)  # nothing comes together on one worker
        made = parts.fit_transform(parted(frame, cuts)).compute()
    assert_near(whole.fit_transform(frame), made, whole.outputs)


def test_a_window_over_several_partitions_by_hand():
    frame = pd.DataFrame({"x": [1.0, 2, 3, 4, 5, 6, 7]})
    ours = parted(frame, [1, 2, 2, 3, 6])
    made = Rolling("x", "sum", window=5).fit_transform(ours).compute()["rollsum5_x"]
    assert made.isna().tolist() == [True] + [False] * 6
    assert made.tolist()[1:] == [1, 3, 6, 10, 15, 20]
    made = Lag("x", n=4).fit_transform(ours).compute()["lag4_x"].tolist()
    assert made[4:] == [1, 2, 3]
    made = Ewm("x", half_life=1).fit_transform(ours).compute()["ewm1_x"].tolist()
    assert made[3] == pytest.approx((3 + 2 / 2 + 1 / 4) / 1.75)


def test_generators_that_read_one_another_and_history():
    def made():
        lag = Lag("x", order="t")
        return FeatureSet(
            [Combine(Rolling(lag, order="t", window=2), "-", Lag(lag, order="t", n=2)), Ewm(lag, half_life=2)]
        )

    frame, new = looked_at(80), looked_at(20, seed=1)
    new["t"] += pd.Timedelta("900D")
    whole, parts = made(), made()
    wanted = whole.fit_transform(frame)
    assert_near(wanted, parts.fit_transform(parted(frame, [20, 50])).compute(), whole.outputs)
    wanted = whole.transform(new, history=frame)
    got = parts.transform(parted(new, [5]), history=parted(frame, [20, 50])).compute()
    assert_near(wanted, got, whole.outputs)


def test_a_hidden_target_stays_hidden():
    frame = looked_at(60).assign(y=np.arange(60) % 3 / 2, outer=np.arange(60) % 2)

    def made():
        encoded = TargetEncode("k", "y", smooth=1)
        return FeatureSet([encoded, Lag("y", order="id"), Rolling("y", order="id", window=3)], key="id")

    whole, parts = made(), made()
    pairs, mine = whole.cross_fit(frame, "outer"), parts.cross_fit(parted(frame, [9, 31]), "outer")
    for pair, got in zip(pairs, mine, strict=True):
        for side, own in zip(pair, got, strict=True):
            assert_near(side, own.compute(), whole.outputs)


def test_spilled_to_files(tmp_path):
    frame = looked_at(70)
    whole, parts = every_one("t"), every_one("t")
    with spilled(tmp_path):
        assert_near(
            whole.fit_transform(frame), parts.fit_transform(parted(frame, [10, 11, 40])).compute(), whole.outputs
        )


def test_what_happens_is_said(caplog):
    frame = parted(looked_at(40), [15])
    with caplog.at_level("INFO", logger="fastrec.features"):
        FeatureSet([Lag("x", order="t"), Lag("k")]).fit_transform(frame)
    assert "rows are put in ranges of t for lag1_x" in caplog.text
    assert "each partition gets the last rows before it for lag1_k" in caplog.text
    with pytest.warns(DataWarning, match="come together on one worker"):
        Lag("x", order="t", n=-1).fit_transform(frame)


@pytest.mark.parametrize("order", [None, "t"])
def test_unlabeled_rows_look_back_at_one_another(order):
    def made():
        before = Lag("k", order=order)
        so_far = CumTarget("k", "y", order="t", smooth=1)
        return FeatureSet(
            [before, so_far, CountEncode([before], scope="all"), Bucketize(before, quantiles=3, scope="all")]
        )

    frame = looked_at(50).assign(y=np.arange(50) % 2)
    more, new = looked_at(40, seed=3), looked_at(12, seed=4)
    whole, parts = made(), made()
    wanted = whole.fit_transform(frame, unlabeled=more)
    got = parts.fit_transform(parted(frame, [8, 30]), unlabeled=parted(more, [3, 21])).compute()
    assert_near(wanted, got, whole.outputs)
    assert_near(whole.transform(new), parts.transform(parted(new, [5])).compute(), whole.outputs)
