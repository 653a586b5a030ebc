"""The files, the columns and the rules of the end-to-end benchmark, which both of its sides share.

Candidates are the listed items of every clickout of ``train.csv``; the target is whether the item was clicked.
Sessions that begin on the last day validate, all others train. The fold of a training row, for out-of-fold target
means, is the second in which its session began, modulo ``FOLDS``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

CLICK = "clickout item"
ITEM_ACTIONS = (
    "interaction item image",
    "interaction item info",
    "interaction item rating",
    "interaction item deals",
    "search for item",
    CLICK,
)
TEXTS = ("user_id", "session_id", "action_type", "platform", "city", "device", "current_filters")  # repeated values
COLUMNS = (*TEXTS, "timestamp", "step", "reference", "impressions", "prices")
LAST_DAY = 1_541_462_400  # 2018-11-06 00:00 UTC
DAY = 86_400  # seconds
FOLDS, SMOOTH = 5, 20

TARGET = "clicked"
WIDTHS = {  # of the embeddings, by categorical column; marks of missing values get FLAG_WIDTH
    "user_id": 16,
    "item_id": 16,
    "city": 8,
    "current_filters": 8,
    "platform": 4,
    "device": 2,
    "position": 3,
    "last_action": 3,
}
FLAG_WIDTH = 1
LAYERS = (64, 32)
CATS = tuple(WIDTHS)
CONTS = (
    "te_item_id__clicked",
    "te_item_id_x_city__clicked",
    "count_item_id",
    "count_user_id",
    "descrank_count_item_id__list_id",
    "price",
    "rank_price__list_id",
    "price_over_mean",
    "touch_count",
    "touch_since",
    "offset_touched",
    "session_since",
)
ABOUT = (
    f"{len(CATS)} categorical columns ({', '.join(f'{n} {w}' for n, w in WIDTHS.items())} wide), {len(CONTS)} numbers "
    "(out-of-fold target means of the item and of item × city, counts of item and user, the item's rank in its list by "
    "count, price, price rank and price over the list's mean, earlier touches of the item in the session and seconds "
    "since the last, places below the listed item touched last, seconds since the session's last event)"
)

_ROWS_PER_SESSION = 30.8  # candidates in train.csv for each simulated session


@dataclass
class Prepared:
    """What a side makes of the files.

    Args:
        frame: a row per candidate with ``CATS``, ``CONTS`` and the target, in a library of the side's own.
        splits: row numbers of training and of validation.
        lists: int64 ``[n]``, the list that each candidate is in.
        clicked: int64 ``[n]``, the target.
        time: int64 ``[n]``, seconds: when a row's list was shown.
    """

    frame: Any
    splits: tuple[Any, Any]
    lists: np.ndarray
    clicked: np.ndarray
    time: np.ndarray


def log_file(folder: Path) -> Path:
    """The log in a folder: Parquet where it has been made, else CSV."""
    parquet = folder / "train.parquet"
    return parquet if parquet.exists() else folder / "train.csv"


def files(rows: int, *, seed: int = 0, root: Path = Path("runs/e2e-data"), parquet: bool = False) -> Path:
    """The folder of simulated files with at least so many candidates in ``train.csv``, simulated only once.

    Args:
        rows: candidates wanted.
        seed: of the simulation.
        root: where such folders are kept.
        parquet: the log as Parquet (in a folder of its own), not as CSV.

    Returns:
        The folder; its name says the number of sessions and the seed.
    """
    sessions = max(100, math.ceil(rows / _ROWS_PER_SESSION / 100 * 1.02) * 100)
    folder = root / f"{sessions}-{seed}"
    if not (folder / "train.csv").exists():
        from competitions.trivago2019.simulate import simulate

        print(f"simulating {sessions:,} sessions into {folder}", flush=True)
        simulate(sessions, folder, seed=seed)
    return _as_parquet(folder) if parquet else folder


def _as_parquet(folder: Path) -> Path:
    """A folder beside with the log's columns as Parquet."""
    made = folder.with_name(folder.name + "-parquet")
    if not (made / "train.parquet").exists():
        types = {n: pa.int64() if n in ("timestamp", "step") else pa.string() for n in COLUMNS}
        # As either side reads the CSV: an empty field is missing in text too.
        options = pa_csv.ConvertOptions(
            column_types=types, include_columns=list(COLUMNS), null_values=[""], strings_can_be_null=True
        )
        made.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa_csv.read_csv(folder / "train.csv", convert_options=options), made / "train.parquet")
    return made


def check_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    """Stop where the two sides' columns differ: text and numbers of categories exactly, numbers by more than 1e-6.

    Args:
        ours: column → values ``[n]``.
        theirs: likewise.
    """
    for name in (*CATS, *CONTS, TARGET):
        a, b = ours[name], theirs[name]
        if name in CONTS:
            same = np.isclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
        else:
            same = np.asarray(a, dtype=str) == np.asarray(b, dtype=str)
        if len(a) != len(b) or not np.all(same):
            row = int(np.flatnonzero(~same)[0]) if len(a) == len(b) else min(len(a), len(b))
            found = [x[row] if row < len(x) else "nothing" for x in (a, b)]
            raise SystemExit(f"the two sides differ: {name}[{row}] is {found[0]!r} and {found[1]!r}")
