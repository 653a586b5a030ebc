"""Submissions with one line per row: their form, check and score."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec._core.messages import refuse_absent
from fastrec.competition.forms.rows import (
    Checked,
    RankedLines,
    RowKeys,
    SubmissionForm,
    arrow_column,
    key_text,
    refuse_nulls,
)
from fastrec.competition.reading import ROW_NUMBER
from fastrec.errors import DataError, MissingColumnError, SubmissionError, refuse_rows
from fastrec.table.read import csv_header, read_file, read_text_csv
from fastrec.validate import Target


@dataclass(frozen=True, kw_only=True)
class ValueForm(SubmissionForm):
    """The form of a submission with one line for each test row.

    Args:
        ids: the columns that name a row, first in the file; none: lines are in the order of the test rows.
        values: the predicted columns. Of classes: one column for each class (their probabilities, in the order of the
            classes), or one (the probability of class 1, or the class itself if the metric scores classes).
        sep: separates two values, one character.
        decimals: digits after the point; None: enough to restore the float64.
        per_list: ranking: the most lines of a list, best first; None: all, in the order of the candidates.
        ranks: ranking: the value is the place in the list, 1 for the best, instead of a score.
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
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))  # the class is frozen
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
        """Read the form from a sample submission: its separator and its columns.

        Args:
            path: the sample, such as ``sample_submission.csv``.
            ids: the columns that name a row; None: the first of two or more columns.
            **options: other arguments of ``ValueForm``.

        Raises:
            MissingFileError, UnreadableFileError, MissingColumnError: the file cannot be used.
        """
        sep, header = separated(path)
        ids = (header[:1] if len(header) > 1 else []) if ids is None else [ids] if isinstance(ids, str) else list(ids)
        refuse_absent(ids, header, "the column is not in the file", file=path)
        return cls(ids=tuple(ids), values=tuple(n for n in header if n not in ids), sep=sep, **options)

    def write(self, path: str | Path, ids: Any, values: Mapping[str, Any]) -> None:
        """Write a submission, or nothing: the same input always gives the same bytes.

        Args:
            path: the file to write or replace.
            ids: pandas, polars or Arrow table, or a dict of columns, with the id columns; other columns are ignored.
            values: column → ``[n]`` numbers (or classes as text, integers or booleans), in the order of the ids.

        Raises:
            MissingColumnError: a column is absent.
            DataError: a value is missing or not finite, or lengths differ.
            SubmissionError: two rows have the same ids.
            WriteError: the file system refused; ``path`` is unchanged.
        """
        columns = {n: key_text(ids, n, what="id", times=True) for n in self.ids} | {
            n: self._value_text(values, n) for n in self.values
        }
        self.write_lines(path, columns)

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
        about = {"remedy": "Write a number between 0 and 1" if self.probabilities else "Write a number"}
        refuse_rows(bad, lambda r: f"{text[r].as_py()!r} {problem}", SubmissionError, file=path, column=name, **about)
        return numbers

    def scores(self, table: pa.Table, path: str | Path, lists: pa.Array | None = None) -> np.ndarray:
        """Return a ranking's values as float64 ``[n]``, higher for better.

        Args:
            table: the submission as text.
            path: its file, for errors.
            lists: ``[n]`` the list of each line; None: unknown, so ranks may repeat.

        Raises:
            SubmissionError: a value is no finite number; a rank is no whole number from 1, or repeats in its list.
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
        about = {"column": self.values[-1], "remedy": "Number the lines of each list 1, 2, 3, …, the best first"}
        refuse_rows(bad, lambda row: f"{numbers[row]:g} {problem}", SubmissionError, file=path, **about)
        return -numbers

    def ranked_lines(self, path: str | Path, lists: str | None) -> RankedLines:
        """See ``SubmissionForm.ranked_lines``."""
        table, by = self.read_lines(path), lists or self.ids[0]
        groups = arrow_column(table[by], by) if by in self.ids else None
        return table.select(list(self.ids)), self.scores(table, path, groups), (by,), self.per_list

    def check(self, path: str | Path, test_path: str | Path, *, any_order: bool = False) -> Checked:
        """See ``check_submission``."""
        path, test_path = Path(path), Path(test_path)
        table = self.read_lines(path)
        # Truncated lists lack lines of candidates.
        match = self.match(table, wanted_rows(self, test_path), path, complete=self.per_list is None)
        warnings = ()
        # Truncated lists are sorted, the best first.
        if not any_order and self.per_list is None and (match[1:] < match[:-1]).any():
            warnings = (f"the rows are in another order than in {test_path.name}",)
        if self.ranks:
            # A single id names a row, not a list.
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
        about = {"column": name, "remedy": "Look at the model that made it"}
        refuse_rows(~np.isfinite(numbers), "a value is not finite", **about)
        if self.decimals is None:
            return pa.array(list(map(repr, numbers.tolist())), pa.large_string())
        return pa.array([f"{v:.{self.decimals}f}" for v in numbers.tolist()], pa.large_string())


def sample_form(path: str | Path, names: Collection[str]) -> ValueForm:
    """Read the form from a sample submission; its ids are those of ``names`` that it has."""
    form = ValueForm.of_sample(path)
    ids = [n for n in form.header if n in names]
    return ValueForm.of_sample(path, ids=ids) if ids else form


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def class_columns(columns: tuple[str, ...], target: Target) -> dict[str, int]:
    """Map each value column to its prediction: by its name, or its name's end (``Class_3``), else by place."""
    outputs = target.outputs
    if target.task == "binary" and len(columns) == 2 and target.classes is not None:
        outputs = [str(v) for v in target.classes.values.to_pylist()]
    if set(columns) == set(outputs):
        return {n: outputs.index(n) for n in columns}
    ends = [[i for i, o in enumerate(outputs) if n.endswith(o) and not n[: -len(o)][-1:].isalnum()] for n in columns]
    if all(len(e) == 1 for e in ends) and len({e[0] for e in ends}) == len(columns):
        return {n: e[0] for n, e in zip(columns, ends, strict=True)}
    return {n: i for i, n in enumerate(columns)}


