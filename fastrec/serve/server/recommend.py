"""``/v1/recommend``: sessions of item ids → the best items, by a recommender, a run for next items or its export."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from starlette.responses import Response

from fastrec._core.atomic import digests_below, task_in
from fastrec._core.limits import ANSWER_ITEMS
from fastrec.competition.next_items import SavedNextItems, is_next_item_run
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, FastrecError
from fastrec.registry import is_registry
from fastrec.retrieval import Recommender
from fastrec.retrieval.pipeline.recommender import ABOUT, RANKER
from fastrec.sequences import SessionFrame
from fastrec.serve.next_items import TASK, NextItemGraph, event_inputs, type_of
from fastrec.serve.server.batcher import Job
from fastrec.serve.server.bodies import check_fields, check_rows, json_response, named_columns, parse_content
from fastrec.serve.server.call import Call, Limits, Refusal, shortened
from fastrec.serve.server.columns import event_parts, filled, from_arrow, from_values
from fastrec.serve.server.pages import operation, render
from fastrec.serve.server.protocols import top
from fastrec.serve.server.service import SECONDS, Histogram, Service
from fastrec.serve.server.spec import Input, input_of
from fastrec.serve.server.versions import Canary, Source
from fastrec.serve.session import cannot
from fastrec.table import Table, Vocab, as_column
from fastrec.table.column import rows_of
from fastrec.table.keys import is_numeric


@dataclass(frozen=True)
class RecommendSpec:
    """The inputs of a model that recommends."""

    name: str
    version: str  # a digest of its files
    type: str  # of items' ids: ``int64`` or ``string``
    items: int  # their number
    k: int  # the default number of answers
    context: Mapping[str, str] = field(default_factory=dict)  # the values of a session → a description
    columns: tuple[Input, ...] = ()  # the inputs of every event beside its item
    goals: tuple[str, ...] = ()  # each has answers of its own
    task: str = "recommend"
    events: None = None
    made: tuple[()] = ()


@dataclass
class AskedSessions:
    """Sessions, one after the other."""

    items: np.ndarray  # ids of their events, ``[events]``
    offsets: np.ndarray  # session ``i`` is ``items[offsets[i]:offsets[i + 1]]``, int64 ``[rows + 1]``
    k: int  # how many items are wanted
    context: dict[str, list[Any]] = field(default_factory=dict)  # name → each session's value, None if there is none
    columns: dict[str, np.ndarray] = field(default_factory=dict)  # name → values of the events, ``[events]``

    @property
    def rows(self) -> int:
        """How many sessions there are."""
        return len(self.offsets) - 1

    def lists(self, values: np.ndarray) -> list[np.ndarray]:
        """Return each session's part of values of events."""
        return np.split(values, self.offsets[1:-1]) if self.rows else []


def joined(batch: Sequence[AskedSessions]) -> AskedSessions:
    """Join the sessions of several requests with the same ``k`` and names of context."""
    if len(batch) == 1:
        return batch[0]
    lengths = np.concatenate([np.diff(a.offsets) for a in batch])
    context = {n: [v for a in batch for v in a.context[n]] for n in batch[0].context}
    items = np.concatenate([a.items for a in batch])
    columns = {n: np.concatenate([a.columns[n] for a in batch]) for n in batch[0].columns}
    return AskedSessions(items, np.concatenate([[0], np.cumsum(lengths)]), batch[0].k, context, columns)


_PLAIN = (str, int, float, bool, type(None))


def parse_sessions(
    body: bytes, content_type: str, spec: RecommendSpec, k: Any, limits: Limits
) -> tuple[AskedSessions, bool]:
    """Parse the sessions of a body, and whether it was a single one; ``k`` is that of the address.

    JSON is ``{"items": ["a", "b"], "k": 5}`` for one session, ``{"sessions": [{"items": ["a", "b"]}, …]}`` for several.
    Beside ``items``, ``context`` has values of the session, and each of the model's ``columns`` a value for every
    event. In a stream of Arrow these are columns of lists; all other columns are the context.
    """
    said = parse_content(body, content_type, limits)
    if isinstance(said, pa.Table):
        asked, alone = _of_arrow(said, spec), False
    else:
        check_fields(said, (*_fields(spec), "sessions", "k"))
        k, alone = said.get("k", k), "items" in said
        asked = _of_json(said, spec, limits.max_rows)
    asked.k = min(top(k) or spec.k, max(spec.items, 1))
    if asked.k * asked.rows * max(len(spec.goals), 1) > ANSWER_ITEMS:
        said = f"{asked.rows} sessions with {asked.k} items each are more than {ANSWER_ITEMS} items"
        raise Refusal(413, said, remedy="Send fewer sessions, or a smaller k")
    return asked, alone


