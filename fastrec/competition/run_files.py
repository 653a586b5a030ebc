"""The run directory: the files that every kind of run writes, and those of runs over tables."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from xgboost.core import XGBoostError

from fastrec._core import limits
from fastrec._core.atomic import atomic_folder, now, write_json
from fastrec._core.environment import installed_version
from fastrec._version import __version__
from fastrec.competition.explain import BACKGROUND, background_rows
from fastrec.competition.kept_rows import keep_rows
from fastrec.competition.recipe import Competition
from fastrec.competition.run_record import Run, TableRun, shown_first
from fastrec.competition.scoring import Decision, click_weights, examination
from fastrec.competition.submit import line_keys, write_submission_of
from fastrec.errors import WriteError
from fastrec.estimators import Estimator, Trace
from fastrec.report import write_report
from fastrec.stacking import StackModel
from fastrec.table import Table, save_state
from fastrec.validate import Rows, Target

_PACKAGES = ("fastrec-tabular", "torch", "fastai", "xgboost", "lightgbm", "catboost", "pyarrow", "pandas", "numpy")


@contextmanager
def run_folder(run: Run) -> Iterator[Path]:
    """Yield a folder that becomes the run directory when it is complete; ``run.scores`` and the report come last."""
    try:
        with atomic_folder(run.out) as part:
            yield part
            about = {"reused": 0 if run.parts is None else run.parts.reused}
            about["seconds"] = {n: round(s, 3) for n, s in run.stages.seconds.items()}
            write_json(part / "scores.json", {"task": run.recipe.task, **run.scores, **about})
            with run.stages.stage("report"):
                write_report(part, name=run.out.resolve().name)
        if run.parts is not None:
            run.parts.clear()
    except (XGBoostError, SafetensorError) as error:  # their classes for errors of the file system
        problem = "could not be written (the file system refused a model's or a feature's file)"
        remedy = "Free disk space or choose another place; what was there before is untouched"
        raise WriteError(problem, file=run.out, remedy=remedy) from error


def write_config(part: Path, run: Run, more: Mapping[str, Any]) -> None:
    """Write ``config.json``: recipe, time, device, data, and the notes of the kind of run."""
    recipe = run.recipe
    machine = f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads"
    versions = {p: v for p in _PACKAGES if (v := installed_version(p)) is not None}
    config = {"competition": recipe.name, "task": recipe.task, **run.notes, "finished": now(), "fastrec": __version__}
    config |= {"python": platform.python_version(), "machine": machine, "git_revision": git_revision(type(recipe))}
    write_json(part / "config.json", {**config, "versions": versions, **more})


def write_models(
    part: Path,
    models: Mapping[str, Sequence[Estimator]],
    stack: StackModel,
    *,
    target: Target | None = None,
    decision: Decision | None = None,
    traces: Mapping[str, Trace] | None = None,
) -> None:
    """Write each fold's models, the stack, the target, the decision, curves and importance.

    Without ``traces``, those of the first fold's models are taken; without ``decision``, predictions are not converted.
    """
    for name, folds in models.items():
        for k, model in enumerate(folds):
            model.save(part / "models" / name / f"fold{k}")
    stack.save(part / "stack")
    write_json(part / "decision.json", asdict(decision or Decision()))
    if target is not None:
        save_state(part / "target", target.to_state())
    traces = {n: folds[0].trace for n, folds in models.items()} if traces is None else traces
    write_json(part / "curves.json", {n: t.curves for n, t in traces.items() if t.curves})
    write_json(part / "importance.json", {n: t.importance for n, t in traces.items() if t.importance})


def recipe_notes(recipe: Competition, cats: Sequence[str], conts: Sequence[str]) -> dict[str, Any]:
    """Return the notes in ``config.json`` by which a run predicts and retrains without the recipe's code."""
    notes = {"features": [*cats, *conts], "categories": list(cats), "history": recipe.history}
    gap = recipe.time_gap if isinstance(recipe.time_gap, str | int | float) else str(pd.Timedelta(recipe.time_gap))
    kept = ("fold_key", "time", "weight", "counted", "touched", "position", "position_as", "calibrate")
    about = {**{n: getattr(recipe, n) for n in kept}, "time_gap": gap}  # read by ``SavedRecipe``
    about["also"] = [m for m in recipe.also if isinstance(m, str)]
    notes |= {"recipe": about, "reading": asdict(recipe.reading)}
    if recipe.task == "ranking":
        notes |= {n: getattr(recipe, n) for n in ("list_column", "item", "label")}
    return notes


