"""Simulated files in the form of Criteo's click logs, whose best possible AUC is known.

**World.** A line has 13 counts and 26 categories. Category j has as many different values as the publisher's Kaggle
file has (``CARDINALITIES``), times the share of that file's lines that are asked for; its values follow a power law
(rank r about ``r ** -1.1``) and are written as 8 hex digits that say nothing. Counts are what is rounded of a
log-normal. About as many are missing as in the publisher's file.

**Law.** The log-odds of a click are ``BASE`` plus: of each category a worth of the value (drawn by a hash of the value,
the larger its column's weight, the smaller the rarer it is); of each count a slope times its logarithm, or a worth of
its being missing; and of five pairs of columns the product of two vectors of length 4 that the values have. All this is
the same on every day and for every seed; the seed draws lines and clicks.

**Files.** ``day_0.tsv`` and on, ``DAYS`` of them, equally long: the last is the test. ``bayes.json``: AUC and log loss
of the true probabilities, on the last day.

Run ``fastrec simulate competitions/criteo --rows 1000000 --out DIR``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch

from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError
from fastrec.metrics import auc

DAYS = 8
LINES = 45_840_617  # of the publisher's Kaggle file
CARDINALITIES = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27, 14_992, 5_461_306, 10,
    5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
CATS_MISSING = {2: 0.034, 3: 0.034, 5: 0.12, 11: 0.034, 15: 0.034, 18: 0.44, 19: 0.44, 20: 0.034, 21: 0.76, 23: 0.034,
                24: 0.44, 25: 0.44}  # fmt: skip
COUNTS_MISSING = (0.45, 0.0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0, 0.04, 0.45, 0.04, 0.77, 0.22)
SLOPES = (0.30, 0.05, 0.0, -0.12, -0.16, 0.10, 0.20, 0.05, 0.0, 0.20, -0.10, 0.10, -0.14)
SCALES = (1.0, 3.0, 2.5, 1.8, 7.0, 4.0, 1.6, 2.2, 4.2, 0.3, 1.0, 0.4, 1.8)  # of counts: the log-normal's middle
PAIRS = ((0, 5), (7, 16), (13, 22), (1, 24), (4, 8))
BASE, POWER, WIDTH, BLOCK = -0.95, 1.1, 4, 1 << 18
MARKS = ("bayes.json", "day_0.tsv")
FILES = {"bayes.json", *(f"day_{day}.tsv" for day in range(DAYS))}


@dataclass(frozen=True)
class Simulated:
    """A summary; ``oracle_auc`` and ``oracle_logloss`` are of the true probabilities, on the last day."""

    out: Path
    rows: int
    days: int
    values: int
    share: float
    oracle_auc: float
    oracle_logloss: float


def simulate(
    rows: int, out: str | Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Simulated:
    """Write the files; earlier ones at ``out`` are replaced in one step.

    Args:
        rows: how many lines, at least 800.
        out: the folder to make.
        seed: of all random numbers.
        progress: called with the lines done and their number.

    Raises:
        DataError: ``rows`` is below 800, or ``out`` holds other files.
        WriteError: the file system refused.
    """
    out = Path(out)
    if rows < 100 * DAYS:
        raise DataError(f"{rows} lines are too few", remedy=f"Simulate {100 * DAYS} or more")
    there = {p.name for p in out.iterdir()} if out.is_dir() else set()
    if out.is_file() or (there and (there - FILES or not there.issuperset(MARKS))):
        raise DataError("holds files of something else", file=out, remedy="Name an empty or a new folder")
    rng = np.random.default_rng(seed)
    sizes = [max(3, min(c, round(c * max(rows / LINES, 0.0)) if c > 1000 else c)) for c in CARDINALITIES]
    done, clicks, last = 0, 0, []
    with atomic_folder(out) as folder:
        for day in range(DAYS):
            with open(folder / f"day_{day}.tsv", "wb") as file:
                left = rows * (day + 1) // DAYS - rows * day // DAYS
                while left:
                    n = min(left, BLOCK)
                    table, p, click = _lines(n, sizes, rng)
                    _write(file, table)
                    left, done, clicks = left - n, done + n, clicks + int(click.sum())
                    last += [(p, click)] if day == DAYS - 1 else []
                    if progress is not None:
                        progress(done, rows)
        p, click = (torch.from_numpy(np.concatenate(part)).double() for part in zip(*last, strict=True))
        best = float(auc(p, click))
        loss = float(torch.nn.functional.binary_cross_entropy(p, click))
        said = {"auc": best, "logloss": loss, "rows": len(p), "of": f"day_{DAYS - 1}.tsv", "seed": seed}
        (folder / "bayes.json").write_text(json.dumps(said, indent=1))
    return Simulated(out, rows, DAYS, sum(sizes), clicks / rows, best, loss)


def _write(file: object, table: pa.Table) -> None:
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pa_csv.write_csv(table, file, options)


def _lines(n: int, sizes: list[int], rng: np.random.Generator) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Draw lines, the true probability of a click ``[n]`` and whether there was one."""
    odds = np.full(n, BASE)
    columns: dict[str, pa.Array] = {}
    for j, (gone, slope, scale) in enumerate(zip(COUNTS_MISSING, SLOPES, SCALES, strict=True)):
        count = np.floor(np.exp(rng.normal(scale, 1.3, n))).astype(np.int64) - (3 if j == 1 else 0)
        missing = rng.random(n) < gone
        odds += np.where(missing, -0.3 * np.sign(slope), slope * (np.log1p(np.maximum(count, 0)) - scale))
        columns[f"I{j + 1}"] = pa.array(count, mask=missing)
    ranks, there = [], []
    for j, size in enumerate(sizes):
        rank = _power_law(size, n, rng)
        missing = rng.random(n) < CATS_MISSING.get(j, 0.0)
        worth = _normal(rank, j, 0) * (1 + rank / 2000) ** -0.5
        odds += np.where(missing, 0.1, (0.28 if j % 3 else 0.16) * worth)
        columns[f"C{j + 1}"] = pa.array(_hex(rank, j), mask=missing)
        ranks.append(rank)
        there.append(~missing)
    for a, b in PAIRS:
        product = sum(_normal(ranks[a], a, k) * _normal(ranks[b], b, k) for k in range(1, WIDTH + 1))
        odds += np.where(there[a] & there[b], 0.14 * product, 0.0)
    p = 1 / (1 + np.exp(-odds))
    click = rng.random(n) < p
    return pa.table({"label": click.astype(np.int8), **columns}), p, click


