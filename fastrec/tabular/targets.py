"""Target columns: what fastai's ``y_block`` makes of them, and the values back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from fastai.data.block import CategoryBlock, RegressionBlock
from fastai.data.transforms import Categorize, CategoryMap, EncodedMultiCategorize

from fastrec.errors import DataError, NotFittedError, refuse_rows
from fastrec.table import Column, Vocab
from fastrec.tabular.cat_codes import classes_of, encode_narrow
from fastrec.tabular.columns import TrainingRows


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
            self._fit_classes(columns[self.names[0]], training)
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

    def _fit_classes(self, column: Column, training: TrainingRows) -> None:
        tfm = next(t for t in self.tfms if isinstance(t, Categorize))
        self.dtype = torch.int64
        if tfm.vocab is None:
            values = classes_of(column, training)
            tfm.vocab = CategoryMap(values.to_pylist(), sort=False, add_na=tfm.add_na)
        else:
            tfm.vocab = CategoryMap(tfm.vocab, sort=False, add_na=tfm.add_na)
            values = pa.array([v for v in tfm.vocab.items if v != "#na#"], from_pandas=True)
        tfm.c = len(tfm.vocab)
        self.values = values

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
        return _integers(column) if self.dtype == torch.int64 else column.number(self.dtype)

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


def _integers(column: Column) -> torch.Tensor:
    remedy = "Leave such rows out, or give the training rows' target as floats"
    column.refuse_missing("a whole-number target is missing", remedy)
    if column.kind != "number" or not column.values.is_floating_point():
        return column.integer()
    values, remedy = column.values, "Choose y_dtype=torch.float32 or float64, or give whole numbers"
    bad, about = (values != values.trunc()) | values.isinf(), {"column": column.name, "remedy": remedy}
    refuse_rows(bad, lambda row: f"the whole-number target is {float(values[row])}", **about)
    return values.to(torch.int64)
