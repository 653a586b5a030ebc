"""A table of 20 M rows × 32 under a limit that a plain model exceeds: cached in memory, and in memory-mapped files.

``python tests/bench/bench_embeddings.py [--rows N] [--out runs/bench/embeddings.json]``: ids follow a power law, the
device (simulated by ``device_bytes``) has room for 5 % of the rows with their optimizer's state. Each system trains the
same batches from the same start in a process of its own; ``speed`` is rows a second over those of all in memory, from
the median batch after a warm-up; of CPU seconds ``thread_seconds`` are those of the thread that trains, which is what
counts where a second core brings the rows. ``hit_rate`` is what was found on the device in the batches timed, beside
the plan's. Speeds mean something on a quiet machine only.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _timing import ROOT, Options, Record, arguments, bare, child, cores, heading, write

from fastrec.errors import DeviceMemoryError
from fastrec.models import Embeddings, TabularNet, plan_embeddings
from fastrec.models.placement.plan import bytes_per_row
from fastrec.optim import AdamW

SYSTEMS = ("all in memory", "cached", "cached, files")
WIDTH, NUMBERS, SKEW, SHARE = 32, 16, 1.05, 0.05
CLOCKS = {"seconds": time.perf_counter, "cpu_seconds": time.process_time, "thread_seconds": time.thread_time}


def power_law(rows: int, count: int, seed: int) -> torch.Tensor:
    """Draw ids int64 ``[count]``: the k-th most frequent in proportion to ``k^-SKEW``, anywhere in the table."""
    g = np.random.default_rng(seed)
    u, end = g.random(count), (rows + 0.5) ** (1 - SKEW)
    start = 0.5 ** (1 - SKEW)
    rank = (start + u * (end - start)) ** (1 / (1 - SKEW))  # the inverse of the continuous law's distribution
    rank = np.clip(np.rint(rank).astype(np.int64), 1, rows) - 1
    return torch.from_numpy(rank * 1_640_531_527 % rows if rows % 1_640_531_527 else rank)


def train(args: Options, limit: int) -> Record:
    """Train one system and return its times."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        files = folder if "files" in args.system else None
        asked = None if args.system == SYSTEMS[0] else Embeddings("cached", device_bytes=limit, folder=files)
        how = {"cat_names": ["id"], "grads": "rows", "placement": asked}
        net = TabularNet([(args.rows, WIDTH)], NUMBERS, 1, [256, 128], **how).to(args.device)
        opt = AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
        ids = power_law(args.rows, args.bs * (args.warm + args.batches), 1).view(-1, args.bs, 1).to(args.device)
        g = torch.Generator().manual_seed(2)
        x, y = torch.randn(args.bs, NUMBERS, generator=g), torch.rand(args.bs, 1, generator=g).round()
        x, y = x.to(args.device), y.to(args.device)
        loss_func = torch.nn.BCEWithLogitsLoss()
        cache = next(iter(net.embeds.placed.values()), None)
        if cache:  # as rec_learner does it with the training rows
            net.count_rows(power_law(args.rows, args.rows, 3)[:, None].to(args.device))
        taken, losses, before = [], [], (0, 0)
        for i, batch in enumerate(ids):
            if i == args.warm and cache:
                before = (cache.looked_up, cache.found)
            began = [clock() for clock in CLOCKS.values()]
            pred = net(batch, x)
            if cache and i + 1 < len(ids):
                net.fetch_ahead(ids[i + 1])
            loss = loss_func(pred, y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
            taken.append([clock() - a for clock, a in zip(CLOCKS.values(), began)])
        taken = np.array(taken[args.warm :])
        found = {"system": args.system, **dict(zip(CLOCKS, taken.mean(0).tolist())), "losses": losses}
        found |= {"mean_seconds": found["seconds"], "seconds": float(np.median(taken[:, 0]))}
        if cache:
            found |= {"slots": cache.slots, "hit_rate": (cache.found - before[1]) / (cache.looked_up - before[0])}
    return found


def main() -> None:
    args = arguments(
        __doc__,
        rows=(20_000_000, "of the table"),
        bs=(16_384, "rows of a batch"),
        warm=(30, "batches before the clock starts"),
        batches=(200, "that are timed"),
        rounds=(1, "each system so often, by turns"),
        device=("cpu", "where the nets are trained"),
        threads=(cores(), "of all"),
        out=(ROOT / "runs/bench/embeddings.json", "the file of results"),
        system=(None, "the one that this process trains"),
    )
    torch.set_num_threads(args.threads)
    limit = int(SHARE * args.rows * bytes_per_row(WIDTH))
    if args.system:
        print(json.dumps(train(args, limit)))
        return
    print(heading())
    try:
        TabularNet([(args.rows, WIDTH)], 1, 1, [8], placement=Embeddings("device", device_bytes=limit))
    except DeviceMemoryError as error:
        print(f"a plain model: {error}")
    plan = plan_embeddings({"id": args.rows}, WIDTH, limit, SKEW, batch_size=args.bs, placement="cached")
    own = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    runs = [child([*own, "--system", s], str(ROOT), args.threads) for _ in range(args.rounds) for s in SYSTEMS]
    records, base = [], [r for r in runs if r["system"] == SYSTEMS[0]]
    for system in SYSTEMS:
        own = [r for r in runs if r["system"] == system]
        clocks = {n: round(float(np.median([r[n] for r in own])), 5) for n in (*CLOCKS, "mean_seconds")}
        record = bare("train", system, args.rows, batch=args.bs) | clocks
        record["rows_per_s"] = round(args.bs / record["seconds"])
        record["speed"] = round(float(np.median([r["seconds"] for r in base])) / record["seconds"], 3)
        losses, wanted = np.array(own[0]["losses"]), np.array(base[0]["losses"])
        record["same_losses"] = bool((losses == wanted).all())
        record["largest_difference"] = float(np.abs(losses - wanted).max())
        if "slots" in own[0]:
            record |= {"slots": own[0]["slots"], "hit_rate": round(own[0]["hit_rate"], 4)}
            record["planned_hit_rate"] = round(plan.hit_rate, 4)
        records.append(record)
        print(record)
    write(args.out, records)


if __name__ == "__main__":
    main()
