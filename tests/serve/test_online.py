"""``Online``: features served from events equal those of the batch, event by event."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from competitions.trivago2019.competition import Trivago2019
from competitions.trivago2019.simulate import simulate
from fastrec.errors import DataError, DataWarning, MissingColumnError
from fastrec.features import (
    CoVisit,
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
from fastrec.serve import Online
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    which=st.lists(st.integers(0, len(EVERY) - 1), min_size=1, max_size=6),
    seed=st.integers(0, 2**20),
    keep=st.integers(1, 6),
    late=st.integers(0, 3),
)
def test_any_features_equal_the_batch(which: list[int], seed: int, keep: int, late: int) -> None:
    assert replay(chosen(which), seed, keep=keep, late=late, steps=6) == 6


@pytest.mark.parametrize("i", range(len(EVERY)), ids=[repr(f)[:40] for f in EVERY])
def test_each_generator_equals_the_batch(i: int) -> None:
    assert replay(chosen([i]), i, keep=2, late=1, steps=12) == 12


def test_groups_of_two_kinds_do_not_disturb_each_other() -> None:
    """Rows that one generator has folded and another still reads are counted once."""
    mean = CumStat("x", by="item", order="t", stats=["mean"])
    for seed in range(3):
        assert replay([CumCount("user", order="t"), CumCount("item"), mean], seed, keep=2, late=1, steps=12) == 12


def test_of_items_at_one_time_co_visits_order_decides() -> None:
    fs = fitted([CoVisit("item", by="user", order="t", table="log", last=2)])
    online = Online(fs, tables={"log": SCHEMA}, keep=2, late=0)
    log = pa.table({"user": ["u"] * 9, "item": ["c", "b", "a", "a", *"aaaaa"], "t": [1, 1, 1, 1, 9, 9, 9, 9, 9]})
    asked = pa.table({"user": ["u"] * 3, "item": ["a", "b", "c"], "t": [9, 9, 9]})
    for seen in (4, 9):  # with the later ones the first four are old
        online.observe(log.slice(0, 4) if seen == 4 else log.slice(4), "log")
        equal(online.features(asked), fs.transform(asked, tables={"log": log.slice(0, seen)}))


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
    with pytest.raises(DataError, match="older than events"):
        online.features({"item": ["a"], "t": pa.array([16 * unit - 1]).cast(kind)})


def test_cum_target_is_that_of_training() -> None:
    rows = pa.table({"item": ["a", "b"], "t": [1, 2], "y": [1.0, 0.0]})
    fs = FeatureSet([CumTarget("item", "y", order="t")], keep="outputs").fit(rows)
    online = Online(fs, outputs=fs.outputs)
    equal(online.features(rows), fs.transform(rows))


def test_late_events_count_and_late_requests_are_refused() -> None:
    fs = fitted([History("item", order="t", table="log", stats=["count", "since_first"], sums="x", name="h")])
    log = pa.table({"item": ["a"] * 20, "t": list(range(20)), "x": [1.0] * 20})
    online = Online(fs, tables={"log": log}, keep=4, late=3)
    online.observe(log, "log")
    asked = {"item": ["a", "a", "b"], "t": [16, 30, 0]}
    assert online.features(asked)["h_count"].to_pylist() == [16, 20, 0]
    with pytest.raises(DataError, match=r"(?s)row 1.*older than events that were folded.*late="):
        online.features({"item": ["b", "a"], "t": [16, 15]})
    online.observe({"item": ["a"], "t": [-5], "x": [0.5]}, "log")
    made = online.features(asked).to_pydict()
    assert (made["h_count"], made["h_sum_x"], made["h_since_first"][:2]) == ([17, 21, 0], [16.5, 20.5, 0], [21, 35])


def test_a_popular_key_keeps_few_events() -> None:
    fs = fitted([History("item", order="t", table="log", stats=["count", "since"], sums="x", name="h")])
    online = Online(fs, tables={"log": SCHEMA}, keep=16, late=5)
    for start in range(0, 5000, 50):
        rows = pa.table({"item": ["a"] * 50, "t": list(range(start, start + 50)), "x": [1.0] * 50})
        online.observe(rows, "log")
    assert online.store.nbytes() < 3000
    wanted = {"h_count": 5000, "h_since": 1.0, "h_sum_x": 5000.0}
    assert online.features({"item": ["a"], "t": [5000]}).to_pylist() == [wanted]


def test_a_window_keeps_what_it_needs() -> None:
    fs = fitted([Rolling("x", "sum", by="item", order="t", window="7s")])
    online = Online(fs, tables={"history": SCHEMA}, keep=4, late=2)
    for t in range(200):
        online.observe({"item": ["a"], "t": [t], "x": [float(t)]})
    assert online.store.nbytes() < 60 * 25 + 300
    asked = {"item": ["a", "a"], "t": [200, 197], "x": [0.0, 0.0]}
    made = online.features({n: v[:1] for n, v in asked.items()})
    assert made.column(0).to_pylist() == [sum(range(193, 200))]
    made = online.features({n: v[1:] for n, v in asked.items()})
    assert made.column(0).to_pylist() == [sum(range(190, 197))]


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
    """A generator that does not say where its events are."""

    sources, outputs, within = ("user",), ("odd",), None

    def __init__(self) -> None: ...

    def compute(self, table: Table, context: Context) -> dict[str, Column]:
        return {"odd": Column("number", torch.zeros(len(table)), name="odd")}


def test_what_cannot_be_served_is_refused_by_name() -> None:
    cross = Cross("user", "item")
    grouped = Lag("x", by=cross.outputs[0], order="t")
    for features, says in (
        (FeatureSet([Odd()]), r"Odd \(odd\) cannot be served"),
        (fitted([cross, grouped]), r"Lag \(.*\) cannot be served: its groups are of a column that Cross makes"),
        (FeatureSet([History("user", order="t", table="history")]), r"History \(.*\) .* its table has the name"),
    ):
        with pytest.raises(DataError, match=says):
            Online(features)
    with pytest.raises(DataError, match="no such output"):
        Online(fitted([grouped.__class__("x", by="user", order="t")]), outputs=["other"])


def test_bad_events_and_requests_are_refused_by_column() -> None:
    fs = fitted([History("user", order="t", table="log", stats=["count"], values="x", name="h")])
    online = Online(fs)
    with pytest.raises(DataError, match="types of the events of 'log' are not known"):
        online.features({"user": ["u"], "t": [1]})
    with pytest.raises(DataError, match="no feature looks at events of 'other'"):
        online.observe({"user": ["u"]}, "other")
    with pytest.raises(MissingColumnError, match="'x'"):
        online.observe({"user": ["u"], "t": [1]}, "log")
    with pytest.raises(DataError, match="column 'x': table 'log': has no value in the first events"):
        online.observe({"user": ["u"], "t": [1], "x": [None]}, "log")
    online.observe({"user": ["u"], "t": [1], "x": [1.5]}, "log")
    for bad in ({"user": [1], "t": [1], "x": [1.5]}, {"user": ["u"], "t": ["1"], "x": [1.5]}):
        with pytest.raises(DataError, match="and the events before it"):
            online.observe(bad, "log")
    with pytest.raises(DataError, match="order value is missing"):
        online.observe({"user": ["u", "u"], "t": [1, None], "x": [1.5, 2]}, "log")
    with pytest.raises(DataError, match=r"column 'user'.*no text"):
        online.features({"user": [1], "t": [1]})
    with pytest.raises(DataError, match="times"):
        online.features({"user": ["u"], "t": pa.array([1], pa.timestamp("s"))})
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


def test_rows_with_targets_feed_lags_of_the_target() -> None:
    lag = Lag("sold", by="user", order="t")
    train = pa.table({"user": ["u", "v"], "t": [1, 1], "sold": [3.0, 4.0]})
    fs = FeatureSet([lag], target="sold", keep="outputs").fit(train)
    online = Online(fs)
    online.observe(train)
    asked = pa.table({"user": ["u", "v", "w"], "t": [2, 2, 2]})
    equal(online.features(asked), fs.transform(asked, history=train))
    assert online.features(asked).column(0).to_pylist()[:2] == [3.0, 4.0]


def test_requests_and_events_at_the_same_time() -> None:
    fs = fitted([*from_log(), *from_rows()])
    online = Online(fs, tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA}, keep=2, late=0)
    online.observe(ITEMS, "items")
    rng = np.random.default_rng(3)
    log, past, asked = (random_rows(rng, n, times) for n, times in ((90, (0, 30)), (60, (0, 30)), (5, (30, 33))))
    wrong: list[BaseException] = []

    def watched(do: Callable[[], object]) -> Thread:
        def work() -> None:
            try:
                do()
            except BaseException as error:
                wrong.append(error)

        return Thread(target=work)

    threads = [
        watched(lambda: [online.observe(log.slice(i, 3), "log") for i in range(0, 90, 3)]),
        watched(lambda: [online.observe(past.slice(i, 3)) for i in range(0, 60, 3)]),
        watched(lambda: [online.features(asked) for _ in range(8)]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    equal(online.features(asked), batch(fs, asked, log, past))


def test_no_rows_and_no_events() -> None:
    fs = fitted([*from_log(), *from_rows()])
    online = Online(fs, tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA})
    asked = random_rows(np.random.default_rng(0), 3, (0, 5))
    assert online.observe(SCHEMA.empty_table(), "log") == 0
    assert online.features(asked.slice(0, 0)).num_rows == 0
    assert online.features(asked)["of_item_count"].to_pylist() == [0, 0, 0]


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


LOGS = ["log", "touches", "shown", "clicked"]


def load(folder: Path) -> tuple[FeatureSet, Table, dict[str, Table]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = Trivago2019().load(folder, rows=None, device=torch.device("cpu"))
    features = Trivago2019().features()
    features.keep = "outputs"
    features.fit(data.train, tables=data.tables, unlabeled=data.test)
    return features, data.test, data.tables


def replay_lists(features: FeatureSet, lists: Table, tables: dict[str, Table], count: int, **options: object) -> None:
    """The events in order of time, those of the asking session one by one, and every list when its turn comes."""
    online = Online(features, tables=tables, history=False, outputs=features.outputs, **options)
    items = {n: t for n, t in tables.items() if n == "items"}  # the real files lack it
    for name, table in items.items():
        online.observe(table, name)
    number, time = lists["list_id"].integer(), lists["timestamp"].integer()
    asked = [int(i) for i in torch.unique(number)]
    asked = sorted(asked, key=lambda i: int(time[number == i][0]))[:: max(len(asked) // count, 1)]
    times = {n: tables[n]["timestamp"].integer().numpy() for n in LOGS}
    waiting = {n: np.argsort(t, kind="stable") for n, t in times.items()}
    seen: dict[str, list[int]] = {n: [] for n in LOGS}
    for i in asked:
        rows = lists.take(number == i)
        now, session = int(time[number == i][0]), rows["session_id"].to_arrow()[0].as_py()
        for name in LOGS:  # events at the list's own time are there already, and must not be seen
            due = waiting[name][: np.searchsorted(times[name][waiting[name]], now, side="right")]
            waiting[name] = waiting[name][len(due) :]
            own = np.array([s == session for s in tables[name]["session_id"].to_arrow().take(due).to_pylist()], bool)
            parts = [due[~own], *(due[k : k + 1] for k in np.flatnonzero(own))]
            for part in parts:
                online.observe(tables[name].take(torch.from_numpy(part)), name)
                seen[name] += part.tolist()
        given = {n: tables[n].take(torch.tensor(seen[n], dtype=torch.int64)) for n in LOGS}
        want = features.transform(rows, tables={**given, **items})
        equal(online.features(rows), want.to_arrow())
    assert online.observed("touches") > 0


def test_simulated_lists_get_the_features_of_the_batch(tmp_path: Path) -> None:
    simulate(100, tmp_path)
    replay_lists(*load(tmp_path), 12, keep=4, late=0)


def test_real_lists_get_the_features_of_the_batch(data_dir: Path) -> None:
    """Some seconds: the batch goes over the whole log for each list."""
    if not (data_dir / "trivago2019" / "train.csv").is_file():
        pytest.skip("no trivago files in FASTREC_DATA")
    replay_lists(*load(data_dir / "trivago2019"), 3)