def _fields(spec: RecommendSpec) -> tuple[str, ...]:
    return ("items", "context", *(c.name for c in spec.columns))


def _asked(values: Mapping[str, Any], spec: RecommendSpec, context: dict[str, list[Any]]) -> AskedSessions:
    """Build sessions of the items and the other columns of events, which are lists for each session."""
    wanted, found = event_parts(Input("items", spec.type), values["items"])[1], {}
    offsets = np.concatenate([[0], np.cumsum(wanted)]).astype(np.int64)
    for column in (Input("items", spec.type), *spec.columns):
        flat, lengths = event_parts(column, values[column.name])
        if (lengths != wanted).any():
            row, what = int(np.argmax(lengths != wanted)), "times" if column.name == "times" else "values"
            said = f"the session has {wanted[row]} items and {lengths[row]} {what}"
            remedy = "Send one for every event (times in seconds)"
            raise Refusal(422, said, column=column.name, row=row, remedy=remedy)
        found[column.name] = _values(flat, column, offsets)
    return AskedSessions(found.pop("items"), offsets, 1, context, found)


def _of_json(said: dict[str, Any], spec: RecommendSpec, max_rows: int) -> AskedSessions:
    if ("items" in said) == ("sessions" in said):
        remedy = 'Send {"items": [1, 2]}, or {"sessions": [{"items": [1, 2]}]}'
        raise Refusal(422, "the body holds neither items nor sessions, or both", remedy=remedy)
    if "items" in said:
        sessions: Any = [{n: said[n] for n in _fields(spec) if n in said}]
    elif (name := next((n for n in _fields(spec) if n in said), None)) is not None:
        raise Refusal(422, f"{name} stands beside sessions", remedy="Put it into each session")
    else:
        sessions = said["sessions"]
    if type(sessions) is not list:
        raise Refusal(422, "sessions is no list of objects")
    check_rows(len(sessions), max_rows)
    for row, session in enumerate(sessions):
        if type(session) is not dict or type(session.get("items")) is not list:
            raise Refusal(422, "the session is no object with a list of items", row=row)
        check_fields(session, _fields(spec), "session", row)
    values = {n: [s.get(n) for s in sessions] for n in _fields(spec)}
    return _asked(values, spec, _context(values["context"], spec))


def _context(contexts: Sequence[Any], spec: RecommendSpec) -> dict[str, list[Any]]:
    for row, context in enumerate(contexts):
        if context is not None and type(context) is not dict:
            raise Refusal(422, "context is no object of values", row=row)
        for name in context or {}:
            _check_name(name, spec, row)
    names = dict.fromkeys(n for c in contexts for n in c or {})
    return {n: _plain(n, [(c or {}).get(n) for c in contexts]) for n in names}


def _plain(name: str, values: list[Any]) -> list[Any]:
    """Return a context's values; refuse those that are no single values of one type."""
    for row, value in enumerate(values):
        if type(value) not in _PLAIN:
            raise Refusal(422, f"{shortened(value)} is no single value", column=name, row=row)
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise Refusal(422, f"{shortened(value)} is out of range", column=name, row=row)
    kinds = {type(v) for v in values} - {type(None)}
    if len(kinds) > 1 and kinds != {int, float}:
        names = " and ".join(sorted(k.__name__ for k in kinds))
        raise Refusal(422, f"its values are of several types ({names})", column=name)
    return values


def _check_name(name: str, spec: RecommendSpec, row: int | None) -> None:
    if name in spec.context:
        return
    known = ", ".join(spec.context)
    remedy = f"It knows {known}" if known else "It knows the items alone"
    raise Refusal(422, "the model has no such context", column=name, row=row, remedy=remedy)


def _of_arrow(table: pa.Table, spec: RecommendSpec) -> AskedSessions:
    columns, needed = named_columns(table), ("items", *(c.name for c in spec.columns))
    absent = next((n for n in needed if n not in columns), None)
    if absent is not None:
        raise Refusal(422, "the column is missing", column=absent)
    lists, context = columns["items"], {}
    if lists.null_count:
        raise Refusal(422, "the session has no list", column="items", row=int(np.argmax(lists.is_null())))
    for name in (n for n in columns if n not in needed):
        _check_name(name, spec, None)
        context[name] = _plain(name, columns[name].to_pylist())
    return _asked(columns, spec, context)


