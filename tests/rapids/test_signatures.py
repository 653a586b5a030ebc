"""The rehearsal against RAPIDS: what is recorded is what is installed, and what does not exist is refused."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from tests.rapids import rehearsal, signatures

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_recorded_is_what_is_installed() -> None:
    folder = signatures.installed()
    if folder is None:
        pytest.skip("RAPIDS is not installed: its recorded names stand in")
    found, recorded = signatures.read(folder), json.loads(signatures.RECORDED.read_text())["names"]
    assert found == {owner: recorded[owner] for owner in found}


def test_a_method_or_an_argument_that_cudf_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cudf = rehearsal.bring(monkeypatch)
    series = cudf.Series([1, None])
    with pytest.raises(AttributeError, match="to_torch"):
        series.to_torch()
    with pytest.raises(TypeError, match="method"):
        series.fillna(0, method="ffill")
    with pytest.raises(TypeError, match="positional"):
        series.fillna(0, 1)
    with pytest.raises(TypeError, match="probability"):
        importlib.import_module("cuml.svm").SVC(probability=True)
    with pytest.raises(AssertionError, match="has no to_torch"):
        rehearsal.offered_as("cudf.Series", "x")(type("Series", (), {"to_torch": lambda self: 0}))


def test_every_argument_that_is_given_to_rmm_and_dask_cudf_is_taken() -> None:
    """No rehearsal runs these: the calls are read."""
    offered, seen = signatures.offered(), set()
    taken = {
        "reinitialize": ("rmm", "fastrec/_core/device.py"),
        "from_cudf": ("dask_cudf", "tests/bench/_gpu_parts.py"),
        "rmm_cupy_allocator": ("rmm.allocators.cupy", "fastrec/_core/device.py"),
    }
    for name, (owner, file) in taken.items():
        takes = eval(f"lambda {offered[owner][name]}: None")
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                takes(*node.args, **{k.arg: None for k in node.keywords})
                seen.add(name)
            elif isinstance(node, ast.Attribute) and node.attr == name:
                seen.add(name)
    assert seen == set(taken)
