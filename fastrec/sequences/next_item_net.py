"""``NextItemNet``: a net as a ``SessionModel``."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from fastai.torch_core import set_seed
from torch import Tensor

from fastrec._core import limits
from fastrec._core.device import DeviceLike, resolve_device
from fastrec.errors import DataError
from fastrec.optim import adamw
from fastrec.sequences.base import SessionModel, of_all
from fastrec.sequences.losses import FullSoftmax, GoalLoss, SampledSoftmax, SessionLoss, ppmi_svd
from fastrec.sequences.nets import HSTU, NARM, BERT4Rec, ESASRec, GRU4Rec, PooledSASRec, SASRec, XLNet
from fastrec.sequences.reading import SessionFrame
from fastrec.sequences.session_learner import (
    OneCycleInTime,
    item_keys,
    net_queries,
    net_scores,
    session_dataloaders,
    session_learner,
)
from fastrec.sequences.session_net import GoalHeads, Heads, ItemTower, SessionNet

__all__ = ["NETS", "GoalNet", "NextItemNet"]

_NETS = (SASRec, PooledSASRec, ESASRec, HSTU, GRU4Rec, NARM, BERT4Rec, XLNet)
NETS: dict[str, type[SessionNet]] = {n.__name__: n for n in _NETS}


class NextItemNet(SessionModel):
    """A net trained to predict every next event of every session.

    Args:
        net: name of its class, one of ``NETS``.
        width: of items' and sessions' vectors.
        epochs: passes over the sessions; with ``minutes``, fewer if the time ends first (the schedule still completes).
        lr: highest learning rate.
        tokens: positions in a batch; fewer if that made fewer than 16 batches.
        max_len: events read per session; None: the 99th percentile of lengths, within 10 and 200.
        negatives: items compared beside the batch's own; with up to twice as many items, all are compared.
        decay: weight decay.
        augment: changes of training sessions, see ``fastrec.sequences.losses``.
        chronological: read sessions in the order of their times (else as given) in every epoch, see ``SessionLoader``;
            False: shuffle, which is better if sessions are users.
        warm: initialise the items' vectors by ``ppmi_svd``.
        half: logits in bfloat16, see ``linear_cross_entropy``; None: if the processor has instructions for it.
        options: of the net: ``dropout``, ``cosine``, ``blocks``, ``bias``, ….

    Attributes:
        device: of the training; None: ``FASTREC_DEVICE``, else the CPU.
    """

    device: DeviceLike = None

    def __init__(
        self,
        net: str = "SASRec",
        *,
        width: int = 96,
        epochs: int = 10,
        lr: float = 3e-3,
        tokens: int = 2048,
        max_len: int | None = None,
        negatives: int = 2048,
        decay: float = 0.01,
        augment: Sequence[str] = (),
        chronological: bool = True,
        warm: bool = True,
        half: bool | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if net not in NETS:
            raise DataError(f"there is no net {net!r}", remedy=f"Choose one of {sorted(NETS)}")
        for name, value in {"width": width, "epochs": epochs, "tokens": tokens, "max_len": max_len}.items():
            if value is not None and value < 1:
                raise DataError(f"{name}={value} makes no sense", remedy="Give 1 or more")
        known: set[str] = set()
        for kind in (k for k in NETS[net].__mro__ if "__init__" in vars(k)):
            own = signature(kind).parameters.values()
            known |= {p.name for p in own if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
            if all(p.kind is not p.VAR_KEYWORD for p in own):  # it hands on nothing that it does not know
                break
        known -= {"items", "codings"}
        odd = next((n for n in options or () if n not in known), None)
        if odd is not None:
            raise DataError(f"{net} has no option {odd!r}", remedy=f"It has {', '.join(sorted(known))}")
        self._settings: dict[str, Any] = {"net": net, "width": width, "epochs": epochs, "lr": lr, "tokens": tokens}
        self._settings |= {"max_len": max_len, "negatives": negatives, "decay": decay, "warm": warm, "half": half}
        self._settings |= {"augment": list(augment), "chronological": chronological}
        self._settings["options"] = dict(options or {})
        self.model: SessionNet | None = None
        self._keys: Tensor | None = None
        self.counts = torch.zeros(0)
        self.losses: list[float] = []

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return dict(self._settings)

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        asked, began = self._settings, time.monotonic()
        set_seed(seed)
        lengths = sessions.lengths[sessions.lengths > 1].double()[:1_000_000]  # torch.quantile takes no more than 2^24
        max_len = asked["max_len"] or int(min(max(torch.quantile(lengths, 0.99).item(), 10), 200))
        self.counts = torch.bincount(sessions.values, minlength=len(sessions.items)).float()
        # 16 batches in an epoch of a small log too, of 256 positions at least
        tokens = min(asked["tokens"], max(len(sessions.values) // 16, 256))
        given = {"seed": seed, "device": self.device, **{n: asked[n] for n in ("augment", "chronological")}}
        given["timed"] = asked["options"].get("bias") in ("time", "both")
        given["goals"] = self._goals()
        dls = session_dataloaders(sessions, tokens=tokens, max_len=max_len, task=NETS[asked["net"]].task, **given)
        start = ppmi_svd(sessions, asked["width"], seed=seed) * 1.0 if asked["warm"] else None
        learn = session_learner(
            dls,
            NETS[asked["net"]],
            width=asked["width"],
            loss=self._loss(len(sessions.items)),
            start=start,
            config=asked["options"],
            sparse=len(sessions.items) > limits.NEXT_ITEM_NET_LARGE,
            metrics=[],
            heads=self._heads(),
            opt_func=partial(adamw, sqr_mom=0.999, eps=1e-8),
            wd=asked["decay"],
        )
        self.model, self._keys = learn.model, None
        limit = None if minutes is None else max(60 * minutes - (time.monotonic() - began), 1.0)
        with learn.no_bar(), learn.no_logging():
            learn._do_epoch_validate = lambda *args, **kwargs: None  # what is held out is the caller's to judge by
            learn.fit(asked["epochs"], cbs=OneCycleInTime(asked["lr"], limit))
        self.losses = [float(v) for v in learn.recorder.losses]

    def _goals(self) -> tuple[str, Sequence[str]] | None:
        """Return the side feature of the kinds of events, and the kinds that are goals."""
        return None

    def _heads(self) -> GoalHeads | None:
        return None

    def _loss(self, codes: int) -> SessionLoss:
        negatives, half = self._settings["negatives"], self._settings["half"]
        if half is None:  # whether the device multiplies bfloat16 matrices faster than float32 ones
            kind = resolve_device(self.device).type
            avx512 = kind == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
            half = kind == "cuda" or (avx512 and torch.cpu._is_avx512_bf16_supported())
        return FullSoftmax(half=half) if codes <= 2 * negatives else SampledSoftmax(negatives, half=half)

    def item_vectors(self) -> Tensor:
        """Return all codes' vectors, float32 ``[codes, width]``; their products with ``session_vectors`` are scores."""
        self._known()
        self._keys = item_keys(self.model) if self._keys is None else self._keys
        return self._keys.T.float().cpu()

    def session_vectors(self, sessions: SessionFrame) -> Tensor:
        """Return vectors of sessions, float32 ``[n, width]``; zeros for an empty one.

        Raises:
            DataError: the side features are not those of the training.
        """
        sessions = sessions.recode(self._known())
        net = self._reader(sessions)
        found = torch.zeros(len(sessions), net.items.width)
        for rows, vectors in net_queries(net, sessions, limits.NET_VECTORS):
            found[rows] = vectors.float().cpu()
        return found

    def _reader(self, sessions: SessionFrame) -> SessionNet:
        """Return the net after checking that it can read these sessions."""
        learned = len(self.model.codings)
        if len(sessions.sides) != learned:
            problem = f"the sessions have {len(sessions.sides)} side features ({', '.join(sessions.sides) or 'none'}), "
            problem += f"the net learned from {learned}"
            remedy = "Read them as the training sessions were read: training.new(rows), with the same columns"
            raise DataError(problem, remedy=remedy)
        return self.model

    def _block(self, sessions: SessionFrame) -> Tensor:
        net = self._reader(sessions)
        self._keys = item_keys(net) if self._keys is None else self._keys  # the same for every block
        found = of_all(net_scores(net, sessions, self._keys), sessions)
        empty = sessions.lengths == 0
        if bool(empty.any()):
            found[empty.to(found.device)] = (self.counts / self.counts.max().clamp_min(1.0)).to(found.device)
        return found

    def _state(self) -> dict[str, Any]:
        net = self.model
        codings = {"codings": list(net.codings), "item_codings": dict(net.items.codings)}
        return {**codings, "max_len": net.max_len, "counts": self.counts, "weights": dict(net.state_dict())}

    def _restore(self, state: dict[str, Any]) -> None:
        asked, weights = self._settings, state["weights"]
        kind = NETS[asked["net"]]
        codings = state["item_codings"]
        codes = len(self.items)
        sides = {n: weights[f"items.side_{i}"][:codes] for i, n in enumerate(codings)}
        items = ItemTower(codes, asked["width"], extra=kind.virtual, codings=codings, sides=sides)
        self.model = kind(items, state["codings"], **{**asked["options"], "max_len": state["max_len"]})
        self.model.heads = self._heads()
        self.model.load_state_dict(weights)
        self.model.to(resolve_device(self.device))
        self.counts, self._keys = state["counts"], None


