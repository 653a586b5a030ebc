"""A small ranking recipe in which only the session says what is clicked."""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fastrec.competition import Competition, CompetitionData, EventsBefore
from fastrec.estimators import Estimator, SessionRanker, XGBRanker
from fastrec.table import Table

C, LISTS = 5, 300
SMALL = {"epochs": 6, "bs": 96, "lr": 2e-2, "layers": [16]}
EVENTS = EventsBefore("log", session="s", order="t", item="item", cats="kind", conts=["dwell"], time="t")


def planted(seed: int, lists: int, *, first: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The candidate that was looked at is clicked; another was only shown. Lists, and the log of their sessions."""
    rng = np.random.default_rng(seed)
    rows, log = [], []
    for i in range(first, first + lists):
        items = [f"hôtel {v}" for v in rng.permutation(12)[:C]]
        clicked = int(rng.integers(0, C))
        seen = [("hôtel x", "look")] * int(rng.integers(0, 3)) + [
            (items[clicked], "look"),
            (items[clicked - 1], "show"),
        ]
        log += [(f"s{i}", t, item, kind, rng.normal()) for t, (item, kind) in enumerate(seen)]
        log.append((f"s{i}", 70, items[clicked - 2], "look", 9.0))  # after the list: never read
        rows += [(i, f"s{i}", 50, item, j, float(j == clicked)) for j, item in enumerate(items)]
    names = ["list_id", "s", "t", "item", "place", "clicked"]
    return pd.DataFrame(rows, columns=names), pd.DataFrame(log, columns=["s", "t", "item", "kind", "dwell"])


class Looks(Competition):
    name = "looks"
    task = "ranking"
    item = "item"
    n_folds = 2
    categories = ()
    plain = ("place",)
    events = EVENTS

    def load(self, data: Path, *, rows: int | None, device: torch.device) -> CompetitionData:
        train, log = planted(0, LISTS)
        test, more = planted(1, 20, first=LISTS)
        truth = torch.from_numpy(test.pop("clicked").to_numpy())
        log = pd.concat([log, more]).sample(frac=1.0, random_state=0)
        return CompetitionData(Table.read(train), Table.read(test), tables={"log": Table.read(log)}, truth=truth)

    def models(self, *, bs: int | None) -> list[Estimator]:
        return [
            SessionRanker("din", model="DIN", most_events=4, **{**SMALL, "epochs": 10}),
            SessionRanker("bst", model="BST", most_events=2, **{**SMALL, "epochs": 1}),
            XGBRanker("xgb", rounds=4),
        ]
