"""Rows of a submission: their keys, their order, their lists of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fastrec._core.device import on_host
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
    chosen = text.take(pa.array(order.cpu().numpy()))
    lists = pa.LargeListArray.from_arrays(pa.array(offsets.cpu().numpy()), chosen)
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
            raise SubmissionError(
                f"row {wanted.numbers[missing[0]]} of {name} has no row here: {wanted.named(missing[0])} "
                f"({len(missing)} missing in all)",
                file=self.path, column=column, remedy="Write one row for each that is to be predicted",
            )  # fmt: skip
        return rows


def key_text(frame: Any, name: str, *, what: str = "key", times: bool = False) -> pa.Array:
    """Convert a column of keys to text; ``frame`` is a table of any library, or a dict of columns.

    Errors call a value ``what``. With ``times``, dates and times may be keys: days as days, moments to the second.
    """
    names = frame.column_names if isinstance(frame, pa.Table) else list(getattr(frame, "columns", frame))
    if name not in names:
        raise MissingColumnError(f"the {what}s lack it", column=name, remedy=f"They have {', '.join(map(str, names))}")
    column = arrow_column(frame[name], name)
    refuse_nulls(column, name, f"{'an' if what[0] in 'aeiou' else 'a'} {what} is missing")
    if times and pa.types.is_timestamp(column.type):
        midnight = pc.all(pc.equal(pc.floor_temporal(column, unit="day"), column)).as_py() in (True, None)
        return pc.strftime(column, format="%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M:%S").cast(pa.large_string())
    exact = is_text(column.type) or pa.types.is_integer(column.type) or (times and pa.types.is_date(column.type))
    if len(column) and not exact:  # a file's column without values has no type
        remedy = "Give integers or strings"
        raise DataError(f"{what}s are {column.type}, which has no exact text", column=name, remedy=remedy)
    return column.cast(pa.large_string())


def refuse_nulls(column: pa.Array, name: str, problem: str, remedy: str = "Fill it first") -> None:
    """Refuse a column with missing values (``DataError``), naming the first such row."""
    refuse_rows(np.asarray(column.is_null()), problem, column=name, remedy=remedy)


# Key columns as text, scores, names of the list's columns, the most lines of a list.
RankedLines = tuple[pa.Table, np.ndarray, tuple[str, ...], int | None]
Checked = tuple[int, int, tuple[str, ...]]  # of SubmissionForm.check


class SubmissionForm:
    """A submission: keys that name a line, and columns of predictions. Its kinds are frozen dataclasses.

    All columns are read and compared as text, so that ids are exactly as in the file.
    """

    kind: ClassVar[str]
    role: ClassVar[str] = "no row"  # for errors: a line without a row
    delimiter: ClassVar[str] = ","
    keys: tuple[str, ...]  # the columns that name a line; none: its number does
    prediction: str  # of lists: the column that holds them
    sep: str
    max_items: int

    @property
    def predictions(self) -> tuple[str, ...]:
        """The columns of predictions, after the keys."""
        return (self.prediction,)

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.keys, *self.predictions)

    def to_state(self) -> dict[str, Any]:
        """Return the form as JSON values, for a run's ``config.json``."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Invert ``to_state``."""
        hints = get_type_hints(cls)
        known = {n: _frozen(state[n]) for n in (f.name for f in fields(cls))}  # type: ignore[arg-type]
        wrong = next((n for n, value in known.items() if not _fits(value, hints[n])), None)
        if wrong is not None:
            raise TypeError(f"{wrong} is {known[wrong]!r}")
        return cls(**known)

    def read_lines(self, path: str | Path, *, exact: bool = True) -> pa.Table:
        """Read a submission as text; ``exact``: it must have only the form's columns, in order."""
        sep = self.delimiter
        names = tuple(csv_header(path, sep=sep)) if exact else self.header
        if names != self.header:
            other = next((n for n in names if n not in self.header), None)
            remedy = f"Write exactly {sep.join(self.header)}"
            raise SubmissionError(f"the header is {sep.join(names)}", file=path, column=other, remedy=remedy)
        table = read_text_csv(path, self.header, sep=sep)
        RowKeys(table, self.keys, path).refuse_repeated()
        return table

    def read(self, path: str | Path) -> tuple[pa.Table, IdLists]:
        """Read a submission of lists as text, and its flattened ids: see ``read_lines`` and ``lists_of``."""
        table = self.read_lines(path)
        return table, self.lists_of(table[self.prediction], path)

    def write_lines(self, path: str | Path, columns: Mapping[str, pa.Array]) -> None:
        """Write columns of text, or nothing: if the file system refuses, ``path`` is unchanged."""
        lengths = {n: len(c) for n, c in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"lengths differ: {lengths}", remedy="Give one value or list for each row of keys")
        table = pa.table(dict(columns))
        RowKeys(table, self.keys, path).refuse_repeated()
        write_text_csv(path, table, sep=self.delimiter)

    def ranked_lines(self, path: str | Path, lists: str | None) -> RankedLines:
        """Read a ranking's submission as one line for each item, with its column of ``lists`` (None: the first key).

        Returns columns of text that name the lines, scores float64 ``[n]`` (higher for better), the columns that name a
        list, and the most lines of a list (None: all candidates).
        """
        raise NotImplementedError

    def check(self, path: str | Path, test_path: str | Path, *, any_order: bool = False) -> Checked:
        """Check a submission (see ``check_submission``); return the numbers of lines and of ids or values, and
        warnings.
        """
        raise NotImplementedError

    def lists_of(self, column: pa.Array | pa.ChunkedArray, path: str | Path) -> IdLists:
        """Split a column of lists; none may be empty or too long, hold an empty id or name one twice."""
        ids = IdLists(column, self.sep)
        blank = np.asarray(pc.equal(ids.flat, ""))
        empty = np.flatnonzero(blank & (ids.length[ids.row] == 1))
        if len(empty):
            self.fail("the list is empty", ids.row[empty], path, "Rank the row's candidates")
        if blank.any():
            remedy = f"Put one {self.sep!r} between two ids and none at the ends"
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
        raise SubmissionError(problem, file=path, column=self.prediction, row=int(rows[0]), remedy=remedy)

    def match(self, table: pa.Table, wanted: RowKeys, path: str | Path, *, complete: bool = True) -> np.ndarray:
        """Match each line of ``table`` to its row of ``wanted``: see ``RowKeys.match``."""
        if not self.keys and len(table) != len(wanted.text):
            problem = f"it has {len(table)} rows, {wanted.path.name} has {len(wanted.text)}"
            raise SubmissionError(problem, file=path, remedy="Write one line for each, in their order")
        return RowKeys(table, self.keys, path).match(wanted, role=self.role, complete=complete)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _fits(value: Any, hint: Any) -> bool:
    kinds = get_args(hint)
    if get_origin(hint) is tuple:
        kinds = kinds[:1] * len(value) if kinds[-1] is ... and isinstance(value, tuple) else kinds
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    return any(_fits(value, k) for k in kinds) if kinds else type(value) is hint


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
