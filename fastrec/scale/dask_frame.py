"""``frame_from_dask``: the rows of a Dask frame as a ``ParquetFrame``, written by the workers that have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec._core.optional import is_dask, require
from fastrec.errors import DataError
from fastrec.features import FeatureSet
from fastrec.scale.cluster import INSTALL
from fastrec.table import Table
from fastrec.tabular import ParquetFrame


def frame_from_dask(
    frame: Any,
    folder: str | Path,
    procs: Any = None,
    cat_names: Sequence[str] | None = None,
    cont_names: Sequence[str] | None = None,
    y_names: Sequence[str] | str | None = None,
    *,
    features: FeatureSet | None = None,
    valid: Any = None,
    **options: Any,
) -> ParquetFrame:
    """Write a Dask frame's partitions as Parquet, each where it is, and stream fastai's batches from them.

    Args:
        frame: training rows, a Dask DataFrame.
        folder: where to, and where the workers see it; ``train`` and ``valid`` in it are replaced when they are whole.
        procs, cat_names, cont_names, y_names: as for ``ParquetFrame``.
        features: generators to fit on the rows before they are written: training rows get out-of-fold or causal
            values, those of ``valid`` get values from all training rows.
        valid: validation rows, a Dask DataFrame; None: none.
        **options: further options of ``ParquetFrame``; its ``cache`` is ``folder / 'packed'`` unless it is given.

    Returns:
        The frame. Its rows are packed once, from the files, and epochs read them packed.

    Raises:
        DataError: a frame is not Dask's.
        WriteError: ``folder`` holds something else, or cannot be written.
    """
    require("dask.dataframe", "Dask", INSTALL)
    for rows in (frame, *([] if valid is None else [valid])):
        if not is_dask(rows):
            raise DataError(f"{type(rows).__name__} is no Dask frame", remedy="Give a Dask DataFrame, or TabularFrame")
    folder, targets = Path(folder), [y_names] if isinstance(y_names, str) else list(y_names or [])
    names = [*(cat_names or []), *(cont_names or []), *targets]
    made = frame if features is None else features.fit_transform(frame)
    paths = {"train": _written(made, folder / "train", names)}
    if valid is not None:
        made = valid if features is None else features.transform(valid)
        paths["valid"] = _written(made, folder / "valid", names)
    options.setdefault("cache", folder / "packed")
    columns = (procs, cat_names, cont_names, y_names)
    return ParquetFrame(paths["train"], *columns, valid=paths.get("valid"), **options)


def _written(frame: Any, folder: Path, names: Sequence[str]) -> Path:
    import dask

    from fastrec.features._dask.blocks import task

    folder.parent.mkdir(parents=True, exist_ok=True)
    check_replaceable(folder, "part-000000.parquet")
    with atomic_folder(folder) as part:
        there = part.resolve()
        parts = enumerate(frame[list(dict.fromkeys(names))].to_delayed())
        dask.compute(*[task(_write, p, str(there / f"part-{i:06d}.parquet")) for i, p in parts])
    return folder


def _write(part: Any, path: str) -> None:
    pq.write_table(Table.read(part).to_arrow(), path, row_group_size=limits.ROW_GROUP)
