"""``DenseInputs``: the columns of a table as one matrix without gaps, for estimators that need one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fastrec.estimators._tree_inputs import TreeInputs
from fastrec.table import Table, Vocab, load_state, save_state
from fastrec.validate import Rows

Cats = Literal["onehot", "code"]
_FOLDER = "numbers"


@dataclass
class _Number:
    """Preparation of a column of numbers.

    Args:
        median, low, high: of the training rows' finite values: missing values become the median, infinite ones the
            least or the largest value.
        mean, scale: what is taken off then, and what by is divided.
        flag: whether values were missing in training: a column of 0 and 1 says then which.
    """

    median: float
    low: float
    high: float
    mean: float
    scale: float
    flag: bool

    @classmethod
    def fit(cls, values: torch.Tensor) -> _Number:
        missing = values.isnan()
        # An infinite value would make mean and deviation useless.
        finite = values[values.isfinite()]
        if not len(finite):
            return cls(0.0, 0.0, 0.0, 0.0, 1.0, bool(missing.any()))
        number = cls(float(finite.median()), float(finite.min()), float(finite.max()), 0.0, 1.0, bool(missing.any()))
        filled = number.fill(values)
        number.mean, spread = float(filled.mean()), float(filled.std(correction=0))
        # A constant column is not divided by its rounding errors.
        number.scale = spread if spread > 1e-12 * max(abs(number.mean), 1e-300) else 1.0
        return number

    def fill(self, values: torch.Tensor) -> torch.Tensor:
        return values.nan_to_num(self.median, self.high, self.low)

    def columns(self, values: torch.Tensor) -> list[torch.Tensor]:
        columns = [(self.fill(values) - self.mean) / self.scale]
        return [*columns, values.isnan().double()] if self.flag else columns


class DenseInputs:
    """Numbers with the median where they are missing (and a column that says so), of mean 0 and variance 1; categories.

    Args:
        inputs: the columns, and the vocabularies of the categories.
        cats: ``'onehot'``: a column of 0 and 1 for each of the 64 most frequent values, one for the others, none for
            missing and unseen ones. ``'code'``: the value's number in sorted order, 0 for missing and unseen ones.
        numbers: how each of the other columns is prepared.
    """

    def __init__(self, inputs: TreeInputs, cats: Cats, numbers: Mapping[str, _Number]) -> None:
        self.inputs, self.cats, self.numbers = inputs, cats, dict(numbers)

    @classmethod
    def fit(cls, rows: Rows, columns: Sequence[str] | None, cats: Cats) -> DenseInputs:
        """Learn from training rows."""
        inputs = TreeInputs.fit(rows, columns)
        if cats == "onehot":
            # Rarer values share one column: a column for each would make the matrix too wide.
            inputs.vocabs = {n: Vocab.fit(rows.table[n], max_size=64) for n in inputs.vocabs}
        others = (n for n in inputs.names if n not in inputs.vocabs)
        return cls(inputs, cats, {n: _Number.fit(rows.table[n].number()) for n in others})

    def matrix(self, table: Table) -> torch.Tensor:
        """Return the columns as float64 ``[n, m]`` on the CPU, every value finite."""
        blocks = [self._block(table, name) for name in self.inputs.names]
        return torch.cat(blocks, 1) if blocks else torch.zeros((len(table), 0), dtype=torch.float64)

    def _block(self, table: Table, name: str) -> torch.Tensor:
        if name in self.numbers:
            return torch.stack(self.numbers[name].columns(table[name].number().cpu()), 1)
        codes = self.inputs.codes(table, name).cpu()
        if self.cats == "code":
            return codes.double().unsqueeze(1)
        return torch.nn.functional.one_hot(codes, len(self.inputs.vocabs[name]))[:, 1:].double()

    @property
    def owners(self) -> list[str]:
        """The table's column that each column of the matrix is made of."""
        wide = [1 + self.numbers[n].flag if n in self.numbers else self._width(n) for n in self.inputs.names]
        return [n for n, width in zip(self.inputs.names, wide, strict=True) for _ in range(width)]

    def _width(self, name: str) -> int:
        return 1 if self.cats == "code" else len(self.inputs.vocabs[name]) - 1

    def write(self, folder: Path) -> dict[str, Any]:
        """Write vocabularies and numbers into a folder that is there.

        Returns:
            What else ``read`` is to be given, as JSON values.
        """
        save_state(folder / _FOLDER, {n: vars(how) for n, how in self.numbers.items()})
        return {**self.inputs.write(folder), "cats": self.cats}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> DenseInputs:
        """Restore what ``write`` wrote."""
        numbers = {n: _Number(**how) for n, how in load_state(folder / _FOLDER).items()}
        return cls(TreeInputs.read(folder, about), about["cats"], numbers)
