"""The plan of serving: which events each generator reads, and under which keys a store has them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec.errors import DataError, UnreadableFileError
from fastrec.features import CoVisit, FeatureSet, JaccardToHistory, JoinTable
from fastrec.features._engine.chain import steps_behind
from fastrec.features.base import Feature, Fitted, Grouped
from fastrec.features.columns import as_list
from fastrec.serve.online.fold import can_fold
from fastrec.serve.online.store import MemoryStore
from fastrec.table import Column, Table, as_column
from fastrec.table.keys import is_numeric, is_text

# Events are stored as rows of fixed width.
#
# Numbers and times are stored directly; text and lists by a 64-bit name, with the value stored once.

ROW = "\x00row"  # the number of a row of the frame's own history, by which one fetched twice is one


class Values:
    """Text and lists by 64-bit names; each is in the store once."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._known: dict[int, str] = {}  # read once from the store
        self._lists: dict[int, list[Any] | None] = {}
        self.fresh: dict[bytes, bytes] = {}  # to be written with the events that use them

    def names(self, texts: Iterable[str]) -> list[int]:
        """Return the name of each text: int64, not 0 (of a billion texts some two share one, by a chance of 3 %)."""
        made = []
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            name = int.from_bytes(blake2b(raw, digest_size=8).digest(), "little", signed=True) or 1
            known = self._known.get(name)
            if known is None:
                self._known[name] = text
                self.fresh[_key(name)] = raw
            elif known != text:
                raise DataError(f"{text!r} and {known!r} cannot be told apart", remedy="Change one of them")
            made.append(name)
        return made

    def texts(self, names: Sequence[int]) -> list[str]:
        """Return the texts of names that the store knows."""
        absent = [n for n in names if n not in self._known]
        for name, raw in zip(absent, self.store.get([_key(n) for n in absent]) if absent else [], strict=True):
            if raw is None:
                raise UnreadableFileError("a value of the events is not in the store", remedy="Export the state again")
            self._known[name] = bytes(raw).decode("utf-8", "surrogatepass")
        return [self._known[n] for n in names]

    def lists(self, names: Sequence[int]) -> list[list[Any] | None]:
        """Return the lists of names that the store knows."""
        absent = [n for n in names if n not in self._lists]
        for name, text in zip(absent, self.texts(absent), strict=True):
            self._lists[name] = json.loads(text)
        return [self._lists[n] for n in names]

    def written(self, fresh: Iterable[bytes]) -> None:
        """Mark values as stored."""
        for key in fresh:
            self.fresh.pop(key, None)


def _key(name: int) -> bytes:
    return b"v" + name.to_bytes(8, "little", signed=True)


