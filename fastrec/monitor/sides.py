"""The two sides of a comparison: rows and predictions of a frame, a file, a folder or a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fastrec._core.leftovers import recover
from fastrec.competition import SavedRun
from fastrec.competition.data_folder import table_files
from fastrec.competition.kept_rows import KeptRows
from fastrec.competition.next_items.predict import is_next_item_run
from fastrec.competition.reading import Reading
from fastrec.errors import DataError, MissingFileError
from fastrec.table import Column, Table
from fastrec.table.column_types import as_types

__all__ = ["Sides", "as_read", "is_run", "prediction_columns", "read_sides", "read_table"]


@dataclass
class Sides:
    """Both tables and their comparable columns.

    Args:
        tables: the rows as they were and as they are, columns of one kind on both sides as ``common`` names them.
        names: what the two are called.
        common: the columns to compare.
        gone: columns that the new rows lack.
        retyped: column → what it was and is.
        added: columns that only the new rows have.
        left_out: column → why it is not compared.
        scores: name → predictions as they were and as they are.
        metric: a run's out-of-fold metric, whether more of it is better, and its name.
    """

    tables: tuple[Table, Table]
    names: tuple[str, str]
    common: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    retyped: dict[str, tuple[str, str]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    scores: dict[str, tuple[Column, Column]] = field(default_factory=dict)
    metric: tuple[float, bool, str] | None = None


def read_sides(reference: Any, new: Any, *, drop: Sequence[str], scores: Any, trust: Sequence[str] = ()) -> Sides:
    """Read both sides and sort out which columns can be compared.

    Args:
        reference, new, drop, scores, trust: as ``monitor`` takes them.
    """
    of_run = is_run(reference)
    saved = SavedRun(reference, trust=trust) if of_run else None
    old, wanted = (read_table(reference, ("train",)), None) if saved is None else _of_run(saved)
    now = read_table(new, ("test", "train"), None if saved is None else saved.reading)
    tables = tuple(Table({n: t[n].plain() for n in t.names}) for t in (old, now))
    sides = Sides(tables, (_called(reference, "reference"), _called(new, "new")))  # type: ignore[arg-type]
    time = None if saved is None else saved.config.get("recipe", {}).get("time")
    _sort_out(sides, list(old.names) if wanted is None else wanted, set(drop), time)
    if of_run:
        sides.metric = _metric_of(Path(reference))
    if scores is not None:
        found = _both_scores(reference, scores, saved, len(now))
        sides.scores = {_beside(n, sides.common): both for n, both in found.items()}
    return sides


def _sort_out(sides: Sides, names: Sequence[str], drop: set[str], time: str | None) -> None:
    old, now = sides.tables
    for name in names:
        was = old[name].kind
        if name in drop:
            sides.left_out[name] = "as asked for"
        elif was == "datetime" or name == time:  # a recipe's time may be a number
            sides.left_out[name] = "times: they go on"
        elif was not in ("number", "category"):
            sides.left_out[name] = f"a {was}"
        elif name not in now:
            sides.gone.append(name)
        elif now[name].kind == was:
            sides.common.append(name)
        elif bool(now[name].is_missing().all()):  # a file says no type of a column without values
            empty = pa.nulls(len(now), pa.string()) if was == "category" else np.full(len(now), np.nan)
            sides.tables = old, now.with_columns({name: empty})
            now = sides.tables[1]
            sides.common.append(name)
        else:
            sides.retyped[name] = was, now[name].kind
    sides.added = [n for n in now.names if n not in old]


def is_run(place: Any) -> bool:
    """Tell a run directory from other places; ``SavedRun`` refuses one of sessions with its remedy."""
    return isinstance(place, str | Path) and ((Path(place) / "decision.json").is_file() or is_next_item_run(place))


def read_table(source: Any, roles: Sequence[str], reading: Reading | None = None) -> Table:
    """Read the rows of a frame, a file, or a folder's file of one of the roles; Parquet parts are one table.

    Args:
        source: where they are.
        roles: which file of a folder, the first that is there.
        reading: what files do not say themselves; None: nothing.
    """
    reading = reading or Reading()
    if isinstance(source, str | Path) and Path(source).is_dir():
        files = table_files(Path(source), {r: n for r, n in reading.files.items() if (Path(source) / n).is_file()})
        found = next((files[r] for r in roles if r in files), None)
        if found is not None:
            return as_read(Table.read(reading.read(found, names=()), device="cpu"), reading)
        if not any(p.suffix == ".parquet" for p in files.values()):
            raise MissingFileError(
                f"there is no file {' or '.join(roles)} in it", file=source, remedy="Give the file of the rows"
            )
    elif isinstance(source, str | Path) and Path(source).is_file():
        return as_read(Table.read(reading.read(source, names=()), device="cpu"), reading)
    return as_read(Table.read(str(source) if isinstance(source, Path) else source, device="cpu"), reading)


def as_read(table: Table, reading: Reading) -> Table:
    """Convert columns to the types that a run has learned, as far as their values allow."""
    types = reading.types.get("train", {})
    table = reading.frame(table, names=())
    for name in types:
        try:
            table = as_types(table, types, [name])
        except DataError:  # it is reported as a column of another type
            continue
    return table


def _of_run(saved: SavedRun) -> tuple[Table, list[str]]:
    run = saved.folder
    try:
        kept = KeptRows(run)
    except (MissingFileError, DataError):
        path = run / "sample_labelled.parquet"
        if not path.is_file():
            raise MissingFileError(
                "the run keeps no rows to compare with", file=path, remedy="Run the recipe again, or give the rows"
            ) from None
        table = Table.read(path, device="cpu")
    else:
        table = kept.train()
    lists = {saved.config["list_column"]} if saved.target is None else set()
    wanted = [n for n in saved.inputs if n in table and n not in lists]
    return table.select(wanted), wanted


def _metric_of(run: Path) -> tuple[float, bool, str] | None:
    recover(run)
    try:
        said = json.loads((run / "scores.json").read_text(encoding="utf-8"))
        return float(said["oof"]["stack"]), bool(said.get("greater_is_better", True)), str(said["metric"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _both_scores(reference: Any, scores: Any, saved: SavedRun | None, rows: int) -> dict[str, tuple[Column, Column]]:
    if isinstance(scores, tuple):
        old, new = (prediction_columns(s) for s in scores)
    elif saved is not None and (both := _submitted(saved, _as_table(scores))) is not None:
        old, new = both
    elif saved is not None:
        files = [Path(reference) / s / "stack.parquet" for s in ("test", "oof")]
        own = next((p for p in files if p.is_file()), None)
        if own is None:
            raise MissingFileError("the run holds no predictions", file=reference, remedy="Run the recipe again")
        old, new = prediction_columns(own), prediction_columns(scores)
    else:
        raise DataError(
            "predictions of the new rows alone have nothing to be compared with",
            remedy="Give a run as reference, or a pair: those of the reference, those of the new rows",
        )
    if len(old) != len(new):
        raise DataError(f"{len(new)} columns of predictions, the reference has {len(old)}", remedy="Give as many")
    lengths = {len(c) for c in new.values()}
    if lengths != {rows}:
        raise DataError(
            f"{next(iter(lengths), 0)} predictions of {rows} new rows", remedy="Give one for each row, in their order"
        )
    names = ["prediction"] if len(new) == 1 else [f"prediction {n}" for n in new]
    return dict(zip(names, zip(old.values(), new.values(), strict=True), strict=True))


def _submitted(saved: SavedRun, new: Table) -> tuple[dict[str, Column], dict[str, Column]] | None:
    """Read the run's submission and predictions in its form; None if they have another form."""
    names, path = getattr(saved.form, "values", ()), saved.folder / "submission.csv"
    if not names or not path.is_file() or any(n not in new for n in names):
        return None
    old = _as_table(path)
    return {n: old[n] for n in names}, {n: new[n] for n in names}


def _beside(name: str, columns: Sequence[str]) -> str:
    while name in columns:
        name = f"{name} (scores)"
    return name


def prediction_columns(source: Any) -> dict[str, Column]:
    """Find the predictions of a table: columns called ``prediction…`` or ``score``, else its only column of numbers.

    Args:
        source: values ``[n]``, a table of any library, or a file.

    Raises:
        DataError: there is none, or it cannot be told which it is.
    """
    table = _as_table(source)
    named = [n for n in table.names if n == "score" or n.startswith("prediction")]
    numbers = [n for n in table.names if table[n].kind == "number"]
    chosen = named or numbers
    if not named and len(numbers) != 1:
        raise DataError(
            f"which column holds predictions cannot be told ({', '.join(numbers[:8]) or 'no numbers'})",
            file=source if isinstance(source, str | Path) else None,
            remedy="Call it prediction or score",
        )
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
