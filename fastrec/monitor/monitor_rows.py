"""``monitor``: compare new rows with the rows that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from fastrec._core import limits
from fastrec._core.atomic import read_json
from fastrec.competition import SavedRun
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.next_items import is_next_item_run
from fastrec.competition.reading import Reading, table_files
from fastrec.errors import DataError, MissingFileError
from fastrec.monitor.compare import Compared, Finding, Monitored, Thresholds, benjamini_hochberg, compare_columns, holm
from fastrec.report.data import prediction_names
from fastrec.retrieval.index import Vectors, neighbour_overlap
from fastrec.table import Column, Table, Vocab
from fastrec.table.column_types import as_types
from fastrec.validate import adversarial_validation


@dataclass
class Sides:
    """Both tables and their comparable columns."""

    # reference and new rows; columns in ``common`` have one kind on both sides
    tables: tuple[Table, Table]
    names: tuple[str, str]
    common: list[str] = field(default_factory=list)  # the columns to compare
    gone: list[str] = field(default_factory=list)  # columns that the new rows lack
    retyped: dict[str, tuple[str, str]] = field(default_factory=dict)  # column → old and new type
    added: list[str] = field(default_factory=list)  # columns that only the new rows have
    left_out: dict[str, str] = field(default_factory=dict)  # column → why it is not compared
    # name → reference and new predictions
    scores: dict[str, tuple[Column, Column]] = field(default_factory=dict)
    # a run's out-of-fold metric, whether greater is better, and its name
    metric: tuple[float, bool, str] | None = None


def read_sides(reference: Any, new: Any, *, drop: Sequence[str], scores: Any, trust: Sequence[str] = ()) -> Sides:
    """Read both sides (arguments: see ``monitor``), and choose the columns to compare."""
    of_run = is_run(reference)
    saved = SavedRun(reference, trust=trust) if of_run else None
    old, wanted = (read_table(reference, ("train",)), None) if saved is None else _of_run(saved)
    now = read_table(new, ("test", "train"), None if saved is None else saved.reading)
    tables = tuple(Table({n: t[n].plain() for n in t.names}) for t in (old, now))
    sides = Sides(tables, (_called(reference, "reference"), _called(new, "new")))  # type: ignore[arg-type]
    time = None if saved is None else saved.config.get("recipe", {}).get("time")
    _sort_out(sides, list(old.names) if wanted is None else wanted, set(drop), time)
    if of_run:
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = read_json(Path(reference) / "scores.json")
            greater = bool(said.get("greater_is_better", True))
            sides.metric = float(said["oof"]["stack"]), greater, str(said["metric"])
    if scores is not None:
        for name, both in _both_scores(reference, scores, saved, len(now)).items():
            while name in sides.common:
                name += " (scores)"
            sides.scores[name] = both
    return sides


def _sort_out(sides: Sides, names: Sequence[str], drop: set[str], time: str | None) -> None:
    old, now = sides.tables
    for name in names:
        was = old[name].kind
        if name in drop:
            sides.left_out[name] = "as asked for"
        elif was == "datetime" or name == time or (name == "until" and "vector" in old):
            sides.left_out[name] = "times: they go on"  # a recipe's time may be a number
        elif was not in ("number", "category"):
            sides.left_out[name] = f"a {was}"
        elif name not in now:
            sides.gone.append(name)
        elif now[name].kind == was:
            sides.common.append(name)
        elif bool(now[name].is_missing().all()):  # in a file, a column without values has no type
            empty = pa.nulls(len(now), pa.string()) if was == "category" else np.full(len(now), np.nan)
            sides.tables = old, now.with_columns({name: empty})
            now = sides.tables[1]
            sides.common.append(name)
        else:
            sides.retyped[name] = was, now[name].kind
    sides.added = [n for n in now.names if n not in old]


def is_run(place: Any) -> bool:
    """Tell a run directory from other places; ``SavedRun`` refuses one of sessions."""
    return isinstance(place, str | Path) and ((Path(place) / "decision.json").is_file() or is_next_item_run(place))


def read_table(source: Any, roles: Sequence[str], reading: Reading | None = None) -> Table:
    """Read the rows of a frame, a file, or a folder's file of one of the roles; Parquet parts are one table."""
    reading = reading or Reading()
    if isinstance(source, str | Path) and Path(source).is_dir():
        files = table_files(Path(source), {r: n for r, n in reading.files.items() if (Path(source) / n).is_file()})
        found = next((files[r] for r in roles if r in files), None)
        if found is not None:
            return as_read(Table.read(reading.read(found, names=()), device="cpu"), reading)
        if not any(p.suffix == ".parquet" for p in files.values()):
            remedy = "Give the file of the rows"
            raise MissingFileError(f"there is no file {' or '.join(roles)} in it", file=source, remedy=remedy)
    elif isinstance(source, str | Path) and Path(source).is_file():
        return as_read(Table.read(reading.read(source, names=()), device="cpu"), reading)
    return as_read(Table.read(str(source) if isinstance(source, Path) else source, device="cpu"), reading)


