"""The rows of a finished run's folds, read from its parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.scoring import Scorer
from fastrec.table import Table, load_state
from fastrec.validate import Rows, Target


class FoldRows:
    """What a run's models were trained on and scored by, fold by fold.

    What no target passes through is the same in every fold, and read once; the rest is read when its fold comes.

    Args:
        run: the run directory; its parts are beside it.

    Raises:
        MissingFileError, UnreadableFileError: it is no run directory, or its parts are not there.
    """

    def __init__(self, run: str | Path) -> None:
        self.kept = kept = KeptRows(run)
        names = [*kept.cats, *kept.conts]
        made = [n for n in names if n in kept.outputs]
        self._own = [n for n in made if n in kept.from_targets or not kept.nested]
        own = kept.train([n for n in names if n not in made])
        same = kept.made([n for n in made if n not in self._own])
        self._table = Table({n: t[n] for t in (own, same) for n in t.names})
        target = None if kept.task == "ranking" else Target.from_state(load_state(kept.run / "target"))
        self.scorer = Scorer.of(kept.config["metric"], target)
        self.all = kept.rows(Table({"row": torch.arange(len(kept))}))  # labels and lists, to score by

    def __iter__(self) -> Iterator[tuple[Rows, Rows, torch.Tensor]]:
        """For each fold the rows to train on, those that it scores, and where the latter stand."""
        for k, sides in enumerate(self.kept.folds):
            own = self.kept.made_of_fold(k, self._own) if self._own else (Table({}), Table({}))
            train, scored = (self._side(rows, made) for rows, made in zip(sides, own, strict=True))
            yield train, scored, sides[1]

    def _side(self, rows: torch.Tensor, made: Table) -> Rows:
        table = self._table.take(rows) if self._table.names else made
        return self.kept.rows(table.with_columns({n: made[n] for n in made.names}), rows)

    def score(self, oof: torch.Tensor, known: torch.Tensor) -> float:
        """The run's metric out of fold.

        Args:
            oof: float64 ``[n]`` or ``[n, k]``: predictions of the training rows.
            known: bool ``[n]``: the rows that have been predicted; of these the run's scored ones count.
        """
        numbers = torch.full((len(self.kept),), -1, dtype=torch.int64)
        for k, (_, inside) in enumerate(self.kept.folds):
            numbers[inside] = k
        return self.scorer(self.all, oof, known & self.kept.scored, folds=numbers)
