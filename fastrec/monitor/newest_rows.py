"""Old and new rows of a run together, and folds that score each of the newest periods by what came before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastrec._core.device import DeviceLike, resolve_device
from fastrec.competition import CompetitionData, SavedRun
from fastrec.competition.data_folder import table_files
from fastrec.competition.kept_rows import KeptRows
from fastrec.errors import DataError, MissingColumnError, MissingFileError
from fastrec.monitor.over_time import Every, periods_of
from fastrec.table import Table, concat
from fastrec.validate import Folds
from fastrec.validate.cut_random import group_folds, random_folds
from fastrec.validate.given import given_times

__all__ = ["Newest", "Past", "together"]


@dataclass
class Newest:
    """A run's rows and new ones.

    Args:
        found: all rows, as a recipe takes them; of a ranking task by list.
        judged: bool ``[n]``: new rows that the two models are judged by. (The folds score an earlier period too, from
            which the second level learns.)
        folds: each scores a period by rows before it.
        periods: the name of each row's period.
        codes: its number, int64 ``[n]``.
        past: the rows that are known when a period begins.
        blend_sees_later: the first judged period has none before it that the second level could learn from.
        cold_folds: folds that score rows which the run has learned from.
    """

    found: CompetitionData
    judged: torch.Tensor
    folds: Folds
    periods: np.ndarray
    codes: np.ndarray
    past: Past
    blend_sees_later: bool = False
    cold_folds: tuple[int, ...] = ()


@dataclass
class Past:
    """All rows, and which of them are known when a period begins.

    Args:
        rows: old and new ones, before a window cuts them.
        codes: int64 ``[n]``, number of each row's period.
        ticks: ``[n]``, its time; None: there is no gap.
        gap: rows have to be more than this before a period's first one, in ticks: the recipe's ``time_gap``.
    """

    rows: Table
    codes: np.ndarray
    ticks: np.ndarray | None = None
    gap: float = 0

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
    """Read new rows, append them to the run's, and cut the folds.

    Args:
        saved: the run.
        data: a file of labelled rows, or a folder with ``train`` and the other tables, each of which takes the place of
            the run's own; ``test`` is predicted where it is there.
        time: the column that says when a row was; None: the recipe's, or none.
        every: what a period is.
        scored: so many of the newest periods are judged, each scored by what came before it.
        window: keep the rows of so many of the newest periods; None: all.
        device: where the tables go.

    Raises:
        FastrecError: the run keeps no rows, the new rows are not like them, or there is nothing to score.
    """
    where = resolve_device(device)
    kept = KeptRows(saved.folder)
    file, train, tables, test = _read(saved, data, where)
    old = kept.train().to(where)
    rows, is_new = _joined(saved, old, train, file)
    if time is None:
        time = saved.config.get("recipe", {}).get("time")
    if time is not None and time not in rows:
        remedy = f"They have {', '.join(rows.names)}"
        raise MissingColumnError("the rows lack it", column=time, file=data, remedy=remedy)
    if window is not None and time is None:
        raise DataError("a window is of time, and no column says the time", remedy="Give --time")
    if time is None:  # old rows, then new ones
        names, codes = ["old", "new"], is_new.numpy().astype(np.int64)
    else:
        names, codes = periods_of(rows[time], every, most=None)
    past = Past(rows, codes, *_gap(saved, rows))
    inside = past
    if window is not None:
        some = codes >= len(names) - window
        inside, is_new = past.cut(some), is_new[torch.from_numpy(some)]
    rows, codes = inside.rows, inside.codes
    if time is None:
        folds, judged, warmed_up = _random_folds(saved, rows, is_new), is_new, True
    else:
        folds, judged, warmed_up = _time_folds(inside, names, is_new, scored)
    own = {n: t.to(where) for n, t in kept.tables(kept.table_names).items()}
    found = CompetitionData(rows, test, tables={**own, **tables}, types=saved.reading.types)
    cold = tuple(k for k, (_, scored_rows) in enumerate(folds) if not bool(is_new[scored_rows].all()))
    return Newest(found, judged, folds, np.asarray(names, object)[codes], codes, past, not warmed_up, cold)


def _gap(saved: SavedRun, rows: Table) -> tuple[np.ndarray | None, float]:
    said = saved.config.get("recipe", {})
    if not said.get("time_gap") or said.get("time") not in rows:
        return None, 0
    times = given_times(rows, said["time"], "time")
    return times.ticks.cpu().numpy(), times.span(said["time_gap"], "gap")


def _read(saved: SavedRun, data: Path, where: torch.device) -> tuple[Path, Table, dict[str, Table], Table | None]:
    if not data.exists():
        raise MissingFileError("there is no such file or folder", file=data, remedy="Give the new rows")
    files = {"train": data} if data.is_file() else table_files(data, None)
    if "train" not in files:
        raise MissingFileError(
            f"there is no train file (there is {', '.join(p.name for p in files.values()) or 'nothing'})", file=data,
            remedy="Name the labelled new rows train.csv or train.parquet, or give the file itself",
        )  # fmt: skip
    read = {n: saved.read(p, n, device=where) for n, p in files.items()}
    train, test = read.pop("train"), read.pop("test", None)
    hidden = [] if test is None or saved.target is None else [n for n in saved.target.names if n in test]
    return files["train"], train, read, test if test is None else test.drop(hidden)


def _joined(saved: SavedRun, old: Table, new: Table, file: Path) -> tuple[Table, torch.Tensor]:
    """Concatenate old and new rows, and mark the new ones; lists come in ascending order."""
    needed = _needed(saved, old)
    absent = next((n for n in needed if n not in new), None)
    if absent is not None:
        raise MissingColumnError("the new rows lack it", column=absent, remedy=f"They have {', '.join(new.names)}")
    numbers = np.arange(len(new))
    if saved.target is not None:
        labelled = saved.target.known(new)
        numbers, new = numbers[labelled.cpu().numpy()], new.take(labelled.to(new.device))
    if not len(new):
        raise DataError("there is no new row with a label", remedy="Give labelled rows")
    names = [n for n in old.names if n in new]
    rows = concat([old.select(names), new.select(names)])
    is_new = torch.arange(len(rows)) >= len(old)
    if saved.target is not None:
        _refuse_learned([n for n in saved.config.get("ids", ()) if n in rows], rows, len(old), numbers, file)
        return rows, is_new
    lists = rows[saved.config["list_column"]].integer().cpu()
    both = np.intersect1d(lists[~is_new].numpy(), lists[is_new].numpy())
    if len(both):
        raise DataError(
            f"{len(both)} lists of the new rows (such as {both[0]}) are lists of the run too",
            column=saved.config["list_column"], remedy="Give new lists numbers of their own",
        )  # fmt: skip
    order = torch.argsort(lists, stable=True)
    return rows.take(order.to(rows.device)), is_new[order]


def _refuse_learned(ids: list[str], rows: Table, old: int, numbers: np.ndarray, file: Path) -> None:
    """Refuse new rows that the run has learned from, before anything is trained.

    Args:
        ids: the columns that tell rows apart.
        rows: old rows, then new ones.
        old: how many are old.
        numbers: the place of each new row in its file.
        file: where the new rows are.
    """
    if not ids:
        return
    codes = rows.coded(ids).codes.cpu().numpy()
    learned = np.bincount(codes[:old], minlength=int(codes.max()) + 1)
    again = np.flatnonzero((learned[codes[old:]] > 0) & (codes[old:] > 0))
    # Ids that several old rows share name users or shops, not rows: they may come again.
    if len(again) and learned.max() == 1:
        value = ", ".join(f"{n} {rows[n].to_arrow()[old + int(again[0])]}" for n in ids)
        raise DataError(
            f"the run has learned from this row already: {value} ({len(again)} such rows in all)", file=file,
            column=", ".join(ids), row=int(numbers[again[0]]), remedy="Give the rows that are new alone",
        )  # fmt: skip


def _needed(saved: SavedRun, old: Table) -> list[str]:
    said = saved.config.get("recipe", {})
    names = [*saved.inputs, *(said.get(n) for n in ("fold_key", "time", "weight", "counted", "touched"))]
    names += saved.target.names if saved.target is not None else [saved.config["label"]]
    return [n for n in dict.fromkeys(names) if n is not None and n in old]


def _time_folds(
    past: Past, names: Sequence[str], is_new: torch.Tensor, scored: int
) -> tuple[Folds, torch.Tensor, bool]:
    """Cut folds that score the newest periods by the rows before each.

    One period more is scored first and is not judged: without it the second level of the first judged period could
    learn from labels of that period or of later ones only.
    """
    codes, new = past.codes, is_new.numpy()
    last = np.unique(codes[new])[-scored:]
    last = last[[bool(past.known(k).any()) for k in last]]
    if not len(last):
        raise DataError(
            "nothing is older than the new rows",
            remedy="Give rows of a later period, or a shorter --every; of a time that is a number --every value",
        )
    known = past.known(last[0])
    earlier = np.unique(codes[known])[::-1]
    warm_up = next((k for k in earlier if bool(past.known(k).any())), None)
    fold = np.full(len(codes), -1)
    train = {}
    for k, period in enumerate([*([] if warm_up is None else [warm_up]), *last]):
        mine = codes == period
        # Of the period that comes first, what is known in time for the next: with a gap not all of it is.
        fold[mine & (known if period == warm_up else new)] = k
        train[k] = torch.from_numpy(past.known(period))
    judged = torch.from_numpy(new & np.isin(codes, last))
    how = f"new rows of {names[last[0]]} to {names[last[-1]]}, each period by what came before it"
    how += "" if warm_up is None else f", and for the second level rows of {names[warm_up]}"
    folds = Folds(torch.from_numpy(fold), train, method=how, why="progressive validation")
    return folds, judged, warm_up is not None


def _random_folds(saved: SavedRun, rows: Table, is_new: torch.Tensor) -> Folds:
    count = int(is_new.sum())
    said = saved.config.get("recipe", {}).get("fold_key")
    key = said or (saved.config["list_column"] if saved.target is None else None)
    new = rows.take(is_new.to(rows.device))
    cut = random_folds(count, 3, seed=0) if key is None else group_folds(new, key, 3)
    fold = torch.full((len(rows),), -1, dtype=torch.int64)
    fold[is_new] = cut.long()
    return Folds(fold, method="new rows in 3 parts at random", why="no time says which rows came first")
