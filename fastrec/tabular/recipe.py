"""How a frame's columns become packed rows: what was learnt from training rows, and what it makes of any rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec._core.kernels import compiled, frames
from fastrec._core.memory import held, keeping_memory, make_room
from fastrec._core.threads import on_one_thread, run_parallel
from fastrec.errors import DataError, warn
from fastrec.table import Column, Table, Vocab, column_names
from fastrec.table.frames import row_count
from fastrec.table.read import check_names, read_file
from fastrec.tabular.columns import FrameColumns, Rows, TrainingRows, address_of, as_number, numbers_of, plain_numbers
from fastrec.tabular.extras import ExtraColumns
from fastrec.tabular.packed import Layout, Packed, put_rows
from fastrec.tabular.procs.base import ContProc, FrameProc
from fastrec.tabular.procs.features import features_of, looking_back
from fastrec.tabular.procs.procs import Categorify, FillMissing, LogTransform, Normalize, RankGauss, RobustScale
from fastrec.tabular.targets import Codes, Labels, codes_of, known


@dataclass
class FrameRecipe:
    """What a frame learnt and what its subsets and test frames share."""

    cats: list[str]
    conts: list[str]
    procs: list[FrameProc]
    labels: Labels
    features: Any = None
    group_names: list[str] = field(default_factory=list)
    cat_dtype: torch.dtype = torch.int32
    extras: ExtraColumns = field(default_factory=ExtraColumns)
    gaps: list[str] | None = None  # numbers missing in training rows that no proc fills; None: not known
    told_of_history: bool = False

    def __post_init__(self) -> None:
        self.features = features_of(self.procs, self.features)
        for one in getattr(self.features, "sets", [self.features]):
            if hasattr(one, "assume_target"):  # a generator that reads the target is refused
                one.assume_target(self.labels.names)

    def proc(self, kind: type) -> Any:
        """Return the proc of a kind, or None."""
        return next((p for p in self.procs if isinstance(p, kind)), None)

    def add_outputs(self, made: Table) -> None:
        """Use the numbers that features made: codes as categories if ``Categorify`` is there, others as numbers."""
        named = {*self.cats, *self.conts, *self.extras.names}
        numeric = [n for n in made.names if made[n].kind in ("number", "datetime") and n not in named]
        sets = getattr(self.features, "sets", [self.features]) if self.proc(Categorify) is not None else []
        codes = {n for s in sets for f in getattr(s, "features", ()) if f.codes for n in f.outputs}
        self.cats = self.cats + [n for n in numeric if n in codes]
        self.conts = self.conts + [n for n in numeric if n not in codes]

    @property
    def cont_procs(self) -> list[ContProc]:
        """The procs of continuous columns, in the order they work in."""
        return [p for p in self.procs if isinstance(p, ContProc)]

    @property
    def flagged(self) -> list[str]:
        """The continuous columns with a ``_na`` column."""
        fill = self.proc(FillMissing)
        return fill.flagged if fill is not None else []

    def warn_of_gaps(self, numbers: torch.Tensor, rows: torch.Tensor | None, what: str) -> None:
        """Warn of columns that lack a finite number in prepared ``[n, n_cont]`` and lacked none in training.

        Their predictions are NaN. ``rows`` are the rows' positions in the frame that was given; None: as they come.
        """
        if self.gaps is None:  # a stream's: nobody has looked at all of its training rows
            return
        new = [i for i in self._lacking(numbers) if self.conts[i] not in self.gaps]
        if not new:
            return
        column = numbers[:, new[0]]
        infinite = not bool(column.isnan().any())
        bad = column.isinf() if infinite else column.isnan()
        first = int(bad.nonzero()[0])
        lack, did = ("have an infinite", "had") if infinite else ("have no", "lacked")
        others = f" (and in {len(new) - 1} further columns)" if len(new) > 1 else ""
        warn(
            f"column {self.conts[new[0]]!r}, row {first if rows is None else int(rows[first])}: {int(bad.sum()):,} of "
            f"{len(bad):,} {what} rows {lack} number there{others}, which no training row {did}: their predictions "
            "will be NaN. "
            + ("Replace them before." if infinite else "Add FillMissing to the procs, or fill them before.")
        )

    def warn_of_history(self) -> None:
        """Warn, once, that features look back to earlier rows and none were given."""
        names = [] if self.told_of_history else looking_back(self.features)
        if names:
            self.told_of_history = True
            warn(
                f"{', '.join(map(repr, names[:3]))} look back to earlier rows, and only the given ones were there. "
                "Pass the training rows, say, as test_dl(rows, history=…); history=rows[:0] if there are none before."
            )

    def warn_of_targets(self, ys: torch.Tensor, rows: torch.Tensor) -> None:
        """Warn of targets of validation rows, ``[n, n_y]``, that are no finite numbers; ``rows``: their positions."""
        bad = (~ys.isfinite()).nonzero() if ys.is_floating_point() else ()
        if len(bad):
            row, column = bad[0].tolist()
            problem = f"column {self.labels.names[column]!r}, row {int(rows[row])}: the target of a validation row is "
            problem += f"{ys[row, column].item():.4g}: scores on such rows will be NaN. Leave them out of the splits."
            warn(problem)

    def _lacking(self, numbers: torch.Tensor) -> list[int]:
        # A tenth of the cost of looking at each; infinities are kept by sums, and large numbers may make them too.
        sums = numbers.sum(0).isfinite().tolist() if numbers.numel() else []
        return [i for i, fine in enumerate(sums) if not fine and not bool(numbers[:, i].isfinite().all())]

    def learn_gaps(self, numbers: torch.Tensor) -> None:
        """Remember which columns lack a finite number in training rows, float ``[n, n_cont]``."""
        logs = self.proc(LogTransform)
        filled = any(self.proc(k) for k in (FillMissing, RankGauss, RobustScale)) or (logs and logs.names is None)
        self.gaps = [] if filled else [self.conts[i] for i in self._lacking(numbers)]

    @property
    def cat_names(self) -> list[str]:
        """Categorical columns as packed, the ``_na`` columns last."""
        return self.cats + [f"{n}_na" for n in self.flagged]

    def layout(self, *, with_y: bool) -> Layout:
        """Return the layout of packed rows."""
        n_y = len(self.labels.names) if with_y else None
        return Layout(len(self.cat_names), len(self.conts), n_y, self.cat_dtype, self.labels.dtype)

    def fit(self, table: Table | FrameColumns, rows: int) -> None:
        """Fit the targets on the first ``rows`` rows of a table; ``pack`` fits the procs."""
        columns = FrameColumns.of(table)
        with on_one_thread():
            self.labels.fit({n: columns.raw(n) for n in self.labels.names}, TrainingRows(rows, columns))
        self.reset_procs()

    def reset_procs(self) -> None:
        """Prepare the procs to fit."""
        for proc in self.procs:
            proc.reset(self.conts if isinstance(proc, ContProc) else self.cats)

    def fit_values(self, name: str, values: torch.Tensor) -> None:
        """Fit each proc on a column's training rows (float64 ``[n]``) as those before it leave them."""
        for i, proc in enumerate(self.cont_procs):
            values = self.cont_procs[i - 1].apply(name, values) if i else values
            proc.fit(name, values)

    def learn_flags(self) -> None:
        """Give every ``_na`` column its classes, once it is known which there are; its name must be free."""
        taken = {*self.cats, *self.conts, *self.extras.names, *self.labels.names}
        again = next((n for n in self.flagged if f"{n}_na" in taken), None)
        if again is not None:
            problem = f"FillMissing makes a column of this name, for where {again!r} is missing"
            remedy = "Rename the column, or use FillMissing(add_col=False)"
            raise DataError(problem, column=f"{again}_na", remedy=remedy)
        categorify = self.proc(Categorify)
        for name in self.flagged if categorify is not None else []:
            categorify.set_vocab(f"{name}_na", Vocab(pa.array([False, True])))

    def pack(
        self,
        table: Table | FrameColumns,
        *,
        device: torch.device | None,
        fit_rows: int | None = None,
        into: Packed | None = None,
    ) -> Packed:
        """Prepare and pack a table's rows.

        Args:
            table: the rows.
            device: the device of the result; None: the table's.
            fit_rows: the procs learn from this many first rows; None: they have learnt.
            into: room to write to, whose layout decides if targets are packed; None: new memory.
        """
        with (
            keeping_memory() if into is None else nullcontext(),  # what fills a buffer has its memory already
            on_one_thread() if len(table) < limits.PARALLEL_ROWS else nullcontext(),
        ):
            packed = self._pack(FrameColumns.of(table), fit_rows=fit_rows, into=into)
        return packed if device is None or device == packed.device else packed.copy_to(device)

    def _pack(self, columns: FrameColumns, *, fit_rows: int | None, into: Packed | None) -> Packed:
        n, names, categorify, before = len(columns), self.labels.names, self.proc(Categorify), held()
        targets = [columns.as_they_stand()[name] for name in names] if all(name in columns for name in names) else []
        with_y = into.layout.n_y is not None if into is not None else known(targets)
        training = None if fit_rows is None else TrainingRows(fit_rows, columns)
        tasks: list[Callable[[], Any]] = [partial(self._encode, columns, c) for c in targets if with_y and n]
        n_y = len(tasks)
        # Those that take longest come first, so that no thread waits for another one at the end.
        tasks += [partial(codes_of, columns, name, categorify, training=training) for name in self.cats]
        if training is not None:
            tasks += [partial(self._fit_cont, columns, name, training) for name in self.conts if self.cont_procs]
        made = run_parallel(lambda task: task(), tasks, rows=n)
        codes, read = made[n_y : n_y + len(self.cats)], dict(filter(None, made[n_y + len(self.cats) :]))
        del targets, tasks  # they may hold copies
        if fit_rows is not None:
            self.learn_flags()
        packed = into
        if packed is None:
            layout = self.layout(with_y=with_y)
            make_room(4 * layout.words * n, before)
            packed = Packed.empty(n, layout, device=columns.device)
        Writer(self, codes, made[:n_y], read, columns, packed).write()
        return packed

    def _encode(self, columns: FrameColumns, column: Column) -> torch.Tensor:
        """Encode a target, in the frame's order if each of its rows counts once, else in the rows'."""
        try:
            return self.labels.encode(column)
        except DataError:  # the first bad row depends on their order
            return self.labels.encode(columns[column.name])

    def _fit_cont(self, columns: FrameColumns, name: str, training: TrainingRows) -> tuple[str, Column] | None:
        """Fit a column; return it if there are few rows, so that it is read once."""
        column = columns.raw(name)
        if not (training.by_loops and _learn(self.cont_procs, column, training)):
            self.fit_values(name, numbers_of(column, columns.rows(0, training.count)))  # a mode depends on their order
        return (name, column) if len(columns) <= limits.HELD_ROWS else None


