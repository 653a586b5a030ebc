"""Offsets and lengths of lists, and the rows of their elements.

Sizes come from ``shape``, which a traced graph keeps open; ``len`` would fix them.
"""

from __future__ import annotations

import torch


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Return the start of each list and the end of the last: int64 ``[n + 1]`` from lengths ``[n]``."""
    offsets = torch.zeros(lengths.shape[0] + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def lengths_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return the lengths of lists: int64 ``[n]`` from offsets ``[n + 1]``."""
    return offsets[1:] - offsets[:-1]


def rows_of(offsets: torch.Tensor) -> torch.Tensor:
    """Return the row of every element: int64 ``[elements]``."""
    lengths = lengths_of(offsets)
    return torch.repeat_interleave(torch.arange(lengths.shape[0], device=offsets.device), lengths)


def runs(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return runs of neighbouring elements, one after the other.

    Args:
        starts: where each run begins, int64 ``[n]``.
        lengths: how long it is, int64 ``[n]``.

    Returns:
        The offsets of the new lists, int64 ``[n + 1]``, and the place of each of their elements, int64.
    """
    offsets = offsets_of(lengths)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    return offsets, torch.arange(shift.shape[0], device=starts.device) + shift
