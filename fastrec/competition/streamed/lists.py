"""The run of a ``StreamedRanking``: features and models of parts on disk.

The files are split into parts, each with whole users. Features are computed part by part (statistics over all users,
such as an item's history, go through files). Nets are trained on a stream of rows, trees by XGBoost's external memory,
and predictions are written part by part.
"""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core import limits
from fastrec._core.fresh_process import begin_anew, continued_in, may_begin_anew
from fastrec._core.imports import require
from fastrec._core.memory import give_all_back
from fastrec.competition.forms.check import score_submission
from fastrec.competition.forms.rows import ranked_strings
from fastrec.competition.run_files import recipe_notes, run_folder, write_config, write_models
from fastrec.competition.run_record import Run
from fastrec.competition.streamed.clicks import net_notes, train_streamed
from fastrec.competition.streamed.recipe import StreamedRanking
from fastrec.errors import DataError, DataWarning
from fastrec.estimators import Estimator, XGBRanker
from fastrec.features import FeatureSet
from fastrec.features._engine.chain import reads_target
from fastrec.metrics import reciprocal_ranks
from fastrec.scale.dask import INSTALL
from fastrec.scale.external import fit_on_parts
from fastrec.stacking import MeanBlend, OneBase, StackModel
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame
from fastrec.validate import Lists

_FILE = "work.pickle"  # read only by the process that wrote it, whose id is in the folder's name


@dataclass(kw_only=True)
class ListsRun(Run):
    """A run of a ``StreamedRanking``, and its progress."""

    folder: Path = field(init=False)
    models: dict[str, Estimator] = field(default_factory=dict)  # the trained models, by name
    done: list[str] = field(default_factory=list)  # finished steps
    count: int = 0  # number of parts
    tables: list[str] = field(default_factory=list)  # names of the other tables
    # rows of each kind
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("train", "valid", "test"), 0))
    features: FeatureSet = field(init=False)  # fitted

    def lines(self, model: str) -> Path:
        """Return the file of a model's submission."""
        return self.folder / f"{model}.csv"

    def files(self, kind: str) -> list[Path]:
        """Return the files of one kind of rows, one per part."""
        return [self.folder / kind / f"{i:05d}.parquet" for i in range(self.count)]

    def once(self, name: str, step: Callable[[ListsRun], None]) -> None:
        """Run a step, unless an earlier process of the run has.

        With many rows, the next step gets a fresh process, which may replace this one.
        """
        if name in self.done:
            return
        step(self)
        self.done.append(name)
        if sum(self.counts.values()) >= self.recipe.fresh_from and may_begin_anew() and self._written():
            begin_anew(self.folder)
        give_all_back()  # the next step needs the memory that the allocator holds

    def _written(self) -> bool:
        known = {n: v for n, v in vars(self).items() if n in _KEPT}
        try:
            with open(self.folder / _FILE, "wb") as file:
                pickle.dump((known, self.stages.seconds), file, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):  # of a local function: continue in this process
            return False
        return True


_KEPT = ("started", "models", "done", "count", "tables", "counts", "features")


def split(run: ListsRun) -> None:
    """Split the files into parts. Write the training, held-out and test rows of each, and its other tables."""
    recipe, folder, said = run.recipe, run.folder, 0
    with run.stages.stage("parts") as advance:
        parts = recipe.split(run.data, folder / "split", rows=run.rows)
        if len(parts) < 2:
            raise DataError(f"{recipe.name}: the files were not cut into parts", remedy="Make two parts or more")
        run.count = len(parts)
        for i, part in enumerate(parts):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", DataWarning)
                found = recipe.load_part(part)
            said += len(caught)
            if found.test is None or found.targets is None:
                raise DataError(f"{recipe.name}: a part has no test table", file=part, remedy="Give one, without rows")
            # Whole parts: no user is both trained on and scored.
            held = i % recipe.held_out == min(recipe.held_out, len(parts)) - 1
            none = found.train.slice(0, 0)
            rows = {"train": none if held else found.train, "valid": found.train if held else none, "test": found.test}
            run.counts = {n: run.counts[n] + len(t) for n, t in rows.items()}
            run.tables = list(found.tables)
            tables = {f"table-{n}": t for n, t in found.tables.items()}
            for kind, table in {**rows, **tables}.items():
                write_part(folder / kind, i, _numbered(table, recipe.list_column, i))
            write_part(folder / "targets", i, found.targets)  # keep the submission's keys as in the files
            shutil.rmtree(part)
            advance(len(found.train) + len(found.test))
    if said:
        warnings.warn(f"{said} warnings of {len(parts)} parts are not shown one by one", DataWarning, stacklevel=2)
    shutil.rmtree(folder / "split")


