"""What every ranker is: something that learns from lists of candidates and scores the candidates of other lists."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastrec._core.atomic import atomic_folder, check_replaceable
from fastrec.errors import NotFittedError
from fastrec.validate import Lists


@dataclass
class Trace:
    """What a ranker can tell of its training.

    Args:
        curves: one record per epoch: ``{'epoch': 0, 'train_loss': …, 'valid_loss': …, 'mrr': …}``.
        importance: feature → total gain.
    """

    curves: list[dict[str, float]] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)


class Ranker(ABC):
    """Learns from lists with labels, then scores candidates: the higher, the nearer the top."""

    name: str
    trace: Trace
    learns = True  # False: a rule, with nothing to train
    beside = False  # may train in a thread of its own: it draws on no global random state and lets the interpreter go

    @abstractmethod
    def fit(
        self, train: Lists, valid: Lists | None = None, *, seed: int = 0, device: torch.device | None = None
    ) -> Ranker:
        """Learn.

        Args:
            train: lists with labels.
            valid: other lists with labels, only to report on while training; nothing is chosen by them.
            seed: of everything random.
            device: where to train.
        """

    @abstractmethod
    def predict(self, data: Lists) -> torch.Tensor:
        """Scores of the candidates: float64 ``[n]`` on the CPU."""

    @abstractmethod
    def save(self, folder: Any) -> None:
        """Write what was learned as a folder, without pickle; an earlier save there is replaced in one step.

        Raises:
            WriteError: the folder holds something else, or the file system refused.
        """

    def forget(self) -> None:
        """Drop what was learned."""
        self.trace = Trace()

    def fresh(self) -> Ranker:
        """An untrained copy with the same settings."""
        made = copy.copy(self)
        made.forget()  # before the deep copy: a trained model may be large
        return copy.deepcopy(made)

    def not_fitted(self) -> NotFittedError:
        """What to raise where something was asked of an untrained ranker."""
        return NotFittedError(f"{self.name} has not been trained", remedy="Call fit first")


@contextmanager
def saved_to(folder: str | Path) -> Iterator[Path]:
    """A folder to save a ranker into, which takes the place of an earlier save when the block ends well."""
    check_replaceable(folder, "ranker.json", "blend")
    with atomic_folder(folder) as part:
        yield part
