"""``IdLists``: lists of ids, a text for each row, taken apart and checked."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.ordering import arrow_column
from fastrec.errors import SubmissionError


class ListForm(Protocol):
    """What a form says of its lists."""

    @property
    def sep(self) -> str:
        """What stands between two ids."""

    @property
    def max_items(self) -> int:
        """The most ids in a list."""

    @property
    def prediction(self) -> str:
        """The column with the lists."""


class IdLists:
    """The ids of all rows end to end, with the row and the place in its list of each."""

    def __init__(self, column: pa.ChunkedArray, sep: str) -> None:
        lists = arrow_column(pc.split_pattern(column, sep), "ids")
        self.flat = lists.flatten()
        self.length = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        self.row = np.repeat(np.arange(len(lists)), self.length)
        self.place = np.arange(len(self.flat)) - np.repeat(np.cumsum(self.length) - self.length, self.length)


def check_lists(ids: IdLists, path: str | Path, form: ListForm) -> None:
    """Refuse a list that is empty, too long, holds an empty id or names one twice."""
    column, blank = form.prediction, np.asarray(pc.equal(ids.flat, ""))
    empty = np.flatnonzero(blank & (ids.length[ids.row] == 1))
    if len(empty):
        fail("the list is empty", ids.row[empty], path, column, "Rank the row's candidates")
    if blank.any():
        remedy = f"Put one {form.sep!r} between two ids and none at the ends"
        fail("the list holds an empty id", ids.row[blank], path, column, remedy)
    long = np.flatnonzero(ids.length > form.max_items)
    if len(long):
        problem = f"the list has {ids.length[long[0]]} ids, more than {form.max_items}"
        fail(problem, long, path, column, f"Keep the first {form.max_items}")
    codes, n_codes = codes_of(ids.flat)
    pairs = ids.row * n_codes + codes
    order = np.argsort(pairs, kind="stable")
    again = np.sort(order[1:][pairs[order][1:] == pairs[order][:-1]])
    if len(again):
        problem = f"id {ids.flat[int(again[0])].as_py()!r} is listed twice"
        fail(problem, ids.row[again], path, column, "List every id once; an answer that is listed twice scores 0")


def codes_of(values: pa.Array) -> tuple[np.ndarray, int]:
    """Encode text as codes int64 ``[n]``, and bound their number."""
    encoded = values.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))


def fail(problem: str, rows: np.ndarray, path: str | Path, column: str, remedy: str) -> NoReturn:
    """Name the first of some rows, and count them."""
    raise SubmissionError(
        f"{problem} ({len(np.unique(rows))} such rows in all)",
        file=path,
        column=column,
        row=int(rows[0]),
        remedy=remedy,
    )
