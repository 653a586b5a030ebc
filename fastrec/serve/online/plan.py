"""Which generator looks at which events: what a store must keep, under which keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fastrec.errors import DataError
from fastrec.features import CoVisit, CumTarget, FeatureSet, JaccardToHistory, JoinTable
from fastrec.features._inputs import as_list
from fastrec.features.base import Feature, Fitted, Grouped
from fastrec.serve.online.fold import can_fold
from fastrec.serve.online.records import ROW

HISTORY = "history"  # the name of the frame's own earlier rows among the tables


@dataclass(frozen=True)
class EventLookup:
    """Events that a generator needs of a table: those whose key a row has.

    Args:
        table: the table's name.
        rows: the key columns of the rows.
        columns: the key columns of the table.
        via: another table whose fetched events have keys of this one too.
    """

    table: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    via: str | None = None


@dataclass(eq=False)
class EventIndex:
    """A table's events by key.

    Args:
        number: what its keys begin with.
        table: the table's name.
        columns: the key columns.
        fields: the columns that a record has.
        readers: the generators that read it.
        folds: whether old events are folded into sums.
    """

    number: int
    table: str
    columns: tuple[str, ...]
    fields: tuple[str, ...] = ()
    readers: list[Feature] = field(default_factory=list)
    folds: bool = False

    @property
    def prefix(self) -> bytes:
        """What the keys of events begin with."""
        return b"e" + bytes([self.number])

    @staticmethod
    def base_of(key: bytes) -> bytes:
        """Return the key of the sums of a key's folded events."""
        return b"b" + key[1:]


@dataclass(eq=False)
class Plan:
    """What is computed, and from which events.

    Args:
        steps: the generators, those that others read before them.
        lookups: what each of them looks up, by its place among the steps.
        indexes: how the tables' events are kept.
        columns: the columns that each table's events must have.
        orders: the columns of each table that must have a value.
        deep: the places of steps whose values earlier rows need too.
    """

    steps: list[Feature]
    lookups: list[list[EventLookup]]
    indexes: list[EventIndex]
    columns: dict[str, list[str]]
    orders: dict[str, list[str]]
    deep: set[int]
    _found: dict[EventLookup, EventIndex] = field(default_factory=dict, init=False)

    def index_of(self, lookup: EventLookup) -> EventIndex:
        """Return the index of a lookup's events: by its own columns, or by the first of them."""
        if lookup not in self._found:
            self._found[lookup] = self._find(lookup)
        return self._found[lookup]

    def _find(self, lookup: EventLookup) -> EventIndex:
        fit = [i for i in self.indexes if i.table == lookup.table and lookup.columns[: len(i.columns)] == i.columns]
        fit = [i for i in fit if i.columns or not lookup.columns]
        return min(fit, key=lambda i: len(i.columns))


def make_plan(features: FeatureSet, outputs: Collection[str], *, history: bool) -> Plan:
    """Plan the steps that make some outputs, and the events that they look at.

    Args:
        features: the fitted features.
        outputs: the outputs that are wanted.
        history: whether the frame's own earlier rows are events too.

    Raises:
        DataError: a generator cannot be served from events, by its name.
    """
    steps = _needed(features.steps, outputs)
    lookups = [_lookups(step, history=history) for step in steps]
    made = {n: i for i, s in enumerate(steps) for n in s.outputs}
    _check_raw_keys(steps, lookups, made)
    deep = _deep(steps, lookups)
    columns, orders = _columns(steps, lookups, made, deep)
    plan = Plan(steps, lookups, [], columns, orders, deep)
    for number, (table, key) in enumerate(_keys_of(lookups)):
        plan.indexes.append(EventIndex(number, table, key))
    for i, step in enumerate(steps):
        for lookup in lookups[i]:
            plan.index_of(lookup).readers.append(step)
    for index in plan.indexes:
        own = [n for s in index.readers for n in s.table_inputs.get(index.table, ()) if n not in index.columns]
        index.fields = tuple(dict.fromkeys(own)) if index.table != HISTORY else (ROW, *columns[HISTORY])
        whole = all(
            lookup.columns == index.columns and lookup.via is None and i not in deep
            for i, found in enumerate(lookups)
            for lookup in found
            if plan.index_of(lookup) is index
        )
        index.folds = whole and can_fold(index.readers, index.columns, made)
    return plan


def looks_back(step: Feature) -> bool:
    """Tell whether a generator looks at other rows or events when it is applied."""
    return isinstance(step, Grouped | CoVisit) or (isinstance(step, Fitted) and step.within is not None)


def history_outputs(features: FeatureSet, *, learn: bool = False) -> list[str]:
    """List the outputs that look at other rows or events (or learn), and those made from such ones."""
    made: set[str] = set()
    for step in features.steps:
        if looks_back(step) or (learn and isinstance(step, CumTarget)) or made & set(step.inputs):
            made.update(step.outputs)
    return [n for n in features.outputs if n in made]


