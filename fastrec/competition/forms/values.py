"""Submissions with one line per row: how they look, and their score."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.competition.forms.rows import (
    Checked,
    RankedLines,
    ReportLines,
    RowKeys,
    SubmissionForm,
    arrow_column,
    key_text,
    refuse_nulls,
)
from fastrec.competition.reading import ROW_NUMBER
from fastrec.errors import DataError, FastrecError, MissingColumnError, SubmissionError
from fastrec.metrics import Metric, get_metric
from fastrec.table import Table
from fastrec.table.read import csv_header, read_file, read_text_csv
from fastrec.validate import Target


@dataclass(frozen=True, kw_only=True)
class ValueForm(SubmissionForm):
    """The form of a submission with one line for each test row.

    Args:
        ids: the columns that name a row, first in the file; none: lines are in the order of the test rows.
        values: the columns that are predicted. Of classes: one column for each class (their probabilities, in the order
            of the classes), or one (the probability of class 1, or the class itself if the metric scores classes).
        sep: separates two values, one character.
        decimals: digits after the point; None: as many as tell one float64 from another.
        per_list: in a ranking task the most lines of a list, best first; None: all, in the order of the candidates.
        ranks: in a ranking task the value is the place in the list, 1 for the best, instead of a score.
        probabilities: values must lie between 0 and 1.

    Raises:
        DataError: no file can have this form.
    """

    kind: ClassVar[str] = "values"
    ids: tuple[str, ...] = ()
    values: tuple[str, ...]
    sep: str = ","
    decimals: int | None = None
    per_list: int | None = None
    ranks: bool = False
    probabilities: bool = False

    def __post_init__(self) -> None:
        for name in ("ids", "values"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))  # it is frozen
        if not self.values or len(set(self.header)) < len(self.header) or len(self.sep) != 1 or self.sep in '"\r\n':
            problem = f"no submission has the columns {', '.join(self.header)} and the separator {self.sep!r}"
            remedy = "Name each column once, one of them to be predicted, and give one character as the separator"
            raise DataError(problem, remedy=remedy)

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that name a line; none: its number does."""
        return self.ids

    @property
    def predictions(self) -> tuple[str, ...]:
        """The columns of predicted values."""
        return self.values

    @property
    def delimiter(self) -> str:  # type: ignore[override]
        """The character between two columns."""
        return self.sep

    @classmethod
    def of_sample(cls, path: str | Path, *, ids: Sequence[str] | str | None = None, **options: Any) -> ValueForm:
        """Take the form from a sample submission: its separator and its columns.

        Args:
            path: the sample, such as ``sample_submission.csv``.
            ids: the columns that name a row; None: the first column, where there are two or more.
            **options: other arguments of ``ValueForm``.

        Raises:
            MissingFileError, UnreadableFileError, MissingColumnError: the file cannot be used.
        """
        sep = max((",", "\t", ";", "|"), key=lambda s: len(csv_header(path, sep=s)))
        header = csv_header(path, sep=sep)
        ids = (header[:1] if len(header) > 1 else []) if ids is None else [ids] if isinstance(ids, str) else list(ids)
        absent = next((n for n in ids if n not in header), None)
        if absent is not None:
            remedy = f"It has {', '.join(header)}"
            raise MissingColumnError("the column is not in the file", file=path, column=absent, remedy=remedy)
        return cls(ids=tuple(ids), values=tuple(n for n in header if n not in ids), sep=sep, **options)

    def write(self, path: str | Path, ids: Any, values: Mapping[str, Any]) -> None:
        """Write a submission, or nothing: the same input always gives the same bytes.

        Args:
            path: the file to write or replace.
            ids: pandas, polars or Arrow table, or a dict of columns, with the id columns; other columns are ignored.
            values: column → ``[n]`` numbers (or classes as text, integers or booleans), in the order of the ids.

        Raises:
            MissingColumnError: a column is not there.
            DataError: a value is missing or not finite, or lengths differ.
            SubmissionError: two rows have the same ids.
            WriteError: the file system refused; what was at ``path`` is as it was.
        """
        columns = {n: key_text(ids, n, what="id", times=True) for n in self.ids} | {
            n: self._value_text(values, n) for n in self.values
        }
        self.write_lines(path, columns)

    def read(self, path: str | Path) -> pa.Table:
        """Read a submission as text; see ``read_lines``."""
        return self.read_lines(path)

    def numbers(self, table: pa.Table, name: str, path: str | Path, empty: np.ndarray | None = None) -> np.ndarray:
        """Return a value column of a submission as float64 ``[n]``; rows of ``empty`` (bool ``[n]``) may have NaN.

        Raises:
            SubmissionError: a value is no finite number, or no probability if the form wants one.
        """
        text = arrow_column(table[name], name)
        try:
            numbers = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:  # text, or spaces around numbers
            numbers = np.array([_number(t or "nan") for t in text.to_pylist()])
        bad = ~np.isfinite(numbers)
        if empty is not None:
            words = pc.utf8_lower(pc.utf8_trim_whitespace(text))
            nothing = pc.is_in(words, value_set=pa.array([None, "", "nan", "na", "null"], text.type))
            bad &= ~(empty & nothing.to_numpy(zero_copy_only=False))
        problem = "is no finite number"
        if self.probabilities and not bad.any():
            bad, problem = (numbers < 0) | (numbers > 1), "is no probability"
        if bad.any():
            row = int(bad.argmax())
            problem = f"{text[row].as_py()!r} {problem} ({int(bad.sum())} such rows in all)"
            remedy = "Write a number between 0 and 1" if self.probabilities else "Write a number"
            raise SubmissionError(problem, file=path, column=name, row=row, remedy=remedy)
        return numbers

    def scores(self, table: pa.Table, path: str | Path, lists: pa.Array | None = None) -> np.ndarray:
        """Return a ranking's values as float64 ``[n]``, higher for better.

        Args:
            table: the submission as text.
            path: its file, for errors.
            lists: ``[n]`` the list of each line; None: it is not known, and a rank may stand twice.

        Raises:
            SubmissionError: a value is no finite number; of ranks: none from 1, or one that its list has twice.
        """
        numbers = self.numbers(table, self.values[-1], path)
        if not self.ranks:
            return numbers
        bad, problem = (numbers < 1) | (numbers != np.round(numbers)), "is no rank"
        if not bad.any() and lists is not None:
            codes = lists.dictionary_encode().indices.to_numpy()
            order = np.lexsort((np.arange(len(codes)), numbers, codes))
            again = (np.diff(codes[order]) == 0) & (np.diff(numbers[order]) == 0)
            bad[order[1:][again]], problem = True, "is the rank of an earlier line of its list too"
        if bad.any():
            row = int(bad.argmax())
            problem = f"{numbers[row]:g} {problem} ({int(bad.sum())} such rows in all)"
            remedy = "Number the lines of each list 1, 2, 3, …, the best first"
            raise SubmissionError(problem, file=path, column=self.values[-1], row=row, remedy=remedy)
        return -numbers

    def ranked_lines(self, path: str | Path, lists: str | None) -> RankedLines:
        """Read a ranking's submission: see ``SubmissionForm.ranked_lines``."""
        table, by = self.read_lines(path), lists or self.ids[0]
        groups = arrow_column(table[by], by) if by in self.ids else None
        return table.select(list(self.ids)), self.scores(table, path, groups), (by,), self.per_list

    def check(self, path: str | Path, test_path: str | Path, *, any_order: bool = False) -> Checked:
        """See ``check_submission``."""
        path, test_path = Path(path), Path(test_path)
        table = self.read_lines(path)
        # Lists that are cut have no line for every candidate.
        match = self.match(table, wanted_rows(self, test_path), path, complete=self.per_list is None)
        warnings = ()
        # Lists that are cut stand with their best first.
        if not any_order and self.per_list is None and (match[1:] < match[:-1]).any():
            warnings = (f"the rows are in another order than in {test_path.name}",)
        if self.ranks:
            # One id names a row, not a list.
            self.scores(table, path, arrow_column(table[self.ids[0]], self.ids[0]) if len(self.ids) > 1 else None)
            return len(table), len(table), warnings
        for name in self.values:
            first = table[name][0].as_py() if len(table) else ""
            if self.probabilities or first.lower() == "nan" or not np.isnan(_number(first)):
                self.numbers(table, name, path)
            elif pc.any(pc.equal(table[name], "")).as_py():  # classes as text
                row = pc.index(table[name], "").as_py()
                raise SubmissionError("a value is empty", file=path, column=name, row=row, remedy="Predict every row")
        return len(table), len(table) * len(self.values), warnings

    def _value_text(self, values: Mapping[str, Any], name: str) -> pa.Array:
        if name not in values:
            there = f"There is {', '.join(values)}"
            raise MissingColumnError("nothing was predicted for it", column=name, remedy=there)
        column = arrow_column(values[name], name)
        refuse_nulls(column, name, "a value is missing", "Predict every row")
        if not pa.types.is_floating(column.type):
            return column.cast(pa.large_string())
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise DataError("a value is not finite", column=name, row=row, remedy="Look at the model that made it")
        if self.decimals is None:
            return pa.array(list(map(repr, numbers.tolist())), pa.large_string())
        return pa.array([f"{v:.{self.decimals}f}" for v in numbers.tolist()], pa.large_string())


