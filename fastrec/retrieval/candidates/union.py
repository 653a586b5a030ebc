"""``Candidates``: several sources side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec.errors import DataError, NotFittedError
from fastrec.retrieval._saved import part_of, state_of
from fastrec.retrieval.candidates.model_source import ModelSource
from fastrec.retrieval.candidates.source import CandidateSource
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.table import Table, Vocab, concat


class Candidates:
    """The union of what several sources find, a row for every session and item, with each source's score and rank.

    Args:
        sources: name → source, or model of sessions.
        k: how many each finds; or name → how many.

    Raises:
        DataError: there is no source, or ``k`` names others.

    Example:
        >>> import pandas as pd
        >>> from fastrec.retrieval import Candidates, RepeatedItems
        >>> from fastrec.sequences import CoVisitation, SessionFrame
        >>> log = SessionFrame(pd.DataFrame({"items": [["a", "b"], ["a", "c"], ["b", "c"]]}), item="items")
        >>> both = Candidates({"near": CoVisitation(), "own": RepeatedItems()}, k=2).fit(log)
        >>> both.union(log).names
        ['session', 'item', 'near_score', 'near_rank', 'own_score', 'own_rank', 'sources']
    """

    def __init__(self, sources: Mapping[str, CandidateSource | SessionModel], k: int | Mapping[str, int] = 100) -> None:
        self.sources = {n: s if isinstance(s, CandidateSource) else ModelSource(s) for n, s in sources.items()}
        self.k = dict(k) if isinstance(k, Mapping) else dict.fromkeys(self.sources, k)
        if not self.sources or set(self.k) != set(self.sources):
            raise DataError(
                f"sources {list(self.sources)} and k of {list(self.k)}", remedy="Give one or more, and k for each"
            )
        self.seconds: dict[str, float] = {}

    def to_state(self) -> dict[str, Any]:
        """Return the fitted sources, as ``fastrec.table.save_state`` takes them.

        Raises:
            NotFittedError: nothing was learned.
            DataError: a source of your own says no state.
        """
        vocabs: list[Vocab] = []
        parts = []
        for name, source in self.sources.items():
            if source.items is None:
                raise NotFittedError(f"the source {name!r} has not been fitted", remedy="Call fit first")
            place = next((i for i, v in enumerate(vocabs) if v.values.equals(source.items.values)), len(vocabs))
            vocabs += [source.items] if place == len(vocabs) else []
            parts.append({"name": name, "k": self.k[name], "items": place, **state_of(source)})
        return {"sources": parts, "vocabs": [v.to_state() for v in vocabs]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild what ``to_state`` returned."""
        vocabs = [Vocab.from_state(v) for v in state["vocabs"]]
        sources: dict[str, CandidateSource | SessionModel] = {}
        for part in state["sources"]:
            items, name = vocabs[part["items"]], ModelSource.__name__
            source = part_of({**part, "state": {**part["state"], "items": items}} if part["class"] == name else part)
            source.items = items
            sources[part["name"]] = source
        return cls(sources, {p["name"]: p["k"] for p in state["sources"]})

    def fit(self, sessions: SessionFrame) -> Self:
        """Fit every source; ``seconds`` then says how long each took for a million events."""
        millions = max(len(sessions.values), 1) / 1e6
        for name, source in self.sources.items():
            started = time.perf_counter()
            source.fit(sessions)
            self.seconds[name] = (time.perf_counter() - started) / millions
        return self

    def union(self, sessions: SessionFrame) -> Table:
        """Return what all sources find.

        Args:
            sessions: any.

        Returns:
            ``session`` (its number) and ``item`` (its code), int64, ascending; for each source ``{name}_score``
            (float32) and ``{name}_rank`` (float32, from 1), NaN where it did not find the item; ``sources``: how many
            did.
        """
        parts = list(self.stream(sessions))
        return concat(parts) if len(parts) > 1 else parts[0]

    def stream(self, sessions: SessionFrame) -> Iterator[Table]:
        """``union`` block by block of sessions, in their order; one block at least."""
        step = max(1, limits.BLOCK // sum(self.k.values()))
        for a in range(0, max(len(sessions), 1), step):
            rows = torch.arange(a, min(a + step, len(sessions)))
            yield self._union(sessions.take(rows), a)

    def _union(self, sessions: SessionFrame, first: int) -> Table:
        codes, found = len(sessions.items), {}
        for name, source in self.sources.items():
            items, scores = source.best(sessions, self.k[name])
            session, place = (items > 0).nonzero(as_tuple=True)
            found[name] = session * codes + items[session, place], scores[session, place], place + 1
        pairs = torch.unique(torch.cat([pair for pair, _, _ in found.values()]))
        columns: dict[str, Any] = {"session": pairs // codes + first, "item": pairs % codes}
        sources = torch.zeros(len(pairs), dtype=torch.int64)
        for name, (pair, score, rank) in found.items():
            at = torch.searchsorted(pairs, pair)
            for word, values in (("score", score.float()), ("rank", rank.float())):
                column = torch.full((len(pairs),), torch.nan)
                column[at] = values
                columns[f"{name}_{word}"] = column
            sources[at] += 1
        return Table({**columns, "sources": sources})

    def label(self, table: Table, wanted: SessionFrame | Tensor) -> Tensor:
        """Return which candidates were right.

        Args:
            table: of ``union``.
            wanted: each session's items that are to be found; or one code each, int64 ``[n]``.

        Returns:
            float32 ``[rows]``: 1 or 0.
        """
        pairs, codes = self._wanted(wanted)
        return torch.isin(table["session"].values * codes + table["item"].values, pairs).float()

    def recall(self, table: Table, wanted: SessionFrame | Tensor, at: int = 100) -> Table:
        """Return what each source contributes: how many of the items that are to be found it finds.

        Args:
            table: of ``union``, of the sessions whose items ``wanted`` holds.
            wanted: as for ``label``.
            at: of each source the candidates up to this rank.

        Returns:
            ``source`` (``'union'`` last), ``recall``: the share found of all items to be found; ``gain``: what the
            union would lose without the source; ``candidates``: how many a session.
        """
        pairs, codes = self._wanted(wanted)
        right = torch.isin(table["session"].values * codes + table["item"].values, pairs)
        total, sessions = max(len(pairs), 1), max(len(wanted), 1)
        by = {n: table[f"{n}_rank"].values <= at for n in self.sources}
        stacked = torch.stack(list(by.values()))
        alone = stacked.sum(0) == 1
        rows: list[tuple[str, float, float, float]] = []
        for name, there in by.items():
            found, only = int((there & right).sum()), int((there & right & alone).sum())
            rows.append((name, found / total, only / total, int(there.sum()) / sessions))
        every = stacked.any(0)
        found = int((every & right).sum()) / total
        rows.append(("union", found, found, int(every.sum()) / sessions))
        names = ("source", "recall", "gain", "candidates")
        return Table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def _wanted(self, wanted: SessionFrame | Tensor) -> tuple[Tensor, int]:
        """Return the pairs that are to be found, each once, and what a session's number is multiplied by."""
        known = next(iter(self.sources.values())).items
        codes = len(known) if known is not None else int(wanted.max()) + 1
        if isinstance(wanted, Tensor):
            session, item = torch.arange(len(wanted)), wanted
        else:
            wanted = wanted if known is None else wanted.recode(known)
            session, item = torch.repeat_interleave(wanted.lengths), wanted.values
        return torch.unique((session * codes + item)[item > 0]), codes
