from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from fastrec._core import atomic
from fastrec._core.atomic import atomic_file, atomic_folder
from fastrec.errors import FastrecError, MissingFileError, SubmissionError, WriteError
from fastrec.features import CountEncode, FeatureCache, FeatureSet
from fastrec.table import load_state, save_state
from fastrec.training.checkpoint import _replace
from tests._core.refusals import refused
from tests.fresh import Forked, run, start


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_is_made_with_its_folders_and_the_old_one_stands_until_the_block_ends(tmp_path):
    path = tmp_path / "a" / "b" / ("x" * 250 + ".csv")  # a long name fits
    for old, new in ((None, "old"), ("old", "new")):
        with atomic_file(str(path)) as part:
            assert part.parent == path.parent
            part.write_text(new)
            assert (path.read_text() if path.exists() else None) == old
        assert path.read_text() == new
        assert names(tmp_path) == ["a", "b", path.name]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_a_block_that_fails_leaves_what_was_there(tmp_path, error, write):
    path = tmp_path / "x"
    old = path if write is atomic_file else path / "old"
    old.parent.mkdir(exist_ok=True)
    old.write_text("old")
    before = names(tmp_path)

    def fail(part: Path) -> None:
        (part / "half" if part.is_dir() else part).write_text("half")
        raise error

    with pytest.raises(error), write(path) as part:
        fail(part)
    assert names(tmp_path) == before
    assert old.read_text() == "old"


def old_folder(tmp_path: Path, *others: str) -> Path:
    (tmp_path / "run").mkdir()
    for name in ("old", *others):
        (tmp_path / "run" / name).write_text("old")
    return tmp_path / "run"


@pytest.mark.parametrize("which", [1, 2])
def test_ctrl_c_between_the_renames_brings_the_old_folder_back(tmp_path, monkeypatch, which):
    path = old_folder(tmp_path)
    rename, calls = os.rename, []

    def interrupted(a, b):
        rename(a, b) if len(calls) + 1 != which or which == 1 else None
        calls.append(a)
        if len(calls) == which:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as part:
        (part / "new").write_text("new")
    assert names(tmp_path) == ["old", "run"]


def test_a_full_disk_in_any_writer_leaves_the_old_folder(tmp_path):
    path = old_folder(tmp_path, "state.json")
    (tmp_path / "x.csv").write_text("old")
    said = run(
        f"""
    import resource
    from contextlib import nullcontext
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    import numpy, pyarrow, pyarrow.parquet, torch
    from fastrec.errors import WriteError
    from fastrec._core.atomic import atomic_file, atomic_folder
    from fastrec.table import save_state
    table = pyarrow.table({{"x": numpy.random.default_rng(0).random(100_000)}})
    writers = {{
        "parquet": (atomic_folder, lambda part: pyarrow.parquet.write_table(table, part / "x.parquet")),
        "state": (atomic_folder, lambda part: save_state(part / "state", {{"x": torch.rand(100_000)}})),
        "alone": (nullcontext, lambda path: save_state(path, {{"x": torch.rand(100_000)}})),
        "file": (atomic_file, lambda part: part.write_bytes(bytes(1_000_000))),
    }}
    for name, (within, write) in writers.items():
        try:
            with within({str(tmp_path / "x.csv")!r} if name == "file" else {str(path)!r}) as part:
                write(part)
        except WriteError as error:
            print(name, error)
    """
    )
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert list(lines) == ["parquet", "state", "alone", "file"]
    for writer, line in lines.items():
        assert str(tmp_path / "x.csv" if writer == "file" else path) in line
        assert "could not be written" in line
        assert ".part" not in line
    assert names(tmp_path) == ["old", "run", "state.json", "x.csv"]
    assert (tmp_path / "x.csv").read_text() == "old"


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (atomic_file, atomic_folder):
        with pytest.raises(WriteError, match="could not be written") as caught, write(tmp_path / "file" / "x"):
            pytest.fail("the block must not run")
        assert caught.value.file == str(tmp_path / "file" / "x")
    with pytest.raises(WriteError), atomic_file(tmp_path) as part:
        part.write_text("a file in a folder's place")


