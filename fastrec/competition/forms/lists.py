"""Submissions of ranked lists and of next items: their form, check and writing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core.atomic import read_json
from fastrec.competition.forms.rows import (
    UNIT,
    Checked,
    IdLists,
    RankedLines,
    RowKeys,
    SubmissionForm,
    arrow_column,
    codes_of,
    key_text,
    ranked_strings,
    refuse_nulls,
)
from fastrec.competition.forms.values import ValueForm, read_text, sample_form, separated
from fastrec.errors import DataError, MissingColumnError, SubmissionError, UnreadableFileError, refuse_rows
from fastrec.table import Table, Vocab, column_names
from fastrec.table.keys import is_text
from fastrec.table.read import read_file, read_text_csv


@dataclass(frozen=True, kw_only=True)
class SubmissionFormat(SubmissionForm):
    """The form of a submission of ranked lists, and the columns of its test file and ground truth.

    Args:
        keys: columns that name a target row, in the order of the file; none: lines are in the order of the rows.
        prediction: the column with the ordered item ids, last in the file.
        sep: separates two ids.
        max_items: the most ids in one list.
        targets: (column, value) pairs; the test rows that equal all of them are the targets.
        candidates: the test file's column with the candidate ids. None: next items of sessions, where any id is
            allowed; test file and ground truth have one or several rows for each session.
        candidates_sep: separates two of those; None: test file and ground truth have a row for each candidate, and
            ``score_submission`` scores candidates by their labels.
        answer: the ground truth's column with the right id, if it has a row for each list.
        order: columns that sort the rows of a session; the last row has the answer.

    Raises:
        DataError: no file can have this form: an empty separator, no item allowed, or a column named twice.
    """

    kind: ClassVar[str] = "lists"
    role: ClassVar[str] = "not a target"
    keys: tuple[str, ...] = ()
    prediction: str
    sep: str = " "
    max_items: int = 25
    targets: tuple[tuple[str, str], ...] = ()
    candidates: str | None = "impressions"
    candidates_sep: str | None = "|"
    answer: str = "reference"
    order: tuple[str, ...] = ()

    @property
    def items(self) -> str:
        """The column of a session's items, in its file and in the submission."""
        return self.prediction

    def __post_init__(self) -> None:
        if not self.sep or self.candidates_sep == "" or self.max_items < 1 or len(set(self.header)) < len(self.header):
            raise DataError(
                f"no submission has the columns {', '.join(self.header)}, the separators {self.sep!r} and "
                f"{self.candidates_sep!r} and {self.max_items} items",
                remedy="Name each column once, and give separators and 1 item or more",
            )

    def read_lines(self, path: str | Path, *, exact: bool = True) -> pa.Table:
        """Read a submission as text; a missing column is a ``MissingColumnError``."""
        try:
            return super().read_lines(path, exact=exact)
        except SubmissionError:
            read_text_csv(path, self.header)  # names a missing column rather than the header
            raise

    def ranked_lines(self, path: str | Path, lists: str | None) -> RankedLines:
        """See ``SubmissionForm.ranked_lines``; ``lists`` are named by the keys."""
        table, ids = self.read(path)
        lines = table.select(self.keys).take(pa.array(ids.row)).append_column(self.candidates, ids.flat)
        return lines, -1.0 - ids.place, self.keys, self.max_items

    def check(self, path: str | Path, test_path: str | Path, *, any_order: bool = False) -> Checked:
        """See ``check_submission``."""
        table, ids = self.read(path)
        if self.candidates is None:
            match, warnings = self.match(table, self.sessions(test_path), path), []
            if not any_order and (match[1:] < match[:-1]).any():
                warnings.append(f"the sessions are in another order than in {Path(test_path).name}")
            if short := int((ids.length < self.max_items).sum()):
                warnings.append(f"{short} lists have fewer than {self.max_items} ids")
            return len(table), len(ids.flat), tuple(warnings)
        names = (*self.keys, *(name for name, _ in self.targets), self.candidates)
        test = read_text(Path(test_path), tuple(dict.fromkeys(names)))
        chosen = np.ones(len(test), dtype=bool)
        for name, value in self.targets:
            chosen &= np.asarray(pc.equal(test[name], value))
        if not chosen.any():
            wanted = " and ".join(f"{name} {value!r}" for name, value in self.targets)
            remedy = "Give the test file, with its targets left empty"
            raise DataError(f"no row with {wanted}", file=test_path, remedy=remedy)
        targets = test.filter(pa.array(chosen))
        numbers, sep = np.flatnonzero(chosen), self.candidates_sep
        if sep is None:  # group rows of candidates into lists
            sep, text = UNIT, RowKeys(targets, self.keys, test_path).text
            joined = ranked_strings(targets[self.candidates], np.zeros(len(targets)), text, sep=sep, k=None)
            first = np.unique(text.dictionary_encode().indices.to_numpy(), return_index=True)[1]
            numbers, targets = numbers[first], targets.select(self.keys).take(pa.array(first))
            targets = targets.append_column(self.candidates, joined)
        rows = RowKeys(targets, self.keys, test_path, numbers)
        match = self.match(table, rows, path)
        candidates = IdLists(targets[self.candidates].take(pa.array(match)), sep)
        codes, n_codes = codes_of(pa.concat_arrays([ids.flat, candidates.flat.cast(ids.flat.type)]))
        listed = ids.row * n_codes + codes[: len(ids.flat)]
        offered = candidates.row * n_codes + codes[len(ids.flat) :]
        outside = np.flatnonzero(~np.isin(listed, offered))
        if len(outside):
            problem = f"id {ids.flat[int(outside[0])].as_py()!r} is not among the {self.candidates} of its row"
            self.fail(problem, ids.row[outside], path, f"List only ids from that row's {self.candidates}")
        # Allowed by the official rule: it only loses score.
        left_out = np.setdiff1d(offered, listed)
        some = f"{len(left_out)} {self.candidates} in {len(np.unique(left_out // n_codes))} rows are not listed"
        warnings = (f"{some}: an answer among them scores 0",) if len(left_out) else ()
        return len(table), len(ids.flat), warnings

    def sessions(self, path: str | Path) -> RowKeys:
        """Read the sessions of a test file, each once."""
        if not self.keys:
            return RowKeys(read_file(path), (), path)
        (session,) = self.keys
        text = _sessions(Table.read(path, [session], device="cpu")[session].to_arrow(), session, path)
        return RowKeys(pa.table({session: pc.unique(text)}), self.keys, path)

    def answers(self, path: Path) -> tuple[RowKeys, pa.Array | pa.ChunkedArray, str]:
        """Read the rows of a file with answers, their answers as text, and the answers' column.

        A file of sessions without that column may give the next item in the submission's column, in one row for each
        session.

        Raises:
            MissingColumnError: there is no answer.
            FastrecError: the file cannot be read.
        """
        if self.candidates is not None:
            truth = read_text_csv(path, (*self.keys, self.answer))
            if not len(truth):
                raise DataError("it has a header and no rows", file=path, remedy="Give the file with the answers")
            return RowKeys(truth, self.keys, path), truth[self.answer], self.answer
        names, name, session = column_names(read_file(path)), self.answer, next(iter(self.keys), None)
        if name not in names:
            # A log of events has that column too: answers have one row for each session.
            ids = read_file(path, [session])[session] if {session, self.prediction} <= set(names) else None
            if ids is None or len(pc.unique(ids)) < len(ids):
                header = ", ".join(map(repr, self.header))
                remedy = f"Add the column {name!r}, or give one row for each session with {header}"
                raise MissingColumnError("it names no item that followed", file=path, column=name, remedy=remedy)
            name = self.prediction
        order = [n for n in self.order if n in names]
        table = Table.read(path, list(dict.fromkeys([*self.keys, *order, name])), device="cpu").to_arrow()
        if session is None:
            return RowKeys(table, (), path), id_text(table[name]), name
        ids = _sessions(table[session], session, path).dictionary_encode()
        rows = np.arange(len(table))
        if order:
            rows = pc.sort_indices(table, [(n, "ascending") for n in order]).to_numpy()
        last = np.zeros(len(ids.dictionary), dtype=np.int64)
        last[ids.indices.to_numpy()[rows]] = rows  # the last row of a session wins
        found = id_text(table[name].take(pa.array(last)))
        return RowKeys(pa.table({session: ids.dictionary}), self.keys, path, last), found, name

    def texts(self, items: Vocab) -> list[str]:
        """Return the items' ids as text.

        Raises:
            DataError: an id contains the separator.
        """
        text = id_text(items.values).to_pylist()
        bad = next((t for t in text if self.sep in t), None)
        if bad is not None:
            problem = f"the item {bad!r} holds {self.sep!r}, which stands between items in a submission"
            remedy = "Set the recipe's separator to text that no item holds"
            raise DataError(problem, column=self.prediction, remedy=remedy)
        return text

    def write(self, path: str | Path, items: Vocab, best: Any, sessions: Any = None) -> None:
        """Write a submission, or nothing.

        Args:
            path: the file to write or replace.
            items: the ids of the codes.
            best: codes int64 ``[n, k]``, the best first; 0: none.
            sessions: the sessions' ids, a ``Column`` ``[n]``, if the form has them.

        Raises:
            DataError: an id contains the separator.
            WriteError: the file system refused; ``path`` is unchanged.
        """
        known = best >= len(items.reserved)
        ids = pa.array(self.texts(items), pa.large_string()).take(pa.array(best[known].numpy() - len(items.reserved)))
        ends = torch.nn.functional.pad(known.sum(1).cumsum(0), (1, 0))
        keys = {n: id_text(sessions.to_arrow()) for n in self.keys}
        write_submission(path, keys, pa.LargeListArray.from_arrays(pa.array(ends.numpy()), ids), self)


