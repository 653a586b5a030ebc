"""``external_matrix``.

Parquet files larger than memory for XGBoost, which keeps bins in files and reads them again for every level of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost as xgb

from fastrec._core import limits
from fastrec._core.malloc import give_all_back
from fastrec.errors import DataError, MissingPackageError
from fastrec.tabular import ParquetFrame

__all__ = ["external_matrix", "tree_values"]


def external_matrix(
    frame: ParquetFrame,
    cache: str | Path,
    *,
    valid: bool = False,
    lists: str | None = None,
    ref: xgb.DMatrix | None = None,
    max_bin: int = 256,
    batch_rows: int = limits.BATCH_ROWS,
) -> xgb.ExtMemQuantileDMatrix:
    """Pass the rows of a ``ParquetFrame`` to ``xgboost.train`` in files instead of memory.

    Args:
        frame: its categories become categories of XGBoost (missing and unseen values are missing), its numbers numbers;
            its first target is the label.
        cache: a folder for XGBoost's files: made if need be; they go when the matrix does. One folder for one matrix.
        valid: the validation rows instead of the training rows.
        lists: ranking: the target column with the id of each row's list; a list's rows stand together in the files. Ids
            have to be whole numbers that the frame's targets hold exactly (``y_dtype=torch.float64``: up to 2^53).
        ref: the training rows' matrix, whose bins those of validation rows are.
        max_bin: bins of a number, as in the training's parameters.
        batch_rows: rows that XGBoost is handed at a time.

    Returns:
        The matrix; ``xgboost.train(params, matrix, …)`` as ever.

    Raises:
        DataError: the frame has no target, or none of the name ``lists``; or it has no such rows.
    """
    need_external_memory()
    targets = list(frame.recipe.labels.names)
    if not targets:
        raise DataError("the frame has no target to grow trees for", remedy="Give y_names= to the ParquetFrame")
    if lists is not None and lists not in targets[1:]:
        raise DataError(
            f"the lists' column is not among the further targets {targets[1:]}",
            column=lists,
            remedy="Give y_names=[label, lists] to the ParquetFrame",
        )
    loaders = frame.dataloaders(
        batch_rows, shuffle=False, drop_last=False, buffer_rows=16 * batch_rows, rank=0, world_size=1, device="cpu"
    )
    loader = loaders.loaders[int(valid)]
    if not len(loader):
        raise DataError(f"the frame has no {'validation' if valid else 'training'} rows", remedy="Give some")
    Path(cache).mkdir(parents=True, exist_ok=True)
    rows = _RowsInTurn(loader, frame, str(Path(cache) / "rows"), None if lists is None else targets.index(lists))
    matrix = xgb.ExtMemQuantileDMatrix(rows, ref=ref, max_bin=max_bin, enable_categorical=True)
    del loaders, loader, rows  # XGBoost reads its own files from now on, and growing trees takes memory
    give_all_back()
    return matrix


def tree_values(x_cat: torch.Tensor, x_cont: torch.Tensor) -> np.ndarray:
    """Return a batch as trees take it: float32 ``[n, columns]``, categories by code less one, NaN where missing.

    Args:
        x_cat: codes ``[n, categories]``, 0 where missing or unseen.
        x_cont: ``[n, numbers]``.
    """
    codes = x_cat.float() - 1
    return torch.cat([torch.where(codes < 0, torch.nan, codes), x_cont.float()], 1).numpy()


def tree_columns(frame: ParquetFrame) -> tuple[list[str], list[str]]:
    """Return names and XGBoost's types of the columns of ``tree_values``."""
    from fastrec.estimators._xgb_calls import names_for_xgboost

    cats, conts = list(frame.recipe.cat_names), list(frame.recipe.conts)
    return names_for_xgboost([*cats, *conts]), ["c"] * len(cats) + ["q"] * len(conts)


def need_external_memory() -> None:
    """Refuse an XGBoost that cannot grow trees from files.

    Raises:
        MissingPackageError: it is too old.
    """
    if not hasattr(xgb, "ExtMemQuantileDMatrix"):
        raise MissingPackageError("this wants XGBoost 3.0 or later", remedy="Install it: pip install -U xgboost")


class TurnIterator(xgb.DataIter):
    """Batches for XGBoost, from the first one whenever it asks.

    Args:
        batches: begins anew; each batch is what XGBoost's ``input_data`` takes.
        cache: what the names of its files begin with.
    """

    def __init__(self, batches: Callable[[], Iterator[dict[str, Any]]], cache: str) -> None:
        self._begin = batches
        self._batches: Iterator[dict[str, Any]] | None = None
        super().__init__(cache_prefix=cache, release_data=True)

    def reset(self) -> None:
        """Start again."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined] - a generator: files that it reads are closed
        self._batches = self._begin()

    def next(self, input_data: Any) -> bool:
        """Pass on the next batch, and tell whether there was one."""
        if self._batches is None:
            self.reset()
        assert self._batches is not None
        found = next(self._batches, None)
        if found is not None:
            input_data(**found)
        return found is not None


class _RowsInTurn(TurnIterator):
    """A frame's batches; no list is cut in two."""

    def __init__(self, loader: Any, frame: ParquetFrame, cache: str, lists: int | None) -> None:
        self.loader, self.lists = loader, lists
        self.names, self.types = tree_columns(frame)
        super().__init__(self._handed, cache)

    def _handed(self) -> Iterator[dict[str, Any]]:
        for values, label, lists in self._read():
            more = {} if lists is None else {"qid": lists}
            yield {"data": values, "label": label, "feature_names": self.names, "feature_types": self.types, **more}

    def _read(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        held: list[tuple[np.ndarray, np.ndarray]] = []  # of the list that may go on in the next batch
        before = 0
        for x_cat, x_cont, *_, y in self.loader:
            values, targets = tree_values(x_cat, x_cont), y.reshape(len(x_cat), -1).double().numpy()
            if self.lists is None:
                yield values, targets[:, 0], None
                continue
            if held:
                values, targets = (np.concatenate([h, new]) for h, new in zip(held.pop(), (values, targets)))
            new = np.flatnonzero(np.diff(targets[:, self.lists])) + 1
            end = int(new[-1]) if len(new) else 0
            if end:
                yield values[:end], targets[:end, 0], self._numbered(targets[:end, self.lists], before)
                before += len(new)
            held = [(values[end:], targets[end:])]
        if held:
            values, targets = held[0]
            yield values, targets[:, 0], self._numbered(targets[:, self.lists], before)

    @staticmethod
    def _numbered(ids: np.ndarray, before: int) -> np.ndarray:
        return before + np.append(0, np.cumsum(np.diff(ids) != 0))
