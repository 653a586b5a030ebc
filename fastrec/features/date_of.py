"""``DateOf``: a row's year, month, day and clock as a number."""

from __future__ import annotations

import torch

from fastrec.features._inputs import name_of, number_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.table import Table


class DateOf(RowWise):
    """Seconds since 1970 of the day, or minute, in columns of numbers, as ``DatePart`` reads them.

    Missing where a column is, is no whole number, or names no month, day (1 to 31) or minute of a day. A day past the
    end of its month counts into the next one.

    Args:
        month, day: number columns, or generators of one: 1 to 12, 1 to 31.
        year: likewise; None: there is none, and all days are those of one leap year (2000).
        clock: likewise: hours and minutes written as one number, 1737 for 17:37, 0 to 2400; None: the day begins.
        name: the output's name.

    Source: civil date → days as in H. Hinnant, "chrono-compatible low-level date algorithms".

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import DateOf, DatePart
        >>> df = pd.DataFrame({"y": [2024, 2023], "m": [2, 3], "d": [29, 1]})
        >>> DatePart(DateOf("m", "d", "y"), "dayofweek").fit_transform(df)["date_dayofweek"].tolist()
        [3, 2]
        >>> df["at"] = [1737, 5]
        >>> DatePart(DateOf("m", "d", "y", clock="at"), "minute").fit_transform(df)["date_minute"].tolist()
        [37, 5]
    """

    def __init__(
        self, month: Col, day: Col, year: Col | None = None, *, clock: Col | None = None, name: str = "date"
    ) -> None:
        self.month, self.day, self.year, self.clock, self.name = month, day, year, clock, name

    @property
    def sources(self) -> list[Col]:
        return [self.month, self.day, *(s for s in (self.year, self.clock) if s is not None)]

    @property
    def outputs(self) -> list[str]:
        return [self.name]

    def prepare(self, table: Table) -> Tensors:
        parts = {"month": self.month, "day": self.day, "year": self.year, "clock": self.clock}
        return {n: number_of(table, name_of(s), wanted_by=self) for n, s in parts.items() if s is not None}

    def apply(self, tensors: Tensors) -> Tensors:
        month, day = tensors["month"], tensors["day"]
        # 2000 is a leap year: without a year there is a 29th of February.
        year = tensors.get("year", torch.full_like(month, 2000.0))
        clock = tensors.get("clock", torch.zeros_like(month))
        hour = torch.floor(clock / 100)
        minute = clock - 100 * hour
        known = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year.abs() < 1e6)
        known = known & (clock >= 0) & (clock <= 2400) & (minute < 60)
        for part in (month, day, year, clock):
            known = known & (part == torch.floor(part))
        month, day, year = (torch.where(known, part, 1.0) for part in (month, day, year))
        year = year - (month <= 2).double()  # a year from March on: the odd day is its last
        era = torch.floor(year / 400)
        year = year - era * 400
        month = torch.where(month > 2, month - 3, month + 9)
        of_year = torch.floor((153 * month + 2) / 5) + day - 1
        days = era * 146_097 + year * 365 + torch.floor(year / 4) - torch.floor(year / 100) + of_year - 719_468
        return {self.name: torch.where(known, days * 86_400 + hour * 3_600 + minute * 60, torch.nan)}
