"""How a frame's columns become packed rows: what was learnt from training rows, and what it makes of any rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec.column_parts import coded_of, part_of, training_part
from fastrec.convert import column_names
from fastrec.errors import DataError, DataWarning
from fastrec.keys import Coded
from fastrec.labels import Labels, known
from fastrec.packed import Layout, Packed, run_parallel
from fastrec.procs import Categorify, ContProc, FillMissing, FrameProc
from fastrec.read import check_names, read_file
from fastrec.table import Column, Table
from fastrec.vocab import Vocab

_BLOCK = 1 << 16  # rows that are prepared and packed at a time: they stay in the cache
_DEVICE_BLOCK = 1 << 24  # the same on a GPU, where each step has a cost of its own, however few the rows
_FLAGS = Vocab(pa.array([False, True]))


@dataclass
class Recipe:
    """What a frame learnt and what its subsets and test frames share."""

    cats: list[str]
    conts: list[str]
    procs: list[FrameProc]
    labels: Labels
    features: Any = None
    group_names: list[str] = field(default_factory=list)
    cat_dtype: torch.dtype = torch.int32

    def proc(self, kind: type) -> Any:
        """The proc of a kind, or None."""
        return next((p for p in self.procs if isinstance(p, kind)), None)

    @property
    def cont_procs(self) -> list[ContProc]:
        """The procs of continuous columns, in the order they work in."""
        return [p for p in self.procs if isinstance(p, ContProc)]

    @property
    def flagged(self) -> list[str]:
        """The continuous columns with a ``_na`` column."""
        fill = self.proc(FillMissing)
        return fill.flagged if fill is not None else []

    @property
    def cat_names(self) -> list[str]:
        """Categorical columns as packed, the ``_na`` columns last."""
        return self.cats + [f"{n}_na" for n in self.flagged]

    def layout(self, *, with_y: bool) -> Layout:
        """How rows are packed."""
        n_y = len(self.labels.names) if with_y else None
        return Layout(len(self.cat_names), len(self.conts), n_y, self.cat_dtype, self.labels.dtype)

    def fit(self, table: Table, rows: int) -> None:
        """Learn from the first ``rows`` rows of a table."""
        self.labels.fit({n: table[n] for n in self.labels.names}, rows)
        categorify, cont_procs = self.proc(Categorify), self.cont_procs
        for proc in cont_procs:
            proc.reset(self.conts)

        def fit_cont(name: str) -> None:
            values = _numbers(table[name], 0, rows)
            for i, proc in enumerate(cont_procs):
                proc.fit(name, values)
                values = proc.apply(name, values) if i + 1 < len(cont_procs) else values

        run_parallel(fit_cont, self.conts if cont_procs else [], rows=rows)
        if categorify is not None:
            categorify.reset(self.cat_names)
            for name in self.flagged:
                categorify.set_vocab(f"{name}_na", _FLAGS)

    def pack(self, table: Table, *, device: torch.device | None, fit_rows: int | None = None) -> Packed:
        """A table's rows prepared and packed.

        Args:
            table: the columns, named as in training.
            device: where the rows go; None: where the table is.
            fit_rows: learn categorical columns' classes from that many first rows on the way; None: they are known.
        """
        y_columns = {n: table[n] for n in self.labels.names if n in table}
        with_y = known(y_columns, self.labels.names)
        packed = Packed.empty(len(table), self.layout(with_y=with_y), device=table.device)
        views = packed.views
        if with_y and len(table):
            views[2].copy_(self.labels.encode(y_columns))
        categorify, step = self.proc(Categorify), _block_on(table.device)

        def pack_cat(name: str) -> None:
            _write_codes(views[0][:, self.cats.index(name)], table[name], categorify, fit_rows)

        def pack_conts(start: int) -> None:
            stop = min(start + step, len(table))
            packed.clear_pad(start, stop)
            _pack_block(self, table, views, start, stop, shift=int(categorify is not None))

        run_parallel(pack_conts, range(0, len(table), step), rows=len(table))
        run_parallel(pack_cat, self.cats, rows=len(table))
        return packed if device is None or device == packed.device else Packed(packed.buffer.to(device), packed.layout)


def _pack_block(
    recipe: Recipe, table: Table, views: tuple[torch.Tensor, ...], start: int, stop: int, *, shift: int
) -> None:
    flags = {n: len(recipe.cats) + i for i, n in enumerate(recipe.flagged)}
    cont_procs = recipe.cont_procs
    for i, name in enumerate(recipe.conts):
        values = _numbers(table[name], start, stop)
        if name in flags:
            views[0][start:stop, flags[name]] = values.isnan() + shift
        for proc in cont_procs:
            values = proc.apply(name, values)
        views[1][start:stop, i] = values


def _numbers(column: Column, start: int, stop: int) -> torch.Tensor:
    if column.kind in ("number", "datetime", "category"):
        return part_of(column, start, stop).number()
    return column.number()  # raises, saying what the column holds


def _write_codes(out: torch.Tensor, column: Column, categorify: Categorify | None, fit_rows: int | None) -> None:
    if categorify is None:
        out.copy_(_plain_codes(column))
        return
    coded = coded_of(column)
    if fit_rows is not None:
        categorify.fit(training_part(column, coded, fit_rows))
    every = Coded(torch.arange(coded.size, device=coded.codes.device), coded.keys)
    table = categorify.encode(column.name, every).to(out.dtype)  # the distinct values are looked up, rows only gathered
    step = _block_on(out.device)
    for start in range(0, len(out), step):
        out[start : start + step] = table[coded.codes[start : start + step]]


def _block_on(device: torch.device) -> int:
    return _BLOCK if device.type == "cpu" else _DEVICE_BLOCK


def _plain_codes(column: Column) -> torch.Tensor:
    if column.kind == "category":
        raise DataError("holds values that are no codes yet", column=column.name, remedy="Add Categorify to procs")
    codes = column.integer()
    return codes if column.missing is None else torch.where(column.missing, 0, codes)


def loaded(df: Any) -> Any:
    """A frame; of a path what the file holds."""
    return read_file(df) if isinstance(df, str | Path) else df


def size_of(df: Any) -> int:
    """Number of rows of a frame of any supported library."""
    return (
        len(next(iter(df.values()), ()))
        if isinstance(df, Mapping)
        else df.num_rows
        if isinstance(df, pa.Table | pa.RecordBatch)
        else len(df)
    )


def read_for(made: Any, recipe: Recipe, *, y_needed: bool = True) -> Table:
    """The columns of ``made`` that a recipe needs; targets and groups may be absent where ``y_needed`` is not set."""
    there = set(column_names(made))
    wanted = [*recipe.cats, *recipe.conts, *(n for n in recipe.labels.names if y_needed or n in there)]
    wanted += [n for n in recipe.group_names if y_needed or n in there]
    names = list(dict.fromkeys(wanted))
    check_names(list(column_names(made)), names)
    read = run_parallel(lambda name: Table.read(made, [name]), names, rows=size_of(made))
    return Table({name: table[name] for name, table in zip(names, read, strict=True)})


def check_unique(names: Sequence[str]) -> None:
    """Refuse a name that stands there twice."""
    again = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if again is not None:
        raise DataError(
            "the column is named twice among cat_names and cont_names", column=str(again), remedy="Name it once"
        )


def split_rows(splits: Any, n: int) -> list[torch.Tensor]:
    """Row numbers of each split, int64; lists, arrays, ranges, slices and masks are taken.

    Raises:
        DataError: a row that is not there, or one list of row numbers in place of two.
    """
    splits = list(splits)
    if any(not isinstance(s, slice | Iterable) or getattr(s, "ndim", 1) == 0 for s in splits):
        raise DataError(
            "splits are row numbers themselves",
            remedy="Give one list for training and one for validation, as in (a, b)",
        )
    rows = [_row_numbers(s, n) for s in splits]
    for part in rows:
        bad = part[(part < 0) | (part >= n)]
        if len(bad):
            raise DataError(
                f"splits name row {int(bad[0])}, but there are {n} rows", remedy="Make the splits for this frame"
            )
    _warn_of_overlap(rows, n)
    return rows


def _warn_of_overlap(rows: Sequence[torch.Tensor], n: int) -> None:
    """A validation row that was trained on makes the score look better than it is."""
    if len(rows) < 2:
        return
    trained = torch.zeros(n, dtype=torch.bool)
    trained[rows[0]] = True
    both = torch.cat(list(rows[1:]))
    both = both[trained[both]]
    if len(both):
        warnings.warn(
            f"{len(both)} rows are in training and in validation (the first is row {int(both[0])}): "
            "the validation score is not to be trusted",
            DataWarning,
            stacklevel=4,
        )


def _row_numbers(split: Any, n: int) -> torch.Tensor:
    if isinstance(split, range | slice):
        start, stop, step = (split.start, split.stop, split.step) if isinstance(split, range) else split.indices(n)
        return torch.from_numpy(np.arange(start, stop, step, dtype=np.int64))
    if isinstance(split, torch.Tensor):
        split = split.cpu().numpy()
    rows = split if isinstance(split, np.ndarray) else np.array(list(split))
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(rows))
