"""``session_learner``: a fastai Learner and loaders for next items."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import fastai.callback.schedule  # noqa: F401 - gives every Learner lr_find
import pandas as pd
import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.metrics import Metric
from fastcore.foundation import L
from torch import Tensor, nn

from fastrec._core import limits
from fastrec._core.device import DeviceLike, resolve_device
from fastrec._core.memory import keeping_memory
from fastrec.errors import DataError
from fastrec.optim import adamw
from fastrec.sequences.base import GAINS, recommended, target_ranks
from fastrec.sequences.losses import AUGMENTATIONS, SampledSoftmax, SessionLoss, augmented, moved
from fastrec.sequences.nets import SASRec
from fastrec.sequences.reading import SessionFrame
from fastrec.sequences.session_net import TASKS, GoalHeads, ItemTower, SessionNet, Task
from fastrec.table.column import offsets_of, runs
from fastrec.training.learner import LeanLearner, one_cycle
from fastrec.training.rows import SettleRows
from fastrec.training.stop_on_nan import StopOnNaN


def padded(sessions: SessionFrame, max_len: int, timed: bool = False) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the last events as codes int64 ``[b, L]``, padded with 0, lengths, and side features with times last."""
    ends = sessions.offsets[1:]
    starts = torch.maximum(sessions.offsets[:-1], ends - max_len)
    lengths = ends - starts
    place = torch.arange(max(int(lengths.max()), 1) if len(lengths) else 1)
    inside = place < lengths.unsqueeze(1)
    columns = sessions.inputs(timed)
    if not len(sessions.values):
        columns = [torch.zeros(1, dtype=v.dtype) for v in columns]  # place 0 to read at
    index = torch.where(inside, starts.unsqueeze(1) + place, 0)
    items, *sides = (v[index].masked_fill_(~inside, 0) for v in columns)
    return items, lengths, sides


@torch.no_grad()
def item_keys(net: SessionNet) -> Tensor:
    """Return all items' vectors as compared with queries, ``[width, codes]``."""
    return net.keys(net.items.all()).T.contiguous()


