"""The rule of training by batch size: AdamW, whose momenta and rates scale with a large batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import nn

from fastrec._core import limits
from fastrec.models import EmbeddingTables
from fastrec.optim import adamw, scale_lr, scale_moms, split_embeddings

_MOMS, _SQR_MOM, _EPS = (0.95, 0.85, 0.95), 0.99, 1e-5  # fastai's
_LEAST_MOM, _LEAST_SQR_MOM = 0.5, 0.9  # however large the batch


def fit_options(net: nn.Module, lr: float, bs: int, base_bs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of the Learner, and of its ``fit_one_cycle``, for a batch size.

    Small batches use plain AdamW, at a rate that goes with the root of the batch. In large ones embeddings have no
    momentum; ``1 - momentum`` and ``1 - β2`` go with the batch, as far as to .5 and .1; the embeddings' rate goes with
    ``√(1 - β2)``, the others' with the root of the batch, ``ε`` with its inverse. Source: the rule *scaled* of
    BENCHMARKS.md (extreme batches), after arXiv 2205.10287.

    Args:
        lr: the highest rate at ``base_bs`` rows.
        bs: rows in a batch.
        base_bs: the batch size that ``lr`` is for.
    """
    rate = scale_lr(lr, bs, base_bs)
    if bs < limits.LARGE_BATCH:
        return {"opt_func": adamw}, {"lr_max": rate}
    moms, sqr_mom = (
        scale_moms(_MOMS, bs, base_bs, floor=_LEAST_MOM),
        scale_moms(_SQR_MOM, bs, base_bs, floor=_LEAST_SQR_MOM),
    )
    rule: dict[str, Any] = {"opt_func": partial(adamw, sqr_mom=sqr_mom, eps=_EPS * base_bs / bs)}
    if not any(isinstance(m, EmbeddingTables) for m in net.modules()):
        return rule, {"lr_max": rate, "moms": moms}
    new = (1 - sqr_mom) / (1 - _SQR_MOM)
    apart = [np.array([0.0, m]) for m in moms]  # of embeddings, and of all else
    return {**rule, "splitter": split_embeddings}, {"lr_max": [lr * new**0.5, rate], "moms": apart}
