"""``TabularLoader``: batches of a ``TabularFrame`` from memory, for fastai.

An epoch is one permutation and a few large gathers of packed rows; batches are views of these. Every row comes exactly
once, or ``floor(n / bs) * bs`` of them with ``drop_last``. Differences from fastai's ``TabDataLoader``, all deliberate:

- ``seed=`` fixes the order; without it Python's ``random`` does, as in fastai.
- ``num_workers`` is taken and not used: handing rows to other processes costs more than gathering them.
- ``x_cat`` has the frame's code dtype, int32 unless asked otherwise (``nn.Embedding`` takes either); fastai's is int64.
- A loader made with ``new`` for other rows does not take over weights; nor ranks, where the rows are another frame's:
  test rows come whole on every rank.
- Without weights, shuffled training rows are a permutation; what fastai takes for ``TabularPandas``, ``TabWeightedDL``,
  draws them with replacement in any case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
import torch
from fastai.tabular.core import ReadTabBatch, TabDataLoader
from fastai.torch_core import to_detach
from fastcore.foundation import L
from fasttransform import Pipeline

from fastrec._core import limits, ranks
from fastrec._core.device import DeviceLike, on_host, resolve_device
from fastrec._core.memory import naming_out_of_memory
from fastrec.errors import DataError, check_whole
from fastrec.table import as_column
from fastrec.tabular.extras import Extras
from fastrec.tabular.packed import HostGather, Layout, Packed, one_ahead
from fastrec.tabular.procs.procs import Categorify
from fastrec.tabular.recipe import FrameRecipe


def permutation(n: int, seed: int, device: torch.device) -> torch.Tensor:
    """Draw a uniform permutation, int64 ``[n]``, on the device where it is used.

    On a CPU random words with the rows' numbers in their lowest bits are sorted: numpy does that in half the time that
    exchanging rows takes. Rows that draw the same word (one pair in 2^40, of ten million rows) keep their order.
    """
    if not on_host(device):
        return torch.randperm(n, generator=torch.Generator(device).manual_seed(seed), device=device)
    bits = max(n - 1, 1).bit_length()
    words = np.random.SFC64(seed).random_raw(n).view(np.int64)
    words <<= bits
    words |= np.arange(n)
    words.sort()
    words &= (1 << bits) - 1
    return torch.from_numpy(words)


def grouped_order(ids: np.ndarray, generator: np.random.Generator | None) -> np.ndarray:
    """Order rows with groups together: groups as they first appear, or permuted; rows of a group in their order."""
    ascending = bool((ids[1:] >= ids[:-1]).all())
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


def count_groups(ids: np.ndarray) -> int:
    """Count the groups."""
    if (ids[1:] < ids[:-1]).any():
        return len(np.unique(ids))
    return int(np.count_nonzero(ids[1:] != ids[:-1])) + bool(len(ids))


def group_bounds(ids: np.ndarray, batches: int) -> np.ndarray:
    """Return the bounds of at most ``batches`` batches of rows whose groups lie together, int64 ``[batches + 1]``."""
    n = len(ids)
    if n == 0:
        return np.zeros(1, dtype=np.int64)
    ends = np.append(np.flatnonzero(ids[1:] != ids[:-1]) + 1, n)
    batches = min(batches, len(ends))
    k = np.arange(1, batches)
    closing = np.searchsorted(ends, -(-k * n // batches)) + 1  # groups in the first k batches
    closing = np.maximum.accumulate(closing - k) + k  # at least one group each,
    closing = np.minimum(closing, len(ends) - batches + k)  # and one left for each that follows
    return np.concatenate([[0], ends[closing - 1], [n]]).astype(np.int64)


class Shared:
    """A loader that yields its rank's share of the rows."""

    rank: int
    world_size: int

    def set_rank(self, rank: int | None = None, world_size: int | None = None) -> None:
        """Yield another rank's share (None: as torch's process group says) from the next epoch on, in its order."""
        if rank is None and world_size is None:
            rank, world_size = ranks.rank(), ranks.world_size()
        elif rank is None or world_size is None or not 0 <= rank < world_size:
            raise DataError(f"rank={rank} of world_size={world_size}", remedy="Give both, ranks counted from 0")
        self.rank, self.world_size = rank, world_size
        self._check_share()

    def _check_share(self) -> None:
        """Refuse ranks that cannot draw the same order of rows."""
        if self.world_size > 1 and self.shuffle and self.seed is None and ranks.world_size() != self.world_size:
            problem = f"{self.world_size} ranks must draw the same order, and no process group of as many joins them"
            remedy = "Give the same seed= on every rank, or call torch.distributed.init_process_group before"
            raise DataError(problem, remedy=remedy)

    def _draw_seed(self, bits: int) -> int | None:
        """Draw an epoch's seed, without a seed of their own for all ranks the first one's; None: rows in order."""
        seed = self.rng.getrandbits(bits) if self.shuffle else None
        if seed is not None and self.world_size > 1 and self.seed is None:
            self._check_share()
            seed = ranks.on_first_rank(lambda: seed, "drawing the order of an epoch")
        return seed

    def _places(self, n: int) -> tuple[int, int]:
        """Return the first and the last of this rank's places among ``n``."""
        return n * self.rank // self.world_size, n * (self.rank + 1) // self.world_size

    def do_item(self, s: int | None) -> int:
        """Return the row's number."""
        return 0 if s is None else s

    def to_detach(self, b: Any, cpu: bool = True, gather: bool = True) -> Any:
        """Detach tensors of this rank without gathering, as ranks may have batches of unequal sizes.

        (fastai gathers at every batch, for its metrics; ``fastrec.scale.distributed`` does so once an epoch.)
        """
        return to_detach(b, cpu, False)


