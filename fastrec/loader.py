"""``TabularLoader``: batches of a ``TabularFrame`` from memory, for fastai.

An epoch is one permutation and a few large gathers of packed rows; batches are views of these. Every row comes exactly
once, or ``floor(n / bs) * bs`` of them with ``drop_last``. Differences from fastai's ``TabDataLoader``, all deliberate:

- ``seed=`` fixes the order; without it Python's ``random`` does, as in fastai.
- ``num_workers`` is taken and not used: handing rows to other processes costs more than gathering them.
- ``x_cat`` has the frame's code dtype, int32 unless asked otherwise (``nn.Embedding`` takes either); fastai's is int64.
- A loader made with ``new`` for other rows does not take over weights.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from fastai.data.core import TfmdDL
from fastai.tabular.core import ReadTabBatch
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec.errors import DataError
from fastrec.packed import Packed

Place = Literal["auto", "device", "host"]
_CHUNK_BYTES = 1 << 22  # gathered at once: large enough to spread over threads, small enough for the cache


class ReadBatch(ReadTabBatch):
    """Turns a batch back into a ``TabularFrame``; on the way in there is nothing to do."""

    def __call__(self, b: Any, split_idx: int | None = None, **kwargs: Any) -> Any:
        """The batch as it is."""
        return b

    def decode(self, b: Any, split_idx: int | None = None, **kwargs: Any) -> Any:
        """A frame of the batch's rows."""
        return self.to.from_batch(b)


