"""``score_candidates``: given candidates and a log without times → scores of collaborative filters, and more lists."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fastrec.errors import DataError, DataWarning, FastrecError, refuse_rows
from fastrec.metrics import get_metric
from fastrec.retrieval.base import CollaborativeFilter
from fastrec.retrieval.candidates.from_events import RankingTables
from fastrec.retrieval.candidates.union import sample_negatives
from fastrec.retrieval.filters import EASE, ImplicitALS, ItemKNN, RP3Beta, SpectralFilter, UserKNN
from fastrec.segments import rank_in_group, segment_count, segment_max, segment_mean
from fastrec.table import Table, concat

_ALS: dict[str, Any] = {"power": 1.0, "iterations": 5}
# Settings by the out-of-fold MRR on one market of XMarket.
_FILTERS: dict[str, CollaborativeFilter] = {
    "knn": ItemKNN(shrink=5),
    "knn_users": ItemKNN(shrink=2, user_power=0.25),
    "knn_given": ItemKNN(shrink=5, asymmetry=0.2),
    "ease": EASE(reg=300),
    "ease_sharp": EASE(reg=50),
    "user_knn": UserKNN(shrink=2, item_power=0.5),
    "walk": RP3Beta(alpha=0.6, beta=0.2),
    "walk_rare": RP3Beta(alpha=1.0, beta=0.8),
    "spectral": SpectralFilter(factors=128, alpha=1.0),
    "spectral_low": SpectralFilter(factors=48, alpha=3.0),
    "als": ImplicitALS(factors=64, reg=0.3, alpha=30, **_ALS),
    "als_sharp": ImplicitALS(factors=48, reg=0.1, alpha=10, seed=1, **_ALS),
    # Factors begin at random: two more of other widths, so that no one beginning decides.
    "als_wide": ImplicitALS(factors=96, reg=0.3, alpha=30, seed=2, **_ALS),
    "als_narrow": ImplicitALS(factors=32, reg=0.3, alpha=30, seed=3, **_ALS),
}
_OF_KIND = ("knn", "knn_users", "ease", "user_knn")  # of one kind of events; of good or poor ratings the first alone


@dataclass
class ScoredCandidates(RankingTables):
    """Given candidates with scores, and lists made by hiding events: ``train`` and, without labels, ``test``.

    For ``fastrec.fit(train, label, group="list", weight="weight", counted="counted")``.
    """

    user: str  #: the name of this column
    label: str  #: the name of this column
    lists: int  #: how many given lists have a positive; the others are left out
    hidden: int  #: how many lists were made by hiding an event
    scores: Table  #: ``score`` and ``mrr``: each score's mean reciprocal rank on the given lists, the best first


class _Rows:
    """Arrays of one length, in a frozen dataclass; None: there is none."""

    def take(self, rows: np.ndarray) -> Any:
        """Select rows (bool ``[n]`` or int64)."""
        values = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return type(self)(*(None if v is None else v[rows] for v in values))

    @property
    def pairs(self) -> np.ndarray:
        """Return user and item as one number: int64 ``[n]``."""
        return self.users << 32 | self.items  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Lists(_Rows):
    """Candidates, those of a list together: numbers of list, user and item, the list's name, and the label."""

    of: np.ndarray
    users: np.ndarray
    items: np.ndarray
    names: np.ndarray
    label: np.ndarray


@dataclass(frozen=True)
class _Events(_Rows):
    """A log: numbers of users and items, kinds and ratings."""

    users: np.ndarray
    items: np.ndarray
    kinds: np.ndarray | None
    ratings: np.ndarray | None

    def parts(self) -> Iterator[tuple[str, Sequence[str], _Events]]:
        """Yield parts of the log to learn from: a suffix, the names of filters, and the events."""
        yield "", tuple(_FILTERS), self
        if self.kinds is not None:
            names, counts = np.unique(self.kinds, return_counts=True)
            for name in names[np.argsort(-counts, kind="stable")[:3]]:
                yield f"_{name}", _OF_KIND, self.take(self.kinds == name)
        if self.ratings is not None:
            high = self.ratings >= np.nanmean(self.ratings)
            yield "_good", _OF_KIND[:1], self.take(high)
            yield "_poor", _OF_KIND[:1], self.take(~high & ~np.isnan(self.ratings))