def git_revision(recipe: type[Competition]) -> str | None:
    """Return the revision of the workspace that the recipe is in."""
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    folder = Path(file).resolve().parent if file else Path.cwd()
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, cwd=folder
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def write_fitted(run: TableRun) -> None:
    """Write everything fitted and predicted, complete without the recipe's code."""
    run.context.close()  # free the workers' resources first
    part = run.part = run.context.enter_context(run_folder(run))
    with run.stages.stage("write"):
        more: dict[str, Any] = {"left_out": run.left_out} if run.budget is not None or run.left_out else {}
        rows = keep_rows(run)
        more |= {} if rows is None else {"kept_rows": rows}
        if run.prepared.parts is not None and run.prepared.features is not None:
            shutil.copytree(run.parts.folder / run.prepared.part_names["whole"] / "state", part / "features")
        elif run.prepared.features is not None:
            run.prepared.features.save(part / "features")
        models = {n: p.models for n, p in run.predictions.items() if n != "stack"}
        traces = {n: Trace(p.curves, p.importance) for n, p in run.predictions.items()}
        about = {"target": run.target, "decision": run.decision, "traces": traces}
        write_models(part, models, run.outcome.model, **about)
        run.folds.save(part / "folds.parquet")
        _write_predictions(part, run)
        if run.target is None:
            pq.write_table(_list_table(run), part / "lists.parquet")
        else:
            pq.write_table(_row_table(run), part / "rows.parquet")
        if run.recipe.position:
            write_json(part / "position.json", _position(run))
        if run.permutation:
            write_json(part / "permutation.json", run.permutation)
        _write_samples(part, run)
        write_config(part, run, {**_config(run), **more})


def _write_samples(part: Path, run: TableRun) -> None:
    """Write some rows with all their columns as the models saw them.

    ``sample.parquet`` has test rows without the target, for the types of an exported graph's inputs.
    ``sample_labelled.parquet`` has training rows, to score changes of a graph. ``…_events.parquet`` has the events
    before their lists, if models read them.
    """
    ranking = run.target is None
    sample = _first_rows(run.train if run.test is None else run.test, ranking)
    place = run.place_of_scores if ranking else {}
    sample = sample.drop([] if ranking else [n for n in run.target.names if n in sample])
    labelled = _first_rows(run.train, ranking)
    if ranking and run.train.label is not None:
        labelled = labelled.with_columns({run.recipe.label: run.train.label[: len(labelled)].double()})
    for name, table, is_train in (("sample", sample, run.test is None), ("sample_labelled", labelled, True)):
        table = shown_first(table, place)
        pq.write_table(table.to_arrow(), part / f"{name}.parquet")
        events = run.events(labelled=is_train)
        if events is not None:
            before = events.log.take(events.log_rows(table[run.recipe.list_column].group_numbers().cpu()))
            pq.write_table(before.to_arrow(), part / f"{name}_events.parquet")
    if not ranking:  # raw rows, the background of explanations
        plain = run.found.train.take(background_rows(run.predictions["stack"].oof, limits.BACKGROUND_ROWS))
        pq.write_table(plain.drop([n for n in run.target.names if n in plain]).to_arrow(), part / BACKGROUND)


def _first_rows(rows: Rows, ranking: bool) -> Table:
    count = min(len(rows), limits.SAMPLE_ROWS)
    if ranking and rows.groups is not None and count < len(rows):
        starts = (rows.groups[1:] != rows.groups[:-1]).nonzero().squeeze(1) + 1
        count = int(starts[starts <= count][-1])
    return rows.table.slice(0, count)


