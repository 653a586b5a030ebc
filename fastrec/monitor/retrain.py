"""``retrain``: train a run again on old and new rows, and promote it if it is no worse."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fastrec._core import limits
from fastrec._core.atomic import write_json
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.messages import refuse_absent
from fastrec._core.progress import Stages
from fastrec.competition import Competition, CompetitionData, SavedRun, run_competition
from fastrec.competition.budget import Budget
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.predict import SavedRecipe
from fastrec.competition.reading import files_of
from fastrec.competition.scoring import Scorer
from fastrec.errors import DataError, refuse_rows
from fastrec.metrics import as_scored
from fastrec.monitor.gate import Verdict, judge
from fastrec.monitor.over_time import Every, periods_of
from fastrec.registry import Registry, is_registry
from fastrec.report.data import out_of_fold, read_predictions
from fastrec.table import Table, concat
from fastrec.validate import Folds
from fastrec.validate.cuts import first_in_group, given_times, group_folds, random_folds


@dataclass
class Newest:
    """A run's rows and new ones, with folds that score the newest periods."""

    found: CompetitionData  # all rows; of a ranking task sorted by list
    # bool ``[n]``: new rows that both models are judged by (folds score one earlier period too, to train the stack)
    judged: torch.Tensor
    folds: Folds  # each scores a period by earlier rows
    periods: np.ndarray  # the name of each row's period
    codes: np.ndarray  # its number, int64
    past: Past
    blend_sees_later: bool = False  # no period before the first judged one could train the stack
    cold_folds: tuple[int, ...] = ()  # folds that score rows which the run was trained on


@dataclass
class Past:
    """All rows, before a window cuts them, and which of them are known when a period begins."""

    rows: Table
    codes: np.ndarray  # numbers of the periods, int64 ``[n]``
    ticks: np.ndarray | None = None  # times of the rows
    gap: float = 0  # rows are known if they are more than this, in ticks, before the period's first

    def before(self, period: int) -> Table:
        """Return the rows known when a period begins."""
        return self.rows.take(torch.from_numpy(self.known(period)).to(self.rows.device))

    def known(self, period: int) -> np.ndarray:
        """Mark these rows: bool ``[n]``."""
        some = self.codes < period
        if self.ticks is not None and bool((self.codes == period).any()):
            some &= self.ticks < self.ticks[self.codes == period].min() - self.gap
        return some

    def cut(self, some: np.ndarray) -> Past:
        """Select rows."""
        rows = self.rows.take(torch.from_numpy(some).to(self.rows.device))
        return Past(rows, self.codes[some], None if self.ticks is None else self.ticks[some], self.gap)


