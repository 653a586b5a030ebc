"""Training of nets as estimators: recipes, schedules, time limits."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.callback.schedule import ParamScheduler
from fastai.learner import Recorder
from torch import Tensor, nn

import fastrec.models
from fastrec._core import limits
from fastrec._core.ranks import on_first_rank, world_size
from fastrec.errors import DataError, OutOfTimeError
from fastrec.estimators._tree_model import Deadline
from fastrec.models import EmbeddingTables, ModernNCA, RealMLP, TabM, TabularNet, embedding_sizes
from fastrec.models.fields import options_of
from fastrec.models.real_mlp import RATES, UNDECAYED
from fastrec.optim import adamw, scale_lr, scale_moms, split_embeddings
from fastrec.table import load_state, save_state
from fastrec.tabular import Categorify, RankGauss, RobustScale
from fastrec.training import rec_learner
from fastrec.training.ranks import is_sharded
from fastrec.validate import Rows
from fastrec.validate.target import Task


def epochs_in_time(
    deadline: Deadline, dls: Any, net: nn.Module, loss: Any, report: Callable[[nn.Module], Any], epochs: int, *,
    name: str,
) -> int:  # fmt: skip
    """Return how many epochs fit into the time that is left; with several processes, the first one decides.

    A copy of the net is timed on a few training batches and one call of ``report``, which scores the net after each
    epoch. ``name`` is the estimator's name, for messages.
    """

    def judged() -> int:
        state = torch.random.get_rng_state()
        trial = copy.deepcopy(net).to(dls.device).train()
        own = trial.wrap_loss(loss) if hasattr(trial, "wrap_loss") else loss
        n, warm, timed = len(dls.train), 2, 6  # batches; the first ones, which allocate, are not timed
        # the other ranks do not run these batches
        loader = dls.train if dls.train.world_size == 1 else dls.train.new(rank=0, world_size=1)
        count, seconds, rule = 0, 0.0, None

        def refuse_long(epoch: float) -> None:
            if epoch > deadline.left * 1.25:
                problem = f"{name}: an epoch takes {epoch:.1f} s, its share of the time is {deadline.left:.1f} s"
                raise OutOfTimeError(problem, remedy="Give more minutes, or a smaller model")

        for i, batch in enumerate(islice(loader, min(warm + timed, n))):
            began = time.monotonic()
            *xb, yb = batch
            own(trial(*xb), yb).backward()
            took = time.monotonic() - began
            if rule is None and (i == 1 or n == 1):
                # torch's first optimizer imports its compiler, which takes seconds. A time limit that is too short is
                # refused before that, and the import does not count as part of an epoch.
                refuse_long(took * n)
                rule = torch.optim.AdamW(trial.parameters(), lr=1e-4)
            if rule is not None:
                began = time.monotonic()
                rule.step()
                rule.zero_grad()
                took += time.monotonic() - began
            if i >= warm or n <= warm:
                count, seconds = count + 1, seconds + took
        began = time.monotonic()
        report(trial.eval())
        epoch = seconds / max(count, 1) * n + time.monotonic() - began
        torch.random.set_rng_state(state)
        refuse_long(epoch)
        return max(1, min(epochs, int(deadline.left / epoch)))

    return on_first_rank(judged, "trying how long an epoch takes")


class StopInTime(Callback):
    """Callback that stops training if the next epoch would not fit into the time; the best weights are kept."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline

    def before_epoch(self) -> None:
        """Note when an epoch begins."""
        self._began = time.monotonic()

    def after_epoch(self) -> None:
        """Stop if the next epoch would take too long."""
        took = time.monotonic() - self._began
        is_late = on_first_rank(lambda: self.deadline.left < took * 0.75, "looking at the clock")
        if is_late and self.learn.epoch + 1 < self.learn.n_epoch:
            raise CancelFitException


Score = Callable[[Any], dict[str, float]]


class KeepBest(Callback):
    """Callback that scores the net after each epoch, stops training early and restores the best weights.

    Args:
        report: function of the net that returns the values to record for an epoch.
        by: the name of the value to monitor; None: no rows are held out, and the last weights are kept.
        greater_is_better: whether a higher value is better.
        patience: stop after this many epochs without improvement; None: never.
    """

    order = Recorder.order + 1

    def __init__(
        self, report: Score, by: str | None, *, greater_is_better: bool = False, patience: int | None = None
    ) -> None:
        super().__init__()
        self.report, self.by, self.patience = report, by, patience
        self.sign = -1.0 if greater_is_better else 1.0
        self.records: list[dict[str, float]] = []
        self.best, self._least = 0, math.inf
        self._weights: dict[str, torch.Tensor] | None = None

    def after_epoch(self) -> None:
        """Score the net, and keep a copy of the weights if they are the best so far."""
        net = self.learn.model.eval()
        scores = on_first_rank(lambda: self.report(net), "scoring an epoch")  # so that all ranks stop at the same epoch
        train_loss = float(self.learn.recorder.values[-1][0])
        self.records.append({"epoch": self.learn.epoch, "train_loss": train_loss, **scores})
        if self.by is None:
            self.best = self.learn.epoch
            return
        value = self.sign * scores[self.by]
        if value < self._least or self._weights is None:  # NaN is never better
            self._least = math.inf if math.isnan(value) else value
            self.best = self.learn.epoch
            self._weights = {n: w.clone() for n, w in net.state_dict().items()}
        elif self.patience is not None and self.learn.epoch - self.best >= self.patience:
            raise CancelFitException

    def after_fit(self) -> None:
        """Restore the best weights."""
        if self._weights is not None:
            self.learn.model.load_state_dict(self._weights)
        self._weights = None


