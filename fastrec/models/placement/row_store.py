"""``RowStore``: all rows of a group of tables off the device: in the host's memory, or in memory-mapped files."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.memory import naming_out_of_memory, shown_bytes
from fastrec.errors import DataError, MissingFileError, WriteError
from fastrec.models.embedding_layout import KINDS, TableSlice, kind_of, lay_out


def fade(values: Mapping[str, Tensor], steps: Tensor, betas: tuple[float, float]) -> None:
    """Let the running means of rows fade in place by β for each of ``steps`` ``[n, 1]`` without a gradient."""
    for name, beta in zip(("exp_avg", "exp_avg_sq"), betas, strict=True):
        if name in values:
            values[name].mul_(torch.pow(beta, steps) if beta else (steps == 0).to(steps.dtype))


class RowStore:
    """Weights and optimizer state of all rows, as named columns in memory or in a folder.

    Rows are settled (see ``fastrec.optim.torch_optimizers``) when they are read, by the same factors as rows on the
    device; ``pending`` lists the outstanding ones.
    """

    def __init__(self, rows: int, width: int, folder: str | Path | None = None) -> None:
        self.rows, self.width = rows, width
        self.pending: list[tuple[int, tuple[float, float]]] = []  # steps up to which rows are to be settled, and β
        self.decays: Tensor | None = None  # the optimizer's logarithms of what weights have decayed by after each step
        self._folder = None if folder is None else _Folder(folder)
        self.columns: dict[str, Tensor] = {}
        self.begin("weight", width)

    def begin(self, name: str, width: int | None) -> Tensor:
        """Add a column of zeros, in place of an earlier one; without ``width`` it has one dimension."""
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
        """Copy some rows (int64 ``[n]``) of all columns, settled."""
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
        if last is None or not len(last):  # no optimizer has begun
            return
        for step, betas in self.pending:
            left_out = (step - last).clamp_(min=0).unsqueeze_(1)
            if not bool((left_out > 0).any()):
                continue
            if float(self.decays[step]):
                since = self.decays.index_select(0, last.clamp(max=step).long())
                values["weight"].mul_((self.decays[step] - since).exp_().unsqueeze_(1))
            fade(values, left_out, betas)
            last.clamp_(min=step)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settled weights alone, in memory."""
        self.settle()  # a copy has no optimizer that would settle it
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
            remedy = "Make it beforehand"
            raise MissingFileError("there is no such folder for embedding rows", file=parent, remedy=remedy)
        self.path = Path(tempfile.mkdtemp(prefix="embedding-rows-", dir=parent))
        self._count = 0
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def mapped(self, name: str, count: int) -> Tensor:
        """Map a file of so many zeros as a tensor."""
        free = shutil.disk_usage(self.path).free
        if free < 4 * count:
            problem = f"rows of embedding tables need {shown_bytes(4 * count)}, {shown_bytes(free)} are free"
            remedy = "Give Embeddings(folder=…) on a larger disk, or narrower tables (emb_szs=)"
            raise WriteError(problem, file=self.path, remedy=remedy)
        self._count += 1
        path = self.path / f"{name}-{self._count}.f32"
        with path.open("wb") as file:
            file.truncate(4 * count)
        mapped = torch.from_file(str(path), shared=True, size=count, dtype=torch.float32)
        with suppress(PermissionError):  # Windows removes no file that is in use; the folder goes later
            path.unlink()  # the map keeps what it held until the last tensor of it is gone, even if the process dies
        return mapped


# Model-parallel tables beside data-parallel dense layers, as in HugeCTR (arXiv 2210.08803) and TorchRec, by torch's own
# collectives. A rank requests the vectors of its batch's ids, each once, and sends their gradients back.


