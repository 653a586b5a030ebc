from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import torch

from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.keys import Keys
from fastrec.state import load_state, save_state

ARRAYS = {
    "text": pa.array(["a", "", "é😀", "x\0y"]),
    "no text": pa.array([], pa.string()),
    "slice of text": pa.array(["a", "bc", "d"])[1:],
    "slice of integers": pa.array([1, 2, 3], pa.int8())[1:],
    "uint64": pa.array([2**64 - 1, 0], pa.uint64()),
    "int64": pa.array([2**53 + 1, -(2**63)]),
    "floats": pa.array([1.5, math.inf, -math.inf]),
    "float32": pa.array([0.1], pa.float32()),
    "decimals": pa.array([Decimal("1.50"), Decimal("-0.01")]),
    "long decimals": pa.array([Decimal("9" * 50 + ".25")]),
    "times": pa.array([1, -2], pa.timestamp("ns", "Europe/Berlin")),
    "no times": pa.array([], pa.timestamp("s")),
    "booleans": pa.array([True, False, True])[1:],
}


def round_trip(folder, value):
    save_state(folder / "state", {"value": value})
    return load_state(folder / "state")["value"]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_as_they_were(tmp_path, name):
    found = round_trip(tmp_path, ARRAYS[name])
    assert found.to_pylist() == ARRAYS[name].to_pylist()
    wide = pa.large_string() if pa.types.is_string(ARRAYS[name].type) else ARRAYS[name].type
    assert found.type == wide


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.tensor(1.5),
        torch.tensor([True]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([2**53 + 1]),
        torch.tensor([math.nan, -0.0]),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_come_back_as_they_were(tmp_path, tensor):
    found = round_trip(tmp_path, tensor)
    assert found.dtype == tensor.dtype
    torch.testing.assert_close(found, tensor.detach(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [None, True, 3, 2**70, 0.1, math.inf, "é\0", [], {}, {"a": [{"b": None}]}])
def test_plain_values_come_back_as_they_were(tmp_path, value):
    found = round_trip(tmp_path, value)
    assert found == value
    assert type(found) is type(value)


def test_numbers_of_numpy_and_nan(tmp_path):
    assert round_trip(tmp_path, [np.int64(3), np.float32(0.5), np.bool_(True)]) == [3, 0.5, True]
    assert math.isnan(round_trip(tmp_path, math.nan))


def test_views_of_one_tensor_and_paths_that_read_the_same(tmp_path):
    base = torch.arange(6)
    found = round_trip(
        tmp_path, {"a": base[:3], "b": base[3:], "c.d": base, "c": {"d": base * 2}, "e": [base], "e.0": -base}
    )
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"].tolist() == [3, 4, 5]
    assert found["c.d"].tolist() == base.tolist()
    assert found["c"]["d"].tolist() == (base * 2).tolist()
    assert found["e"][0].tolist() == base.tolist()
    assert found["e.0"].tolist() == (-base).tolist()


def test_keys(tmp_path):
    found = round_trip(tmp_path, Keys((pa.array([2**53 + 1, 3]), pa.array(["x", ""])), ("a", "b")))
    assert found.names == ("a", "b")
    assert [c.to_pylist() for c in found.columns] == [[2**53 + 1, 3], ["x", ""]]


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {"$tensor": "x"}, pa.array(["a", None]), pa.array([[1]]), torch.ones(1) * 1j]
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path, value):
    with pytest.raises(DataError, match=r"state\.outer\.0"):
        save_state(tmp_path / "s", {"outer": [value]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_damaged_state_is_named(tmp_path, name):
    save_state(tmp_path / "s", {"x": torch.arange(100), "y": pa.array(["a"])})
    path = tmp_path / "s" / name
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\xff" * 50):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFileError, match="cannot be read"):
            load_state(tmp_path / "s")
    path.unlink()
    with pytest.raises(MissingFileError, match=name):
        load_state(tmp_path / "s")
