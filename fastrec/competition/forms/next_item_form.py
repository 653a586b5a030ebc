"""``NextItemForm``: how a submission of next items looks: a line a session, its items in order, the best first.

Everything is read and compared as text, so that ids stay exactly what they are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.id_lists import IdLists, check_lists
from fastrec.competition.forms.row_keys import RowKeys
from fastrec.errors import DataError, SubmissionError
from fastrec.table import Table, Vocab, column_names
from fastrec.table.csv_text import csv_header, read_text_csv, write_text_csv
from fastrec.table.read import read_file

__all__ = ["NextItemForm"]


@dataclass(frozen=True, kw_only=True)
class NextItemForm:
    """The form of a submission of next items, and of the test file that it answers.

    Args:
        items: the column of items, in the test file and in the submission.
        session: the column of sessions; None: a row is a session, and lines stand in the order of the rows.
        target: the test file's column with the item that follows, where it is known.
        order: columns by which a session's events are put in order.
        sep: what stands between two ids.
        max_items: the most ids in a line.

    Raises:
        DataError: no file can have this form.
    """

    items: str = "items"
    session: str | None = None
    target: str = "target"
    order: tuple[str, ...] = ()
    sep: str = " "
    max_items: int = 20

    def __post_init__(self) -> None:
        if not self.sep or self.max_items < 1 or self.items == self.session:
            raise DataError(
                f"no submission has the columns {', '.join(self.header)}, the separator {self.sep!r} and "
                f"{self.max_items} items",
                remedy="Name each column once, and give a separator and 1 item or more",
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that name a line; none: its number does."""
        return () if self.session is None else (self.session,)

    @property
    def prediction(self) -> str:
        """The column with the ordered ids."""
        return self.items

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission file, in order."""
        return (*self.keys, self.items)

    def to_state(self) -> dict[str, Any]:
        """The form as JSON values, as a run's ``config.json`` keeps it."""
        return {"kind": "next items", **asdict(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NextItemForm:
        """The inverse of ``to_state``.

        Raises:
            ValueError, TypeError, KeyError: it is not what ``to_state`` gives.
        """
        known = {n: state[n] for n in cls.__dataclass_fields__}
        known["order"] = tuple(known["order"])
        texts = [known["items"], known["target"], known["sep"], *known["order"], *([known["session"] or "-"])]
        if not all(isinstance(t, str) for t in texts):
            raise TypeError("a name or the separator is not text")
        return cls(**known)

    def texts(self, items: Vocab) -> list[str]:
        """The items' ids as text.

        Raises:
            DataError: one holds what stands between two.
        """
        text = id_text(items.values).to_pylist()
        bad = next((t for t in text if self.sep in t), None)
        if bad is not None:
            raise DataError(
                f"the item {bad!r} holds {self.sep!r}, which stands between items in a submission",
                column=self.items,
                remedy="Set the recipe's separator to text that no item holds",
            )
        return text

    # Files -----------------------------------------------------------------------------------------------------------

    def write(self, path: str | Path, items: Vocab, best: Any, sessions: Any = None) -> None:
        """Write a submission, or nothing.

        Args:
            path: the file to write or replace.
            items: what the codes mean.
            best: codes int64 ``[n, k]``, the best first; 0: none.
            sessions: the sessions' ids, a ``Column`` ``[n]``, where the form names them.

        Raises:
            DataError: an id holds what stands between two.
            WriteError: the file system refused; what was at ``path`` is as it was.
        """
        words, none = np.array(self.texts(items), dtype=object), len(items.reserved)
        lines = [self.sep.join(words[row[row >= none] - none]) for row in best.numpy()]
        columns: dict[str, Any] = {self.items: pa.array(lines, pa.large_string())}
        if self.session is not None:
            columns = {self.session: id_text(sessions.to_arrow()), **columns}
        write_text_csv(path, pa.table(columns))

    def read(self, path: str | Path) -> tuple[pa.Table, IdLists]:
        """A submission as text, and its ids one after the other.

        Raises:
            SubmissionError: it has other columns, a session twice, or a list that is empty, too long, or names an id
                twice.
            MissingFileError, UnreadableFileError: it cannot be read.
        """
        names = tuple(csv_header(path))
        if names != self.header:
            other = next((n for n in names if n not in self.header), None)
            remedy = f"Write exactly {','.join(self.header)}"
            raise SubmissionError(f"the header is {','.join(names)}", file=path, column=other, remedy=remedy)
        table = read_text_csv(path, self.header)
        RowKeys(table, self.keys, path).refuse_repeated()
        ids = IdLists(table[self.items], self.sep)
        check_lists(ids, path, self)
        return table, ids

    def match(self, table: pa.Table, wanted: RowKeys, path: str | Path) -> np.ndarray:
        """For every line the session that it is about: int64 ``[n]``.

        Raises:
            SubmissionError: a line is about no session of the test file, or a session has no line.
        """
        if self.session is None and len(table) != len(wanted.text):
            problem = f"it has {len(table)} rows, {wanted.path.name} has {len(wanted.text)}"
            raise SubmissionError(problem, file=path, remedy="Write a line for each session, in their order")
        return RowKeys(table, self.keys, path).match(wanted, role="no session")

    def sessions(self, path: str | Path) -> RowKeys:
        """The sessions of a test file, each once.

        Raises:
            FastrecError: the file cannot be read, or lacks the column of sessions.
        """
        if self.session is None:
            return RowKeys(read_file(path), (), path)
        return self._named(Table.read(path, [self.session])[self.session].to_arrow(), path)

    def answers(self, path: str | Path) -> tuple[RowKeys, pa.Array]:
        """The sessions of a file with targets, and the item that followed each, as text.

        Raises:
            MissingColumnError: there is no target.
            DataError: a session has none.
            FastrecError: the file cannot be read.
        """
        there = [n for n in (*self.keys, *self.order) if n in column_names(read_file(path))]
        table = Table.read(path, list(dict.fromkeys([*there, self.target])))
        target = table[self.target]
        if self.session is None:
            found, keys = target.to_arrow(), RowKeys(pa.table({"row": pa.nulls(len(target))}), (), path)
        else:
            found, keys = self._last(table, [n for n in self.order if n in there], path)
        text = id_text(found)
        if text.null_count or bool(pc.any(pc.equal(text, "")).as_py()):
            gone = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(text, ""), True)))
            raise DataError(
                f"no answer ({len(gone)} sessions in all)", file=path, column=self.target, row=int(gone[0]),
                remedy="Score against the file with the items that followed",
            )  # fmt: skip
        return keys, text

    def _last(self, table: Table, order: Sequence[str], path: str | Path) -> tuple[pa.Array, RowKeys]:
        """The target of each session's last row; a session's rows need not stand together."""
        arrow = table.to_arrow()
        arrow = arrow.append_column("#row", pa.array(np.arange(len(arrow))))
        first = id_text(arrow[self.session]).dictionary_encode()
        arrow = arrow.append_column("#session", first.indices)
        keys = [("#session", "ascending"), *((n, "ascending") for n in order), ("#row", "ascending")]
        arrow = arrow.sort_by(keys)
        numbers = arrow["#session"].to_numpy()
        ends = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True)) if len(numbers) else numbers
        found = arrow[self.target].take(pa.array(ends)).combine_chunks()
        return found, RowKeys(pa.table({self.session: first.dictionary}), self.keys, path)

    def _named(self, sessions: pa.Array, path: str | Path) -> RowKeys:
        text = pc.unique(id_text(sessions))
        if text.null_count:
            raise DataError("a row belongs to no session", file=path, column=self.session, remedy="Fill the column")
        return RowKeys(pa.table({str(self.session): text}), self.keys, path)


def id_text(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Ids as text without spaces of our own: days as 2026-01-31, moments as 2026-01-31T12:00:00."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if not pa.types.is_timestamp(ids.type):
        return ids.cast(pa.large_string())
    text = pc.cast(ids, pa.large_string())
    if pc.all(pc.ends_with(text, " 00:00:00")).as_py():
        return pc.utf8_slice_codeunits(text, 0, 10)
    return pc.replace_substring(text, " ", "T")
