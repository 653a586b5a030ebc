"""``RunOptions``: what a caller of ``run_competition`` asks for, as every kind of recipe takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.parts import Parts


@dataclass
class RunOptions:
    """What a caller of ``run_competition`` asks for; see there for the meaning of each.

    Args:
        device: where to compute.
        stages: progress.
        rows, seed, bs, command, ranks, scheduler: see ``run_competition``.
        parts: what an interrupted run has finished; None: nothing is kept.
        budget: the time that all may take; None: as much as it takes.
    """

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

    @property
    def minutes(self) -> float | None:
        """The wall time that was asked for; None: no limit."""
        return None if self.budget is None else self.budget.minutes

    @property
    def minutes_left(self) -> float | None:
        """What of it is left now, three seconds at least; None: no limit."""
        return None if self.budget is None else max(self.budget.left / 60, 0.05)

    def asked(self) -> set[str]:
        """The names of those among them that not every kind of recipe has a use for, and that were given."""
        given = {"bs": self.bs is not None, "minutes": self.budget is not None}
        given |= {"ranks": self.ranks > 1, "scheduler": self.scheduler is not None}
        return {name for name, was in given.items() if was}

    def notes(self) -> dict[str, Any]:
        """What ``config.json`` keeps of them: those that were given."""
        ranks = self.ranks if self.ranks > 1 else None
        told = {"command": self.command, "device": str(self.device), "rows": self.rows, "seed": self.seed}
        told |= {"bs": self.bs, "minutes": self.minutes, "ranks": ranks, "scheduler": self.scheduler}
        return {name: value for name, value in told.items() if value is not None}
