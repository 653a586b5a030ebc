"""Submissions of ranked lists and of next items: their form and their writing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core.atomic import read_json
from fastrec.competition.forms.rows import IdLists, RowKeys, SubmissionForm, arrow_column, separated
from fastrec.competition.forms.values import sample_form
from fastrec.errors import DataError, UnreadableFileError
from fastrec.table import Vocab
from fastrec.table.read import read_text_csv


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


RECSYS2019 = SubmissionForm(
    ids=("user_id", "session_id", "timestamp", "step"),
    items="item_recommendations",
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
            remedy = "Write submission = SubmissionForm(…) in the recipe"
            raise DataError(problem, file=sample, column=lists, row=int(again[0]), remedy=remedy)
        text = table[rest[0]]
        within = max((" ", ",", ";", "|"), key=lambda s: pc.sum(pc.match_substring(text, s)).as_py() or 0)
        most = max(1, int(IdLists(text, within).length.max(initial=1)))
        about = {"ids": (lists,), "items": rest[0], "item_sep": within, "max_items": most}
        return SubmissionForm(**about, candidates=item, candidates_sep=None, answer=item)
    form = sample_form(sample, [*names, lists, item])
    if not {lists, item} <= set(form.ids) or len(form.values) != 1:
        return form
    table = form.read(sample)
    values = pc.cast(table[form.values[0]], pa.large_string()).to_pylist()
    groups = arrow_column(table[lists], lists).dictionary_encode().indices.to_numpy()
    lengths = np.bincount(groups)
    whole = np.array([int(v) if v.isdecimal() else 0 for v in values])
    # Ranks are 1 to the list's length, each once; in lists of one row, a score could be 1 by chance.
    pairs = np.unique(np.column_stack([groups, whole]), axis=0)
    are_ranks = len(pairs) == len(whole) and (whole >= 1).all() and (whole <= lengths[groups]).all()
    if (are_ranks and lengths.max(initial=0) > 1) or form.values[0].lower() in ("rank", "position", "place"):
        return replace(form, ranks=True, max_items=int(lengths.max(initial=1)))
    return form


def form_of_run(folder: str | Path) -> SubmissionForm:
    """Return the form of a run directory's submission; runs of several goals have none."""
    path = Path(folder) / "config.json"
    state = read_json(path)
    try:
        if state["task"] != "objectives":
            return SubmissionForm(**state["submission"])
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


def write_submission(path: str | Path, keys_frame: Any, lists: Any, format: SubmissionForm = RECSYS2019) -> None:
    """Write ranked lists as a submission, or nothing: the same input always gives the same bytes.

    Args:
        path: the CSV to write or replace.
        keys_frame: pandas, polars or Arrow table, or a dict of columns: the key columns, integers or strings, one row
            per list, in the order to write. Other columns are ignored.
        lists: one entry per row: strings as from ``fastrec.competition.ranked_strings``, or lists of ids.
        format: the form to write.

    Raises:
        SubmissionError: a duplicate row, or a list of candidates that is empty, too long or names an id twice.
        WriteError: the file system refused; ``path`` is unchanged.
    """
    format.write(path, keys_frame, {str(format.items): lists})


def item_texts(form: SubmissionForm, items: Vocab) -> list[str]:
    """Return the items' ids as text; refuse one that contains the separator."""
    text = id_text(items.values).to_pylist()
    bad = next((t for t in text if form.item_sep in t), None)
    if bad is not None:
        problem = f"the item {bad!r} holds {form.item_sep!r}, which stands between items in a submission"
        remedy = "Set the recipe's separator to text that no item holds"
        raise DataError(problem, column=form.items, remedy=remedy)
    return text


def write_items(form: SubmissionForm, path: str | Path, items: Vocab, best: Any, sessions: Any = None) -> None:
    """Write recommendations: ``best`` codes of ``items`` int64 ``[n, k]``, the best first; 0: none.

    ``sessions`` are the sessions' ids, a ``Column`` ``[n]``, if the form has them.
    """
    known = best >= len(items.reserved)
    ids = pa.array(item_texts(form, items), pa.large_string()).take(pa.array(best[known].numpy() - len(items.reserved)))
    ends = torch.nn.functional.pad(known.sum(1).cumsum(0), (1, 0))
    keys = {n: id_text(sessions.to_arrow()) for n in form.ids}
    form.write(path, keys, {str(form.items): pa.LargeListArray.from_arrays(pa.array(ends.numpy()), ids)})
