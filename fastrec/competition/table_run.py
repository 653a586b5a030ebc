"""The steps of a run over rows and lists in memory, and the first of them: checks, reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from fastai.torch_core import set_seed

from fastrec._core.atomic import is_plain_name
from fastrec._core.messages import nearest, refuse_absent
from fastrec.competition.after_training import decide, explain, fit_stack, permute, score
from fastrec.competition.forms.rows import RowKeys, key_text
from fastrec.competition.forms.values import relevance
from fastrec.competition.predict import refuse_copies
from fastrec.competition.reading import CompetitionData, table_files, truth_file
from fastrec.competition.recipe import Competition
from fastrec.competition.run_features import cut_folds, make_features
from fastrec.competition.run_files import finish, write_fitted, write_submission
from fastrec.competition.run_record import TableRun
from fastrec.competition.submit import form_of, line_keys
from fastrec.competition.train_models import choose_inputs, fit_models, refit
from fastrec.errors import DataError, MissingColumnError
from fastrec.estimators._on_ranks import check_ranks, training_on_ranks
from fastrec.scale.dask import tables_on
from fastrec.table import Table
from fastrec.validate import Target


def check(run: TableRun) -> None:
    """Refuse models and options that would fail only after hours of training."""
    recipe = run.recipe
    ranking = recipe.task == "ranking"
    if recipe.position_as not in ("feature", "weights") or (recipe.position is not None and not ranking):
        problem = f"{recipe.name}: position={recipe.position!r}, position_as={recipe.position_as!r}"
        raise DataError(problem, remedy="Places are of a ranking, as 'feature' or 'weights'")
    if recipe.calibrate not in (None, "platt", "isotonic") or (recipe.calibrate is not None and not ranking):
        remedy = "Scores of a ranking take 'platt' or 'isotonic'"
        raise DataError(f"{recipe.name}: calibrate={recipe.calibrate!r}", remedy=remedy)
    check_models(recipe, run.bs)
    check_ranks(run.ranks, run.device)


def read(run: TableRun) -> None:
    """Read the rows, hide the targets of the test, and choose the submission form."""
    recipe = run.recipe
    set_seed(run.seed)
    with run.stages.stage("read") as advance:
        found = recipe.load(run.data, rows=run.rows, device=run.device)
        found.settle_types(recipe.reading.types)
        advance(len(found.train) + (0 if found.test is None else len(found.test)))
    # A file with only a header counts as absent.
    if found.test is not None and not len(found.test):
        found.test = None
    check_columns(recipe, found, run.data)
    if recipe.task == "ranking":
        check_candidates(recipe, found)
    run.target = recipe.find_target(found.train)
    run.found = (_labels_apart if run.target is None else _truth_apart)(recipe, found, run.target, run.data)
    run.form = form_of(run)
    # Refuse ids that cannot be written, and repeated ones. A ranking's targets may name lists only, while the
    # submission has a line for each candidate.
    form = run.form
    there = [t for t in (run.found.targets, run.found.test) if t is not None]
    rows = next((t for t in there if all(n in t for n in form.ids)), there[0] if there else None)
    if rows is None and not form.items and recipe.counted is None:
        rows = run.found.train
    if rows is None or not form.ids:
        return
    if form.items and run.found.targets is None:  # the rows are candidates, a line is a list
        rows = line_keys(form, rows, rows[recipe.list_column].group_numbers().cpu())
    table = rows.select([n for n in form.ids if n in rows]).to_arrow()
    RowKeys(pa.table({n: key_text(table, n) for n in form.ids}), form.ids, run.data).refuse_repeated()


def start_workers(run: TableRun) -> None:
    """Start the processes that train nets together, and the cluster's workers; they end with the run."""
    run.context.enter_context(training_on_ranks(run.ranks))
    run.split = run.context.enter_context(tables_on(run.scheduler, run.out))


def _truth_apart(recipe: Competition, found: CompetitionData, target: Target, data: Path) -> CompetitionData:
    """Hide the target of the test rows, and use it as their truth if known."""
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
            remedy = "Give the test's own truth"
            raise DataError(f"the truth has {len(truth)} rows, the test {len(test)}", file=file, remedy=remedy)
    return replace(found, test=test, truth=truth)


