"""Categories and targets on their way into packed rows: classes learnt, codes, what fastai makes of a ``y_block``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.data.transforms import Categorize, CategoryMap, EncodedMultiCategorize

from fastrec._core import limits
from fastrec._core.device import on_host
from fastrec.errors import DataError, NotFittedError, refuse_rows
from fastrec.table import Coded, Column, Keys, Vocab
from fastrec.table.vocab import Lookup
from fastrec.tabular.columns import FrameColumns, Rows, TrainingRows, coded_of, take_values
from fastrec.tabular.procs.procs import Categorify


class Codes:
    """The codes of a column's rows: ``values`` ``[n]`` in the frame's order.

    If there is a ``lookup``, it finds the codes of these values. Rows of ``missing`` (bool ``[n]``) have the code 0.
    """

    def __init__(self, values: torch.Tensor, lookup: Lookup | None = None, missing: torch.Tensor | None = None) -> None:
        self.values, self.lookup, self.missing = values, lookup, missing

    def of(self, rows: Rows) -> torch.Tensor:
        """Return the codes of some rows."""
        values = take_values(self.values, rows)
        if self.lookup is None:
            return values
        codes = self.lookup.numbers(values)
        if self.missing is not None:
            return codes.masked_fill_(take_values(self.missing, rows), 0)
        return codes.masked_fill_(values.isnan(), 0) if values.is_floating_point() else codes


def codes_of(
    columns: FrameColumns, name: str, categorify: Categorify | None, *, training: TrainingRows | None = None
) -> Codes:
    """Encode a column; with ``training`` its classes are learnt first, without ``categorify`` its values are codes.

    The codes hold no memory beyond the frame's, or one to four bytes for each row.
    """
    column = columns.raw(name)
    if categorify is None:
        if column.kind == "category":
            raise DataError("holds values that are no codes yet", column=column.name, remedy="Add Categorify to procs")
        codes = column.integer()
        return Codes(codes if column.missing is None else torch.where(column.missing, 0, codes))
    if training is not None:
        options = categorify.options_of(name)
        vocab = _fit_whole(column, training, options)
        if vocab is None:
            coded = coded_of(column)
            counts = training.count_whole(coded.codes, 0, coded.size)
            if counts is None:
                counts = torch.bincount(take_values(coded.codes, training.rows), minlength=coded.size).cpu()
            vocab, table = Vocab.of_keys(coded.keys, counts[1:], ordered=column.ordered, name=name, **options)
            categorify.set_vocab(name, vocab)
            return _gathered(coded, table, len(vocab))
        categorify.set_vocab(name, vocab)
    # Numbers are looked up when rows are written, unless that would hold a copy of the column until then.
    vocab = categorify.vocab_of(name)
    codes = codes_in(vocab, column)
    if codes.lookup is None or columns.shares(name):
        return codes
    return _narrow(codes.of, len(vocab), len(column), columns.device)


def _gathered(coded: Coded, table: torch.Tensor, size: int) -> Codes:
    table = table.to(torch.int32).to(coded.codes.device)
    return _narrow(lambda rows: table.index_select(0, coded.codes[rows]), size, len(coded.codes), coded.codes.device)


def classes_of(column: Column, training: TrainingRows) -> pa.Array:
    """Return the distinct values of a column's training rows: sorted, or in the order of its categories."""
    vocab = _fit_whole(column, training, {})
    if vocab is not None:
        return vocab.values
    coded = coded_of(column)
    used = torch.bincount(take_values(coded.codes, training.rows), minlength=coded.size)[1:].nonzero().squeeze(1).cpu()
    known = coded.keys.take(used)
    return known.columns[0] if column.ordered is not None else known.take(known.sort_order()).columns[0]


def encode_narrow(vocab: Vocab, column: Column) -> torch.Tensor:
    """Encode all rows by ``vocab``, in the smallest integer type that fits."""
    codes = codes_in(vocab, column)
    lazy = codes.lookup is not None
    return (_narrow(codes.of, len(vocab), len(column), column.values.device) if lazy else codes).values


def codes_in(vocab: Vocab, column: Column) -> Codes:
    """Encode a column by a vocabulary; a column of numbers is looked up block by block."""
    if vocab.takes(column):
        return Codes(column.values, vocab.lookup, column.missing)
    coded = coded_of(column)
    return _gathered(coded, vocab.codes_of(coded.keys), len(vocab))


