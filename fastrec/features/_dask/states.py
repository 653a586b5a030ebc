"""What partitions have learned, merged on the cluster: as a tree, or by hash of the key where keys are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import dask
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.features._dask.blocks import task
from fastrec.features._dask.spill import spill_folder
from fastrec.features._engine.keyed import key_text
from fastrec.features._state_shapes import parts_by_key
from fastrec.features.base import Fitted, State
from fastrec.table import Keys
from fastrec.table.vocab import hash_codes

FAN_IN = 8  # states that one task merges
MANY_KEYS = 2_000_000  # keys of all partitions together from which no task holds them all
BUCKET_KEYS = 1_000_000  # of them in one bucket, about: a partition is cut into a piece for each bucket
_SEED = 4


def share(value: Any) -> Any:
    """A value that many tasks need: one task of the graph, which goes to the cluster once with each computation.

    Workers fetch it from one another, and it is there again where one of them dies. (What a client scatters is not:
    nothing says how to make it again.)
    """
    return dask.delayed(value, pure=False, traverse=False)


def merge_all(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    """States merged over all partitions, those of all batches in one pass.

    Args:
        batches: generators without what they have learned, and one task per partition that gives a state for each.

    Returns:
        For each batch one state per generator, here.
    """
    if not batches:
        return []
    with quietly():
        return _merge_all(batches)


@contextmanager
def quietly() -> Iterator[None]:
    """While it lasts Dask does not warn of a large graph: what was learned is in it, and is as large as it is."""
    with suppress(ImportError):  # it puts its own settings beside ours, and they would go when ours do
        import distributed  # noqa: F401
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
        yield


def _merge_all(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    if spill_folder() is not None:
        return _merged_one_by_one(batches)
    kept = dask.persist(*[list(parts) for _, parts in batches])
    sizes = dask.compute(*[[task(_key_counts, list(steps), p) for p in own] for (steps, _), own in zip(batches, kept)])
    plans = []
    for (steps, _), own, counts in zip(batches, kept, sizes, strict=True):
        keys = [sum(c[i] for c in counts) for i in range(len(steps))]
        hashed = [i for i, total in enumerate(keys) if total > MANY_KEYS]
        others = [i for i in range(len(steps)) if i not in hashed]
        tree = _tree([steps[i] for i in others], [task(_chosen, p, others) for p in own]) if others else None
        pieces = {i: [task(_chosen, p, [i]) for p in own] for i in hashed}
        plans.append((others, tree, {i: _by_hash(steps[i], pieces[i], keys[i]) for i in hashed}))
    found = []
    for (steps, _), (others, tree, hashed) in zip(batches, dask.compute(*plans), strict=True):
        states = dict(zip(others, tree or [], strict=True))
        states |= {i: _halves(steps[i], [p[0] for p in parts]) for i, parts in hashed.items()}
        found.append([states[i] for i in range(len(steps))])
    return found


def _merged_one_by_one(batches: Sequence[tuple[Sequence[Fitted], Sequence[Any]]]) -> list[list[State]]:
    """The same merges as those of ``_tree``, in one process: a partition's states at a time, for all batches.

    Dask, which sees all partitions, may begin many of them before it ends one, and hold their rows.
    """
    waiting: list[list[list[list[State]]]] = [[[]] for _ in batches]  # by batch and level of the tree
    for i in range(max(len(parts) for _, parts in batches)):
        here = [b for b, (_, parts) in enumerate(batches) if i < len(parts)]
        for b, states in zip(here, dask.compute(*[batches[b][1][i] for b in here]), strict=True):
            _put_in_tree(batches[b][0], waiting[b], states)
    return [_rest_of_tree(steps, levels) for (steps, _), levels in zip(batches, waiting, strict=True)]


def _put_in_tree(steps: Sequence[Fitted], levels: list[list[list[State]]], states: list[State]) -> None:
    for at in range(len(levels)):
        levels[at].append(states)
        if len(levels[at]) < FAN_IN:
            return
        states, levels[at] = merged(list(steps), *levels[at]), []
    levels.append([states])


def _rest_of_tree(steps: Sequence[Fitted], levels: list[list[list[State]]]) -> list[State]:
    states: list[list[State]] = []  # what the lower levels have left: the last of those of the level
    for level in levels:
        states = [merged(list(steps), *level, *states)] if level or states else []
    return states[0]


def _chosen(states: list[State], places: list[int]) -> list[State]:
    return [states[i] for i in places]


def _tree(steps: Sequence[Fitted], parts: list[Any]) -> Any:
    while len(parts) > 1:
        parts = [task(merged, list(steps), *parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return parts[0]


def merged(steps: list[Fitted], *parts: list[State]) -> list[State]:
    """States of several generators as one each.

    Args:
        steps: the generators.
        parts: a state for each of them, the earlier partitions' first.
    """
    return [_halves(step, [part[i] for part in parts]) for i, step in enumerate(steps)]


def _halves(step: Fitted, states: list[State]) -> State:
    """States as one, by halves: every key is sorted few times."""
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    return step.merge(_halves(step, states[:middle]), _halves(step, states[middle:]))


def _by_hash(step: Fitted, parts: list[Any], keys: int) -> list[Any]:
    """One task per bucket of keys, each gives the merged state of its keys: no key is in two of them."""
    count = min(len(parts), max(-(-keys // BUCKET_KEYS), 2))
    split = [task(_split, step, part, count, nout=count) for part in parts]
    return [_tree([step], [s[j] for s in split]) for j in range(count)]


def _key_counts(steps: list[Fitted], states: list[State]) -> list[int]:
    """How many keys each state holds; 0 where it cannot be taken apart."""
    shapes = [parts_by_key(step, state) for step, state in zip(steps, states, strict=True)]
    return [sum(len(_at(s, p)) for p, _ in found["keys"]) if found else 0 for s, found in zip(states, shapes)]


def _split(step: Fitted, states: list[State], count: int) -> tuple[list[State], ...]:
    """A state as ``count`` ones that merge to it: each has the keys of one bucket, the first all other parts."""
    (state,) = states
    shapes = parts_by_key(step, state)
    rows = {size: _rows_of(_at(state, place), count) for place, size in shapes["keys"]}
    return tuple([_bucket(state, shapes, rows, b)] for b in range(count))


def _rows_of(keys: Keys, count: int) -> list[torch.Tensor]:
    """The rows of the keys that are in each bucket: int64 ``[m]`` each."""
    if not len(keys):
        return [torch.zeros(0, dtype=torch.int64)] * count
    text = [key_text(c) for c in keys.columns]
    joined = text[0] if len(text) == 1 else pc.binary_join_element_wise(*text, pa.scalar("\x1f", pa.large_string()))
    bucket = torch.from_numpy(hash_codes(joined, count, seed=_SEED))
    return [(bucket == b).nonzero().squeeze(1) for b in range(count)]


def _bucket(state: State, shapes: dict[str, Any], rows: dict[str, list[torch.Tensor]], b: int) -> State:
    made = _copied(state)
    for place, size in shapes["keys"]:
        _put(made, place, _at(state, place).take(rows[size][b]))
    for place, size in shapes["last"]:
        value = _at(state, place)
        chosen = rows[size][b]
        if isinstance(value, dict):
            _put(made, place, {n: v[..., chosen] for n, v in value.items()})
        else:
            _put(made, place, value[..., chosen])
    for place in shapes["whole"] if b else []:
        value = _at(state, place)
        empty = (
            {n: torch.zeros_like(v) for n, v in value.items()} if isinstance(value, dict) else torch.zeros_like(value)
        )
        _put(made, place, empty)
    return made


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {n: _copied(v) for n, v in state.items()}
    return [_copied(v) for v in state] if isinstance(state, list) else state


def _at(state: Any, place: tuple[Any, ...]) -> Any:
    for name in place:
        state = state[name]
    return state


def _put(state: Any, place: tuple[Any, ...], value: Any) -> None:
    _at(state, place[:-1])[place[-1]] = value
