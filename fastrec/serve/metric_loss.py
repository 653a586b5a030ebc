"""``metric_loss``: what a compressed graph costs by the run's metric."""

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
    """What a compressed graph costs.

    Args:
        metric: the run's metric.
        rows: how many labelled rows were scored.
        full, compressed: the metric of the graph in full, and of the compressed one.
    """

    metric: str
    rows: int
    full: float
    compressed: float


def metric_loss(folder: str | Path, run: str | Path, *, fold: int | None = None, trust: tuple[str, ...] = ()) -> Loss:
    """The metric of a compressed graph beside that of the graph in full, on labelled rows that the run keeps.

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
    with TemporaryDirectory() as whole:
        export_run(run, Path(whole) / "full", fold=fold, trust=trust)
        full = _learned_scale(saved, score_rows(Path(whole) / "full", table, events=events))
    said = _learned_scale(saved, score_rows(folder, table, events=events))
    return Loss(scorer.name, len(rows), scorer(rows, full), scorer(rows, said))


def _learned_scale(saved: SavedRun, scores: np.ndarray) -> torch.Tensor:
    """Predictions as the metric takes them: on the scale that is learned."""
    values = torch.from_numpy(scores)
    scale = None if saved.target is None else saved.target.scale
    return values if scale is None else values.log() if scale == "log" else values.log1p()