def together(
    saved: SavedRun,
    data: Path,
    *,
    time: str | None,
    every: Every,
    scored: int,
    window: int | None,
    device: DeviceLike = "auto",
) -> Newest:
    """Read new rows, append them to the run's, and cut the folds; a folder's ``test`` has the rows to predict."""
    where = resolve_device(device)
    kept = KeptRows(saved.folder)
    file, train, tables, test = _read(saved, data, where)
    about: dict[str, Any] = saved.config.get("recipe", {})
    time = about.get("time") if time is None else time
    both = [n for n in kept.columns if n in train]
    refuse_absent([] if time is None else [time], both, "the rows lack it", file=data)
    rows, is_new = _joined(saved, kept.train().to(where), train, file, time)
    if window is not None and time is None:
        raise DataError("a window is of time, and no column says the time", remedy="Give --time")
    timed, ranking = rows, saved.target is None
    if ranking:  # a list's time is that of its first row, as in a recipe's folds
        timed = rows.take(first_in_group(rows[saved.config["list_column"]].group_numbers()))
    if time is None:  # old rows, then new ones
        names, codes = ["old", "new"], is_new.numpy().astype(np.int64)
    else:
        names, codes = periods_of(timed[time], every, most=None)
    gap: tuple[Any, ...] = ()
    if about.get("time_gap") and about.get("time") in rows:
        times = given_times(timed, about["time"], "time")
        gap = times.ticks.cpu().numpy(), times.span(about["time_gap"], "gap")
    past = inside = Past(rows, codes, *gap)
    if window is not None:
        some = codes >= len(names) - window
        inside, is_new = past.cut(some), is_new[torch.from_numpy(some)]
    rows, codes = inside.rows, inside.codes
    if time is None:
        count, said = int(is_new.sum()), about.get("fold_key")
        key = said or (saved.config["list_column"] if ranking else None)
        new = rows.take(is_new.to(rows.device))
        fold = torch.full((len(rows),), -1, dtype=torch.int64)
        fold[is_new] = (random_folds(count, 3, seed=0) if key is None else group_folds(new, key, 3)).long()
        folds = Folds(fold, method="new rows in 3 parts at random", why="no time says which rows came first")
        judged, warmed_up = is_new, True
    else:
        folds, judged, warmed_up = _time_folds(inside, names, is_new, scored)
    # The gate cannot decide from fewer: refuse before the training.
    count = (
        len(rows[saved.config["list_column"]].group_numbers().cpu()[judged].unique()) if ranking else int(judged.sum())
    )
    if count < limits.GATE_UNITS:
        problem = f"{count} new {'lists' if ranking else 'rows'} would be scored ({folds.method}), and the "
        problem += f"gate needs {limits.GATE_UNITS}"
        remedy = "Score more periods (--scored) or longer ones (--every week), or give more rows"
        raise DataError(problem, file=file, remedy=remedy)
    own = {n: t.to(where) for n, t in kept.tables(kept.table_names).items()}
    found = CompetitionData(rows, test, tables={**own, **tables}, types=saved.reading.types)
    cold = tuple(k for k, (_, scored_rows) in enumerate(folds) if not bool(is_new[scored_rows].all()))
    return Newest(found, judged, folds, np.asarray(names, object)[codes], codes, past, not warmed_up, cold)


def _read(saved: SavedRun, data: Path, where: torch.device) -> tuple[Path, Table, dict[str, Table], Table | None]:
    remedy = "Give the labelled new rows: their file, or a folder with train.csv or train.parquet"
    files = files_of(data, "train", remedy)
    read = {n: saved.read(p, n, device=where) for n, p in files.items()}
    train, test = read.pop("train"), read.pop("test", None)
    hidden = [] if test is None or saved.target is None else [n for n in saved.target.names if n in test]
    return files["train"], train, read, test if test is None else test.drop(hidden)


def _joined(saved: SavedRun, old: Table, new: Table, file: Path, time: str | None = None) -> tuple[Table, torch.Tensor]:
    refuse_absent(_needed(saved, old), new.names, "the new rows lack it", file=file)
    numbers = np.arange(len(new))
    if saved.target is not None:
        labelled = saved.target.labelled(new, str(file))
        numbers, new = numbers[labelled.numpy()], new.take(labelled.to(new.device))
        if saved.target.task == "binary" and saved.target.classes is not None:
            name, classes = saved.target.names[0], saved.target.classes
            odd, of = classes.encode(new[name]).cpu() == 0, ", ".join(map(str, classes.values.to_pylist()))
            refuse_rows(
                odd, lambda r: f"{new[name].to_arrow()[r]} is no class of the run, whose classes are {of}",
                numbers=numbers, file=file, column=name, remedy="Mend the label, or leave it empty",
            )  # fmt: skip
    if time is not None:
        gone, remedy = new[time].is_missing().cpu(), "Fill it, or leave the row out"
        refuse_rows(gone, "a time is missing", numbers=numbers, file=file, column=time, remedy=remedy)
    if not len(new):
        raise DataError("there is no new row with a label", remedy="Give labelled rows")
    names = [n for n in old.names if n in new]
    rows = concat([old.select(names), new.select(names)])
    is_new = torch.arange(len(rows)) >= len(old)
    if saved.target is not None:
        ids = [n for n in saved.config.get("ids", ()) if n in rows]
        if not ids:
            return rows, is_new
        codes = rows.coded(ids).codes.cpu().numpy()
        learned = np.bincount(codes[: len(old)], minlength=int(codes.max()) + 1)
        # Refuse rows that the run was trained on. Ids shared by several old rows are of users or shops: they may recur.
        if learned.max() == 1:
            mine, again = codes[len(old) :], "the run has learned from this row already: {}"
            for odd, problem, remedy in (
                (learned[mine] > 0, again, "Give the rows that are new alone"),
                (pd.Series(mine).duplicated().to_numpy(), "{} stands in an earlier row too", "Keep one each"),
            ):
                refuse_rows(
                    odd & (mine > 0),
                    lambda r, p=problem: p.format(", ".join(f"{n} {new[n].to_arrow()[r]}" for n in ids)),
                    numbers=numbers, file=file, column=", ".join(ids), remedy=remedy,
                )  # fmt: skip
        return rows, is_new
    name = saved.config["list_column"]
    lists = rows[name].group_numbers().cpu()
    again = torch.isin(lists[is_new], lists[~is_new]).nonzero()
    if len(again):
        row, count = int(again[0]), len(lists[is_new][again].unique())
        problem = f"{count} lists of the new rows (such as {new[name].to_arrow()[row]}) are lists of the run too"
        remedy = "A later list of the same user is another list: give each new one an id that the run does not have"
        raise DataError(problem, file=file, column=name, row=row, remedy=remedy)
    order = torch.argsort(lists, stable=True)
    return rows.take(order.to(rows.device)), is_new[order]


