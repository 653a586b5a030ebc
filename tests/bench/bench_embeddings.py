"""A table of 20 M rows × 32 under a limit that a plain model exceeds: cached in memory, and in memory-mapped files.

``python tests/bench/bench_embeddings.py [--rows N] [--out runs/bench/embeddings.json]``: ids follow a power law, the
device (simulated by ``device_bytes``) has room for 5 % of the rows with their optimizer's state. Each system trains the
same batches from the same start in a process of its own; ``speed`` is rows a second over those of all in memory, from
the median batch after a warm-up; of CPU seconds ``thread_seconds`` are those of the thread that trains, which is what
counts where a second core brings the rows. ``hit_rate`` is what was found on the device in the batches timed, beside
the plan's. Speeds mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from _timing import ROOT, child, command_line, cores, forget_peak, heading, resident

from fastrec.errors import DeviceMemoryError
from fastrec.models import Embeddings, TabularNet, plan_embeddings
from fastrec.models.placement.plan import bytes_per_row
from fastrec.optim import AdamW

SYSTEMS = ("all in memory", "cached", "cached, files")
WIDTH = 32


def power_law(rows: int, count: int, skew: float, seed: int) -> torch.Tensor:
    """Ids int64 ``[count]``: the k-th most frequent in proportion to ``k^-skew``, anywhere in the table."""
    g = np.random.default_rng(seed)
    u, end = g.random(count), (rows + 0.5) ** (1 - skew)
    start = 0.5 ** (1 - skew)
    rank = (start + u * (end - start)) ** (1 / (1 - skew))  # the inverse of the continuous law's distribution
    rank = np.clip(np.rint(rank).astype(np.int64), 1, rows) - 1
    return torch.from_numpy(rank * 1_640_531_527 % rows if rows % 1_640_531_527 else rank)


def placement(system: str, limit: int, folder: str) -> Embeddings | None:
    """What each system is made with."""
    if system == "all in memory":
        return None
    return Embeddings("cached", device_bytes=limit, folder=folder if "files" in system else None)


def train(args: argparse.Namespace) -> dict:
    """One system: trains, and tells its times."""
    torch.manual_seed(0)
    limit = int(args.share * args.rows * bytes_per_row(WIDTH))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        asked = placement(args.system, limit, folder)
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
        clocks = {"seconds": time.perf_counter, "cpu_seconds": time.process_time, "thread_seconds": time.thread_time}
        taken, losses, before = [], [], (0, 0)
        for i, batch in enumerate(ids):
            if i == args.warm and caches:
                before = (caches[0].looked_up, caches[0].found)
            began = [clock() for clock in clocks.values()]
            pred = net(batch, x)
            if caches and i + 1 < len(ids):
                net.fetch_ahead(ids[i + 1])
            loss = loss_func(pred, y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
            taken.append([clock() - a for clock, a in zip(clocks.values(), began)])
        taken = np.array(taken[args.warm :])
        found = {"system": args.system, **dict(zip(clocks, taken.mean(0).tolist())), "losses": losses}
        found |= {"mean_seconds": found["seconds"], "seconds": float(np.median(taken[:, 0]))}
        found["peak_bytes"] = resident(peak=True)
        if caches:
            found["slots"] = caches[0].slots
            found["hit_rate"] = (caches[0].found - before[1]) / (caches[0].looked_up - before[0])
    return found


def main() -> None:
    """Run every system, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--bs", type=int, default=16_384)
    parser.add_argument("--conts", type=int, default=16)
    parser.add_argument("--skew", type=float, default=1.05)
    parser.add_argument("--share", type=float, default=0.05, help="of the rows that the device has room for")
    parser.add_argument("--warm", type=int, default=30)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1, help="each system so often, by turns")
    parser.add_argument("--device", default="cpu", help="where the nets are trained")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--folder", help="where the files lie; by default the system's temporary folder")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS, choices=SYSTEMS)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench/embeddings.json")
    parser.add_argument("--system", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.system:
        forget_peak()
        print(json.dumps(train(args)))
        return
    print(heading(command_line()))
    limit = int(args.share * args.rows * bytes_per_row(WIDTH))
    try:
        TabularNet([(args.rows, WIDTH)], 1, 1, [8], placement=Embeddings("device", device_bytes=limit))
    except DeviceMemoryError as error:
        print(f"a plain model: {error}")
    options = {"batch_size": args.bs, "placement": "cached"}
    plan = plan_embeddings({"id": args.rows}, WIDTH, limit, args.skew, **options)
    own = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    runs = [child([*own, "--system", s], str(ROOT), args.threads) for _ in range(args.rounds) for s in args.systems]
    records = []
    base = [r for r in runs if r["system"] == SYSTEMS[0]]
    for system in args.systems:
        own = [r for r in runs if r["system"] == system]
        seconds = float(np.median([r["seconds"] for r in own]))
        record = {"case": "train", "system": system, "rows": args.rows, "batch": args.bs}
        for name in ("seconds", "mean_seconds", "cpu_seconds", "thread_seconds"):
            record[name] = round(float(np.median([r[name] for r in own])), 5)
        record["peak_bytes"] = own[0]["peak_bytes"]
        if base:
            record["speed"] = round(float(np.median([r["seconds"] for r in base])) / seconds, 3)
            record["same_losses"] = own[0]["losses"] == base[0]["losses"]
            pairs = zip(own[0]["losses"], base[0]["losses"], strict=True)
            record["largest_difference"] = max(abs(a - b) for a, b in pairs)
        if "slots" in own[0]:
            record |= {"slots": own[0]["slots"], "hit_rate": round(own[0]["hit_rate"], 4)}
            record["planned_hit_rate"] = round(plan.hit_rate, 4)
        records.append(record)
        print(record)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
