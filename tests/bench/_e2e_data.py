"""The files, the columns and the rules of the end-to-end benchmark, which both of its sides share.

Candidates are the listed items of every clickout of ``train.csv``; the target is whether the item was clicked.
Sessions that begin on the last day validate, all others train. The fold of a training row, for out-of-fold target
means, is the second in which its session began, modulo ``FOLDS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from _timing import check_same

CLICK = "clickout item"
OTHERS = [f"interaction item {kind}" for kind in ("image", "info", "rating", "deals")]
ITEM_ACTIONS = (*OTHERS, "search for item", CLICK)
TEXTS = ("user_id", "session_id", "action_type", "platform", "city", "device", "current_filters")  # repeated values
COLUMNS = (*TEXTS, "timestamp", "step", "reference", "impressions", "prices")
TYPES = {n: pa.int64() if n in ("timestamp", "step") else pa.string() for n in COLUMNS}
LAST_DAY = 1_541_462_400  # 2018-11-06 00:00 UTC
DAY = 86_400  # seconds
FOLDS, SMOOTH = 5, 20

TARGET = "clicked"
# Of the embeddings, by categorical column; marks of missing values get FLAG_WIDTH.
WIDTHS = {"user_id": 16, "item_id": 16, "city": 8, "current_filters": 8, "platform": 4, "device": 2}
WIDTHS |= {"position": 3, "last_action": 3}
FLAG_WIDTH = 1
LAYERS = (64, 32)
CATS = tuple(WIDTHS)
CONTS = ("te_item_id__clicked", "te_item_id_x_city__clicked", "count_item_id", "count_user_id")
CONTS += ("descrank_count_item_id__list_id", "price", "rank_price__list_id", "price_over_mean")
CONTS += ("touch_count", "touch_since", "offset_touched", "session_since")
USED = (*CATS, *CONTS, TARGET)
ABOUT = (
    f"{len(CATS)} categorical columns ({', '.join(f'{n} {w}' for n, w in WIDTHS.items())} wide), {len(CONTS)} numbers "
    "(out-of-fold target means of the item and of item × city, counts of item and user, the item's rank in its list by "
    "count, price, price rank and price over the list's mean, earlier touches of the item in the session and seconds "
    "since the last, places below the listed item touched last, seconds since the session's last event)"
)
check_equal = partial(check_same, "the two sides", rtol=1e-6, atol=1e-6)


@dataclass
class Prepared:
    """A side's candidates."""

    frame: Any  # with ``USED``, in a library of the side's own
    splits: tuple[Any, Any]  # row numbers of training and of validation
    lists: np.ndarray  # int64 ``[n]``, the list that each candidate is in
    clicked: np.ndarray  # int64 ``[n]``, the target
    time: np.ndarray  # int64 ``[n]``, seconds: when the list was shown


def log_file(folder: Path) -> Path:
    """Return the log in a folder: Parquet where it has been made, else CSV."""
    parquet = folder / "train.parquet"
    return parquet if parquet.exists() else folder / "train.csv"


def files(rows: int, *, root: Path = Path("runs/e2e-data"), parquet: bool = False) -> Path:
    """Return the folder of simulated files with at least so many candidates in ``train.csv``, simulated only once.

    Its name says the number of sessions. With ``parquet`` the log is Parquet, in a folder of its own.
    """
    sessions = max(100, math.ceil(rows / 30.8 / 100 * 1.02) * 100)  # a session has 30.8 candidates in train.csv
    folder = root / f"{sessions}-0"
    if not (folder / "train.csv").exists():
        from competitions.trivago2019.simulate import simulate

        print(f"simulating {sessions:,} sessions into {folder}", flush=True)
        simulate(sessions, folder, seed=0)
    made = folder.with_name(folder.name + "-parquet")
    if parquet and not (made / "train.parquet").exists():
        # As either side reads the CSV: an empty field is missing in text too.
        nulls = {"null_values": [""], "strings_can_be_null": True}
        options = pa_csv.ConvertOptions(column_types=TYPES, include_columns=list(COLUMNS), **nulls)
        made.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa_csv.read_csv(folder / "train.csv", convert_options=options), made / "train.parquet")
    return made if parquet else folder
