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
from _timing import ROOT, Options, Record, arguments, bare, child, cores, forget_peak, heading, resident, write

from fastrec.errors import DeviceMemoryError
from fastrec.models import Embeddings, TabularNet, plan_embeddings
from fastrec.models.placement.plan import bytes_per_row
from fastrec.optim import AdamW

SYSTEMS = ("all in memory", "cached", "cached, files")
WIDTH = 32
CLOCKS = {"seconds": time.perf_counter, "cpu_seconds": time.process_time, "thread_seconds": time.thread_time}


def power_law(rows: int, count: int, skew: float, seed: int) -> torch.Tensor:
    """Ids int64 ``[count]``: the k-th most frequent in proportion to ``k^-skew``, anywhere in the table."""
    g = np.random.default_rng(seed)
    u, end = g.random(count), (rows + 0.5) ** (1 - skew)
    start = 0.5 ** (1 - skew)
    rank = (start + u * (end - start)) ** (1 / (1 - skew))  # the inverse of the continuous law's distribution
    rank = np.clip(np.rint(rank).astype(np.int64), 1, rows) - 1
    return torch.from_numpy(rank * 1_640_531_527 % rows if rows % 1_640_531_527 else rank)


def train(args: Options, limit: int) -> Record:
    """One system: trains, and tells its times."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        files = folder if "files" in args.system else None
        asked = None if args.system == SYSTEMS[0] else Embeddings("cached", device_bytes=limit, folder=files)
        sizes = [(args.rows, WIDTH)]
        net = TabularNet(sizes, args.conts, 1, [256, 128], cat_names=["id"], grads="rows", placement=asked)
        net = net.to(args.device)
        opt = AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
        ids = power_law(args.rows, args.bs * (args.warm + args.batches), args.skew, 1).view(-1, args.bs, 1)
        ids = ids.to(args.device)
        g = torch.Generator().manual_seed(2)
        x, y = torch.randn(args.bs, args.conts, generator=g), torch.rand(args.bs, 1, generator=g).round()
        x, y = x.to(args.device), y.to(args.device)
        loss_func = torch.nn.BCEWithLogitsLoss()
        caches = list(net.embeds.placed.values())
        if caches:  # as rec_learner does it with the training rows
            net.count_rows(power_law(args.rows, args.rows, args.skew, 3)[:, None].to(args.device))
        taken, losses, before = [], [], (0, 0)
        for i, batch in enumerate(ids):
            if i == args.warm and caches:
                before = (caches[0].looked_up, caches[0].found)
            began = [clock() for clock in CLOCKS.values()]
            pred = net(batch, x)
            if caches and i + 1 < len(ids):
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
        found["peak_bytes"] = resident(peak=True)
        if caches:
            found["slots"] = caches[0].slots
            found["hit_rate"] = (caches[0].found - before[1]) / (caches[0].looked_up - before[0])
    return found


def main() -> None:
    args = arguments(
        __doc__,
        rows=(20_000_000, "of the table"),
        bs=(16_384, "rows of a batch"),
        conts=(16, "numbers beside the id"),
        skew=(1.05, "of the power law"),
        share=(0.05, "of the rows that the device has room for"),
        warm=(30, "batches before the clock starts"),
        batches=(200, "that are timed"),
        rounds=(1, "each system so often, by turns"),
        device=("cpu", "where the nets are trained"),
        threads=(cores(), "of all"),
        folder=(None, "where the files lie; by default the system's temporary folder"),
        systems={"nargs": "*", "default": SYSTEMS, "choices": SYSTEMS},
        out=(ROOT / "runs/bench/embeddings.json", "the file of results"),
        system=(None, "the one that this process trains"),
    )
    torch.set_num_threads(args.threads)
    limit = int(args.share * args.rows * bytes_per_row(WIDTH))
    if args.system:
        forget_peak()
        print(json.dumps(train(args, limit)))
        return
    print(heading())
    try:
        TabularNet([(args.rows, WIDTH)], 1, 1, [8], placement=Embeddings("device", device_bytes=limit))
    except DeviceMemoryError as error:
        print(f"a plain model: {error}")
    options = {"batch_size": args.bs, "placement": "cached"}
    plan = plan_embeddings({"id": args.rows}, WIDTH, limit, args.skew, **options)
    own = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    runs = [child([*own, "--system", s], str(ROOT), args.threads) for _ in range(args.rounds) for s in args.systems]
    records, base = [], [r for r in runs if r["system"] == SYSTEMS[0]]
    for system in args.systems:
        own = [r for r in runs if r["system"] == system]
        clocks = {n: np.median([r[n] for r in own]) for n in (*CLOCKS, "mean_seconds")}
        record = bare("train", system, args.rows, batch=args.bs) | {n: round(float(v), 5) for n, v in clocks.items()}
        record |= {"rows_per_s": round(args.bs / record["seconds"]), "peak_bytes": own[0]["peak_bytes"]}
        if base:
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
