"""Incomes of the census on its own test part: the stack of ``competitions/census``, its parts, and library defaults.

``fastrec run competitions/census`` is carried out first, unless ``--run`` names a run directory. The others:
  LightGBM as it is      ``LGBMClassifier()``, on all training rows, text columns as pandas categories.
  CatBoost as it is      ``CatBoostClassifier()``, on all training rows, text columns as ``cat_features``.
Both see the columns that the recipe sees: all but the target and the survey's weight. With ``--codes`` the five columns
of codes that the recipe takes for categories are categories for them too.

The difference in AUC, stack less the other, is of the same resamples of the test rows for both, with its 90 % interval.
A part's seconds are not known: the run's are in the stack's line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from _public import data_folder
from _timing import ROOT, Record, Timing, command_line, cores, heading, record, use_threads, write
from rich.console import Console
from rich.table import Table as Grid

from fastrec.cli.app import load_competition
from fastrec.competition import run_competition
from fastrec.metrics import bootstrap_metric, get_metric

LEVEL, REPEATS = 0.9, 1_000
RECIPE = ROOT / "competitions" / "census"
STACK = "fastrec stack"


class Inputs:
    """Training and test rows as the libraries take them.

    Args:
        data: the folder of the files.
        codes: columns of codes are categories too.
    """

    def __init__(self, data: Path, *, codes: bool) -> None:
        recipe = load_competition(RECIPE)
        self.columns = [*recipe.categories, *recipe.plain]
        self.train, self.test = (pd.read_parquet(data / f"{name}.parquet") for name in ("train", "test"))
        self.y, self.y_test = ((frame[recipe.target] == recipe.positive).astype(int) for frame in self.frames)
        text = [n for n in self.columns if not pd.api.types.is_numeric_dtype(self.train[n])]
        self.cats = list(recipe.categories) if codes else text

    @property
    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The training and the test rows."""
        return self.train, self.test

    def lightgbm(self, threads: int) -> np.ndarray:
        """The test rows' probabilities by LightGBM as it is."""
        from lightgbm import LGBMClassifier

        kinds = {n: pd.CategoricalDtype(sorted(self.train[n].dropna().unique())) for n in self.cats}
        train, test = (frame[self.columns].astype(kinds) for frame in self.frames)
        return LGBMClassifier(n_jobs=threads, verbose=-1).fit(train, self.y).predict_proba(test)[:, 1]

    def catboost(self, threads: int) -> np.ndarray:
        """The test rows' probabilities by CatBoost as it is."""
        from catboost import CatBoostClassifier

        train, test = (frame[self.columns].copy() for frame in self.frames)
        for frame in (train, test):
            frame[self.cats] = frame[self.cats].astype(object).fillna("missing").astype(str)
        model = CatBoostClassifier(thread_count=threads, verbose=0, allow_writing_files=False)
        return model.fit(train, self.y, cat_features=self.cats).predict_proba(test)[:, 1]


def of_run(run: Path) -> tuple[dict[str, np.ndarray], Timing]:
    """The test rows' probabilities by the stack and its parts, and how long the run took."""
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    names = ["stack", *(n for n in scores["oof"] if n not in ("stack", "constant"))]
    made = {n: pq.read_table(run / "test" / f"{n}.parquet")["prediction"].to_numpy() for n in names}
    return {f"fastrec {n}": p for n, p in made.items()}, Timing(sum(scores["seconds"].values()))


def timed(predict: Callable[[int], np.ndarray], threads: int) -> tuple[np.ndarray, Timing]:
    """What a library predicts, and how long it took to learn and predict it."""
    begun = time.perf_counter()
    made = predict(threads)
    return made, Timing(time.perf_counter() - begun)


def compare(y: np.ndarray, found: Mapping[str, np.ndarray], *, repeats: int = REPEATS) -> dict[str, dict[str, float]]:
    """AUC and logloss of each, and the stack's AUC less its, with the ends of the interval.

    Args:
        y: 0 or 1, ``[n]``.
        found: system → probabilities ``[n]``; one is the stack.
        repeats: how many resamples.
    """
    drawn = bootstrap_metric("auc", y, found, repeats=repeats, level=LEVEL)
    loss, made = get_metric("logloss"), {}
    for name, p in found.items():
        made[name] = {"auc": drawn.values[name], "logloss": loss(y, p)}
        if name != STACK:
            mean, low, high = drawn.difference(STACK, name)
            made[name] |= {"difference": mean, "low": low, "high": high}
    return made


def show(console: Console, records: list[Record]) -> None:
    """Print the table."""
    grid = Grid(title="Incomes of the census, test part", title_justify="left")
    names = ("system", "AUC", "logloss", "stack less it", f"{LEVEL:.0%} interval", "seconds")
    for name in names:
        grid.add_column(name, justify="left" if name == "system" else "right", no_wrap=True)
    for one in records:
        known = "difference" in one
        gap = [f"{one['difference']:+.5f}", f"{one['low']:+.5f} to {one['high']:+.5f}"] if known else ["", ""]
        seconds = f"{one['seconds']:.0f}" if "seconds" in one else ""
        style = "bold" if one["system"] == STACK else None
        grid.add_row(one["system"], f"{one['auc']:.5f}", f"{one['logloss']:.5f}", *gap, seconds, style=style)
    console.print(grid)


def main() -> None:
    """Run the recipe and the libraries, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder("census-income"), help="folder of the files")
    parser.add_argument("--run", type=Path, help="a run directory of the recipe (default: make one)")
    parser.add_argument("--seed", type=int, default=0, help="of the run that is made")
    parser.add_argument("--codes", action="store_true", help="columns of codes are categories for all")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/census.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    inputs = Inputs(options.data, codes=options.codes)
    run = options.run
    if run is None:
        run = options.out.parent / "census-run"
        run_competition(load_competition(RECIPE), options.data, run, seed=options.seed, device="cpu")
    found, own = of_run(run)
    timings = {STACK: own}
    for name, predict in {"LightGBM as it is": inputs.lightgbm, "CatBoost as it is": inputs.catboost}.items():
        found[name], timings[name] = timed(predict, options.threads)
        print(f"  {name}: {timings[name].seconds:.0f} s", flush=True)
    scores = compare(inputs.y_test.to_numpy(), found)
    made = []
    for name, score in scores.items():
        timing = timings.get(name, own)
        one = record("Census", name, len(inputs.train), timing, own, **score)
        made.append(one if name in timings else {n: v for n, v in one.items() if n not in _TIMES})
    show(console, made)
    write(options.out, made, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


_TIMES = ("seconds", "cpu_seconds", "rows_per_s", "ratio", "cpu_ratio")

if __name__ == "__main__":
    main()
