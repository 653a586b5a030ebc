"""One raw row packed at once: a frame of one row costs a hundred small steps for every column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fastrec.table import as_column
from fastrec.tabular.packed import Layout, Packed
from fastrec.tabular.procs.categorify import Categorify
from fastrec.tabular.recipe import FrameRecipe


def pack_row(recipe: FrameRecipe, row: Mapping[str, Any]) -> Packed | None:
    """Pack a raw row as ``FrameRecipe.pack`` packs a frame of it, without its target.

    Args:
        row: column name → raw value.

    Returns:
        One packed row on the CPU; None where only a frame will do: features are computed from it, a column is absent,
        or nothing codes the categorical columns.
    """
    categorify = recipe.proc(Categorify)
    wanted = [*recipe.cats, *recipe.conts]
    if recipe.features is not None or categorify is None or any(n not in row for n in wanted):
        return None
    values = torch.tensor([_number(n, row[n]) for n in recipe.conts], dtype=torch.float64)
    places = {n: i for i, n in enumerate(recipe.conts)}
    codes = [_code(categorify, n, row[n]) for n in recipe.cats]
    codes += [1 + int(v != v) for v in values[[places[n] for n in recipe.flagged]].tolist()]
    for proc in recipe.cont_procs:
        values = proc.apply_row(recipe.conts, values)
    layout = Layout(len(codes), len(recipe.conts), None, recipe.cat_dtype, recipe.labels.dtype)
    return Packed.of(torch.tensor([codes], dtype=torch.int64), values[None], None, layout)


def _number(name: str, value: Any) -> float:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return float("nan")
    if type(value) in (float, bool) or (type(value) is int and -(1 << 53) <= value <= (1 << 53)):
        return float(value)
    return float(_column(name, value).number())


def _code(categorify: Categorify, name: str, value: Any) -> int:
    code = categorify[name].code_of(value)
    return int(categorify.encode(name, _column(name, value))) if code is None else code


def _column(name: str, value: Any) -> Any:
    import pandas as pd

    return as_column(pd.Series([value]), name=name)
