"""States of partitions, merged on the cluster: as a tree, or by hash of the key if keys are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import dask
import torch

from fastrec._core import limits
from fastrec.features._dask.blocks import task
from fastrec.features._dask.files import spill_folder
from fastrec.features._engine.keyed import hash_keys
from fastrec.features.base import Fitted, State
from fastrec.table import Keys

ByKey = Sequence[Sequence[str]]  # see ``Fitted``


def share(value: Any) -> Any:
    """Wrap a value that many tasks need in one task, so that it is sent to the cluster once per computation."""
    # Workers fetch it from each other, and it is recreated if one dies, unlike a client's scattered value
    return dask.delayed(value, pure=False, traverse=False)


def merge_all(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    """Merge states over partitions, all batches in one pass; returns one state per generator and batch, here."""
    # batches: unfitted generators, and one task per partition that returns a state for each
    if not batches:
        return []
    with quietly():
        # Dask would start many partitions before it ends one, and hold all their rows.
        return _merged_at_once(batches) if spill_folder() is None else _merged_one_by_one(batches)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Dask's warning about large graphs: learned states are part of the graph."""
    # Importing distributed later would reset this setting.
    with suppress(ImportError):
        import distributed  # noqa: F401
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
        yield


def _merged_at_once(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    kept = dask.persist(*[list(parts) for _, parts in batches])
    forms = [[step.by_key for step in steps] for steps, _ in batches]
    count = lambda states, form: list(map(_key_count, states, form))  # noqa: E731
    sizes = dask.compute(*[[task(count, p, form) for p in own] for own, form in zip(kept, forms)])
    plans = []
    for (steps, _), own, counts in zip(batches, kept, sizes, strict=True):
        keys = [sum(c[i] for c in counts) for i in range(len(steps))]
        # A tree ends in one task with all keys; many keys are merged in buckets instead.
        hashed = [i for i, total in enumerate(keys) if total > limits.MANY_KEYS]
        others = [i for i in range(len(steps)) if i not in hashed]
        few = [steps[i] for i in others]
        chosen = lambda states, places: [states[i] for i in places]  # noqa: E731
        whole = tree(partial(merged, few), [task(chosen, p, others) for p in own]) if others else None
        pieces = {i: [task(chosen, p, [i]) for p in own] for i in hashed}
        plans.append((others, whole, {i: _by_hash(steps[i], pieces[i], keys[i]) for i in hashed}))
    found = []
    for (steps, _), (others, whole, hashed) in zip(batches, dask.compute(*plans), strict=True):
        states = dict(zip(others, whole or [], strict=True))
        states |= {i: _halves(steps[i], [p[0] for p in parts]) for i, parts in hashed.items()}
        found.append([states[i] for i in range(len(steps))])
    return found


def _merged_one_by_one(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    """Merge as ``tree`` does, but in one process with one partition's states at a time."""
    waiting: list[list[tuple[int, list[State]]]] = [[] for _ in batches]  # by batch: partitions merged, their states
    for i in range(max(len(parts) for _, parts in batches)):
        here = [b for b, (_, parts) in enumerate(batches) if i < len(parts)]
        for b, states in zip(here, dask.compute(*[batches[b][1][i] for b in here]), strict=True):
            size = 1
            while waiting[b] and waiting[b][-1][0] == size:  # equal halves, so that every key is sorted few times
                states, size = merged(batches[b][0], waiting[b].pop()[1], states), 2 * size
            waiting[b].append((size, states))
    return [merged(steps, *(states for _, states in own)) for (steps, _), own in zip(batches, waiting, strict=True)]


def tree(merge: Callable[..., Any], parts: Sequence[Any]) -> Any:
    """Return the task that merges many tasks' results, a few at a time; ``merge`` takes several."""
    while len(parts) > 1:
        parts = [task(merge, *parts[i : i + limits.FAN_IN]) for i in range(0, len(parts), limits.FAN_IN)]
    return parts[0]


def merged(steps: Sequence[Fitted], *parts: list[State]) -> list[State]:
    """Merge the states of several generators; ``parts``: a state for each, earlier partitions first."""
    return [_halves(step, [part[i] for part in parts]) for i, step in enumerate(steps)]


def _halves(step: Fitted, states: list[State]) -> State:
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    # By halves instead of in sequence: every key is sorted few times.
    return step.merge(_halves(step, states[:middle]), _halves(step, states[middle:]))


def _by_hash(step: Fitted, parts: list[Any], keys: int) -> list[Any]:
    """Return one task per bucket of keys that returns the merged state of its keys."""
    count = min(len(parts), max(-(-keys // limits.BUCKET_KEYS), 2))
    split = [task(_split, step, part, count, nout=count) for part in parts]
    return [tree(partial(merged, [step]), [s[j] for s in split]) for j in range(count)]


def _key_count(state: Any, by_key: ByKey) -> int:
    """Count the keys of a state; 0 if it cannot be split."""
    if isinstance(state, list):
        return sum(_key_count(s, by_key) for s in state)
    if not isinstance(state, dict):
        return 0
    there = [state[n] for n, *_ in by_key if n in state]
    keys = sum(len(k) for found in there for k in (found if isinstance(found, list) else [found]))
    return keys + sum(_key_count(s, by_key) for s in state.values())


def _split(step: Fitted, states: list[State], count: int) -> tuple[list[State], ...]:
    """Split a state into ``count`` ones that merge to it: each has the keys of one bucket, the first all else."""
    return tuple([piece] for piece in _cut(states[0], step.by_key, count))


def _cut(state: Any, by_key: ByKey, count: int) -> list[Any]:
    if isinstance(state, torch.Tensor):  # a total over all keys
        return [state, *[torch.zeros_like(state)] * (count - 1)]
    if isinstance(state, list):
        return [list(p) for p in zip(*[_cut(s, by_key, count) for s in state])] if state else [[]] * count
    if not isinstance(state, dict):
        return [state] * count
    pieces = {}
    for name, *parts in by_key:
        if name in state:
            found = state[name]
            rows = [_rows_of(k, count) for k in found] if isinstance(found, list) else _rows_of(found, count)
            pieces |= {n: [_taken(state[n], rows, b) for b in range(count)] for n in (name, *parts)}
    pieces |= {n: _cut(v, by_key, count) for n, v in state.items() if n not in pieces}
    return [{n: pieces[n][b] for n in state} for b in range(count)]


def _taken(part: Any, rows: list[Any], b: int) -> Any:
    """Take the entries of bucket ``b``'s keys; ``rows``: by bucket, or a list of such if ``part`` is a list."""
    if isinstance(part, list):
        each = rows if isinstance(rows[0], list) else [rows] * len(part)
        return [_taken(p, r, b) for p, r in zip(part, each, strict=True)]
    if isinstance(part, dict):
        return {n: _taken(p, rows, b) for n, p in part.items()}
    return part.take(rows[b]) if isinstance(part, Keys) else part[..., rows[b]]


def _rows_of(keys: Keys, count: int) -> list[torch.Tensor]:
    if not len(keys):
        return [torch.zeros(0, dtype=torch.int64)] * count
    bucket = hash_keys(keys, count, 4)
    return [(bucket == b).nonzero().squeeze(1) for b in range(count)]
