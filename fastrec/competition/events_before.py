"""``EventsBefore``: which events a recipe's rankers read before each list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate import ListEvents


@dataclass(frozen=True)
class EventsBefore:
    """Where the events before a list stand: what a recipe says for rankers that read the session (``SessionRanker``).

    Args:
        table: the recipe's table of events, one of ``CompetitionData.tables``.
        session: the column of sessions, in the events and among the candidates.
        order: the columns that events and lists are put in order by, in both; events strictly before a list are read.
        item: the column of items, in both.
        cats, conts: columns of the events that are categories and numbers.
        time: a column of times, in both; None: it is not known how long ago an event was.

    Raises:
        DataError: there is no column to order by.
    """

    table: str
    session: str
    order: Sequence[str]
    item: str
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    time: str | None = None

    def __post_init__(self) -> None:
        for name in ("order", "cats", "conts"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        if not self.order:
            raise DataError("events without an order", remedy="Name the columns of time and step (order=[…])")

    @property
    def columns(self) -> list[str]:
        """The candidates' columns that it takes to find the events of their lists, the lists' own aside."""
        return list(dict.fromkeys([self.session, *self.order, self.item, *([self.time] if self.time else [])]))

    def of(self, candidates: Table, lists: str, tables: Mapping[str, Table]) -> ListEvents:
        """Return the events before the lists of some candidates.

        Args:
            candidates: whole lists.
            lists: the column of lists.
            tables: the tables of events, by name.

        Raises:
            DataError: the table of events is not among them.
            MissingColumnError: a column is not there.
        """
        if self.table not in tables:
            raise DataError(
                f"models read the events before a list, and the table of events {self.table!r} is not there",
                remedy=f"There are {', '.join(tables) or 'no tables'}; put {self.table}.parquet beside the rows",
            )
        columns = {"cats": self.cats, "conts": self.conts, "time": self.time, "order": self.order}
        return ListEvents.before(
            candidates, tables[self.table], lists=lists, session=self.session, item=self.item, **columns
        )

    def to_state(self) -> dict[str, Any]:
        """Return the arguments as JSON values."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> Self | None:
        """Invert ``to_state``; None of None."""
        return None if state is None else cls(**state)
