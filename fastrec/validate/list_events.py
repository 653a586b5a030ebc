"""``ListEvents``: what happened in a session before each of its lists was shown, for rankers that read the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from fastrec.errors import DataError, MissingColumnError
from fastrec.segments.as_of_join import as_of
from fastrec.table import Table


@dataclass(frozen=True, eq=False)
class ListEvents:
    """A log of events, and for each list the stretch of it that came before the list.

    The log is stored once, whatever the number of lists and candidates: a list has two places in it.

    Args:
        log: the events, a session's together and in their order.
        lists: int64 ``[lists]``, ascending: the ids of the lists, as ``Lists.groups`` has them.
        starts, ends: int64 ``[lists]``: where each list's session begins in the log, and where it stood when the list
            was shown.
        moments: float64 ``[lists]``: when each list was shown, in the unit of the log's ``time``; None: not known.
        item: the column of items, in the log and among the candidates.
        cats, conts: columns of the log that are categories and numbers.
        time: the log's column of times; None: it has none.
    """

    log: Table
    lists: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    moments: torch.Tensor | None
    item: str
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    time: str | None = None

    @classmethod
    def before(
        cls,
        candidates: Table,
        log: Table,
        *,
        lists: str,
        session: str,
        order: Sequence[str],
        item: str,
        cats: Sequence[str] = (),
        conts: Sequence[str] = (),
        time: str | None = None,
    ) -> Self:
        """Find the events of each list's session that are strictly before the list.

        Args:
            candidates: the lists' rows, with ``session`` and ``order``; the first row of a list speaks for it.
            log: the events, in any order.
            lists: the candidates' column with the list of each, int64.
            session: the column of sessions, in both tables.
            order: the columns that events and lists are put in order by, in both tables.
            item, cats, conts: see ``ListEvents``.
            time: a column of both tables; None: it is not known how long ago an event was.

        Raises:
            MissingColumnError: a column is not there.
            DataError: there is no column to order by.
        """
        if not order:
            raise DataError("events without an order", remedy="Name the columns of time and step (order=[…])")
        shared = [session, *order, item, *([time] if time else [])]
        for table, names, where in (
            (candidates, [*shared, lists], "candidates"),
            (log, [*shared, *cats, *conts], "the log"),
        ):
            absent = next((n for n in names if n not in table), None)
            if absent is not None:
                raise MissingColumnError(
                    f"{where} lack it", column=absent, remedy=f"There are {', '.join(table.names)}"
                )
        groups = candidates[lists].group_numbers().cpu()
        # One row speaks for its list: the as-of join is over lists, not candidates.
        first = torch.ones(len(groups), dtype=torch.bool)
        first[1:] = groups[1:] != groups[:-1]
        shown = candidates.select(list(dict.fromkeys([*shared, lists]))).take(first.to(candidates.device)).to("cpu")
        ids, by_id = shown[lists].group_numbers().sort(stable=True)
        shown = shown.take(by_id)
        log = log.select(list(dict.fromkeys([*shared, *cats, *conts]))).to("cpu")
        theirs = shown[session].coded()
        last, events = as_of(
            theirs.codes,
            [_key(shown, n) for n in order],
            log[session].coded().recode(theirs.keys),
            [_key(log, n) for n in order],
        )
        ordered = log if events.order is None else log.take(events.order)
        starts = events.start[last.clamp_min(0)] if len(log) else torch.zeros_like(last)
        starts = torch.where(last >= 0, starts, 0)
        moments = None if time is None else shown[time].number().double()
        return cls(ordered, ids, starts, last + 1, moments, item, list(cats), list(conts), time)

    def log_rows(self, groups: torch.Tensor) -> torch.Tensor:
        """Return the places in the log of events before some lists: int64 ``[events]``, ascending, each once.

        Args:
            groups: ids of lists.

        Raises:
            DataError: of a list it is not known what was before.
        """
        at = self.of(torch.unique(groups))
        # Stretches overlap: marks at their ends and a running sum take each event once.
        seen, ones = torch.zeros(len(self.log) + 1, dtype=torch.int64), torch.ones_like(at)
        seen.index_add_(0, self.starts[at], ones).index_add_(0, self.ends[at], -ones)
        return (seen.cumsum(0)[:-1] > 0).nonzero().squeeze(1)

    def of(self, groups: torch.Tensor) -> torch.Tensor:
        """Return the place of each of some lists among these: int64 ``[lists]``.

        Args:
            groups: ids of lists.

        Raises:
            DataError: of a list it is not known what was before.
        """
        at = torch.searchsorted(self.lists, groups).clamp_max(max(len(self.lists) - 1, 0))
        unknown = (self.lists[at] != groups).nonzero() if len(self.lists) else torch.arange(len(groups))[:, None]
        if len(unknown):
            raise DataError(
                f"it is not known what was before the list {int(groups[unknown[0, 0]])}",
                remedy="Make ListEvents of all candidates that are to be scored",
            )
        return at


def _key(table: Table, name: str) -> torch.Tensor:
    """Return a column to order by; times, which may have two units, as seconds."""
    column = table[name]
    whole = column.kind == "number" and not column.values.is_floating_point()
    return column.integer() if whole else column.number()
