"""Rows larger than memory: trees from Parquet files, and predictions written part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xgboost as xgb
from fastai.learner import Learner

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec._core.memory import give_all_back
from fastrec.errors import DataError, MissingPackageError
from fastrec.estimators import XGBRanker
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.xgboost import names_for_xgboost
from fastrec.table import Vocab, as_column
from fastrec.tabular import ParquetFrame
from fastrec.tabular.stream.files import ParquetSource, Paths
from fastrec.tabular.stream.loader import StreamLoader
from fastrec.validate import Lists, whole_lists

# Parquet files larger than memory for XGBoost, which stores bins in files and reads them again for every tree level.


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
        frame: its categories become XGBoost's categories (missing and unseen values are missing), its numbers stay
            numbers, and its first target is the label.
        cache: a folder for XGBoost's files, created if needed, removed with the matrix. Use one folder per matrix.
        valid: use the validation rows instead of the training rows.
        lists: for ranking, the target column with the id of each row's list; a list's rows must be contiguous in the
            files. Ids must be whole numbers that the targets represent exactly (``y_dtype=torch.float64``: up to 2^53).
        ref: the matrix of the training rows, whose bins are used for validation rows.
        max_bin: the number of bins, as in the training's parameters.
        batch_rows: rows passed to XGBoost at a time.

    Returns:
        The matrix, to be used as usual: ``xgboost.train(params, matrix, …)``.

    Raises:
        DataError: the frame has no target, none named ``lists``, or no such rows.
    """
    need_external_memory()
    targets = list(frame.recipe.labels.names)
    if not targets:
        raise DataError("the frame has no target to grow trees for", remedy="Give y_names= to the ParquetFrame")
    if lists is not None and lists not in targets[1:]:
        problem = f"the lists' column is not among the further targets {targets[1:]}"
        raise DataError(problem, column=lists, remedy="Give y_names=[label, lists] to the ParquetFrame")
    loaders = frame.dataloaders(
        batch_rows, shuffle=False, drop_last=False, buffer_rows=16 * batch_rows, rank=0, world_size=1, device="cpu"
    )
    loader = loaders.loaders[int(valid)]
    if not len(loader):
        raise DataError(f"the frame has no {'validation' if valid else 'training'} rows", remedy="Give some")
    Path(cache).mkdir(parents=True, exist_ok=True)
    place = None if lists is None else targets.index(lists)
    rows = TurnIterator(partial(_rows_in_turn, loader, *tree_columns(frame), place), str(Path(cache) / "rows"))
    matrix = xgb.ExtMemQuantileDMatrix(rows, ref=ref, max_bin=max_bin, enable_categorical=True)
    del loaders, loader, rows  # XGBoost reads its own files from now on, and growing trees needs memory
    give_all_back()
    return matrix


def tree_values(x_cat: torch.Tensor, x_cont: torch.Tensor) -> np.ndarray:
    """Return a batch in the form that trees take: float32 ``[n, columns]``, NaN if missing, categories from 0."""
    codes = x_cat.float() - 1
    return torch.cat([torch.where(codes < 0, torch.nan, codes), x_cont.float()], 1).cpu().numpy()


def tree_columns(frame: ParquetFrame) -> tuple[list[str], list[str]]:
    """Return names and XGBoost's types of the columns of ``tree_values``."""
    cats, conts = list(frame.recipe.cat_names), list(frame.recipe.conts)
    return names_for_xgboost([*cats, *conts]), ["c"] * len(cats) + ["q"] * len(conts)


def need_external_memory() -> None:
    """Refuse an XGBoost that is too old to grow trees from files."""
    if not hasattr(xgb, "ExtMemQuantileDMatrix"):
        raise MissingPackageError("this wants XGBoost 3.0 or later", remedy="Install it: pip install -U xgboost")


class TurnIterator(xgb.DataIter):
    """Iterator of batches for XGBoost, as arguments of ``input_data``; ``cache`` is the prefix of its files' names."""

    def __init__(self, batches: Callable[[], Iterator[dict[str, Any]]], cache: str) -> None:
        self._begin, self._batches = batches, batches()
        super().__init__(cache_prefix=cache, release_data=True)

    def reset(self) -> None:
        """Restart from the first batch."""
        self._batches.close()  # type: ignore[attr-defined] - a generator: files that it reads are closed
        self._batches = self._begin()

    def next(self, input_data: Any) -> bool:
        """Pass on the next batch, and tell whether there was one."""
        found = next(self._batches, None)
        if found is not None:
            input_data(**found)
        return found is not None


