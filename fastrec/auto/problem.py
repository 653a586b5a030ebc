"""``Problem``: a competition as it is understood, and each decision with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec.auto.columns import _ID_NAME, ColumnInfo, Files
from fastrec.validate.mirror import Mirror
from fastrec.validate.target import Task

ALONE = "it alone"  # so begins the reason for leaving out a column that gives the target away


@dataclass(frozen=True)
class Asked:
    """The user's settings of a competition, as arguments of ``fastrec.fit``; None: to be found out."""

    target: str | Sequence[str] | None = None
    metric: str | None = None
    task: Task | None = None
    group: str | None = None
    item: str | None = None
    time: str | None = None
    log: str | Path | None = None
    owner: str | None = None
    weight: str | None = None
    counted: str | None = None
    positive: Any = None
    ids: Sequence[str] = ()
    refit: bool | None = None
    minutes: float | None = None


@dataclass
class AutoDecision:
    """A decision about a recipe, with its reason; not ``sure``: the user may know better."""

    what: str
    value: Any
    why: str
    sure: bool = True


@dataclass
class LogColumns:
    """The log beside the candidates of a ranking: a side table's name, and columns that both have but ``kind``.

    ``owners``: whose an event is, the narrowest first (a session, a user); ``order``: the time, and a number that
    orders an owner's events of one moment, if there is one; ``kind``: what an event is; ``kinds``: its commonest
    values, ``of_items`` those of them that are about an item.
    """

    table: str
    owners: list[str]
    order: list[str]
    kind: str | None = None
    kinds: list[str] = field(default_factory=list)
    of_items: list[str] = field(default_factory=list)


@dataclass
class Problem:
    """A competition as it is understood.

    ``columns``: all but the target; ``ids``, ``drop``: columns that are not learned from, the latter with the reason;
    ``mirror``: how the test was cut from the rows, or how folds were asked for; ``time``, ``group``: the columns of
    the folds; ``scale``, ``refit``: as of a recipe.

    Of a ranking: ``target[0]`` is the label, ``lists`` the column of groups, in whose order ``train`` is; ``item`` the
    column of candidates; ``shared`` the learned columns with one value per group; ``as_shown``: the order of the rows
    in a group may be learned from; ``last_of``: groups to predict are the last ones of this column by ``time``.
    """

    files: Files
    columns: list[ColumnInfo]
    target: list[str]
    task: Task
    metric: str
    classes: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    drop: dict[str, str] = field(default_factory=dict)
    mirror: Mirror | None = None
    time: str | None = None
    group: str | None = None
    scale: str | None = None
    positive: Any = None
    lists: str | None = None
    item: str | None = None
    shared: list[str] = field(default_factory=list)
    as_shown: bool = True
    log: LogColumns | None = None
    last_of: str | None = None
    decisions: list[AutoDecision] = field(default_factory=list)
    asked: Asked = field(default_factory=Asked)
    refit: bool | None = None

    @property
    def train(self) -> pa.Table:
        """The training rows."""
        return self.files.tables["train"]

    @property
    def learned(self) -> list[ColumnInfo]:
        """The columns that are learned from."""
        # Folds of whole groups: rows to predict have other ones, and no model learns from them.
        apart = {*self.ids, *self.drop, self.lists, self.item, self.group}
        return [c for c in self.columns if c.name not in apart]

    @property
    def keys(self) -> list[str]:
        """Columns whose values come again and name what a row is of: a user, a patient."""
        told = [n for n, why in self.drop.items() if why.startswith(ALONE)]
        # A key has 1.5 rows a value or more: a row's own number is no key.
        most = len(self.train) / 1.5
        known = [c for c in self.columns if c.kind == "category" or (c.kind == "number" and c.whole)]
        known = [c for c in known if limits.FEW_CLASSES <= c.distinct <= most and c.name not in self.ids]
        known = known if self.lists is None else [c for c in known if c.name in self.shared]
        return [c.name for c in known if _ID_NAME.search(c.name) or (c.key and c.name in told)]

    @property
    def ten_folds(self) -> bool:
        """Whether rows at random are so few that models of nine tenths of them are worth twice the time."""
        if self.time is not None or self.group is not None or self.lists is not None or len(self.target) > 1:
            return False
        enough = self.asked.minutes is None or self.asked.minutes >= limits.TEN_FOLDS_MINUTES
        known = self.train[self.target[0]].drop_null()
        rarest = pc.min(known.value_counts().field("counts")).as_py() if self.classes else len(known)
        return enough and limits.TEN_FOLDS_FROM <= len(known) <= limits.TEN_FOLDS_ROWS and (rarest or 0) >= 10

    def note(self, what: str, value: Any, why: str, *, sure: bool = True) -> None:
        """Add a decision."""
        self.decisions.append(AutoDecision(what, value, why, sure))

    def columns_of(self, role: str) -> list[str]:
        """Return the names of a table's columns; none if the table is not there."""
        return self.files.tables[role].column_names if role in self.files.tables else []

    def kinds(self, *kinds: str) -> list[ColumnInfo]:
        """Return the learned columns of some kinds."""
        return [c for c in self.learned if c.kind in kinds]


def shared_columns(problem: Problem) -> list[ColumnInfo]:
    """Return the numbers and categories that are one for a whole group: alone they order nothing."""
    return [c for c in problem.kinds("number", "category") if c.name in problem.shared]


def feature_key(problem: Problem) -> str | None:
    """Return the column whose values target means of a ranking keep in one fold; None: the task is no ranking.

    Rows of a group depend on each other: if one was clicked, others were not. The groups of a user do, too, which
    helps only if the test has the user.
    """
    if problem.lists is None:
        return None
    if problem.group is not None:
        return problem.group
    test = problem.files.tables.get("test")
    new = []
    for name in problem.keys if test is not None else []:
        if name in problem.columns_of("test"):
            values = pc.unique(test[name])
            seen = pc.mean(pc.is_in(values, pc.unique(problem.train[name]).cast(values.type))).as_py()
            new += [name] if seen <= limits.SEEN_KEYS else []
    distinct = {c.name: c.distinct for c in problem.columns}
    return min(new, key=distinct.__getitem__, default=problem.lists)