def score_candidates(
    candidates: Any,
    events: Any,
    *,
    user: str,
    item: str,
    label: str = "label",
    group: str | None = None,
    kind: str | None = None,
    targets: Sequence[str] | None = None,
    rating: str | None = None,
    test: Any = None,
    hide: int = 4,
    seed: int = 0,
) -> ScoredCandidates:
    """Score given candidates by collaborative filters that learn from a log, for ``fastrec.fit(group="list")``.

    Each candidate gets the scores of fourteen filters; of each also its place in the list, its distance from the best
    and its z-score. Labelled lists are often few, so more are made: an event of a list's user is hidden, the filters
    learn without it, and its item takes the place of the list's positives. Models learn from these lists (``weight``
    0.7), and they are not scored (``counted`` 0).

    Args:
        candidates: labelled candidates, one a row: a path or a frame with ``user``, ``item`` and ``label``.
        events: the log, in any order: a path or a frame with ``user`` and ``item``.
        user, item: columns of users and items, with the same names in all tables.
        label: column of labels: above 0 for a positive.
        group: column of lists in candidates; None: a user has one list.
        kind: column of the log with the kinds of events; filters learn from each of the three commonest, too.
        targets: kinds of which an event may be hidden; None: all.
        rating: column of the log with ratings, the higher the better; some may be missing.
        test: candidates to rank, in the form of ``candidates`` without labels; None: there are none.
        hide: how many lists to make for each user with a list and three events or more; 0: none.
        seed: of which events are hidden, and which candidates stay in such a list.

    Raises:
        DataError: an id or a label is missing, a list has an item twice or two users, no list has a positive, or no
            candidate's item is in the log.
        MissingColumnError: a table lacks a column.

    Warns:
        DataWarning: events that are candidates of their user are left out, since they would tell the label. If
            candidates have further columns no lists are made: of a hidden item these are not known.

    Example:
        >>> from fastrec.retrieval import score_candidates
        >>> log = {"who": [1, 1, 2, 2, 3, 3], "what": [5, 6, 5, 7, 6, 7]}
        >>> lists = {"who": [1, 1, 3, 3], "what": [7, 8, 5, 8], "label": [1, 0, 1, 0]}
        >>> made = score_candidates(lists, log, user="who", item="what")
        >>> made.train.select(["list", "what", "knn_place", "label"]).to_arrow().to_pylist()[0]
        {'list': '1', 'what': 7, 'knn_place': 0.0, 'label': 1.0}
    """
    if hide < 0:
        raise DataError(f"hide={hide} lists of a user", remedy="Give 0 or more")
    if targets and kind is None:
        raise DataError("kinds of events were named, and no column of kinds", remedy="Name it: kind=…")
    keys = [user, item, *([] if group is None else [group])]
    tables = [_read(candidates, [*keys, label]), *([] if test is None else [_read(test, keys)])]
    log = _read(events, [user, item, *([] if kind is None else [kind])])
    extra = [n for n in tables[0].names if n not in (*keys, label)]
    if extra and hide:
        problem = f"no lists are made by hiding events, as {', '.join(extra[:12])} of a hidden item is not known"
        warnings.warn(f"{problem}: join such columns afterwards, or give hide=0", DataWarning, stacklevel=2)
        hide = 0
    ids = concat([t.select([user, item]) for t in (*tables, log)])  # one numbering for all tables
    users, items = (ids[n].coded().codes.cpu().numpy() for n in (user, item))
    starts = np.cumsum([0, *map(len, tables)])
    kinds = None if kind is None else np.array(log[kind].to_arrow().to_pylist(), dtype=str)
    ratings = None if rating is None else log[rating].number().cpu().numpy()
    if ratings is not None and np.isnan(ratings).all():
        raise DataError("no event has a rating", column=rating, remedy="Leave rating= out")
    known = _Events(users[starts[-1] :], items[starts[-1] :], kinds, ratings)
    told = np.isin(known.pairs, _Events(users[: starts[-1]], items[: starts[-1]], None, None).pairs)
    if told.any():
        problem = f"{told.sum():,} events are candidates of their user, too (the first is in row {told.argmax()})"
        warnings.warn(f"{problem}: they are left out, since they would tell the label", DataWarning, stacklevel=2)
    known = known.take(~told)
    if not np.isin(items[: starts[-1]], known.items).any():
        raise DataError("no candidate's item is in the log", column=item, remedy="Check the column in both tables")

    # A row of each user and item (codes are from 1: no id is missing), for the columns of lists that are made.
    row_of = [np.r_[0, np.unique(codes, return_index=True)[1]] for codes in (users, items)]

    def table(part: _Lists, more: dict[str, Any]) -> Table:
        named = zip((user, item), row_of, (part.users, part.items), strict=True)
        own = {n: ids[n].take(torch.from_numpy(rows[codes])) for n, rows, codes in named}
        return Table({"list": part.names, **own, **more})

    lists, made = [], []
    for one, at, where in zip(tables, starts, (candidates, test), strict=False):
        try:
            of = one[group or user]
            codes = of.coded().codes.cpu().numpy()
            names = np.array(of.to_arrow().cast(pa.string()).to_pylist(), dtype=object)
            y = one[label].number().cpu().numpy() if one is tables[0] else np.zeros(len(one))
            part = _Lists(codes, users[at : at + len(one)], items[at : at + len(one)], names, y)
            _refuse(part, user, item)
        except FastrecError as error:
            raise error.of_file(where) from None
        rows = np.argsort(codes, kind="stable")
        if one is tables[0]:  # a list without a positive teaches nothing
            rows = rows[np.isin(codes[rows], codes[y > 0])]
        lists.append(part.take(rows))
        made.append({n: one[n].take(torch.from_numpy(rows)) for n in extra})
    given, marks = lists[0], np.ones(len(lists[0].of))
    if not len(given.of):
        raise DataError("no list has a positive", column=label, remedy="Give the labels of some lists")
    scored = _scores(known, lists)
    clash = next((n for n in (user, item, label, *extra) if n in (*scored[0], "list", "weight", "counted")), None)
    if clash is not None:
        raise DataError("a new column has this name", column=clash, remedy="Rename the column")
    tables = [table(part, {**columns, **scores}) for part, columns, scores in zip(lists, made, scored, strict=True)]
    tables[0] = tables[0].with_columns({label: given.label, "weight": marks, "counted": marks.astype(int)})
    some = [
        n for n in scored[0] if not n.endswith(("_place", "_gap", "_z", "_rating")) and not n.startswith("user_events")
    ]
    mrr = {n: get_metric("mrr")(given.label, scored[0][n], groups=torch.from_numpy(given.of)) for n in some}
    best = sorted(some, key=lambda n: -mrr[n])

    train, hidden = [tables[0]], 0
    may = known if not targets else known.take(np.isin(known.kinds, targets))
    for gone, part in _hidden(given, may, hide, seed):
        (scores,) = _scores(known.take(~np.isin(known.pairs, gone)), [part])
        # Places and distances are those in the whole list; 30 of 99 others teach as well as all do (XMarket).
        kept = sample_negatives(Table({"session": part.of}), torch.from_numpy(part.label), 30, seed=seed + hidden)
        part = part.take(kept := kept.numpy())
        weight = np.full(len(part.of), 0.7)  # by XMarket's out-of-fold MRR
        about = {label: part.label, "weight": weight, "counted": np.zeros(len(weight), dtype=int)}
        train.append(table(part, {**{n: v[kept] for n, v in scores.items()}, **about}))
        hidden += int((part.label > 0).sum())
    asked, count = None if test is None else tables[1], len(np.unique(given.of))
    worth = Table({"score": best, "mrr": [mrr[n] for n in best]})
    return ScoredCandidates(concat(train), asked, "list", item, user, label, count, hidden, worth)


