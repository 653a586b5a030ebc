"""``FeatureCache``: the same values with it as without, and nothing made twice that has not changed."""

import json
import logging
import os
from collections import Counter
from logging.handlers import BufferingHandler

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone

import fastrec.features as ff
from fastrec.errors import DataError, DataWarning, NotFittedError
from fastrec.features import category
from fastrec.features._engine.digests import NoDigestError, class_digest, column_digest, generator_digest
from fastrec.features.cache import size_of
from fastrec.table import Column, Table
from tests import fresh
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_arrow
from tests.features.test_contract import assert_equal, outputs_of

# Generators tell a logger that they are at work: a count in a global would be part of what their code reads.
LOG = logging.getLogger("calls of generators")
LOG.setLevel(logging.INFO)
LOG.propagate = False
LOG.addHandler(CALLS := BufferingHandler(1_000_000))


class Counted(ff.CountEncode):
    def collect(self, table, cells=None):
        LOG.info("count")
        return super().collect(table, cells)

    def apply(self, fit, tensors):
        LOG.info("count apply")
        return super().apply(fit, tensors)


class Encoded(ff.TargetEncode):
    def collect(self, table, cells=None):
        LOG.info("target")
        return super().collect(table, cells)


class Lagged(ff.Lag):
    def compute(self, table, context):
        LOG.info("lag")
        return super().compute(table, context)


class Past(ff.History):
    def compute(self, table, context):
        LOG.info("history")
        return super().compute(table, context)


def frame(n=40, seed=0):
    rng = np.random.default_rng(seed)
    values = {"user": rng.integers(0, 6, n), "item": rng.choice(["a", "b", "c"], n)}
    return pd.DataFrame(values | {"price": rng.normal(size=n), "y": rng.integers(0, 2, n)})


@pytest.fixture(params=["memory", "folder"])
def cache(request, tmp_path):
    CALLS.flush()
    return ff.FeatureCache(tmp_path / "cache" if request.param == "folder" else None)


def calls():
    """How often each generator was at work since the last call."""
    found = dict(Counter(record.getMessage() for record in CALLS.buffer))
    CALLS.flush()
    return found


def made(features, df, *, cache=None, unlabeled=None, tables=None, **options):
    """The frame that a new set of these generators makes, and how often each was at work."""
    fs = ff.FeatureSet(list(map(clone, features)), cache=cache, **options)
    found = fs.fit_transform(df, unlabeled=unlabeled, tables=tables)
    return found if isinstance(found, pd.DataFrame) else found.to_pandas(), calls()


DF, NEW, LOGGED = frame(), frame(9, seed=1), pd.DataFrame({"user": [1, 2, 3], "t": [1, 5, 9], "other": [1, 2, 3]})
COUNT, BY_Y, LAG = Counted("item"), Encoded("item", "y"), Lagged("price", by="user")
PAST = Past("user", order="t", table="log", stats=["count"])
SCOPES = [Counted("item", scope="all"), Counted("user")]
CHAIN = {"count": 1, "count apply": 1, "lag": 1}
CHANGES = {
    "a value": DF.assign(item=["a", *DF["item"][1:-1], "c"]),
    "a missing value": DF.assign(y=DF["y"].astype(float).where(DF.index > 0)),
    "the target": DF.assign(y=1 - DF["y"]),
    "the key": DF.assign(user=DF["user"] + 1),
    "the order of rows": DF.iloc[::-1],
    "a row less": DF.iloc[1:],
    "the type": DF.assign(y=DF["y"].astype(float)),
}
# What comes first, and then again or with a change: generators, rows, options, and how often which is at work.
RUNS = {
    "a generator added is the only one that is fitted": [
        ([COUNT, LAG], DF, {"key": "user"}, CHAIN),
        ([COUNT, LAG, BY_Y], DF, {"key": "user"}, {"target": 1}),
    ],
    "a chain is made again from where it has changed": [
        ([Lagged(COUNT, by="user"), LAG], DF, {}, CHAIN | {"lag": 2}),
        ([Lagged(Counted("item", log=True), by="user")], DF, {}, CHAIN),
        ([Lagged(COUNT, by="user"), LAG], DF.assign(item=DF["item"].replace("a", "z")), {}, CHAIN),
    ],
    "unlabeled rows count where they are counted": [
        (SCOPES, DF, {"unlabeled": NEW}, {"count": 3, "count apply": 2}),
        (SCOPES, DF, {"unlabeled": frame(9, seed=2)}, {"count": 2, "count apply": 1}),
        (SCOPES[:1], DF, {}, {"count": 1, "count apply": 1}),
    ],
    "other folds, another key and other parameters are others": [
        (BY_Y, DF, {"key": "user"}, {"target": 1}),
        (BY_Y, DF, {}, {"target": 1}),
        (BY_Y, DF, {"key": "user", "folds": 3}, {"target": 1}),
        (Encoded("item", "y", smooth=1), DF, {"key": "user"}, {"target": 1}),
        (Encoded("item", "y", folds=3), DF, {"key": "user"}, {"target": 1}),
        (Encoded("item", "y", fold_column="user"), DF, {"key": "user"}, {"target": 1}),
        (Encoded(ff.Cross("item", "user"), "y"), DF, {"key": "user"}, {"target": 1}),
    ],
    "what a set does not read does not matter": [
        (COUNT, DF, {"key": "user", "folds": 5}, {"count": 1, "count apply": 1}),
        (COUNT, DF.assign(price=0, y=2, new=1), {"key": "price", "folds": 3}, {}),
        (COUNT, Table.read(DF), {}, {}),
    ],
    "other tables count": [
        (PAST, DF.assign(t=range(40)), {"tables": {"log": log}}, {"history": 1} if new else {})
        for log, new in [(LOGGED, 1), (LOGGED, 0), (LOGGED.assign(other=0), 0), (LOGGED.assign(t=[1, 5, 8]), 1)]
    ],
} | {
    f"{what} changed": [(BY_Y, df, {"key": "user"}, {"target": 1}) for df in (DF, changed)]
    for what, changed in CHANGES.items()
}


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_only_what_changed_is_made_anew_and_values_are_those_without_a_cache(cache, runs):
    for features, df, options, expected in runs:
        features = features if isinstance(features, list) else [features]
        found, count = made(features, df, cache=cache, **options)
        assert count == expected
        pd.testing.assert_frame_equal(found, made(features, df, **options)[0])


