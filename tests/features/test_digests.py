"""Digests: unlike things have unlike ones, and what a function uses from outside is part of its own."""

from __future__ import annotations

import enum
import functools
import operator
import os
import random
import re
import subprocess
import sys
import types
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastrec.features as ff
from fastrec._core import limits
from fastrec.features._engine.digests import NoDigestError, column_digest, digest
from fastrec.table import Keys, Table

SERIES = pd.Series([1.0, 2.0], index=[0, 1])
FRAME = pd.DataFrame({"k": [1.0, 2.0]})
ARRAYS = {"k": np.array([1.0, 2.0])}
SETTINGS = types.SimpleNamespace(k=1.0)
COUNTS = Counter({"k": 1})
LISTED = [lambda x: x + 1]
OBJECTS = np.array([1.0, "a"], dtype=object)
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
TENSOR = torch.ones(2)
NUMBER = 1.0
CONFIG = types.ModuleType("own_config")
CONFIG.k = 1.0
CONFIG.deep = types.ModuleType("own_config.deep")
CONFIG.deep.k = 1.0


class Settings:
    K = 1.0
    HELD = {"k": np.ones(2)}  # noqa: RUF012


@dataclass
class Data:
    k: float = 1.0


class Slotted:
    __slots__ = ("__k",)

    def __init__(self, k):
        self.__k = k

    def k(self, x):
        return x + self.__k


Words = type("Words", (dict,), {})


class Scale:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k

    def times(self, x):
        return x * self.k


DATA, SLOTTED, SCALE, WORDS = Data(), Slotted(1.0), Scale(1.0), Words(k=1.0)
TABLE = Table({"k": np.array([1.0, 2.0])})
ENCODER = ff.CountEncode("item").fit(pd.DataFrame({"item": [1, 1, 2]}))


def inner(x):
    return x * SETTINGS.k


def through(x):
    return inner(x)


def helper(x):
    return x + 1


def defaulted(x, by=SETTINGS):
    return x * by.k


def inside(x):
    return sum(x * s for s in ARRAYS["k"])


def local_import(x):
    import own_config

    return x * own_config.k


def local_from(x):
    from own_config import k

    return x * k


@functools.lru_cache
def remembered(x):
    return x * SETTINGS.k


def closure(held):
    return lambda x: x * getattr(held, "k", held)


def write(holder, name, value):
    return lambda: setattr(holder, name, value)


def put(holder, key, value):
    return lambda: operator.setitem(holder, key, value)


# what a function looks like, and what changes of the things that it uses
USED = {
    "a number": (lambda x: x * NUMBER, put(globals(), "NUMBER", 2.0)),
    "another function": (lambda x: helper(x), put(globals(), "helper", lambda x: x + 2)),
    "a series": (lambda x: x * SERIES[0], put(SERIES, 0, 5.0)),
    "a series' index": (lambda x: x * SERIES.get(7, 0), lambda: setattr(SERIES, "index", pd.Index([0, 7]))),
    "a frame": (lambda x: x * FRAME["k"].sum(), put(FRAME.loc, (slice(None), "k"), [3.0, 4.0])),
    "arrays in a dict": (lambda x: x * ARRAYS["k"][0], put(ARRAYS["k"], 0, 5.0)),
    "arrays in a dict, in a generator": (inside, put(ARRAYS["k"], 0, 6.0)),
    "an attribute": (lambda x: x * SETTINGS.k, write(SETTINGS, "k", 2.0)),
    "an attribute, in another function": (through, write(SETTINGS, "k", 3.0)),
    "an attribute, of a default": (defaulted, write(SETTINGS, "k", 4.0)),
    "an attribute, of a closure": (closure(SETTINGS), write(SETTINGS, "k", 5.0)),
    "an attribute, remembered": (remembered, write(SETTINGS, "k", 6.0)),
    "an attribute, partial": (functools.partial(defaulted, by=SETTINGS), write(SETTINGS, "k", 7.0)),
    "a counter": (lambda x: x * COUNTS["k"], put(COUNTS, "k", 2)),
    "functions in a list": (lambda x: LISTED[0](x), put(LISTED, 0, lambda x: x + 2)),
    "functions in a list, of a generator": (
        ff.feature(inputs="x", outputs="twice")(lambda x: [LISTED[0](v) for v in x.tolist()]),
        put(LISTED, 0, lambda x: x * 9),
    ),
    "objects in an array": (lambda x: x * OBJECTS[0], put(OBJECTS, 0, 5.0)),
    "a mask": (lambda x: x * MASKED[0], put(MASKED, 0, np.ma.masked)),
    "a tensor": (lambda x: x * TENSOR[0], put(TENSOR, 0, 5.0)),
    "a module": (lambda x: x * CONFIG.k, write(CONFIG, "k", 2.0)),
    "a module in a module": (lambda x: x * CONFIG.deep.k, write(CONFIG.deep, "k", 2.0)),
    "a module, imported inside": (local_import, write(CONFIG, "k", 3.0)),
    "a name of a module, imported inside": (local_from, write(CONFIG, "k", 4.0)),
    "an attribute of a class": (lambda x: x * Settings.K, write(Settings, "K", 2.0)),
    "what a class holds": (lambda x: x * Settings.HELD["k"][0], put(Settings.HELD["k"], 0, 5.0)),
    "a dataclass": (lambda x: x * DATA.k, write(DATA, "k", 2.0)),
    "slots": (lambda x: SLOTTED.k(x), lambda: SLOTTED.__init__(2.0)),
    "a bound method": (SCALE.times, write(SCALE, "k", 2.0)),
    "an object that is called": (SCALE, write(SCALE, "k", 3.0)),
    "a dict of one's own": (lambda x: x * WORDS["k"], put(WORDS, "k", 2.0)),
    "a method of a library's object": (ARRAYS.get, put(ARRAYS["k"], 0, 7.0)),
    "a table": (lambda x: x * TABLE["k"].values[0], put(TABLE["k"].values, 0, 5.0)),
    "a fitted generator": (lambda x: ENCODER.transform(x), lambda: ENCODER.fit(pd.DataFrame({"item": [1, 2, 2]}))),
}