def _read(frame: Any, names: Sequence[str]) -> Table:
    """Read a table, and refuse one without these columns, or with a missing value in them."""
    try:
        table = Table.read(frame, device="cpu")
        for name in names:
            table[name].refuse_missing("a value is missing", "Fill the column, or drop the row")
    except FastrecError as error:
        raise error.of_file(frame) from None
    return table


def _refuse(part: _Lists, user: str, item: str) -> None:
    """Refuse a list with two users, or with an item twice."""
    first = np.zeros(part.of.max(initial=0) + 1, dtype=np.int64)
    first[part.of[::-1]] = part.users[::-1]
    refuse_rows(
        part.users != first[part.of],
        "the list has another user in an earlier row",
        column=user,
        remedy="Name the column of lists",
    )
    again = np.ones(len(part.of), dtype=bool)
    again[np.unique(part.of << 32 | part.items, return_index=True)[1]] = False
    refuse_rows(again, "the list has this item in an earlier row", column=item, remedy="Keep one of them")


def _hidden(given: _Lists, may: _Events, turns: int, seed: int) -> Iterator[tuple[np.ndarray, _Lists]]:
    """Yield pairs to hide, one of each user in random order, and the lists that have them as their positives."""
    pairs, at = np.unique(may.pairs, return_index=True)
    order = np.lexsort([np.random.default_rng(seed).random(len(pairs)), may.users[at]])
    owner, count = may.users[at[order]], np.bincount(may.users[at], minlength=given.users.max() + 1)
    place = np.arange(len(order)) - (np.cumsum(count) - count)[owner]
    first = np.unique(given.users, return_index=True)[1]  # a user's first list stands for all of them
    chosen = np.flatnonzero(given.label > 0)  # the hidden item takes the place of a list's first positive
    chosen = chosen[np.unique(given.of[chosen], return_index=True)[1]]
    kept = np.isin(given.of, given.of[first]) & ((given.label <= 0) | np.isin(np.arange(len(given.of)), chosen))
    for turn in range(turns):
        hidden = at[order[(place == turn) & (count[owner] >= 3)]]
        item = np.zeros(len(count), dtype=np.int64)
        item[may.users[hidden]] = may.items[hidden]
        part = given.take(kept & (item[given.users] > 0))
        if not len(part.of):
            return
        new = part.label > 0
        items, names = np.where(new, item[part.users], part.items), part.names + f" without {turn + 1}"
        made = _Lists(part.of, part.users, items, names, new.astype(float))
        yield made.take(new).pairs, made


