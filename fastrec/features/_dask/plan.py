"""Plan of which generators are computed together, and which rows each needs together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fastrec.features._dask.in_time import is_causal, looks_back
from fastrec.features._inputs import as_list
from fastrec.features.base import Feature, Fitted

HERE = ("\x00here",)  # a group's key where the rows of one group are in one partition already
# Before a column in a group's key: each table holds a range of the column's values. Alone: the tables are the
# partitions, which follow one another.
IN_TIME = "\x00in time"


Keys = dict[int, tuple[str, ...] | None]  # by the generator's id: what ``rows_together`` says, or HERE


@dataclass(eq=False)
class Group:
    """Generators that are computed on the same tables.

    Args:
        key: the columns whose rows of one key must be in one table; ``HERE``: they are; None: any rows; empty: all;
            ``IN_TIME`` and a column: tables follow one another by the column's values; ``IN_TIME`` alone: as they are.
        steps: the generators, those that read others' columns after them.
    """

    key: tuple[str, ...] | None
    steps: list[Feature] = field(default_factory=list)

    @property
    def outputs(self) -> list[str]:
        return [n for step in self.steps for n in step.outputs]


def rounds(
    steps: Sequence[Feature], *, training: bool, here: Callable[[Feature], bool] = lambda step: False
) -> Iterator[list[Group]]:
    """Group generators by rounds: a step's inputs exist before its round, or its group makes them.

    Args:
        steps: the generators in order.
        training: whether they learn, and give rows the values that training rows get.
        here: whether the rows that a generator must see together are so in the partitions that there are.
    """
    keys = {}
    for step in steps:
        key = rows_together(step, training=training)
        keys[id(step)] = HERE if key and here(step) else key
    pending = list(steps)
    while pending:
        groups = _ready(pending, keys, training)
        _grow(groups, pending, keys, training)
        yield groups
        done = {id(step) for group in groups for step in group.steps}
        pending = [step for step in pending if id(step) not in done]


def reads(step: Feature, *, training: bool) -> list[str]:
    return step.inputs if training else [n for n in step.inputs if n not in set(step.fit_only)]


def rows_together(step: Feature, *, training: bool) -> tuple[str, ...] | None:
    """Return the columns whose rows of one key a generator must see together; empty: it must see all rows."""
    if step.kind == "row":
        return None
    if isinstance(step, Fitted) and training and step.causal:
        return (IN_TIME, as_list(step.order)[0]) if is_causal(step) else ()
    if looks_back(step):
        return (IN_TIME, *as_list(step.order)[:1])
    return None if step.within is None else tuple(step.within)


def learns(step: Feature) -> bool:
    """Tell whether a generator learns from all rows, so that later steps wait for the end of the pass."""
    return isinstance(step, Fitted) and getattr(step, "over", None) != "group"


def _ready(pending: list[Feature], keys: Keys, training: bool) -> list[Group]:
    made = {n for step in pending for n in step.outputs}
    ready = [s for s in pending if not made & set(reads(s, training=training))]
    groups: list[Group] = []
    # The smallest keys first: rows that are together by user are so by user and city, too.
    for step in sorted(ready, key=lambda s: -1 if keys[id(s)] is None else len(keys[id(s)])):
        key = keys[id(step)]
        group = next((g for g in groups if _fits(key, g.key, same=True)), None)
        if group is None:
            groups.append(group := Group(key))
        group.steps.append(step)
    return groups


def in_time(key: tuple[str, ...] | None) -> bool:
    return bool(key) and key[0] == IN_TIME


def _fits(key: tuple[str, ...] | None, there: tuple[str, ...] | None, *, same: bool = False) -> bool:
    """Tell if tables with rows of one key ``there`` together suffice; ``same``: and nothing simpler would."""
    if key is None or there is None:
        return key is None and (there is None or not same)
    if same and not there:
        return not key
    if in_time(there) or (there and in_time(key)):
        return key == there
    return set(there) <= set(key)


def _grow(groups: list[Group], pending: list[Feature], keys: Keys, training: bool) -> None:
    """Add steps that can be computed where their inputs are, so that rows need not be gathered again."""
    taken = {id(s) for g in groups for s in g.steps}
    made = {n for step in pending for n in step.outputs}
    for step in pending:  # in order: what it reads has been looked at before
        if id(step) in taken or (training and learns(step)):
            continue
        read = made & set(reads(step, training=training))
        group = next((g for g in groups if read <= set(g.outputs)), None)
        if group is not None and in_time(group.key) and looks_back(step):
            continue  # what it keeps of a table it keeps of columns that are there before
        if group is not None and _fits(keys[id(step)], group.key):
            group.steps.append(step)
            taken.add(id(step))
