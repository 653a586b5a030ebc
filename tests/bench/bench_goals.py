"""One net for clicks, carts and orders beside three nets, at equal CPU time, on OTTO's simulated log; recall@20.

python tests/bench/bench_goals.py [CPU minutes] [sessions] [seeds]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from _timing import bare, heading, write

from competitions.otto.competition import KINDS, Otto
from competitions.otto.simulate import simulate
from fastrec.sequences import GoalNet


def main(minutes: float, sessions: int, seeds: int) -> None:
    torch.set_num_threads(1)
    time.monotonic = time.process_time  # limits of time are of CPU time
    with tempfile.TemporaryDirectory() as folder:
        simulate(sessions, Path(folder) / "data")
        found = Otto().read(Path(folder) / "data", None)
    asked = found.known.take(found.test)

    def fitted(net: GoalNet, seed: int, share: float = 1.0) -> GoalNet:
        return net.fit(found.known, seed=seed, minutes=minutes * share)

    def together(seed: int, **options) -> dict[str, GoalNet]:
        net = GoalNet(KINDS, max_len=20, epochs=60, **options)
        return {kind: fitted(net.of(kind), seed) for kind in KINDS}

    def apart(seed: int) -> dict[str, GoalNet]:
        options = {"heads": "shared", "goal_weights": [1.0], "max_len": 20, "epochs": 60}
        return {kind: fitted(GoalNet([kind], **options), seed, 1 / 3) for kind in KINDS}

    ways = {"three nets": apart}
    for heads in ("ple", "shared", "mmoe"):
        ways[f"{heads}, learned weights"] = lambda seed, heads=heads: together(seed, heads=heads)
    ways["ple, weights .1 .3 .6"] = lambda seed: together(seed, goal_weights=[0.1, 0.3, 0.6])
    print(heading())
    records = []
    for seed in range(seeds):
        for name, make in ways.items():
            began, nets = time.process_time(), make(seed)
            took = time.process_time() - began
            best = {kind: net.recommend(asked, 20)[0] for kind, net in nets.items()}
            scores = {n: round(v, 4) for n, v in Otto().score(best, found.wanted).items()}
            print(f"{name}, seed {seed}, {took:.0f} CPU s: {scores}", flush=True)
            records.append(bare(f"seed {seed}", name, sessions, took, **scores))
            write(Path("runs/bench/goals.json"), records)


if __name__ == "__main__":
    given = sys.argv[1:] + ["0.5", "8000", "2"][len(sys.argv) - 1 :]
    main(float(given[0]), int(given[1]), int(given[2]))
