"""``metric_loss``: compare the metric of a compressed graph with that of the full graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fastrec.competition.predict import SavedRun
from fastrec.competition.scoring import Scorer
from fastrec.errors import MissingFileError
from fastrec.serve.export import LABELLED, export_run, sample_events
from fastrec.serve.verify import score_rows
from fastrec.table import Table
from fastrec.validate import Lists, Rows


@dataclass(frozen=True)
class Loss:
    """Metrics of a full and a compressed graph.

    Args:
        metric: the run's metric.
        rows: number of labelled rows.
        full, compressed: the metric of each graph.
    """

    metric: str
    rows: int
    full: float
    compressed: float


def metric_loss(folder: str | Path, run: str | Path, *, fold: int | None = None, trust: tuple[str, ...] = ()) -> Loss:
    """Compute the metric of a compressed graph and of the full graph, on labelled rows that the run keeps.

    They are training rows: compare the two numbers with one another only.

    Args:
        folder: the export.
        run: the run directory.
        fold: the fold whose models were exported; None: all.
        trust: modules of custom generators and estimators that may be imported.

    Raises:
        MissingFileError: the run keeps no such rows.
    """
    saved = SavedRun(run, trust=trust)
    path = saved.folder / LABELLED
    if not path.is_file():
        raise MissingFileError("the run does not keep labelled rows", file=path, remedy="Run the recipe again")
    table = Table.read(path)
    options: dict[str, Any] = {"cats": saved.cats, "conts": saved.conts}
    rows: Rows
    events = sample_events(saved, table, LABELLED)
    if saved.target is None:
        groups = table[saved.config["list_column"]].group_numbers().cpu()
        rows = Lists(table, groups, label=table[saved.config["label"]].number(), **options)
    else:
        n = saved.target.n_outputs
        rows = Rows(table, saved.task, label=saved.target.encode(table), n_outputs=n, **options)
    scorer = Scorer.of(saved.config["metric"], saved.target)
    # both graphs, not the run: rounding of the graph itself must not count as loss
    with TemporaryDirectory() as whole:
        export_run(run, Path(whole) / "full", fold=fold, trust=trust)
        full = _learned_scale(saved, score_rows(Path(whole) / "full", table, events=events))
    compressed = _learned_scale(saved, score_rows(folder, table, events=events))
    return Loss(scorer.name, len(rows), scorer(rows, full), scorer(rows, compressed))


def _learned_scale(saved: SavedRun, scores: np.ndarray) -> torch.Tensor:
    # graphs predict amounts, metrics take predictions on the scale that is learned
    values = torch.from_numpy(scores)
    scale = None if saved.target is None else saved.target.scale
    return values if scale is None else values.log() if scale == "log" else values.log1p()
