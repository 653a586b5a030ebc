"""``make_candidates``: a log of events → labelled candidates, and candidates to rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import DataError, FastrecError, check_whole
from fastrec.retrieval.base import Saved, best_first
from fastrec.retrieval.candidates.sources import CandidateSource, ModelSource, RepeatedItems, sessions_of
from fastrec.retrieval.candidates.union import CandidateFeatures, Candidates, EventFeatures, numeric, sample_negatives
from fastrec.retrieval.filters import EASE, HistoryFilter
from fastrec.sequences import VSTAN, CoVisitation, PopularItems, SessionFrame, SessionModel
from fastrec.table import Column, Table, Vocab, as_column, concat
from fastrec.table.column import rows_of
from fastrec.table.column_types import times_in_text


class PastFeatures(Saved):
    """Features of candidates from the log and the session's own events.

    Directed co-visitation with each of the session's last three items, and its maximum over the last twenty. With
    times: the item's share of events in the last parts of the log, and the seconds since its first and last event and
    the session's last one.

    Args:
        windows: the last parts, as shares of the log's span.
    """

    def __init__(self, windows: Sequence[float] = (0.01, 0.05, 0.2)) -> None:
        self.windows = list(windows)

    def fit(self, sessions: SessionFrame) -> PastFeatures:
        """Count the items and pairs of the log that the sources learn from."""
        codes, values, times = len(sessions.items), sessions.values, sessions.times
        self._columns: dict[str, Tensor] = {}
        if times is not None and len(times):
            self._end = end = float(times.max())
            first = torch.full((codes,), torch.inf, dtype=torch.float64).scatter_reduce_(0, values, times, "amin")
            last = torch.full((codes,), -torch.inf, dtype=torch.float64).scatter_reduce_(0, values, times, "amax")
            self._columns |= {"item_age": (end - first).float(), "item_idle": (end - last).float()}
            for share in self.windows:
                late = values[times >= end - share * (end - float(times.min()))]
                self._columns[f"item_share_{share:g}"] = torch.bincount(late, minlength=codes) / len(late)
        self._keys = self._near = torch.zeros(0)
        if bool((sessions.lengths > 1).any()):
            model = CoVisitation(window=20, before=0.0, near=4.0, norm=(0.65, 0.25), keep=100, again=0.0).fit(sessions)
            there = model._items >= 0
            keys = (torch.arange(codes)[:, None] * codes + model._items)[there]
            order = torch.argsort(keys)
            self._keys, self._near = keys[order], model._scores[there][order]
        return self

    def __call__(self, table: Table, sessions: SessionFrame) -> Table:
        """Add the columns to a table with ``session`` and ``item`` of the sessions."""
        sessions, session, item = sessions_of(table, sessions)
        made = {name: values[item] for name, values in self._columns.items()}
        most = torch.zeros(len(table))
        for back in range(1, 21):
            there = sessions.lengths >= back
            own = torch.zeros(len(sessions), dtype=torch.int64)
            own[there] = sessions.values[sessions.offsets[1:][there] - back]
            wanted = own[session] * len(sessions.items) + item
            at = torch.searchsorted(self._keys, wanted).clamp_max(max(len(self._keys) - 1, 0))
            near = torch.zeros(len(table))
            if len(self._keys):
                near = torch.where(self._keys[at] == wanted, self._near[at], 0.0)
            most = torch.maximum(most, near)
            if back <= 3:
                made[f"near_{back}"] = near
        made["near_most"] = most
        if sessions.times is not None and "item_idle" in made:
            made["session_idle"] = (self._end - sessions.at_ends(sessions.times, torch.nan)).float()[session]
        return table.with_columns(made)


_ACT, _POSITIVE, _SHOWN, _LABEL = "(act)", "(positive)", "(shown)", "label"  # the first three mark events


@dataclass
class RankingTables:
    """Candidates with labels, and candidates to rank."""

    train: Table  #: a row for every candidate whose label is known: group, item, features, label
    test: Table | None  #: the same of the groups that are to be ranked, without a label; None: there are none
    group: str  #: the name of this column
    item: str  #: the name of this column

    def write(self, folder: str | Path) -> Path:
        """Write ``train.parquet`` and ``test.parquet`` into a folder, in place of an earlier result.

        Raises:
            WriteError: the file system refused, or the folder holds something else.
        """
        check_replaceable(folder, "train.parquet")
        with atomic_folder(folder) as part:
            for name, table in (("train", self.train), ("test", self.test)):
                if table is not None:
                    pq.write_table(table.to_arrow(), part / f"{name}.parquet")
        return Path(folder)


@dataclass
class CandidateTables(RankingTables):
    """Candidates found in a log. Groups without a positive among their candidates are not in ``train``."""

    #: of each source, of all of them together (``union``) and of the ``k`` that are taken (``taken``): the share of the
    #: positives that it finds, what the union would lose without it, candidates a group
    recall: Table
    groups: int  #: how many groups ``train`` was made of
    asked: int  #: how many groups are to be ranked
    #: the share of them with a positive among the candidates. A metric on ``train`` times this is one of all
    found: float
    repeats: float  #: the share of positives that the group had before
    seen: bool  #: whether a group's own items are candidates
    label: str = _LABEL  #: the name of the labels' column


@dataclass
class _Log:
    """How a log is read and cut; the arguments are those of ``make_candidates``."""

    group: str
    item: str
    time: str | None
    kind: str | None
    targets: Sequence[str] | None
    shown: str | None
    by_user: bool

    def read(self, events: Any) -> SessionFrame:
        """Return the log's sessions; their sides mark acts, positives and shown items."""
        if self.kind is None and (self.targets or self.shown):
            raise DataError("kinds of events were named, and no column of kinds", remedy="Name it: kind=…")
        if _LABEL in (self.group, self.item):
            raise DataError("the column of labels has this name", column=_LABEL, remedy="Rename the column")
        kinds = [] if self.kind is None else [self.kind]
        log = SessionFrame(events, item=self.item, session=self.group, order=self.time or (), features=kinds)
        if not len(log.values):
            problem = "the log has no event" if not len(log) else "no event has an item"
            raise DataError(problem, column=self.item, remedy="Give one event or more, each with its item")
        return self._marked(log)

    def _marked(self, log: SessionFrame) -> SessionFrame:
        act = positive = torch.ones(len(log.values), dtype=torch.bool)
        if self.kind is not None:
            kinds = log.sides[self.kind]
            wanted = torch.tensor(log.codes_of(self.kind, self.targets or ()), dtype=torch.int64)
            if self.shown is not None:
                act = kinds != log.codes_of(self.kind, [self.shown])[0]
            positive = act if self.targets is None else torch.isin(kinds, wanted)
        log.sides = {**log.sides, _ACT: act, _POSITIVE: positive, _SHOWN: ~act}
        return log

    def cuts(self, log: SessionFrame, cut: str | float | None, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the end of each session's events to learn from, the sessions to ask for, and where these are cut."""
        starts, ends = log.offsets[:-1], log.offsets[1:]
        size, rows = len(log.values), rows_of(log.offsets)
        place = torch.arange(size)
        act, positive = log.sides[_ACT], log.sides[_POSITIVE]
        first = torch.full((len(log),), size).scatter_reduce_(0, rows, place.masked_fill(~act, size), "amin")
        last = torch.full((len(log),), -1).scatter_reduce_(0, rows, place.masked_fill(~positive, -1), "amax")
        moment = self._moment(log, cut)
        before = ends if moment is None else log.ends_before(moment)
        if self.by_user and moment is None:
            cut_there = first < last
            before = torch.where(cut_there, last, ends)
            middle = last
        elif self.by_user:
            cut_there, middle = (first < before) & (before <= last), before
        else:
            late = self._late(log, moment)
            cut_there = late & (first < last)
            share = torch.rand(len(log), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            middle = first + 1 + (share * (last - first)).long()
            before = torch.where(late, starts, before)
        chosen = cut_there.nonzero().squeeze(1)
        if not len(chosen):
            self._refuse(log, moment)
        return before, chosen, middle[chosen]

    def _moment(self, log: SessionFrame, cut: str | float | None) -> float | None:
        if log.times is None:
            if cut is not None:
                raise DataError("a log without times cannot be cut at one", remedy="Name the column of times")
            return None
        if cut is None:
            times = log.times if self.by_user else log.times[log.offsets[:-1][log.lengths > 0]]
            return float(times.sort().values[int(len(times) * (1 - limits.CANDIDATES_HELD_BACK))])
        if isinstance(cut, str):
            try:
                return float(cut)
            except ValueError:
                found = times_in_text(pa.array([cut]))
                if found.null_count:
                    raise DataError(f"{cut!r} is no time", remedy="Write it as 2024-03-31, or as a number") from None
                return float(as_column(found, name="cut").number()[0])
        return float(cut)

    def _late(self, log: SessionFrame, moment: float | None) -> Tensor:
        """Return the sessions that began last: bool ``[n]``."""
        if moment is None:
            return torch.arange(len(log)) >= int(len(log) * (1 - limits.CANDIDATES_HELD_BACK))
        return (log.ends_before(moment) == log.offsets[:-1]) & (log.lengths > 0)

    def _refuse(self, log: SessionFrame, moment: float | None) -> None:
        if not bool((log.lengths > 1).any()):
            problem = f"no {self.group!r} has two events: nothing says what comes next"
            raise DataError(problem, column=self.group, remedy="Check the column, or give a log of more events")
        if moment is None:
            problem = "no group has a positive after another event"
            raise DataError(problem, column=self.group, remedy="Check the column, targets and shown")
        problem = f"no group has events before and after the cut ({moment:.15g})"
        remedy = "Give an earlier or later cut=, or leave time out: each user is then cut before the last event"
        raise DataError(problem, column=self.group, remedy=remedy)

    def asked(self, log: SessionFrame, test: Any) -> SessionFrame:
        """Return the sessions to rank."""
        if test is None:
            return log if self.by_user else log.take(self._late(log, self._moment(log, None)))
        try:
            table = Table.read(test, device="cpu")
            if self.item in table:
                return self._marked(log.new(test))
            ids = table[self.group]
            ids.refuse_missing("a row names no group", "Fill the column, or drop the row")
        except FastrecError as error:
            raise error.of_file(test) from None
        first = np.unique(ids.coded().codes.cpu().numpy(), return_index=True)[1]
        ids = ids.take(torch.from_numpy(np.sort(first)))  # a group is ranked once, however often it is named
        known = Vocab.fit(log.sessions)
        place = torch.full((len(known),), len(log))
        place[known.encode(log.sessions)] = torch.arange(len(log))
        rows = place[known.encode(ids)]
        offsets = torch.cat([log.offsets, log.offsets[-1:]])  # those that the log lacks are empty
        made = log.cut(offsets[rows], offsets[rows + 1])
        made.sessions = ids
        return made


def _as_ids(ids: Any) -> Any:
    """Return whole floats as integers: pandas turns integers into floats if an event has no id."""
    found = ids.to_arrow() if isinstance(ids, Column) else ids
    whole = pa.types.is_floating(found.type) and bool(pc.all(pc.equal(pc.floor(found), found)).as_py())
    return found.cast(pa.int64()) if whole else ids


def _only(sessions: SessionFrame, mark: str) -> SessionFrame:
    made = copy.copy(sessions)
    made._keep(sessions.sides[mark])
    return made


def _pairs(sessions: SessionFrame) -> Tensor:
    return rows_of(sessions.offsets) * len(sessions.items) + sessions.values


class _Finder:
    """Sources and features fitted to a part of the log, in the codes of that part's items."""

    def __init__(self, known: SessionFrame, sources: Any, k: int, kind: str | None, keep: bool) -> None:
        self.known = torch.cat([torch.zeros(1, dtype=torch.int64), torch.unique(known.values)])
        ids = as_column(known.items.decode(self.known[1:]), name="item")
        self.items = Vocab.fit(ids)
        self._codes = torch.zeros(len(known.items), dtype=torch.int64)
        self._codes[self.known[1:]] = self.items.encode(ids)
        self.known[self.items.encode(ids)] = self.known[1:].clone()
        self.k, self.keep = k, keep
        log = self.coded(known)
        acts = _only(log, _ACT)
        if not isinstance(sources, Mapping):
            unknown = next((n for n in sources if n not in _USUAL), None)
            if unknown is not None or not sources:
                raise DataError(f"there is no source {unknown!r}", remedy=f"Name some of {', '.join(_USUAL)}")
            sources = {n: _USUAL[n]() for n in sources}
        wrapped = {
            n: s if isinstance(s, CandidateSource) else ModelSource(s, exclude_seen=not keep)
            for n, s in sources.items()
        }
        if not bool((acts.lengths > 1).any()):
            problem = "before the cut no group has two events: nothing says what follows what"
            raise DataError(problem, column=str(known.columns["session"]), remedy="Give more events, or a later cut")
        self.candidates = Candidates(wrapped, k).fit(acts)
        # popular items and two hops only fill up the candidates; as features these sources count like any other
        few = [n in ("near", "popular", "late") for n in wrapped]
        self._weights = torch.tensor([limits.CANDIDATES_FEW_WEIGHT if f else 1.0 for f in few])
        self._of_acts = [CandidateFeatures().fit(acts), PastFeatures().fit(acts)]
        self._of_all = EventFeatures(kind).fit(log)

    def coded(self, sessions: SessionFrame) -> SessionFrame:
        """Return sessions in the codes of the known items; others are dropped."""
        made = copy.copy(sessions)
        made.items, made.values = self.items, self._codes[sessions.values]
        made._keep(made.values > 0)
        return made

    def unions(self, asked: SessionFrame) -> Iterator[Table]:
        """Yield the sources' candidates for sessions coded by ``coded``, block by block."""
        acts = _only(asked, _ACT)
        own = torch.unique(_pairs(acts))
        for union in self.candidates.stream(acts):
            seen = torch.isin(union["session"].values * len(self.items) + union["item"].values, own)
            yield union if self.keep else union.take(~seen)

    def taken(self, union: Table, asked: SessionFrame) -> Table:
        """Return each session's best ``k`` with features, sorted by session and item."""
        acts = _only(asked, _ACT)
        session, score = union["session"].values, self.candidates.fused(union, self._weights)
        rows = best_first(session, score)
        place = torch.arange(len(rows)) - torch.searchsorted(session[rows], session[rows])
        rows, place = rows[place < self.k], place[place < self.k]
        order = torch.argsort(rows)
        table = union.take(rows[order]).with_columns({"fused": score[rows[order]], "place": place[order] + 1.0})
        for features in self._of_acts:
            table = features(table, acts)
        return self._of_all(table, asked)

    def named(self, table: Table, ids: Column, group: str, item: str) -> Table:
        """Replace the numbers of groups and items by their ids."""
        found = self.items.decode(table["item"].values)
        about = {group: _as_ids(ids.take(table["session"].values)), item: _as_ids(found)}
        if (clash := next((n for n in about if n in numeric(table)), None)) is not None:
            raise DataError("a feature has this name", column=clash, remedy="Rename the column")
        return Table({**about, **{n: table[n] for n in numeric(table)}})

    @staticmethod
    def recall(parts: Sequence[Table], share: float, taken: tuple[float, float]) -> Table:
        """Join ``Candidates.recall`` of blocks, and add the recall and number of the taken ones."""
        about: dict[str, list[Any]] = {"source": [*parts[0]["source"].to_arrow().to_pylist(), "taken"]}
        for name, factor, last in (("recall", share, taken[0]), ("gain", share, taken[0]), ("candidates", 1, taken[1])):
            about[name] = [*(factor * torch.stack([part[name].values for part in parts]).sum(0)).tolist(), last]
        return Table(about)


_USUAL: dict[str, Callable[[], CandidateSource | SessionModel]] = {
    "next": lambda: CoVisitation(window=20, before=0.0, near=4.0, own=3.0, norm=(0.65, 0.25), again=0.0),
    "near": lambda: CoVisitation(hops=2),
    "knn": VSTAN,
    "ease": lambda: HistoryFilter(EASE(reg=500.0), decay=10.0),
    "popular": PopularItems,
    "late": lambda: PopularItems(recency=0.02),
    "own": RepeatedItems,
}


def make_candidates(
    events: Any,
    *,
    item: str,
    user: str | None = None,
    session: str | None = None,
    time: str | None = None,
    kind: str | None = None,
    targets: Sequence[str] | None = None,
    shown: str | None = None,
    test: Any = None,
    k: int = 100,
    sources: Sequence[str] | Mapping[str, CandidateSource | SessionModel] | None = None,
    seen: Literal["auto", "keep", "drop"] = "auto",
    cut: str | float | None = None,
    negatives: int | None = None,
    groups: int = 20_000,
    seed: int = 0,
) -> CandidateTables:
    """Turn a log of events into labelled candidates and candidates to rank, for ``fastrec.fit(group=…)``.

    Sources learn from the log before a cut and find candidates; labels say which came after it. Then they learn from
    the whole log and find the candidates to rank. Users with times are cut at one moment, users without times before
    their last event. The last tenth of sessions are cut at random places, and sources learn from the earlier ones.

    Args:
        events: one event a row: a path or a frame; or one row per user or session with ``item`` as its list.
        item: column of items.
        user: column of users, which are the groups; or give ``session``.
        session: column of sessions, which are the groups.
        time: column of times: numbers, dates or ISO 8601; None: the events are in order.
        kind: column of the kinds of events.
        targets: kinds that are positives; None: all but ``shown``.
        shown: kind of events that only show an item. They are no history; candidates shown after the cut stay as
            negatives.
        test: events of the groups to rank, with the same columns, or for users only their column; None: all users, or
            the last tenth of sessions.
        k: candidates per group.
        sources: names of ``next near knn ease popular late own``, or name → source; None: those that fit the log.
        seen: whether a group's own items are candidates; ``auto``: if enough positives are repeats.
        cut: the moment, as ``time`` writes it; None: the start of the last tenth of events.
        negatives: number per group in ``train``, at random; None: all.
        groups: number in ``train``, at random.
        seed: of all that is random.

    Raises:
        DataError: wrong columns, times or options, or no group has events before and after the cut.

    Example:
        >>> from fastrec.retrieval import make_candidates
        >>> log = {"who": [1, 1, 1, 2, 2, 2, 3, 3, 3], "what": [5, 6, 7, 6, 7, 5, 7, 5, 6]}
        >>> made = make_candidates(log, user="who", item="what", sources=["next"])
        >>> made.train.select(["who", "what", "label"]).to_arrow().to_pylist()[:2]
        [{'who': 1, 'what': 7, 'label': 1.0}, {'who': 2, 'what': 5, 'label': 1.0}]
    """
    check_whole("make_candidates", k=k, groups=groups, negatives=negatives)
    if (user is None) == (session is None):
        raise DataError("a group is a user or a session", remedy="Name one column: user=… or session=…")
    if seen not in ("auto", "keep", "drop"):
        raise DataError(f"seen={seen!r} says nothing of a group's own items", remedy="Give auto, keep or drop")
    group = str(user if user is not None else session)
    if group == item:
        raise DataError("it is named as groups and as items", column=item, remedy="Name two columns")
    reading = _Log(group, item, time, kind, targets, shown, by_user=user is not None)
    log = reading.read(events)
    before, rows, middle = reading.cuts(log, cut, seed)
    if len(rows) > groups:
        drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:groups].sort().values
        rows, middle = rows[drawn], middle[drawn]
    asked, after = log.cut(log.offsets[rows], middle), log.cut(middle, log.offsets[rows + 1])
    wanted = _only(after, _POSITIVE)
    pairs = torch.unique(_pairs(wanted))
    repeats = float(torch.isin(pairs, _pairs(_only(asked, _ACT))).float().mean())
    keep = repeats >= limits.CANDIDATE_REPEATS if seen == "auto" else seen == "keep"
    if sources is None:
        sources = ["next", "near", "knn", *["ease"] * (user is not None), "popular"]
        sources += ["late"] * (log.times is not None) + ["own"] * keep

    finder = _Finder(log.cut(log.offsets[:-1], before), sources, k, kind, keep)
    coded, hard = finder.coded(wanted), _pairs(_only(after, _SHOWN))
    share = len(torch.unique(_pairs(coded))) / len(pairs)  # of the positives that were known before the cut
    asked, parts, worth, count = finder.coded(asked), [], [], 0
    for union in finder.unions(asked):
        worth.append(finder.candidates.recall(union, coded, at=k))
        taken = finder.taken(union, asked)
        count += len(taken)
        pair = taken["session"].values * len(log.items) + finder.known[taken["item"].values]
        label = torch.isin(pair, pairs)
        taken = taken.with_columns({_LABEL: label.float()})
        many = len(taken) if negatives is None else negatives
        parts.append(taken.take(sample_negatives(taken, label | torch.isin(pair, hard), many, seed=seed)))
    train = concat(parts)
    right = train[_LABEL].values > 0
    found = torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, train["session"].values[right], True)
    train = train.take(found[train["session"].values])
    recall = finder.recall(worth, share, (float(right.sum()) / len(pairs), count / len(rows)))
    if not len(train):
        problem = f"no source finds any of the {len(pairs)} positives of {len(rows)} groups: their items may all be new"
        raise DataError(problem, column=item, remedy="Give a larger k, other sources, or a later cut")
    train = finder.named(train, log.sessions.take(rows), group, item)

    finder, rest = _Finder(log, sources, k, kind, keep), reading.asked(log, test)
    ids, asked = rest.sessions, finder.coded(rest)
    rank = concat([finder.taken(union, asked) for union in finder.unions(asked)])
    rank = finder.named(rank, ids, group, item)
    hit = float(found.float().mean())
    return CandidateTables(train, rank, group, item, recall, len(rows), len(asked), hit, repeats, keep)
