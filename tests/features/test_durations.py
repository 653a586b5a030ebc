from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from fastrec.errors import DataError
from fastrec.features.lagged import positive, seconds_in, short


@pytest.mark.parametrize(
    "text", ["42D", "1W", "12h", "30min", "90s", "5ms", "7us", "3ns", "1.5h", " 2 D ", "1D 2h30min"]
)
def test_lengths_of_time_equal_pandas(text):
    assert seconds_in(text, wanted_by="Lag", what="horizon") * 10**9 == pd.Timedelta(text.strip()).value


def test_lengths_of_time_are_exact():
    assert seconds_in("0.1s", wanted_by="Lag", what="horizon") == Fraction(1, 10)
    assert seconds_in("100000000000000001ns", wanted_by="Lag", what="horizon") == Fraction(10**17 + 1, 10**9)


@pytest.mark.parametrize("text", ["", " ", "7", "D", "7 days", "-7D", "7D!", "1M", "0s", "0D 0h", "1e3s", "٣s", "1.s"])
def test_what_is_no_length_of_time_is_named(text):
    with pytest.raises(DataError, match=r"Lag: horizon=.* is not a length of time") as caught:
        seconds_in(text, wanted_by="Lag", what="horizon")
    assert "42D" in caught.value.remedy


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, [1], "1"])
def test_what_is_not_above_0_is_named(value):
    with pytest.raises(DataError, match="Ewm: half_life"):
        positive(value, wanted_by="Ewm", what="half_life")


def test_numbers_of_every_kind():
    for value in (3, np.int64(3), 3.0, np.float32(3), Fraction(3)):
        assert positive(value, wanted_by="Ewm", what="half_life") == 3
    assert positive(2**60 + 1, wanted_by="Ewm", what="half_life") == 2**60 + 1


@pytest.mark.parametrize(
    ("value", "name"), [("1h 30min", "1h30min"), (7, "7"), (7.0, "7"), (0.5, "0.5"), (1e7, "10000000")]
)
def test_names_are_short(value, name):
    assert short(value) == name
