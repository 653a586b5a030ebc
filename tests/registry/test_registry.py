import json
import os
import shutil
import time

import pytest

from fastrec.errors import DataError, MissingFileError, UnreadableFileError, WriteError
from fastrec.registry import Registry, is_registry
from tests.cli.test_cli import invoke
from tests.fresh import start


def make_run(folder, text):
    (folder / "models").mkdir(parents=True)
    (folder / "decision.json").write_text("{}")
    (folder / "models" / "a.bin").write_text(text)
    return folder


def make_export(folder, text="x"):
    folder.mkdir(parents=True)
    (folder / "serving.json").write_text("{}")
    (folder / "model.onnx").write_text(text)
    return folder


@pytest.fixture
def registry(tmp_path):
    found = Registry(tmp_path / "registry")
    for k in (1, 2):
        found.promote(make_run(tmp_path / f"run{k}", f"model {k}"), why=f"the {k}.")
    return found


def test_promote_and_roll_back(registry, tmp_path):
    def used():
        return registry.current.number, registry.previous.number

    assert used() == (2, 1)
    assert (registry.current.run / "models" / "a.bin").read_text() == "model 2"
    assert registry.current.export is None
    assert (registry.rollback(why="it was worse").number, used()) == (1, (1, 2))
    assert (registry.folder / "current" / "run" / "models" / "a.bin").read_text() == "model 1"
    assert registry.rollback().number == 2
    third = registry.promote(make_export(tmp_path / "export"))
    assert (third.number, third.run, (third.export / "model.onnx").read_text()) == (3, None, "x")
    assert (registry.promote(1).number, used()) == (1, (1, 3))
    assert [v.number for v in registry.versions] == [1, 2, 3]
    done = ["promoted", "promoted", "rolled back", "rolled back", "promoted", "promoted"]
    assert [r["what"] for r in registry.history] == done
    assert registry.history[2]["why"] == "it was worse"


def test_what_is_kept_of_each_version(registry, tmp_path):
    (tmp_path / "run2" / "models" / "a.bin").write_text("changed")  # a version is a copy
    assert (registry.current.run / "models" / "a.bin").read_text() == "model 2"
    registry.promote(2)  # the current one again
    assert registry.previous.number == 1
    registry.keep(why="worse by 0.1", about={"difference": -0.1})  # it was not promoted
    assert registry.current.number == 2
    last = json.loads((registry.folder / "registry.json").read_text())["history"][-1]
    assert (last["what"], last["why"], last["about"]) == ("kept", "worse by 0.1", {"difference": -0.1})
    made = registry.promote(make_run(tmp_path / "run", "a"), export=make_export(tmp_path / "e"))
    assert None not in (made.run, made.export)


def test_refusals(registry, tmp_path):
    empty, other = Registry(tmp_path / "empty"), Registry(tmp_path / "other")
    other.folder.mkdir()
    (other.folder / "thesis.txt").write_text("mine")
    run, file = tmp_path / "run1", tmp_path / "run2" / "decision.json"
    piped = make_run(tmp_path / "piped", "x")
    os.mkfifo(piped / "pipe")
    for call, error, says in (
        (lambda: empty.promote(tmp_path), DataError, "neither a run directory nor an export"),
        (lambda: empty.promote(7), DataError, "no version 7"),
        (lambda: registry.promote(run, export=tmp_path / "run2"), DataError, "no export"),
        (lambda: other.promote(run), WriteError, "not a registry"),
        (lambda: Registry(file).promote(run), WriteError, "could not be written"),
        (lambda: registry.promote(piped), WriteError, "could not be copied"),
    ):
        with pytest.raises(error, match=says):
            call()
    assert not empty.folder.exists()  # no folder is made for what is not there
    assert empty.current is None
    with pytest.raises(DataError, match="no version to go back to"):
        empty.rollback()
    assert registry.current.number == 2
    assert sorted(p.name for p in (registry.folder / "versions").iterdir()) == ["0001", "0002"]
    assert (is_registry(registry.folder), is_registry(tmp_path)) == (True, False)
    for text, says in (('{"format": 9}', "not a registry's"), ("{", None)):
        (registry.folder / "registry.json").write_text(text)
        with pytest.raises(UnreadableFileError, match=says):
            _ = registry.current


