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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fastai.tabular.data import TabularDataLoaders
from fastcore.foundation import L

from fastrec._core.device import DeviceLike, resolve_device
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import TabularLoader
from fastrec.tabular.packed import Packed
from fastrec.tabular.procs.registry import as_procs
from fastrec.tabular.recipe import FrameRecipe, check_unique
from fastrec.tabular.stream.cache import CachedRows
from fastrec.tabular.stream.files import ParquetSource, Paths
from fastrec.tabular.stream.learn import learn
from fastrec.tabular.stream.loader import StreamedFrame, StreamLoader
from fastrec.tabular.stream.rows import FileRows, StreamRows
from fastrec.tabular.targets import Labels

__all__ = ["ParquetFrame"]


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
        self.recipe = FrameRecipe(
            cats, conts, as_procs(procs), Labels(ys, y_block, dtype=y_dtype), features, [], cat_dtype
        )
        self.device = device
        self.train: StreamRows = self._rows(paths)
        learn(self.recipe, self.train)
        self.valid: StreamRows | TabularFrame | None = None
        if isinstance(valid, str | Path) or (isinstance(valid, list | tuple) and valid):
            self.valid = self._rows(valid)
            self.valid.make_features(fit=False)
        elif valid is not None:
            self.valid = self.new(valid)
        if cache is not None:
            self.train = CachedRows(self.train, Path(cache), "train")
            if isinstance(self.valid, FileRows):
                self.valid = CachedRows(self.valid, Path(cache), "valid")

    def _rows(self, paths: Paths, *, with_y: bool = True) -> FileRows:
        recipe = self.recipe
        own = set(getattr(recipe.features, "outputs", ()))
        named = [n for n in [*recipe.cats, *recipe.conts] if n not in own]
        ys = recipe.labels.names if with_y else []
        return FileRows(ParquetSource(paths, [*named, *ys]), paths, recipe, with_y=with_y)

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
        """Prepare other rows (test rows) in memory."""
        frame = self.frame.new(df)
        frame.process()
        return frame

    def new_rows(self, paths: Paths) -> StreamRows:
        """Stream and prepare rows of other files (test rows); they need no targets.

        Args:
            paths: as for the training rows.
        """
        rows = self._rows(paths, with_y=False)
        rows.make_features(fit=False)
        return rows

    def dataloaders(
        self,
        bs: int = 64,
        *,
        buffer_rows: int = 1_000_000,
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
        """Make loaders of training and validation rows, for any fastai Learner.

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
