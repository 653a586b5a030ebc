"""The official files of the RecSys Challenge 2019 as tables: event log, listed items, candidates."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from competitions.trivago2019.simulate import expected_mrr
from fastrec.competition import CompetitionData
from fastrec.errors import DataError, DataWarning, MissingFileError
from fastrec.features import explode
from fastrec.segments import Groups, segment_max, segment_mean, shift_in_group
from fastrec.table import Column, Table, concat
from fastrec.table.read import read_file

CLICK = "clickout item"
ITEM_ACTIONS = [
    "interaction item image",
    "interaction item info",
    "interaction item rating",
    "interaction item deals",
    "search for item",
    CLICK,
]
OTHER_ACTIONS = ["filter selection", "change of sort order", "search for destination", "search for poi"]
COLUMNS = [
    "user_id",
    "session_id",
    "timestamp",
    "step",
    "action_type",
    "reference",
    "platform",
    "city",
    "device",
    "current_filters",
    "impressions",
    "prices",
]
KEYS = ["user_id", "session_id", "timestamp", "step"]
_TYPES = {c: pa.int64() if c in ("timestamp", "step") else pa.string() for c in COLUMNS}
_LONGEST_DWELL = 1800.0  # seconds; a longer gap is a person who left


def read(folder: Path, *, rows: int | None = None, device: torch.device, part: bool = False) -> CompetitionData:
    """Read the official files into a table of candidates.

    Args:
        folder: holds ``train.csv`` and ``test.csv``; ``item_metadata.csv``, ``ground_truth.csv`` and
            ``true_probabilities.parquet`` are used where they are there.
        rows: use only about this many rows of ``train.csv``: the sessions that begin in the first ``rows``, whole.
        device: where the tables go.
        part: the files are a part of the official ones: there may be no list to rank.

    Raises:
        FastrecError: a file is missing, unreadable, or not of the official form.
    """
    if not folder.is_dir():
        raise MissingFileError(
            "there is no such folder", file=folder, remedy="Give the folder of train.csv and test.csv with --data"
        )
    train = _first_sessions(_read_log(folder / "train.csv", part=part), rows)
    test = _read_log(folder / "test.csv", part=part)
    log = _in_order(concat([train, test]), len(train), folder)
    shown = _listed(log, folder)
    is_target = shown["is_target"].values
    answered = ~is_target & ~shown["reference"].is_missing()
    labelled = shown.take(answered)
    clicked = (_text_codes(labelled, "item_id") == _text_codes(labelled, "reference", like="item_id")).double()
    candidates = labelled.with_columns({"clicked": clicked}).drop(["reference", "is_target"])
    _warn_of_absent_answers(candidates)
    targets = shown.take(is_target).drop(["reference", "is_target"])
    if not len(targets) and not part:
        raise DataError(
            f"no session ends with a {CLICK!r} whose reference is empty: there is nothing to rank",
            file=folder / "test.csv",
            column="reference",
            remedy="Use the official test file",
        )
    tables = {"log": log, "touches": _touches(log), "shown": shown.drop(["reference"]), "clicked": _clicked(candidates)}
    items, truth, oracle = (folder / n for n in ("item_metadata.csv", "ground_truth.csv", "true_probabilities.parquet"))
    if items.exists():
        tables["items"] = _read_items(items, (tables["shown"], tables["touches"]))
    keys = _first_of_lists(targets).select(KEYS)
    return CompetitionData(
        candidates.to(device),
        targets.to(device),
        keys,
        {n: t.to(device) for n, t in tables.items()},
        truth=_labels(truth, targets, keys) if truth.exists() else None,
        oracle=oracle_mrr(oracle) if oracle.exists() else None,
    )


def _read_log(path: Path, *, part: bool) -> Table:
    table = Table.read(path, COLUMNS, device="cpu", types=_TYPES)
    if not len(table) and not part:
        raise DataError("the file has a header and no rows", file=path, remedy="Fetch the file again")
    for name in (*KEYS, "action_type"):
        missing = table[name].is_missing()
        if bool(missing.any()):
            raise DataError(
                "a value is missing",
                file=path,
                column=name,
                row=int(missing.nonzero()[0]),
                remedy="Mend or drop the row",
            )
    known = set(ITEM_ACTIONS + OTHER_ACTIONS)
    for action in table["action_type"].coded().keys.columns[0].to_pylist():
        if action not in known:
            warnings.warn(
                f"{path}: unknown action type {action!r}; its rows are kept as events of no item",
                DataWarning,
                stacklevel=2,
            )
    pairs = table.coded(["session_id", "step"])
    twice = (torch.bincount(pairs.codes, minlength=pairs.size) > 1)[pairs.codes].nonzero()
    if len(twice):
        warnings.warn(
            f"{path}: {len(twice)} rows share session and step with another (the first is row {int(twice[0])}); "
            "all are kept, in order of timestamp, step and place in the file",
            DataWarning,
            stacklevel=2,
        )
    return table.with_columns({"file_row": torch.arange(len(table))})


def _first_sessions(log: Table, rows: int | None) -> Table:
    if rows is None or rows >= len(log):
        return log
    if rows < 1:
        raise DataError(f"--rows is {rows}", remedy="Use a number above 0")
    session = log["session_id"].coded()
    begun = torch.zeros(session.size, dtype=torch.bool)
    begun[session.codes[:rows]] = True
    return log.take(begun[session.codes])


def _in_order(log: Table, train_rows: int, folder: Path) -> Table:
    """Sort the log by session and time, with each event's place in its session and the seconds until the next."""
    session = log["session_id"].coded().codes
    groups = Groups.of(session, log["timestamp"].integer(), log["step"].integer())
    following = shift_in_group(groups, -1)
    time = log["timestamp"].number()
    dwell = torch.where(following >= 0, time[following.clamp_min(0)] - time, 0).clamp(0, _LONGEST_DWELL)
    in_test = torch.arange(len(log)) >= train_rows
    is_click = _is(log, "action_type", CLICK)
    is_target = in_test & is_click & log["reference"].is_missing()
    made = {"place": groups.unsort(groups.place), "dwell": dwell, "is_target": is_target, "in_test": in_test}
    log = log.with_columns(made)
    for name in ("impressions", "prices"):
        bad = (is_click & log[name].is_missing()).nonzero()
        if len(bad):
            problem = DataError(
                f"a {CLICK!r} row has none", column=name, row=int(bad[0]), remedy="Mend or drop the row"
            )
            raise _at_origin(problem, log, folder)
    return log if groups.order is None else log.take(groups.order)


