"""AUC by batch size, up to a few dozen steps an epoch: ``make bench-extreme``, or this file.

One epoch of 40 M rows of ``fastrec.datasets.planted_ctr`` (``--rows``: 42 M, of which 2 M are scored): ids by a power
law, one column of a million of them, and a click probability that is known, so that the best possible AUC is too. Nets
of each batch size and rule (``--rules``) are trained and scored.

A rule is an optimizer and what changes with the batch size. Its two rates, of embeddings and of all else, are chosen
from ``GRIDS`` at the smallest batch; from there on they follow the rule alone.

  AdamW       both rates ∝ √batch.
  LAMB        the same, with one trust ratio per embedding table and none for biases and norms (which start at 0).
  scaled      AdamW with ``1 - momentum`` and ``1 - β2`` ∝ batch (``scale_moms``), as far as to .5 and .1, and ε ∝ 1 /
              batch. Embeddings have no momentum: a rare id would be moved on by a gradient of long ago. Their rate is
              ∝ √(1 - β2), as a row that comes for the first time in a long while goes by rate / √(1 - β2).
  scaledLAMB  LAMB with momentum, β2, ε and the embeddings' rate as in *scaled*; embeddings have no trust ratio.
  CowClip     AdamW with gradients of embeddings clipped id by id; the embeddings' rate stays, their decay ∝ batch; the
              other rate ∝ √batch (arXiv 2204.06240, section 5).

The least β2, and that embeddings have no trust ratio, were chosen by nets of some 195 steps on a table of another seed.
All warm up over the first part of the steps and then cool down by half a cosine (``fit_one_cycle``).

Every net is written to the JSON file as soon as it is trained; ``--resume`` goes on where a run was stopped. Fields:
``rows`` trained on, ``seconds`` of training, ``ratio``: seconds of the same rule at the smallest batch over these,
``auc``, ``auc_lost``: the AUC at the smallest batch (same rule and seed) less this one, ``lr`` (of embeddings and of
all else), ``batch``, ``steps``, ``seed``. Records of cases that end in "rate" are of the grid.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _frames import Clock
from _timing import Record, arguments, bare, cores, heading, read, use_threads, write

from fastrec.datasets import planted_ctr
from fastrec.losses import BCE
from fastrec.metrics import AUC
from fastrec.models import DCNv2, TabularNet, emb_sz_rule
from fastrec.optim import adamw, lamb, scale_lr, scale_moms, split_embeddings
from fastrec.tabular import TabularFrame
from fastrec.training import CowClip, rec_learner

CASE = "planted CTR"


# Rates of embeddings and of all else that are tried at the smallest batch. Most ids come seldom: their vectors, which
# start near 0, have few steps to go far in, and want a rate ten to thirty times that of the other layers.
GRIDS = {
    "AdamW": ([0.01, 0.002], [0.03, 0.002], [0.03, 0.006], [0.06, 0.002]),
    "scaled": ([0.01, 0.002], [0.03, 0.002], [0.03, 0.006], [0.06, 0.002]),
    "LAMB": ([0.01, 0.01], [0.03, 0.01], [0.1, 0.01], [0.1, 0.03]),
    "scaledLAMB": ([0.03, 0.01], [0.06, 0.003], [0.06, 0.01], [0.06, 0.03]),
    "CowClip": ([0.01, 0.002], [0.03, 0.002], [0.03, 0.006], [0.06, 0.002]),
}
SCALED, LAMBS = ("scaled", "scaledLAMB"), ("LAMB", "scaledLAMB")
DECAY = 0.01
MOMS, SQR_MOM, EPS = (0.95, 0.85, 0.95), 0.99, 1e-5  # fastai's
LEAST_MOM, LEAST_SQR_MOM = 0.5, 0.9  # however large the batch
WIDEST = 16  # floats of an embedding
# A model, its layers, and the scale of the embeddings' first values (None: the model's own). Products of two columns'
# vectors that start near 0 are found late or never; .6 was chosen on a table of another seed.
NETS: dict[str, tuple[type, dict[str, Any], float | None]] = {
    "dcn": (DCNv2, {"cross_layers": 1, "layers": [64, 32]}, 0.6),
    "mlp": (TabularNet, {"layers": [64, 32]}, None),
}
VALID_BATCH = 65_536


def rates_of(rule: str, lrs: list[float], bs: int, base: int) -> tuple[list[float], list[float]]:
    """Return learning rates and weight decays of embeddings and of all else; ``lrs`` are those at ``base``."""
    embeddings, others = lrs
    scaled = scale_lr(others, bs, base, rule="sqrt")
    if rule in SCALED:
        new = (1 - scale_moms(SQR_MOM, bs, base, floor=LEAST_SQR_MOM)) / (1 - SQR_MOM)
        return [embeddings * new**0.5, scaled], [DECAY, DECAY]
    if rule == "CowClip":  # as scale_lr(…, rule="cowclip") has it where both rates begin alike
        return [embeddings, scaled], [DECAY * bs / base, DECAY]
    return [scale_lr(embeddings, bs, base, rule="sqrt"), scaled], [DECAY, DECAY]


def train(frame: TabularFrame, key: Record, lrs: list[float], base: int) -> Record:
    """Train the net of a record's ``key``, by ``lrs`` that were chosen at batch size ``base``.

    Returns:
        AUC and loss of the validation rows; seconds and steps of the training.
    """
    rule, bs, seed = (key[n] for n in ("system", "batch", "seed"))
    torch.manual_seed(seed)
    dls = frame.dataloaders(bs, val_bs=VALID_BATCH, seed=seed)
    widths = {name: emb_sz_rule(len(classes), cap=WIDEST) for name, classes in dls.classes.items()}
    moms, more = None, {}  # fastai's; else momentum of embeddings and of all else over the training
    if rule in SCALED:
        moms = [np.array([0.0, m]) for m in scale_moms(MOMS, bs, base, floor=LEAST_MOM)]
        more = {"sqr_mom": scale_moms(SQR_MOM, bs, base, floor=LEAST_SQR_MOM), "eps": EPS * base / bs}
    opt_func = partial(adamw, **more)
    if rule in LAMBS:
        opt_func = partial(lamb, adapt_1d=False, adapt_tables=rule == "LAMB", **more)
    arch, layers, std = NETS[key["net"]]
    cbs = [CowClip()] if rule == "CowClip" else []
    options = layers | {"emb_szs": widths, "grads": "rows", "n_out": 1, "splitter": split_embeddings}
    learn = rec_learner(dls, arch, **options, opt_func=opt_func, loss_func=BCE(), metrics=AUC(), cbs=cbs)
    if std is not None:
        learn.model.embeds.reset_parameters(std)
    rates, decays = rates_of(rule, lrs, bs, base)
    clock = Clock()
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, rates, wd=decays, moms=moms, cbs=clock)
    _, loss, auc = learn.recorder.values[-1]
    return {"auc": round(auc, 6), "loss": round(loss, 6), "seconds": round(clock.took[0], 3), "steps": len(dls.train)}


class Results:
    """Records, on disk after every one: those at ``path`` are taken up with ``resume``."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.records: list[Record] = read(path) if resume else []

    def find(self, key: Record) -> Record | None:
        return next((r for r in self.records if all(r.get(k) == v for k, v in key.items())), None)

    def of(self, key: Record, frame: TabularFrame, lrs: list[float], base: int) -> Record:
        """Return the record of a net, which is trained if there is none."""
        key |= {"train_rows": frame.split}
        if found := self.find(key):
            return found
        run = train(frame, key, lrs, base)
        first = self.find({**key, "batch": base}) or run
        shown = [float(f"{x:.4g}") for x in rates_of(key["system"], lrs, key["batch"], base)[0]]
        run |= {"auc_lost": round(first["auc"] - run["auc"], 6), "lr": shown, "bayes_auc": frame.bayes_auc}
        one = bare(rows=run["steps"] * key["batch"], **run, **key)
        one["ratio"] = round(first["seconds"] / run["seconds"], 2)
        self.records.append(one)
        write(self.path, self.records)
        note = f"AUC {one['auc']:.5f}, loss {one['loss']:.5f}, {one['seconds']:8.1f} s"
        where = f"{one['case']:20s} {one['system']:10s} batch {one['batch']:>8,}"
        print(f"  {where} {one['steps']:>7,} steps, rates {shown}: {note}", flush=True)
        return one