def _needed(saved: SavedRun, old: Table) -> list[str]:
    said = saved.config.get("recipe", {})
    names = [*saved.inputs, *(said.get(n) for n in ("fold_key", "time", "weight", "counted", "touched"))]
    names += saved.target.names if saved.target is not None else [saved.config["label"]]
    return [n for n in dict.fromkeys(names) if n is not None and n in old]


def _time_folds(
    past: Past, names: Sequence[str], is_new: torch.Tensor, scored: int
) -> tuple[Folds, torch.Tensor, bool]:
    """Cut folds that score the newest periods by the rows before each.

    The period before them is scored, but not judged: the stack of the first judged period is trained on it.
    """
    codes, new = past.codes, is_new.numpy()
    last = np.unique(codes[new])[-scored:]
    last = last[[bool(past.known(k).any()) for k in last]]
    if not len(last):
        remedy = "Give rows of a later period, or a shorter --every; of a time that is a number --every value"
        raise DataError("nothing is older than the new rows", remedy=remedy)
    known = past.known(last[0])
    warm_up = next((k for k in np.unique(codes[known])[::-1] if bool(past.known(k).any())), None)
    fold = np.full(len(codes), -1)
    train = {}
    for k, period in enumerate([*([] if warm_up is None else [warm_up]), *last]):
        # With a gap, not all of the first period is known in time for the next.
        fold[(codes == period) & (known if period == warm_up else new)] = k
        train[k] = torch.from_numpy(past.known(period))
    judged = torch.from_numpy(new & np.isin(codes, last))
    how = f"new rows of {names[last[0]]} to {names[last[-1]]}, each period by what came before it"
    how += "" if warm_up is None else f", and for the second level rows of {names[warm_up]}"
    return Folds(torch.from_numpy(fold), train, method=how, why="progressive validation"), judged, warm_up is not None


