"""Hashes in a graph are those of training: of text, of whole numbers, of several columns together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.features import Categorify, Cross, FeatureSet, HashEncode
from fastrec.table import Table
from tests.serve.graph.run_graph import Served

pytest.importorskip("onnx")

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
    """Graphs that have seen a few rows."""
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


def test_texts_without_a_letter_alone():
    asked = pd.DataFrame({"s": ["", ""]})
    features = FeatureSet([HashEncode("s", 100)]).fit(asked)
    said = Served(features, Table.read(asked))(Table.read(asked))["hash_s"]
    assert said.tolist() == features.transform(asked)["hash_s"].tolist()


@pytest.mark.parametrize("values", [[0.5, 1.0], pd.to_datetime(["2024-01-01", "2024-01-02"])])
def test_what_a_graph_cannot_write_as_text_stays_outside(values):
    asked = pd.DataFrame({"x": values})
    graph = Served(FeatureSet([HashEncode("x", 100)]).fit(asked), Table.read(asked))
    assert "have no form in a graph" in graph.outside["hash_x"]


def test_only_text_that_is_taken_apart_is_limited(served):
    assert served["cross"][1].graph.hashed == {"s"}
    assert served["whole"][1].graph.hashed == set()
