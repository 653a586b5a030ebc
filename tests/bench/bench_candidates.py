"""Candidates for next items, and a ranker over them, on Diginetica's sessions: recall of sources, union and ranker.

The sources learn from all training sessions but the last; on these the ranker learns to put candidates in order; then
the sources learn from all, and every row of the test file is ranked. ``seconds`` of a source are for a million events
of learning, ``rows`` the test rows; ``hr@20`` and ``mrr@20`` are of all items.

    python tests/bench/bench_candidates.py --events 10000000

simulates a log of so many events, some items of which are in very many sessions, and shows what each source takes to
learn from it: ``cpu`` seconds for a million events, and by how many ``bytes`` the process grew at most meanwhile.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pyarrow as pa
import torch
from _public import data_folder
from _timing import Record, command_line, cores, cpu_time, forget_peak, heading, resident, use_threads, write
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


def simulated(events: int, items: int = 200_000, topics: int = 4_000) -> SessionFrame:
    """A log of sessions of five events on average, each about a topic, whose first items are in most of them."""
    random = torch.Generator().manual_seed(0)
    lengths = 2 + torch.empty(events // 5).geometric_(0.25, generator=random).long().clamp_max(200)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    last = int(torch.searchsorted(offsets, events, right=True)) - 1
    offsets, count = offsets[: last + 1], int(offsets[last])
    topic = (topics * torch.rand(last, generator=random) ** 3).long().repeat_interleave(offsets.diff())
    inside = (items // topics * torch.rand(count, generator=random) ** 3).long()
    vocab = SessionFrame(pa.table({"items": [list(range(items))]}), item="items").items
    return SessionFrame.of(1 + topic * (items // topics) + inside, offsets, vocab)


def learn_from_many(events: int, console: Console) -> list[Record]:
    """What each source takes for a simulated log."""
    log = simulated(events)
    asked = log.take(torch.arange(len(log) - 2_000, len(log)))
    busiest = int(torch.bincount(log.values).max())
    console.print(f"{len(log.values):,} events, {len(log):,} sessions, the busiest item in {busiest:,} events")
    made: list[Record] = []
    every = sources()
    for name, source in every.sources.items():
        source.fit(asked)  # loops are compiled, memory of libraries is there
        forget_peak()
        before, started, spent = resident(), time.perf_counter(), cpu_time()
        source.fit(log)
        cpu = (cpu_time() - spent) / len(log.values) * 1e6
        found = {"seconds": time.perf_counter() - started, "cpu": cpu, "bytes": resident(peak=True) - before}
        wide = source.best(asked, every.k[name])[0]
        made.append({"case": "learn from many", "system": name, "rows": len(log.values), **found})
        console.print(
            f"{name:8} {found['seconds']:.1f} s, {cpu:.2f} CPU s per million events, "
            f"+{found['bytes'] / 2**20:,.0f} MiB at most, {float((wide > 0).sum(1).double().mean()):.0f} candidates"
        )
    return made


def main() -> None:
    """Run the stages, print what each gives, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_folder("diginetica"), help="folder of the Parquet files")
    parser.add_argument("--rows", type=int, default=None, help="test rows, drawn at random (default: all)")
    parser.add_argument("--events", type=int, default=None, help="events of a simulated log: nothing else is run")
    parser.add_argument("--threads", type=int, default=cores(), help="that may be used (default: all cores)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/candidates.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=140)
    console.print(heading(command_line()), highlight=False)
    if options.events is not None:
        write(options.out, learn_from_many(options.events, console), console.export_text())
        return
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
