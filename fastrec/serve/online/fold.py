"""Fold old events: keep the few that a generator still reads, and sums of the others.

A generator that counts the events of a popular item needs only the number of old ones. For each generator that can be
folded exactly, ``kept`` marks the old events that it still reads, and ``sums`` computes the others' part of its
outputs. All old events are strictly earlier than every later request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fastrec.features import (
    Collect,
    CoVisit,
    CumCount,
    Diff,
    History,
    JaccardToHistory,
    JoinTable,
    Lag,
    LastAction,
    LastKnown,
    Rolling,
    TimeSince,
)
from fastrec.features.base import Feature
from fastrec.features.columns import as_list, name_of, number_of, order_keys
from fastrec.features.history import slug
from fastrec.features.lagged import positive, seconds_in
from fastrec.segments import lexical_order
from fastrec.table import Table

CUT = "\x00cut"  # of a base: the time that all folded events are before


def can_fold(steps: Sequence[Feature], made: Collection[str]) -> bool:
    """Tell whether all generators that read a key's events can do without most of its old ones."""
    first = {tuple(as_list(getattr(s, "order", None))[:1]) for s in steps}

    def is_simple(step: Feature) -> bool:
        if set(as_list(getattr(step, "order", None))) & set(made):
            return False
        if isinstance(step, History | LastKnown | TimeSince | LastAction) and set(step.inputs) & set(made):
            return False
        if isinstance(step, History):
            return "is_last" not in as_list(step.stats)
        if isinstance(step, LastKnown):
            return not step.ahead
        return not step.uses_future if isinstance(step, Lag) else getattr(step, "duplicates", "") != "error"

    return len(first) == 1 and all(type(s) in _KEPT and is_simple(s) for s in steps)


def first_order(steps: Sequence[Feature]) -> str | None:
    """Return the order column that gives an event's age; None if its place among the events does."""
    order = as_list(getattr(steps[0], "order", None))
    return order[0] if order else None


def span_of(step: Feature) -> Fraction:
    """Return how far back a generator looks, in seconds or the order's unit."""
    spans = [Fraction(0)]
    if isinstance(step, Rolling):
        spans += [seconds_in(w, wanted_by="Rolling", what="window") for w in as_list(step.window) if isinstance(w, str)]
    elif isinstance(step, Lag) and step.horizon is not None:
        read: Callable[..., Fraction] = seconds_in if isinstance(step.horizon, str) else positive
        spans.append(read(step.horizon, wanted_by="Lag", what="horizon"))
    return max(spans)


def kept(step: Feature, old: Table) -> torch.Tensor:
    """Mark the old events of a key that the generator still reads: bool ``[n]``."""
    keys = order_keys(old, as_list(getattr(step, "order", None)))
    order = lexical_order(keys) if keys else None
    rows = torch.arange(len(old)) if order is None else order
    marks = _KEPT[type(step)](step, old, rows)
    if keys and len(rows):  # and all at the same time as those, so that the last of them stays the last
        time = keys[0][rows]
        marks = marks | torch.isin(time, time[marks])
    return torch.zeros(len(old), dtype=torch.bool).index_put_((rows,), marks)


def summed(step: Feature) -> dict[str, str]:
    """Return the outputs that folded events add to, and the type of their sums."""
    if isinstance(step, CumCount):
        return {step.outputs[0]: "i8"}
    if not isinstance(step, History):
        return {}
    kinds = [f"count_{slug(k)}" for k in as_list(step.kinds)] if step.by_kind else []
    counts = [*(["count"] if "count" in as_list(step.stats) else []), *kinds]
    return {f"{step.name}_{c}": "i8" for c in counts} | {f"{step.name}_sum_{v}": "f8" for v in as_list(step.sums)}


