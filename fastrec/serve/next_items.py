"""Export nets of sessions as one ONNX file: raw item ids → the best items."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.export import Dim

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.next_items import SavedNextItems
from fastrec.errors import DataError, MissingFileError, NotFittedError, check_whole
from fastrec.sequences import NextItemNet, SessionFrame
from fastrec.sequences.reading import has_virtual
from fastrec.sequences.session_learner import item_keys
from fastrec.serve.export import Exported
from fastrec.serve.graph.nets import exported
from fastrec.serve.onnx_builder import ROWS, Graph
from fastrec.serve.session import FILE, cannot, of_an_export, open_session, read_export, write_about
from fastrec.serve.verify import Verified
from fastrec.table import Vocab
from fastrec.table.column import offsets_of
from fastrec.table.keys import is_text

TASK = "next_item"
Lists: TypeAlias = Sequence[Sequence[Any]]  # a list for each session


def export_next_items(
    run: str | Path,
    out: str | Path,
    *,
    model: str | None = None,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Exported:
    """Write a run's net as a graph: sessions of raw item ids → ids of the best items, and their scores.

    Inputs are ``items`` ``[rows, length]`` (ids as in the training files, the last event last; unknown ids and padding
    are ignored), ``k`` ``[1]``, and ``[rows, length]`` for each other column of events: side features by name (unknown
    kinds allowed; numbers as float64) and ``times`` (seconds, float64). Outputs are ``ids`` and ``scores``
    ``[rows, k]``. If there are fewer items, ids are ``serving.json``'s ``missing`` and scores -inf.

    With ``goals`` in the run's settings, each head of its ``GoalNet`` has ``ids_GOAL`` and ``scores_GOAL``. Models
    without a graph (neighbours, trees) are named in ``left_out``; a server of the run directory has them too,
    unless the run has several goals.

    Args:
        run, out, trust, stages: see ``export_run``.
        model: the name of the net in the blend; None: the only one.

    Raises:
        DataError: the run has no net, or several; or ids or kinds of events are neither integers nor text.
        FastrecError: the run cannot be read, or the folder not be written.
    """
    out = Path(out)
    check_replaceable(out, FILE)
    stages = stages or Stages(quiet=True)
    saved = SavedNextItems(run, trust=trust)
    name, net = net_of(saved, model)
    items = net.items
    if has_virtual(items):
        why = f"{name} reads virtual items, which are no ids that a graph could take"
        raise DataError(why, column=items.name or None, remedy="Serve the run directory itself")
    goals = saved.config.get("goals")
    columns = event_inputs(saved.empty, timed=net.model.timed)  # type: ignore[union-attr]
    with stages.stage("graph"):
        graph = _graph(net, items, exclude_seen=saved.exclude_seen, columns=columns, goals=goals)
    lists = {"shape": [ROWS, "length"]}
    about: dict[str, Any] = {
        "format": 1,
        "fastrec": __version__,
        "name": saved.config["competition"],
        "task": TASK,
        "net": {"name": name, **net.settings()},
        "left_out": saved.config.get("left_out", [n for n in saved.blend.models if n != name]),
        "exclude_seen": saved.exclude_seen,
        "goals": goals,
        "items": len(items) - 1,
        "k": saved.form.max_items,
        "inputs": [
            {"name": "items", "type": type_of(items), "missing": missing_of(items), **lists},
            {"name": "k", "type": "int64", "shape": [1]},
            *({**said, **lists} for said in columns),
        ],
        "outputs": [
            {"name": "_".join((n, *goal)), "type": kind, "shape": [ROWS, "k"]}
            for goal in (zip(goals) if goals else [()])
            for n, kind in (("ids", type_of(items)), ("scores", "float32"))
        ],
    }
    with atomic_folder(out) as part, stages.stage("write"):
        graph.export(part, about)
        write_about(part, about)
    return Exported(out, about)


class SessionScores(nn.Module):
    """A trained ``NextItemNet`` as a module: codes int64 ``[n, length]`` → scores float32 ``[n, codes]``.

    Codes are in the order of the events, 0 is padding. Side features ``[n, length]`` follow (codes int64, numbers
    float64), then times, float64. Code 0 scores -inf, and a session's own items if ``exclude_seen``. ``heads`` names
    the goals of a ``GoalNet`` to score; empty: its own goal.
    """

    def __init__(self, model: NextItemNet, *, exclude_seen: bool = False, heads: Iterable[str] = ()) -> None:
        super().__init__()
        if model.model is None:
            raise NotFittedError("the net has not been trained", remedy="Call fit first")
        # a copy: the trained net stays on its device and in its mode
        self.net = copy.deepcopy(model.model).cpu().eval()
        known = model.settings().get("goals", [])
        self.heads = [known.index(h) for h in heads or (known and [model.settings()["goal"]])] or [None]
        self.reads, self.exclude_seen = self.net.reads, exclude_seen
        self.register_buffer("keys", item_keys(self.net))
        self.register_buffer("popular", (model.counts / model.counts.max().clamp_min(1.0)).float())

    def forward(self, *read: Tensor) -> tuple[Tensor, ...]:
        """Compute scores of all codes, of each head."""
        codes, *columns = read
        there = codes > 0
        events = there.long()
        count = events.sum(1)
        # the last events that the net reads move to the left, int64 [n, reads]; others go behind the end
        place = events.cumsum(1) - 1 - (count - self.reads).clamp_min(0).unsqueeze(1)
        place = torch.where(there & (place >= 0), place, self.reads)
        room = (codes.shape[0], self.reads + 1)
        for i, coding in enumerate(self.net.codings):
            columns[i] = columns[i] if coding.vocab is not None else coding.standard(columns[i])
        packed, *at = (v.new_zeros(room).scatter(1, place, v)[:, : self.reads] for v in (codes, *columns))
        lengths, found = count.clamp_max(self.reads), []
        hidden = self.net.last(packed, lengths, *at)
        for head in self.heads:
            scores = self.net.query(hidden, head) @ self.keys
            # an empty session gets popular items, as in the run
            scores = torch.where((lengths == 0).unsqueeze(1), self.popular, scores)
            scores = torch.cat([torch.full_like(scores[:, :1], -torch.inf), scores[:, 1:]], 1)
            found.append(scores.scatter(1, codes, -torch.inf) if self.exclude_seen else scores)
        return tuple(found)


def event_inputs(form: SessionFrame, *, timed: bool) -> list[dict[str, Any]]:
    """Describe the columns of events beside the items, for ``serving.json``: side features, then times.

    A side feature is refused if its type or its name cannot be an input.
    """
    found: list[dict[str, Any]] = []
    for name, coding in form.codings.items():
        if coding.kind == "vector" or name in ("items", "k", "times", "sessions", "context", "ids", "scores"):
            why = "vectors" if coding.kind == "vector" else "that name, which the graph has for something else"
            remedy = "Rename it, or train without it"
            raise DataError(f"no session can send a side feature of {why}", column=name, remedy=remedy)
        if coding.vocab is not None:
            kinds = {"type": type_of(coding.vocab), "missing": missing_of(coding.vocab)}
            found.append({"name": name, **kinds, "known": coding.vocab.values.slice(0, 100).to_pylist()})
        else:
            found.append({"name": name, "type": "float64"})
    return found + ([{"name": "times", "type": "float64"}] if timed else [])


def net_of(saved: SavedNextItems, name: str | None = None) -> tuple[str, NextItemNet]:
    """Return a run's net and its name; refuse a name that is none, and no name where there are several."""
    nets = {n: m for n, m in saved.blend.models.items() if isinstance(m, NextItemNet)}
    if name is None and len(nets) == 1:
        name = next(iter(nets))
    if name is None or name not in nets:
        has = f"its models are {', '.join(saved.config['models'])}"
        if name is None and not nets:
            raise DataError(f"the run has no net: {has}", file=saved.folder, remedy="Add one, or serve the run itself")
        which = "and --model names none" if name is None else f"none is {name!r}"
        why = f"the run has {len(nets)} nets, {which}: {has}"
        raise DataError(why, file=saved.folder, remedy=f"Name one of {', '.join(nets)}")
    return name, nets[name]


