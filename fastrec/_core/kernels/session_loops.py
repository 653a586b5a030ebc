"""Loops over sessions on a CPU, compiled: a session's neighbours, what these give each item, and trees over candidates.

Sessions are packed: items' codes one after the other, session ``i`` at ``offsets[i]`` up to ``offsets[i + 1]``. Each
thread has a stretch of the sessions that are asked for.
"""

import numpy as np
from numba import njit, prange

from fastrec._core.kernels.loop_tools import LOOP, PARALLEL


@njit(**LOOP)
def _decay(table, distance):
    return table[min(distance, len(table) - 1)]


@njit(**LOOP)
def _gather(items, lo, hi, known, tables, alike, place, back, touched, used):
    """Sum each session's overlap with the query session, whose items count from the last on, each once.

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
    """Keep so many of the latest sessions; reset the others' sums."""
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
    """Keep the ``k`` most similar sessions, of equal ones the later; reset the others' sums."""
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
    """Score all items for sessions by their most similar sessions.

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
    """Return the highest scores of each row, of equal ones the lower code first.

    Args:
        scores: float32 ``[n, codes]``.
        items, found: int64 zeros and float32 -inf ``[n, k]``, changed: codes and their scores, the best first.
        parts: how many threads.
    """
    n = len(scores)
    for part in prange(parts):
        _best_part(scores, items, found, n * part // parts, n * (part + 1) // parts)


@njit(**LOOP)
def _together(item, log, weights, times, farthest, tables, postings, cap, sums, touched):
    """Sum the weights of events near those of an item; ``touched`` lists the items; return their number."""
    (items, offsets, rows), (places, starts) = log, postings
    after, before = tables
    count, stop = 0, starts[item + 1]
    for at in range(max(starts[item], stop - cap), stop):
        p = places[at]
        lo, hi = offsets[rows[p]], offsets[rows[p] + 1]
        for q in range(max(lo, p - len(before)), min(hi, p + len(after) + 1)):
            other = items[q]
            if other == item or (len(times) > 0 and abs(times[q] - times[p]) > farthest):
                continue
            weight = weights[q] * (after[q - p - 1] if q > p else before[p - q - 1])
            if weight > 0:
                if sums[other] == 0:
                    touched[count] = other
                    count += 1
                sums[other] += weight
    return count


@njit(**LOOP)
def _keep_best(sums, touched, count, of_item, codes, best):
    """Sort the items with the highest sums times factors to the front, ties by code; reset the sums."""
    k, held = len(codes), 0
    for j in range(count):
        code = touched[j]
        x = sums[code] * of_item[code]
        sums[code] = 0
        if held == k and not (x > best[k - 1] or (x == best[k - 1] and code < codes[k - 1])):
            continue
        i = min(held, k - 1)
        while i > 0 and (best[i - 1] < x or (best[i - 1] == x and codes[i - 1] > code)):
            best[i], codes[i] = best[i - 1], codes[i - 1]
            i -= 1
        best[i], codes[i] = x, code
        held = min(held + 1, k)


@njit(**LOOP)
def _together_part(log, weights, times, farthest, tables, postings, cap, of_item, items, scores, lo, hi):
    sums, touched = np.zeros(len(of_item), np.float32), np.empty(len(of_item), np.int64)
    for item in range(lo, hi):
        count = _together(item, log, weights, times, farthest, tables, postings, cap, sums, touched)
        _keep_best(sums, touched, count, of_item, items[item], scores[item])


@njit(**PARALLEL)
def co_visits(log, weights, times, farthest, tables, postings, cap, of_item, items, scores, parts):
    """Return every item's near items in sessions, the heaviest first.

    Args:
        log: items int64 ``[n]``, offsets of the sessions, and the session of each event.
        weights: float32 ``[n]``: of an event as a neighbour.
        times: float64 ``[n]``, or of no length.
        farthest: the longest time between neighbours.
        tables: float32: weights of events 1, 2, … after, and before.
        postings: places of every item's events, and where its stretch starts.
        cap: how many of an item's events are looked at: the last.
        of_item: float32 factor of an item as a neighbour.
        items, scores: int64 -1 and float32 zeros ``[items, k]``, changed.
        parts: how many threads.
    """
    n, total = len(of_item), postings[1][-1]
    for part in prange(parts):  # so that each has about as many events
        lo = np.searchsorted(postings[1], total * part // parts) if part > 0 else 0
        hi = np.searchsorted(postings[1], total * (part + 1) // parts) if part < parts - 1 else n
        _together_part(
            log, weights, times, farthest, tables, postings, cap, of_item, items, scores, min(lo, n), min(hi, n)
        )


@njit(**LOOP)
def _two_hops_part(near, weights, share, codes, scores, lo, hi):
    n = len(near)
    sums, touched, ones = np.zeros(n, np.float32), np.empty(n, np.int64), np.ones(n, np.float32)
    for item in range(lo, hi):
        count = 0
        for a in range(near.shape[1]):
            middle = near[item, a]
            if middle < 0:
                break
            for b in range(-1, near.shape[1]):  # first the near item itself
                other = middle if b < 0 else near[middle, b]
                if other < 0:
                    break
                weight = weights[item, a] * (np.float32(1) if b < 0 else share * weights[middle, b])
                if other == item or weight <= 0:
                    continue
                # written out here and below: as a function, inlined too, it takes up to twice as long
                if sums[other] == 0:
                    touched[count] = other
                    count += 1
                sums[other] += weight
        _keep_best(sums, touched, count, ones, codes[item], scores[item])


@njit(**PARALLEL)
def two_hops(near, weights, share, codes, scores, parts):
    """Return near items, and the near items of these.

    Args:
        near, weights: int64 and float32 ``[items, k]``: near items, -1 where there are no more, and their weights.
        share: how much an item of the second hop counts.
        codes, scores: int64 -1 and float32 zeros ``[items, keep]``, changed.
        parts: how many threads.
    """
    n = len(near)
    for part in prange(parts):
        _two_hops_part(near, weights, share, codes, scores, n * part // parts, n * (part + 1) // parts)


@njit(**LOOP)
def _near_to_all_part(events, weights, offsets, items, scores, found, out, lo, hi):
    n = len(items)
    sums, touched, ones = np.zeros(n, np.float32), np.empty(n, np.int64), np.ones(n, np.float32)
    for row in range(lo, hi):
        count = 0
        for i in range(offsets[row], offsets[row + 1]):
            item = events[i]
            for j in range(items.shape[1]):
                other, weight = items[item, j], weights[i] * scores[item, j]
                if other < 0 or weight <= 0:
                    continue
                if sums[other] == 0:
                    touched[count] = other
                    count += 1
                sums[other] += weight
        _keep_best(sums, touched, count, ones, found[row], out[row])


@njit(**PARALLEL)
def near_to_all(events, weights, offsets, items, scores, found, out, parts):
    """Return the items that are nearest to the events of each session.

    Args:
        events, weights: items (int64) and weights (float32) of events, session after session.
        offsets: where each session starts.
        items, scores: near items of every item, -1 for none, and their weights: int64 and float32 ``[items, m]``.
        found, out: int64 -1 and float32 zeros ``[sessions, k]``, changed.
        parts: how many threads.
    """
    n = len(found)
    for part in prange(parts):
        lo, hi = n * part // parts, n * (part + 1) // parts
        _near_to_all_part(events, weights, offsets, items, scores, found, out, lo, hi)


@njit(**LOOP)
def _leaves_part(x, feature, threshold, leaf, out, lo, hi):
    width, size, levels = x.shape[1], 32, 0
    while 1 << levels < leaf.shape[1]:
        levels += 1
    wide = np.zeros(2 * width * size, np.float32)  # column by column: rows step down a tree side by side
    at, total = np.empty(size, np.uint32), np.empty(size, np.float32)
    for start in range(lo, hi, size):
        count = min(size, hi - start)
        for r in range(count):
            total[r] = out[start + r]
            for f in range(width):
                value = x[start + r, f]
                gone = value != value
                wide[f * size + r] = np.float32(-np.inf) if gone else value
                wide[(width + f) * size + r] = np.float32(np.inf) if gone else value
        for t in range(len(leaf)):
            features, thresholds, leaves = feature[t], threshold[t], leaf[t]
            at[:] = 1
            for _ in range(levels):
                for r in range(size):
                    value = wide[np.uint32(features[at[r]]) * np.uint32(size) + np.uint32(r)]
                    at[r] = np.uint32(2) * at[r] + np.uint32(value >= thresholds[at[r]])
            for r in range(size):
                total[r] += leaves[at[r] - np.uint32(len(leaves))]
        out[start : start + count] = total[:count]


@njit(**PARALLEL)
def sum_of_leaves(x, feature, threshold, leaf, out, parts):
    """Add to each row's number the leaves that it reaches, tree by tree.

    Args:
        x: float32 ``[n, features]``, NaN where a value is missing.
        feature, threshold: uint32 and float32 ``[trees, 2^depth]``: node ``i``, from 1, goes on to node ``2 i``, or to
            ``2 i + 1`` where the feature is not below the threshold. A feature plus ``features`` is the same one, but
            a missing value goes to ``2 i + 1``.
        leaf: float32 ``[trees, 2^depth]``.
        out: float32 ``[n]``, changed.
        parts: how many threads.
    """
    n = len(x)
    for part in prange(parts):
        _leaves_part(x, feature, threshold, leaf, out, n * part // parts, n * (part + 1) // parts)