def sample_form(path: str | Path, names: Collection[str]) -> ValueForm:
    """Take the form from a sample submission, in which the given names, where some are there, name a row."""
    form = ValueForm.of_sample(path)
    ids = [n for n in form.header if n in names]
    return ValueForm.of_sample(path, ids=ids) if ids else form


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def class_columns(columns: tuple[str, ...], target: Target) -> dict[str, int]:
    """Map each value column to its prediction: by its name, or the end of it (``Class_3``), else by place."""
    outputs = target.outputs
    if target.task == "binary" and len(columns) == 2 and target.classes is not None:
        outputs = [str(v) for v in target.classes.values.to_pylist()]
    if set(columns) == set(outputs):
        return {n: outputs.index(n) for n in columns}
    ends = [[i for i, o in enumerate(outputs) if n.endswith(o) and not n[: -len(o)][-1:].isalnum()] for n in columns]
    if all(len(e) == 1 for e in ends) and len({e[0] for e in ends}) == len(columns):
        return {n: e[0] for n, e in zip(columns, ends, strict=True)}
    return {n: i for i, n in enumerate(columns)}


# The rows and the truth that lines of a ``ValueForm`` are about.


def read_text(path: Path, names: tuple[str, ...], sep: str = ",") -> pa.Table:
    """Read columns of a CSV or Parquet file as text; numbers of rows that it lacks are made.

    ``sep`` is one of the separators that a CSV may have.
    """
    if ROW_NUMBER in names and ROW_NUMBER not in names_in(path, sep):
        made = read_text(path, tuple(n for n in names if n != ROW_NUMBER), sep)
        made = made.append_column(ROW_NUMBER, pa.array(range(len(made))).cast(pa.large_string()))
        return made.select(list(names))
    if path.suffix.lower() in (".parquet", ".pq"):
        table = read_file(path, list(names))
        return pa.table({n: pc.cast(table[n], pa.large_string()) for n in names})
    return read_text_csv(path, names, sep=_separator(path, sep))


