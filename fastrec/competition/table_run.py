"""The run of a recipe for rows and lists in memory: features, base models, stack, submission, scores and report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from fastai.torch_core import set_seed
from safetensors import SafetensorError
from xgboost.core import XGBoostError

from fastrec._core.atomic import atomic_folder, is_plain_name
from fastrec.competition.data import CompetitionData
from fastrec.competition.fitting import fit_recipe
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.kept_rows import keep_rows
from fastrec.competition.recipe import Competition
from fastrec.competition.run_files import now, write_run, write_scores
from fastrec.competition.run_options import RunOptions
from fastrec.competition.submit import form_of
from fastrec.errors import DataError, WriteError
from fastrec.estimators._on_ranks import check_ranks, training_on_ranks
from fastrec.report import write_report
from fastrec.scale.cluster import tables_on


def run_table(recipe: Competition, data: Path, out: Path, asked: RunOptions) -> None:
    """Carry a recipe for rows and lists out.

    Args:
        recipe, data, out: see ``run_competition``.
        asked: what the caller asked for.
    """
    check_models(recipe, asked.bs)
    started = now()
    check_ranks(asked.ranks, asked.device)
    set_seed(asked.seed)
    found = _read(recipe, data, asked)
    options = {"device": asked.device, "seed": asked.seed, "bs": asked.bs, "stages": asked.stages}
    with training_on_ranks(asked.ranks), tables_on(asked.scheduler, out) as split:
        made = fit_recipe(recipe, found, split=split, parts=asked.parts, budget=asked.budget, **options)
    ids = tuple(recipe.ids) or ((recipe.list_column, recipe.item) if made.target is None else ())
    names = (found.train if found.test is None else found.test).names
    made.form = form_of(recipe.submission, data, made.target, ids, names, recipe.reading.files)
    with atomic_folder(out) as part, _refusals_as_errors(out):
        with asked.stages.stage("write"):
            about = {"started": started, "data": data.resolve().name, **asked.notes()}
            if asked.budget is not None or made.left_out:
                about["left_out"] = made.left_out
            kept = keep_rows(asked.parts, made, data, seed=asked.seed)
            write_run(part, made, about if kept is None else {**about, "kept_rows": kept})
        write_scores(part, made, asked.stages.seconds, 0 if asked.parts is None else asked.parts.reused)
        with asked.stages.stage("report"):
            write_report(part, name=out.resolve().name)


def _read(recipe: Competition, data: Path, asked: RunOptions) -> CompetitionData:
    with asked.stages.stage("read") as advance:
        found = recipe.load(data, rows=asked.rows, device=asked.device)
        advance(len(found.train) + (0 if found.test is None else len(found.test)))
    if found.test is not None and not len(found.test):
        found.test = None
    if recipe.task == "ranking":
        check_candidates(recipe, found)
    return found


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
