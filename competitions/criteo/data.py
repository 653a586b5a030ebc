"""The files of a folder: which lines are training rows, and which the test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from fastrec.errors import MissingFileError
from fastrec.tabular import LogPart

COUNTS = [f"I{i + 1}" for i in range(13)]
CATEGORIES = [f"C{i + 1}" for i in range(26)]
_SHARE = 6 / 7  # of a single file's bytes: Kaggle's holds seven days
_PROBE = 1 << 20  # bytes that the length of a line is judged by


def days(data: Path) -> list[Path]:
    """List the files ``day_0``, ``day_1``, … (with or without ``.tsv`` or ``.txt``) in order; else ``train.txt`` alone.

    Raises:
        MissingFileError: there are none.
    """
    found = {
        int(m[1]): p for p in sorted(data.glob("day_*")) if (m := re.fullmatch(r"day_(\d+)(\.tsv|\.txt)?", p.name))
    }
    if found:
        return [found[i] for i in sorted(found)]
    single = [p for p in (data / "train.txt", data / "train.tsv") if p.is_file()]
    if not single:
        raise MissingFileError(
            "there are no click logs", file=data / "day_0.tsv",
            remedy="Give a folder with day_0.tsv, day_1.tsv, … or with Kaggle's train.txt, not compressed",
        )  # fmt: skip
    return single[:1]


def train_and_test(data: Path, rows: int | None) -> tuple[list[LogPart], list[LogPart]]:
    """Split into all days but the last, and the last; of a single file the last seventh is the test.

    Args:
        data: the folder.
        rows: use only about this many training lines, those just before the test.
    """
    files = days(data)
    if len(files) > 1:
        train, test = [LogPart(f) for f in files[:-1]], [LogPart(files[-1])]
    else:
        cut = int(files[0].stat().st_size * _SHARE)
        train, test = [LogPart(files[0], 0, cut)], [LogPart(files[0], cut)]
    return (train if rows is None else _last(train, rows)), test


def _last(parts: list[LogPart], rows: int) -> list[LogPart]:
    """Return the end of some parts, about so many lines."""
    with open(parts[-1].path, "rb") as file:
        probe = file.read(_PROBE)
    left = int(rows * len(probe) / max(probe.count(b"\n"), 1))
    found: list[LogPart] = []
    for part in reversed(parts):
        start, stop = part.range()
        if left <= 0:
            break
        found.insert(0, LogPart(part.path, max(start, stop - left), part.stop))
        left -= stop - start
    return found


def first_lines(parts: list[LogPart], rows: int) -> pa.Table:
    """Read the first lines as a table: counts as numbers, categories as text."""
    part = parts[0]
    start, stop = part.range()
    with open(part.path, "rb") as file:
        file.seek(start)
        text = file.read(min(stop - start, 1000 * rows))
    lines = text.split(b"\n")[1 if start else 0 :][:rows]
    kinds = {**dict.fromkeys(COUNTS, pa.float64()), **dict.fromkeys(CATEGORIES, pa.string())}
    table = pa_csv.read_csv(
        pa.py_buffer(b"\n".join(lines)),
        pa_csv.ReadOptions(column_names=["label", *COUNTS, *CATEGORIES]),
        pa_csv.ParseOptions(delimiter="\t"),
        pa_csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True),
    )
    return table.drop_columns(["label"])


def true_auc(data: Path) -> float | None:
    """Return the AUC of the true probabilities, which simulated files come with."""
    path = data / "bayes.json"
    return float(json.loads(path.read_text())["auc"]) if path.is_file() else None
