"""Training and prediction of the end-to-end benchmark: one net, the systems' own loaders, modules and optimizers."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from _e2e_data import CATS, CONTS, DAY, FLAG_WIDTH, LAST_DAY, LAYERS, TARGET, WIDTHS, Prepared
from fastai.callback.core import Callback, CancelValidException
from fastai.callback.training import ShortEpochCallback
from fastai.data.block import CategoryBlock
from fastai.tabular.core import TabDataLoader
from fastai.tabular.learner import tabular_learner
from fastai.torch_core import set_seed

from fastrec.errors import TrainingError
from fastrec.metrics import auc, mrr
from fastrec.optim import adamw, lamb, scale_lr, scale_moms, split_embeddings
from fastrec.tabular import Categorify, FillMissing, Normalize, TabularFrame
from fastrec.training import rec_learner
from fastrec.training.acceleration import mixed_precision

BATCH = 4_096
MOMS, SQR_MOM = (0.95, 0.85, 0.95), 0.99  # fastai's
UPDATES = 42_760_000 // 204_800  # of the article's epoch at its extreme batch
# Rates to choose from, by rule; of "split" those of the embeddings and of all else.
GRIDS: dict[str, Sequence[Any]] = {
    "adamw": (0.01, 0.03, 0.1),
    "split": ((0.03, 0.03), (0.02, 0.04), (0.01, 0.04), (0.02, 0.08)),
    "lamb": (0.01, 0.03, 0.1),
}
EMB_SZS = WIDTHS | {f"{n}_na": FLAG_WIDTH for n in CONTS}


class System(NamedTuple):
    """A row of the table.

    By the rule ``split`` embeddings have a rate of their own and no momentum; that of all else goes with the batch.
    """

    name: str
    data: str  # what it trains from: ``stock``, ``features``, ``frame`` or ``device``
    loader: str = "fastrec"  # or ``stock``
    net: str = "fastrec"  # modules and optimizer
    rule: str = "adamw"  # (fastai's Adam is the same), ``lamb`` or ``split``
    half: bool = False  # in bfloat16, where that pays
    batch: str = "base"  # ``BATCH``; ``larger``: twice that; ``extreme``: as many updates as the article's


SYSTEMS = (
    System("stock", "stock", loader="stock", net="stock"),
    System("+ features", "features", loader="stock", net="stock"),
    System("+ preprocessing", "frame", loader="stock", net="stock"),
    System("+ loader", "frame", net="stock"),
    System("+ fused embeddings and optimizer", "frame"),
    System("+ embeddings without momentum", "frame", rule="split"),
    System("+ bf16", "frame", half=True, rule="split"),
    System("+ batch of 8,192, momentum scaled", "frame", half=True, batch="larger", rule="split"),
    System("+ extreme batch, LAMB", "frame", rule="lamb", half=True, batch="extreme"),
    System("+ extreme batch, AdamW, momentum scaled", "frame", half=True, batch="extreme", rule="split"),
    System("+ data on the device", "device", rule="lamb", half=True, batch="extreme"),
)


class Settings(NamedTuple):
    """Settings that all systems share."""

    lrs: Mapping[str, Any]  # learning rate at ``BATCH`` by rule
    extreme: int  # the extreme batch
    amp: str | None = None  # ``bf16`` where it pays
    device: str = "cpu"

    def batch(self, system: System) -> int:
        return {"base": BATCH, "larger": 2 * BATCH, "extreme": self.extreme}[system.batch]

    def lr(self, system: System) -> Any:
        """Return a system's learning rate, or rates: its rule's, by the square root of the batch."""
        rates = np.asarray(self.lrs[system.rule]) * scale_lr(1.0, self.batch(system), BATCH)
        return rates if system.rule == "split" else float(rates)


class Trained(NamedTuple):
    """One training: seconds, area under the ROC curve, mean reciprocal rank."""

    train: float
    predict: float
    auc: float
    mrr: float


class _NoValidation(Callback):  # the prediction that follows goes over the same rows
    def before_validate(self) -> None:
        raise CancelValidException


def extreme_batch(rows: int) -> int:
    """Return the batch that makes as many updates of an epoch of ``rows`` as the article's largest did of its own."""
    return max(BATCH, round(rows / UPDATES / BATCH) * BATCH)