@dataclass(frozen=True)
class Retrained:
    """The new run and its verdict."""

    run: Path  #: the new run; ``gate.json`` in it holds the verdict
    verdict: Verdict
    version: int | None  #: its number in the registry; None: not promoted, or no registry
    began: dict[str, str]  #: of a warm start: model → what it started from, or why it was trained from scratch


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
    """Train a run again on its stored rows and new ones; promote it if it passes the gate.

    Progressive validation: each of the newest periods is scored by models of earlier rows and by the serving run, which
    has seen no new rows. The gate (see ``judge``) compares the two. The new run's final models are trained on all rows.

    Args:
        run: the serving run, with its stored rows (``fastrec run`` writes them); or a registry: its current one.
        data: a file of labelled rows, or a folder with ``train`` and the other tables, which replace the run's.
        out: the run directory to write.
        registry: where to promote; None: ``run`` if that is a registry, else the gate only reports its decision.
        time: the column with a row's time; None: the recipe's. Without one, new rows are scored in three random parts.
        every: the length of a period: ``'hour'``, ``'day'``, ``'week'``, or ``'value'``: each value.
        scored: number of newest periods that are scored.
        window: number of newest periods to train on; None: all.
        warm: start nets from the run's weights, and grow trees on the run's if their columns and categories are the
            same; both train half as long.
        margin: allowed loss, as a share of the serving run's metric.
        export: promote its export too; None: if the current version has one. An export with an event store gets the
            events of the old and the new rows and tables.
        competition: the recipe, if its code is available; None: the run's features, models and kind of blend.
        minutes: the wall time of the training, as in ``run_competition``.
        seed: of everything random.
        device: where to train.
        trust: modules of custom generators and estimators that may be imported.
        stages: progress; None: shown on standard error.

    Returns:
        The new run, the verdict, and the version if promoted.

    Raises:
        FastrecError: the run has no stored rows, new rows do not match them, or something could not be written.
    """
    stages = stages or Stages()
    out, data = Path(out), Path(data)
    source = Path(run)
    if is_registry(run):  # a version lacks the rows: they are in the run that it was copied from
        registry = run if registry is None else registry
        serving = Registry(run).current
        if serving is None or serving.run is None:
            remedy = "Give the run directory"
            raise DataError("the registry's current version holds no run", file=Path(run), remedy=remedy)
        source = Path(serving.source)
        if not _same_run(serving.run, source):
            problem = f"the run that version {serving.number} was copied from is not at {source} any more"
            raise DataError(problem, file=Path(run), remedy="Give the run directory, with its parts beside it")
    if out.resolve() == source.resolve():
        raise DataError("this is the run that serves", file=out, remedy="Choose another --out: it may have to go on")
    current = None if registry is None else Registry(registry).current
    if current is not None and not _same_run(current.run, source):  # refuse before the training
        problem = f"version {current.number} is current, with which it would not be compared, but with {source.name}"
        raise DataError(problem, file=registry, remedy="Retrain the registry itself, or leave --registry out")
    saved = SavedRun(source, trust=trust)
    with stages.stage("rows"):
        newest = together(saved, data, time=time, every=every, scored=scored, window=window, device=device)
    own = {"trust": trust, "warm": warm, "cold_folds": newest.cold_folds, "recipe": competition}
    recipe = SavedRecipe(saved, newest.found, newest.folds, **own)
    run_competition(recipe, data, out, device=device, seed=seed, stages=stages, minutes=minutes, resume=True)
    with stages.stage("gate"):
        verdict = _judge(saved, out, newest, margin=margin, seed=seed)
    began = _began(out, recipe) if warm else {}
    write_json(out / "gate.json", {**verdict.to_dict(), "serving_run": source.resolve().name, "warm": began})
    events = {**newest.found.tables, "train": newest.past.rows}
    version = None if registry is None else _enter(Registry(registry), source, out, verdict, export, trust, events)
    return Retrained(out, verdict, version, began)


def _began(out: Path, recipe: SavedRecipe) -> dict[str, str]:
    made = {}
    for name in (n for n in recipe.asked if (out / "models" / n).is_dir()):  # the budget had no time for others
        said = json.loads((out / "models" / name / "fold0" / "estimator.json").read_text(encoding="utf-8"))
        made[name] = said.get("began", "") if name in recipe.warmed else "trained from nothing, as its kind always is"
    return made


def _same_run(one: Path | None, other: Path) -> bool:
    files = [] if one is None else [one / "config.json", other / "config.json"]
    return len(files) == 2 and all(f.is_file() for f in files) and files[0].read_bytes() == files[1].read_bytes()


