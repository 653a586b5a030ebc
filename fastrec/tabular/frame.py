"""``TabularFrame``: fastai's tabular object with tensors inside.

A fastai user takes it for ``TabularPandas``: the same constructor and properties, and stock learners, callbacks and
loaders work on it. Differences, all deliberate (those of the procs and the loader are listed in their modules):

- Any frame goes in: pandas, polars, Arrow, ``Table``, a dict, a CSV or Parquet path. It is read, not changed and not
  kept; ``inplace`` and ``reduce_memory`` are taken and change nothing. The caller's lists of names stay as they are.
- ``items cats conts xs ys all_cols`` are made on demand, for people; they hold the columns that were named, no others.
  Their index is the rows' positions in the frame. Models get ``x_cat``, ``x_cont`` and ``y``.
- ``decode`` gives a new frame. ``process`` twice is ``process`` once.
- Codes are int32 (``cat_dtype``), classes int64, numeric targets keep their own dtype (``y_dtype``): whole numbers
  int64, float32, float64; fastai shrinks them. ``MixUp`` of numeric targets wants ``y_dtype=torch.float32``.
- A class that training rows do not have, in validation or test, is an error that names it. A target column that is
  wholly empty counts as absent.
- ``y`` is the targets' tensor (fastai's is the first target's column).
- ``show_results`` shows decoded rows, fastai's shows codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from fastai.data.core import show_results
from fastai.tabular.core import Tabular
from fastai.torch_core import display_df
from fastcore.foundation import L

from fastrec._core import limits
from fastrec._core.device import DeviceLike, on_host, resolve_device
from fastrec._core.memory import naming_out_of_memory
from fastrec._core.threads import on_one_thread
from fastrec.errors import DataError, MissingColumnError, warn
from fastrec.table import Table, Vocab, concat, take_rows
from fastrec.table.frames import row_count
from fastrec.tabular.columns import TrainingRows
from fastrec.tabular.extras import ExtraColumns, Extras
from fastrec.tabular.loader import TabularLoader, pack_row
from fastrec.tabular.packed import Layout, Packed
from fastrec.tabular.procs.base import ProcPipeline
from fastrec.tabular.procs.features import apply_features, fit_features, looking_back
from fastrec.tabular.procs.procs import Categorify, as_procs
from fastrec.tabular.recipe import FrameRecipe, check_unique, loaded, read_for
from fastrec.tabular.targets import Labels


class _RowView:
    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return self.frame[index[1]].iloc[index[0]]
        frame = self.frame
        places = np.asarray(None if isinstance(index, slice) else index)
        whole = places.dtype.kind in "iu" and places.size and places.min() >= 0 and places.max() < len(frame)
        if not whole:  # slices, masks, places from the end, and IndexError
            places = np.arange(len(frame))[index]
        rows = torch.from_numpy(np.atleast_1d(places.astype(np.int64, copy=False)))
        packed = frame.packed.take(rows.to(frame.packed.device))
        groups = None if frame.groups is None else frame.groups[rows]
        extras = None if frame.extras is None else frame.extras.take(rows)
        return frame._like(_packed=packed, _extras=extras, _rows=frame.rows[rows], groups=groups)


def split_rows(splits: Any, n: int) -> list[torch.Tensor]:
    """Return the row numbers of each split, int64; lists, arrays, ranges, slices and masks are taken."""
    splits = list(splits)
    if any(not isinstance(s, slice | Iterable) or getattr(s, "ndim", 1) == 0 for s in splits):
        remedy = "Give one list for training and one for validation, as in (a, b)"
        raise DataError("splits are row numbers themselves", remedy=remedy)
    rows = [_row_numbers(s, n) for s in splits]
    for part in rows:
        if len(part) and not (int(part.min()) >= 0 and int(part.max()) < n):
            bad = part[(part < 0) | (part >= n)]
            remedy = "Make the splits for this frame"
            raise DataError(f"splits name row {int(bad[0])}, but there are {n} rows", remedy=remedy)
    trained = np.zeros(n, dtype=np.bool_)
    trained[rows[0].numpy() if rows else []] = True
    both = torch.cat(rows[1:]) if len(rows) > 1 else torch.empty(0, dtype=torch.int64)
    both = both[torch.from_numpy(trained[both.numpy()])]
    if len(both):
        told = f"{len(both)} rows are in training and in validation (the first is row {int(both[0])})"
        warn(f"{told}: the validation score is not to be trusted")
    return rows


def joined_rows(rows: Sequence[torch.Tensor], n: int) -> torch.Tensor | None:
    """Concatenate the rows of several splits, int64 ``[m]``; None if they are all ``n`` rows in order."""
    places = np.cumsum([0, *map(len, rows)]).tolist()
    # Compared block by block: the numbers of all rows would be as large as the splits are.
    if places[-1] == n and all(
        torch.equal(part, torch.arange(start + i, start + i + len(part)))
        for split, start in zip(rows, places, strict=False)
        for i, part in zip(range(0, len(split), limits.FRAME_BLOCK), split.split(limits.FRAME_BLOCK), strict=False)
    ):
        return None
    return torch.cat(list(rows))


def _row_numbers(split: Any, n: int) -> torch.Tensor:
    if isinstance(split, range | slice):
        start, stop, step = (split.start, split.stop, split.step) if isinstance(split, range) else split.indices(n)
        return torch.from_numpy(np.arange(start, stop, step, dtype=np.int64))
    if isinstance(split, torch.Tensor):
        split = split.cpu().numpy()
    if not isinstance(split, np.ndarray):
        split = split.items if isinstance(split, L) and isinstance(split.items, list) else list(split)
        # with a known type numpy passes through the list once less
        split = np.array(split, dtype=np.int64 if split and isinstance(split[0], np.int64) else None)
    rows = split
    odd = [] if rows.dtype.kind in "biu" else [r for r in rows.tolist() if not (isinstance(r, Real) and r == r // 1)]
    if odd:
        problem = f"splits are row numbers, and {odd[0]!r} is none"
        raise DataError(problem, remedy="Give whole numbers, a mask or a slice")
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=not rows.flags.writeable)
    return torch.from_numpy(np.ascontiguousarray(rows))


class TabularFrame(Tabular):
    """Named columns of a frame as packed tensors, prepared for fastai.

    Args:
        df: a frame of pandas, polars or Arrow, a ``Table``, a dict of arrays, or a CSV or Parquet path.
        procs: ``Categorify``, ``FillMissing``, ``Normalize``: this library's or fastai's, classes or instances;
            ``LogTransform``, ``RankGauss``, ``RobustScale``, ``Features``.
        cat_names: categorical columns.
        cont_names: continuous columns.
        y_names: target columns; they may be absent from test frames.
        y_block: a fastai block; None: ``RegressionBlock`` for numbers, else ``CategoryBlock``.
        splits: row numbers of training and validation; rows in neither are left out. None: all rows train.
        features: anything with ``fit_transform(df)``, ``transform(df)`` and ``outputs`` (names): fitted on training
            rows, and its numeric outputs become continuous columns, codes (of ``Cross``, say) categorical ones. Those
            that look back (``Lag``) find the training rows before validation rows; before test rows what
            ``test_dl(rows, history=…)`` gives.
        list_names: columns of lists of strings or whole numbers: a batch has a ``ListBatch`` of each, after ``x_cont``
            (see ``fastrec.tabular.extras``).
        vector_names: columns of vectors of one length: a batch has float32 ``[b, d]`` of each, after the lists.
        groups: a column or several that say which rows belong together (a session); their ids are ``groups``.
        device: where the packed rows are; None: ``FASTREC_DEVICE``, else the CPU.
        cat_dtype: dtype of codes, int32 or int64.
        y_dtype: dtype of numeric targets: float32, float64 or int64; None: the columns' own.
        do_setup: learn and prepare now; False: leave the rows raw.
        inplace, reduce_memory: not used.

    Raises:
        MissingColumnError: a named column is not in ``df``.
        DataError: a column that cannot be used as asked, or splits that name rows that are not there.
    """

    _dl_type = TabularLoader

    def __init__(
        self,
        df: Any,
        procs: Any = None,
        cat_names: Sequence[str] | str | None = None,
        cont_names: Sequence[str] | str | None = None,
        y_names: Sequence[str] | str | None = None,
        y_block: Any = None,
        splits: Any = None,
        do_setup: bool = True,
        device: DeviceLike = None,
        inplace: bool = False,
        reduce_memory: bool = True,
        *,
        features: Any = None,
        list_names: Sequence[str] | str | None = None,
        vector_names: Sequence[str] | str | None = None,
        groups: Sequence[str] | str | None = None,
        cat_dtype: torch.dtype = torch.int32,
        y_dtype: torch.dtype | None = None,
    ) -> None:
        cats, conts, ys = (list(L(names)) for names in (cat_names, cont_names, y_names))
        extras = ExtraColumns(list(L(list_names)), list(L(vector_names)))
        check_unique([*cats, *conts, *extras.names], ys)
        labels = Labels(ys, y_block, dtype=y_dtype)
        recipe = FrameRecipe(cats, conts, as_procs(procs), labels, features, list(L(groups)), cat_dtype, extras)
        self._assign(recipe, device=device)
        self._raw = loaded(df)
        if do_setup:
            self._setup(splits)
        elif splits is not None:
            rows = split_rows(splits, row_count(self._raw))
            self._raw, self._rows, self.split = take_rows(self._raw, torch.cat(rows)), torch.cat(rows), len(rows[0])

    def _assign(self, recipe: FrameRecipe, *, device: DeviceLike) -> None:
        self._recipe, self.device = recipe, device
        self._raw = self._packed = self._extras = self._rows = self.groups = None
        self._split: int | None = None
        self._refresh()

    def _refresh(self) -> None:
        recipe = self._recipe
        self.cat_names, self.cont_names, self.y_names = L(recipe.cat_names), L(recipe.conts), L(recipe.labels.names)
        self.list_names, self.vector_names = L(recipe.extras.lists), L(recipe.extras.vectors)
        self.procs = ProcPipeline([*recipe.procs, *recipe.labels.tfms])
        self.features = recipe.features

    def _setup(self, splits: Any) -> None:
        recipe, n = self._recipe, row_count(self._raw)
        with on_one_thread():  # numbers of rows are little work, and other threads would spin for longer
            rows = split_rows(splits, n) if splits is not None else None
            order = joined_rows(rows, n) if rows is not None else None
        if recipe.features is None:
            table = read_for(self._raw, recipe)
            table = table if order is None else table.take(order)
        else:
            training, *others = rows if rows is not None else [torch.arange(n)]
            parts = [self._fit_features(training), *(self._features_of(r, training) for r in others if len(r))]
            recipe.add_outputs(Table.read(parts[0], [n for n in recipe.features.outputs if n not in recipe.cats]))
            table = concat([read_for(part, recipe) for part in parts])
            del training, others, parts
        self._split = n if rows is None else len(rows[0])
        if order is not None:  # some may have been chosen before
            self._rows = order if self._rows is None else self._rows[order]
        del rows, order  # many bytes a row
        try:
            recipe.fit(table, self._split)
            self._fill(table, fit_rows=self._split)
        except DataError as error:
            if error.row is None or self._rows is None:
                raise
            row = int(self._rows[error.row])  # of the frame that was given
            again = type(error)(error.problem, file=error.file, column=error.column, row=row, remedy=error.remedy)
            raise again from error.__cause__
        recipe.learn_gaps(self.x_cont[: self._split])
        recipe.warn_of_gaps(self.x_cont[self._split :], self.rows[self._split :], "validation")
        if self.y is not None:
            recipe.warn_of_targets(self.y[self._split :], self.rows[self._split :])
        self._refresh()

    def _fit_features(self, rows: torch.Tensor) -> Any:
        """Fit on training rows; features that look back see them in the frame's order, not the split's."""
        if not looking_back(self._recipe.features) or bool((rows[1:] >= rows[:-1]).all()):
            return fit_features(self._recipe.features, take_rows(self._raw, rows))
        order = torch.argsort(rows)
        return take_rows(fit_features(self._recipe.features, take_rows(self._raw, rows[order])), torch.argsort(order))

    def _features_of(self, rows: torch.Tensor, training: torch.Tensor) -> Any:
        """Make the features of rows to validate on; those that look back find the training rows in their places."""
        features, targets = self._recipe.features, self._recipe.labels.names
        if not looking_back(features):
            return apply_features(features, take_rows(self._raw, rows))
        both = torch.unique(torch.cat([training, rows]))  # sorted; a row in both must not find itself before it
        about = {"targets": targets, "hidden": ~torch.isin(both, training)}
        return take_rows(apply_features(features, take_rows(self._raw, both), **about), torch.searchsorted(both, rows))

    def _fill(self, table: Table, *, fit_rows: int | None = None) -> None:
        recipe = self._recipe
        self._pack(recipe, table, fit_rows=fit_rows)
        if recipe.group_names and all(n in table for n in recipe.group_names):
            for name in recipe.group_names:
                remedy = "Fill the column, or leave such rows out"
                table[name].refuse_missing("a row does not say which group it belongs to", remedy)
            self.groups = table.coded(recipe.group_names).codes.cpu()
        self._raw = None

    def _pack(self, recipe: FrameRecipe, table: Table, *, fit_rows: int | None = None) -> None:
        device = resolve_device(self.device) if self.device is not None else None
        what, remedy = f"preparing {len(table):,} rows", "Give fewer rows or columns, or stream them with ParquetFrame"
        with naming_out_of_memory(what, remedy, device=device or table.device):
            made = recipe.extras.make(table, recipe.proc(Categorify), dtype=recipe.cat_dtype, fit_rows=fit_rows)
            self._extras = made if made is None or device is None else made.on(device)
            self._packed = recipe.pack(table, device=device, fit_rows=fit_rows)

    def _like(self, kind: type[TabularFrame] | None = None, **state: Any) -> TabularFrame:
        new = (kind or type(self)).__new__(kind or type(self))
        new._assign(self._recipe, device=self.device)
        for name, value in state.items():
            setattr(new, name, value)
        return new

    # ---- what fastai calls

    def new(self, df: Any, inplace: bool = False) -> TabularFrame:
        """Make a frame of other rows with the fitted procs, not yet prepared (see ``process``)."""
        return self._like(_raw=loaded(df))

    def one_row(self, row: Mapping[str, Any]) -> TabularFrame | None:
        """Prepare one raw row, without its target.

        Args:
            row: column name → raw value.

        Returns:
            The row; None where it has to go through ``new`` and ``process``, as with ``features``, lists and vectors.
        """
        packed = None if self._recipe.extras.names else pack_row(self._recipe, row)
        if packed is None:
            return None
        self._recipe.warn_of_gaps(packed.views[1], None, "test")
        return self._like(_packed=packed)

    def new_empty(self) -> TabularFrame:
        """Return the frame without its rows."""
        layout = self.packed.layout if self._packed is not None else self._recipe.layout(with_y=bool(self.y_names))
        return self._like(
            _packed=Packed.empty(0, layout), _extras=self._recipe.extras.empty(self._recipe.cat_dtype), _split=0
        )

    def setup(self) -> None:
        """Fit the procs and prepare the rows, if they are raw."""
        if self._raw is not None:
            self._setup([range(self.split), range(self.split, len(self))])

    def process(self, history: Any = None) -> None:
        """Prepare raw rows with the fitted procs.

        Args:
            history: earlier rows (the training rows, say) that features may look back to, a frame or a path. Without
                it those that look back see these rows alone, which is warned of once.
        """
        if self._raw is None:
            return
        features = self._recipe.features
        if history is None:
            self._recipe.warn_of_history()
        about = {"history": loaded(history), "targets": self._recipe.labels.names}
        made = self._raw if features is None else apply_features(features, self._raw, **about)
        self._fill(read_for(made, self._recipe, y_needed=False))
        self._recipe.warn_of_gaps(self.x_cont, None, "test")

    def subset(self, i: int) -> TabularFrame:
        """Return the training rows (0) or the others (1)."""
        return self._between(0, self.split) if i == 0 else self._between(self.split, len(self))

    def _between(self, start: int, stop: int) -> TabularFrame:
        if self._rows is not None:
            rows = self._rows[start:stop]
        else:  # a slice of all numbers would keep them all in memory
            rows = None if start == 0 else torch.arange(start, stop)
        if self._packed is None:
            return self._like(_raw=take_rows(self._raw, torch.arange(start, stop)), _rows=rows)
        groups = None if self.groups is None else self.groups[start:stop]
        extras = None if self._extras is None else self._extras.rows(start, stop)
        return self._like(_packed=self._packed.rows(start, stop), _extras=extras, _rows=rows, groups=groups)

    @property
    def packed(self) -> Packed:
        """The rows as loaders gather them; raw rows are packed unprepared."""
        if self._packed is None:
            plain = FrameRecipe(
                self._recipe.cat_names, self._recipe.conts, [], Labels(self.y_names), cat_dtype=self._recipe.cat_dtype
            )
            plain.extras = ExtraColumns(list(self.list_names), list(self.vector_names))
            table = read_for(self._raw, plain, y_needed=False)
            plain.labels.fit({n: table[n] for n in self.y_names if n in table}, TrainingRows(len(table)))
            self._pack(plain, table, fit_rows=len(table))
            self._raw = None
        return self._packed

    def from_batch(self, b: Sequence[torch.Tensor]) -> TabularFrame:
        """Make a frame of a batch's rows.

        Args:
            b: ``(x_cat, x_cont)``, lists and vectors, and targets or predictions, if any: one tensor or several,
                ``[b]`` or ``[b, k]``.
        """
        cats, conts, *rest = (torch.as_tensor(t).detach().cpu() for t in b)
        names = self._recipe.extras.names
        extras, rest = Extras(dict(zip(names, rest, strict=False))) if names else None, rest[len(names) :]
        ys = torch.cat([t.reshape(len(t), -1) for t in rest], 1) if rest else None
        if ys is not None and ys.shape[1] != len(self.y_names):
            ys = None
        kind = torch.float32 if ys is None or ys.dtype not in (torch.int64, torch.float64) else ys.dtype
        kind = torch.int64 if ys is not None and self._recipe.labels.kind == "category" else kind
        n_y = None if ys is None else ys.shape[1]
        layout = Layout(cats.shape[1], conts.shape[1], n_y, self._recipe.cat_dtype, kind)
        return self._like(_packed=Packed.of(cats, conts.float(), ys, layout), _extras=extras)

    def decode(self) -> TabularFrame:
        """Decode to a raw frame with the values before preparation; filled values stay filled."""
        return self._like(_raw=self._decoded(), _rows=self._rows, _split=self._split)

    def _decoded(self) -> Any:
        import pandas as pd

        recipe, columns = self._recipe, {}
        categorify = recipe.proc(Categorify)
        for i, name in enumerate(self.cat_names):
            codes = self.x_cat[:, i].cpu()
            columns[name] = codes.numpy() if categorify is None else _named(categorify.vocab_of(name), codes)
        for i, name in enumerate(self.cont_names):
            values = self.x_cont[:, i].double()
            for proc in reversed(recipe.cont_procs):
                values = proc.invert(name, values)
            columns[name] = values.cpu().numpy()
        if self._extras is not None:
            columns |= recipe.extras.decode(self._extras, categorify, _named)
        if self.y is not None:
            columns |= recipe.labels.decode(self.y)
        return pd.DataFrame(columns, index=self._index())

    def decode_row(self, row: Any) -> Any:
        """Decode one row of ``items`` (a pandas Series)."""
        cats = torch.tensor([[int(row[n]) for n in self.cat_names]])
        conts = torch.tensor([[float(row[n]) for n in self.cont_names]])
        batch = [cats, conts, *self._recipe.extras.of_row(row, self._recipe.cat_dtype)]
        if all(n in row for n in self.y_names):
            batch.append(torch.tensor([[float(row[n]) for n in self.y_names]], dtype=torch.float64))
        return self.from_batch(batch).decode().items.iloc[0]

    def show(self, max_n: int = 10, **kwargs: Any) -> None:
        """Display the first rows, decoded."""
        rows = (self._between(0, min(max_n, len(self))).decode() if self._raw is None else self).items[:max_n]
        display_df(self._recipe.extras.shorten(rows))

    def copy(self) -> TabularFrame:
        """Copy the frame and its rows."""
        packed = Packed(self.packed.buffer.clone(), self.packed.layout)
        extras = None if self._extras is None else self._extras.clone()
        return self._like(_packed=packed, _extras=extras, _rows=self._rows, _split=self._split, groups=self.groups)

    def dataloaders(self, *args: Any, device: DeviceLike = None, **kwargs: Any) -> Any:
        """Make dataloaders as fastai's; batches stay on the rows' device if that is not the host and none is given."""
        device = self.packed.device if device is None and not on_host(self.packed) else device
        return super().dataloaders(*args, device=device, **kwargs)

    def to_device(self, d: DeviceLike = None) -> TabularFrame:
        """Move the rows to a device and return the frame."""
        self.device = d
        if self._packed is not None and d is not None:
            self._packed = self._packed.on(resolve_device(d))
            self._extras = None if self._extras is None else self._extras.on(resolve_device(d))
        return self

    def transform(self, cols: Any, f: Any, all_col: bool = True) -> None:
        """Refuse transforms of pandas columns."""
        remedy = "Subclass fastrec.tabular.procs.ContProc, or change the frame before"
        raise DataError("the columns of a TabularFrame are tensors", remedy=remedy)

    # ---- pandas frames, made when they are looked at: for people, not for models

    def __getitem__(self, k: Any) -> Any:
        return self.items[list(k) if isinstance(k, L) else k]

    def __iter__(self) -> Any:
        return iter(self.items)

    @property
    def items(self) -> Any:
        """The named columns as a pandas frame."""
        if self._raw is not None:
            return self._raw if hasattr(self._raw, "iloc") else Table.read(self._raw).to_pandas()
        import pandas as pd

        extras = [] if self.extras is None else [pd.DataFrame(self.extras.as_lists(), index=self._index())]
        return pd.concat([self.cats, self.conts, *extras, *([] if self.y is None else [self.ys])], axis=1)

    def _frame_of(self, values: torch.Tensor, names: Sequence[str]) -> Any:
        import pandas as pd

        return pd.DataFrame(values.cpu().numpy(), columns=list(names), index=self._index())

    @property
    def cats(self) -> Any:
        """Codes as a pandas frame."""
        return self._frame_of(self.x_cat, self.cat_names)

    @cats.setter
    def cats(self, values: Any) -> None:
        self.x_cat.copy_(torch.as_tensor(np.array(values)))

    @property
    def conts(self) -> Any:
        """Prepared numbers as a pandas frame."""
        return self._frame_of(self.x_cont, self.cont_names)

    @conts.setter
    def conts(self, values: Any) -> None:
        self.x_cont.copy_(torch.as_tensor(np.array(values, dtype=np.float64)))

    @property
    def ys(self) -> Any:
        """Targets as a pandas frame."""
        if self.y is None:
            raise MissingColumnError("these rows have no targets", remedy="Give y_names, and the columns in the frame")
        return self._frame_of(self.y, self.y_names)

    @ys.setter
    def ys(self, values: Any) -> None:
        self.y.copy_(torch.as_tensor(np.array(values)))

    targ = ys

    @property
    def xs(self) -> Any:
        """Codes and prepared numbers as a pandas frame."""
        import pandas as pd

        return pd.concat([self.cats, self.conts], axis=1)

    @xs.setter
    def xs(self, values: Any) -> None:
        self.cats, self.conts = values[list(self.cat_names)], values[list(self.cont_names)]

    @property
    def all_cols(self) -> Any:
        """``xs``, and ``ys`` where there are targets."""
        return self.items

    @property
    def all_col_names(self) -> L:
        """The names of ``all_cols``."""
        names = self.x_names + self.list_names + self.vector_names
        return names + self.y_names if self.y is not None else names

    @property
    def iloc(self) -> Any:
        """Rows by position, as a frame: ``to.iloc[[0, 5]]``."""
        return _RowView(self)

    # ---- tensors for models

    @property
    def x_cat(self) -> torch.Tensor:
        """Codes ``[n, n_cat]``."""
        return self.packed.views[0]

    @property
    def x_cont(self) -> torch.Tensor:
        """Prepared numbers float32 ``[n, n_cont]``."""
        return self.packed.views[1]

    @property
    def y(self) -> torch.Tensor | None:
        """Targets ``[n, n_y]``; None where there are none."""
        return self.packed.views[2] if self.packed.layout.n_y else None

    @property
    def extras(self) -> Extras | None:
        """The list and vector columns; None where there are none."""
        return self._extras if self.packed is not None else None

    @property
    def rows(self) -> torch.Tensor:
        """Positions of the rows in the frame that was given, int64 ``[n]``."""
        return torch.arange(len(self)) if self._rows is None else self._rows

    # ---- rows

    def __len__(self) -> int:
        return len(self._packed) if self._packed is not None else row_count(self._raw)

    @property
    def split(self) -> int:
        """Number of training rows; they come first."""
        return len(self) if self._split is None else self._split

    @split.setter
    def split(self, value: int) -> None:
        self._split = value

    def _index(self) -> Any:
        return self.rows.numpy() if self._rows is not None else None

    def __repr__(self) -> str:
        state = "raw" if self._raw is not None else f"packed on {self.packed.device}"
        names = f"{len(self.cat_names)} categorical, {len(self.cont_names)} continuous, y {list(self.y_names)}"
        return f"{type(self).__name__}({len(self)} rows, {state}; {names})"


def _named(vocab: Vocab, codes: torch.Tensor) -> Any:
    values = vocab.decode(codes).to_pylist()
    for code, name in enumerate(vocab.reserved):
        for row in (codes == code).nonzero().squeeze(1).tolist():
            values[row] = name
    return values


@show_results.dispatch
def _show_results(
    x: TabularFrame, y: TabularFrame, samples: Any, outs: Any, ctxs: Any = None, max_n: int = 10, **kwargs: Any
) -> None:
    shown = x._between(0, min(max_n, len(x))).decode().items
    predicted = y._between(0, min(max_n, len(y))).decode().items
    for name in x.y_names:
        if name in predicted:
            shown[f"{name}_pred"] = predicted[name].to_numpy()
    display_df(x._recipe.extras.shorten(shown))
