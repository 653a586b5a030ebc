"""``ParquetFrame``: Parquet files larger than memory as fastai batches.

What procs and targets have to know is learned in one pass over the files (two where a median is wanted); nothing is
written unless ``cache=`` names a folder. Every epoch reads all row groups in a new random order on a background thread
and mixes their rows through a buffer of a stated size. Every row comes exactly once.

**How well it mixes.** Row groups are read in an order that brings pieces of the whole file together (see
``stream_order``). Rows wait in a buffer, and each that is taken, at random, leaves its place to one that is read: a row
stays while about as many others are taken as the buffer holds, seven eighths of ``buffer_rows`` (the rest is read
ahead). If all rows fit into the buffer, the epoch is one uniform permutation. Row groups should be a few percent of the
buffer (``to_parquet(…, row_group_size=…)``). Of larger ones several are read in turn, but a file that is one single
large row group can only be read in its own order: use ``cache=`` there, whose pieces are small.

Differences from ``TabularFrame``: a categorical column's classes are its values, sorted (its declared order and unused
categories are not kept); procs other than ``Categorify``, ``FillMissing`` and ``Normalize`` learn from whole columns,
one in memory at a time; ``features`` hold the columns that they read and those that they make in memory.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.data.core import TfmdDL
from fastai.tabular.data import TabularDataLoaders
from fastcore.foundation import L

from fastrec.device import DeviceLike, resolve_device
from fastrec.errors import DataError, DataWarning
from fastrec.labels import Labels
from fastrec.loader import TabularLoader, _with_reader
from fastrec.packed import Packed
from fastrec.prepare import Recipe, check_unique
from fastrec.procs import as_procs
from fastrec.stream_cache import CachedRows
from fastrec.stream_files import ParquetSource, Paths
from fastrec.stream_learn import learn
from fastrec.stream_order import batch_sizes, check_rank, share, shuffled_units
from fastrec.stream_reader import Mixer, ReadAhead, cut_batches
from fastrec.stream_rows import FileRows, Rows
from fastrec.tabular import TabularFrame

__all__ = ["ParquetFrame", "StreamLoader"]

BUFFER_ROWS = 1_000_000
_AHEAD = 16  # a part of the buffer like this is read ahead, twice


class ParquetFrame:
    """Parquet files, prepared for fastai a buffer at a time.

    Args:
        paths: training rows: a file, a folder, a pattern with ``*``, or a list of these.
        procs: as for ``TabularFrame``.
        cat_names, cont_names, y_names, y_block: as for ``TabularFrame``.
        valid: validation rows: paths likewise (they are streamed too), or a frame (it is held in memory).
        features: as for ``TabularFrame``; the columns that it reads and makes are held in memory.
        cache: a folder for the packed rows: written now, unless those of the same files and settings are there.
            Epochs then read it and not the Parquet files. Every combination of files and settings has a folder of its
            own in it (``train-…``, ``valid-…``): none disturbs another, and none is ever removed, as a training may
            still read it. A ``DataWarning`` says what has piled up; remove such folders, or the whole cache, by hand.
        device: where batches go; None: ``FASTREC_DEVICE``, else fastai's default.
        cat_dtype, y_dtype: as for ``TabularFrame``.

    Raises:
        MissingFileError, UnreadableFileError, MissingColumnError, DataError: naming file and column.
    """

    def __init__(
        self,
        paths: Paths,
        procs: Any = None,
        cat_names: Sequence[str] | str | None = None,
        cont_names: Sequence[str] | str | None = None,
        y_names: Sequence[str] | str | None = None,
        y_block: Any = None,
        *,
        valid: Any = None,
        features: Any = None,
        cache: str | Path | None = None,
        device: DeviceLike = None,
        cat_dtype: torch.dtype = torch.int32,
        y_dtype: torch.dtype | None = None,
    ) -> None:
        cats, conts, ys = (list(L(names)) for names in (cat_names, cont_names, y_names))
        check_unique([*cats, *conts])
        self.recipe = Recipe(cats, conts, as_procs(procs), Labels(ys, y_block, dtype=y_dtype), features, [], cat_dtype)
        self.device = device
        self.train: Rows = self._rows(paths)
        learn(self.recipe, self.train)
        self.valid: Rows | TabularFrame | None = None
        if isinstance(valid, str | Path) or (isinstance(valid, list | tuple) and valid):
            self.valid = self._rows(valid)
            self.valid.make_features(fit=False)
        elif valid is not None:
            self.valid = self.new(valid)
        if cache is not None:
            self.train = CachedRows(self.train, Path(cache), "train")
            if isinstance(self.valid, FileRows):
                self.valid = CachedRows(self.valid, Path(cache), "valid")

    def _rows(self, paths: Paths) -> FileRows:
        recipe = self.recipe
        own = set(getattr(recipe.features, "outputs", ()))
        named = [n for n in [*recipe.cats, *recipe.conts] if n not in own]
        return FileRows(ParquetSource(paths, [*named, *recipe.labels.names]), paths, recipe)

    def __len__(self) -> int:
        return len(self.train)

    @property
    def frame(self) -> TabularFrame:
        """A ``TabularFrame`` without rows that knows all that was learned."""
        return self._frame(0, with_y=True)

    def _frame(self, rows: int, *, with_y: bool) -> TabularFrame:
        recipe = self.recipe
        frame = StreamedFrame.__new__(StreamedFrame)
        frame._assign(recipe, device=None)
        frame._packed = Packed.empty(0, recipe.layout(with_y=with_y and bool(recipe.labels.names)))
        frame.streamed_rows = rows
        return frame

    def new(self, df: Any) -> TabularFrame:
        """Other rows (test rows), in memory and prepared as these are."""
        frame = self.frame.new(df)
        frame.process()
        return frame

    def dataloaders(
        self,
        bs: int = 64,
        *,
        buffer_rows: int = BUFFER_ROWS,
        val_bs: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        drop_last: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        path: str | Path = ".",
        device: DeviceLike = None,
        **kwargs: Any,
    ) -> TabularDataLoaders:
        """Loaders of training and validation rows, for any fastai Learner.

        Args:
            bs, val_bs: rows of a batch; ``val_bs`` None: ``bs``.
            buffer_rows: rows that are held in memory at a time.
            seed: same seed, same order.
            shuffle: a new order every epoch.
            drop_last: leave out training rows that do not fill a batch; None: as ``shuffle``, which is fastai's rule.
            rank, world_size: which rank of how many; None: as torch's process group says.
            path: where a Learner writes.
            device: where batches go; None: as given before.
            **kwargs: as for fastai's ``TfmdDL``.
        """
        place = resolve_device(device if device is not None else self.device)
        common = {"buffer_rows": buffer_rows, "rank": rank, "world_size": world_size, "device": place, **kwargs}
        last = shuffle if drop_last is None else drop_last
        train = StreamLoader(self, self.train, bs=bs, shuffle=shuffle, drop_last=last, seed=seed, **common)
        loaders: list[Any] = [train]
        if isinstance(self.valid, TabularFrame):
            loaders.append(TabularLoader(self.valid, bs=val_bs or bs, device=place))
        else:
            rows = self.valid if self.valid is not None else CachedRows.none(self.recipe)
            loaders.append(StreamLoader(self, rows, bs=val_bs or bs, **{**common, "buffer_rows": buffer_rows}))
        return TabularDataLoaders(*loaders, path=path, device=place)

    def __repr__(self) -> str:
        frame = self.frame
        names = f"{len(frame.cat_names)} categorical, {len(frame.cont_names)} continuous, y {list(frame.y_names)}"
        return f"{type(self).__name__}({len(self)} rows in {len(self.train.units)} pieces; {names})"


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


class StreamLoader(TfmdDL):
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
        rows: Rows | None = None,
        bs: int = 64,
        shuffle: bool = False,
        drop_last: bool = False,
        after_batch: Any = None,
        num_workers: int = 0,
        *,
        buffer_rows: int = BUFFER_ROWS,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if bs is None or bs < 1 or buffer_rows < 1:
            raise DataError(f"bs={bs}, buffer_rows={buffer_rows}", remedy="Give numbers from 1")
        self.frame, self.rows, self.buffer_rows, self.seed = frame, rows, buffer_rows, seed
        self.rank, self.world_size = check_rank(rank, world_size)
        if self.world_size > 1 and shuffle and seed is None:
            raise DataError("every rank must draw the same order", remedy="Give the same seed= on every rank")
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
        if shuffle:
            self._warn_of_large_groups()

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
        """Rows that are mixed with one another at a time."""
        ahead = 2 * max(self.buffer_rows // _AHEAD, 1)
        return len(self.rows) if len(self.rows) <= self.buffer_rows else max(self.buffer_rows - ahead, 1)

    def new(self, dataset: Any = None, cls: type | None = None, **kwargs: Any) -> TfmdDL:
        """A loader with the same settings; of rows in memory (``test_dl``) a ``TabularLoader``."""
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
        """The numbers of this rank's rows in the files' order (the order of a shuffled epoch is not known before)."""
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
        """One epoch's batches on the loader's device, ``after_batch`` not applied."""
        sizes, rows, window = self._sizes().tolist(), self.rows, self._window()
        if not sizes:
            return
        seed = self.rng.getrandbits(62) if self.shuffle else None
        units = rows.pieces(window)
        if seed is not None:
            units = shuffled_units(units, window, np.random.default_rng(seed))
        pieces, layout = share(units, self.rank, self.world_size), rows.layout
        here = sum(p.rows for p in pieces)
        ahead = min(max(self.buffer_rows // _AHEAD, 1), max(here, 1))
        with ReadAhead(lambda: rows.chunks(pieces, window, seed), layout, ahead) as read:
            mixer = Mixer(iter(read), layout, min(window, here), None if seed is None else seed + 1)
            for batch in cut_batches(mixer, sizes, layout):
                yield tuple(t.to(self.device) for t in batch) if self.device is not None else batch

    def stream_fingerprint(self) -> dict[str, Any]:
        """What an epoch's batches depend on besides the state of random numbers, as JSON values."""
        found = self.rows.fingerprint()
        files = found.get("files", [])
        digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
        told = {"files": f"{len(files)} of {sum(size for _, size, _ in files)} bytes, digest {digest}"}
        order = {"buffer_rows": self.buffer_rows, "cached": self.rows.cached, "rank": [self.rank, self.world_size]}
        return {**told, **found.get("settings", {}), **order}

    def do_item(self, s: int | None) -> int:
        """A row's number stands for the row."""
        return 0 if s is None else s

    def do_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """A batch without rows: fastai looks at its form."""
        return Packed.empty(0, self.rows.layout).views

    def create_batch(self, b: Any) -> tuple[torch.Tensor, ...]:
        """Refuse to pick out rows."""
        raise DataError("rows of a stream cannot be picked out", remedy="Iterate, or use TabularFrame on some rows")
