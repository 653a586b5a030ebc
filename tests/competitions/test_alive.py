"""The demo of a model that stays good: where it may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from competitions.trivago2019 import alive
from fastrec.errors import DataError


class _Begun(Exception):
    """The folder is ready."""


def test_a_folder_of_others_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(folder: Path, *_: object) -> None:
        raise _Begun(folder)

    monkeypatch.setattr(alive.Days, "simulated", simulated)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "registry").mkdir()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other things"):
        alive.stay_alive(Path())
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    for _ in range(2):  # a relative folder is made, and then replaced; what is noted are whole paths, as a registry has
        with pytest.raises(_Begun) as begun:
            alive.stay_alive(Path("out"))
        assert begun.value.args[0] == tmp_path / "out" / "log"
        (tmp_path / "out" / "more").touch()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".alive", "more"]
