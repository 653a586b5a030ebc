"""Features within a row: statistics, arithmetic, buckets, digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Literal, get_args

import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.features._engine.group_values import quantiles, total_counts
from fastrec.features._engine.options import OfColumns, ascending, float64, is_open
from fastrec.features.base import Col, Cols, Feature, RowWise, Scope, State, Tensors
from fastrec.features.clean import LearnsColumns
from fastrec.features.columns import as_columns, as_list, masked, name_of, number_of
from fastrec.table import Column, Table

Stat = Literal["zeros", "missing", "negative", "nunique", "sum", "mean", "std", "min", "max"]
_STATS = get_args(Stat)


class RowStats(OfColumns, RowWise):
    """Statistics across a row's columns, for wide tables of anonymous columns.

    Missing values count only in ``missing``. A row without values has ``sum`` 0 and missing ``mean``, ``std``, ``min``
    and ``max``. ``std`` of one value is missing. Infinities count as numbers, as in pandas.

    Args:
        cols: number, boolean or time columns, selectors or generators.
        stats: ``zeros``, ``missing``, ``negative``, ``nunique`` (counts, int64), ``sum``, ``mean``, ``std`` (sample),
            ``min``, ``max`` (float64). ``nunique`` sorts each row and costs more than all others.
        name: the prefix of the outputs' names: ``row_zeros``, ``row_mean``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RowStats, number
        >>> df = pd.DataFrame({"a": [0.0, 1.0], "b": [4.0, None], "c": [2, 3]})
        >>> RowStats(number(), ["zeros", "missing", "mean"]).fit_transform(df).iloc[:, 3:].values.tolist()
        [[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]
    """

    def __init__(
        self,
        cols: Cols,
        stats: Stat | Sequence[Stat] = ("zeros", "missing", "mean", "std", "min", "max"),
        *,
        name: str = "row",
    ) -> None:
        asked = as_list(stats)
        if not asked or len(set(map(str, asked))) < len(asked) or any(str(s) not in _STATS for s in asked):
            known = ", ".join(map(repr, _STATS))
            raise DataError(f"RowStats cannot make the statistics {stats!r}", remedy=f"Use some of {known}, each once")
        if not is_open(cols):
            self._check()

    def _check(self) -> None:
        if not self.columns:
            raise DataError("RowStats makes no statistic of no column", remedy="Name one or more")

    @property
    def outputs(self) -> list[str]:
        return [f"{self.name}_{stat}" for stat in as_list(self.stats)]

    def prepare(self, table: Table) -> Tensors:
        self._check()  # selectors are resolved by now
        return {c: number_of(table, c, wanted_by=self) for c in self.columns}

    def apply(self, tensors: Tensors) -> Tensors:
        made = _row_statistics([tensors[c] for c in self.columns], set(as_list(self.stats)))
        return {name: made[stat] for name, stat in zip(self.outputs, as_list(self.stats), strict=True)}

    def compute(self, table: Table) -> dict[str, Column]:
        # Blocks of rows: hundreds of columns as float64 would not fit in memory at once.
        table = table.select(dict.fromkeys(self.columns))
        # Other kinds are converted once, so that errors name the row number of the whole table.
        odd = [n for n in table.names if table[n].kind not in ("number", "datetime")]
        table = table.with_columns({n: number_of(table, n, wanted_by=self) for n in odd})
        size = max(limits.ROW_STATS_NUMBERS // max(len(self.columns), 1), 1)
        starts = range(0, max(len(table), 1), size)
        parts = [self.apply(self.prepare(table.slice(s, min(s + size, len(table))))) for s in starts]
        return as_columns({n: torch.cat([p[n] for p in parts]) for n in self.outputs})


def _row_statistics(columns: list[torch.Tensor], wanted: set[str]) -> Tensors:
    """Compute the wanted statistics, and those they need, of columns float64 ``[n]`` with NaN where missing."""
    # Sums run over columns: a matrix reduction would make a row's bits depend on the other rows of the block.
    gone = [x.isnan() for x in columns]

    def over(join: Callable[..., torch.Tensor], empty: float) -> torch.Tensor:
        return reduce(join, (torch.where(none, empty, x) for none, x in zip(gone, columns, strict=True)))

    made = {"missing": _how_many(gone)}
    count, moments = len(columns) - made["missing"], wanted & {"mean", "std"}
    if "zeros" in wanted:
        made["zeros"] = _how_many(x == 0 for x in columns)
    if "negative" in wanted:
        made["negative"] = _how_many(x < 0 for x in columns)
    if "nunique" in wanted:
        ordered = torch.stack(columns, 1).sort(1).values  # NaN sorts last
        new = (ordered[:, 1:] != ordered[:, :-1]) & ~ordered[:, 1:].isnan()
        made["nunique"] = new.sum(1) + (~ordered[:, 0].isnan()).long()
    if "sum" in wanted or moments:
        made["sum"] = over(torch.add, 0)
    if "min" in wanted or moments:
        made["min"] = torch.where(count > 0, over(torch.minimum, torch.inf), torch.nan)
    if "max" in wanted or moments:
        made["max"] = torch.where(count > 0, over(torch.maximum, -torch.inf), torch.nan)
    if moments:
        mean = made["sum"] / count
        # The mean of equal values is that value to the last bit; their spread is then 0.
        made["mean"] = mean = torch.where(mean.isinf(), mean, torch.clamp(mean, made["min"], made["max"]))
    if "std" in wanted:
        rests = (torch.where(none, 0, x - mean) for none, x in zip(gone, columns, strict=True))
        total = reduce(torch.add, (r * r for r in rests))
        made["std"] = torch.where(count > 1, (total / (count - 1)).sqrt(), torch.nan)
    return made


def _how_many(masks: Iterable[torch.Tensor]) -> torch.Tensor:
    # Masks are added as bytes, up to what a byte holds: widening each one first takes several times as long.
    ones = [mask.view(torch.int8) for mask in masks]
    parts = (reduce(torch.add, ones[i : i + 127]) for i in range(0, len(ones), 127))
    return reduce(torch.add, (part.long() for part in parts))


_WORDS_COMBINE = {"+": "plus", "-": "minus", "*": "times", "/": "over"}


class Combine(RowWise):
    """``a + b``, ``a - b``, ``a * b`` or ``a / b`` as float64; missing if either is, or if the divisor is 0.

    Args:
        a: a number column, or a generator.
        how: ``'+'``, ``'-'``, ``'*'`` or ``'/'``.
        b: likewise.
        name: the output's name; None: ``{a}_minus_{b}`` and so on.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Combine
        >>> Combine("a", "/", "b").fit_transform(pd.DataFrame({"a": [1, 2], "b": [4, 0]}))["a_over_b"].tolist()
        [0.25, nan]
    """

    _reads = ("a", "b")

    def __init__(self, a: Col, how: Literal["+", "-", "*", "/"], b: Col, *, name: str | None = None) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.a)}_{_WORDS_COMBINE[self.how]}_{name_of(self.b)}"]

    def prepare(self, table: Table) -> Tensors:
        return {n: number_of(table, name_of(s), wanted_by=self) for n, s in (("a", self.a), ("b", self.b))}

    def apply(self, tensors: Tensors) -> Tensors:
        a, b = tensors["a"], tensors["b"]
        if self.how == "/":
            made = torch.where(b == 0, torch.nan, a / b)
        else:
            made = {"+": a + b, "-": a - b, "*": a * b}[self.how]
        return {self.outputs[0]: made}


class Where(RowWise):
    """The value if the condition is above 0, else missing: ``Where('position', 'touches')``.

    Args:
        col: a number column, or a generator.
        condition: likewise; missing counts as 0.
        name: the output's name; None: ``{col}_where_{condition}``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Where
        >>> df = pd.DataFrame({"position": [1, 2], "touched": [0, 3]})
        >>> Where("position", "touched").fit_transform(df)["position_where_touched"].tolist()
        [nan, 2.0]
    """

    _reads = ("col", "condition")

    def __init__(self, col: Col, condition: Col, *, name: str | None = None) -> None: ...

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.col)}_where_{name_of(self.condition)}"]

    def prepare(self, table: Table) -> Tensors:
        names = {"value": name_of(self.col), "condition": name_of(self.condition)}
        return {word: number_of(table, name, wanted_by=self) for word, name in names.items()}

    def apply(self, tensors: Tensors) -> Tensors:
        return {self.outputs[0]: torch.where(tensors["condition"] > 0, tensors["value"], torch.nan)}


class Bucketize(LearnsColumns):
    """Bucket of a number: 0 below the first edge, ``i`` from the ``i``-th edge on; missing stays missing.

    Args:
        col: a number column, or a generator.
        edges: ascending numbers; nothing is learned.
        quantiles: learn the edges from training rows instead. They are exact quantiles (linear, as numpy's) at
            ``1/k … (k-1)/k`` for an integer ``k``, or at the given shares. Equal edges are merged.
        name: the output's name; None: ``{col}_bucket``, with quantiles ``{col}_qbucket``.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Bucketize
        >>> df = pd.DataFrame({"gap": [3, 10, 99, 10]})
        >>> Bucketize("gap", [10, 60]).fit_transform(df)["gap_bucket"].tolist()
        [0, 1, 2, 1]
        >>> Bucketize("gap", quantiles=2).fit_transform(df)["gap_qbucket"].tolist()
        [0, 1, 1, 1]
    """

    _reads = ("col",)

    def __init__(
        self,
        col: Col,
        edges: Sequence[float] | None = None,
        *,
        quantiles: int | Sequence[float] | None = None,
        name: str | None = None,
        scope: Scope = "train",
    ) -> None:
        if (edges is None) == (quantiles is None):
            raise DataError("Bucketize needs edges, or quantiles to learn them", remedy="Give one of the two")
        if edges is not None and not hasattr(edges, "__len__"):
            remedy = f"For {edges} buckets of as many rows each use quantiles={edges}, or list the edges"
            raise DataError(f"Bucketize: edges={edges} lists no numbers", remedy=remedy)
        if edges is not None and (not len(edges) or not ascending(edges)):
            raise DataError(f"Bucketize: the edges {list(edges)} do not ascend", remedy="Give ascending numbers")
        shares = self._shares()
        if edges is None and not (shares and ascending(shares) and shares[0] >= 0 and shares[-1] <= 1):
            remedy = "Give 2 or more, or ascending shares from 0 to 1"
            raise DataError(f"Bucketize: {quantiles} makes no quantiles", remedy=remedy)

    @property
    def _given(self) -> bool:  # type: ignore[override]
        return self.edges is not None

    @property
    def columns(self) -> list[str]:
        return [name_of(self.col)]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.col)}_{'q' if self.edges is None else ''}bucket"]

    def _shares(self) -> list[float]:
        if self.quantiles is None or isinstance(self.quantiles, list | tuple):
            return [float(q) for q in as_list(self.quantiles)]
        parts = float(self.quantiles)
        return [i / parts for i in range(1, int(parts))] if parts.is_integer() else []

    def _fit(self, name: str, learned: State, keep: torch.Tensor | None) -> torch.Tensor:
        if self.edges is not None:
            return torch.tensor([float(e) for e in self.edges], dtype=torch.float64)
        edges = torch.unique_consecutive(quantiles(*total_counts(learned, keep), self._shares()))
        return edges[~edges.isnan()]

    def apply(self, fit: State, tensors: Tensors) -> Tensors:
        (name,) = self.columns
        value = tensors[name]
        bucket = torch.bucketize(value, fit[name].to(value.device), right=True)
        return {self.outputs[0]: torch.where(value.isnan(), -1, bucket)}

    def wrap(self, tensors: Tensors) -> dict[str, Column]:
        name, bucket = self.outputs[0], tensors[self.outputs[0]]
        return {name: masked(name, bucket, bucket < 0)}


class Digits(OfColumns, RowWise):
    """Last digits of a number's decimal representation, without sign: 99 for 19.99 with two digits and decimals.

    Integers are exact. A float is read as its short decimal: the last digit of 19.99 is 9, although ``19.99 · 100`` is
    1998.9999…. Further decimals are truncated. Missing and infinite values give missing. The outputs are int64, named
    ``last{digits}_{col}``, with decimals ``last{digits}dp{decimals}_{col}``.

    Args:
        digits: the number of digits, 1 to 18.
        decimals: the number of decimals, 0 to 9: 2 for prices with cents.

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
        if not (1 <= digits <= 18 and 0 <= decimals <= 9):
            problem = f"Digits: {digits} digits of numbers with {decimals} decimals"
            raise DataError(problem, remedy="Use 1 to 18, and 0 to 9 decimals")

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
                shifted = values.abs() * float64(10.0**self.decimals)
                near = torch.round(shifted)
                is_near = (shifted - near).abs() <= tensors[f"rounding {name}"] * shifted
                shifted = torch.where(is_near, near, shifted)
                last = torch.fmod(shifted, float64(10.0**self.digits))  # exact for numbers of any size
                made[output] = torch.where(shifted.isfinite(), last, -1).long()
            else:
                kept = max(self.digits - self.decimals, 0)
                made[output] = torch.fmod(values, 10**kept).abs() * 10 ** (self.digits - kept)
                made[output] = torch.where(tensors[f"missing {name}"], -1, made[output])
        return made

    def compute(self, table: Table) -> dict[str, Column]:
        return {n: masked(n, values, values < 0) for n, values in self.apply(self.prepare(table)).items()}


Round = Literal["value", "gap", "is_round"]


class RoundTo(OfColumns, RowWise):
    """Nearest multiple of a step, the distance from it, and whether the number is one (round prices).

    Integers with an integer step are exact. A float is read as its short decimal: 0.15 is a multiple of 0.05. Halves
    go to the even multiple, as in numpy. The outputs are named ``round{to}_{col}``, ``roundgap{to}_{col}`` and
    ``isround{to}_{col}``.

    Args:
        to: the step, above 0, in the columns' unit; or several.
        stats: ``value`` (the nearest multiple: int64 for integers and an integer step, else float64; infinity stays),
            ``gap`` (number minus multiple, float64), ``is_round`` (boolean). The last two are missing for infinity.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import RoundTo
        >>> df = pd.DataFrame({"price": [99, 150]})
        >>> made = RoundTo("price", 10, stats=["value", "gap", "is_round"]).fit_transform(df)
        >>> made.drop(columns="price").values.tolist()
        [[100, -1.0, False], [150, 0.0, True]]
    """

    def __init__(self, cols: Cols, to: float | Sequence[float], *, stats: Round | Sequence[Round] = "value") -> None:
        bad = next((t for t in as_list(to) if not 0 < t < 1 << 62), None)
        if bad is not None or not as_list(to):
            raise DataError(f"RoundTo: there are no multiples of {bad}", remedy="Give a number above 0 and below 2^62")

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
    """Return integers as int64 with a mask, other numbers as float64 with the rounding error of their type."""
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
    # A product with a decimal number is off by a few roundings: within 4 it counts as an integer.
    return torch.tensor(4 * torch.finfo(dtype).eps, dtype=torch.float64, device=device)


def _round_integers(values: torch.Tensor, to: int) -> Tensors:
    times = torch.div(values, to, rounding_mode="floor")
    rest = values - times * to
    up = (rest * 2 > to) | ((rest * 2 == to) & (times % 2 != 0))
    most = torch.iinfo(torch.int64).max
    up = (up & (times < most // to)) | (times < -((most + 1) // to))  # avoid overflow of int64
    gap = torch.where(up, rest - to, rest)
    return {"value": (times + up.long()) * to, "gap": gap.double(), "is_round": rest == 0}


def _round_floats(values: torch.Tensor, to: float, rounding: torch.Tensor) -> Tensors:
    # A step such as 0.05 is not exact as a float, but 20 is: one correctly rounded division gives the multiples.
    parts = round(1 / to)
    exact = parts >= 1 and abs(1 / to - parts) <= 4e-16 * parts
    # divisors on the device: CUDA divides by a host number through its reciprocal, which rounds twice
    step, whole = float64(to).to(values.device), float64(parts).to(values.device)
    times = values * whole if exact else values / step
    near = torch.round(times)
    value = near / whole if exact else near * step
    is_round = (times - near).abs() <= rounding * times.abs()
    endless = times.isinf()  # too large to lie between multiples
    value, is_round = torch.where(endless, values, value), is_round | endless
    return {"value": value, "gap": torch.where(is_round, 0.0, values - value), "is_round": is_round}