def read_text(path: Path, names: tuple[str, ...], sep: str = ",") -> pa.Table:
    """Read columns of a CSV (separated by ``sep``) or Parquet file as text; absent row numbers are added."""
    if ROW_NUMBER in names and ROW_NUMBER not in names_in(path, sep):
        made = read_text(path, tuple(n for n in names if n != ROW_NUMBER), sep)
        made = made.append_column(ROW_NUMBER, pa.array(range(len(made))).cast(pa.large_string()))
        return made.select(list(names))
    if path.suffix.lower() in (".parquet", ".pq"):
        table = read_file(path, list(names))
        return pa.table({n: pc.cast(table[n], pa.large_string()) for n in names})
    return read_text_csv(path, names, sep=separated(path, (sep, "\t", ","))[0])


def names_in(path: Path, sep: str) -> list[str]:
    """Return the columns of a CSV or Parquet file without nested values."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return [f.name for f in read_file(path).schema if not pa.types.is_nested(f.type)]
    return separated(path, (sep, "\t", ","))[1]


def separated(path: str | Path, signs: Sequence[str] = (",", "\t", ";", "|")) -> tuple[str, list[str]]:
    """Return the separator that splits a CSV's header into the most columns, and these."""
    headers = {sign: csv_header(path, sep=sign) for sign in signs}
    return max(headers.items(), key=lambda item: len(item[1]))