def _rows_in_turn(loader: Any, names: list[str], types: list[str], lists: int | None) -> Iterator[dict[str, Any]]:
    # A frame's batches; no list (its id is target number ``lists``) is split.
    held: list[tuple[np.ndarray, np.ndarray]] = []  # rows of a list that may continue in the next batch
    before = 0
    told = {"feature_names": names, "feature_types": types}

    def numbered(ids: np.ndarray) -> np.ndarray:
        return before + np.append(0, np.cumsum(np.diff(ids) != 0))

    for x_cat, x_cont, *_, y in loader:
        values, targets = tree_values(x_cat, x_cont), y.reshape(len(x_cat), -1).double().cpu().numpy()
        if lists is None:
            yield {"data": values, "label": targets[:, 0], **told}
            continue
        if held:
            values, targets = (np.concatenate([h, new]) for h, new in zip(held.pop(), (values, targets)))
        new = np.flatnonzero(np.diff(targets[:, lists])) + 1
        end = int(new[-1]) if len(new) else 0
        if end:
            yield {"data": values[:end], "label": targets[:end, 0], "qid": numbered(targets[:end, lists]), **told}
            before += len(new)
        held = [(values[end:], targets[end:])]
    if held:
        values, targets = held[0]
        yield {"data": values, "label": targets[:, 0], "qid": numbered(targets[:, lists]), **told}


def fit_on_parts(
    ranker: XGBRanker, parts: Sequence[Callable[[], Lists]], cache: str | Path, *, seed: int = 0
) -> XGBRanker:
    """Grow a ranker's trees from lists read part by part, with XGBoost's external memory.

    The trees are those of ``ranker.fit`` on all lists, except for the bins of numbers, which are found part by part.

    Args:
        ranker: its settings are used; it is fitted in place, and predicts, saves and loads as usual.
        parts: functions that each read some lists, with labels; all have the same columns. Each is called three times.
        cache: a folder for XGBoost's files, created if needed; they are removed at the end.
        seed: the seed of all random numbers.

    Raises:
        DataError: no list can be learned from, or the ranker has early stopping.
    """
    need_external_memory()
    if ranker.early_stopping_rounds is not None or ranker.margin:
        problem = f"{ranker.name} stops early, or starts from a column, which lists in parts do not allow"
        raise DataError(problem, remedy="Give rounds= alone")
    inputs = _inputs(ranker, parts)
    params = ranker.params_in_full(seed)
    Path(cache).mkdir(parents=True, exist_ok=True)

    def batches() -> Iterator[dict[str, Any]]:
        before = 0
        for lists in _teaching(parts):
            made = _batch(ranker, lists, inputs, before)
            before += int(made.pop("lists"))
            yield made

    if next(batches(), None) is None:
        raise DataError(f"{ranker.name} has no list to learn from", remedy="Give lists of two or more, some relevant")
    rows = TurnIterator(batches, str(Path(cache) / ranker.name))
    data = xgb.ExtMemQuantileDMatrix(rows, max_bin=params["max_bin"], nthread=params["nthread"])
    ranker.adopt(xgb.train(params, data, ranker.rounds), inputs.names, inputs.vocabs)
    return ranker


def _inputs(ranker: XGBRanker, parts: Sequence[Callable[[], Lists]]) -> TreeInputs:
    """Return the columns, with the codes of the values that categories have in any part."""
    values: dict[str, list[pa.Array]] = {}
    names: list[str] = []
    for lists in _teaching(parts):
        own = TreeInputs.fit(lists, ranker.columns)
        names = own.names
        for name in own.vocabs:
            values.setdefault(name, []).append(lists.table[name].coded().keys.columns[0])
    vocabs = {}
    for name, arrays in values.items():
        kind = next((a.type for a in arrays if not pa.types.is_null(a.type)), pa.string())
        distinct = pa.chunked_array([a.cast(kind) for a in arrays], kind).unique()
        vocabs[name] = Vocab.fit(as_column(distinct, name=name))
    return TreeInputs(names, vocabs)


def _teaching(parts: Sequence[Callable[[], Lists]]) -> Iterator[Lists]:
    for read in parts:
        lists = read()
        try:
            yield whole_lists(lists)
        except DataError:  # no list of this part teaches anything; another part's may
            if lists.label is None:
                raise