_MOMS, _SQR_MOM, _EPS = (0.95, 0.85, 0.95), 0.99, 1e-5  # fastai's


def fit_options(net: nn.Module, lr: float, bs: int, base_bs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of the Learner, and of its ``fit_one_cycle``, for a batch of ``bs`` rows.

    Small batches use plain AdamW; its rate scales with the root of the batch size. In large ones, embeddings have no
    momentum; ``1 - momentum`` and ``1 - β2`` scale with the batch size, up to .5 and .1. The embeddings' rate scales
    with ``√(1 - β2)``, other rates with the root of the batch size, ``ε`` with its inverse. ``lr`` is the highest rate
    at ``base_bs`` rows. Source: rule *scaled* of BENCHMARKS.md (extreme batches), after arXiv 2205.10287.
    """
    rate = scale_lr(lr, bs, base_bs)
    if bs < limits.LARGE_BATCH:
        return {"opt_func": adamw}, {"lr_max": rate}
    moms = scale_moms(_MOMS, bs, base_bs, floor=0.5)  # whatever the batch size
    sqr_mom = scale_moms(_SQR_MOM, bs, base_bs, floor=0.9)
    rule: dict[str, Any] = {"opt_func": partial(adamw, sqr_mom=sqr_mom, eps=_EPS * base_bs / bs)}
    if not any(isinstance(m, EmbeddingTables) for m in net.modules()):
        return rule, {"lr_max": rate, "moms": moms}
    new = (1 - sqr_mom) / (1 - _SQR_MOM)
    apart = [np.array([0.0, m]) for m in moms]  # momenta of the embeddings, and of all other parameters
    return {**rule, "splitter": split_embeddings}, {"lr_max": [lr * new**0.5, rate], "moms": apart}


def train_one_cycle(
    dls: Any, net: nn.Module, loss: Any, epochs: int, *, lr: float, bs: int, base_bs: int, wd: float,
    cbs: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Train a net by AdamW and fastai's one-cycle schedule, without looking at validation rows.

    ``bs``: rows in a batch over all ranks; ``lr``: the highest rate at ``base_bs`` rows (see ``fit_options``).
    """
    rule, schedule = fit_options(net, lr, bs, base_bs)
    learn = rec_learner(dls, net, loss_func=loss, wd=wd, cbs=list(cbs), **rule)
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx():
        learn.fit_one_cycle(epochs, pct_start=0.25, **schedule)


@dataclass(frozen=True)
class NetRecipe:
    """Training defaults of a model.

    ``epochs`` and ``max_rows`` bound how often each row is seen and, roughly, how many rows in all. A small table gets
    more epochs, up to 64, until ``min_rows`` are seen. ``lr`` is the highest rate at ``base_bs`` rows. ``bs``: None: a
    hundredth of the training rows, rounded up to a power of two between 256 and 2,048.

    ``long_epochs``: epochs for at most ``limits.FEW_ROWS`` rows, in smaller batches; training stops after ``patience``
    epochs without improvement.
    """

    epochs: int = 16
    max_rows: int = 8_000_000
    min_rows: int = 0
    lr: float = 2e-3
    wd: float = 0.02
    procs: tuple[Any, ...] = (Categorify, RankGauss)
    options: Mapping[str, Any] = field(default_factory=dict)
    bs: int | None = None
    base_bs: int = 256
    long_epochs: int = 0
    patience: int = 30

    def is_long(self, n: int) -> bool:
        """Return whether ``n`` training rows get ``long_epochs``."""
        return 0 < n <= limits.FEW_ROWS and self.long_epochs > 0

    def epochs_for(self, n: int) -> int:
        """Return the number of epochs for ``n`` training rows, before ``max_rows`` applies."""
        return self.long_epochs if self.is_long(n) else max(self.epochs, min(-(-self.min_rows // n), 64))

    def batch(self, n: int) -> int:
        """Return the batch size for ``n`` training rows."""
        if self.bs is not None:
            return self.bs
        if self.is_long(n) and n < 5_000:
            return 64 if n < 2_000 else 128
        # About a hundred steps an epoch, with batches that are neither tiny nor huge.
        return min(max(1 << round(n / 100).bit_length(), 256), 2_048)


_TABULAR = {"layers": [256, 128], "ps": 0.1, "embed_p": 0.05, "use_bn": False, "bn_cont": False, "act_cls": nn.SiLU}
# A TabM of the paper's size (32 members, layers of 256) costs seven times as much: too slow for tables on a CPU.
_TABM = {"k": 8, "layers": [128, 128], "d_embedding": 8}
_RECIPES: dict[type[nn.Module], NetRecipe] = {
    TabularNet: NetRecipe(options=_TABULAR, max_rows=4_000_000),
    ModernNCA: NetRecipe(lr=5e-4, wd=2e-4, bs=512, base_bs=512, long_epochs=60, patience=20),
    TabM: NetRecipe(options=_TABM, epochs=10, max_rows=2_000_000, min_rows=300_000, long_epochs=200),
}
# arXiv 2407.04491, table A.1: 256 epochs at batch 256. On a CPU that takes hours for a million rows. The rows seen are
# therefore bounded, to 7,800 updates: some 100 seconds on one core.
_CLASSES = NetRecipe(epochs=256, max_rows=2_000_000, lr=0.04, wd=0.02, procs=(Categorify, RobustScale), bs=256)
_AMOUNTS = replace(_CLASSES, lr=0.2, options={"act": "mish"})


def recipe_of(model: type[nn.Module], task: Task) -> NetRecipe:
    """Return the defaults of a model; models without their own share common ones."""
    if issubclass(model, RealMLP):
        return _AMOUNTS if task == "regression" else _CLASSES
    return _RECIPES.get(model, NetRecipe())


def default_model(data: Rows) -> str:
    """Name the model of ``model='auto'``: the best on held-out rows at the same cost.

    RealMLP for regression (Rossmann), TabM for classes and labels (Adult, Census-Income), TabularNet for many numbers.
    """
    # With more columns, a TabM's embeddings of numbers cost more than they gain.
    if len(data.conts) > 150:
        return "TabularNet"
    return "RealMLP" if data.task == "regression" else "TabM"


def train_real_mlp(
    dls: Any, net: RealMLP, loss: Any, epochs: int, *, lr: float, wd: float, cbs: Sequence[Any] = ()
) -> None:
    """Train by arXiv 2407.04491, section 3 and table A.1: Adam with β₂ .95, ``coslog4``, decay and dropout flat-cosine.

    ``lr`` is the highest rate; parts of the net have rates in proportion to it (``RATES``). ``wd`` is the initial decay
    of all parameters but biases.
    """
    parts = dict(zip(RATES, RealMLP.rate_groups(net), strict=True))
    used = [name for name, parameters in parts.items() if parameters]
    rates = np.array([lr * RATES[name] for name in used])
    decays = np.array([0.0 if name == UNDECAYED else wd for name in used])
    opt_func = partial(adamw, mom=0.9, sqr_mom=0.95, eps=1e-8)
    learn = rec_learner(
        dls, net, loss_func=loss, opt_func=opt_func, splitter=lambda net: [p for p in RealMLP.rate_groups(net) if p]
    )
    schedule = ParamScheduler({"lr": lambda t: rates * coslog(t), "wd": lambda t: decays * flat_cos(t)})
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx():
        learn.fit(epochs, lr, wd=wd, cbs=[schedule, ScheduledDropout(flat_cos), *cbs])


def coslog(t: float) -> float:
    """Return the learning rate as a share of its highest: four waves, each twice as long as the one before.

    ``½ (1 - cos(2π log₂(1 + 15 t)))`` for the progress ``t`` from 0 to 1 (arXiv 2407.04491, section 3). It is 0 at
    both ends.
    """
    return 0.5 * (1 - math.cos(2 * math.pi * math.log2(1 + 15 * float(t))))


def flat_cos(t: float) -> float:
    """Return 1 for the first half, then decay to 0 along half a cosine (same source as ``coslog``)."""
    return 0.5 * (1 + math.cos(math.pi * max(0.0, 2 * float(t) - 1)))


class ScheduledDropout(Callback):
    """Callback that multiplies every dropout rate of the net by a factor that depends on training progress."""

    run_valid = False

    def __init__(self, share: Callable[[float], float]) -> None:
        super().__init__()
        self.share = share
        self._own: list[tuple[nn.Dropout, float]] = []

    def before_fit(self) -> None:
        """Note the rate of each dropout."""
        self._own = [(m, m.p) for m in self.learn.model.modules() if isinstance(m, nn.Dropout)]

    def before_batch(self) -> None:
        """Set each rate for this batch."""
        share = self.share(self.learn.pct_train)
        for module, p in self._own:
            module.p = p * share

    def after_fit(self) -> None:
        """Restore the rates."""
        for module, p in self._own:
            module.p = p


_GIVEN = ("emb_szs", "n_cont", "out_sz", "cat_names", "list_szs", "list_names", "vector_szs")  # set from the columns


@dataclass(frozen=True)
class Architecture:
    """A model class (one of ``fastrec.models``, its name, or your own) and its options.

    Options are plain values, tensors, and classes of ``torch.nn``.
    """

    model: type[nn.Module] | str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: Any = self.model
        if isinstance(found, str):  # nothing is imported because a name mentions its module
            module, _, name = found.rpartition(":")
            found = sys.modules.get(module) if module else fastrec.models
            for part in name.split("."):
                found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            known = [n for n in fastrec.models.__all__ if hasattr(getattr(fastrec.models, n), "forward")]
            remedy = f"Give one of fastrec.models ({', '.join(known)}), or import the module of your own first"
            raise DataError(f"{self.model!r} is no class of models that is known here", remedy=remedy)
        object.__setattr__(self, "model", found)  # the dataclass is frozen
        accepted = options_of(self.model)
        for name, value in self.options.items():
            if name in _GIVEN or (accepted is not None and name not in accepted):
                remedy = "Its options are " + ", ".join(sorted(set(accepted or ()) - set(_GIVEN)))
                raise DataError(f"{self.model.__name__} takes no option {name!r} here", remedy=remedy)
            if _class_name(value) is None and not _is_plain(value):
                raise DataError(
                    f"the option {name!r} is a {type(value).__name__}, which no saved net could be made with again",
                    remedy="Give plain values, tensors, or a class of torch.nn, as in act_cls=nn.GELU",
                )

    def plan(self, dls: Any, n_out: int = 1) -> dict[str, Any]:
        """Return all arguments that the net is built with: sizes and names of columns, outputs and options."""
        names = list(dls.cat_names)
        learnt = getattr(self.model, "options_for", lambda dls, given: {})(dls, dict(self.options))
        sizes = embedding_sizes(dls.train_ds.classes if names else {}, names)
        options = {**learnt, **self.options}
        return {"emb_szs": sizes, "cats": names, "n_cont": len(dls.cont_names), "n_out": n_out, "options": options}

    def build(self, plan: Mapping[str, Any]) -> nn.Module:
        """Build a net with initial weights."""
        options = dict(plan["options"])
        accepted = options_of(self.model)
        if accepted is None or "cat_names" in accepted:
            options["cat_names"] = plan["cats"] or None
        net = self.model([tuple(z) for z in plan["emb_szs"]], plan["n_cont"], plan["n_out"], **options)
        if world_size() > 1 and any(is_sharded(p) for p in net.parameters()):
            remedy = "Leave out placement='row-sharded', or train with rec_learner and distributed"
            raise DataError("an estimator keeps a whole net, and ranks would share its tables", remedy=remedy)
        return net

    def save(self, folder: Path, plan: Mapping[str, Any]) -> None:
        """Write what ``load`` needs."""
        options = plan["options"]
        classes = {n: c for n, v in options.items() if (c := _class_name(v)) is not None}
        plain = {n: v for n, v in options.items() if n not in classes}
        own = [*(n for n in self.options if n not in classes), *(n for n in classes if n in self.options)]
        state = {**plan, "options": plain, "classes": classes, "own": own}
        save_state(folder, {"model": name_of(self.model), **state})

    @classmethod
    def load(cls, folder: Path) -> tuple[Architecture, dict[str, Any]]:
        """Read the architecture and the plan of a saved net."""
        state = load_state(folder)
        classes = {n: getattr(nn, v) for n, v in state["classes"].items()}
        if not all(_class_name(c) for c in classes.values()):
            raise ValueError(f"torch.nn lacks one of {', '.join(state['classes'].values())}")
        options = {**state["options"], **classes}
        architecture = cls(state["model"], {n: options[n] for n in state["own"]})
        return architecture, {**{n: state[n] for n in ("emb_szs", "cats", "n_cont", "n_out")}, "options": options}


def name_of(model: type[nn.Module]) -> str:
    """Return the name by which a saved net's class is found; the name of your own class includes its module."""
    own = getattr(fastrec.models, model.__name__, None) is model
    return model.__name__ if own else f"{model.__module__}:{model.__qualname__}"


def _class_name(value: Any) -> str | None:
    known = isinstance(value, type) and issubclass(value, nn.Module) and getattr(nn, value.__name__, None) is value
    return value.__name__ if known else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and not k.startswith("$") and _is_plain(v) for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Tensor | np.generic)