def _at_origin(error: DataError, log: Table, folder: Path) -> DataError:
    """Return an error about a row of ``log`` as one about the file that the row comes from."""
    file, row = None, None
    if error.row is not None:
        file = folder / ("test.csv" if bool(log["in_test"].values[error.row]) else "train.csv")
        row = int(log["file_row"].integer()[error.row])
    return DataError(error.problem, file=file, column=error.column, row=row, remedy=error.remedy)


def _listed(log: Table, folder: Path) -> Table:
    """Return one row per listed item of every click: the candidates, those to rank among them."""
    clicks = log.take(_is(log, "action_type", CLICK))
    session, place = clicks["session_id"].coded(), clicks["place"].integer()
    is_last = place == segment_max(place, session.codes, session.size)[session.codes]
    filters = _count_parts(clicks["current_filters"])
    clicks = clicks.with_columns(
        {"is_last": is_last.long(), "filters": filters, "weight": torch.where(is_last, 1.0, 0.5)}
    )
    try:
        rows = explode(
            clicks.drop(["action_type", "file_row", "dwell"]),
            {"impressions": "item_id", "prices": "price"},
            numbers=["prices"],
            row="list_id",
        )
    except DataError as error:
        raise _at_origin(error, clicks, folder) from error
    size = torch.bincount(rows["list_id"].integer())[rows["list_id"].integer()]
    position = rows["position"].integer()
    rows = rows.with_columns({"list_length": size, "exposure": 1.0 / (position + 1)})
    pair = rows.coded(["list_id", "item_id"]).codes  # an item listed twice is kept where it stands first
    groups = Groups.of(pair)
    return rows.take(groups.unsort(groups.place) == 0)


def _count_parts(column: Column) -> torch.Tensor:
    parts = (
        pc.count_substring(column.distinct, "|").to_numpy(zero_copy_only=False) + 1
        if len(column.distinct)
        else np.zeros(0)
    )
    return torch.from_numpy(np.concatenate([[0], parts]).astype(np.int64))[column.values.long()]


