"""Rows of groups in time order, gaps between rows, and values taken from other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import ref

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.keyed import shared_codes
from fastrec.features._inputs import as_list, order_keys
from fastrec.features.base import Grouped
from fastrec.segments import Groups, as_of
from fastrec.segments.as_of_join import FewMerged, few
from fastrec.segments.windows import tie_start
from fastrec.table import Column, Table
from fastrec.table.key_types import UNITS_PER_SECOND


def ordered_groups(table: Table, by: Sequence[str], order: Sequence[str]) -> tuple[Groups, torch.Tensor]:
    """Sort rows by group and order; also return which rows have no group (a missing key), bool ``[n]``.

    Several generators of one ``by`` and ``order`` sort once: the table remembers it.
    """

    def make() -> tuple[Groups, torch.Tensor]:
        keys = order_keys(table, order)
        if by:
            codes = table.coded(list(by)).codes
            return Groups.of(codes, *keys), codes == 0
        zeros = torch.zeros(len(table), dtype=torch.int64, device=table.device)
        return Groups.of(zeros, *keys), zeros.bool()

    return table.remember(("groups", tuple(by), tuple(order)), (*by, *order), make)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Order values of grouped rows, and measures on them.

    Args:
        keys: int64 or float64 ``[n]``, sorted as the groups are.
        tied: int64 ``[n]``, for each sorted place the first one of its group at the same time: what is before it is
            strictly earlier.
        per_second: units of the keys in a second; 1 where the order is a number.
    """

    keys: torch.Tensor
    tied: torch.Tensor
    per_second: int

    @classmethod
    def of(cls, table: Table, groups: Groups, order: str) -> Timeline:
        """Return the timeline of an order column (``groups`` are in its order)."""
        keys = groups.sort(order_keys(table, [order])[0])
        return cls(keys, tie_start(groups, keys), UNITS_PER_SECOND[table[order].unit or "s"])


def one_order(feature: Grouped, why: str) -> str:
    """Return the one column that a generator orders by."""
    order = as_list(feature.order)  # type: ignore[attr-defined]
    if len(order) != 1:
        name = type(feature).__name__
        raise DataError(f"{name}: {why} needs one order column, not {len(order)}", remedy="Give order= one column")
    return order[0]


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a - b`` as float64 ``[n]``: exact before rounding, also if it overflows int64."""
    rough = a.double() - b.double()
    if a.is_floating_point() or b.is_floating_point():
        return rough
    return torch.where(rough.abs() < 2.0**62, (a - b).double(), rough)


def take_or_missing(column: Column, rows: torch.Tensor) -> Column:
    """Take the column's values at ``rows`` (int64 ``[m]``), missing if a row is below 0."""
    absent = rows < 0
    if column.kind not in ("number", "datetime", "category"):
        raise DataError(
            f"holds {column.kind} values, which cannot be shifted", column=column.name, remedy="Choose another column"
        )
    if not len(column):  # every row is missing then: one row stands for it
        column = replace(column, values=column.values.new_zeros(1), missing=None)
    taken = column.take(rows.clamp_min(0))
    if column.kind == "category":
        return taken.changed(values=torch.where(absent, 0, taken.values))
    if column.kind == "number" and column.values.is_floating_point():
        values = torch.where(absent | taken.is_missing(), torch.nan, taken.values)
        return taken.changed(values=values, missing=None)
    missing = taken.is_missing() | absent
    return taken.changed(missing=missing if bool(missing.any()) else None)


def aligned(
    table: Table, log: Table, by: list[str], order: list[str]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Code row and event keys alike, and bring their order columns to one unit.

    Args:
        table: the rows.
        log: the events.
        by: the columns of the group, in both.
        order: the columns that order rows and events, in both.
    """
    for name in order:
        here, there = table[name], log[name]
        if len(table) and len(log) and (here.unit != there.unit or (here.zone is None) != (there.zone is None)):
            raise DataError(
                f"holds {_times(here)} in the frame and {_times(there)} in the log",
                column=name,
                remedy="Give both the same unit, and a zone to both or none, for example with .dt.as_unit('s')"
                if here.kind == there.kind
                else "Give both the same type, for example with pd.to_datetime",
            )
    return *shared_codes(table, log, by), order_keys(table, order), order_keys(log, order)


class Aligned:
    """Rows and the events of a log by the same keys and in one order (see ``aligned``).

    Args:
        table: the rows.
        log: the events.
        by: the columns of the group, in both.
        order: the columns that order rows and events, in both.
    """

    def __init__(self, table: Table, log: Table, by: list[str], order: list[str]) -> None:
        self.rows, self.codes, self.here, self.there = aligned(table, log, by, order)
        self._merged = FewMerged(self.rows, self.here, self.codes, self.there) if few(self.rows, self.codes) else None

    @classmethod
    def of(cls, table: Table, log: Table, by: list[str], order: list[str]) -> Aligned:
        """Align; rows of a request remember it for other generators with this ``by`` and ``order``.

        Not the log, which may outlive many requests.
        """
        if not is_request(table, log):
            return cls(table, log, by, order)
        key = ("aligned", ref(log), tuple(by), tuple(order))  # no id: another table may get that of one that is gone
        return table.remember(key, [*by, *order], lambda: cls(table, log, by, order))

    def before(self, counted: torch.Tensor | None = None) -> tuple[torch.Tensor, Groups]:
        """Return ``as_of`` of these rows and events.

        Args:
            counted: bool ``[e]``, False = an event is passed over; None: all count.
        """
        if self._merged is not None:
            return self._merged.last(None if counted is None else counted.numpy())
        codes = self.codes if counted is None else torch.where(counted, self.codes, 0)
        return as_of(self.rows, self.here, codes, self.there)


def is_request(table: Table, log: Table) -> bool:
    """Tell whether rows and events are few, as in a request, so that sharing the alignment pays."""
    return len(table) + len(log) <= limits.REQUEST_ROWS and table.device.type == "cpu"


def _times(column: Column) -> str:
    if column.kind != "datetime":
        return "numbers" if column.kind == "number" else "text" if column.kind == "category" else column.kind
    return f"times in {column.unit!r} with{'out a' if column.zone is None else ' a'} zone"
