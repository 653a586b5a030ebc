"""Axes and colours of the report's pictures."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrec.metrics import Interval
from fastrec.report import charts


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e6), st.integers(3, 8))
def test_ticks_cover_the_data_in_even_steps(low, extent, most):
    high = low + extent
    found = charts.ticks(low, high, most=most)
    steps = [b - a for a, b in pairwise(found)]
    assert found[0] <= low + extent * 1e-6
    assert found[-1] >= high - extent * 1e-6
    assert 2 <= len(found) <= 2 * most + 1
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (0.31, 0.57, [0.3, 0.4, 0.5, 0.6]),
        (5.0, 5.0, [4.5, 4.75, 5, 5.25, 5.5]),
        (0.5, 0.5 + 1e-16, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_ticks_are_round(low, high, expected):
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_every_model_has_a_colour_and_the_best_the_first():
    names = ["stack", *(f"m{i}" for i in range(9)), "recency", "display_order"]
    colours = charts.palette(names)
    assert set(colours) == set(names)
    assert colours["stack"] == "var(--c0)"
    assert list(colours.values()).count(colours["display_order"]) == 1


def test_a_point_lies_where_its_value_says():
    up = [(0, 0.0), (1, 1.0)]
    svg = charts.line_chart([charts.Line(up, "red")], x_label="epoch", y_label="loss")
    (x0, y0), (x1, y1) = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    labels = {text: float(y) for y, text in re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)<', svg)}
    assert float(x0) < float(x1)
    assert float(y0) > float(y1)  # up is more
    assert float(y0) == pytest.approx(labels["0.00"] - 4)  # level with the tick of its own value
    assert float(y1) == pytest.approx(labels["1.00"] - 4)


def test_interval_chart_marks_the_oracle():
    rows = {"net": Interval(0.5, 0.4, 0.6)}
    with_mark = charts.interval_chart(rows, {"net": "red"}, mark=0.7, mark_label="oracle")
    assert "oracle 0.7000" in with_mark
    assert "oracle" not in charts.interval_chart(rows, {"net": "red"}, mark=None, mark_label="oracle")


def test_bars_are_in_proportion():
    html = charts.bar_list({"a": 4.0, "b": 1.0, "c": 0.0}, ["4 s", "1 s", "0 s"])
    assert re.findall(r"width:([\d.]+)%", html) == ["100.00", "25.00", "0.00"]
