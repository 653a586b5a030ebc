"""Changes made to training sessions anew in every epoch.

``prefix``: a session ends after some of its events, drawn at random. ``crop``: a window of it, drawn at random.
``reversed``: half of the sessions run backwards. ``virtual``: a tenth of the inputs are replaced by a virtual item, one
that is no item of the vocabulary, so that a model does not lean on any single event.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "augmented"]

AUGMENTATIONS = ("prefix", "crop", "reversed", "virtual")


def augmented(
    names: Sequence[str], starts: Tensor, ends: Tensor, longest: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Where sessions begin and end, after changes to their ends; none is left with fewer than two events.

    Args:
        names: of the changes.
        starts, ends: int64 ``[n]``, as they are; every session has two events or more.
        longest: how many events may be left.
        generator: of what is drawn.
    """
    if "prefix" in names:
        ends = starts + 2 + _drawn(ends - starts - 1, generator)
    if "crop" in names:
        length = 2 + _drawn((ends - starts).clamp_max(longest) - 1, generator)
        starts = starts + _drawn(ends - starts - length + 1, generator)
        ends = starts + length
    return torch.maximum(starts, ends - longest), ends


def _drawn(below: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers from 0 up to, and without, those given, all alike."""
    share = torch.rand(len(below), generator=generator, dtype=torch.float64)
    return (share * below).long()
