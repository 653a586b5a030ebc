"""``metric_loss``: what a compressed graph costs by the run's metric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastrec.competition.predict import SavedRun
from fastrec.competition.scoring import Scorer
from fastrec.errors import MissingFileError
from fastrec.serve.verify import score_rows
from fastrec.table import Table
from fastrec.validate import Lists, Rows

_LABELLED = "sample_labelled.parquet"


@dataclass(frozen=True)
class Loss:
    """What a compressed graph costs.

    Args:
        metric: the run's metric.
        rows: how many labelled rows were scored.
        full, compressed: the metric of the run's own predictions, and of the graph's.
    """

    metric: str
    rows: int
    full: float
    compressed: float


def metric_loss(folder: str | Path, run: str | Path, *, fold: int | None = None, trust: tuple[str, ...] = ()) -> Loss:
    """The metric of a graph's predictions beside that of the run's, on labelled rows that the run keeps.

    They are training rows: the two figures are to be compared with one another, not with anything else.

    Args:
        folder: the export.
        run: the run directory.
        fold: the fold whose models were exported; None: all.
        trust: modules of generators and estimators of one's own that may be imported.

    Raises:
        MissingFileError: the run keeps no such rows.
    """
    saved = SavedRun(run, trust=trust)
    path = saved.folder / _LABELLED
    if not path.is_file():
        raise MissingFileError("the run does not keep labelled rows", file=path, remedy="Run the recipe again")
    table = Table.read(path)
    options: dict[str, Any] = {"cats": saved.cats, "conts": saved.conts}
    rows: Rows
    if saved.target is None:
        groups = table[saved.config["list_column"]].integer().cpu()
        rows = Lists(table, groups, label=table[saved.config["label"]].number(), **options)
    else:
        n = saved.target.n_outputs
        rows = Rows(table, saved.task, label=saved.target.encode(table), n_outputs=n, **options)
    scorer = Scorer.of(saved.config["metric"], saved.target)
    full = saved.predict_rows(rows, fold=fold)
    said = score_rows(folder, table)
    made = torch.from_numpy(said)
    if saved.target is not None and saved.target.scale is not None:
        made = made.log() if saved.target.scale == "log" else made.log1p()
    return Loss(scorer.name, len(rows), scorer(rows, full), scorer(rows, made))
