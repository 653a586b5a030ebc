"""Augmentation where it helps and where it does not: two small worlds of sessions, two of tables, several seeds.

Sessions (hit rate of the item that follows, among ten): ``no order``: a session keeps to one topic, and its items come
in any order; ``an order``: every item has a successor, which comes next in eight of ten cases.
Tables (AUC, and log loss, of rows that were not trained on): ``few labels``: 300 rows with labels, one in ten of them
wrong, and 4,000 without, 30 noisy columns that repeat six hidden ones; ``many labels``: 4,000 rows with labels, and a
rule of two columns' signs.

Figures are means over seeds, of one training each; ``+-``: the standard error of the paired difference to none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _timing import ROOT, use_threads

sys.path.insert(0, str(ROOT))
from fastai.torch_core import set_seed

from fastrec.metrics import auc
from fastrec.models import TabularNet
from fastrec.sequences import NextItemNet, SessionFrame, sequence_metrics
from fastrec.tabular import Categorify, Normalize, TabularFrame
from fastrec.training import RowMixUp, SwapNoise, pretrain_denoising, rec_learner

ITEMS, TOPICS, LENGTH = 120, 8, 8
CHANGES = {"none": (), **{n: (n,) for n in ("prefix", "crop", "mask", "reversed", "reorder")}}


def no_order(sessions: int, rng: np.random.Generator) -> np.ndarray:
    """Items of one topic each, ``[sessions, LENGTH]``, one in five of another."""
    size = ITEMS // TOPICS
    made = rng.integers(0, TOPICS, sessions)[:, None] * size + rng.integers(0, size, (sessions, LENGTH))
    return np.where(rng.random(made.shape) < 0.2, rng.integers(0, ITEMS, made.shape), made)


def an_order(sessions: int, rng: np.random.Generator) -> np.ndarray:
    """Every item is followed by its successor, in eight of ten cases."""
    made = rng.integers(0, ITEMS, (sessions, LENGTH))
    for j in range(1, LENGTH):
        follows = rng.random(sessions) < 0.8
        made[:, j] = np.where(follows, (made[:, j - 1] * 7 + 3) % ITEMS, made[:, j])
    return made


def hit_rate(world: Callable[..., np.ndarray], epochs: int, augment: tuple[str, ...], seed: int) -> float:
    """The share of a thousand other sessions whose last item is among the ten best."""
    rng = np.random.default_rng(seed)
    train, test = world(300, rng), world(1000, rng)
    frame = SessionFrame(pd.DataFrame({"item": train.tolist()}), item="item")
    asked = frame.new(pd.DataFrame({"item": test[:, :-1].tolist(), "next": test[:, -1]}), target="next")
    net = NextItemNet("GRU4Rec", width=32, epochs=epochs, augment=augment, warm=False, half=False)
    return sequence_metrics(net.fit(frame, seed=seed).score(asked), asked.target, 10)["hr@10"]


def searches(tells: bool, virtual: bool, seed: int) -> float:
    """The hit rate where a search, an event without an item, comes before the last item and tells its topic or not."""
    rng = np.random.default_rng(seed)
    size, logs = ITEMS // TOPICS, []
    for rows in (600, 1000):
        topic = rng.integers(0, TOPICS, rows)  # of what is looked for in the end; before it anything is looked at
        items = np.concatenate(
            [rng.integers(0, ITEMS, (rows, 4)), topic[:, None] * size + rng.integers(0, size, (rows, 1))], 1
        )
        said = topic if tells else rng.integers(0, TOPICS, rows)
        log = pd.DataFrame({"s": np.repeat(np.arange(rows), 6), "t": np.tile(np.arange(6), rows)})
        values = np.insert(items.astype(object), 4, None, axis=1)
        log["item"] = pd.array(values.ravel(), dtype="Int64")
        log["search"] = np.where(log["t"] == 4, "topic " + pd.Series(np.repeat(said, 6)).astype(str), None)
        logs.append(log)
    train, test = logs
    columns = {"item": "item", "session": "s", "order": "t", "virtual": "search" if virtual else None}
    frame = SessionFrame(train, **columns)
    last = test["t"] == 5
    asked = test[~last].assign(next=np.repeat(test.loc[last, "item"].to_numpy(), 5))
    asked = frame.new(asked, target="next")
    net = NextItemNet("GRU4Rec", width=32, epochs=20, warm=False, half=False).fit(frame, seed=seed)
    return sequence_metrics(net.score(asked), asked.target, 10)["hr@10"]


def few_labels(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray, int]:
    """6,300 rows, their labels, and how many of them are known."""
    hidden = rng.normal(size=(6300, 6))
    x = hidden @ rng.normal(size=(6, 30)) + 2 * rng.normal(size=(6300, 30))
    y = hidden[:, 0] + hidden[:, 1] * hidden[:, 2] > 0
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(30)]), y ^ (rng.random(6300) < 0.1), 300


def many_labels(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray, int]:
    """Two columns' signs say it all."""
    x = rng.normal(size=(6000, 8))
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(8)]), x[:, 0] * x[:, 1] > 0, 4000


