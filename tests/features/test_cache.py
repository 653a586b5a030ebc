"""``FeatureCache``: the same values with it as without, and nothing made twice that has not changed."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import fastrec.features as ff
from fastrec._core import limits
from fastrec.errors import DataError, DataWarning, NotFittedError
from fastrec.features import category
from fastrec.features._engine.digests import NoDigestError, class_digest, column_digest, digest, generator_digest
from fastrec.features.cache import size_of
from fastrec.table import Column, Keys, Table, load_state, save_state
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_arrow
from tests.features.test_contract import assert_equal, outputs_of


class Calls(logging.Handler):
    """Counts what a logger is told: a count in a global would be part of what the code below reads."""

    def __init__(self):
        super().__init__()
        self.found: Counter = Counter()

    def emit(self, record):
        self.found[record.getMessage()] += 1

    def clear(self):
        self.found.clear()


CALLS = Calls()
LOG = logging.getLogger("calls of generators")
LOG.setLevel(logging.INFO)
LOG.addHandler(CALLS)
LOG.propagate = False


class Counted(ff.CountEncode):
    """Counts how often it is at work."""

    def collect(self, table, cells=None):
        LOG.info("count")
        return super().collect(table, cells)

    def apply(self, fit, tensors):
        LOG.info("count apply")
        return super().apply(fit, tensors)


class Encoded(ff.TargetEncode):
    """Counts how often it is at work."""

    def collect(self, table, cells=None):
        LOG.info("target")
        return super().collect(table, cells)


class Lagged(ff.Lag):
    """Counts how often it is at work."""

    def compute(self, table, context):
        LOG.info("lag")
        return super().compute(table, context)


def frame(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": rng.integers(0, 6, n),
            "item": rng.choice(["a", "b", "c"], n),
            "price": rng.normal(size=n),
            "y": rng.integers(0, 2, n),
        }
    )


@pytest.fixture(params=["memory", "folder"])
def cache(request, tmp_path):
    CALLS.clear()
    return ff.FeatureCache(tmp_path / "cache" if request.param == "folder" else None)


def calls():
    found = dict(CALLS.found)
    CALLS.clear()
    return found


def test_a_generator_added_is_the_only_one_that_is_fitted(cache):
    df = frame()
    first = [Counted("item"), Lagged("price", by="user")]
    ff.FeatureSet(first, key="user", cache=cache).fit_transform(df)
    assert calls() == {"count": 1, "count apply": 1, "lag": 1}
    grown = ff.FeatureSet([*map(clone, first), Encoded("item", "y")], key="user", cache=cache)
    made = grown.fit_transform(df)
    assert calls() == {"target": 1}
    plain = ff.FeatureSet([*map(clone, first), Encoded("item", "y")], key="user").fit_transform(df)
    pd.testing.assert_frame_equal(made, plain)
    calls()
    new = frame(9, seed=1)
    pd.testing.assert_frame_equal(grown.transform(new), ff.FeatureSet(grown.features).transform(new))


def test_fit_and_fit_transform_share_what_was_learned(cache):
    df = frame()
    ff.FeatureSet([Counted("item")], cache=cache).fit(df)
    assert calls() == {"count": 1}
    ff.FeatureSet([Counted("item")], cache=cache).fit_transform(df)
    assert calls() == {"count apply": 1}
    ff.FeatureSet([Counted("item")], cache=cache).fit_transform(df)
    assert calls() == {}


def test_transform_is_remembered_for_the_same_rows_and_the_same_state(cache):
    df, new = frame(), frame(9, seed=1)
    fs = ff.FeatureSet([Counted("item"), Lagged("price", by="user")], cache=cache).fit(df)
    calls()
    first = fs.transform(new)
    assert calls() == {"count apply": 1, "lag": 1}
    again = ff.FeatureSet([Counted("item"), Lagged("price", by="user")], cache=cache).fit(df).transform(new)
    assert calls() == {}
    pd.testing.assert_frame_equal(first, again)
    other = ff.FeatureSet([Counted("item")], cache=cache).fit(frame(seed=5))
    calls()
    other.transform(new)
    assert calls() == {"count apply": 1}
    with pytest.raises(NotFittedError):
        ff.FeatureSet([Counted("item")], cache=cache).transform(new)


def test_cross_fit_is_remembered_and_the_same(cache):
    df, folds = frame(), np.arange(40) % 3
    make = lambda **options: ff.FeatureSet(  # noqa: E731
        [ff.GroupRank(Encoded("item", "y"), by="item"), Counted("user")], key="user", folds=3, **options
    )
    plain = list(make().cross_fit(df, folds))
    calls()
    first = list(make(cache=cache).cross_fit(df, folds))
    assert calls()["target"] == 3 * 4  # outer folds, each with three inner ones
    again = list(make(cache=cache).cross_fit(df, folds))
    assert calls() == {}
    list(make(cache=cache).cross_fit(df, (folds + 1) % 3))  # the same folds in another order
    assert calls() == {}
    list(make(cache=cache).cross_fit(df, np.arange(40) % 4))
    assert calls()["target"] > 0
    for a, b, c in zip(plain, first, again, strict=True):
        for x, y, z in zip(a, b, c, strict=True):
            pd.testing.assert_frame_equal(x, y)
            pd.testing.assert_frame_equal(x, z)


def test_unlabeled_rows_count_where_they_are_counted(cache):
    df, new = frame(), frame(9, seed=1)
    scope_all = [Counted("item", scope="all"), Counted("user")]
    ff.FeatureSet(scope_all, cache=cache).fit_transform(df, unlabeled=new)
    assert calls()["count"] == 3
    made = ff.FeatureSet(list(map(clone, scope_all)), cache=cache).fit_transform(df, unlabeled=frame(9, seed=2))
    assert calls()["count"] == 2
    plain = ff.FeatureSet(list(map(clone, scope_all))).fit_transform(df, unlabeled=frame(9, seed=2))
    pd.testing.assert_frame_equal(made, plain)
    calls()
    ff.FeatureSet([Counted("item", scope="all")], cache=cache).fit_transform(df)
    assert calls()["count"] == 1


def test_a_chain_is_made_again_from_where_it_has_changed(cache):
    df = frame()
    ff.FeatureSet([Lagged(Counted("item"), by="user"), Lagged("price", by="user")], cache=cache).fit_transform(df)
    assert calls() == {"count": 1, "count apply": 1, "lag": 2}
    ff.FeatureSet([Lagged(Counted("item", log=True), by="user")], cache=cache).fit_transform(df)
    assert calls() == {"count": 1, "count apply": 1, "lag": 1}
    df["item"] = df["item"].replace("a", "z")
    ff.FeatureSet([Lagged(Counted("item"), by="user"), Lagged("price", by="user")], cache=cache).fit_transform(df)
    assert calls() == {"count": 1, "count apply": 1, "lag": 1}


CHANGES = {
    "a value": lambda df: df.assign(item=["a", *df["item"][1:-1], "c"]),
    "a missing value": lambda df: df.assign(y=df["y"].astype(float).where(df.index > 0)),
    "the target": lambda df: df.assign(y=1 - df["y"]),
    "the key": lambda df: df.assign(user=df["user"] + 1),
    "the order of rows": lambda df: df.iloc[::-1],
    "a row less": lambda df: df.iloc[1:],
    "the type": lambda df: df.assign(y=df["y"].astype(float)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_data_that_has_changed_is_encoded_anew(cache, what):
    df = frame()
    ff.FeatureSet([Encoded("item", "y")], key="user", cache=cache).fit_transform(df)
    calls()
    changed = CHANGES[what](df)
    made = ff.FeatureSet([Encoded("item", "y")], key="user", cache=cache).fit_transform(changed)
    assert calls() == {"target": 1}
    pd.testing.assert_frame_equal(made, ff.FeatureSet([Encoded("item", "y")], key="user").fit_transform(changed))


def test_other_folds_another_key_and_other_parameters_are_others(cache):
    df = frame()
    seen = []
    for feature, options in [
        (Encoded("item", "y"), {"key": "user"}),
        (Encoded("item", "y"), {}),
        (Encoded("item", "y"), {"key": "user", "folds": 3}),
        (Encoded("item", "y", smooth=1), {"key": "user"}),
        (Encoded("item", "y", folds=3), {"key": "user"}),
        (Encoded("item", "y", fold_column="user"), {"key": "user"}),
        (Encoded(ff.Cross("item", "user"), "y"), {"key": "user"}),
    ]:
        made = ff.FeatureSet([feature], cache=cache, **options).fit_transform(df)
        assert calls() == {"target": 1}
        expected = ff.FeatureSet([clone(feature)], **options).fit_transform(df)
        pd.testing.assert_frame_equal(made, expected)
        seen.append(made.iloc[:, -1].tolist())
        calls()
    assert len(set(map(tuple, seen))) > 4


def test_what_a_set_does_not_read_does_not_matter(cache):
    df = frame()
    ff.FeatureSet([Counted("item")], key="user", folds=5, cache=cache).fit_transform(df)
    calls()
    ff.FeatureSet([Counted("item")], key="price", folds=3, cache=cache).fit_transform(df.assign(price=0, y=2, new=1))
    assert calls() == {}
    ff.FeatureSet([Counted("item")], cache=cache).fit_transform(Table.read(df))
    assert calls() == {}


def test_other_tables_count(cache):
    from fastrec.features import History

    class Counting(History):
        def compute(self, table, context):
            LOG.info("history")
            return super().compute(table, context)

    df = frame().assign(t=range(40))
    log = pd.DataFrame({"user": [1, 2, 3], "t": [1, 5, 9], "other": [1, 2, 3]})
    for changed, expected in [(log, 1), (log, 0), (log.assign(other=0), 0), (log.assign(t=[1, 5, 8]), 1)]:
        fs = ff.FeatureSet([Counting("user", order="t", table="log", stats=["count"])], cache=cache)
        made = fs.fit_transform(df, tables={"log": changed})
        assert calls().get("history", 0) == expected
        plain = ff.FeatureSet([History("user", order="t", table="log", stats=["count"])])
        pd.testing.assert_frame_equal(made, plain.fit_transform(df, tables={"log": changed}))


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


def test_a_frame_that_came_out_can_be_changed_without_harm():
    df = frame()
    make = lambda: ff.FeatureSet([Counted("item"), Encoded("item", "y"), ff.Lag("price")], cache=cache)  # noqa: E731
    cache = ff.FeatureCache()
    made = make().fit_transform(df)
    expected = made.copy(deep=True)
    for name in make().outputs:
        made[name] = made[name] * 0 - 1
        made.loc[made.index[:3], name] = 5
    pd.testing.assert_frame_equal(make().fit_transform(df), expected)


def test_sets_keep_their_cache_when_cloned_but_not_when_saved(cache, tmp_path):
    df = frame()
    fs = ff.FeatureSet([ff.CountEncode(category())], cache=cache)
    other = clone(fs)
    assert other.cache is cache
    fs.fit(df).save(tmp_path / "saved")
    assert "cache" not in json.loads((tmp_path / "saved" / "features.json").read_text())
    assert ff.FeatureSet.load(tmp_path / "saved").cache is None
    hits = cache.hits
    other.fit(df)
    assert cache.hits == hits + 1


def test_a_folder_given_as_a_path_lasts(tmp_path):
    CALLS.clear()
    df = frame()
    for expected in ({"count": 1, "count apply": 1}, {}):
        ff.FeatureSet([Counted("item")], cache=str(tmp_path / "kept")).fit_transform(df)
        assert calls() == expected
    kinds = {p.suffix for p in (tmp_path / "kept").rglob("*") if p.is_file()}
    assert kinds == {".json", ".safetensors"}


DAMAGE = {
    "cut": lambda data, text: data.write_bytes(data.read_bytes()[: data.stat().st_size // 2]),
    "bits": lambda data, text: data.write_bytes(data.read_bytes()[:-1] + bytes([data.read_bytes()[-1] ^ 1])),
    "json": lambda data, text: text.write_text("{"),
    "lost": lambda data, text: data.unlink(),
    "empty": lambda data, text: text.write_text("{}"),
    "swapped": lambda data, text: text.write_text(json.dumps({"digest": "x", "columns": [], "state": 1})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_anew_with_a_warning(tmp_path, damage):
    CALLS.clear()
    df = frame()
    ff.FeatureSet([Counted("item")], cache=tmp_path).fit_transform(df)
    calls()
    for entry in tmp_path.glob("*/*"):
        DAMAGE[damage](entry / "state.safetensors", entry / "state.json")
    with pytest.warns(DataWarning, match="damaged"):
        made = ff.FeatureSet([Counted("item")], cache=tmp_path).fit_transform(df)
    assert calls() == {"count": 1, "count apply": 1}
    pd.testing.assert_frame_equal(made, ff.FeatureSet([ff.CountEncode("item")]).fit_transform(df))
    calls()
    ff.FeatureSet([Counted("item")], cache=tmp_path).fit_transform(df)
    assert calls() == {}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "cache").mkdir()
    cache = ff.FeatureCache(tmp_path / "cache")
    for first in "0123456789abcdef":
        for second in "0123456789abcdef":
            (tmp_path / "cache" / (first + second)).write_text("in the way")
    with pytest.warns(DataWarning, match="could not be kept"):
        made = ff.FeatureSet([ff.CountEncode("item")], cache=cache).fit_transform(frame())
    assert "count_item" in made


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "mine.txt").write_text("keep")
    (tmp_path / "notes.txt").write_text("keep")
    cache = ff.FeatureCache(tmp_path, max_bytes=0)
    ff.FeatureSet([ff.CountEncode("item")], cache=cache).fit_transform(frame())
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
    cache.put("a" * 32, {"columns": found})
    again = cache.get("a" * 32)["columns"]
    for name, column in found.items():
        assert column_digest(again[name]) == column_digest(column), name
        assert again[name].to_arrow().equals(column.to_arrow()), name
        assert (again[name].name, again[name].ordered) == (column.name, column.ordered)
    assert size_of({"columns": found}) > 30 * 8


def test_what_no_file_holds_is_simply_not_kept(tmp_path):
    cache = ff.FeatureCache(tmp_path)
    cache.put("b" * 32, {"state": object()})
    assert len(cache) == 0
    assert cache.get("b" * 32) is None


def test_bad_caches_are_refused(tmp_path):
    with pytest.raises(DataError, match="no cache"):
        ff.FeatureSet([ff.CountEncode("item")], cache=3)
    with pytest.raises(DataError, match="max_bytes"):
        ff.FeatureCache(max_bytes=-1)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="not a folder"):
        ff.FeatureCache(tmp_path / "file")


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(a=plain, b=plain)
def test_plain_values_share_a_digest_only_if_they_are_the_same(a, b):
    def typed(v):
        if isinstance(v, list):
            return [typed(x) for x in v]
        return {k: typed(x) for k, x in v.items()} if isinstance(v, dict) else (type(v), repr(v))

    assert (digest(a) == digest(b)) == (repr(typed(a)) == repr(typed(b)))


COLUMNS = {
    "integers": [1, 2, 3],
    "other integers": [1, 2, 4],
    "floats": [1.0, 2.0, 3.0],
    "missing": [1, 2, None],
    "missing zero": [1, 2, 0],
    "text": ["a", "b", "a"],
    "other text": ["a", "b", "b"],
    "booleans": [True, False, True],
    "lists": [[1], [2, 3], []],
    "other lists": [[1, 2], [3], []],
    "null list": [[1], [2, 3], None],
    "times": [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02"), None],
    "zoned times": [pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-02", tz="UTC"), None],
    "structs": [{"a": 1}, {"a": 2}, None],
    "other structs": [{"a": 1}, {"a": 3}, None],
}


def test_columns_share_a_digest_only_if_they_are_the_same():
    found = {n: column_digest(Table({"x": v})["x"]) for n, v in COLUMNS.items()}
    assert len(set(found.values())) == len(found)
    again = {n: column_digest(Table({"y": v})["y"]) for n, v in COLUMNS.items()}  # the name is not part of it
    assert again == found
    sliced = pa.chunked_array([["z", "a"], ["b", "a", "q"]]).slice(1, 3)
    assert column_digest(Table({"x": sliced})["x"]) == found["text"]


def test_long_columns_are_hashed_in_pieces_and_every_byte_counts(monkeypatch):

    values = torch.arange(1000, dtype=torch.int64)
    whole = digest(values)
    monkeypatch.setattr(limits, "DIGEST_CHUNK", 512)
    pieces = digest(values)
    assert pieces != whole
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        assert digest(values) == pieces
        torch.set_num_threads(before)
    for place in (0, 511, 999):
        changed = values.clone()
        changed[place] += 1 << 60
        assert digest(changed) != pieces


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)),
        (np.zeros(3), np.ones(3)),
        (np.int64(1), 1),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (["a", "b"], ["a\x1fb"]),
        ([["a"], "b"], ["a", ["b"]]),
        ({"a": 1}, ["a", 1]),
        (Keys((pa.array(["a"]),), ("x",)), Keys((pa.array(["a"]),), ("y",))),
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (ff.CountEncode("a"), ff.CountEncode("b")),
        (ff.CountEncode("a"), ff.CountEncode(["a"], log=True)),
        (ff.CountEncode(ff.Cross("a", "b")), ff.CountEncode(ff.Cross("a", "c"))),
        (ff.CountEncode("a"), ff.GroupStats("a", by="b")),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (ff.RowFunction(lambda x: x + 1, "a", "b"), ff.RowFunction(lambda x: x * 1, "a", "b")),
    ],
)
def test_unlike_things_have_unlike_digests(a, b):
    assert digest(a) != digest(b)
    assert digest(a) == digest(a)


def closure(k):
    def inner(x):
        return x + k

    return inner


SCALE = 2


def scaled(x):
    return helper(x) * SCALE


def helper(x):
    return x + 1


def test_what_a_function_uses_from_outside_is_part_of_it(monkeypatch):
    assert digest(closure(1)) != digest(closure(2))
    assert digest(closure(1)) == digest(closure(1))
    before = digest(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3)
    changed = digest(scaled)
    assert changed != before
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    assert digest(scaled) != changed


def recursive(n):
    return recursive(n - 1) if n else 0


def test_functions_that_call_themselves_end():
    assert digest(recursive) == digest(recursive)


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

    assert class_digest(make(1)) != class_digest(make(2))
    assert class_digest(make(1)) == class_digest(make(1))
    assert class_digest(other()) != class_digest(make(1))
    cache = ff.FeatureCache()
    df = frame()
    for offset in (1, 2):
        made = ff.FeatureSet([make(offset)("item")], cache=cache).fit_transform(df)
        expected = df.groupby("item")["item"].transform("count") + offset
        assert made["count_item"].tolist() == expected.tolist()


def test_a_parameter_without_a_digest_is_never_remembered():
    class Strange(Counted):
        def __init__(self, cols, thing=None):
            super().__init__(cols)
            self.thing = thing

    with pytest.raises(NoDigestError):
        generator_digest(Strange("item", object()))
    cache = ff.FeatureCache()
    CALLS.clear()
    with pytest.warns(DataWarning, match="Strange of 'count_item' is not kept in the cache"):
        ff.FeatureSet([Strange("item", object())], cache=cache).fit(frame())
    ff.FeatureSet([Strange("item", object())], cache=cache).fit(frame())
    assert calls() == {"count": 2}
    assert len(cache) == 0


def test_entries_go_through_files_and_back(tmp_path):
    column = Table({"x": ["a", None]})["x"]
    save_state(tmp_path / "s", {"columns": {"x": column}, "list": [1, {"y": column}]})
    again = load_state(tmp_path / "s")
    assert column_digest(again["list"][1]["y"]) == column_digest(column)
    assert again["list"][0] == 1
