"""``Candidates``: several sources side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.retrieval.base import Saved, best_first
from fastrec.retrieval.candidates.sources import CandidateSource, ModelSource, sessions_of
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.sequences.losses import ppmi_svd
from fastrec.table import Table, concat


class Candidates(Saved):
    """Union of several sources: a row for every session and item, with each source's score and rank.

    Args:
        sources: name → source, or session model.
        k: candidates per source, or name → number.

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

    learned = ("sources",)

    def __init__(self, sources: Mapping[str, CandidateSource | SessionModel], k: int | Mapping[str, int] = 100) -> None:
        self.sources = {n: s if isinstance(s, CandidateSource) else ModelSource(s) for n, s in sources.items()}
        self.k = dict(k) if isinstance(k, Mapping) else dict.fromkeys(self.sources, k)
        if not self.sources or set(self.k) != set(self.sources):
            remedy = "Give one or more, and k for each"
            raise DataError(f"sources {list(self.sources)} and k of {list(self.k)}", remedy=remedy)
        self.seconds: dict[str, float] = {}

    def fit(self, sessions: SessionFrame) -> Self:
        """Fit every source; ``seconds`` then has each one's time per million events."""
        millions = max(len(sessions.values), 1) / 1e6
        for name, source in self.sources.items():
            started = time.perf_counter()
            source.fit(sessions)
            self.seconds[name] = (time.perf_counter() - started) / millions
        return self

    def union(self, sessions: SessionFrame) -> Table:
        """Return the candidates of all sources.

        Returns:
            ``session`` (number) and ``item`` (code), int64, ascending; per source ``{name}_score`` and ``{name}_rank``
            (float32, ranks from 1), NaN if it did not find the item; ``sources``: how many did.
        """
        return concat(list(self.stream(sessions)))

    def stream(self, sessions: SessionFrame) -> Iterator[Table]:
        """Yield ``union`` in blocks of sessions, in their order; at least one block."""
        step = max(1, limits.BLOCK // sum(self.k.values()))
        for a in range(0, max(len(sessions), 1), step):
            yield self._union(sessions.take(torch.arange(a, min(a + step, len(sessions)))), a)

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

    def fused(self, table: Table, weights: Tensor | None = None) -> Tensor:
        """Return the reciprocal rank fusion of a ``union``: the sum of ``weight / (60 + rank)``.

        Args:
            table: of ``union``.
            weights: of each source, float32; None: 1.

        Source: Cormack, Clarke, Büttcher 2009, "Reciprocal Rank Fusion outperforms Condorcet".
        """
        terms = torch.stack([1 / (60 + table[f"{n}_rank"].values) for n in self.sources], 1).nan_to_num(0.0)
        return terms.sum(1) if weights is None else terms @ weights

    def label(self, table: Table, wanted: SessionFrame | Tensor) -> Tensor:
        """Return which candidates are right: float32 ``[rows]``, 1 or 0.

        Args:
            table: of ``union``.
            wanted: each session's right items; or one code each, int64 ``[n]``.
        """
        pairs, codes = self._wanted(wanted)
        return torch.isin(table["session"].values * codes + table["item"].values, pairs).float()

    def recall(self, table: Table, wanted: SessionFrame | Tensor, at: int = 100) -> Table:
        """Return each source's contribution to the recall.

        Args:
            table: of ``union``, for the sessions of ``wanted``.
            wanted: as for ``label``.
            at: count each source's candidates up to this rank.

        Returns:
            ``source`` (``'union'`` last), ``recall``: share of the wanted items found; ``gain``: loss of the union
            without the source; ``candidates``: mean number per session.
        """
        pairs, codes = self._wanted(wanted)
        right = torch.isin(table["session"].values * codes + table["item"].values, pairs)
        total, sessions = max(len(pairs), 1), max(len(wanted), 1)
        found = torch.stack([table[f"{n}_rank"].values <= at for n in self.sources])
        alone, every = found.sum(0) == 1, found.any(0)
        found, lost = torch.cat([found, every[None]]), torch.cat([found & alone, every[None]])
        shares = {"recall": (found & right).sum(1).double() / total, "gain": (lost & right).sum(1).double() / total}
        return Table({"source": [*self.sources, "union"], **shares, "candidates": found.sum(1).double() / sessions})

    def _wanted(self, wanted: SessionFrame | Tensor) -> tuple[Tensor, int]:
        """Return the distinct wanted pairs, and the factor of a session's number in them."""
        known = next(iter(self.sources.values())).items
        codes = len(known) if known is not None else int(wanted.max()) + 1
        if isinstance(wanted, Tensor):
            session, item = torch.arange(len(wanted)), wanted
        else:
            wanted = wanted if known is None else wanted.recode(known)
            session, item = torch.repeat_interleave(wanted.lengths), wanted.values
        return torch.unique((session * codes + item)[item > 0]), codes


def sample_negatives(table: Table, label: torch.Tensor, per_session: int, *, seed: int = 0) -> torch.Tensor:
    """Return all positives, and some random negatives of each session with a positive.

    Args:
        table: candidates, with ``session``.
        label: ``[n]``, above 0: a positive.
        per_session: number of negatives.
        seed: of the draw.

    Returns:
        Rows of the table, int64, ascending.

    Raises:
        DataError: lengths differ, or ``per_session`` is below 0.
    """
    if len(label) != len(table) or per_session < 0:
        remedy = "Give each row a label, and 0 or more negatives"
        raise DataError(f"{len(label)} labels of {len(table)} rows, {per_session} negatives", remedy=remedy)
    session, positive = table["session"].values, label > 0
    draw = torch.rand(len(session), generator=torch.Generator().manual_seed(seed))
    draw[positive] = -1.0
    order = best_first(session, -draw)
    ordered = session[order]
    place = torch.arange(len(order)) - torch.searchsorted(ordered, ordered)
    count = torch.bincount(session[positive], minlength=int(session.max()) + 1 if len(session) else 0)
    have = count[ordered]
    return order[(have > 0) & (place < have + per_session)].sort().values


def cut_at(sessions: SessionFrame, moment: float) -> tuple[SessionFrame, SessionFrame, SessionFrame]:
    """Split a log at a moment (seconds since 1970 if ``order`` holds times).

    Returns:
        All sessions with their events before the moment, to learn from. Then, for sessions with events on both sides,
        the events before, and those after, as two frames of the same sessions.

    Raises:
        DataError: the events have no times.
    """
    starts, ends, middle = sessions.offsets[:-1], sessions.offsets[1:], sessions.ends_before(moment)
    known = sessions.cut(starts, middle)
    known.sessions = sessions.sessions
    both = ((starts < middle) & (middle < ends)).nonzero().squeeze(1)
    asked, wanted = known.take(both), sessions.cut(middle[both], ends[both])
    wanted.sessions = asked.sessions
    return known, asked, wanted


def cut_anywhere(sessions: SessionFrame, *, seed: int = 0) -> tuple[SessionFrame, SessionFrame]:
    """Cut every session of two or more events at a random place; shorter ones are left out.

    Returns:
        The events before the cut, and those after, as two frames of the same sessions.
    """
    long = (sessions.lengths > 1).nonzero().squeeze(1)
    starts, ends = sessions.offsets[long], sessions.offsets[long + 1]
    share = torch.rand(len(long), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    middle = starts + 1 + (share * (ends - starts - 1)).long()
    asked, wanted = sessions.cut(starts, middle), sessions.cut(middle, ends)
    asked.sessions = wanted.sessions = None if sessions.sessions is None else sessions.sessions.take(long)
    return asked, wanted


def numeric(table: Table) -> list[str]:
    """Return the columns of a table of candidates but ``session`` and ``item``."""
    return [n for n in table.names if n not in ("session", "item")]


class CandidateFeatures(Saved):
    """Features of candidates.

    Per ``{source}_score``, its share of the session's maximum and sum; the item's events in the log and its last
    twentieth (of events by time; without times, of sessions in order); the session's length, its last item's events,
    and whether the candidate is that item. Cosines of items' vectors (``ppmi_svd``): with the session's last item, the
    one before it, and the mean of the last 32, in which an event weighs 0.7 times as much as the next.
    """

    learned = ("_counts", "_recent", "popularity", "_vectors")

    def fit(self, sessions: SessionFrame) -> Self:
        """Count the items of the log that the sources learn from."""
        codes = len(sessions.items)
        self._counts = torch.bincount(sessions.values, minlength=codes).float()
        self.popularity = self._counts / self._counts.max().clamp_min(1)  # share of the most frequent item's events
        few = max(1, len(sessions) // 20)
        late = torch.arange(len(sessions.values)) >= sessions.offsets[max(len(sessions) - few, 0)]
        if sessions.times is not None:
            late = sessions.times >= sessions.times.sort().values[-max(1, len(late) // 20) :][:1]
        self._recent = torch.bincount(sessions.values[late], minlength=codes).float()
        self._vectors = normalize(ppmi_svd(sessions, limits.CANDIDATE_VECTORS))
        return self

    def __call__(self, table: Table, sessions: SessionFrame) -> Table:
        """Add the columns to a table with ``session``, ``item`` and scores of the sessions."""
        sessions, session, item = sessions_of(table, sessions)
        last = sessions.at_ends(sessions.values)
        made = {
            "item_events": self._counts[item],
            "item_events_recent": self._recent[item],
            "session_length": sessions.lengths[session].float(),
            "last_item_events": self._counts[last][session],
            "is_last_item": (item == last[session]).float(),
        }
        for name in [n for n in table.names if n.endswith("_score")]:
            score, none = table[name].values, torch.zeros(len(sessions))
            known = score.nan_to_num(0.0).clamp_min(0.0)
            made[f"{name}_of_top"] = score / none.scatter_reduce(0, session, known, "amax")[session]
            made[f"{name}_of_sum"] = score / none.index_add(0, session, known)[session]
        rows, steps = sessions.steps()
        late = steps < 32  # others weigh less than 1e-4
        rows, steps, vectors = rows[late], steps[late], self._vectors[sessions.values[late]]
        asked = torch.zeros(3, len(sessions), vectors.shape[1])
        for place in range(2):
            asked[place, rows[steps == place]] = vectors[steps == place]
        asked[2] = normalize(asked[2].index_add(0, rows, vectors * 0.7 ** steps.unsqueeze(1)))
        pieces = torch.arange(len(item)).split(max(1, limits.BLOCK // (3 * vectors.shape[1])))
        alike = [torch.einsum("rw,srw->sr", self._vectors[item[p]], asked[:, session[p]]) for p in pieces]
        made |= zip(("similar_to_last", "similar_to_previous", "similar_to_session"), torch.cat(alike, 1), strict=True)
        return table.with_columns(made)


class EventFeatures(Saved):
    """Features of candidates by kinds of events.

    Per kind: the session's events with the item and in all, the log's events with the item, and their share of the
    item's events. The number of events, and of seconds, since the session's last event with the item; NaN if there is
    none.

    Args:
        event: side feature of the kinds of events (``SessionFrame(features=…)``); None: one kind, ``events``.
    """

    learned = ("_kinds", "_counts")

    def __init__(self, event: str | None) -> None:
        self.event = event

    def fit(self, sessions: SessionFrame) -> Self:
        """Count each item's events by kind in the log that the sources learn from."""
        self._kinds = ["", "events"] if self.event is None else sessions.kinds(self.event)
        counts = torch.bincount(
            self._of(sessions) * len(sessions.items) + sessions.values, minlength=len(self._kinds) * len(sessions.items)
        )
        self._counts = counts.view(len(self._kinds), -1).float()
        return self

    def _of(self, sessions: SessionFrame) -> Tensor:
        """Return the events' kinds as ``fit`` numbers them; 0: unknown."""
        if self.event is None:
            return torch.ones_like(sessions.values)
        place = {name: i for i, name in enumerate(self._kinds) if name}
        table = torch.tensor([place.get(name, 0) for name in sessions.kinds(self.event)], dtype=torch.int64)
        return table[sessions.sides[self.event]]

    def __call__(self, table: Table, sessions: SessionFrame) -> Table:
        """Add the columns to a table with ``session`` and ``item`` of the sessions."""
        sessions, session, item = sessions_of(table, sessions)
        codes, (rows, steps), kinds = len(sessions.items), sessions.steps(), self._of(sessions)
        pairs, which = torch.unique(rows * codes + sessions.values, return_inverse=True)
        wanted, count = session * codes + item, len(pairs) + 1
        pairs = torch.cat([pairs, pairs.new_full((1,), torch.iinfo(torch.int64).max)])  # no pair: one place at least
        at = torch.searchsorted(pairs, wanted)
        own = pairs[at] == wanted
        made: dict[str, Tensor] = {}
        total = self._counts.sum(0).clamp_min(1)
        for code, kind in enumerate(self._kinds):
            if not kind:
                continue
            of_kind = (kinds == code).float()
            counts = torch.zeros(count).index_add_(0, which, of_kind)
            made[f"own_{kind}"] = torch.where(own, counts[at], 0.0)
            made[f"session_{kind}"] = torch.zeros(len(sessions)).index_add_(0, rows, of_kind)[session]
            made[f"item_{kind}"] = self._counts[code][item]
            made[f"item_{kind}_share"] = (self._counts[code] / total)[item]
        made["own_steps_ago"] = self._least(steps.float(), which, count, at, own)
        if sessions.times is not None:
            ago = sessions.times[sessions.offsets[rows + 1] - 1] - sessions.times
            made["own_seconds_ago"] = self._least(ago.float(), which, count, at, own)
        return table.with_columns(made)

    @staticmethod
    def _least(values: Tensor, which: Tensor, count: int, at: Tensor, own: Tensor) -> Tensor:
        least = torch.full((count,), torch.inf).scatter_reduce_(0, which, values, "amin")
        return torch.where(own, least[at], torch.nan)
