"""Stores: what was acknowledged is there after a crash, a torn end is cut off, damage is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fastrec.errors import DataError, DataWarning, MissingFileError, UnreadableFileError
from fastrec.features import CumCount, FeatureSet, History
from fastrec.serve import MemoryStore, Online, write_online_state
from tests.serve.online_frames import ITEMS, SCHEMA, batch, equal, fitted, from_log, from_rows, random_rows

ASKED = pa.table({"user": ["u", "v", "?"], "item": ["a", "b", "a"], "t": [99] * 3}).cast(pa.schema(list(SCHEMA)[:3]))


def small(late: int = 0) -> FeatureSet:
    return fitted([History("item", order="t", table="log", stats="count", sums="x", values="kind", name="h")])


def rows_of(online: Online) -> list[dict]:
    return online.features(ASKED).to_pylist()


def kept(folder: Path, *keys: bytes) -> list[bytes | None]:
    """What a store of this folder says when it is opened again."""
    store = MemoryStore(folder)
    values = store.get(keys)
    store.close()
    return values


# The log of a folder -------------------------------------------------------------------------------------------------


def test_what_was_observed_is_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    fs, rng = small(), np.random.default_rng(0)
    log = random_rows(rng, 200, (0, 50))
    online = Online(fs, store=MemoryStore(tmp_path / "s"), tables={"log": SCHEMA}, keep=4, late=0)
    for start in range(0, 200, 7):
        online.observe(log.slice(start, 7), "log")
        if start in (70, 140):
            online.snapshot()
    online.close()
    again = Online(fs, store=MemoryStore(tmp_path / "s"), keep=4, late=0)
    assert again.observed("log") == 200
    equal(again.features(ASKED), batch(fs, ASKED, log, None))
    again.close()
    assert len(list((tmp_path / "s").glob("*.log"))) == 1  # those before the snapshot are gone
    assert len(list((tmp_path / "s").glob("*.arrow"))) == 1


@pytest.mark.parametrize("cut", [1, 5, 9, 40])
def test_a_torn_end_is_cut_off_and_the_log_goes_on(tmp_path: Path, cut: int) -> None:
    store = MemoryStore(tmp_path)
    for i in range(5):
        store.write({b"k": b"%d" % i * 40}, {})
    whole = (tmp_path / "events-000000000000.log").stat().st_size
    store.close()
    os.truncate(tmp_path / "events-000000000000.log", whole - cut)
    with pytest.warns(DataWarning, match="cut short"):
        store = MemoryStore(tmp_path)
    assert store.get([b"k"]) == [b"".join(b"%d" % i * 40 for i in range(4))]
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


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    for i in range(5):
        store.write({b"k": b"%d" % i * 40}, {})
    store.close()
    path = tmp_path / "events-000000000000.log"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableFileError, match="damaged"):
        MemoryStore(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "events-000000000000.log").write_bytes(b"something else altogether")
    with pytest.raises(UnreadableFileError, match="no log"):
        MemoryStore(tmp_path)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / "snapshot-000000000001.arrow").write_bytes(b"something else altogether")
    with pytest.raises(UnreadableFileError, match="snapshot"):
        MemoryStore(tmp_path)


def test_a_crash_between_snapshot_and_new_log_loses_nothing(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "a")
    store.write({b"k": b"1"}, {})
    shutil.copy(tmp_path / "a" / "events-000000000000.log", tmp_path / "old")
    store.snapshot()
    store.write({b"k": b"2"}, {})
    store.close()
    shutil.copy(tmp_path / "old", tmp_path / "a" / "events-000000000000.log")  # the old log was not removed yet
    assert kept(tmp_path / "a", b"k") == [b"12"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    with pytest.raises(DataError, match="another process"):
        MemoryStore(tmp_path)
    store.close()
    MemoryStore(tmp_path).close()


def test_threads_share_the_log(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)

    def work(name: bytes) -> None:
        for _ in range(50):
            store.write({name: b"x", b"all": b"y"}, {})

    threads = [threading.Thread(target=work, args=(b"%d" % i,)) for i in range(4)]
    for t in threads:
        t.start()
    store.snapshot()
    for t in threads:
        t.join()
    store.close()
    assert [len(v) for v in kept(tmp_path, b"0", b"1", b"2", b"3", b"all")] == [50, 50, 50, 50, 200]


# Killed --------------------------------------------------------------------------------------------------------------

CHILD = """
import sys, numpy as np
from fastrec.serve import MemoryStore, Online
from tests.serve.online_frames import random_rows, SCHEMA
from tests.serve.test_online_store import small
log = random_rows(np.random.default_rng(1), 30000, (0, 500))
online = Online(small(), store=MemoryStore(sys.argv[1]), tables={"log": SCHEMA}, keep=4, late=0)
place = online.observed("log")
while place < len(log):
    place += online.observe(log.slice(place, 3), "log")
    print(place, flush=True)
    if place % 7 == 0:
        online.snapshot()
