"""Submissions of next items: how they look, and their score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.rows import Checked, RowKeys, SubmissionForm
from fastrec.errors import DataError, MissingColumnError
from fastrec.table import Table, Vocab, column_names
from fastrec.table.read import read_file


@dataclass(frozen=True, kw_only=True)
class NextItemForm(SubmissionForm):
    """The form of a submission of next items, and of the test file that it answers.

    Args:
        items: the column of items, in the test file and in the submission.
        session: the column of sessions; None: a row is a session, and lines are in the order of the rows.
        target: the test file's column with the item that follows, where it is known.
        order: columns by which a session's events are put in order.
        sep: separates two ids.
        max_items: the most ids in a line.

    Raises:
        DataError: no file can have this form.
    """

    kind: ClassVar[str] = "next items"
    role: ClassVar[str] = "no session"
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
                f"{self.max_items} items", remedy="Name each column once, and give a separator and 1 item or more",
            )  # fmt: skip

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns that name a line; none: its number does."""
        return () if self.session is None else (self.session,)

    @property
    def prediction(self) -> str:  # type: ignore[override]
        """The column with the ordered ids."""
        return self.items

    def texts(self, items: Vocab) -> list[str]:
        """Return the items' ids as text.

        Raises:
            DataError: one holds the separator.
        """
        text = id_text(items.values).to_pylist()
        bad = next((t for t in text if self.sep in t), None)
        if bad is not None:
            problem = f"the item {bad!r} holds {self.sep!r}, which stands between items in a submission"
            raise DataError(problem, column=self.items, remedy="Set the recipe's separator to text that no item holds")
        return text

    def write(self, path: str | Path, items: Vocab, best: Any, sessions: Any = None) -> None:
        """Write a submission, or nothing.

        Args:
            path: the file to write or replace.
            items: what the codes mean.
            best: codes int64 ``[n, k]``, the best first; 0: none.
            sessions: the sessions' ids, a ``Column`` ``[n]``, where the form names them.

        Raises:
            DataError: an id holds the separator.
            WriteError: the file system refused; what was at ``path`` is as it was.
        """
        words, none = np.array(self.texts(items), dtype=object), len(items.reserved)
        lines = [self.sep.join(words[row[row >= none] - none]) for row in best.numpy()]
        columns: dict[str, Any] = {self.items: pa.array(lines, pa.large_string())}
        if self.session is not None:
            columns = {self.session: id_text(sessions.to_arrow()), **columns}
        self.write_lines(path, columns)

    def check(self, path: str | Path, test_path: str | Path, *, any_order: bool = False) -> Checked:
        """See ``check_submission``."""
        table, ids = self.read(path)
        match = self.match(table, self.sessions(test_path), path)
        warnings = []
        if not any_order and (match[1:] < match[:-1]).any():
            warnings.append(f"the sessions are in another order than in {Path(test_path).name}")
        short = int((ids.length < self.max_items).sum())
        if short:
            warnings.append(f"{short} lists have fewer than {self.max_items} ids")
        return len(table), len(ids.flat), tuple(warnings)

    def sessions(self, path: str | Path) -> RowKeys:
        """Read the sessions of a test file, each once."""
        if self.session is None:
            return RowKeys(read_file(path), (), path)
        text = pc.unique(id_text(Table.read(path, [self.session], device="cpu")[self.session].to_arrow()))
        if text.null_count:
            raise DataError("a row belongs to no session", file=path, column=self.session, remedy="Fill the column")
        return RowKeys(pa.table({self.session: text}), self.keys, path)

    def answers(self, path: Path) -> tuple[RowKeys, pa.Array, str]:
        """Read the sessions of a file with targets, the item that followed each as text, and the targets' column.

        A file without the target column may give the item that followed in the submission's own column of items, in
        one row for each session.

        Raises:
            MissingColumnError: there is no target.
            FastrecError: the file cannot be read.
        """
        names = column_names(read_file(path))
        there = [n for n in (*self.keys, *self.order) if n in names]
        name = self.target
        if name not in names:
            # A log of events has the items too: only one row for each session can be the answers.
            plain = self.session in names and self.items in names
            sessions = read_file(path, [self.session])[self.session] if plain else None
            if sessions is None or len(pc.unique(sessions)) < len(sessions):
                raise MissingColumnError(
                    "it names no item that followed", file=path, column=name,
                    remedy=f"Add the column {name!r}, or give one row for each session with "
                    f"{', '.join(map(repr, self.header))}",
                )  # fmt: skip
            name = self.items
        table = Table.read(path, list(dict.fromkeys([*there, name])), device="cpu")
        target = table[name]
        if self.session is None:
            found, keys = target.to_arrow(), RowKeys(pa.table({"row": pa.nulls(len(target))}), (), path)
        else:
            found, keys = self._last(table, name, [n for n in self.order if n in there], path)
        return keys, id_text(found), name

    def _last(self, table: Table, target: str, order: Sequence[str], path: str | Path) -> tuple[pa.Array, RowKeys]:
        """Return the target of each session's last row; a session's rows need not be neighbours."""
        arrow = table.to_arrow()
        arrow = arrow.append_column("#row", pa.array(np.arange(len(arrow))))
        first = id_text(arrow[self.session]).dictionary_encode()
        arrow = arrow.append_column("#session", first.indices)
        keys = [("#session", "ascending"), *((n, "ascending") for n in order), ("#row", "ascending")]
        arrow = arrow.sort_by(keys)
        numbers = arrow["#session"].to_numpy()
        ends = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True)) if len(numbers) else numbers
        found = arrow[target].take(pa.array(ends)).combine_chunks()
        return found, RowKeys(pa.table({self.session: first.dictionary}), self.keys, path)


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
