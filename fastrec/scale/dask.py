"""Dask: clusters by name, frames, and rankers trained on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, check_replaceable, working_folder
from fastrec._core.imports import is_dask, require
from fastrec.errors import DataError
from fastrec.estimators import XGBRanker
from fastrec.estimators._tree_model import TreeInputs
from fastrec.estimators.base import some_held_out
from fastrec.estimators.xgboost import names_for_xgboost
from fastrec.features import FeatureSet
from fastrec.table import Table
from fastrec.table.keys import is_numeric
from fastrec.tabular import ParquetFrame
from fastrec.tabular.procs.features import looking_back
from fastrec.validate import Lists, whole_lists

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client


INSTALL = "pip install 'fastrec-tabular[scale]'"


@contextmanager
def dask_cluster(scheduler: str) -> Iterator[Client]:
    """Yield a client of a cluster; a cluster of this machine's processes is closed at the end.

    Args:
        scheduler: ``tcp://host:port`` (or ``tls://…``), or ``local:N`` for N worker processes here.

    Raises:
        DataError: it is neither, or nothing responds there.
        MissingPackageError: ``distributed`` is not installed.
    """
    kind, _, rest = scheduler.partition(":")
    if not (kind == "local" and rest.isdecimal() and int(rest)) and kind not in ("tcp", "tls"):
        raise DataError(f"{scheduler!r} is no scheduler", remedy="Give its address (tcp://host:8786), or local:2")
    distributed = require("distributed", "Dask's distributed", INSTALL)
    require("dask.dataframe", "Dask", INSTALL)
    if kind == "local":
        options = {"n_workers": int(rest), "threads_per_worker": 1, "dashboard_address": ":0"}
        with distributed.LocalCluster(**options) as own, distributed.Client(own) as client:
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        raise DataError(f"no scheduler answers at {scheduler}", remedy="Start one: dask scheduler") from error
    with client:
        yield client


@contextmanager
def tables_on(scheduler: str | None, beside: Path) -> Iterator[Callable[[Table | None], Any] | None]:
    """Yield a function that partitions tables into files for the workers of a cluster; None without a ``scheduler``.

    The files' folder is created next to the path ``beside``, which workers must see, and is removed at the end.
    """
    if scheduler is None:
        yield None
        return
    with dask_cluster(scheduler) as client:
        from fastrec.features._dask.files import splitter

        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise DataError(f"the cluster of {scheduler} has no workers", remedy="Start some: dask worker ADDRESS")
        above = beside.resolve().parent
        above.mkdir(parents=True, exist_ok=True)
        with working_folder(above / f"{beside.name}.rows") as folder:
            yield splitter(folder, limits.PARTS_A_WORKER * workers)


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
    """Write a Dask frame's partitions as Parquet, each on its worker, and stream fastai's batches from them.

    Args:
        frame: training rows, a Dask DataFrame.
        folder: the target folder, which the workers must see; ``train`` and ``valid`` in it are replaced once complete.
        procs, cat_names, cont_names, y_names: as for ``ParquetFrame``.
        features: generators to fit on the rows before they are written: training rows get out-of-fold or causal values,
            those of ``valid`` get values from all training rows.
        valid: validation rows, a Dask DataFrame; None: none.
        **options: further options of ``ParquetFrame``; the default of its ``cache`` is ``folder / 'packed'``.

    Returns:
        The frame. Its rows are packed once, from the files, and epochs read the packed rows.

    Raises:
        DataError: a frame is not Dask's.
        WriteError: ``folder`` holds something else, or cannot be written.
    """
    require("dask.dataframe", "Dask", INSTALL)
    for rows in (frame, *([] if valid is None else [valid])):
        _check_frame(rows)
    folder, targets = Path(folder), [y_names] if isinstance(y_names, str) else list(y_names or [])
    names = [*(cat_names or []), *(cont_names or []), *targets]
    if features is not None and targets:
        features.assume_target(targets)
    made = frame if features is None else features.fit_transform(frame)
    paths = {"train": _written(made, folder / "train", names)}
    if valid is not None:
        past = {"history": frame} if looking_back(features) else {}
        hidden = {n: f"__{n}__" for n in targets}  # from features, as targets to predict are
        made = valid if features is None else features.transform(valid.rename(columns=hidden), **past)
        made = made.rename(columns={there: n for n, there in hidden.items()})
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
    pq.write_table(Table.read(part, device="cpu").to_arrow(), path, row_group_size=limits.ROW_GROUP)


_LABEL, _LIST, _START = "\x00label", "\x00list", "\x00start"


def fit_on_dask(
    ranker: XGBRanker, frame: Any, *, columns: Sequence[str], target: str, groups: str, seed: int = 0
) -> XGBRanker:
    """Grow a ranker's trees on the rows of a Dask frame; every worker has its own lists.

    The rows are shuffled by ``groups`` once, because XGBoost makes pairs only within a worker, which therefore needs
    whole lists. (XGBoost's own way, ``allow_group_split=False``, makes a partition of every list and does not finish
    with thousands of them.) On one worker, the trees are those of ``ranker.fit`` on the same rows. Lists that teach
    nothing are excluded and a hold-out is taken as there, but on each worker separately.

    Args:
        ranker: its settings are used; it is fitted in place, and predicts, saves and loads as usual.
        frame: the candidates, a Dask DataFrame.
        columns: the columns to learn from: numbers. (Encode text first, for example with ``Categorify``.)
        target: the column with the relevance of a candidate.
        groups: the column of the lists, whole numbers.
        seed: the seed of all random numbers.

    Raises:
        MissingPackageError: ``distributed`` is not installed.
        DataError: there is no cluster, a column holds text, or no list can be learned from.
    """
    distributed = require("distributed", "Dask's distributed", INSTALL)
    import dask.dataframe as dd
    from xgboost import dask as dxgb

    from fastrec.features._dask.blocks import task
    from fastrec.features._dask.frames import as_blocks
    from fastrec.features._dask.gathered import ByKey, gather

    _check_frame(frame)
    try:
        client = distributed.get_client()
    except ValueError as error:
        raise DataError("there is no Dask cluster to train on", remedy="Start a distributed.Client") from error
    named = list(dict.fromkeys([*columns, target, groups, *_starts(ranker)]))
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    buckets = gather(as_blocks(frame, named), named, ByKey([groups], len(workers))).tables
    made = [task(_sides, table, ranker.fresh(), list(columns), target, groups) for table in buckets]
    # One bucket per worker: XGBoost would sort two on one worker again, at the cost of a copy.
    kept = [client.compute(m, workers=[w], allow_other_workers=True) for m, w in zip(made, workers, strict=False)]
    if not sum(client.gather([client.submit(lambda sides: len(sides[0]), sides) for sides in kept])):
        raise DataError(f"{ranker.name} has no list to learn from", remedy="Give lists of two or more, some relevant")
    meta, names, params = _frame_of(None, ranker, columns), names_for_xgboost(columns), ranker.params_in_full(seed)

    def matrix(side: int, like: Any = None) -> Any:
        rows = dd.from_delayed([task(getitem, k, side) for k in kept], meta=meta, verify_meta=False).persist()
        more = {"qid": rows[_LIST]} if ranker.ranks else {}
        more |= {"base_margin": rows[_START]} if ranker.margin else {}
        more |= {"ref": like} if like is not None else {}
        own = {"feature_names": names, "max_bin": params["max_bin"]}
        return dxgb.DaskQuantileDMatrix(client, rows[names], rows[_LABEL], **own, **more)

    data, stop = matrix(0), {}
    if ranker.early_stopping_rounds is not None:
        stop = {"evals": [(matrix(1, data), "held")], "early_stopping_rounds": ranker.early_stopping_rounds}
    trees = dxgb.train(client, params, data, ranker.rounds, verbose_eval=False, **stop)["booster"]
    ranker.adopt(trees[: trees.best_iteration + 1] if stop else trees, columns)
    return ranker


def predict_on_dask(ranker: XGBRanker, frame: Any) -> Any:
    """Predict scores of a Dask frame's rows, lazily and partition by partition.

    Args:
        ranker: a fitted ranker.
        frame: candidates, a Dask DataFrame with the columns that it was fitted on.

    Returns:
        A Dask Series of float64, with the frame's own partitions and index.

    Raises:
        NotFittedError: the ranker has not been fitted.
    """
    require("dask.dataframe", "Dask", INSTALL)
    import pandas as pd

    from fastrec.features._dask.states import share

    _check_frame(frame)
    meta = pd.Series([], dtype="float64", name=ranker.name)
    return frame[ranker.reads].map_partitions(_scores, share(ranker), meta=meta)


def _check_frame(frame: Any) -> None:
    if not is_dask(frame):
        raise DataError(f"{type(frame).__name__} is no Dask frame", remedy="Give a Dask DataFrame")


def _sides(
    table: Table, ranker: XGBRanker, columns: list[str], target: str, groups: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split a bucket's rows into those to train on and those for early stopping."""
    ids = table[groups].integer()
    order = torch.argsort(ids, stable=True)
    table = table.take(order)
    coded = {n: table[n].distinct for n in columns if table[n].kind == "category"}
    text = [n for n, distinct in coded.items() if len(distinct) and not is_numeric(distinct.type)]
    if text:
        raise DataError("holds text", column=text[0], remedy="Encode it first, with features.Categorify for one")
    rows = Lists(table, ids[order], conts=columns, label=table[target].number())
    try:
        rows = whole_lists(rows, name=ranker.name)
    except DataError:  # no list of this bucket teaches anything; another bucket's may
        rows = rows.take(torch.zeros(len(rows), dtype=torch.bool))
    held = torch.zeros(len(rows), dtype=torch.bool)
    if ranker.early_stopping_rounds is not None and len(rows):
        held = some_held_out(rows, name=ranker.name)
    return _frame_of(rows.take(~held), ranker, columns), _frame_of(rows.take(held), ranker, columns)


def _frame_of(rows: Lists | None, ranker: XGBRanker, columns: Sequence[str]) -> pd.DataFrame:
    """Return rows in the form that XGBoost's workers take; None: no rows."""
    import pandas as pd

    if rows is None:
        rows = Lists(Table(dict.fromkeys([*columns, *_starts(ranker)], torch.zeros(0))), torch.zeros(0).long())
    made = pd.DataFrame(TreeInputs(columns, {}).matrix(rows.table).cpu().numpy(), columns=names_for_xgboost(columns))
    made[_LABEL] = torch.zeros(len(rows)).numpy() if rows.label is None else rows.label.float().numpy()
    made[_LIST] = rows.groups.numpy()
    for name in _starts(ranker):
        made[_START] = rows.table[name].number(torch.float32).cpu().numpy()
    return made


def _starts(ranker: XGBRanker) -> list[str]:
    return [ranker.margin] if ranker.margin else []


def _scores(part: pd.DataFrame, ranker: XGBRanker) -> pd.Series:
    import pandas as pd

    table = Table.read(part, device="cpu")
    rows = Lists(table, torch.zeros(len(table), dtype=torch.int64))
    return pd.Series(ranker.predict(rows).numpy(), index=part.index, name=ranker.name)
