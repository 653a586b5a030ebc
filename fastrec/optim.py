"""Optimizers for large batches, and the doors by which torch's optimizers enter a fastai Learner."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from fastai.optimizer import Optimizer as FastaiOptimizer
from fastai.optimizer import OptimWrapper
from torch import Tensor, nn

from fastrec.errors import DataError

LAYERWISE = frozenset({"lamb", "nvlamb", "lars", "larc"})


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam's step for each layer, rescaled to the layer's own norm (arXiv 1904.00962, algorithm 2).

    Weight decay stands inside the trust ratio, as in the paper. A parameter that carries ``segments`` (row bounds
    ``(0, …, rows)``, as fused embedding tables do) is one layer per segment.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the running mean of gradients and of their squares.
        eps: added to the root of the running square.
        weight_decay: coefficient of the weights in the step.
        clamp: largest weight norm that the trust ratio sees (10 in some implementations); None: no limit.
        debias: ``'paper'`` corrects both running means for their start at zero before the trust ratio is taken; False
            corrects nothing; True scales the step after the trust ratio by ``√(1 - β2^t) / (1 - β1^t)``, as
            ``torch_optimizer.Lamb`` does.
        adapt_1d: False gives biases and norms (parameters of one dimension) a trust ratio of 1, which is Adam's step:
            a bias starts at zero, and a step in proportion to its norm hardly leaves zero.

    Raises:
        DataError: a setting out of its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        clamp: float | None = None,
        debias: Literal["paper"] | bool = "paper",
        adapt_1d: bool = True,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise DataError(
                f"LAMB with lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}",
                remedy="lr, eps and weight_decay must be ≥ 0, betas from 0 up to, not including, 1",
            )
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "clamp": clamp, "debias": debias, "adapt_1d": adapt_1d})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over all parameters that have a gradient.

        Args:
            closure: computes the loss anew, where wanted.

        Returns:
            The closure's loss, or None.

        Raises:
            DataError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[Any, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.device, p.dtype].append(p)
            for params in alike.values():
                self._step_together(params, group)
        return loss

    def _step_together(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params]
        if any(g.is_sparse for g in grads):
            raise DataError("LAMB was given a sparse gradient", remedy="Use embeddings with dense gradients")
        states = [self._state(p) for p in params]
        for s in states:
            s["step"] += 1
        mean, square = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        (beta1, beta2), debias = group["betas"], group["debias"]
        torch._foreach_lerp_(mean, grads, 1 - beta1)
        torch._foreach_mul_(square, beta2)
        torch._foreach_addcmul_(square, grads, grads, 1 - beta2)
        counts = [s["step"] for s in states]
        fix1 = [1 - beta1**t for t in counts] if debias else [1.0] * len(params)
        fix2 = [math.sqrt(1 - beta2**t) for t in counts] if debias else [1.0] * len(params)

        steps = torch._foreach_sqrt(square)
        if debias == "paper":  # m / b1 / (√v / √b2 + ε), in two passes over the denominator
            torch._foreach_mul_(steps, [b1 / b2 for b1, b2 in zip(fix1, fix2, strict=True)])
            torch._foreach_add_(steps, [group["eps"] * b1 for b1 in fix1])
            rates = [group["lr"]] * len(params)
        else:
            torch._foreach_add_(steps, group["eps"])
            rates = [group["lr"] * b2 / b1 for b1, b2 in zip(fix1, fix2, strict=True)]
        torch._foreach_reciprocal_(steps)
        torch._foreach_mul_(steps, mean)
        if group["weight_decay"]:
            torch._foreach_add_(steps, params, alpha=group["weight_decay"])
        _rescale(steps, params, rates, group)
        torch._foreach_sub_(params, steps)

    def _state(self, p: Tensor) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


def _rescale(steps: list[Tensor], params: list[Tensor], rates: list[float], group: dict[str, Any]) -> None:
    """Multiply each layer's step by its rate and trust ratio, in place."""
    layers: list[tuple[Tensor, Tensor, float]] = []
    plain = [] if group["adapt_1d"] else [i for i, p in enumerate(params) if p.ndim < 2]
    for i in plain:
        steps[i].mul_(rates[i])
    for i in sorted(set(range(len(params))) - set(plain)):
        bounds = getattr(params[i], "segments", None) or (0, len(params[i]) if params[i].ndim else 1)
        sizes = [b - a for a, b in pairwise(bounds)]
        if len(sizes) == 1:
            layers.append((steps[i], params[i], rates[i]))
        else:
            pairs = zip(steps[i].split(sizes), params[i].split(sizes), strict=True)
            layers.extend((s, p, rates[i]) for s, p in pairs)
    if not layers:
        return
    moves, weights, scale = map(list, zip(*layers, strict=True))
    move_norm = torch.stack(torch._foreach_norm(moves))
    weight_norm = torch.stack(torch._foreach_norm(weights))
    if group["clamp"] is not None:
        weight_norm = weight_norm.clamp(max=group["clamp"])
    usable = (weight_norm > 0) & (move_norm > 0)
    trust = torch.where(usable, weight_norm / torch.where(usable, move_norm, 1.0), 1.0)
    factors = trust * torch.tensor(scale, dtype=trust.dtype).to(trust.device, non_blocking=True)
    torch._foreach_mul_(moves, list(factors.unbind()))


