"""Events that a client sends → a table of Arrow with the declared columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec.serve.server.bodies import Body
from fastrec.serve.server.reading import check_rows, check_same_length, lists_of_rows
from fastrec.serve.server.refusal import Refusal, shortened
from fastrec.serve.server.spec import Input
from fastrec.serve.server.values import arrow_type, from_arrow, from_values

__all__ = ["events_table"]

_ANY = {"string": "", "bool": False}  # what stands under a null while a column is converted


def events_table(declared: tuple[Input, ...], body: Body, max_rows: int) -> pa.Table:
    """Read the events of a body; null stays null, whatever the column."""
    columns: Mapping[str, Any]
    if body.table is not None:
        columns = dict(zip(body.table.column_names, body.table.columns))
        if len(columns) < body.table.num_columns:
            raise Refusal(422, "two columns have one name")
    else:
        columns = lists_of_rows(body.rows, max_rows) if body.rows is not None else body.lists
        if type(columns) is not dict or any(type(v) is not list for v in columns.values()):
            raise Refusal(422, "columns is no object of lists")
    check_rows(check_same_length(columns), max_rows)
    known = {c.name for c in declared}
    unknown = next((name for name in columns if name not in known), None)
    if unknown is not None:
        raise Refusal(422, f"the events have no such column; they have {shortened(', '.join(known))}", column=unknown)
    made = {}
    for column in declared:
        if column.name in columns:
            made[column.name] = _converted(column, columns[column.name])
        elif column.required:
            raise Refusal(422, "the column is missing", column=column.name)
    return pa.table(made)


def _converted(column: Input, values: Any) -> pa.Array:
    nullable = replace(column, missing=None if column.is_float else _ANY.get(column.type, 0))
    if isinstance(values, list):
        missing, plain = np.array([v is None for v in values], bool), from_values(nullable, values)
    else:
        missing, plain = values.is_null().to_numpy(zero_copy_only=False), from_arrow(nullable, values)
    if column.unit is not None:
        return pa.array(plain, pa.int64(), mask=missing).cast(arrow_type(column))
    return pa.array(plain, arrow_type(column), mask=missing)