class ShardedRows:
    """One rank's rows of a group of tables.

    Row ``r`` of ``n`` is at place ``q = a r mod n`` with a coprime to n: it is row ``q div ranks`` of rank
    ``q mod ranks``. Gradients are of the ranks' mean loss; data-parallel training must skip these parameters.
    """

    sharded = True

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        there = dist.is_available() and dist.is_initialized()
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
        # the constant of Fibonacci hashing, which scatters neighbours; below it is made prime to the rows
        self.factor = 1_640_531_527 % rows or 1
        while math.gcd(self.factor, rows) != 1:
            self.factor += 1
        self.slots = -(-(rows - self.rank) // self.ranks)
        self.weight: nn.Parameter | None = None

    def attach(self, weight: nn.Parameter) -> None:
        """Set the parameter ``[this rank's rows, width]``."""
        self.weight, weight.placed = weight, self

    def look_up(self, rows: Tensor, key: str = "columns") -> Tensor:
        """Look up the vectors ``[b, k · width]`` of rows ``[b, k]`` of all ranks.

        All ranks must call it equally often. The gradient of each rank's rows is row-sparse.
        """
        return _Exchange.apply(self.weight, rows.reshape(-1), self).view(len(rows), -1)

    def owner(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rank has rows, and their numbers there: int64 ``[n]`` each."""
        place = rows * self.factor % self.rows
        return place % self.ranks, place // self.ranks

    def rows_of(self, slots: Tensor) -> Tensor:
        """Return this rank's rows: int64 ``[n]``."""
        inverse = pow(self.factor, -1, self.rows) if self.rows > 1 else 1
        return (slots * self.ranks + self.rank) * inverse % self.rows

    def own(self, start: int, values: Tensor) -> None:
        """Set this rank's part of the rows ``start, start + 1, …`` to these values ``[n, width]``."""
        owner, slots = self.owner(torch.arange(start, start + len(values)))
        mine = owner == self.rank
        with torch.no_grad():
            place = slots[mine].to(self.weight.device)
            self.weight.index_copy_(0, place, values[mine.to(values.device)].to(self.weight))

    def take_all(self, values: Tensor) -> None:
        """Overwrite all rows with this rank's part of ``[rows, width]``."""
        for start in range(0, self.rows, limits.SENT_ROWS):
            self.own(start, values[start : start + limits.SENT_ROWS])

    def total_norms(self, norms: Tensor) -> Tensor:
        """Combine each rank's norms into those over all rows."""
        squares = norms.square()
        if self.ranks > 1:
            dist.all_reduce(squares)
        return squares.sqrt()

    def whole(self) -> Tensor:
        """Gather all rows ``[rows, width]`` from all ranks, which all must call."""
        found = self.weight.new_empty(self.rows, self.width)
        with torch.no_grad():
            for start in range(0, self.rows, limits.SENT_ROWS):
                rows = torch.arange(start, min(start + limits.SENT_ROWS, self.rows), device=found.device)
                found[rows] = self.look_up(rows[:, None])
        return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, shard: ShardedRows) -> Tensor:
        asked, place = torch.unique(rows, return_inverse=True)
        owner, slots = shard.owner(asked)
        order = torch.argsort(owner, stable=True)
        sizes = torch.bincount(owner, minlength=shard.ranks)
        wanted, given = _swap(slots[order], sizes, shard.ranks)
        found, _ = _swap(weight.index_select(0, wanted), given, shard.ranks, back=sizes)
        vectors = torch.empty_like(found)
        vectors[order] = found
        ctx.shard, ctx.shape = shard, weight.shape
        ctx.save_for_backward(place, order, sizes, wanted, given)
        return vectors.index_select(0, place)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        place, order, sizes, wanted, given = ctx.saved_tensors
        # each row once before it travels
        sums = grad.new_zeros(len(order), grad.shape[1]).index_add_(0, place, grad)
        values, _ = _swap(sums.index_select(0, order), sizes, ctx.shard.ranks, back=given)
        values = values / ctx.shard.ranks
        return torch.sparse_coo_tensor(wanted[None], values, ctx.shape, check_invariants=False), None, None


def _swap(values: Tensor, sizes: Tensor, ranks: int, back: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Send each rank its part of values, in order, by their ``sizes``; return what came from the ranks, and sizes."""
    if ranks == 1:
        return values, sizes
    if back is None:
        table = [torch.empty_like(sizes) for _ in range(ranks)]
        dist.all_gather(table, sizes)
        back = torch.stack(table)[:, dist.get_rank()].contiguous()
    out = values.new_empty(int(back.sum()), *values.shape[1:])
    parts = {"output_split_sizes": back.tolist(), "input_split_sizes": sizes.tolist()}
    dist.all_to_all_single(out, values.contiguous(), **parts)
    return out, back


def kind_codes(slices: Sequence[TableSlice]) -> Tensor:
    """Return the places of tables, as saved beside weights: uint8 ``[tables]``."""
    kinds = [kind_of(s.group) for s in slices]
    return torch.tensor([255 if k is None else KINDS.index(k) for k in kinds], dtype=torch.uint8)


def regroup(saved: MutableMapping[str, Any], prefix: str, slices: Sequence[TableSlice], share: Tensor | None) -> bool:
    """Rearrange saved tables to this layout, if possible; return whether sharded tables are this rank's rows.

    ``share`` is this rank and the number of ranks.
    """
    codes, was = saved.pop(f"{prefix}where", None), saved.pop(f"{prefix}share", None)
    # rows of one rank fit no other layout: only the same rank of as many can take them
    if codes is not None and (codes == KINDS.index("sharded")).any():
        same = share is not None and was is not None and torch.equal(was.cpu(), share)
        if not same or not torch.equal(codes.cpu(), kind_codes(slices)):
            remedy = "Make the model with the same placement, or save what embeds.table(name) gives on all ranks"
            raise DataError("these are one rank's rows of embedding tables that ranks share", remedy=remedy)
        return True
    here = {s.group: s.stop for s in slices}  # the last slice of a group ends it
    weights = {g.removeprefix(f"{prefix}weights."): w for g, w in saved.items() if g.startswith(f"{prefix}weights.")}
    if {g: len(w) for g, w in weights.items()} == here:
        return False
    sizes, names = [(s.stop - s.start, s.width) for s in slices], [s.name for s in slices]
    kinds = {} if codes is None else {n: KINDS[c] for n, c in zip(names, codes.tolist(), strict=False) if c < 255}
    for grads in ("rows", "dense"):
        there = lay_out(sizes, names, grads=grads, kinds=kinds)
        if {s.group: (s.stop, s.width) for s in there} == {g: tuple(w.shape) for g, w in weights.items()}:
            break
    else:
        return False
    parts: dict[str, list[Tensor]] = {}
    for s, t in zip(slices, there, strict=True):
        parts.setdefault(s.group, []).append(weights[t.group][t.start : t.stop])
    for group in weights:
        del saved[f"{prefix}weights.{group}"]
    for group, tables in parts.items():
        if len({t.device for t in tables}) > 1:  # of placed tables all rows are on the host
            tables = [t.cpu() for t in tables]
        saved[f"{prefix}weights.{group}"] = tables[0] if len(tables) == 1 else torch.cat(tables)
    return False
