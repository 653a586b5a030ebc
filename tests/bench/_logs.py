"""An event log as those of a travel site, drawn from a seed: what the benchmarks of the features run on."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

KEYS = ("user", "session", "item", "city")
FOLDS = 5


def event_log(rows: int, *, keys: Literal["int", "str"] = "int", ordered: bool = False, seed: int = 0) -> pa.Table:
    """A log of ``rows`` events.

    Users have sessions (2.5 on average) and sessions have events (10 on average), so that both grow with the rows;
    items (up to 100,000) and cities (1,000) do not. Their frequencies are skewed; four in five events are in the item's
    own city. Times are whole seconds, no two of a user the same, so that every system sees one order.

    Args:
        rows: how many.
        keys: user, session, item and city as int64 or as text.
        ordered: by user and time; else in random order.
        seed: other seeds draw other logs.

    Returns:
        ``row, user, session, item, city, timestamp, price, clicked, fold``, nothing missing.
    """
    rng = np.random.default_rng(seed)
    session = _runs(rng, 10, rows)
    user = _runs(rng, 2.5, int(session[-1]) + 1)[session]
    items, cities = max(min(100_000, rows // 10), 2), min(1_000, rows // 10 + 2)
    item, city = _skewed(rng, items, rows), _skewed(rng, cities, rows)
    at_home = rng.random(rows) < 0.8
    city = np.where(at_home, rng.integers(0, cities, items)[item], city)
    rate = rng.beta(2, 6, items)[item]
    codes = {"user": user, "session": session, "item": item, "city": city}
    columns = {"row": np.arange(rows)}
    columns |= {name: _ids(rng, codes[name], name, keys) for name in KEYS}
    columns["timestamp"] = _times(rng, user, session)
    columns["price"] = np.round(rng.lognormal(4.5, 0.6, rows), 2)
    columns["clicked"] = (rng.random(rows) < rate).astype(np.int8)
    columns["fold"] = rng.integers(0, FOLDS, rows)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if ordered:
        return table
    return table.drop_columns(["row"]).take(pa.array(rng.permutation(rows))).add_column(0, "row", table["row"])


def _runs(rng: np.random.Generator, mean: float, rows: int) -> np.ndarray:
    """Numbers 0, 0, 0, 1, 1, …: each so many times as a geometric draw says, ``rows`` in all."""
    lengths = rng.geometric(1 / mean, int(rows / mean * 1.5) + 100)
    return np.repeat(np.arange(len(lengths)), lengths)[:rows]


def _skewed(rng: np.random.Generator, size: int, rows: int) -> np.ndarray:
    """Numbers below ``size``, number k as frequent as 1 / (k + 10), in shuffled order of frequency."""
    share = np.cumsum(1 / (np.arange(size) + 10))
    drawn = np.searchsorted(share, rng.random(rows) * share[-1]).clip(0, size - 1)
    return rng.permutation(size)[drawn]


def _times(rng: np.random.Generator, user: np.ndarray, session: np.ndarray) -> np.ndarray:
    gap = rng.integers(1, 90, len(user))
    gap[1:] += (session[1:] != session[:-1]) * rng.integers(3_600, 86_400, len(user) - 1)
    total = np.cumsum(gap)
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]])
    return (
        1_541_030_400
        + total
        - np.repeat(total[first] - rng.integers(0, 86_400, len(first)), np.diff(np.r_[first, len(user)]))
    )


def _ids(rng: np.random.Generator, codes: np.ndarray, name: str, keys: str) -> np.ndarray | pa.Array:
    """Ids with gaps between them, in the order of the codes."""
    numbers = np.cumsum(rng.integers(1, 1_000, int(codes.max()) + 1))
    if keys == "int":
        return numbers[codes]
    words = pa.array([f"{name[0].upper()}{number:011X}" for number in numbers.tolist()])
    return words.take(pa.array(codes))