class RecordLayout:
    """How the rows of one table are kept; ``schema`` has the types as ``Column.to_arrow`` gives them."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @classmethod
    def of(cls, table: Table, names: Sequence[str]) -> RecordLayout:
        """Derive the layout of a table's columns; refuse what cannot be kept."""
        fields = []
        for name in names:
            column = table[name]
            kind = (column.slice(0, 0) if column.kind != "opaque" else column).to_arrow().type
            if column.kind in ("opaque", "vector") or (pa.types.is_list(kind) and not _is_plain(kind.value_type)):
                why = f"holds values of type {kind}, which are not kept as events"
                raise DataError(why, column=name, remedy="Use numbers, times, text, or lists of text or numbers")
            if pa.types.is_floating(kind) and len(table) and bool(column.is_missing().all()):
                why = "has no value in the first events, so that its type is not known"
                remedy = "Give the types when the Online is made: tables={name: a frame or an Arrow schema}"
                raise DataError(why, column=name, remedy=remedy)
            fields.append(pa.field(name, kind))
        return cls(pa.schema(fields))

    def dtype(self, names: Sequence[str]) -> np.dtype:
        """Return the dtype of a row of these columns; an integer or a time has a flag that marks it as missing."""
        parts: list[tuple[str, str]] = []
        for name in names:
            held = None if name == ROW else self.schema.field(name).type
            kind = np.dtype(held.to_pandas_dtype() if held is not None and _is_number(held) else "i8")
            parts.append((name, kind.str))
            if name != ROW and self._is_flagged(name):
                parts.append((name + "\x00", "u1"))
        return np.dtype(parts)

    def _is_flagged(self, name: str) -> bool:
        kind = self.schema.field(name).type
        return pa.types.is_timestamp(kind) or (_is_number(kind) and not pa.types.is_floating(kind))

    def conform(self, table: Table) -> Table:
        """Convert the columns to the types of the first events; refuse others."""
        return Table({f.name: self._conformed(table[f.name], f) for f in self.schema})

    def _conformed(self, column: Column, field: pa.Field) -> Column:
        array = column.to_arrow()
        if array.type == field.type:
            return column
        zones = [t.tz is None for t in (array.type, field.type) if pa.types.is_timestamp(t)]
        same = array.null_count == len(array) or _family(array.type) == _family(field.type)
        try:
            if not same or len(set(zones)) > 1:
                raise pa.ArrowInvalid("another kind")
            if pa.types.is_floating(array.type) and not pa.types.is_floating(field.type):
                array = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)  # NaN is missing
            return as_column(array.cast(field.type), name=field.name)
        except pa.ArrowInvalid as error:
            why = f"holds values of type {array.type}, and the events before it {field.type}"
            raise DataError(why, column=field.name, remedy="Give every event the same type") from error

    def encode(self, table: Table, names: Sequence[str], values: Values, rows: np.ndarray | None = None) -> np.ndarray:
        """Encode rows that conform as records ``[n]``; ``rows`` has their numbers where ``ROW`` is among the names."""
        made = np.zeros(len(table), self.dtype(names))
        for name in names:
            if name == ROW:
                made[ROW] = rows
                continue
            column, kind = table[name], self.schema.field(name).type
            gone = column.is_missing().numpy()
            if not (_is_number(kind) or pa.types.is_timestamp(kind) or column.kind == "list"):
                coded = column.coded()  # small numbers above 0 among those that only an unsigned type holds are numbers
                texts = coded.keys.columns[0].cast(kind).cast(pa.string()).to_pylist()
                made[name] = np.array([0, *values.names(texts)], np.int64)[coded.codes.numpy()]
            elif column.kind == "list":
                lists = [None if v is None else json.dumps(v) for v in column.to_arrow().to_pylist()]
                made[name] = [0 if v is None else values.names([v])[0] for v in lists]
            elif pa.types.is_floating(kind):
                made[name] = np.where(gone, np.nan, column.values.numpy())
            else:
                made[name], made[name + "\x00"] = np.where(gone, 0, column.values.numpy()), gone
        return made

    def decode(self, records: np.ndarray, names: Sequence[str], values: Values) -> dict[str, Column]:
        """Decode records to columns of the layout's types (without ``ROW``)."""
        return {n: self._column(records, n, values) for n in names if n != ROW}

    def _column(self, records: np.ndarray, name: str, values: Values) -> Column:
        kind, held = self.schema.field(name).type, records[name].copy()
        if self._is_flagged(name):
            gone = records[name + "\x00"] != 0
            missing = torch.from_numpy(gone) if gone.any() else None
            tensor = torch.from_numpy(held)
            if pa.types.is_timestamp(kind):
                return Column("datetime", tensor, name=name, missing=missing, unit=kind.unit, zone=kind.tz)
            return Column("number", tensor, name=name, missing=missing)
        if pa.types.is_floating(kind):
            return Column("number", torch.from_numpy(held), name=name)
        # Of text and lists the distinct ones are fetched; 0 is missing.
        distinct = np.unique(held)
        distinct = distinct[distinct != 0]
        codes = np.where(held == 0, 0, np.searchsorted(distinct, held) + 1).astype(np.int32)
        if pa.types.is_large_list(kind):
            lists = [None, *values.lists(distinct.tolist())]
            return as_column(pa.array([lists[c] for c in codes.tolist()], kind), name=name)
        texts = values.texts(distinct.tolist())
        words = pa.array(texts, kind) if is_text(kind) else pa.array(texts, pa.string()).cast(kind)
        return Column("category", torch.from_numpy(codes), name=name, distinct=words)


def _is_number(kind: pa.DataType) -> bool:
    """Tell whether a column of this type holds a tensor of numbers; other types hold codes."""
    return is_numeric(kind) and kind != pa.uint64()


