"""``StreamedRanking``: lists that do not fit into memory, by the features and models of a ranking recipe.

The files are cut into parts, each with whole users. Features are made part by part (what looks over all users, such as
an item's history, goes through files), the net learns from a stream of rows, trees by XGBoost's external memory, and
predictions are written as they come.
"""

from __future__ import annotations

import shutil
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import atomic_folder
from fastrec._core.fresh_process import continued_in
from fastrec._core.optional import require
from fastrec.competition.data import CompetitionData
from fastrec.competition.forms.list_form import SubmissionFormat
from fastrec.competition.forms.score import score_submission
from fastrec.competition.forms.write import write_ranked
from fastrec.competition.recipe import Competition
from fastrec.competition.recipe_record import about_recipe
from fastrec.competition.run_files import origin, write_json
from fastrec.competition.run_options import RunOptions
from fastrec.competition.scoring import Decision
from fastrec.competition.streamed.clicks import StreamedNet
from fastrec.competition.streamed.laid import Laid, lay_out, write_part
from fastrec.competition.streamed.list_models import (
    choose_stack,
    columns_of,
    lists_of,
    reciprocal_of,
    train_nets,
    train_trees,
)
from fastrec.competition.streamed.work import Work
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import Estimator, XGBRanker
from fastrec.features import FeatureSet
from fastrec.report import write_report
from fastrec.scale.cluster import INSTALL
from fastrec.stacking import StackModel
from fastrec.table import Table
from fastrec.validate import Lists

__all__ = ["StreamedRanking", "run_streamed_ranking"]

_SAMPLE = 2_000  # rows


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
        """The rows, targets and other tables of one part."""

    @abstractmethod
    def nets(self) -> Mapping[str, StreamedNet]:
        """The nets, by name; the trees are the ``XGBRanker`` among ``models``."""


def run_streamed_ranking(recipe: StreamedRanking, data: Path, out: Path, asked: RunOptions) -> None:
    """Carry the recipe out: parts, features, nets, trees, predictions, submission, scores and report.

    A command's process begins anew between the steps where rows are many: each has all memory to itself.

    Args:
        recipe, data, out: see ``run_competition``.
        asked: what the caller asked for.
    """
    require("dask", "Dask", INSTALL)
    if not isinstance(recipe.submission, SubmissionFormat):
        raise DataError(
            f"{recipe.name}: lists need a SubmissionFormat", remedy="Write submission = SubmissionFormat(…)"
        )
    from fastrec.features._dask.spill import spilled

    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with spilled(out.absolute().parent, made=continued_in()) as folder:
        work = Work.of(folder, asked.stages)
        steps = _steps(recipe, data, work, asked)
        for name, step in steps.items():
            if name not in work.done:
                step()
                work.finish(name, anew=sum(work.laid.counts.values()) >= recipe.fresh_from)
        _finish(recipe, data, out, work, asked)


def _steps(recipe: StreamedRanking, data: Path, work: Work, asked: RunOptions) -> dict[str, Callable[[], None]]:
    """What is to be done before the run directory is written, each step by what those before it have left."""

    def parts() -> None:
        split = work.folder / "split"
        with asked.stages.stage("parts") as advance:
            work.made["laid"] = lay_out(recipe, recipe.split(data, split, rows=asked.rows), work.folder, advance)
        shutil.rmtree(split)

    def features() -> None:
        with asked.stages.stage("features", sum(work.laid.counts.values())) as advance:
            work.made["features"] = _features(recipe, work.laid, advance)

    def nets() -> None:
        work.models |= train_nets(recipe, work.laid, asked)

    def trees(ranker: XGBRanker) -> None:
        work.models[ranker.name] = train_trees(recipe, work.laid, ranker, asked)

    rankers = [m for m in recipe.models(bs=asked.bs) if isinstance(m, XGBRanker)]
    return {
        "parts": parts,
        "features": features,
        "nets": nets,
        **{f"trees {r.name}": partial(trees, r) for r in rankers},
    }


