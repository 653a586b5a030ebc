"""``FeatureCache`` and what changes behind its back: objects that functions use, memory changed in place."""

from __future__ import annotations

import enum
import functools
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

from fastrec.errors import DataWarning
from fastrec.features import CountEncode, FeatureCache, FeatureSet, Lag, RowFunction, TargetEncode, feature
from fastrec.features._engine.digests import NoDigestError, digest
from fastrec.table import Table
from tests import fresh

SERIES = pd.Series([1.0, 2.0], index=[0, 1])
FRAME = pd.DataFrame({"k": [1.0, 2.0]})
ARRAYS = {"k": np.array([1.0, 2.0])}
SETTINGS = types.SimpleNamespace(k=1.0)
COUNTS = Counter({"k": 1})
LISTED = [lambda x: x + 1]
OBJECTS = np.array([1.0, "a"], dtype=object)
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
ARROW = pa.array([1.0, 2.0])
TENSOR = torch.ones(2)
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


class Words(dict):
    pass


class Scale:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k

    def times(self, x):
        return x * self.k


DATA, SLOTTED, SCALE, WORDS = Data(), Slotted(1.0), Scale(1.0), Words(k=1.0)
TABLE = Table({"k": np.array([1.0, 2.0])})
ENCODER = CountEncode("item").fit(pd.DataFrame({"item": [1, 1, 2]}))


def inner(x):
    return x * SETTINGS.k


def through(x):
    return inner(x)


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


def closure():
    held = SETTINGS

    def used(x):
        return x * held.k

    return used


def write(holder, name, value):
    return lambda: setattr(holder, name, value)


def put(holder, key, value):
    return lambda: holder.__setitem__(key, value)


# what a function looks like, and what changes of the things that it uses
USED = {
    "a series": (lambda x: x * SERIES[0], put(SERIES, 0, 5.0)),
    "a series' index": (lambda x: x * SERIES.get(7, 0), lambda: setattr(SERIES, "index", pd.Index([0, 7]))),
    "a frame": (lambda x: x * FRAME["k"].sum(), lambda: FRAME.loc.__setitem__((slice(None), "k"), [3.0, 4.0])),
    "arrays in a dict": (lambda x: x * ARRAYS["k"][0], lambda: ARRAYS["k"].__setitem__(0, 5.0)),
    "arrays in a dict, in a generator": (inside, lambda: ARRAYS["k"].__setitem__(0, 6.0)),
    "an attribute": (lambda x: x * SETTINGS.k, write(SETTINGS, "k", 2.0)),
    "an attribute, in another function": (through, write(SETTINGS, "k", 3.0)),
    "an attribute, of a default": (defaulted, write(SETTINGS, "k", 4.0)),
    "an attribute, of a closure": (closure(), write(SETTINGS, "k", 5.0)),
    "an attribute, remembered": (remembered, write(SETTINGS, "k", 6.0)),
    "an attribute, partial": (functools.partial(defaulted, by=SETTINGS), write(SETTINGS, "k", 7.0)),
    "a counter": (lambda x: x * COUNTS["k"], put(COUNTS, "k", 2)),
    "functions in a list": (lambda x: LISTED[0](x), put(LISTED, 0, lambda x: x + 2)),
    "objects in an array": (lambda x: x * OBJECTS[0], put(OBJECTS, 0, 5.0)),
    "a mask": (lambda x: x * MASKED[0], lambda: MASKED.__setitem__(0, np.ma.masked)),
    "a tensor": (lambda x: x * TENSOR[0], put(TENSOR, 0, 5.0)),
    "a module": (lambda x: x * CONFIG.k, write(CONFIG, "k", 2.0)),
    "a module in a module": (lambda x: x * CONFIG.deep.k, write(CONFIG.deep, "k", 2.0)),
    "a module, imported inside": (local_import, write(CONFIG, "k", 3.0)),
    "a name of a module, imported inside": (local_from, write(CONFIG, "k", 4.0)),
    "an attribute of a class": (lambda x: x * Settings.K, write(Settings, "K", 2.0)),
    "what a class holds": (lambda x: x * Settings.HELD["k"][0], lambda: Settings.HELD["k"].__setitem__(0, 5.0)),
    "a dataclass": (lambda x: x * DATA.k, write(DATA, "k", 2.0)),
    "slots": (lambda x: SLOTTED.k(x), lambda: SLOTTED.__init__(2.0)),
    "a bound method": (SCALE.times, write(SCALE, "k", 2.0)),
    "an object that is called": (SCALE, write(SCALE, "k", 3.0)),
    "a dict of one's own": (lambda x: x * WORDS["k"], put(WORDS, "k", 2.0)),
    "a method of a library's object": (ARRAYS.get, lambda: ARRAYS["k"].__setitem__(0, 7.0)),
    "a table": (lambda x: x * TABLE["k"].values[0], lambda: TABLE["k"].values.__setitem__(0, 5.0)),
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


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("what", ["series", "attribute", "arrays", "method", "module"])
def test_columns_follow_what_their_function_uses(what, folder, tmp_path):
    series, held, arrays = pd.Series([1.0, 2.0]), types.SimpleNamespace(k=1.0), {"k": np.ones(1)}
    scale, module = Scale(1.0), types.ModuleType("own_module")
    module.k = 1.0
    function, change = {
        "series": (lambda x: x * series[0], lambda k: series.__setitem__(0, k)),
        "attribute": (lambda x: x * held.k, lambda k: setattr(held, "k", k)),
        "arrays": (lambda x: x * arrays["k"][0], lambda k: arrays["k"].__setitem__(0, k)),
        "method": (scale.times, lambda k: setattr(scale, "k", k)),
        "module": (lambda x: x * module.k, lambda k: setattr(module, "k", k)),
    }[what]
    cache, df = FeatureCache(tmp_path if folder else None), pd.DataFrame({"x": [1.0, 2.0]})
    for k in (1.0, 3.0, 1.0):
        change(k)
        made = FeatureSet([RowFunction(function, "x", "out")], cache=cache).fit_transform(df)
        assert made["out"].tolist() == [k, 2 * k]
    assert (cache.hits, cache.misses) == (1, 2)


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
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**environment, "PYTHONHASHSEED": s},
        ).stdout
        for s in ("1", "2", "3")
    }
    assert len(found) == 1