def _learn(procs: Sequence[ContProc], column: Column, training: TrainingRows) -> bool:
    """Fit a column by one loop over it; return False if the procs need its values."""
    values, fill = plain_numbers(column), next((p for p in procs if type(p) is FillMissing), None)
    if values is None or not all(type(p) in (FillMissing, Normalize) for p in procs):
        return False
    median = fill is not None and fill.fill_strategy == "median"
    summary = training.summary(values, median=median) if fill is None or median else None
    for proc in procs if summary is not None else ():
        proc.learn(column.name, summary)
    return summary is not None


def loaded(df: Any) -> Any:
    """Return a frame; of a path read the file."""
    return read_file(df) if isinstance(df, str | Path) else df


def read_for(made: Any, recipe: FrameRecipe, *, y_needed: bool = True) -> FrameColumns:
    """Read the columns that a recipe needs; targets and groups may be absent unless ``y_needed``."""
    there = set(column_names(made))
    wanted = [*recipe.cats, *recipe.conts, *(n for n in recipe.labels.names if y_needed or n in there)]
    wanted += [n for n in recipe.group_names if y_needed or n in there]
    names = list(dict.fromkeys(wanted))
    check_names(list(column_names(made)), names)
    return FrameColumns(made, names, row_count(made), ready=recipe.extras.read(made))


