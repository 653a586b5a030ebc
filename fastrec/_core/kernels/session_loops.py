"""Loops over sessions on a CPU, compiled: a session's neighbours among others, and what these give each item.

Sessions are packed: items' codes one after the other, session ``i`` at ``offsets[i]`` up to ``offsets[i + 1]``. Each
thread has a stretch of the sessions that are asked for.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL


@njit(**LOOP)
def _decay(table, distance):
    return table[min(distance, len(table) - 1)]


@njit(**LOOP)
def _gather(items, lo, hi, known, tables, alike, place, back, touched, used):
    """Add up what each session shares with the one asked for; its items from the last to the first, each once.

    Returns:
        How many sessions share an item. ``touched`` names them, ``alike`` holds the sums, ``place`` where in the
        session the match nearest to the end is, ``back`` how far from the end that is.
    """
    sessions, places, starts = known
    count = 0
    for i in range(hi - 1, lo - 1, -1):
        item, steps = items[i], hi - 1 - i
        if item < 0 or used[item]:
            continue
        used[item] = True
        weight = _decay(tables[0], steps)
        if weight <= 0:
            continue
        for j in range(starts[item], starts[item + 1]):
            n = sessions[j]
            if alike[n] == 0:
                touched[count] = n
                count += 1
                place[n], back[n] = places[j], steps
            alike[n] += weight
    for i in range(lo, hi):
        if items[i] >= 0:
            used[items[i]] = False
    return count


@njit(**LOOP)
def _latest(touched, count, sample, alike):
    """Keep the sessions that come last in the log, so many of them; the others' sums are set to 0."""
    if count <= sample:
        return count
    bound = np.partition(touched[:count], count - sample)[count - sample]
    kept = 0
    for i in range(count):
        n = touched[i]
        if n >= bound:
            touched[kept] = n
            kept += 1
        else:
            alike[n] = 0
    return kept


@njit(**LOOP)
def _nearest(touched, count, k, alike):
    """Keep the ``k`` most alike; of equal ones those that come later. The others' sums are set to 0."""
    if count <= k:
        return count
    values = np.empty(count, np.float32)
    for i in range(count):
        values[i] = alike[touched[i]]
    bound = np.partition(values, count - k)[count - k]
    above, ties = 0, 0
    for i in range(count):
        above += values[i] > bound
        ties += values[i] == bound
    lowest = 0
    if above + ties > k:
        tied = np.empty(ties, np.int64)
        at = 0
        for i in range(count):
            if values[i] == bound:
                tied[at] = touched[i]
                at += 1
        lowest = np.partition(tied, ties - (k - above))[ties - (k - above)]
    kept = 0
    for i in range(count):
        n = touched[i]
        if values[i] > bound or (values[i] == bound and n >= lowest):
            touched[kept] = n
            kept += 1
        else:
            alike[n] = 0
    return kept


@njit(**LOOP)
def _score_part(queries, log, known, tables, weights, limits, out, lo, hi):
    (items, offsets), (log_items, log_offsets) = queries, log
    of_session, of_item = weights
    total = len(log_offsets) - 1
    alike, place, back = np.zeros(total, np.float32), np.empty(total, np.int32), np.empty(total, np.int32)
    touched, used = np.empty(total, np.int64), np.zeros(out.shape[1], np.bool_)
    for q in range(lo, hi):
        row = out[q]
        count = _gather(items, offsets[q], offsets[q + 1], known, tables, alike, place, back, touched, used)
        count = _latest(touched, count, limits[0], alike)
        for i in range(count):
            alike[touched[i]] *= of_session[touched[i]]
        count = _nearest(touched, count, limits[1], alike)
        for i in range(count):
            n = touched[i]
            weight = alike[n] * _decay(tables[1], back[n])
            alike[n] = 0
            start = log_offsets[n]
            match = start + place[n]
            for p in range(start, log_offsets[n + 1]):
                near = _decay(tables[2], p - match) if p >= match else _decay(tables[3], match - p)
                row[log_items[p]] += weight * near
        for item in range(len(row)):
            row[item] *= of_item[item]


@njit(**PARALLEL)
def score_by_neighbours(queries, log, known, tables, weights, limits, out, parts):
    """Scores of all items for sessions, from the sessions that are most like them.

    Args:
        queries: items (int64, -1: not in the log) and offsets of the sessions that are asked for.
        log: items and offsets of the sessions that are known, those of the past first.
        known: of every item the sessions that have it, its last places in them, and where its stretch starts.
        tables: float32 decays by a distance in events: of an item to the end of its session when sessions are compared,
            of the match nearest to the end, and of an item after and before the match in the neighbour.
        weights: float32 factors of sessions and of items.
        limits: how many of the latest sessions with a shared item are looked at, and how many neighbours count.
        out: float32 ``[queries, items]``, changed: what items have already, over their factors.
        parts: how many threads.
    """
    n = len(queries[1]) - 1
    for part in prange(parts):
        lo, hi = n * part // parts, n * (part + 1) // parts
        _score_part(queries, log, known, tables, weights, limits, out, lo, hi)


@njit(**LOOP)
def _best_part(scores, items, found, lo, hi):
    k = items.shape[1]
    for r in range(lo, hi):
        row, best, codes = scores[r], found[r], items[r]
        worst = best[k - 1]
        for code in range(len(row)):
            if row[code] > worst:
                x, i = row[code], k - 1
                while i > 0 and best[i - 1] < x:
                    best[i], codes[i] = best[i - 1], codes[i - 1]
                    i -= 1
                best[i], codes[i] = x, code
                worst = best[k - 1]


@njit(**PARALLEL)
def best_of_rows(scores, items, found, parts):
    """The highest scores of each row, of equal ones that of the lower code first.

    Args:
        scores: float32 ``[n, codes]``.
        items, found: int64 zeros and float32 -inf ``[n, k]``, changed: codes and their scores, the best first.
        parts: how many threads.
    """
    n = len(scores)
    for part in prange(parts):
        _best_part(scores, items, found, n * part // parts, n * (part + 1) // parts)