def type_of(items: Vocab) -> str:
    """Return the type of items' ids in a graph; refuse ids that are neither integers nor text."""
    kind = items.values.type
    if is_text(kind):
        return "string"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "int64"
    why = f"its values are of type {kind}, neither integers nor text"
    raise DataError(why, column=items.name or None, remedy="Make them text")


def missing_of(items: Vocab) -> str | int:
    """Choose a value for no item that is no item's id."""
    known = items.values
    if type_of(items) == "int64":
        taken = set(known.slice(0, 10).to_pylist())  # values are sorted: these are the smallest
        return next(v for v in range(-(2**63), -(2**63) + 20) if v not in taken)
    texts = set(known.to_pylist())
    return next(t for t in ("", *(f"#{'na' * i}#" for i in range(1, 9))) if t not in texts)


_DTYPES = {"string": object, "int64": np.int64, "float64": np.float64}


def _graph(
    net: NextItemNet, items: Vocab, *, exclude_seen: bool, columns: Sequence[Any] = (), goals: Any = None
) -> Graph:
    graph, dtype, goals = Graph(), _DTYPES[type_of(items)], goals or {}
    ids = np.array([missing_of(items), *items.values.to_pylist()], dtype=dtype)
    module = SessionScores(net, exclude_seen=exclude_seen, heads=goals.values()).eval()
    given = graph.input("items", dtype, (ROWS, "length"))
    k = graph.input("k", np.int64, (1,))
    feeds = [graph.lookup(given, ids[1:], np.arange(1, len(ids)))]
    examples = [torch.ones((3, 2), dtype=torch.int64)]
    for said, coding in zip_longest(columns, module.net.codings):
        feeds.append(graph.input(said["name"], _DTYPES[said["type"]], (ROWS, "length")))
        vocab = None if coding is None else coding.vocab  # None: numbers, or times
        if vocab is not None:
            keys, codes = vocab.values.to_pylist(), np.arange(len(vocab.reserved), len(vocab))
            feeds[-1] = graph.lookup(feeds[-1], np.array(keys, _DTYPES[said["type"]]), codes)
        examples.append(torch.ones((3, 2), dtype=torch.float64 if vocab is None else torch.int64))
    free = {0: Dim("sessions"), 1: Dim("length")}
    proto = exported(module, tuple(examples), shapes=((free,) * len(examples),))
    # TopK fails if there are fewer items than k
    most = graph.op("Min", k, graph.constant(np.array([len(items)], np.int64)))
    for goal, scores in zip(zip(goals) if goals else [()], graph.merge(proto, feeds), strict=True):
        best, places = graph.op("TopK", scores, most, outputs=2, axis=1, largest=1, sorted=1)
        there = graph.op("Greater", best, graph.constant(np.array([-np.inf], np.float32)))
        shown = graph.op("Where", there, graph.op("Gather", graph.constant(ids), places), graph.constant(ids[:1]))
        graph.output("_".join(("ids", *goal)), shown, dtype, "k")
        graph.output("_".join(("scores", *goal)), best, np.float32, "k")
    return graph