LOOP: list = []
LOOP.append(LOOP)


class Knot:
    def __init__(self):
        self.me = self

    def run(self, x):
        return super().__repr__() and Knot and self.run and x


KNOT = Knot()


def test_functions_that_a_library_has_compiled_count_by_their_names():
    import sklearn.ensemble  # noqa: F401 - its Cython takes over numpy's functions' class, which then names no module

    def drawn(x):
        return x + np.random.default_rng(1).normal(size=len(x))

    def same(x):
        return x + np.random.default_rng(1).normal(size=len(x))

    assert digest(np.random.default_rng) == digest(np.random.default_rng)
    assert digest(drawn) == digest(same)
    assert digest(drawn) != digest(lambda x: x + np.random.default_rng(2).normal(size=len(x)))


def test_a_tensors_digest_goes_by_its_values_whatever_its_strides():
    whole = torch.arange(6.0).view(2, 3)
    assert digest(whole[:, 1]) == digest(torch.tensor([1.0, 4.0]))
    assert digest(whole[:1, 1]) == digest(torch.tensor([1.0]))  # one element, of stride 3
    assert digest(torch.arange(9).bfloat16()[::7][:1]) == digest(torch.zeros(1, dtype=torch.bfloat16))


def test_what_refers_to_itself_has_a_digest():
    assert digest(LOOP) == digest(LOOP)
    assert digest(KNOT.run) == digest(KNOT.run)
    assert digest(lambda x: KNOT) == digest(lambda x: KNOT)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NoDigestError, match="deep"):
        digest(deep)


GENERATOR = np.random.default_rng(0)


def whole_module(x):
    return vars(CONFIG)["k"] * x


