"""``verify_export``: compare an exported graph's scores with the run's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.competition.predict import SavedRun, read_rows
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, MissingFileError
from fastrec.serve.export import LABELLED, SAMPLE, event_feeds, export_run, feeds_of, read_sample, sample_events
from fastrec.serve.session import open_session, read_about, read_export
from fastrec.table import Table
from fastrec.validate import ListEvents, Lists, Rows


@dataclass(frozen=True)
class Verified:
    """The result of a comparison."""

    rows: int  #: number of scored rows
    difference: float  #: the largest difference of two scores, relative to amounts above 1
    row: int  #: its row
    lists: int = 0  #: number of lists of a ranking in another order

    @property
    def holds(self) -> bool:
        """Whether the scores agree."""
        return self.difference <= limits.VERIFY_DIFFERENCE and not self.lists


def verify_export(
    folder: str | Path,
    run: str | Path,
    data: str | Path | None = None,
    *,
    fold: int | None = None,
    trust: tuple[str, ...] = (),
    stages: Stages | None = None,
) -> Verified:
    """Score rows by an exported graph and by its run, and compare.

    Args:
        folder: the export.
        data: the data whose test rows are scored (see ``predict_run``); None: the rows that the run keeps.
        run, fold, trust, stages: as ``export_run`` took them.

    Raises:
        FastrecError: something is not there, or cannot be read.
    """
    stages, folder = stages or Stages(quiet=True), Path(folder)
    # Before the features, which take minutes.
    absent = next((folder / n for n in read_export(folder)["model"]["files"] if not (folder / n).is_file()), None)
    if absent is not None:
        raise MissingFileError("the export lacks it", file=absent, remedy="Export the run anew")
    saved = SavedRun(run, trust=trust)
    if data is None:
        rows = _kept_rows(saved)
    else:
        _, rows = read_rows(saved, data, stages=stages)
    with stages.stage("graph", len(rows)) as advance:
        scores = score_rows(folder, rows.table, advance, events=rows.events)
    wanted = saved.predict_rows(rows, stages, fold=fold)
    wanted = wanted if saved.target is None else saved.target.restore(wanted)
    return compare_scores(scores, wanted.numpy(), rows.groups if saved.target is None else None)


def compare_scores(scores: np.ndarray, wanted: np.ndarray, groups: torch.Tensor | None) -> Verified:
    """Compare a graph's scores with those of the run, and the order of each list if there are lists."""
    distance = np.abs(scores - wanted) / np.maximum(np.abs(wanted), 1.0)
    each = distance.reshape(len(distance), -1).max(1) if len(distance) else np.zeros(1)
    lists = 0
    for a, b in pairwise([] if groups is None else _list_starts(groups)):
        order = np.argsort(-scores[a:b], kind="stable")
        # nearly equal scores may change places
        lists += bool((np.diff(wanted[a:b][order]) > limits.VERIFY_TIE).any())
    return Verified(len(scores), float(each.max()), int(each.argmax()), lists)


def score_rows(
    folder: str | Path, table: Table, advance: Any = None, *, events: ListEvents | None = None
) -> np.ndarray:
    """Score rows, their lists whole, by an exported graph: float64 ``[n]`` or ``[n, k]``."""
    folder = Path(folder)
    about = read_about(folder)
    session = open_session(folder / about["model"]["file"])
    read = {i.name for i in session.get_inputs()}  # events want columns that the graph does not
    feeds = feeds_of({"inputs": [i for i in about["inputs"] if i["name"] in read]}, table)
    groups = None if about["list"] is None else table[about["list"]].group_numbers().cpu()
    if about.get("events_count") is not None and events is None:
        why = "the graph reads the events before lists"
        raise DataError(why, file=folder, remedy="Give events=ListEvents.before(…)")
    # lists must be whole in a batch: features and scores depend on their other rows
    starts = np.arange(len(table) + 1) if groups is None else _list_starts(groups)
    parts = []
    for a, b in _blocks(starts, len(table)):
        given = {n: v[a:b] for n, v in feeds.items()}
        if events is not None and about.get("events_count") is not None:
            given |= event_feeds(about, groups[a:b], events)
        parts.append(session.run([about["outputs"][0]["name"]], {n: v for n, v in given.items() if n in read})[0])
        if advance is not None:
            advance(b - a)
    return np.concatenate(parts) if parts else np.zeros(0)


def _kept_rows(saved: SavedRun, name: str = SAMPLE) -> Rows:
    """Read rows that a run keeps; those of ``LABELLED`` have labels."""
    sample, labelled = read_sample(saved.folder, name), name == LABELLED
    options: dict[str, Any] = {"cats": saved.cats, "conts": saved.conts}
    if saved.target is None:
        groups = sample[saved.config["list_column"]].group_numbers().cpu()
        options["events"] = sample_events(saved, sample, name)
        return Lists(sample, groups, label=sample[saved.config["label"]].number() if labelled else None, **options)
    options["n_outputs"] = saved.target.n_outputs
    if labelled:
        return Rows(sample, saved.task, label=saved.target.encode(sample), **options)
    # features are computed anew if the sample's rows and no others are needed, else taken as the run stored them
    made = set() if saved.features is None else set(saved.features.outputs)
    needs_tables = saved.features is not None and any(s.table_inputs for s in saved.features.steps)
    if not saved.config["history"] and not needs_tables:
        return saved.rows(sample.drop([n for n in sample.names if n in made]))
    return Rows(sample, saved.task, **options)


def _list_starts(groups: torch.Tensor) -> np.ndarray:
    return np.concatenate([[0], ((groups[1:] != groups[:-1]).nonzero().squeeze(1) + 1).numpy(), [len(groups)]])


def _blocks(starts: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Split into blocks of about 4,096 rows that split no list."""
    blocks, at = [], 0
    while at < size:
        fits = starts[(starts > at) & (starts <= at + 4_096)]
        end = int(fits[-1]) if len(fits) else int(starts[starts > at][0])
        blocks.append((at, end))
        at = end
    return blocks


@dataclass(frozen=True)
class Loss:
    """The run's metric of a full and of a compressed graph, on so many labelled rows."""

    metric: str
    rows: int
    full: float
    compressed: float


def metric_loss(folder: str | Path, run: str | Path, *, fold: int | None = None, trust: tuple[str, ...] = ()) -> Loss:
    """Compute the metric of a compressed graph and of the full graph, on labelled rows that the run keeps.

    They are training rows: compare the two numbers with one another only.

    Args:
        folder, run, fold, trust: as ``verify_export`` takes them.

    Raises:
        MissingFileError: the run keeps no such rows.
    """
    saved = SavedRun(run, trust=trust)
    rows = _kept_rows(saved, LABELLED)
    scorer = Scorer.of(saved.config["metric"], saved.target)
    # both graphs, not the run: rounding of the graph itself must not count as loss
    with TemporaryDirectory() as whole:
        export_run(run, Path(whole) / "full", fold=fold, trust=trust)
        full = _learned_scale(saved, score_rows(Path(whole) / "full", rows.table, events=rows.events))
    compressed = _learned_scale(saved, score_rows(folder, rows.table, events=rows.events))
    return Loss(scorer.name, len(rows), scorer(rows, full), scorer(rows, compressed))


def _learned_scale(saved: SavedRun, scores: np.ndarray) -> torch.Tensor:
    # graphs predict amounts, metrics take predictions on the scale that is learned
    values = torch.from_numpy(scores)
    scale = None if saved.target is None else saved.target.scale
    return values if scale is None else values.log() if scale == "log" else values.log1p()
