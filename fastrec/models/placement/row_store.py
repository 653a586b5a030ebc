"""``RowStore``: all rows of a group of tables off the device: in the host's memory, or in memory-mapped files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastrec._core import limits
from fastrec._core.oom import naming_out_of_memory, shown_bytes
from fastrec.errors import MissingFileError, WriteError

__all__ = ["RowStore"]


class RowStore:
    """Named columns of numbers of all rows: the weights, and what an optimizer keeps of them.

    Rows that no batch has are not settled (see ``fastrec.optim.row_sparse``) before they are read: ``pending`` says by
    what. A row is then multiplied by the same numbers in the same order as rows on the device were.

    Args:
        folder: where files are to lie; None: in memory.
    """

    def __init__(self, rows: int, width: int, folder: str | Path | None = None) -> None:
        self.rows, self.width = rows, width
        self.pending: list[tuple[int, tuple[float, float]]] = []  # steps up to which rows are to be settled, and β
        self.decays: Tensor | None = None  # the optimizer's logarithms of what weights have decayed by after each step
        self._folder = None if folder is None else _Folder(folder)
        self.columns: dict[str, Tensor] = {}
        self.begin("weight", width)

    def begin(self, name: str, width: int | None) -> Tensor:
        """Add a column of zeros, in place of an earlier one of that name.

        Args:
            width: numbers of a row; None: one, and the column has one dimension.
        """
        shape = (self.rows,) if width is None else (self.rows, width)
        count = self.rows * (width or 1)
        if self._folder is not None:
            self.columns[name] = self._folder.mapped(name, count).view(shape)
        else:
            remedy = "Give Embeddings(folder=…), so that rows lie in memory-mapped files, or narrower tables (emb_szs=)"
            with naming_out_of_memory(f"making {self.rows:,} rows of an embedding table", remedy, need=4 * count):
                self.columns[name] = torch.zeros(shape)
        return self.columns[name]

    def read(self, rows: Tensor) -> dict[str, Tensor]:
        """Copy some rows of all columns, settled.

        Args:
            rows: int64 ``[n]``.
        """
        found = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        self._settle(found)
        return found

    def write(self, rows: Tensor, values: dict[str, Tensor]) -> None:
        """Write rows back."""
        for name, column in self.columns.items():
            column.index_copy_(0, rows, values[name])

    def settle(self) -> None:
        """Settle all rows."""
        if not self.pending:
            return
        size = max(1, limits.STORE_NUMBERS // self.width)
        for start in range(0, self.rows, size):
            self._settle({name: column[start : start + size] for name, column in self.columns.items()})
        self.pending.clear()

    def _settle(self, values: dict[str, Tensor]) -> None:
        last = values.get("last")
        if last is None or not len(last):
            return
        for step, betas in self.pending:
            left_out = (step - last).clamp_(min=0).unsqueeze_(1)
            if not bool((left_out > 0).any()):
                continue
            if float(self.decays[step]):
                since = self.decays.index_select(0, last.clamp(max=step).long())
                values["weight"].mul_((self.decays[step] - since).exp_().unsqueeze_(1))
            for name, beta in (("exp_avg_sq", betas[1]), ("exp_avg", betas[0])):
                if name in values:
                    values[name].mul_(torch.pow(beta, left_out) if beta else (left_out == 0).float())
            last.clamp_(min=step)

    def blocks(self) -> Iterator[Tensor]:
        """Yield the weights, some rows at a time, as views."""
        yield from self.columns["weight"].split(max(1, limits.STORE_NUMBERS // self.width))

    def __getstate__(self) -> dict[str, Any]:
        """Return the settled weights alone, in memory."""
        self.settle()
        weight = self.columns["weight"]
        weight = weight.clone() if self._folder is not None else weight
        return {"rows": self.rows, "width": self.width, "columns": {"weight": weight}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.columns = dict(self.columns)
        self.pending, self.decays, self._folder = [], None, None


class _Folder:
    """A temporary folder for files of numbers."""

    def __init__(self, parent: str | Path) -> None:
        if not Path(parent).is_dir():
            raise MissingFileError(
                "there is no such folder for the rows of embedding tables", file=parent, remedy="Make it beforehand"
            )
        self.path = Path(tempfile.mkdtemp(prefix="embedding-rows-", dir=parent))
        self._count = 0
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def mapped(self, name: str, count: int) -> Tensor:
        """Map a file of so many zeros as a tensor."""
        free = shutil.disk_usage(self.path).free
        if free < 4 * count:
            raise WriteError(
                f"rows of embedding tables need {shown_bytes(4 * count)}, {shown_bytes(free)} are free",
                file=self.path,
                remedy="Give Embeddings(folder=…) on a larger disk, or narrower tables (emb_szs=)",
            )
        self._count += 1
        path = self.path / f"{name}-{self._count}.f32"
        with path.open("wb") as file:
            file.truncate(4 * count)
        mapped = torch.from_file(str(path), shared=True, size=count, dtype=torch.float32)
        with suppress(PermissionError):  # Windows removes no file that is in use; the folder goes later
            path.unlink()  # the map keeps what it held until the last tensor of it is gone, even if the process dies
        return mapped
