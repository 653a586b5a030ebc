"""``retrain``: train a run again on old and new rows, and promote it if it is no worse."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import atomic_file
from fastrec._core.device import DeviceLike
from fastrec._core.progress import Stages
from fastrec.competition import Competition, SavedRun, run_competition
from fastrec.competition.budget import Budget
from fastrec.competition.saved_recipe import SavedRecipe
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError
from fastrec.metrics import as_scored
from fastrec.monitor.gate import Verdict, judge
from fastrec.monitor.newest_rows import Newest, together
from fastrec.monitor.over_time import Every
from fastrec.registry import Registry, is_registry
from fastrec.table import Table

__all__ = ["Retrained", "retrain"]


@dataclass(frozen=True)
class Retrained:
    """The new run and its verdict.

    Args:
        run: the new run; ``gate.json`` in it holds the verdict.
        verdict: the gate's decision.
        version: its number in the registry; None: it was not promoted, or there is no registry.
        began: of a warm start each model → what it began with, or why it was trained from nothing.
    """

    run: Path
    verdict: Verdict
    version: int | None
    began: dict[str, str]


def retrain(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    registry: str | Path | None = None,
    time: str | None = None,
    every: Every = "day",
    scored: int = 3,
    window: int | None = None,
    warm: bool = False,
    margin: float = 0.01,
    export: bool | None = None,
    competition: Competition | None = None,
    minutes: float | Budget | None = None,
    seed: int = 0,
    device: DeviceLike = "auto",
    trust: Sequence[str] = (),
    stages: Stages | None = None,
) -> Retrained:
    """Make a run again from the rows that it has kept and new ones; promote it if the gate lets it pass.

    Progressive validation: each of the newest periods is scored by models of the rows before it, and by the run that
    serves, which has seen none of the new rows. The gate (see ``judge``) compares the two. The new run's own models are
    then of all rows.

    Args:
        run: the run that serves, with its parts beside it (``fastrec run`` keeps them); or a registry: its current one.
        data: a file of labelled rows, or a folder with ``train`` and the other tables, each of which takes the place of
            the run's own.
        out: the run directory to make.
        registry: where it is promoted; None: the registry that ``run`` is; where ``run`` is none, the gate only says
            what it would do.
        time: the column that says when a row was; None: the recipe's; where there is none, new rows are scored in three
            parts at random.
        every: what a period is: ``'hour'``, ``'day'``, ``'week'``, or ``'value'``: each value.
        scored: so many of the newest periods are scored.
        window: learn from so many of the newest periods only; None: from all rows.
        warm: nets begin with what the run's nets have learned, trees grow on the run's where their columns and the
            values of their categories are the same; both train half as long.
        margin: share of the serving run's metric by which the new one may be worse.
        export: promote its export too; None: if the current version has one. Where that keeps events, the new one has
            those of the old and the new rows and tables.
        competition: the recipe, where its code is at hand; None: the run's own features and models, and the kind of
            blend that it has chosen.
        minutes: the wall time that the training may take, as of ``run_competition``.
        seed: of everything random.
        device: where to train.
        trust: modules of generators and estimators of one's own that may be imported.
        stages: progress; None: shown on standard error.

    Returns:
        The new run, the verdict, and its version where it was promoted.

    Raises:
        FastrecError: the run keeps no rows, the new ones are not like them, or something could not be written.
    """
    stages = stages or Stages()
    out, data = Path(out), Path(data)
    if is_registry(run):
        registry = registry if registry is not None else run
    source = Path(run)
    if is_registry(run):  # the version's files lack the rows, which lie beside the run that it was copied from
        source = _source_of(Registry(run))
    if out.resolve() == source.resolve():
        raise DataError("this is the run that serves", file=out, remedy="Choose another --out: it may have to go on")
    saved = SavedRun(source, trust=trust)
    with stages.stage("rows"):
        newest = together(saved, data, time=time, every=every, scored=scored, window=window, device=device)
    own = {"trust": trust, "warm": warm, "cold_folds": newest.cold_folds, "recipe": competition}
    recipe = SavedRecipe(saved, newest.found, newest.folds, **own)
    run_competition(recipe, data, out, device=device, seed=seed, stages=stages, minutes=minutes, resume=True)
    with stages.stage("gate"):
        verdict = _judge(saved, out, newest, margin=margin, seed=seed)
    began = _began(out, recipe) if warm else {}
    about = {**verdict.to_dict(), "serving_run": source.resolve().name, "warm": began}
    with atomic_file(out / "gate.json") as part:
        part.write_text(json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    events = {**newest.found.tables, "train": newest.past.rows}
    version = None if registry is None else _enter(Registry(registry), source, out, verdict, export, trust, events)
    return Retrained(out, verdict, version, began)


def _began(out: Path, recipe: SavedRecipe) -> dict[str, str]:
    made = {}
    for name in (n for n in recipe.asked if (out / "models" / n).is_dir()):  # others did not fit into the time
        said = json.loads((out / "models" / name / "fold0" / "estimator.json").read_text(encoding="utf-8"))
        made[name] = said.get("began", "") if name in recipe.warmed else "trained from nothing, as its kind always is"
    return made


def _source_of(registry: Registry) -> Path:
    """Return the run that a registry's current version was copied from."""
    current = registry.current
    if current is None or current.run is None:
        raise DataError(
            "the registry's current version holds no run", file=registry.folder, remedy="Give the run directory"
        )
    source = Path(current.source)
    if not _same_run(current.run, source):
        raise DataError(
            f"the run that version {current.number} was copied from is not at {source} any more", file=registry.folder,
            remedy="Give the run directory, with its parts beside it",
        )  # fmt: skip
    return source


