"""The log beside the candidates of a ranking: its columns, and features of what happened before each list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastrec._core import limits
from fastrec._core.messages import nearest
from fastrec.auto.columns import _TIME_NAME, _stem
from fastrec.auto.lists import codes_of, named_as_groups, refuse_absent, words
from fastrec.auto.problem import LogColumns, Problem
from fastrec.auto.rankings import IDEAS, Idea, _numbers
from fastrec.auto.trial import QuickTrial
from fastrec.errors import DataError, MissingColumnError
from fastrec.features import Combine, CumCount, GroupPick, GroupRank, GroupStats, History, Lag, LastKnown, Where
from fastrec.features.base import Feature
from fastrec.features.columns import as_list
from fastrec.features.history import slug
from fastrec.table.column_types import type_of

_KINDS = re.compile(r"kind|type|event|action|behaviou?r|activity|operation")


# Which columns of the log are what. The log and the candidates call one thing by one name.


def find_log(made: Problem, *, owner: str | None = None, time: str | None = None) -> LogColumns:
    """Find the log's columns of owners, items, times and kinds.

    ``owner`` and ``time`` name columns that the user has chosen; None: they are looked for. A log is refused if it has
    no items or times, other types or units than the candidates, no common value, or no event before a list.
    """
    files, rows = made.files, made.train
    name = _stem(files.log)
    log = files.side[name] = files.reading.convert(files.side[name], name)
    if made.item is None:
        raise DataError("a log needs a column that names the candidates", remedy="Name it: item= (--item)")
    _check(made, log, made.item, "item")
    groups = codes_of(rows[made.lists])
    first = np.unique(groups, return_index=True)[1]
    both = []
    for n in (n for n in rows.column_names if n in log.column_names and n not in (made.item, *made.target)):
        values = codes_of(rows[n])
        both += [n] if (values == values[first][groups]).all() else []
    times = [n for n in both if pa.types.is_temporal(rows[n].type)]
    times += [n for n in both if _whole(rows[n]) and _TIME_NAME.search(n)]
    when = time or next((n for n in (made.time, *times) if n in both), None)
    if when is None:
        remedy = "Give the time of each list and of each event under one name"
        raise MissingColumnError("log and candidates share no column of times", file=files.log, remedy=remedy)
    _check(made, log, when, "time")
    if when not in both:
        raise DataError("the rows of one list have several times", column=when, remedy="Give each list one time")
    owners = _owners(made, log, [n for n in both if n != when], owner)
    found = LogColumns(name, owners, [when])
    lists, events = rows.take(first), log.select([owners[0], when]).to_pandas()
    begins = lists[owners[0]].to_pandas().map(events.groupby(owners[0])[when].min())
    past = (begins < lists[when].to_pandas()).mean()
    if not past:
        (low, high), (begin, end) = ([v.as_py() for v in pc.min_max(t[when]).values()] for t in (lists, log))
        remedy = "Give the events that were before the lists"
        if not pa.types.is_temporal(log[when].type) and not limits.ONE_UNIT > begin / max(low, 1) > 1 / limits.ONE_UNIT:
            remedy = "Give both one unit: one may be in seconds, the other in milliseconds"
        problem = f"no event of a {owners[0]} is before its list: events are from {begin} to {end}, "
        raise DataError(f"{problem}lists from {low} to {high}", file=files.log, column=when, remedy=remedy)
    found.order += _steps(log, owners[0], when, [n for n in both if n not in (when, *owners)])
    found.kind = _kind(made, log, {*found.order, *owners})
    said = f"{past:.0%} of the lists have an event of their {owners[0]} before them; order {', '.join(found.order)}"
    if found.kind is not None:
        kinds = log[found.kind].cast(pa.string()).to_pandas()
        counts = log[made.item].to_pandas().groupby(kinds).agg(["size", "count"])
        counts = counts.sort_values("size", ascending=False)
        named = {slug(k): str(k) for k in reversed(counts.index) if slug(k)}  # of two with one name the commoner
        found.kinds = [str(k) for k in counts.index if str(k) in named.values()][: limits.LOG_KINDS]
        found.of_items = [str(k) for k, n in counts["count"].items() if n and str(k) in found.kinds]
        said += f"; {found.kind} is {', '.join(found.kinds)}"
    made.note("log", [name, *owners], said)
    return found


def _whole(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_integer(column.type))


def _meet(here: pa.Array | pa.ChunkedArray, there: pa.ChunkedArray) -> bool:
    """Tell whether a value is in both, whatever the widths of their numbers."""
    values, others = (pc.unique(v).drop_null().to_pandas() for v in (here, there))
    return bool(values.isin(others).any())


def _check(made: Problem, log: pa.Table, name: str, what: str) -> None:
    """Refuse a column that the log or the candidates lack, that differs in type, or has no value in common."""
    refuse_absent(made.files, name, what)
    here, file = made.train[name], made.files.log
    if name not in log.column_names:
        same = [n for n in log.column_names if log[n].type == here.type and n not in made.train.column_names]
        same = [n for n in same if what != "time" and pc.any(pc.is_in(log[n], pc.unique(here))).as_py()]
        near = next(iter(same), nearest(name, log.column_names))
        remedy = f"Rename {near!r} to {name!r}" if near is not None else f"There are {', '.join(log.column_names[:20])}"
        raise MissingColumnError(f"the log lacks the candidates' {what}", file=file, column=name, remedy=remedy)
    there = log[name]
    same_type = here.type == there.type or not pa.types.is_temporal(here.type)
    if type_of(here.type) != type_of(there.type) or not same_type:
        remedy = "Write the ids in both as they are written in one, and leave it empty in events of no item"
        if what == "time":
            remedy = "Give both one type and unit, for example by pd.to_datetime and .dt.as_unit('s')"
        problem = f"the {what} is of type {here.type} among the candidates, and {there.type} in the log"
        raise DataError(problem, file=file, column=name, remedy=remedy)
    row = pc.index(there.is_null(nan_is_null=True), True).as_py()
    if what == "time" and row >= 0:
        raise DataError("the event has no time", file=file, column=name, row=row, remedy="Drop such rows")
    if what != "time" and not _meet(here, there):
        one, other = here[0].as_py(), next(iter(there.drop_null()[:1].to_pylist()), None)
        remedy = "Write the ids in both as they are written in one"
        problem = f"no value is in both: {one!r} among the candidates, {other!r} in the log"
        raise DataError(problem, file=file, column=name, remedy=remedy)


def _owners(made: Problem, log: pa.Table, both: Sequence[str], asked: str | None) -> list[str]:
    """Return the columns that say whose an event is, the narrowest first: a session, a user."""
    if asked is not None:
        _check(made, log, asked, "owner")
    found, strangers = [], [] if asked is None else [asked]
    for name in both if asked is None else [n for n in both if n == asked]:
        values = pc.unique(made.train[name]).drop_null()
        one_type = type_of(values.type) == type_of(log[name].type)
        if asked is None and len(values) <= limits.FEW_CLASSES and name != made.lists:
            continue
        if one_type and _meet(values, log[name]):
            found.append((named_as_groups(name), len(values), name))
        else:
            strangers.append(name)
    named = [f for f in found if f[0]] or found
    if not named:
        remedy = "Give each list and each event its session or user under one name"
        why = ": it has several values in a list" if asked is not None else ""
        why = ": it is in both, and no value of it" if strangers and asked is None else why
        remedy += ", or name the column: owner= (--owner)"
        problem, column = f"no column says whose the events are{why}", next(iter(strangers), None)
        raise DataError(problem, file=made.files.log, column=column, remedy=remedy)
    return [n for _, _, n in sorted(named, reverse=True)][:2]


def _steps(log: pa.Table, owner: str, when: str, both: Sequence[str]) -> list[str]:
    """Return a number that orders an owner's events, those of one moment too; none if there is no such one."""
    for name in (n for n in both if _whole(log[n]) and not log[n].null_count):
        frame = log.select([owner, when, name]).to_pandas().sort_values([owner, when, name], kind="stable")
        steps = frame[name].diff()[frame[owner].eq(frame[owner].shift())]
        if (steps > 0).mean() >= limits.STEPS_IN_ORDER:
            return [name]
    return []


