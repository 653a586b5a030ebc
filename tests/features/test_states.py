"""States that are damaged, or made by a stranger: a named error, or nothing worse than other numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone

from fastrec.errors import FastrecError
from fastrec.features import CountEncode, FeatureSet, GroupStats, NUnique, SvdEncode
from fastrec.features._state_shapes import _SHAPES
from fastrec.features.base import Fitted
from fastrec.table import Keys, Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_arrow
from tests.features.test_contract import CLASSES

DATA, NEW, TABLES = to_arrow(columns(20)), to_arrow(columns(12, seed=3)), tables()


def fitted():
    """A fitted step of every class that learns, two examples of each, with the columns that it reads."""
    found = {}
    for name, makers in EXAMPLES.items():
        for i, make in enumerate(makers):
            fs = FeatureSet([make()], key="row", folds=3)
            step = fs.features[0]
            if isinstance(step, Fitted):
                found.setdefault(name, []).append((f"{name}-{i}", make))
    return [pytest.param(make, id=label) for all_ in found.values() for label, make in all_]


def leaves(state, path=()):
    """Every part of a state with the way to it, containers among them."""
    yield path, state
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    for name, held in items:
        yield from leaves(held, (*path, name))


def replaced(state, path, value):
    """A state with one part another."""
    if not path:
        return value
    name, *rest = path
    if isinstance(state, dict):
        return {n: replaced(v, rest, value) if n == name else v for n, v in state.items()}
    return [replaced(v, rest, value) if i == name else v for i, v in enumerate(state)]


def damaged(value):
    """What a part may be instead: what it is called, the part, whether it must be refused."""
    yield "text", "x", True
    yield "a number", 3.5, True
    yield "nothing", None, True
    yield "a list of itself", [value], True
    if isinstance(value, dict):
        for name in value:
            yield f"without {name}", {n: v for n, v in value.items() if n != name}, False
        yield "empty", {}, False
    elif isinstance(value, list | tuple):
        yield "one more", [*value, *value[-1:]], bool(value)
        yield "one less", list(value[:-1]), bool(value)
    elif isinstance(value, Keys):
        if len(value) > 1:
            yield "keys cut", value.take(np.arange(len(value) - 1)), False
            yield "a key twice", value.take(np.zeros(len(value), dtype=np.int64)), True
        nulls = tuple(pa.nulls(len(c), c.type) for c in value.columns)
        yield "missing keys", Keys(nulls, value.names), len(value) > 0
        yield "no columns", Keys((), ()), True
        yield "a column more", Keys((*value.columns, value.columns[0]), value.names), False
    elif isinstance(value, torch.Tensor):
        other = torch.float64 if not value.is_floating_point() else torch.int64
        yield "another dtype", torch.nan_to_num(value.double()).to(other), False
        yield "complex", value.to(torch.complex64), True
        yield "small", value.to(torch.uint8), value.dtype != torch.uint8
        yield "flat", value.reshape(-1)[:0], False
        yield "deeper", value.unsqueeze(0), True
        yield "cut", value[..., :-1], False
        yield "longer", torch.cat([value, value[..., -1:]], -1), False
        yield "negative", value - (1 << 40) if value.dtype == torch.int64 else -value.double(), False
        yield "out of range", value + (1 << 40) if value.dtype == torch.int64 else value.double() * 1e300, False
        yield "no numbers", value.double() * torch.nan, False


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("make", fitted())
def test_a_damaged_state_is_refused_or_harmless(make):
    fs = FeatureSet([make()], key="row", folds=3).fit(DATA, tables=TABLES)
    step, state = fs.features[0], fs.features[0].get_state()
    read = Table.read(FeatureSet(fs.steps).transform(NEW, tables=TABLES))
    accepted, refused = [], []
    for path, value in leaves(state):
        for what, other, must in damaged(value):
            if "order" in path:  # only merging reads it
                continue
            again = clone(step)
            try:
                again.set_state(replaced(state, path, other))
                with again.using(fs._context(TABLES, read)):
                    again.compute(read)
            except FastrecError as error:
                refused.append(str(error))
                continue
            if must and state:
                accepted.append((path, what))
    assert not accepted
    assert all(type(step).__name__ in text for text in refused)


def test_every_class_that_learns_has_a_shape():
    for name, cls in CLASSES.items():
        if issubclass(cls, Fitted):
            assert any(c.__name__ in _SHAPES for c in cls.__mro__), name


@pytest.mark.parametrize("make", fitted())
def test_an_undamaged_state_is_taken(make):
    fs = FeatureSet([make()], key="row", folds=3).fit(DATA, tables=TABLES)
    for step in fs.steps:
        if isinstance(step, Fitted):
            clone(step).set_state(step.get_state())
    empty = FeatureSet([make()], key="row", folds=3)
    try:
        empty.fit(DATA.slice(0, 0), tables=TABLES)
    except FastrecError:
        return
    for step in empty.steps:
        if isinstance(step, Fitted):
            clone(step).set_state(step.get_state())


def test_the_part_is_named():
    count = CountEncode("item").fit(DATA)
    state = count.get_state()
    state["count"] = [state["count"][0][:, :-1]]
    with pytest.raises(FastrecError, match=r"CountEncode: what was learned is damaged: state\.count\.0 has"):
        count.set_state(state)
    stats = GroupStats("item", by="user", order="when", stats=["last"]).fit(DATA)
    stats.get_state()["columns"]["item"]["ends"]["last"]["code"][:] = 99
    with pytest.raises(FastrecError, match="code beyond"):
        stats.set_state(stats.get_state())
    unique = NUnique("item", by="user").fit(DATA)
    with pytest.raises(FastrecError, match="lacks a group"):
        unique.set_state({**unique.get_state(), "groups": unique.get_state()["groups"].take(np.arange(2))})
    svd = SvdEncode("item", "user", dims=2).fit(DATA)
    with pytest.raises(FastrecError, match="vectors has"):
        svd.set_state({**svd.get_state(), "vectors": torch.zeros(2, 2, dtype=torch.float64)})