def numbers(text: str) -> list[int]:
    return sorted(int(word.replace("_", "")) for word in text.split(","))


def main() -> None:
    sizes = {"type": numbers, "help": "batch sizes with commas between, the smallest first"}
    options = arguments(
        __doc__,
        rows=(42_000_000, "planted clicks; 2 M of them are scored"),
        tune_rows=(4_000_000, "of planted clicks, to choose rates on"),
        rules=(tuple(GRIDS), "optimizers and what changes with the batch"),
        batches={"default": [4_096, 16_384, 65_536, 204_800, 819_200], **sizes},
        seeds=(1, "nets in each cell"),
        net={"choices": list(NETS), "default": "dcn", "help": "what is trained"},
        threads=(cores(), "default: all cores"),
        out=(Path("runs/bench/extreme.json"), "the file of results"),
        resume=(False, "leave out what the file of results has"),
    )
    use_threads(options.threads)
    frame = planted_ctr(options.rows, valid=min(options.rows // 10, 2_000_000))
    rows = min(options.tune_rows, frame.split * 4 // 5)
    beyond = min(rows // 4, 1_000_000)  # the first rows of the same table, scored on those right after them
    sample = planted_ctr(rows + beyond, valid=beyond)
    results, found, base = Results(options.out, resume=options.resume), [], options.batches[0]
    for rule in options.rules:
        key = {"system": rule, "net": options.net}
        of_grid = {**key, "case": f"{CASE}, rate", "batch": base, "seed": 0}
        aucs = [results.of({**of_grid, "base_lr": lrs}, sample, lrs, base)["auc"] for lrs in GRIDS[rule]]
        lrs = GRIDS[rule][aucs.index(max(aucs))]
        for bs, seed in itertools.product(options.batches, range(options.seeds)):
            if bs <= frame.split:
                own = {**key, "case": CASE, "batch": bs, "seed": seed, "base_lr": lrs}
                found.append(results.of(own, frame, lrs, base))
    means = {n: (n, "mean") for n in ("auc", "auc_lost")} | {"sd": ("auc", "std"), "seconds": ("seconds", "median")}
    firsts = {n: (n, "first") for n in ("steps", "lr", "rows_per_s", "ratio")}
    shown = pd.DataFrame(found).groupby(["system", "batch"], sort=False).agg(**firsts, **means).to_string()
    title = f"{CASE}, {frame.split:,} training rows, Bayes AUC {frame.bayes_auc:.5f}; means over seeds"
    write(options.out, results.records, f"{heading()}\n{title}\n{shown}")


if __name__ == "__main__":
    main()