def _numbered(table: Table, column: str, part: int) -> Table:
    if column not in table:
        return table
    # The low 32 bits are the list's number in its part, the high ones the part's.
    return table.with_columns({column: table[column].integer() + (part << 32)})


def write_part(folder: Path, i: int, table: Table | pa.Table) -> None:
    """Write one part of a kind of rows."""
    folder.mkdir(exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else table.to_arrow(), folder / f"{i:05d}.parquet")


def columns_of(recipe: StreamedRanking, features: FeatureSet | None = None) -> tuple[list[str], list[str]]:
    """Return the models' categories and numbers; without ``features`` those of the recipe, unfitted."""
    cats, features = list(recipe.categories or ()), features or recipe.features() or FeatureSet([])
    return cats, [n for n in dict.fromkeys([*features.outputs, *(recipe.plain or ())]) if n not in cats]


def train_nets(run: ListsRun) -> None:
    """Train the recipe's nets on the stream of rows."""
    recipe = run.recipe
    if not recipe.nets():
        return
    cats, conts = columns_of(recipe)
    files = [f for f in run.files("made-train") if pq.read_metadata(f).num_rows]
    procs = [Categorify, FillMissing(add_col=False), Normalize]
    frame = ParquetFrame(files, procs, cats, conts, recipe.label, cache=run.folder / "packed", device="cpu")
    for name, asks in recipe.nets().items():
        with run.stages.stage(f"train {name}", asks.epochs * run.counts["train"]) as advance:
            options = {"device": run.device, "seed": run.seed, "bs": run.bs}
            options |= {"buffer_rows": recipe.buffer_rows, "advance": advance}
            run.models[name] = train_streamed(frame, asks, name, **options)


def lists_of(recipe: StreamedRanking, file: Path, cats: list[str], conts: list[str]) -> Lists:
    """Read one part's lists with their features."""
    table = Table.read(pq.ParquetFile(file).read(), device="cpu")
    groups = table[recipe.list_column].integer()
    label = table[recipe.label].number() if recipe.label in table else None
    weight = table[recipe.weight].number() if recipe.weight in table else None
    return Lists(table, groups, cats, conts, label=label, weight=weight)


def choose_stack(run: ListsRun, advance: Callable[[int], None]) -> StackModel:
    """Choose the best model, or the mean rank of the k best, whichever scores best on the held-out lists."""
    said: list[tuple[Lists, dict[str, torch.Tensor]]] = []
    recipe, models = run.recipe, run.models
    cats, conts = columns_of(recipe)
    for file in run.files("made-valid"):
        lists = lists_of(recipe, file, cats, conts)
        if not len(lists):
            continue
        # Without features: enough for scoring, small enough to hold for all parts.
        counts = [] if recipe.counted is None else [recipe.counted]
        bare = Lists(lists.table.select([recipe.list_column, *counts]), lists.groups, [], [], label=lists.label)
        said.append((bare, {n: m.predict(lists).double() for n, m in models.items()}))
        advance(len(lists))

    def score(stack: StackModel) -> float:
        return float(torch.cat([reciprocal_of(recipe, lists, stack.predict(p, lists)) for lists, p in said]).mean())

    alone = [StackModel([n], [OneBase(n)]) for n in models]
    if not said or len(alone) == 1:
        return alone[0]
    best = sorted(alone, key=score, reverse=True)
    names = [stack.models[0] for stack in best]
    means = [StackModel(names[:k], [MeanBlend(names[:k], of="rank")]) for k in range(2, len(names) + 1)]
    return max([best[0], *means], key=score)


