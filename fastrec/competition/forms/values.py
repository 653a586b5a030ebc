"""Submissions with one line per row: their columns, their truth, their predictions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core import limits
from fastrec.competition.forms.rows import RowKeys, SubmissionForm, arrow_column, as_number, separated
from fastrec.competition.reading import ROW_NUMBER
from fastrec.errors import DataError, SubmissionError, refuse_rows
from fastrec.table.read import read_file, read_text_csv
from fastrec.validate import Target


def sample_form(path: str | Path, names: Collection[str]) -> SubmissionForm:
    """Read the form from a sample submission; its ids are those of ``names`` that it has."""
    form = SubmissionForm.of_sample(path)
    ids = [n for n in form.header if n in names]
    return SubmissionForm.of_sample(path, ids=ids) if ids else form


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


def read_truth(
    path: Path, ids: Sequence[str], label: str | None, *, sep: str = ",", more: Sequence[str] = ()
) -> tuple[pa.Table, str | None]:
    """Read a ranking's truth (CSV or Parquet with ``ids``) as text, and name its column of labels.

    Without the recipe's ``label``, that is its one column of grades from 0; None: there is none, and all its lines are
    relevant. ``more`` are other columns to read.
    """
    beside = [n for n in names_in(path, sep) if n not in (*ids, *more)]
    if label not in beside:
        grades = []
        for name in beside:
            texts = set(pc.unique(pc.utf8_lower(read_text(path, (name,), sep)[name])).to_pylist())
            numbers = {as_number(text or "") for text in texts}
            whole = len(numbers) > 1 and 0 in numbers and numbers <= set(range(limits.HIGHEST_GRADE + 1))
            grades += [name] if whole or texts == {"false", "true"} else []
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


def _labels(column: pa.Array, name: str, path: str | Path) -> np.ndarray:
    texts = [(text or "").lower() for text in column.cast(pa.large_string()).to_pylist()]
    made = np.array([float(text == "true") if text in ("true", "false") else as_number(text) for text in texts])
    remedy = "Write a number, such as 0 or 1"
    refuse_rows(np.isnan(made), lambda row: f"{texts[row]!r} is no label", file=path, column=name, remedy=remedy)
    return made


def wanted_rows(form: SubmissionForm, path: Path) -> RowKeys:
    """Read the ids of the rows that a submission must have; without ids their numbers."""
    return RowKeys(read_text(path, form.ids, form.sep) if form.ids else read_file(path), form.ids, path)


def predicted_values(table: pa.Table, form: SubmissionForm, target: Target, path: Path) -> tuple[torch.Tensor, bool]:
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
            if refused is not None and none and any(not np.isnan(as_number(v)) for v in table[name].to_pylist()):
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
