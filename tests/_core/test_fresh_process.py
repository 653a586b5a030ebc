"""A command's process replaced by itself: the same number, another memory, and its folder found again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastrec._core import atomic as leftovers
from fastrec._core import fresh_process

CODE = """
import os, sys
from pathlib import Path
from fastrec._core import fresh_process
from fastrec._core.atomic import working_folder

fresh_process.owns_process()
made = fresh_process.continued_in()
with working_folder(Path(sys.argv[1]) / "work", made=made) as folder:
    said = [*(folder / "said").read_text().split(), str(os.getpid())] if made else [str(os.getpid())]
    (folder / "said").write_text(" ".join(said))
    assert fresh_process._SETTING not in os.environ
    if len(said) < 3:
        fresh_process.begin_anew(folder)
    print(*said, *sys.argv[1:])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes begin anew on Linux")
def test_a_process_finds_its_folder_again_and_tidies_it_up_at_the_end(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", CODE, str(tmp_path), "an option with spaces"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        said, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    assert said == f"{child.pid} {child.pid} {child.pid} {tmp_path} an option with spaces\n"
    assert not any(tmp_path.iterdir())


def test_a_folder_is_taken_up_once_and_only_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    for told, found in (
        (f"{lock} {tmp_path}", tmp_path),
        (f"{lock} {tmp_path.parent}", None),
        (f"9999 {tmp_path}", None),
    ):
        monkeypatch.setenv(fresh_process._SETTING, told)
        assert fresh_process.continued_in() == found
        assert fresh_process.continued_in() is None
    os.close(leftovers.locks.pop(tmp_path))


def test_only_a_commands_process_is_replaced() -> None:
    assert not fresh_process.may_begin_anew()
