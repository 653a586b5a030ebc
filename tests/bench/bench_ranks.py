"""The same ranking net by one process and by two: validation MRR over seeds, and seconds.

``python tests/bench/bench_ranks.py --lists 8000 --seeds 3``
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import torch
import typer

from fastrec.estimators import NetRanker
from fastrec.metrics import mrr
from fastrec.scale import training_on_ranks
from fastrec.table import Table
from fastrec.validate import Lists

_LENGTH = 12


def lists(count: int) -> Lists:
    """Lists of 12 candidates; the chosen one follows numbers, a category and their product, and chance."""
    rng = np.random.default_rng(0)
    n = count * _LENGTH
    x, city, item = rng.normal(size=(n, 3)), rng.integers(0, 50, n), rng.integers(0, 2_000, n)
    liked = rng.normal(size=2_000)
    score = x[:, 0] + x[:, 1] * (city % 3 - 1) + liked[item] + rng.gumbel(size=n)
    best = score.reshape(count, _LENGTH).argmax(1) + np.arange(count) * _LENGTH
    label = torch.zeros(n)
    label[torch.from_numpy(best)] = 1
    columns = {f"x{i}": torch.from_numpy(x[:, i]) for i in range(3)}
    table = Table({**columns, "city": [f"c{v}" for v in city], "item": [f"i{v}" for v in item]})
    groups = torch.arange(n) // _LENGTH
    return Lists(table, groups, cats=["city", "item"], conts=list(columns), label=label)


def main(
    count: Annotated[int, typer.Option("--lists")] = 8_000,
    seeds: int = 3,
    epochs: int = 4,
) -> None:
    """Train and score."""
    rows = lists(count)
    known = rows.groups < count * 3 // 4
    train, valid = rows.take(known), rows.take(~known)
    found: dict[int, list[float]] = {1: [], 2: []}
    for ranks, scores in found.items():
        for seed in range(seeds):
            began = time.monotonic()
            with training_on_ranks(ranks):
                net = NetRanker(epochs=epochs).fit(train, None, seed=seed)
            took = time.monotonic() - began
            scores.append(mrr(net.predict(valid), valid.label, valid.groups))
            typer.echo(f"ranks {ranks} seed {seed} mrr {scores[-1]:.5f} in {took:.1f} s")
    for ranks, scores in found.items():
        typer.echo(f"ranks {ranks}: mrr {np.mean(scores):.5f} ± {np.std(scores, ddof=1):.5f} over {seeds} seeds")


if __name__ == "__main__":
    typer.run(main)
