"""The files of a run directory: all that was learned and predicted, complete without the recipe's code."""

from __future__ import annotations

import datetime as dt
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec import __version__
from fastrec._core.environment import installed_version
from fastrec.competition.fitting import Fitted
from fastrec.competition.recipe import Competition
from fastrec.competition.recipe_record import about_recipe
from fastrec.competition.scoring import Scorer
from fastrec.competition.submit import line_keys, write_submission_of
from fastrec.estimators import ConstantModel
from fastrec.metrics import reciprocal_ranks
from fastrec.table import Table, save_state
from fastrec.validate import Rows, Target

_SAMPLE = 2_000  # rows
_PACKAGES = ("fastrec-tabular", "torch", "fastai", "xgboost", "lightgbm", "catboost", "pyarrow", "pandas", "numpy")


def write_run(part: Path, made: Fitted, about: Mapping[str, Any]) -> None:
    """Write everything but the scores and the report.

    Args:
        part: the folder to fill.
        made: what the run has learned.
        about: what else ``config.json`` is to say.
    """
    made.prepared.save(part / "features")
    for name, one in made.predictions.items():
        for k, model in enumerate([] if name == "stack" else one.models):
            model.save(part / "models" / name / f"fold{k}")
    made.stack.model.save(part / "stack")
    if made.target is not None:
        save_state(part / "target", made.target.to_state())
    made.folds.save(part / "folds.parquet")
    for split, rows in _splits(made):
        (part / split).mkdir()
        for name, one in made.predictions.items():
            _write_predictions_of(part / split / f"{name}.parquet", made, rows, one.oof if split == "oof" else one.test)
    if made.target is None:
        pq.write_table(_list_table(made), part / "lists.parquet")
    else:
        pq.write_table(_row_table(made), part / "rows.parquet")
    curves = {n: p.curves for n, p in made.predictions.items() if p.curves}
    importance = {n: p.importance for n, p in made.predictions.items() if p.importance}
    write_json(part / "curves.json", curves)
    write_json(part / "importance.json", importance)
    if made.permutation:
        write_json(part / "permutation.json", made.permutation)
    _write_samples(part, made)
    write_json(part / "config.json", _config(made, about))
    write_json(part / "decision.json", asdict(made.decision))
    _write_submission(part / "submission.csv", made)


def _write_samples(part: Path, made: Fitted) -> None:
    """Some rows with all their columns as the models saw them.

    ``sample.parquet``: what an exported graph takes its inputs' types from, test rows without the target.
    ``sample_labelled.parquet``: training rows, by which what is done to a graph can be scored.
    ``…_events.parquet``: what was in the sessions before their lists, where models read it.
    """
    rows = made.train if made.test is None else made.test
    hidden = set() if made.target is None else set(made.target.names)
    sample = _some_rows(rows, ranking=made.target is None)
    sample = sample.drop([n for n in hidden if n in sample])
    labelled = _some_rows(made.train, ranking=made.target is None)
    if made.target is None and made.train.label is not None:
        labelled = labelled.with_columns({made.recipe.label: made.train.label[: len(labelled)].double()})
    for name, table, source in (("sample", sample, made.test), ("sample_labelled", labelled, None)):
        pq.write_table(table.to_arrow(), part / f"{name}.parquet")
        events = made.events(labelled=source is None)
        if events is not None:
            before = events.log.take(events.log_rows(table[made.recipe.list_column].integer().cpu()))
            pq.write_table(before.to_arrow(), part / f"{name}_events.parquet")


def _some_rows(rows: Rows, *, ranking: bool) -> Table:
    """The first rows, of lists whole ones."""
    count = min(len(rows), _SAMPLE)
    if ranking and rows.groups is not None and count < len(rows):
        starts = (rows.groups[1:] != rows.groups[:-1]).nonzero().squeeze(1) + 1
        count = int(starts[starts <= count][-1])
    return rows.table.slice(0, count)


def _write_submission(path: Path, made: Fitted) -> None:
    """The test rows' predictions; where there are no test rows the scored training rows' out-of-fold ones."""
    stack = made.predictions["stack"]
    if made.test is not None:
        rows, prediction = made.test, stack.test
        keys = made.found.test if made.found.targets is None else made.found.targets
    else:
        chosen = made.counted & ~stack.oof.reshape(len(stack.oof), -1).isnan().any(1)
        rows, prediction = made.train.take(chosen), stack.oof[chosen]
        table = made.found.train
        keys = line_keys(made.form, table.take(chosen.nonzero().squeeze(1).to(table.device)), rows)
    write_submission_of(
        path,
        rows,
        prediction,
        form=made.form,
        target=made.target,
        decision=made.decision,
        keys=keys,
        item=made.recipe.item if made.target is None else None,
    )


