"""Ideas whose worth is known, tried on small runs: three good ones, three useless ones, two that leak.

``python tests/bench/bench_try.py census --data DIR --rows 20000`` (the folder of the census competition), or
``python tests/bench/bench_try.py trivago2019 --data DIR`` (simulated or real files). The runs are made of few columns,
so that what the ideas bring is not there yet. Prints the verdicts with the seconds that each took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from competitions.census.competition import NUMBERS, RICH, TARGET, WORK, Census
from competitions.trivago2019.competition import EVENT, ORDER, Trivago2019
from competitions.trivago2019.data import CLICK, ITEM_ACTIONS
from fastrec.competition import run_competition
from fastrec.estimators import XGBModel, XGBRanker
from fastrec.features import (
    CountEncode,
    Cyclic,
    FeatureSet,
    GroupFunction,
    GroupRank,
    History,
    JaccardToHistory,
    RowFunction,
    TargetEncode,
)
from fastrec.stacking import Stack
from fastrec.trials import try_features
from features import clickstream


class FewColumns(Census):
    """The census without occupations, weeks worked and capital: what the good ideas bring."""

    plain = tuple(n for n in NUMBERS if n not in ("weeks_worked", "capital_gains", "capital_losses", "stock_dividends"))
    categories = tuple(n for n in Census.categories.fget(Census()) if n not in WORK)

    def features(self):
        return FeatureSet([CountEncode("country_self", log=True)])

    def models(self, *, bs):
        return [XGBModel("xgb", max_depth=4, early_stopping_rounds=None, rounds=300)]

    def stack(self):
        return Stack(rounds=2)


class FewOfCandidates(Trivago2019):
    """Candidates by their place and price alone."""

    plain = ("position", "price")
    categories = ("device",)
    touched = None

    def features(self):
        return FeatureSet([GroupRank("price", by="list_id")], key=self.fold_key)

    def baselines(self):
        return []

    def models(self, *, bs):
        return [XGBRanker("xgb", max_depth=4, rounds=100)]

    def stack(self):
        return Stack(rounds=2)


def random_numbers(df: pd.DataFrame) -> dict[str, np.ndarray]:
    """Worth nothing."""
    return {"random": np.random.default_rng(0).normal(size=len(df))}


def mean_made_outside(run: Path, key: str, target: str):
    """The target's mean by key over all rows, made before the function: a leak that no row's change shows."""
    from fastrec.competition.kept_rows import KeptRows

    rows = KeptRows(run).train([key, target]).to_pandas()
    rich = rows[target] == RICH if target == TARGET else rows[target]
    means = rich.astype(float).groupby(rows[key].astype(str)).mean()
    return lambda df: {"mean_outside": df[key].astype(str).map(means).to_numpy()}


def census_ideas(run: Path, data: Path):
    """(kind, name, idea)."""
    return [
        ("good", "weeks worked", lambda df: {"weeks": df["weeks_worked"]}),
        ("good", "assets", RowFunction(lambda g, s, x: g + s - x, ["capital_gains", "stock_dividends",
                                                                    "capital_losses"], "assets")),
        ("good", "occupations by target", TargetEncode("det_occ_code", TARGET, classes=[RICH])),
        ("useless", "random numbers", random_numbers),
        ("useless", "survey weight, last digits", lambda df: {"digits": df["unknown"] * 100 % 7}),
        ("useless", "row number", lambda df: {"place": np.arange(len(df)) % 97}),
        ("leak", "own mean", GroupFunction(_share, TARGET, "own_share", by="det_occ_code")),
        ("leak", "mean made outside", mean_made_outside(run, "det_occ_code", TARGET)),
    ]  # fmt: skip


def _share(values):
    rich = [v == RICH for v in values]
    return sum(rich) / len(rich)


def trivago_ideas(run: Path, data: Path):
    """(kind, name, idea); without the file of items' properties their likeness is worth nothing, and is not planted."""
    keys = {"session": "session_id", "item": "item_id"}
    jaccard = JaccardToHistory(
        "session_id", item="item_id", properties="properties", order=ORDER, table="touches", items="items"
    )
    steps = History(["session_id", "item_id"], order=ORDER, table="touches", stats=["steps"], name="seen")
    clicks = clickstream.clicks(**keys, **EVENT, order=ORDER, click=CLICK)
    has_properties = (data / "item_metadata.csv").is_file()
    return [
        ("good", "touches", clickstream.touches(**keys, **EVENT, order=ORDER, kinds=ITEM_ACTIONS)),
        ("good", "likeness to what was touched", jaccard) if has_properties else ("good", "its clicks before", clicks),
        ("good", "steps since its last touch", steps),
        ("useless", "random numbers", random_numbers),
        ("useless", "length of the session's name", lambda df: {"letters": df["session_id"].astype(str).str.len()}),
        ("useless", "list number's circle", Cyclic("list_id", period=97)),
        ("leak", "own mean", GroupFunction(lambda clicked: clicked.mean(), "clicked", "own_share", by="item_id")),
        ("leak", "mean made outside", mean_made_outside(run, "item_id", "clicked")),
    ]  # fmt: skip


def main() -> None:
    """Make the run, try the ideas, print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("competition", choices=["census", "trivago2019"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    recipe, ideas = (
        (FewColumns(), census_ideas) if given.competition == "census" else (FewOfCandidates(), trivago_ideas)
    )
    table = RichTable("planted as", "idea", "verdict", "difference", "95 %", "s")
    with tempfile.TemporaryDirectory() as folder:
        run = run_competition(recipe, given.data, Path(folder) / "run", rows=given.rows, resume=True)
        for kind, name, idea in ideas(run, given.data):
            made = try_features(idea, run)
            d = made.difference
            figures = ("", "") if made.leaks else (f"{d.mean:+.5f}", f"{d.low:+.5f} to {d.high:+.5f}")
            table.add_row(kind, name, made.verdict, *figures, f"{made.seconds:.1f}")
            print(f"{name}: {made}", file=sys.stderr, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
