"""``Combine``: two columns added, subtracted, multiplied or divided."""

from __future__ import annotations

from typing import Literal

import torch

from fastrec.features._inputs import check_choices, name_of, number_of
from fastrec.features.base import Col, RowWise, Tensors
from fastrec.table import Table

_WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "over"}


class Combine(RowWise):
    """``a + b``, ``a - b``, ``a * b`` or ``a / b`` as float64; missing where either is, and where the divisor is 0.

    Args:
        a: a number column, or a generator of one.
        how: ``'+'``, ``'-'``, ``'*'`` or ``'/'``.
        b: likewise.
        name: the output's name; None: ``{a}_minus_{b}`` and so on.

    Example:
        >>> import pandas as pd
        >>> from fastrec.features import Combine
        >>> Combine("a", "/", "b").fit_transform(pd.DataFrame({"a": [1, 2], "b": [4, 0]}))["a_over_b"].tolist()
        [0.25, nan]
    """

    def __init__(self, a: Col, how: Literal["+", "-", "*", "/"], b: Col, *, name: str | None = None) -> None:
        self.a, self.how, self.b, self.name = a, how, b, name
        check_choices(self, "operation", how, list(_WORDS))

    @property
    def sources(self) -> list[Col]:
        return [self.a, self.b]

    @property
    def outputs(self) -> list[str]:
        return [self.name or f"{name_of(self.a)}_{_WORDS[self.how]}_{name_of(self.b)}"]

    def prepare(self, table: Table) -> Tensors:
        return {n: number_of(table, name_of(s), wanted_by=self) for n, s in (("a", self.a), ("b", self.b))}

    def apply(self, tensors: Tensors) -> Tensors:
        a, b = tensors["a"], tensors["b"]
        if self.how == "/":
            made = torch.where(b == 0, torch.nan, a / b)
        else:
            made = {"+": a + b, "-": a - b, "*": a * b}[self.how]
        return {self.outputs[0]: made}