def write_scores(part: Path, made: Fitted, seconds: Mapping[str, float], reused: int) -> None:
    """``scores.json``: out-of-fold scores of every model, those of the test where its truth is known."""
    names = list(made.predictions)
    truth = known_test(made)
    oof = {n: _oof_score(made, made.scorer, n) for n in names}
    decided = made.decision if made.scorer.wants_classes and made.train.task != "multiclass" else None
    test = {} if truth is None else {n: made.scorer(truth, made.predictions[n].test, decision=decided) for n in names}
    counts = {"train": made.train, "test": made.test}
    rows: dict[str, int] = {}
    unit = "candidates" if made.target is None else "rows"
    for split, some in counts.items():
        rows[f"{split} {unit}"] = 0 if some is None else len(some)
        if made.target is None:
            rows[f"{split} lists"] = 0 if some is None else len(torch.unique(some.groups))
    scores = {
        "metric": made.scorer.name,
        "greater_is_better": made.scorer.metric.greater_is_better,
        "task": made.train.task,
        "models": test,
        "oof": oof,
        "also": _also(made),
        "oracle": made.found.oracle,
        "stack_tried": made.tried,
        "stack_choice": {"chosen": made.stack.chosen, "of_folds": made.stack.choices},
        "intervals": {n: list(i) for n, i in made.stack.scores.items()},
        "stack_over_best": None if made.stack.difference is None else list(made.stack.difference),
        "seconds": {n: round(s, 3) for n, s in seconds.items()},
        "reused": reused,
        "transductive": made.prepared.transductive,
        "rows": {**rows, "features": len(made.cats) + len(made.conts)},
    }
    write_json(part / "scores.json", scores)


def known_test(made: Fitted) -> Rows | None:
    """The test rows with labels, where the truth is known."""
    if made.test is None or made.found.truth is None:
        return None
    truth = made.found.truth
    if made.target is None:
        return made.test.__class__(made.test.table, made.test.groups, label=truth)
    source = truth if isinstance(truth, Table) else Table.read(truth)
    label = made.target.encode(source)
    return Rows(made.test.table, made.train.task, label=label, n_outputs=made.train.n_outputs)


def _also(made: Fitted) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name in made.recipe.also:
        scorer = Scorer.of(name, made.target)
        found[scorer.name] = {n: _oof_score(made, scorer, n) for n in made.predictions}
    return found


def _oof_score(made: Fitted, scorer: Scorer, name: str) -> float:
    folds, one = torch.from_numpy(_fold_numbers(made)), made.predictions[name]
    oof = one.oof
    if scorer.metric.wants == "scores" and one.models and isinstance(one.models[0], ConstantModel):
        oof = torch.zeros_like(oof)  # it orders nothing: that each fold has a constant of its own is no order
    return scorer(made.train, oof, made.counted, folds=folds)


def _splits(made: Fitted) -> list[tuple[str, Rows]]:
    return [("oof", made.train), *([("test", made.test)] if made.test is not None else [])]


def _write_predictions_of(path: Path, made: Fitted, rows: Rows, values: torch.Tensor) -> None:
    recipe = made.recipe
    columns: dict[str, Any] = {}
    if made.target is None:
        columns[recipe.list_column] = rows.groups.numpy()
        columns[recipe.item] = rows.table[recipe.item].to_arrow()
        columns["score"] = values.numpy()
    elif values.dim() == 1:
        columns["prediction"] = made.target.restore(values).numpy()
    else:
        own = made.target.restore(values)
        columns |= {f"prediction_{n}": own[:, i].numpy() for i, n in enumerate(made.target.outputs)}
    if rows.label is not None:
        columns["fold"] = _fold_numbers(made)
        if made.target is None:
            columns[recipe.label] = rows.label.numpy()
    pq.write_table(pa.table(columns), path)


def _fold_numbers(made: Fitted) -> np.ndarray:
    """The (last) fold that scores each training row; -1: none does."""
    numbers = torch.full((len(made.train),), -1, dtype=torch.int64)
    for k, (_, inside) in enumerate(made.folds):
        numbers[inside] = k
    return numbers.numpy()


def _row_table(made: Fitted) -> pa.Table:
    """Rows of a task without lists: split, ids, fold, target on its own scale, weight."""
    tables = []
    truth = known_test(made)
    for split, rows in _splits(made):
        label = made.train.label if split == "oof" else None if truth is None else truth.label
        columns: dict[str, Any] = {"split": pa.array([split] * len(rows), pa.string())}
        for name in made.recipe.ids:
            if name in rows.table:
                columns[name] = rows.table[name].to_arrow().cast(pa.large_string())
        columns["fold"] = _fold_numbers(made) if split == "oof" else np.full(len(rows), -1)
        wide = torch.full((len(rows), len(_label_names(made))), torch.nan, dtype=torch.float64)
        if label is not None:
            wide = made.target.restore(label.double()).reshape(len(rows), -1)
        columns |= {f"label_{n}": wide[:, i].numpy() for i, n in enumerate(_label_names(made))}
        key = made.recipe.fold_key
        if key and key in rows.table:
            columns["fold_key"] = rows.table[key].to_arrow().cast(pa.large_string())
        tables.append(pa.table(columns))
    return pa.concat_tables(tables, promote_options="default")