def reciprocal_of(recipe: StreamedRanking, lists: Lists, scores: torch.Tensor) -> torch.Tensor:
    """Return reciprocal ranks of the lists that count."""
    rows = torch.ones(len(lists), dtype=torch.bool)
    if recipe.counted is not None:
        rows = lists.table[recipe.counted].number() > 0
    return reciprocal_ranks(scores[rows], lists.label[rows], lists.groups[rows], ties="ordinal")[1]


def open_work(run: ListsRun) -> None:
    """Open the folder of the run's parts, and continue from the finished steps of the previous process."""
    require("dask", "Dask", INSTALL)
    if run.recipe.submission is None or not run.recipe.submission.items:
        remedy = "Write submission = SubmissionForm(…, items=…)"
        raise DataError(f"{run.recipe.name}: lists need a form with items", remedy=remedy)
    from fastrec.features._dask.files import spilled

    above = run.out.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    run.folder = run.context.enter_context(spilled(above, made=continued_in()))
    if (run.folder / _FILE).is_file():
        with open(run.folder / _FILE, "rb") as file:
            known, run.stages.seconds = pickle.load(file)
        vars(run).update(known)


def make_features(run: ListsRun) -> None:
    """Fit the features on the training rows; write all rows with features, numbers as float32."""
    from fastrec.features._dask.files import PartFiles

    recipe, features = run.recipe, run.recipe.features()
    if features is None:
        raise DataError(f"{recipe.name} has no features", remedy="Write features()")
    features.assume_target(recipe.label)
    if any(reads_target(s, [recipe.label]) for s in features.steps):
        raise DataError("a feature reads it, and rows to predict lack it", column=recipe.label, remedy="Leave it out")
    with run.stages.stage("features", sum(run.counts.values())) as advance:
        tables = {n: PartFiles(run.files(f"table-{n}"), recipe.together) for n in run.tables}
        train, valid, test = (PartFiles(run.files(n), recipe.together) for n in ("train", "valid", "test"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # a FeatureSet's cache is not used
            made = features.fit_transform(train, tables=tables, unlabeled=test)
        cats, conts = columns_of(recipe, features)
        kept = [*cats, recipe.list_column, recipe.item, recipe.label, *filter(None, [recipe.counted, recipe.weight])]
        _write_made(made, "train", run, kept, conts, advance)
        _write_made(features.transform(valid, tables=tables), "valid", run, kept, conts, advance)
        kept.remove(recipe.label)
        _write_made(features.transform(test, tables=tables), "test", run, kept, conts, advance)
    run.features = features


def grow_trees(run: ListsRun) -> None:
    """Grow the trees of each ranker on the training parts."""

    def grow(ranker: XGBRanker, run: ListsRun) -> None:
        cats, conts = columns_of(run.recipe)
        read = [partial(lists_of, run.recipe, f, cats, conts) for f in run.files("made-train")]
        with run.stages.stage(f"train {ranker.name}") as advance:
            run.models[ranker.name] = fit_on_parts(ranker, read, run.folder / "trees", seed=run.seed)
            advance(run.counts["train"])

    for ranker in run.recipe.models(bs=run.bs):
        if isinstance(ranker, XGBRanker):
            run.once(f"trees {ranker.name}", partial(grow, ranker))


def write(run: ListsRun) -> None:
    """Choose the stack, predict, and write the run directory."""
    recipe, stages, models = run.recipe, run.stages, run.models
    with stages.stage("stack", run.counts["valid"]) as advance:
        stack = choose_stack(run, advance)
    cats, conts = columns_of(recipe, run.features)
    with run_folder(run) as part:
        with stages.stage("predict", run.counts["valid"] + run.counts["test"]) as advance:
            held = _predict(run, part, stack, advance)
        run.features.save(part / "features")
        write_models(part, {n: [m] for n, m in models.items()}, stack)
        file = next((f for f in run.files("made-test") if pq.read_metadata(f).num_rows), None)
        if file is not None:
            pq.write_table(pq.ParquetFile(file).read().slice(0, limits.SAMPLE_ROWS), part / "sample.parquet")
        config = {**recipe_notes(recipe, cats, conts), "metric": "mrr", "parts": run.count, "models": list(models)}
        config |= {"nets": net_notes(recipe.nets()), "submission": asdict(recipe.submission)}
        tables = {n: pq.read_schema(run.files(f"table-{n}")[0]).names for n in run.tables}
        write_config(part, run, {**config, "tables": tables})
        test, truth = {}, run.data / "ground_truth.csv"
        if truth.is_file():
            test = {n: score_submission(run.lines(n), truth, recipe.submission).value for n in held}
        shutil.move(run.lines("stack"), part / "submission.csv")
        scores = {"metric": "mrr", "greater_is_better": True, "models": test, "oof": held, "oracle": None}
        run.scores = {**scores, "rows": {f"{n} candidates": c for n, c in run.counts.items()}}


# A fresh process continues after the last finished one of these steps.
_ONCE = {"parts": split, "features": make_features, "nets": train_nets}
LISTS = [open_work, *(partial(ListsRun.once, name=n, step=s) for n, s in _ONCE.items()), grow_trees, write]


def _write_made(
    made: Any, kind: str, run: ListsRun, kept: Sequence[str], conts: Sequence[str], advance: Callable[[int], None]
) -> None:
    import dask

    from fastrec.features._dask.blocks import task

    names = [n for n in dict.fromkeys([*kept, *conts]) if n in made.columns]
    folder = run.folder / f"made-{kind}"
    folder.mkdir()
    for i, part in enumerate(made[names].to_delayed()):
        advance(dask.compute(task(_write_numbers, part, list(conts), str(folder), i))[0])


def _write_numbers(part: pa.Table, conts: list[str], folder: str, i: int) -> int:
    table = Table.read(part, device="cpu")
    write_part(Path(folder), i, table.with_columns({n: table[n].number(torch.float32) for n in conts}))
    return len(table)


def _predict(run: ListsRun, out: Path, stack: StackModel, advance: Callable[[int], None]) -> dict[str, float]:
    """Write the predictions of held-out and test rows, and submissions, part by part; return the held-out scores."""
    recipe, models = run.recipe, run.models
    cats, conts = columns_of(recipe)
    ranks: dict[str, list[torch.Tensor]] = {}
    for kind, folder in (("valid", "oof"), ("test", "test")):
        writers: dict[str, pq.ParquetWriter] = {}
        (out / folder).mkdir()
        for i, file in enumerate(run.files(f"made-{kind}")):
            lists = lists_of(recipe, file, cats, conts)
            if not len(lists):
                continue
            said = {n: m.predict(lists).double() for n, m in models.items()}
            said["stack"] = stack.predict(said, lists)
            items = lists.table[recipe.item].to_arrow()
            items = items.cast(items.type.value_type) if pa.types.is_dictionary(items.type) else items
            for name, scores in said.items():
                columns = {recipe.list_column: lists.groups.numpy(), recipe.item: items, "score": scores.numpy()}
                rows = pa.table(columns | ({} if lists.label is None else {recipe.label: lists.label.numpy()}))
                writer = writers.get(name) or pq.ParquetWriter(out / folder / f"{name}.parquet", rows.schema)
                writers[name] = writer
                writer.write_table(rows)
                if kind == "test":
                    _append(run.lines(name), recipe, run.files("targets")[i], lists, scores)
                else:
                    ranks.setdefault(name, []).append(reciprocal_of(recipe, lists, scores))
            advance(len(lists))
        for writer in writers.values():
            writer.close()
    return {n: float(torch.cat(r).mean()) for n, r in ranks.items()}


def _append(path: Path, recipe: StreamedRanking, targets: Path, lists: Lists, scores: torch.Tensor) -> None:
    part = path.with_suffix(".part")
    keys, items, form = (
        Table.read(targets, device="cpu").to_arrow(),
        lists.table[recipe.item].to_arrow(),
        recipe.submission,
    )
    texts = ranked_strings(items, scores, lists.groups, sep=form.item_sep, k=form.max_items)
    form.write(part, keys, {form.items: texts})
    text = part.read_bytes()
    with open(path, "ab") as file:
        file.write(text if not file.tell() else text[text.index(b"\n") + 1 :])
    part.unlink()
