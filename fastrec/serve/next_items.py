"""Export nets of sessions as one ONNX file: raw item ids → the best items."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.export import Dim

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable, is_plain_name
from fastrec._core.progress import Stages
from fastrec._version import __version__
from fastrec.competition.next_items import SavedNextItems
from fastrec.errors import DataError, MissingFileError, NotFittedError, UnreadableFileError
from fastrec.sequences import NextItemNet, SessionFrame
from fastrec.sequences.reading import has_virtual
from fastrec.sequences.session_learner import item_keys
from fastrec.serve.export import Exported
from fastrec.serve.graph.nets import exported
from fastrec.serve.onnx_builder import ROWS, Graph
from fastrec.serve.session import FILE, check_hash, open_session, read_about, write_about
from fastrec.serve.verify import Verified
from fastrec.table import Vocab
from fastrec.table.column import offsets_of
from fastrec.table.keys import is_text

TASK = "next_item"


def export_next_items(
    run: str | Path,
    out: str | Path,
    *,
    model: str | None = None,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Exported:
    """Write a run's net as a graph: sessions of raw item ids → ids of the best items, and their scores.

    The graph's inputs are ``items`` ``[rows, length]`` (ids as in the training files, the last event last; what is no
    known item, such as the filling of short sessions, is passed over), ``k`` ``[1]`` and, of a net that reads times,
    ``times`` ``[rows, length]``, seconds as float64; its outputs ``ids`` and ``scores``, ``[rows, k]``. Where there are
    fewer items, ids are ``serving.json``'s ``missing`` and scores -inf.

    Other models of the run's blend (neighbours, trees) have no form in a graph: ``left_out`` names them. A server of
    the run directory itself has them all.

    Args:
        run, out, trust, stages: as ``export_run`` takes them.
        model: the name of the net in the blend; None: the only one.

    Raises:
        DataError: the run has no net, or several; or the items' ids are neither integers nor text.
        FastrecError: the run cannot be read, or the folder not be written.
    """
    out = Path(out)
    check_replaceable(out, FILE)
    stages = stages or Stages(quiet=True)
    saved = SavedNextItems(run, trust=trust)
    name, net = net_of(saved, model)
    items = net.items
    assert items is not None
    if has_virtual(items):
        why = f"{name} reads virtual items, which are no ids that a graph could take"
        raise DataError(why, column=items.name or None, remedy="Serve the run directory itself")
    with stages.stage("graph"):
        graph = _graph(net, items, exclude_seen=saved.exclude_seen)
    missing = missing_of(items)
    about: dict[str, Any] = {
        "format": 1,
        "fastrec": __version__,
        "name": saved.config["competition"],
        "task": TASK,
        "net": {"name": name, **net.settings()},
        "left_out": [n for n in saved.blend.models if n != name],
        "exclude_seen": saved.exclude_seen,
        "items": len(items) - 1,
        "k": saved.form.max_items,
        "inputs": [
            {"name": "items", "type": type_of(items), "shape": [ROWS, "length"], "missing": missing},
            {"name": "k", "type": "int64", "shape": [1]},
            *([{"name": "times", "type": "float64", "shape": [ROWS, "length"]}] if _timed(net) else []),
        ],
        "outputs": [
            {"name": "ids", "type": type_of(items), "shape": [ROWS, "k"]},
            {"name": "scores", "type": "float32", "shape": [ROWS, "k"]},
        ],
    }
    with atomic_folder(out) as part, stages.stage("write"):
        graph.export(part, about)
        write_about(part, about)
    return Exported(out, about)


class SessionScores(nn.Module):
    """A trained ``NextItemNet`` as a module: codes int64 ``[n, length]`` → scores float32 ``[n, codes]``.

    Codes are in the order of the events; 0 is no event, at any place. A net that reads times takes them after the
    codes, float64 ``[n, length]``. Code 0 scores -inf, with ``exclude_seen`` a session's own items too.
    """

    def __init__(self, model: NextItemNet, *, exclude_seen: bool = False) -> None:
        super().__init__()
        if model.model is None:
            raise NotFittedError("the net has not been trained", remedy="Call fit first")
        if model.model.codings:
            raise DataError("the net reads side features of events", remedy="Export a net that reads items alone")
        # a copy: the trained net stays on its device and in its mode
        self.net = copy.deepcopy(model.model).cpu().eval()
        self.reads, self.exclude_seen = self.net.reads, exclude_seen
        self.register_buffer("keys", item_keys(self.net))
        self.register_buffer("popular", (model.counts / model.counts.max().clamp_min(1.0)).float())

    def forward(self, codes: Tensor, times: Tensor | None = None) -> Tensor:
        """Compute scores of all codes."""
        there = codes > 0
        events = there.long()
        count = events.sum(1)
        # the last events that the net reads move to the left, int64 [n, reads]; what is not read goes behind the end
        place = events.cumsum(1) - 1 - (count - self.reads).clamp_min(0).unsqueeze(1)
        place = torch.where(there & (place >= 0), place, self.reads)
        room = (codes.shape[0], self.reads + 1)
        read = [codes] if times is None else [codes, times]
        packed, *at = (v.new_zeros(room).scatter(1, place, v)[:, : self.reads] for v in read)
        lengths = count.clamp_max(self.reads)
        scores = self.net.query(self.net.last(packed, lengths, *at)) @ self.keys
        # an empty session gets popular items, as in the run
        scores = torch.where((lengths == 0).unsqueeze(1), self.popular, scores)
        scores = torch.cat([torch.full_like(scores[:, :1], -torch.inf), scores[:, 1:]], 1)
        return scores.scatter(1, codes, -torch.inf) if self.exclude_seen else scores


def _timed(net: NextItemNet) -> bool:
    return net.model is not None and net.model.timed


def net_of(saved: SavedNextItems, name: str | None = None) -> tuple[str, NextItemNet]:
    """Return a run's net and its name; refuse a name that is none, and no name where there are several."""
    nets = {n: m for n, m in saved.blend.models.items() if isinstance(m, NextItemNet)}
    if name is None and len(nets) == 1:
        name = next(iter(nets))
    if name is None or name not in nets:
        has = f"its models are {', '.join(saved.blend.models)}"
        if name is None and not nets:
            raise DataError(f"the run has no net: {has}", file=saved.folder, remedy="Serve the run directory itself")
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
    raise DataError(f"items are of type {kind}, neither integers nor text", column=items.name or None)


