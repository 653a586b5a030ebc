"""``write_predictions``: predictions of Parquet files larger than memory, written batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xgboost as xgb
from fastai.learner import Learner

from fastrec._core import limits
from fastrec._core.atomic import atomic_file
from fastrec.scale.external_trees import tree_columns, tree_values
from fastrec.tabular import ParquetFrame
from fastrec.tabular.stream.files import ParquetSource, Paths
from fastrec.tabular.stream.loader import StreamLoader

__all__ = ["write_predictions"]


def write_predictions(
    model: Learner | xgb.Booster,
    frame: ParquetFrame,
    paths: Paths,
    out: str | Path,
    *,
    ids: Sequence[str] = (),
    bs: int = limits.BATCH_ROWS,
) -> int:
    """Predict the rows of Parquet files and write a Parquet file beside them, a batch at a time.

    Args:
        model: a Learner (its loss's activation is applied), or XGBoost's trees of ``external_matrix``.
        frame: what the model was trained on; it knows how columns are prepared.
        paths: the rows: a file, a folder, a pattern with ``*``, or a list of these. They need no targets.
        out: the file to write; an earlier one is replaced when this one is complete.
        ids: columns of the files that are kept beside the predictions, as they are.
        bs: rows that are predicted at a time.

    Returns:
        How many rows were written: columns ``ids``, then ``prediction`` or ``prediction_0``, ``prediction_1``, …

    Raises:
        MissingFileError, UnreadableFileError, MissingColumnError, DataError: naming file and column.
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
            if writer is None:  # no rows: a file that says so
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