def sums(step: Feature, gone: Table) -> dict[str, Any]:
    """Compute what events add to each of those outputs."""
    if isinstance(step, CumCount):
        return {step.outputs[0]: len(gone)}
    if not isinstance(step, History):
        return {}
    kind, counted = _kinds(step, gone)
    made: dict[str, Any] = {f"{step.name}_count": int(counted.sum())}
    made |= {f"{step.name}_count_{slug(word)}": int((kind == i).sum()) for i, word in enumerate(as_list(step.kinds))}
    for name in as_list(step.sums):
        values = number_of(gone, name, wanted_by=step).nan_to_num(0, math.inf, -math.inf)
        made[f"{step.name}_sum_{name}"] = float(values[counted].sum())
    return {n: made[n] for n in summed(step)}


def base_type(steps: Sequence[Feature], record: np.dtype) -> np.dtype:
    """Return the dtype of a key's folded events; ``record`` is that of one event."""
    order = first_order(steps)
    parts = [(CUT, "f8" if order is not None and record[order].kind == "f" else "i8")]
    return np.dtype(parts + [part for step in steps for part in summed(step).items()])


def _kinds(step: History, events: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number in ``kinds`` of each event (-1: none), and whether it counts."""
    if step.kinds is None:
        return torch.full((len(events),), -1), torch.ones(len(events), dtype=torch.bool)
    kind = step._kinds(events)
    return kind, kind >= 0


# Which old events are kept, by class: bool ``[n]`` in the order of ``rows``, which is that of time --------------------


def _last(marks: torch.Tensor, n: int) -> torch.Tensor:
    return marks & (marks.flip(0).long().cumsum(0).flip(0) <= n)


def _newest(rows: torch.Tensor, n: int) -> torch.Tensor:
    return _last(torch.ones_like(rows, dtype=torch.bool), n)


def _first(marks: torch.Tensor) -> torch.Tensor:
    return marks & (marks.long().cumsum(0) == 1)


def _history(step: History, old: Table, rows: torch.Tensor) -> torch.Tensor:
    counted = _kinds(step, old)[1][rows]
    return _last(counted, 1) | _first(counted)


def _time_since(step: TimeSince, old: Table, rows: torch.Tensor) -> torch.Tensor:
    marks = torch.zeros_like(rows, dtype=torch.bool)
    for event in step._events:
        happened = marks | True if event is None else (number_of(old, event, wanted_by=step) > 0)[rows]
        marks |= _first(happened) if step.first else _last(happened, 1)
    return marks


def _co_visit(step: CoVisit, old: Table, rows: torch.Tensor) -> torch.Tensor:
    usable = ~old[step.item].is_missing()
    return _last((usable if step.weights is None else usable & (step._weights(old) > 0))[rows], step.last)


def _known(old: Table, name: Any, rows: torch.Tensor, n: int) -> torch.Tensor:
    return _last(~old[name_of(name)].is_missing()[rows], n)


_KEPT: dict[type[Feature], Callable[[Any, Table, torch.Tensor], torch.Tensor]] = {
    History: _history,
    CumCount: lambda step, old, rows: torch.zeros_like(rows, dtype=torch.bool),  # sums say it all
    Lag: lambda step, old, rows: _newest(rows, max(as_list(step.n))),
    Diff: lambda step, old, rows: _newest(rows, max(as_list(step.n))),
    LastKnown: lambda step, old, rows: torch.stack([_known(old, c, rows, 1) for c in as_list(step.cols)]).any(0),
    Rolling: lambda step, old, rows: _newest(
        rows, max((int(w) for w in as_list(step.window) if not isinstance(w, str)), default=0)
    ),
    TimeSince: _time_since,
    LastAction: lambda step, old, rows: _known(old, step.action, rows, max(as_list(step.n))),
    Collect: lambda step, old, rows: _newest(rows, step.max_len),
    JaccardToHistory: lambda step, old, rows: _newest(rows, step.last),
    CoVisit: _co_visit,
    JoinTable: lambda step, old, rows: (
        _first(torch.ones_like(rows, dtype=torch.bool)) if step.duplicates == "first" else _newest(rows, 1)
    ),
}


def is_old(first: np.ndarray, newest: Any, margin: Fraction) -> tuple[np.ndarray, Any]:
    """Mark events older than the newest by more than a margin; return that too, the time before which they are."""
    cut = float(newest) - float(margin) if first.dtype.kind == "f" else int(newest) - math.ceil(margin)
    return first < cut, cut