def read_truth(
    path: Path, ids: Sequence[str], label: str | None, *, sep: str = ",", more: Sequence[str] = ()
) -> tuple[pa.Table, str | None]:
    """Read a ranking's truth (CSV or Parquet with ``ids``) as text, and name its column of labels.

    Without the recipe's ``label``, that is its one column of grades from 0; None: there is none, and all its lines are
    relevant. ``more`` are other columns to read.
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

    ``lines`` and ``truth`` have the columns ``ids``: those of the list, then the item. Lines that the truth lacks are
    irrelevant; without a column of labels all lines of the truth are relevant.
    """
    asked, known = RowKeys(lines, ids, path), RowKeys(truth, ids, path)
    value = np.ones(len(truth)) if label is None else _labels(arrow_column(truth[label], label), label, path)
    if label is not None:
        known.refuse(known.repeated(), "stands in an earlier row too", "Keep one label for each candidate", DataError)
    found = pc.index_in(asked.text, value_set=known.text)
    there = np.asarray(found.is_valid())
    made = np.zeros(len(lines))
    made[there] = value[found.drop_null().to_numpy()]
    lists, in_truth = (RowKeys(t, ids[:-1], path).text for t in (lines, truth))
    counted = np.asarray(pc.is_in(lists, value_set=in_truth))
    if not counted.any():
        raise DataError("the truth has no list of the submission", file=path, remedy="Give the right file")
    relevant = made[counted] > 0
    if relevant.all() or not relevant.any():
        problem = f"{'every' if relevant.any() else 'no'} line of the submission is relevant by this truth"
        remedy = "Give labels in a column, such as 0 and 1, or the relevant candidates alone"
        raise DataError(problem, file=path, column=label, remedy=remedy)
    return made, counted


def _is_grade(column: pa.ChunkedArray) -> bool:
    values = set(pc.unique(pc.utf8_lower(column)).to_pylist())
    if values == {"false", "true"}:
        return True
    numbers = {_number(v or "") for v in values}
    return len(numbers) > 1 and 0 in numbers and numbers <= set(range(limits.HIGHEST_GRADE + 1))


def _labels(column: pa.Array, name: str, path: str | Path) -> np.ndarray:
    texts = [(text or "").lower() for text in column.cast(pa.large_string()).to_pylist()]
    made = np.array([float(text == "true") if text in ("true", "false") else _number(text) for text in texts])
    remedy = "Write a number, such as 0 or 1"
    refuse_rows(np.isnan(made), lambda row: f"{texts[row]!r} is no label", file=path, column=name, remedy=remedy)
    return made


def wanted_rows(form: ValueForm, path: Path) -> RowKeys:
    """Read the ids of the rows that a submission must have; without ids their numbers."""
    return RowKeys(read_text(path, form.ids, form.sep) if form.ids else read_file(path), form.ids, path)


def predicted_values(table: pa.Table, form: ValueForm, target: Target, path: Path) -> tuple[torch.Tensor, bool]:
    """Return predictions on the target's original scale, classes as codes; and whether they are classes."""
    if len(form.values) == 1 and target.classes is not None:
        name, refused = form.values[0], None
        try:
            numbers = form.numbers(table, name, path)
        except SubmissionError as error:
            numbers, refused = None, error
        # The numbers of a binary task may be its raw values instead of probabilities.
        raw = target.classes.values.to_pylist()
        plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in raw)
        raw = {float(v) for v in raw} if plain else {0.0, 1.0}
        own = numbers is None or (raw != {0.0, 1.0} and set(np.unique(numbers)) <= raw)
        if own or target.task == "multiclass":
            known = pa.array([str(v) for v in target.classes.values.to_pylist()], pa.large_string())
            codes = pc.index_in(pc.cast(table[name], pa.large_string()), value_set=known)
            none = target.task == "binary" and codes.null_count == len(codes)
            if refused is not None and none and any(not np.isnan(_number(v)) for v in table[name].to_pylist()):
                raise refused  # most values are numbers
            about = {"column": name, "remedy": f"The classes are {', '.join(known.to_pylist()[:10])}"}
            odd = np.asarray(codes.is_null())
            refuse_rows(odd, lambda r: f"{table[name][r].as_py()!r} is no class", SubmissionError, file=path, **about)
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