def _kind(made: Problem, log: pa.Table, apart: set[str]) -> str | None:
    """Return the column of few values that differ within owners, and that the candidates lack."""
    found = []
    for name in (n for n in log.column_names if n not in {*apart, *made.train.column_names}):
        text, values = type_of(log[name].type) == "text", log[name]
        if (text or _whole(values)) and 1 < pc.count_distinct(values).as_py() <= limits.FEW_CLASSES:
            found.append((_KINDS.search(words(name)) is not None, text, name))
    return max(found)[2] if found else None


# Features. Each looks at events strictly before the list: none of one moment, none of later ones.


def _past(log: LogColumns, by: str | list[str], stats: str | list[str], name: str, kind: str | None = None) -> History:
    # Steps order the events of one owner; those of several go by the time alone.
    order = log.order if {*as_list(by)} & {*log.owners} else log.order[:1]
    kinds: dict[str, Any] = {} if kind is None else {"event": log.kind, "kinds": [kind]}
    return History(by, order=order, table=log.table, stats=stats, name=name, **kinds)  # type: ignore[arg-type]


def _touch(problem: Problem, owner: str, stat: str | None = None) -> History:
    """Return a statistic of the owner's events on the row's item; None: how long ago the last was."""
    if stat is None:
        stat = "steps" if len(problem.log.order) > 1 else "since"
    return _past(problem.log, [owner, str(problem.item)], stat, f"{owner}_{problem.item}")


