"""``NextItemCompetition``: which item comes next in a session; ``fastrec run`` carries it out."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec._core.atomic import atomic_file, atomic_folder
from fastrec._core.progress import Stages
from fastrec.competition.recipe import Competition
from fastrec.competition.run_files import now, write_json
from fastrec.errors import DataError, MissingFileError
from fastrec.report import write_report
from fastrec.sequences import SessionFrame, SessionModel
from fastrec.sequences.next_item_net import NextItemNet
from fastrec.sequences.sequence_scores import sequence_metrics
from fastrec.sequences.session_blend import SessionBlend
from fastrec.sequences.vstan import VSTAN
from fastrec.table.from_frames import column_names
from fastrec.table.read import read_file

__all__ = ["NextItemCompetition", "run_next_item"]


class NextItemCompetition(Competition):
    """A recipe for sessions: ``train`` holds sessions, ``test`` those whose next item is asked.

    Files are ``train`` and ``test``, ``.parquet`` or ``.csv``: one session a row with its items as a list, or, with
    ``session``, one event a row.

    Attributes:
        items: the column of items.
        session: the column of sessions, in a log of events; None: a row is a session.
        order: columns by which a session's events are put in order; none: they are.
        target: the column with the item that follows: in ``test`` where it is known, in ``train`` if need be.
        k: how many items are submitted.
        separator: what stands between them.
        hold: what is held out to choose the blend's weights by: the last ``'sessions'``, or each one's last of its
            ``'events'`` (see ``SessionBlend``).
        exclude_seen: nothing comes twice in a session: its own items are left out.
        minutes: wall time of all training, unless ``fastrec run --minutes`` says another.
    """

    task = "next_item"  # type: ignore[assignment]
    items = "items"
    session: str | None = None
    order: str | tuple[str, ...] = ()
    target = "target"
    k = 20
    separator = " "
    hold: Literal["sessions", "events"] = "sessions"
    exclude_seen = False
    minutes = 14.0

    def models(self, *, bs: int | None) -> Mapping[str, SessionModel]:  # type: ignore[override]
        """The models that are blended, the one that takes longest first; by default a net and session kNN.

        Args:
            bs: positions in a net's batch; None: its own.
        """
        return {"net": NextItemNet(**({} if bs is None else {"tokens": bs})), "knn": VSTAN()}

    def read(self, data: Path, rows: int | None) -> tuple[SessionFrame, SessionFrame]:
        """The sessions to learn from, and those to predict for, with their targets where these are known.

        Args:
            data: the folder.
            rows: use only this many training sessions, the last ones.
        """
        common: dict[str, Any] = {"item": self.items, "session": self.session, "order": self.order}
        path = _file(data, "train")
        known = self.target if self.target in _names(path) else None
        train = SessionFrame(path, target=known, **common).with_target()
        if rows is not None and rows < len(train):
            train = train.take(torch.arange(len(train) - rows, len(train)))
        path = _file(data, "test")
        return train, train.new(path, target=self.target if self.target in _names(path) else None)


def run_next_item(
    recipe: NextItemCompetition,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    rows: int | None,
    seed: int,
    bs: int | None,
    stages: Stages,
    command: str | None,
    minutes: float | None,
) -> Path:
    """Carry a recipe for sessions out: a blend of its models, the submission, the scores and the report.

    Args:
        recipe, data, out, device, rows, seed, bs, stages, command, minutes: see ``run_competition``.

    Returns:
        The run directory.
    """
    started = now()
    with stages.stage("read", unit="sessions") as advance:
        train, test = recipe.read(data, rows)
        advance(len(train) + len(test))
    limit = recipe.minutes if minutes is None else minutes
    blend = SessionBlend(dict(recipe.models(bs=bs)), k=recipe.k, hold=recipe.hold, exclude_seen=recipe.exclude_seen)
    for net in (m for m in blend.models.values() if isinstance(m, NextItemNet)):
        net.device = device
    with stages.stage("train", unit="sessions") as advance:
        blend.fit(train, seed=seed, minutes=limit)
        advance(len(train))
    for name, found in blend.valid.items():
        stages.say(f"held out, {name}: " + ", ".join(f"{m} {v:.4f}" for m, v in found.items()))
    with stages.stage("predict", len(test), unit="sessions") as advance:
        best = blend.recommend_each(test, recipe.k, advance)
    final = list(best)[-1]
    scores = _scores(recipe, blend, best, test, train)
    with atomic_folder(out) as part:
        with stages.stage("write"):
            write_items(part / "submission.csv", recipe, test, best[final][0])
            blend.save(part / "models" / "blend")
            write_json(part / "config.json", _config(recipe, blend, started, command, seed, limit))
        write_json(part / "scores.json", {**scores, "seconds": {n: round(s, 3) for n, s in stages.seconds.items()}})
        write_report(part, name=out.resolve().name)
    return out


def write_items(path: Path, recipe: NextItemCompetition, test: SessionFrame, items: torch.Tensor) -> None:
    """Write a submission: a header, then a line a session with its items; a log's sessions have their id before them.

    Raises:
        DataError: an id holds what stands between two.
    """
    text = [str(v) for v in test.items.classes]
    bad = next((t for t in text[1:] if recipe.separator in t), None)
    if bad is not None:
        raise DataError(
            f"the item {bad!r} holds {recipe.separator!r}, which stands between items in a submission",
            column=recipe.items,
            remedy="Set the recipe's separator to text that no item holds",
        )
    words = np.array(text, dtype=object)
    lines = [recipe.separator.join(words[row[row > 0]]) for row in items.numpy()]
    columns: dict[str, Any] = {recipe.items: lines}
    if test.sessions is not None:
        columns = {str(recipe.session): test.sessions.to_arrow(), **columns}
    import pyarrow.csv as pa_csv

    quoting = "none" if not pc.any(pc.match_substring_regex(pa.array(lines), '[",\n\r]')).as_py() else "needed"
    with atomic_file(path) as temporary:
        pa_csv.write_csv(pa.table(columns), temporary, pa_csv.WriteOptions(quoting_style=quoting))


def _scores(
    recipe: NextItemCompetition, blend: SessionBlend, best: Mapping[str, Any], test: SessionFrame, train: SessionFrame
) -> dict[str, Any]:
    k, codes = recipe.k, len(train.items)
    known: dict[str, dict[str, float]] = {}
    if test.target is not None and len(test):
        known = {n: sequence_metrics(items, test.target, k, codes=codes) for n, (items, _) in best.items()}
    name = f"mrr@{k}"
    also = [m for m in next(iter(known.values()), {}) if m != name]
    found: dict[str, Any] = {
        "metric": name,
        "greater_is_better": True,
        "task": recipe.task,
        "models": {n: v[name] for n, v in known.items()},
        "oof": {n: v[name] for n, v in blend.valid.items()},
        "also": {m: {n: v[m] for n, v in known.items()} for m in also},
        "held_out": blend.valid,
        "weights": dict(zip(blend.models, blend.weights or [], strict=False)),
        "rows": {"train sessions": len(train), "train events": len(train.values), "test sessions": len(test)},
    }
    return {**(known[list(best)[-1]] if known else {}), **found}


def _config(
    recipe: NextItemCompetition, blend: SessionBlend, started: str, command: str | None, seed: int, minutes: float
) -> dict[str, Any]:
    return {
        "competition": recipe.name,
        "started": started,
        "finished": now(),
        "command": command,
        "seed": seed,
        "minutes": minutes,
        "task": recipe.task,
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
        "models": {n: {"class": type(m).__name__, **m.settings()} for n, m in blend.models.items()},
    }


def _file(data: Path, name: str) -> Path:
    for path in (data / f"{name}.parquet", data / f"{name}.csv"):
        if path.exists():
            return path
    raise MissingFileError(
        "there is no such file", file=data / f"{name}.parquet", remedy="Give a folder with train and test files"
    )


def _names(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.ParquetDataset(path).schema.names
    return column_names(read_file(path))