class NextItemGraph:
    """An export of a run for next items.

    Args:
        folder: an export of ``export_next_items``.
        threads, device: see ``Scorer``.

    Attributes:
        columns: descriptions of the other columns of events that the graph reads, by name (see ``serving.json``).
        goals: the goals of a run for several goals.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or damaged.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, device: str = "cpu") -> None:
        self.folder, self.about = Path(folder), read_export(folder)
        with of_an_export(folder):
            kinds = [i["type"] for i in self.about["inputs"]]
            if self.about["task"] != TASK or kinds[0] not in ("int64", "string"):
                raise ValueError(f"task {self.about['task']!r}, inputs {kinds}")
            self.type: str = kinds[0]
            self.missing = self.about["inputs"][0]["missing"]
            self.columns = {i["name"]: i for i in self.about["inputs"] if i["name"] not in ("items", "k")}
        self.goals = list(self.about.get("goals") or ())
        path = self.folder / self.about["model"]["file"]
        self._session = open_session(path, threads=threads, device=device)
        with cannot("onnxruntime cannot use it", path):  # a damaged graph fails here and not at the first request
            self.recommend([[]], 1, sides={n: [[]] for n in self.columns})

    def recommend(
        self, sessions: Lists, k: int, times: Lists | None = None, *, sides: Mapping[str, Lists] | None = None
    ) -> list[Any]:
        """Recommend the best items of each session.

        Args:
            sessions: ids of items, the last event last; unknown ones are ignored.
            k: the largest number of items.
            times: seconds of the same events, if ``columns`` has them.
            sides: name → values of the same events, such as their kinds; None if unknown.

        Returns:
            For each session ids, the best first, and their scores; with ``goals`` a dict of such pairs.

        Raises:
            DataError: a column of events is absent, incomplete, or of another type.
        """
        check_whole("recommend", k=k)
        given = {**({} if times is None else {"times": times}), **(sides or {})}
        lengths = np.array([len(s) for s in sessions], np.int64)
        order = np.argsort(lengths, kind="stable")
        best: list[Any] = [None] * len(sessions)
        step = max(1, limits.NEXT_ITEM_CELLS // max(int(self.about["items"]) * max(len(self.goals), 1), 1))
        at = 0
        while at < len(order):  # sessions of similar length together, few enough for the memory
            rows = order[at : at + step]
            fits = max(1, int(np.searchsorted(lengths[rows] * np.arange(1, len(rows) + 1), limits.NEXT_ITEM_CELLS)))
            rows = rows[:fits]
            own = {n: [values[i] for i in rows if i < len(values)] for n, values in given.items()}
            found = self.run([sessions[i] for i in rows], k, sides=own)
            shown = (found[1] > -np.inf).sum(1)  # the same for all goals
            of_goals = [list(zip(ids, scores, shown)) for ids, scores in zip(found[::2], found[1::2])]
            for i, *parts in zip(rows, *of_goals, strict=True):
                pairs = [(ids[:n].tolist(), scores[:n].tolist()) for ids, scores, n in parts]
                best[i] = dict(zip(self.goals, pairs, strict=True)) if self.goals else pairs[0]
            at += len(rows)
        return best

    def run(self, sessions: Lists, k: int, times: Any = None, *, sides: Any = None) -> list[Any]:
        """Run the graph on what ``recommend`` takes: ids and float32 scores, ``[sessions, k]``, of each goal."""
        lengths, given = [*map(len, sessions)], {**({} if times is None else {"times": times}), **(sides or {})}
        shape = len(sessions), max(1, *lengths)
        items = np.full(shape, self.missing, _DTYPES[self.type])
        for row, ids in zip(items, sessions, strict=True):
            row[: len(ids)] = ids
        feeds = {"items": items, "k": np.array([k], np.int64)}
        for name, said in self.columns.items():
            if [*map(len, given.get(name, ()))] != lengths:
                remedy = f"Give {'times=…' if name == 'times' else f'sides={{{name!r}: …}}'}, a value for every event"
                raise DataError(f"the net reads {name}, and they are not given for every event", remedy=remedy)
            try:
                flat = pa.array(list(chain.from_iterable(given[name])), getattr(pa, said["type"])())
            except (pa.ArrowException, TypeError, OverflowError) as error:
                why = f"its values are no {said['type']} ({str(error).splitlines()[0]})"
                raise DataError(why, column=name, remedy="Give them as the training files have them") from error
            missing, there = said.get("missing", np.nan), np.arange(shape[1]) < np.array(lengths)[:, None]
            feeds[name] = np.full(shape, missing, _DTYPES[said["type"]])
            feeds[name][there] = flat.fill_null(missing).to_numpy(zero_copy_only=False)
        return self._session.run([o["name"] for o in self.about["outputs"]], feeds)


def verify_next_items(
    folder: str | Path,
    run: str | Path,
    data: str | Path | None = None,
    *,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Verified:
    """Recommend by an exported graph and by the net of its run, and compare; a long and an empty session are added.

    Args:
        folder, run, data, trust, stages: as ``verify_export`` takes them, with sessions for rows.

    Returns:
        ``lists`` counts the sessions with items in another order; items whose scores differ by less than the
        limit may change places.

    Raises:
        FastrecError: something is not there, or cannot be read.
    """
    stages = stages or Stages(quiet=True)
    graph, saved = NextItemGraph(folder), SavedNextItems(run, trust=trust)
    net = net_of(saved, graph.about["net"]["name"])[1]
    path = saved.folder / "sample.parquet"
    if data is not None:
        sessions = saved.read(data)
    elif path.is_file():
        table = pq.read_table(path)
        order = [n for n in saved.empty.columns["order"] if n in table.column_names]
        columns = {**saved.empty.columns, "item": saved.form.items, "session": None, "order": order}
        form = {**saved.empty.form(), "columns": columns, "timed_by": None}
        sessions = SessionFrame.of_form(form, saved.empty.items).new(table)
    else:
        raise MissingFileError("the run does not hold it", file=path, remedy="Give the data, or run the recipe again")
    # first a long session with every item and every kind, an empty one, and one of a single event
    every = torch.arange(1, len(sessions.items)).repeat(2)[-1_000:]
    more, known = torch.arange(len(every) + 1), sessions
    lengths = torch.cat([torch.tensor([len(every), 0, 1]), known.lengths])
    sessions = SessionFrame.of(torch.cat([every, every[:1], known.values]), offsets_of(lengths), known.items)
    sessions.codings = known.codings
    for name, coding in known.codings.items():
        odd = more % 7 - 3.0 if coding.vocab is None else more % len(coding.vocab)
        sessions.sides[name] = torch.cat([odd.to(known.sides[name].dtype), known.sides[name]])
    if known.times is not None:
        sessions.times = torch.cat([more * 60.0, known.times])
    k, wanted = saved.form.max_items, []
    for model in [net.of(head) for head in graph.about["goals"].values()] if graph.goals else [net]:
        items, scores = model.recommend(sessions, k, saved.exclude_seen)
        ids = [v if v is not None else graph.missing for v in sessions.decode(items).to_pylist()]
        wanted.append((np.array(ids, _DTYPES[graph.type]).reshape(-1, k), scores.numpy()))
    events = {"items": sessions.decode(sessions.values)}
    events |= {"times": pa.array(sessions.inputs(True)[-1].numpy())} if "times" in graph.columns else {}
    events |= {n: c.decode(sessions.sides[n]) for n, c in sessions.codings.items()}
    sides = {n: [v[a:b].to_pylist() for a, b in pairwise(sessions.offsets.tolist())] for n, v in events.items()}
    lists = sides.pop("items")
    differences, others, at = [], 0, 0
    with stages.stage("verify", len(sessions), unit="sessions") as advance:
        while at < len(lists):
            end = at + (1, 7, 1_024)[min(len(differences), 2)]  # batches of several sizes
            made = graph.run(lists[at:end], k, sides={n: v[at:end] for n, v in sides.items()})
            right = [tuple(part[at:end] for part in pair) for pair in wanted]
            found = [_compared(pair, own) for pair, own in zip(zip(made[::2], made[1::2]), right, strict=True)]
            differences.append(np.max([apart for apart, _ in found], 0))
            others += sum(other for _, other in found)
            advance(len(differences[-1]))
            at = end
    every = np.concatenate(differences)
    return Verified(len(lists), float(every.max()), int(every.argmax()), others)


def _compared(recommended: tuple[Any, Any], wanted: tuple[Any, Any]) -> tuple[np.ndarray, int]:
    """Compute each session's largest relative difference of scores, and count sessions in another order."""
    ids, scores = recommended
    right_ids, right = wanted
    right_ids, right = right_ids[:, : ids.shape[1]], right[:, : ids.shape[1]]
    there = right > -np.inf
    size = np.where(there, np.maximum(np.abs(right), 1.0), 1.0)
    with np.errstate(invalid="ignore"):
        apart = np.where(there, np.abs(scores - right) / size, np.where(scores > -np.inf, np.inf, 0.0))
        close = np.abs(np.diff(right, axis=1, prepend=np.inf)) <= 2 * limits.VERIFY_DIFFERENCE * size
    # among equal scores the lower code is first in both; among nearly equal ones rounding decides
    near = close.copy()
    near[:, :-1] |= close[:, 1:]
    near[:, -1] = True  # the next item after the last is unknown
    return apart.max(1, initial=0.0), int((((ids != right_ids) & ~near).any(1)).sum())