def _finish(recipe: StreamedRanking, data: Path, out: Path, work: Work, asked: RunOptions) -> None:
    laid, models, stages = work.laid, work.models, asked.stages
    with stages.stage("stack", laid.counts["valid"]) as advance:
        stack = choose_stack(recipe, laid, models, advance)
    with atomic_folder(out) as part:
        with stages.stage("predict", laid.counts["valid"] + laid.counts["test"]) as advance:
            scores = _predict(recipe, laid, part, models, stack, advance)
        _write(part, work.features, models, stack, laid)
        about = {"started": work.started, "data": data.resolve().name, **asked.notes()}
        write_json(part / "config.json", {**_config(recipe, work.features, models, laid), **about})
        test, truth = {}, data / "ground_truth.csv"
        if truth.is_file():
            test = {n: score_submission(laid.lines(n), truth, recipe.submission).mrr for n in scores}
        shutil.move(laid.lines("stack"), part / "submission.csv")
        _write_scores(part, scores, test, laid, asked)
        write_report(part, name=out.resolve().name)


# Features ------------------------------------------------------------------------------------------------------------


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
    """The submission's lines of one part after those that are there."""
    part = path.with_suffix(".part")
    keys, items = Table.read(targets).to_arrow(), lists.table[recipe.item].to_arrow()
    write_ranked(part, keys, items, scores, lists.groups, recipe.submission)
    text = part.read_bytes()
    with open(path, "ab") as file:
        file.write(text if not file.tell() else text[text.index(b"\n") + 1 :])
    part.unlink()


# The run directory ---------------------------------------------------------------------------------------------------


def _write(
    part: Path,
    features: FeatureSet,
    models: Mapping[str, Estimator],
    stack: StackModel,
    laid: Laid,
) -> None:
    features.save(part / "features")
    for name, model in models.items():
        model.save(part / "models" / name / "fold0")
    stack.save(part / "stack")
    write_json(part / "decision.json", asdict(Decision()))
    write_json(part / "curves.json", {n: m.trace.curves for n, m in models.items() if m.trace.curves})
    write_json(part / "importance.json", {n: m.trace.importance for n, m in models.items() if m.trace.importance})
    file = next((f for f in laid.files("made-test") if pq.read_metadata(f).num_rows), None)
    if file is not None:
        pq.write_table(pq.ParquetFile(file).read().slice(0, _SAMPLE), part / "sample.parquet")


def _config(
    recipe: StreamedRanking, features: FeatureSet, models: Mapping[str, Estimator], laid: Laid
) -> dict[str, Any]:
    cats, conts = columns_of(recipe, features)
    assert recipe.submission is not None
    return {
        "competition": recipe.name,
        "task": "ranking",
        "metric": "mrr",
        "parts": laid.parts,
        "features": [*cats, *conts],
        "categories": cats,
        "models": list(models),
        "nets": {n: {**asdict(a), "model": a.model.__name__} for n, a in recipe.nets().items()},
        "tables": {n: pq.read_schema(laid.files(f"table-{n}")[0]).names for n in laid.tables},
        "history": recipe.history,
        "reading": recipe.reading.to_state(),
        "recipe": about_recipe(recipe),
        "list_column": recipe.list_column,
        "item": recipe.item,
        "label": recipe.label,
        "submission": recipe.submission.to_state(),
        **origin(recipe),
    }


def _write_scores(
    part: Path,
    held: Mapping[str, float],
    test: Mapping[str, float],
    laid: Laid,
    asked: RunOptions,
) -> None:
    scores = {
        "metric": "mrr",
        "greater_is_better": True,
        "task": "ranking",
        "models": dict(test),
        "oof": dict(held),
        "oracle": None,
        "seconds": {n: round(s, 3) for n, s in asked.stages.seconds.items()},
        "rows": {f"{n} candidates": c for n, c in laid.counts.items()},
    }
    write_json(part / "scores.json", scores)