def as_read(table: Table, reading: Reading) -> Table:
    """Convert columns to the types that a run has learned, as far as their values allow."""
    types = reading.types.get("train", {})
    table = reading.frame(table, names=())
    for name in types:
        with suppress(DataError):  # reported as a column of another type
            table = as_types(table, types, [name])
    return table


def _of_run(saved: SavedRun) -> tuple[Table, list[str]]:
    run = saved.folder
    try:
        kept = KeptRows(run)
    except (MissingFileError, DataError):
        path = run / "sample_labelled.parquet"
        if not path.is_file():
            remedy = "Run the recipe again, or give the rows"
            raise MissingFileError("the run keeps no rows to compare with", file=path, remedy=remedy) from None
        table = Table.read(path, device="cpu")
    else:
        table = kept.train()
    lists = {saved.config["list_column"]} if saved.target is None else set()
    wanted = [n for n in saved.inputs if n in table and n not in lists]
    return table.select(wanted), wanted


def _both_scores(reference: Any, scores: Any, saved: SavedRun | None, rows: int) -> dict[str, tuple[Column, Column]]:
    names = getattr(saved and saved.form, "values", ())
    path = Path() if saved is None else saved.folder / "submission.csv"
    if isinstance(scores, tuple):
        old, new = (prediction_columns(s) for s in scores)
    elif saved is not None and names and path.is_file() and all(n in _as_table(scores) for n in names):
        old, new = ({n: table[n] for n in names} for table in (_as_table(path), _as_table(scores)))
    elif saved is not None:
        own = next((p for p in [Path(reference) / s / "stack.parquet" for s in ("test", "oof")] if p.is_file()), None)
        if own is None:
            raise MissingFileError("the run holds no predictions", file=reference, remedy="Run the recipe again")
        old, new = prediction_columns(own), prediction_columns(scores)
    else:
        remedy = "Give a run as reference, or a pair: those of the reference, those of the new rows"
        raise DataError("predictions of the new rows alone have nothing to be compared with", remedy=remedy)
    if len(old) != len(new):
        raise DataError(f"{len(new)} columns of predictions, the reference has {len(old)}", remedy="Give as many")
    lengths = {len(c) for c in new.values()}
    if lengths != {rows}:
        remedy = "Give one for each row, in their order"
        raise DataError(f"{next(iter(lengths), 0)} predictions of {rows} new rows", remedy=remedy)
    names = ["prediction"] if len(new) == 1 else [f"prediction {n}" for n in new]
    return dict(zip(names, zip(old.values(), new.values(), strict=True), strict=True))


def prediction_columns(source: Any) -> dict[str, Column]:
    """Find the predictions of a table, file or array: columns ``prediction…`` or ``score``, else the only numbers."""
    table = _as_table(source)
    named = prediction_names(table.names)
    numbers = [n for n in table.names if table[n].kind == "number"]
    chosen = named or numbers
    if not named and len(numbers) != 1:
        problem = f"which column holds predictions cannot be told ({', '.join(numbers[:8]) or 'no numbers'})"
        remedy = "Call it prediction or score"
        raise DataError(problem, file=source if isinstance(source, str | Path) else None, remedy=remedy)
    return {n.removeprefix("prediction_"): table[n] for n in chosen}


