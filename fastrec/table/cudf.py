"""cuDF columns as tensors and back, through DLPack, without a copy to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from fastrec._core.imports import require
from fastrec.table.column import Column
from fastrec.table.from_arrow import arrow_column


def column_of(series: Any, *, name: str) -> Column:
    """Convert a cuDF series: numbers and times by DLPack, text by ``factorize`` on the GPU, the rest by Arrow."""

    kind = series.dtype.kind if hasattr(series.dtype, "kind") else "O"
    if str(series.dtype) == "category":  # its categories keep their order
        column = _from_host(series, name=name)
        column = replace(column, ordered=bool(series.cat.ordered)) if column.kind == "category" else column
        return column.to("cuda")
    is_text = str(series.dtype) in ("object", "str", "string") or kind in "OSU"
    if str(series.dtype).startswith(("list", "struct", "decimal")) or kind == "m":
        return _from_host(series, name=name).to("cuda")
    if is_text:
        codes, values = series.factorize()
        distinct = values.to_arrow() if hasattr(values, "to_arrow") else pa.array(values)
        tensor = torch.from_dlpack(codes).to(torch.int32) + 1  # factorize says -1 for missing
        return Column(
            "category", tensor, name=name,
            distinct=distinct.cast(pa.large_string()) if pa.types.is_string(distinct.type) else distinct,
        )  # fmt: skip
    missing = torch.from_dlpack(series.isnull().to_cupy().view("uint8")).to(torch.bool) if series.has_nulls else None
    if kind == "M":
        unit = str(series.dtype).split("[")[1].rstrip("]").split(",")[0]
        zone = str(series.dt.tz) if getattr(series.dt, "tz", None) is not None else None
        values = torch.from_dlpack(series.astype("int64").fillna(0).to_cupy())
        return Column("datetime", values, name=name, missing=missing, unit=unit, zone=zone)
    if kind == "b":
        return Column(
            "number", torch.from_dlpack(series.fillna(False).astype("uint8").to_cupy()).to(torch.bool), name=name,
            missing=missing,
        )  # fmt: skip
    if kind == "f":
        return Column("number", torch.from_dlpack(series.fillna(float("nan")).to_cupy()), name=name)
    if kind == "u" and series.dtype.itemsize > 1:
        return _from_host(series, name=name).to("cuda")
    return Column("number", torch.from_dlpack(series.fillna(0).to_cupy()), name=name, missing=missing)


def _from_host(series: Any, *, name: str) -> Column:
    array = series.to_arrow()
    return arrow_column(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array, name=name)


def attach(frame: Any, columns: dict[str, Column]) -> Any:
    """Add columns to a cuDF frame; its index and other columns are untouched."""
    cudf = require("cudf", "cuDF", "pip install 'fastrec-tabular[gpu]' on Linux with an NVIDIA GPU")
    new = frame.copy(deep=False)
    for name, column in columns.items():
        if (
            column.kind == "number"
            and column.missing is None
            and column.values.is_cuda
            and column.values.dtype != torch.bool
        ):
            import cupy

            new[name] = cudf.Series(cupy.from_dlpack(column.values.contiguous()), index=frame.index)
        else:
            series = cudf.Series.from_arrow(column.to_arrow())
            series.index = frame.index
            new[name] = series
    return new
