"""``ListEvents``: which events were before each list, against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError, MissingColumnError
from fastrec.table import Table
from fastrec.validate import ListEvents, Lists
from tests._core.refusals import refused

NAMES = {"lists": "g", "session": "s", "order": ["t", "step"], "item": "item"}


def tables(seed: int, lists: int = 12, events: int = 40) -> tuple[Table, Table]:
    """Lists of two candidates, and a log in no order; some sessions have no event, some events no session."""
    rng = np.random.default_rng(seed)
    session, t, step = rng.integers(0, 6, lists), rng.integers(0, 5, lists), rng.integers(0, 3, lists)
    names = np.array(list("abcdef"))
    shown = {"g": np.sort(rng.choice(100, lists, replace=False)), "s": names[session], "t": t, "step": step}
    candidates = Table({n: np.repeat(v, 2) for n, v in shown.items()} | {"item": rng.integers(0, 9, 2 * lists)})
    log = {"s": rng.choice(np.array([*"bcdefg", None]), events), "item": rng.integers(0, 9, events)}
    log |= {"t": rng.integers(0, 5, events), "step": rng.integers(0, 3, events), "kind": rng.choice(["x", "y"], events)}
    return candidates, Table({**log, "number": np.arange(events, dtype=float)})


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_a_list_has_the_events_of_its_session_that_are_strictly_before(seed):
    candidates, log = tables(seed)
    made = ListEvents.before(candidates, log, **NAMES, cats=["kind"], conts=["number"], time="t")
    shown, events = candidates.to_pandas().drop_duplicates("g"), log.to_pandas()
    at = made.of(torch.tensor(shown.g.to_numpy()))
    for (_, one), place in zip(shown.iterrows(), at.tolist(), strict=True):
        own = events[events.s == one.s]
        own = own[(own.t < one.t) | ((own.t == one.t) & (own.step < one.step))]
        expected = own.sort_values(["t", "step"], kind="stable").number.tolist()
        got = made.log["number"].values[made.starts[place] : made.ends[place]].tolist()
        assert got == expected
        assert float(made.moments[place]) == one.t


def test_some_lists_have_the_same_events():
    candidates, log = tables(0)
    events = ListEvents.before(candidates, log, **NAMES)
    rows = Lists(candidates, candidates["g"].integer(), label=torch.zeros(len(candidates)), events=events)
    assert rows.take(torch.arange(4)).events is events
    assert rows.with_table(candidates).events is events


def test_lists_named_by_text_are_found_by_any_part_of_their_table():
    candidates, log = tables(0)
    numbers = candidates["g"].integer()
    text = candidates.with_columns({"g": [f"list {100 - g:03d}" for g in numbers.tolist()]})
    events, known = (ListEvents.before(t, log, **NAMES) for t in (text, candidates))
    part = text.take(torch.arange(6, 16))
    at, known_at = events.of(part["g"].group_numbers()), known.of(numbers[6:16])
    assert torch.equal(events.ends[at] - events.starts[at], known.ends[known_at] - known.starts[known_at])


def test_what_is_not_known_is_named():
    candidates, log = tables(0)
    events = ListEvents.before(candidates, log, **NAMES)
    refused(DataError, "before the list 1000", lambda: events.of(torch.tensor([1000])))
    refused(MissingColumnError, "the log lack it", lambda: ListEvents.before(candidates, log, **NAMES, cats=["colour"]))
    with pytest.raises(MissingColumnError, match="candidates lack it"):
        ListEvents.before(candidates.drop(["step"]), log, **NAMES)
    refused(DataError, "without an order", lambda: ListEvents.before(candidates, log, **{**NAMES, "order": []}))
    none = ListEvents.before(candidates, log.take(torch.arange(0)), **NAMES)
    assert (none.starts == none.ends).all()
