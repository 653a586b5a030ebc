"""Attention that knows how far apart events are, by place and by time, on MovieLens-100k, which has times.

    python tests/bench/bench_session_bias.py DIR [epochs] [seeds] [nets]

``DIR`` holds ``ml-100k.inter``. The last five films of each user are held out; each is asked for after all before it,
among all films not seen. Prints a line for each net and bias: NDCG@10 and HR@10, means of seeds, and CPU seconds.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pandas as pd
import torch
from _timing import bare, heading, write

from fastrec.sequences import NextItemNet, SessionFrame, sequence_metrics

HELD = 5


def main(folder: str, epochs: str = "8", seeds: str = "1", *nets: str) -> None:
    torch.set_num_threads(1)
    log = pd.read_csv(Path(folder) / "ml-100k.inter", sep="\t")
    log.columns = [name.split(":")[0] for name in log.columns]
    every = SessionFrame(log, item="item_id", session="user_id", order="timestamp")
    starts, ends = every.offsets[:-1], every.offsets[1:]
    train = every.cut(starts, ends - HELD)
    places = (ends.unsqueeze(1) - torch.arange(HELD, 0, -1)).reshape(-1)
    asked = every.cut(starts.repeat_interleave(HELD), places)
    asked.target = every.values[places]
    print(f"{heading()}\n{train}; {len(asked)} films asked for")
    records: list[dict] = []
    for net, bias in itertools.product(nets or ("SASRec", "HSTU"), (None, "position", "time", "both")):
        found, began = [], time.process_time()
        options = {"bias": bias, "blocks": 2, "heads": 2, "dropout": 0.3, "attention_dropout": 0.0}
        sizes = {"width": 64, "epochs": int(epochs), "max_len": 100, "chronological": False}
        for seed in range(int(seeds)):
            model = NextItemNet(net, **sizes, options=options).fit(train, seed=seed)
            found.append(sequence_metrics(model.recommend(asked, 10, True)[0], asked.target, 10))
        ndcg, hr = (sum(v[n] for v in found) / len(found) for n in ("ndcg@10", "hr@10"))
        each = " ".join(f"{v['ndcg@10']:.4f}" for v in found)
        took = (time.process_time() - began) / len(found)
        records.append(bare(f"bias {bias}", net, len(asked), took, ndcg=ndcg, hr=hr))
        write(Path("runs/bench/session_bias.json"), records)
        print(f"{net:7} {bias!s:9} NDCG@10 {ndcg:.4f} ({each}) HR@10 {hr:.4f} {took:.0f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:  # as ``make bench`` calls it
        print("left out: it wants the folder of ml-100k.inter, see its first lines")
    else:
        main(*sys.argv[1:])
