"""The files of a market as scored candidates: read and checked, then given to ``score_candidates``."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from fastrec.competition import CompetitionData
from fastrec.errors import DataError, DataWarning, MissingFileError, UnreadableFileError, refuse_rows
from fastrec.retrieval import score_candidates
from fastrec.table import Table

RATED, CORE, RUN, QREL, TRUTH = "train.tsv", "train_5core.tsv", "valid_run.tsv", "valid_qrel.tsv", "test_qrel.tsv"
KEYS = ["userId", "itemId"]


def read(folder: Path, *, rows: int | None = None, device: torch.device) -> CompetitionData:
    """Read the files into a table of candidates with their scores, and more lists made by hiding interactions.

    Lists whose user has a line in ``valid_qrel.tsv`` are for training, the others are the test.

    Args:
        folder: holds the four files; ``test_qrel.tsv``, the answers of the test, is used for the final score
            where it is there.
        rows: use only the first training lists, of about this many candidates.
        device: where the tables go.

    Raises:
        FastrecError: a file is missing, unreadable, or not of this form.
    """
    if not folder.is_dir():
        raise MissingFileError("there is no such folder", file=folder, remedy=f"Give the folder of {RUN} with --data")
    lists = read_lists(folder / RUN)
    log = pd.concat([_ratings(folder / name).assign(kind=kind) for name, kind in ((RATED, "rated"), (CORE, "core"))])
    log.loc[log.kind == "core", "rating"] = np.nan  # all are 1.0 there
    lists["taken"] = _taken(lists, folder / QREL)
    known = lists.taken.groupby(lists.userId).transform("any")
    if not known.any():
        remedy = "Give the answers to learn from"
        raise DataError("no user of the run file has a line", file=folder / QREL, remedy=remedy)
    train, test = lists[known], lists[~known].drop(columns="taken")
    if rows is not None:
        place = pd.Series(np.arange(len(train)), train.index)
        train = train[place.groupby(train.userId).transform("first") < rows]
    made = score_candidates(
        train.astype({"taken": float}), log, user="userId", item="itemId", label="taken", kind="kind", targets=["core"],
        rating="rating", test=test if len(test) else None,
    )  # fmt: skip
    if made.test is None:
        return CompetitionData(made.train.to(device))
    asked, truth = made.test.select(KEYS).to_pandas(), None
    if (folder / TRUTH).exists():
        truth = torch.from_numpy(_taken(asked, folder / TRUTH).astype(float))
    targets = Table({"userId": asked.userId.drop_duplicates().to_numpy()})
    return CompetitionData(made.train.to(device), made.test.to(device), targets, truth=truth)


def read_lists(path: Path) -> pd.DataFrame:
    """Read the candidates, one a row: ``userId``, ``itemId``. The file has no header."""
    if not path.is_file():
        raise MissingFileError("there is no such file", file=path, remedy="Put the market's run file there")
    remedy = "A line is a user, a tab, and the candidates with commas between them; there is no header"
    try:
        lines = pd.read_csv(path, sep="\t", header=None, dtype=str, keep_default_na=False, quoting=3)
    except (ValueError, OSError) as error:
        raise UnreadableFileError(f"it cannot be read ({str(error).strip()})", file=path, remedy=remedy) from error
    if lines.shape[1] != 2:
        raise UnreadableFileError(f"a line has {lines.shape[1]} parts", file=path, remedy=remedy)
    lines.columns = KEYS
    again = lines.userId.duplicated().to_numpy()
    refuse_rows(again, "the user has an earlier line too", file=path, remedy="Keep one line a user")
    rows = lines.assign(itemId=lines.itemId.str.split(",")).explode("itemId")  # the index says which line
    bad = {"a candidate is empty": rows.itemId == "", "a candidate is listed twice": rows.duplicated()}
    remedy = "Put one comma between two ids, each id once"
    for problem, where in bad.items():
        if where.any():
            raise DataError(problem, file=path, row=int(rows.index[where][0]), remedy=remedy)
    return rows.reset_index(drop=True)


def _ratings(path: Path) -> pd.DataFrame:
    types = {"userId": pa.string(), "itemId": pa.string(), "rating": pa.float64()}
    table = Table.read(path, list(types), types=types, device="cpu")
    if not len(table):
        raise DataError("there is no row", file=path, remedy="Give a file with lines below the header")
    for name in types:
        bad = table[name].is_missing()
        refuse_rows(bad, "a value is missing", file=path, column=name, remedy="Mend or drop the row")
    return table.to_pandas()


def _taken(lists: pd.DataFrame, path: Path) -> np.ndarray:
    """Return which candidates are answers: bool ``[n]``. An answer that is no candidate is left out with a warning."""
    answers = _ratings(path)
    unknown, twice = ~answers.userId.isin(lists.userId).to_numpy(), answers.userId.duplicated().to_numpy()
    for bad, problem in ((unknown, "the user has no line in the run file"), (twice, "the user has two answers")):
        refuse_rows(bad, problem, file=path, column="userId", remedy=f"Give the answers to {RUN}")
    pairs, asked = (pd.MultiIndex.from_frame(frame[KEYS]) for frame in (lists, answers))
    absent = ~asked.isin(pairs)
    if absent.any():
        said = f"{path}: {absent.sum()} answers are not among their user's candidates (the first is in row "
        warnings.warn(f"{said}{absent.argmax()}): they are left out", DataWarning, stacklevel=2)
    return pairs.isin(asked)