UNKNOWN = {
    "GENERATOR": lambda x: x + GENERATOR.normal(),
    "random": lambda x, draw=random.random: x + draw(),
    "CONFIG": whole_module,
    "generator": lambda x, g=(i for i in range(3)): next(g),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_digest_is_not_kept_and_named(name):
    cache, df = FeatureCache(), pd.DataFrame({"x": [1.0, 2.0], "item": ["a", "b"]})
    with pytest.raises(NoDigestError):
        digest(UNKNOWN[name])
    fs = FeatureSet([RowFunction(lambda x: x, "x", "out"), CountEncode("item")], cache=cache)
    fs.features[0].function = lambda x, f=UNKNOWN[name]: x
    with pytest.warns(DataWarning, match="RowFunction of 'out' is not kept in the cache") as found:
        fs.fit_transform(df)
    assert len(found) == 1
    kept = len(cache)
    fs.fit_transform(df)  # said once
    assert len(cache) == kept == 2


@pytest.mark.parametrize("folder", [True, False])
def test_a_table_whose_array_was_changed_in_place_is_encoded_anew(folder, tmp_path):
    item, y = np.array([1, 1, 2, 2, 3]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    table = Table({"item": item, "y": y, "list": [[1], [2], [], [3], [4]]})
    cache = FeatureCache(tmp_path if folder else None)

    def made(**options):
        fs = FeatureSet([CountEncode("item"), TargetEncode("item", "y"), Lag("item")], **options)
        return fs.fit_transform(table).select(fs.outputs).to_pandas(), fs.transform(table).to_pandas()

    made(cache=cache)
    item[:] = [1, 1, 1, 2, 2]
    y[:] = 1 - y
    fresh = Table({n: table[n].to_arrow() for n in table.names})
    found = made(cache=cache)
    table = fresh
    for a, b in zip(found, made(), strict=True):
        pd.testing.assert_frame_equal(a, b)
    for a, b in zip(found, made(cache=cache), strict=True):  # and nothing wrong was kept
        pd.testing.assert_frame_equal(a, b)


def test_columns_given_out_may_be_changed_in_place():
    table = Table({"item": np.array([1, 1, 2])})
    cache = FeatureCache()
    for _ in range(3):
        made = FeatureSet([CountEncode("item")], cache=cache).fit_transform(table)
        assert made["count_item"].values.tolist() == [2, 2, 1]
        made["count_item"].values[:] = 9
        again = FeatureSet([Lag("count_item")], cache=cache).fit_transform(made)
        assert again["lag1_count_item"].values.tolist()[1:] == [9, 9]
        made["count_item"].values[:] = 8
        again = FeatureSet([Lag("count_item")], cache=cache).fit_transform(made)
        assert again["lag1_count_item"].values.tolist()[1:] == [8, 8]


def test_the_target_changed_in_the_same_frame_changes_what_is_learned():
    from fastrec.features import search_crosses

    rng = np.random.default_rng(0)
    df = pd.DataFrame(rng.integers(0, 2, (400, 3)), columns=["a", "b", "c"])
    cache = FeatureCache()
    for frame in (df, Table(df)):
        for pair in (["a", "b"], ["b", "c"], ["a", "c"]):
            y = (df[pair[0]] != df[pair[1]]).astype(float).to_numpy()
            if frame is df:
                df["y"] = y
            elif "y" in frame:
                frame["y"].values.numpy()[:] = y
            else:
                frame = frame.with_columns({"y": y.copy()})
            search = search_crosses(frame, ["a", "b", "c"], "y")
            assert search.kept == [tuple(pair)]
            fs = FeatureSet(search.features(), cache=cache)
            name = fs.outputs[0]
            found = fs.fit_transform(frame)[name]
            expected = FeatureSet(search.features()).fit_transform(df.assign(y=y))[name].tolist()
            assert (found.tolist() if frame is df else found.values.tolist()) == expected


def test_feature_made_by_the_decorator_follows_a_helper():
    @feature(inputs="x", outputs="twice")
    def twice(x):
        return [LISTED[0](v) for v in x.tolist()]

    before = digest(twice)
    LISTED[0] = lambda x: x * 9
    assert digest(twice) != before


_WRITER = """
import sys, warnings, pandas as pd, numpy as np
warnings.simplefilter("error")
from fastrec.features import CountEncode, FeatureCache, FeatureSet, TargetEncode
cache = FeatureCache(sys.argv[1], max_bytes=int(sys.argv[2]))
for seed in range(4):
    rng = np.random.default_rng(seed)
    df = pd.DataFrame({"item": rng.integers(0, 9, 200), "y": rng.integers(0, 2, 200)})
    fs = [CountEncode("item"), TargetEncode("item", "y")]
    found = FeatureSet(fs, cache=cache).fit_transform(df)
    pd.testing.assert_frame_equal(found, FeatureSet(fs).fit_transform(df))
"""


def test_two_processes_share_a_folder(tmp_path):
    running = [fresh.start(_WRITER, tmp_path / "cache", 20000) for _ in range(2)]
    for process in running:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