def _touches(log: Table) -> Table:
    """Return the events about an item, by the item's id."""
    about_item = torch.zeros(len(log), dtype=torch.bool)
    for action in ITEM_ACTIONS:
        about_item |= _is(log, "action_type", action)
    rows = log.take(about_item & ~log["reference"].is_missing()).rename({"reference": "item_id"})
    # A run is a stretch of events of one session on one item; rows are in order of session and place.
    item, session = rows["item_id"].values, rows["session_id"].coded().codes
    run = torch.zeros(len(rows), dtype=torch.int64)
    run[1:] = torch.cumsum((item[1:] != item[:-1]) | (session[1:] != session[:-1]), 0)
    groups = Groups.of(run)
    time = rows["timestamp"].integer()
    rows = rows.with_columns({"run": groups.place + 1, "run_seconds": time - time[groups.start]})
    return rows.select(
        ["session_id", "user_id", "timestamp", "place", "action_type", "item_id", "dwell", "run", "run_seconds"]
    )


def _clicked(candidates: Table) -> Table:
    """Return the clicked candidates, with their price over their list's mean."""
    lists = candidates["list_id"].integer()
    price = candidates["price"].number()
    mean = segment_mean(price, lists, int(lists.max()) + 1 if len(lists) else 0)[lists]
    rows = candidates.with_columns({"price_over_mean": price / mean}).take(candidates["clicked"].values > 0)
    return rows.select(["session_id", "timestamp", "place", "position", "price_over_mean"])


def _is(table: Table, column: str, value: str) -> torch.Tensor:
    known = table[column].distinct.to_pylist()
    return (
        table[column].values == known.index(value) + 1 if value in known else torch.zeros(len(table), dtype=torch.bool)
    )


def _text_codes(table: Table, column: str, *, like: str | None = None) -> torch.Tensor:
    coded = table[column].coded()
    return coded.codes if like is None else coded.recode(table[like].coded().keys)


def _warn_of_absent_answers(candidates: Table) -> None:
    lists = candidates["list_id"].integer()
    size = int(lists.max()) + 1 if len(lists) else 0
    hits = torch.zeros(size).index_add_(0, lists, candidates["clicked"].values.float())
    absent = int((hits[torch.unique(lists)] == 0).sum())
    if absent:
        warnings.warn(
            f"{absent} clicks are on an item outside their list; they teach no ranking, and score 0",
            DataWarning,
            stacklevel=2,
        )


def _first_of_lists(candidates: Table) -> Table:
    lists = candidates["list_id"].integer()
    first = torch.ones(len(lists), dtype=torch.bool)
    first[1:] = lists[1:] != lists[:-1]
    return candidates.take(first)


def _read_items(path: Path, seen: Sequence[Table]) -> Table:
    """Read the properties of the items that are listed or touched: a small part of the official file."""
    table = Table.read(
        path, ["item_id", "properties"], device="cpu", types={"item_id": pa.string(), "properties": pa.string()}
    )
    ids = table["item_id"].coded()
    return properties_apart(table.take(sum(ids.recode(t["item_id"].coded().keys) for t in seen) > 0))


def properties_apart(items: Table) -> Table:
    """Split the items' properties into lists."""
    split = pc.split_pattern(items["properties"].to_arrow().cast(pa.string()), "|")
    return items.with_columns({"properties": split})


def _labels(path: Path, targets: Table, keys: Table) -> torch.Tensor:
    """Read the withheld clicks, for the final score only."""
    types = {"reference": pa.string(), **{k: _TYPES[k] for k in KEYS}}
    truth = Table.read(path, [*KEYS, "reference"], device="cpu", types=types)
    answer = truth.coded(KEYS).recode(keys.coded(KEYS).keys)
    row_of = torch.full((keys.coded(KEYS).size,), -1, dtype=torch.int64)
    row_of[answer] = torch.arange(len(truth))
    row_of[0] = -1
    rows = row_of[keys.coded(KEYS).codes]
    if bool((rows < 0).any()):
        raise DataError(
            f"{int((rows < 0).sum())} target rows of test.csv have no answer",
            file=path,
            remedy="Use the ground truth of this test file",
        )
    _, of_list = torch.unique_consecutive(targets["list_id"].integer(), return_inverse=True)
    items = targets["item_id"].coded()
    return (items.codes == truth["reference"].coded().recode(items.keys)[rows[of_list]]).double()


def oracle_mrr(path: Path) -> float:
    """Return the expected score of ranking the test targets by the probabilities that their clicks were drawn from."""
    table = read_file(path, ["target", "probabilities"])
    try:
        return expected_mrr(table.filter(table["target"])["probabilities"])
    except DataError as error:
        raise DataError(error.problem, file=path, column=error.column, remedy="Simulate the files again") from error
