"""Batches: every session once an epoch, what is asked of it, and what is changed in training only."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.sequences import SessionFrame, SessionLoader, session_dataloaders
from tests._core.refusals import refused

LISTS = st.lists(st.lists(st.integers(1, 9), max_size=12), min_size=1, max_size=30)


def frame_of(lists: list[list[int]]) -> SessionFrame:
    return SessionFrame({"items": [*lists, list(range(1, 10))]}, item="items")


def pairs(batches) -> list[tuple]:
    """Every session of every batch as the inputs and targets that count."""
    found = []
    for items, lengths, target in batches:
        assert items.shape == target.shape
        assert bool(((items > 0).sum(1) == lengths).all())
        for row, n, right in zip(items.tolist(), lengths.tolist(), target.tolist(), strict=True):
            assert not any(row[n:] + right[n:])
            found.append((tuple(row[:n]), tuple(right[:n])))
    return sorted(found)


@given(LISTS, st.integers(1, 6), st.integers(4, 60), st.booleans(), st.booleans())
def test_an_epoch_has_every_session_once(lists, max_len, tokens, shuffle, chronological):
    frame = frame_of(lists)
    options = {"max_len": max_len, "tokens": tokens, "shuffle": shuffle, "chronological": chronological, "seed": 1}
    loader = SessionLoader(frame, **options)
    cut = [p.tolist()[-max_len - 1 :] for p in frame.values.split(frame.lengths.tolist()) if len(p) > 1]
    wanted = sorted((tuple(c[:-1]), tuple(c[1:])) for c in cut)
    for _ in range(2):
        batches = list(loader)
        assert pairs(batches) == wanted
        assert len(batches) <= len(loader)
        assert all(int(b[1].sum()) <= loader.tokens + max_len for b in batches)


@given(LISTS, st.integers(1, 6), st.booleans(), st.sampled_from([(), ("crop",), ("reversed", "reorder"), ("prefix",)]))
def test_times_go_with_their_events(lists, max_len, with_target, augment):
    rows = [(s, item, 1e9 + 100 * s + item) for s, own in enumerate([*lists, [1, 2, 3]]) for item in sorted(own)]
    frame = SessionFrame(pd.DataFrame(rows, columns=["s", "i", "t"]), item="i", session="s", order="t")
    if with_target:
        frame.target = torch.ones(len(frame), dtype=torch.int64)
    loader = SessionLoader(frame, max_len=max_len, timed=True, augment=augment, seed=0)
    ids = torch.tensor([0, *frame.items.values.to_pylist()])
    for batch in loader.new(frame):
        items, lengths, times, target = (t.cpu() for t in batch)
        assert times.dtype == torch.float64
        for row, n in enumerate(lengths.tolist()):
            known = ~times[row, :n].isnan()  # a target has no time, and changes may move it
            assert bool(known.all()) or (with_target and "reversed" in augment and int((~known).sum()) == 1)
            own = (times[row, :n] - 1e9)[known]
            assert torch.equal(own % 100, ids[items[row, :n]].double()[known])
            assert len(set((own // 100).tolist())) <= 1
        assert target.shape == items.shape
    assert loader.n_inp == 3


def test_batches_are_as_many_as_promised_and_of_like_length():
    draw = random.Random(0)
    frame = frame_of([[draw.randint(1, 9) for _ in range(draw.randint(2, 30))] for _ in range(600)])
    loader = SessionLoader(frame, tokens=200, max_len=40, shuffle=True, seed=0)
    batches = list(loader)
    assert len(batches) == len(loader)
    padding = sum(int((b[0] == 0).sum()) for b in batches) / sum(b[0].numel() for b in batches)
    assert padding < 0.15
    again = list(SessionLoader(frame, tokens=200, max_len=40, shuffle=True, seed=0))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))
    assert not all(a[0].shape == b[0].shape and torch.equal(a[0], b[0]) for a, b in zip(batches, loader, strict=True))


@pytest.mark.parametrize("timed", [True, False])
def test_chronological_chunks_follow_the_sessions_times_or_their_order(timed):
    n = 4000
    log = {"s": [i for i in range(n) for _ in range(2)], "i": [i % 7 for i in range(2 * n)]}
    log["t"] = [float((i * 37) % n if timed else i) for i in range(n) for _ in range(2)]
    frame = SessionFrame(log, item="i", session="s", order=["t"] * timed, features=["t"])
    loader = SessionLoader(frame, tokens=16, max_len=4, shuffle=True, chronological=True, seed=0)
    times = [float(b[2][:, 0].mean()) for b in loader]
    chunks = [sum(times[a : a + 32]) / len(times[a : a + 32]) for a in range(0, len(times), 32)]
    assert chunks == sorted(chunks)


def test_only_the_last_event_is_asked_of_held_out_sessions():
    train = frame_of([[1, 2, 3]])
    held = train.new({"items": [[1, 2, 3], [4], [1]], "y": [4, 2, None]}, target="y")
    dls = session_dataloaders(train, held, tokens=64, augment=["crop", "reversed", "mask", "prefix"])
    assert pairs(dls.valid) == [((1, 2, 3), (0, 0, 4)), ((4,), (2,))]
    for words, bad in (("next", {"task": "next"}), ("mirror", {"augment": ["mirror"]}), ("max_len=0", {"max_len": 0})):
        refused(DataError, words, lambda bad=bad: SessionLoader(train, **bad))


def test_hidden_events_are_asked_for_where_they_stand():
    frame = frame_of([[1, 2, 3, 4, 5, 6, 7, 8]] * 50)
    mask = len(frame.items)
    share = []
    for items, lengths, target in SessionLoader(frame, task="masked", tokens=100, max_len=20, seed=0):
        hidden = items == mask
        assert torch.equal(hidden, target > 0)
        whole = torch.where(hidden, target, items)
        assert whole[0, : int(lengths[0])].tolist() == list(range(1, int(lengths[0]) + 1))
        assert bool(hidden.any(1).all())
        share.append(hidden[:, :-1].float().mean())
    assert 0.15 < torch.stack(share).mean() < 0.3
    for items, lengths, order, target in SessionLoader(frame, task="permuted", tokens=100, max_len=20, seed=0):
        assert torch.equal(order > 0, target > 0)
        assert torch.equal(torch.where(target > 0, target, items), items)
        for row in order:
            told = row[row > 0].sort().values.tolist()
            assert told == list(range(1, len(told) + 1))
        assert int(lengths.max()) == items.shape[1]


@pytest.mark.parametrize("name", ["prefix", "crop"])
def test_cut_sessions_are_parts_of_themselves(name):
    frame = frame_of([list(range(1, 10))] * 40)
    seen = set()
    for row, right in pairs(SessionLoader(frame, augment=[name], tokens=64, max_len=8, shuffle=True, seed=0)):
        assert list(row) == list(range(row[0], row[0] + len(row)))
        assert list(right) == [v + 1 for v in row]
        seen.add((row[0], len(row)))
    assert {n for _, n in seen} == set(range(1, 9))
    assert ({a for a, _ in seen} == {1}) == (name == "prefix")


def test_half_of_the_sessions_run_backwards_and_some_inputs_are_hidden():
    frame = frame_of([list(range(1, 10))] * 400)
    loader = SessionLoader(frame, augment=["reversed", "mask"], tokens=4000, shuffle=True, seed=0)
    items, _, target = next(iter(loader))
    back = target[:, 0] < target[:, 1]
    assert 0.4 < back.float().mean() < 0.6
    hidden = items == len(frame.items)
    assert 0.07 < hidden.float().mean() < 0.13
    inner = ~hidden
    forth = torch.where(back.unsqueeze(1), target - 1, target + 1)
    assert torch.equal(items[inner], forth[inner])


def test_a_window_of_half_of_the_sessions_stands_in_another_order_with_its_sides():
    n = 12
    df = pd.DataFrame({"s": np.repeat(np.arange(300), n), "i": np.tile(np.arange(n), 300)})
    frame = SessionFrame(df.assign(x=df.i.astype(str)), item="i", session="s", features=["x"])
    kinds = frame.codings["x"].vocab.values.to_pylist()

    def batch(change):
        loader = SessionLoader(frame, augment=[change], tokens=8000, max_len=n, shuffle=True, seed=0)
        items, _, sides, target = next(iter(loader))
        of_items = [[str(v) for v in row] for row in (items - 1).tolist()]
        assert [[kinds[c - 1] for c in row] for row in sides.tolist()] == of_items  # sides go with their events
        return items, target

    items, target = batch("reorder")
    whole = torch.cat([items, target[:, -1:]], 1).cpu() - 1
    assert torch.equal(whole.sort(1).values, torch.arange(n).repeat(len(whole), 1))
    changed = whole != torch.arange(n)
    moved = changed.any(1)
    assert 0.35 < moved.double().mean() < 0.6
    starts = set()
    for row, other in zip(whole[moved], changed[moved], strict=True):
        at = other.nonzero().squeeze(1)
        assert int(at[-1] - at[0]) < n // 3
        assert sorted(row[at[0] : at[-1] + 1].tolist()) == list(range(int(at[0]), int(at[-1]) + 1))
        starts.add(int(at[0]))
    assert {0, n - n // 3} <= starts
    assert (batch("reversed")[0][:, 0] == n).any()