def table_score(world: Callable[..., Any], change: str, seed: int, *, logloss: bool = False) -> float:
    """The AUC of the last two thousand rows, or their log loss."""
    frame, y, labelled = world(np.random.default_rng(seed))
    names = list(frame)
    frame["y"] = y.astype(np.float32)
    own = frame[:labelled]
    procs = [Categorify, Normalize]
    rows = TabularFrame(
        own, procs, [], names, y_names="y", splits=(range(labelled * 4 // 5), range(labelled * 4 // 5, labelled))
    )
    dls = rows.dataloaders(bs=64, seed=seed)
    set_seed(seed)
    net = TabularNet([], len(names), 1, [128, 64], ps=0.1)
    if change == "denoising":
        every = TabularFrame(
            frame[:-2000],
            procs,
            [],
            names,
            y_names="y",
            splits=(range(len(frame) - 2100), range(len(frame) - 2100, len(frame) - 2000)),
        )
        pretrain_denoising(every.dataloaders(bs=256, seed=seed), net, 15)
    cbs = {"mixup": [RowMixUp()], "swap noise": [SwapNoise(0.1)]}.get(change, [])
    learn = rec_learner(dls, net, loss_func=torch.nn.BCEWithLogitsLoss(), cbs=cbs)
    learn._do_epoch_validate = lambda *args, **kwargs: None
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(30 if labelled < 1000 else 10, 2e-3)
    test = rows.new(frame[-2000:])
    test.process()
    net.eval()
    with torch.no_grad():
        said = net(test.x_cat, test.x_cont).squeeze(1).double()
    truth = torch.from_numpy(frame["y"][-2000:].to_numpy(dtype=np.float64))
    if logloss:
        return float(torch.nn.functional.binary_cross_entropy_with_logits(said, truth))
    return float(auc(said, truth))


def cases() -> Mapping[str, Mapping[str, Callable[[int], float]]]:
    """World → change → score by seed."""
    made: dict[str, dict[str, Callable[[int], float]]] = {}
    for name, world, epochs in (("no order", no_order, 80), ("an order", an_order, 20)):
        made[name] = {n: lambda s, w=world, e=epochs, a=a: hit_rate(w, e, a, s) for n, a in CHANGES.items()}
    for name, tells in (("searches that tell", True), ("searches that say nothing", False)):
        made[name] = {
            n: lambda s, t=tells, v=v: searches(t, v, s) for n, v in (("none", False), ("virtual items", True))
        }
    for name, world in (("few labels", few_labels), ("many labels", many_labels)):
        changes = ("none", "mixup", "swap noise", "denoising")
        made[name] = {n: lambda s, w=world, n=n: table_score(w, n, s) for n in changes}
        own = f"{name}, log loss"
        made[own] = {n: lambda s, w=world, n=n: table_score(w, n, s, logloss=True) for n in changes[:3]}
    return made


def main() -> None:
    """Run the cases and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(cases()), default=list(cases()))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=ROOT / "runs" / "bench" / "augmentation.json")
    options = parser.parse_args()
    use_threads(1)
    found = {}
    for world in options.cases:
        scores = {n: np.array([run(s) for s in range(options.seeds)]) for n, run in cases()[world].items()}
        for change, values in scores.items():
            less = values - scores["none"]
            error = less.std(ddof=1) / options.seeds**0.5 if options.seeds > 1 else float("nan")
            print(f"{world:28} {change:14} {values.mean():.4f}  {less.mean():+.4f} +- {error:.4f}", flush=True)
        found[world] = {n: v.tolist() for n, v in scores.items()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