def _scores(log: _Events, lists: Sequence[_Lists]) -> list[dict[str, Tensor]]:
    """Return the columns of each of ``lists``, float32 ``[n]``; a filter is fitted once for all of them."""
    made: list[dict[str, Tensor]] = [{} for _ in lists]
    numbers = (log.users, log.items, *(v for one in lists for v in (one.users, one.items, one.of)))
    size = 1 + max(int(v.max(initial=0)) for v in numbers)
    for suffix, names, part in log.parts():
        known = len(part.users) > 0  # a kind may have lost its only event
        models = {n: copy.copy(_FILTERS[n]).fit(part.users, part.items) for n in names if known}
        for one, into in zip(lists, made, strict=True):
            pairs, none = (one.users, one.items), torch.zeros(len(one.of), 2)
            into |= {n + suffix: models[n].score(*pairs) if known else none[:, 0] for n in names}
            if len(names) > 1:
                near = models["knn_users"].nearest(*pairs, 2) if known else none
                into |= {f"near1{suffix}": near[:, 0], f"near2{suffix}": near[:, 1]}
                for side in ("items", "users"):
                    count = segment_count(torch.from_numpy(getattr(part, side)), size)
                    into[f"{side[:-1]}_events{suffix}"] = count[torch.from_numpy(getattr(one, side))]
    for one, into in zip(lists, made, strict=True):
        of = torch.from_numpy(one.of)
        for name in [n for n in into if not n.startswith("user_events")]:
            values = into[name].float().double()  # sums in another order are ties
            mean, best = segment_mean(values, of, size)[of], segment_max(values, of, size)[of]
            spread = segment_mean((values - mean) ** 2, of, size).sqrt()[of] + 1e-12
            into[f"{name}_place"] = rank_in_group(-values, of) - 1  # equal values share the first of their places
            into |= {f"{name}_gap": (values - best) / spread, f"{name}_z": (values - mean) / spread}
        # Trees add up badly: the means over all filters are columns, too.
        into |= {f"filters_{how}": torch.stack([into[f"{n}_{how}"] for n in _FILTERS]).mean(0) for how in ("gap", "z")}
        if log.ratings is not None:
            rated = log.take(~np.isnan(log.ratings))
            for side in ("items", "users"):  # NaN where there are none
                mean = segment_mean(torch.from_numpy(rated.ratings), torch.from_numpy(getattr(rated, side)), size)
                into[f"{side[:-1]}_rating"] = mean[torch.from_numpy(getattr(one, side))]
    return [{n: v.float() for n, v in into.items()} for into in made]
