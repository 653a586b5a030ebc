"""``RecDataLoaders``: from a frame or a CSV file to dataloaders in one line, as fastai's ``TabularDataLoaders``.

Differences from fastai's, all deliberate:

- ``from_df`` takes frames of every library, and paths of CSV and Parquet files.
- With neither ``cat_names`` nor ``cont_names``, columns are told apart by what they hold; fastai takes all for numbers.
- ``cont_names`` left out are the other columns in the frame's order; fastai's order changes from run to run.
- ``seed=`` fixes split and order and leaves torch's own generator alone.
- With ``groups=``, a random split keeps groups whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from fastai.tabular.data import TabularDataLoaders
from fastcore.foundation import L

from fastrec.errors import MissingFileError, UnreadableFileError
from fastrec.table import Table, column_names
from fastrec.table.frames import row_count
from fastrec.table.keys import is_numeric
from fastrec.tabular.columns import coded_of
from fastrec.tabular.frame import TabularFrame, split_rows
from fastrec.tabular.recipe import loaded

_FRAME_OPTIONS = [n for n, p in inspect.signature(TabularFrame).parameters.items() if p.kind is p.KEYWORD_ONLY]


class RecDataLoaders(TabularDataLoaders):
    """fastai's ``TabularDataLoaders`` over a ``TabularFrame``."""

    @classmethod
    def from_df(
        cls,
        df: Any,
        path: str | Path = ".",
        procs: Any = None,
        cat_names: Sequence[str] | str | None = None,
        cont_names: Sequence[str] | str | None = None,
        y_names: Sequence[str] | str | None = None,
        y_block: Any = None,
        valid_idx: Any = None,
        *,
        features: Any = None,
        groups: Sequence[str] | str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> RecDataLoaders:
        """Make dataloaders of a frame's training and validation rows.

        Args:
            df: a frame of any library, a ``Table``, a dict of arrays, or a CSV or Parquet path.
            path: folder for models and exports.
            procs: as for ``TabularFrame``.
            cat_names: categorical columns; none if only ``cont_names`` are given.
            cont_names: continuous columns; if only ``cat_names`` are given, all others but targets and groups. With
                neither given, ``cont_cat_split`` chooses both.
            y_names: target columns.
            y_block: a fastai block; None: by what the targets hold.
            valid_idx: validation rows: numbers, a mask, a slice. None: a random fifth of the rows, or of the groups.
            features: a FeatureSet, as for ``TabularFrame``.
            groups: a column or several that say which rows belong together: they share a side of a random split, and
                batches hold them whole.
            seed: the same seed gives the same split and the same order of batches.
            **kwargs: ``TabularFrame``'s other options (``cat_dtype``, ``y_dtype``, …); all others as for fastai's
                ``dataloaders`` (``bs``, ``val_bs``, ``shuffle``, ``drop_last``, ``device``, ``wgts``, …).

        Raises:
            MissingColumnError, MissingFileError: a column or the file is not there.
            DataError: a column that cannot be used as asked, or validation rows that are not there.
        """
        df = loaded(df)
        others, cats, conts = [*L(y_names), *L(groups)], list(L(cat_names)), list(L(cont_names))
        if cat_names is None and cont_names is None:
            conts, cats = cont_cat_split(df, dep_var=others)
        elif cont_names is None:
            conts = [n for n in column_names(df) if n not in {*cats, *others}]
        splits = _splits_of(df, valid_idx, groups, seed)
        options = {n: kwargs.pop(n) for n in _FRAME_OPTIONS if n in kwargs}
        to = TabularFrame(
            df, procs, cats, conts, y_names, y_block, splits=splits, features=features, groups=groups, **options
        )
        if groups is not None:
            kwargs = {"groups": True, **kwargs}
        dls = to.dataloaders(path=path, seed=seed, **kwargs)
        return cls(*dls.loaders, path=dls.path, device=dls.device)

    def test_dl(
        self,
        test_items: Any,
        rm_type_tfms: Any = None,
        process: bool = True,
        inplace: bool = False,
        *,
        history: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Make a loader of test rows, as fastai's.

        Args:
            test_items: rows as for ``TabularFrame``; targets may be absent.
            rm_type_tfms, inplace: not used.
            process: prepare the rows now.
            history: earlier rows (the training rows, say) that features such as ``Lag`` may look back to.
            **kwargs: as for the loader (``bs``, ``device``, …).
        """
        rows = self.train_ds.new(test_items)
        if process:
            rows.process(history)
        return self.valid.new(rows, **kwargs)

    @classmethod
    def from_csv(cls, csv: Any, skipinitialspace: bool = True, **kwargs: Any) -> RecDataLoaders:
        """Make dataloaders of a CSV file, read by pandas as in fastai (``from_df`` reads a path faster, by Arrow).

        Args:
            csv: a path, or an open file.
            skipinitialspace: leave out spaces after a comma.
            **kwargs: as for ``from_df``.

        Raises:
            MissingFileError, UnreadableFileError: there is no such file, or it is not CSV.
        """
        import pandas as pd

        file = csv if isinstance(csv, str | Path) else None
        if file is not None and "://" not in str(file) and not Path(file).exists():
            raise MissingFileError("there is no such file", file=file, remedy="Check the path")
        try:
            frame = pd.read_csv(csv, skipinitialspace=skipinitialspace)
        except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
            remedy = "Check that it is whole, and UTF-8"
            raise UnreadableFileError(f"it cannot be read as CSV ({error})", file=file, remedy=remedy) from error
        return cls.from_df(frame, **kwargs)


TabularFrame._dbunch_type = RecDataLoaders  # as fastai does with its own


def cont_cat_split(
    df: Any, max_card: int = 20, dep_var: Sequence[str] | str | None = None
) -> tuple[list[str], list[str]]:
    """Tell continuous from categorical columns as fastai's ``cont_cat_split`` does, in any frame.

    Whole numbers with at most ``max_card`` distinct values (a missing one is one of them) are categorical, as are text
    and booleans; floats and times are continuous; lists, vectors and columns of no usable type are neither.
    """
    left_out, found = set(L(dep_var)), {"cont": [], "cat": []}
    for name in column_names(df):
        column = Table.read(df, [name])[name] if name not in left_out else None
        if column is None or column.kind not in ("number", "datetime", "category"):
            continue
        text = column.kind == "category" and (column.ordered is not None or not is_numeric(column.distinct.type))
        if column.kind == "category":
            whole = pa.types.is_integer(column.distinct.type)
        else:
            text, whole = column.values.dtype == torch.bool, column.kind == "number"
            whole &= not column.values.is_floating_point()
        few = whole and not text and len(torch.unique(coded_of(column).codes)) <= max_card
        found["cat" if text or few else "cont"].append(name)
    return found["cont"], found["cat"]


def _splits_of(df: Any, valid_idx: Any, groups: Any, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    n = row_count(df)
    if valid_idx is not None:
        valid, trains = split_rows([valid_idx], n)[0], torch.ones(n, dtype=torch.bool)
        trains[valid] = False
        return trains.nonzero().squeeze(1), valid
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    if groups is not None:
        codes = Table.read(df, list(L(groups))).coded(list(L(groups))).codes.cpu()
        _, codes = torch.unique(codes, return_inverse=True)
        count = int(codes.max()) + 1 if n else 0
        chosen = torch.zeros(count, dtype=torch.bool)
        chosen[torch.randperm(count, generator=generator)[: int(count * 0.2)]] = True
        return (~chosen[codes]).nonzero().squeeze(1), chosen[codes].nonzero().squeeze(1)
    order, cut = torch.randperm(n, generator=generator), int(n * 0.2)  # draws what fastai would draw
    return order[cut:], order[:cut]
