"""``score_values``: the score of a submission with one line per row, by any metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.competition.forms.form import ReportLines
from fastrec.competition.forms.value_columns import class_columns
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.forms.value_rows import read_truth, relevance, wanted_rows
from fastrec.errors import FastrecError, SubmissionError
from fastrec.metrics import Metric, get_metric
from fastrec.table import Table
from fastrec.table.read import read_file
from fastrec.validate import Target


@dataclass(frozen=True)
class ValueScore(ReportLines):
    """A submission's score.

    Args:
        metric: the metric's name.
        value: the metric.
        rows: how many rows it is over.
        relevant: of lists: which of their lines are relevant.
        note: why ``metric`` is not the one that was asked for.
        others: other metrics of the same lines, by name.
    """

    metric: str
    value: float
    rows: int
    relevant: str = ""
    note: str = ""
    others: Mapping[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return lines to print; the last is the metric and the score with five decimals."""
        relevant = [f"relevant: {self.relevant}"] if self.relevant else []
        note = [f"note: {self.note}"] if self.note else []
        others = [f"{name} {value:.5f}" for name, value in self.others.items()]
        return [f"rows {self.rows}", *relevant, *note, *others, f"{self.metric} {self.value:.5f}"]


def score_values(
    submission_path: str | Path,
    truth_path: str | Path,
    form: ValueForm,
    *,
    metric: str | Metric,
    target: Target | None,
    label: str | None = None,
) -> ValueScore:
    """Score a submission against the truth, whose rows it must have, in any order.

    A submission of classes has no probabilities: if the metric needs them, it is scored by accuracy instead.

    Args:
        submission_path: the submission.
        truth_path: a CSV or Parquet file with the form's ids and the target; of a ranking task the candidates (list and
            item, in the form's ids) with their labels, or the relevant candidates alone: every other line is
            irrelevant, and lists that are not there do not count.
        form: the submission's form.
        metric: the metric or its name.
        target: what is predicted; None in a ranking task.
        label: ranking: the truth's column of labels. Where it lacks that, its one column of 0 and 1 is taken.

    Raises:
        SubmissionError: the rows are not those of the truth, or a value is none of the task's.
        DataError: by the truth of a ranking every line of the submission is relevant, or none.
        FastrecError: a file is absent, corrupt or lacks a column.
    """
    path, truth_path, metric = Path(submission_path), Path(truth_path), get_metric(metric)
    table = form.read_lines(path)
    if target is None:
        return _score_lists(path, table, truth_path, form, metric, label)
    truth = Table.read(read_file(truth_path))
    rows = form.match(table, wanted_rows(form, truth_path), path, complete=form.per_list is None)
    try:
        codes = target.encode(truth)
    except FastrecError as error:
        raise error.of_file(truth_path) from None
    label = target.restore(codes if target.task == "multiclass" else codes.double())
    predicted, are_classes = _predicted(table, form, target, path)
    placed = torch.zeros_like(predicted)
    placed[torch.from_numpy(rows)] = predicted
    if not are_classes or metric.wants not in ("probabilities", "scores"):
        return ValueScore(metric.name, metric(label, placed), len(table))
    note = f"the submission holds classes, and {metric.name} needs probabilities; {_how_to_write(form, target)}"
    others = {name: get_metric(name)(label, placed) for name in ("balanced_accuracy", "f1_macro")}
    return ValueScore("accuracy", get_metric("accuracy")(label, placed), len(table), note=note, others=others)


def _how_to_write(form: ValueForm, target: Target) -> str:
    assert target.classes is not None
    names = [str(v) for v in target.classes.values.to_pylist()]
    if target.task == "binary":
        return f"write the probability of {names[-1]!r} in the column {form.values[0]!r}"
    values = ", ".join(map(repr, names)) if len(names) <= 10 else f"{names[0]!r}, {names[1]!r}, …"
    return (
        f"submission = ValueForm(ids={form.ids!r}, values=({values})) in the recipe writes them, one column for each "
        "class"
    )


def _predicted(table: pa.Table, form: ValueForm, target: Target, path: Path) -> tuple[torch.Tensor, bool]:
    """Return predictions on the target's own scale, classes by their codes; and whether they are classes."""
    if len(form.values) == 1 and target.classes is not None:
        name = form.values[0]
        try:
            numbers = form.numbers(table, name, path)
        except SubmissionError:
            numbers = None
        if numbers is None or target.task == "multiclass" or _are_classes(numbers, target):
            known = pa.array([str(v) for v in target.classes.values.to_pylist()], pa.large_string())
            codes = pc.index_in(pc.cast(table[name], pa.large_string()), value_set=known)
            if codes.null_count:
                row = int(np.flatnonzero(np.asarray(codes.is_null()))[0])
                raise SubmissionError(
                    f"{table[name][row].as_py()!r} is no class", file=path, column=name, row=row,
                    remedy=f"The classes are {', '.join(known.to_pylist()[:10])}",
                )  # fmt: skip
            return torch.from_numpy(codes.to_numpy().astype(np.float64)), True
        return torch.from_numpy(numbers), False
    places = class_columns(form.values, target)
    wide = np.zeros((len(table), len(form.values)))
    for name, i in places.items():
        wide[:, i] = form.numbers(table, name, path)
    made = torch.from_numpy(wide)
    if target.task == "binary":
        return made[:, -1], False
    return made[:, 0] if made.shape[1] == 1 else made, False


def _are_classes(numbers: np.ndarray, target: Target) -> bool:
    """Return whether a binary task's numbers are its own raw values, and not probabilities."""
    raw = target.classes.values.to_pylist()
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in raw):
        return False
    return {float(v) for v in raw} != {0.0, 1.0} and set(np.unique(numbers)) <= {float(v) for v in raw}


def _score_lists(
    path: Path, table: pa.Table, truth_path: Path, form: ValueForm, metric: Metric, label: str | None
) -> ValueScore:
    truth, label = read_truth(truth_path, form, label)
    scores = torch.from_numpy(form.numbers(table, form.values[-1], path))
    wanted, lists = truth[form.ids[0]].combine_chunks(), table[form.ids[0]].combine_chunks()
    absent = np.flatnonzero(~np.asarray(pc.is_in(wanted, value_set=lists)))
    if len(absent):
        row = int(absent[0])
        raise SubmissionError(
            f"{form.ids[0]} {wanted[row].as_py()} has no line ({len(absent)} such in all)", file=path,
            column=form.ids[0], remedy="Write lines for every list of the truth",
        )  # fmt: skip
    relevant, counted = map(torch.from_numpy, relevance(table, truth, form.ids, label, truth_path))
    groups = torch.from_numpy(lists.dictionary_encode().indices.to_numpy().astype(np.int64))
    value = metric(relevant[counted], scores[counted], groups=groups[counted])
    said = "every line of the truth" if label is None else f"{label} above 0"
    return ValueScore(metric.name, value, int(counted.sum()), said)
