"""Write predictions as a submission: classes, probabilities, amounts or ranked lists in its form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from fastrec.competition.forms.lists import ranking_form
from fastrec.competition.forms.rows import SubmissionForm, rank_lists, ranked_strings
from fastrec.competition.forms.values import class_columns, sample_form
from fastrec.competition.reading import SAMPLES, table_files
from fastrec.competition.scoring import Decision
from fastrec.errors import DataError
from fastrec.table import Table
from fastrec.validate import Rows, Target

if TYPE_CHECKING:
    from fastrec.competition.run_record import TableRun


def form_of(run: TableRun) -> SubmissionForm:
    """Return the form of a run's submission: the recipe's, a sample file's, or ids and the target."""
    recipe, target, found = run.recipe, run.target, run.found
    if recipe.submission is not None:
        return recipe.submission
    lists = (recipe.list_column, recipe.item)
    ids = tuple(recipe.ids) or (lists if target is None else ())
    names = (found.train if found.test is None else found.test).names
    files = table_files(run.data, recipe.reading.files) if run.data.is_dir() else {}
    sample = next((files[n] for n in SAMPLES if n in files), None)
    if sample is not None and sample.suffix.lower() in (".csv", ".tsv"):
        known = [*names, *ids]
        return ranking_form(sample, *lists, known) if target is None else sample_form(sample, known)
    if target is None:
        return SubmissionForm(ids=ids, values=("score",))
    return SubmissionForm(ids=tuple(n for n in ids if n in names), values=tuple(target.names))


def write_submission_of(
    path: str | Path,
    rows: Rows,
    prediction: torch.Tensor,
    *,
    form: SubmissionForm,
    target: Target | None,
    decision: Decision,
    keys: Table,
    item: str | None = None,
) -> None:
    """Write predictions, float64 ``[n]`` or ``[n, k]`` on the learned scale, in a form.

    ``keys`` has the id columns, a row for each line of the form; ``item`` is a ranking's column of candidates.
    """
    if form.items:
        if target is not None or item is None:
            raise DataError("the form is one of lists, the task has none", remedy="Give one with values in the recipe")
        options = {"sep": form.item_sep, "k": form.max_items}
        lists = ranked_strings(rows.table[item].to_arrow(), prediction, rows.groups, **options)
        form.write(path, keys.to_arrow(), {form.items: lists})
        return
    arrow = keys.select([n for n in form.ids if n in keys]).to_arrow() if form.ids else pa.table({})
    if target is None:
        order, values = np.arange(len(rows)), decision.chances(prediction).numpy()
        if form.max_items is not None or form.ranks:
            ranked = rank_lists(prediction, rows.groups, k=form.max_items)
            order, lengths = ranked.order.numpy(), ranked.offsets.diff().numpy()
            starts = np.repeat(ranked.offsets[:-1].numpy(), lengths)
            values = np.arange(len(order)) - starts + 1 if form.ranks else values[order]
        taken = rows.table.select(list(form.ids)).to_arrow().take(pa.array(order))
        form.write(path, taken, {form.values[0]: values})
        return
    form.write(path, arrow, submission_values(form, target, prediction, decision))


def line_keys(form: SubmissionForm, table: Table, groups: torch.Tensor | None) -> Table:
    """Return the id columns of a form's lines: the first row of each list, or all rows without lists."""
    if not form.items:
        return table
    first = torch.ones(len(table), dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    return table.take(first.nonzero().squeeze(1).to(table.device))


def submission_values(
    form: SubmissionForm, target: Target, prediction: torch.Tensor, decision: Decision
) -> Mapping[str, Any]:
    """Return the value columns of a submission from predictions ``[n]`` or ``[n, k]`` on the learned scale."""
    own = target.restore(prediction)
    # With a metric of classes, the target's values are written.
    if decision.threshold is not None:
        return {form.values[0]: target.decode(decision.classes(own))}
    if decision.cuts is not None:
        return {form.values[0]: decision.classes(own).numpy()}
    if target.task == "multiclass" and len(form.values) == 1:
        return {form.values[0]: target.decode(own.argmax(1))}
    wide = own if own.dim() == 2 else own.unsqueeze(1)
    # One column for each class; the prediction is the probability of class 1.
    if target.task == "binary" and len(form.values) == 2:
        wide = torch.stack([1 - own, own], 1)
    if wide.shape[1] != len(form.values):
        problem = f"the form has {len(form.values)} value columns, {wide.shape[1]} values are predicted for a row"
        raise DataError(problem, remedy=f"Predicted are {', '.join(target.outputs)}")
    return {n: wide[:, i].numpy() for n, i in class_columns(form.values, target).items()}