def test_fit_is_shared_and_transform_remembered_for_the_same_rows_and_the_same_state(cache):
    make = lambda **options: ff.FeatureSet([clone(COUNT), clone(LAG)], **options)  # noqa: E731
    fs = make(cache=cache).fit(DF)
    assert calls() == {"count": 1}
    assert made([COUNT], DF, cache=cache)[1] == {"count apply": 1}
    first = fs.transform(NEW)
    assert calls() == {"count apply": 1, "lag": 1}
    again = make(cache=cache).fit(DF).transform(NEW)
    assert calls() == {}
    for other in (again, make().fit(DF).transform(NEW)):
        pd.testing.assert_frame_equal(first, other)
    other = ff.FeatureSet([Counted("item")], cache=cache).fit(frame(seed=5))
    calls()
    other.transform(NEW)
    assert calls() == {"count apply": 1}
    with pytest.raises(NotFittedError):
        ff.FeatureSet([Counted("item")], cache=cache).transform(NEW)


def test_cross_fit_is_remembered_and_the_same(cache):
    folds, features = np.arange(40) % 3, [ff.GroupRank(BY_Y, by="item"), Counted("user")]
    make = lambda **options: ff.FeatureSet(list(map(clone, features)), key="user", folds=3, **options)  # noqa: E731
    plain = list(make().cross_fit(DF, folds))
    calls()
    first = list(make(cache=cache).cross_fit(DF, folds))
    assert calls()["target"] == 3 * 4  # outer folds, each with three inner ones
    again = list(make(cache=cache).cross_fit(DF, folds))
    list(make(cache=cache).cross_fit(DF, (folds + 1) % 3))  # the same folds in another order
    assert calls() == {}
    list(make(cache=cache).cross_fit(DF, np.arange(40) % 4))
    assert calls()["target"] > 0
    for x, y, z in zip(*(sum(pairs, ()) for pairs in (plain, first, again)), strict=True):
        pd.testing.assert_frame_equal(x, y)
        pd.testing.assert_frame_equal(x, z)


# A folder holds what a saved generator holds, which the contract tests for every example; here one of a class will do.
TABLES = tables()
CASES = [pytest.param(all_[0], id=name) for name, all_ in EXAMPLES.items()]


@pytest.mark.parametrize("make", CASES)
def test_every_generator_gives_the_same_with_a_cache(make, tmp_path):
    data, new = to_arrow(columns(20)), to_arrow(columns(12, seed=3))
    options = {"tables": TABLES, "unlabeled": to_arrow(columns(8, seed=5))}

    def run(cache):
        fs = ff.FeatureSet([make()], key="row", folds=3, cache=cache)
        made = [fs.fit_transform(data, **options), fs.transform(new, tables=TABLES)]
        return [outputs_of(m, fs.outputs) for m in made]

    expected = run(None)
    for cache in (ff.FeatureCache(), ff.FeatureCache(tmp_path / "cache")):
        first = run(cache)
        misses = cache.misses
        again = run(cache)
        assert cache.misses == misses
        for found in (first, again):
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)


