"""Rates and momentum for another batch size, and embeddings apart from the dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from fastrec.errors import DataError
from fastrec.models import EmbeddingTables


def scale_lr(
    lr: float, bs: int, base_bs: int, *, rule: Literal["sqrt", "linear", "cowclip"] = "sqrt"
) -> float | list[float]:
    """Scale the learning rate to another batch size.

    Args:
        lr: the rate that suits ``base_bs``.
        bs: the batch size to be used, rows.
        base_bs: the batch size that ``lr`` was found with, rows.
        rule: ``'sqrt'`` (for Adam and LAMB; arXiv 1904.00962, section 4), ``'linear'`` (arXiv 1706.02677, 2.1) or
            ``'cowclip'`` (arXiv 2204.06240, section 4: the embeddings' rate stays, the others' grows by the root).

    Returns:
        ``lr · (bs / base_bs) ** ½``, or to the power 1; of ``'cowclip'`` the rates of embeddings and of all else, for
        a Learner with ``splitter=split_embeddings``.

    Raises:
        DataError: a batch size below 1, or another rule.
    """
    powers = {"sqrt": 0.5, "linear": 1.0, "cowclip": 0.5}
    if bs < 1 or base_bs < 1 or rule not in powers:
        raise DataError(
            f"no rate for batch sizes {bs} and {base_bs} by rule {rule!r}",
            remedy="Batch sizes must be ≥ 1, the rule 'sqrt', 'linear' or 'cowclip'",
        )
    scaled = lr * (bs / base_bs) ** powers[rule]
    return [lr, scaled] if rule == "cowclip" else scaled


def scale_moms(moms: float | Sequence[float], bs: int, base_bs: int, *, floor: float = 0.0) -> Any:
    """Scale momentum, or the decay of a running mean of squares, to another batch size.

    Running means are to reach back over as many rows as before, not over as many steps: ``1 - m`` goes with the batch
    (arXiv 2205.10287, the square root scaling rule, which scales the rate by the root, as ``scale_lr`` does).

    Args:
        moms: what suits ``base_bs``: a number from 0 to 1, or several, such as a Learner's ``moms``.
        bs: the batch size to be used, rows.
        base_bs: the batch size that ``moms`` was found with, rows.
        floor: the least that comes out; with a batch dozens of times as large some .5 is better than 0.

    Returns:
        ``max(floor, 1 - bs / base_bs (1 - m))`` for each.

    Raises:
        DataError: a batch size below 1.

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
    """Split parameters into the embedding tables and the others, as a Learner's ``splitter``.

    Args:
        model: a model with ``EmbeddingTables``.

    Returns:
        Two lists of parameters.

    Raises:
        DataError: the model has no embedding tables, or nothing else.
    """
    tables = [m for m in model.modules() if isinstance(m, EmbeddingTables | nn.Embedding | nn.EmbeddingBag)]
    own = {id(p): p for m in tables for p in m.parameters()}
    rest = [p for p in model.parameters() if id(p) not in own]
    if not own or not rest:
        raise DataError(
            f"{type(model).__name__} has {'nothing but' if own else 'no'} embedding tables",
            remedy="Leave out splitter=split_embeddings",
        )
    return [list(own.values()), rest]