def _values(flat: list[Any] | pa.Array, column: Input, offsets: np.ndarray) -> np.ndarray:
    """Convert ids, or other values, of all events; refuse a number where text is expected."""
    given = isinstance(flat, list)
    numbers = [type(v) in (int, float, bool) for v in flat] if given else [is_numeric(flat.type)] * len(flat)
    try:
        if column.type == "string" and True in numbers:
            said = "an id is a number, and ids are text" if column.name == "items" else "it is a number, and not text"
            raise Refusal(422, said, column=column.name, row=numbers.index(True), remedy='Send "44", not 44')
        return from_values(column, flat) if given else from_arrow(column, flat)  # a row is that of the event
    except Refusal as refusal:
        row = None if refusal.row is None else int(np.searchsorted(offsets, refusal.row, side="right")) - 1
        raise Refusal(422, refusal.problem, column=refusal.column, row=row, remedy=refusal.remedy) from None


SAYS = "The best items for a session, or for several."


def example(spec: RecommendSpec) -> dict[str, Any]:
    """Make up a body."""
    two: dict[str, list[Any]] = {"string": ["a", "b"], "int64": [1, 2], "float64": [1_700_000_000.0, 1_700_000_060.0]}
    return {"items": two[spec.type], **{c.name: two[c.type] for c in spec.columns}, "k": 5}


def of_sessions(spec: RecommendSpec) -> dict[str, Any]:
    """Describe the bodies of ``/v1/recommend``: one session, or several."""
    kind = {"type": "string" if spec.type == "string" else "integer"}
    items = {"type": "array", "items": kind, "description": "The session's items so far, the last one last."}
    known = {n: {"description": says} for n, says in spec.context.items()}
    context = {"type": "object", "properties": known, "additionalProperties": False}
    own, k = {"items": items, "context": context}, {"type": "integer", "minimum": 1, "default": spec.k}
    for column in spec.columns:
        says = "The events' times, in seconds." if column.name == "times" else "A value for every event."
        of_one = {"type": {"string": "string", "int64": "integer"}.get(column.type, "number")}
        own[column.name] = {"type": "array", "items": of_one, "description": says}
    session = {"type": "object", "additionalProperties": False, "required": [n for n in own if n != "context"]}
    one = {**session, "properties": {**own, "k": k}}
    sessions = {"type": "array", "items": {**session, "properties": own}}
    several = {**session, "required": ["sessions"], "properties": {"sessions": sessions, "k": k}}
    best = {"type": "object", "properties": {"ids": {"type": "array", "items": kind}, "scores": {"type": "array"}}}
    if spec.goals:
        each = {"type": "object", "properties": dict.fromkeys(spec.goals, best)}
        best = {"type": "object", "properties": {"goals": each}}
    every = {"type": "object", "properties": {"sessions": {"type": "array", "items": best}}}
    return operation({"oneOf": [one, several]}, {"oneOf": [best, every]}, example=example(spec), k=k)


Best: TypeAlias = "tuple[list[Any], list[float]] | dict[str, tuple[list[Any], list[float]]]"  # or of each goal
Answer: TypeAlias = "tuple[list[Best], dict[str, float]]"


class _Model:
    folder: Path
    spec: RecommendSpec
    items: Vocab | None = None  # where a session of known items costs more the first time than one of none
    version: int | None = None  # its number in a registry
    events: None = None

    @property
    def label(self) -> str:
        return self.spec.version[:12] if self.version is None else str(self.version)

    def recommend(self, asked: AskedSessions) -> Answer:
        """Return for each session ids and scores, the best first; and the seconds of each stage."""
        raise NotImplementedError

    def score_all(self, batch: Sequence[AskedSessions]) -> list[Any]:
        """Answer each request; those with the same ``k`` and names of context go together."""
        found: dict[int, Answer] = {}
        kinds = [(a.k, frozenset(a.context)) for a in batch]
        for kind in dict.fromkeys(kinds):
            places = [i for i, own in enumerate(kinds) if own == kind]
            try:
                best, seconds = self.recommend(joined([batch[i] for i in places]))
            except FastrecError as error:
                raise Refusal(422, error.problem, column=error.column, remedy=error.remedy) from None
            at = 0
            for i in places:
                found[i] = best[at : at + batch[i].rows], seconds
                at += batch[i].rows
        return [found[i] for i in range(len(batch))]

    def warm(self) -> None:
        known = [] if self.items is None else self.items.values.slice(0, 3).to_pylist()
        ids = np.array(known, object if self.spec.type == "string" else np.int64)
        k = min(self.spec.k, max(self.spec.items, 1))
        expected = [FastrecError] if self.spec.context else []  # it may want some
        with cannot("it cannot recommend anything", self.folder, "Save or export it anew"), suppress(*expected):
            for items in (ids[:0], ids[:1], ids):
                own = {c.name: np.zeros(len(items)) if c.is_float else filled(c, len(items)) for c in self.spec.columns}
                self.recommend(AskedSessions(items, np.array([0, len(items)]), k, columns=own))