def _fit_whole(column: Column, training: TrainingRows, options: Mapping[str, Any]) -> Vocab | None:
    """Fit the classes of whole numbers in a range narrow enough to count in a table; None for any others."""
    values = column.values
    if column.kind != "number" or values.is_floating_point() or not len(values):
        return None
    values = values.view(torch.uint8) if values.dtype == torch.bool else values
    by_loops = training.by_loops and column.missing is None
    values = training.numbers(values) if by_loops else take_values(values, training.rows)
    if not len(values):
        return None
    low, high = (int(v) for v in torch.aminmax(values))
    if high - low >= max(limits.COUNTED_SPAN, len(values)):
        return None
    # A table of counts needs no hashing and no sorting: the used places are the sorted classes.
    counts = training.count_whole(values, low, high - low + 1) if by_loops else None
    if counts is None:
        missing = None if column.missing is None else take_values(column.missing, training.rows)
        values = take_values(values, training.rows) if by_loops else values
        counts = torch.zeros(high - low + 1, dtype=torch.int64, device=values.device)
        step = max(limits.FRAME_BLOCK, len(counts)) if on_host(values) else len(values)
        for start in range(0, len(values), step):
            place = values[start : start + step].to(torch.int64) - low
            place = place if missing is None else place[~missing[start : start + step]]
            counts += torch.bincount(place, minlength=len(counts))
    used = counts.nonzero().squeeze(1)
    keys = Keys((pa.array((used + low).to(column.values.dtype).cpu().numpy()),), (column.name,))
    return Vocab.of_keys(keys, counts[used].cpu(), ordered=False, name=column.name, **options)[0]  # sorted as they are


def _narrow(codes: Callable[[Rows], torch.Tensor], size: int, n: int, device: torch.device) -> Codes:
    """Encode all rows block by block, in the smallest integer type that holds codes below ``size``."""
    dtype = torch.uint8 if size <= 1 << 8 else torch.int16 if size <= 1 << 15 else torch.int32
    kept = torch.empty(n, dtype=dtype, device=device)
    # Codes are int32 or int64 on their way: those of a whole column would take four to eight bytes a row.
    step = limits.FRAME_BLOCK if on_host(device) else max(n, 1)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        kept[rows] = codes(rows)
    return Codes(kept)


