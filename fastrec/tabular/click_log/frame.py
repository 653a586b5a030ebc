"""``ClickLogFrame``: text files of clicks, larger than memory, as fastai batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from fastai.data.block import RegressionBlock

from fastrec._core.device import DeviceLike
from fastrec.errors import DataError
from fastrec.table import Table, Vocab
from fastrec.table.vocab import MISSING, UNSEEN
from fastrec.tabular.click_log.codes import as_text
from fastrec.tabular.click_log.packing import LogRows
from fastrec.tabular.click_log.parse import LogForm
from fastrec.tabular.click_log.text import LogPart, parts_of
from fastrec.tabular.procs.categorify import Categorify
from fastrec.tabular.procs.log_transform import LogTransform
from fastrec.tabular.recipe import FrameRecipe, check_unique
from fastrec.tabular.stream.frame import ParquetFrame
from fastrec.tabular.targets import Labels
from fastrec.tabular.training_rows import TrainingRows

__all__ = ["ClickLogFrame"]

_MOST_CATS, _MOST_FIELDS = 31, 63  # a word holds a bit for each category; a fault's field 6 bits

LogPaths = str | Path | LogPart | Sequence[str | Path | LogPart]


class ClickLogFrame(ParquetFrame):
    """Click logs in Criteo's form, prepared for fastai a buffer at a time.

    A line is the label (0 or 1), whole numbers, and categories as 8 lower-case hex digits, with tabs between and
    nothing where a value is missing; there is no header. Numbers become ``log(1 + x - lowest)``, a missing one counting
    as 0, as DLRM has it (see ``LogTransform``). Categories become codes: 0 missing, 1 any value that came less than
    ``min_count`` times in training (or never), then the others in sorted order.

    The text is read once; what it is packed into (160 bytes a line of Criteo's) is kept in ``cache`` and used again as
    long as files and settings are the same. In memory are ``memory`` bytes of counts (where these do not suffice, rows
    are gone over again in the cache, not in the text), 50 MB of text and rows, and some 50 bytes for each value that is
    kept. Batches come from ``dataloaders``, as a ``ParquetFrame``'s do.

    Args:
        paths: training rows: files, or each a ``LogPart`` of one.
        cache: a folder for the packed rows.
        valid: validation rows, likewise.
        conts, cats: names of the numbers and the categories; a number of them: ``I1``, … and ``C1``, ….
        label: name of the label.
        min_count: categories' values that come less often share a code.
        memory: bytes that tables of counts may take.
        device: where batches go; None: ``FASTREC_DEVICE``, else fastai's default.
        advance: is told of lines as they are read.

    Raises:
        MissingFileError, UnreadableFileError: a file is not there, or cannot be read.
        DataError: a line is not of this form, naming file, line and column; no line; no or too many columns.
    """

    def __init__(
        self,
        paths: LogPaths,
        *,
        cache: str | Path,
        valid: LogPaths | None = None,
        conts: int | Sequence[str] = 13,
        cats: int | Sequence[str] = 26,
        label: str = "label",
        min_count: int = 15,
        memory: int = 1 << 30,
        device: DeviceLike = None,
        advance: Callable[[int], None] | None = None,
    ) -> None:
        form = LogForm(_names("I", conts), _names("C", cats), label)
        _check(form)
        categorify, logs, labels = Categorify(min_count=min_count, unseen=True), LogTransform(), _labels(label)
        self.recipe = FrameRecipe(list(form.cats), list(form.conts), [categorify, logs], labels)
        self.device = device
        layout, folder = self.recipe.layout(with_y=True), Path(cache)
        options: dict[str, Any] = {"memory": memory, "advance": advance}
        train = LogRows(parts_of(paths), form, layout, folder, "train", min_count=min_count, **options)
        if not len(train):
            raise DataError("the files hold no line", file=parts_of(paths)[0].path, remedy="Give files with rows")
        self.train = train
        categorify.reset(form.cats)
        for name, values in zip(form.cats, train.encoder.values, strict=True):
            text = pa.array(as_text(values)).cast(pa.string()) if len(values) else pa.array([], pa.string())
            categorify.set_vocab(name, Vocab(text, reserved=(MISSING, UNSEEN), name=name))
        logs.reset(form.conts)
        logs.lows = dict(zip(form.conts, map(float, train.encoder.lows), strict=True))
        self.valid = None
        if valid is not None:
            self.valid = LogRows(parts_of(valid), form, layout, folder, "valid", encoder=train.encoder, **options)


def _names(letter: str, given: int | Sequence[str]) -> list[str]:
    return [f"{letter}{i + 1}" for i in range(given)] if isinstance(given, int) else list(given)


def _check(form: LogForm) -> None:
    names = [form.label, *form.conts, *form.cats]
    if not form.cats or len(form.cats) > _MOST_CATS or len(names) > _MOST_FIELDS:
        raise DataError(
            f"a log of {len(form.conts)} numbers and {len(form.cats)} categories",
            remedy=f"Give 1 to {_MOST_CATS} categories, and {_MOST_FIELDS} columns in all; else use ParquetFrame",
        )
    check_unique(names)


def _labels(name: str) -> Labels:
    labels = Labels([name], RegressionBlock, dtype=torch.float32)
    one = Table.read(pa.table({name: pa.array([0.0], pa.float32())}))
    labels.fit({name: one[name]}, TrainingRows(1))
    return labels