def missing_of(items: Vocab) -> str | int:
    """Choose a value for no item that is no item's id."""
    known = items.values
    if type_of(items) == "int64":
        taken = set(known.slice(0, 10).to_pylist())  # values are sorted: these are the smallest
        return next(v for v in range(-(2**63), -(2**63) + 20) if v not in taken)
    texts = set(known.to_pylist())
    return next(t for t in ("", *(f"#{'na' * i}#" for i in range(1, 9))) if t not in texts)


def _graph(net: NextItemNet, items: Vocab, *, exclude_seen: bool) -> Graph:
    graph, kind, missing = Graph(), type_of(items), missing_of(items)
    dtype = object if kind == "string" else np.int64
    ids = np.array([missing, *items.values.to_pylist()], dtype=dtype)
    given = graph.input("items", dtype, (ROWS, "length"))
    k = graph.input("k", np.int64, (1,))
    codes = graph.lookup(given, ids[1:], np.arange(1, len(ids)))
    times = [graph.input("times", np.float64, (ROWS, "length"))] if _timed(net) else []
    examples = (torch.ones((3, 2), dtype=torch.int64), *(torch.ones((3, 2), dtype=torch.float64) for _ in times))
    module = SessionScores(net, exclude_seen=exclude_seen).eval()
    free = {0: Dim("sessions"), 1: Dim("length")}
    proto = exported(module, examples, shapes=(free, free)[: len(examples)])
    scores = graph.merge(proto, [codes, *times])[0]
    # TopK fails if there are fewer items than k
    most = graph.op("Min", k, graph.constant(np.array([len(items)], np.int64)))
    best, places = graph.op("TopK", scores, most, outputs=2, axis=1, largest=1, sorted=1)
    there = graph.op("Greater", best, graph.constant(np.array([-np.inf], np.float32)))
    items_of_places = graph.op("Gather", graph.constant(ids), places)
    graph.output("ids", graph.op("Where", there, items_of_places, graph.constant(ids[:1])), dtype, "k")
    graph.output("scores", best, np.float32, "k")
    return graph