def _judge(saved: SavedRun, out: Path, newest: Newest, *, margin: float, seed: int) -> Verdict:
    made = SavedRun(out)
    scorer = Scorer.of(made.config["metric"], made.target)
    scored = newest.folds.scored & newest.judged
    counted = made.config.get("recipe", {}).get("counted")
    rows = newest.found.train
    if counted is not None and counted in rows:
        scored = scored & (rows[counted].integer().cpu() > 0)
    unknown, old = torch.zeros_like(scored), saved.target
    if old is not None and old.classes is not None and made.target is not None and old.outputs != made.target.outputs:
        # The serving run cannot predict classes that are new.
        unknown = (old.classes.encode(rows[old.names[0]]).cpu() == 0) & scored
    scored = scored & ~unknown
    oof = torch.from_numpy(read_predictions(out / "oof" / "stack.parquet"))
    candidate = (oof[:, 0] if oof.shape[1] == 1 else oof)[scored]
    table = rows.take(scored.to(rows.device))
    serving = _served(saved, table, newest, newest.codes[scored.numpy()])
    groups = None
    if saved.target is None:
        label = table[saved.config["label"]].number().cpu()
        groups = table[saved.config["list_column"]].group_numbers().cpu()
    else:
        label = made.target.restore(made.target.encode(table).double())
        serving = saved.target.restore(serving)
        if (now := list(made.target.outputs)) != list(saved.target.outputs):  # new classes have probability 0
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
    if len(by_period := verdict.by_period):  # empty if a check failed first
        in_time = by_period["period"].map(dict(zip(map(str, newest.periods), newest.codes))).argsort(kind="stable")
        verdict = replace(verdict, by_period=by_period.iloc[in_time].reset_index(drop=True))
    if bool(unknown.any()):
        told = f"{int(unknown.sum())} rows of classes that the serving run does not know were left out"
        verdict = replace(verdict, reasons=[*verdict.reasons, told])
    if newest.blend_sees_later and made.stack.blends[0].learns:
        first = newest.periods[newest.codes == newest.codes[scored.numpy()].min()][0]
        told = f"no older period is left: the new run's blend of {first} has learned from labels of then or later"
        verdict = replace(verdict, reasons=[*verdict.reasons, told])
    return verdict


def _served(saved: SavedRun, table: Table, newest: Newest, codes: np.ndarray) -> torch.Tensor:
    tables = dict(newest.found.tables)
    shown = table if saved.target is None else table.drop(saved.target.names)
    if not saved.config["history"]:
        return saved.predict_rows(saved.rows(shown, tables))
    # Features of earlier rows use all rows known when a row's period begins.
    places, parts = [], []
    for period in np.unique(codes):
        places.append(torch.from_numpy(np.flatnonzero(codes == period)))
        rows = saved.rows(shown.take(places[-1].to(shown.device)), tables, newest.past.before(period))
        parts.append(saved.predict_rows(rows))
    return torch.cat(parts)[torch.cat(places).argsort()]


def _classes(run: Path, scorer: Scorer) -> torch.Tensor:
    label, made, folds = (torch.from_numpy(v).squeeze(-1) for v in out_of_fold(run, "stack", whole=True))
    known = ~made.isnan()  # rows that no fold scores have no prediction
    made[known] = as_scored(scorer.metric, label[known], made[known], folds[known]).to(made)
    return made


def _enter(
    registry: Registry,
    serving: Path,
    out: Path,
    verdict: Verdict,
    export: bool | None,
    trust: Sequence[str],
    events: Mapping[str, Table],
) -> int | None:
    """Promote the new run, or note why not."""
    why = "; ".join(verdict.reasons)
    about = {n: v for n, v in verdict.to_dict().items() if n != "by_period"}
    if not verdict.promote:
        registry.keep(why=f"{out.name}: {why}", about=about)
        return None
    current = registry.current
    if current is not None and not _same_run(current.run, serving):
        other = f"version {current.number} is current, with which it was not compared"
        registry.keep(why=f"{out.name}: {other}", about=about)
        remedy = "Retrain the registry itself, or promote the new run (fastrec promote)"
        raise DataError(f"{other}: it was compared with {serving.name}", file=registry.folder, remedy=remedy)
    if not ((current is not None and current.export is not None) if export is None else export):
        return registry.promote(out, why=why, about=about).number
    from fastrec.serve.export import export_run

    with tempfile.TemporaryDirectory() as beside:
        # A server with an event store needs the events of the old and the new rows.
        serves = current is not None and current.export is not None and (current.export / "events").is_dir()
        made = export_run(out, Path(beside) / "export", data=events if serves else None, trust=trust).folder
        return registry.promote(out, export=made, why=why, about=about).number
