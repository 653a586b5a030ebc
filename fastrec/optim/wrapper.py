"""``adamw`` and ``lamb`` for a fastai Learner, and learning rates for other batch sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from fastai.optimizer import Optimizer as FastaiOptimizer
from fastai.optimizer import OptimWrapper
from torch import Tensor, nn

from fastrec.errors import DataError
from fastrec.models import EmbeddingTables
from fastrec.optim.torch_optimizers import AdamW, Lamb


class GroupHypers(MutableMapping[str, Any]):
    """One group's hyper-parameters: reads and writes go to the group itself.

    fastai's wrapper returns copies that are rebuilt at every access, so changes by callbacks are lost (such as those of
    ``ReduceLROnPlateau``). Tuples of the group are split, as in ``betas__0``.
    """

    def __init__(self, group: dict[str, Any], names: Mapping[str, str]) -> None:
        self.group = group
        self._places: dict[str, tuple[str, int | None]] = {}
        for key, value in group.items():
            if key == "params":
                continue
            for i in range(len(value)) if isinstance(value, tuple) else [None]:
                torch_name = key if i is None else f"{key}__{i}"
                self._places[names.get(torch_name, torch_name)] = (key, i)

    def __getitem__(self, name: str) -> Any:
        key, i = self._places[name]
        return self.group[key] if i is None else self.group[key][i]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._places:
            raise KeyError(f"this optimizer has no {name!r}; it has {', '.join(self._places)}")
        key, i = self._places[name]
        if i is not None:
            value = tuple(value if j == i else old for j, old in enumerate(self.group[key]))
        self.group[key] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("a hyper-parameter cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class TorchOptim(OptimWrapper):
    """fastai's wrapper of a torch optimizer, which also excludes norms and biases from weight decay, like fastai's own.

    A Learner marks those parameters (``wd_bn_bias=False``), but fastai's wrapper ignores the marks. Here they are moved
    into torch groups without weight decay, while the Learner still sees its own groups and their hyper-parameters.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        opt: a torch optimizer's class, a function or partial that makes one, or an existing one.
        **kwargs: passed to ``opt``.
    """

    def __init__(self, params: Any = None, opt: Any = None, **kwargs: Any) -> None:
        super().__init__(params, opt, **kwargs)
        self._count = len(self.opt.param_groups)
        self._hypers: list[GroupHypers] = []
        self._owner: list[int] = []  # for each undecayed group: the number of its original group

    @property
    def hypers(self) -> list[GroupHypers]:
        """Hyper-parameters of each of the Learner's groups, by fastai's names; assignments change the group."""
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
        """Set a hyper-parameter: one value for all groups, a list or array with one per group, or a slice."""
        if isinstance(v, int | float | np.number):
            self._set_hyper(k, [v] * self._count)
        elif isinstance(v, np.ndarray) and v.shape == (self._count,):
            self._set_hyper(k, v)
        else:
            super().set_hyper(k, v)

    def _set_hyper(self, k: str, v: Sequence[Any]) -> None:
        # schedulers pass numpy scalars, which a saved state must not contain: torch.load rejects them
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
        """Load a state from ``state_dict``."""
        self._part_undecayed()
        self.opt.load_state_dict(state_dict)

    def _part_undecayed(self) -> None:
        # at the first step or save, because a Learner marks parameters only after creating the optimizer
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
        params, lr, mom, sqr_mom, eps: see ``adamw``.
        wd: weight decay, inside the trust ratio; norms and biases are excluded unless ``wd_bn_bias``.
        clamp, debias: see ``Lamb``.
        adapt_1d: see ``Lamb``; False, as in the paper authors' training: with a trust ratio a bias hardly leaves zero.
        adapt_tables: see ``Lamb``; False gives the best results in the benchmark of extreme batches.

    Returns:
        The wrapped optimizer, whose ``lr``, ``mom``, ``sqr_mom`` and ``wd`` fastai can schedule.
    """
    settings = {"clamp": clamp, "debias": debias, "adapt_1d": adapt_1d, "adapt_tables": adapt_tables}
    return TorchOptim(params, Lamb, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd, **settings)


def adamw(
    params: Any, lr: float = 1e-3, *, mom: float = 0.9, sqr_mom: float = 0.99, eps: float = 1e-5, wd: float = 0.01
) -> TorchOptim:
    """Make fused AdamW, as a Learner's ``opt_func``, with the defaults and the steps of fastai's ``Adam``.

    Args:
        params: parameters, or lists of them, from the Learner's splitter.
        lr, mom, sqr_mom, eps: learning rate, β1, β2 and ε.
        wd: weight decay; norms and biases are excluded unless ``wd_bn_bias``.

    Returns:
        The wrapped optimizer, whose ``lr``, ``mom``, ``sqr_mom`` and ``wd`` fastai can schedule.
    """
    return TorchOptim(params, AdamW, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd)


