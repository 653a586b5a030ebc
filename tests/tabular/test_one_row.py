"""One row packed at once is bit for bit the row of a frame."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrec.errors import DataError
from fastrec.features import CountEncode, FeatureSet
from fastrec.tabular import Categorify, FillMissing, LogTransform, Normalize, RankGauss, TabularFrame
from fastrec.tabular.loader import pack_row

CATS = ["text", "whole", "flag", "real", "day", "kind", "gone"]
CONTS = ["a", "b", "c", "when"]


def train(n=60):
    r = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "text": r.choice(["x", "y", "z", None], n),
            "whole": r.integers(-3, 4, n),
            "flag": r.random(n) < 0.3,
            "real": r.choice([0.5, 1.0, 2.0, 0.0], n),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(r.integers(0, 4, n), unit="D"),
            "kind": pd.Categorical(r.choice(["hi", "lo"], n), categories=["lo", "mid", "hi"]),
            "gone": [None] * n,
            "a": r.normal(3, 2, n),
            "b": np.where(r.random(n) < 0.2, np.nan, r.normal(size=n)),
            "c": r.integers(0, 50, n),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(r.integers(0, 9999, n), unit="s"),
            "y": r.normal(size=n),
        }
    )


PROCS = {
    "plain": [Categorify, FillMissing, Normalize],
    "rare": [Categorify(min_count={"text": 16, "whole": 9}, max_size=5, unseen=True), FillMissing("mode"), RankGauss],
    "logs": [Categorify, LogTransform(["a", "c"]), Normalize],
    "codes alone": [Categorify],
}
FRAMES = {name: TabularFrame(train(), procs, CATS, CONTS, "y") for name, procs in PROCS.items()}

texts = st.sampled_from(["x", "y", "z", "w", "", "#na#", None])
wholes = st.integers(-5, 5) | st.sampled_from(
    [None, float("nan"), 2.0, 2.5, -0.0, float("inf"), np.int8(3), np.float64(1), 1 << 60, 1e17]
)
reals = st.sampled_from([0.5, 1, 2, 2.0, 3.5, np.float32(0.5), float("inf"), -0.0, 0, 1 << 60, None, float("nan")])
days = st.sampled_from(
    [pd.Timestamp("2024-01-02"), pd.Timestamp("2030-01-01"), pd.NaT, None, np.datetime64("2024-01-03")]
)
numbers = st.floats(-1e9, 1e9) | st.sampled_from(
    [None, float("nan"), float("inf"), -float("inf"), 7, True, np.float32(0.1), np.int64(5), (1 << 60) + 1, np.bool_(1)]
)
rows = st.fixed_dictionaries(
    {
        **{"text": texts, "whole": wholes, "flag": st.booleans() | st.sampled_from([None, np.bool_(1)]), "real": reals},
        **{"day": days, "kind": st.sampled_from(["lo", "mid", "hi", "new", None]), "gone": st.none()},
        **{"a": numbers, "b": numbers, "c": numbers},
        "when": st.sampled_from([pd.Timestamp("2024-01-01 01:00"), pd.NaT, dt.datetime(2024, 1, 2)]),
    }
)


@pytest.mark.filterwarnings(
    "ignore:column .* rows have (no|an infinite) number there"
)  # nothing fills them, on purpose
@pytest.mark.parametrize("name", PROCS)
@settings(max_examples=60)
@given(row=rows)
def test_a_row_is_packed_as_its_frame_is(name, row):
    to = FRAMES[name]
    new = to.new({n: pd.Series([v]) for n, v in row.items()})
    new.process()
    got = pack_row(to._recipe, row)
    assert (len(got), got.layout) == (1, new.packed.layout)
    assert torch.equal(got.views[0], new.x_cat.cpu())
    assert torch.equal(got.views[1].view(torch.int32), new.x_cont.cpu().view(torch.int32))
    assert torch.equal(to.one_row({**row, "y": "no number"}).packed.buffer, new.packed.buffer.cpu())


@pytest.mark.parametrize(
    ("column", "value"), [("text", 5), ("whole", "x"), ("a", "x"), ("a", [1.0]), ("flag", "yes"), ("day", 3.5)]
)
def test_a_value_that_its_column_cannot_hold_is_named(column, value):
    row = {**train().iloc[0].to_dict(), column: value}
    with pytest.raises(DataError, match=f"'{column}'"):
        FRAMES["plain"].one_row(row)


def test_a_frame_is_needed_for_features_absent_columns_and_values_without_codes():
    df = train()
    featured = TabularFrame(df, [Categorify], "text", "a", "y", features=FeatureSet([CountEncode("text")]))
    row = df.iloc[0].to_dict()
    assert featured.one_row(row) is None
    assert FRAMES["plain"].one_row({k: v for k, v in row.items() if k != "a"}) is None
    assert TabularFrame(df, [Normalize], "whole", "a", "y").one_row(row) is None


def test_large_vocabularies_are_asked_one_value_at_a_time(monkeypatch):
    monkeypatch.setattr("fastrec._core.limits.LISTED_CLASSES", 2)
    to = TabularFrame(train(), [Categorify], ["text", "whole"], "a")
    classes = to.classes["text"]
    assert (classes.code_of("x"), classes.code_of(None)) == (None, 0)
    row = {"text": "z", "whole": 4, "a": 0.0}
    new = to.new(pd.DataFrame([row]))
    new.process()
    assert torch.equal(to.one_row(row).x_cat, new.x_cat.cpu())