def _labels_apart(recipe: Competition, found: CompetitionData, _: None, data: Path) -> CompetitionData:
    """Hide the labels of the test lists, and convert the truth to labels of their candidates."""
    test, truth, ids = found.test, found.truth, [recipe.list_column, recipe.item]
    if test is None:
        return found
    file: Path = truth_file(data, recipe.reading.files) or data
    if recipe.label in test:
        if truth is None and not bool(test[recipe.label].is_missing().any()):
            truth, file = test.select([*ids, recipe.label]), data
        test = test.drop([recipe.label])
    if isinstance(truth, Table):
        remedy = f"Give {', '.join(ids)} and {recipe.label}, or move the file away"
        refuse_absent(ids, truth.names, "the truth lacks it", file=file, remedy=remedy)
        label = recipe.label if recipe.label in truth else None
        names = [*ids, *([label] if label else [])]
        values, counted = relevance(test.select(ids).to_arrow(), truth.select(names).to_arrow(), ids, label, file)
        if not counted.all():
            row = int((~counted).argmax())
            problem = f"the truth has no line of the test list in row {row} ({int((~counted).sum())} such rows)"
            remedy = "Give the truth of every list, or move the file away"
            raise DataError(problem, file=file, column=ids[0], remedy=remedy)
        truth = torch.from_numpy(values)
    return replace(found, test=test, truth=truth)


def check_columns(recipe: Competition, found: CompetitionData, data: Path) -> None:
    """Refuse columns that the recipe names and the rows lack (``MissingColumnError``), before features are computed."""
    targets = [recipe.target] if isinstance(recipe.target, str) else list(recipe.target or ())
    either = {"drop": recipe.drop, "ids": recipe.ids}  # in one of both is enough
    needed = {"target": targets, "weight": [recipe.weight], "fold_key": [recipe.fold_key], "time": [recipe.time]}
    needed |= either
    if recipe.task == "ranking":
        lists = {"list_column": [recipe.list_column], "item": [recipe.item]}
        needed = {**lists, "label": [recipe.label], **needed, "target": [], "last_of": [recipe.last_of]}
    usual = type(recipe).load is Competition.load  # a custom load's rows are in no single file
    files = table_files(data, recipe.reading.files) if usual else {}
    for split, rows in (("train", found.train), ("test", found.test)):
        for attribute, names in needed.items() if rows is not None else ():
            there = {None, *rows.names}
            there |= {*found.test.names} if attribute in either and found.test is not None else set()
            absent = next((n for n in names if n not in there), None)
            if absent is None or (split == "test" and attribute not in ("list_column", "item")):
                continue
            features = recipe.features()
            if features is not None and absent in features.outputs:
                continue
            near = nearest(absent, rows.names)
            problem = f"the {split} rows lack the recipe's {attribute}"
            remedy = (f"Did you mean {near!r}? " if near else "") + f"There are {', '.join(rows.names)}"
            raise MissingColumnError(problem, file=files.get(split, data), column=absent, remedy=remedy)


def check_candidates(recipe: Competition, found: CompetitionData) -> None:
    """Refuse test lists that cannot be written: an item twice in a list, or not one target per list."""
    test = found.test
    if test is None:
        return
    count = len(torch.unique(test[recipe.list_column].group_numbers()))
    by_list = recipe.submission is None or recipe.submission.items
    if by_list and found.targets is not None and count != len(found.targets):
        problem = f"{recipe.name}: {count} test lists, but {len(found.targets)} targets"
        remedy = "Give one target per test list, in the order of the lists"
        raise DataError(problem, column=recipe.list_column, remedy=remedy)
    refuse_copies(test, recipe.list_column, recipe.item)


def check_models(recipe: Competition, bs: int | None) -> None:
    """Refuse models whose names cannot be folder names."""
    for name in [r.name for r in (*recipe.baselines(), *recipe.models(bs=bs))]:
        if not (isinstance(name, str) and is_plain_name(name)):
            remedy = "Use letters, digits and _"
            raise DataError(f"{recipe.name}: the model's name {name!r} cannot be that of a folder", remedy=remedy)


TABLE = [check, read, start_workers, cut_folds, make_features, choose_inputs, fit_models, refit, fit_stack, permute]
TABLE += [decide, score, write_fitted, write_submission, explain, finish]