def _batch(ranker: XGBRanker, lists: Lists, inputs: TreeInputs, before: int) -> dict[str, Any]:
    _, codes, sizes = torch.unique_consecutive(lists.groups, return_inverse=True, return_counts=True)
    made = {"data": inputs.matrix(lists.table).cpu().numpy(), "label": lists.label.float().numpy(), "lists": len(sizes)}
    if ranker.ranks:
        made["qid"] = (codes + before).numpy()
    if lists.weight is not None:
        first = torch.cumsum(sizes, 0) - sizes
        made["weight"] = (lists.weight[first] if ranker.ranks else lists.weight).double().numpy()
    return {**made, "feature_names": names_for_xgboost(inputs.names)}


def write_predictions(
    model: Learner | xgb.Booster,
    frame: ParquetFrame,
    paths: Paths,
    out: str | Path,
    *,
    ids: Sequence[str] = (),
    bs: int = limits.BATCH_ROWS,
) -> int:
    """Predict the rows of Parquet files and write the predictions to a Parquet file, a batch at a time.

    Args:
        model: a Learner (its loss's activation is applied), or XGBoost's trees of ``external_matrix``.
        frame: the frame that the model was trained on; it holds the column preparation.
        paths: the rows: a file, a folder, a pattern with ``*``, or a list of these. They need no targets.
        out: the file to write; an earlier one is replaced when this one is complete.
        ids: columns of the files to copy unchanged into the output.
        bs: rows to predict at a time.

    Returns:
        The number of rows written, with columns ``ids``, then ``prediction`` or ``prediction_0``, ``prediction_1``, …

    Raises:
        MissingFileError, UnreadableFileError, MissingColumnError, DataError: names the file and column.
        WriteError: the file system refused.
    """
    rows = frame.new_rows(paths)
    loader = StreamLoader(frame, rows, bs=bs, buffer_rows=16 * bs, rank=0, world_size=1, device=torch.device("cpu"))
    predict = _of_trees(model, frame) if isinstance(model, xgb.Booster) else _of_net(model)
    kept = _Following(paths, list(ids)) if ids else None
    done, writer = 0, None
    with atomic_file(out) as part:
        try:
            for x_cat, x_cont, *_ in loader:
                found = predict(x_cat, x_cont).double().reshape(len(x_cat), -1)
                names = ["prediction"] if found.shape[1] == 1 else [f"prediction_{i}" for i in range(found.shape[1])]
                columns = {} if kept is None else dict(zip(ids, kept.take(len(found)), strict=True))
                table = pa.table({**columns, **{n: c.numpy() for n, c in zip(names, found.unbind(1), strict=True)}})
                writer = writer or pq.ParquetWriter(part, table.schema)
                writer.write_table(table)
                done += len(found)
            if writer is None:  # there are no rows: write an empty file
                kinds = ParquetSource(paths, list(ids)).schema if ids else pa.schema([])
                none = {n: pa.array([], kinds.field(n).type) for n in ids}
                pq.write_table(pa.table({**none, "prediction": pa.array([], pa.float64())}), part)
        finally:
            if writer is not None:
                writer.close()
    return done


def _of_net(learn: Learner) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    model = learn.model.eval()
    device = next(model.parameters()).device
    activation = getattr(learn.loss_func, "activation", None)

    @torch.no_grad()
    def predict(x_cat: torch.Tensor, x_cont: torch.Tensor) -> torch.Tensor:
        outputs = model(x_cat.to(device), x_cont.to(device)).as_subclass(torch.Tensor)
        return (outputs if activation is None else activation(outputs)).as_subclass(torch.Tensor).cpu()

    return predict


def _of_trees(booster: xgb.Booster, frame: ParquetFrame) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    names, types = tree_columns(frame)

    def predict(x_cat: torch.Tensor, x_cont: torch.Tensor) -> torch.Tensor:
        values = tree_values(x_cat, x_cont)
        matrix = xgb.DMatrix(values, feature_names=names, feature_types=types, enable_categorical=True)
        return torch.from_numpy(booster.predict(matrix))

    return predict


class _Following:
    """Columns of files, read as many rows at a time as requested."""

    def __init__(self, paths: Paths, names: list[str]) -> None:
        source = ParquetSource(paths, names)
        self._blocks = (block.select(names) for _, block in source.scan(limits.BATCH_ROWS, names))
        self._waiting: list[pa.Table] = []

    def take(self, rows: int) -> list[pa.ChunkedArray]:
        while sum(map(len, self._waiting)) < rows:
            self._waiting.append(next(self._blocks))
        whole = pa.concat_tables(self._waiting)
        self._waiting = [whole.slice(rows)]
        return whole.slice(0, rows).columns
