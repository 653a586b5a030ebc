"""Recipes for files larger than memory: of outcomes that are 0 or 1, and of lists to rank."""

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
        options: its own options.
        width: of every table; None: by the number of values.
        bs: rows in a batch; None: so that there are 500 batches or more, but from 256 to 8192 rows.
        lr: the highest rate of the one-cycle schedule, at batches of 8192 rows; it goes with the root of their size.
        epochs: how often every row is seen; of clicks one is best (arXiv 1906.00091; more learn rare values by heart).
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

    Each net learns from the stream; they are scored on the frame's validation rows, which are the test, and by nothing
    else: no choice is made by it. Their weights are found by what each said of the last training rows before it learned
    from them. The run directory is like any other's: ``fastrec export`` and ``fastrec predict`` take it.

    Attributes:
        buffer_rows: rows that are mixed with one another at a time.
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
        """Return some test rows with all columns but the target, as they are before anything is prepared."""

    def oracle(self, data: Path) -> float | None:
        """Return the best possible score on the test, if it is known."""
        return None


class StreamedRanking(Competition):
    """A ranking recipe for files larger than memory.

    Every ``held_out``-th part is not learned from: models are scored on its lists. The run directory predicts, checks
    and scores like any other's.

    Attributes:
        together: columns of users, sessions, lists: all rows of one value are in one part.
        held_out: one part in so many is held out.
        buffer_rows: rows that a net mixes with one another at a time.
        fresh_from: candidates from which each step of ``fastrec run`` has a fresh process, and all memory to itself;
            starting it takes some seconds.
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
        """Cut the files into folders that ``load_part`` reads, each small beside memory; at least two.

        Args:
            data: the folder of the competition's files.
            folder: where to.
            rows: use only about this many training rows.
        """

    @abstractmethod
    def load_part(self, part: Path) -> CompetitionData:
        """Read the rows, targets and other tables of one part."""

    @abstractmethod
    def nets(self) -> Mapping[str, StreamedNet]:
        """Return the nets by name; the trees are the ``XGBRanker`` among ``models``."""
