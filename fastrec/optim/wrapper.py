"""``adamw`` and ``lamb``, and the doors by which torch's optimizers enter a fastai Learner."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from fastai.optimizer import Optimizer as FastaiOptimizer
from fastai.optimizer import OptimWrapper
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.optim.group_hypers import GroupHypers
from fastrec.optim.torch_adamw import AdamW
from fastrec.optim.torch_lamb import Lamb

LAYERWISE = frozenset({"lamb", "nvlamb", "lars", "larc"})


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
        self._hypers: list[GroupHypers] = []
        self._owner: list[int] = []  # of each undecayed group: the number of the group it was taken from

    @property
    def hypers(self) -> list[GroupHypers]:
        """Hyper-parameters of each of the Learner's groups, by fastai's names; what is set is set in the group."""
        groups = self.opt.param_groups[: self._count]
        known = self._hypers
        if len(known) != len(groups) or any(h.group is not g for h, g in zip(known, groups, strict=True)):
            known = self._hypers = [GroupHypers(g, self.fwd_map) for g in groups]
        return known

    @property
    def param_lists(self) -> list[list[Tensor]]:
        """Parameters of each of the Learner's groups."""
        groups = self.opt.param_groups
        lists = [list(g["params"]) for g in groups[: self._count]]
        for owner, group in zip(self._owner, groups[self._count :], strict=True):
            lists[owner] += group["params"]
        return lists

    def set_hyper(self, k: str, v: Any) -> None:
        """Set a hyper-parameter: one value for all groups, a list or array of one each, or a slice."""
        if isinstance(v, int | float | np.number):
            self._set_hyper(k, [v] * self._count)
        elif isinstance(v, np.ndarray) and v.shape == (self._count,):
            self._set_hyper(k, v)
        else:
            super().set_hyper(k, v)

    def _set_hyper(self, k: str, v: Sequence[Any]) -> None:
        # schedulers hand over numpy scalars, which a saved state must not hold: torch.load refuses them
        for hypers, value in zip(self.hypers, v, strict=False):
            hypers[k] = value.item() if hasattr(value, "item") else value
        self._share_hypers()

    def _share_hypers(self) -> None:
        for owner, group in zip(self._owner, self.opt.param_groups[self._count :], strict=True):
            own = self.opt.param_groups[owner]
            group.update({name: value for name, value in own.items() if name not in ("params", "weight_decay")})

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Take one step of the torch optimizer."""
        self._part_undecayed()
        self._share_hypers()
        return self.opt.step(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the torch optimizer's state."""
        self._part_undecayed()
        self._share_hypers()
        return self.opt.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ``state_dict``."""
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
    adapt_1d: bool = False,
    adapt_tables: bool = True,
) -> TorchOptim:
    """Make LAMB, as a Learner's ``opt_func``; settings: ``partial(lamb, clamp=10)``.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        lr: learning rate.
        mom: decay of the running mean of gradients (β1).
        sqr_mom: decay of the running mean of their squares (β2).
        eps: added to the root of the running square.
        wd: weight decay, inside the trust ratio; norms and biases are left out unless ``wd_bn_bias``.
        clamp: see ``Lamb``.
        debias: see ``Lamb``.
        adapt_1d: see ``Lamb``; False, as the paper's authors train: with a trust ratio a bias hardly leaves zero.

        adapt_tables: see ``Lamb``; False is what the benchmark of extreme batches does best with.

    Returns:
        The wrapped optimizer, whose ``lr``, ``mom``, ``sqr_mom`` and ``wd`` fastai can schedule.
    """
    settings = {"clamp": clamp, "debias": debias, "adapt_1d": adapt_1d, "adapt_tables": adapt_tables}
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
    """Make fused AdamW, as a Learner's ``opt_func``, with the defaults and the steps of fastai's ``Adam``.

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
    return TorchOptim(params, AdamW, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd)


def as_opt_func(x: Any, *, model: nn.Module | None = None) -> Any:
    """Convert any kind of optimizer to a Learner's ``opt_func``.

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
