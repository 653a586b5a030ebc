"""``Run``: the record of a run, to which each step adds what later steps need."""

from __future__ import annotations

import datetime as dt
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.resumable import Parts


def now() -> str:
    """Return the time in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


@dataclass(kw_only=True)
class Run:
    """A run: what the caller of ``run_competition`` asked for (see there), and when it began.

    Args:
        parts: finished parts of an interrupted run; None: nothing is cached.
        budget: the wall time of the whole run; None: no limit.
        context: resources that end with the run, such as workers.
    """

    recipe: Any
    data: Path
    out: Path
    device: torch.device
    stages: Stages
    rows: int | None = None
    seed: int = 0
    bs: int | None = None
    command: str | None = None
    parts: Parts | None = None
    budget: Budget | None = None
    ranks: int = 1
    scheduler: str | None = None
    started: str = field(default_factory=now)
    context: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def options(self) -> set[str]:
        """Names of the given options that not every kind of recipe can use."""
        given = {"bs": self.bs is not None, "minutes": self.budget is not None}
        given |= {"ranks": self.ranks > 1, "scheduler": self.scheduler is not None}
        return {name for name, was in given.items() if was}

    @property
    def notes(self) -> dict[str, Any]:
        """The given options, as ``config.json`` has them."""
        ranks, minutes = self.ranks if self.ranks > 1 else None, None if self.budget is None else self.budget.minutes
        notes = {"started": self.started, "data": self.data.resolve().name, "command": self.command}
        notes |= {"device": str(self.device), "rows": self.rows, "seed": self.seed, "bs": self.bs}
        notes |= {"minutes": minutes, "ranks": ranks, "scheduler": self.scheduler}
        return {name: value for name, value in notes.items() if value is not None}
