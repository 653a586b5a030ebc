"""Candidates for next items, and a ranker over them, on Diginetica's sessions: recall of sources, union and ranker.

The sources learn from all training sessions but the last; on these the ranker learns to put candidates in order; then
the sources learn from all, and every row of the test file is ranked. ``seconds`` of a source are for a million events
of learning, ``rows`` the test rows; ``hr@20`` and ``mrr@20`` are of all items.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from _public import data_folder
from _timing import Record, command_line, cores, heading, use_threads, write
from rich.console import Console

from fastrec.estimators import XGBModel
from fastrec.retrieval import Candidates, Recommender, RepeatedItems, SegmentPopularity
from fastrec.sequences import VSTAN, CoVisitation, SessionFrame, sequence_metrics

RANKER = {"eta": 0.1, "max_depth": 6, "subsample": 0.8, "colsample_bytree": 0.6, "min_child_weight": 5}


def sources() -> Candidates:
    """Those that pay."""
    return Candidates(
        {
            "near": CoVisitation(hops=2),
            "next": CoVisitation(window=1, near=None, before=0.0, own=0.3, again=0.0),
            "knn": VSTAN(),
            "own": RepeatedItems(),
            "popular": SegmentPopularity(recency=0.02),
        },
        {"near": 100, "next": 40, "knn": 100, "own": 20, "popular": 20},
    )


def main() -> None:
    """Run the stages, print what each gives, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder("diginetica"), help="folder of the Parquet files")
    parser.add_argument("--rows", type=int, default=None, help="test rows, drawn at random (default: all)")
    parser.add_argument("--threads", type=int, default=cores(), help="that may be used (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/candidates.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=140)
    console.print(heading(command_line()), highlight=False)
    log = SessionFrame(options.data / "train.parquet", item="items")
    test = log.new(options.data / "test.parquet", target="target")
    if options.rows is not None:
        drawn = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))[: options.rows]
        test = test.take(drawn.sort().values)
    model = XGBModel(rounds=120, early_stopping_rounds=None, objective="binary:logistic", **RANKER)
    started = time.perf_counter()
    shop = Recommender(sources(), ranker=model).fit(log)
    fitted = time.perf_counter() - started
    made: list[Record] = []
    hits = {at: {} for at in (20, 100)}
    for table in shop.retriever.stream(test):  # a block's wanted items are those of its own sessions alone
        wanted = torch.zeros_like(test.target)
        there = torch.unique(table["session"].values)
        wanted[there] = test.target[there]
        for at, sums in hits.items():
            for row in shop.retriever.recall(table, wanted, at).to_arrow().to_pylist():
                before = sums.get(row["source"], (0.0, 0.0))
                sums[row["source"]] = before[0] + row["recall"] * len(there), before[1] + row["gain"] * len(there)
    for at, sums in hits.items():
        for name, (right, alone) in sums.items():
            seconds = shop.retriever.seconds.get(name, sum(shop.retriever.seconds.values()))
            recall, gain = right / len(test), alone / len(test)
            about = {"case": f"recall@{at}", "system": name, "rows": len(test), "seconds": seconds}
            made.append({**about, "recall": recall, "gain": gain})
            console.print(f"{name:8} recall@{at} {recall:.4f}, gain {gain:.4f}, {seconds:.2f} s per million events")
    started = time.perf_counter()
    shown = shop.recommend(test, 20)
    taken = time.perf_counter() - started
    items = torch.zeros(len(test), 20, dtype=torch.int64)
    items[shown["session"].values, shown["rank"].values - 1] = log.items.encode(shown["item"])
    scores = {n: float(x) for n, x in sequence_metrics(items, test.target, 20, codes=len(log.items)).items()}
    made.append({"case": "ranker", "system": "XGBoost", "rows": len(test), "seconds": fitted + taken, **scores})
    stages = ", ".join(f"{n} {s:.1f} s" for n, s in shop.seconds.items())
    console.print(f"union + ranker: {scores}; fitted in {fitted:.1f} s, {len(test):,} rows in {taken:.1f} s ({stages})")
    write(options.out, made, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
