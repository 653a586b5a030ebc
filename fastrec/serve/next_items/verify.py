"""``verify_next_items``: compare the recommendations of an exported net with those of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.progress import Stages
from fastrec.competition.next_items.predict import SavedNextItems
from fastrec.errors import MissingFileError
from fastrec.sequences import SessionFrame
from fastrec.serve.next_items.export import net_of
from fastrec.serve.next_items.graph import NextItemGraph
from fastrec.serve.verify import Verified
from fastrec.table.offsets import offsets_of


def verify_next_items(
    folder: str | Path,
    run: str | Path,
    data: str | Path | None = None,
    *,
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Verified:
    """Recommend by an exported graph and by the net of its run, and compare; a long and an empty session are added.

    Args:
        folder: the export.
        run: the run directory.
        data: the data whose test sessions are taken; None: those that the run keeps.
        trust: modules of custom models that may be imported.
        stages: progress; None: none is shown.

    Returns:
        ``lists`` counts the sessions with items in another order; items whose scores differ by less than the
        limit may change places.

    Raises:
        FastrecError: something is not there, or cannot be read.
    """
    stages = stages or Stages(quiet=True)
    graph, saved = NextItemGraph(folder), SavedNextItems(run, trust=trust)
    net = net_of(saved, graph.about["net"]["name"])[1]
    sessions = saved.read(data) if data is not None else _sample(saved)
    # first a long session with every item, an empty one, and one of a single event
    every = torch.arange(1, len(sessions.items)).repeat(2)[-1_000:]
    lengths = torch.cat([torch.tensor([len(every), 0, 1]), sessions.lengths])
    sessions = SessionFrame.of(torch.cat([every, every[:1], sessions.values]), offsets_of(lengths), sessions.items)
    k = saved.form.max_items
    items, scores = net.recommend(sessions, k, saved.exclude_seen)
    wanted = [v if v is not None else graph.missing for v in sessions.decode(items).to_pylist()]
    lists = [sessions.decode(v).to_pylist() for v in sessions.values.split(sessions.lengths.tolist())]
    differences, others, at = [], 0, 0
    with stages.stage("verify", len(sessions), unit="sessions") as advance:
        while at < len(lists):
            end = at + (1, 7, 1_024)[min(len(differences), 2)]  # batches of several sizes
            recommended = graph.run(lists[at:end], k)
            ids = np.array(wanted[at * k : end * k], dtype=recommended[0].dtype).reshape(-1, k)
            difference, other = _compared(recommended, (ids, scores[at:end].numpy()))
            differences.append(difference)
            others += other
            advance(len(difference))
            at = end
    every = np.concatenate(differences)
    return Verified(len(lists), float(every.max()), int(every.argmax()), others)


def _sample(saved: SavedNextItems) -> SessionFrame:
    path = saved.folder / "sample.parquet"
    if not path.is_file():
        raise MissingFileError("the run does not hold it", file=path, remedy="Give the data, or run the recipe again")
    return SessionFrame(pq.read_table(path), item=saved.form.items, items=saved.blend.items)


def _compared(recommended: tuple[Any, Any], wanted: tuple[Any, Any]) -> tuple[np.ndarray, int]:
    """Compute each session's largest relative difference of scores, and count sessions in another order."""
    ids, scores = recommended
    right_ids, right = wanted
    right_ids, right = right_ids[:, : ids.shape[1]], right[:, : ids.shape[1]]
    there = right > -np.inf
    size = np.where(there, np.maximum(np.abs(right), 1.0), 1.0)
    with np.errstate(invalid="ignore"):
        apart = np.where(there, np.abs(scores - right) / size, np.where(scores > -np.inf, np.inf, 0.0))
        close = np.abs(np.diff(right, axis=1, prepend=np.inf)) <= 2 * limits.VERIFY_DIFFERENCE * size
    # among equal scores the lower code is first in both; among nearly equal ones rounding decides
    near = close.copy()
    near[:, :-1] |= close[:, 1:]
    near[:, -1] = True  # the next item after the last is unknown
    return apart.max(1, initial=0.0), int((((ids != right_ids) & ~near).any(1)).sum())
