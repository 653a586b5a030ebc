"""A ranking without code: ``fastrec.fit(group=)`` beside LightGBM, XGBoost and CatBoost on the same candidates.

    python tests/bench/bench_ranking.py --data DIR --minutes 5

The peers are set as a user would: the files' own numbers, the size of the group, each number's rank and its ratio to
the mean within the group, and the items' counts; stopped early on an eighth of the groups; they take what they take.
Three sets: trivago's shown lists (scored on the lists of its test, by the clicks that were withheld; all learn from the
test's earlier lists, whose clicks are given), the candidates of a market of XMarket (a fifth of the users is held
back), and candidates that ``fastrec candidates`` finds for the users of MovieLens-1M, whose last film is the answer.
The difference has a bootstrap interval over lists.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _timing import DATA, Options, Record, Timing, record, run_cases, timed

from fastrec.metrics import bootstrap_metric, get_metric
from fastrec.retrieval import make_candidates
from fastrec.table import Table

warnings.simplefilter("ignore")
Columns = dict[str, str]  # group, item, label, metric
Set = tuple[pd.DataFrame, pd.DataFrame, Columns]  # rows to train on, rows to rank
CLICKS = {"group": "list", "item": "item_id", "label": "clicked", "metric": "mrr"}


def shown(lists: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each item that was shown, with its place and price, and 1 for the one that was clicked."""
    lists = lists.assign(item_id=lists.impressions.str.split("|"), price=lists.prices.str.split("|"))
    rows = lists.explode(["item_id", "price"], ignore_index=True)
    rows["position"] = rows.groupby("list").cumcount() + 1
    rows["clicked"] = (rows.item_id == rows.reference).astype(int)
    kept = ["list", "session_id", "timestamp", "platform", "city", "device", "current_filters", "item_id", "price"]
    rows = rows[[*kept, "position", "clicked"]].astype({"item_id": "int64", "price": "float64"})
    return rows.assign(timestamp=pd.to_datetime(rows.timestamp, unit="s"))


def trivago(data: Path) -> Set:
    """Read the clicked lists of train and test, without the log; those are ranked whose clicks were withheld."""
    files = (data / "trivago2019" / f"{name}.csv" for name in ("train", "test", "ground_truth"))
    train, test, truth = (pd.read_csv(file, dtype={"reference": str}) for file in files)
    log = pd.concat([train, test], ignore_index=True)
    lists = log[log.action_type == "clickout item"]
    lists = lists.assign(list=np.arange(len(lists)))
    known = lists[[r in i.split("|") for r, i in zip(lists.reference.fillna(""), lists.impressions)]]
    asked = lists[lists.reference.isna()].drop(columns="reference")
    asked = asked.merge(truth.drop(columns="impressions"), on=["user_id", "session_id", "timestamp", "step"])
    return shown(known), shown(asked), CLICKS


