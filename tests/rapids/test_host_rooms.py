"""With FASTREC_DEVICE=cuda, rooms that work on the host read to the host: without a GPU the first other read fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pandas as pd
import pytest
import torch

from fastrec.errors import DeviceError
from fastrec.sequences import SessionFrame
from fastrec.sequences.reading import code_items
from fastrec.table import Table

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("sequences", "retrieval", "scale", "serve", "monitor", "competition/streamed")


def test_every_read_of_these_rooms_names_its_device() -> None:
    found = []
    for room in ROOMS:
        for file in sorted((ROOT / "fastrec" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "Table.read":
                    found.append((f"{file.name}:{node.lineno}", any(k.arg == "device" for k in node.keywords)))
    assert len(found) > 10
    assert [place for place, named in found if not named] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="here nothing would fail")
def test_sessions_are_read_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    log = pd.DataFrame({"user": [1, 1, 2], "item": ["a", "b", "a"], "at": [2, 1, 3]})
    monkeypatch.setenv("FASTREC_DEVICE", "cuda")
    with pytest.raises(DeviceError):
        Table.read(log)
    sessions = SessionFrame(log, item="item", session="user", order=["at"])
    assert sessions.decode(sessions.values).to_pylist() == ["b", "a", "a"]
    codings, sides = code_items(pd.DataFrame({"item": ["a", "b"], "price": [1.0, 2.0]}), "item", sessions.items)
    assert list(codings) == list(sides) == ["price"]


def test_a_table_without_columns_takes_those_of_another_device() -> None:
    made = Table({}).with_columns({"x": torch.zeros(2, device="meta")})
    assert made.device.type == "meta"
    assert Table({"a": torch.zeros(2)}).with_columns({"x": torch.ones(2)})["x"].values.tolist() == [1, 1]
