"""``ShardedRows``: rows of large tables by hash over the ranks; vectors and gradients travel between them.

Model-parallel tables beside data-parallel dense layers, as in HugeCTR (arXiv 2210.08803) and TorchRec, by torch's own
collectives. A rank asks the others for the vectors of its batch's ids, each once, and sends their gradients back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastrec._core import limits

__all__ = ["ShardedRows"]


class ShardedRows:
    """One rank's rows of a group of tables.

    Row ``r`` of ``n`` is at place ``q = a r mod n``, a number without a common divisor with n: rank ``q mod ranks``
    has it as its row ``q div ranks``. The ranks' mean of the loss is what gradients are of, as in data-parallel
    training (``DistributedDataParallel``), which has to leave parameters with ``placed.sharded`` alone.
    """

    sharded = True

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width
        there = dist.is_available() and dist.is_initialized()
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if there else (0, 1)
        self.factor = 1_640_531_527 % rows or 1
        while math.gcd(self.factor, rows) != 1:
            self.factor += 1
        self.slots = -(-(rows - self.rank) // self.ranks)
        self.weight: nn.Parameter | None = None

    def attach(self, weight: nn.Parameter) -> None:
        """Set the parameter ``[this rank's rows, width]``."""
        self.weight, weight.placed = weight, self

    def look_up(self, rows: Tensor, key: str = "columns") -> Tensor:
        """Look up the vectors of rows of all ranks; every rank must call as often as the others.

        Args:
            rows: int64 ``[b, k]``.

        Returns:
            ``[b, k · width]``; the gradient of each rank's rows is row-sparse.
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
        sums = grad.new_zeros(len(order), grad.shape[1]).index_add_(0, place, grad)
        values, _ = _swap(sums.index_select(0, order), sizes, ctx.shard.ranks, back=given)
        values = values / ctx.shard.ranks
        found = torch.sparse_coo_tensor(wanted[None], values, ctx.shape, check_invariants=False)
        return found, None, None


def _swap(values: Tensor, sizes: Tensor, ranks: int, back: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Send each rank its part of values.

    Args:
        values: ``[n, …]``, those for rank 0 first.
        sizes: how many each rank gets, int64 ``[ranks]``.

    Returns:
        What came from the ranks, those of rank 0 first; and how many from each.
    """
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
