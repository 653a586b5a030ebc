"""``StreamLoader``: batches of rows that are read while the net trains."""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from fastai.data.core import TfmdDL

from fastrec._core import limits
from fastrec._core.malloc import Growth
from fastrec.errors import DataError, DataWarning
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import TabularLoader, _with_reader
from fastrec.tabular.order import check_joined, shared_seed
from fastrec.tabular.packed import Packed
from fastrec.tabular.shares import Shared, batch_sizes
from fastrec.tabular.stream.order import share, shuffled_units
from fastrec.tabular.stream.reader import Mixer, ReadAhead, cut_batches
from fastrec.tabular.stream.rows import StreamRows

__all__ = ["StreamLoader"]


class StreamedFrame(TabularFrame):
    """What fastai takes for the data of a stream: a frame that has as many rows, but holds none."""

    streamed_rows = 0

    def __len__(self) -> int:
        return self.streamed_rows if self._raw is None and len(self._packed) == 0 else super().__len__()

    def _like(self, **state: Any) -> TabularFrame:
        new = TabularFrame.__new__(TabularFrame)
        new._assign(self._recipe, device=self.device)
        for name, value in state.items():
            setattr(new, name, value)
        return new


class StreamLoader(Shared, TfmdDL):
    """Batches ``(x_cat, x_cont, y)`` of Parquet rows, read as they are needed.

    Args:
        frame: a ``ParquetFrame``.
        rows: its training or validation rows.
        bs, shuffle, drop_last, buffer_rows, seed, rank, world_size: see ``ParquetFrame.dataloaders``.
        after_batch: transforms of a batch on its device.
        num_workers: not used: rows are read in a thread.
        **kwargs: as for fastai's ``TfmdDL``.
    """

    def __init__(
        self,
        frame: Any,
        rows: StreamRows | None = None,
        bs: int = 64,
        shuffle: bool = False,
        drop_last: bool = False,
        after_batch: Any = None,
        num_workers: int = 0,
        *,
        buffer_rows: int = 1_000_000,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if bs is None or bs < 1 or buffer_rows < 1:
            raise DataError(f"bs={bs}, buffer_rows={buffer_rows}", remedy="Give numbers from 1")
        self.frame, self.rows, self.buffer_rows, self.seed = frame, rows, buffer_rows, seed
        self._growth: Growth | None = None
        dataset = kwargs.pop("dataset", None)
        if dataset is None:
            dataset = frame._frame(len(rows), with_y=rows.with_y)
        super().__init__(
            dataset,
            bs=bs,
            shuffle=shuffle,
            drop_last=drop_last,
            after_batch=_with_reader(after_batch, dataset),
            num_workers=0,
            **kwargs,
        )
        if seed is not None:
            self.rng = random.Random(seed)
        self.set_rank(rank, world_size)
        if shuffle:
            self._warn_of_large_groups()

    def _check_share(self) -> None:
        if self.world_size > 1 and self.shuffle and self.seed is None:
            check_joined(self.world_size)

    def _warn_of_large_groups(self) -> None:
        rows, window = self.rows, self._window()
        if len(rows) > self.buffer_rows and max(u.rows for u in rows.pieces(window)) > max(window, len(rows) // 4):
            warnings.warn(
                f"a row group holds {max(u.rows for u in rows.units)} of the {len(rows)} rows, and {window} rows are "
                "mixed at a time: they will come nearly in the file's order. Write the files with smaller row groups, "
                "or give cache=",
                DataWarning,
                stacklevel=4,
            )

    def _window(self) -> int:
        ahead = 2 * max(self.buffer_rows // limits.READ_AHEAD, 1)
        return len(self.rows) if len(self.rows) <= self.buffer_rows else max(self.buffer_rows - ahead, 1)

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> TfmdDL:
        """Make a loader with the same settings; of rows in memory (``test_dl``) a ``TabularLoader``."""
        if dataset is not None and not isinstance(dataset, StreamedFrame):
            own = {"bs": self.bs, "device": self.device, "shuffle": False, "drop_last": False}
            return TabularLoader(dataset, **{**own, **kwargs})
        kwargs.pop("get_idxs", None)  # rows come in the file's order where they are not shuffled
        own = {"buffer_rows": self.buffer_rows, "seed": self.seed, "rows": self.rows, "frame": self.frame}
        own |= {"rank": self.rank, "world_size": self.world_size, "after_batch": self.after_batch}
        own |= {"bs": self.bs, "shuffle": self.shuffle, "drop_last": self.drop_last, "device": self.device}
        return (cls or type(self))(dataset=dataset or self.dataset, **{**own, **kwargs})

    def __len__(self) -> int:
        return len(self._sizes())

    def _sizes(self) -> np.ndarray:
        return batch_sizes(
            len(self.rows), self.bs, drop_last=self.drop_last, rank=self.rank, world_size=self.world_size
        )

    def get_idxs(self) -> np.ndarray:
        """Return this rank's rows in the files' order (a shuffled epoch's order is not known in advance)."""
        return np.arange(
            len(self.rows) * self.rank // self.world_size, len(self.rows) * (self.rank + 1) // self.world_size
        )

    def __iter__(self) -> Iterator[Any]:
        self.randomize()
        self.before_iter()
        with closing(self.create_batches()) as batches:
            for batch in batches:
                yield self.after_batch(batch)
        self.after_iter()

    def create_batches(self, samps: Any = None) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield one epoch's batches on the loader's device, without ``after_batch``."""
        sizes, rows, window = self._sizes().tolist(), self.rows, self._window()
        if not sizes:
            return
        seed = self.rng.getrandbits(62) if self.shuffle else None
        if seed is not None and self.world_size > 1 and self.seed is None:
            seed = shared_seed(seed, self.world_size)
        units = rows.pieces(window)
        if seed is not None:
            units = shuffled_units(units, window, np.random.default_rng(seed))
        pieces, layout = share(units, self.rank, self.world_size), rows.layout
        here = sum(p.rows for p in pieces)
        ahead = min(max(self.buffer_rows // limits.READ_AHEAD, 1), max(here, 1))
        with ReadAhead(lambda: rows.chunks(pieces, window, seed), layout, ahead) as read:
            mixer = Mixer(iter(read), layout, min(window, here), None if seed is None else seed + 1)
            self._growth = growth = self._growth or Growth()  # one for all epochs
            for batch in cut_batches(mixer, sizes, layout):
                growth.check()
                yield tuple(t.to(self.device) for t in batch) if self.device is not None else batch

    def stream_fingerprint(self) -> dict[str, Any]:
        """Return what an epoch's batches depend on besides random numbers, as JSON values."""
        found = self.rows.fingerprint()
        files = found.get("files", [])
        digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        told = {"files": f"{len(files)} of {sum(size for _, size, _ in files)} bytes, digest {digest}"}
        order = {"buffer_rows": self.buffer_rows, "cached": self.rows.cached}
        return {**told, **found.get("settings", {}), **order}

    def do_item(self, s: int | None) -> int:
        """Return the row's number."""
        return 0 if s is None else s

    def do_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """Return a batch without rows, whose form fastai reads."""
        return Packed.empty(0, self.rows.layout).views

    def create_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """Refuse to pick out rows."""
        raise DataError("rows of a stream cannot be picked out", remedy="Iterate, or use TabularFrame on some rows")