def _sessions(ids: pa.Array | pa.ChunkedArray, column: str, path: str | Path) -> pa.Array:
    refuse_rows(ids.is_null(), "a row belongs to no session", file=path, column=column, remedy="Fill the column")
    return id_text(ids)


def id_text(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return ids as text without further spaces: days as 2026-01-31, moments as 2026-01-31T12:00:00."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if not pa.types.is_timestamp(ids.type):
        return ids.cast(pa.large_string())
    text = pc.cast(ids, pa.large_string())
    if pc.all(pc.ends_with(text, " 00:00:00")).as_py():
        return pc.utf8_slice_codeunits(text, 0, 10)
    return pc.replace_substring(text, " ", "T")


Form = SubmissionFormat | ValueForm

RECSYS2019 = SubmissionFormat(
    keys=("user_id", "session_id", "timestamp", "step"),
    prediction="item_recommendations",
    targets=(("action_type", "clickout item"), ("reference", "")),
)


def ranking_form(sample: str | Path, lists: str, item: str, names: Collection[str] = ()) -> SubmissionForm:
    """Read a ranking's form from a sample submission, or any other of that form.

    It has a line for each candidate with its score or its rank, or a line for each list with its ordered items.
    ``lists`` and ``item`` are columns of the rows to rank, ``names`` others that may name a row.
    """
    sep, header = separated(sample)
    rest = [n for n in header if n != lists]
    if lists in header and len(rest) == 1 and (rest[0] == item or rest[0] not in names):
        table = read_text_csv(sample, header, sep=sep)
        again = RowKeys(table, (lists,), sample).repeated()
        if len(again):
            problem = "the sample has several lines of a list, and no column of scores or ranks"
            remedy = "Write submission = ValueForm(…) or SubmissionFormat(…) in the recipe"
            raise DataError(problem, file=sample, column=lists, row=int(again[0]), remedy=remedy)
        text = table[rest[0]]
        within = max((" ", ",", ";", "|"), key=lambda s: pc.sum(pc.match_substring(text, s)).as_py() or 0)
        most = max(1, int(IdLists(text, within).length.max(initial=1)))
        about = {"keys": (lists,), "prediction": rest[0], "sep": within, "max_items": most}
        return SubmissionFormat(**about, candidates=item, candidates_sep=None, answer=item)
    form = sample_form(sample, [*names, lists, item])
    if not {lists, item} <= set(form.ids) or len(form.values) != 1:
        return form
    table = form.read_lines(sample)
    values = pc.cast(table[form.values[0]], pa.large_string()).to_pylist()
    groups = arrow_column(table[lists], lists).dictionary_encode().indices.to_numpy()
    lengths = np.bincount(groups)
    whole = np.array([int(v) if v.isdecimal() else 0 for v in values])
    # Ranks are 1 to the list's length, each once; in lists of one row, a score could be 1 by chance.
    pairs = np.unique(np.column_stack([groups, whole]), axis=0)
    are_ranks = len(pairs) == len(whole) and (whole >= 1).all() and (whole <= lengths[groups]).all()
    if (are_ranks and lengths.max(initial=0) > 1) or form.values[0].lower() in ("rank", "position", "place"):
        return replace(form, ranks=True, per_list=int(lengths.max(initial=1)))
    return form


def form_of_run(folder: str | Path) -> SubmissionForm:
    """Return the form of a run directory's submission; runs of several goals have none."""
    path = Path(folder) / "config.json"
    state = read_json(path)
    try:
        if state["task"] != "objectives":
            kinds = {form.kind: form for form in (SubmissionFormat, ValueForm)}
            return kinds[state["submission"]["kind"]].from_state(state["submission"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"the run's submission form cannot be read ({error})"
        remedy = "Run the recipe again, or give the form by its competition"
        raise UnreadableFileError(problem, file=path, remedy=remedy) from error
    remedy = "Read the run's scores.json"
    raise DataError("submissions of several goals are not checked or scored here", file=path, remedy=remedy)


def run_around(path: str | Path) -> Path | None:
    """Return the run directory that a path is in, or None."""
    # The nearest one: runs may be nested.
    runs = (p for p in Path(path).absolute().parents if (p / "scores.json").is_file())
    return next((p for p in runs if (p / "config.json").is_file()), None)


def write_submission(path: str | Path, keys_frame: Any, lists: Any, format: SubmissionFormat = RECSYS2019) -> None:
    """Write a submission, or nothing: the same input always gives the same bytes.

    Args:
        path: the CSV to write or replace.
        keys_frame: pandas, polars or Arrow table, or a dict of columns: the key columns, one row per target, in the
            order to write; other columns are ignored. Integers or strings.
        lists: one entry per target: strings as from ``fastrec.competition.ranked_strings``, or lists of ids.
        format: the form to write.

    Raises:
        DataError: a key column is missing, has missing values or floats; lengths differ.
        SubmissionError: a duplicate row, or a list of candidates that is empty, too long or names an id twice.
        WriteError: the file system refused; ``path`` is unchanged.
    """
    columns, name = {n: key_text(keys_frame, n) for n in format.keys}, format.prediction
    column = arrow_column(lists, name)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ids = column.flatten()
        if not (is_text(ids.type) or pa.types.is_integer(ids.type) or pa.types.is_null(ids.type)):
            raise DataError(f"ids are {ids.type}", column=name, remedy="Give integers or strings")
        if is_text(ids.type) and pc.any(pc.match_substring(ids, format.sep)).as_py():
            raise DataError(f"an id holds {format.sep!r}", column=name, remedy="Choose another separator")
        column = pc.binary_join(column.cast(pa.large_list(pa.large_string())), pa.scalar(format.sep, pa.large_string()))
    elif not is_text(kind) and len(column):
        raise DataError(f"lists are {kind}", column=name, remedy="Give strings or lists of ids")
    refuse_nulls(column, name, "a list, or an id in it, is missing")
    columns[name] = column.cast(pa.large_string())
    if format.candidates is not None:  # recommendations for a session may be empty
        format.lists_of(columns[name], path)
    format.write_lines(path, columns)


def write_ranked(
    path: str | Path, keys_frame: Any, items: Any, scores: Any, groups: Any, format: SubmissionFormat = RECSYS2019
) -> None:
    """Write scored candidates as a submission: each list best first, cut to the form's length.

    ``items``, ``scores`` and ``groups`` ``[n]`` are candidates (lists in the order of the targets). Other arguments and
    errors: see ``write_submission``.
    """
    lists = ranked_strings(items, scores, groups, sep=format.sep, k=format.max_items)
    write_submission(path, keys_frame, lists, format)