def test_sets_keep_their_cache_when_cloned_but_not_when_saved(cache, tmp_path):
    fs = ff.FeatureSet([ff.CountEncode(category())], cache=cache)
    other = clone(fs)
    assert other.cache is cache
    fs.fit(DF).save(tmp_path / "saved")
    assert "cache" not in json.loads((tmp_path / "saved" / "features.json").read_text())
    assert ff.FeatureSet.load(tmp_path / "saved").cache is None
    hits = cache.hits
    other.fit(DF)
    assert cache.hits == hits + 1


DAMAGE = {
    "cut": lambda data, text: data.write_bytes(data.read_bytes()[: data.stat().st_size // 2]),
    "bits": lambda data, text: data.write_bytes(data.read_bytes()[:-1] + bytes([data.read_bytes()[-1] ^ 1])),
    "json": lambda data, text: text.write_text("{"),
    "lost": lambda data, text: data.unlink(),
    "empty": lambda data, text: text.write_text("{}"),
    "swapped": lambda data, text: text.write_text(json.dumps({"digest": "x", "columns": [], "state": 1})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_entry_lasts_in_its_folder_and_is_made_anew_with_a_warning_if_damaged(tmp_path, damage):
    CALLS.flush()
    once = {"count": 1, "count apply": 1}
    for expected in (once, {}):
        assert made([COUNT], DF, cache=str(tmp_path))[1] == expected
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} == {".json", ".safetensors"}
    for entry in tmp_path.glob("*/*"):
        DAMAGE[damage](entry / "state.safetensors", entry / "state.json")
    with pytest.warns(DataWarning, match="damaged"):
        found, count = made([COUNT], DF, cache=tmp_path)
    assert count == once
    pd.testing.assert_frame_equal(found, made([ff.CountEncode("item")], DF)[0])
    assert made([COUNT], DF, cache=tmp_path)[1] == {}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    for i in range(256):
        (tmp_path / f"{i:02x}").write_text("in the way")
    with pytest.warns(DataWarning, match="could not be kept"):
        assert "count_item" in made([COUNT], DF, cache=tmp_path)[0]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "mine.txt").write_text("keep")
    (tmp_path / "notes.txt").write_text("keep")
    cache = ff.FeatureCache(tmp_path, max_bytes=0)
    made([COUNT], DF, cache=cache)
    cache.clear()
    assert len(cache) == 0
    assert (tmp_path / "ab" / "mine.txt").read_text() == (tmp_path / "notes.txt").read_text() == "keep"


def test_the_oldest_entries_go_first(cache):
    one = {"columns": {"x": Column("number", torch.zeros(1000, dtype=torch.float64))}}
    cache.max_bytes = 30_000
    for i in range(3):
        cache.put(str(i) * 32, one)
        if cache.folder is not None:
            os.utime(cache._place(str(i) * 32), (i, i))
            size = sum(f.stat().st_size for f in cache._place(str(i) * 32).iterdir())
            cache.max_bytes = int(3.5 * size)
    assert cache.get("0" * 32) is not None
    cache.put("3" * 32, one)
    cache.put("4" * 32, one)
    assert cache.get("1" * 32) is None
    assert cache.get("4" * 32) is not None
    assert len(cache) == 3
    if cache.folder is None:
        assert cache._size == 24_000
        cache.put("5" * 32, {"x": torch.zeros(5000, dtype=torch.float64)})  # larger than the cache
        assert len(cache) == 3
    cache.clear()
    assert len(cache) == 0


def test_entries_of_every_kind_of_column_survive(tmp_path):
    data = to_arrow(columns(30))
    table = Table.read(data.append_column("day", pa.array(pd.date_range("2024-01-01", periods=30, tz="Asia/Tokyo"))))
    vector = Column("vector", torch.arange(60.0).view(30, 2), name="v", missing=torch.arange(30) == 3)
    found = {n: table[n] for n in table.names} | {"v": vector}
    found["c"] = Table({"c": pd.Categorical(["b", "a"] * 15, categories=["b", "a"], ordered=True)})["c"]
    cache = ff.FeatureCache(tmp_path)
    cache.put("a" * 32, {"columns": found, "list": [1, {"y": found["city"]}]})
    entry = cache.get("a" * 32)
    assert entry["list"][0] == 1
    pairs = [(entry["columns"][n], column) for n, column in found.items()] + [(entry["list"][1]["y"], found["city"])]
    for again, column in pairs:
        assert column_digest(again) == column_digest(column), column.name
        assert again.to_arrow().equals(column.to_arrow()), column.name
        assert (again.name, again.ordered) == (column.name, column.ordered)
    assert size_of({"columns": found}) > 30 * 8


def test_what_no_file_holds_is_simply_not_kept(tmp_path):
    cache = ff.FeatureCache(tmp_path)
    cache.put("b" * 32, {"state": object()})
    assert len(cache) == 0
    assert cache.get("b" * 32) is None


def test_a_cache_is_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="not a folder"):
        ff.FeatureCache(tmp_path / "file")


def test_the_code_of_a_class_of_ones_own_is_part_of_it():
    def make(offset):
        class Own(ff.CountEncode):
            def apply(self, fit, tensors):
                return {n: v + offset for n, v in super().apply(fit, tensors).items()}

        return Own

    def other():
        class Own(ff.CountEncode):
            WIDTH = 3

        Own.__qualname__ = make(0).__qualname__
        return Own

    assert len({class_digest(c) for c in (make(1), make(2), other())}) == 3
    assert class_digest(make(1)) == class_digest(make(1))
    cache = ff.FeatureCache()
    for offset in (1, 2):
        found = ff.FeatureSet([make(offset)("item")], cache=cache).fit_transform(DF)
        assert found["count_item"].tolist() == (DF.groupby("item")["item"].transform("count") + offset).tolist()


def test_a_parameter_without_a_digest_is_named_once_and_never_remembered():
    class Strange(Counted):
        def __init__(self, cols, thing=None):
            super().__init__(cols)
            self.thing = thing

    with pytest.raises(NoDigestError):
        generator_digest(Strange("item", object()))
    cache = ff.FeatureCache()
    sets = [ff.FeatureSet([Strange("item", object()), ff.CountEncode("user")], cache=cache) for _ in "ab"]
    CALLS.flush()
    with pytest.warns(DataWarning, match="Strange of 'count_item' is not kept in the cache") as found:
        assert [len(fs.fit_transform(DF)) for fs in sets] == [40, 40]
    assert len(found) == 1
    assert calls() == {"count": 2, "count apply": 2}
    assert len(cache) == 2  # the other generator's state and column


def test_a_table_whose_array_was_changed_in_place_is_encoded_anew(cache):
    item, y = np.array([1, 1, 2, 2, 3]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    table = Table({"item": item, "y": y, "list": [[1], [2], [], [3], [4]]})

    def columns_of(**options):
        fs = ff.FeatureSet([ff.CountEncode("item"), ff.TargetEncode("item", "y"), ff.Lag("item")], **options)
        return fs.fit_transform(table).select(fs.outputs).to_pandas(), fs.transform(table).to_pandas()

    columns_of(cache=cache)
    item[:] = [1, 1, 1, 2, 2]
    y[:] = 1 - y
    unchanged = Table({n: table[n].to_arrow() for n in table.names})
    found = columns_of(cache=cache)
    table = unchanged
    for a, b in zip(found, columns_of(), strict=True):
        pd.testing.assert_frame_equal(a, b)
    for a, b in zip(found, columns_of(cache=cache), strict=True):  # and nothing wrong was kept
        pd.testing.assert_frame_equal(a, b)


def test_columns_given_out_may_be_changed_in_place():
    table = Table({"item": np.array([1, 1, 2])})
    cache = ff.FeatureCache()
    for _ in range(3):
        made = ff.FeatureSet([ff.CountEncode("item")], cache=cache).fit_transform(table)
        assert made["count_item"].values.tolist() == [2, 2, 1]
        made["count_item"].values[:] = 9
        again = ff.FeatureSet([ff.Lag("count_item")], cache=cache).fit_transform(made)
        assert again["lag1_count_item"].values.tolist()[1:] == [9, 9]
        made["count_item"].values[:] = 8
        again = ff.FeatureSet([ff.Lag("count_item")], cache=cache).fit_transform(made)
        assert again["lag1_count_item"].values.tolist()[1:] == [8, 8]


_WRITER = """
import sys, warnings, pandas as pd, numpy as np
warnings.simplefilter("error")
from fastrec.features import CountEncode, FeatureCache, FeatureSet, TargetEncode
cache = FeatureCache(sys.argv[1], max_bytes=int(sys.argv[2]))
for seed in range(4):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({"item": rng.integers(0, 9, 200), "y": rng.integers(0, 2, 200)})
    fs = [CountEncode("item"), TargetEncode("item", "y")]
    found = FeatureSet(fs, cache=cache).fit_transform(df)
    pd.testing.assert_frame_equal(found, FeatureSet(fs).fit_transform(df))
"""


def test_two_processes_share_a_folder(tmp_path):
    running = [fresh.start(_WRITER, tmp_path / "cache", 20000) for _ in range(2)]
    for process in running:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