def run(system: System, to: Any, made: Prepared, settings: Settings, seed: int) -> Trained:
    """Train a system for one epoch on its tabular object, predict the validation rows and score them by ``made``."""
    begun = _now(settings.device)
    learn = _fitted(system, to, settings, seed, _NoValidation())
    trained = _now(settings.device)
    with warnings.catch_warnings(), learn.no_bar():
        warnings.simplefilter("ignore")  # fastai's, about pandas and arrays
        scores = learn.get_preds(ds_idx=1)[0][:, 1].numpy()
    done = _now(settings.device)
    rows = np.asarray(made.splits[1])
    clicked, lists = made.clicked[rows], made.lists[rows]
    return Trained(trained - begun, done - trained, float(auc(scores, clicked)), float(mrr(scores, clicked, lists)))


def _fitted(system: System, to: Any, settings: Settings, seed: int, *cbs: Callback) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        set_seed(seed)
        learn = _learner(system, to, settings)
        moms = None  # fastai's; else of embeddings and of all else at the start, in the middle and at the end
        if system.rule == "split":
            moms = [np.array([0.0, m]) for m in scale_moms(MOMS, settings.batch(system), BATCH)]
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(1, settings.lr(system), moms=moms, cbs=cbs)
    return learn


def _learner(system: System, to: Any, settings: Settings) -> Any:
    options: dict[str, Any] = {"device": torch.device(settings.device)}
    if system.loader == "stock":
        options["dl_type"] = TabDataLoader  # fastai's default for TabularPandas draws rows with replacement
    elif system.data != "device" and settings.device != "cpu":
        options["place"] = "host"
    dls = to.dataloaders(settings.batch(system), **options)
    sizes = {n: w for n, w in EMB_SZS.items() if n in dls.cat_names}
    if system.net == "stock":
        return tabular_learner(dls, layers=list(LAYERS), emb_szs=sizes)
    more: dict[str, Any] = {"opt_func": lamb if system.rule == "lamb" else adamw}
    if system.rule == "split":
        more = {"splitter": split_embeddings, "grads": "rows"}
        more["opt_func"] = partial(adamw, sqr_mom=scale_moms(SQR_MOM, settings.batch(system), BATCH))
    cbs = mixed_precision(settings.amp if system.half else None, settings.device)
    # the widths as they are: padding them would be another net
    return rec_learner(dls, layers=list(LAYERS), emb_szs=sizes, pad=False, cbs=cbs, **more)


def _now(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def tune(
    frame: Any, *, shown: np.ndarray, grids: Mapping[str, Sequence[Any]], extreme: int, device: str
) -> dict[str, Any]:
    """Choose the learning rate of each rule: the best of a grid by the loss on the last of the training days.

    Each rule is searched with the batch that it enters the table with: Adam with ``BATCH``, LAMB with the extreme one.
    ``frame`` has training rows, ``shown`` the seconds int64 ``[n]`` when each was.
    """
    inside = shown >= LAST_DAY - DAY
    splits = (np.flatnonzero(~inside), np.flatnonzero(inside))
    procs = [Categorify, FillMissing, Normalize]
    to = TabularFrame(frame, procs, CATS, CONTS, TARGET, CategoryBlock, splits=splits)
    chosen = {}
    for rule, grid in grids.items():
        system = next(s for s in SYSTEMS if s.rule == rule and s.net == "fastrec")
        losses = {lr: _loss(system, to, Settings({rule: lr}, extreme, None, device)) for lr in grid}
        print(f"  {rule}: " + ", ".join(f"rate {lr} loss {loss:.5f}" for lr, loss in losses.items()), flush=True)
        chosen[rule] = min(losses, key=losses.__getitem__)
    return chosen


def _loss(system: System, to: Any, settings: Settings) -> float:
    try:
        loss = float(_fitted(system, to, settings, 0).recorder.values[-1][1])
    except TrainingError:  # the rate is too high
        return math.inf
    return loss if math.isfinite(loss) else math.inf


def faster_amp(to: Any, settings: Settings) -> str | None:
    """Return ``bf16`` if thirty batches of ``BATCH`` rows take less time with it, else None."""
    system = next(s for s in SYSTEMS if s.half and s.batch == "base")
    few = ShortEpochCallback(min(1.0, 30 * BATCH / len(to.train)))

    def seconds(amp: str | None) -> float:
        begun = _now(settings.device)
        _fitted(system, to, settings._replace(amp=amp), 0, few, _NoValidation())
        return _now(settings.device) - begun

    return min((None, "bf16"), key=lambda amp: min(seconds(amp) for _ in range(3)))