def _is_plain(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _family(kind: pa.DataType) -> str:
    if is_numeric(kind):
        return "number"
    return "text" if is_text(kind) else str(kind.id)


def union(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Merge records of one type, each row once, by their numbers."""
    whole = np.concatenate(parts)
    return whole[np.unique(whole[ROW], return_index=True)[1]]


HISTORY = "history"  # the name of the frame's own earlier rows among the tables


@dataclass(frozen=True)
class EventLookup:
    """Events that a generator needs of a table: those whose key ``columns`` equal a row's ``rows``."""

    table: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    via: str | None = None  # another table whose fetched events have keys of this one too


@dataclass(eq=False)
class EventIndex:
    """A table's events by key."""

    number: int  # what its keys begin with
    table: str  # the table's name, and its key columns
    columns: tuple[str, ...]  # the table's name, and its key columns
    fields: tuple[str, ...] = ()  # the columns that a record has
    readers: list[Feature] = field(default_factory=list)  # the generators that read it
    folds: bool = False  # whether old events are folded into sums

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
    """What is computed, and from which events."""

    steps: list[Feature]  # the generators, those that others read before them
    lookups: list[list[EventLookup]]  # what each of them looks up, by its place among the steps
    indexes: list[EventIndex]  # how the tables' events are kept
    columns: dict[str, list[str]]  # the columns that each table's events must have
    orders: dict[str, list[str]]  # those of each table that must have a value
    deep: set[int]  # the places of steps whose values earlier rows need too
    #: the index of a lookup's events: by its own columns, or by the first of them
    index: dict[EventLookup, EventIndex] = field(default_factory=dict)


def make_plan(features: FeatureSet, outputs: Collection[str], *, history: bool) -> Plan:
    """Plan the steps that make some outputs, and the events that they look at; refuse a step that cannot be served.

    ``history``: the frame's own earlier rows are events too.
    """
    steps = steps_behind(outputs, features.steps, fitting=False)
    lookups = [_lookups(step, history=history) for step in steps]
    made = {n: i for i, s in enumerate(steps) for n in s.outputs}
    for step, found in zip(steps, lookups, strict=True):
        odd = next((n for k in found if k.table == HISTORY for n in k.columns if n in made), None)
        if odd is not None:
            why = f"its groups are of a column that {type(steps[made[odd]]).__name__} makes"
            raise _unservable(step, why, "Group by a column of the data, or leave it out", odd)
    # a generator that looks back reads its inputs at earlier rows
    wanted: set[str] = set()
    deep = set()
    for i in reversed(range(len(steps))):
        is_deep = bool(wanted & set(steps[i].outputs))
        if is_deep:
            deep.add(i)
        if is_deep or any(k.table == HISTORY for k in lookups[i]):
            wanted |= set(steps[i].inputs) - set(steps[i].fit_only)
    columns, orders = _columns(steps, lookups, made, deep)
    plan = Plan(steps, lookups, [], columns, orders, deep)
    keys = list(dict.fromkeys((k.table, k.columns) for found in lookups for k in found))
    # A key whose first columns are one too needs no index of its own: a session's events are read once for all that is
    # asked of it, its events on one item among them.
    long = {(t, k) for t, k in keys if any(t == o and 0 < len(c) < len(k) and k[: len(c)] == c for o, c in keys)}
    plan.indexes += [EventIndex(i, table, key) for i, (table, key) in enumerate(k for k in keys if k not in long)]
    for step, found in zip(steps, lookups, strict=True):
        for lookup in found:
            fit = [i for i in plan.indexes if i.table == lookup.table and bool(i.columns) == bool(lookup.columns)]
            fit = [i for i in fit if lookup.columns[: len(i.columns)] == i.columns]
            plan.index[lookup] = min(fit, key=lambda i: len(i.columns))
            plan.index[lookup].readers.append(step)
    for index in plan.indexes:
        own = [n for s in index.readers for n in s.table_inputs.get(index.table, ()) if n not in index.columns]
        index.fields = tuple(dict.fromkeys(own)) if index.table != HISTORY else (ROW, *columns[HISTORY])
        whole = all(
            lookup.columns == index.columns and lookup.via is None and i not in deep
            for i, some in enumerate(lookups)
            for lookup in some
            if plan.index[lookup] is index
        )
        index.folds = whole and can_fold(index.readers, made)
    return plan


def looks_back(step: Feature) -> bool:
    """Tell whether a generator looks at other rows or events when it is applied."""
    return isinstance(step, Grouped | CoVisit) or (isinstance(step, Fitted) and step.within is not None)


def history_outputs(features: FeatureSet) -> list[str]:
    """List the outputs that look at other rows or events, and those made from such ones."""
    made: set[str] = set()
    for step in features.steps:
        if looks_back(step) or made & set(step.inputs):
            made.update(step.outputs)
    return [n for n in features.outputs if n in made]


def _unservable(step: Feature, why: str, remedy: str, column: str | None = None) -> DataError:
    name = f"{type(step).__name__} ({', '.join(step.outputs)})"
    return DataError(f"{name} cannot be served: {why}", column=column, remedy=remedy)


def _lookups(step: Feature, *, history: bool) -> list[EventLookup]:
    if not looks_back(step):
        return []
    tables = step.table_inputs
    if HISTORY in tables:
        why = "its table has the name that the frame's own earlier rows have here"
        raise _unservable(step, why, f"Give the table another name than {HISTORY!r}")
    if isinstance(step, JoinTable):
        return [EventLookup(step.table, tuple(step.inputs), tuple(step._keys))]
    if isinstance(step, JaccardToHistory):
        by = tuple(as_list(step.by))
        return [EventLookup(step.table, by, by), EventLookup(step.items, (step.item,), (step.item,), via=step.table)]
    within = step.within
    if within is None or len(tables) > 1 or any(set(within) - set(n) for n in tables.values()):
        remedy = "Leave it out, or give it within and table_inputs that name the columns of its groups"
        raise _unservable(step, "it does not say by which columns it finds its events", remedy)
    key = tuple(within)
    if tables:
        return [EventLookup(next(iter(tables)), key, key)]
    return [EventLookup(HISTORY, key, key)] if history else []


def _columns(
    steps: Sequence[Feature], lookups: Sequence[Sequence[EventLookup]], made: Mapping[str, int], deep: Collection[int]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
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