def recommends(folder: str | Path) -> bool:
    """Tell whether a folder, or the current version of a registry, answers ``/v1/recommend``."""
    folder = Path(folder)
    if is_registry(folder):
        folder = Source(folder).current()[0]
    return (folder / ABOUT).is_file() or is_next_item_run(folder) or _is_net(folder)


def open_model(folder: str | Path, *, threads: int = 1, device: str = "cpu") -> _Model:
    """Load a folder's model."""
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        return _ServedRecommender(folder)
    return _ServedNet(folder, threads, device) if _is_net(folder) else _ServedRun(folder)


class _ServedNet(_Model):
    def __init__(self, folder: Path, threads: int, device: str) -> None:
        self.folder, self._graph = folder, NextItemGraph(folder, threads=threads, device=device)
        about = self._graph.about
        sizes = int(about["items"]), int(about["k"])
        more = {"columns": tuple(map(input_of, self._graph.columns.values())), "goals": tuple(self._graph.goals)}
        self.spec = RecommendSpec(about["name"], about["model"]["sha256"], self._graph.type, *sizes, **more)

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        sides = {n: asked.lists(v) for n, v in asked.columns.items()}
        best = self._graph.recommend(asked.lists(asked.items), asked.k, sides=sides)
        return best, {"score": time.perf_counter() - began}


class _ServedRun(_Model):
    # a run for next items with all its models
    items: Vocab

    def __init__(self, folder: Path) -> None:
        self.folder, self._saved = folder, SavedNextItems(folder)
        self.items = self._saved.blend.items
        name, k = self._saved.config["competition"], self._saved.form.max_items
        sizes, empty = (len(self.items) - 1, k), self._saved.empty
        own = tuple(map(input_of, event_inputs(empty, timed=_reads_times(self._saved.blend))))
        self.spec = RecommendSpec(name, _version(folder / "models"), type_of(self.items), *sizes, columns=own)

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        given = [(n, c, asked.columns[n]) for n, c in self._saved.empty.codings.items()]
        sides = {n: c.encode(as_column(v, name=n)) if len(v) else c.empty() for n, c, v in given}
        frame = _frame(asked, self.items, self._saved.empty.codings, sides)
        codes, scores = self._saved.recommend(frame, min(asked.k, self.spec.items))
        ids = self.items.decode(codes.reshape(-1)).to_pylist()
        width, best = codes.shape[1], []
        for i, row in enumerate(scores.tolist()):
            n = int((codes[i] > 0).sum())
            best.append((ids[i * width : i * width + n], row[:n]))
        return best, {"score": time.perf_counter() - began}


class _ServedRecommender(_Model):
    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        ranker = SavedRun(folder / RANKER) if about.get("ranker") == "run" else None
        self.folder, self._shop = folder, Recommender.load(folder, ranker=ranker)
        items, form = self._shop.items, self._shop.form
        self.items = items
        self._codings = {} if form is None else SessionFrame.of_form(form, items).codings
        self._sides = [n for n, c in self._codings.items() if c.kind != "vector"]
        context = dict.fromkeys(self._sides, "a side feature of every event of the session")
        if ranker is not None:
            ranks = (f"{n}_{word}" for n in self._shop.retriever.sources for word in ("score", "rank"))
            own = {"session", "item", "sources", *ranks}
            context |= {n: "a column of the ranker" for n in ranker.inputs if n not in own}
        own = (Input("times", "float64"),) if _reads_times(self._shop.retriever) else ()
        self.spec = RecommendSpec("recommender", _version(folder), type_of(items), len(items) - 1, 20, context, own)

    def recommend(self, asked: AskedSessions) -> Answer:
        own = {n: as_column(asked.context.get(n, [None] * asked.rows), name=n) for n in self._sides}
        rows = rows_of(torch.from_numpy(asked.offsets))
        sides = {n: self._codings[n].encode(c)[rows] for n, c in own.items()}
        frame = _frame(asked, self._shop.items, self._codings, sides)
        more = {n: as_column(v, name=n) for n, v in asked.context.items() if n not in sides}
        found = self._shop.recommend(frame, asked.k, context=Table(more) if more else None)
        ids, scores = found["item"].to_arrow().to_pylist(), found["score"].values.tolist()
        ends = torch.bincount(found["session"].values, minlength=asked.rows).cumsum(0).tolist()
        return [(ids[a:b], scores[a:b]) for a, b in zip([0, *ends], ends)], dict(self._shop.seconds)