def write_submission(run: TableRun) -> None:
    """Write the test rows' predictions; without test rows the scored training rows' out-of-fold ones."""
    stack = run.predictions["stack"]
    if run.test is not None:
        rows, prediction = run.test, stack.test
        keys = line_keys(run.form, run.found.test, rows.groups) if run.found.targets is None else run.found.targets
    else:
        chosen = run.counted & ~stack.oof.reshape(len(stack.oof), -1).isnan().any(1)
        rows, prediction = run.train.take(chosen), stack.oof[chosen]
        table = run.found.train
        keys = line_keys(run.form, table.take(chosen.nonzero().squeeze(1).to(table.device)), rows.groups)
    about = {"form": run.form, "target": run.target, "decision": run.decision, "keys": keys}
    write_submission_of(
        run.part / "submission.csv", rows, prediction, **about, item=run.recipe.item if run.target is None else None
    )


def finish(run: TableRun) -> None:
    """Leave ``run_folder``, which writes the scores and the report and puts the complete folder in its place."""
    run.context.close()


def _splits(run: TableRun) -> list[tuple[str, Rows]]:
    return [("oof", run.train), *([("test", run.test)] if run.test is not None else [])]


def _write_predictions(part: Path, run: TableRun) -> None:
    recipe, target = run.recipe, run.target
    for split, rows in _splits(run):
        (part / split).mkdir()
        for name, one in run.predictions.items():
            values = one.oof if split == "oof" else one.test
            columns: dict[str, Any] = {}
            if target is None:
                columns[recipe.list_column] = rows.table[recipe.list_column].to_arrow()
                columns[recipe.item] = rows.table[recipe.item].to_arrow()
                columns["score"] = values.numpy()
            elif values.dim() == 1:
                columns["prediction"] = target.restore(values).numpy()
            else:
                restored = target.restore(values)
                columns |= {f"prediction_{n}": restored[:, i].numpy() for i, n in enumerate(target.outputs)}
            if name == "stack" and split == "oof" and run.chances is not None:
                columns["chance"] = run.chances.numpy()
            if name == "stack" and split == "oof" and recipe.counted:
                columns["counted"] = run.counted.numpy()
            if rows.label is not None:
                columns["fold"] = run.folds.last_codes.numpy()
                if target is None:
                    columns[recipe.label] = rows.label.numpy()
            pq.write_table(pa.table(columns), part / split / f"{name}.parquet")


def _row_table(run: TableRun) -> pa.Table:
    tables, truth = [], run.known_test()
    for split, rows in _splits(run):
        label = run.train.label if split == "oof" else None if truth is None else truth.label
        columns: dict[str, Any] = {"split": pa.array([split] * len(rows), pa.string())}
        columns |= {n: rows.table[n].to_arrow().cast(pa.large_string()) for n in run.recipe.ids if n in rows.table}
        columns["fold"] = run.folds.last_codes.numpy() if split == "oof" else np.full(len(rows), -1)
        names = run.target.names  # a multiclass task's labels are codes in one column
        wide = torch.full((len(rows), len(names)), torch.nan, dtype=torch.float64)
        if label is not None:
            wide = run.target.restore(label.double()).reshape(len(rows), -1)
        columns |= {f"label_{n}": wide[:, i].numpy() for i, n in enumerate(names)}
        key = run.recipe.fold_key
        if key and key in rows.table:
            columns["fold_key"] = rows.table[key].to_arrow().cast(pa.large_string())
        tables.append(pa.table(columns))
    return pa.concat_tables(tables, promote_options="default")


