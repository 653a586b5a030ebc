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

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from fastcore.foundation import L

from fastrec._core import limits
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.threads import run_parallel
from fastrec.errors import DataError, warn
from fastrec.table import Column, Keys, Table, Vocab, as_column
from fastrec.tabular.columns import Moments, Summary, TrainingRows
from fastrec.tabular.dataloaders import RecDataLoaders
from fastrec.tabular.frame import TabularFrame
from fastrec.tabular.loader import TabularLoader
from fastrec.tabular.packed import Packed
from fastrec.tabular.procs.features import looking_back
from fastrec.tabular.procs.procs import Categorify, FillMissing, Normalize, as_procs
from fastrec.tabular.recipe import FrameRecipe, check_unique
from fastrec.tabular.stream.files import ParquetSource, Paths
from fastrec.tabular.stream.loader import CachedRows, FileRows, StreamedFrame, StreamLoader, StreamRows
from fastrec.tabular.targets import Labels


class ValueCounts:
    """The distinct values of a column and their numbers of rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: Keys | None = None
        self.counts = torch.zeros(0, dtype=torch.int64)
        self._new: list[tuple[Keys, torch.Tensor]] = []
        self._waiting = 0

    def add(self, column: Column) -> None:
        """Count a block's values."""
        coded = column.coded()
        keys, counts = coded.keys, torch.bincount(coded.codes, minlength=coded.size).cpu()
        used = counts[1:].nonzero().squeeze(1)
        self._new.append((keys if len(used) == len(keys) else keys.take(used), counts[1:][used]))
        self._waiting += len(used)
        # Merging when as much again has come keeps the total cost linear.
        if self._waiting > max(2 * len(self.counts), 100_000):
            self._merge()

    def _merge(self) -> None:
        parts = ([(self.keys, self.counts)] if self.keys is not None else []) + self._new
        parts = [p for p in parts if len(p[0])] or parts[:1]
        if not parts:
            return
        codes, self.keys = _joined([keys for keys, _ in parts]).distinct()
        counts = torch.cat([c for _, c in parts])
        self.counts = torch.zeros(len(self.keys), dtype=torch.int64).index_add_(0, codes, counts)
        self._new, self._waiting = [], 0

    def result(self) -> tuple[Keys, torch.Tensor]:
        """Return the distinct values in order of first appearance, and their counts int64 ``[K]``."""
        if self._new:
            self._merge()
        return Keys((pa.array([], pa.null()),), (self.name,)) if self.keys is None else self.keys, self.counts


def _joined(parts: list[Keys]) -> Keys:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _joined(parts[:middle]).concat(_joined(parts[middle:]))


