"""The run of a ``StreamedRanking``: features and models of parts on the disk.

The files are cut into parts, each with whole users. Features are computed part by part (statistics over all users, such
as an item's history, go through files), nets learn from a stream of rows, trees by XGBoost's external memory, and
predictions are written as they come.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.fresh_process import continued_in
from fastrec._core.optional import require
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.forms.score import score_submission
from fastrec.competition.forms.write import write_ranked
from fastrec.competition.run_files import (
    recipe_notes,
    run_folder,
    write_config,
    write_decision,
    write_scores,
    write_traces,
)
from fastrec.competition.scoring import Decision
from fastrec.competition.streamed.clicks import net_notes
from fastrec.competition.streamed.laid import Laid, lay_out, write_part
from fastrec.competition.streamed.list_models import (
    choose_stack,
    columns_of,
    lists_of,
    reciprocal_of,
    train_nets,
    train_trees,
)
from fastrec.competition.streamed.recipe import StreamedRanking
from fastrec.competition.streamed.work import ListsRun, Work
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import Estimator, XGBRanker
from fastrec.features import FeatureSet
from fastrec.scale.cluster import INSTALL
from fastrec.stacking import StackModel
from fastrec.table import Table
from fastrec.validate import Lists


def open_work(run: ListsRun) -> None:
    """Open the folder of the run's parts, and continue from the finished steps of the process before this one."""
    require("dask", "Dask", INSTALL)
    if not isinstance(run.recipe.submission, SubmissionFormat):
        raise DataError(
            f"{run.recipe.name}: lists need a SubmissionFormat", remedy="Write submission = SubmissionFormat(…)"
        )
    from fastrec.features._dask.spill import spilled

    above = run.out.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    run.work = Work.of(run.context.enter_context(spilled(above, made=continued_in())), run.stages)
    run.started = run.work.started


def _once(run: ListsRun, name: str, step: Callable[[ListsRun], None]) -> None:
    """Carry a step out, unless an earlier process of the run has."""
    work = run.work
    if name not in work.done:
        step(run)
        work.finish(name, anew=sum(work.laid.counts.values()) >= run.recipe.fresh_from)


def split(run: ListsRun) -> None:
    """Cut the files into parts."""

    def step(run: ListsRun) -> None:
        folder = run.work.folder / "split"
        with run.stages.stage("parts") as advance:
            parts = run.recipe.split(run.data, folder, rows=run.rows)
            run.work.made["laid"] = lay_out(run.recipe, parts, run.work.folder, advance)
        shutil.rmtree(folder)

    _once(run, "parts", step)


def make_features(run: ListsRun) -> None:
    """Compute the features of all parts."""

    def step(run: ListsRun) -> None:
        with run.stages.stage("features", sum(run.work.laid.counts.values())) as advance:
            run.work.made["features"] = _features(run.recipe, run.work.laid, advance)

    _once(run, "features", step)


def train(run: ListsRun) -> None:
    """Train the nets, then the trees of each ranker."""

    def nets(run: ListsRun) -> None:
        run.work.models |= train_nets(run)

    def trees(ranker: XGBRanker, run: ListsRun) -> None:
        run.work.models[ranker.name] = train_trees(run, ranker)

    _once(run, "nets", nets)
    for ranker in run.recipe.models(bs=run.bs):
        if isinstance(ranker, XGBRanker):
            _once(run, f"trees {ranker.name}", partial(trees, ranker))


def write(run: ListsRun) -> None:
    """Choose the stack, predict, and write the run directory."""
    recipe, stages, laid, models = run.recipe, run.stages, run.work.laid, run.work.models
    with stages.stage("stack", laid.counts["valid"]) as advance:
        stack = choose_stack(recipe, laid, models, advance)
    cats, conts = columns_of(recipe, run.work.features)
    with run_folder(run) as part:
        with stages.stage("predict", laid.counts["valid"] + laid.counts["test"]) as advance:
            held = _predict(recipe, laid, part, models, stack, advance)
        run.work.features.save(part / "features")
        for name, model in models.items():
            model.save(part / "models" / name / "fold0")
        stack.save(part / "stack")
        write_decision(part, Decision())
        write_traces(part, {n: m.trace for n, m in models.items()})
        file = next((f for f in laid.files("made-test") if pq.read_metadata(f).num_rows), None)
        if file is not None:
            pq.write_table(pq.ParquetFile(file).read().slice(0, limits.SAMPLE_ROWS), part / "sample.parquet")
        config = {
            **recipe_notes(recipe, cats, conts),
            "metric": "mrr",
            "parts": laid.parts,
            "models": list(models),
            "nets": net_notes(recipe.nets()),
            "tables": {n: pq.read_schema(laid.files(f"table-{n}")[0]).names for n in laid.tables},
            "submission": recipe.submission.to_state(),
        }
        write_config(part, run, config)
        test, truth = {}, run.data / "ground_truth.csv"
        if truth.is_file():
            test = {n: score_submission(laid.lines(n), truth, recipe.submission).mrr for n in held}
        shutil.move(laid.lines("stack"), part / "submission.csv")
        scores = {
            "metric": "mrr",
            "greater_is_better": True,
            "models": test,
            "oof": held,
            "oracle": None,
            "rows": {f"{n} candidates": c for n, c in laid.counts.items()},
        }
        write_scores(part, run, scores)