def _power_law(size: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ranks from 0, int64 ``[n]``, by the inverse of a continuous power law's distribution up to ``size``."""
    top = (size + 1.0) ** (1 - POWER)
    rank = (1 - rng.random(n) * (1 - top)) ** (1 / (1 - POWER))
    return np.minimum(rank.astype(np.int64) - 1, size - 1)


def _mixed(rank: np.ndarray, column: int, draw: int) -> np.ndarray:
    """Hash a value, its column and the number of the draw to 64 bits (splitmix64, Steele et al. 2014)."""
    x = rank.astype(np.uint64) + np.uint64((column * 64 + draw + 1) << 40)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _normal(rank: np.ndarray, column: int, draw: int) -> np.ndarray:
    """Draw about standard normal float64 ``[n]``: the sum of four uniform numbers of 16 bits."""
    bits = _mixed(rank, column, draw)
    total = sum((bits >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
    return (total.astype(np.float64) / 65_536 - 2) * 3**0.5


def _hex(rank: np.ndarray, column: int) -> np.ndarray:
    """Spell values as 8 hex digits ``[n]``, distinct within a column: an odd multiple, a bit pattern over it."""
    value = (rank.astype(np.uint64) * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) ^ (
        _mixed(np.array([column]), 63, 0) & np.uint64(0xFFFFFFFF)
    )
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    nibbles = (value[:, None] >> np.arange(28, -1, -4, dtype=np.uint64)) & np.uint64(15)
    return np.ascontiguousarray(digits[nibbles.astype(np.intp)]).view("S8")[:, 0].astype("U8")
