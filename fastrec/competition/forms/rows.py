"""``SubmissionForm``: the form of a submission; the keys of its rows, their order, their lists of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fastrec._core.device import on_host
from fastrec._core.messages import refuse_absent
from fastrec.errors import DataError, FastrecError, MissingColumnError, SubmissionError, refuse_rows
from fastrec.metrics.ranking import cut, flat_tensor
from fastrec.table.keys import is_text
from fastrec.table.read import csv_header, read_text_csv, write_text_csv


class RankedLists(NamedTuple):
    """Rows in ranked order: list ``i`` is ``order[offsets[i]:offsets[i + 1]]``.

    ``order`` ``[m]`` int64 are row numbers, ``offsets`` ``[g + 1]`` int64; lists are in the order of their groups'
    first rows.
    """

    order: Tensor
    offsets: Tensor


def rank_lists(scores: Any, groups: Any, *, k: int | None = None) -> RankedLists:
    """Sort every group's rows by score, highest first.

    Equal scores keep the order of the rows; missing scores come last.

    Args:
        scores: ``[n]`` numbers; tensor, array or Series.
        groups: ``[n]`` integers or strings, in any order.
        k: keep the first k of each list; None for all.

    Returns:
        Row numbers in ranked order and the start of each list, on the device of the scores.

    Raises:
        DataError: lengths differ, or a group is missing.
    """
    s = flat_tensor(scores, "scores")
    s = (s.cpu() if s.device.type == "mps" else s).double()
    codes = _codes_by_appearance(groups).to(s.device)
    if len(codes) != len(s):
        raise DataError(f"groups has {len(codes)} rows, scores has {len(s)}", remedy="Give one group per scored row")
    best_first = torch.sort(-s, stable=True).indices  # ascending, so that NaN is last
    order = best_first[torch.sort(codes[best_first], stable=True).indices]
    sizes = torch.bincount(codes)
    if k is not None:
        place = torch.arange(len(s), device=s.device) - (sizes.cumsum(0) - sizes)[codes[order]]
        order = order[place < cut(k)]
        sizes = sizes.clamp(max=cut(k))
    return RankedLists(order, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def ranked_strings(items: Any, scores: Any, groups: Any, *, sep: str = " ", k: int | None = 25) -> pa.Array:
    """Join the items of each group to one string, the best first.

    Args:
        items: ``[n]`` integers or strings; tensor, array, Series or Arrow array.
        scores: ``[n]`` numbers.
        groups: ``[n]`` integers or strings.
        sep: separates two items.
        k: keep the first k of each list; None for all.

    Returns:
        ``[g]`` Arrow strings, in the order of the groups' first rows.

    Raises:
        DataError: lengths differ, an item or a group is missing, an item contains ``sep``, or items are floats.
    """
    column = arrow_column(items, "items")
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        problem = f"items are {column.type}, which has no exact text"
        raise DataError(problem, column="items", remedy="Give integers or strings")
    refuse_nulls(column, "items", "an item is missing", "Drop rows without an item")
    text = column.cast(pa.large_string())
    if is_text(column.type):
        problem = f"an item holds the separator {sep!r}"
        refuse_rows(pc.match_substring(text, sep), problem, column="items", remedy="Choose another sep")
    order, offsets = rank_lists(scores, groups, k=k)
    if len(text) != len(scores):
        raise DataError(f"items has {len(text)} rows, scores has {len(scores)}", remedy="Give one item per scored row")
    lists = pa.LargeListArray.from_arrays(pa.array(offsets.cpu().numpy()), text.take(pa.array(order.cpu().numpy())))
    return pc.binary_join(lists, pa.scalar(sep, pa.large_string()))


def arrow_column(values: Any, name: str) -> pa.Array:
    """Convert an Arrow, pandas, polars or numpy column, a tensor or a list to one plain Arrow array ``[n]``.

    Missing values (None, NaN, NA) become null, categories their values; ``name`` is for errors.
    """
    try:
        if isinstance(values, Tensor):
            values = values.detach().as_subclass(Tensor).cpu().numpy()
        elif not isinstance(values, pa.Array | pa.ChunkedArray) and hasattr(values, "to_arrow"):
            values = values.to_arrow()
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        remedy = "Give values of one type"
        raise DataError(f"the values cannot be read as one column ({error})", column=name, remedy=remedy) from error
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _codes_by_appearance(groups: Any) -> Tensor:
    if isinstance(groups, Tensor) and not on_host(groups):
        ids, codes = torch.unique(flat_tensor(groups, "groups"), return_inverse=True)
        row = torch.arange(len(codes), device=codes.device)
        first = torch.full((len(ids),), len(codes), device=codes.device).scatter_reduce(0, codes, row, "amin")
        number = torch.empty_like(first)
        number[torch.argsort(first)] = torch.arange(len(ids), device=codes.device)
        return number[codes]
    column = arrow_column(groups, "groups")
    refuse_nulls(column, "groups", "a group is missing", "Give every row the list it is in")
    codes = column.dictionary_encode().indices  # Arrow assigns codes by first appearance
    return torch.from_numpy(codes.to_numpy().astype(np.int64))


UNIT = "\x1f"  # separates the keys of a row


class RowKeys:
    """The keys of a table's rows, joined to one text each, to compare them exactly as in the file.

    ``numbers`` ``[n]`` are the rows' numbers in the file ``path`` (None: all rows). Without ``names``, the row's number
    is its key.
    """

    def __init__(
        self, table: pa.Table, names: Sequence[str], path: str | Path, numbers: np.ndarray | None = None
    ) -> None:
        self.names, self.path = tuple(names), Path(path)
        self.numbers = np.arange(len(table)) if numbers is None else numbers
        self.columns = {n: arrow_column(table[n], n).cast(pa.large_string()) for n in self.names}
        if self.names:
            self.text = pc.binary_join_element_wise(*self.columns.values(), pa.scalar(UNIT, pa.large_string()))
        else:
            self.text = pa.array(self.numbers).cast(pa.large_string())

    def named(self, row: int) -> str:
        """Describe a row by its keys."""
        text = self.text[int(row)].as_py()
        return ", ".join(f"{n} {v}" for n, v in zip(self.names, text.split(UNIT))) if self.names else f"row {text}"

    def repeated(self) -> np.ndarray:
        """Return the rows whose keys repeat those of an earlier row."""
        codes = self.text.dictionary_encode().indices.to_numpy()  # a new value has the highest code
        return np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1]) + 1

    def refuse_repeated(self) -> None:
        """Refuse rows with repeated keys, naming the first one."""
        self.refuse(self.repeated(), "stands in an earlier row too", "Keep one row each")

    def refuse(self, rows: np.ndarray, what: str, remedy: str, error: type[FastrecError] = SubmissionError) -> None:
        """Refuse rows, given by their places, naming the first by its keys."""
        about = {"file": self.path, "column": ", ".join(self.names), "numbers": self.numbers, "remedy": remedy}
        refuse_rows(rows, lambda row: f"{self.named(row)} {what}", error, **about)

    def match(self, wanted: RowKeys, *, role: str, complete: bool = True) -> np.ndarray:
        """Match each row of a submission to its row of ``wanted``: int64 ``[n]``.

        ``role`` names an unmatched row in errors (``'not a target'``); ``complete``: no wanted row may be absent.
        """
        column, name = ", ".join(self.names), wanted.path.name
        twice = "stands in an earlier row too", "Give the file as it was published"
        wanted.refuse(wanted.repeated(), *twice, DataError)
        found = pc.index_in(self.text, value_set=wanted.text)
        remedy = "Keep the rows of that file alone, with their keys as they are there"
        self.refuse(np.flatnonzero(found.is_null()), f"is {role} of {name}", remedy)
        rows = found.to_numpy().astype(np.int64)
        missing = np.setdiff1d(np.arange(len(wanted.text)), rows)
        if len(missing) and complete:
            problem = f"row {wanted.numbers[missing[0]]} of {name} has no row here: {wanted.named(missing[0])} "
            problem += f"({len(missing)} missing in all)"
            remedy = "Write one row for each that is to be predicted"
            raise SubmissionError(problem, file=self.path, column=column, remedy=remedy)
        return rows


def key_text(frame: Any, name: str) -> pa.Array:
    """Convert a column of ids to text; days are written as days, moments to the second.

    ``frame`` is a table of any library, or a dict of columns.
    """
    names = frame.column_names if isinstance(frame, pa.Table) else list(getattr(frame, "columns", frame))
    if name not in names:
        raise MissingColumnError("the ids lack it", column=name, remedy=f"They have {', '.join(map(str, names))}")
    column = arrow_column(frame[name], name)
    refuse_nulls(column, name, "an id is missing")
    if pa.types.is_timestamp(column.type):
        fraction = pc.not_equal(pc.floor_temporal(column, unit="second"), column)
        said = "an id is a moment with a fraction of a second"
        refuse_rows(fraction.to_numpy(zero_copy_only=False), said, column=name, remedy="Give ids as text")
        column = column.cast(pa.timestamp("s", column.type.tz))  # in finer units %S has their digits
        midnight = pc.all(pc.equal(pc.floor_temporal(column, unit="day"), column)).as_py() in (True, None)
        return pc.strftime(column, format="%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M:%S").cast(pa.large_string())
    exact = is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_date(column.type)
    if len(column) and not exact:  # a file's column without values has no type
        remedy = "Give integers or strings"
        raise DataError(f"ids are {column.type}, which has no exact text", column=name, remedy=remedy)
    return column.cast(pa.large_string())


def refuse_nulls(column: pa.Array, name: str, problem: str, remedy: str = "Fill it first") -> None:
    """Refuse a column with missing values (``DataError``), naming the first such row."""
    refuse_rows(np.asarray(column.is_null()), problem, column=name, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class SubmissionForm:
    """The form of a submission: columns that name a line, then predicted ``values``, or a list of ``items``.

    All columns are read and compared as text, so that ids are exactly as in the file.

    Args:
        ids: the columns that name a line, first in the file; none: lines are in the order of the test rows.
        values: the predicted columns. Of classes: one column for each class (their probabilities, in the order of the
            classes), or one (the probability of class 1, or the class itself if the metric scores classes).
        items: instead of values: the column with the ordered item ids of a list.
        sep: separates two columns, one character.
        item_sep: separates two items.
        max_items: the most items of a list, best first; None: 25 in a column of items, else all candidates.
        decimals: of values: digits after the point; None: enough to restore the float64.
        ranks: of a ranking's values: the place in the list, 1 for the best, instead of a score.
        probabilities: values must lie between 0 and 1.
        targets: of lists: (column, value) pairs; the test rows that equal all of them are the targets.
        candidates: of lists: the test file's column with the candidate ids. None: next items of sessions, where any id
            is allowed; test file and ground truth have one or several rows for each session.
        candidates_sep: separates two candidates; None: test file and ground truth have a row for each candidate, and
            ``score_submission`` scores candidates by their labels.
        answer: of lists: the ground truth's column with the right id, if it has a row for each list.
        order: of sessions: columns that sort the rows of a session; the last row has the answer.

    Raises:
        DataError: no file can have this form.
    """

    ids: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    items: str | None = None
    sep: str = ","
    item_sep: str = " "
    max_items: int | None = None
    decimals: int | None = None
    ranks: bool = False
    probabilities: bool = False
    targets: tuple[tuple[str, str], ...] = ()
    candidates: str | None = "impressions"
    candidates_sep: str | None = "|"
    answer: str = "reference"
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("ids", "values", "order"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))  # the class is frozen
        object.__setattr__(self, "targets", tuple((name, value) for name, value in self.targets))
        if self.items and self.max_items is None:
            object.__setattr__(self, "max_items", 25)
        bad = bool(self.values) == bool(self.items) or len(set(self.header)) < len(self.header)
        bad |= len(self.sep) != 1 or self.sep in '"\r\n' or not self.item_sep or self.candidates_sep == ""
        bad |= bool(self.items) and self.candidates is None and len(self.ids) > 1  # next items are of one id
        if bad or (self.max_items is not None and self.max_items < 1):
            problem = f"no submission has the columns {', '.join(self.header)}, the separators {self.sep!r}, "
            problem += f"{self.item_sep!r} and {self.candidates_sep!r}, and {self.max_items} items"
            remedy = "Name each column once, either values or items; give separators (sep= is one character) and 1 "
            remedy += "item or more"
            raise DataError(problem, remedy=remedy)

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.ids, *self.values, *([self.items] if self.items else []))

    @classmethod
    def of_sample(cls, path: str | Path, *, ids: Sequence[str] | str | None = None, **options: Any) -> Self:
        """Read a form with values from a sample submission: its separator and its columns.

        Args:
            path: the sample, such as ``sample_submission.csv``.
            ids: the columns that name a row; None: the first of two or more columns.
            **options: other arguments of the form.

        Raises:
            MissingFileError, UnreadableFileError, MissingColumnError: the file cannot be used.
        """
        sep, header = separated(path)
        ids = (header[:1] if len(header) > 1 else []) if ids is None else [ids] if isinstance(ids, str) else list(ids)
        refuse_absent(ids, header, "the column is not in the file", file=path)
        return cls(ids=tuple(ids), values=tuple(n for n in header if n not in ids), sep=sep, **options)

    def read(self, path: str | Path, *, exact: bool = True) -> pa.Table:
        """Read a submission as a table of text, with the form's columns.

        Args:
            path: the submission.
            exact: refuse a file with other columns, or with these in another order.

        Raises:
            SubmissionError: the columns are others, or two rows have the same ids.
            MissingFileError, UnreadableFileError, MissingColumnError: the file is absent, empty, corrupt or lacks a
                column.
        """
        names = tuple(csv_header(path, sep=self.sep)) if exact else self.header
        if names != self.header:
            if self.items:
                read_text_csv(path, self.header, sep=self.sep)  # names a missing column
            other = next((n for n in names if n not in self.header), None)
            remedy = f"Write exactly {self.sep.join(self.header)}"
            raise SubmissionError(f"the header is {self.sep.join(names)}", file=path, column=other, remedy=remedy)
        table = read_text_csv(path, self.header, sep=self.sep)
        RowKeys(table, self.ids, path).refuse_repeated()
        return table

    def write(self, path: str | Path, ids: Any, values: Mapping[str, Any]) -> None:
        """Write a submission, or nothing: the same input always gives the same bytes.

        Args:
            path: the file to write or replace.
            ids: pandas, polars or Arrow table, or a dict of columns, with the id columns; other columns are ignored.
            values: column → ``[n]`` numbers (or classes as text, integers or booleans), or lists (of ids, or as from
                ``ranked_strings``), in the order of the ids.

        Raises:
            MissingColumnError: a column is absent.
            DataError: a value is missing or not finite, or lengths differ.
            SubmissionError: two rows have the same ids; a list of candidates is empty, too long or names an id twice.
            WriteError: the file system refused; ``path`` is unchanged.
        """
        columns = {n: key_text(ids, n) for n in self.ids}
        for name in (n for n in self.header if n not in self.ids):
            if name not in values:
                there = f"There is {', '.join(values)}"
                raise MissingColumnError("nothing was predicted for it", column=name, remedy=there)
            column = arrow_column(values[name], name)
            columns[name] = self._list_text(column) if self.items else self._value_text(column, name)
        if self.items and self.candidates is not None:  # recommendations for a session may be empty
            self.lists_of(columns[self.items], path)
        lengths = {n: len(c) for n, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"lengths differ: {lengths}", remedy="Give one value or list for each row of ids")
        table = pa.table(columns)
        RowKeys(table, self.ids, path).refuse_repeated()
        write_text_csv(path, table, sep=self.sep)

    def _list_text(self, column: pa.Array) -> pa.Array:
        name, kind, sep = str(self.items), column.type, self.item_sep
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            ids = column.flatten()
            if not (is_text(ids.type) or pa.types.is_integer(ids.type) or pa.types.is_null(ids.type)):
                raise DataError(f"ids are {ids.type}", column=name, remedy="Give integers or strings")
            if is_text(ids.type) and pc.any(pc.match_substring(ids, sep)).as_py():
                raise DataError(f"an id holds {sep!r}", column=name, remedy="Choose another separator")
            column = pc.binary_join(column.cast(pa.large_list(pa.large_string())), pa.scalar(sep, pa.large_string()))
        elif not is_text(kind) and len(column):
            raise DataError(f"lists are {kind}", column=name, remedy="Give strings or lists of ids")
        refuse_nulls(column, name, "a list, or an id in it, is missing")
        return column.cast(pa.large_string())

    def _value_text(self, column: pa.Array, name: str) -> pa.Array:
        refuse_nulls(column, name, "a value is missing", "Predict every row")
        if not pa.types.is_floating(column.type):
            return column.cast(pa.large_string())
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
        about = {"column": name, "remedy": "Look at the model that made it"}
        refuse_rows(~np.isfinite(numbers), "a value is not finite", **about)
        if self.decimals is None:
            return pa.array(list(map(repr, numbers.tolist())), pa.large_string())
        return pa.array([f"{v:.{self.decimals}f}" for v in numbers.tolist()], pa.large_string())

    def lists_of(self, column: pa.Array | pa.ChunkedArray, path: str | Path) -> IdLists:
        """Split a column of lists; none may be empty or too long, hold an empty id or name one twice."""
        ids = IdLists(column, self.item_sep)
        blank = np.asarray(pc.equal(ids.flat, ""))
        empty = np.flatnonzero(blank & (ids.length[ids.row] == 1))
        if len(empty):
            self.fail("the list is empty", ids.row[empty], path, "Rank the row's candidates")
        if blank.any():
            remedy = f"Put one {self.item_sep!r} between two ids and none at the ends"
            self.fail("the list holds an empty id", ids.row[blank], path, remedy)
        long = np.flatnonzero(ids.length > self.max_items)
        if len(long):
            problem = f"the list has {ids.length[long[0]]} ids, more than {self.max_items}"
            self.fail(problem, long, path, f"Keep the first {self.max_items}")
        codes, n_codes = codes_of(ids.flat)
        pairs = ids.row * n_codes + codes
        order = np.argsort(pairs, kind="stable")
        again = np.sort(order[1:][pairs[order][1:] == pairs[order][:-1]])
        if len(again):
            problem = f"id {ids.flat[int(again[0])].as_py()!r} is listed twice"
            self.fail(problem, ids.row[again], path, "List every id once; an answer that is listed twice scores 0")
        return ids

    def fail(self, problem: str, rows: np.ndarray, path: str | Path, remedy: str) -> NoReturn:
        """Refuse rows of lists, naming the first and counting them."""
        problem = f"{problem} ({len(np.unique(rows))} such rows in all)"
        raise SubmissionError(problem, file=path, column=self.items, row=int(rows[0]), remedy=remedy)

    def match(self, table: pa.Table, wanted: RowKeys, path: str | Path, *, complete: bool = True) -> np.ndarray:
        """Match each line of ``table`` to its row of ``wanted``: see ``RowKeys.match``."""
        if not self.ids and len(table) != len(wanted.text):
            problem = f"it has {len(table)} rows, {wanted.path.name} has {len(wanted.text)}"
            raise SubmissionError(problem, file=path, remedy="Write one line for each, in their order")
        return RowKeys(table, self.ids, path).match(
            wanted, role="not a target" if self.items else "no row", complete=complete
        )

    def numbers(self, table: pa.Table, name: str, path: str | Path, empty: np.ndarray | None = None) -> np.ndarray:
        """Return a value column of a submission as float64 ``[n]``; rows of ``empty`` (bool ``[n]``) may have NaN."""
        text = arrow_column(table[name], name)
        try:
            numbers = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:  # text, or spaces around numbers
            numbers = np.array([as_number(t or "nan") for t in text.to_pylist()])
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

        ``lists`` ``[n]`` is the list of each line; None: unknown, so ranks may repeat.
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


class IdLists:
    """The ids of all rows, flattened, with each id's row and place in its list."""

    def __init__(self, column: pa.ChunkedArray, sep: str) -> None:
        lists = arrow_column(pc.split_pattern(column, sep), "ids")
        self.flat = lists.flatten()
        self.length = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        self.row = np.repeat(np.arange(len(lists)), self.length)
        self.place = np.arange(len(self.flat)) - np.repeat(np.cumsum(self.length) - self.length, self.length)


def codes_of(values: pa.Array) -> tuple[np.ndarray, int]:
    """Encode text as codes int64 ``[n]``, and bound their number."""
    encoded = values.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))


def separated(path: str | Path, signs: Sequence[str] = (",", "\t", ";", "|")) -> tuple[str, list[str]]:
    """Return the separator that splits a CSV's header into the most columns, and these."""
    return max({sign: csv_header(path, sep=sign) for sign in signs}.items(), key=lambda item: len(item[1]))


def as_number(text: str) -> float:
    """Convert text to a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")