class NextItemGraph:
    """An export of a run for next items.

    Args:
        folder: what ``export_next_items`` wrote.
        threads, device: as ``Scorer`` takes them.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or damaged.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1, device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.about = read_next_items(folder)
        self.type: str = self.about["inputs"][0]["type"]
        self.missing = self.about["inputs"][0]["missing"]
        self.timed = any(i["name"] == "times" for i in self.about["inputs"])
        path = self.folder / self.about["model"]["file"]
        self._session = open_session(path, threads=threads, device=device)
        try:
            # a first call: a damaged graph fails here and not at the first request
            self.recommend([[]], 1, [[]] if self.timed else None)
        except Exception as error:  # onnxruntime's errors have no common class
            why = f"onnxruntime cannot use it ({' '.join(str(error).split())[:300]})"
            raise UnreadableFileError(why, file=path, remedy="Export the run anew") from error

    def recommend(
        self, sessions: Sequence[Sequence[Any]], k: int, times: Sequence[Sequence[float]] | None = None
    ) -> list[tuple[list[Any], list[float]]]:
        """Recommend the best items of each session.

        Args:
            sessions: ids of items, the last event last; unknown ones are ignored.
            k: at most so many.
            times: of the same events, in seconds, if ``timed``; else None.

        Returns:
            For each session ids, the best first, and their scores.

        Raises:
            DataError: the graph reads times and none are given, or not one for each event.
        """
        if self.timed and (times is None or [*map(len, times)] != [*map(len, sessions)]):
            raise DataError("the net reads times", remedy="Give the time of every event, in seconds (times=…)")
        lengths = np.array([len(s) for s in sessions], np.int64)
        order = np.argsort(lengths, kind="stable")
        best: list[Any] = [None] * len(sessions)
        step = max(1, limits.NEXT_ITEM_CELLS // max(int(self.about["items"]), 1))
        at = 0
        while at < len(order):  # sessions of similar length together, few enough for the memory
            rows = order[at : at + step]
            fits = max(1, int(np.searchsorted(lengths[rows] * np.arange(1, len(rows) + 1), limits.NEXT_ITEM_CELLS)))
            rows = rows[:fits]
            own = None if times is None else [times[i] for i in rows]
            ids, scores = self.run([sessions[i] for i in rows], k, own)
            shown = (scores > -np.inf).sum(1)
            for i, items, values, n in zip(rows, ids, scores, shown, strict=True):
                best[i] = items[:n].tolist(), values[:n].tolist()
            at += len(rows)
        return best

    def run(
        self, sessions: Sequence[Sequence[Any]], k: int, times: Sequence[Sequence[float]] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the graph: ids and float32 scores, ``[sessions, k]``."""
        shape = (len(sessions), max(1, *map(len, sessions)))
        given = {"items": np.full(shape, self.missing, object if self.type == "string" else np.int64)}
        given |= {"times": np.zeros(shape)} if self.timed else {}
        for rows, lists in zip(given.values(), (sessions, times), strict=False):
            for row, values in zip(rows, lists or (), strict=True):
                row[: len(values)] = values
        return tuple(self._session.run(["ids", "scores"], {**given, "k": np.array([k], np.int64)}))


def read_next_items(folder: str | Path) -> dict[str, Any]:
    """Read ``serving.json`` of an export for next items, and check that the graph is the one that it describes."""
    about = read_about(folder)
    try:
        kinds = [i["type"] for i in about["inputs"]]
        name, sha = about["model"]["file"], about["model"]["sha256"]
        known = about["format"] == 1 and about["task"] == TASK and kinds[0] in ("int64", "string")
        if not (known and is_plain_name(name) and "missing" in about["inputs"][0]):
            raise ValueError(f"format {about['format']!r}, task {about['task']!r}, inputs {kinds}")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        why = f"its form is not that of an export ({error})"
        raise UnreadableFileError(why, file=Path(folder) / FILE, remedy="Export the run anew") from error
    check_hash(Path(folder) / name, sha)
    return about


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
        sessions = SessionFrame(table, item=saved.form.items, order=order, items=saved.blend.items)
    else:
        raise MissingFileError("the run does not hold it", file=path, remedy="Give the data, or run the recipe again")
    # first a long session with every item, an empty one, and one of a single event
    every = torch.arange(1, len(sessions.items)).repeat(2)[-1_000:]
    lengths = torch.cat([torch.tensor([len(every), 0, 1]), sessions.lengths])
    times = sessions.times
    sessions = SessionFrame.of(torch.cat([every, every[:1], sessions.values]), offsets_of(lengths), sessions.items)
    if times is not None:
        sessions.times = torch.cat([torch.arange(len(every) + 1) * 60.0, times])
    k = saved.form.max_items
    items, scores = net.recommend(sessions, k, saved.exclude_seen)
    wanted = [v if v is not None else graph.missing for v in sessions.decode(items).to_pylist()]
    lists = [sessions.decode(v).to_pylist() for v in sessions.values.split(sessions.lengths.tolist())]
    at_times = [v.tolist() for v in sessions.inputs(True)[-1].split(sessions.lengths.tolist())] if graph.timed else None
    differences, others, at = [], 0, 0
    with stages.stage("verify", len(sessions), unit="sessions") as advance:
        while at < len(lists):
            end = at + (1, 7, 1_024)[min(len(differences), 2)]  # batches of several sizes
            recommended = graph.run(lists[at:end], k, None if at_times is None else at_times[at:end])
            ids = np.array(wanted[at * k : end * k], dtype=recommended[0].dtype).reshape(-1, k)
            difference, other = _compared(recommended, (ids, scores[at:end].numpy()))
            differences.append(difference)
            others += other
            advance(len(difference))
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