def names_in(path: Path, sep: str) -> list[str]:
    """Return the columns of a CSV or Parquet file, those of nested values left out."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return [f.name for f in read_file(path).schema if not pa.types.is_nested(f.type)]
    return csv_header(path, sep=_separator(path, sep))


def _separator(path: Path, sep: str) -> str:
    return max((sep, "\t", ","), key=lambda s: len(csv_header(path, sep=s)))


def read_truth(
    path: Path, ids: Sequence[str], label: str | None, *, sep: str = ",", more: Sequence[str] = ()
) -> tuple[pa.Table, str | None]:
    """Read a ranking's truth (CSV or Parquet with ``ids``) as text, and name its column of labels.

    If it lacks the recipe's ``label``, its one column of grades from 0 is taken; None: it has none, and its lines are
    the relevant ones. ``more`` are other columns to read.
    """
    beside = [n for n in names_in(path, sep) if n not in (*ids, *more)]
    if label not in beside:
        grades = [n for n in beside if _is_grade(read_text(path, (n,), sep)[n])]
        label = grades[0] if len(grades) == 1 else None
    return read_text(path, (*ids, *more, *([label] if label else [])), sep), label


def relevance(
    lines: pa.Table, truth: pa.Table, ids: Sequence[str], label: str | None, path: str | Path
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of candidates, float64 ``[n]``, and whether their list is in the truth, bool ``[n]``.

    ``lines`` and ``truth`` have the columns ``ids``: those of the list, and last the item. Lines that the truth lacks
    are irrelevant; without a column of labels all of its own are relevant.
    """
    asked, known = RowKeys(lines, ids, path), RowKeys(truth, ids, path)
    value = np.ones(len(truth)) if label is None else _labels(arrow_column(truth[label], label), label, path)
    again = known.repeated() if label is not None else []
    if len(again):
        problem = f"{known.named(again[0])} stands in an earlier row too ({len(again)} in all)"
        remedy = "Keep one label for each candidate"
        raise DataError(problem, file=path, column=", ".join(ids), row=int(again[0]), remedy=remedy)
    found = pc.index_in(asked.text, value_set=known.text)
    there = np.asarray(found.is_valid())
    made = np.zeros(len(lines))
    made[there] = value[found.drop_null().to_numpy()]
    counted = np.asarray(pc.is_in(_lists(lines, ids, path), value_set=_lists(truth, ids, path)))
    if not counted.any():
        raise DataError("the truth has no list of the submission", file=path, remedy="Give the right file")
    relevant = made[counted] > 0
    if relevant.all() or not relevant.any():
        problem = f"{'every' if relevant.any() else 'no'} line of the submission is relevant by this truth"
        remedy = "Give labels in a column, such as 0 and 1, or the relevant candidates alone"
        raise DataError(problem, file=path, column=label, remedy=remedy)
    return made, counted


