"""Pieces that mixed devices stay on one, and give the host's values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastrec.features._dask.blocks import OUTER, ROW, Hidden, _joined
from fastrec.features._dask.frames import _distinct_rows
from fastrec.features._dask.gathered import compact
from fastrec.features.vectors import Pca
from fastrec.table import Table, as_column
from fastrec.tabular import FillMissing
from fastrec.tabular.columns import FrameColumns, numbers_of
from tests.device import standin

DEVICE = f"{standin.NAME}:0"  # torch knows it once it is compiled


def test_columns_of_dask():
    text = as_column(["a", "b", None, "b", "c"]).to(DEVICE).take(torch.tensor([1, 2], device=DEVICE))
    assert compact(text).distinct.to_pylist() == ["b"]
    assert compact(text).to_arrow().to_pylist() == ["b", None]
    assert _distinct_rows(as_column([7, 3, 7, 5]).to(DEVICE)).to_arrow().to_pylist() == [3, 5, 7]
    rows = Table({"x": torch.arange(3.0)}, device=DEVICE)
    numbers = Table({ROW: torch.arange(3), OUTER: torch.tensor([0, 1, 0])})
    both = _joined(["x", ROW, OUTER], [["x"], [ROW, OUTER]], rows, numbers)
    assert {c.values.device for c in both._columns.values()} == {torch.device(DEVICE)}
    assert Hidden(outer=0).of(both).tolist() == [True, False, True]


def test_components_of_vectors():
    vectors = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    there, here = (Pca("v", 2).fit_transform(Table({"v": v})) for v in (vectors.to(DEVICE), vectors))
    for name in (n for n in here.names if n != "v"):
        np.testing.assert_allclose(there[name].number().cpu().numpy(), here[name].number().numpy(), atol=1e-5)


@pytest.mark.parametrize("present", [0, 1, 2, 5, 8])
def test_medians_come_from_the_device_as_numbers(present):
    values = torch.full((9,), torch.nan, dtype=torch.float64)
    values[torch.randperm(9)[:present]] = torch.randn(present, dtype=torch.float64)
    fills = []
    for device in (DEVICE, "cpu"):
        proc = FillMissing()
        with standin.counting() as trips:
            proc.fit("x", values.to(device))
        assert not [t for t in trips.found if t[0] == "to host" and t[2] >= 9 * 8], trips.table()
        fills.append(proc.fills["x"])
    assert fills[0] == fills[1]


def test_the_order_of_rows_goes_to_the_device_once_for_all_columns():
    n, names = 400, [f"x{i}" for i in range(6)]
    table, order = Table({name: torch.randn(n) for name in names}), torch.randperm(n)
    columns = FrameColumns(table.to(DEVICE), names, n, order=order)
    with standin.counting() as trips:
        for name in names:
            assert torch.equal(numbers_of(columns[name], slice(0, n)).cpu().float(), table[name].values[order])
            got = numbers_of(columns.raw(name), columns.rows(5, 300))
            assert torch.equal(got.cpu().float(), table[name].values[order[5:300]])
    assert len([t for t in trips.found if t[0] == "to device" and t[2] >= 8 * 295]) == 1, trips.table()
