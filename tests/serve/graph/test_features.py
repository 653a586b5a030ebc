"""Every generator that needs no history, in a graph: the values that ``transform`` gives, or a reason why it is not."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import Categorify, Cross, Diff, FeatureSet, GroupRank, GroupStats, HashEncode, Lag, TargetEncode
from fastrec.features.base import GENERATORS
from fastrec.table import Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_table
from tests.serve.graph.run_graph import Served, assert_served_alike

pytest.importorskip("onnx")

SERVED = sorted(n for n in EXAMPLES if GENERATORS[n].online != "history")
CASES = [(n, i) for n in SERVED for i in range(len(EXAMPLES[n]))]
# What has no form in a graph: words of the reasons that are fine → generators.
OUTSIDE = {
    "groups other than": ["DeviationFromGroup", "GroupStats"],
    "hashes": ["Categorify", "Cross", "HashEncode"],
    "no form": ["ImageEmbed", "RowFunction", "TextEmbed", "TextSvd", "Tokens"],
    "other rows|coded among|table|nonzero|number of the rows": ["CoVisit", "CumTarget", "VectorColumns"],
    "list|vector": ["Categorify", "Pca", "VectorColumns"],
    "list|cumsum|unique|bool|text": ["GroupStats", "ListLength", "ListSlice", "MultiHot", "SvdEncode", "TextSvd"],
    "list|cumsum|unique": ["TfIdfSimilarity", "Tokens"],
}
ALWAYS = "there is no such column|is a list|is a vector"  # what it reads is outside itself
OTHERS = {name: Table.read(t) for name, t in tables().items()}


@pytest.mark.parametrize(("name", "i"), CASES)
def test_a_generator_is_served_as_it_transforms(name, i):
    first, second = (to_table(columns(n, seed=n)) for n in (40, 57))
    features = FeatureSet([EXAMPLES[name][i]()], key="row").fit(first, tables=OTHERS)
    served = Served(features, Table.read(first))
    words = "|".join([ALWAYS, *(why for why, names in OUTSIDE.items() if name in names)])
    for reason in served.outside.values():
        assert re.search(words, reason), reason
    if served.outputs:
        for frame in (first, second):
            assert_served_alike(features, served, frame, tables=OTHERS)


def lists_of(seed, sizes=(1, 2, 7, 25, 3)):
    rng = np.random.default_rng(seed)
    groups = np.repeat(rng.permutation(1000)[: len(sizes)], sizes)
    n = len(groups)
    price = rng.integers(0, 6, n).astype(float)
    price[rng.random(n) < 0.2] = np.nan
    return {
        "list": groups,
        "price": price,
        "place": rng.normal(size=n),
        "city": rng.choice(["Köln", "São Paulo", "東京", "new"], n),
        "y": rng.integers(0, 2, n),
    }


@pytest.mark.parametrize("method", ["min", "max", "average", "dense", "ordinal"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_ranks_in_a_list(method, descending, normalise):
    rank = GroupRank(["price", "place"], by="list", method=method, descending=descending, normalise=normalise)
    check_lists([rank])


def test_statistics_and_neighbours_of_a_list():
    te = TargetEncode("city", "y")
    stats = ["count", "sum", "mean", "min", "max", "std"]
    check_lists(
        [
            GroupStats("price", by="list", stats=stats, over="group"),
            GroupStats(te, by="list", stats=stats, over="group"),
            Lag(["price", te], by="list", n=[1, -1, 3]),
            Diff("price", by="list", n=[1, -2]),
        ]
    )


@pytest.mark.host_only(reason="a GPU adds a list's values up in any order")
def test_a_mean_of_a_list_is_equal_to_the_bit():
    """A row that has the mean of its list differs from it by 0, where a tree may split: not by what rounding left."""
    draws = np.random.default_rng(0)
    prices = np.repeat(draws.integers(20, 900, 400) / 7, draws.integers(1, 26, 400))
    prices += np.where(draws.random(len(prices)) < 0.5, draws.integers(0, 300, len(prices)), 0)
    table = {"list": np.repeat(np.arange(400), 1)[np.sort(draws.integers(0, 400, len(prices)))], "price": prices}
    features = FeatureSet([GroupStats("price", by="list", stats=["mean", "sum"], over="group")], key="list").fit(table)
    served = Served(features, Table.read(table), lists="list")
    for name, values in served(Table.read(table)).items():
        np.testing.assert_array_equal(values, features.transform(table)[name], err_msg=name)


def check_lists(generators):
    features = FeatureSet(generators, key="list").fit(lists_of(0))
    served = Served(features, Table.read(lists_of(0)), lists="list")
    assert not served.outside
    for seed in range(4):
        assert_served_alike(features, served, lists_of(seed))
    assert_served_alike(features, served, lists_of(9, sizes=(1,)))


def test_statistics_that_sort_a_list_are_outside():
    features = FeatureSet([GroupStats("price", by="list", stats="median", over="group")], key="list").fit(lists_of(0))
    served = Served(features, Table.read(lists_of(0)), lists="list")
    assert "median" in served.outside["median_price__list"]


@settings(max_examples=25, deadline=None)
@given(chosen=st.lists(st.sampled_from(CASES), min_size=2, max_size=6, unique=True), seed=st.integers(1, 10_000))
def test_any_set_is_served_as_it_transforms(chosen, seed):
    first, second = (to_table(columns(n, seed=s)) for n, s in ((40, seed), (23, seed + 1)))
    try:
        features = FeatureSet([EXAMPLES[n][i]() for n, i in chosen], key="row").fit(first, tables=OTHERS)
    except FastrecError:  # two of them make a column of one name, or learn nothing of these rows
        return
    served = Served(features, Table.read(first))
    if served.outputs:
        for frame in (first, second):
            assert_served_alike(features, served, frame, tables=OTHERS)


SETS = {
    "text": [HashEncode("s", 1_000, seed=3)],
    "whole": [HashEncode("i", 1_000, seed=-1), HashEncode("i", 2**40, name="wide")],
    "cross": [Cross(["s", "i"], buckets=5_000, seed=9), Cross(["i", "j"], buckets=50)],
    "rare": [Categorify(["s", "i"], min_count=3, buckets=11)],
}
words = st.text(st.characters(exclude_categories=["Cn", "Cs"], max_codepoint=0xEFFFF), max_size=12)
words = words.filter(lambda t: t != "\0")  # which says here that there is none
rows = st.lists(st.tuples(st.none() | words, st.integers(-(2**62), 2**62), st.integers(-3, 3)), min_size=1, max_size=12)


def frame(found):
    s, i, j = zip(*found, strict=True)
    return pd.DataFrame({"s": pd.array(s, dtype="string"), "i": i, "j": j})


@pytest.fixture(scope="module")
def served():
    known = frame([("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("é日🎉", -5, 0), (None, 0, 0)])
    made = {n: FeatureSet(features).fit(known) for n, features in SETS.items()}
    return {n: (f, Served(f, Table.read(known))) for n, f in made.items()}


@settings(max_examples=40, deadline=None)
@given(rows)
def test_hashes_are_those_of_training(served, found):
    asked = frame(found)
    for name, (features, graph) in served.items():
        assert not graph.outside, name
        made = features.transform(asked)
        for output, values in graph(Table.read(asked)).items():
            expected = pd.to_numeric(made[output]).fillna(0).to_numpy(float)
            np.testing.assert_array_equal(np.nan_to_num(values), expected, err_msg=f"{name} {output}")


@pytest.mark.parametrize("values", [[0.5, 1.0], pd.to_datetime(["2024-01-01", "2024-01-02"])])
def test_what_a_graph_cannot_write_as_text_stays_outside(values):
    asked = pd.DataFrame({"x": values})
    graph = Served(FeatureSet([HashEncode("x", 100)]).fit(asked), Table.read(asked))
    assert "have no form in a graph" in graph.outside["hash_x"]


def test_only_text_that_is_taken_apart_is_limited(served):
    assert served["cross"][1].graph.hashed == {"s"}
    assert served["whole"][1].graph.hashed == set()