def _as_table(source: Any) -> Table:
    if isinstance(source, str | Path):
        return Table.read(str(source), device="cpu")
    values = source.detach().cpu().numpy() if hasattr(source, "detach") else source
    if hasattr(values, "ndim") and values.ndim == 1 and not hasattr(values, "columns"):
        return Table({"score": getattr(values, "to_numpy", lambda: values)()})
    if hasattr(values, "ndim") and values.ndim == 2 and not hasattr(values, "columns"):
        return Table({f"prediction_{i}": values[:, i] for i in range(values.shape[1])})
    return Table.read(source, device="cpu")


def _called(side: Any, otherwise: str) -> str:
    return Path(side).resolve().name if isinstance(side, str | Path) else otherwise


def monitor(
    reference: Any,
    new: Any,
    *,
    drop: Sequence[str] = (),
    scores: Any = None,
    over_time: pd.DataFrame | None = None,
    thresholds: Thresholds | None = None,
    adversarial: bool = True,
    seed: int = 0,
    trust: Sequence[str] = (),
) -> Monitored:
    """Compare new rows with the rows that a model was trained on.

    Columns of times are left out, as they always change. Put ids that only grow into ``drop``.

    Args:
        reference: a table of any library, a file, a folder with ``train``, or a run directory (its training rows).
        new: a table of any library, a file, or a folder with ``test`` (or ``train``). With a run as reference, files
            are read by its recipe's ``reading``.
        drop: columns not to compare.
        scores: predictions of the new rows, a table or a file, to compare with the run's. Without a run, a pair:
            predictions of the reference and of the new rows.
        over_time: the metric by period, from ``metric_over_time``; compared with the run's out-of-fold score of the
            same metric.
        thresholds: above which a change is a finding; None: the defaults.
        adversarial: train trees to separate the two sides, which finds joint changes of columns.
        seed: of the sample that the trees are trained on.
        trust: modules of a run's custom generators and estimators that may be imported.

    Raises:
        FastrecError: a side cannot be read, has fewer than 20 rows, or the two have no column in common.
    """
    thresholds = thresholds or Thresholds()
    sides = read_sides(reference, new, drop=drop, scores=scores, trust=trust)
    few = next((i for i in (0, 1) if len(sides.tables[i]) < limits.MONITOR_ROWS), None)
    if few is not None:
        remedy = f"Give at least {limits.MONITOR_ROWS} of each side"
        raise DataError(f"{sides.names[few]} has {len(sides.tables[few])} rows", remedy=remedy)
    pairs = [(n, sides.tables[0][n], sides.tables[1][n]) for n in sides.common]
    pairs += [(n, a, b) for n, (a, b) in sides.scores.items()]
    with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as threads:
        # Threads help, as numpy sorts without the interpreter's lock.
        compared = [c for c in threads.map(lambda pair: compare_columns(*pair), pairs) if c is not None]
    if not compared:
        raise DataError("the two sides have no column in common", remedy="Give tables with columns of the same names")
    # The tests of shape, missing and unseen values of all columns are corrected together.
    p = np.array([[c.shape.p, c.missing_test.p, c.unseen_test.p] for c in compared])
    correct = benjamini_hochberg if thresholds.correction == "bh" else holm
    adjusted = [tuple(row) for row in correct(p.ravel()).reshape(p.shape).tolist()]
    # one column, as in a competition's train and test
    hint = f"; if it is the target, leave it out (--drop {sides.gone[0]})" if len(sides.gone) == 1 else ""
    found = [Finding(name, "gone", f"the new rows do not have this column{hint}") for name in sides.gone]
    found += [Finding(n, "type", f"was a {was}, is a {now}") for n, (was, now) in sides.retyped.items()]
    by_column = {c.name: list(_of_column(c, p, thresholds, c.name in sides.scores)) for c, p in zip(compared, adjusted)}
    found += [f for some in by_column.values() for f in some]
    overlap = None
    embedded = all({"id", "vector"} <= set(t.names) and t["vector"].kind in ("list", "vector") for t in sides.tables)
    if embedded and "as asked for" not in (sides.left_out.get("id"), sides.left_out.get("vector")):
        try:
            share = float((Vocab.fit(sides.tables[0]["id"]).encode(sides.tables[1]["id"]) == 0).double().mean())
            if share >= thresholds.unseen and not any(f.kind == "unseen" for f in by_column.get("id", ())):
                found.append(Finding("id", "unseen", f"{share:.1%} of the ids were not there before"))
            overlap = neighbour_overlap(*(Vectors.of(t) for t in sides.tables), limits.OVERLAP_AT)
        except DataError as error:  # repeated ids, or too few in common: compare the other columns
            sides.left_out["vector"] = f"its neighbours cannot be compared: {error}"
    if overlap is not None and overlap < thresholds.overlap:
        says = f"of an id's {limits.OVERLAP_AT} nearest {overlap:.1%} are the same as before"
        found.append(Finding("vector", "neighbours", says))
    trees = None
    if adversarial:
        names, rng = [c.name for c in compared if c.name not in sides.scores], np.random.default_rng(seed)
        old, now = (_sample(t.select(names), rng) for t in sides.tables)
        trees = adversarial_validation(old, now, columns=names, seed=seed)
    if trees is not None and trees.auc.low > 0.5 and trees.auc.mean >= thresholds.auc:
        told = ", ".join(f"{c.name} ({c.gain:.0%})" for c in trees.columns[:3])
        found.append(Finding("all columns", "joint", f"trees tell new rows from old ones (AUC {trees.auc}): {told}"))
    own = None if over_time is None else over_time.attrs.get("metric")
    # Another metric is not comparable.
    metric = sides.metric if sides.metric is None or own in (None, sides.metric[2]) else None
    found += _of_metric(over_time, metric, thresholds)
    columns = [
        {
            "column": c.name, "kind": "prediction" if c.name in sides.scores else c.kind,
            "finding": ", ".join(f.kind for f in by_column[c.name]), "psi": c.psi, "js": c.js, "test": c.test,
            "statistic": c.shape.statistic, "p": shape, "missing_reference": c.missing[0], "missing_new": c.missing[1],
            "p_missing": missing, "unseen": c.unseen, "unseen_usual": c.unseen_usual, "p_unseen": unseen,
            "values_reference": c.values[0], "values_new": c.values[1], "values_grown": c.grown,
        }
        for c, (shape, missing, unseen) in zip(compared, adjusted, strict=True)
    ]  # fmt: skip
    return Monitored(
        pd.DataFrame(columns), found, trees, over_time, None if metric is None else metric[0],
        (len(sides.tables[0]), len(sides.tables[1])), sides.names, sides.added, sides.left_out, thresholds, overlap,
        compared,
    )  # fmt: skip