def xmarket(data: Path) -> Set:
    """Read the candidates of each user with an answer, joined with counts and mean ratings of items and users."""
    folder = data / "xmarket-t1"
    lists = pd.read_csv(folder / "valid_run.tsv", sep="\t", header=None, names=["userId", "itemId"])
    rows = lists.assign(itemId=lists.itemId.str.split(",")).explode("itemId", ignore_index=True)
    answers = pd.read_csv(folder / "valid_qrel.tsv", sep="\t")
    rows = rows.merge(answers.rename(columns={"rating": "taken"}), on=["userId", "itemId"], how="left")
    rows["taken"] = rows.taken.fillna(0).astype(int)
    for name in ("train", "train_5core"):
        ratings = pd.read_csv(folder / f"{name}.tsv", sep="\t")
        for key in ("itemId", "userId"):
            told = ratings.groupby(key).rating.agg(["count", "mean"]).add_prefix(f"{key}_{name}_")
            rows = rows.merge(told, left_on=key, right_index=True, how="left")
    rows = rows[rows.groupby("userId").taken.transform("sum") > 0]
    users = rows.userId.unique()
    held = rows.userId.isin(np.random.default_rng(0).permutation(users)[: len(users) // 5])
    return rows[~held], rows[held], {"group": "userId", "item": "itemId", "label": "taken", "metric": "ndcg@10"}


def movielens(data: Path) -> Set:
    """Find a hundred candidates for each user with what their sources say; the answer is the last film."""
    folder, kept = data / "movielens-1m", Path("runs/bench/movielens-candidates")
    seen, last = (
        [np.array(line.split(), int) for line in (folder / f"gsasrec_test_{n}.txt").read_text().splitlines()]
        for n in ("input", "output")
    )
    if not kept.exists():  # some minutes
        events = Table({"user": np.repeat(np.arange(len(seen)), list(map(len, seen))), "item": np.concatenate(seen)})
        asked = Table({"user": np.arange(0, len(seen), 5)})
        make_candidates(events, item="item", user="user", test=asked, k=100, groups=3_000).write(kept)
    train, test = (pd.read_parquet(kept / f"{n}.parquet") for n in ("train", "test"))
    test["label"] = (test.item == np.array([x[0] for x in last])[test.user]).astype(int)
    return train, test, {"group": "user", "item": "item", "label": "label", "metric": "ndcg@10"}


def ours(train: pd.DataFrame, test: pd.DataFrame, about: Columns, minutes: float) -> np.ndarray:
    import fastrec

    test = test.drop(columns=about["label"])
    named = {n: about[n] for n in ("group", "item", "metric")}
    fitted = fastrec.fit(train, about["label"], **named, minutes=minutes, test=test, quiet=True)
    print(fitted.leaderboard().to_string(index=False))
    return fitted.predict(test)


def own_columns(rows: pd.DataFrame, counts: pd.Series, about: Columns) -> pd.DataFrame:
    """Return the numbers of the files, with ranks, ratios and counts as most people first make them."""
    apart = (about["group"], about["item"], about["label"])
    x = rows[[c for c in rows.select_dtypes("number") if c not in apart]].astype(float)
    by = x.groupby(rows[about["group"]])
    size = rows.groupby(about["group"])[about["item"]].transform("size")
    ranks, means = by.rank().add_suffix("_rank"), by.transform("mean")
    count = rows[about["item"]].map(counts).fillna(0)
    return pd.concat([x, ranks, (x / means).add_suffix("_ratio")], axis=1).assign(size=size, item_count=count)


def peer(train: pd.DataFrame, test: pd.DataFrame, about: Columns, system: str) -> np.ndarray:
    """Train a ranker of a library, stopped early on an eighth of the groups, and predict."""
    train = train.sort_values(about["group"], kind="stable")
    counts = train[about["item"]].value_counts()
    groups = train[about["group"]].unique()
    held = train[about["group"]].isin(np.random.default_rng(0).permutation(groups)[: len(groups) // 8])
    parts = [train[~held], train[held]]
    (x, xv), xt = (own_columns(p, counts, about) for p in parts), own_columns(test, counts, about)
    y, yv = (p[about["label"]] for p in parts)
    group, groupv = (p.groupby(about["group"], sort=False).size().to_numpy() for p in parts)
    if system == "catboost":
        import catboost as cb

        places = [pd.factorize(p[about["group"]])[0] for p in parts]
        pools = [cb.Pool(*rows, group_id=g) for *rows, g in zip((x, xv), (y, yv), places)]
        params = {"loss_function": "YetiRank", "iterations": 2000, "verbose": False, "allow_writing_files": False}
        model = cb.CatBoost({**params, "eval_metric": "NDCG"})
        return model.fit(pools[0], eval_set=pools[1], early_stopping_rounds=50).predict(xt)
    how = {"group": group, "eval_set": [(xv, yv)], "eval_group": [groupv]}
    if system == "lightgbm":
        import lightgbm as lgb

        model = lgb.LGBMRanker(n_estimators=2000, learning_rate=0.05, verbose=-1)
        # by whole lists: by its usual NDCG of the first place it would stop after a few rounds
        how |= {"eval_at": [1000], "callbacks": [lgb.early_stopping(50, verbose=False)]}
    else:
        import xgboost as xgb

        model = xgb.XGBRanker(n_estimators=2000, learning_rate=0.05, early_stopping_rounds=50)
        how["verbose"] = False
    return model.fit(x, y, **how).predict(xt)


def measure(options: Options, *, load: Callable[[Path], Set]) -> Iterator[Record]:
    train, test, about = load(options.data)
    runs = {"fastrec": partial(ours, train, test, about, options.minutes)}
    runs |= {system: partial(peer, train, test, about, system) for system in ("lightgbm", "xgboost", "catboost")}
    found = {system: timed(run) for system, run in runs.items()}
    said = {system: np.asarray(values) for system, (values, *_) in found.items()}
    label = torch.tensor(test[about["label"]].to_numpy())
    groups = torch.tensor(pd.factorize(test[about["group"]])[0])
    seen = bootstrap_metric(about["metric"], label, said, groups=groups, seed=0)
    for system, values in said.items():
        score, apart = get_metric(about["metric"])(label, values, groups=groups), seen.difference("fastrec", system)
        notes = f"{about['metric']} {score:.4f}, fastrec ahead by {apart.low:+.4f} to {apart.high:+.4f}"
        timing, own = (Timing(*found[n][1:]) for n in (system, "fastrec"))
        yield record(load.__name__, system, len(train), timing, own, score=score, notes=notes)


if __name__ == "__main__":
    sets = {load.__name__: partial(measure, load=load) for load in (trivago, xmarket, movielens)}
    run_cases(__doc__, sets, "ranking", data=DATA, minutes=(5.0, "of fastrec, for each set"))
