"""``Rows``: the rows of a table and their labels, in the form that estimators take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from fastrec._core.messages import refuse_absent
from fastrec.errors import DataError, refuse
from fastrec.metrics.ranking import choice
from fastrec.metrics.registry import TASKS
from fastrec.segments.groups import as_of
from fastrec.table import Table
from fastrec.validate.target import Task, check_label


@dataclass(frozen=True, eq=False)
class ListEvents:
    """A log of events, and for each list the part of it that came before the list.

    The log is stored once, whatever the number of lists and candidates: a list only stores two positions in it.

    Args:
        log: the events, sorted by session and in order.
        lists: int64 ``[lists]``, ascending: the ids of the lists, as in ``Lists.groups``.
        starts, ends: int64 ``[lists]``: where each list's session begins in the log, and its position when the list was
            shown.
        moments: float64 ``[lists]``: when each list was shown, in the unit of the log's ``time``; None: unknown.
        item: the column of items, in the log and among the candidates.
        cats, conts: categorical and numeric columns of the log.
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
        candidates: Any,
        log: Any,
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
            candidates: the rows of the lists, a frame of any library, with ``session`` and ``order``; the first row of
                a list represents it.
            log: the events, in any order.
            lists: the candidates' column with the list of each, int64.
            session: the column of sessions, in both tables.
            order: the columns to sort events and lists by, in both tables.
            item, cats, conts: see ``ListEvents``.
            time: a column of both tables; None: the age of events is unknown.

        Raises:
            MissingColumnError: a column is missing.
            DataError: there is no column to order by.
        """
        if not order:
            raise DataError("events without an order", remedy="Name the columns of time and step (order=[…])")
        candidates, log = Table.read(candidates), Table.read(log)
        shared = [session, *order, item, *([time] if time else [])]
        of_log = [*shared, *cats, *conts]
        for table, names, where in ((candidates, [*shared, lists], "candidates"), (log, of_log, "the log")):
            refuse_absent(names, table.names, f"{where} lack it")
        groups = candidates[lists].group_numbers().cpu()
        # The first row represents its list: the as-of join is over lists, not candidates.
        first = torch.ones(len(groups), dtype=torch.bool)
        first[1:] = groups[1:] != groups[:-1]
        shown = candidates.select(list(dict.fromkeys([*shared, lists]))).take(first.to(candidates.device)).to("cpu")
        # use the numbers from above: for non-integers they are codes, which are valid within one table only
        ids, by_id = groups[first].sort(stable=True)
        shown = shown.take(by_id)
        log = log.select(list(dict.fromkeys(of_log))).to("cpu")
        theirs = shown[session].coded()
        last, events = as_of(
            theirs.codes, [_key(shown, n) for n in order], log[session].coded().recode(theirs.keys),
            [_key(log, n) for n in order],
        )  # fmt: skip
        ordered = log if events.order is None else log.take(events.order)
        starts = events.start[last.clamp_min(0)] if len(log) else torch.zeros_like(last)
        starts = torch.where(last >= 0, starts, 0)
        moments = None if time is None else shown[time].number().double()
        return cls(ordered, ids, starts, last + 1, moments, item, list(cats), list(conts), time)

    def log_rows(self, groups: torch.Tensor) -> torch.Tensor:
        """Return the positions in the log of events before some lists: int64 ``[events]``, ascending, each once."""
        at = self.of(torch.unique(groups))
        # Ranges overlap: marks at their ends and a running sum take each event once.
        seen, ones = torch.zeros(len(self.log) + 1, dtype=torch.int64), torch.ones_like(at)
        seen.index_add_(0, self.starts[at], ones).index_add_(0, self.ends[at], -ones)
        return (seen.cumsum(0)[:-1] > 0).nonzero().squeeze(1)

    def of(self, groups: torch.Tensor) -> torch.Tensor:
        """Return the position of each list, by its id, in this object: int64 ``[lists]``.

        Raises:
            DataError: the events before a list are unknown.
        """
        at = torch.searchsorted(self.lists, groups).clamp_max(max(len(self.lists) - 1, 0))
        unknown = (self.lists[at] != groups).nonzero() if len(self.lists) else torch.arange(len(groups))[:, None]
        if len(unknown):
            remedy = "Make ListEvents of all candidates that are to be scored"
            raise DataError(f"it is not known what was before the list {int(groups[unknown[0, 0]])}", remedy=remedy)
        return at


def _key(table: Table, name: str) -> torch.Tensor:
    """Return a column to order by; times, which may have two units, are converted to seconds."""
    column = table[name]
    whole = column.kind == "number" and not column.values.is_floating_point()
    return column.integer() if whole else column.number()


_ON_THE_CPU = ("label", "weight", "groups", "order", "guessed")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows with their features and labels.

    Labels, weights, groups and order are kept on the CPU, wherever the table is: metrics, trees and blends read these
    few values per row there.

    Args:
        table: ``[n]`` rows.
        task: ``'ranking'``, ``'binary'``, ``'multiclass'``, ``'regression'`` or ``'multilabel'``.
        cats: the categorical columns.
        conts: the numeric columns.
        label: the target; None if it is unknown. Ranking: float ``[n]``, the relevance of a candidate (1 = clicked).
            Binary: 0 and 1, ``[n]``. Multiclass: codes from 0, ``[n]``. Regression: ``[n]``, or ``[n, t]`` for several
            targets. Multilabel: 0 and 1, ``[n, k]``.
        weight: float ``[n]``, 0 or above: the weight of a row (in ranking: of its list); None: equal weights.
        groups: int64 ``[n]``: groups that must not be split by an estimator's hold-out; in ranking, the lists.
        order: ``[n]``, a time: if given, an estimator holds out the last rows.
        n_outputs: the number of classes (multiclass) or of target columns; otherwise 1.
        guessed: bool ``[n]``: the label was predicted (pseudo-label). Such rows are used for training, but never for
            the early-stopping hold-out; None: no such rows.
        events: in ranking, the session's events before each list; a subset of rows has all of them.

    Raises:
        DataError: a label does not fit the task, a weight is below 0 or not a number, the lengths differ, or a column
            is named twice.
    """

    table: Table
    task: Task
    cats: Sequence[str] = ()
    conts: Sequence[str] = ()
    label: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    order: torch.Tensor | None = None
    n_outputs: int = 1
    guessed: torch.Tensor | None = None
    events: ListEvents | None = None

    def __post_init__(self) -> None:
        choice(self.task, "task", TASKS)
        if not isinstance(self.table, Table):
            problem = f"{type(self).__name__} was given a {type(self.table).__name__}, no Table"
            raise DataError(problem, remedy="Read it: Table.read(df)")
        if len(set(names := self.names)) < len(names):
            twice = next(n for i, n in enumerate(names) if n in names[:i])
            raise DataError("the column stands twice in cats and conts", column=twice, remedy="Name each column once")
        for name in _ON_THE_CPU:
            values = getattr(self, name)
            if values is not None:
                if hasattr(values, "__array__") and not isinstance(values, torch.Tensor):
                    values = np.array(values)  # a frame's own values are read-only
                try:
                    values = torch.as_tensor(values).cpu()
                except (TypeError, ValueError) as error:
                    remedy = "Give classes as codes from 0, all else as numbers"
                    raise DataError(f"{name} is of no type of numbers", remedy=remedy) from error
                object.__setattr__(self, name, values)  # the dataclass is frozen
        sizes = {n: len(v) for n in _ON_THE_CPU if (v := getattr(self, n)) is not None}
        # A table without columns does not know its length.
        sizes |= {"table": len(self.table)} if self.table.names else {}
        if len(set(sizes.values())) > 1:
            raise DataError(f"rows of unequal lengths: {sizes}", remedy="Give one of each for every row")
        if self.label is not None:
            check_label(self.label, self.task, self.n_outputs)
        if self.weight is not None:
            bad = ~(self.weight >= 0) | self.weight.isinf()
            refuse(bad, None, "a weight is below 0, missing or infinite", "Use 0 for what is not to count")

    def __len__(self) -> int:
        known = next((v for n in _ON_THE_CPU if (v := getattr(self, n)) is not None), None)
        return len(self.table) if known is None else len(known)

    @property
    def n_scores(self) -> int:
        """How many numbers are predicted per row; 1: predictions are ``[n]``, else ``[n, n_scores]``."""
        return self.n_outputs if self.task in ("multiclass", "multilabel", "regression") else 1

    @property
    def names(self) -> list[str]:
        """The columns used for training."""
        return [*self.cats, *self.conts]

    def with_table(self, table: Table) -> Self:
        """Return the same rows with other columns."""
        return replace(self, table=table)

    def take(self, rows: torch.Tensor) -> Self:
        """Return some of the rows.

        Args:
            rows: bool ``[n]``, or int64 ``[m]``; ascending if the rows are lists.
        """
        rows = rows.cpu()
        rows = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        some: dict[str, Any] = {n: None if (v := getattr(self, n)) is None else v[rows] for n in _ON_THE_CPU}
        return replace(self, table=self.table.take(rows), **some)


