"""The rows of a request as columns: names and lengths are checked here, values where the columns become arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec._core.near_names import nearest
from fastrec.serve.server.columns import RequestColumns
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.spec import Input, Spec
from fastrec.serve.server.values import from_array, from_arrow, from_values

__all__ = [
    "check_rows",
    "check_same_length",
    "checked_columns",
    "columns_of_arrays",
    "columns_of_lists",
    "columns_of_rows",
    "columns_of_table",
    "lists_of_rows",
]


def columns_of_lists(spec: Spec, columns: Mapping[str, list[Any]], *, max_rows: int) -> RequestColumns:
    """Read columns of JSON: ``{"age": [31, null], "city": ["Köln", "Oslo"]}``."""
    if type(columns) is not dict:
        raise Refusal(422, "columns is no object of lists")
    if set(map(type, columns.values())) - {list}:
        bad = next(name for name, values in columns.items() if type(values) is not list)
        raise Refusal(422, "its values are no list", column=bad)
    rows = check_same_length(columns)
    check_rows(rows, max_rows)
    return checked_columns(spec, columns, rows, from_values, list)


def columns_of_rows(spec: Spec, rows: list[dict[str, Any]], *, max_rows: int) -> RequestColumns:
    """Read rows of JSON: ``[{"age": 31, "city": "Köln"}, …]``; a column that a row lacks is missing there."""
    columns = lists_of_rows(rows, max_rows)
    if not rows:
        columns = {i.name: [] for i in spec.sent}
    _check_names(spec, columns)
    for column in spec.sent:  # a row without a column is as one with null, unless null would be refused with less help
        if column.name not in columns and column.may_be_missing and column.events is None:
            columns[column.name] = [None] * len(rows)
        elif column.name in columns and not column.may_be_missing:
            lacking = next((i for i, row in enumerate(rows) if column.name not in row), None)
            if lacking is not None:
                raise Refusal(422, "the row does not have this column", column=column.name, row=lacking)
    return checked_columns(spec, columns, len(rows), from_values, list)


def columns_of_table(spec: Spec, table: pa.Table, *, max_rows: int) -> RequestColumns:
    """Read columns of a table of Arrow."""
    check_rows(table.num_rows, max_rows)
    names = table.column_names
    if len(set(names)) != len(names):
        twice = next(n for i, n in enumerate(names) if n in names[:i])
        raise Refusal(422, "two columns have this name", column=twice)
    columns = dict(zip(names, table.columns))
    return checked_columns(spec, columns, table.num_rows, from_arrow, _listed)


def columns_of_arrays(spec: Spec, columns: Mapping[str, Any]) -> RequestColumns:
    """Read columns of numpy arrays, or of what numpy makes an array of."""
    lists = {i.name for i in spec.event_columns}
    arrays = {
        n: _objects(v) if n in lists else v if isinstance(v, np.ndarray) else np.array(v, object)
        for n, v in columns.items()
    }
    for name, values in arrays.items():
        if values.ndim != 1:
            raise Refusal(422, f"its shape is {values.shape}, not [n]", column=name)
    rows = check_same_length(arrays)
    return checked_columns(spec, arrays, rows, from_array, np.ndarray.tolist)


def _objects(values: Any) -> np.ndarray:
    """Build an array of lists ``[n]``, of which numpy would make a matrix if their lengths were equal."""
    made = np.empty(len(values), object)
    made[:] = list(values)
    return made


def checked_columns(
    spec: Spec,
    columns: Mapping[str, Any],
    rows: int,
    convert: Callable[[Input, Any], np.ndarray],
    as_list: Callable[[Any], list[Any]],
) -> RequestColumns:
    """Check names; ``convert`` will make arrays of columns, ``as_list`` reads ids of lists and items."""
    _check_names(spec, columns)
    if not columns.keys() >= spec.required:
        missing = next(i.name for i in spec.sent if i.required and i.name not in columns)
        raise Refusal(422, "the column is missing", column=missing)
    made = RequestColumns(spec, columns, rows, convert)
    if spec.list is not None and spec.list in columns:
        made.lists, made.n_lists = _numbered(spec.list, as_list(columns[spec.list]))
    if spec.item is not None and spec.item in columns:
        made.items = as_list(columns[spec.item])
    return made


def lists_of_rows(rows: list[dict[str, Any]], max_rows: int) -> dict[str, list[Any]]:
    """Turn rows of JSON into columns; None where a row lacks a column."""
    if type(rows) is not list:
        raise Refusal(422, "rows is no list of objects")
    check_rows(len(rows), max_rows)
    bad = next((i for i, r in enumerate(rows) if type(r) is not dict), None)
    if bad is not None:
        raise Refusal(422, f"{shortened(rows[bad])} is no object", row=bad)
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def _check_names(spec: Spec, names: Iterable[str]) -> None:
    if spec.known.issuperset(names):
        return
    for name in names:
        if name in spec.known:
            continue
        if any(name == i.name for i in spec.made):
            raise Refusal(422, "the server makes this column from events", column=name, remedy="Leave it out")
        near = nearest(name, spec.known)
        remedy = f"Is {near!r} meant" if near else None
        raise Refusal(422, "the model has no such column", column=name, remedy=remedy)


def check_same_length(columns: Mapping[str, Any]) -> int:
    """Return the number of values of every column; refuse different ones."""
    lengths = list(map(len, columns.values()))
    rows = lengths[0] if lengths else 0
    if lengths.count(rows) < len(lengths):
        first, other = next(iter(columns)), next(name for name, n in zip(columns, lengths) if n != rows)
        said = f"it has {len(columns[other])} values, column {shortened(first)!r} has {rows}"
        raise Refusal(422, said, column=other)
    return rows


def check_rows(rows: int, max_rows: int) -> None:
    """Refuse more rows than are allowed (413)."""
    if rows > max_rows:
        raise Refusal(413, f"there are {rows} rows, and no more than {max_rows} are allowed", remedy="Send fewer")


def _numbered(name: str, ids: list[Any]) -> tuple[np.ndarray, int]:
    """Number ids of lists, integers or text, 0 … k - 1 in order of appearance; return k too."""
    kinds = set(map(type, ids))
    if kinds - {int, str}:
        row = next(i for i, v in enumerate(ids) if type(v) not in (int, str))
        raise Refusal(422, f"{shortened(ids[row])} is no id of a list (an integer or text)", column=name, row=row)
    numbers = {v: i for i, v in enumerate(dict.fromkeys(ids))}
    return np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids)), max(len(numbers), 1)


def _listed(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (text or pa.types.is_integer(kind)):
        raise Refusal(422, f"ids of type {shortened(str(kind))} are neither integers nor text")
    return values.to_pylist()
