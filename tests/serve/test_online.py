"""``Online``: features served from events equal those of the batch, event by event."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.serve import Online
from tests.serve.online_frames import ITEMS, SCHEMA, batch, equal, fitted, from_log, from_rows, random_rows

EVERY = [*from_log(), *from_rows()]


def chosen(which: list[int]) -> list:
    """Some generators, with those that they read by name."""
    made = [EVERY[i] for i in sorted(set(which))]
    read = {n for f in made for n in f.inputs}
    more = [f for f in EVERY if f not in made and set(f.outputs) & read]
    return [*more, *made]


def replay(features: list, seed: int, *, keep: int, late: int, steps: int = 10) -> int:
    """Events and requests in turn; how many requests were answered."""
    rng, fs = np.random.default_rng(seed), fitted(features)
    online = Online(fs, tables={"log": SCHEMA, "items": ITEMS, "history": SCHEMA}, keep=keep, late=late)
    if "items" in online.tables:
        online.observe(ITEMS, "items")
    log, past, newest, answered = SCHEMA.empty_table(), SCHEMA.empty_table(), 0, 0
    for step in range(steps):
        span = (max(newest - late - (4 if rng.random() < 0.3 else 0), 0), newest + 3)
        events = random_rows(rng, int(rng.integers(1, 9)), span)
        if rng.random() < 0.6 and "log" in online.tables:
            log = pa.concat_tables([log, events])
            online.observe(events, "log")
        elif "history" in online.tables:
            past = pa.concat_tables([past, events])
            online.observe(events)
        newest = max([newest, *log["t"].to_pylist(), *past["t"].to_pylist()])
        asked = random_rows(rng, int(rng.integers(1, 5)), (max(newest - late, 0), newest + 3))
        try:
            got = online.features(asked)
        except DataError as error:
            assert "folded" in str(error) and min(asked["t"].to_pylist()) < newest - late
            continue
        answered += 1
        equal(got, batch(fs, asked, log, past).select(got.column_names))
    return answered


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    which=st.lists(st.integers(0, len(EVERY) - 1), min_size=1, max_size=6),
    seed=st.integers(0, 2**20),
    keep=st.integers(1, 6),
    late=st.integers(0, 3),
)
def test_any_features_equal_the_batch(which: list[int], seed: int, keep: int, late: int) -> None:
    assert replay(chosen(which), seed, keep=keep, late=late, steps=6) == 6


@pytest.mark.parametrize("i", range(len(EVERY)), ids=[repr(f)[:40] for f in EVERY])
def test_each_generator_equals_the_batch(i: int) -> None:
    assert replay(chosen([i]), i, keep=2, late=1, steps=12) == 12
