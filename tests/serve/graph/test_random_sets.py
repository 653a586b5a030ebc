"""Random sets of generators in one graph, on rows with values that training did not have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError
from fastrec.features import FeatureSet
from fastrec.features.base import GENERATORS
from fastrec.table import Table
from tests.features.examples import EXAMPLES
from tests.features.frames import columns, tables, to_table
from tests.serve.graph.run_graph import Served, assert_served_alike

pytest.importorskip("onnx")

MAKERS = [(n, i) for n in sorted(EXAMPLES) if GENERATORS[n].online != "history" for i in range(len(EXAMPLES[n]))]
OTHERS = {name: Table.read(t) for name, t in tables().items()}


@settings(max_examples=25, deadline=None)
@given(chosen=st.lists(st.sampled_from(MAKERS), min_size=2, max_size=6, unique=True), seed=st.integers(1, 10_000))
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