def _same_run(one: Path | None, other: Path) -> bool:
    files = [] if one is None else [one / "config.json", other / "config.json"]
    return len(files) == 2 and all(f.is_file() for f in files) and files[0].read_bytes() == files[1].read_bytes()


def _judge(saved: SavedRun, out: Path, newest: Newest, *, margin: float, seed: int) -> Verdict:
    """Compare the new run's progressive predictions with the serving run's."""
    made = SavedRun(out)
    scorer = Scorer.of(made.config["metric"], made.target)
    scored = newest.folds.scored & newest.judged
    counted = made.config.get("recipe", {}).get("counted")
    rows = newest.found.train
    if counted is not None and counted in rows:
        scored = scored & (rows[counted].integer().cpu() > 0)
    unknown, old = torch.zeros_like(scored), saved.target
    if old is not None and old.classes is not None and made.target is not None and old.outputs != made.target.outputs:
        # The serving run cannot predict classes that it does not know.
        unknown = (old.classes.encode(rows[old.names[0]]).cpu() == 0) & scored
    scored = scored & ~unknown
    candidate = _oof(out)[scored]
    table = rows.take(scored.to(rows.device))
    serving = _served(saved, table, newest, newest.codes[scored.numpy()])
    groups = None
    if saved.target is None:
        label = table[saved.config["label"]].number().cpu()
        groups = table[saved.config["list_column"]].integer().cpu()
    else:
        assert made.target is not None
        label = made.target.restore(made.target.encode(table).double())
        serving = saved.target.restore(serving)
        if (now := list(made.target.outputs)) != list(saved.target.outputs):  # classes that joined have probability 0
            wider = serving.new_zeros((len(serving), len(now)))
            wider[:, [now.index(n) for n in saved.target.outputs]] = serving
            serving = wider
        label = label.long() if made.task == "multiclass" else label
    # Rows of one fold key (a user, a session) are resampled together.
    key = made.config.get("recipe", {}).get("fold_key")
    clusters = None if key is None or key not in table else table[key].coded().codes.cpu()
    periods = newest.periods[scored.numpy()]
    options = {"periods": periods, "groups": groups, "clusters": clusters, "margin": margin, "seed": seed}
    if scorer.wants_classes and serving.ndim == 1:
        options["classes"] = saved.decision.classes(serving), _classes(out, scorer)[scored]
    verdict = judge(scorer.metric, label, serving, candidate, **options)
    if bool(unknown.any()):
        told = f"{int(unknown.sum())} rows of classes that the serving run does not know were left out"
        verdict = replace(verdict, reasons=[*verdict.reasons, told])
    if newest.blend_sees_later and made.stack.blends[0].learns:
        first = newest.periods[newest.codes == newest.codes[scored.numpy()].min()][0]
        told = f"no older period is left: the new run's blend of {first} has learned from labels of then or later"
        verdict = replace(verdict, reasons=[*verdict.reasons, told])
    return verdict


