"""The pages of ``docs/``: their code runs as it stands, and every public name has its place in the reference."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

import fastrec

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MADE = (DOCS / "_build", DOCS / "notebooks")
PAGES = sorted(p for p in DOCS.rglob("*.md") if not any(m in p.parents for m in MADE))
TEXTS = {str(p.relative_to(DOCS)): p.read_text(encoding="utf-8") for p in PAGES}
WITH_CODE = [name for name, text in TEXTS.items() if "```python\n" in text]
ROOMS = sorted(m.name for m in pkgutil.iter_modules(fastrec.__path__) if m.ispkg and not m.name.startswith("_"))
PUBLIC = [f"fastrec.{name}" for name in ("all", "datasets", "errors", *ROOMS)]
FAMILIES = {n for n, text in TEXTS.items() if n.startswith("features/") and n != "features/index.md"}


@pytest.mark.filterwarnings("ignore:bfloat16 takes this CPU")  # the page works there, in float32
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", TEXTS[page], flags=re.S):  # a block goes on from those above it
        exec(compile(code, page, "exec"), names)
    if page == "batches.md":
        assert names["learn"].recorder.log[0] == 0  # it has trained
        assert len(names["tags"]) == len(names["y"]) == 64
        assert int(names["tags"].offsets[-1]) == len(names["tags"].values)
    if page == "training.md":
        assert names["learn"].recorder.values[-1][-1] > 0.6  # the best possible AUC is .8
        assert len(names["dls"].classes["c0"]) == len(names["learn"].table("c0"))


def test_no_page_has_python_that_is_not_run():
    for page, text in TEXTS.items():
        assert not re.search(r"^[`:]{3,}\s*(\{code[^\n]*python|py\b|python[^\n])", text, flags=re.M), page


@pytest.mark.parametrize("room", PUBLIC)
def test_every_room_has_its_page_of_all_public_names(room):
    text = TEXTS[f"api/{room.split('.')[1]}.md"]
    assert f".. automodule:: {room}\n" in text
    assert (room == "fastrec.all") == (":no-members:" in text)  # its names stand on their rooms' pages
    assert all(getattr(getattr(importlib.import_module(room), name), "__doc__", None) for name in _public(room))


def test_every_public_name_of_the_features_is_on_the_page_of_a_family():
    said = " ".join(TEXTS[page] for page in FAMILIES)
    missing = [n for n in _public("fastrec.features") if f"~fastrec.features.{n}`" not in said]
    assert not missing


def test_no_room_hides_a_name_behind_a_module_of_the_same_name():
    # a module takes its name in its room when loaded
    for module in pkgutil.walk_packages(fastrec.__path__, "fastrec."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    rooms = [m for n, m in sys.modules.items() if n.startswith("fastrec.") and hasattr(m, "__all__")]
    rooms = [m for m in rooms if not m.__name__.startswith("fastrec._core")]  # it offers modules on purpose
    assert not [(m.__name__, n) for m in rooms for n in m.__all__ if isinstance(getattr(m, n), ModuleType)]


def test_the_check_of_the_built_site_names_what_is_missing_and_what_is_fetched(tmp_path):
    entry = "fastrec.losses.BCE py:class 1 api/losses.html#$ -\n"
    text = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# The remainder is compressed using zlib.\n"
    (tmp_path / "objects.inv").write_bytes(text + zlib.compress(entry.encode()))
    (tmp_path / "page.html").write_text('<script src="https://a.b/c.js"></script><a href="https://a.b">a link</a>')
    (tmp_path / "style.css").write_text("@import '//a.b/fonts.css';")
    command = [sys.executable, str(DOCS / "check.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    said = done.stdout.splitlines()
    assert "no entry: fastrec.losses.BPR" in said
    assert not {"no entry: fastrec.losses.BCE", "no entry: fastrec.all.BCE"} & set(said)
    assert [line for line in said if line.startswith("fetched")] == [
        "fetched from elsewhere: page.html: <script> https://a.b/c.js",
        "fetched from elsewhere: style.css: a style's address",
    ]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_paths_that_are_named_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"[`'(\s]((?:fastrec|features|competitions|nbs|docs|tests)/[\w./]+)(?![\w./<])", text)
    assert len(found) > 5
    made = ("docs/_build",)
    assert [p for p in found if not p.startswith(made) and not (ROOT / p.rstrip(".")).exists()] == []


def test_the_readme_and_contributing_name_every_room():
    layout = (ROOT / "README.md").read_text(encoding="utf-8").split("## Layout")[1].split("\n## ")[0]
    assert [room for room in ROOMS if f"`{room}/`" not in layout] == []
    places = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Where things go")[1].split("\n## ")[0]
    assert [room for room in ROOMS if f"`{room}`" not in places] == []


def _public(room: str) -> list[str]:
    module = importlib.import_module(room)
    found = getattr(module, "__all__", None)
    if found is None:
        found = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == room and n[0] != "_"]
    return [n for n in found if not isinstance(getattr(module, n), ModuleType)]
