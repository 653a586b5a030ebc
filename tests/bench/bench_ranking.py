"""A ranking without code: ``fastrec.fit(group=)`` beside LightGBM, XGBoost and CatBoost on the same candidates.

    python tests/bench/bench_ranking.py --data DIR --minutes 5

The peers are set as a user would: the files' own numbers, the size of the group, each number's rank and its ratio to
the mean within the group, and the items' counts; stopped early on an eighth of the groups; they take what they take.
Four sets: trivago's shown lists (scored on the lists of its test, by the clicks that were withheld; all learn from the
test's earlier lists, whose clicks are given), the same beside the log of all events, which ``fit(log=)`` alone is given
(``trivago_log``), the candidates of a market of XMarket (a fifth of the users is held
back), and candidates that ``fastrec candidates`` finds for the users of MovieLens-1M, whose last film is the answer.
The difference has a bootstrap interval over lists.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table as Lines

from fastrec.metrics import bootstrap_metric, get_metric
from fastrec.retrieval import make_candidates
from fastrec.table import Table

warnings.simplefilter("ignore")
Columns = dict[str, Any]  # group, item, label, metric; the log, if there is one


def candidates(lists: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """One row for each item that was shown: its list, its place and price, and 1 for the one that was clicked."""
    lists = lists.assign(item_id=lists.impressions.str.split("|"), price=lists.prices.str.split("|"))
    rows = lists.explode(["item_id", "price"], ignore_index=True)
    rows["position"] = rows.groupby("list").cumcount() + 1
    rows["clicked"] = (rows.item_id == rows.reference).astype(int)
    kept = ["list", "session_id", "timestamp", "platform", "city", "device", "current_filters", "item_id", "price"]
    rows = rows[[*more, *kept, "position", "clicked"]].astype({"item_id": "int64", "price": "float64"})
    return rows.assign(timestamp=pd.to_datetime(rows.timestamp, unit="s"))


def _trivago_files(data: Path) -> Iterator[pd.DataFrame]:
    """Its train, test and truth."""
    for name in ("train", "test", "ground_truth"):
        yield pd.read_csv(data / "trivago2019" / f"{name}.csv", dtype={"reference": str})


def trivago(data: Path) -> tuple[pd.DataFrame, pd.DataFrame, Columns]:
    """The clicked lists of the log, without the log: those of the test whose clicks were withheld, and all others."""
    train, test, truth = _trivago_files(data)
    train = pd.concat([train, test[test.reference.notna()]])
    train = train[train.action_type == "clickout item"]
    inside = [r in i.split("|") for r, i in zip(train.reference, train.impressions)]
    train = train[inside]
    test = test[(test.action_type == "clickout item") & test.reference.isna()].drop(columns="reference")
    test = test.merge(truth.drop(columns="impressions"), on=["user_id", "session_id", "timestamp", "step"])
    made = [candidates(t.assign(list=np.arange(len(t)) + first)) for t, first in ((train, 0), (test, 1_000_000))]
    return made[0], made[1], {"group": "list", "item": "item_id", "label": "clicked", "metric": "mrr"}


def trivago_log(data: Path) -> tuple[pd.DataFrame, pd.DataFrame, Columns]:
    """The clicked lists of train's and test's log beside both logs; of the lists to predict the click is in none."""
    train, test, truth = _trivago_files(data)
    log = pd.concat([train, test], ignore_index=True)
    lists = log[log.action_type == "clickout item"].assign(list=np.arange((log.action_type == "clickout item").sum()))
    known = lists[[r in i.split("|") for r, i in zip(lists.reference.fillna(""), lists.impressions)]]
    asked = lists[lists.reference.isna()].drop(columns="reference")
    asked = asked.merge(truth.drop(columns="impressions"), on=["user_id", "session_id", "timestamp", "step"])
    made = [candidates(t, ["user_id", "step"]).drop_duplicates(["list", "item_id"]) for t in (known, asked)]
    log = log[(log.action_type != "clickout item") | log.reference.notna()]
    item = log.reference.where(log.action_type.str.contains("item"))
    events = log[["session_id", "user_id", "timestamp", "step", "action_type"]].assign(
        item_id=pd.to_numeric(item, errors="coerce").astype("Int64"),
        timestamp=pd.to_datetime(log.timestamp, unit="s"),
    )
    return made[0], made[1], {"group": "list", "item": "item_id", "label": "clicked", "metric": "mrr", "log": events}


def xmarket(data: Path) -> tuple[pd.DataFrame, pd.DataFrame, Columns]:
    """The candidates of each user with an answer, joined with counts and mean ratings of items and users."""
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


def movielens(data: Path) -> tuple[pd.DataFrame, pd.DataFrame, Columns]:
    """A hundred candidates for each user with what their sources say; the answer is the last film."""
    folder, kept = data / "movielens-1m", Path("runs/bench/movielens-candidates")
    seen, last = (
        [np.array(line.split(), int) for line in (folder / f"gsasrec_test_{n}.txt").read_text().splitlines()]
        for n in ("input", "output")
    )
    if not kept.exists():  # some minutes
        events = pd.DataFrame(
            {"user": np.repeat(np.arange(len(seen)), list(map(len, seen))), "item": np.concatenate(seen)}
        )
        asked = pd.DataFrame({"user": np.arange(0, len(seen), 5)})
        made = make_candidates(
            Table.read(events), item="item", user="user", test=Table.read(asked), k=100, groups=3_000
        )
        made.write(kept)
    train, test = (pd.read_parquet(kept / f"{n}.parquet") for n in ("train", "test"))
    test["label"] = (test.item == np.array([x[0] for x in last])[test.user]).astype(int)
    return train, test, {"group": "user", "item": "item", "label": "label", "metric": "ndcg@10"}


SETS: dict[str, Callable[[Path], tuple[pd.DataFrame, pd.DataFrame, Columns]]] = {
    "trivago": trivago, "trivago_log": trivago_log, "xmarket": xmarket, "movielens": movielens,
}  # fmt: skip


def ours(train: pd.DataFrame, test: pd.DataFrame, about: Columns, minutes: float) -> np.ndarray:
    """``fastrec.fit``, told the group, the item, the metric and the log."""
    import fastrec

    test = test.drop(columns=about["label"])
    named = {n: about[n] for n in ("group", "item", "metric", "log") if n in about}
    fitted = fastrec.fit(train, about["label"], **named, minutes=minutes, test=test, quiet=True)
    print(fitted.leaderboard().to_string(index=False))
    return fitted.predict(test)


def own_columns(rows: pd.DataFrame, counts: pd.Series, about: Columns) -> pd.DataFrame:
    """The numbers of the files, with ranks, ratios and counts as most people first make them."""
    apart = (about["group"], about["item"], about["label"])
    x = rows[[c for c in rows.select_dtypes("number") if c not in apart]].astype(float)
    by = x.groupby(rows[about["group"]])
    size = rows.groupby(about["group"])[about["item"]].transform("size")
    ranks, means = by.rank().add_suffix("_rank"), by.transform("mean")
    count = rows[about["item"]].map(counts).fillna(0)
    return pd.concat([x, ranks, (x / means).add_suffix("_ratio")], axis=1).assign(size=size, item_count=count)


def peer(train: pd.DataFrame, test: pd.DataFrame, about: Columns, system: str) -> np.ndarray:
    """A ranker of a library, stopped early on an eighth of the groups."""
    train = train.sort_values(about["group"], kind="stable")
    counts = train[about["item"]].value_counts()
    groups = train[about["group"]].unique()
    held = train[about["group"]].isin(np.random.default_rng(0).permutation(groups)[: len(groups) // 8])
    parts = [train[~held], train[held]]
    (x, xv), xt = (own_columns(p, counts, about) for p in parts), own_columns(test, counts, about)
    y, yv = (p[about["label"]] for p in parts)
    group, groupv = (p.groupby(about["group"], sort=False).size().to_numpy() for p in parts)
    if system == "lightgbm":
        import lightgbm as lgb

        model = lgb.LGBMRanker(n_estimators=2000, learning_rate=0.05, verbose=-1)
        # by whole lists: by its usual NDCG of the first place it would stop after a few rounds
        stop = [lgb.early_stopping(50, verbose=False)]
        model.fit(x, y, group=group, eval_set=[(xv, yv)], eval_group=[groupv], eval_at=[1000], callbacks=stop)
        return model.predict(xt)
    if system == "xgboost":
        import xgboost as xgb

        model = xgb.XGBRanker(n_estimators=2000, learning_rate=0.05, early_stopping_rounds=50)
        model.fit(x, y, group=group, eval_set=[(xv, yv)], eval_group=[groupv], verbose=False)
        return model.predict(xt)
    import catboost as cb

    pools = [
        cb.Pool(a, b, group_id=pd.factorize(p[about["group"]])[0]) for a, b, p in zip((x, xv), (y, yv), parts)
    ]  # fmt: skip
    params = {"loss_function": "YetiRank", "iterations": 2000, "verbose": False, "allow_writing_files": False}
    model = cb.CatBoost({**params, "eval_metric": "NDCG"})
    return model.fit(pools[0], eval_set=pools[1], early_stopping_rounds=50).predict(xt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FASTREC_DATA", "../shared/data")))
    parser.add_argument("--minutes", type=float, default=5.0, help="of fastrec, for each set")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--peers", nargs="*", default=["lightgbm", "xgboost", "catboost"])
    parser.add_argument("--out", type=Path, default=Path("runs/bench/ranking.json"))
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    made, lines = [], Lines("set", "system", "metric", "score", "fastrec ahead by", "95 %", "seconds")
    for name in args.sets:
        train, test, about = SETS[name](args.data)
        said: dict[str, np.ndarray] = {}
        seconds: dict[str, float] = {}
        for system in ("fastrec", *args.peers):
            began = time.perf_counter()
            said[system] = np.asarray(
                ours(train, test, about, args.minutes) if system == "fastrec" else peer(train, test, about, system)
            )
            seconds[system] = time.perf_counter() - began
        label = torch.tensor(test[about["label"]].to_numpy())
        groups = torch.tensor(pd.factorize(test[about["group"]])[0])
        seen = bootstrap_metric(about["metric"], label, said, groups=groups, seed=0)
        scores = {n: get_metric(about["metric"])(label, s, groups=groups) for n, s in said.items()}
        for system, score in scores.items():
            apart = seen.difference("fastrec", system)
            ahead = scores["fastrec"] - score
            between = f"{apart.low:+.4f} to {apart.high:+.4f}" if system != "fastrec" else ""
            lines.add_row(
                name, system, about["metric"], f"{score:.4f}", f"{ahead:+.4f}", between, f"{seconds[system]:.0f}"
            )
            rate = len(train) / seconds[system]
            made.append({
                "case": name, "system": system, "rows": len(train), "seconds": seconds[system], "rows_per_s": rate,
                "ratio": seconds[system] / seconds["fastrec"], "score": score,
            })  # fmt: skip
    Console().print(lines)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
