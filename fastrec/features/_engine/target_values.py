"""Targets and sample weights as checked numbers, for the target encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.features._inputs import number_of
from fastrec.features.base import Feature
from fastrec.table import Keys, Table
from fastrec.table.key_types import is_text


def target_number(table: Table, name: str, *, wanted_by: Feature, binary: bool = False) -> torch.Tensor:
    """Return a target of numbers as float64 ``[n]``, NaN where missing.

    Args:
        table: the rows.
        name: the target.
        wanted_by: the generator, for errors.
        binary: 0 and 1 alone will do.
    """
    column = table[name]
    who = type(wanted_by).__name__
    if column.kind == "category" and is_text(column.distinct.type) and len(column.distinct):
        found = sorted(column.distinct.to_pylist())
        listed = ", ".join(map(repr, found[:10])) + (", …" if len(found) > 10 else "")
        raise DataError(
            f"{who}: the target holds classes ({listed}), not numbers",
            column=name,
            row=int((~column.is_missing()).int().argmax()) if len(column) else None,
            remedy=f"Name them: {who}(…, classes=[{listed}]), or make it 0 and 1 first"
            if "classes" in wanted_by.get_params()
            else "Make it numbers first: 0 and 1 for a class",
        )
    values = finite_number(table, name, wanted_by=wanted_by)
    odd = ~(values.isnan() | (values == 0) | (values == 1)) if binary else torch.zeros(0)
    if bool(odd.any()):
        row = int(odd.nonzero()[0])
        raise DataError(
            f"{who}: weight of evidence needs a target of 0 and 1, and here is {float(values[row]):g}",
            column=name,
            row=row,
            remedy="Choose another statistic, or give classes",
        )
    return values


def averaged_numbers(
    table: Table, targets: Sequence[str], classes: Sequence[Any] | None, *, wanted_by: Feature, binary: bool = False
) -> list[torch.Tensor]:
    """Return the numbers to average: each target, or each class of it. float64 ``[n]``, NaN = missing."""
    if classes is None:
        return [target_number(table, t, wanted_by=wanted_by, binary=binary) for t in targets]
    return [y for t in targets for y in class_numbers(table, t, classes, wanted_by=wanted_by)]


def check_target_classes(classes: Sequence[Any], *, wanted_by: Feature) -> None:
    """Refuse classes that are not different values of one kind."""
    who = type(wanted_by).__name__
    if not isinstance(classes, list | tuple) or not classes or len({str(c) for c in classes}) < len(classes):
        raise DataError(f"{who}: the classes are {classes!r}", remedy="Give a list of different values")
    if any(c is None or c != c for c in classes) or len({type(c) for c in classes}) > 1:
        raise DataError(
            f"{who}: the classes {list(classes)!r} are not values of one kind",
            remedy="Give all of them as text, or all as numbers; a missing target is of no class",
        )


def finite_number(table: Table, name: str, *, wanted_by: Feature) -> torch.Tensor:
    """Return a number column as float64 ``[n]``, NaN where missing."""
    values = number_of(table, name, wanted_by=wanted_by)
    if bool(values.isinf().any()):
        row = int(values.isinf().nonzero()[0])
        raise DataError(
            f"{type(wanted_by).__name__}: a value is infinite", column=name, row=row, remedy="Clip or drop such rows"
        )
    return values


def row_weights(table: Table, name: str | None, *, wanted_by: Feature) -> torch.Tensor:
    """Return sample weights as float64 ``[n]``, 0 where missing; all 1 without a column."""
    if name is None:
        return torch.ones(len(table), dtype=torch.float64, device=table.device)
    weight = finite_number(table, name, wanted_by=wanted_by).nan_to_num(0)
    if bool((weight < 0).any()):
        row = int((weight < 0).nonzero()[0])
        raise DataError(
            f"{type(wanted_by).__name__}: a weight is below 0", column=name, row=row, remedy="Use 0 or more"
        )
    return weight


def class_numbers(table: Table, name: str, classes: Sequence[Any], *, wanted_by: Feature) -> list[torch.Tensor]:
    """Return float64 ``[n]`` per class: 1 where the target is it, 0 for another, NaN if missing."""
    with_name = Keys((pa.array(list(classes)),), (name,))
    coded = table.coded(name)
    try:
        codes = coded.recode(with_name)
    except DataError as error:
        raise DataError(
            f"{type(wanted_by).__name__}: the classes and the target are of different kinds ({error.problem})",
            column=name,
            remedy="Give classes as they stand in the target",
        ) from error
    missing = coded.codes == 0
    return [torch.where(missing, torch.nan, (codes == i + 1).double()) for i in range(len(classes))]