def _served(saved: SavedRun, table: Table, newest: Newest, codes: np.ndarray) -> torch.Tensor:
    """Predict rows with the serving run."""
    tables = dict(newest.found.tables)
    shown = table if saved.target is None else table.drop(saved.target.names)
    if not saved.config["history"]:
        return saved.predict_rows(saved.rows(shown, tables))
    # Features that look back see all rows that are known when a row's period begins.
    made = None
    for period in np.unique(codes):
        mine = torch.from_numpy(codes == period)
        rows = saved.rows(shown.take(mine.to(shown.device)), tables, newest.past.before(period))
        said = saved.predict_rows(rows)
        made = said.new_empty((len(codes), *said.shape[1:])) if made is None else made
        made[mine] = said
    assert made is not None
    return made


def _classes(run: Path, scorer: Scorer) -> torch.Tensor:
    rows = pq.read_table(run / "rows.parquet")
    rows = rows.filter(pc.equal(rows["split"], "oof"))
    assert scorer.target is not None
    label = torch.from_numpy(rows[f"label_{scorer.target.names[0]}"].to_numpy().copy())
    folds, made = torch.from_numpy(rows["fold"].to_numpy().copy()), _oof(run)
    known = ~made.isnan()  # rows that no fold scores have no prediction
    made[known] = as_scored(scorer.metric, label[known], made[known], folds[known]).to(made)
    return made


def _oof(run: Path) -> torch.Tensor:
    table = pq.read_table(run / "oof" / "stack.parquet")
    names = [n for n in table.column_names if n == "score" or n.startswith("prediction")]
    values = np.column_stack([table[n].to_numpy() for n in names])
    return torch.from_numpy(values[:, 0].copy() if len(names) == 1 else values)


def _enter(
    registry: Registry,
    serving: Path,
    out: Path,
    verdict: Verdict,
    export: bool | None,
    trust: Sequence[str],
    events: Mapping[str, Table],
) -> int | None:
    """Promote the new run, or write down why not."""
    why = "; ".join(verdict.reasons)
    about = {n: v for n, v in verdict.to_dict().items() if n != "by_period"}
    if not verdict.promote:
        registry.keep(why=f"{out.name}: {why}", about=about)
        return None
    current = registry.current
    if current is not None and not _same_run(current.run, serving):
        other = f"version {current.number} is current, with which it was not compared"
        registry.keep(why=f"{out.name}: {other}", about=about)
        raise DataError(
            f"{other}: it was compared with {serving.name}", file=registry.folder,
            remedy="Retrain the registry itself, or promote the new run (fastrec promote)",
        )  # fmt: skip
    wanted = (current is not None and current.export is not None) if export is None else export
    if not wanted:
        return registry.promote(out, why=why, about=about).number
    from fastrec.serve.export import export_run

    with tempfile.TemporaryDirectory() as beside:
        # A server that keeps events needs those of the old and the new rows.
        serves = current is not None and current.export is not None and (current.export / "events").is_dir()
        data = events if serves else None
        made = export_run(out, Path(beside) / "export", data=data, trust=trust).folder
        return registry.promote(out, export=made, why=why, about=about).number