def _last(problem: Problem, owner: str, col: str | Feature, n: int = 1) -> GroupPick:
    """Return a column's value in the row whose item the owner touched last, or n-th last."""
    return GroupPick(col, by=str(problem.lists), order=_touch(problem, owner), nth=n, name=f"{owner}_last{n}")


def _pairs(problem: Problem, trial: QuickTrial, owner: str) -> list[Feature]:
    log, name = problem.log, f"{owner}_{problem.item}"
    stats = dict.fromkeys(["count", "since", "since_first", "is_last", *(["steps"] if len(log.order) > 1 else [])])
    made: list[Feature] = [_touch(problem, owner, s) for s in stats]
    made += [_past(log, [owner, str(problem.item)], ["count", "since"], f"{name}_{slug(k)}", k) for k in log.of_items]
    share = Combine(_touch(problem, owner, "count"), "/", _past(log, owner, "count", owner), name=f"{name}_share")
    return [*made, share, GroupRank(_touch(problem, owner), by=str(problem.lists))]


def _places(problem: Problem, trial: QuickTrial, owner: str) -> list[Feature]:
    """Return how far a row stands from those whose items the owner touched."""
    lists, touched, word = str(problem.lists), _touch(problem, owner, "count"), f"{owner}_place"
    if not problem.as_shown:
        return []
    place = CumCount(lists)
    there = Where(place, touched, name=f"{word}_touched")
    stats = ["count", "min", "max", "mean"]
    anchors: dict[str, str | Feature] = {s: f"{s}_{word}_touched__{lists}" for s in stats[1:]}
    anchors |= {f"last{n}": _last(problem, owner, place, n) for n in (1, 2, 3)}
    anchors |= {"above": LastKnown(there, by=lists), "below": LastKnown(there, by=lists, ahead=True)}
    made: list[Feature] = [place, there, GroupStats(there, by=lists, stats=stats, over="group")]
    made += [Lag([_touch(problem, owner), touched], by=lists, n=[1, -1])]
    made += [Combine(place, "-", anchor, name=f"{word}_from_{n}") for n, anchor in anchors.items()]
    return [*made, Combine(anchors["last1"], "-", anchors["last2"], name=f"{word}_turn")]


def _beside(problem: Problem, trial: QuickTrial, owner: str) -> list[Feature]:
    """Return numbers beside those of the rows whose items the owner touched."""
    made: list[Feature] = []
    for n in _numbers(problem, trial):
        there = Where(n, _touch(problem, owner, "count"), name=f"{owner}_{n}_touched")
        mean = GroupStats(there, by=str(problem.lists), stats="mean", over="group")
        for word, other in (("last", _last(problem, owner, n)), ("touched", mean)):
            made += [Combine(n, how, other, name=f"{n}_{w}_{owner}_{word}") for how, w in _COMPARED.items()]
    return made


_COMPARED: dict[Literal["-", "/"], str] = {"-": "minus", "/": "over"}


def _owner(problem: Problem, trial: QuickTrial, owner: str) -> list[Feature]:
    log = problem.log
    made: list[Feature] = [_past(log, owner, s, owner) for s in ("count", "since", "since_first")]
    made += [_past(log, owner, ["count", "since"], f"{owner}_{slug(k)}", k) for k in log.kinds]
    return [*made, Combine(f"{owner}_since_first", "/", f"{owner}_count", name=f"{owner}_pace")]


def _popular(problem: Problem, trial: QuickTrial) -> list[Feature]:
    """Return the events on the item so far: how many, their kinds' shares, and where the row stands by them."""
    log, item = problem.log, str(problem.item)
    made: list[Feature] = []
    for kind in (None, *log.of_items):
        count = _past(log, item, "count", item if kind is None else f"{item}_{slug(kind)}", kind)
        made += [count, GroupRank(count, by=str(problem.lists), descending=True, method="average")]
        if kind is not None:
            made.append(Combine(count, "/", f"{item}_count", name=f"{item}_{slug(kind)}_share"))
    return made


def ideas(problem: Problem) -> list[tuple[str, Idea]]:
    """Return what is tried of a ranking: what its log says of a candidate stands before what other rows say."""
    if problem.log is None:
        return list(IDEAS)
    owner, *wider = problem.log.owners
    return [
        (f"events of the {owner} on the item", partial(_pairs, owner=owner)),
        (f"places beside the items that the {owner} touched", partial(_places, owner=owner)),
        (f"numbers beside those of the items that the {owner} touched", partial(_beside, owner=owner)),
        IDEAS[0],
        (f"events of the {owner} so far", partial(_owner, owner=owner)),
        *((f"events of the {o} on the item", partial(_pairs, owner=o)) for o in wider),
        ("events of all on the item", _popular),
        *IDEAS[1:],
    ]
