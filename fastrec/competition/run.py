"""``run_competition``: a competition's recipe carried out, from its files to a complete run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fastai.torch_core import set_seed
from safetensors import SafetensorError
from xgboost.core import XGBoostError

from fastrec._core.atomic import atomic_folder, is_plain_name
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.progress import Stages
from fastrec.competition.budget import Budget
from fastrec.competition.data import CompetitionData
from fastrec.competition.fitting import fit_recipe
from fastrec.competition.form import SubmissionFormat
from fastrec.competition.kept_rows import keep_rows
from fastrec.competition.next_item import NextItemCompetition, run_next_item
from fastrec.competition.objectives import ObjectiveCompetition, run_objectives
from fastrec.competition.parts import Parts
from fastrec.competition.recipe import Competition
from fastrec.competition.run_files import now, write_run, write_scores
from fastrec.competition.streamed import StreamedCompetition, run_streamed
from fastrec.competition.submit import form_of
from fastrec.errors import DataError, WriteError
from fastrec.estimators._on_ranks import check_ranks, training_on_ranks
from fastrec.report import write_report
from fastrec.scale.cluster import tables_on


def run_competition(
    competition: Competition,
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
        competition: the recipe.
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
    budget = minutes if minutes is None or isinstance(minutes, Budget) else Budget(minutes)
    data, out = Path(data), Path(out)
    check_run_folder(out)
    if isinstance(competition, NextItemCompetition):
        if ranks > 1:
            raise DataError(f"{ranks} ranks for next-item models", remedy="Leave out ranks: one process trains these")
        if scheduler is not None:
            raise DataError(
                f"{competition.name} has no features that a cluster could make", remedy="Run it without --scheduler"
            )
        asked = {"rows": rows, "seed": seed, "bs": bs, "command": command, "budget": budget}
        where, stages, parts = resolve_device(device), stages or Stages(), Parts.beside(out) if resume else None
        return run_next_item(competition, data, out, device=where, stages=stages, parts=parts, **asked)
    _refuse_unused(competition, ranks=ranks > 1, scheduler=scheduler is not None, minutes=budget is not None, bs=bs)
    if isinstance(competition, StreamedCompetition):
        left = None if budget is None else max(budget.left / 60, 0.05)
        asked = {"rows": rows, "seed": seed, "bs": bs, "command": command, "minutes": left}
        where, stages = resolve_device(device), stages or Stages()
        return run_streamed(competition, data, out, device=where, stages=stages, **asked)
    if isinstance(competition, ObjectiveCompetition):
        given: dict[str, Any] = {"rows": rows, "seed": seed, "command": command}
        return run_objectives(competition, data, out, stages=stages or Stages(), **given)
    check_models(competition, bs)
    started = now()
    where = resolve_device(device)
    check_ranks(ranks, where)
    stages = stages or Stages()
    set_seed(seed)
    with stages.stage("read") as advance:
        found = competition.load(data, rows=rows, device=where)
        advance(len(found.train) + (0 if found.test is None else len(found.test)))
    if found.test is not None and not len(found.test):
        found.test = None
    if competition.task == "ranking":
        check_candidates(competition, found)
    parts = Parts.beside(out) if resume else None
    options = {"device": where, "seed": seed, "bs": bs, "stages": stages, "parts": parts, "budget": budget}
    with training_on_ranks(ranks), tables_on(scheduler, out) as split:
        made = fit_recipe(competition, found, split=split, **options)
    ids = tuple(competition.ids) or ((competition.list_column, competition.item) if made.target is None else ())
    names = (found.train if found.test is None else found.test).names
    made.form = form_of(competition.submission, data, made.target, ids, names, competition.reading.files)
    with atomic_folder(out) as part, _refusals_as_errors(out):
        with stages.stage("write"):
            about = {
                "started": started,
                "command": command,
                "data": data.resolve().name,
                "device": str(where),
                "rows": rows,
                "seed": seed,
                "bs": bs,
                "minutes": None if budget is None else budget.minutes,
                "ranks": ranks if ranks > 1 else None,
                "scheduler": scheduler,
                "left_out": budget.left_out if budget is not None else None,
                "kept_rows": keep_rows(parts, made, data, seed=seed),
            }
            write_run(part, made, {k: v for k, v in about.items() if v is not None})
        write_scores(part, made, stages.seconds, 0 if parts is None else parts.reused)
        with stages.stage("report"):
            write_report(part, name=out.resolve().name)
    if parts is not None:
        parts.clear()
    return out


def keeps_parts(competition: Competition) -> bool:
    """Whether an interrupted run of a recipe can go on from what it has finished."""
    return not isinstance(competition, StreamedCompetition | ObjectiveCompetition)


def _refuse_unused(competition: Competition, **asked: Any) -> None:
    """Refuse options that a recipe's kind has no use for, rather than leave them out in silence.

    Raises:
        DataError: naming the option.
    """
    unused = {"ranks", "scheduler"} if isinstance(competition, StreamedCompetition) else set()
    if isinstance(competition, ObjectiveCompetition):
        unused = {"ranks", "scheduler", "minutes", "bs"}
    found = next((n for n, given in asked.items() if given and n in unused), None)
    if found is not None:
        raise DataError(f"{competition.name}: {found} is of no use to it", remedy=f"Run it without --{found}")


def check_candidates(recipe: Competition, found: CompetitionData) -> None:
    """Refuse test lists that no submission can be made of. (Found before hours of training, not after.)

    Raises:
        DataError: an item is listed twice in one test list, or there is not one target per test list.
        MissingColumnError: the test table lacks the lists or the items.
    """
    test = found.test
    if test is None:
        return
    lists = test[recipe.list_column].integer().cpu()
    count = len(torch.unique(lists))
    by_list = recipe.submission is None or isinstance(recipe.submission, SubmissionFormat)
    if by_list and found.targets is not None and count != len(found.targets):
        raise DataError(
            f"{recipe.name}: {count} test lists, but {len(found.targets)} targets",
            column=recipe.list_column,
            remedy="Give one target per test list, in the order of the lists",
        )
    pairs = torch.stack([lists, test[recipe.item].coded().codes.cpu()], 1)
    _, codes = torch.unique(pairs, dim=0, return_inverse=True)
    order = torch.argsort(codes, stable=True)
    again = order[1:][codes[order][1:] == codes[order][:-1]]
    if len(again):
        row = int(again.min())
        raise DataError(
            f"{recipe.name}: the item stands in the test list {int(lists[row])} twice",
            column=recipe.item,
            row=row,
            remedy="Keep one candidate per item and list",
        )


def check_models(recipe: Competition, bs: int | None) -> None:
    """Refuse models whose names are not names of files in a run directory. (Found before hours of training, not after.)

    Raises:
        DataError: naming the model.
    """
    for name in [r.name for r in (*recipe.baselines(), *recipe.models(bs=bs))]:
        if not (isinstance(name, str) and is_plain_name(name)):
            raise DataError(
                f"{recipe.name}: the model's name {name!r} cannot be that of a folder",
                remedy="Use letters, digits and _",
            )


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


@contextmanager
def _refusals_as_errors(out: Path) -> Iterator[None]:
    """XGBoost and safetensors raise classes of their own where the file system refuses."""
    try:
        yield
    except (XGBoostError, SafetensorError) as error:
        raise WriteError(
            "could not be written (the file system refused a model's or a feature's file)",
            file=out,
            remedy="Free disk space or choose another place; what was there before is untouched",
        ) from error