class Lists(Rows):
    """Candidates in lists, with their features: the ``Rows`` of a ranking task.

    Args:
        table, cats, conts, label, weight, order, events: see ``Rows``.
        groups: int64 ``[n]``: the list of each candidate, in ascending order.

    Raises:
        DataError: the lists are not in order, a weight is below 0 or not a number, or the lengths differ.
    """

    groups: torch.Tensor

    def __init__(
        self,
        table: Table,
        groups: torch.Tensor,
        cats: Sequence[str] = (),
        conts: Sequence[str] = (),
        label: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
        events: ListEvents | None = None,
        **as_replaced: Any,
    ) -> None:
        given = {"table": table, "groups": groups, "cats": cats, "conts": conts, "label": label, "weight": weight}
        # ``dataclasses.replace`` passes every field; these two have fixed values for lists
        super().__init__(**given, order=order, events=events, **{"task": "ranking", **as_replaced})
        if len(self.groups) > 1 and bool((self.groups[1:] < self.groups[:-1]).any()):
            row = int((self.groups[1:] < self.groups[:-1]).nonzero()[0]) + 1
            raise DataError("lists are not in ascending order", row=row, remedy="Sort the candidates by list first")


def whole_lists(data: Lists, *, name: str = "the ranker") -> Lists:
    """Return the lists that a ranker can learn from: two candidates or more, one of them relevant, a weight above 0.

    Args:
        data: lists with labels.
        name: the learner's name, for messages.

    Raises:
        DataError: there are no labels, or no such list.
    """
    if data.label is None:
        raise DataError(f"{name} was given lists without labels to learn from", remedy="Give label=")
    _, codes, sizes = torch.unique_consecutive(data.groups, return_inverse=True, return_counts=True)
    label = data.label.double() if data.weight is None else data.label.double() * (data.weight > 0)
    relevant = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, codes, label)
    chosen = ((sizes > 1) & (relevant > 0))[codes]  # excludes lists with a NaN label
    if not bool(chosen.any()):
        remedy = "Give lists of two candidates or more, one of them relevant, of a weight above 0"
        raise DataError(f"{name} has no list to learn from", remedy=remedy)
    return data if bool(chosen.all()) else data.take(chosen)
