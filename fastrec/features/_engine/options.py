"""Shared checks of constructor arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from fastrec.errors import DataError, refuse
from fastrec.features.base import Feature
from fastrec.features.columns import Selector, as_list, names_of, number_of
from fastrec.table import Coded, Column, Keys, Table
from fastrec.table.keys import is_text


class OfColumns:
    """Generator with one output per column of ``cols``, ``{word}_{col}__{by}``, within groups ``by`` if it has them."""

    cols: str | Feature | Sequence[str | Feature]
    _reads = ("cols", "by", "order")

    @property
    def columns(self) -> list[str]:
        """Names of the input columns, including the outputs of inner generators."""
        return [n for c in as_list(self.cols) for n in names_of(c)]

    @property
    def outputs(self) -> list[str]:
        return [self._name(c) for c in self.columns]

    @property
    def _word(self) -> str:
        return self.name

    def _name(self, col: str) -> str:
        return named(self, self._word, col)


def named(feature: Feature, word: str, col: str) -> str:
    """Name an output: the statistic's word, the column, and the group columns."""
    return "__".join([f"{word}_{col}", *as_list(getattr(feature, "by", None))])


def ascending(numbers: Sequence[Any]) -> bool:
    """Check that numbers ascend strictly, without NaN."""
    values = [float(x) for x in numbers]
    return not any(map(math.isnan, values)) and values == sorted(set(values))


def is_open(cols: Any) -> bool:
    """Tell whether the columns contain an unresolved selector."""
    return any(isinstance(c, Selector) for c in as_list(cols))


def check_columns_of(feature: Feature, option: str, columns: Sequence[str]) -> None:
    """Refuse an option that maps a column outside ``columns``."""
    given = getattr(feature, option)
    odd = next((n for n in given if n not in columns), None) if isinstance(given, Mapping) else None
    if odd is not None:
        problem = f"{type(feature).__name__}: {option} names a column that is not among its own"
        raise DataError(problem, column=odd, remedy="Check the spelling, or add the column to cols")


def float64(value: float) -> torch.Tensor:
    """Return a number as float64 ``[]`` on the host, which works with tensors on any device."""
    # A Python float has the same bits here, but ONNX would store it as float32
    return torch.tensor(value, dtype=torch.float64)


def target_number(table: Table, name: str, *, wanted_by: Feature, binary: bool) -> torch.Tensor:
    """Return a numeric target as float64 ``[n]``, NaN where missing; ``binary``: require 0 and 1."""
    column = table[name]
    who = type(wanted_by).__name__
    if column.kind == "category" and is_text(column.distinct.type) and len(column.distinct):
        found = sorted(column.distinct.to_pylist())
        listed = ", ".join(map(repr, found[:10])) + (", …" if len(found) > 10 else "")
        named_so = f"Name them: {who}(…, classes=[{listed}]), or make it 0 and 1 first"
        remedy = named_so if "classes" in wanted_by.get_params() else "Make it numbers first: 0 and 1 for a class"
        row = int((~column.is_missing()).int().argmax()) if len(column) else None
        raise DataError(f"{who}: the target holds classes ({listed}), not numbers", column=name, row=row, remedy=remedy)
    values = finite_number(table, name, wanted_by=wanted_by)
    odd = ~(values.isnan() | (values == 0) | (values == 1)) if binary else torch.zeros(0)
    problem = f"{who}: weight of evidence needs a target of 0 and 1"
    refuse(odd, name, problem, "Choose another statistic, or give classes")
    return values


def averaged_numbers(
    table: Table, targets: Sequence[str], classes: Sequence[Any] | None, *, wanted_by: Feature, binary: bool = False
) -> list[torch.Tensor]:
    """Return each target, or the indicator of each class: float64 ``[n]``, NaN = missing."""
    if classes is None:
        return [target_number(table, t, wanted_by=wanted_by, binary=binary) for t in targets]
    return [y for t in targets for y in class_numbers(table, t, classes, wanted_by=wanted_by)]


def check_target_classes(classes: Sequence[Any], *, wanted_by: Feature) -> None:
    """Refuse classes that are not distinct values of one kind."""
    who = type(wanted_by).__name__
    if not isinstance(classes, list | tuple) or not classes or len({str(c) for c in classes}) < len(classes):
        raise DataError(f"{who}: the classes are {classes!r}", remedy="Give a list of different values")
    if any(c is None or c != c for c in classes) or len({type(c) for c in classes}) > 1:
        problem = f"{who}: the classes {list(classes)!r} are not values of one kind"
        raise DataError(problem, remedy="Give all of them as text, or all as numbers; a missing target is of no class")


def finite_number(table: Table, name: str, *, wanted_by: Feature) -> torch.Tensor:
    """Return a number column as float64 ``[n]``, NaN where missing; refuse infinite values."""
    values = number_of(table, name, wanted_by=wanted_by)
    refuse(values.isinf(), name, f"{type(wanted_by).__name__}: a value is infinite", "Clip or drop such rows")
    return values


def row_weights(table: Table, name: str | None, *, wanted_by: Feature) -> torch.Tensor:
    """Return sample weights as float64 ``[n]``, 0 where missing; all 1 without a column."""
    if name is None:
        return torch.ones(len(table), dtype=torch.float64, device=table.device)
    weight = finite_number(table, name, wanted_by=wanted_by).nan_to_num(0)
    refuse(weight < 0, name, f"{type(wanted_by).__name__}: a weight is below 0", "Use 0 or more")
    return weight


def class_numbers(table: Table, name: str, classes: Sequence[Any], *, wanted_by: Feature) -> list[torch.Tensor]:
    """Return float64 ``[n]`` per class: 1 where the target is it, 0 for another, NaN if missing."""
    with_name = Keys((pa.array(list(classes)),), (name,))
    coded = table.coded(name)
    try:
        codes = coded.recode(with_name)
    except DataError as error:
        problem = f"{type(wanted_by).__name__}: the classes and the target are of different kinds ({error.problem})"
        raise DataError(problem, column=name, remedy="Give classes as they stand in the target") from error
    missing = coded.codes == 0
    return [torch.where(missing, torch.nan, (codes == i + 1).double()) for i in range(len(classes))]


def list_of(table: Table, name: str, *, wanted_by: Feature) -> Column:
    """Return a column as a list column whose first list begins at element 0."""
    column = table[name]
    lists = column.as_lists()
    problem = f"{type(wanted_by).__name__} needs lists, and this column holds {column.held}"
    if lists is None:
        refuse(~column.is_missing(), name, problem, "Choose a column of lists, or make lists of text by Tokens")
    return lists.to(table.device)


def coded_elements(column: Column, *, wanted_by: Feature) -> Coded:
    """Code a list column's elements as keys: int64 ``[elements]``, 0 = missing."""
    try:
        return column.elements.coded()
    except DataError as error:
        row = None if error.row is None else int(torch.searchsorted(column.values, error.row, right=True)) - 1
        problem = f"{type(wanted_by).__name__}: its lists hold no plain values"
        remedy = "Choose a column with lists of text, numbers or times"
        raise DataError(problem, column=column.name or None, row=row, remedy=remedy) from error