def _of_column(c: Compared, p: tuple[float, float, float], thresholds: Thresholds, is_score: bool) -> Iterator[Finding]:
    shape, missing, unseen = (one < thresholds.alpha for one in p)
    by_ks = c.test == "ks" and c.shape.statistic >= thresholds.ks
    if shape and (c.psi >= thresholds.psi or c.js >= thresholds.js or by_ks):
        said = f"PSI {c.psi:.3f}, JS {c.js:.3f}" + (f", KS {c.shape.statistic:.3f}" if c.test == "ks" else "")
        what = "predictions are" if is_score else "values are"
        yield Finding(c.name, "prediction" if is_score else "shape", f"{what} spread otherwise ({said})")
    if missing and abs(c.missing[1] - c.missing[0]) >= thresholds.missing:
        yield Finding(c.name, "missing", f"{c.missing[1]:.1%} missing, before {c.missing[0]:.1%}")
    if unseen and c.unseen - c.unseen_usual >= thresholds.unseen:
        what = "lie outside the range of before" if c.kind == "number" else "hold values that were not there before"
        yield Finding(c.name, "unseen", f"{c.unseen:.1%} of the rows {what} (usual: {c.unseen_usual:.1%})")


def _sample(table: Table, rng: np.random.Generator) -> Table:
    most = limits.MONITOR_TREE_ROWS
    return table if len(table) <= most else table.take(torch.from_numpy(np.sort(rng.choice(len(table), most, False))))


def _of_metric(
    over_time: pd.DataFrame | None, metric: tuple[float, bool, str] | None, thresholds: Thresholds
) -> Iterator[Finding]:
    if over_time is None or metric is None:
        return
    value, greater, _ = metric
    for row in over_time.itertuples():
        worse = value - row.high if greater else row.low - value
        if worse > thresholds.metric * abs(value):
            said = f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}], the run's out of fold is {value:.4f}"
            yield Finding(str(row.period), "metric", said)
