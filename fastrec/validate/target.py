"""``Target``: conversion of raw target values to labels, and of predictions back to raw values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError, refuse, refuse_rows, warn
from fastrec.metrics.ranking import choice
from fastrec.metrics.registry import TASKS
from fastrec.table import Column, Table, Vocab
from fastrec.table.state import Saved

Task = Literal["ranking", "binary", "multiclass", "regression", "multilabel"]


def check_label(label: torch.Tensor, task: Task, n_outputs: int) -> None:
    """Refuse targets ``[n]`` or ``[n, k]``, as described in ``Rows``, that do not fit their task.

    ``n_outputs``: the number of classes (multiclass) or of target columns.
    """
    wide = (task == "multilabel") or (task == "regression" and n_outputs > 1)
    if label.ndim != 1 + wide or (wide and label.shape[1] != n_outputs):
        remedy = f"Give [n, {n_outputs}]" if wide else "Give one value for each row"
        raise DataError(f"the target of a {task} task has the shape {tuple(label.shape)}", remedy=remedy)
    if task == "ranking":
        return
    value = (label if label.ndim == 2 else label.unsqueeze(1)).double()
    bad, problem = ~value.isfinite(), "missing or infinite"
    if not bool(bad.any()) and task in ("binary", "multilabel"):
        bad, problem = (value != 0) & (value != 1), "neither 0 nor 1"
    elif not bool(bad.any()) and task == "multiclass":
        bad = (value < 0) | (value >= n_outputs) | (value != value.round())
        problem = f"no class of 0 to {n_outputs - 1}"
    refuse(bad.any(1), None, f"a target is {problem}", f"Mend the target, or name another task than {task}")


Scale = Literal["log", "log1p"]


class Target(Saved):
    """A table's target column or columns in the form that a task needs.

    Text, booleans and categories are classes: two make a binary task, more a multiclass one. Numbers with fractions and
    times mean regression. Whole numbers with few distinct values may be either, so the task must be given.

    Args:
        names: the target column, or several (``multilabel``; ``regression`` of several targets).
        classes: the raw values of classes 0, 1, …; None if there are none.
        scale: regression targets are learned as their ``log`` or ``log1p``.
    """

    learned = ()

    def __init__(
        self, names: str | Sequence[str], task: Task, *, classes: Vocab | None = None, scale: Scale | None = None
    ) -> None:
        self.names = [names] if isinstance(names, str) else list(names)
        self.task, self.classes, self.scale = choice(task, "task", TASKS), classes, scale
        if scale not in (None, "log", "log1p") or (scale is not None and task != "regression"):
            remedy = "Give 'log' or 'log1p', for a regression task"
            raise DataError(f"a {task} target has no scale {scale!r}", remedy=remedy)

    @classmethod
    def fit(
        cls,
        table: Any,
        names: str | Sequence[str],
        task: Task | None = None,
        *,
        positive: Any = None,
        scale: Scale | None = None,
    ) -> Target:
        """Find the classes of training rows, and the task if it is not given.

        Args:
            table: training rows; rows with a missing target are ignored.
            names: the target column or columns.
            task: the task; None: inferred from the values.
            positive: a binary task's class 1; None: the later value in sorted order (1, True, 'Y', 'yes').
            scale: see ``Target``.

        Raises:
            DataError: the values do not determine the task, or do not fit the given one: no value at all, only one
                class, or more than two for a binary task.
        """
        names = [names] if isinstance(names, str) else list(names)
        columns = [Table.read(table, [n])[n] for n in names]
        for column in columns:
            if not len(column) or bool(column.is_missing().all()):
                raise DataError("the target has no value", column=column.name, remedy="Give rows with a target")
        task = _task_of(columns) if task is None else choice(task, "task", TASKS)
        if len(names) > 1 and task not in ("multilabel", "regression"):
            remedy = "Give one column"
            raise DataError(f"a {task} task has one target, not {len(names)}", column=names[1], remedy=remedy)
        classes = _classes_of(columns[0], task, positive) if task in ("binary", "multiclass") else None
        return cls(names, task, classes=classes, scale=scale)

    @property
    def n_outputs(self) -> int:
        """The number of classes (multiclass) or of target columns; otherwise 1."""
        return len(self.classes) - 1 if self.task == "multiclass" and self.classes is not None else len(self.names)

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs: a multiclass task's classes as text, or the target columns."""
        if self.task == "multiclass":
            return [str(v) for v in self.classes.values.to_pylist()]
        return list(self.names)

    def known(self, table: Any) -> torch.Tensor:
        """Return the rows without a missing target: bool ``[n]`` on the CPU."""
        table = Table.read(table, self.names)
        return ~torch.stack([table[n].is_missing().cpu() for n in self.names]).any(0)

    def labelled(self, table: Any, where: str) -> torch.Tensor:
        """Return the numbers of the rows with a target, int64 ``[m]``; warn of others, which are rows of ``where``."""
        known = self.known(table)
        if 0 < int(known.sum()) < len(known):
            first = f"(the first is row {int((~known).nonzero()[0])})"
            warn(f"{where}: {int((~known).sum())} training rows have no target {first}; they are left out")
        return known.nonzero().squeeze(1)

    def encode(self, table: Any) -> torch.Tensor:
        """Return labels as described in ``Rows``: float64 or int64 ``[n]``, ``[n, k]`` for several targets.

        Raises:
            MissingColumnError: a target column is missing.
            DataError: a value is missing, is a class that training rows did not have, or has no logarithm.
        """
        table = Table.read(table, self.names)
        values = [self._encode_one(table[n]) for n in self.names]
        return values[0] if len(values) == 1 and self.task != "multilabel" else torch.stack(values, 1)

    def strata(self, table: Any) -> Column:
        """Return the rows' classes as a column to stratify folds by, with the target's name and values."""
        codes, name = self.encode(table).long(), self.names[0]
        if self.classes is None or len(self.classes.values) > 50:
            return Column("number", codes, name=name)
        return Column("category", codes.int() + 1, name=name, distinct=self.classes.values)

    def _encode_one(self, column: Column) -> torch.Tensor:
        refuse(column.is_missing(), column.name, "the target is missing", "Drop the row")
        if self.classes is not None:
            # Code 0 of a Vocab means a missing or unseen value.
            codes = self.classes.encode(column).cpu().long() - 1
            known = ", ".join(map(str, self.classes.values.to_pylist()[:5])) + ", …" * (len(self.classes) > 6)
            problem = "the target is of a class that no training row has"
            refuse(codes < 0, column.name, problem, f"The classes are {known}")
            return codes if self.task == "multiclass" else codes.double()
        try:
            values = column.number().cpu()
        except DataError as error:
            remedy = "Name another task, or another target"
            raise DataError("the target is not a number", column=column.name, remedy=remedy) from error
        refuse(values.isinf(), column.name, "the target is infinite", "Give a finite number, or drop the row")
        if self.scale is None:
            return values
        scaled = values.log() if self.scale == "log" else values.log1p()
        about = {"column": column.name, "remedy": "Give another scale, or drop the row"}
        refuse_rows(~scaled.isfinite(), lambda row: f"{float(values[row]):g} has no {self.scale}", **about)
        return scaled

    def restore(self, values: torch.Tensor) -> torch.Tensor:
        """Convert regression labels or predictions to the target's own scale; other tasks' values are unchanged."""
        if self.scale is None:
            return values
        return values.exp() if self.scale == "log" else values.expm1()

    def decode(self, codes: torch.Tensor) -> pa.Array:
        """Return the raw values of class numbers ``[n]`` from 0.

        Raises:
            DataError: the task has no classes.
        """
        if self.classes is None:
            raise DataError(f"a {self.task} target has no classes", remedy="Use the values as they are")
        return self.classes.decode(codes.long() + 1)

    def __repr__(self) -> str:
        return f"Target({', '.join(self.names)}: {self.task}, {self.n_outputs} outputs)"


