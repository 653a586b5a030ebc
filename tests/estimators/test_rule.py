"""Ranking by columns, against Python's own sort."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import FastrecError, MissingColumnError, WriteError
from fastrec.estimators import ColumnRanker
from fastrec.table import Table
from fastrec.validate import Lists

NAN, INF = math.nan, math.inf


def lists(**columns) -> Lists:
    table = Table(columns)
    return Lists(table, torch.zeros(len(table), dtype=torch.int64))


def order_of(scores: torch.Tensor) -> list[int]:
    assert len(set(scores.tolist())) == len(scores)  # no ties are left
    return torch.argsort(-scores).tolist()


value = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0, INF, -INF, 1.7e308, NAN])


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(value, value), max_size=15))
def test_order_of_two_columns_missing_last(rows):
    def key(i):
        return [(math.isnan(v), 0.0 if math.isnan(v) else v) for v in rows[i]]

    data = lists(a=np.array([r[0] for r in rows]), b=np.array([r[1] for r in rows]))
    got = ColumnRanker("rule", ["a", "b"]).fit(data).predict(data)
    assert order_of(got) == sorted(range(len(rows)), key=key)


def test_integers_and_times_keep_their_last_digits():
    big = 1 << 60
    data = lists(
        i=pd.Series([big + 2, big, None, big + 1], dtype="Int64"),
        t=pd.to_datetime([big + 1, None, big, big + 2], unit="ns"),
        d=[True, False, True, False],
    )
    assert order_of(ColumnRanker("rule", ["i"]).predict(data)) == [1, 3, 0, 2]
    assert order_of(ColumnRanker("rule", ["t"]).predict(data)) == [2, 0, 3, 1]
    assert order_of(ColumnRanker("rule", ["d", "t"]).predict(data)) == [3, 1, 2, 0]


def test_rows_in_order_and_rows_out_of_order():
    assert ColumnRanker("rule", ["p"]).predict(lists(p=[1, 2, 3])).tolist() == [0, -1, -2]
    assert ColumnRanker("rule", ["p"]).predict(lists(p=[3, 1, 2])).tolist() == [-2, 0, -1]


def test_what_cannot_be_ordered_is_named():
    data = lists(p=[1, 2], t=["a", "b"])
    with pytest.raises(MissingColumnError, match="q"):
        ColumnRanker("rule", ["q"]).predict(data)
    with pytest.raises(FastrecError, match="'t'"):
        ColumnRanker("rule", ["t"]).predict(data)


def test_saved_as_its_columns(tmp_path):
    ColumnRanker("rule", ("a", "b")).save(tmp_path / "deep" / "rule")
    about = json.loads((tmp_path / "deep" / "rule" / "estimator.json").read_text())
    assert about.items() >= {"class": "ColumnRanker", "settings": {"name": "rule", "columns": ["a", "b"]}}.items()
    assert about["digests"] == {}


def test_a_save_replaces_an_earlier_one_whole_and_nothing_else(tmp_path):
    ColumnRanker("rule", ("a", "b")).save(tmp_path / "rule")
    (tmp_path / "rule" / "model.ubj").write_text("of another ranker that was saved here")
    ColumnRanker("rule", ("c",)).save(tmp_path / "rule")
    assert [p.name for p in (tmp_path / "rule").iterdir()] == ["estimator.json"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(WriteError, match="other things"):
        ColumnRanker("rule", ("c",)).save(tmp_path / "mine")