def _lists(table: pa.Table, ids: Sequence[str], path: str | Path) -> pa.Array:
    return RowKeys(table, ids[:-1], path).text


def _is_grade(column: pa.ChunkedArray) -> bool:
    """Whether a column of text is 0 and 1, false and true, or grades: whole numbers from 0 on."""
    values = set(pc.unique(pc.utf8_lower(column)).to_pylist())
    if values == {"false", "true"}:
        return True
    numbers = {_number(v or "") for v in values}
    return len(numbers) > 1 and 0 in numbers and numbers <= set(range(limits.HIGHEST_GRADE + 1))


def _labels(column: pa.Array, name: str, path: str | Path) -> np.ndarray:
    made = np.empty(len(column))
    for row, text in enumerate(column.cast(pa.large_string()).to_pylist()):
        text = (text or "").lower()
        try:
            made[row] = text == "true" if text in ("true", "false") else float(text)
        except ValueError:
            made[row] = np.nan
        if np.isnan(made[row]):
            remedy = "Write a number, such as 0 or 1"
            raise DataError(f"{text!r} is no label", file=path, column=name, row=row, remedy=remedy)
    return made


def wanted_rows(form: ValueForm, path: Path) -> RowKeys:
    """Read the ids of the rows that a submission must have; of a form without ids their numbers."""
    return RowKeys(read_text(path, form.ids, form.sep) if form.ids else read_file(path), form.ids, path)


@dataclass(frozen=True)
class ValueScore(ReportLines):
    """A submission's score."""

    metric: str  #: the metric's name
    value: float  #: the metric
    rows: int  #: how many rows it is over
    relevant: str = ""  #: of lists: which of their lines are relevant
    #: of lists: how many lines of the submission and of the truth have no partner, in a sentence each
    unmatched: tuple[str, ...] = ()
    note: str = ""  #: why ``metric`` is not the one that was asked for
    others: Mapping[str, float] = field(default_factory=dict)  #: other metrics of the same lines, by name

    def lines(self) -> list[str]:
        """Return lines to print; the last is the metric and the score with five decimals."""
        relevant = [f"relevant: {self.relevant}"] if self.relevant else []
        note = [f"note: {self.note}"] if self.note else []
        others = [f"{name} {value:.5f}" for name, value in self.others.items()]
        unmatched = [f"unmatched: {text}" for text in self.unmatched]
        return [f"rows {self.rows}", *unmatched, *relevant, *note, *others, f"{self.metric} {self.value:.5f}"]