class TabularLoader(TfmdDL):
    """Batches ``(x_cat, x_cont, y)`` of a ``TabularFrame``.

    Args:
        dataset: the frame.
        bs: rows in a batch, up to the whole set.
        shuffle: a new uniform permutation every epoch.
        after_batch: transforms of a batch on its device.
        num_workers: not used.
        wgts: chance of each row, relative: with ``shuffle``, ``n`` rows are drawn with replacement.
        groups: True = the frame's groups, or their ids int64 ``[n]``: rows of a group come together, in one batch, in
            their order; ``shuffle`` permutes groups. An epoch has ``min(ceil(n / bs), number of groups)`` batches, and
            none is dropped: a batch is closed by the group that fills its share of the rows and may exceed ``bs`` by
            less than a group.
        seed: same seed, same order.
        place: where rows are gathered when batches go to another device than the frame's: ``'device'`` copies the frame
            there once, ``'host'`` copies every batch, ``'auto'`` copies the frame if it takes less than half of the
            free memory.
        **kwargs: as for fastai's ``TfmdDL`` (``drop_last``, ``n``, ``device``, ``before_iter`` …).
    """

    def __init__(
        self,
        dataset: Any,
        bs: int = 64,
        shuffle: bool = False,
        after_batch: Any = None,
        num_workers: int = 0,
        *,
        wgts: Any = None,
        groups: Any = None,
        seed: int | None = None,
        place: Place = "auto",
        **kwargs: Any,
    ) -> None:
        if bs is not None and bs < 1:
            raise DataError(f"a batch of {bs} rows was asked for", remedy="Give bs=1 or more")
        super().__init__(
            dataset, bs=bs, shuffle=shuffle, after_batch=_with_reader(after_batch, dataset), num_workers=0, **kwargs
        )
        self.seed, self.place, self.wgts = seed, place, wgts
        self._asked_groups = groups
        self.groups = self._group_ids(groups)
        self._cdf = self._weights(wgts) if shuffle and wgts is not None else None
        if self._cdf is not None and self.groups is not None:
            raise DataError("weights and groups were both given", remedy="Choose one of wgts= and groups=")
        if seed is not None:
            self.rng = random.Random(seed)
        self.batch_rows: np.ndarray | None = None

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> TabularLoader:
        """A loader with the same settings but for those given (fastai's ``DataLoader.new``)."""
        same = dataset is None or dataset is self.dataset
        own = {"seed": self.seed, "place": self.place}
        if same:
            own |= {"wgts": self.wgts, "groups": self._asked_groups}
        elif self._asked_groups is True and dataset.groups is not None:
            own["groups"] = True
        return super().new(dataset, cls, **{**own, **kwargs})

    def _group_ids(self, groups: Any) -> np.ndarray | None:
        if groups is None or groups is False:
            return None
        if groups is True:
            groups = self.dataset.groups
            if groups is None:
                raise DataError(
                    "the frame has no groups", remedy="Give groups='column' to the TabularFrame, or their ids here"
                )
        ids = groups.cpu().numpy() if isinstance(groups, torch.Tensor) else np.asarray(groups)
        if ids.shape != (len(self.dataset),):
            raise DataError(
                f"groups of shape {ids.shape} for {len(self.dataset)} rows", remedy="Give one id per row of this loader"
            )
        return ids

    def _weights(self, wgts: Any) -> np.ndarray:
        weights = np.asarray(wgts, dtype=np.float64)
        if (
            weights.shape != (self.n,)
            or not np.isfinite(weights).all()
            or (weights < 0).any()
            or (self.n and weights.sum() == 0)
        ):
            raise DataError(
                f"{weights.size} weights for {self.n} rows, or not all of them numbers ≥ 0",
                remedy="Give one weight per training row",
            )
        return np.cumsum(weights)

    def __len__(self) -> int:
        if self.groups is None or self.bs is None:
            return super().__len__()
        return min(-(-self.n // self.bs), _count_groups(self.groups[: self.n]))

    def get_idxs(self) -> np.ndarray:
        """This epoch's rows, in order: int64 ``[n]`` numpy."""
        if self.n == 0:
            return np.empty(0, dtype=np.int64)
        seed = self.rng.getrandbits(63) if self.shuffle else None
        if seed is not None and self.groups is None and self._cdf is None:
            return torch.randperm(self.n, generator=torch.Generator().manual_seed(seed)).numpy()
        generator = None if seed is None else np.random.default_rng(seed)
        if self.groups is not None:
            return _grouped_order(self.groups[: self.n], generator)
        if generator is None:
            return np.arange(self.n)
        drawn = np.searchsorted(self._cdf, generator.random(self.n) * self._cdf[-1], side="right")
        return drawn.clip(max=self.n - 1)

    def __iter__(self) -> Iterator[Any]:
        # fastai goes through torch's loader here, which costs more per batch than gathering it; the hooks are the same.
        self.randomize()
        self.before_iter()
        for batch in self.create_batches(self.get_idxs()):
            yield self.after_batch(batch)
        self.after_iter()

    def create_batches(self, samps: Iterable[int]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Batches of the rows in ``samps``, on the loader's device, ``after_batch`` not applied."""
        rows = self._as_rows(samps)
        if self.groups is not None and self.bs is not None:
            yield from self._variable_batches(rows, _group_bounds(self.groups[rows], self.bs))
            return
        bs = self.bs or max(len(rows), 1)
        stop = len(rows) - len(rows) % bs if self.drop_last else len(rows)
        packed = self._packed()
        step = bs * max(1, _CHUNK_BYTES // max(1, 4 * packed.layout.words * bs))
        index = torch.from_numpy(rows).to(packed.device)
        for start in range(0, stop, step):
            block = self._gather(packed, index[start : min(start + step, stop)])
            parts = [view.split(bs) for view in packed.layout.views(block)]
            for i, batch in enumerate(zip(*parts, strict=True)):
                self.batch_rows = rows[start + i * bs : start + (i + 1) * bs]
                yield batch

    def _variable_batches(self, rows: np.ndarray, bounds: np.ndarray) -> Iterator[tuple[torch.Tensor, ...]]:
        packed = self._packed()
        index = torch.from_numpy(rows).to(packed.device)
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            self.batch_rows = rows[start:stop]
            yield packed.layout.views(self._gather(packed, index[start:stop]))

    def create_batch(self, b: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """One batch of the rows in ``b``."""
        packed = self._packed()
        rows = self._as_rows(b)
        self.batch_rows = rows = rows if self.n else rows[:0]
        return packed.layout.views(self._gather(packed, torch.from_numpy(rows).to(packed.device)))

    def do_batch(self, b: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """One batch of the rows in ``b`` (an empty frame gives an empty batch)."""
        return self.create_batch(self.before_batch(b))

    def do_item(self, s: int | None) -> int:
        """A row's number stands for the row."""
        return 0 if s is None else s

    @property
    def batch_groups(self) -> torch.Tensor | None:
        """Group ids int64 ``[b]`` of the batch that came last; None without groups."""
        if self.groups is None or self.batch_rows is None:
            return None
        return torch.from_numpy(self.groups[self.batch_rows].astype(np.int64))

    def _as_rows(self, samps: Iterable[int]) -> np.ndarray:
        if isinstance(samps, torch.Tensor):
            samps = samps.cpu().numpy()
        if not hasattr(samps, "__len__"):
            samps = np.fromiter(islice(samps, self.n), dtype=np.int64)
        return np.ascontiguousarray(samps, dtype=np.int64)

    def _packed(self) -> Packed:
        packed = self.dataset.packed
        device = self.device
        if device is None or device == packed.device or self.place == "host":
            return packed
        if self.place == "device" or (device.type == "cuda" and packed.nbytes < torch.cuda.mem_get_info(device)[0] / 2):
            return packed.on(device)
        return packed

    def _gather(self, packed: Packed, index: torch.Tensor) -> torch.Tensor:
        block = packed.buffer.index_select(0, index)
        return block if self.device is None or self.device == block.device else block.to(self.device)


def _with_reader(after_batch: Any, dataset: Any) -> Any:
    given = after_batch.fs if isinstance(after_batch, Pipeline) else L(after_batch)
    if any(isinstance(tfm, ReadTabBatch) for tfm in given):
        return after_batch
    return L(ReadBatch(dataset)) + given


def _grouped_order(ids: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
    """Rows with groups together: groups as they first appear, or permuted; rows of a group in their order."""
    ascending = _ascend(ids)
    if ascending and generator is None:
        return np.arange(len(ids))
    if ascending:
        starts = np.append(0, np.flatnonzero(ids[1:] != ids[:-1]) + 1)
        sizes, rank = np.diff(starts, append=len(ids)), generator.permutation(len(starts))
    else:
        _, first, codes, sizes = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
        rank = np.argsort(first, kind="stable") if generator is None else generator.permutation(len(first))
        starts = np.cumsum(sizes) - sizes
    sizes, starts = sizes[rank], starts[rank]
    places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(ids))
    return places if ascending else np.argsort(codes, kind="stable")[places]


def _ascend(ids: np.ndarray) -> bool:
    """Whether groups lie together already, in the order of their ids: then nothing is to be sorted."""
    return bool((ids[1:] >= ids[:-1]).all())


def _count_groups(ids: np.ndarray) -> int:
    if not _ascend(ids):
        return len(np.unique(ids))
    return int(np.count_nonzero(ids[1:] != ids[:-1])) + bool(len(ids))


def _group_bounds(ids: np.ndarray, bs: int) -> np.ndarray:
    """Where batches begin and end, int64 ``[batches + 1]``, for rows whose groups lie together."""
    n = len(ids)
    if n == 0:
        return np.zeros(1, dtype=np.int64)
    ends = np.append(np.flatnonzero(ids[1:] != ids[:-1]) + 1, n)
    batches = min(-(-n // bs), len(ends))
    k = np.arange(1, batches)
    closing = np.searchsorted(ends, -(-k * n // batches)) + 1  # groups in the first k batches
    closing = np.maximum.accumulate(closing - k) + k  # at least one group each,
    closing = np.minimum(closing, len(ends) - batches + k)  # and one left for each that follows
    return np.concatenate([[0], ends[closing - 1], [n]]).astype(np.int64)
