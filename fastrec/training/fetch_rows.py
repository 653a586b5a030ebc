"""``FetchRows``: while a batch trains, the next one's rows of tables on the host come to the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastai.callback.core import Callback

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models import FieldNet
from fastrec.models.training_rows import training_rows
from fastrec.optim.row_optimizer import RowOptimizer

__all__ = ["FetchRows"]


class FetchRows(Callback):
    """Looks one training batch ahead, and begins to bring its rows once the forward pass of this one is over.

    ``rec_learner`` adds it where tables lie on the host (see ``fastrec.models.Embeddings``). Nothing depends on it but
    speed: an epoch may end, be cancelled or validate in between.
    """

    order = 90  # before Checkpoint wraps the loader once more

    def before_fit(self) -> None:
        """Find the nets that have such tables, and count the ids of rows that lie in memory."""
        self._nets = [m for m in self.learn.model.modules() if isinstance(m, FieldNet)]
        if self.learn.opt is None:  # predictions of a learner that does not train
            return
        inner = getattr(self.learn.opt, "opt", self.learn.opt)
        if not isinstance(inner, RowOptimizer):  # what it keeps of a row would stay where the row was
            raise DataError(
                f"{type(inner).__name__} cannot train embedding tables whose rows come and go",
                remedy="Give opt_func=adamw or lamb, or a model without placement=",
            )
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


class _OneAhead:
    """A loader's batches, each requested while its predecessor is in use."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.coming = loader, None
        self.batch_rows: Any = None  # of the batch in use, not of the one that the loader gave last

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        yield from self._ahead(iter(self.loader))

    def batches_from(self, first: int) -> Iterator[Any]:
        if hasattr(type(self.loader), "batches_from"):
            return self._ahead(self.loader.batches_from(first))
        batches = iter(self.loader)
        for _ in range(first):
            next(batches, None)
        return self._ahead(batches)

    def _ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            self.coming = next(batches, None)
            while self.coming is not None:
                batch, self.batch_rows = self.coming, getattr(self.loader, "batch_rows", None)
                self.coming = next(batches, None)
                yield batch
        finally:
            self.coming = None
