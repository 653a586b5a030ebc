"""Lists of a submission, and the target rows of its test file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec.competition.forms.id_lists import IdLists, codes_of, fail
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.forms.ordering import arrow_column
from fastrec.competition.forms.row_keys import refuse_nulls
from fastrec.errors import DataError
from fastrec.table.csv_text import read_text_csv
from fastrec.table.key_types import is_text


def _list_text(lists: Any, form: SubmissionFormat) -> pa.Array:
    column = arrow_column(lists, form.prediction)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ids = column.flatten()
        if not (is_text(ids.type) or pa.types.is_integer(ids.type) or pa.types.is_null(ids.type)):
            raise DataError(f"ids are {ids.type}", column=form.prediction, remedy="Give integers or strings")
        if is_text(ids.type) and pc.any(pc.match_substring(ids, form.sep)).as_py():
            raise DataError(f"an id holds {form.sep!r}", column=form.prediction, remedy="Choose another separator")
        lists = column.cast(pa.large_list(pa.large_string()))
        column = pc.binary_join(lists, pa.scalar(form.sep, pa.large_string()))
    elif not is_text(kind) and len(column):
        raise DataError(f"lists are {kind}", column=form.prediction, remedy="Give strings or lists of ids")
    refuse_nulls(column, form.prediction, "a list, or an id in it, is missing")
    return column.cast(pa.large_string())


def _read_targets(path: str | Path, form: SubmissionFormat) -> tuple[pa.Table, np.ndarray]:
    """Read the target rows of the test file, and their row numbers there."""
    table = read_text_csv(path, dict.fromkeys((*form.keys, *(name for name, _ in form.targets), form.candidates)))
    chosen = np.ones(len(table), dtype=bool)
    for name, value in form.targets:
        chosen &= np.asarray(pc.equal(table[name], value))
    if not chosen.any():
        wanted = " and ".join(f"{name} {value!r}" for name, value in form.targets)
        raise DataError(f"no row with {wanted}", file=path, remedy="Give the test file, with its targets left empty")
    return table.filter(pa.array(chosen)), np.flatnonzero(chosen)


def _check_candidates(ids: IdLists, candidates: IdLists, path: str | Path, form: SubmissionFormat) -> tuple[str, ...]:
    """Refuse ids that are not a candidate of their row; warn of candidates that are not listed."""
    codes, n_codes = codes_of(pa.concat_arrays([ids.flat, candidates.flat]))
    listed = ids.row * n_codes + codes[: len(ids.flat)]
    offered = candidates.row * n_codes + codes[len(ids.flat) :]
    outside = np.flatnonzero(~np.isin(listed, offered))
    if len(outside):
        problem = f"id {ids.flat[int(outside[0])].as_py()!r} is not among the {form.candidates} of its row"
        fail(problem, ids.row[outside], path, form.prediction, f"List only ids from that row's {form.candidates}")
    left_out = np.setdiff1d(offered, listed)
    if not len(left_out):
        return ()
    n_rows = len(np.unique(left_out // n_codes))
    return (f"{len(left_out)} {form.candidates} in {n_rows} rows are not listed: an answer among them scores 0",)
