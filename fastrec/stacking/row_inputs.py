"""Level-2 inputs of rows that stand for themselves: what each base model predicts, a column for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate import Rows


def names_of(model: str, data: Rows) -> list[str]:
    """Return the columns of a base model: its name, or its name with the number of each class or target."""
    return [model] if data.n_scores == 1 else [f"{model}_{j}" for j in range(data.n_scores)]


def by_row(predicted: Mapping[str, torch.Tensor], data: Rows, extra: Sequence[str] = ()) -> Rows:
    """Return the rows with level-2 inputs instead of features.

    Args:
        predicted: base model → float64 ``[n]`` or ``[n, k]``.
        extra: columns of level 1 to keep beside them.
    """
    columns: dict[str, Any] = {n: data.table[n] for n in extra}
    used = [n for n in extra if n not in data.cats]
    for model, values in predicted.items():
        wide = in_columns(values)
        if wide.shape != (len(data), data.n_scores):
            raise DataError(
                f"{model} predicts {tuple(values.shape)} for {len(data)} rows of a {data.task} task",
                remedy=f"Give {data.n_scores} numbers for each row",
            )
        names = names_of(model, data)
        refuse_twice(names, columns)
        columns |= {n: wide[:, j].double() for j, n in enumerate(names)}
        used += names
    cats = [n for n in extra if n in data.cats]
    return replace(data, table=Table(columns, device="cpu"), cats=cats, conts=used)


def refuse_twice(names: Sequence[str], columns: Mapping[str, Any]) -> None:
    """Refuse level-2 inputs that are there already."""
    twice = next((n for n in names if n in columns), None)
    if twice is not None:
        raise DataError("two level-2 inputs have this name", column=twice, remedy="Rename the column or the model")


def predicted_by(models: Sequence[str], data: Rows) -> torch.Tensor:
    """Return the base models' predictions: float64 ``[n, models, k]``."""
    each = [torch.stack([data.table[n].number().cpu() for n in names_of(m, data)], 1) for m in models]
    return torch.stack(each, 1)


def labels_of(data: Rows) -> torch.Tensor:
    """Return labels as float64 ``[n, targets]``."""
    if data.label is None:
        raise DataError("a blend was given rows without labels to learn from", remedy="Give label=")
    return in_columns(data.label.double())


def weights_of(data: Rows) -> torch.Tensor:
    """Return weights of mean 1, float64 ``[n]``: a ridge means the same whatever the weights' unit."""
    if data.weight is None:
        return torch.ones(len(data), dtype=torch.float64)
    weight = data.weight.double()
    if not bool((weight > 0).any()):
        raise DataError("no row has a weight above 0", remedy="Give at least one row that counts")
    return weight / weight.mean()


def in_columns(values: torch.Tensor) -> torch.Tensor:
    """Turn ``[n]`` into ``[n, 1]``."""
    return values[:, None] if values.ndim == 1 else values


def as_task(values: torch.Tensor, data: Rows) -> torch.Tensor:
    """Turn numbers ``[n, k]`` into the shape of the task's predictions: ``[n]`` if there is one a row."""
    return values[:, 0] if data.n_scores == 1 else values