def _task_of(columns: Sequence[Column]) -> Task:
    if len(columns) > 1:
        values = [c.number() for c in columns if c.plain().kind == "number"]
        flags = len(values) == len(columns) and all(((v == 0) | (v == 1) | v.isnan()).all() for v in values)
        return "multilabel" if flags else "regression"
    column = columns[0]
    if column.kind == "datetime":
        return "regression"
    plain = column.plain()
    if plain.kind == "category" or (plain.kind == "number" and plain.values.dtype == torch.bool):
        return "binary" if len(Vocab.fit(column).values) <= 2 else "multiclass"
    values = column.number()
    values = torch.unique(values[~values.isnan()])
    # More distinct values than this mean regression; fewer whole numbers may be classes.
    if bool((values != values.round()).any()) or len(values) > 20:
        return "regression"
    shown = ", ".join(f"{v:g}" for v in values[:5].tolist())
    kind = "binary" if len(values) <= 2 else "multiclass"
    raise DataError(
        f"the target is whole numbers of few different values ({shown}{', …' if len(values) > 5 else ''}): they may be "
        "classes or amounts",
        column=column.name,
        remedy=f"Say which: task='{kind}' or task='regression' (or a metric that does)",
    )


def _classes_of(column: Column, task: Task, positive: Any) -> Vocab:
    vocab = Vocab.fit(column.plain() if column.ordered is None else column)
    count = len(vocab) - 1
    if count < 2:
        problem = f"the target has one class only ({vocab.values[0].as_py()!r})"
        raise DataError(problem, column=column.name, remedy="Give rows of both classes; a constant needs no model")
    if task == "multiclass":
        return vocab
    if count > 2:
        raise DataError(f"the target has {count} values, not two", column=column.name, remedy="Give task='multiclass'")
    values = vocab.values.to_pylist()
    if positive is None or values[1] == positive:
        return vocab
    if values[0] != positive:
        remedy = f"The classes are {values[0]}, {values[1]}"
        raise DataError(f"no row has the class {positive!r}", column=column.name, remedy=remedy)
    return Vocab(vocab.values.take(pa.array(np.array([1, 0]))), ordered=True, name=vocab.name)
