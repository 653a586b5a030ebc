"""``Cyclic``: a value that comes round again, as a point on a circle."""

from __future__ import annotations

import math
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.constants import float64
from fastrec.features._inputs import check_choices, number_of
from fastrec.features.base import RowWise, Tensors
from fastrec.features.date_part import Calendar
from fastrec.table import Table
from fastrec.table.zones import local_seconds, no_date

Period = Literal["hour", "weekday", "month", "dayofyear"]


class Cyclic(RowWise):
    """``sin(2π·x/period)`` and ``cos(2π·x/period)``: a period's end is next to its start; NaN where missing.

    Args:
        col: a column of times or numbers.
        period: the length of the circle in the column's own unit (seconds for times), or a part of the calendar:
            ``'hour'`` (0-23 of 24), ``'weekday'`` (Monday 0 of 7), ``'month'`` (0-11 of 12), ``'dayofyear'`` (0-365 of
            the year's own length). Parts are those of the column's time zone; a column of numbers is then read as
            seconds since 1970 in UTC.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Cyclic
        >>> df = Cyclic("t", "hour").fit_transform(pd.DataFrame({"t": pd.to_datetime(["2024-01-01 06:30"])}))
        >>> df[["t_hour_sin", "t_hour_cos"]].round(6).values.tolist()
        [[1.0, 0.0]]
    """

    def __init__(self, col: str, period: float | Period) -> None:
        self.col, self.period = col, period
        if isinstance(period, str):
            check_choices(self, "period", period, ("hour", "weekday", "month", "dayofyear"))
        elif not 0 < period < math.inf:
            raise DataError(f"Cyclic: the period is {period}", remedy="Use a finite number above 0")

    @property
    def sources(self) -> list[str]:  # type: ignore[override]
        return [self.col]

    @property
    def outputs(self) -> list[str]:
        word = self.period if isinstance(self.period, str) else f"{self.period:.15g}"
        return [f"{self.col}_{word}_sin", f"{self.col}_{word}_cos"]

    def prepare(self, table: Table) -> Tensors:
        if not isinstance(self.period, str):
            return {"value": number_of(table, self.col, wanted_by=self)}
        column = table[self.col]
        if column.kind == "datetime":
            return {"seconds": local_seconds(column)}
        return {"seconds": number_of(table, self.col, wanted_by=self)}

    def apply(self, tensors: Tensors) -> Tensors:
        if isinstance(self.period, str):
            share = calendar_share(tensors["seconds"], self.period)
        else:
            period = float64(self.period)
            share = torch.remainder(tensors["value"], period) / period
        return dict(zip(self.outputs, _on_circle(share), strict=True))


def _on_circle(share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sine and cosine of a share of the circle.

    Source: the polynomials of fdlibm's ``__kernel_sin`` and ``__kernel_cos`` (Sun Microsystems 1993), within an ulp.
    """
    # Sums and products give the same bits in every library; their own sines differ in the last bit, and a tree tells
    # 6e-17 from 0.
    quarter = torch.round(4 * share)  # 0 … 4
    angle = (4 * share - quarter) * float64(math.pi / 2)
    square = angle * angle
    sin = angle + angle * square * _polynomial(square, _SIN)
    half = 0.5 * square
    cos = 1 - (half - square * square * _polynomial(square, _COS))
    across = (quarter == 1) | (quarter == 3)
    first, second = torch.where(across, cos, sin), torch.where(across, sin, cos)
    lower = (quarter == 2) | (quarter == 3)
    left = (quarter == 1) | (quarter == 2)
    return torch.where(lower, 0 - first, first), torch.where(left, 0 - second, second)


_SIN = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)


def _polynomial(x: torch.Tensor, factors: tuple[float, ...]) -> torch.Tensor:
    result = float64(factors[-1]) * x + float64(factors[-2])
    for factor in reversed(factors[:-2]):
        result = result * x + float64(factor)
    return result


def calendar_share(seconds: torch.Tensor, part: Period) -> torch.Tensor:
    """Return the share of its circle that a part of the calendar has passed, in [0, 1).

    Args:
        seconds: since 1970-01-01, float64 ``[n]``; NaN stays NaN, and seconds beyond all dates become it.
        part: see ``Cyclic``.
    """
    seconds = torch.where(no_date(seconds), torch.nan, seconds)
    calendar = Calendar(seconds, seconds)
    if part == "hour":
        return torch.floor(calendar.second_of_day / 3600) / 24
    if part == "weekday":
        return calendar.weekday / 7
    if part == "month":
        return (calendar.month - 1) / 12
    share = (calendar.dayofyear - 1) / (365 + calendar.leap.double())
    return torch.where(seconds.isnan(), torch.nan, share)