def check_unique(names: Sequence[str], targets: Sequence[str] = ()) -> None:
    """Refuse a repeated name, and the first target among the names; a second may be the lists of a ranking loss."""
    leaked = next((n for n in targets[:1] if n in names), None)
    if leaked is not None:
        remedy = "Leave it out of cat_names and cont_names, or copy it under another name if that is meant"
        raise DataError("the target is among the columns to predict it from", column=str(leaked), remedy=remedy)
    again = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if again is not None:
        raise DataError("the column is named twice", column=str(again), remedy="Name it once")


class BlockLoops:
    """Compiled loops that write rows into packed ones, in any order.

    A column in one piece of memory is read where it is; any other is first computed block by block, as without loops.
    """

    def __init__(self, rows: Writer) -> None:
        self.packed, self.fields, self.shift = rows.packed, rows.fields, rows.shift
        self.places = np.empty(0, np.int64) if rows.places is None else rows.places
        self.columns: list[list[int]] = []
        self.scales: list[tuple[float, float, float]] = []
        self.kept: list[np.ndarray] = []  # whose memory the loop reads
        self.odd: list[tuple[int, Codes | Column]] = []  # place among the columns, and what makes a block
        for i, codes in enumerate(rows.codes):
            self._add_codes("cats", i, codes)
        for i, column in rows.held.items():
            self._add_number(rows, i, column)
        order = None if rows.front is None else rows.columns.order  # of targets, where it is not the frame's
        for i, y in enumerate(rows.ys):
            whole = y if order is None else y.new_zeros(len(self.places)).index_put_((order,), y)
            if y.is_floating_point():
                self._add("ys", i, whole.numpy(), scale=(np.nan, 0.0, 1.0))
            else:
                self._add_codes("ys", i, Codes(whole))

    def _add_codes(self, field: str, i: int, codes: Codes) -> None:
        values, table = codes.values, codes.lookup.table() if codes.lookup is not None else None
        values = values.view(torch.uint8) if values.dtype == torch.bool else values
        if values.is_floating_point() or codes.missing is not None or (codes.lookup is not None and table is None):
            self._add(field, i, codes)
        elif table is None:
            self._add(field, i, values.numpy())
        else:
            self.kept.append(table[0].numpy())
            self._add(field, i, values.numpy(), table=(self.kept[-1].ctypes.data, *table[1:]))

    def _add_number(self, rows: Writer, i: int, column: Column) -> None:
        name, fill, mean, sd = rows.conts[i], np.nan, 0.0, 1.0
        for proc in rows.procs:
            if isinstance(proc, FillMissing):
                fill = proc.of_column("fills", name)
            else:
                mean, sd = proc.of_column("means", name), proc.stds[name]
        plain = plain_numbers(column)
        flag = self._word("cats", rows.flags[name]) if name in rows.flags else -1
        self._add("conts", i, column if plain is None else plain, scale=(fill, mean, sd), flag=flag)

    def _word(self, field: str, i: int) -> int:
        at, _, dtype = self.fields[field]
        return at + i * dtype.itemsize // 4

    def _add(
        self,
        field: str,
        i: int,
        source: np.ndarray | Codes | Column,
        *,
        scale: tuple[float, float, float] | None = None,
        table: tuple[int, int, int] = (0, 0, 0),
        flag: int = -1,
    ) -> None:
        # The loop reads arrays by their address; what it cannot read is made block by block before it runs.
        found = address_of(source) if isinstance(source, np.ndarray) else None
        if found is None:
            if isinstance(source, np.ndarray):  # an array in strides, say
                source = Column("number", torch.from_numpy(source)) if scale else Codes(torch.from_numpy(source))
            self.odd.append((len(self.columns), source))
        else:
            self.kept.append(source)
        wide = self.fields[field][2].itemsize == 8
        self.columns.append([*(found or (0, 0)), self._word(field, i), wide, scale is not None, *table, flag])
        self.scales.append(scale or (np.nan, 0.0, 1.0))

    def write(self) -> None:
        """Write all rows."""
        size = len(self.places) or len(self.packed)
        run_parallel(self._write_block, range(0, size, limits.FRAME_BLOCK), rows=size)

    def _write_block(self, start: int) -> None:
        stop = min(start + limits.FRAME_BLOCK, len(self.places) or len(self.packed))
        columns, made = np.array(self.columns, dtype=np.int64).reshape(-1, frames().FIELDS), []
        for at, source in self.odd:
            rows = slice(start, stop)
            values = source.of(rows).to(torch.int64) if isinstance(source, Codes) else numbers_of(source, rows)
            made.append(values.contiguous().numpy())
            address, kind = address_of(made[-1])
            # the loop counts from the frame's first row, the block begins at ``start``
            columns[at, :2] = address - start * made[-1].itemsize, kind
        scales, wide = np.array(self.scales).reshape(-1, 3), self.fields["cats"][2].itemsize == 8
        frames().pack(columns, scales, self.shift, wide, self.places, start, stop, self.packed.buffer.numpy())