class Labels:
    """The targets of a ``TabularFrame``.

    Args:
        block: a fastai block (``CategoryBlock``, ``RegressionBlock``, ``MultiCategoryBlock(encoded=True)``) or a
            function that makes one; None: ``RegressionBlock`` if all are numbers, else ``CategoryBlock``.
        dtype: dtype of numeric targets; None: float64 if a column is float64, float32 if there are floats, else int64.
    """

    def __init__(self, names: Sequence[str], block: Any = None, *, dtype: torch.dtype | None = None) -> None:
        self.names, self.block, self.asked_dtype = list(names), block, dtype
        self.tfms: list[Any] = []
        self.kind: Literal["category", "multi", "number"] = "number"
        self.dtype = dtype or torch.float32
        self.values: pa.Array | None = None
        if block is not None:
            self._set_block(block() if callable(block) else block)

    def _set_block(self, block: Any) -> None:
        self.tfms = list(block.type_tfms)
        kinds = [type(t) for t in self.tfms if isinstance(t, Categorize)]
        if any(isinstance(t, EncodedMultiCategorize) for t in self.tfms):
            self.kind = "multi"
        elif kinds and kinds[0] is not Categorize:
            remedy = "Use MultiCategoryBlock(encoded=True, vocab=y_names)"
            raise DataError("targets that are lists of classes cannot be packed", remedy=remedy)
        else:
            self.kind = "category" if kinds else "number"

    def fit(self, columns: Mapping[str, Column], training: TrainingRows) -> None:
        """Fit classes, or the dtype of numbers, on training rows."""
        if self.block is None and self.names:
            numeric = all(c.kind == "number" and c.values.dtype != torch.bool for c in columns.values())
            self._set_block(RegressionBlock() if numeric else CategoryBlock())
        if self.kind == "category" and self.names:
            tfm = next(t for t in self.tfms if isinstance(t, Categorize))
            self.dtype = torch.int64
            if tfm.vocab is None:
                values = classes_of(columns[self.names[0]], training)
                tfm.vocab = CategoryMap(values.to_pylist(), sort=False, add_na=tfm.add_na)
            else:
                tfm.vocab = CategoryMap(tfm.vocab, sort=False, add_na=tfm.add_na)
                values = pa.array([v for v in tfm.vocab.items if v != "#na#"], from_pandas=True)
            tfm.c = len(tfm.vocab)
            self.values = values
        elif self.kind == "multi":
            self.dtype = torch.float32
        else:
            plain = [c.values.dtype if c.kind == "number" and c.missing is None else torch.float64
                     for c in columns.values()]  # fmt: skip
            whole = [not (k.is_floating_point or k == torch.bool) for k in plain]
            wide = torch.float64 in plain or any(whole)
            learnt = torch.int64 if plain and all(whole) else torch.float64 if wide else torch.float32
            self.dtype = self.asked_dtype or learnt
            for tfm in self.tfms:
                if getattr(tfm, "c", 0) is None:
                    tfm.c = len(self.names)

    @property
    def vocab(self) -> Any:
        """The classes of a categorical target, else None."""
        return next((t.vocab for t in self.tfms if isinstance(t, Categorize)), None)

    def encode(self, column: Column) -> torch.Tensor:
        """Encode one target of any rows: class codes ``[n]``, whole numbers of any width, or numbers of ``dtype``."""
        if self.kind == "category":
            return self._codes(column)
        if self.kind == "multi":
            values = column.number()
            bad, remedy = (values < 0) | (values > 1), "Give a column for each class; of amounts, leave y_block out"
            said = "MultiCategoryBlock takes 0 and 1, and this one is {:.6g}"
            refuse_rows(bad, lambda row: said.format(values[row].item()), column=column.name, remedy=remedy)
        if self.dtype != torch.int64:
            return column.number(self.dtype)
        remedy = "Leave such rows out, or give the training rows' target as floats"
        column.refuse_missing("a whole-number target is missing", remedy)
        if column.kind != "number" or not column.values.is_floating_point():
            return column.integer()
        values, remedy = column.values, "Choose y_dtype=torch.float32 or float64, or give whole numbers"
        bad, about = (values != values.trunc()) | values.isinf(), {"column": column.name, "remedy": remedy}
        refuse_rows(bad, lambda row: f"the whole-number target is {float(values[row])}", **about)
        return values.to(torch.int64)

    def _codes(self, column: Column) -> torch.Tensor:
        if self.values is None:
            raise NotFittedError("the target's classes are not known yet", remedy="Fit the frame first")
        na = len(self.vocab) - len(self.values)  # 1 where the block adds #na#
        codes = encode_narrow(Vocab(self.values, name=column.name), column)
        if not na and len(codes) and int(codes.min()) == 0:
            row = int((codes == 0).to(torch.uint8).argmax())
            value = column.take(torch.tensor([row], device=codes.device)).to_arrow()[0].as_py()
            problem = f"the target {value!r} is not among the training rows' classes"
            problem = "the target is missing" if value is None or value != value else problem
            remedy = "Leave such rows out, list all classes with CategoryBlock(vocab=…), or drop the column where "
            raise DataError(problem, column=column.name, row=row, remedy=remedy + "targets are not known")
        return codes if na else codes.sub_(1)

    def decode(self, ys: torch.Tensor) -> dict[str, Any]:
        """Return name → values ``[n]`` of targets ``[n, len(names)]``."""
        columns = {n: ys[:, i].cpu().numpy() for i, n in enumerate(self.names)}
        if self.kind == "category":
            items = np.empty(len(self.vocab), dtype=object)
            items[:] = list(self.vocab.items)
            return {n: items[codes.astype(np.int64)].tolist() for n, codes in columns.items()}
        return {n: v == 1 for n, v in columns.items()} if self.kind == "multi" else columns


def known(targets: Sequence[Column]) -> bool:
    """Return whether there are targets and none is missing in every row (a test set often has the column, empty)."""
    return bool(targets) and not any(len(c) > 0 and bool(c.is_missing().all()) for c in targets)
