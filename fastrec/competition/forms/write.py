"""``write_submission``: ranked lists as a file in the official form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastrec.competition.forms._rows import _list_text
from fastrec.competition.forms.id_lists import IdLists, check_lists
from fastrec.competition.forms.list_form import RECSYS2019, SubmissionFormat
from fastrec.competition.forms.ordering import ranked_strings
from fastrec.competition.forms.row_keys import key_text
from fastrec.table.csv_text import write_text_csv

__all__ = ["write_ranked", "write_submission"]


def write_submission(path: str | Path, keys_frame: Any, lists: Any, format: SubmissionFormat = RECSYS2019) -> None:
    """Write a submission, or nothing: the same input always gives the same bytes.

    Args:
        path: the CSV to write or replace.
        keys_frame: pandas, polars or Arrow table, or a dict of columns: the key columns, one row per target, in the
            order to write; other columns are ignored. Integers or strings.
        lists: one entry per target: strings as ``fastrec.competition.ranked_strings`` makes them, or lists of ids.
        format: the form to write.

    Raises:
        DataError: a key column is missing, holds missing values or floats; lengths differ.
        SubmissionError: a duplicate row, or a list that is empty, too long or names an id twice.
        WriteError: the file system refused; what was at ``path`` is as it was.
    """
    columns = {name: key_text(keys_frame, name) for name in format.keys}
    columns[format.prediction] = _list_text(lists, format)
    table = format.table_of(columns, path)
    check_lists(IdLists(table[format.prediction], format.sep), path, format)
    write_text_csv(path, table)


def write_ranked(
    path: str | Path, keys_frame: Any, items: Any, scores: Any, groups: Any, format: SubmissionFormat = RECSYS2019
) -> None:
    """Write scored candidates as a submission: each list best first, cut to the form's length.

    Args:
        path, keys_frame, format: as for ``write_submission``.
        items: ``[n]`` integers or strings, the candidates.
        scores: ``[n]`` numbers.
        groups: ``[n]`` integers or strings: the list of each; lists in the order of the targets.

    Raises:
        DataError, SubmissionError, WriteError: see ``write_submission`` and ``ranked_strings``.
    """
    lists = ranked_strings(items, scores, groups, sep=format.sep, k=format.max_items)
    write_submission(path, keys_frame, lists, format)
