"""``DateOf``: the date that a row's year, month and day say, as a number."""

from __future__ import annotations

import torch

from fastrec.features._inputs import name_of, number_of
from fastrec.features.base import Feature, RowWise, Tensors
from fastrec.table import Table

_DAY = 86_400
_LEAP_YEAR = 2000.0  # so that there is a 29th of February


class DateOf(RowWise):
    """Seconds since 1970 at the beginning of the day that columns of numbers say, as ``DatePart`` reads them.

    Missing where one of the columns is, or is no whole number, or there is no such month, or day (1 to 31). A day past
    the end of its month counts on into the next one.

    Args:
        month, day: number columns, or generators of one: 1 to 12, 1 to 31.
        year: likewise; None: there is none, and all days are those of one leap year (2000).
        name: the output's name.

    Source: civil date → days as in H. Hinnant, "chrono-compatible low-level date algorithms".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DateOf, DatePart
        >>> df = pd.DataFrame({"y": [2024, 2023], "m": [2, 3], "d": [29, 1]})
        >>> DatePart(DateOf("m", "d", "y"), "dayofweek").fit_transform(df)["date_dayofweek"].tolist()
        [3, 2]
    """

    def __init__(
        self, month: str | Feature, day: str | Feature, year: str | Feature | None = None, *, name: str = "date"
    ) -> None:
        self.month, self.day, self.year, self.name = month, day, year, name

    @property
    def sources(self) -> list[str | Feature]:
        return [self.month, self.day, *([] if self.year is None else [self.year])]

    @property
    def outputs(self) -> list[str]:
        return [self.name]

    def prepare(self, table: Table) -> Tensors:
        parts = {"month": self.month, "day": self.day, "year": self.year}
        return {n: number_of(table, name_of(s), wanted_by=self) for n, s in parts.items() if s is not None}

    def apply(self, tensors: Tensors) -> Tensors:
        month, day = tensors["month"], tensors["day"]
        year = tensors.get("year", torch.full_like(month, _LEAP_YEAR))
        known = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year.abs() < 1e6)
        for part in (month, day, year):
            known = known & (part == torch.floor(part))
        month, day, year = (torch.where(known, part, 1.0) for part in (month, day, year))
        year = year - (month <= 2).double()  # a year from March on: the odd day is its last
        era = torch.floor(year / 400)
        year = year - era * 400
        month = torch.where(month > 2, month - 3, month + 9)
        of_year = torch.floor((153 * month + 2) / 5) + day - 1
        days = era * 146_097 + year * 365 + torch.floor(year / 4) - torch.floor(year / 100) + of_year - 719_468
        return {self.name: torch.where(known, days * _DAY, torch.nan)}
