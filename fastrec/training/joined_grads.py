"""Gradients of several processes added up: dense ones as they are, row-sparse ones as the rows that they hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastrec._core.ranks import all_rows, summed, world_size
from fastrec.errors import RankError
from fastrec.optim.row_sparse import BatchPlaces, SparseRows

__all__ = ["JoinedGrads", "is_sharded"]

_NONE, _ROWS, _DENSE = 0, 1, 2


def is_sharded(parameter: nn.Parameter) -> bool:
    """Return whether each rank holds other rows (``Embeddings("row-sharded")``) with their gradients."""
    return bool(getattr(getattr(parameter, "placed", None), "sharded", False))


class JoinedGrads:
    """Adds up the gradients of parameters over the ranks, so that every rank takes the same step.

    A dense gradient is sent whole, many in one message. Of a row-sparse one the rows that the batch has touched are
    sent, each once, with their numbers: bytes go with the batch, not with the table.

    Attributes:
        sent: bytes that this rank has handed to collectives so far, row-sparse and dense.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self.parameters = [p for p in trained if not is_sharded(p)]
        self.sharded = [p for p in trained if is_sharded(p)]
        self.sent = {"rows": 0, "dense": 0}
        self._kinds: list[int] | None = None
        self._places = BatchPlaces()

    @torch.no_grad()
    def join(self) -> None:
        """Replace every gradient by its sum over the ranks."""
        if self._kinds is None:
            self._kinds = self._agree_on_kinds()
        dense = [p for p, kind in zip(self.parameters, self._kinds, strict=True) if kind == _DENSE]
        rows = [p for p, kind in zip(self.parameters, self._kinds, strict=True) if kind == _ROWS]
        self._join_dense(dense)
        self._join_rows(rows)
        for p in self.sharded:  # their gradients came from all ranks in the backward pass, as a mean over ranks
            if p.grad is not None:
                p.grad = p.grad * world_size()

    def _agree_on_kinds(self) -> list[int]:
        kinds = [_NONE if p.grad is None else _ROWS if p.grad.is_sparse else _DENSE for p in self.parameters]
        return all_rows([torch.tensor([kinds])], "comparing gradients")[0].max(0).values.tolist()

    def _join_dense(self, parameters: Sequence[nn.Parameter]) -> None:
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            elif p.grad.is_sparse:
                p.grad = p.grad.to_dense()
        grads = [p.grad for p in parameters]
        summed(grads, "adding up gradients")
        self.sent["dense"] += sum(g.numel() * g.element_size() for g in grads)

    def _join_rows(self, parameters: Sequence[nn.Parameter]) -> None:
        parts: list[Tensor] = []
        for p in parameters:
            if p.grad is None:
                parts += [torch.zeros(0, dtype=torch.int64, device=p.device), p.new_zeros(0, *p.shape[1:])]
                continue
            if not p.grad.is_sparse:
                raise RankError(
                    "a table's gradient was row-sparse before and is dense now",
                    remedy="Use grads='dense' for this model",
                )
            own = SparseRows.of(p.grad, self._places)
            parts += [own.ids, own.grads]
        self.sent["rows"] += sum(t.numel() * t.element_size() for t in parts)
        found = all_rows(parts, "adding up the gradients of embedding rows")
        for p, ids, values in zip(parameters, found[::2], found[1::2], strict=True):
            grad = torch.sparse_coo_tensor(ids[None], values, p.shape, check_invariants=False)
            # On a GPU sums must not depend on which thread comes first: ranks would drift apart.
            p.grad = grad.coalesce() if p.device.type == "cuda" else grad
