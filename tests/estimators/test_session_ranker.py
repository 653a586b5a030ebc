"""SessionRanker: what it reads of a session, and what never matters."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.errors import DataError, NotFittedError
from fastrec.estimators import Estimator, NetRanker, SessionRanker
from fastrec.estimators._trained_net import values_of_codes
from fastrec.estimators.session_ranker import EventCoder, with_items
from fastrec.table import Table, as_column
from fastrec.tabular import Categorify, TabularFrame
from fastrec.validate import ListEvents, Lists

KINDS = ["DIN", "BST"]
SMALL = {"layers": [16], "epochs": 8, "bs": 96, "lr": 1e-2, "most_events": 5}
C = 6  # candidates of a list


def with_events(rows: Lists, log: pd.DataFrame) -> Lists:
    names = {"lists": "g", "session": "s", "order": ["t"], "item": "item", "cats": ["kind"], "conts": ["dwell"]}
    return replace(rows, events=ListEvents.before(rows.table, log, **names, time="t"))


def planted(seed: int, lists: int = 200, noise: float = 0.0) -> Lists:
    """The candidate that was looked at is clicked; another was shown only, and most events are of other items."""
    rng = np.random.default_rng(seed)
    items = np.stack([rng.permutation(40)[:C] for _ in range(lists)])
    clicked = rng.integers(0, C, lists)
    log = []
    for i in range(lists):
        others = rng.integers(40, 60, rng.integers(0, 4))
        seen = [*((o, "look") for o in others), (items[i, clicked[i]], "look"), (items[i, clicked[i] - 1], "show")]
        log += [(i, t, int(item), kind, noise * rng.normal()) for t, (item, kind) in enumerate(seen)]
    log = pd.DataFrame(log, columns=["s", "t", "item", "kind", "dwell"])
    table = Table(
        {
            "g": np.repeat(np.arange(lists) * 3, C),
            "s": np.repeat(np.arange(lists), C),
            "t": np.full(lists * C, 50),
            "item": items.ravel(),
            "place": np.tile(np.arange(C, dtype=float), lists),
        }
    )
    label = torch.zeros(lists, C, dtype=torch.float64)
    label[torch.arange(lists), torch.from_numpy(clicked)] = 1
    rows = Lists(table, table["g"].integer(), conts=["place"], label=label.reshape(-1))
    return with_events(rows, log)


@cache
def fitted(kind: str) -> SessionRanker:
    return SessionRanker(kind, model=kind, **SMALL).fit(planted(0), planted(2, 20), seed=1)


def right(scores: torch.Tensor, rows: Lists) -> float:
    return float((scores.view(-1, C).argmax(1) == rows.label.view(-1, C).argmax(1)).double().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_what_only_the_session_says(kind):
    """A guess is right in 1 of 6 lists, the item without its kind of event in 1 of 2."""
    test = planted(1)
    assert right(fitted(kind).predict(test), test) > 0.8
    plain = NetRanker("net", **{n: v for n, v in SMALL.items() if n != "most_events"}).fit(planted(0), seed=1)
    assert right(plain.predict(test), test) < 0.35
    assert set(fitted(kind).trace.curves[-1]) == {"epoch", "train_loss", "valid_loss", "mrr"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_event_never_matters(kind):
    test = planted(1)
    log = test.events.log.to_pandas()
    later = with_events(test, pd.concat([log.assign(t=50, item=7, kind="look"), log]))
    assert torch.equal(fitted(kind).predict(later), fitted(kind).predict(test))
    again = SessionRanker(kind, model=kind, **{**SMALL, "epochs": 1})
    train = planted(0, 40)
    log = train.events.log.to_pandas()
    changed = with_events(train, pd.concat([log.assign(t=60, dwell=1e6, kind="never"), log]))
    one, other = (again.fresh().fit(rows, seed=1).predict(test) for rows in (train, changed))
    assert torch.equal(one, other)  # nor in training: vocabularies and scales are of events before lists


@pytest.mark.parametrize("kind", KINDS)
def test_other_lists_and_older_events_never_matter(kind):
    test = planted(1, 30)
    whole = fitted(kind).predict(test)
    for one in (0, 7):
        rows = (torch.arange(len(test)) // C) == one
        torch.testing.assert_close(fitted(kind).predict(test.take(rows)), whole[rows], rtol=0, atol=1e-5)
    # events before the last five are not read
    log = test.events.log.to_pandas()
    old = pd.concat([log.assign(t=log.t - 100 + k, item=3) for k in range(5)])
    longer = with_events(test, pd.concat([old, log]))
    long = torch.bincount(torch.from_numpy(log.s.to_numpy(copy=True)), minlength=30) >= 5
    assert long.any()
    at = long.repeat_interleave(C)
    torch.testing.assert_close(fitted(kind).predict(longer)[at], whole[at], rtol=0, atol=1e-5)


def test_events_are_coded_as_a_loop_codes_them():
    rows = with_items(planted(3, 12, noise=1.0))
    coder = EventCoder.fit(rows, 3)
    frame = TabularFrame(rows.table, [Categorify], ["__item__"], ["place"], do_setup=True)
    items = frame.procs.fs[0]
    coded = coder(rows, items)
    vocab = list(items.vocab_of("__item__").classes)
    kinds = list(coder.frame.procs.fs[0].vocab_of("kind").classes)
    log, events = rows.events.log.to_pandas(), rows.events
    for i in range(12):
        a, b = int(coded.offsets[i]), int(coded.offsets[i + 1])
        own = log[int(events.starts[i]) : int(events.ends[i])][-3:]
        listed = rows.table["item"].values[i * C : i * C + C].tolist()
        assert coded.items[a:b].tolist() == [vocab.index(v) if v in vocab else 0 for v in own["item"]]
        assert coded.cats[a:b, 0].tolist() == [kinds.index(v) for v in own.kind]
        assert coded.listed[a:b].tolist() == [listed.index(v) if v in listed else -1 for v in own["item"]]
        np.testing.assert_allclose(coded.conts[a:b, 1], np.log1p(50 - own.t) / 10, rtol=1e-6)
        assert (np.argsort(coded.conts[a:b, 0].numpy()) == np.argsort(own.dwell.to_numpy())).all()
    batch = coded.batch(torch.tensor([4] * C + [2] * C))
    sizes = torch.diff(coded.offsets)[[4, 2]]
    assert batch.steps.shape == (2, int(sizes.max()))
    for row, (i, first) in enumerate([(4, 0), (2, C)]):
        a, n = int(coded.offsets[i]), int(sizes[row])
        assert batch.steps[row].tolist() == [*range(n - 1, -1, -1), *[-1] * (batch.steps.shape[1] - n)]
        listed = coded.listed[a : a + n]
        assert batch.listed[row, :n].tolist() == torch.where(listed >= 0, listed + first, -1).tolist()
        assert (batch.listed[row, n:] == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_one_predicts_the_same(kind, tmp_path):
    fitted(kind).save(tmp_path / "kept")
    loaded = Estimator.load(tmp_path / "kept")
    test = planted(1, 30)
    assert isinstance(loaded, SessionRanker)
    assert loaded.most_events == 5
    assert torch.equal(loaded.predict(test), fitted(kind).predict(test))
    loaded.save(tmp_path / "again")
    assert torch.equal(Estimator.load(tmp_path / "again").predict(test), loaded.predict(test))


def test_odd_rows():
    test = planted(1, 10)
    never = replace(test, events=replace(test.events, ends=test.events.starts))
    assert fitted("DIN").predict(never).isfinite().all()
    assert len(fitted("DIN").predict(test.take(torch.zeros(len(test), dtype=torch.bool)))) == 0
    unseen = test.with_table(test.table.with_columns({"item": test.table["item"].values + 1000}))
    assert fitted("BST").predict(unseen).isfinite().all()
    train = planted(0, 20)
    quiet = replace(train, events=replace(train.events, ends=train.events.starts))
    assert SessionRanker(**{**SMALL, "epochs": 1}).fit(quiet, seed=0).predict(test).isfinite().all()


def test_errors_name_what_is_missing():
    test = planted(1, 10)
    for rows, match in (
        (replace(test, events=None), "without the events before them"),
        (test.with_table(test.table.drop(["item"])), "lack the column of items"),
        (replace(test, events=replace(test.events, moments=None)), "with times"),
    ):
        with pytest.raises(DataError, match=match):
            fitted("DIN").predict(rows)
    for kind, options, match in (
        (SessionRanker, {"model": "TabularNet"}, "TabularNet reads no events"),
        (NetRanker, {"model": "DIN"}, "DIN reads events"),
        (SessionRanker, {"most_events": 0}, "most_events is 0"),
        (SessionRanker, {"epochs": -1}, "epochs is -1"),
    ):
        with pytest.raises(DataError, match=match):
            kind(**options)
    with pytest.raises(NotFittedError):
        SessionRanker().predict(test)


def test_a_warm_start_gives_each_item_its_own_vector(monkeypatch):
    """Items that come in between move the codes of all others; their first vectors stay."""
    first = fitted("DIN")
    second = SessionRanker("DIN", model="DIN", **SMALL)
    assert second.start_from(first)
    monkeypatch.setattr("fastrec.estimators.net.train_one_cycle", lambda *a, **k: None)
    later = planted(3)
    items = later.table["item"].values
    moved = later.table.with_columns({"item": torch.where(items % 7 == 0, -1 - items, items)})
    kinds = ["like" if k == "show" else k for k in later.events.log["kind"].to_arrow().to_pylist()]
    log = later.events.log.with_columns({"kind": as_column(kinds, name="kind")})
    later = replace(later, table=moved, events=replace(later.events, log=log))
    second = second.fresh().fit(later, seed=5)

    def of(ranker):
        frame = ranker._trained.frame
        values = values_of_codes(frame)[frame.cat_names[-1]]
        return dict(zip(values, ranker._trained.net.item.weight.detach(), strict=True))

    old, new = of(first), of(second)
    both = [v for v in new if v in old]
    assert len(both) > 30
    assert list(new).index(1) != list(old).index(1)
    assert all(torch.equal(old[v], new[v]) for v in both)
    assert not any(torch.equal(new[v], w) for v in new if v not in old for w in old.values())
    old, new = ({n: net._trained.net.kinds[0].weight[i] for i, n in enumerate(net._event_values()["kind"])}
                for net in (first, second))  # fmt: skip
    assert (list(old)[1:], list(new)[1:]) == (["look", "show"], ["like", "look"])
    assert torch.equal(old["look"], new["look"])
    assert not any(torch.equal(new["like"], w) for w in old.values())
    assert torch.equal(first._trained.net.row.weight, second._trained.net.row.weight)
