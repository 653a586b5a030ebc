from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec._core import limits
from fastrec.table import as_column
from fastrec.table.coding import code_integers, sort_rows

NEAR = st.integers(-20, 20)
FAR = st.one_of(NEAR, st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]))
ROWS = st.one_of(*(st.lists(st.tuples(v, st.booleans()), max_size=30) for v in (NEAR, FAR)))


def codes_by_hand(values, missing):
    distinct = sorted({v for v, m in zip(values, missing, strict=True) if not m})
    return [0 if m else distinct.index(v) + 1 for v, m in zip(values, missing, strict=True)], distinct


@given(rows=ROWS, small=st.booleans())
@settings(max_examples=150, deadline=None)
def test_codes_are_the_places_among_the_sorted_distinct_values(rows, small):
    values, missing = [v for v, _ in rows], [m for _, m in rows]
    kept = limits.MARKED_VALUES
    limits.MARKED_VALUES = 1 << 10 if small else 0  # both ways of coding meet the same values
    try:
        tensor = torch.tensor(values, dtype=torch.int64)
        codes, distinct = code_integers(tensor, torch.tensor(missing, dtype=torch.bool))
        assert (codes.tolist(), distinct.tolist()) == codes_by_hand(values, missing)
        codes, distinct = code_integers(tensor)
        assert (codes.tolist(), distinct.tolist()) == codes_by_hand(values, [False] * len(values))
        assert tensor.tolist() == values  # what was given is as it was
    finally:
        limits.MARKED_VALUES = kept


@given(st.one_of(st.lists(NEAR, max_size=40), st.lists(FAR, max_size=40)))
@settings(max_examples=150, deadline=None)
def test_sorting_is_stable(values):
    tensor = torch.tensor(values, dtype=torch.int64)
    order, ordered = sort_rows(tensor)
    expected = sorted(range(len(values)), key=values.__getitem__)
    assert order.tolist() == expected
    assert ordered.tolist() == sorted(values)
    assert tensor.tolist() == values


@pytest.mark.parametrize("spread", [3, 1_000, 10**9, 10**15])
def test_many_rows_agree_with_numpy(spread):
    values = np.random.default_rng(spread).integers(-spread, spread, 5_000)
    codes, distinct = code_integers(torch.from_numpy(values))
    known, inverse = np.unique(values, return_inverse=True)
    assert np.array_equal(distinct.numpy(), known)
    assert np.array_equal(codes.numpy(), inverse + 1)
    assert np.array_equal(sort_rows(torch.from_numpy(values))[0].numpy(), np.argsort(values, kind="stable"))


@given(
    st.lists(st.one_of(st.none(), st.integers(-3, 3).map(float), st.sampled_from([0.5, 2.0**53, 1e300])), max_size=20)
)
@settings(max_examples=80, deadline=None)
def test_floats_have_the_codes_of_their_values(values):
    column = as_column(np.array([np.nan if v is None else v for v in values], dtype="float64"))
    coded = column.coded().in_order()
    found = [None if c == 0 else coded.keys.columns[0][c - 1].as_py() for c in coded.codes.tolist()]
    assert found == values
    kept = coded.keys.columns[0].to_pylist()
    assert kept == sorted(set(kept))
    assert coded.recode(coded.keys).tolist() == coded.codes.tolist()
