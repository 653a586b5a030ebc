"""Writers that are killed outright: the old result or the new one stands, and the next writer clears up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

import fastrec._core.atomic as files
from fastrec._core import leftovers
from fastrec._core.atomic import atomic_folder
from fastrec.errors import WriteError
from fastrec.features import CountEncode, FeatureCache, FeatureSet
from fastrec.table import load_state, save_state
from fastrec.training.checkpoint import _replace

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are told apart by /proc")


def start(code: str, *values: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, values)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


HALF = """
    import sys, time
    from pathlib import Path
    from fastrec._core.atomic import atomic_file, atomic_folder
    with {writer}(sys.argv[1]) as part:
        Path(part / "x" if part.is_dir() else part).write_text("half")
        print("ready", flush=True)
        time.sleep(60)
"""


def half_written(writer: str, path: Path) -> subprocess.Popen:
    child = start(HALF.format(writer=writer), path)
    assert child.stdout.readline() == "ready\n"
    return child


def kill(child: subprocess.Popen) -> None:
    child.kill()
    child.wait()
    child.stdout.close()


def write(writer: str, path: Path, text: str) -> None:
    with getattr(files, writer)(path) as part:
        (part / "x" if part.is_dir() else part).write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@linux
@pytest.mark.parametrize("writer", ["atomic_file", "atomic_folder"])
def test_the_next_writer_of_a_path_removes_what_a_killed_one_left_and_nothing_else(writer, tmp_path):
    path = tmp_path / "a.b"
    write(writer, path, "old")
    mine = [".a.b.notes.part", ".a.b.0123456789ab.part", ".a.b", "a.b.part"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    killed = [
        half_written(writer, path),
        half_written(writer, tmp_path / "a"),
        half_written(writer, tmp_path / "a.b.c"),
    ]
    lives = half_written(writer, path)
    try:
        for child in killed:
            kill(child)
        assert len(names(tmp_path)) == 9
        write(writer, path, "new")
        left = [leftovers._HIDDEN.fullmatch(n) for n in names(tmp_path) if n not in [*mine, "a.b"]]
        pids = {"a.b": lives.pid, "a": killed[1].pid, "a.b.c": killed[2].pid}
        assert {m["name"]: int(m["pid"]) for m in left} == pids
        assert (path / "x" if path.is_dir() else path).read_text() == "new"
    finally:
        kill(lives)
    for name in ("a", "a.b", "a.b.c"):
        write(writer, tmp_path / name, "new")
    assert names(tmp_path) == sorted([*mine, "a", "a.b", "a.b.c"])


COUNT = """
    import sys
    from itertools import count
    from fastrec._core.atomic import atomic_folder
    for k in count(int(sys.argv[2])):
        with atomic_folder(sys.argv[1]) as part:
            for name in "abcdef":
                (part / name).write_text(str(k))
        print(k, flush=True)
"""


@linux
def test_killed_at_any_moment_a_folder_is_of_one_write(tmp_path):
    path = tmp_path / "run"
    for k in range(10):
        child = start(COUNT, path, k * 1_000_000)
        child.stdout.readline()
        time.sleep(0.001 * 1.7**k)  # from 1 ms to 0.1 s after its first write
        child.send_signal(signal.SIGKILL)
        told = [int(line) for line in child.stdout.read().split()] or [k * 1_000_000]
        kill(child)
        found = {int((path / name).read_text()) for name in "abcdef"}
        assert len(found) == 1
        assert found.pop() - told[-1] in (0, 1)
    write("atomic_folder", path, "last")
    assert names(tmp_path) == ["run"]


BETWEEN = """
    import os, signal, sys
    from fastrec._core import atomic as files
    rename = os.rename
    def killing(a, b):
        rename(a, b)
        os.kill(os.getpid(), signal.SIGKILL)
    os.rename = killing
    if sys.argv[2] == "two":
        files._exchange = lambda one, other: False
    with files.atomic_folder(sys.argv[1]) as part:
        (part / "x").write_text("new")
    print("lives", flush=True)
