"""The models of a streamed ranking: nets from the stream of rows, trees by XGBoost's external memory, their stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch

from fastrec.competition.streamed.clicks import train_streamed
from fastrec.competition.streamed.laid import Laid
from fastrec.competition.streamed.recipe import StreamedRanking
from fastrec.competition.streamed.work import ListsRun
from fastrec.estimators import Estimator, XGBRanker
from fastrec.features import FeatureSet
from fastrec.metrics import reciprocal_ranks
from fastrec.scale.external_ranker import fit_on_parts
from fastrec.stacking import AverageBlend, OneBase, StackModel
from fastrec.table import Table
from fastrec.tabular import Categorify, FillMissing, Normalize, ParquetFrame
from fastrec.validate import Lists


def columns_of(recipe: StreamedRanking, features: FeatureSet) -> tuple[list[str], list[str]]:
    """Return categories and numbers that models learn from."""
    cats = list(recipe.categories or ())
    conts = [n for n in [*features.outputs, *(recipe.plain or ())] if n not in cats]
    return cats, list(dict.fromkeys(conts))


def train_nets(run: ListsRun) -> dict[str, Estimator]:
    """Train the recipe's nets on the stream of rows."""
    recipe, laid, models = run.recipe, run.work.laid, {}
    if not recipe.nets():
        return {}
    cats, conts = columns_of(recipe, recipe.features() or FeatureSet([]))
    files = [f for f in laid.files("made-train") if pq.read_metadata(f).num_rows]
    procs = [Categorify, FillMissing(add_col=False), Normalize]
    frame = ParquetFrame(files, procs, cats, conts, recipe.label, cache=laid.folder / "packed", device="cpu")
    for name, asks in recipe.nets().items():
        with run.stages.stage(f"train {name}", asks.epochs * laid.counts["train"]) as advance:
            options = {"device": run.device, "seed": run.seed, "bs": run.bs}
            options |= {"buffer_rows": recipe.buffer_rows, "advance": advance}
            models[name] = train_streamed(frame, asks, name, **options)
    return models


def train_trees(run: ListsRun, ranker: XGBRanker) -> XGBRanker:
    """Grow a ranker's trees from the parts to learn from."""
    recipe, laid = run.recipe, run.work.laid
    cats, conts = columns_of(recipe, recipe.features() or FeatureSet([]))
    read = [partial(lists_of, recipe, f, cats, conts) for f in laid.files("made-train")]
    with run.stages.stage(f"train {ranker.name}") as advance:
        fitted = fit_on_parts(ranker, read, laid.folder / "trees", seed=run.seed)
        advance(laid.counts["train"])
    return fitted


def lists_of(recipe: StreamedRanking, file: Path, cats: list[str], conts: list[str]) -> Lists:
    """Read one part's lists with their features."""
    table = Table.read(pq.ParquetFile(file).read())
    groups = table[recipe.list_column].integer()
    label = table[recipe.label].number() if recipe.label in table else None
    weight = table[recipe.weight].number() if recipe.weight in table else None
    return Lists(table, groups, cats, conts, label=label, weight=weight)


def choose_stack(
    recipe: StreamedRanking, laid: Laid, models: Mapping[str, Estimator], advance: Callable[[int], None]
) -> StackModel:
    """Choose the best model, or the mean rank of as many of the best as score best on the held-out lists."""
    said: list[tuple[Lists, dict[str, torch.Tensor]]] = []
    for lists in _held_out(recipe, laid):
        said.append((_bare(recipe, lists), {n: m.predict(lists).double() for n, m in models.items()}))
        advance(len(lists))

    def score(stack: StackModel) -> float:
        return float(torch.cat([reciprocal_of(recipe, lists, stack.predict(p, lists)) for lists, p in said]).mean())

    alone = [StackModel([n], [OneBase(n)]) for n in models]
    if not said or len(alone) == 1:
        return alone[0]
    best = sorted(alone, key=score, reverse=True)
    names = [stack.models[0] for stack in best]
    means = [StackModel(names[:k], [AverageBlend(names[:k], of="rank")]) for k in range(2, len(names) + 1)]
    return max([best[0], *means], key=score)


def _held_out(recipe: StreamedRanking, laid: Laid) -> Iterator[Lists]:
    cats, conts = columns_of(recipe, recipe.features() or FeatureSet([]))
    for file in laid.files("made-valid"):
        lists = lists_of(recipe, file, cats, conts)
        if len(lists):
            yield lists


def _bare(recipe: StreamedRanking, lists: Lists) -> Lists:
    """Return the lists without features: enough for scoring, small enough to hold for all parts."""
    kept = [recipe.list_column, *([] if recipe.counted is None else [recipe.counted])]
    return Lists(lists.table.select(kept), lists.groups, [], [], label=lists.label)


def reciprocal_of(recipe: StreamedRanking, lists: Lists, scores: torch.Tensor) -> torch.Tensor:
    """Return reciprocal ranks of the lists that count."""
    rows = torch.ones(len(lists), dtype=torch.bool)
    if recipe.counted is not None:
        rows = lists.table[recipe.counted].number() > 0
    return reciprocal_ranks(scores[rows], lists.label[rows], lists.groups[rows], ties="ordinal")[1]
