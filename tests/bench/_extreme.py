"""Nets and rules that ``bench_extreme.py`` trains on planted clicks.

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
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from fastai.callback.core import Callback

from fastrec.losses import BCE
from fastrec.metrics import AUC
from fastrec.models import DCNv2, TabularNet, emb_sz_rule
from fastrec.optim import adamw, lamb, scale_lr, scale_moms, split_embeddings
from fastrec.tabular import TabularFrame
from fastrec.training import CowClip, rec_learner

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


def moments_of(rule: str, bs: int, base: int) -> tuple[list[np.ndarray] | None, dict[str, float]]:
    """Return momentum of embeddings and of all else over the training (None: the default), and other settings."""
    if rule not in SCALED:
        return None, {}
    moms = scale_moms(MOMS, bs, base, floor=LEAST_MOM)
    more = {"sqr_mom": scale_moms(SQR_MOM, bs, base, floor=LEAST_SQR_MOM), "eps": EPS * base / bs}
    return [np.array([0.0, m]) for m in moms], more


def train(
    frame: TabularFrame, rule: str, lrs: list[float], *, bs: int, base: int, seed: int = 0, net: str = "dcn"
) -> dict[str, Any]:
    """Train one net by one of ``GRIDS``, whose ``lrs`` were chosen at batch size ``base``.

    Returns:
        AUC and loss of the validation rows; seconds and steps of the training.
    """
    torch.manual_seed(seed)
    dls = frame.dataloaders(bs, val_bs=VALID_BATCH, seed=seed)
    widths = {name: emb_sz_rule(len(classes), cap=WIDEST) for name, classes in dls.classes.items()}
    moms, more = moments_of(rule, bs, base)
    opt_func = partial(adamw, **more)
    if rule in LAMBS:
        opt_func = partial(lamb, adapt_1d=False, adapt_tables=rule == "LAMB", **more)
    arch, layers, std = NETS[net]
    cbs = [CowClip()] if rule == "CowClip" else []
    options = layers | {"emb_szs": widths, "grads": "rows", "n_out": 1, "splitter": split_embeddings}
    learn = rec_learner(dls, arch, **options, opt_func=opt_func, loss_func=BCE(), metrics=AUC(), cbs=cbs)
    if std is not None:
        learn.model.embeds.reset_parameters(std)
    rates, decays = rates_of(rule, lrs, bs, base)
    clock = _Clock()
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, rates, wd=decays, moms=moms, cbs=clock)
    _, loss, auc = learn.recorder.values[-1]
    found = {"auc": round(auc, 6), "loss": round(loss, 6), "seconds": round(clock.seconds, 3)}
    return found | {"steps": clock.steps}


class _Clock(Callback):
    seconds, steps = 0.0, 0

    def before_train(self) -> None:
        self.began = _now()

    def after_step(self) -> None:
        self.steps += 1

    def after_train(self) -> None:
        self.seconds += _now() - self.began


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # what was started there is to be counted
    return time.perf_counter()