class Writer:
    """Writes a recipe's prepared rows into packed ones, block by block.

    Shuffled rows are read in the frame's order, and whole packed rows are written to their places: one random access to
    memory for each row instead of one for each number.

    Args:
        codes: of each categorical column.
        ys: the targets ``[n]``, in the frame's order where each of its rows counts once, else in that of packed rows.
        read: continuous columns that were read already.
    """

    def __init__(
        self,
        recipe: FrameRecipe,
        codes: Sequence[Codes],
        ys: Sequence[torch.Tensor],
        read: Mapping[str, Column],
        columns: FrameColumns,
        packed: Packed,
    ) -> None:
        self.codes, self.ys, self.columns, self.packed = codes, ys, columns, packed
        self.conts, self.procs, self.fields = recipe.conts, recipe.cont_procs, packed.layout.fields
        self.flags = {n: len(recipe.cats) + i for i, n in enumerate(recipe.flagged)}  # places among the codes
        self.shift = int(recipe.proc(Categorify) is not None)  # the code of False there
        n, words = len(columns), max(packed.layout.words, 1)
        here = on_host(packed)
        block = max(limits.LEAST_BLOCK, 1 << (limits.BLOCK_WORDS // words).bit_length())
        self.step = min(limits.FRAME_BLOCK, block) if here else limits.DEVICE_BLOCK
        self.places = columns.places if here else None
        self.front = None if self.places is None or n == columns.size else columns.ascending(n)
        held = {i: m for i, m in enumerate(self.conts) if n <= limits.HELD_ROWS or columns.shares(m)}
        self.held = {i: as_number(read[m] if m in read else columns.raw(m)) for i, m in held.items()}
        self.plain = {i: plain_numbers(c) for i, c in self.held.items()} if here else {}
        few = 4 * n < columns.size  # of the frame's rows, each of which the loops go over
        simple = all(type(p) in (FillMissing, Normalize) for p in self.procs) and compiled(n * words, limits.LOOPS_FROM)
        looped = here and simple and not few and (columns.order is None or self.places is not None)
        self.by_loops = BlockLoops(self) if looped else None
        # These are copies: one in memory at a time.
        self.apart = [i for i in range(len(self.conts)) if i not in self.held]

    def write(self) -> None:
        """Write all rows."""
        n = len(self.columns) if self.packed.layout.words else 0
        if self.by_loops is not None:
            self.by_loops.write()
        else:
            run_parallel(self._write_block, range(0, n, self.step), rows=n)
        run_parallel(self._write_column, self.apart, rows=n)  # after the rows: it overwrites their places
        if self.places is not None and self.by_loops is None:
            order = slice(None) if self.front is not None else self.columns.order
            for i, y in enumerate(self.ys):
                self.packed.views[2][:, i] = y[order]

    def _write_block(self, start: int) -> None:
        stop = min(start + self.step, len(self.columns))
        if self.places is None:
            rows = self.columns.rows(start, stop)
        else:
            rows = slice(start, stop) if self.front is None else self.front[start:stop]
        # Gathered column by column and turned at once: that writes whole rows, which is twice as fast as columns.
        block = self.packed.buffer.new_empty((self.packed.layout.words, stop - start))
        block[-1:] = 0  # what pads the rows, if anything
        for i, column in enumerate(self.codes):
            self._put(block, "cats", i, column.of(rows))
        self._put_numbers(block, rows)
        if self.places is None:
            for i, y in enumerate(self.ys):
                self._put(block, "ys", i, y[start:stop])
            self.packed.buffer[start:stop].copy_(block.T)
        else:
            turned = torch.empty((stop - start, len(block)), dtype=block.dtype)
            turned.copy_(block.T)
            put_rows(self.packed.buffer, self.places[rows if isinstance(rows, slice) else rows.numpy()], turned)

    def _put(self, block: torch.Tensor, field: str, i: int, values: torch.Tensor) -> None:
        at, _, dtype = self.fields[field]
        if dtype.itemsize == 4:
            block[at + i].view(dtype).copy_(values)
        else:
            block[at + 2 * i : at + 2 * i + 2].copy_(values.to(dtype).view(torch.int32).view(-1, 2).T)

    def _put_numbers(self, block: torch.Tensor, rows: Rows) -> None:
        at, count, dtype = self.fields["conts"]
        m, out = block.shape[1], block[at : at + count].view(dtype)
        held, size = list(self.held), max(limits.BLOCK_NUMBERS // max(block.shape[1], 1), 1)
        for first in range(0, len(held), size):
            group = held[first : first + size]
            names = [self.conts[i] for i in group]
            values = torch.empty((len(group), m), dtype=torch.float64, device=block.device)
            self._read(group, rows, values)
            for row, name in enumerate(names):
                if name in self.flags:
                    self._put(block, "cats", self.flags[name], values[row].isnan() + self.shift)
            for proc in self.procs:
                values = proc.apply_block(names, values)
            if group[-1] - group[0] + 1 == len(group):
                out[group[0] : group[-1] + 1].copy_(values)
            else:
                for i, row in zip(group, values, strict=True):
                    out[i].copy_(row)

    def _read(self, group: Sequence[int], rows: Rows, out: torch.Tensor) -> None:
        # numpy's calls cost half of torch's, and a wide table has many columns.
        array = out.numpy() if on_host(out) else None
        places = rows if isinstance(rows, slice) or array is None else rows.numpy()
        for row, i in enumerate(group):
            plain = self.plain.get(i)
            if plain is None:
                out[row] = numbers_of(self.held[i], rows)
            else:
                array[row] = plain[places]

    def _write_column(self, i: int) -> None:
        name = self.conts[i]
        column = as_number(self.columns.raw(name))
        for start in range(0, len(self.columns), self.step):
            stop = min(start + self.step, len(self.columns))
            cats, conts = (v[start:stop] for v in self.packed.views[:2])
            values = numbers_of(column, self.columns.rows(start, stop))
            if name in self.flags:
                cats[:, self.flags[name]] = values.isnan() + self.shift
            for proc in self.procs:
                values = proc.apply(name, values)
            conts[:, i] = values
