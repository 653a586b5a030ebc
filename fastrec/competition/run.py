"""``run_competition``: a competition's recipe carried out, from its files to a complete run directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.leftovers import alone_at
from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.load import load_competition
from fastrec.competition.next_items.recipe import NextItemCompetition, run_next_item
from fastrec.competition.objectives import ObjectiveCompetition, run_objectives
from fastrec.competition.parts import Parts
from fastrec.competition.recipe import Competition
from fastrec.competition.recipe_check import check_recipe
from fastrec.competition.run_options import RunOptions
from fastrec.competition.streamed.clicks import StreamedCompetition, run_streamed
from fastrec.competition.streamed.lists import StreamedRanking, run_streamed_ranking
from fastrec.competition.table_run import run_table
from fastrec.errors import DataError, WriteError


@dataclass(frozen=True)
class _Kind:
    """How a kind of recipe is carried out.

    Args:
        run: makes the run directory.
        takes: which of the options that not every kind has a use for.
        keeps_parts: whether an interrupted run can go on from what it has finished.
    """

    run: Callable[[Competition, Path, Path, RunOptions], None]
    takes: frozenset[str]
    keeps_parts: bool = False


_KINDS: dict[type[Competition], _Kind] = {
    Competition: _Kind(run_table, frozenset({"bs", "minutes", "ranks", "scheduler"}), keeps_parts=True),
    NextItemCompetition: _Kind(run_next_item, frozenset({"bs", "minutes"}), keeps_parts=True),
    StreamedCompetition: _Kind(run_streamed, frozenset({"bs", "minutes"})),
    StreamedRanking: _Kind(run_streamed_ranking, frozenset({"bs"})),
    ObjectiveCompetition: _Kind(run_objectives, frozenset()),
}


def run_competition(
    competition: Competition | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    device: DeviceLike = "auto",
    rows: int | None = None,
    seed: int = 0,
    bs: int | None = None,
    stages: Stages | None = None,
    command: str | None = None,
    resume: bool = False,
    minutes: float | Budget | None = None,
    ranks: int = 1,
    scheduler: str | None = None,
) -> Path:
    """Carry a recipe out: features, base models, stack, submission, scores and report.

    With ``resume`` what is finished is kept beside the run directory (``.NAME.parts``): a run that is interrupted goes
    on from there, and one after a change makes anew what the change concerns.

    Args:
        competition: the recipe, or the folder of its ``competition.py``.
        data: the folder of the competition's files.
        out: the run directory to make; an earlier run there is replaced when this one is complete, and not before.
        device: where to compute; ``'auto'`` takes CUDA where there is one.
        rows: use only about this many training rows.
        seed: of everything random.
        bs: the nets' batch size in rows; None: the recipe's.
        stages: progress; None: shown on standard error.
        command: what to note as the command in ``config.json``.
        resume: keep finished parts, and use those of an earlier run, as ``fastrec run`` does.
        minutes: the wall time that all may take; None: as much as it takes. Models are fitted in the recipe's order,
            each in its share of what is left; one that does not fit into it is left out.
        ranks: processes on this machine that train each net together; everything else is this process's. ``bs`` is
            that of all of them together.
        scheduler: the Dask cluster that makes the features: the address of its scheduler (``tcp://…``), or ``local:N``
            for N worker processes on this machine, which end with the run; None: this process makes them. The files are
            read, and the models trained, in this process. Workers read the rows from a folder beside ``out``.

    Returns:
        The run directory.

    Raises:
        FastrecError: something in the data or the place to write to is not usable; nothing is left half written.
    """
    if isinstance(competition, str | Path):
        competition = load_competition(competition)
    check_recipe(competition, bs=bs)
    budget = minutes if minutes is None or isinstance(minutes, Budget) else Budget(minutes)
    data, out = Path(data), Path(out)
    check_run_folder(out)
    kind = _kind_of(competition)
    asked = RunOptions(
        device=resolve_device(device),
        stages=stages or Stages(),
        rows=rows,
        seed=seed,
        bs=bs,
        command=command,
        parts=Parts.beside(out) if resume and kind.keeps_parts else None,
        budget=budget,
        ranks=ranks,
        scheduler=scheduler,
    )
    useless = sorted(asked.asked() - kind.takes)
    if useless:
        raise DataError(f"{competition.name}: {useless[0]} is of no use to it", remedy=f"Run it without --{useless[0]}")
    with alone_at(out):
        kind.run(competition, data, out, asked)
        if asked.parts is not None:
            asked.parts.clear()
    return out


def keeps_parts(competition: Competition) -> bool:
    """Whether an interrupted run of a recipe can go on from what it has finished."""
    return _kind_of(competition).keeps_parts


def _kind_of(competition: Competition) -> _Kind:
    return next(_KINDS[c] for c in type(competition).__mro__ if c in _KINDS)


def check_run_folder(out: Path) -> None:
    """Refuse to replace a folder that is not an earlier run.

    Raises:
        DataError: ``out`` is a file, or a folder with something else in it.
        WriteError: the folder around it cannot be written to. (Found before hours of training, not after.)
    """
    above = next(p for p in Path(os.path.abspath(out)).parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise WriteError(
            f"could not be written ({above} is not a folder to write to)", file=out, remedy="Choose another --out"
        )
    if out.is_file():
        raise DataError("this is a file, not a run directory", file=out, remedy="Choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / "scores.json").exists():
        raise DataError(
            "the folder holds something that is not a run", file=out, remedy="Choose another --out, or empty it"
        )
