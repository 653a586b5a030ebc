"""``Work``: what a streamed ranking has done so far, which a process that begins anew goes on from."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastrec._core.fresh_process import begin_anew, may_begin_anew
from fastrec._core.malloc import give_all_back
from fastrec._core.progress import Stages
from fastrec.competition.run_record import Run, now
from fastrec.competition.streamed.laid import Laid
from fastrec.estimators import Estimator
from fastrec.features import FeatureSet

_FILE = "work.pickle"  # read by the process that wrote it alone: the folder's name says who that is


@dataclass
class Work:
    """What a streamed ranking has done so far.

    Args:
        folder: where its files are.
        stages: progress.
        started: when, for ``config.json``.
        models: the trained models, by name.
        done: the finished steps.
        made: the parts and the features, once they are there.
    """

    folder: Path
    stages: Stages
    started: str = field(default_factory=now)
    models: dict[str, Estimator] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, stages: Stages) -> Work:
        """Read the finished work of a folder; a new one has none."""
        work = cls(folder, stages)
        if (folder / _FILE).is_file():
            with open(folder / _FILE, "rb") as file:
                known, stages.seconds = pickle.load(file)
            vars(work).update(known)
        return work

    @property
    def laid(self) -> Laid:
        """The parts."""
        return self.made["laid"]

    @property
    def features(self) -> FeatureSet:
        """The features, with what they have learned."""
        return self.made["features"]

    def finish(self, step: str, *, anew: bool) -> None:
        """Note that a step is done.

        Args:
            step: its name.
            anew: the next one is to have a fresh process, where this one may be replaced.
        """
        self.done.append(step)
        if anew and may_begin_anew() and self._written():
            begin_anew(self.folder)
        give_all_back()  # what the allocator keeps of one step is of no use to the next

    def _written(self) -> bool:
        known = {n: v for n, v in vars(self).items() if n not in ("folder", "stages")}
        try:
            with open(self.folder / _FILE, "wb") as file:
                pickle.dump((known, self.stages.seconds), file, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):  # a function within a function: all goes on here
            return False
        return True


@dataclass(kw_only=True)
class ListsRun(Run):
    """A run of a ``StreamedRanking``.

    Attributes:
        work: its finished steps.
    """

    work: Work = field(init=False)
