"""The training rows of any tabular dataloaders as tensors: what models learn from before they train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastrec.errors import DataError


def training_rows(dls: Any, limit: int | None = None, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the rows that a net will train on, as its batches hold them.

    Args:
        limit: take so many rows, drawn at random; None: all.

    Returns:
        Ids ``[n, categorical columns]``, numbers float32 ``[n, n_cont]`` and targets ``[n]`` or ``[n, k]`` (None where
        there are none).
    """
    if limit is not None and limit < 1:
        raise DataError(f"a sample of {limit} rows", remedy="Give 1 or more, or None for all rows")
    frame = dls.train_ds
    packed = getattr(frame, "packed", None)
    if packed is None:
        ys = frame.ys.to_numpy() if len(frame.y_names) else None
        found = (
            torch.from_numpy(frame.cats.to_numpy().astype(np.int64)),
            torch.from_numpy(frame.conts.to_numpy().astype(np.float32)),
            None if ys is None else torch.from_numpy(np.ascontiguousarray(ys[:, 0] if ys.shape[1] == 1 else ys)),
        )
    elif len(packed):
        found = (frame.x_cat, frame.x_cont, frame.y)
    else:  # a stream's frame holds no rows itself
        return _from_batches(dls, limit, seed)
    n = len(found[0])
    if not n:
        raise DataError("there are no training rows", remedy="Give splits that leave rows to train on")
    if limit is None or n <= limit:
        return found
    rows = torch.from_numpy(np.sort(np.random.default_rng(seed).choice(n, limit, replace=False)))
    return tuple(None if t is None else t[rows.to(t.device)] for t in found)


def _from_batches(dls: Any, limit: int | None, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
    loader = dls.train.new(shuffle=limit is not None, seed=seed, drop_last=False, rank=0, world_size=1)
    parts, n = [], 0
    for batch in loader:
        parts.append(tuple(t.cpu() for t in (batch[0], batch[1], *batch[2:][-1:])))
        n += len(batch[0])
        if limit is not None and n >= limit:
            break
    if not n:
        raise DataError("there are no training rows", remedy="Give files that hold some")
    found = [torch.cat(column)[:limit] for column in zip(*parts, strict=True)]
    return found[0], found[1], found[2] if len(found) > 2 else None
