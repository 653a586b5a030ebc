"""Embedding tables shown, saved and loaded by the names of columns and categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from fastrec.errors import DataError, MissingColumnError
from fastrec.models.embedding import EmbeddingTables
from fastrec.table import ClassList, Keys, load_state, save_state
from fastrec.table.vocab import MISSING


def table_frame(embeds: EmbeddingTables, classes: Mapping[str, Sequence[Any]], name: str) -> Any:
    """Return a column's table as a pandas frame of vectors, with the categories as its index.

    Args:
        embeds: the tables of a model (``learn.model.embeds``).
        classes: column → its categories (``dls.classes``).
        name: the column.
    """
    import pandas as pd

    weights = embeds.table(name).detach().float().cpu().numpy()
    return pd.DataFrame(weights.copy(), index=pd.Index(list(_classes(classes, name)), name=name))


def save_tables(
    embeds: EmbeddingTables,
    classes: Mapping[str, Sequence[Any]],
    folder: str | Path,
    names: Iterable[str] | None = None,
) -> None:
    """Save tables with the categories that their rows belong to, as JSON and safetensors.

    Args:
        embeds: the tables of a model (``learn.model.embeds``).
        classes: column → its categories (``dls.classes``).
        folder: the target folder; an earlier save is replaced in one step.
        names: the columns; None: all.
    """
    wanted = [s.name for s in embeds.slices] if names is None else list(names)
    state = {}
    for name in wanted:
        reserved, values = _parts(_classes(classes, name))
        weights = embeds.table(name).detach().float().cpu().clone()
        state[name] = {"reserved": reserved, "values": values, "weights": weights}
    save_state(folder, {"kind": "embedding tables", "tables": state})


def load_tables(
    embeds: EmbeddingTables,
    classes: Mapping[str, Sequence[Any]],
    folder: str | Path,
    names: Iterable[str] | None = None,
) -> dict[str, int]:
    """Load what ``save_tables`` wrote, by the names of columns and categories.

    Args:
        embeds: the tables to write to; rows of categories that were not saved stay as they are.
        classes: column → its categories (``dls.classes``).
        folder: the folder of the saved tables.
        names: the columns; None: all saved ones that the model has.

    Returns:
        Column → how many of its categories were found.

    Raises:
        MissingColumnError: a column of ``names`` was not saved or is not in the model; or no saved one is.
        DataError: the widths differ, or the folder holds something else.
    """
    state = load_state(folder)
    if state.get("kind") != "embedding tables":
        raise DataError("holds no embedding tables", file=folder, remedy="Give a folder that save_tables wrote")
    saved, here = state["tables"], {s.name for s in embeds.slices}
    wanted = [n for n in saved if n in here] if names is None else list(names)
    if missing := [n for n in wanted if n not in saved] or ([] if wanted else [*saved][:1]):
        problem = "has no table of that column, or the model has none"
        remedy = f"Saved are {list(saved)}, the model has {sorted(here)}"
        raise MissingColumnError(problem, file=folder, column=missing[0], remedy=remedy)
    return {name: _load(embeds, classes, name, saved[name], folder) for name in wanted}


def _load(
    embeds: EmbeddingTables, classes: Mapping[str, Sequence[Any]], name: str, saved: Mapping[str, Any], folder: Any
) -> int:
    weights, width = saved["weights"], embeds.slice_of(name).width
    if weights.shape[1] != width:
        problem = f"its vectors have {weights.shape[1]} numbers, the model's {width}"
        remedy = f"Make the model with emb_szs={{{name!r}: {weights.shape[1]}}}"
        raise DataError(problem, file=folder, column=name, remedy=remedy)
    reserved, values = _parts(_classes(classes, name))
    rows = [reserved.index(r) if r in reserved else -1 for r in saved["reserved"]]
    found = Keys((saved["values"],), (name,)).find_in(Keys((values,), (name,)))
    places = torch.cat([torch.tensor(rows, dtype=torch.int64), torch.where(found >= 0, found + len(reserved), -1)])
    known = places >= 0
    with embeds.writing(name) as table:
        table[places[known].to(table.device)] = weights[known].to(table.device, table.dtype)
    return int(known.sum())


def _classes(classes: Mapping[str, Sequence[Any]], name: str) -> Sequence[Any]:
    if name not in classes:
        raise MissingColumnError("has no categories here", column=name, remedy=f"Known are {list(classes)}")
    return classes[name]


def _parts(classes: Sequence[Any]) -> tuple[list[str], pa.Array]:
    if isinstance(classes, ClassList):
        return list(classes.vocab.reserved), classes.vocab.values
    return [MISSING], pa.array(list(classes)[1:])
