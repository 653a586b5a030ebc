"""``Online``: features that look back, of single requests, from events that are kept by key."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.features import FeatureSet
from fastrec.features._engine.chain import compute, naming, naming_table
from fastrec.features.base import Context, Feature
from fastrec.features.columns import order_keys
from fastrec.features.lagged import seconds_in
from fastrec.serve.online.fetching import Folder, Request
from fastrec.serve.online.plan import HISTORY, EventIndex, RecordLayout, Values, history_outputs, make_plan
from fastrec.serve.online.store import MemoryStore, by_key, row_keys
from fastrec.table import Column, Table, column_names

ABOUT = "online.json"  # the arguments of an ``Online``, in a folder of its state
_TYPES, _SIGNATURE = b"mt", b"ms"  # prefix of the keys of tables' types, and the key of a digest of the plan


class Online:
    """Features of requests, computed from the events observed before them.

    ``features(requests)`` equals ``transform(requests, tables=…, history=…)`` with all events observed so far: to the
    bit for counts, codes and values of events, within rounding for sums. Events may arrive in any order. Of events with
    equal order values, the one observed later counts as later.

    The store holds events by the key that a generator looks up, so a request reads only its own keys. If a key has more
    than ``keep`` events and its generators need few old ones (see ``fold``), the others are folded into sums. Requests
    older than folded events are refused; ``late`` says how late a request may be. Events may be late by any time.

    ``History`` (except ``is_last``) and ``CumCount`` read counts, sums, the first and the last event. ``Lag``,
    ``Diff``, ``Rolling``, ``LastKnown``, ``LastAction``, ``TimeSince``, ``Collect``, ``CoVisit``, ``JaccardToHistory``
    and ``JoinTable`` (``duplicates='last'``, ``'first'``) read a key's last events and their windows. All others, and
    generators that share a key with them, read all events of the key.

    Args:
        features: the fitted features.
        store: the store of events; None: this process's memory.
        tables: a frame or an Arrow schema for each table of events, for its types; else the first events set them.
        history: whether the frame's own earlier rows are events too (``observe(rows)``), for generators of no table.
        outputs: the outputs to compute; None: all that look back, and those that read them.
        keep: number of events of a key before old ones are folded.
        late: how far a request may be behind a key's newest event: ``'1h'``, or seconds, or the order's unit.

    Raises:
        DataError: a generator cannot be served from events, by name; the store holds another FeatureSet's events.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import FeatureSet, History
        >>> from fastrec.serve import Online
        >>> log = pd.DataFrame({"user": ["ann", "bob"], "t": [1, 2]})
        >>> features = FeatureSet([History("user", order="t", table="log", stats="count", name="seen")])
        >>> _ = features.fit(log, tables={"log": log})
        >>> online = Online(features, tables={"log": log})
        >>> online.observe({"user": ["ann", "ann"], "t": [5, 6]}, "log")
        2
        >>> online.features({"user": ["ann", "bob"], "t": [7, 7]}).to_pydict()
        {'seen_count': [2, 0]}
    """

    def __init__(
        self,
        features: FeatureSet,
        *,
        store: MemoryStore | None = None,
        tables: Mapping[str, Any] | None = None,
        history: bool = True,
        outputs: Sequence[str] | None = None,
        keep: int = 128,
        late: str | float = "1h",
    ) -> None:
        wanted = history_outputs(features) if outputs is None else list(outputs)
        unknown = next((n for n in wanted if n not in {m for s in features.steps for m in s.outputs}), None)
        if unknown is not None:
            raise DataError("the features have no such output", column=unknown, remedy="See FeatureSet.outputs")
        self.feature_set, self.outputs, self.history = features, wanted, history
        self.store = MemoryStore() if store is None else store
        self._plan = make_plan(features, wanted, history=history)
        self._targets = set(features.targets)
        margin = seconds_in(late, wanted_by="Online", what="late") if isinstance(late, str) else Fraction(late)
        made = {n for s in self._plan.steps for n in s.outputs}
        needed = [n for s in self._plan.steps for n in s.inputs if n not in set(s.fit_only)]
        self.inputs = list(dict.fromkeys(n for n in needed if n not in made))  #: the columns that requests must have
        self._values = Values(self.store)
        self._layouts: dict[str, RecordLayout] = {}
        self._lock = RLock()
        self._folder = Folder(self._plan, self.store, self._values, keep, margin)
        self._check_store()
        for name in self._plan.columns:
            if tables is not None and name in tables and self._layout(name) is None:
                given = tables[name].empty_table() if isinstance(tables[name], pa.Schema) else tables[name]
                with naming_table(name):
                    rows = Table.read(given, self._plan.columns[name], device="cpu")
                self._set_layout(name, rows)

    @property
    def tables(self) -> dict[str, list[str]]:
        """The columns that events must have, by table; the frame's own earlier rows are ``'history'``."""
        return {t: list(n) for t, n in self._plan.columns.items()}

    @property
    def optional_tables(self) -> set[str]:
        """The tables that features do without: where there are no such events, their values are missing."""
        lookups = [k for found in self._plan.lookups for k in found]
        return {k.table for k in lookups} - {k.table for k in lookups if k.via is None}

    def schema(self, table: str) -> pa.Schema | None:
        """Return the types of a table's events; None if none was given or observed yet."""
        layout = self._layout(table)
        return None if layout is None else layout.schema

    def observed(self, table: str = HISTORY) -> int:
        """Count the observed events of a table; after a crash those that were stored."""
        return self.store.count(table.encode(), 0)

    def observe(self, events: Any, table: str | None = None) -> int:
        """Store events and return their number.

        Args:
            events: a frame of any library, in any order.
            table: the name of their table; None: they are rows of the frame itself, with the targets that lags read.

        Raises:
            DataError: no generator reads such a table, a column has another type than before, or a time is missing.
            MissingColumnError: a column is absent. In both cases nothing is stored.
        """
        name = HISTORY if table is None else table
        with self._lock:
            rows = self.checked(events, name)
            if len(rows):
                with naming_table(name):
                    self._append(name, rows)
        return len(rows)

    def checked(self, events: Any, table: str) -> Table:
        """Return the columns of events as ``observe`` would store them, or raise its errors."""
        with naming_table(table), self._lock:
            if table not in self._plan.columns:
                known = ", ".join(map(repr, self._plan.columns)) or "none"
                why = f"no feature looks at events of {table!r}; tables that features look at: {known}"
                raise DataError(why, remedy="Check the table's name")
            rows = Table.read(events, self._plan.columns[table], device="cpu")
            if self._layout(table) is None:
                self._set_layout(table, rows)
            rows = self._layouts[table].conform(rows)
            order_keys(rows, self._plan.orders.get(table, []))
            return rows

    def features(self, requests: Any) -> pa.Table:
        """Compute ``outputs`` of rows; lists must be whole.

        Args:
            requests: the rows, a frame of any library; as rows of one frame they see each other.

        Raises:
            DataError: a table's types are not known yet, or a row is older than folded events.
            MissingColumnError: a column is absent.
        """
        return self.table(requests).to_arrow()

    def table(self, requests: Any) -> Table:
        """Compute ``features`` as a ``Table``, whose tensors are torch's inference tensors."""
        asked = self._read(requests)
        layouts = {n: layout for n in self._plan.columns if (layout := self._layout(n)) is not None}
        step: Feature | None = None
        try:
            with torch.inference_mode():  # a request is a few hundred small operations: what each costs counts
                request = Request(self._plan, self.store, self._values, layouts, asked)
                for i, step in enumerate(self._plan.steps):
                    request.add(self._made(i, step, request))
                return request.result(self.outputs)
        except DataError:
            if step is None:
                raise
            with naming(step):
                raise

    def snapshot(self) -> None:
        """Write all events in a form that loads quickly (``MemoryStore``: the log is dropped)."""
        self.store.snapshot()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    @classmethod
    def load(cls, folder: str | Path, features: FeatureSet | None = None) -> Online:
        """Load the state that ``write_online_state`` wrote, with the events observed since.

        Args:
            folder: the state's folder.
            features: the fitted features; None: those saved at ``features`` beside the folder.

        Raises:
            MissingFileError, UnreadableFileError: the state is absent, or cannot be read.
        """
        folder = Path(folder)
        path = folder / ABOUT
        if not path.is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Give the folder that export wrote")
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            options = {n: said[n] for n in ("history", "outputs", "keep", "late")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"the state's settings cannot be read ({error!r})"
            raise UnreadableFileError(why, file=path, remedy="Export the run again") from error
        features = FeatureSet.load(folder.parent / "features") if features is None else features
        if set(options["outputs"]) - {n for s in features.steps for n in s.outputs}:
            raise UnreadableFileError("it is the state of other features", file=folder, remedy="Export the run again")
        own = MemoryStore(folder)
        try:
            return cls(features, store=own, **options)
        except BaseException:
            own.close()
            raise

    def _append(self, name: str, rows: Table) -> None:
        layout = self._layouts[name]
        appends: dict[bytes, bytes] = {}
        touched: dict[bytes, EventIndex] = {}
        first = self.store.count(name.encode(), len(rows))
        try:
            numbers = np.arange(first, first + len(rows))
            for index in self._plan.indexes:
                if index.table == name:
                    records = layout.encode(rows, index.fields, self._values, numbers)
                    made = by_key(row_keys(rows, index.columns, index.prefix), records)
                    appends |= made
                    touched |= dict.fromkeys(made, index)
            fresh = dict(self._values.fresh)
            lengths = self.store.write(appends, fresh)
        except BaseException:
            self.store.count(name.encode(), -len(rows))
            raise
        self._values.written(fresh)
        self._folder.fold({k: lengths[k] for k in touched}, touched, self._layouts)

    def _layout(self, name: str) -> RecordLayout | None:
        if name not in self._layouts:
            (kept,) = self.store.get([_TYPES + name.encode()])
            if kept is not None:
                self._layouts[name] = RecordLayout(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept))))
        return self._layouts.get(name)

    def _set_layout(self, name: str, rows: Table) -> None:
        types = RecordLayout.of(rows, self._plan.columns[name]).schema
        self.store.first(_TYPES + name.encode(), base64.b64encode(types.serialize().to_pybytes()))
        self._layout(name)

    def _read(self, requests: Any) -> Table:
        there = set(column_names(requests))
        names = [n for n in self.inputs if n in there or n not in self._targets]
        rows = Table.read(requests, names, device="cpu")
        blank = {n: Column("number", torch.full((len(rows),), torch.nan).double(), name=n) for n in self.inputs}
        return rows.with_columns({n: c for n, c in blank.items() if n not in rows}) if len(names) < len(blank) else rows

    def _made(self, place: int, step: Feature, request: Request) -> dict[str, Column]:
        lookups = self._plan.lookups[place]
        if not lookups:
            return compute(step, request.rows, Context())
        fetched = request.fetch(place)
        if lookups[0].table == HISTORY:
            made = request.on_own_rows(place, lambda rows: compute(step, rows, Context()))
        else:
            made = compute(step, request.rows, Context({k: f.events for k, f in fetched.items()}))
        return self._folder.add_sums(step, made, fetched, request)

    def _check_store(self) -> None:
        indexes = [[i.number, i.table, i.columns, i.fields, i.folds] for i in self._plan.indexes]
        readers = [[s.signature for s in i.readers] for i in self._plan.indexes]
        signature = hashlib.sha256(json.dumps([indexes, readers]).encode()).hexdigest().encode()
        if self.store.first(_SIGNATURE, signature) != signature:
            remedy = "Use an empty store, and observe the events again or export them with these features"
            raise UnreadableFileError("the store holds the events of other features", remedy=remedy)


