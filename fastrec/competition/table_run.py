"""The run of a recipe for rows and lists in memory: features, base models, stack, submission, scores and report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from fastai.torch_core import set_seed
from safetensors import SafetensorError
from xgboost.core import XGBoostError

from fastrec._core.atomic import atomic_folder, is_plain_name
from fastrec.competition.data import CompetitionData
from fastrec.competition.data_folder import truth_file
from fastrec.competition.fitting import fit_recipe
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.forms.row_keys import RowKeys, key_text
from fastrec.competition.forms.value_form import ValueForm
from fastrec.competition.forms.value_rows import relevance
from fastrec.competition.kept_rows import keep_rows
from fastrec.competition.recipe import Competition
from fastrec.competition.run_files import now, write_run, write_scores
from fastrec.competition.run_options import RunOptions
from fastrec.competition.submit import Form, form_of
from fastrec.errors import DataError, MissingColumnError, WriteError
from fastrec.estimators._on_ranks import check_ranks, training_on_ranks
from fastrec.report import write_report
from fastrec.scale.cluster import tables_on
from fastrec.table import Table
from fastrec.validate import Target


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
    target = recipe.find_target(found.train)
    found = (_labels_apart if target is None else _truth_apart)(recipe, found, target, data)
    ids = tuple(recipe.ids) or ((recipe.list_column, recipe.item) if target is None else ())
    names = (found.train if found.test is None else found.test).names
    form = form_of(recipe.submission, data, target, ids, names, recipe.reading.files)
    _check_lines(recipe, form, found, data)
    options = {"device": asked.device, "seed": asked.seed, "bs": asked.bs, "stages": asked.stages}
    with training_on_ranks(asked.ranks), tables_on(asked.scheduler, out) as split:
        made = fit_recipe(recipe, found, target, split=split, parts=asked.parts, budget=asked.budget, **options)
    made.form = form
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
        found.settle_types(recipe.reading.types)
        advance(len(found.train) + (0 if found.test is None else len(found.test)))
    if found.test is not None and not len(found.test):
        found.test = None
    if recipe.task == "ranking":
        check_candidates(recipe, found)
    return found


def _check_lines(recipe: Competition, form: Form, found: CompetitionData, data: Path) -> None:
    """Refuse ids of which no submission can be made. (Found before hours of training, not after.)

    Raises:
        MissingColumnError, DataError: a column of ids is absent, has a missing value, or is of no exact text.
        SubmissionError: two rows have the same ids.
    """
    values = isinstance(form, ValueForm)
    # The targets of a ranking may name lists alone, while the submission has a line for each candidate of the test.
    there = [t for t in (found.targets, found.test) if t is not None]
    rows = next((t for t in there if all(n in t for n in form.keys_needed)), there[0] if there else None)
    if rows is None and values and recipe.counted is None:
        rows = found.train
    if rows is None or not form.keys_needed:
        return
    table = rows.select([n for n in form.keys_needed if n in rows]).to_arrow()
    keys = {n: key_text(table, n, what="id", times=values) for n in form.keys_needed}
    RowKeys(pa.table(keys), form.keys_needed, data).refuse_repeated()


def _truth_apart(recipe: Competition, found: CompetitionData, target: Target, data: Path) -> CompetitionData:
    """The data with test rows that do not show their target: where they had one, it is the truth, row by row.

    Raises:
        DataError: by the truth the test cannot be scored. (Found before hours of training, not after.)
    """
    test, truth = found.test, found.truth
    if test is None:
        return found
    file, there = truth_file(data, recipe.reading.files) or data, [n for n in target.names if n in test]
    if truth is None and len(there) == len(target.names) and bool(target.known(test).all()):
        truth, file = test.select(target.names), data
    test = test.drop(there)
    if truth is not None:
        truth = truth if isinstance(truth, Table) else Table.read(truth)
        try:
            target.encode(truth)
        except DataError as error:
            about = {"column": error.column, "row": error.row, "remedy": error.remedy}
            raise DataError(f"the truth of the test: {error.problem}", file=file, **about) from error
        ids = [n for n in recipe.ids if n in truth and n in test]
        if ids:
            asked, known = (RowKeys(t.select(ids).to_arrow(), ids, file) for t in (test, truth))
            truth = truth.take(torch.from_numpy(asked.match(known, role="no row", complete=False)).to(truth.device))
        if len(truth) != len(test):
            raise DataError(
                f"the truth has {len(truth)} rows, the test {len(test)}", file=file, remedy="Give the test's own truth"
            )
    return replace(found, test=test, truth=truth)


def _labels_apart(recipe: Competition, found: CompetitionData, _: None, data: Path) -> CompetitionData:
    """The data with test lists that do not show their labels, and the truth as labels of the test's candidates.

    Raises:
        FastrecError: by the truth the test cannot be scored. (Found before hours of training, not after.)
    """
    test, truth, ids = found.test, found.truth, [recipe.list_column, recipe.item]
    if test is None:
        return found
    file: Path = truth_file(data, recipe.reading.files) or data
    if recipe.label in test:
        if truth is None and not bool(test[recipe.label].is_missing().any()):
            truth, file = test.select([*ids, recipe.label]), data
        test = test.drop([recipe.label])
    if isinstance(truth, Table):
        absent = next((n for n in ids if n not in truth), None)
        if absent is not None:
            raise MissingColumnError(
                "the truth lacks it", file=file, column=absent,
                remedy=f"Give {', '.join(ids)} and {recipe.label}, or move the file away",
            )  # fmt: skip
        label = recipe.label if recipe.label in truth else None
        names = [*ids, *([label] if label else [])]
        values, counted = relevance(test.select(ids).to_arrow(), truth.select(names).to_arrow(), ids, label, file)
        if not counted.all():
            row = int((~counted).argmax())
            raise DataError(
                f"the truth has no line of the test list in row {row} ({int((~counted).sum())} such rows)", file=file,
                column=ids[0], remedy="Give the truth of every list, or move the file away",
            )  # fmt: skip
        truth = torch.from_numpy(values)
    return replace(found, test=test, truth=truth)


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
