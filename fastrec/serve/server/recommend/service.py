"""``RecommendService``: what is behind ``/v1/recommend``: the current model, its queue, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fastrec.errors import DataError
from fastrec.serve.server.batcher import Job
from fastrec.serve.server.prometheus import SECONDS, Histogram
from fastrec.serve.server.recommend.asked import AskedSessions
from fastrec.serve.server.recommend.models import Answer, open_model
from fastrec.serve.server.service import Limits, Service
from fastrec.serve.server.versions import Canary

__all__ = ["RecommendService"]


class RecommendService(Service):
    """The model that is served. Requests that wait are answered together, one batch at a time.

    Args:
        folder: a saved recommender, a run for next items, the export of one, or a registry of these two.
        limits: how much to take on; rows are sessions.
        canary: refused: one version answers all sessions.

    Raises:
        DataError: a canary is asked for.
    """

    def __init__(self, folder: str | Path, *, limits: Limits | None = None, canary: Canary | None = None) -> None:
        if canary is not None:
            raise DataError("sessions have no canary", file=folder, remedy="Serve one version to all")
        # one worker: torch spreads a batch over the cores itself, and a recommender notes its stages' times
        super().__init__(folder, limits=replace(limits or Limits(), workers=1))
        stages = Histogram("fastrec_stage_seconds", "Time of a stage for a request's batch.", SECONDS, ("stage",))
        self.metrics.stages = stages

    async def answer(self, asked: AskedSessions, timeout: float, came: float) -> Answer:
        """Return the items of each session of a request, and the seconds of each stage."""
        if not asked.rows:
            return [], {}
        job: Any = Job(self.scorer, asked, timeout, came)  # type: ignore[arg-type]
        best, seconds = await self.batcher.submit(job)
        for stage, took in seconds.items():
            self.metrics.stages.see(took, stage)
        return best, seconds

    def _load(self, folder: str | Path, version: int | None = None) -> Any:
        model = open_model(folder, threads=self.limits.threads, device=self.limits.device)
        model.version = version
        model.warm()
        return model