def _list_table(run: TableRun) -> pa.Table:
    """Return a row per scored list: its length, its relevant rows, and each model's score by the run's metric.

    ``place`` is the place of the first relevant row; ``touched`` whether the answer was touched before. A metric that
    is no mean over lists has no columns of scores.
    """
    recipe, tables, metric = run.recipe, [], run.scorer.metric
    prefix = "rr_" if metric.name == "mrr" else "score_"
    for split, lists in _splits(run):
        label = lists.label if split == "oof" else run.found.truth
        rows = run.counted if split == "oof" else torch.ones(len(lists), dtype=torch.bool)
        groups = lists.groups[rows]
        ids, codes, length = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        first, count = torch.cumsum(length, 0) - length, len(ids)
        named = recipe.fold_key if recipe.fold_key and recipe.fold_key in lists.table else recipe.list_column
        key = lists.table[named].take(rows.nonzero().squeeze(1)[first])
        columns: dict[str, Any] = {"split": pa.array([split] * count, pa.string())}
        columns |= {"fold_key": key.to_arrow().cast(pa.large_string()), "length": length.numpy()}
        relevant = torch.zeros(len(groups), dtype=torch.bool) if label is None else label[rows] > 0
        positives = torch.bincount(codes[relevant], minlength=count)
        place = (torch.arange(len(groups)) - first[codes] + 1)[relevant]
        place = torch.full((count,), len(groups)).scatter_reduce(0, codes[relevant], place, "amin")
        columns["positives"] = pa.array(positives.numpy(), mask=np.full(count, label is None))
        columns["place"] = pa.array(place.numpy(), mask=(positives == 0).numpy())
        touched, unknown = torch.zeros(count, dtype=torch.bool), label is None or recipe.touched is None
        if not unknown:
            known = (lists.table[recipe.touched].number().cpu()[rows] > 0) & relevant
            touched[codes[known]] = True
        columns["touched"] = pa.array(touched.numpy(), mask=np.full(count, unknown))
        for name, one in run.predictions.items():
            scores = one.oof if split == "oof" else one.test
            if label is None:
                columns[f"{prefix}{name}"] = np.full(count, np.nan)
            elif (values := metric.by_group(label[rows], scores[rows], groups)) is not None:
                columns[f"{prefix}{name}"] = values.numpy()
        tables.append(pa.table(columns))
    return pa.concat_tables(tables, promote_options="default")


def _position(run: TableRun) -> dict[str, Any]:
    recipe, train, counted = run.recipe, run.train, run.counted
    place, label = run.found.train[recipe.position].number().cpu(), train.label
    examined = examination(train.table[recipe.item].coded().codes.cpu(), place, label)
    clicked = {p: float((label[place == p] > 0).double().mean()) for p in examined}
    weight = click_weights(train.groups, place, label, examined)[counted]
    metric, given = run.scorer.metric, {"groups": train.groups[counted], "weight": weight}
    weighed = {n: metric(label[counted], p.oof[counted], **given) for n, p in run.predictions.items()}
    return {"column": recipe.position, "as": recipe.position_as, "weighed": weighed} | {
        "examination": {str(p): e for p, e in examined.items()},
        "clicked": {str(p): c for p, c in clicked.items()},
    }


def _config(run: TableRun) -> dict[str, Any]:
    recipe, target, rows = run.recipe, run.target, run.found.train
    gaps = [n for n in rows.names if bool(rows[n].is_missing().any())]
    config = {"task": run.train.task, "metric": run.scorer.name, "folds": len(run.folds)}
    config |= {"folds_method": run.folds.method, "folds_why": run.folds.why}
    config |= {
        "test_predictions": "models of all training rows" if run.refitted else "mean of the folds' models",
        **recipe_notes(recipe, run.cats, run.conts),
        **({"place_of_scores": run.place_of_scores} if run.target is None else {}),
        "models": [n for n in run.predictions if n != "stack"],
        "tables": {n: list(t.names) for n, t in run.found.tables.items()},
        "reading": asdict(replace(recipe.reading, types=run.found.types, gaps=gaps)),
        "submission": asdict(run.form),
    }
    if run.blended:
        config["blend"] = run.blended
    if recipe.events is not None:
        config["events"] = asdict(recipe.events)
    if target is not None:
        # Classes, or targets, as the report calls them.
        binary = target.task == "binary" and target.classes is not None
        outputs = [str(v) for v in target.classes.values.to_pylist()] if binary else target.outputs
        config |= {"ids": list(recipe.ids), "target": target.names, "outputs": outputs}
    return config
