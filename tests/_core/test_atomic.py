from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fastrec._core.atomic import atomic_file, atomic_folder
from fastrec.errors import FastrecError, MissingFileError, SubmissionError, WriteError
from tests.fresh import run, start


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


def test_a_file_is_made_with_its_folders(tmp_path):
    with atomic_file(tmp_path / "a" / "b" / "x.csv") as part:
        assert part.parent == tmp_path / "a" / "b"
        part.write_text("new")
    assert (tmp_path / "a" / "b" / "x.csv").read_text() == "new"
    assert names(tmp_path) == ["a", "b", "x.csv"]


def test_the_old_file_stands_until_the_block_ends(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")
    with atomic_file(str(path)) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


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


def test_a_folder_replaces_a_folder_whole(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").write_text("old")
    with atomic_folder(path) as part:
        (part / "deep").mkdir()
        (part / "deep" / "new").write_text("new")
    assert names(tmp_path) == ["deep", "new", "run"]


@pytest.mark.parametrize("which", [1, 2])
def test_ctrl_c_between_the_renames_brings_the_old_folder_back(tmp_path, monkeypatch, which):
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").write_text("old")
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


def test_a_real_ctrl_c_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")
    code = f"""
        import time
        from fastrec._core.atomic import atomic_file
        with atomic_file({str(path)!r}) as part:
            part.write_text("half")
            print("ready", flush=True)
            time.sleep(600)
    """
    child = start(code)
    assert child.stdout.readline().strip() == "ready"
    assert len(names(tmp_path)) == 2
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert names(tmp_path) == ["x.csv"]
    assert path.read_text() == "old"


LIMITED = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""


def test_a_full_disk_is_named_and_the_old_file_stands(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")
    said = run(
        LIMITED
        + f"""
    from fastrec.errors import WriteError
    from fastrec._core.atomic import atomic_file
    try:
        with atomic_file({str(path)!r}) as part:
            part.write_bytes(bytes(1_000_000))
    except WriteError as error:
        print(error)
    """
    )
    assert str(path) in said
    assert "could not be written" in said
    assert names(tmp_path) == ["x.csv"]
    assert path.read_text() == "old"


def test_a_full_disk_in_any_writer_leaves_the_old_folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in ("old", "state.json"):
        (path / name).write_text("old")
    said = run(
        LIMITED
        + f"""
    import numpy, pyarrow, pyarrow.csv, pyarrow.parquet, torch
    from fastrec.errors import WriteError
    from fastrec._core.atomic import atomic_folder
    from fastrec.table import save_state
    table = pyarrow.table({{"x": numpy.random.default_rng(0).random(100_000)}})
    writers = {{
        "parquet": lambda part: pyarrow.parquet.write_table(table, part / "x.parquet"),
        "csv": lambda part: pyarrow.csv.write_csv(table, part / "x.csv"),
        "text": lambda part: (part / "x.txt").write_text("x" * 1_000_000),
        "state": lambda part: save_state(part / "state", {{"x": torch.rand(100_000)}}),
    }}
    for name, write in writers.items():
        try:
            with atomic_folder({str(path)!r}) as part:
                (part / "first").write_text("fits")
                write(part)
        except WriteError as error:
            print(name, error)
    try:
        save_state({str(path)!r}, {{"x": torch.rand(100_000)}})
    except WriteError as error:
        print("alone", error)
    """
    )
    lines = said.splitlines()
    assert [line.split()[0] for line in lines] == ["parquet", "csv", "text", "state", "alone"]
    assert all(str(path) in line and "could not be written" in line and ".part" not in line for line in lines), lines
    assert names(tmp_path) == ["old", "run", "state.json"]


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


def test_an_error_about_a_file_in_the_block_names_it_as_it_would_be_called(tmp_path):
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


def test_long_names_fit(tmp_path):
    name = "x" * 250 + ".csv"
    with atomic_file(tmp_path / name) as part:
        part.write_text("x")
    assert names(tmp_path) == [name]