@pytest.mark.parametrize("what", USED)
def test_what_a_function_uses_is_part_of_its_digest(what, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_config", CONFIG)
    function, change = USED[what]
    before = digest(function)
    assert digest(function) == before
    change()
    assert digest(function) != before


def test_what_libraries_hold_is_no_reason_to_make_anew():
    expression, what = re.compile("a+"), enum.Enum("What", "A B").A

    def used(x, rx=expression, chosen=what):
        return np.where(x > np.pi, torch.sqrt(x), pd.to_numeric(x)) * functools.reduce(max, [1, 2])

    assert digest(used) == digest(used)


def test_a_functions_digest_is_the_same_in_another_process():
    code = (
        "import numpy as np, types\n"
        "from fastrec.features._engine.digests import digest\n"
        "held = types.SimpleNamespace(k={'a', 'b', 'c', 'd'}, n=np.arange(3))\n"
        "def f(x):\n"
        "    return [v for v in x if v in {'p', 'q', 'r', 's'}] + list(held.k)\n"
        "print(digest(f))\n"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "FASTREC_DEVICE": "cpu"}  # no digest asks for a device
    run = lambda seed: subprocess.check_output([sys.executable, "-c", code], env=environment | {"PYTHONHASHSEED": seed})  # noqa: E731
    assert len({run(seed) for seed in "12"}) == 1


LOOP: list = []
LOOP.append(LOOP)


class Knot:
    def __init__(self):
        self.me = self

    def run(self, x):
        return super().__repr__() and Knot and self.run and x


KNOT = Knot()


def recursive(n):
    return recursive(n - 1) if n else 0


def drawn(seed):
    return lambda x: x + np.random.default_rng(seed).normal(size=len(x))


WHOLE = torch.arange(6.0).view(2, 3)
LIKE = {
    "a closure": (closure(1), closure(1)),
    # scikit-learn's Cython takes over numpy's functions' class, which then names no module
    "a function of a library that is compiled": (drawn(1), drawn(1)),
    "a tensor of another stride": (WHOLE[:, 1], torch.tensor([1.0, 4.0])),
    "a tensor of one element, of stride 3": (WHOLE[:1, 1], torch.tensor([1.0])),
    "a tensor of bfloat16": (torch.arange(9).bfloat16()[::7][:1], torch.zeros(1, dtype=torch.bfloat16)),
    "a list that holds itself": (LOOP, LOOP),
    "an object that holds itself": (KNOT.run, KNOT.run),
    "a function of an object that holds itself": (lambda x: KNOT, lambda x: KNOT),
    "a function that calls itself": (recursive, recursive),
    "a class of compiled functions": (np.random.default_rng, np.random.default_rng),
}


@pytest.mark.parametrize("pair", LIKE.values(), ids=LIKE)
def test_like_things_have_like_digests(pair):
    import sklearn.ensemble  # noqa: F401

    assert digest(pair[0]) == digest(pair[1])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)),
        (np.zeros(3), np.ones(3)),
        (np.int64(1), 1),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (["a", "b"], ["a\x1fb"]),
        ([["a"], "b"], ["a", ["b"]]),
        ({"a": 1}, ["a", 1]),
        (Keys((pa.array(["a"]),), ("x",)), Keys((pa.array(["a"]),), ("y",))),
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (ff.CountEncode("a"), ff.CountEncode("b")),
        (ff.CountEncode("a"), ff.CountEncode(["a"], log=True)),
        (ff.CountEncode(ff.Cross("a", "b")), ff.CountEncode(ff.Cross("a", "c"))),
        (ff.CountEncode("a"), ff.GroupStats("a", by="b")),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (ff.RowFunction(lambda x: x + 1, "a", "b"), ff.RowFunction(lambda x: x * 1, "a", "b")),
        (closure(1), closure(2)),
        (drawn(1), drawn(2)),
    ],
)
def test_unlike_things_have_unlike_digests(a, b):
    assert digest(a) != digest(b)
    assert digest(a) == digest(a)


