"""Recipes for files larger than memory: of 0 or 1 outcomes, and of lists to rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastrec.competition.reading import CompetitionData
from fastrec.competition.recipe import Competition, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import nn

    from fastrec._core.progress import Stages
    from fastrec.tabular import ParquetFrame


@dataclass(frozen=True)
class StreamedNet:
    """A net of a streamed recipe, and how it is trained.

    Args:
        model: a class of ``fastrec.models``.
        options: its options.
        width: of every embedding table; None: by the number of values.
        bs: rows in a batch; None: from 256 to 8192, for at least 500 batches if possible.
        lr: the highest rate of the one-cycle schedule at batches of 8192 rows; it scales with the root of the batch
            size.
        epochs: passes over the rows; for clicks one is best (arXiv 1906.00091; more memorise rare values).
        wd: weight decay.
    """

    model: type[nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int | None = None
    bs: int | None = None
    lr: float = 1e-2
    epochs: int = 1
    wd: float = 0.0


class StreamedCompetition(Competition):
    """A recipe for files larger than memory, of clicks or other outcomes that are 0 or 1.

    Nets are trained on the stream and scored on the frame's validation rows, which are the test and choose nothing.
    Their weights are fitted on predictions of the last training rows before the nets were trained on them. ``fastrec
    export`` and ``fastrec predict`` take the run directory.

    Attributes:
        buffer_rows: rows that are shuffled together.
    """

    _kind: ClassVar[Kind] = Kind("fastrec.competition.streamed.clicks:CLICKS", frozenset({"bs", "minutes"}))
    task = "binary"
    metric = "auc"
    also = ("logloss",)
    target = "label"
    buffer_rows = 1_000_000

    @abstractmethod
    def frame(self, data: Path, cache: Path, *, rows: int | None, stages: Stages) -> ParquetFrame:
        """Return training rows, and the test's as validation rows, with a target that is 0 or 1.

        Args:
            data: the folder of the competition's files.
            cache: a folder for packed rows.
            rows: use only about this many training rows.
        """

    @abstractmethod
    def nets(self) -> Mapping[str, StreamedNet]:
        """Return the nets by name; a weighted mean of their probabilities is submitted."""

    @abstractmethod
    def sample(self, data: Path, rows: int) -> pa.Table:
        """Return some raw test rows with all columns but the target."""

    def oracle(self, data: Path) -> float | None:
        """Return the best possible score on the test, if known."""
        return None


class StreamedRanking(Competition):
    """A ranking recipe for files larger than memory.

    Every ``held_out``-th part is held out to score the models. The run directory predicts, checks and scores like any
    other.

    Attributes:
        together: columns of users, sessions, lists: all rows of one value are in one part.
        held_out: the held-out share is one part in so many.
        buffer_rows: rows that a net's stream shuffles together.
        fresh_from: number of candidates from which each step of ``fastrec run`` has a fresh process, with all memory;
            it takes some seconds to start.
    """

    _kind: ClassVar[Kind] = Kind(
        "fastrec.competition.streamed.lists:LISTS", frozenset({"bs"}), "fastrec.competition.streamed.lists:ListsRun"
    )
    task = "ranking"
    together: Sequence[str] = ()
    held_out = 10
    buffer_rows = 500_000
    fresh_from = 2_000_000

    @abstractmethod
    def split(self, data: Path, folder: Path, *, rows: int | None) -> list[Path]:
        """Split the files into folders for ``load_part``, each much smaller than memory; at least two.

        Args:
            data: the folder of the competition's files.
            folder: the folder to write to.
            rows: use only about this many training rows.
        """

    @abstractmethod
    def load_part(self, part: Path) -> CompetitionData:
        """Read the rows, targets and other tables of one part."""

    @abstractmethod
    def nets(self) -> Mapping[str, StreamedNet]:
        """Return the nets by name; trees are the ``XGBRanker`` among ``models``."""