LISTS = [open_work, split, make_features, train, write]


def _features(recipe: StreamedRanking, laid: Laid, advance: Callable[[int], None]) -> FeatureSet:
    """Learn the features from the rows to learn from; write all rows with theirs, numbers as float32."""
    from fastrec.features._dask.part_files import PartFiles

    features = recipe.features()
    if features is None:
        raise DataError(f"{recipe.name} has no features", remedy="Write features()")
    tables = {n: PartFiles(laid.files(f"table-{n}"), recipe.together) for n in laid.tables}
    train, valid, test = (PartFiles(laid.files(n), recipe.together) for n in ("train", "valid", "test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a FeatureSet's cache is not used
        made = features.fit_transform(train, tables=tables, unlabeled=test)
    cats, conts = columns_of(recipe, features)
    kept = [*cats, recipe.list_column, recipe.item, recipe.label, *filter(None, [recipe.counted, recipe.weight])]
    _write_made(made, "train", laid, kept, conts, advance)
    _write_made(features.transform(valid, tables=tables), "valid", laid, kept, conts, advance)
    kept.remove(recipe.label)
    _write_made(features.transform(test, tables=tables), "test", laid, kept, conts, advance)
    return features


def _write_made(
    made: Any, kind: str, laid: Laid, kept: Sequence[str], conts: Sequence[str], advance: Callable[[int], None]
) -> None:
    import dask

    from fastrec.features._dask.blocks import task

    names = [n for n in dict.fromkeys([*kept, *conts]) if n in made.columns]
    folder = laid.folder / f"made-{kind}"
    folder.mkdir()
    for i, part in enumerate(made[names].to_delayed()):
        advance(dask.compute(task(_write_numbers, part, list(conts), str(folder), i))[0])


def _write_numbers(part: pa.Table, conts: list[str], folder: str, i: int) -> int:
    table = Table.read(part)
    write_part(Path(folder), i, table.with_columns({n: table[n].number(torch.float32) for n in conts}))
    return len(table)


# Predictions ---------------------------------------------------------------------------------------------------------


def _predict(
    recipe: StreamedRanking,
    laid: Laid,
    out: Path,
    models: Mapping[str, Estimator],
    stack: StackModel,
    advance: Callable[[int], None],
) -> dict[str, float]:
    """Write the predictions of both kinds of rows and submissions, part by part; the scores of those held out."""
    cats, conts = columns_of(recipe, recipe.features() or FeatureSet([]))
    ranks: dict[str, list[torch.Tensor]] = {}
    for kind, folder in (("valid", "oof"), ("test", "test")):
        writers: dict[str, pq.ParquetWriter] = {}
        (out / folder).mkdir()
        for i, file in enumerate(laid.files(f"made-{kind}")):
            lists = lists_of(recipe, file, cats, conts)
            if not len(lists):
                continue
            said = {n: m.predict(lists).double() for n, m in models.items()}
            said["stack"] = stack.predict(said, lists)
            for name, scores in said.items():
                rows = _scored(recipe, lists, scores)
                writer = writers.get(name) or pq.ParquetWriter(out / folder / f"{name}.parquet", rows.schema)
                writers[name] = writer
                writer.write_table(rows)
                if kind == "test":
                    _append(laid.lines(name), recipe, laid.files("targets")[i], lists, scores)
                else:
                    ranks.setdefault(name, []).append(reciprocal_of(recipe, lists, scores))
            advance(len(lists))
        for writer in writers.values():
            writer.close()
    return {n: float(torch.cat(r).mean()) for n, r in ranks.items()}


def _scored(recipe: StreamedRanking, lists: Lists, scores: torch.Tensor) -> pa.Table:
    items = lists.table[recipe.item].to_arrow()
    items = items.cast(items.type.value_type) if pa.types.is_dictionary(items.type) else items
    columns = {recipe.list_column: lists.groups.numpy(), recipe.item: items, "score": scores.numpy()}
    return pa.table(columns | ({} if lists.label is None else {recipe.label: lists.label.numpy()}))


def _append(path: Path, recipe: StreamedRanking, targets: Path, lists: Lists, scores: torch.Tensor) -> None:
    """Append the submission's lines of one part."""
    part = path.with_suffix(".part")
    keys, items = Table.read(targets).to_arrow(), lists.table[recipe.item].to_arrow()
    write_ranked(part, keys, items, scores, lists.groups, recipe.submission)
    text = part.read_bytes()
    with open(path, "ab") as file:
        file.write(text if not file.tell() else text[text.index(b"\n") + 1 :])
    part.unlink()
