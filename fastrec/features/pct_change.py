"""``PctChange``: by what share a value has changed since an earlier row."""

from __future__ import annotations

import torch

from fastrec.errors import DataError
from fastrec.features._engine.order import difference, take_or_missing
from fastrec.features._inputs import number_of
from fastrec.features.lag import Lag
from fastrec.table import Column, Table


class PctChange(Lag):
    """``(x - x_before) / x_before`` as float64, ``x_before`` being the value ``n`` rows earlier in the row's group.

    Missing where either value is, where the earlier one is 0, and where the result is no finite number. Integers are
    subtracted exactly. Arguments as ``Lag``, but for number columns only.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import PctChange
        >>> df = pd.DataFrame({"item": [1, 1, 1, 2], "day": [1, 2, 3, 1], "price": [10.0, 15.0, 0.0, 8.0]})
        >>> PctChange("price", by="item", order="day").fit_transform(df)["pct1_price__item"].tolist()
        [nan, 0.5, -1.0, nan]
    """

    own_row = True
    _word = "pct"

    def _value(self, table: Table, col: str, rows: torch.Tensor) -> Column:
        column = table[col].plain()
        if column.kind == "datetime":
            known = (~column.is_missing()).nonzero()
            raise DataError(
                "PctChange: holds times, which do not change by a share",
                column=col,
                row=int(known[0]) if len(known) else None,
                remedy="Use Diff for the seconds between them",
            )
        here = number_of(table, col, wanted_by=self)
        there = here[rows.clamp_min(0)] if len(here) else here
        change = here - there
        if column.kind == "number" and not column.values.is_floating_point():
            change = difference(column.integer(), take_or_missing(column, rows).integer())
            change = torch.where(here.isnan(), torch.nan, change)
        share = change / there
        return Column("number", torch.where((rows >= 0) & share.isfinite(), share, torch.nan), name=col)