def _about_target(recipe: Competition, target: Target) -> dict[str, Any]:
    return {"ids": list(recipe.ids), "target": target.names, "outputs": _outputs(target)}


def _outputs(target: Target) -> list[str]:
    """Classes, or targets, as the report calls them."""
    classes = target.classes if target.task in ("binary", "multiclass") else None
    return (
        target.outputs if classes is None or target.task == "multiclass" else list(map(str, classes.values.to_pylist()))
    )


def _label_names(made: Fitted) -> list[str]:
    return made.target.names  # a multiclass task's labels are codes in one column


def _list_table(made: Fitted) -> pa.Table:
    """One row per list that scores are about: length, whether its answer was touched before, reciprocal ranks."""
    parts = [_list_rows(made, "oof", made.train, made.train.label, made.counted)]
    if made.test is not None:
        all_rows = torch.ones(len(made.test), dtype=torch.bool)
        parts.append(_list_rows(made, "test", made.test, made.found.truth, all_rows))
    return pa.concat_tables(parts)


def _list_rows(made: Fitted, split: str, lists: Rows, label: torch.Tensor | None, rows: torch.Tensor) -> pa.Table:
    recipe = made.recipe
    groups = lists.groups[rows]
    ids, codes, length = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
    first = torch.cumsum(length, 0) - length
    key = lists.table[recipe.fold_key or recipe.list_column].take(rows.nonzero().squeeze(1)[first])
    columns: dict[str, Any] = {
        "split": pa.array([split] * len(ids), pa.string()),
        "fold_key": key.to_arrow().cast(pa.large_string()),
        "length": length.numpy(),
    }
    touched = torch.zeros(len(ids), dtype=torch.bool)
    if label is not None and recipe.touched is not None:
        known = (lists.table[recipe.touched].number().cpu()[rows] > 0) & (label[rows] > 0)
        touched[codes[known]] = True
    unknown = label is None or recipe.touched is None
    columns["touched"] = pa.array(touched.numpy(), mask=np.full(len(ids), unknown))
    for name, one in made.predictions.items():
        scores = one.oof if split == "oof" else one.test
        if label is None:
            columns[f"rr_{name}"] = np.full(len(ids), np.nan)
        else:  # ties as submitted: by display order
            columns[f"rr_{name}"] = reciprocal_ranks(scores[rows], label[rows], groups, ties="ordinal")[1].numpy()
    return pa.table(columns)


def _config(made: Fitted, about: Mapping[str, Any]) -> dict[str, Any]:
    recipe = made.recipe
    lists = {"list_column": recipe.list_column, "item": recipe.item, "label": recipe.label}
    return {
        "competition": recipe.name,
        **about,
        "task": made.train.task,
        "metric": made.scorer.name,
        "folds": len(made.folds),
        "folds_method": made.folds.method,
        "folds_why": made.folds.why,
        "test_predictions": "models of all training rows" if made.refitted else "mean of the folds' models",
        **origin(recipe),
        "versions": {p: v for p in _PACKAGES if (v := installed_version(p)) is not None},
        "features": [*made.cats, *made.conts],
        "categories": made.cats,
        "models": [n for n in made.predictions if n != "stack"],
        "tables": {n: list(t.names) for n, t in made.found.tables.items()},
        "history": recipe.history,
        "reading": replace(recipe.reading, types=made.found.types).to_state(),
        "recipe": about_recipe(recipe),
        **({} if recipe.events is None else {"events": recipe.events.to_state()}),
        **(lists if made.target is None else _about_target(recipe, made.target)),
        "submission": made.form.to_state(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def origin(recipe: Competition) -> dict[str, Any]:
    """When, by what and on what a run was made, as every ``config.json`` says it."""
    return {
        "finished": now(),
        "fastrec": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
        "git_revision": git_revision(type(recipe)),
    }


def write_json(path: Path, content: Any) -> None:
    """Write JSON as a person can read it."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def git_revision(recipe: type[Competition]) -> str | None:
    """The revision of the workspace that the recipe is in."""
    file = getattr(sys.modules.get(recipe.__module__), "__file__", None)
    folder = Path(file).resolve().parent if file else Path.cwd()
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, cwd=folder
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