def write_online_state(
    folder: str | Path,
    features: FeatureSet,
    tables: Mapping[str, Any] | None = None,
    history: Any = None,
    *,
    outputs: Sequence[str] | None = None,
    keep: int = 128,
    late: str | float = "1h",
) -> Online:
    """Write the initial state of serving: all events so far by key, old ones folded.

    Args:
        folder: the folder to write; an earlier state there is replaced in one step.
        features: the fitted features.
        tables: the tables of events, all rows so far in their order; tables that no generator reads are ignored.
        history: the frame's own rows so far, with the targets that lags read; None: no generator reads them.
        outputs, keep, late: see ``Online``.

    Returns:
        A closed ``Online``; its ``inputs`` and ``tables`` name the columns that are needed.

    Raises:
        DataError: a generator cannot be served from events; it is named.
    """
    check_replaceable(folder, ABOUT)
    settings = {"history": history is not None, "outputs": outputs, "keep": keep, "late": late}
    given = {**(tables or {}), **({"history": history} if history is not None else {})}
    with atomic_folder(folder) as part:
        online = Online(features, store=MemoryStore(part, sync="never"), tables=given, **settings)
        settings["outputs"] = online.outputs
        for name, frame in given.items():
            if name not in online.tables:
                continue
            rows = Table.read(frame, online.tables[name], device="cpu")
            for start in range(0, len(rows), 200_000):  # blocks bound the memory
                online.observe(rows.slice(start, min(start + 200_000, len(rows))), name)
        online.snapshot()
        online.close()
        (part / ABOUT).write_text(json.dumps({"format": 1, **settings}, indent=1), encoding="utf-8")
    return online
