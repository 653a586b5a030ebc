"""Simulated files in the form of the OTTO competition's: what sessions clicked, put into the cart and ordered.

**World.** Items are of kinds of ``KIN`` each and have a popularity by a power law, which moves a little every week. In
a kind items stand in a ring: those near each other are alike. An item has its own chance of going into the cart after a
click, and of being ordered when it is there.

**Sessions.** A session begins at an item drawn by popularity. Then it clicks an item near the last one, goes back to
one that it had, takes a popular one of the kind, or begins anew in another kind. A click may be followed by a cart,
carts by orders. Breaks are of seconds to minutes, now and then of a day.

**Files.** ``train.jsonl`` has four weeks. Sessions of the fifth are cut at random: what was before stands in
``test.jsonl``, what came after in ``test_labels.jsonl``: the next item clicked, all items put into the cart, all
ordered. One seed gives the same files.

Run ``fastrec simulate competitions/otto --sessions 20000 --out DIR``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError

FILES = ("train.jsonl", "test.jsonl", "test_labels.jsonl")
TYPES = ("clicks", "carts", "orders")
KIN, STEPS, WEEK, BEGIN = 40, 60, 7 * 86_400_000, 1_659_304_800_000  # items of a kind; steps; ms; the first moment
NEAR, BACK, SAME_KIND = 0.55, 0.15, 0.15  # chances of the next click; else another kind
_BLOCK = 4096  # sessions that are written at a time


@dataclass
class Summary:
    """A summary of the simulation."""

    out: str
    sessions: int
    test_sessions: int
    items: int
    events: int
    carts: int
    orders: int


def simulate(
    sessions: int, out: str | Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """Write the files.

    Args:
        sessions: of all five weeks.
        out: folder to make; an earlier simulation there is replaced.
        seed: the same seed gives the same files.
        progress: called with the sessions done and their number.

    Raises:
        DataError: there are too few sessions for a test, or ``out`` holds other files.
    """
    if sessions < 50:
        raise DataError(f"{sessions} sessions are too few", remedy="Ask for 50 or more")
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(p.name not in FILES for p in out.iterdir())):
        raise DataError("holds files of something else", file=out, remedy="Name an empty or a new folder")
    rng = np.random.default_rng(seed)
    items = max(KIN * 5, KIN * (sessions // 250))
    log = _events(rng, sessions, items)
    starts = np.searchsorted(log["session"], np.arange(sessions + 1))
    in_test = log["ts"][starts[:-1]] >= BEGIN + 4 * WEEK
    cut = starts[:-1] + 1 + (rng.random(sessions) * (np.diff(starts) - 1)).astype(int)  # one event before and after
    kinds = np.array(TYPES)[log["type"]].tolist()
    aid, ts = log["aid"].tolist(), log["ts"].tolist()
    with atomic_folder(out) as part:
        files = {n: (part / n).open("w", encoding="utf-8") for n in FILES}
        try:
            for i in range(sessions):
                a, b = int(starts[i]), int(starts[i + 1])
                end = int(cut[i]) if in_test[i] else b
                events = [{"aid": aid[j], "ts": ts[j], "type": kinds[j]} for j in range(a, end)]
                name = FILES[int(in_test[i])]
                files[name].write(json.dumps({"session": i, "events": events}) + "\n")
                if in_test[i]:
                    labels = _labels(aid[end:b], kinds[end:b])
                    files[FILES[2]].write(json.dumps({"session": i, "labels": labels}) + "\n")
                if progress is not None and ((i + 1) % _BLOCK == 0 or i + 1 == sessions):
                    progress(i + 1, sessions)
        finally:
            for file in files.values():
                file.close()
    counts = np.bincount(log["type"], minlength=3).tolist()
    return Summary(str(out), sessions, int(in_test.sum()), items, len(aid), counts[1], counts[2])


def _labels(aid: list[int], kinds: list[str]) -> dict[str, Any]:
    """Return the next item clicked, and all that were put into the cart and ordered, each once."""
    of = {kind: list(dict.fromkeys(a for a, k in zip(aid, kinds, strict=True) if k == kind)) for kind in TYPES}
    labels: dict[str, Any] = {kind: of[kind] for kind in TYPES[1:] if of[kind]}
    return {**({"clicks": of["clicks"][0]} if of["clicks"] else {}), **labels}


def _events(rng: np.random.Generator, n: int, items: int) -> dict[str, np.ndarray]:
    """Draw all events by session and time, a step of all sessions at once."""
    start = np.sort(BEGIN + (rng.random(n) * 5 * WEEK).astype(np.int64))
    length = np.clip(2 + rng.geometric(0.16, n), 3, STEPS)
    popular = [_popularity(np.random.default_rng((1, week)), items) for week in range(5)]
    week = np.minimum((start - BEGIN) // WEEK, 4)
    carted, ordered = 0.05 + 0.2 * rng.random(items), 0.15 + 0.4 * rng.random(items)
    current = _draw(rng, popular, week)
    seen = np.zeros((n, STEPS), dtype=np.int64)
    time = start.copy()
    parts = []
    for step in range(STEPS):
        active = np.flatnonzero(length > step)
        if step:
            current[active] = _next(rng, current[active], seen[active], step, popular, week[active], items)
        now = current[active]
        seen[active, step] = now
        time[active] += _breaks(rng, len(active))
        parts.append((active, time[active], now, np.zeros(len(active), dtype=np.int64)))
        cart = rng.random(len(active)) < carted[now]
        order = cart & (rng.random(len(active)) < ordered[now])
        for kind, chosen in ((1, cart), (2, order)):
            time[active[chosen]] += _breaks(rng, int(chosen.sum()))
            parts.append((active[chosen], time[active[chosen]], now[chosen], np.full(int(chosen.sum()), kind)))
    session, ts, aid, kind = (np.concatenate(p) for p in zip(*parts, strict=True))
    by = np.lexsort((kind, ts, session))
    return {"session": session[by], "ts": ts[by], "aid": aid[by], "type": kind[by]}


def _breaks(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw milliseconds until the next event: minutes, one in thirty times hours."""
    return (1000 * rng.lognormal(3.5, 1.2, n) * np.where(rng.random(n) < 1 / 30, 500, 1)).astype(np.int64) + 1