atoms = [st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)]
plain = st.recursive(
    st.one_of(*atoms, st.binary(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(a=plain, b=plain)
def test_plain_values_share_a_digest_only_if_they_are_the_same(a, b):
    def typed(v):
        if isinstance(v, list):
            return [typed(x) for x in v]
        return {k: typed(x) for k, x in v.items()} if isinstance(v, dict) else (type(v), repr(v))

    assert (digest(a) == digest(b)) == (repr(typed(a)) == repr(typed(b)))


COLUMNS = {
    "integers": [1, 2, 3],
    "other integers": [1, 2, 4],
    "floats": [1.0, 2.0, 3.0],
    "missing": [1, 2, None],
    "missing zero": [1, 2, 0],
    "text": ["a", "b", "a"],
    "other text": ["a", "b", "b"],
    "booleans": [True, False, True],
    "lists": [[1], [2, 3], []],
    "other lists": [[1, 2], [3], []],
    "null list": [[1], [2, 3], None],
    "times": [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-02"), None],
    "zoned times": [pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-02", tz="UTC"), None],
    "structs": [{"a": 1}, {"a": 2}, None],
    "other structs": [{"a": 1}, {"a": 3}, None],
}


def test_columns_share_a_digest_only_if_they_are_the_same():
    found = {n: column_digest(Table({"x": v})["x"]) for n, v in COLUMNS.items()}
    assert len(set(found.values())) == len(found)
    again = {n: column_digest(Table({"y": v})["y"]) for n, v in COLUMNS.items()}  # the name is not part of it
    assert again == found
    sliced = pa.chunked_array([["z", "a"], ["b", "a", "q"]]).slice(1, 3)
    assert column_digest(Table({"x": sliced})["x"]) == found["text"]


def test_long_columns_are_hashed_in_pieces_and_every_byte_counts(monkeypatch, set_threads):
    values = torch.arange(1000, dtype=torch.int64)
    whole = digest(values)
    monkeypatch.setattr(limits, "DIGEST_CHUNK", 512)
    pieces = digest(values)
    assert pieces != whole
    for threads in (1, 2):
        set_threads(threads)
        assert digest(values) == pieces
    for place in (0, 511, 999):
        changed = values.clone()
        changed[place] += 1 << 60
        assert digest(changed) != pieces


GENERATOR, DEEP = np.random.default_rng(0), []
for _ in range(100_000):
    DEEP = [DEEP]

UNKNOWN = {
    "GENERATOR": lambda x: x + GENERATOR.normal(),
    "Random": lambda x, draw=random.random: x + draw(),
    "CONFIG": lambda x: vars(CONFIG)["k"] * x,
    "generator": lambda x, g=(i for i in range(3)): next(g),
    "object": object(),
    "deep": DEEP,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_digest_is_named(name):
    with pytest.raises(NoDigestError, match=name):
        digest(UNKNOWN[name])