"""


@linux
def test_a_folder_is_replaced_in_one_step_where_the_system_can(tmp_path):
    write("atomic_folder", tmp_path / "run", "old")
    if files._renameat2() is None:
        pytest.skip("this system exchanges nothing")
    child = start(BETWEEN, tmp_path / "run", "one")
    assert child.stdout.read() == "lives\n"
    kill(child)
    assert (tmp_path / "run" / "x").read_text() == "new"
    assert names(tmp_path) == ["run"]


def killed_between(path: Path) -> None:
    child = start(BETWEEN, path, "two")
    assert child.stdout.read() == ""
    kill(child)
    assert child.returncode == -signal.SIGKILL
    assert not path.exists()


@linux
@pytest.mark.parametrize("name", ["run", "x" * 150, "~" + "0" * 16])
def test_a_kill_between_two_renames_loses_nothing(name, tmp_path):
    path = tmp_path / name
    write("atomic_folder", path, "old")
    killed_between(path)
    leftovers.remove_leftovers(tmp_path)
    assert path.exists() == (name == "run")  # of the others the name is not in the hidden one
    leftovers.recover(path)
    assert (path / "x").read_text() == "old"
    killed_between(path)
    with pytest.raises(ZeroDivisionError), atomic_folder(path):
        _ = 1 / 0
    assert (path / "x").read_text() == "old"
    killed_between(path)
    write("atomic_folder", path, "newer")
    assert (path / "x").read_text() == "newer"
    assert names(tmp_path) == [name]


@linux
def test_readers_put_back_what_a_killed_writer_moved_away(tmp_path):
    features, df = FeatureSet([CountEncode("item")]), pd.DataFrame({"item": ["a", "a", "b"]})
    features.fit_transform(df)
    features.save(tmp_path / "set")
    save_state(tmp_path / "state", {"is": "old"})
    killed_between(tmp_path / "set")
    killed_between(tmp_path / "state")
    assert load_state(tmp_path / "state") == {"is": "old"}
    assert FeatureSet.load(tmp_path / "set").outputs == features.outputs


@linux
def test_only_who_is_surely_gone_is_cleared_up_after(tmp_path, monkeypatch):
    path = tmp_path / "x"
    mine = leftovers.hidden_beside(path, "part").name
    match = leftovers._HIDDEN.fullmatch(mine)
    boot, space, pid, began = (match[k] for k in ("boot", "space", "pid", "start"))

    def cleared(**other: str) -> bool:
        made = {"boot": boot, "space": space, "pid": pid, "start": began, **other}
        hidden = tmp_path / ".x.{boot}-{space}-{pid}-{start}-01234567.part".format(**made)
        hidden.write_text("half")
        write("atomic_file", path, "whole")
        gone = not hidden.exists()
        hidden.unlink(missing_ok=True)
        return gone

    child = start("pass")
    child.stdout.read()
    child.wait()
    child.stdout.close()
    assert not cleared()
    assert cleared(start=str(int(began) + 1))  # its number is another process's now
    assert cleared(pid=str(child.pid))
    assert not cleared(pid="1", start=leftovers._stat(1)[19])  # of another user, perhaps
    assert not cleared(pid=str(child.pid), space=str(int(space) + 1))  # another container counts for itself
    monkeypatch.setattr(leftovers, "_is_local", lambda folder: False)
    assert not cleared(boot="0" * 12)  # another machine, on a shared disk
    monkeypatch.setattr(leftovers, "_is_local", lambda folder: True)
    assert cleared(boot="0" * 12)  # this machine, before it was started anew
    monkeypatch.setattr(leftovers, "_this_process", lambda: "12")  # a system that tells nothing
    assert not cleared(pid=str(child.pid))
    assert names(tmp_path) == ["x"]


@linux
def test_a_process_that_ended_and_was_not_waited_for_is_gone(tmp_path):
    child = half_written("atomic_file", tmp_path / "x")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    write("atomic_file", tmp_path / "x", "whole")
    assert names(tmp_path) == ["x"]
    kill(child)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_takes_the_place_of_a_file_and_of_a_folder_that_came_between(at_once, tmp_path, monkeypatch):
    if not at_once:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    (tmp_path / "file").write_text("old")
    write("atomic_folder", tmp_path / "file", "new")
    with atomic_folder(tmp_path / "run") as outer:
        (outer / "x").write_text("outer")
        write("atomic_folder", tmp_path / "run", "inner")
    assert names(tmp_path) == ["file", "run"]
    assert (tmp_path / "file" / "x").read_text() == "new"
    assert (tmp_path / "run" / "x").read_text() == "outer"


def test_a_folder_that_appears_at_the_last_moment_is_replaced(tmp_path, monkeypatch):
    exists, asked = Path.exists, []

    def late(self, **options):
        asked.append(self)
        return False if self.name == "run" and len([a for a in asked if a.name == "run"]) == 1 else exists(self)

    write("atomic_folder", tmp_path / "run", "other")
    monkeypatch.setattr(Path, "exists", late)
    write("atomic_folder", tmp_path / "run", "mine")
    monkeypatch.undo()
    assert (tmp_path / "run" / "x").read_text() == "mine"
    assert names(tmp_path) == ["run"]


@linux
def test_checkpoints_and_caches_clear_up_under_every_name(tmp_path):
    kill(half_written("atomic_folder", tmp_path / "ck" / "last-000001"))
    lives = half_written("atomic_folder", tmp_path / "ck" / "last-000002")
    kill(half_written("atomic_folder", tmp_path / "cache" / "ab" / ("ab" + "0" * 30)))
    try:
        _replace(tmp_path / "ck", "last", {"epoch": 0})
        assert len(names(tmp_path / "ck")) == 2, "of one that still writes nothing is taken away"
    finally:
        kill(lives)
    _replace(tmp_path / "ck", "last", {"epoch": 1})
    assert names(tmp_path / "ck") == ["last-000002"]
    FeatureCache(tmp_path / "cache").put("cd" + "0" * 30, {"x": torch.arange(3)})
    assert names(tmp_path / "cache" / "ab") == []


HOLDER = """
import sys, time
from pathlib import Path
from fastrec._core.leftovers import alone_at
with alone_at(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_alone_writes_to_a_place(tmp_path):
    pytest.importorskip("fcntl")
    place, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(place)
    with subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for way in (place, link, tmp_path / "." / "run"):
            with pytest.raises(WriteError, match="another process is writing here"), leftovers.alone_at(way):
                pass
        with leftovers.alone_at(tmp_path / "elsewhere"):
            pass
        other.kill()  # the kernel gives its lock back
        other.wait()
        with leftovers.alone_at(place), pytest.raises(WriteError), leftovers.alone_at(place):
            pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link"]


def test_a_lock_that_cannot_be_opened_is_named(tmp_path):
    pytest.importorskip("fcntl")
    (tmp_path / ".run.lock").mkdir()
    with (
        pytest.raises(WriteError, match=r"run\.lock.*no lock can be had.*Remove that file"),
        leftovers.alone_at(tmp_path / "run"),
    ):
        pass
