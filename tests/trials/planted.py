"""Small tables with a known law, and runs of them: what is worth something, what is noise and what leaks is planted."""

from pathlib import Path

import numpy as np
import pandas as pd

from fastrec.competition import Competition, run_competition
from fastrec.estimators import ColumnRanker, XGBModel, XGBRanker
from fastrec.features import CountEncode, FeatureSet, GroupRank, Lag, TargetEncode
from fastrec.stacking import Stack

TREES = {"rounds": 30, "eta": 0.1, "max_depth": 3, "early_stopping_rounds": None, "nthread": 1}
LIGHT = {**TREES, "rounds": 10, "eta": 0.3}


def rows(n: int = 1500, seed: int = 0) -> pd.DataFrame:
    """What decides is ``x`` (the model has it), ``h`` and the shop's own rate (it has neither)."""
    rng = np.random.default_rng(seed)
    shop = rng.integers(0, 40, n)
    rate = np.random.default_rng(99).normal(size=40) * 1.5
    x, h, z = (rng.normal(size=n) for _ in range(3))
    day = np.sort(rng.integers(0, 60, n))
    logit = x + 1.5 * h + rate[shop]
    return pd.DataFrame(
        {
            "id": np.arange(n) + 10_000 * seed,
            "x": x,
            "h": h,
            "z": z,
            "city": rng.choice(list("abcd"), n),
            "shop": [f"s{i}" for i in shop],
            "day": day,
            "user": rng.integers(0, n // 4, n),
            "bought": (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(int),
            "amount": np.exp(0.3 * logit + 0.1 * rng.normal(size=n)),
        }
    )


def lists(n: int = 150, seed: int = 0) -> pd.DataFrame:
    """Lists of three to eight candidates; the click follows ``price``, which the model has, and ``stars``."""
    rng = np.random.default_rng(seed)
    length = rng.integers(3, 9, n)
    frame = pd.DataFrame({"list_id": np.repeat(np.arange(n), length)})
    size = len(frame)
    frame["session"] = frame["list_id"] // 2
    frame["item_id"] = [f"i{v}" for v in rng.permutation(size)]
    frame["price"], frame["stars"], frame["noise"] = (rng.normal(size=size) for _ in range(3))
    score = frame["price"] + 1.5 * frame["stars"] + rng.gumbel(size=size)
    frame["clicked"] = (score == score.groupby(frame["list_id"]).transform("max")).astype(int)
    return frame


class Shop(Competition):
    """Whether something is bought: columns as they are, a count, an encoding with the target."""

    name, task, target, metric = "shop", "binary", "bought", "auc"
    ids, categories, plain = ("id",), ("city",), ("x",)

    def features(self):
        return FeatureSet([CountEncode("city"), TargetEncode("city", self.target)], key="id")

    def models(self, *, bs):
        return [XGBModel("boosted", **TREES), XGBModel("stump", **{**TREES, "rounds": 2, "max_depth": 1})]

    def stack(self):
        return Stack(rounds=2)


class Amounts(Shop):
    task, target, metric, scale, fold_key = "regression", "amount", "rmse", "log", "user"


class Later(Shop):
    time, history, metric = "day", True, "logloss"

    def features(self):
        return FeatureSet([CountEncode("city"), Lag("bought", by="shop", order="day")], key="id", target="bought")


class Lists(Competition):
    name, task, fold_key, plain, categories = "lists", "ranking", "session", ("price",), ()

    def features(self):
        return FeatureSet([GroupRank("price", by="list_id")], key="session")

    def baselines(self):
        return [ColumnRanker("display_order", ["price"])]

    def models(self, *, bs):
        return [XGBRanker("boosted", rounds=20, eta=0.3, max_depth=3, nthread=1)]

    def stack(self):
        return Stack(rounds=2)


def make_run(folder: Path, recipe: type[Competition], train: pd.DataFrame, *, resume: bool = True) -> Path:
    (folder / "data").mkdir(parents=True)
    train.to_parquet(folder / "data" / "train.parquet", index=False)
    return run_competition(recipe(), folder / "data", folder / "run", resume=resume)