def _popularity(rng: np.random.Generator, items: int) -> np.ndarray:
    """Draw the items' cumulated popularity in a week: the same power law in every week, with some noise."""
    order = np.random.default_rng(0).permutation(items)
    weight = 1.0 / (1 + order) ** 0.8 * rng.lognormal(0, 0.4, items)
    return np.cumsum(weight / weight.sum())


def _draw(rng: np.random.Generator, popular: list[np.ndarray], week: np.ndarray) -> np.ndarray:
    """Draw an item for each session, by the popularity of its week."""
    found = np.zeros(len(week), dtype=np.int64)
    for w, table in enumerate(popular):
        here = week == w
        found[here] = np.minimum(np.searchsorted(table, rng.random(int(here.sum()))), len(table) - 1)
    return found


def _next(
    rng: np.random.Generator,
    current: np.ndarray,
    seen: np.ndarray,
    step: int,
    popular: list[np.ndarray],
    week: np.ndarray,
    items: int,
) -> np.ndarray:
    """Draw the item that each session clicks next."""
    n, kind = len(current), current // KIN
    away = rng.geometric(0.4, n) * np.where(rng.random(n) < 0.7, 1, -1)
    near = kind * KIN + (current % KIN + away) % KIN
    back = seen[np.arange(n), (rng.random(n) * step).astype(int)]
    same = kind * KIN + (KIN * rng.random(n) ** 3).astype(np.int64)
    chance = rng.random(n)
    other = _draw(rng, popular, week)
    bounds = np.cumsum([NEAR, BACK, SAME_KIND])
    return np.select([chance < bounds[0], chance < bounds[1], chance < bounds[2]], [near, back, same], other) % items