class TorchOptim(OptimWrapper):
    """fastai's wrapper of a torch optimizer, which also leaves norms and biases undecayed as fastai's own do.

    A Learner marks those parameters (``wd_bn_bias=False``); fastai's wrapper takes no notice. Here they move into
    torch groups without weight decay, while the Learner goes on seeing its own groups and their hyper-parameters.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        opt: a torch optimizer's class, or a function or partial that makes one, or one already built.
        **kwargs: passed to ``opt``.
    """

    def __init__(self, params: Any = None, opt: Any = None, **kwargs: Any) -> None:
        super().__init__(params, opt, **kwargs)
        self._count = len(self.opt.param_groups)
        self._owner: list[int] = []  # of each undecayed group: the number of the group it was taken from

    @property
    def hypers(self) -> list[dict[str, Any]]:
        """Hyper-parameters of each of the Learner's groups, by fastai's names."""
        return OptimWrapper.hypers.fget(self)[: self._count]

    @property
    def param_lists(self) -> list[list[Tensor]]:
        """Parameters of each of the Learner's groups."""
        groups = self.opt.param_groups
        lists = [list(g["params"]) for g in groups[: self._count]]
        for owner, group in zip(self._owner, groups[self._count :], strict=True):
            lists[owner] += group["params"]
        return lists

    def _set_hyper(self, k: str, v: Sequence[Any]) -> None:
        # schedulers hand over numpy scalars, which a saved state must not hold: torch.load refuses them
        v = [o.item() if hasattr(o, "item") else o for o in v]
        super()._set_hyper(k, v)  # fills the Learner's own groups, which come first
        for owner, group in zip(self._owner, self.opt.param_groups[self._count :], strict=True):
            own = self.opt.param_groups[owner]
            group.update({name: value for name, value in own.items() if name not in ("params", "weight_decay")})

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step of the torch optimizer."""
        self._part_undecayed()
        return self.opt.step(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """The torch optimizer's state."""
        self._part_undecayed()
        return self.opt.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a state that ``state_dict`` gave."""
        self._part_undecayed()
        self.opt.load_state_dict(state_dict)

    def _part_undecayed(self) -> None:
        if self._owner or "weight_decay" not in self.opt.defaults:
            return
        for owner, group in enumerate(self.opt.param_groups[: self._count]):
            marked = [not self.state[p].get("do_wd", True) if p in self.state else False for p in group["params"]]
            if not any(marked):
                continue
            free = [p for p, m in zip(group["params"], marked, strict=True) if m]
            group["params"] = [p for p, m in zip(group["params"], marked, strict=True) if not m]
            self.opt.add_param_group({**group, "params": free, "weight_decay": 0.0})
            self._owner.append(owner)


def lamb(
    params: Any,
    lr: float = 1e-3,
    *,
    mom: float = 0.9,
    sqr_mom: float = 0.999,
    eps: float = 1e-6,
    wd: float = 0.01,
    clamp: float | None = None,
    debias: Literal["paper"] | bool = "paper",
    adapt_1d: bool = True,
) -> TorchOptim:
    """LAMB as a Learner's ``opt_func``; settings: ``partial(lamb, clamp=10)``.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        lr: learning rate.
        mom: decay of the running mean of gradients (β1).
        sqr_mom: decay of the running mean of their squares (β2).
        eps: added to the root of the running square.
        wd: weight decay, inside the trust ratio; norms and biases are left out unless ``wd_bn_bias``.
        clamp: see ``Lamb``.
        debias: see ``Lamb``.
        adapt_1d: see ``Lamb``.

    Returns:
        The wrapped optimizer, whose ``lr``, ``mom``, ``sqr_mom`` and ``wd`` fastai can schedule.
    """
    settings = {"clamp": clamp, "debias": debias, "adapt_1d": adapt_1d}
    return TorchOptim(params, Lamb, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd, **settings)


def adamw(
    params: Any,
    lr: float = 1e-3,
    *,
    mom: float = 0.9,
    sqr_mom: float = 0.99,
    eps: float = 1e-5,
    wd: float = 0.01,
) -> TorchOptim:
    """Fused AdamW of torch as a Learner's ``opt_func``, with the defaults and the steps of fastai's ``Adam``.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        lr: learning rate.
        mom: decay of the running mean of gradients (β1).
        sqr_mom: decay of the running mean of their squares (β2).
        eps: added to the root of the running square.
        wd: weight decay; norms and biases are left out unless ``wd_bn_bias``.

    Returns:
        The wrapped optimizer, whose ``lr``, ``mom``, ``sqr_mom`` and ``wd`` fastai can schedule.
    """
    return TorchOptim(params, torch.optim.AdamW, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd, fused=True)


def as_opt_func(x: Any, *, model: nn.Module | None = None) -> Any:
    """What a Learner takes as ``opt_func``, from whatever kind of optimizer is at hand.

    Args:
        x: a torch optimizer's class, or a partial of one, or one already built; or anything that fastai takes
            (``fastai.optimizer.Adam``, ``lamb``, a partial, a wrapped optimizer), which is returned as it is.
        model: where given, warn when a layer-wise optimizer that knows no segments would train fused tables.

    Returns:
        A function of parameters and ``lr``, or a wrapped optimizer.

    Raises:
        DataError: it is none of these.
    """
    made_by = x.func if isinstance(x, partial) else x
    is_torch_class = isinstance(made_by, type) and issubclass(made_by, torch.optim.Optimizer)
    if not callable(x) and not isinstance(x, torch.optim.Optimizer | FastaiOptimizer | OptimWrapper):
        raise DataError(f"{x!r} is no optimizer", remedy="Give a torch optimizer class or a fastai opt_func")
    name = getattr(made_by, "__name__", type(made_by).__name__)
    knows_segments = made_by in (lamb, Lamb) or isinstance(x, Lamb)
    fused = model is not None and any(len(getattr(p, "segments", ())) > 2 for p in model.parameters())
    if fused and name.lower() in LAYERWISE and not knows_segments:
        warnings.warn(
            f"{name} will take several fused embedding tables for one layer; fastrec.optim.lamb tells them apart",
            UserWarning,
            stacklevel=2,
        )
    if isinstance(x, torch.optim.Optimizer):
        return TorchOptim(opt=x)
    return partial(TorchOptim, opt=x) if is_torch_class else x


def scale_lr(lr: float, bs: int, base_bs: int, *, rule: Literal["sqrt", "linear"] = "sqrt") -> float:
    """The learning rate for another batch size.

    Args:
        lr: the rate that suits ``base_bs``.
        bs: the batch size to be used, rows.
        base_bs: the batch size that ``lr`` was found with, rows.
        rule: ``'sqrt'`` (for Adam and LAMB; arXiv 1904.00962, section 4) or ``'linear'`` (arXiv 1706.02677, 2.1).

    Returns:
        ``lr · (bs / base_bs) ** ½``, or to the power 1.

    Raises:
        DataError: a batch size below 1, or another rule.
    """
    powers = {"sqrt": 0.5, "linear": 1.0}
    if bs < 1 or base_bs < 1 or rule not in powers:
        raise DataError(
            f"no rate for batch sizes {bs} and {base_bs} by rule {rule!r}",
            remedy="Batch sizes must be ≥ 1, the rule 'sqrt' or 'linear'",
        )
    return lr * (bs / base_bs) ** powers[rule]
