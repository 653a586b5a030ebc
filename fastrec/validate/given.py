"""Arguments of cuts (rows, a column's name, values, times, spans) as columns, codes and ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError
from fastrec.table import Column, Table, as_column, column_names
from fastrec.table.key_types import UNITS_PER_SECOND, is_text

_UNITS = {per_second: unit for unit, per_second in UNITS_PER_SECOND.items()}


def row_count(data: Any) -> int:
    """Return the number of rows of a table of any library, a file or anything with a length; a number is itself."""
    if isinstance(data, int):
        return data
    if isinstance(data, str | Path):
        return len(Table.read(data))
    if isinstance(data, Mapping):
        return len(next(iter(data.values()), ()))
    return len(data)


def given_column(data: Any, what: Any, role: str) -> Column:
    """Return a column by its name, or its values as a column.

    Args:
        data: the rows: a table of any library, a file, or their number.
        what: the name of a column of ``data``, or ``[n]`` values of any library.
        role: what the column is for, which errors call values without a name.

    Raises:
        DataError: there are not as many values as rows.
    """
    if isinstance(what, str):
        return Table.read(data, [what])[what]
    column = as_column(what, name=str(getattr(what, "name", None) or role))
    rows = row_count(data)
    if len(column) != rows:
        raise DataError(f"{len(column)} values for {rows} rows", column=column.name, remedy="Give one for every row")
    return column


def given_key(data: Any, what: Any, role: str) -> Table:
    """Return the column(s) of a key as a table; a list or tuple of column names is a key of several columns."""
    if isinstance(what, list | tuple) and what and all(isinstance(w, str) for w in what) and not isinstance(data, int):
        names = column_names(Table.read(data) if isinstance(data, str | Path) else data)
        if set(what) <= set(names):
            return Table.read(data, list(what))
    column = given_column(data, what, role)
    return Table({column.name: column})


class Times(NamedTuple):
    """Times of rows.

    Args:
        ticks: int64 or float64 ``[n]`` on the CPU.
        per_second: ticks in a second; None: the column is numbers, or categories in an order.
        name: the column.
    """

    ticks: torch.Tensor
    per_second: int | None
    name: str

    def span(self, value: Any, role: str) -> int | float:
        """Turn a length of time into ticks, rounded down to whole ones if times are whole.

        Args:
            value: a number where the column holds numbers; a ``timedelta`` (of Python, numpy or pandas) or pandas'
                text for one (``'7D'``) where it holds dates; 0 for either.
            role: what it is for, for messages.

        Raises:
            DataError: it is of the other kind, below 0 or not a length of time.
        """
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, np.timedelta64)
        if self.per_second is None and not is_number:
            raise DataError(f"{role} is {value!r}, the times are numbers", column=self.name, remedy="Give a number")
        if self.per_second is not None and is_number and value != 0:
            raise DataError(
                f"{role} is {value!r} and the times are dates: {value!r} of what?",
                column=self.name,
                remedy="Give a timedelta, such as datetime.timedelta(days=7)",
            )
        ticks = value if is_number else _nanoseconds(value, role) * self.per_second // 10**9
        if not ticks >= 0 or math.isinf(ticks):
            raise DataError(f"{role} is {value!r}", column=self.name, remedy="Give 0 or more")
        return float(ticks) if self.ticks.is_floating_point() else math.floor(ticks)

    def length(self, ticks: float) -> Any:
        """Turn ticks into a length of time as :meth:`span` takes it."""
        return ticks if self.per_second is None else np.timedelta64(ticks, _UNITS[self.per_second])

    def shown(self, ticks: float) -> str:
        """Format a length of time in ticks."""
        if self.per_second is None:
            return f"{ticks:g}" if isinstance(ticks, float) else str(ticks)
        return str(timedelta(microseconds=ticks * 10**6 // self.per_second)).removesuffix(", 0:00:00")

    def moment(self, ticks: float) -> str:
        """Format a time in ticks."""
        if self.per_second is None:
            return f"{ticks:g}" if isinstance(ticks, float) else str(ticks)
        at = np.datetime64(ticks, _UNITS[self.per_second])
        return str(next((d for d in map(at.astype, ("M8[D]", "M8[m]", "M8[s]")) if d == at), at)).replace("T", " ")


def times_of(column: Column) -> Times:
    """Return the times of a column of dates, numbers, ISO 8601 text, or categories in an order.

    Raises:
        DataError: it holds none of these.
    """
    column = column.plain()
    if column.kind == "category" and column.ordered:
        return Times(column.values.long().cpu(), None, column.name)
    if column.kind == "category" and is_text(column.distinct.type):
        column = _dated(column)
    if column.kind == "datetime":
        return Times(column.values.cpu(), UNITS_PER_SECOND[column.unit], column.name)
    if column.kind == "number" and not column.values.is_floating_point():
        return Times(column.integer().cpu(), None, column.name)
    return Times(column.number().cpu(), None, column.name)


def given_times(data: Any, what: Any, role: str) -> Times:
    """Return times of rows, by a column's name or values, none of them missing.

    Args:
        data: the rows: a table of any library, a file, or their number.
        what: a column's name, or ``[n]`` values.
        role: what the column is for, for messages.

    Raises:
        DataError: a time is missing, or the column holds no times.
    """
    column = given_column(data, what, role)
    missing = column.is_missing()
    if bool(missing.any()):
        raise DataError(
            "a time is missing",
            column=column.name,
            row=int(missing.nonzero()[0]),
            remedy="Fill it, or leave the row out",
        )
    times = times_of(column)
    bad = ~torch.isfinite(times.ticks)
    if bool(bad.any()):
        raise DataError("a time is infinite", column=column.name, row=int(bad.nonzero()[0]), remedy="Leave the row out")
    return times


def in_one_unit(times: Times, others: Times) -> tuple[Times, Times]:
    """Return times of two columns in ticks of one length.

    Raises:
        DataError: one column holds dates, the other numbers.
    """
    if (times.per_second is None) != (others.per_second is None):
        raise DataError(
            f"one of {times.name!r} and {others.name!r} holds dates, the other numbers",
            column=others.name,
            remedy="Give both in one form",
        )
    # The finer unit holds the values of the coarser one exactly.
    if times.per_second is not None and others.per_second is not None:
        finest = max(times.per_second, others.per_second)
        return _scaled(times, finest), _scaled(others, finest)
    if times.ticks.dtype == others.ticks.dtype:
        return times, others
    return times._replace(ticks=times.ticks.double()), others._replace(ticks=others.ticks.double())


def _scaled(times: Times, per_second: int) -> Times:
    assert times.per_second is not None
    return Times(times.ticks * (per_second // times.per_second), per_second, times.name)


def _dated(column: Column) -> Column:
    for zone in (None, "UTC"):
        try:
            dates = column.distinct.cast(pa.timestamp("us", zone))
            break
        except pa.ArrowInvalid:
            continue
    else:
        raise DataError(
            "holds text that is no date", column=column.name, remedy="Give dates (2019-07-31), numbers or datetimes"
        )
    table = torch.zeros(len(dates) + 1, dtype=torch.int64)
    table[1:] = torch.from_numpy(np.array(dates.cast(pa.int64())))
    values = table[column.values.long().cpu()]
    return Column("datetime", values, name=column.name, missing=column.is_missing().cpu(), unit="us")


def _nanoseconds(value: Any, role: str) -> int:
    import pandas as pd

    try:
        span = pd.Timedelta(value)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{role} is {value!r}, no length of time", remedy="Give a timedelta, or text as '7D'"
        ) from error
    if span is pd.NaT:
        raise DataError(f"{role} is missing", remedy="Give a timedelta, or text as '7D'")
    return span.as_unit("ns").value
