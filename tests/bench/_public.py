"""What the benchmarks on public data share: splits, repeats by seed, and their records."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _timing import ROOT, Record, Timing, cpu_time, record
from fastai.data.transforms import RandomSplitter
from fastai.torch_core import set_seed

Split = tuple[list[int], list[int]]


@dataclass
class Runs:
    """One system's runs.

    Args:
        score: of each seed.
        wall, cpu: seconds of each seed's training and prediction.
        rows: training rows times epochs.
    """

    score: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rows: int = 0


def data_folder(name: str) -> Path:
    """Where the data lie unless ``--data`` says otherwise: beside the repository."""
    return ROOT.parent / "shared" / "data" / name


def split_of(n: int, seed: int, *, inner: bool = False, share: float = 0.1) -> Split:
    """Training rows and the rows to score.

    Args:
        n: rows of the set.
        seed: of the split.
        inner: leave the test rows alone, and score a part of the training rows: this is how settings were chosen.
        share: of the training rows, that part.
    """
    train, test = (list(part) for part in RandomSplitter(0.2, seed=seed)(range(n)))
    return cut(train, seed, share) if inner else (train, test)


def cut(rows: Sequence[int], seed: int, share: float) -> Split:
    """Some rows in two parts, the second with this share of them."""
    mixed = np.random.default_rng(seed).permutation(rows).tolist()
    held = round(len(mixed) * share)
    return mixed[held:], mixed[:held]


def repeat(
    systems: Mapping[str, Callable[[Split, int], tuple[float, int]]],
    splits: Sequence[Split],
    tell: Callable[[str], Any],
) -> dict[str, Runs]:
    """Run every system on every split, by turns.

    Args:
        systems: name → function of a split and a seed that gives the score and the rows trained on.
        splits: one for each seed.
        tell: what is told after each run.

    Returns:
        name → its runs.
    """
    found = {name: Runs() for name in systems}
    for seed, split in enumerate(splits):
        for name, run in systems.items():
            set_seed(seed, reproducible=True)
            cpu, wall = cpu_time(), time.perf_counter()
            score, rows = run(split, seed)
            runs = found[name]
            runs.wall.append(time.perf_counter() - wall)
            runs.cpu.append(cpu_time() - cpu)
            runs.score.append(score)
            runs.rows = rows
            tell(f"  seed {seed}  {name:44s} {score:.4f}  {runs.wall[-1]:7.1f} s")
    return found


def records(case: str, metric: str, found: Mapping[str, Runs], own: str) -> list[Record]:
    """The runs as records.

    Args:
        case: what was done.
        metric: name of the score: fields ``<metric>_mean``, ``<metric>_sd`` and, by seed, ``<metric>``.
        found: name → runs.
        own: the system that ratios are to.
    """
    made, base = [], Timing.of(found[own].wall, found[own].cpu)
    for name, runs in found.items():
        mean, sd = statistics.mean(runs.score), statistics.stdev(runs.score) if len(runs.score) > 1 else 0.0
        more = {f"{metric}_mean": round(mean, 5), f"{metric}_sd": round(sd, 5)}
        more |= {metric: [round(s, 5) for s in runs.score]}
        notes = f"{metric.upper()} {mean:.4f} ± {sd:.4f} (sd of {len(runs.score)})"
        made.append(record(case, name, runs.rows, Timing.of(runs.wall, runs.cpu), base, **more, notes=notes))
    return made