def score_values(
    submission_path: str | Path,
    truth_path: str | Path,
    form: SubmissionForm,
    *,
    metric: str | Metric,
    target: Target | None,
    label: str | None = None,
    lists: str | None = None,
) -> ValueScore:
    """Score a submission against the truth, whose rows it must have, in any order.

    A submission of classes has no probabilities: if the metric needs them, it is scored by accuracy instead.

    Relevant items that a list of a limited length leaves out rank below all places that count; a metric of whole lists
    is then computed at that length.

    Args:
        submission_path: the submission.
        truth_path: a CSV or Parquet file with the form's ids and the target; of a ranking task the candidates (list and
            item, in the form's ids) with their labels, or the relevant candidates alone: every other line is
            irrelevant, and lists that are not there do not count.
        form: the submission's form: a ``ValueForm``, or a ``SubmissionFormat`` whose test has a candidate a row.
        metric: the metric or its name.
        target: what is predicted; None in a ranking task.
        label: ranking: the truth's column of labels. Where it lacks that, its one column of 0 and 1, or of grades from
            0, is taken.
        lists: ranking: the column of lists, which the truth has if the form's ids lack it; None: the first of the ids.

    Raises:
        SubmissionError: the rows are not those of the truth, or a value is none of the task's.
        DataError: by the truth of a ranking every line of the submission is relevant, or none.
        FastrecError: a file is absent, corrupt or lacks a column.
    """
    path, truth_path, metric = Path(submission_path), Path(truth_path), get_metric(metric)
    if target is None:
        return _score_lists(path, truth_path, form, metric, label, lists)
    assert isinstance(form, ValueForm)
    table = form.read_lines(path)
    truth = Table.read(read_file(truth_path))
    rows = form.match(table, wanted_rows(form, truth_path), path, complete=form.per_list is None)
    try:
        codes = target.encode(truth)
    except FastrecError as error:
        raise error.of_file(truth_path) from None
    label = target.restore(codes if target.task == "multiclass" else codes.double())
    predicted, are_classes = predicted_values(table, form, target, path)
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


def predicted_values(table: pa.Table, form: ValueForm, target: Target, path: Path) -> tuple[torch.Tensor, bool]:
    """Return predictions on the target's own scale, classes by their codes; and whether they are classes."""
    if len(form.values) == 1 and target.classes is not None:
        name, refused = form.values[0], None
        try:
            numbers = form.numbers(table, name, path)
        except SubmissionError as error:
            numbers, refused = None, error
        # The numbers of a binary task may be its own raw values, and not probabilities.
        raw = target.classes.values.to_pylist()
        plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in raw)
        raw = {float(v) for v in raw} if plain else {0.0, 1.0}
        own = numbers is None or (raw != {0.0, 1.0} and set(np.unique(numbers)) <= raw)
        if own or target.task == "multiclass":
            known = pa.array([str(v) for v in target.classes.values.to_pylist()], pa.large_string())
            codes = pc.index_in(pc.cast(table[name], pa.large_string()), value_set=known)
            none = target.task == "binary" and codes.null_count == len(codes)
            if refused is not None and none and any(not np.isnan(_number(v)) for v in table[name].to_pylist()):
                raise refused  # they are numbers, but for some
            if codes.null_count:
                row = int(np.flatnonzero(np.asarray(codes.is_null()))[0])
                problem = f"{table[name][row].as_py()!r} is no class"
                remedy = f"The classes are {', '.join(known.to_pylist()[:10])}"
                raise SubmissionError(problem, file=path, column=name, row=row, remedy=remedy)
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