class GoalNet(NextItemNet):
    """One net for several goals, each the next event of a kind: click, cart, purchase.

    It scores by one goal. ``of(goal)`` returns a model of another goal that shares the net: the first one fitted trains
    it, the others take it over.

    Args:
        goals: kinds of events, as ``event`` names them.
        event: side feature of the kinds of events (``SessionFrame(features=…)``).
        heads: ``'shared'``, ``'mmoe'`` or ``'ple'``, see ``GoalHeads``.
        goal_weights: of each goal's loss; None: learned, see ``GoalLoss``.
        goal: the one it scores by; None: the first.
        **options: see ``NextItemNet``; without ``augment``.

    Raises:
        DataError: no goal, or another number of weights; ``fit``: no event is of a goal's kind.
    """

    def __init__(
        self,
        goals: Sequence[Any],
        *,
        event: str = "type",
        heads: Heads = "ple",
        goal_weights: Sequence[float] | None = None,
        goal: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        goals = [str(g) for g in goals]  # as ``SessionFrame.kinds`` names kinds that are numbers, or yes and no
        goal = next(iter(goals), None) if goal is None else str(goal)
        if goal not in goals or (goal_weights is not None and len(goal_weights) != len(goals)):
            problem = f"goals {goals}, weights {goal_weights}, goal={goal!r}"
            raise DataError(problem, remedy="Give goals, a weight for each (or None), and one of them to score by")
        self._settings |= {"goals": goals, "event": event, "heads": heads, "goal": goal}
        self._settings["goal_weights"] = None if goal_weights is None else list(goal_weights)
        kinds = [n for n in NETS if NETS[n].task == "causal"]
        if self._settings["net"] not in kinds or self._settings["augment"]:
            problem = f"net={self._settings['net']!r}, augment={self._settings['augment']} cannot learn goals"
            raise DataError(problem, remedy=f"Choose one of {', '.join(kinds)}, without changes of training sessions")
        self._shared: dict[str, Any] = {"trained": 0}
        self._taken = 0  # which training of the shared net it has taken over

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shared": {"trained": 0}}  # what others share is of this process

    def of(self, goal: Any) -> GoalNet:
        """Return a model that scores by another goal and shares this one's net."""
        made = type(self)(**{**self._settings, "goal": goal})
        made.device, made.items, made._shared = self.device, self.items, self._shared
        made.model, made.counts, made._taken = self.model, self.counts, self._taken
        return made

    def _fit(self, sessions: SessionFrame, *, seed: int, minutes: float | None) -> None:
        sessions.codes_of(*self._goals())
        shared, told = self._shared, (seed, weakref.ref(sessions))
        if shared.get("of") != told or self._taken == shared["trained"]:
            super()._fit(sessions, seed=seed, minutes=minutes)
            shared |= {"of": told, "model": self.model, "counts": self.counts, "losses": self.losses}
            shared["trained"] += 1
        self._taken = shared["trained"]
        self.model, self.counts, self.losses = (self._shared[n] for n in ("model", "counts", "losses"))
        self._keys = None

    def _goals(self) -> tuple[str, Sequence[str]]:
        return self._settings["event"], self._settings["goals"]

    def _heads(self) -> GoalHeads:
        return GoalHeads(self._settings["heads"], len(self._settings["goals"]), self._settings["width"])

    def _loss(self, codes: int) -> SessionLoss:
        return GoalLoss(super()._loss(codes), self._settings["goal_weights"])

    def _reader(self, sessions: SessionFrame) -> SessionNet:
        net = super()._reader(sessions)
        net.goal = self._settings["goals"].index(self._settings["goal"])
        return net
