"""Labels and weights that an estimator learns from, one output at a time."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.validate import Rows, whole_lists
from fastrec.validate.tasks import Task

ClassWeight = Literal["balanced"] | Mapping[int, float] | None


def learnable(rows: Rows, *, name: str) -> Rows:
    """Return the rows of a weight above 0; in ranking the lists of ``whole_lists``.

    Args:
        name: who is to learn from them, for messages.
    """
    if rows.task == "ranking":
        return whole_lists(rows, name=name)  # type: ignore[arg-type]
    if rows.label is None:
        raise DataError(f"{name} was given rows without labels to learn from", remedy="Give label=")
    if rows.weight is not None and not bool((rows.weight > 0).all()):
        rows = rows.take(rows.weight > 0)
    if not len(rows):
        raise DataError(f"{name} has no row to learn from", remedy="Give rows of a weight above 0")
    if rows.task in ("binary", "multiclass"):
        refuse_one_class(rows, name=name)
    return rows


def check_whole(name: str, **given: object) -> None:
    """Refuse what is no whole number of 1 or more where one is needed; None is passed over.

    Args:
        name: whose arguments they are, for messages.
    """
    for argument, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise DataError(
                f"{name}: {argument} is {value!r}", remedy=f"Give {argument} as a whole number of 1 or more"
            )


def refuse_one_class(rows: Rows, *, name: str, remedy: str = "Give rows of both classes") -> None:
    """Refuse rows from which no classes can be told apart."""
    assert rows.label is not None
    if bool((rows.label == rows.label[0]).all()):
        raise DataError(f"{name} was given rows of one class only ({int(rows.label[0])}) to learn from", remedy=remedy)


def outputs_of(rows: Rows) -> list[torch.Tensor]:
    """Return each output's label ``[n]``: one of a ranking, binary or multiclass task, else one for each column."""
    assert rows.label is not None
    return [rows.label] if rows.label.ndim == 1 else list(rows.label.unbind(1))


def output_weight(rows: Rows, label: torch.Tensor, class_weight: ClassWeight) -> torch.Tensor | None:
    """Return each row's weight for one output, times that of its class; None: all rows alike.

    Args:
        rows: rows with or without a weight.
        label: ``[n]`` classes of the output.
        class_weight: ``'balanced'``: classes have the same weight in all, and the rows as much as before; or the
            weights by class number, 1 for a class that is not named; None: none.

    Returns:
        float64 ``[n]``.
    """
    if class_weight is None:
        return None if rows.weight is None else rows.weight.double()
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    codes = label.long()
    if class_weight == "balanced":
        of_class = torch.zeros(int(codes.max()) + 1, dtype=torch.float64).index_add_(0, codes, weight)
        factor = weight.sum() / (of_class * (of_class > 0).sum())
    else:
        factor = torch.ones(max(rows.n_outputs, 2), dtype=torch.float64)
        for number, value in class_weight.items():
            factor[number] = value
    return weight * factor[codes]


def check_class_weight(class_weight: ClassWeight, *, name: str) -> ClassWeight:
    """Return class weights with numbers of classes as keys, also if a file gave them as text."""
    if class_weight is None or class_weight == "balanced":
        return class_weight
    try:
        weights = {int(number): float(value) for number, value in class_weight.items()}  # type: ignore[union-attr]
        if all(number >= 0 and 0 <= value < float("inf") for number, value in weights.items()):
            return weights
    except (AttributeError, TypeError, ValueError):
        pass
    raise DataError(
        f"{name} cannot use class_weight={class_weight!r}", remedy="Give 'balanced', or {class number: weight}"
    )


def check_classes(rows: Rows, class_weight: ClassWeight, *, name: str) -> None:
    """Refuse class weights where there are no such classes."""
    if class_weight is None:
        return
    if rows.task in ("ranking", "regression"):
        raise DataError(f"{name} has class weights, and a {rows.task} task no classes", remedy="Leave out class_weight")
    last = rows.n_outputs - 1 if rows.task == "multiclass" else 1
    odd = [] if class_weight == "balanced" else [n for n in class_weight if n > last]
    if odd:
        raise DataError(f"{name} has a weight for class {odd[0]}", remedy=f"The classes are 0 to {last}")


def constant_of(label: torch.Tensor, weight: torch.Tensor | None) -> float:
    """Return the mean of an output: the share of class 1, or the mean value."""
    label = label.double()
    if bool((label == label[0]).all()):
        return float(label[0])  # to the last bit
    return float(label.mean() if weight is None else (label * weight).sum() / weight.sum())


def assembled(parts: list[torch.Tensor], task: Task) -> torch.Tensor:
    """Join the predictions of outputs in one tensor.

    Args:
        parts: float64 ``[n]`` of each output; of a multiclass task ``[n, k]``.

    Returns:
        float64 ``[n]`` or ``[n, k]``; a multiclass task's rows sum to 1.
    """
    if task == "multiclass":
        return parts[0] / parts[0].sum(1, keepdim=True)
    return parts[0] if len(parts) == 1 else torch.stack(parts, 1)
