"""``Online``: features that look back, of single requests, from events that are kept by key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.features import CumTarget, FeatureSet
from fastrec.features._engine.chain import compute, naming, naming_table
from fastrec.features.base import Context, Feature
from fastrec.features.columns import as_list, name_of, names_of, order_keys
from fastrec.features.cum_target import smoothed
from fastrec.features.lagged import seconds_in
from fastrec.serve.online.fetching import Folder, Request
from fastrec.serve.online.plan import (
    HISTORY,
    EventIndex,
    RecordLayout,
    Values,
    history_outputs,
    make_plan,
)
from fastrec.serve.online.store import EventStore, MemoryStore, by_key, row_keys
from fastrec.table import Column, Table, column_names
from fastrec.table.keys import UNITS_PER_SECOND

# ``CumTarget`` goes on learning: its sums from the rows that came after training, for rows that come later still.


class Learner:
    """Counts and sums of targets by key, in order, added to what was learned in training.

    A row sees the training rows and the observed rows that are strictly earlier, as a training row does: the value that
    ``fit_transform`` would give it. Rows older than a key's newest by more than ``late`` are added up.

    Args:
        steps: the generators; those of class ``CumTarget`` are served.
        made: the columns that generators make.
        deep: the generators whose values earlier rows need too.
        store: where the sums are.
        keep: how many rows a key has before old ones are added up.
        late: see ``Online``.

    Raises:
        DataError: a generator cannot go on learning, by name.
    """

    def __init__(
        self,
        steps: Sequence[Feature],
        made: Mapping[str, Any],
        deep: Sequence[Feature],
        store: EventStore,
        keep: int,
        late: Fraction,
    ) -> None:
        self.steps = [s for s in steps if isinstance(s, CumTarget)]
        self.store, self.keep, self.late = store, keep, late
        for step in self.steps:
            why = "its sums decay" if step.half_life is not None else None
            why = "it reads what another generator makes" if set(step.inputs) & set(made) else why
            why = "a generator that looks back reads it" if step in deep else why
            if why is not None:
                why = f"CumTarget ({', '.join(step.outputs)}) cannot go on learning: {why}"
                raise DataError(why, remedy="Use learn=False: it keeps what it learned in training")

    def records(self, rows: Table) -> dict[bytes, bytes]:
        """Encode rows with their target as bytes for each key."""
        appends: dict[bytes, bytes] = {}
        for number, step in enumerate(self.steps):
            order = order_keys(rows, as_list(step.order))
            made = np.zeros(len(rows), self._dtype(step, rows))
            for i, key in enumerate(order):
                made[f"o{i}"] = key.numpy()
            for i, (weight, y) in enumerate(step._counted(rows)):
                made[f"w{i}"], made[f"s{i}"] = weight.numpy(), (weight * y).numpy()
            appends |= by_key([self._prefix(number)] * len(rows), made)
            for place, col in enumerate(as_list(step.cols)):
                appends |= by_key(row_keys(rows, names_of(col), self._prefix(number, place)), made)
        return appends

    def fold(self, lengths: Mapping[bytes, int], rows: Table) -> None:
        """Add up the old rows of keys that have many."""
        for key, length in lengths.items():
            if key[:1] != b"c":
                continue
            step = self.steps[key[1]]
            kind = self._dtype(step, rows)
            if length <= self.keep * kind.itemsize:
                continue
            (value,) = self.store.get([key])
            records = np.frombuffer(value or b"", kind)
            margin = self.late * UNITS_PER_SECOND[rows[as_list(step.order)[0]].unit or "s"]
            first = records["o0"]
            cut = first.max() - (float(margin) if first.dtype.kind == "f" else ceil(margin))
            old = first < cut
            if old.sum() < 2:
                continue
            total = records[old][:1].copy()
            total["folded"], total["o0"] = 1, cut  # nothing older than this can be told apart any more
            for name in kind.names[kind.names.index("w0") :]:
                total[name] = records[name][old].sum()
            self.store.replace(key, value or b"", total.tobytes() + records[~old].tobytes(), {})

    def compute(self, step: CumTarget, rows: Table) -> dict[str, Column]:
        """Compute the columns of rows from training rows and the rows observed before them."""
        number, state = self.steps.index(step), step._learned()[0]
        prior = self._sums(step, rows, [self._prefix(number)] * len(rows))
        made: dict[str, Column] = {}
        for place, col in enumerate(as_list(step.cols)):
            coded = rows.coded(names_of(col))
            keys = row_keys(rows, names_of(col), self._prefix(number, place))
            later, codes = self._sums(step, rows, keys), coded.recode(state["keys"][place])
            for t, target in enumerate(step.averaged):
                learned = state["columns"][place][t]
                own = [torch.cat([v.new_zeros(1), v.sum(0)])[codes] for v in (learned["count"], learned["sum"])]
                whole = [state["total"][t][n].sum() for n in ("count", "sum")]
                count, total = (a + b for a, b in zip(own, later[t], strict=True))
                rows_so_far, sum_so_far = (a + b for a, b in zip(whole, prior[t], strict=True))
                mean = torch.where(rows_so_far > 0, sum_so_far / rows_so_far.clamp_min(1e-300), 0)
                name = f"{step.name or 'cumte'}_{name_of(col)}__{target}"
                made[name] = Column("number", smoothed(count, total, 1.0, mean, step.smooth), name=name)
        return {n: made[n] for n in step.outputs}

    def _sums(
        self, step: CumTarget, rows: Table, keys: Sequence[bytes | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return for each target the count and the sum over the observed rows before each row: float64 ``[n]``."""
        kind, n = self._dtype(step, rows), len(rows)
        places: dict[bytes, int] = {}
        of_row = np.array([-1 if k is None else places.setdefault(k, len(places)) for k in keys], np.int64)
        values = [v or b"" for v in self.store.get(list(places))]
        records = np.frombuffer(b"".join(values), kind) if any(values) else np.empty(0, kind)
        sizes = np.array([0, *(len(v) // kind.itemsize for v in values)], np.int64)
        start, length = np.cumsum(sizes)[:-1], sizes[1:]
        length = np.where(of_row >= 0, length[of_row], 0) if len(length) else np.zeros(n, np.int64)
        row = np.repeat(np.arange(n), length)  # every row beside every record of its key
        begin = np.cumsum(length) - length
        first = start[of_row] if len(places) else np.zeros(n, np.int64)
        event = records[np.arange(len(row)) - begin[row] + first[row]]
        before, tied = np.zeros(len(row), bool), np.ones(len(row), bool)
        for i, key in enumerate(order_keys(rows, as_list(step.order))):
            now = key.numpy()[row]
            before |= tied & (event[f"o{i}"] < now)
            tied &= event[f"o{i}"] == now
            if i == 0:
                late = row[(event["folded"] > 0) & (event["o0"] > now)]
                if len(late):
                    why = "a request is older than rows that were added up"
                    remedy = "Make the Online with a larger late=, or send requests in time"
                    raise DataError(why, column=as_list(step.order)[0], row=int(late[0]), remedy=remedy)
                before |= event["folded"] > 0
        event, row = event[before], row[before]
        return [
            tuple(torch.from_numpy(np.bincount(row, event[f"{w}{t}"], n)) for w in "ws")  # type: ignore[misc]
            for t in range(len(step.averaged))
        ]

    @staticmethod
    def _dtype(step: CumTarget, rows: Table) -> np.dtype:
        order = order_keys(rows, as_list(step.order))
        parts = [("folded", "u1"), *((f"o{i}", "f8" if k.is_floating_point() else "i8") for i, k in enumerate(order))]
        return np.dtype([*parts, *((f"{w}{t}", "f8") for t in range(len(step.averaged)) for w in "ws")])

    @staticmethod
    def _prefix(number: int, place: int = 255) -> bytes:
        return b"c" + bytes([number, place])  # 255: the rows of all keys


ABOUT = "online.json"  # the arguments of an ``Online``, in a folder of its state
_TYPES = b"mt"  # what the keys of the tables' types begin with
_SIGNATURE = b"ms"  # the key of a digest of what is kept


class Online:
    """Features of requests from the events observed before them: what ``FeatureSet.transform`` gives of the same rows.

    ``features(requests)`` is what ``transform(requests, tables=…, history=…)`` returns with all events observed until
    then, equal to the bit for counts, codes and values taken from events, and within rounding for sums. Which rows see
    an event is training's rule, whatever the order in which events arrive; of events at one place in the order the one
    observed later is later, as the larger row number is in training.

    Events are kept by the key that a generator finds them by, so that a request reads those of its own keys. Where all
    generators of a key can do without most old events (see ``fold``), these are folded into sums once a key has more
    than ``keep``. A request may then be ``late`` at most: one that is older than what was folded is refused. Events may
    be as late as they like.

    How each is served: ``History`` (but for ``is_last``) and ``CumCount`` from counts, sums, the first and last event;
    ``Lag``, ``Diff``, ``Rolling``, ``LastKnown``, ``LastAction``, ``TimeSince``, ``Collect``, ``CoVisit``,
    ``JaccardToHistory`` and ``JoinTable`` (``duplicates='last'``, ``'first'``) from the last few events of a key and
    those of their windows; all others from all events of the key, by the very code that made the training rows. So are
    generators that share a key with one of those.

    Args:
        features: the fitted features.
        store: where events are kept; None: in this process's memory alone.
        tables: a frame or an Arrow schema for each table of events, whose types are taken (no rows are); without it the
            first events observed say the types.
        history: whether the frame's own earlier rows are events too (``observe(rows)``), for generators of no table.
        outputs: the outputs that are wanted; None: all that look back, and those made from them.
        keep: how many events a key has before old ones are folded.
        late: how far behind a key's newest event a request may be: ``'1h'``, or a number in seconds or the unit of the
            order.
        learn: whether ``CumTarget`` goes on learning from rows that are observed with their target: then its values are
            those that ``fit_transform`` gives the rows of the same moment, not those of ``transform``.

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
        store: EventStore | None = None,
        tables: Mapping[str, Any] | None = None,
        history: bool = True,
        outputs: Sequence[str] | None = None,
        keep: int = 128,
        late: str | float = "1h",
        learn: bool = False,
    ) -> None:
        wanted = history_outputs(features, learn=learn) if outputs is None else list(outputs)
        unknown = next((n for n in wanted if n not in {m for s in features.steps for m in s.outputs}), None)
        if unknown is not None:
            raise DataError("the features have no such output", column=unknown, remedy="See FeatureSet.outputs")
        self.feature_set, self.outputs, self.history = features, wanted, history
        self.store: EventStore = MemoryStore() if store is None else store
        self._plan = make_plan(features, wanted, history=history)
        self._targets = set(features.targets)
        margin = seconds_in(late, wanted_by="Online", what="late") if isinstance(late, str) else Fraction(late)
        made = {n: s for s in self._plan.steps for n in s.outputs}
        deep = [self._plan.steps[i] for i in self._plan.deep]
        self._learner = Learner(self._plan.steps if learn else [], made, deep, self.store, keep, margin)
        if self._learner.steps:
            columns = self._plan.columns.setdefault(HISTORY, [])
            columns += [n for n in dict.fromkeys(n for s in self._learner.steps for n in s.inputs) if n not in columns]
        needed = [n for s in self._plan.steps for n in s.inputs if n not in set(s.fit_only)]
        needed += [n for s in self._learner.steps for n in as_list(s.order)]
        self._inputs = list(dict.fromkeys(n for n in needed if n not in made))
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
    def inputs(self) -> list[str]:
        """The columns that requests must have."""
        return list(self._inputs)

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
        """Store events; when it returns they are as safe as the store promises.

        Args:
            events: a frame of any library, in the order in which they happened or any other.
            table: the name of their table; None: they are rows of the frame itself, with the targets that lags read.

        Returns:
            How many there were.

        Raises:
            DataError: no generator looks at such a table, a column has another type than before, or a time is missing.
            MissingColumnError: a column is not there. Nothing is observed then.
        """
        return self._observe(events, HISTORY if table is None else table, learn=True)

    def checked(self, events: Any, table: str) -> Table:
        """Return the columns of events that ``observe`` would store, with their types there; nothing is observed.

        Raises:
            DataError, MissingColumnError: as for ``observe``.
        """
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

    def _observe(self, events: Any, name: str, *, learn: bool) -> int:
        with self._lock:
            rows = self.checked(events, name)
            if len(rows):
                with naming_table(name):
                    self._append(name, rows, learn=learn and name == HISTORY)
        return len(rows)

    def features(self, requests: Any) -> pa.Table:
        """Compute the features of rows whose lists are whole.

        Args:
            requests: the rows, a frame of any library; rows of one call are of one frame and see each other as such.

        Returns:
            ``outputs``, a row for each of ``requests``.

        Raises:
            DataError: a table's types are not known yet, or a row is older than what was folded.
            MissingColumnError: a column is not there.
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
    def load(cls, folder: str | Path, features: FeatureSet | None = None, *, store: EventStore | None = None) -> Online:
        """Load what ``write_online_state`` wrote, and what was observed since.

        Args:
            folder: where it is.
            features: the fitted features; None: those saved at ``features`` beside the folder.
            store: where to keep events; None: in the folder itself. One that is empty gets the folder's events.

        Raises:
            MissingFileError, UnreadableFileError: there is nothing usable.
        """
        folder = Path(folder)
        path = folder / ABOUT
        if not path.is_file():
            raise MissingFileError("there is no such file", file=path, remedy="Give the folder that export wrote")
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            options = {n: said[n] for n in ("history", "outputs", "keep", "late", "learn")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"the state's settings cannot be read ({error!r})"
            raise UnreadableFileError(why, file=path, remedy="Export the run again") from error
        features = FeatureSet.load(folder.parent / "features") if features is None else features
        if set(options["outputs"]) - {n for s in features.steps for n in s.outputs}:
            raise UnreadableFileError("it is the state of other features", file=folder, remedy="Export the run again")
        own = MemoryStore(folder)
        if store is not None:
            if not any(store.get([_SIGNATURE])):
                own.copy_to(store)
            own.close()
            return cls(features, store=store, **options)
        try:
            return cls(features, store=own, **options)
        except BaseException:
            own.close()
            raise

    def _append(self, name: str, rows: Table, *, learn: bool) -> None:
        layout = self._layouts[name]
        appends = self._learner.records(rows) if learn else {}
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
        self._learner.fold(lengths, rows)

    def _layout(self, name: str) -> RecordLayout | None:
        if name not in self._layouts:
            (kept,) = self.store.get([_TYPES + name.encode()])
            if kept is not None:
                self._layouts[name] = RecordLayout.from_text(kept.decode())
        return self._layouts.get(name)

    def _set_layout(self, name: str, rows: Table) -> None:
        layout = RecordLayout.of(rows, self._plan.columns[name])
        kept = self.store.first(_TYPES + name.encode(), layout.to_text().encode())
        self._layouts[name] = RecordLayout.from_text(kept.decode())

    def _read(self, requests: Any) -> Table:
        there = set(column_names(requests))
        names = [n for n in self._inputs if n in there or n not in self._targets]
        rows = Table.read(requests, names, device="cpu")
        blank = {n: Column("number", torch.full((len(rows),), torch.nan).double(), name=n) for n in self._inputs}
        return rows.with_columns({n: c for n, c in blank.items() if n not in rows}) if len(names) < len(blank) else rows

    def _made(self, place: int, step: Feature, request: Request) -> dict[str, Column]:
        if step in self._learner.steps:
            return request.on_asked(lambda rows: self._learner.compute(step, rows))
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
        learners = [s.signature for s in self._learner.steps]
        signature = hashlib.sha256(json.dumps([indexes, readers, learners]).encode()).hexdigest().encode()
        if self.store.first(_SIGNATURE, signature) != signature:
            remedy = "Use an empty store, and observe the events again or export them with these features"
            raise UnreadableFileError("the store holds the events of other features", remedy=remedy)


# The state of events as a folder: written from a run's tables, read when serving starts.


def write_online_state(
    folder: str | Path,
    features: FeatureSet,
    tables: Mapping[str, Any] | None = None,
    history: Any = None,
    *,
    outputs: Sequence[str] | None = None,
    keep: int = 128,
    late: str | float = "1h",
    learn: bool = False,
) -> Online:
    """Write the state that serving starts with: all events so far, by key, old ones folded.

    Args:
        folder: where to; an earlier state there is replaced in one step.
        features: the fitted features.
        tables: the tables of events, all rows so far in their order; tables that no generator reads are passed over.
        history: the frame's own rows so far, with the targets that lags read; None: no generator looks at them.
        outputs, keep, late, learn: see ``Online``; the history is taken as what the features have learned from.

    Returns:
        A closed ``Online`` that says which columns are needed (``inputs``, ``tables``).

    Raises:
        DataError: a generator cannot be served from events, by name.
    """
    check_replaceable(folder, ABOUT)
    settings = {"history": history is not None, "outputs": outputs, "keep": keep, "late": late, "learn": learn}
    given = {**(tables or {}), **({"history": history} if history is not None else {})}
    with atomic_folder(folder) as part:
        online = Online(features, store=MemoryStore(part, sync="never"), tables=given, **settings)
        settings["outputs"] = online.outputs
        for name, frame in given.items():
            if name not in online.tables:
                continue
            rows = Table.read(frame, online.tables[name], device="cpu")
            for start in range(0, len(rows), 200_000):  # blocks bound the memory
                online._observe(rows.slice(start, min(start + 200_000, len(rows))), name, learn=False)
        online.snapshot()
        online.close()
        (part / ABOUT).write_text(json.dumps({"format": 1, **settings}, indent=1), encoding="utf-8")
    return online