"""


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Three processes, each of which takes seconds to start."""
    fs, acknowledged = small(), 0
    log = random_rows(np.random.default_rng(1), 30000, (0, 500))
    for pause in (0.02, 0.3, 0.1):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline()]
            time.sleep(pause)
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.read().splitlines()
        assert child.returncode == -signal.SIGKILL
        told = [int(n) for n in lines if n.strip().isdigit()]
        assert told
        before, acknowledged = acknowledged, told[-1]
        online = Online(fs, store=MemoryStore(tmp_path / "s"), tables={"log": SCHEMA}, keep=4, late=0)
        stored = online.observed("log")
        assert stored in (acknowledged, acknowledged + 3)
        assert acknowledged > before
        asked = ASKED.set_column(2, "t", pa.array([1000] * 3))
        equal(online.features(asked), batch(fs, asked, log.slice(0, stored), None))
        online.close()
        acknowledged = stored


def test_in_memory_and_in_a_folder_stores_do_the_same(tmp_path: Path) -> None:
    for store in (MemoryStore(), MemoryStore(tmp_path / "store")):
        assert store.write({b"a": b"12", b"b": b"3"}, {b"s": b"set"}) == {b"a": 2, b"b": 1}
        assert store.write({b"a": b"45"}, {b"s": b"again"}) == {b"a": 4}
        assert store.get([b"a", b"none", b"b", b"s"]) == [b"1245", None, b"3", b"again"]
        assert store.get([]) == []
        assert store.replace(b"a", b"12", b"x", {b"base": b"y"})
        assert not store.replace(b"a", b"12", b"z", {b"base": b"n"})
        assert store.get([b"a", b"base"]) == [b"x45", b"y"]
        assert store.first(b"f", b"one") == b"one"
        assert store.first(b"f", b"two") == b"one"
        assert [store.count(b"n", 3), store.count(b"n", 2), store.count(b"n", 0)] == [0, 3, 5]
        store.close()


# Folders of state ----------------------------------------------------------------------------------------------------


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
    online.observe(past.slice(30))
    equal(online.features(asked), batch(fs, asked, log, past))
    online.close()
    again = Online.load(tmp_path / "events", fs)
    assert (again.observed("log"), again.observed()) == (80, 40)
    equal(again.features(asked), batch(fs, asked, log, past))
    again.close()


def test_a_state_of_other_features_is_refused(tmp_path: Path) -> None:
    write_online_state(tmp_path / "events", small(), {"log": random_rows(np.random.default_rng(0), 9, (0, 5))})
    other = fitted([History("user", order="t", table="log", name="h")])
    with pytest.raises(UnreadableFileError, match="other features"):
        Online.load(tmp_path / "events", other)
    with pytest.raises(MissingFileError):
        Online.load(tmp_path / "nothing", other)
    Online.load(tmp_path / "events", small()).close()


def test_without_history_rows_see_each_other_only() -> None:
    fs = fitted([CumCount("user", order="t")])
    online = Online(fs, history=False)
    assert online.tables == {}
    assert online.features({"user": ["u", "u"], "t": [1, 2]}).to_pydict() == {"cumcount_user": [0, 1]}
