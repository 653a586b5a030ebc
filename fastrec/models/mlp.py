"""The multi-layer perceptron that the models share: fastai's blocks of linear, activation, batch norm and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastai.layers import LinBnDrop
from torch import nn

from fastrec.errors import DataError

Activation = nn.Module | Callable[[], nn.Module]


def mlp_blocks(
    sizes: Sequence[int],
    *,
    ps: float | Sequence[float] | None = None,
    use_bn: bool = True,
    last_is_output: bool = True,
    bn_final: bool = False,
    act_cls: Activation = nn.ReLU,
    lin_first: bool = True,
) -> list[nn.Module]:
    """Make one block for each step from a width to the next.

    Args:
        ps: dropout after each hidden layer, one for all or one each; none by default.
        last_is_output: the last block has no activation, no dropout, and batch norm only with ``bn_final``; False
            makes it a hidden layer as the others.

    Returns:
        ``len(sizes) - 1`` modules, to be put into an ``nn.Sequential``.
    """
    steps = len(sizes) - 1
    hidden = steps - int(last_is_output)
    drops = [*dropouts(ps, hidden), *([0.0] if last_is_output else [])]
    return [
        LinBnDrop(
            sizes[i],
            sizes[i + 1],
            bn=use_bn and (i < hidden or bn_final),
            p=drops[i],
            act=activation(act_cls) if i < hidden else None,
            lin_first=lin_first,
        )
        for i in range(steps)
    ]


def dropouts(ps: float | Sequence[float] | None, n: int) -> list[float]:
    """Return one dropout for each of ``n`` layers."""
    drops = [0.0] * n if ps is None else [float(ps)] * n if isinstance(ps, int | float) else [float(p) for p in ps]
    if len(drops) != n:
        raise DataError(f"{len(drops)} dropouts for {n} layers", remedy="Give one number, or one for each layer")
    return drops


def activation(act_cls: Activation) -> nn.Module:
    """Make the activation of a class, a function or a module."""
    if isinstance(act_cls, nn.Module):
        return act_cls
    return nn.ReLU(inplace=True) if act_cls is nn.ReLU else act_cls()