class MedianSearch:
    """Search for the exact median in two passes: which bin it is in, then the numbers of that bin.

    Bins are the floats' upper bits, 64 to every power of two, so that the second pass keeps few numbers.
    """

    def __init__(self) -> None:
        self._bins = np.zeros((1 << 64 - limits.MEDIAN_BITS), dtype=np.int64)
        self._kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sought: set[int] = set()
        self.count = 0

    def look(self, values: np.ndarray) -> None:
        """Take the first look at float64 ``[m]``, none missing."""
        if not len(values):
            return
        bins = (_ordered_bits(values) >> limits.MEDIAN_BITS) + (1 << 64 - limits.MEDIAN_BITS) // 2
        low = int(bins.min())
        counts = np.bincount(bins - low)
        self._bins[low : low + len(counts)] += counts
        self.count += len(values)

    def _wanted(self) -> list[tuple[int, int]]:
        """Return bin, and place in it, of the one or two middle numbers."""
        if not self.count:
            return []
        ends = np.cumsum(self._bins)
        found = []
        for place in sorted({(self.count - 1) // 2, self.count // 2}):
            i = int(np.searchsorted(ends, place, side="right"))
            found.append((i, place - int(ends[i] - self._bins[i])))
        return found

    def look_again(self, values: np.ndarray) -> None:
        """Take the second look, at the same numbers."""
        bits = _ordered_bits(values)
        bins = (bits >> limits.MEDIAN_BITS) + (1 << 64 - limits.MEDIAN_BITS) // 2
        if not self._sought:
            self._sought = {b for b, _ in self._wanted()}
        for wanted in self._sought:
            new = np.unique(bits[bins == wanted], return_counts=True)
            if wanted in self._kept:
                old = self._kept[wanted]
                both, where = np.unique(np.concatenate([old[0], new[0]]), return_inverse=True)
                new = (both, np.bincount(where, np.concatenate([old[1], new[1]]), len(both)).astype(np.int64))
            self._kept[wanted] = new

    def result(self) -> float:
        """Return the median; 0 if there were no numbers."""
        middle = []
        for wanted, place in self._wanted():
            bits, counts = self._kept[wanted]
            found = bits[np.searchsorted(np.cumsum(counts), place, side="right")]
            middle.append(float(_flipped(found).view(np.float64)))
        return sum(middle) / len(middle) if middle else 0.0


def _ordered_bits(values: np.ndarray) -> np.ndarray:
    """Convert floats to integers of the same order (-0.0 and 0.0 are one)."""
    return _flipped((values + 0.0).view(np.int64))


def _flipped(bits: np.ndarray) -> np.ndarray:
    # Negative floats rise as their bits fall: all but the sign are flipped; twice is not at all.
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def learn(recipe: FrameRecipe, rows: FileRows) -> None:
    """Fit a recipe's procs and targets on all rows, block by block."""
    rows.make_features(fit=True)
    if rows.made is not None:
        recipe.add_outputs(rows.made)
    fill = recipe.proc(FillMissing)
    by_blocks = all(type(p) in (FillMissing, Normalize) for p in recipe.cont_procs)
    by_blocks = by_blocks and (fill is None or isinstance(fill.fill_strategy, str))
    categorify = recipe.proc(Categorify)
    counts = {n: ValueCounts(n) for n in recipe.cats} if categorify is not None else {}
    targets = {n: ValueCounts(n) for n in _class_names(recipe.labels, rows)}
    conts = {n: _ColumnStatistics(recipe) for n in recipe.conts} if by_blocks and recipe.cont_procs else {}
    gaps = dict.fromkeys(recipe.labels.names, False)
    looks: list[tuple[str, Callable[[Column], None]]] = [
        *((n, c.add) for n, c in (*counts.items(), *targets.items())), *((n, c.look) for n, c in conts.items())
    ]  # fmt: skip
    for _, table in rows.tables():
        run_parallel(lambda look, t=table: look[1](t[look[0]]), looks, rows=len(table))
        for name in gaps:
            gaps[name] = gaps[name] or bool(table[name].is_missing().any())
    if any(n.median is not None for n in conts.values()):
        for _, table in rows.tables():
            run_parallel(lambda name, t=table: conts[name].look_again(t[name]), list(conts), rows=len(table))
    # Targets are fitted on a row of their type, classes on their distinct values: no column is held.
    columns = _like_target(rows, recipe.labels.names, gaps)
    for name, seen in targets.items():
        columns[name] = as_column(seen.result()[0].columns[0], name=name)
    recipe.labels.fit(columns, TrainingRows(max((len(c) for c in columns.values()), default=0)))
    recipe.reset_procs()
    for name, seen in conts.items():
        summary = seen.summary()
        for proc in recipe.cont_procs:
            proc.learn(name, summary)
    if not by_blocks:  # whole columns, one in memory at a time
        for name in recipe.conts:
            parts = [c.number() for c in _column(rows, name)]
            recipe.fit_values(name, torch.cat([torch.zeros(0, dtype=torch.float64), *parts]))
    for name, seen in counts.items():
        categorify.set_vocab(name, Vocab.of_keys(*seen.result(), name=name, **categorify.options_of(name))[0])
    recipe.learn_flags()


class _ColumnStatistics:
    """Statistics of a continuous column for ``FillMissing`` and ``Normalize``."""

    def __init__(self, recipe: FrameRecipe) -> None:
        fill = recipe.proc(FillMissing)
        rule = fill.fill_strategy if fill is not None else None
        self.median = MedianSearch() if rule == "median" else None
        self.mode: Counter[float] | None = Counter() if rule == "mode" else None
        self.moments, self.scales = Moments(), recipe.proc(Normalize) is not None
        self.missing = 0

    def look(self, column: Column) -> None:
        present = _present(column)
        self.missing += len(column) - len(present)
        if self.median is not None:
            self.median.look(present)
        if self.mode is not None:
            self.mode.update(present.tolist())
        if self.scales:
            self.moments.add(present)

    def look_again(self, column: Column) -> None:
        self.median.look_again(_present(column))

    def summary(self) -> Summary:
        fill = None if self.median is None else self.median.result()
        if self.mode is not None:  # among equals the first one
            fill = max(self.mode, key=self.mode.__getitem__, default=0.0)
        return Summary(self.moments, self.missing, fill)


def _present(column: Column) -> np.ndarray:
    values = column.number().cpu().numpy()
    gone = np.isnan(values)
    return values[~gone] if gone.any() else values


def _column(rows: FileRows, name: str) -> Iterator[Column]:
    if rows.made is not None and name in rows.made:
        yield rows.made[name]
        return
    for _, block in rows.source.scan(1 << 17, [name]):
        yield Table.read(block, device="cpu")[name]


def _class_names(labels: Labels, rows: FileRows) -> list[str]:
    if not labels.names:
        return []
    # A copy of the block: the block itself learns later, and one with classes, even none, would not.
    probe = Labels(labels.names, copy.deepcopy(labels.block), dtype=labels.asked_dtype)
    probe.fit(_like_target(rows, labels.names, dict.fromkeys(labels.names, False)), TrainingRows(0))
    return labels.names[:1] if probe.kind == "category" else []


def _like_target(rows: FileRows, names: list[str], gaps: dict[str, bool]) -> dict[str, Column]:
    """Return one row of every target's type, missing if the target ever is."""
    found: dict[str, Column] = {}
    for name in names:
        kind = rows.source.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        missing = gaps[name] or pa.types.is_null(kind)
        value: Any = None if missing else pa.scalar(0, pa.int64()).cast(kind).as_py()
        found[name] = Table.read(pa.table({name: pa.array([value], kind)}), device="cpu")[name]
    return found


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
            still read it. A ``DataWarning`` tells their number; remove such folders, or the whole cache, by hand.
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
        check_unique([*cats, *conts], ys)
        self.recipe = FrameRecipe(
            cats, conts, as_procs(procs), Labels(ys, y_block, dtype=y_dtype), features, [], cat_dtype
        )
        self.device = device
        train = self._rows(paths)
        places = Counter(file.resolve() for file in train.source.files)
        file, times = places.most_common(1)[0]
        if times > 1:
            problem = f"the file is named {times} times among the training files"
            raise DataError(problem, file=file, remedy="Name each once")
        learn(self.recipe, train)
        self.train: StreamRows = train
        self.valid: StreamRows | TabularFrame | None = None
        history = train.read_inputs() if valid is not None and looking_back(self.recipe.features) else None
        if isinstance(valid, str | Path) or (isinstance(valid, list | tuple) and valid):
            self.valid = self._rows(valid)
            both = [file for file in self.valid.source.files if file.resolve() in places]
            if both:
                told = f"training and validation share {len(both)} of their files (the first is {both[0]})"
                warn(f"{told}: the validation score is not to be trusted")
            self.valid.make_features(fit=False, history=history)
        elif valid is not None:
            self.valid = self.new(valid, history)
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

    def new(self, df: Any, history: Any = None) -> TabularFrame:
        """Prepare other rows (test rows) in memory; ``history`` is as for ``TabularFrame.process``."""
        frame = self.frame.new(df)
        frame.process(history)
        return frame

    def new_rows(self, paths: Paths) -> StreamRows:
        """Stream and prepare rows of other files (test rows), given as the training rows are; they need no targets."""
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
    ) -> RecDataLoaders:
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
        return RecDataLoaders(*loaders, path=path, device=place)

    def __repr__(self) -> str:
        frame = self.frame
        names = f"{len(frame.cat_names)} categorical, {len(frame.cont_names)} continuous, y {list(frame.y_names)}"
        return f"{type(self).__name__}({len(self)} rows in {len(self.train.units)} pieces; {names})"
