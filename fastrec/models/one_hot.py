"""``OneHotTables``: categories of few values as fixed numbers, centred and scaled as numbers are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec.errors import DataError


class OneHotTables(nn.Module):
    """Columns of ids as one-hot numbers, nothing of which is learnt.

    Id 0 (missing, unseen) is all zeros. A column of two values is one number, -1 and 1. Each number is then less its
    median, over the distance of its quartiles, clipped smoothly, as ``RobustScale`` does it to numbers
    (arXiv 2407.04491, section 3); over training rows these depend on the share of each id alone.

    Args:
        shares: for each column the share of each id ``[rows]``; None: as if equal.
    """

    def __init__(
        self, rows: Sequence[int], columns: Sequence[int], names: Sequence[str], shares: Sequence[Tensor] | None = None
    ) -> None:
        super().__init__()
        self.columns, self.names = list(columns), list(names)
        tables = [one_hot_table(n, None if shares is None else shares[i]) for i, n in enumerate(rows)]
        self.width = sum(t.shape[1] for t in tables)
        # One table for all columns, whose ids follow one another: a batch is one sum of parts that do not overlap.
        joined = torch.zeros(sum(rows), self.width)
        row = column = 0
        for table in tables:
            joined[row : row + len(table), column : column + table.shape[1]] = table
            row, column = row + len(table), column + table.shape[1]
        self.register_buffer("table", joined)
        sizes = torch.tensor(list(rows), dtype=torch.int64)
        self.register_buffer("_rows", sizes, persistent=False)
        self.register_buffer("_starts", sizes.cumsum(0) - sizes, persistent=False)

    def forward(self, x_cat: Tensor | None, n_columns: int) -> Tensor:
        """Return the numbers of a batch ``[b, width]``.

        Args:
            x_cat: ids ``[b, n_columns]``, integers.
        """
        if x_cat is None or x_cat.ndim != 2 or x_cat.shape[1] != n_columns:
            given = None if x_cat is None else list(x_cat.shape)
            raise DataError(f"ids of shape [b, {n_columns}] are needed, not {given}", remedy="Give every column of ids")
        ids = x_cat[:, self.columns].long()
        if ids.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.jit.is_tracing():
            self._check(ids)
        ids = ids + self._starts
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # a bag becomes a loop in exported graphs
            return self.table[ids].sum(1)
        return F.embedding_bag(ids, self.table, mode="sum")

    def _check(self, ids: Tensor) -> None:
        bad = (ids < 0) | (ids >= self._rows)
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise DataError(
                f"id {int(ids[row, column])} is outside the one-hot column's 0 to {int(self._rows[column]) - 1}",
                column=self.names[column],
                row=row,
                remedy="Encode rows with the vocabulary that the model was built from (rows are counted in the batch)",
            )

    def extra_repr(self) -> str:
        """Show columns and width."""
        return f"{len(self.columns)} columns, {self.width} wide"


def one_hot_table(rows: int, shares: Tensor | None = None) -> Tensor:
    """Return the numbers of each id of a column: ``[rows, numbers]``, float32."""
    plain = torch.zeros(rows, rows - 1) if rows != 3 else torch.tensor([[0.0], [-1.0], [1.0]])
    if rows != 3:
        plain[1:] = torch.eye(rows - 1)
    if shares is None:
        shares = torch.full((rows,), 1 / max(rows - 1, 1))
        shares[0] = 0.0
    shares = shares.double() / shares.double().sum().clamp(min=1e-300)
    columns = [_scaled(plain[:, i].double(), shares) for i in range(plain.shape[1])]
    return torch.stack(columns, 1).float() if columns else torch.zeros(rows, 0)


def _scaled(values: Tensor, shares: Tensor) -> Tensor:
    order = torch.argsort(values, stable=True)
    ranked, below = values[order], shares[order].cumsum(0)
    first, median, third = (ranked[int((below < q - 1e-9).sum().clamp(max=len(ranked) - 1))] for q in (0.25, 0.5, 0.75))
    there = values[shares > 0]
    reach = there.max() - there.min() if len(there) else values.new_zeros(())
    scale = 1 / (third - first) if third > first else 2 / reach if reach > 0 else values.new_zeros(())
    scaled = (values - median) * scale
    return scaled / (1 + (scaled / 3) ** 2).sqrt()
