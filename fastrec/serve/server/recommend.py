"""``/v1/recommend``: sessions of item ids → the best items, by a recommender, a run for next items or its export."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from starlette.responses import Response

from fastrec._core.atomic import digests_below
from fastrec._core.limits import ANSWER_ITEMS
from fastrec.competition.next_items import SavedNextItems, is_next_item_run
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, FastrecError, UnreadableFileError
from fastrec.registry import is_registry
from fastrec.retrieval import Recommender
from fastrec.retrieval.pipeline.recommender import ABOUT, RANKER
from fastrec.sequences import SessionFrame
from fastrec.serve.next_items import TASK, NextItemGraph, type_of
from fastrec.serve.server.batcher import Job
from fastrec.serve.server.bodies import JSON, check_fields, check_rows, named_columns, parse_content, write_json
from fastrec.serve.server.call import Call, Limits, Refusal, shortened
from fastrec.serve.server.columns import event_parts, from_arrow, from_values
from fastrec.serve.server.pages import operation, render
from fastrec.serve.server.protocols import top
from fastrec.serve.server.service import SECONDS, Histogram, Service
from fastrec.serve.server.spec import Input
from fastrec.serve.server.versions import Canary, Source
from fastrec.table import Table, Vocab, as_column
from fastrec.table.column import rows_of
from fastrec.table.keys import is_numeric


@dataclass(frozen=True)
class RecommendSpec:
    """What a model takes that recommends.

    ``version`` is a digest of what it was loaded from, ``type`` that of items' ids (``int64``, ``string``), ``items``
    their number, ``k`` how many are given by default, ``context`` names values of a session and says what they are for;
    one that is ``timed`` takes the times of events.
    """

    name: str
    version: str
    type: str
    items: int
    k: int
    context: Mapping[str, str] = field(default_factory=dict)
    timed: bool = False
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
    times: np.ndarray | None = None  # of the events, in seconds, float64 ``[events]``; None: the model takes none

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
    times = None if batch[0].times is None else np.concatenate([a.times for a in batch])
    return AskedSessions(items, np.concatenate([[0], np.cumsum(lengths)]), batch[0].k, context, times)


_PLAIN = (str, int, float, bool, type(None))


def parse_sessions(
    body: bytes, content_type: str, spec: RecommendSpec, k: Any, limits: Limits
) -> tuple[AskedSessions, bool]:
    """Parse the sessions of a body, and whether it was a single one.

    JSON is ``{"items": ["a", "b"], "k": 5}`` for one session, ``{"sessions": [{"items": ["a", "b"]}, …]}`` for several;
    ``context`` beside ``items`` holds values of the session, ``times`` the seconds of its events, which a model that is
    ``timed`` wants. A stream of Arrow has a column ``items`` of lists, one of ``times``; others are the context.
    ``k`` is that of the address.
    """
    said = parse_content(body, content_type, limits)
    if isinstance(said, pa.Table):
        asked, alone = _of_arrow(said, spec), False
    else:
        check_fields(said, (*_fields(spec), "sessions", "k"))
        k, alone = said.get("k", k), "items" in said
        asked = _of_json(said, spec, limits.max_rows)
    asked.k = min(top(k) or spec.k, max(spec.items, 1))
    if asked.k * asked.rows > ANSWER_ITEMS:
        said = f"{asked.rows} sessions with {asked.k} items each are more than {ANSWER_ITEMS} items"
        raise Refusal(413, said, remedy="Send fewer sessions, or a smaller k")
    return asked, alone


def _fields(spec: RecommendSpec) -> tuple[str, ...]:
    return ("items", "context", *(["times"] if spec.timed else []))


def _times(values: Any, offsets: np.ndarray) -> np.ndarray:
    """Return the times of all events, from a list of them for each session."""
    column = Input("times", "float64")
    flat, lengths = event_parts(column, values)
    wanted = np.diff(offsets)
    if (lengths != wanted).any():
        row = int(np.argmax(lengths != wanted))
        said = f"the session has {wanted[row]} items and {lengths[row]} times"
        raise Refusal(422, said, column="times", row=row, remedy="Send the time of every event, in seconds")
    read = from_values if isinstance(flat, list) else from_arrow
    return _in_session(offsets, lambda: read(column, flat))


def _of_json(said: dict[str, Any], spec: RecommendSpec, max_rows: int) -> AskedSessions:
    if ("items" in said) == ("sessions" in said):
        remedy = 'Send {"items": [1, 2]}, or {"sessions": [{"items": [1, 2]}]}'
        raise Refusal(422, "the body holds neither items nor sessions, or both", remedy=remedy)
    if "items" in said:
        sessions: Any = [{n: said[n] for n in _fields(spec) if n in said}]
    elif "context" in said or "times" in said:
        name = "context" if "context" in said else "times"
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
    lists = [s["items"] for s in sessions]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in lists], dtype=np.int64)]).astype(np.int64)
    items = _ids(list(chain.from_iterable(lists)), spec, offsets)
    times = _times([s.get("times") for s in sessions], offsets) if spec.timed else None
    return AskedSessions(items, offsets, 1, _context([s.get("context") for s in sessions], spec), times)


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
    columns, needed = named_columns(table), ("items", "times") if spec.timed else ("items",)
    absent = next((n for n in needed if n not in columns), None)
    if absent is not None:
        raise Refusal(422, "the column is missing", column=absent)
    lists = columns["items"]
    flat, lengths = event_parts(Input("items", spec.type), lists)
    if lists.null_count:
        raise Refusal(422, "the session has no list", column="items", row=int(np.argmax(lists.is_null())))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    items = _ids(flat, spec, offsets)
    context, times = {}, _times(columns["times"], offsets) if spec.timed else None
    for name in (n for n in columns if n not in needed):
        _check_name(name, spec, None)
        context[name] = _plain(name, columns[name].to_pylist())
    return AskedSessions(items, offsets, 1, context, times)


def _ids(flat: list[Any] | pa.Array, spec: RecommendSpec, offsets: np.ndarray) -> np.ndarray:
    """Return the ids of all events; a number is none where ids are text, though the text of it might be one."""
    given = isinstance(flat, list)
    numbers = [type(v) in (int, float, bool) for v in flat] if given else [is_numeric(flat.type)] * len(flat)
    if spec.type == "string" and True in numbers:
        row, remedy = int(np.searchsorted(offsets, numbers.index(True), side="right")) - 1, 'Send "44", not 44'
        raise Refusal(422, "an id is a number, and ids are text", column="items", row=row, remedy=remedy)
    read = from_values if given else from_arrow
    return _in_session(offsets, lambda: read(Input("items", spec.type), flat))


def _in_session(offsets: np.ndarray, make: Any) -> np.ndarray:
    """Call ``make``; a row that it refuses becomes that of the session."""
    try:
        return make()
    except Refusal as refusal:
        row = None if refusal.row is None else int(np.searchsorted(offsets, refusal.row, side="right")) - 1
        raise Refusal(422, refusal.problem, column=refusal.column, row=row, remedy=refusal.remedy) from None


# What a server that recommends says about itself.

SAYS = "The best items for a session, or for several."


def example(spec: RecommendSpec) -> dict[str, Any]:
    """Make up a body."""
    times = {"times": [1_700_000_000.0, 1_700_000_060.0]} if spec.timed else {}
    return {"items": ["a", "b"] if spec.type == "string" else [1, 2], **times, "k": 5}


def of_sessions(spec: RecommendSpec) -> dict[str, Any]:
    """Describe the bodies of ``/v1/recommend``: one session, or several."""
    kind = {"type": "string" if spec.type == "string" else "integer"}
    items = {"type": "array", "items": kind, "description": "The session's items so far, the last one last."}
    known = {n: {"description": says} for n, says in spec.context.items()}
    context = {"type": "object", "properties": known, "additionalProperties": False}
    own, k = {"items": items, "context": context}, {"type": "integer", "minimum": 1, "default": spec.k}
    if spec.timed:
        own["times"] = {"type": "array", "items": {"type": "number"}, "description": "The events' times, in seconds."}
    required = [n for n in own if n != "context"]
    session = {"type": "object", "additionalProperties": False, "required": required}
    one = {**session, "properties": {**own, "k": k}}
    sessions = {"type": "array", "items": {**session, "properties": own}}
    several = {**session, "required": ["sessions"], "properties": {"sessions": sessions, "k": k}}
    best = {"type": "object", "properties": {"ids": {"type": "array", "items": kind}, "scores": {"type": "array"}}}
    every = {"type": "object", "properties": {"sessions": {"type": "array", "items": best}}}
    return operation({"oneOf": [one, several]}, {"oneOf": [best, every]}, example=example(spec), k=k)


# What answers ``/v1/recommend``: an exported net, a run for next items, a saved recommender.

Best: TypeAlias = "tuple[list[Any], list[float]]"
Answer: TypeAlias = "tuple[list[Best], dict[str, float]]"


class _Model:
    """A loaded model: what is the same for all."""

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
        try:
            for items in (ids[:0], ids[:1], ids):
                times = np.zeros(len(items)) if self.spec.timed else None
                self.recommend(AskedSessions(items, np.array([0, len(items)]), k, times=times))
        except FastrecError:
            if not self.spec.context:  # else it may want some
                raise
        except Exception as error:  # of whatever library
            why = f"it cannot recommend anything ({' '.join(str(error).split())[:300]})"
            raise UnreadableFileError(why, file=self.folder, remedy="Save or export it anew") from error


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
        timed = {"timed": self._graph.timed}
        self.spec = RecommendSpec(about["name"], about["model"]["sha256"], self._graph.type, *sizes, **timed)

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        times = None if asked.times is None else asked.lists(asked.times)
        best = self._graph.recommend(asked.lists(asked.items), asked.k, times)
        return best, {"score": time.perf_counter() - began}


class _ServedRun(_Model):
    # a run for next items with all its models
    items: Vocab

    def __init__(self, folder: Path) -> None:
        self.folder, self._saved = folder, SavedNextItems(folder)
        assert self._saved.blend.items is not None
        self.items = self._saved.blend.items
        name, k = self._saved.config["competition"], self._saved.form.max_items
        sizes, timed = (len(self.items) - 1, k), _reads_times(self._saved.blend)
        self.spec = RecommendSpec(name, _version(folder / "models"), type_of(self.items), *sizes, timed=timed)
        if self._saved.empty.codings:
            why = "its events have side features, which a session of items lacks"
            raise DataError(why, file=folder, remedy="Serve a Recommender, which takes them as context")

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        codes, scores = self._saved.recommend(_frame(asked, self.items), min(asked.k, self.spec.items))
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
        self._empty = None if form is None else SessionFrame.of_form(form, items)
        codings = {} if self._empty is None else self._empty.codings
        self._sides = [n for n, c in codings.items() if c.kind != "vector"]
        context = dict.fromkeys(self._sides, "a side feature of every event of the session")
        if ranker is not None:
            ranks = (f"{n}_{word}" for n in self._shop.retriever.sources for word in ("score", "rank"))
            own = {"session", "item", "sources", *ranks}
            context |= {n: "a column of the ranker" for n in ranker.inputs if n not in own}
        timed = _reads_times(self._shop.retriever)
        self.spec = RecommendSpec("recommender", _version(folder), type_of(items), len(items) - 1, 20, context, timed)

    def recommend(self, asked: AskedSessions) -> Answer:
        sides = {n: asked.context.get(n, [None] * asked.rows) for n in self._sides}
        frame = _frame(asked, self._shop.items, self._empty, sides)
        more = {n: as_column(v, name=n) for n, v in asked.context.items() if n not in sides}
        found = self._shop.recommend(frame, asked.k, context=Table(more) if more else None)
        ids, scores = found["item"].to_arrow().to_pylist(), found["score"].values.tolist()
        ends = torch.bincount(found["session"].values, minlength=asked.rows).cumsum(0).tolist()
        best = [(ids[a:b], scores[a:b]) for a, b in zip([0, *ends], ends)]
        return best, dict(self._shop.seconds)


def _frame(
    asked: AskedSessions, items: Vocab, form: SessionFrame | None = None, sides: dict[str, list[Any]] | None = None
) -> SessionFrame:
    kind = pa.large_string() if type_of(items) == "string" else pa.int64()
    ids = pa.array(asked.items, kind) if len(asked.items) else pa.array([], kind)
    values = items.encode(as_column(ids, name="items")) if len(ids) else torch.zeros(0, dtype=torch.int64)
    made = SessionFrame.of(values, torch.from_numpy(asked.offsets), items)
    made.times = None if asked.times is None else torch.from_numpy(asked.times)
    if form is not None and sides:
        rows = rows_of(made.offsets)
        made.codings = form.codings
        made.sides = {n: form.codings[n].encode(as_column(v, name=n))[rows] for n, v in sides.items()}
    made._keep(values >= len(items.reserved))
    return made


def _reads_times(model: Any) -> bool:
    """Return whether a net in a model, or in its parts, has a bias by time."""
    named = [p for n in ("models", "sources") if isinstance(p := getattr(model, n, None), Mapping)]
    parts = [*(m for own in named for m in own.values()), getattr(model, "model", None)]
    return getattr(model, "timed", False) is True or any(_reads_times(p) for p in parts if p is not None)


def _is_net(folder: Path) -> bool:
    try:
        return json.loads((folder / "serving.json").read_bytes()).get("task") == TASK
    except (OSError, ValueError, AttributeError):
        return False


def _version(folder: Path) -> str:
    return hashlib.sha256(json.dumps(digests_below(folder, but="")).encode()).hexdigest()


class RecommendService(Service):
    """The model that is served, for sessions: a recommender, a run for next items, its export, or a registry of them.

    Requests that wait are answered together, one batch at a time. One version answers all: a canary is refused.
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
    answers: list[dict[str, Any]] = [{"ids": ids, "scores": scores} for ids, scores in best]
    body = write_json(answers[0] if alone else {"sessions": answers})
    timing = ", ".join(f"{stage};dur={1000 * took:.3f}" for stage, took in seconds.items())
    return Response(body, media_type=JSON, headers={"Server-Timing": timing} if timing else None)


async def page(service: RecommendService, call: Call) -> Response:
    """Answer with a page for people."""
    spec: Any = service.scorer.spec
    rows = "".join(f"<tr><td>{escape(n)}<td>{escape(says)}" for n, says in spec.context.items())
    context = f"<h2>Context</h2><table><tr><th>name<th>what it is{rows}</table>" if rows else ""
    return render(service, f"{spec.items:,} items", context, "/v1/recommend", example(spec))
