"""The report's chart of scores out of fold against scores of the leaderboard, over the runs of a folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastrec.report import charts
from fastrec.report.noted import NotedRun
from fastrec.report.section import Section
from fastrec.report.text import signed


def leaderboard_section(runs: Sequence[NotedRun], name: str, metric: str, greater: bool) -> list[Section]:
    """Build the section of the run ``name``, if at least two runs have a noted score."""
    if len(runs) < 2:
        return []
    points = {r.name: (r.oof, r.leaderboard) for r in runs}
    chart = charts.point_chart(points, name, x_label=f"{metric} out of fold", y_label=f"{metric} on the leaderboard")
    oof, board = (np.array([getattr(r, n) for r in runs]) for n in ("oof", "leaderboard"))
    i, j = np.triu_indices(len(runs), 1)
    signs = np.sign(oof[i] - oof[j]) * np.sign(board[i] - board[j])
    pairs, gaps = int((signs != 0).sum()), board - oof
    agreement = f"Of {pairs} pairs of runs both put {int((signs > 0).sum())} in the same order. " if pairs else ""
    note = (
        f"{len(runs)} runs of this folder. The leaderboard less out of fold lies between {signed(min(gaps), 4)} and "
        f"{signed(max(gaps), 4)}. {agreement}{'Higher' if greater else 'Lower'} is better on both axes."
    )
    return [Section("Out of fold and on the leaderboard", "seconds.html", {"chart": chart}, note)]