def test_a_missing_input_in_the_block_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_file(tmp_path / "out"):
        (tmp_path / "input").read_text()
    assert not isinstance(caught.value, FastrecError)
    with pytest.raises(MissingFileError), atomic_folder(tmp_path / "out"):
        raise MissingFileError("there is no such file", file="input")
    assert names(tmp_path) == []
    # An error about a file in the block names it as it would be called.
    with pytest.raises(SubmissionError, match="stands twice") as caught, atomic_folder(tmp_path / "run") as part:
        raise SubmissionError("it stands twice", file=part / "submission.csv", column="id", row=3, remedy="Keep one")
    assert (caught.value.file, caught.value.row) == (str(tmp_path / "run" / "submission.csv"), 3)
    assert ".part" not in str(caught.value)


def test_permissions_follow_the_umask_and_the_old_file(tmp_path):
    said = run(
        """
    import os
    os.umask(0o027)
    from fastrec._core.atomic import atomic_file, atomic_folder
    for _ in range(2):
        with atomic_file("new") as part:
            part.write_text("x")
        with atomic_folder("run") as part:
            (part / "x").write_text("x")
        print(oct(os.stat("new").st_mode & 0o777), oct(os.stat("run").st_mode & 0o777))
        os.chmod("new", 0o600)
    """,
        cwd=tmp_path,
    )
    assert said.split() == ["0o640", "0o750", "0o600", "0o750"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x").write_text("old")
    (tmp_path / "x").symlink_to(tmp_path / "far" / "x")
    (tmp_path / "run").symlink_to(tmp_path / "far")
    with atomic_file(tmp_path / "x") as part:
        part.write_text("new")
    assert (tmp_path / "x").is_symlink()
    assert (tmp_path / "far" / "x").read_text() == "new"
    with atomic_folder(tmp_path / "run") as part:
        (part / "y").write_text("y")
    assert (tmp_path / "run").is_symlink()
    assert names(tmp_path / "far") == ["y"]


# Writers that are killed outright: the old result or the new one stands, and the next writer clears up

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no flock")


HALF = """
import sys, time
from pathlib import Path
from fastrec._core.atomic import atomic_file, atomic_folder
with {writer}(sys.argv[1]) as part:
    Path(part / "x" if part.is_dir() else part).write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def half_written(writer: str, path: Path) -> Forked:
    child = start(HALF.format(writer=writer), path)
    assert child.stdout.readline() == "ready\n"
    return child


def kill(*children: Forked) -> None:
    for child in children:
        with child:
            child.kill()


def write(writer: str, path: Path, text: str) -> None:
    with getattr(atomic, writer)(path) as part:
        (part / "x" if part.is_dir() else part).write_text(text)


@linux
@pytest.mark.parametrize("writer", ["atomic_file", "atomic_folder"])
def test_the_next_writer_of_a_path_removes_what_a_killed_one_left_and_nothing_else(writer, tmp_path):
    path = tmp_path / "a.b"
    write(writer, path, "old")
    mine = [".a.b.notes.part", ".a.b.0123456789ab.part", ".a.b", "a.b.part"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    killed = [half_written(writer, tmp_path / name) for name in ("a.b", "a", "a.b.c")]
    lives = half_written(writer, path)
    try:
        kill(*killed)
        assert len(entries(tmp_path)) == 9
        write(writer, path, "new")
        left = [atomic._HIDDEN.fullmatch(n) for n in entries(tmp_path) if n not in [*mine, "a.b"]]
        assert sorted(m["name"] for m in left) == ["a", "a.b", "a.b.c"]
        assert (path / "x" if path.is_dir() else path).read_text() == "new"
    finally:
        kill(lives)
    for name in ("a", "a.b", "a.b.c"):
        write(writer, tmp_path / name, "new")
    assert entries(tmp_path) == sorted([*mine, "a", "a.b", "a.b.c"])


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
        atomic.recover(path)
        found = {int((path / name).read_text()) for name in "abcdef"}
        assert len(found) == 1
        assert found.pop() - told[-1] in (0, 1)
    write("atomic_folder", path, "last")
    assert entries(tmp_path) == ["run"]


BETWEEN = """
import os, signal, sys
from fastrec._core import atomic
rename = os.rename
def killing(a, b):
    rename(a, b)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = killing
with atomic.atomic_folder(sys.argv[1]) as part:
    (part / "x").write_text("new")
print("lives", flush=True)
"""


def killed_between(path: Path) -> None:
    child = start(BETWEEN, path)
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
    atomic.remove_leftovers(tmp_path)
    assert path.exists() == (name == "run")  # of the others the name is not in the hidden one
    atomic.recover(path)
    assert (path / "x").read_text() == "old"
    killed_between(path)
    with pytest.raises(ZeroDivisionError), atomic_folder(path):
        _ = 1 / 0
    assert (path / "x").read_text() == "old"
    killed_between(path)
    write("atomic_folder", path, "newer")
    assert (path / "x").read_text() == "newer"
    assert entries(tmp_path) == [name]


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
def test_a_file_system_without_locks_is_cleared_up_after_a_day(tmp_path, monkeypatch):
    def refused(file: int, kind: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(atomic.fcntl, "flock", refused)
    young, old = (atomic.hidden_beside(tmp_path / "x", "part") for _ in range(2))
    for path, age in ((young, 3600), (old, 90_000)):
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    write("atomic_file", tmp_path / "x", "whole")
    assert entries(tmp_path) == sorted(["x", young.name])


def test_a_folder_takes_the_place_of_a_file_and_of_a_folder_that_came_between(tmp_path):
    (tmp_path / "file").write_text("old")
    write("atomic_folder", tmp_path / "file", "new")
    with atomic_folder(tmp_path / "run") as outer:
        (outer / "x").write_text("outer")
        write("atomic_folder", tmp_path / "run", "inner")
    assert names(tmp_path) == ["file", "run", "x", "x"]
    assert (tmp_path / "file" / "x").read_text() == "new"
    assert (tmp_path / "run" / "x").read_text() == "outer"


def test_a_reader_that_puts_the_old_folder_back_between_the_renames_hinders_no_writer(tmp_path, monkeypatch):
    path, rename = tmp_path / "run", os.rename
    write("atomic_folder", path, "old")

    def late(a, b):
        rename(a, b)
        if a == path:
            monkeypatch.undo()
            atomic.recover(path)
            assert (path / "x").read_text() == "old"

    monkeypatch.setattr(os, "rename", late)
    write("atomic_folder", path, "new")
    assert (path / "x").read_text() == "new"
    assert entries(tmp_path) == ["run"]


@linux
def test_checkpoints_and_caches_clear_up_under_every_name(tmp_path):
    kill(half_written("atomic_folder", tmp_path / "ck" / "last-000001"))
    lives = half_written("atomic_folder", tmp_path / "ck" / "last-000002")
    kill(half_written("atomic_folder", tmp_path / "cache" / "ab" / ("ab" + "0" * 30)))
    try:
        _replace(tmp_path / "ck", "last", {"epoch": 0})
        assert len(entries(tmp_path / "ck")) == 2, "of one that still writes nothing is taken away"
    finally:
        kill(lives)
    _replace(tmp_path / "ck", "last", {"epoch": 1})
    assert entries(tmp_path / "ck") == ["last-000002"]
    FeatureCache(tmp_path / "cache").put("cd" + "0" * 30, {"x": torch.arange(3)})
    assert entries(tmp_path / "cache" / "ab") == []


HOLDER = """
import sys, time
from pathlib import Path
from fastrec._core.atomic import alone_at
with alone_at(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_alone_writes_to_a_place(tmp_path):
    pytest.importorskip("fcntl")
    place, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(place)
    with start(HOLDER, place) as other:
        assert other.stdout.readline() == "held\n"
        for way in (place, link, tmp_path / "." / "run"):
            refused(WriteError, "another process is writing here", atomic.alone_at(way).__enter__)
        with atomic.alone_at(tmp_path / "elsewhere"):
            pass
        other.kill()  # the kernel gives its lock back
        other.wait()
        with atomic.alone_at(place), pytest.raises(WriteError), atomic.alone_at(place):
            pass
    assert entries(tmp_path) == ["link"]
    (tmp_path / ".run.lock").mkdir()
    refused(WriteError, r"run\.lock.*no lock can be had.*Remove that file", atomic.alone_at(place).__enter__)
    below = tmp_path / "file" / "x"
    below.parent.touch()
    refused(WriteError, r"no lock can be had.*\. Choose another place", atomic.alone_at(below).__enter__)
