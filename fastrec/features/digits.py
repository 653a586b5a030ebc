"""``Digits`` and ``RoundTo``: price endings and round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from fastrec.errors import DataError
from fastrec.features._engine.constants import float64
from fastrec.features._engine.options import OfColumns
from fastrec.features._inputs import as_list, check_choices, masked, number_of
from fastrec.features.base import Cols, Feature, RowWise, Tensors
from fastrec.table import Column, Table


class Digits(OfColumns, RowWise):
    """The last digits of a number as written, without sign: of 19.99 with two decimals the last two are 99.

    Integers are exact. A float counts as the short decimal it was written as: the last digit of 19.99 is 9, though
    ``19.99 · 100`` is 1998.9999…. Further decimals are cut off. Missing and infinite values give missing.

    Args:
        cols: number columns, or generators.
        digits: the number of digits, 1 to 18.
        decimals: the number of decimals, 0 to 9: 2 for prices with cents.

    The outputs are int64, named ``last{digits}_{col}``, with decimals ``last{digits}dp{decimals}_{col}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Digits
        >>> df = pd.DataFrame({"price": [19.99, 149.0, 0.5]})
        >>> Digits("price", 2, decimals=2).fit_transform(df)["last2dp2_price"].tolist()
        [99, 0, 50]
        >>> Digits("price").fit_transform(df)["last1_price"].tolist()
        [9, 9, 0]
    """

    def __init__(self, cols: Cols, digits: int = 1, *, decimals: int = 0) -> None:
        self.cols, self.digits, self.decimals = cols, digits, decimals
        if not (1 <= digits <= 18 and 0 <= decimals <= 9):
            raise DataError(
                f"Digits: {digits} digits of numbers with {decimals} decimals",
                remedy="Use 1 to 18, and 0 to 9 decimals",
            )

    @property
    def outputs(self) -> list[str]:
        word = f"last{self.digits}" + (f"dp{self.decimals}" if self.decimals else "")
        return [f"{word}_{c}" for c in self.columns]

    def prepare(self, table: Table) -> Tensors:
        return _written(self, table, self.columns)

    def apply(self, tensors: Tensors) -> Tensors:
        made = {}
        for name, output in zip(self.columns, self.outputs, strict=True):
            values = tensors[name]
            if values.is_floating_point():
                made[output] = self._of_floats(values, tensors[f"rounding {name}"])
            else:
                kept = max(self.digits - self.decimals, 0)
                made[output] = torch.fmod(values, 10**kept).abs() * 10 ** (self.digits - kept)
                made[output] = torch.where(tensors[f"missing {name}"], -1, made[output])
        return made

    def _of_floats(self, values: torch.Tensor, rounding: torch.Tensor) -> torch.Tensor:
        shifted = values.abs() * float64(10.0**self.decimals)
        near = torch.round(shifted)
        shifted = torch.where((shifted - near).abs() <= rounding * shifted, near, shifted)
        last = torch.fmod(shifted, float64(10.0**self.digits))  # exact, however large the number
        return torch.where(shifted.isfinite(), last, -1).long()

    def compute(self, table: Table) -> dict[str, Column]:
        return {n: masked(n, values, values < 0) for n, values in self.apply(self.prepare(table)).items()}


class RoundTo(OfColumns, RowWise):
    """The nearest multiple of a step, the distance from it, and whether the number is one: round prices.

    Integers with a whole step are exact; a float counts as the short number it was written as, so that 0.15 is a
    multiple of 0.05. Halves go to the even multiple, as in numpy.

    Args:
        cols: number columns, or generators.
        to: the step, above 0, in the columns' unit; or several.
        stats: of ``value`` (the nearest multiple: int64 for integers and a whole step, else float64; infinity is its
            own), ``gap`` (the number less that multiple, float64; missing for an infinity) and ``is_round`` (boolean;
            missing for an infinity).

    The outputs are named ``round{to}_{col}``, ``roundgap{to}_{col}``, ``isround{to}_{col}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RoundTo
        >>> df = pd.DataFrame({"price": [99, 150]})
        >>> made = RoundTo("price", 10, stats=["value", "gap", "is_round"]).fit_transform(df)
        >>> made.drop(columns="price").values.tolist()
        [[100, -1.0, False], [150, 0.0, True]]
    """

    def __init__(
        self,
        cols: Cols,
        to: float | Sequence[float],
        *,
        stats: Literal["value", "gap", "is_round"] | Sequence[str] = "value",
    ) -> None:
        self.cols, self.to, self.stats = cols, to, stats
        bad = next((t for t in as_list(to) if not 0 < t < 1 << 62), None)
        if bad is not None or not as_list(to):
            raise DataError(f"RoundTo: there are no multiples of {bad}", remedy="Give a number above 0 and below 2^62")
        check_choices(self, "statistic", as_list(stats) or [None], list(_WORDS))

    @property
    def outputs(self) -> list[str]:
        return [_output(stat, to, c) for c in self.columns for to in as_list(self.to) for stat in as_list(self.stats)]

    def prepare(self, table: Table) -> Tensors:
        return _written(self, table, self.columns)

    def apply(self, tensors: Tensors) -> Tensors:
        made = {}
        for name in self.columns:
            values = tensors[name]
            for to in as_list(self.to):
                if values.is_floating_point():
                    found = _round_floats(values, float(to), tensors[f"rounding {name}"])
                elif float(to).is_integer():
                    found = _round_integers(values, int(to))
                else:
                    found = _round_floats(values.double(), float(to), _rounding_of(torch.float64, values.device))
                made.update({_output(stat, to, name): found[stat] for stat in as_list(self.stats)})
        return made

    def compute(self, table: Table) -> dict[str, Column]:
        tensors = self.prepare(table)
        made = {}
        values = self.apply(tensors)
        for name in self.columns:
            missing = tensors.get(f"missing {name}")
            gone = tensors[name].isnan() if missing is None else missing
            endless = tensors[name].isinf()
            for stat in as_list(self.stats):
                for to in as_list(self.to):
                    output = _output(stat, to, name)
                    hidden = gone if stat == "value" else gone | endless
                    if values[output].is_floating_point():
                        made[output] = Column("number", values[output].masked_fill(hidden, torch.nan), name=output)
                    else:
                        made[output] = masked(output, values[output], hidden)
        return {n: made[n] for n in self.outputs}


_WORDS = {"value": "round", "gap": "roundgap", "is_round": "isround"}


def _output(stat: str, to: float, col: str) -> str:
    return f"{_WORDS[stat]}{to:.15g}_{col}"


def _written(feature: Feature, table: Table, names: Sequence[str]) -> Tensors:
    """Return integers as int64 with a mask, other numbers as float64 with the rounding of their type."""
    tensors = {}
    for name in names:
        column = table[name].plain()
        if column.kind == "number" and not column.values.is_floating_point():
            tensors[name], tensors[f"missing {name}"] = column.integer(), column.is_missing()
            continue
        tensors[name] = number_of(table, name, wanted_by=feature)
        own = column.values.dtype if column.kind == "number" else torch.float64
        tensors[f"rounding {name}"] = _rounding_of(own, table.device)
    return tensors


def _rounding_of(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # A product of a decimal number is a few roundings of its type off: within 4 it counts as whole.
    return torch.tensor(4 * torch.finfo(dtype).eps, dtype=torch.float64, device=device)


def _round_integers(values: torch.Tensor, to: int) -> Tensors:
    times = torch.div(values, to, rounding_mode="floor")
    rest = values - times * to
    up = (rest * 2 > to) | ((rest * 2 == to) & (times % 2 != 0))
    most = torch.iinfo(torch.int64).max
    up = (up & (times < most // to)) | (times < -((most + 1) // to))  # the multiple above, or below, would not fit
    gap = torch.where(up, rest - to, rest)
    return {"value": (times + up.long()) * to, "gap": gap.double(), "is_round": rest == 0}


def _round_floats(values: torch.Tensor, to: float, rounding: torch.Tensor) -> Tensors:
    # A step such as 0.05 is no float, but 20 is: multiples are then made by one correctly rounded division.
    parts = round(1 / to)
    exact = parts >= 1 and abs(1 / to - parts) <= 4e-16 * parts
    step = float64(to)
    times = values * parts if exact else values / step
    near = torch.round(times)
    value = near / parts if exact else near * step
    is_round = (times - near).abs() <= rounding * times.abs()
    endless = times.isinf()  # so large that nothing lies between it and a multiple
    value, is_round = torch.where(endless, values, value), is_round | endless
    return {"value": value, "gap": torch.where(is_round, 0.0, values - value), "is_round": is_round}