@torch.no_grad()
def net_scores(net: SessionNet, sessions: SessionFrame, keys: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield session numbers and scores of all codes, float32 on the net's device, block by block.

    Sessions have the net's vocabulary; ``keys`` is a known ``item_keys``.
    """
    keys = item_keys(net) if keys is None else keys
    for rows, query in net_queries(net, sessions, max(1, limits.NET_SCORES_CELLS // max(net.items.codes, 1))):
        scores = (query @ keys).float()
        scores[:, 0] = -torch.inf
        yield rows, scores


@torch.no_grad()
def net_queries(net: SessionNet, sessions: SessionFrame, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the numbers of at most ``at_once`` sessions and their vectors as compared with keys."""
    device = net.items.table.weight.device
    training = net.training
    if training:  # in every block it would take a sixth of the time on a GPU
        net.eval()
    try:
        for rows in torch.argsort(sessions.lengths.clamp_max(net.reads), stable=True).split(at_once):
            items, lengths, sides = padded(sessions.take(rows), net.reads, net.timed)
            yield rows, net.query(net.last(items.to(device), lengths.to(device), *(s.to(device) for s in sides)))
    finally:
        net.train(training)


class SessionLearner(LeanLearner):
    """A Learner whose net predicts a session's next item."""

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Train as fastai's ``fit``; on a CPU, freed memory is reused for the next batch."""
        with keeping_memory():
            super().fit(*args, **kwargs)

    def recommend(self, sessions: SessionFrame, k: int = 20, *, exclude_seen: bool = False) -> tuple[Tensor, Tensor]:
        """Return codes int64 ``[n, k]`` and scores ``[n, k]`` of the best items, see ``SessionModel.recommend``.

        Raises:
            DataError: ``k`` is below 1.
        """
        sessions = sessions.recode(self.dls.train.sessions.items)
        return recommended(net_scores(self.model, sessions), sessions, k, exclude_seen)

    def show_results(
        self, sessions: SessionFrame | None = None, max_n: int = 9, k: int = 5, **kwargs: Any
    ) -> pd.DataFrame:
        """Show ``max_n`` sessions (None: held-out ones), their next items and the ``k`` best items."""
        if sessions is None:
            held = self.dls.valid.sessions
            sessions = held.cut(held.offsets[:-1], torch.maximum(held.offsets[1:] - 1, held.offsets[:-1]))
            sessions.target = held.values[(held.offsets[1:] - 1).clamp_min(0)] if len(held.values) else None
        sessions = sessions.take(torch.arange(min(len(sessions), max_n)))
        items, _ = self.recommend(sessions, k)

        def names(codes: Tensor) -> list[Any]:
            return sessions.decode(codes).to_pylist()

        shown = pd.DataFrame({"session": [names(p) for p in sessions.values.split(sessions.lengths.tolist())]})
        if sessions.target is not None:
            shown["next"] = names(sessions.target)
        shown["best"] = [names(row) for row in items]
        return shown


class NextItemMetric(Metric):
    """HR, MRR or NDCG among the best ``k`` of all items, at the held-out sessions' last event.

    Args:
        kind: ``'hr'``, ``'mrr'`` or ``'ndcg'``.
        k: number of items shown.
    """

    def __init__(self, kind: str = "mrr", k: int = 20) -> None:
        if kind not in GAINS:
            raise DataError(f"no metric {kind!r}", remedy=f"Choose one of {sorted(GAINS)}")
        self.kind, self.k = kind, k
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.total, self.count = 0.0, 0

    def accumulate(self, learn: Any) -> None:
        """Add one batch."""
        target, net = learn.yb[0], learn.model
        asked = target > 0
        keys = net.keys(net.items.all())
        for query, right in zip(net.query(learn.pred[asked]).split(256), target[asked].split(256), strict=True):
            scores = query @ keys.T
            scores[:, 0] = -torch.inf
            ranks = target_ranks(scores, right).double()
            self.total += float(torch.where(ranks <= self.k, GAINS[self.kind](ranks), 0.0).sum())
        self.count += int(asked.sum())

    @property
    def value(self) -> float | None:
        """Mean over sessions."""
        return self.total / self.count if self.count else None

    @property
    def name(self) -> str:
        """Column title in fastai's table."""
        return f"{self.kind}@{self.k}"


class _Bound(nn.Module):
    """A loss of outputs and targets, as a Learner calls it."""

    def __init__(self, loss: SessionLoss, net: SessionNet) -> None:
        super().__init__()
        self.loss = loss
        self._net = [net]  # not a part of the loss: its weights are the model's

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.loss(hidden, target, self._net[0])


def session_learner(
    dls: DataLoaders,
    model: type[SessionNet] | SessionNet = SASRec,
    *,
    width: int = 64,
    loss: SessionLoss | None = None,
    opt_func: Any = None,
    start: Tensor | None = None,
    sparse: bool = False,
    metrics: Any = None,
    config: Mapping[str, Any] | None = None,
    heads: GoalHeads | None = None,
    **options: Any,
) -> SessionLearner:
    """Return a Learner with a net for the items of ``dls``.

    Args:
        dls: of ``session_dataloaders``.
        model: a net, or its class.
        width: of items' and sessions' vectors.
        loss: None: ``SampledSoftmax()``.
        opt_func: a fastai ``opt_func``, see ``fastrec.optim``; None: fused AdamW.
        start: initial item vectors, ``[codes, at most width]``, such as ``ppmi_svd``'s.
        sparse: row-sparse gradients of the item table: the optimizer updates a batch's rows only.
        metrics: None: HR@20 and MRR@20 of the held-out sessions.
        config: options of the net.
        heads: of several goals, with a ``GoalLoss`` and a loader of ``goals``.
        **options: of the Learner (``lr``, ``cbs``, ``path``, ``wd``, …).

    Raises:
        DataError: the training loader has no batch, a task that the net does not learn, or no times for a net that
            needs them.
    """
    if not len(dls.train):
        raise DataError("no training session has two events", remedy="Check the columns of sessions and items")
    sessions = dls.train.sessions
    net = model if isinstance(model, SessionNet) else _build(dls, model, width, sparse, dict(config or {}))
    net.heads = None if heads is None else heads.to(dls.train.device)
    if net.timed != dls.train.timed:
        remedy = f"Make the dataloaders with timed={net.timed}"
        raise DataError("the net reads times, or the loader gives them, but not both", remedy=remedy)
    if start is not None:
        net.items.start_from(start)
    loss = loss or SampledSoftmax()
    loss.counts = torch.bincount(sessions.values, minlength=len(sessions.items)).float()
    wanted = metrics if metrics is not None else [NextItemMetric("hr"), NextItemMetric("mrr")]
    settled = [SettleRows()] if net.items.table.sparse else []
    options["cbs"] = [StopOnNaN(targets=False), *settled, *L(options.get("cbs"))]
    return SessionLearner(
        dls,
        net,
        loss_func=_Bound(loss, net),
        opt_func=opt_func or partial(adamw, sqr_mom=0.999, eps=1e-8),
        metrics=wanted,
        **options,
    )


def _build(dls: DataLoaders, model: type[SessionNet], width: int, sparse: bool, config: dict[str, Any]) -> SessionNet:
    train = dls.train
    hides = train.task in ("masked", "permuted")
    if hides != (model.task != "causal") or (train.task == "permuted" and not model.permutes):
        remedy = f"Make the dataloaders with task={model.task!r}"
        raise DataError(f"{model.__name__} learns {model.task!r}, the loader asks {train.task!r}", remedy=remedy)
    sessions = train.sessions
    about = {"codings": sessions.item_codings, "sides": sessions.item_sides, "sparse": sparse}
    items = ItemTower(len(sessions.items), width, extra=model.virtual, **about)
    config.setdefault("max_len", train.max_len + (model.task != "causal"))
    return model(items, list(sessions.codings.values()), **config).to(train.device)


class SessionLoader(DataLoader):
    """Batches ``(items, lengths, *sides, target)`` of sessions.

    Items and targets are int64 ``[b, L]``, padded with 0; target 0 is not predicted. An epoch has every session of two
    events or more once, cut to its last ``max_len`` inputs. Sessions of similar length are batched together within
    chunks of 32 batches.

    Args:
        sessions: a target counts as the last event.
        tokens: positions in a batch, roughly; at least ``4 * max_len``.
        max_len: events read of a session, the last ones.
        task: predict the next item at all positions (``'causal'``) or the last one (``'last'``), or hidden items
            (``'masked'``, ``'permuted'``), see ``fastrec.sequences.session_net``.
        shuffle: use a new order every epoch.
        chronological: with ``shuffle``: order the chunks by the sessions' last times (else as given), the latest last.
        augment: changes of sessions in every epoch, see ``fastrec.sequences.losses``.
        masked: share of events that ``'masked'`` and ``'permuted'`` hide.
        seed: of the order and of all changes.
        device: of the batches.
        timed: append the events' times to their side features, float64 ``[b, L]``.
        goals: a side feature and kinds of events: targets are the next item of each kind, ``[b, L, goals]``; for
            ``'causal'`` without ``augment``.

    Raises:
        DataError: an unknown setting, or times are asked for and there are none.
    """

    def __init__(
        self,
        sessions: SessionFrame,
        *,
        tokens: int = 2048,
        max_len: int = 50,
        task: Task = "causal",
        shuffle: bool = False,
        chronological: bool = False,
        augment: Sequence[str] = (),
        masked: float = 0.2,
        seed: int | None = None,
        device: DeviceLike = None,
        timed: bool = False,
        goals: tuple[str, Sequence[str]] | None = None,
    ) -> None:
        if goals is not None and (task != "causal" or augment):
            raise DataError(f"goals with task={task!r}, augment={list(augment)}", remedy="Leave them as they are")
        if task not in TASKS or set(augment) - set(AUGMENTATIONS):
            remedy = f"Choose a task of {sorted(TASKS)} and changes of {sorted(AUGMENTATIONS)}"
            raise DataError(f"task={task!r}, augment={list(augment)}: not known", remedy=remedy)
        if max_len < 1:
            raise DataError(f"max_len={max_len}: a session needs at least one event", remedy="Give 1 or more")
        device = resolve_device(device)
        asked = sessions.with_target() if sessions.target is not None else sessions
        self.sessions, self.tokens, self.max_len = asked, max(tokens, 4 * max_len), max_len
        self.task, self.chronological, self.masked, self.seed = task, chronological, masked, seed
        self.augment, self.timed = tuple(augment), timed
        if timed and sessions.target is not None:  # a target's time is not known: NaN is no gap
            known = sessions.inputs(timed)[-1]
            asked.times = known.new_full(asked.values.shape, torch.nan)
            asked.times[runs(asked.offsets[:-1], sessions.lengths)[1]] = known
        self.rows = (asked.lengths > 1).nonzero().squeeze(1)
        # fastai only counts the dataset's rows
        super().__init__(dataset=self.rows, bs=self.tokens, shuffle=shuffle, num_workers=0, device=device)
        if seed is not None:
            self.rng = random.Random(seed)
        self._inputs = [v.to(device) for v in asked.inputs(timed)]
        self._asked = None if goals is None else asked.next_of_kinds(*goals).to(device)
        self.n_inp = 1 + len(self._inputs) + task.startswith("permuted")

    def __len__(self) -> int:
        positions = (self.sessions.lengths[self.rows] - 1).clamp_max(self.max_len)  # inputs of each row's session
        return -(-int(positions.sum()) // self.tokens)

    def new(self, sessions: SessionFrame, **changes: Any) -> SessionLoader:
        """Return a loader of other sessions with the same settings but for ``changes``."""
        names = ("tokens", "max_len", "task", "shuffle", "chronological", "augment", "masked", "timed", "seed")
        return SessionLoader(sessions, **{**{n: getattr(self, n) for n in (*names, "device")}, **changes})

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self.randomize()
        self.before_iter()
        generator = torch.Generator().manual_seed(self.rng.getrandbits(62))
        ends = self.sessions.offsets[self.rows + 1]
        starts = self.sessions.offsets[self.rows]
        starts, ends = augmented(self.augment, starts, ends, self.max_len + 1, generator=generator)
        for rows in self._batches(ends - starts - 1, generator):
            yield self._batch(starts[rows], ends[rows], generator)
        self.after_iter()

    def _batches(self, positions: Tensor, generator: torch.Generator) -> Sequence[Tensor]:
        """Return the rows of each batch of an epoch."""
        rows = torch.arange(len(positions))
        if self.shuffle and not self.chronological:
            rows = torch.randperm(len(positions), generator=generator)
        elif self.chronological and self.sessions.ends is not None:
            rows = torch.argsort(self.sessions.ends[self.rows].nan_to_num(), stable=True)
        count = max(len(self), 1)
        place = _shares(positions[rows], count)
        # by length within a chunk, ties at random, so that batches differ between epochs
        draw = torch.rand(len(rows), generator=generator) if self.shuffle else torch.zeros(len(rows))
        key = place // limits.SESSION_LOADER_CHUNK * (self.max_len + 2) + positions[rows]
        rows = rows[torch.argsort(key.double() + draw.double(), stable=True)]
        parts = list(rows.split(torch.bincount(_shares(positions[rows], count), minlength=count).tolist()))
        if self.shuffle:
            chunk = torch.arange(len(parts)) // limits.SESSION_LOADER_CHUNK
            parts = [parts[i] for i in torch.argsort(chunk + torch.rand(len(parts), generator=generator)).tolist()]
        return [p for p in parts if len(p)]

    def _batch(self, starts: Tensor, ends: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        starts, ends = starts.to(self._inputs[0].device), ends.to(self._inputs[0].device)
        length = int((ends - starts).max())
        place = torch.arange(length, device=starts.device)
        inside = place < (ends - starts).unsqueeze(1)
        event = moved(self.augment, ends - starts, length, generator=generator) if self.augment else place
        index = torch.where(inside, starts.unsqueeze(1) + event, 0)
        items, *sides = (v[index].masked_fill_(~inside, 0) for v in self._inputs)
        asked = TASKS[self.task](items, ends - starts, sides, len(self.sessions.items), self.masked, generator)
        if "mask" in self.augment:
            drawn = torch.rand(asked.items.shape, generator=generator).to(starts.device) < limits.AUGMENTATION_MASKED
            asked.items = torch.where(drawn & (asked.items > 0), len(self.sessions.items), asked.items)
        if self._asked is not None:
            asked.target = self._asked[index[:, :-1]].masked_fill_(asked.items.eq(0).unsqueeze(2), 0)
        return (asked.items, asked.lengths, *asked.sides, asked.target)


def _shares(positions: Tensor, count: int) -> Tensor:
    """Return which of ``count`` batches of similar size each row belongs to, int64 ``[n]``, ascending."""
    starts = offsets_of(positions)[:-1]
    last = int(starts[-1]) if len(starts) else 0
    return starts * count // (last + 1)


def session_dataloaders(
    train: SessionFrame,
    valid: SessionFrame | None = None,
    *,
    tokens: int = 2048,
    max_len: int = 50,
    task: Task = "causal",
    chronological: bool = True,
    augment: Sequence[str] = (),
    masked: float = 0.2,
    seed: int | None = None,
    device: DeviceLike | Literal["auto"] = None,
    timed: bool = False,
    goals: tuple[str, Sequence[str]] | None = None,
) -> DataLoaders:
    """Return loaders of training sessions and of held-out ones, whose last item is predicted.

    Args:
        train: sessions to learn from.
        valid: sessions with a target, or with it as their last event; None: the first hundred of ``train``.
        tokens, max_len, task, chronological, augment, masked, seed, device, timed: see ``SessionLoader``.
        goals: of training sessions, see ``SessionLoader``.
    """
    device = resolve_device(device)
    common: dict[str, Any] = {"max_len": max_len, "device": device, "seed": seed, "masked": masked, "timed": timed}
    order: dict[str, Any] = {"shuffle": True, "chronological": chronological, "augment": augment}
    first = SessionLoader(train, tokens=tokens, task=task, goals=goals, **order, **common)
    held = valid if valid is not None else train.take(torch.arange(min(len(train), 100)))
    last: Task = {"causal": "last", "last": "last", "masked": "hidden last", "permuted": "permuted last"}[task]  # type: ignore[assignment]
    return DataLoaders(first, SessionLoader(held, tokens=4 * tokens, task=last, **common), device=device)


class OneCycleInTime(Callback):
    """Learning rate schedule by the share of batches done, or of the time used, whichever is larger.

    Without a limit it is ``fit_one_cycle``'s. With a limit that is reached, weights depend on the machine's speed.

    Args:
        lr: highest rate.
        seconds: wall time of the training; None: no limit.
        pct_start: share of the training in which the rate rises.
        div, div_final: the first rate is ``lr / div``, the last ``lr / div_final``.
    """

    run_valid, order = False, 60

    def __init__(
        self,
        lr: float,
        seconds: float | None = None,
        *,
        pct_start: float = 0.1,
        div: float = 10.0,
        div_final: float = 1e3,
    ) -> None:
        super().__init__()
        self.rate = one_cycle(pct_start, lr / div, lr, lr / div_final)
        self.seconds, self.began, self.done = seconds, 0.0, 0.0

    def before_fit(self) -> None:
        """Start the clock."""
        self.began = time.monotonic()

    def before_batch(self) -> None:
        """Set the rate."""
        learn: Any = self.learn
        self.done = float(learn.pct_train)
        if self.seconds is not None:
            self.done = min(max(self.done, (time.monotonic() - self.began) / max(self.seconds, 1e-9)), 1.0)
        learn.opt.set_hyper("lr", self.rate(self.done))

    def after_batch(self) -> None:
        """Stop when the time is over."""
        if self.seconds is not None and time.monotonic() - self.began >= self.seconds:
            raise CancelFitException
