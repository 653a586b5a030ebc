"""Columns of several tables, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.table.column import Column
from fastrec.table.from_values import as_column
from fastrec.table.key_types import align_types
from fastrec.table.keys import Keys


def concat_columns(parts: Sequence[Column], device: torch.device) -> Column:
    """Concatenate columns; those with no value at all take the others' type.

    Args:
        parts: at least one column.
        device: where the result goes.

    Raises:
        DataError: the columns hold values that no one type holds exactly.
    """
    parts = [p.to(device) for p in parts]
    void = [p.kind != "opaque" and bool(p.is_missing().all()) for p in parts]
    model = next((p for p, empty in zip(parts, void, strict=True) if not empty), None)
    model = model or next((p for p in parts if p.kind != "number"), parts[0])
    parts = [
        p if _same(p, model) or not empty else _all_missing(model, len(p)) for p, empty in zip(parts, void, strict=True)
    ]
    if model.kind == "number" and all(p.kind == "number" for p in parts):
        return _stack_numbers(parts, model)
    if all(p.kind == "category" for p in parts):
        return _stack_categories(parts, model)
    if model.kind in ("datetime", "vector") and all(_same(p, model) for p in parts):
        return replace(model, values=torch.cat([p.values for p in parts]), missing=_stack_missing(parts))
    if model.kind == "list" and all(p.kind == "list" for p in parts):
        # Each part counts its elements from 0: later offsets are shifted.
        offsets, end = [parts[0].values[:1]], 0
        for part in parts:
            offsets.append(part.values[1:] + end)
            end += int(part.values[-1])
        elements = concat_columns([p.elements for p in parts], device)
        return replace(model, values=torch.cat(offsets), elements=elements, missing=_stack_missing(parts))
    return _stack_arrow(parts, model).to(device)


def _same(a: Column, b: Column) -> bool:
    if a.kind != b.kind:
        return False
    if a.kind == "vector":
        return a.values.shape[1] == b.values.shape[1] and a.values.dtype == b.values.dtype
    return a.kind not in ("number", "datetime") or (a.values.dtype, a.unit, a.zone) == (b.values.dtype, b.unit, b.zone)


def _all_missing(model: Column, size: int) -> Column:
    device = torch.device("cpu") if model.kind == "opaque" else model.values.device
    missing = torch.ones(size, dtype=torch.bool, device=device)
    if model.kind == "opaque":
        return replace(model, values=pa.nulls(size, model.values.type), missing=None)
    if model.kind == "category":
        return replace(model, values=torch.zeros(size, dtype=torch.int32, device=device), missing=None)
    if model.kind == "list":
        nothing = model.elements.take(torch.empty(0, dtype=torch.int64, device=device))
        offsets = torch.zeros(size + 1, dtype=torch.int64, device=device)
        return replace(model, values=offsets, elements=nothing, missing=missing)
    if model.kind == "number" and model.values.is_floating_point():
        return replace(model, values=model.values.new_full((size,), torch.nan), missing=None)
    return replace(model, values=model.values.new_zeros((size, *model.values.shape[1:])), missing=missing)


def _stack_missing(parts: Sequence[Column]) -> torch.Tensor | None:
    if all(p.missing is None for p in parts):
        return None
    return torch.cat([p.is_missing() for p in parts])


def _stack_numbers(parts: Sequence[Column], model: Column) -> Column:
    kinds = {p.values.dtype for p in parts}
    floats = [k for k in kinds if k.is_floating_point]
    if floats and len(floats) < len(kinds):
        for part in parts:
            _check_float_holds(part)
        return replace(model, values=torch.cat([p.number() for p in parts]), missing=None)
    missing = _stack_missing(parts)  # joined values take the widest of the types
    return replace(model, values=torch.cat([p.values for p in parts]), missing=missing)


def _check_float_holds(part: Column) -> None:
    if part.values.dtype != torch.int64:
        return
    lost = ~part.is_missing() & (part.values.abs() > 1 << 53)
    if bool(lost.any()):
        raise DataError(
            "holds floats in one table and integers beyond 2^53, which floats do not hold, in another",
            column=part.name or None,
            row=int(lost.nonzero()[0]),
            remedy="Give the column the same type in every frame (ids with missing values: nullable Int64)",
        )


def _stack_categories(parts: Sequence[Column], model: Column) -> Column:
    if all(p.distinct.equals(model.distinct) for p in parts):
        return replace(model, values=torch.cat([p.values for p in parts]))
    union = Keys((model.distinct,), (model.name,))
    for part in parts:
        union = union.concat(Keys((part.distinct,), (part.name,)))
    union = union.distinct()[1]
    codes = []
    for part in parts:
        table = torch.zeros(len(part.distinct) + 1, dtype=torch.int32)
        table[1:] = Keys((part.distinct,), (part.name,)).find_in(union) + 1
        codes.append(table.to(part.values.device)[part.values.long()])
    ordered = model.ordered if len({p.ordered for p in parts}) == 1 else None
    return replace(model, values=torch.cat(codes), distinct=union.columns[0], ordered=ordered)


def _stack_arrow(parts: Sequence[Column], model: Column) -> Column:
    """Concatenate times of several units or zones, huge and small integers, opaque values."""
    joined = parts[0].to_arrow()
    for part in parts[1:]:
        array = part.to_arrow()
        if not array.type.equals(joined.type):
            if "opaque" in (part.kind, model.kind) or {part.kind, model.kind} & {"list", "vector"}:
                raise DataError(
                    f"holds {array.type} in one table and {joined.type} in another",
                    column=model.name or None,
                    remedy="Give the column the same type in every frame",
                )
            joined, array = align_types(joined, array, name=model.name)
        joined = pa.concat_arrays([joined, array])
    return as_column(joined, name=model.name)