def batch_sizes(rows: int, bs: int, drop_last: bool, rank: int, world_size: int) -> np.ndarray:
    """Return the sizes of a rank's batches, int64 ``[batches]``: as many batches on every rank.

    Alone, all batches but the last have ``bs`` rows. Of several ranks, the one with a row more may need a batch that
    another has no rows for: then batches are as even as they can be, and none is empty.
    """
    if world_size > 1 and 0 < rows < world_size:
        raise DataError(f"{rows} rows for {world_size} ranks", remedy="Train on fewer ranks, or on more rows")
    mine = rows * (rank + 1) // world_size - rows * rank // world_size
    fewest, most = rows // world_size, -(-rows // world_size)
    if drop_last:
        return np.full(fewest // bs, bs, dtype=np.int64)
    batches = min(-(-most // bs), fewest) if world_size > 1 else -(-rows // bs)
    if batches == -(-mine // bs):
        sizes = np.full(batches, bs, dtype=np.int64)
        if batches:
            sizes[-1] = mine - bs * (batches - 1)
        return sizes
    return np.diff(np.arange(batches + 1) * mine // batches)


Place = Literal["auto", "device", "host"]
_ON_HOST = "Keep the rows on the host (device='cpu' for the frame, place='host' here), or lower bs="


class ReadBatch(ReadTabBatch):
    """Turns a batch back into a ``TabularFrame``; on the way in there is nothing to do."""

    def __call__(self, b: Any, split_idx: int | None = None, **kwargs: Any) -> Any:
        """Return the batch as it is."""
        return b

    def decode(self, b: Any, split_idx: int | None = None, **kwargs: Any) -> Any:
        """Make a frame of the batch's rows."""
        return self.to.from_batch(b)


class TabularLoader(Shared, TabDataLoader):  # by its class, fastai's Interpretation knows that items are encoded
    """Batches ``(x_cat, x_cont, *extras, y)`` of a ``TabularFrame``; extras are its lists and vectors, if any.

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
        seed: same seed, same order (on a CPU and on a GPU another one).
        place: where rows are gathered when batches go to another device than the frame's: ``'device'`` copies the frame
            there once, ``'host'`` copies batches (to a CUDA device ahead of their use, through pinned memory),
            ``'auto'`` copies the frame to a CUDA device if it takes less than half of the free memory there.
        rank, world_size: this process's number and how many there are; None: as torch's process group says, else 0
            of 1. Every rank draws the same order and takes its share of it: together they yield every row once, in
            as many batches each, none of them empty and all as even as that needs; ``drop_last`` leaves
            ``floor(floor(n / world_size) / bs)`` full ones. Groups stay whole. Every rank has to begin as many epochs
            as the others; without a seed rank 0 sends its own at the beginning of each.
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
        rank: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_whole("a loader", bs=bs)
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
        self.set_rank(rank, world_size)
        self._last: torch.Tensor | None = None
        self._ours = False

    @property
    def device(self) -> torch.device | None:
        """The device of batches, with its number, so that it equals that of the rows; None: the rows' own."""
        return self._device

    @device.setter
    def device(self, device: DeviceLike) -> None:
        found = None if device is None else torch.device(device)
        # shapes alone ("meta") have no number
        found = found if found is None or found.type == "meta" else resolve_device(found)
        TabDataLoader.device.fset(self, found)  # the transforms of batches go along

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> TabularLoader:
        """Make a loader with the same settings except those given (fastai's ``DataLoader.new``)."""
        same = dataset is None or dataset is self.dataset
        own = {"seed": self.seed, "place": self.place, "rank": 0, "world_size": 1}
        packed = [getattr(d, "_packed", None) for d in (dataset, self.dataset)]
        pointers = {0 if p is None else p.buffer.untyped_storage().data_ptr() for p in packed}
        if same or (len(pointers) == 1 and 0 not in pointers):  # a part of the same frame
            own |= {"rank": self.rank, "world_size": self.world_size}
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
                remedy = "Give groups='column' to the TabularFrame, or their ids here"
                raise DataError("the frame has no groups", remedy=remedy)
        ids = groups.cpu().numpy() if isinstance(groups, torch.Tensor) else np.asarray(groups)
        if ids.shape != (len(self.dataset),):
            remedy = "Give one id per row of this loader"
            raise DataError(f"groups of shape {ids.shape} for {len(self.dataset)} rows", remedy=remedy)
        return ids

    def _weights(self, wgts: Any) -> np.ndarray:
        weights = np.asarray(wgts, dtype=np.float64)
        if (
            weights.shape != (self.n,)
            or not np.isfinite(weights).all()
            or (weights < 0).any()
            or (self.n and weights.sum() == 0)
        ):
            remedy = "Give one weight per training row"
            raise DataError(f"{weights.size} weights for {self.n} rows, or not all of them numbers ≥ 0", remedy=remedy)
        return np.cumsum(weights)

    def _check_share(self) -> None:
        if self.world_size == 1 or not self.n:
            return
        units, what = self.n, "rows"
        if self.groups is not None:
            units, what = count_groups(self.groups[: self.n]), "groups"
        if units < self.world_size:
            raise DataError(f"{units} {what} for {self.world_size} ranks", remedy=f"Use fewer ranks, or more {what}")
        super()._check_share()

    def __len__(self) -> int:
        if self.groups is not None and self.bs is not None:
            return self._group_batches()
        return super().__len__() if self.world_size == 1 else len(self._sizes())

    def _group_batches(self) -> int:
        return min(-(-self.n // (self.bs * self.world_size)), count_groups(self.groups[: self.n]) // self.world_size)

    def _sizes(self) -> np.ndarray:
        return batch_sizes(self.n, self.bs or self.n or 1, self.drop_last, self.rank, self.world_size)

    def get_idxs(self) -> np.ndarray:
        """Draw this epoch's rows, in order: int64 ``[n]`` numpy; with several ranks this one's."""
        return self._share(self._order()).cpu().numpy()

    def _order(self) -> torch.Tensor:
        if self.n == 0:
            return torch.empty(0, dtype=torch.int64)
        seed = self._draw_seed(63)
        if seed is not None and self.groups is None and self._cdf is None:
            with naming_out_of_memory(f"drawing the order of {self.n:,} rows", _ON_HOST, need=8 * self.n):
                return permutation(self.n, seed, self._packed().device)
        generator = None if seed is None else np.random.default_rng(seed)
        if self.groups is not None:
            return torch.from_numpy(grouped_order(self.groups[: self.n], generator))
        if generator is None:
            return torch.arange(self.n)
        drawn = np.searchsorted(self._cdf, generator.random(self.n) * self._cdf[-1], side="right")
        return torch.from_numpy(drawn.clip(max=self.n - 1))

    def _share(self, order: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return order
        low, high = self._places(self.n)
        if self.groups is not None and self.bs is not None:
            batches = self._group_batches()
            bounds = group_bounds(self.groups[order.numpy()], batches * self.world_size)
            low, high = bounds[batches * self.rank], bounds[batches * (self.rank + 1)]
        return order[low:high]

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches_from(0)

    def batches_from(self, first: int) -> Iterator[Any]:
        """Begin an epoch at a later batch; the order is drawn at once, skipped batches are not gathered.

        Args:
            first: number of the batch to begin with, from 0.
        """
        # fastai goes through torch's loader here, which costs more per batch than gathering it; the hooks are the same.
        self.randomize()
        self.before_iter()
        hooked = "get_idxs" in self.__dict__ or type(self).get_idxs is not TabularLoader.get_idxs
        return self._yielded(self.get_idxs() if hooked else self._share(self._order()), first)

    def _yielded(self, rows: Any, first: int) -> Iterator[Any]:
        self._ours = True
        batches = self.create_batches(rows, **({"first": first} if first else {}))
        self._ours = False
        for batch in batches:
            yield self.after_batch(batch)
        self.after_iter()

    def create_batches(self, samps: Iterable[int], *, first: int = 0) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield batches of the rows in ``samps`` on the loader's device, without ``after_batch``.

        Args:
            samps: row numbers.
            first: number of the batch to begin with, from 0; those before it are not gathered.

        Raises:
            DataError: another loader asks (fastai's ``DistributedDL``), which would share out this rank's share again.
        """
        if self.world_size > 1 and not self._ours:
            problem = f"this loader yields a share of the rows already, rank {self.rank} of {self.world_size}"
            remedy = "Give rank=0, world_size=1 for a loader that fastai's DistributedDL is to share out"
            raise DataError(problem, remedy=remedy)
        extras = self._extras()
        batches = self._packed_batches(samps, first)
        return batches if extras is None else (self._with_extras(batch, extras) for batch in batches)

    def _packed_batches(self, samps: Iterable[int], skipped: int) -> Iterator[tuple[torch.Tensor, ...]]:
        rows, packed = self._as_rows(samps), self._packed()
        bounds = self._bounds(rows)
        # Small batches are gathered together, then split: a gather costs the same Python for any number of rows.
        chunk = max(1, limits.GATHER_BYTES // max(1, 4 * packed.layout.words))
        ends = [min(skipped, len(bounds) - 1)]  # of the batches gathered together: several small ones, or one
        while ends[-1] < len(bounds) - 1:
            last = int(np.searchsorted(bounds, bounds[ends[-1]] + chunk, side="right")) - 1
            ends.append(max(last, ends[-1] + 1))
        index, starts, sizes = rows.to(packed.device), bounds.tolist(), np.diff(bounds).tolist()
        pieces = [index[starts[i] : starts[j]] for i, j in pairwise(ends)]
        for (first, last), block in zip(pairwise(ends), self._gathered(packed, pieces), strict=True):
            parts = [view.split(sizes[first:last]) for view in packed.layout.views(block)]
            for i, batch in enumerate(zip(*parts, strict=True), first):
                self._last = rows[starts[i] : starts[i + 1]]
                yield batch

    def _bounds(self, rows: torch.Tensor) -> np.ndarray:
        """Return the bounds of batches of some rows, int64 ``[batches + 1]``."""
        n, bs = len(rows), self.bs or max(len(rows), 1)
        if self.groups is not None and self.bs is not None:
            batches = -(-n // bs) if self.world_size == 1 else self._group_batches()
            return group_bounds(self.groups[rows.cpu().numpy()], batches)
        low, high = self._places(self.n)
        if self.world_size > 1 and n == high - low:
            return np.append(0, np.cumsum(self._sizes()))
        stop = n - n % bs if self.drop_last else n
        return np.append(np.arange(0, stop, bs), stop)

    def create_batch(self, b: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """Gather one batch of the rows in ``b``."""
        packed, extras = self._packed(), self._extras()
        rows = self._as_rows(b)
        self._last = rows = rows if self.n else rows[:0]
        batch = packed.layout.views(next(iter(self._gathered(packed, [rows.to(packed.device)]))))
        return batch if extras is None else self._with_extras(batch, extras)

    def _extras(self) -> Extras | None:
        extras = self.dataset.extras
        return None if extras is None else extras.on(self._packed().device)

    def _with_extras(self, batch: tuple[torch.Tensor, ...], extras: Extras) -> tuple[torch.Tensor, ...]:
        found = extras.take(self._last)
        found = found if self.device is None else found.on(self.device)
        return (*batch[:2], *found.tensors, *batch[2:])

    def do_batch(self, b: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """Gather one batch of the rows in ``b`` (an empty frame gives an empty batch)."""
        return self.create_batch(self.before_batch(b))

    @property
    def batch_rows(self) -> np.ndarray | None:
        """The rows of the last batch, int64 ``[b]``; None before the first."""
        return None if self._last is None else self._last.cpu().numpy()

    @property
    def batch_groups(self) -> torch.Tensor | None:
        """The group ids of the last batch, int64 ``[b]``; None without groups."""
        if self.groups is None or self._last is None:
            return None
        return torch.from_numpy(self.groups[self.batch_rows].astype(np.int64))

    def _as_rows(self, samps: Iterable[int]) -> torch.Tensor:
        if isinstance(samps, torch.Tensor):
            return samps.to(torch.int64)
        if not hasattr(samps, "__len__"):
            samps = np.fromiter(islice(samps, self.n), dtype=np.int64)
        return torch.from_numpy(np.ascontiguousarray(samps, dtype=np.int64))

    def _packed(self) -> Packed:
        packed, device = self.dataset.packed, self.device
        if device is None or device == packed.device or self.place == "host":
            return packed
        return packed.on(device) if self.place == "device" or packed.fits(device) else packed

    def _gathered(self, packed: Packed, pieces: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        if self.device is None or self.device == packed.device:
            return (packed.buffer.index_select(0, index) for index in pieces)
        if self.device.type == "cuda":
            host = HostGather(packed, self.device, max(map(len, pieces), default=0))
            return one_ahead(host.begin, host.end, pieces)
        return (packed.buffer.index_select(0, index).to(self.device) for index in pieces)


def _with_reader(after_batch: Any, dataset: Any) -> Any:
    given = after_batch.fs if isinstance(after_batch, Pipeline) else L(after_batch)
    return after_batch if any(isinstance(tfm, ReadTabBatch) for tfm in given) else L(ReadBatch(dataset)) + given


# One raw row packed at once: a frame of one row costs a hundred small steps for every column.


def pack_row(recipe: FrameRecipe, row: Mapping[str, Any]) -> Packed | None:
    """Pack a raw row (column name → value) as ``FrameRecipe.pack`` packs a frame of it, without its target, on the CPU.

    None where only a frame will do: features are computed from it, a column is absent, or nothing codes the
    categories.
    """
    categorify = recipe.proc(Categorify)
    wanted = [*recipe.cats, *recipe.conts]
    if recipe.features is not None or categorify is None or any(n not in row for n in wanted):
        return None
    values = torch.tensor([_number(n, row[n]) for n in recipe.conts], dtype=torch.float64)
    places = {n: i for i, n in enumerate(recipe.conts)}
    codes = [_code(categorify, n, row[n]) for n in recipe.cats]
    codes += [1 + int(v != v) for v in values[[places[n] for n in recipe.flagged]].tolist()]
    for proc in recipe.cont_procs:
        values = proc.apply_row(recipe.conts, values)
    layout = Layout(len(codes), len(recipe.conts), None, recipe.cat_dtype, recipe.labels.dtype)
    return Packed.of(torch.tensor([codes], dtype=torch.int64), values[None], None, layout)


def _number(name: str, value: Any) -> float:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return float("nan")
    if type(value) in (float, bool) or (type(value) is int and -(1 << 53) <= value <= (1 << 53)):
        return float(value)
    return float(_column(name, value).number())


def _code(categorify: Categorify, name: str, value: Any) -> int:
    code = categorify[name].code_of(value)
    return int(categorify.encode(name, _column(name, value))) if code is None else code


def _column(name: str, value: Any) -> Any:
    import pandas as pd

    return as_column(pd.Series([value]), name=name)
