"""Check and score a submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.competition.forms.lists import RECSYS2019, id_text
from fastrec.competition.forms.rows import (
    UNIT,
    IdLists,
    RowKeys,
    SubmissionForm,
    arrow_column,
    as_number,
    codes_of,
    ranked_strings,
)
from fastrec.competition.forms.values import predicted_values, read_text, read_truth, relevance, wanted_rows
from fastrec.errors import DataError, FastrecError, MissingColumnError, SubmissionError, refuse_rows
from fastrec.metrics import Metric, default_metric, get_metric
from fastrec.metrics.registry import known_metric
from fastrec.table import Table, column_names
from fastrec.table.read import read_file, read_text_csv
from fastrec.validate import Target

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CheckReport:
    """Counts of a valid submission, and ``warnings`` of what is allowed but loses score."""

    path: str
    rows: int
    ids: int
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return lines to print; the last begins with ``ok``."""
        return [*(f"warning: {text}" for text in self.warnings), f"ok {self.rows} rows, {self.ids} ids"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def check_submission(
    submission_path: str | Path,
    test_path: str | Path,
    format: SubmissionForm = RECSYS2019,
    *,
    any_order: bool = False,
    metric: str | Metric | None = None,
) -> CheckReport:
    """Check that a submission has the official form and exactly the test file's targets.

    Ids and keys are compared as text. A formula (``=1+1``) is valid only if the test file has exactly that id; a
    spreadsheet's versions of it (``2``, ``'=1+1``) are refused as unknown ids.

    Args:
        submission_path: the submission CSV.
        test_path: the test CSV. For a form with values, the test file or the sample submission, whose order is checked.
        format: the expected form.
        any_order: do not warn if lines are in another order than the test's, as a ranking's ids identify lines.
        metric: warn of classes that it cannot score; None: it is unknown.

    Returns:
        Counts, and warnings about candidates that are in no list.

    Raises:
        SubmissionError: other columns than the official ones; a duplicate, extra or missing row; a list that is empty,
            too long, names an id twice or one that is not a candidate of its row. It names the first, counts the rest.
        MissingFileError, UnreadableFileError, MissingColumnError: a file is absent, empty, corrupt or lacks a column.
        DataError: the test file has no target, or one twice.
    """
    path, test_path = Path(submission_path), Path(test_path)
    if format.items:
        return CheckReport(str(submission_path), *_check_lists(format, path, test_path, any_order))
    return CheckReport(str(submission_path), *_check_values(format, path, test_path, any_order, known_metric(metric)))


# Each returns the numbers of lines and of ids or values, and warnings.
_Checked = tuple[int, int, tuple[str, ...]]


def _check_lists(form: SubmissionForm, path: Path, test_path: Path, any_order: bool) -> _Checked:
    table = form.read(path)
    ids = form.lists_of(table[form.items], path)
    if form.candidates is None:
        warnings = []
        if not form.ids:
            wanted = RowKeys(read_file(test_path), (), test_path)
        else:  # each session once
            (name,) = form.ids
            text = _session_text(Table.read(test_path, [name], device="cpu")[name].to_arrow(), name, test_path)
            wanted = RowKeys(pa.table({name: pc.unique(text)}), form.ids, test_path)
        match = form.match(table, wanted, path)
        if not any_order and (match[1:] < match[:-1]).any():
            warnings.append(f"the sessions are in another order than in {test_path.name}")
        if short := int((ids.length < form.max_items).sum()):
            warnings.append(f"{short} lists have fewer than {form.max_items} ids")
        return len(table), len(ids.flat), tuple(warnings)
    names = (*form.ids, *(name for name, _ in form.targets), form.candidates)
    test = read_text(test_path, tuple(dict.fromkeys(names)))
    chosen = np.ones(len(test), dtype=bool)
    for name, value in form.targets:
        chosen &= np.asarray(pc.equal(test[name], value))
    if not chosen.any():
        wanted = " and ".join(f"{name} {value!r}" for name, value in form.targets)
        remedy = "Give the test file, with its targets left empty"
        raise DataError(f"no row with {wanted}", file=test_path, remedy=remedy)
    targets = test.filter(pa.array(chosen))
    numbers, sep = np.flatnonzero(chosen), form.candidates_sep
    if sep is None:  # group rows of candidates into lists
        sep, text = UNIT, RowKeys(targets, form.ids, test_path).text
        joined = ranked_strings(targets[form.candidates], np.zeros(len(targets)), text, sep=sep, k=None)
        first = np.unique(text.dictionary_encode().indices.to_numpy(), return_index=True)[1]
        numbers, targets = numbers[first], targets.select(form.ids).take(pa.array(first))
        targets = targets.append_column(form.candidates, joined)
    match = form.match(table, RowKeys(targets, form.ids, test_path, numbers), path)
    candidates = IdLists(targets[form.candidates].take(pa.array(match)), sep)
    codes, n_codes = codes_of(pa.concat_arrays([ids.flat, candidates.flat.cast(ids.flat.type)]))
    listed = ids.row * n_codes + codes[: len(ids.flat)]
    offered = candidates.row * n_codes + codes[len(ids.flat) :]
    outside = np.flatnonzero(~np.isin(listed, offered))
    if len(outside):
        problem = f"id {ids.flat[int(outside[0])].as_py()!r} is not among the {form.candidates} of its row"
        form.fail(problem, ids.row[outside], path, f"List only ids from that row's {form.candidates}")
    # Allowed by the official rule: it only loses score.
    left_out = np.setdiff1d(offered, listed)
    some = f"{len(left_out)} {form.candidates} in {len(np.unique(left_out // n_codes))} rows are not listed"
    warnings = (f"{some}: an answer among them scores 0",) if len(left_out) else ()
    return len(table), len(ids.flat), warnings


def _check_values(
    form: SubmissionForm, path: Path, test_path: Path, any_order: bool, metric: Metric | None
) -> _Checked:
    table = form.read(path)
    # Truncated lists lack lines of candidates.
    match = form.match(table, wanted_rows(form, test_path), path, complete=form.max_items is None)
    warnings = ()
    # Truncated lists are sorted, the best first.
    if not any_order and form.max_items is None and (match[1:] < match[:-1]).any():
        warnings = (f"the rows are in another order than in {test_path.name}",)
    if form.ranks:
        # A single id names a row, not a list.
        form.scores(table, path, arrow_column(table[form.ids[0]], form.ids[0]) if len(form.ids) > 1 else None)
        return len(table), len(table), warnings
    for name in form.values:
        first = table[name][0].as_py() if len(table) else ""
        if form.probabilities or first.lower() == "nan" or not np.isnan(as_number(first)):
            form.numbers(table, name, path)
        elif pc.any(pc.equal(table[name], "")).as_py():  # classes as text
            row = pc.index(table[name], "").as_py()
            raise SubmissionError("a value is empty", file=path, column=name, row=row, remedy="Predict every row")
        elif metric is not None and metric.wants in ("probabilities", "scores"):
            said = f"column {name!r} holds classes, such as {first!r}, and {metric.name} needs a number for each row"
            warnings += (said,)
    return len(table), len(table) * len(form.values), warnings


def _session_text(ids: pa.Array | pa.ChunkedArray, column: str, path: str | Path) -> pa.Array:
    refuse_rows(ids.is_null(), "a row belongs to no session", file=path, column=column, remedy="Fill the column")
    return id_text(ids)


@dataclass(frozen=True)
class ScoreReport:
    """The score of a submission."""

    metric: str  #: the metric's name
    value: float
    rows: int  #: number of scored rows
    relevant: str = ""  #: of candidates: which of their lines are relevant
    #: of candidates: counts of unmatched lines of the submission and of the truth, in a sentence each
    unmatched: tuple[str, ...] = ()
    note: str = ""  #: why ``metric`` differs from the requested one
    others: Mapping[str, float] = field(default_factory=dict)  #: other metrics of the same lines, by name
    #: of lists with one answer each, in the truth's order: their keys, ``answer``, ``listed`` (how often the answer is
    #: in the list), ``rank`` (from 1; 0 if it does not count) and ``reciprocal_rank``
    per_row: pd.DataFrame | None = field(default=None, repr=False, compare=False)

    def lines(self) -> list[str]:
        """Return lines to print; the last is the metric and the score with five decimals."""
        told = {"unmatched": self.unmatched, "relevant": [self.relevant], "note": [self.note]}
        said = [f"{word}: {text}" for word, texts in told.items() for text in texts if text]
        figures = {**self.others, self.metric: float(self.value)}
        shown = [f"{n} {v}" if isinstance(v, int) else f"{n} {v:.5f}" for n, v in figures.items()]
        return [f"rows {self.rows}", *said, *shown]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def score_submission(
    submission_path: str | Path,
    truth_path: str | Path,
    form: SubmissionForm = RECSYS2019,
    *,
    metric: str | Metric | None = None,
    target: Target | None = None,
    label: str | None = None,
    lists: str | None = None,
) -> ScoreReport:
    """Score a submission against the truth, which has the same rows in any order.

    Lists with one answer each in the truth are scored by the official rule: the mean of 1 / rank of the answer, 0 if it
    is not listed exactly once. (The RecSys Challenge's script skips rows that the submission lacks.)

    In a ranking with a row for each candidate and lists of limited length, relevant items left out rank below all
    places that count; a metric of whole lists is then computed at that length.

    A submission of classes is scored by accuracy if the metric needs probabilities.

    Args:
        submission_path: the submission.
        truth_path: the file with the answers; or a CSV or Parquet file with the form's keys and the target; of a
            ranking task the candidates (list and item, in the form's keys) with their labels, or the relevant
            candidates only: every other line is irrelevant, and lists that are absent do not count.
        form: the form of both.
        metric: the metric or its name, unless lists have one answer each; None: the task's usual one.
        target: the target; None in a ranking task.
        label: ranking: the truth's column of labels; if absent, its one column of 0 and 1, or of grades from 0.
        lists: ranking: the column of lists, which the truth has if the form's keys lack it; None: the first key.

    Raises:
        SubmissionError: the rows are not those of the truth, or a value is invalid for the task.
        DataError: the truth has no rows or answers, or a row twice; or by it every line is relevant, or none.
        FastrecError: a file is absent, corrupt or lacks a column.
    """
    path, truth_path = Path(submission_path), Path(truth_path)
    if form.items and (form.candidates is None or form.candidates_sep is not None):
        return _score_answers(path, truth_path, form)
    metric = get_metric(metric or default_metric("ranking" if target is None else target.task))
    if target is None:
        return _score_candidates(path, truth_path, form, metric, label, lists)
    table = form.read(path)
    truth = Table.read(read_file(truth_path))
    rows = form.match(table, wanted_rows(form, truth_path), path, complete=form.max_items is None)
    try:
        codes = target.encode(truth)
    except FastrecError as error:
        raise error.of_file(truth_path) from None
    known = target.restore(codes if target.task == "multiclass" else codes.double())
    predicted, are_classes = predicted_values(table, form, target, path)
    placed = torch.zeros_like(predicted)
    placed[torch.from_numpy(rows)] = predicted
    if not are_classes or metric.wants not in ("probabilities", "scores"):
        value = metric(known, placed)
        if np.isnan(value):
            about = {"file": truth_path, "column": ", ".join(target.names)}
            remedy = "Look whether the truth, or the submission, has one value alone"
            raise DataError(f"{metric.name} is undefined on these rows", **about, remedy=remedy)
        return ScoreReport(metric.name, value, len(table))
    names = [str(v) for v in target.classes.values.to_pylist()]
    how = f"write the probability of {names[-1]!r} in the column {form.values[0]!r}"
    if target.task == "multiclass":
        values = ", ".join(map(repr, names)) if len(names) <= 10 else f"{names[0]!r}, {names[1]!r}, …"
        own = f"SubmissionForm(ids={form.ids!r}, values=({values}))"
        how = f"submission = {own} in the recipe writes them, one column for each class"
    note = f"the submission holds classes, and {metric.name} needs probabilities; {how}"
    others = {name: get_metric(name)(known, placed) for name in ("balanced_accuracy", "f1_macro")}
    return ScoreReport("accuracy", get_metric("accuracy")(known, placed), len(table), note=note, others=others)


def _score_answers(path: Path, truth_path: Path, form: SubmissionForm) -> ScoreReport:
    # The official rule of candidates ignores further columns, and errors in a list besides its answer.
    table = form.read(path, exact=form.candidates is None)
    lists = table[form.items]
    ids = form.lists_of(lists, path) if form.candidates is None else IdLists(lists, form.item_sep)
    wanted, answers, name = answers_of(form, truth_path)
    none = np.asarray(pc.fill_null(pc.equal(answers, ""), True))
    remedy = "Score against the file with the answers"
    refuse_rows(none, "no answer", numbers=wanted.numbers, file=truth_path, column=name, remedy=remedy)
    match = form.match(table, wanted, path)
    own = answers.take(pa.array(match)).take(pa.array(ids.row))
    hit = pc.equal(pc.cast(ids.flat, pa.large_string()), own).to_numpy(zero_copy_only=False)
    listed = np.bincount(match[ids.row[hit]], minlength=len(table))
    rank = np.zeros(len(table), dtype=np.int64)
    rank[match[ids.row[hit]]] = ids.place[hit] + 1
    rank[listed != 1] = 0
    gain = np.divide(1.0, rank, out=np.zeros(len(rank)), where=rank > 0)
    frame = pa.table({**wanted.columns, "answer": answers, "listed": listed, "rank": rank, "reciprocal_rank": gain})
    n, metric = max(len(rank), 1), "mrr"
    others: dict[str, float] = {"first": int((rank == 1).sum()), "not_counted": int((rank == 0).sum())}
    if form.candidates is None:
        k, metric = form.max_items, f"mrr@{form.max_items}"
        place = rank[rank > 0].astype(np.float64)
        others = {f"hr@{k}": len(place) / n, f"ndcg@{k}": float((1 / np.log2(place + 1)).sum()) / n}
    return ScoreReport(metric, float(gain.sum()) / n, len(rank), others=others, per_row=frame.to_pandas())


def answers_of(form: SubmissionForm, path: Path) -> tuple[RowKeys, pa.Array | pa.ChunkedArray, str]:
    """Read the rows of a file with answers, their answers as text, and the answers' column.

    A file of sessions without that column may give the next item in the submission's column, in one row for each
    session.
    """
    if form.candidates is not None:
        truth = read_text_csv(path, (*form.ids, form.answer))
        if not len(truth):
            raise DataError("it has a header and no rows", file=path, remedy="Give the file with the answers")
        return RowKeys(truth, form.ids, path), truth[form.answer], form.answer
    names, name, session = column_names(read_file(path)), form.answer, next(iter(form.ids), None)
    if name not in names:
        # A log of events has that column too: answers have one row for each session.
        ids = read_file(path, [session])[session] if {session, form.items} <= set(names) else None
        if ids is None or len(pc.unique(ids)) < len(ids):
            header = ", ".join(map(repr, form.header))
            remedy = f"Add the column {name!r}, or give one row for each session with {header}"
            raise MissingColumnError("it names no item that followed", file=path, column=name, remedy=remedy)
        name = form.items
    order = [n for n in form.order if n in names]
    table = Table.read(path, list(dict.fromkeys([*form.ids, *order, name])), device="cpu").to_arrow()
    if session is None:
        return RowKeys(table, (), path), id_text(table[name]), name
    ids = _session_text(table[session], session, path).dictionary_encode()
    rows = pc.sort_indices(table, [(n, "ascending") for n in order]).to_numpy() if order else np.arange(len(table))
    last = np.zeros(len(ids.dictionary), dtype=np.int64)
    last[ids.indices.to_numpy()[rows]] = rows  # the last row of a session wins
    found = id_text(table[name].take(pa.array(last)))
    return RowKeys(pa.table({session: ids.dictionary}), form.ids, path, last), found, name


def _score_candidates(
    path: Path, truth_path: Path, form: SubmissionForm, metric: Metric, label: str | None, lists: str | None
) -> ScoreReport:
    table, most, by = form.read(path), form.max_items, form.ids if form.items else (lists or form.ids[0],)
    if form.items:
        ids = form.lists_of(table[form.items], path)
        lines = table.select(form.ids).take(pa.array(ids.row)).append_column(form.candidates, ids.flat)
        scores = -1.0 - ids.place
    else:
        groups = arrow_column(table[by[0]], by[0]) if by[0] in form.ids else None
        lines, scores = table.select(list(form.ids)), form.scores(table, path, groups)
    absent = [n for n in by if n not in lines.column_names]
    keys = [n for n in by if n not in absent] + [n for n in lines.column_names if n not in by]
    truth, label = read_truth(truth_path, keys, label, sep=form.sep, more=absent)
    if absent:  # the truth has each line's list
        rows = RowKeys(lines, keys, path).match(RowKeys(truth, keys, truth_path), role="no line", complete=most is None)
        for name in absent:
            lines = lines.append_column(name, truth[name].take(pa.array(rows)))
    names, listed = [*by, *(n for n in keys if n not in by)], len(lines)
    lists, wanted = (RowKeys(t, by, f) for t, f in ((lines, path), (truth, truth_path)))
    gone = np.flatnonzero(~np.asarray(pc.is_in(wanted.text, value_set=lists.text)))
    if len(gone):
        problem = f"{wanted.named(gone[0])} has no line ({len(gone)} such in all)"
        remedy = "Write lines for every list of the truth"
        raise SubmissionError(problem, file=path, column=", ".join(by), remedy=remedy)
    lines = lines.select(names)
    asked, known = RowKeys(lines, names, path).text, RowKeys(truth, names, truth_path).text
    in_truth, unmatched = np.asarray(pc.is_in(lists.text, value_set=wanted.text)), []
    if not in_truth.all():
        other = pc.count_distinct(lists.text.filter(pa.array(~in_truth))).as_py()
        of = pc.count_distinct(lists.text).as_py()
        unmatched.append(f"{other} of {of} lists of the submission are not in the truth, and do not count")
    alone = int((in_truth & ~np.asarray(pc.is_in(asked, value_set=known))).sum())
    if alone and label is not None:  # a truth of relevant lines lacks all others
        unmatched.append(f"{alone} lines of the submission are not in the truth, and count as irrelevant")
    unlisted = truth.filter(pc.invert(pc.is_in(known, value_set=asked))).select(names)
    if len(unlisted):
        told = "lines of the truth are not in the submission: relevant ones count as not found"
        unmatched.append(f"{len(unlisted)} {told}")
    lines = pa.concat_tables([lines, unlisted.cast(lines.schema)])
    labels, counted = relevance(lines, truth, names, label, truth_path)
    codes = RowKeys(lines, by, path).text.dictionary_encode().indices.to_numpy().astype(np.int64)
    if most is None:  # all candidates are listed: only relevant items that were no candidates are added
        known = (np.arange(len(labels)) < listed) | (labels > 0)
        labels, counted, codes = labels[known], counted[known], codes[known]
        most = int(np.bincount(codes[:listed]).max()) if len(labels) > listed else None
    # Below the listed items come irrelevant ones, then relevant ones.
    floor = scores.min() - 1.0
    scores = np.append(scores, floor - (labels[listed:] > 0))
    name, said = metric.name, "every line of the truth" if label is None else f"{label} above 0"
    if most is not None:
        metric = get_metric(f"{name}@{most}") if name in ("mrr", "ndcg", "map") else metric
        # Pad lists shorter than k, so that no relevant item that they lack is among the first k.
        k = int(metric.name.partition("@")[2] or 0)
        lengths = np.bincount(codes[:listed])
        fill = np.repeat(np.arange(len(lengths)), np.maximum(k - lengths, 0))
        fill = fill[np.isin(fill, codes[counted])]
        filled = ((codes, fill), (labels, 0.0 * fill), (scores, floor + 0.0 * fill), (counted, fill >= 0))
        codes, labels, scores, counted = (np.append(values, more) for values, more in filled)
    value = metric(labels[counted], scores[counted], groups=codes[counted])
    return ScoreReport(name, value, int(counted[:listed].sum()), said, tuple(unmatched))
