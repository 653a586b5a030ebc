"""What answers ``/v1/recommend``: an exported net, a run for next items, a saved recommender."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import torch

from fastrec._core.file_digests import digests_below
from fastrec.competition.next_items.predict import SavedNextItems, is_next_item_run
from fastrec.competition.predict import SavedRun
from fastrec.errors import DataError, FastrecError, UnreadableFileError
from fastrec.registry import is_registry
from fastrec.retrieval import Recommender
from fastrec.retrieval.pipeline.saving import ABOUT, RANKER
from fastrec.sequences import SessionFrame
from fastrec.serve.next_items.export import TASK, type_of
from fastrec.serve.next_items.graph import NextItemGraph
from fastrec.serve.server.recommend.asked import AskedSessions, RecommendSpec, joined
from fastrec.serve.server.refusal import Refusal
from fastrec.serve.server.versions import Source
from fastrec.table import Table, Vocab, as_column
from fastrec.table.offsets import rows_of

__all__ = ["Answer", "RecommendModel", "open_model", "recommends"]

Best: TypeAlias = "tuple[list[Any], list[float]]"
Answer: TypeAlias = "tuple[list[Best], dict[str, float]]"


class RecommendModel(Protocol):
    """A loaded model. ``score_all`` is what ``Batcher`` calls."""

    folder: Path
    spec: RecommendSpec

    def recommend(self, asked: AskedSessions) -> Answer:
        """For each session ids and scores, the best first; and the seconds of each stage."""


class _Model:
    """What is the same for all."""

    folder: Path
    spec: RecommendSpec
    version: int | None = None  # its number in a registry
    events: None = None

    @property
    def label(self) -> str:
        return self.spec.version[:12] if self.version is None else str(self.version)

    def recommend(self, asked: AskedSessions) -> Answer:
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

    def some_items(self) -> list[Any]:
        """Return a few known ids, if a session of some costs more the first time than one of none."""
        return []

    def warm(self) -> None:
        known = self.some_items()
        ids = np.array(known, object if self.spec.type == "string" else np.int64)
        k = min(self.spec.k, max(self.spec.items, 1))
        try:
            for items in (ids[:0], ids[:1], ids):
                self.recommend(AskedSessions(items, np.array([0, len(items)]), k))
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
    """Load a folder's model.

    Raises:
        FastrecError: it cannot be read.
    """
    folder = Path(folder)
    if (folder / ABOUT).is_file():
        return _ServedRecommender(folder)
    return _ServedNet(folder, threads, device) if _is_net(folder) else _ServedRun(folder)


class _ServedNet(_Model):
    """An exported net."""

    def __init__(self, folder: Path, threads: int, device: str) -> None:
        self.folder, self._graph = folder, NextItemGraph(folder, threads=threads, device=device)
        about = self._graph.about
        self.spec = RecommendSpec(
            about["name"], about["model"]["sha256"], self._graph.type, int(about["items"]), int(about["k"])
        )

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        best = self._graph.recommend(asked.lists(), asked.k)
        return best, {"score": time.perf_counter() - began}


class _ServedRun(_Model):
    """A run for next items with all its models."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._saved = folder, SavedNextItems(folder)
        self._items = self._saved.blend.items
        assert self._items is not None
        self.spec = RecommendSpec(
            self._saved.config["competition"], _version(folder / "models"), type_of(self._items),
            len(self._items) - 1, self._saved.form.max_items,
        )  # fmt: skip
        if self._saved.empty.codings:
            raise DataError(
                "its events have side features, which a session of items lacks", file=folder,
                remedy="Serve a Recommender, which takes them as context",
            )  # fmt: skip

    def recommend(self, asked: AskedSessions) -> Answer:
        began = time.perf_counter()
        assert self._items is not None
        codes, scores = self._saved.recommend(_frame(asked, self._items), min(asked.k, self.spec.items))
        ids = self._items.decode(codes.reshape(-1)).to_pylist()
        width, best = codes.shape[1], []
        for i, row in enumerate(scores.tolist()):
            n = int((codes[i] > 0).sum())
            best.append((ids[i * width : i * width + n], row[:n]))
        return best, {"score": time.perf_counter() - began}

    def some_items(self) -> list[Any]:
        assert self._items is not None
        return self._items.values.slice(0, 3).to_pylist()


class _ServedRecommender(_Model):
    """A saved recommender."""

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        ranker = SavedRun(folder / RANKER) if about.get("ranker") == "run" else None
        self.folder, self._shop = folder, Recommender.load(folder, ranker=ranker)
        items = self._shop.items
        form = self._shop.form
        self._empty = None if form is None else SessionFrame.of_form(form, items)
        codings = {} if self._empty is None else self._empty.codings
        self._sides = [n for n, c in codings.items() if c.kind != "vector"]
        context = dict.fromkeys(self._sides, "a side feature of every event of the session")
        if ranker is not None:
            own = {"session", "item", "sources", *(f"{n}_{w}" for n in self._shop.retriever.sources for w in _WORDS)}
            context |= {n: "a column of the ranker" for n in ranker.inputs if n not in own}
        self.spec = RecommendSpec("recommender", _version(folder), type_of(items), len(items) - 1, 20, context)

    def recommend(self, asked: AskedSessions) -> Answer:
        sides = {n: asked.context.get(n, [None] * asked.rows) for n in self._sides}
        frame = _frame(asked, self._shop.items, self._empty, sides)
        more = {n: as_column(v, name=n) for n, v in asked.context.items() if n not in sides}
        found = self._shop.recommend(frame, asked.k, context=Table(more) if more else None)
        ids, scores = found["item"].to_arrow().to_pylist(), found["score"].values.tolist()
        ends = torch.bincount(found["session"].values, minlength=asked.rows).cumsum(0).tolist()
        starts = [0, *ends]
        best = [(ids[a:b], scores[a:b]) for a, b in zip(starts, ends)]
        return best, dict(self._shop.seconds)

    def some_items(self) -> list[Any]:
        return self._shop.items.values.slice(0, 3).to_pylist()


_WORDS = ("score", "rank")


def _frame(
    asked: AskedSessions, items: Vocab, form: SessionFrame | None = None, sides: dict[str, list[Any]] | None = None
) -> SessionFrame:
    kind = pa.large_string() if type_of(items) == "string" else pa.int64()
    ids = pa.array(asked.items, kind) if len(asked.items) else pa.array([], kind)
    values = items.encode(as_column(ids, name="items")) if len(ids) else torch.zeros(0, dtype=torch.int64)
    made = SessionFrame.of(values, torch.from_numpy(asked.offsets), items)
    if form is not None and sides:
        rows = rows_of(made.offsets)
        made.codings = form.codings
        made.sides = {n: form.codings[n].encode(as_column(v, name=n))[rows] for n, v in sides.items()}
    made._keep(values >= len(items.reserved))
    return made


def _is_net(folder: Path) -> bool:
    try:
        return json.loads((folder / "serving.json").read_bytes()).get("task") == TASK
    except (OSError, ValueError, AttributeError):
        return False


def _version(folder: Path) -> str:
    return hashlib.sha256(json.dumps(digests_below(folder, but="")).encode()).hexdigest()