def _needed(steps: Sequence[Feature], outputs: Collection[str]) -> list[Feature]:
    wanted, kept = set(outputs), []
    for step in reversed(steps):
        if wanted & set(step.outputs):
            kept.append(step)
            wanted |= set(step.inputs) - set(step.fit_only)
    return kept[::-1]


def _lookups(step: Feature, *, history: bool) -> list[EventLookup]:
    """List the events that a generator needs for some rows.

    Raises:
        DataError: how it looks at events is not known.
    """
    if not looks_back(step):
        return []
    tables = step.table_inputs
    if HISTORY in tables:
        raise DataError(
            f"{type(step).__name__} ({', '.join(step.outputs)}) cannot be served: its table has the name that the "
            "frame's own earlier rows have here",
            remedy=f"Give the table another name than {HISTORY!r}",
        )
    if isinstance(step, JoinTable):
        return [EventLookup(step.table, tuple(step.inputs), tuple(step._keys))]
    if isinstance(step, JaccardToHistory):
        by = tuple(as_list(step.by))
        return [EventLookup(step.table, by, by), EventLookup(step.items, (step.item,), (step.item,), via=step.table)]
    within = step.within
    if within is None or len(tables) > 1 or any(set(within) - set(n) for n in tables.values()):
        raise DataError(
            f"{type(step).__name__} ({', '.join(step.outputs)}) cannot be served: it does not say by which columns it "
            "finds its events",
            remedy="Leave it out, or give it within and table_inputs that name the columns of its groups",
        )
    key = tuple(within)
    if tables:
        return [EventLookup(next(iter(tables)), key, key)]
    return [EventLookup(HISTORY, key, key)] if history else []


def _check_raw_keys(
    steps: Sequence[Feature], lookups: Sequence[Sequence[EventLookup]], made: Mapping[str, int]
) -> None:
    for step, found in zip(steps, lookups, strict=True):
        odd = next((n for k in found if k.table == HISTORY for n in k.columns if n in made), None)
        if odd is not None:
            raise DataError(
                f"{type(step).__name__} ({', '.join(step.outputs)}) cannot be served: its groups are of a column that "
                f"{type(steps[made[odd]]).__name__} makes",
                column=odd,
                remedy="Group by a column of the data, or leave it out",
            )


def _deep(steps: Sequence[Feature], lookups: Sequence[Sequence[EventLookup]]) -> set[int]:
    """Return the steps whose values are needed at earlier rows: a generator that looks back reads them."""
    wanted: set[str] = set()
    deep = set()
    for i in range(len(steps) - 1, -1, -1):
        is_deep = bool(wanted & set(steps[i].outputs))
        if is_deep:
            deep.add(i)
        if is_deep or any(k.table == HISTORY for k in lookups[i]):
            wanted |= set(steps[i].inputs) - set(steps[i].fit_only)
    return deep


def _columns(
    steps: Sequence[Feature], lookups: Sequence[Sequence[EventLookup]], made: Mapping[str, int], deep: Collection[int]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the columns that events must have, by table, and those in which none may be missing."""
    columns: dict[str, dict[str, None]] = {}
    orders: dict[str, dict[str, None]] = {}
    for i, (step, found) in enumerate(zip(steps, lookups, strict=True)):
        order = as_list(getattr(step, "order", None))
        for lookup in found:
            names = step.table_inputs.get(lookup.table, ()) if lookup.table != HISTORY else _raw(step, made)
            columns.setdefault(lookup.table, {}).update(dict.fromkeys(names))
            if not isinstance(step, JoinTable):
                known = dict.fromkeys(n for n in order if isinstance(n, str) and n in names)
                # To these a row without an order is one to pass over, no error.
                must = type(step).__name__ not in ("GroupPick", "GroupStats", "GroupRank")
                orders.setdefault(lookup.table, {}).update(known if must else {})
        if i in deep and HISTORY not in [k.table for k in found]:
            columns.setdefault(HISTORY, {}).update(dict.fromkeys(_raw(step, made)))
    return {t: list(n) for t, n in columns.items()}, {t: list(n) for t, n in orders.items()}


def _raw(step: Feature, made: Mapping[str, int]) -> list[str]:
    return [n for n in step.inputs if n not in made and n not in step.fit_only]


def _keys_of(lookups: Sequence[Sequence[EventLookup]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the tables and keys to store events by; a key whose first columns are one too needs none of its own.

    A session's events are read once for all that is asked of it, its events on one item among them.
    """
    keys = list(dict.fromkeys((k.table, k.columns) for found in lookups for k in found))
    return [
        (table, key)
        for table, key in keys
        if not any(t == table and 0 < len(k) < len(key) and key[: len(k)] == k for t, k in keys)
    ]
