"""The rows that ``check_leakage`` looks at: which are taken, changed and cut, and what counts as moved."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fastrec.features.leakage.rows import (
    CheckedRows,
    cut_places,
    key_codes,
    moved,
    probe_rows,
    sample_rows,
    with_rows_of,
)
from fastrec.table import Table
from tests.features.frames import clicks


def choice_of(df, **names):
    return CheckedRows.of(df, names.get("targets", ["clicked"]), names.get("order", []), names.get("keys", []), 0)


def test_the_part_holds_whole_keys_or_the_earliest_rows():
    df = clicks(1000)
    rows = sample_rows(choice_of(df, keys=["user"]), 300)
    users = df.iloc[rows.tolist()]["user"]
    assert 75 <= len(rows) <= 300
    assert len(rows) == df["user"].isin(set(users)).sum()
    rows = sample_rows(choice_of(df, order=["t"]), 300)
    assert sorted(df.iloc[rows.tolist()]["t"]) == list(range(300))
    assert rows.tolist() == sorted(rows.tolist())
    one_key = df.assign(user=1)
    assert len(sample_rows(choice_of(one_key, keys=["user"]), 300)) == 300
    assert len(sample_rows(choice_of(df), 300)) == 300
    assert sample_rows(choice_of(df), 1000).tolist() == list(range(1000))


def test_rows_to_change_are_of_rare_keys_and_of_frequent_ones_with_both_targets():
    df = pd.DataFrame({"key": [0] * 50 + [1, 1] * 5 + list(range(100, 140)), "clicked": [0, 1] * 50})
    choice = choice_of(df)
    sizes = [torch.where(c > 0, torch.bincount(c)[c], 0) for c in key_codes(df, choice).values()]
    rows = probe_rows(choice, sizes, 8)
    assert len(set(rows)) == 8
    assert df.iloc[rows]["clicked"].sum() == 4
    sizes = df.groupby("key")["key"].transform("count").iloc[rows]
    assert {1, 10, 50} <= set(sizes)


def test_times_to_cut_at_fall_inside_keys():
    df = pd.DataFrame({"s": np.arange(300) // 3, "t": np.arange(300), "clicked": [0, 1, 1] * 100})
    cuts = cut_places(choice_of(df, order=["t"], keys=["s"]), df)
    assert len(cuts) == 3
    assert all(c % 3 for c in cuts)
    assert cut_places(choice_of(df.assign(t=1), order=["t"]), df) == []
    assert cut_places(choice_of(df.iloc[:2], order=["t"]), df.iloc[:2]) == [1]


def test_mixing_the_future_moves_whole_rows_and_targets_for_themselves():
    df = clicks(200)
    choice = choice_of(df, order=["t"])
    names = list(df.columns)
    source = {name: rows.cpu() for name, rows in choice.mixed_future(100, names).items()}
    later = torch.tensor((df["t"] >= 100).to_numpy())
    assert set(source) == set(names) - {"t"}
    for rows in source.values():
        assert torch.equal(rows[~later], torch.arange(200)[~later])
        assert torch.equal(rows[later].sort().values, torch.arange(200)[later])
    assert torch.equal(source["price"], source["user"])
    assert (source["price"] != torch.arange(200))[later].sum() > 80
    assert (source["clicked"] != source["price"])[later].sum() > 80


def test_other_targets_are_far_ones():
    df = pd.DataFrame({"clicked": [0.0, 1.0, 9.0, 10.0, None]})
    choice = choice_of(df)
    assert choice.other_targets(torch.tensor([0, 2, 4]))["clicked"].tolist() == [3, 1, 0, 3, 4]
    one = choice.one_target(torch.tensor([True, False, False, False, True]))["clicked"]
    assert one.tolist() == [3, 1, 2, 3, 4]
    one = choice.one_target(torch.tensor([False, False, True, True, False]))["clicked"]
    assert one.tolist() == [0, 1, 0, 0, 4]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 2.0], [1.0 + 1e-12, 2.1], [False, True]),
        ([1e8, 1e-3], [1e8 + 1e-3, 1e-3 + 1e-8], [False, True]),
        ([0.0, 1.0, 5.0], [1e-13, 1.0, 5.0], [False, False, False]),
        ([None, 1.0], [None, None], [False, True]),
        ([float("inf"), float("inf"), -1.0], [float("inf"), 1.0, float("-inf")], [False, True, True]),
        ([2**53, 2**53], [2**53, 2**53 + 1], [False, True]),
        ([1, 2], [1.0, 2.5], [False, True]),
        (["a", "b", None], ["a", "c", "x"], [False, True, True]),
        (["a", "b"], [1, 2], [True, True]),
        ([[1.0], [1.0, 2.0], [1.0], None], [[1.0 + 1e-12], [1.0], [2.0], []], [False, True, True, True]),
        ([["a"], ["b"]], [["a"], ["c"]], [False, True]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], [False, True]),
        ([True, False, None], [True, True, None], [False, True, False]),
    ],
)
def test_what_counts_as_moved(before, after, expected):
    a, b = Table({"x": before})["x"], Table({"x": after})["x"]
    assert moved(a, b).tolist() == expected


def test_moved_times_and_vectors():
    seconds = pd.Series(pd.to_datetime(["2024-01-01", "2024-01-02"])).dt.as_unit("s")
    a, b = Table({"x": seconds})["x"], Table({"x": seconds.dt.as_unit("ms")})["x"]
    assert moved(a, b).tolist() == [False, False]
    assert moved(a, a.take(torch.tensor([0, 0]))).tolist() == [False, True]
    vectors = Table({"x": np.array([[1.0, np.nan], [0.0, 2.0]])})["x"]
    other = Table({"x": np.array([[1.0, np.nan], [0.0, 2.1]])})["x"]
    assert moved(vectors, other).tolist() == [False, True]


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "dict"])
def test_values_from_other_rows_keep_type_and_index(library):
    frame = pd.DataFrame(
        {
            "a": pd.Categorical(["x", "y", "x"], ordered=True),
            "b": pd.Series([1, None, 3], dtype="Int64"),
            "c": [1, 2, 3],
        },
        index=["p", "q", "q"],
    )
    if library == "pyarrow":
        frame = pa.Table.from_pandas(frame, preserve_index=False)
    elif library == "dict":
        frame = {n: frame[n] for n in frame}
    made = with_rows_of(frame, {"a": torch.tensor([1, 1, 2]), "b": torch.tensor([2, 1, 0])})
    if library == "pandas":
        assert made.dtypes.equals(frame.dtypes)
        assert made.index.equals(frame.index)
    elif library == "pyarrow":
        assert made.schema.equals(frame.schema)
    assert list(made["a"].to_pylist() if library == "pyarrow" else made["a"]) == ["y", "y", "x"]
    assert list(made["c"].to_pylist() if library == "pyarrow" else made["c"]) == [1, 2, 3]