def _score_lists(
    path: Path, truth_path: Path, form: SubmissionForm, metric: Metric, label: str | None, lists: str | None
) -> ValueScore:
    lines, scores, by, most = form.ranked_lines(path, lists)
    absent = [n for n in by if n not in lines.column_names]
    keys = [n for n in by if n not in absent] + [n for n in lines.column_names if n not in by]
    truth, label = read_truth(truth_path, keys, label, sep=form.delimiter, more=absent)
    if absent:  # the truth says which list a line is in
        rows = RowKeys(lines, keys, path).match(RowKeys(truth, keys, truth_path), role="no line", complete=most is None)
        for name in absent:
            lines = lines.append_column(name, truth[name].take(pa.array(rows)))
    names, listed = [*by, *(n for n in keys if n not in by)], len(lines)
    wanted, there = (RowKeys(t, by, f).text for t, f in ((truth, truth_path), (lines, path)))
    gone = np.flatnonzero(~np.asarray(pc.is_in(wanted, value_set=there)))
    if len(gone):
        problem = f"{RowKeys(truth, by, truth_path).named(gone[0])} has no line ({len(gone)} such in all)"
        remedy = "Write lines for every list of the truth"
        raise SubmissionError(problem, file=path, column=", ".join(by), remedy=remedy)
    lines = lines.select(names)
    unmatched = _unmatched(lines, truth, by, label)
    asked, known = RowKeys(lines, names, path).text, RowKeys(truth, names, truth_path).text
    unlisted = truth.filter(pc.invert(pc.is_in(known, value_set=asked))).select(names)
    lines = pa.concat_tables([lines, unlisted.cast(lines.schema)])
    labels, counted = relevance(lines, truth, names, label, truth_path)
    codes = RowKeys(lines, by, path).text.dictionary_encode().indices.to_numpy().astype(np.int64)
    if most is None:  # all candidates are there: only relevant items that were none count beside them
        known = (np.arange(len(labels)) < listed) | (labels > 0)
        labels, counted, codes = labels[known], counted[known], codes[known]
        most = int(np.bincount(codes[:listed]).max()) if len(labels) > listed else None
    # Below all that is listed come irrelevant items, then relevant ones.
    floor = scores.min() - 1.0
    scores = np.append(scores, floor - (labels[listed:] > 0))
    name, said = metric.name, "every line of the truth" if label is None else f"{label} above 0"
    if most is not None:
        metric = get_metric(f"{name}@{most}") if name in ("mrr", "ndcg", "map") else metric
        # A list that ends before place k is filled up, so that no relevant item that it lacks gets among the first k.
        k = int(metric.name.partition("@")[2] or 0)
        lengths = np.bincount(codes[:listed])
        fill = np.repeat(np.arange(len(lengths)), np.maximum(k - lengths, 0))
        fill = fill[np.isin(fill, codes[counted])]
        codes, labels, scores = (
            np.append(codes, fill),
            np.append(labels, 0.0 * fill),
            np.append(scores, floor + 0.0 * fill),
        )
        counted = np.append(counted, np.ones(len(fill), dtype=bool))
    value = metric(labels[counted], scores[counted], groups=codes[counted])
    return ValueScore(name, value, int(counted[:listed].sum()), said, unmatched)


def _unmatched(lines: pa.Table, truth: pa.Table, by: Sequence[str], label: str | None) -> tuple[str, ...]:
    """Say how many lines of the submission, and of the truth, have no partner; ``by``: what names a list."""
    asked, known = (RowKeys(t, lines.column_names, "").text for t in (lines, truth))
    lists, there = (RowKeys(t, by, "").text for t in (lines, truth))
    counted, said = np.asarray(pc.is_in(lists, value_set=there)), []
    if not counted.all():
        some, of = pc.count_distinct(lists.filter(pa.array(~counted))).as_py(), pc.count_distinct(lists).as_py()
        said.append(f"{some} of {of} lists of the submission are not in the truth, and do not count")
    alone = int((counted & ~np.asarray(pc.is_in(asked, value_set=known))).sum())
    if alone and label is not None:  # a truth of relevant lines alone lacks all others
        said.append(f"{alone} lines of the submission are not in the truth, and count as irrelevant")
    unlisted = len(truth) - int(np.asarray(pc.is_in(known, value_set=asked)).sum())
    if unlisted:
        said.append(f"{unlisted} lines of the truth are not in the submission: relevant ones count as not found")
    return tuple(said)
