"""``session_learner``: a fastai Learner for next items in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import fastai.callback.schedule  # noqa: F401 - gives every Learner lr_find
import pandas as pd
import torch
from fastai.data.core import DataLoaders
from fastai.metrics import Metric
from torch import Tensor, nn

from fastrec._core.malloc import keeping_memory
from fastrec.errors import DataError
from fastrec.optim import adamw
from fastrec.sequences.item_tower import ItemTower
from fastrec.sequences.losses import SampledSoftmax, SessionLoss
from fastrec.sequences.net_scores import net_scores
from fastrec.sequences.ranked import best_items, hide_items
from fastrec.sequences.sasrec import SASRec
from fastrec.sequences.sequence_scores import target_ranks
from fastrec.sequences.session_frame import SessionFrame
from fastrec.sequences.session_net import SessionNet
from fastrec.training.lean_learner import LeanLearner
from fastrec.training.settle_rows import SettleRows
from fastrec.training.stop_on_nan import StopOnNaN

__all__ = ["NextItemMetric", "SessionLearner", "session_learner"]


class SessionLearner(LeanLearner):
    """A Learner whose net says what comes next in a session."""

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """As fastai's ``fit``; on a CPU freed memory is kept for the next batch meanwhile."""
        with keeping_memory():
            super().fit(*args, **kwargs)

    def recommend(self, sessions: SessionFrame, k: int = 20, *, exclude_seen: bool = False) -> tuple[Tensor, Tensor]:
        """Return the best items of each session: codes int64 ``[n, k]`` and scores ``[n, k]``, see
        ``SessionModel.recommend``.

        Raises:
            DataError: ``k`` is below 1.
        """
        if k < 1:
            raise DataError(f"k={k} items were asked for", remedy="Ask for one or more")
        sessions = sessions.recode(self.dls.train.sessions.items)
        items = torch.zeros(len(sessions), k, dtype=torch.int64)
        found = torch.full((len(sessions), k), -torch.inf)
        for rows, scores in net_scores(self.model, sessions):
            if exclude_seen:
                part = sessions.take(rows)
                hide_items(scores, part.values, part.offsets)
            items[rows], found[rows] = best_items(scores, k)
        return items, found

    def show_results(
        self, sessions: SessionFrame | None = None, max_n: int = 9, k: int = 5, **kwargs: Any
    ) -> pd.DataFrame:
        """Return what some sessions are, what came next, and the best items, by their names.

        Args:
            sessions: with their targets; None: the held-out ones.
            max_n: how many.
            k: how many items.
        """
        if sessions is None:
            held = self.dls.valid.sessions
            sessions = held.cut(held.offsets[:-1], torch.maximum(held.offsets[1:] - 1, held.offsets[:-1]))
            ends = held.offsets[1:] - 1
            sessions.target = held.values[ends.clamp_min(0)] if len(held.values) else None
        sessions = sessions.take(torch.arange(min(len(sessions), max_n)))
        items, _ = self.recommend(sessions, k)

        def names(codes: Tensor) -> list[Any]:
            return sessions.decode(codes).to_pylist()

        parts = sessions.values.split(sessions.lengths.tolist())
        shown = pd.DataFrame({"session": [names(p) for p in parts]})
        if sessions.target is not None:
            shown["next"] = names(sessions.target)
        shown["best"] = [names(row) for row in items]
        return shown


class NextItemMetric(Metric):
    """HR, MRR or NDCG among the best ``k`` of all items, at the held-out sessions' last event.

    Args:
        kind: ``'hr'``, ``'mrr'`` or ``'ndcg'``.
        k: how many items are shown.
    """

    def __init__(self, kind: str = "mrr", k: int = 20) -> None:
        if kind not in _GAINS:
            raise DataError(f"no metric {kind!r}", remedy=f"Choose one of {sorted(_GAINS)}")
        self.kind, self.k = kind, k
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.total, self.count = 0.0, 0

    def accumulate(self, learn: Any) -> None:
        """Add one batch."""
        target, net = learn.yb[0], learn.model
        asked = target > 0
        keys = net.keys(net.items.all())
        for query, right in zip(
            net.query(learn.pred[asked]).split(256),
            target[asked].split(256),
            strict=True,
        ):
            scores = query @ keys.T
            scores[:, 0] = -torch.inf
            ranks = target_ranks(scores, right).double()
            self.total += float(torch.where(ranks <= self.k, _GAINS[self.kind](ranks), 0.0).sum())
        self.count += int(asked.sum())

    @property
    def value(self) -> float | None:
        """The mean over sessions."""
        return self.total / self.count if self.count else None

    @property
    def name(self) -> str:
        """As the table of a training shows it."""
        return f"{self.kind}@{self.k}"


_GAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "hr": torch.ones_like,
    "mrr": lambda ranks: 1 / ranks,
    "ndcg": lambda ranks: 1 / torch.log2(ranks + 1),
}


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
    **options: Any,
) -> SessionLearner:
    """Return a Learner with its net, made for the items of ``dls``.

    Args:
        dls: of ``session_dataloaders``.
        model: a net's class, or a net.
        width: of items' and sessions' vectors.
        loss: None: ``SampledSoftmax()``.
        opt_func: None: fused AdamW (a fastai ``opt_func``, see ``fastrec.optim``).
        start: vectors of the items to begin with, ``[codes, at most width]``, such as ``ppmi_svd``'s.
        sparse: gradients of the item table are row-sparse: the optimizer touches a batch's rows only.
        metrics: None: HR@20 and MRR@20 of the held-out sessions.
        config: options of the net.
        **options: Learner's own (``lr``, ``cbs``, ``path``, ``wd``, …).

    Returns:
        The Learner; ``fit_one_cycle``, ``lr_find`` and the rest are fastai's.

    Raises:
        DataError: the training loader yields no batch, or learns another task than the net can.
    """
    if not len(dls.train):
        raise DataError("no training session has two events", remedy="Check the columns of sessions and items")
    sessions = dls.train.sessions
    net = model if isinstance(model, SessionNet) else _build(dls, model, width, sparse, dict(config or {}))
    if start is not None:
        net.items.start_from(start)
    loss = loss or SampledSoftmax()
    loss.counts = torch.bincount(sessions.values, minlength=len(sessions.items)).float()
    wanted = metrics if metrics is not None else [NextItemMetric("hr"), NextItemMetric("mrr")]
    settled = [SettleRows()] if net.items.table.sparse else []
    options["cbs"] = [StopOnNaN(targets=False), *settled, *_listed(options.get("cbs"))]
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
        raise DataError(
            f"{model.__name__} learns {model.task!r}, the loader asks {train.task!r}",
            remedy=f"Make the dataloaders with task={model.task!r}",
        )
    sessions = train.sessions
    items = ItemTower(
        len(sessions.items),
        width,
        extra=model.virtual,
        codings=sessions.item_codings,
        sides=sessions.item_sides,
        sparse=sparse,
    )
    config.setdefault("max_len", train.max_len + (model.task != "causal"))
    return model(items, list(sessions.codings.values()), **config).to(train.device)


def _listed(cbs: Any) -> list[Any]:
    return [] if cbs is None else list(cbs) if isinstance(cbs, list | tuple) else [cbs]
