"""Embedding rows in training: fetched ahead, decayed, clipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fastai.callback.core import Callback
from torch import Tensor

from fastrec._core import limits
from fastrec._core.ranks import all_rows
from fastrec.errors import DataError
from fastrec.models import EmbeddingTables, FieldNet
from fastrec.models.fields import training_rows
from fastrec.optim.torch_optimizers import RowOptimizer
from fastrec.table import ListBatch


class FetchRows(Callback):
    """Callback that fetches the next batch's embedding rows after this batch's forward pass.

    ``rec_learner`` adds it if tables are on the host (see ``fastrec.models.Embeddings``). It affects speed only.
    """

    order = 90  # before Checkpoint wraps the loader once more

    def before_fit(self) -> None:
        """Find the nets that have such tables, and count the ids of rows that lie in memory."""
        self._nets = [m for m in self.learn.model.modules() if isinstance(m, FieldNet)]
        if self.learn.opt is None:  # predictions of a learner that does not train
            return
        inner = getattr(self.learn.opt, "opt", self.learn.opt)
        if not isinstance(inner, RowOptimizer):  # what it keeps of a row would stay where the row was
            problem = f"{type(inner).__name__} cannot train embedding tables whose rows come and go"
            raise DataError(problem, remedy="Give opt_func=adamw or lamb, or a model without placement=")
        dls = self.learn.dls
        if len(getattr(dls.train_ds, "packed", ())) and len(dls.cat_names):
            cats, _, _ = training_rows(dls, limits.COUNTED_ROWS)
            for net in self._nets:
                net.count_rows(cats)

    def before_train(self) -> None:
        """Look ahead in this epoch."""
        self.learn.dl = self._batches = _OneAhead(self.learn.dl)

    def after_pred(self) -> None:
        """Begin to bring the next batch's rows."""
        if not self.learn.training or self._batches.coming is None:
            return
        inputs = self._batches.coming[: len(self.learn.xb)]
        for net in self._nets:
            net.fetch_ahead(*inputs)


class AroundLoader:
    """A wrapper of a loader that iterates differently."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def _loaded_from(self, first: int) -> Iterator[Any]:
        """Return the loader's batches from number ``first`` on."""
        if hasattr(type(self.loader), "batches_from"):
            return self.loader.batches_from(first)
        batches = iter(self.loader)
        for _ in range(first):
            next(batches, None)
        return batches


class _OneAhead(AroundLoader):
    """A loader's batches, each requested while its predecessor is in use."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.coming: Any = None
        self.batch_rows: Any = None  # of the batch in use, not of the one that the loader gave last

    def __iter__(self) -> Iterator[Any]:
        yield from self._ahead(iter(self.loader))

    def batches_from(self, first: int) -> Iterator[Any]:
        return self._ahead(self._loaded_from(first))

    def _ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            self.coming = next(batches, None)
            while self.coming is not None:
                batch, self.batch_rows = self.coming, getattr(self.loader, "batch_rows", None)
                self.coming = next(batches, None)
                yield batch
        finally:
            self.coming = None


class SettleRows(Callback):
    """Callback that applies the pending weight decay of row-sparse tables before validation and at the end.

    Their optimizers decay a row only when its id occurs next: other rows would be validated and saved undecayed.
    """

    def before_validate(self) -> None:
        """Settle rows."""
        inner: Any = getattr(self.learn.opt, "opt", None)
        if hasattr(inner, "settle"):
            inner.settle()

    after_fit = before_validate


class CowClip(Callback):
    """Adaptive column-wise clipping of embedding gradients (arXiv 2204.06240, algorithm 1).

    The gradient of an id that occurs ``n`` times in the batch is clipped to the norm ``n · max(r · ‖w‖, ζ)``, where
    ``w`` is the id's vector. The model must have ``EmbeddingTables``.

    The paper's recipe for larger batches has three more parts. The embeddings' learning rate stays the same, and other
    rates grow by the root (``scale_lr(…, rule='cowclip')`` with ``splitter=split_embeddings``). The embeddings' weight
    decay grows in proportion. The learning rate warms up.

    Args:
        r: share of the vector's norm.
        zeta: the smallest norm to clip to (ζ).
    """

    checkpointed = ("_ids",)
    order = 20  # after gradients have been unscaled and added up, before the step

    def __init__(self, r: float = 1.0, zeta: float = 1e-5) -> None:
        super().__init__()
        if r < 0 or zeta < 0:
            raise DataError(f"CowClip with r {r} and zeta {zeta}", remedy="Both must be ≥ 0")
        self.r, self.zeta = r, zeta
        self._ids: list[list[dict[str, Tensor]]] = []

    def before_fit(self) -> None:
        """Find the tables."""
        self.tables = [m for m in self.learn.model.modules() if isinstance(m, EmbeddingTables)]
        if not self.tables:
            raise DataError(f"{type(self.learn.model).__name__} has no EmbeddingTables", remedy="Leave out CowClip")
        self._ids = [[] for _ in self.tables]

    def after_backward(self) -> None:
        """Remember which ids the batch looked up: several batches may be accumulated before a step."""
        x_cat, lists = self.learn.xb[0], [x for x in self.learn.xb[1:] if isinstance(x, ListBatch)]
        for tables, seen in zip(self.tables, self._ids, strict=True):
            ids = {g: [ids.flatten()] for g, ids in tables.ids(x_cat).items()} if tables.n_columns else {}
            for name, batch in zip(tables.list_names, lists, strict=False):
                ids.setdefault(tables.slice_of(name).group, []).append(tables.list_ids(name, batch))
            seen.append({g: torch.cat(parts) for g, parts in ids.items()})

    def before_step(self) -> None:
        """Clip the gradients."""
        for tables, seen in zip(self.tables, self._ids, strict=True):
            for group, weight in tables.weights.items():
                ids = [found[group] for found in seen if group in found]
                if weight.grad is not None and ids:
                    all_ids = all_rows([torch.cat(ids)], "clipping gradients")[0]
                    weight.grad = clipped(weight.grad, weight.detach(), all_ids, r=self.r, zeta=self.zeta)
            seen.clear()


def clipped(grad: Tensor, weight: Tensor, ids: Tensor, *, r: float, zeta: float) -> Tensor:
    """Clip a table's gradient for each of the batch's ``ids`` by their number: a dense one in place."""
    # only rows of the batch have gradients: the whole table is never read
    rows, counts = torch.unique(ids, return_counts=True)
    if grad.is_sparse:
        grad = grad.coalesce()
        found, values = grad.indices()[0], grad.values()
        place = torch.searchsorted(rows, found).clamp_(max=max(len(rows) - 1, 0))
        counts = torch.where(rows[place] == found, counts[place], 0)
        rows = found
    else:
        values = grad.index_select(0, rows)
    limit = counts * (r * weight.index_select(0, rows).norm(dim=1)).clamp_min(zeta)
    norm = values.norm(dim=1)
    factor = torch.where(norm > limit, limit / norm.clamp_min(torch.finfo(norm.dtype).tiny), 1).unsqueeze(1)
    if grad.is_sparse:
        ids = grad.indices()
        return torch.sparse_coo_tensor(ids, values * factor, grad.shape, is_coalesced=True, check_invariants=False)
    return grad.index_copy_(0, rows, values * factor)