def as_opt_func(x: Any, *, model: nn.Module | None = None) -> Any:
    """Convert any kind of optimizer to a Learner's ``opt_func``: a function of parameters and ``lr``.

    Args:
        x: a torch optimizer's class, a partial of one, or an existing one; or anything that fastai accepts
            (``fastai.optimizer.Adam``, ``lamb``, a partial, a wrapped optimizer), which is returned unchanged.
        model: if given, warn if a layer-wise optimizer without support for segments would train fused tables.
    """
    made_by = x.func if isinstance(x, partial) else x
    is_torch_class = isinstance(made_by, type) and issubclass(made_by, torch.optim.Optimizer)
    if not callable(x) and not isinstance(x, torch.optim.Optimizer | FastaiOptimizer | OptimWrapper):
        raise DataError(f"{x!r} is no optimizer", remedy="Give a torch optimizer class or a fastai opt_func")
    name = getattr(made_by, "__name__", type(made_by).__name__)
    knows_segments = made_by in (lamb, Lamb) or isinstance(x, Lamb)
    fused = model is not None and any(len(getattr(p, "segments", ())) > 2 for p in model.parameters())
    if fused and name.lower() in ("lamb", "nvlamb", "lars", "larc") and not knows_segments:
        warnings.warn(
            f"{name} will take several fused embedding tables for one layer; fastrec.optim.lamb tells them apart",
            UserWarning,
            stacklevel=2,
        )
    if isinstance(x, torch.optim.Optimizer):
        return TorchOptim(opt=x)
    return partial(TorchOptim, opt=x) if is_torch_class else x


def scale_lr(
    lr: float, bs: int, base_bs: int, *, rule: Literal["sqrt", "linear", "cowclip"] = "sqrt"
) -> float | list[float]:
    """Scale the learning rate to another batch size.

    Args:
        lr: the rate for ``base_bs``.
        bs, base_bs: rows in a batch: the one to be used, and the one that ``lr`` was tuned for.
        rule: ``'sqrt'`` (for Adam and LAMB; arXiv 1904.00962, section 4), ``'linear'`` (arXiv 1706.02677, 2.1) or
            ``'cowclip'`` (arXiv 2204.06240, section 4: keep the embeddings' rate, scale the others' by the root).

    Returns:
        ``lr · (bs / base_bs) ** ½``, or to the power 1; for ``'cowclip'`` the rates of embeddings and of all else, for
        a Learner with ``splitter=split_embeddings``.
    """
    powers = {"sqrt": 0.5, "linear": 1.0, "cowclip": 0.5}
    if bs < 1 or base_bs < 1 or rule not in powers:
        remedy = "Batch sizes must be ≥ 1, the rule 'sqrt', 'linear' or 'cowclip'"
        raise DataError(f"no rate for batch sizes {bs} and {base_bs} by rule {rule!r}", remedy=remedy)
    scaled = lr * (bs / base_bs) ** powers[rule]
    return [lr, scaled] if rule == "cowclip" else scaled


def scale_moms(moms: float | Sequence[float], bs: int, base_bs: int, *, floor: float = 0.0) -> Any:
    """Scale momentum, or the decay of a running mean of squares, to another batch size.

    Running means should cover as many rows as before, not as many steps: ``1 - m`` is proportional to the batch size.
    (See arXiv 2205.10287, the square root scaling rule; it scales the rate by the root, like ``scale_lr``.)

    Args:
        moms: the value for ``base_bs``: a number from 0 to 1, or several, such as a Learner's ``moms``.
        bs, base_bs: as for ``scale_lr``.
        floor: the minimum of the result; for batches dozens of times as large, about .5 is better than 0.

    Returns:
        ``max(floor, 1 - bs / base_bs (1 - m))`` for each.

    Example:
        >>> from fastrec.optim import scale_moms
        >>> [round(m, 2) for m in scale_moms((0.95, 0.85, 0.95), 8192, 4096)]
        [0.9, 0.7, 0.9]
    """
    if bs < 1 or base_bs < 1:
        raise DataError(f"no momentum for batch sizes {bs} and {base_bs}", remedy="Batch sizes must be ≥ 1")
    if isinstance(moms, Sequence):
        return tuple(scale_moms(m, bs, base_bs, floor=floor) for m in moms)
    return max(floor, 1.0 - bs / base_bs * (1.0 - moms))


def split_embeddings(model: nn.Module) -> list[list[nn.Parameter]]:
    """Split a model's parameters into embedding tables and all others, as a Learner's ``splitter``.

    Raises:
        DataError: the model has no embedding tables, or nothing else.
    """
    tables = [m for m in model.modules() if isinstance(m, EmbeddingTables | nn.Embedding | nn.EmbeddingBag)]
    own = {id(p): p for m in tables for p in m.parameters()}
    rest = [p for p in model.parameters() if id(p) not in own]
    if not own or not rest:
        remedy = "Leave out splitter=split_embeddings"
        raise DataError(f"{type(model).__name__} has {'nothing but' if own else 'no'} embedding tables", remedy=remedy)
    return [list(own.values()), rest]