def _frame(asked: AskedSessions, items: Vocab, codings: dict[str, Any], sides: dict[str, torch.Tensor]) -> SessionFrame:
    kind = pa.large_string() if type_of(items) == "string" else pa.int64()
    ids = pa.array(asked.items, kind) if len(asked.items) else pa.array([], kind)
    values = items.encode(as_column(ids, name="items")) if len(ids) else torch.zeros(0, dtype=torch.int64)
    made = SessionFrame.of(values, torch.from_numpy(asked.offsets), items)
    made.times = torch.from_numpy(asked.columns["times"]) if "times" in asked.columns else None
    made.codings, made.sides = codings, sides
    made._keep(values >= len(items.reserved))
    return made


def _reads_times(model: Any) -> bool:
    """Return whether a net in a model, or in its parts, has a bias by time."""
    named = [p for n in ("models", "sources") if isinstance(p := getattr(model, n, None), Mapping)]
    parts = [*(m for own in named for m in own.values()), getattr(model, "model", None)]
    return getattr(model, "timed", False) is True or any(_reads_times(p) for p in parts if p is not None)


def _is_net(folder: Path) -> bool:
    return task_in(folder / "serving.json") == TASK


def _version(folder: Path) -> str:
    return hashlib.sha256(json.dumps(digests_below(folder, but="")).encode()).hexdigest()


class RecommendService(Service):
    """A service for sessions: a recommender, a run for next items, its export, or a registry of them.

    Waiting requests are answered together, one batch at a time. A canary is refused.
    """

    def __init__(self, folder: str | Path, *, limits: Limits | None = None, canary: Canary | None = None) -> None:
        if canary is not None:
            raise DataError("sessions have no canary", file=folder, remedy="Serve one version to all")
        # one worker: torch spreads a batch over the cores itself, and a recommender notes its stages' times
        super().__init__(folder, limits=replace(limits or Limits(), workers=1))
        stages = Histogram("fastrec_stage_seconds", "Time of a stage for a request's batch.", SECONDS, ("stage",))
        self.metrics.stages = stages

    def _load(self, folder: str | Path, version: int | None = None) -> Any:
        model = open_model(folder, threads=self.limits.threads, device=self.limits.device)
        model.version = version
        model.warm()
        return model


async def recommend(service: RecommendService, call: Call) -> Response:
    """Return sessions → for each the ids of its best items, and their scores."""
    spec: Any = service.scorer.spec
    read = partial(parse_sessions, call.body, call.content_type, spec, call.query("k"), service.limits)
    asked, alone = await service.parse(len(call.body), read)
    call.version = service.scorer.label
    best, seconds = [], {}
    if asked.rows:
        job: Any = Job(service.scorer, asked, call.timeout, call.came)  # type: ignore[arg-type]
        best, seconds = await service.batcher.submit(job)
    for stage, took in seconds.items():
        service.metrics.stages.see(took, stage)
    each = [one if isinstance(one, dict) else {"": one} for one in best]
    said = [{n: {"ids": ids, "scores": scores} for n, (ids, scores) in one.items()} for one in each]
    answers = [{"goals": one} if spec.goals else one[""] for one in said]
    timing = ", ".join(f"{stage};dur={1000 * took:.3f}" for stage, took in seconds.items())
    headers = {"Server-Timing": timing} if timing else None
    return json_response(answers[0] if alone else {"sessions": answers}, headers=headers)


async def page(service: RecommendService, call: Call) -> Response:
    """Answer with a page for people."""
    spec: Any = service.scorer.spec
    rows = "".join(f"<tr><td>{escape(n)}<td>{escape(says)}" for n, says in spec.context.items())
    context = f"<h2>Context</h2><table><tr><th>name<th>what it is{rows}</table>" if rows else ""
    return render(service, f"{spec.items:,} items", context, "/v1/recommend", example(spec))