@pytest.mark.parametrize("inside", ["run", "export"])
def test_links_are_refused_wherever_they_point(registry, tmp_path, inside):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("s3cret")
    for target in (secret / "key", secret, tmp_path / "nothing"):
        run = make_run(tmp_path / f"r{target.name}", "a")
        export = make_export(run / "export")
        place = (export if inside == "export" else run / "models") / "link"
        place.symlink_to(target)
        with pytest.raises(DataError, match="this is a link"):
            registry.promote(run, export=export if inside == "export" else None)
    assert [v.number for v in registry.versions] == [1, 2]
    assert not [p for p in registry.folder.rglob("*") if p.is_file() and "s3cret" in p.read_text()]
    (tmp_path / "latest").symlink_to(tmp_path / "run1")  # the folder itself may be one
    assert (registry.promote(tmp_path / "latest").run / "models" / "a.bin").read_text() == "model 1"


def test_the_link_is_put_right_after_a_kill_before_it(registry):
    link = registry.folder / "current"
    link.unlink()
    link.symlink_to("versions/0001")  # as a writer leaves it that was killed after it wrote the state
    assert registry.current.number == 2
    assert (link / "run" / "models" / "a.bin").read_text() == "model 2"
    link.unlink()
    assert registry.current.number == 2
    assert link.readlink().name == "0002"
    shutil.rmtree(registry.folder / "versions" / "0001")
    with pytest.raises(MissingFileError, match="files are gone"):
        registry.rollback()
    assert registry.current.number == 2


_KILLED = """
import sys
from pathlib import Path
from fastrec.registry import Registry
registry = Registry(sys.argv[1])
print("ready", flush=True)
while True:
    registry.promote(Path(sys.argv[2]))
    registry.rollback()
"""


def test_a_writer_that_is_killed_leaves_a_whole_state(registry, tmp_path):
    """At whatever moment: what is current is a whole version, and the next promotion goes on from there."""
    big = make_run(tmp_path / "big", "x" * 300_000)
    for wait in (0.0, 0.004, 0.02):
        with start(_KILLED, registry.folder, big) as writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(wait)
            writer.kill()
        for version in registry.versions:
            text = (version.run / "models" / "a.bin").read_text()
            assert text in ("model 1", "model 2", "x" * 300_000)
        assert registry.current in registry.versions
        before = len(registry.versions)
        assert registry.promote(tmp_path / "run1").number > before - 1
        assert registry.current.number == registry.versions[-1].number


def test_promote_roll_back_and_list(tmp_path):
    def call(*words, code=0):
        found, out, err = invoke(*words, "--registry", tmp_path / "registry")
        assert found == code, err
        return out + err

    assert "there is no registry" in call("rollback", code=1)
    assert "neither a run" in call("promote", tmp_path, code=1)
    assert "version 1 is current" in call("promote", make_export(tmp_path / "a"), "--why", "the first")
    for words in (["promote", make_run(tmp_path / "b", "x"), "--no-export"], ["rollback"], ["promote", "2"]):
        call(*words)
    assert call("promote", "2").startswith("version 2 serves already")
    made = json.loads(call("versions", "--json"))
    assert (made["current"]["number"], made["previous"]["number"]) == (2, 1)
    assert [h["what"] for h in made["history"]] == ["promoted", "promoted", "rolled back", "promoted"]
    shutil.rmtree(Registry(tmp_path / "registry").version(1).folder)  # to save space: the others are listed still
    said = call("versions")
    assert all(words in said for words in ("the first", "gone", "rolled back"))
    assert "files are gone" in call("rollback", code=1)
