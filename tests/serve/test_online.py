"""``Online``: features served from events equal those of the batch, event by event."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, DataWarning, MissingColumnError, MissingFileError, UnreadableFileError
from fastrec.features import (
    Cross,
    CumCount,
    CumStat,
    CumTarget,
    FeatureSet,
    History,
    JaccardToHistory,
    Lag,
    LastAction,
    Rolling,
)
from fastrec.features.base import Context, Grouped
from fastrec.serve import MemoryStore, Online, write_online_state
from fastrec.table import Column, Table
from tests.serve.online_frames import ITEMS, SCHEMA, batch, equal, fitted, from_log, from_rows, random_rows

EVERY = [*from_log(), *from_rows()]


def chosen(which: list[int]) -> list:
    """Some generators, with those that they read by name."""
    made = [EVERY[i] for i in sorted(set(which))]
    read = {n for f in made for n in f.inputs}
    more = [f for f in EVERY if f not in made and set(f.outputs) & read]
    return [*more, *made]


def replay(features: list, seed: int, *, keep: int, late: int, steps: int = 10) -> int:
    """Events and requests in turn; how many requests were answered."""
    rng, fs = np.random.default_rng(seed), fitted(features)
    online = Online(fs, tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA}, keep=keep, late=late)
    if "items" in online.tables:
        online.observe(ITEMS, "items")
    log, past, newest, answered = SCHEMA.empty_table(), SCHEMA.empty_table(), 0, 0
    for _ in range(steps):
        span = (max(newest - late - (4 if rng.random() < 0.3 else 0), 0), newest + 3)
        events = random_rows(rng, int(rng.integers(1, 9)), span)
        if rng.random() < 0.6 and "log" in online.tables:
            log = pa.concat_tables([log, events])
            online.observe(events, "log")
        elif "history" in online.tables:
            past = pa.concat_tables([past, events])
            online.observe(events)
        newest = max([newest, *log["t"].to_pylist(), *past["t"].to_pylist()])
        asked = random_rows(rng, int(rng.integers(1, 5)), (max(newest - late, 0), newest + 3))
        got = online.features(asked)  # never too late, so never refused
        answered += 1
        equal(got, batch(fs, asked, log, past).select(got.column_names))
    return answered


WHICH = st.lists(st.integers(0, len(EVERY) - 1), min_size=1, max_size=6)


@settings(max_examples=25)
@given(WHICH, st.integers(0, 2**20), st.integers(1, 6), st.integers(0, 3))
def test_any_features_equal_the_batch(which: list[int], seed: int, keep: int, late: int) -> None:
    assert replay(chosen(which), seed, keep=keep, late=late, steps=6) == 6


# the last: rows that one generator has folded and another still reads are counted once
TWO_KINDS = [CumCount("user", order="t"), CumCount("item"), CumStat("x", by="item", order="t", stats=["mean"])]
REPLAYS = [(chosen([i]), i) for i in range(len(EVERY))] + [(TWO_KINDS, seed) for seed in range(3)]


@pytest.mark.parametrize(("features", "seed"), REPLAYS, ids=lambda v: repr(v[-1])[:40] if isinstance(v, list) else "")
def test_each_generator_equals_the_batch(features: list, seed: int) -> None:
    assert replay(features, seed, keep=2, late=1, steps=12) == 12


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.timestamp("ms")])
def test_what_is_exactly_as_late_as_allowed_is_answered(kind: pa.DataType) -> None:
    log = pa.table({"item": ["a"] * 20, "t": pa.array([*range(20)]).cast(kind)})
    steps = [CumCount("item", order="t"), Lag("t", by="item", order="t"), History("item", order="t")]
    fs = FeatureSet(steps, keep="outputs").fit(log)
    unit = 1000 if pa.types.is_timestamp(kind) else 1
    rows = log.set_column(1, "t", pa.array([i * unit for i in range(20)]).cast(kind))
    online = Online(fs, keep=4, late=3)
    online.observe(rows)
    for back in (3, 0):
        asked = pa.table({"item": ["a"], "t": pa.array([(19 - back) * unit]).cast(kind)})
        equal(online.features(asked), fs.transform(asked, history=rows))
    with pytest.raises(DataError, match=r"(?s)row 1.*older than events that were folded.*late="):
        online.features({"item": ["b", "a"], "t": pa.array([16 * unit - 1] * 2).cast(kind)})


def test_a_popular_key_keeps_few_events() -> None:
    fs = fitted([History("item", order="t", table="log", stats=["count", "since"], sums="x", name="h")])
    online = Online(fs, tables={"log": SCHEMA}, keep=16, late=5)
    for start in range(0, 5000, 50):
        online.observe({"item": ["a"] * 50, "t": list(range(start, start + 50)), "x": [1.0] * 50}, "log")
    assert online.store.nbytes() < 3000
    wanted = {"h_count": 5000, "h_since": 1.0, "h_sum_x": 5000.0}
    assert online.features({"item": ["a"], "t": [5000]}).to_pylist() == [wanted]


def test_a_window_keeps_what_it_needs() -> None:
    fs = fitted([Rolling("x", "sum", by="item", order="t", window="7s")])
    online = Online(fs, tables={"history": SCHEMA}, keep=4, late=2)
    for t in range(200):
        online.observe({"item": ["a"], "t": [t], "x": [float(t)]})
    assert online.store.nbytes() < 60 * 25 + 300
    for t in (200, 197):
        made = online.features({"item": ["a"], "t": [t], "x": [0.0]})
        assert made.column(0).to_pylist() == [sum(range(t - 7, t))]


def test_requests_do_not_scan_the_events_of_others() -> None:
    fs = fitted([LastAction("user", order="t", action="kind", table="log")])
    online = Online(fs, tables={"log": SCHEMA})
    asked: list[int] = []
    get = online.store.get
    rows = pa.table({"user": [f"u{i}" for i in range(500)], "t": [1] * 500, "kind": ["view"] * 500})
    online.observe(rows, "log")
    online.store.get = lambda keys: asked.append(len(keys)) or get(keys)  # type: ignore[method-assign]
    assert online.features({"user": ["u7", "u8"], "t": [2, 2]}).num_rows == 2
    assert sum(asked) == 4  # the events and the sums of two keys


class Odd(Grouped):
    sources, outputs, within = ("user",), ("odd",), None

    def __init__(self) -> None: ...

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        return {"odd": Column("number", torch.zeros(len(table)), name="odd")}


def test_what_cannot_be_served_is_refused_by_name() -> None:
    cross = Cross("user", "item")
    grouped = fitted([cross, Lag("x", by=cross.outputs[0], order="t")])
    for features, options, says in (
        (FeatureSet([Odd()]), {}, r"Odd \(odd\) cannot be served"),
        (grouped, {}, r"Lag \(.*\) cannot be served: its groups are of a column that Cross makes"),
        (FeatureSet([History("user", order="t", table="history")]), {}, r"History \(.*\) .* its table has the name"),
        (fitted([Lag("x", by="user", order="t")]), {"outputs": ["other"]}, "no such output"),
    ):
        with pytest.raises(DataError, match=says):
            Online(features, **options)


def test_bad_events_and_requests_are_refused_by_column() -> None:
    fs = fitted([History("user", order="t", table="log", stats=["count"], values="x", name="h")])
    online = Online(fs)
    good = {"user": ["u"], "t": [1], "x": [1.5]}
    before = [
        (good, None, "types of the events of 'log' are not known"),
        ({"user": ["u"]}, "other", "no feature looks at events of 'other'"),
        ({"user": ["u"], "t": [1]}, "log", "'x'"),
        ({**good, "x": [None]}, "log", "column 'x': table 'log': has no value in the first events"),
    ]
    after = [
        ({**good, "user": [1]}, "log", "and the events before it"),
        ({**good, "t": ["1"]}, "log", "and the events before it"),
        ({"user": ["u", "u"], "t": [1, None], "x": [1.5, 2]}, "log", "order value is missing"),
        ({"user": [1], "t": [1]}, None, r"column 'user'.*no text"),
        ({"user": ["u"], "t": pa.array([1], pa.timestamp("s"))}, None, "times"),
    ]
    for cases in (before, after):
        for rows, table, says in cases:
            with pytest.raises(MissingColumnError if says == "'x'" else DataError, match=says):
                online.features(rows) if table is None else online.observe(rows, table)
        if cases is before:
            online.observe(good, "log")
    assert online.observed("log") == 1
    assert online.features({"user": ["u"], "t": [2]}).to_pylist() == [{"h_count": 1, "h_last_x": 1.5}]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_values_of_every_type_come_back(zone: str | None) -> None:
    log = pa.table(
        {
            "k": pa.array([2**60 + 1, 2**60 + 1, 2**60 + 2]),
            "t": pa.array([1, 2, 3], pa.timestamp("us", zone)),
            "big": pa.array([2**60 + 1, None, 2**60 + 3]),
            "flag": pa.array([True, False, None]),
            "text": pa.array(["Größe", "", None]),
            "price": pa.array([Decimal("1.10"), None, Decimal("2.20")], pa.decimal128(8, 2)),
            "huge": pa.array([2**64 - 1, 1, None], pa.uint64()),
            "when": pa.array([5, None, 7], pa.timestamp("ns")),
            "f": pa.array([0.1, None, 0.2], pa.float32()),
        }
    )
    values = ["big", "flag", "text", "price", "huge", "when", "f"]
    fs = FeatureSet([History("k", order="t", table="log", stats="count", values=values, name="h")], keep="outputs")
    asked = pa.table({"k": [2**60 + 1, 2**60 + 2, 2**60], "t": pa.array([9, 9, 9], pa.timestamp("us", zone))})
    fs.fit(asked, tables={"log": log})
    online = Online(fs)
    for i in range(3):
        online.observe(log.slice(2 - i, 1) if i else log.slice(0, 1), "log")
    seen = pa.concat_tables([log.slice(0, 1), log.slice(1, 1), log.slice(0, 1)])
    got, want = online.features(asked), fs.transform(asked, tables={"log": seen})
    equal(got, want)
    assert got.schema.field("h_last_price").type == pa.float64()  # as decimals are read


def test_rows_with_targets_feed_lags_of_the_target_and_cum_target_is_that_of_training() -> None:
    train = pa.table({"user": ["u", "v"], "t": [1, 1], "sold": [3.0, 4.0]})
    fs = FeatureSet([Lag("sold", by="user", order="t")], target="sold", keep="outputs").fit(train)
    online = Online(fs)
    online.observe(train)
    asked = pa.table({"user": ["u", "v", "w"], "t": [2, 2, 2]})
    equal(online.features(asked), fs.transform(asked, history=train))
    assert online.features(asked).column(0).to_pylist()[:2] == [3.0, 4.0]
    fs = FeatureSet([CumTarget("user", "sold", order="t")], keep="outputs").fit(train)
    equal(Online(fs, outputs=fs.outputs).features(train), fs.transform(train))


def test_requests_and_events_at_the_same_time() -> None:
    fs = fitted([*from_log(), *from_rows()])
    online = Online(fs, tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA}, keep=2, late=0)
    online.observe(ITEMS, "items")
    rng = np.random.default_rng(3)
    log, past, asked = (random_rows(rng, n, times) for n, times in ((90, (0, 30)), (60, (0, 30)), (5, (30, 33))))
    with ThreadPoolExecutor() as pool:
        doing = [
            pool.submit(lambda: [online.observe(log.slice(i, 3), "log") for i in range(0, 90, 3)]),
            pool.submit(lambda: [online.observe(past.slice(i, 3)) for i in range(0, 60, 3)]),
            pool.submit(lambda: [online.features(asked) for _ in range(8)]),
        ]
    assert [d.exception() for d in doing] == [None] * 3
    equal(online.features(asked), batch(fs, asked, log, past))


def test_one_row_of_a_table_with_many_words() -> None:
    rng = np.random.default_rng(4)
    fs = fitted([CumCount("user", order="t"), LastAction("item", order="t", action="kind", name="own")])
    past, asked = random_rows(rng, 40, (0, 9)), random_rows(rng, 40, (9, 12))
    online = Online(fs, tables={"history": SCHEMA})
    online.observe(past)
    for row in (0, 7):
        one = Table.read(asked).take(torch.tensor([row]))
        assert len(one["item"].distinct) > 2
        equal(online.features(one), batch(fs, asked.slice(row, 1), past.slice(0, 0), past))


def test_no_rows_and_no_events() -> None:
    online = Online(fitted(EVERY), tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA})
    asked = random_rows(np.random.default_rng(0), 3, (0, 5))
    assert online.observe(SCHEMA.empty_table(), "log") == 0
    assert online.features(asked.slice(0, 0)).num_rows == 0
    assert online.features(asked)["of_item_count"].to_pylist() == [0, 0, 0]
    # without history rows see each other only
    online = Online(fitted([CumCount("user", order="t")]), history=False)
    assert online.tables == {}
    assert online.features({"user": ["u", "u"], "t": [1, 2]}).to_pydict() == {"cumcount_user": [0, 1]}


def test_a_table_that_features_do_without_may_lack():
    """Without items the likeness is missing, as in training; the table of events is needed."""
    log = pd.DataFrame({"user": [1, 1], "item": ["a", "b"], "t": [1, 2]})
    likeness = JaccardToHistory("user", item="item", properties="tags", order="t", table="log", items="items")
    features = FeatureSet([likeness]).fit(log, tables={"log": log})
    online = Online(features, tables={"log": log})
    assert online.optional_tables == {"items"}
    online.observe(log, "log")
    rows = {"user": [1], "item": ["a"], "t": [5]}
    made = online.features(rows).to_pydict()
    assert made == {"jaccard_mean": [None], "jaccard_max": [None]}
    assert np.isnan(features.transform(rows, tables={"log": log})["jaccard_mean"]).all()


def kept(folder: Path, *keys: bytes) -> list[bytes | None]:
    store = MemoryStore(folder)
    values = store.get(keys)
    store.close()
    return values


def five(folder: Path) -> tuple[Path, list[bytes]]:
    """A store of one key that was written five times: its log, and what was written."""
    store, values = MemoryStore(folder), [b"%d" % i * 40 for i in range(5)]
    for value in values:
        store.write({b"k": value}, {})
    store.close()
    return folder / "events-000000000000.log", values


@pytest.mark.parametrize("cut", [1, 5, 9, 40])
def test_a_torn_end_is_cut_off_and_the_log_goes_on(tmp_path: Path, cut: int) -> None:
    log, values = five(tmp_path)
    os.truncate(log, log.stat().st_size - cut)
    with pytest.warns(DataWarning, match="cut short"):
        store = MemoryStore(tmp_path)
    assert store.get([b"k"]) == [b"".join(values[:4])]
    store.write({b"k": b"!"}, {})
    store.close()
    assert kept(tmp_path, b"k")[0].endswith(b"3!")


@pytest.mark.parametrize("size", [0, 3, 17])
def test_a_log_that_was_hardly_begun_is_begun_anew(tmp_path: Path, size: int) -> None:
    MemoryStore(tmp_path).close()
    os.truncate(tmp_path / "events-000000000000.log", size)
    store = MemoryStore(tmp_path)
    store.write({b"k": b"1"}, {})
    store.close()
    assert kept(tmp_path, b"k", b"other") == [b"1", None]


def test_damage_before_the_end_and_other_files_are_refused(tmp_path: Path) -> None:
    log, _ = five(tmp_path / "damaged")
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    other = b"something else altogether"
    for name, raw, says in (
        ("damaged/events-000000000000.log", data, "damaged"),
        ("log/events-000000000000.log", other, "no log"),
        ("snapshot/snapshot-000000000001.arrow", other, "snapshot"),
    ):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(raw)
        with pytest.raises(UnreadableFileError, match=says):
            MemoryStore(file.parent)


def test_a_crash_between_snapshot_and_new_log_loses_nothing(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "a")
    store.write({b"k": b"1"}, {})
    shutil.copy(tmp_path / "a" / "events-000000000000.log", tmp_path / "old")
    store.snapshot()
    store.write({b"k": b"2"}, {})
    store.close()
    shutil.copy(tmp_path / "old", tmp_path / "a" / "events-000000000000.log")  # the old log was not removed yet
    assert kept(tmp_path / "a", b"k") == [b"12"]


def test_one_process_at_a_time_whose_threads_share_the_log(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    with pytest.raises(DataError, match="another process"):
        MemoryStore(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        doing = [
            pool.submit(lambda n=b"%d" % i: [store.write({n: b"x", b"all": b"y"}, {}) for _ in range(50)])
            for i in range(4)
        ]
        store.snapshot()
    assert [d.exception() for d in doing] == [None] * 4
    store.close()
    assert [len(v) for v in kept(tmp_path, b"0", b"1", b"2", b"3", b"all")] == [50, 50, 50, 50, 200]


def test_in_memory_and_in_a_folder_stores_do_the_same(tmp_path: Path) -> None:
    for store in (MemoryStore(), MemoryStore(tmp_path / "store")):
        assert store.write({b"a": b"12", b"b": b"3"}, {b"s": b"set"}) == {b"a": 2, b"b": 1}
        assert store.write({b"a": b"45"}, {b"s": b"again"}) == {b"a": 4}
        assert store.get([b"a", b"none", b"b", b"s"]) == [b"1245", None, b"3", b"again"]
        assert store.get([]) == []
        store.replace(b"a", b"12", b"x", {b"base": b"y"})
        store.replace(b"a", b"12", b"z", {b"base": b"n"})  # it begins with x now: nothing is done
        assert store.get([b"a", b"base"]) == [b"x45", b"y"]
        assert store.first(b"f", b"one") == b"one"
        assert store.first(b"f", b"two") == b"one"
        assert [store.count(b"n", 3), store.count(b"n", 2), store.count(b"n", 0)] == [0, 3, 5]
        store.close()


def test_the_state_of_a_run_is_written_and_loaded(tmp_path: Path) -> None:
    fs, rng = fitted([*from_log(), *from_rows()]), np.random.default_rng(6)
    log, past = random_rows(rng, 80, (0, 20)), random_rows(rng, 40, (0, 20))
    fs.save(tmp_path / "features")
    tables = {"log": log.slice(0, 60), "items": ITEMS, "other": pa.table({"z": [1]})}
    made = write_online_state(tmp_path / "events", fs, tables, past.slice(0, 30), keep=3, late=0)
    assert set(made.tables) == {"log", "items", "history"}
    assert set(made.inputs) <= set(SCHEMA.names)
    asked = random_rows(rng, 4, (20, 22))
    online = Online.load(tmp_path / "events")
    equal(online.features(asked), batch(fs, asked, log.slice(0, 60), past.slice(0, 30)))
    online.observe(log.slice(60), "log")
    online.snapshot()
    online.observe(past.slice(30))
    equal(online.features(asked), batch(fs, asked, log, past))
    online.close()
    assert len([*(tmp_path / "events").glob("*.log"), *(tmp_path / "events").glob("*.arrow")]) == 2  # others are gone
    again = Online.load(tmp_path / "events", fs)
    assert (again.observed("log"), again.observed()) == (80, 40)
    equal(again.features(asked), batch(fs, asked, log, past))
    again.close()


def test_a_state_of_other_features_is_refused(tmp_path: Path) -> None:
    own, other = (fitted([History(by, order="t", table="log", name="h")]) for by in ("item", "user"))
    write_online_state(tmp_path / "events", own, {"log": random_rows(np.random.default_rng(0), 9, (0, 5))})
    with pytest.raises(UnreadableFileError, match="other features"):
        Online.load(tmp_path / "events", other)
    with pytest.raises(MissingFileError):
        Online.load(tmp_path / "nothing", other)
    Online.load(tmp_path / "events", own).close()
