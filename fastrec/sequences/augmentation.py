"""Changes made to training sessions anew in every epoch.

``prefix``: a session ends after some of its events, drawn at random. ``crop``: a window of it, drawn at random.
``reversed``: half of the sessions run backwards. ``reorder``: in half of the sessions the events of a window, a third
as long, stand in an order drawn at random. ``mask``: a tenth of the inputs are replaced by a virtual item, one that is
no item of the vocabulary, so that a model does not lean on any single event. Side features go with their events.

Source of ``crop``, ``mask`` and ``reorder``: Xie et al. 2020, "Contrastive Learning for Sequential Recommendation".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "augmented", "moved"]

AUGMENTATIONS = ("prefix", "crop", "reversed", "reorder", "mask")


def augmented(
    names: Sequence[str], starts: Tensor, ends: Tensor, longest: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return where sessions begin and end, after changes to their ends; none is left with fewer than two events.

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


def moved(names: Sequence[str], lengths: Tensor, longest: int, *, generator: torch.Generator) -> Tensor:
    """Return which event of its session stands at each place, int64 ``[n, longest]``; behind a session's end the
    place itself.

    Args:
        names: of the changes.
        lengths: of the sessions, int64 ``[n]``.
        longest: how many places there are.
        generator: of what is drawn.
    """
    place = torch.arange(longest, device=lengths.device).repeat(len(lengths), 1)
    ends = lengths.unsqueeze(1)
    if "reversed" in names:
        turned = _coins(len(lengths), generator).to(lengths.device)
        place = torch.where(turned.unsqueeze(1) & (place < ends), ends - 1 - place, place)
    if "reorder" in names:
        size = torch.div(lengths, 3, rounding_mode="floor")
        first = _drawn((lengths - size + 1).cpu(), generator).to(lengths.device)
        size = size * _coins(len(lengths), generator).to(lengths.device)
        at = torch.arange(longest, device=lengths.device)
        inside = (at >= first.unsqueeze(1)) & (at < (first + size).unsqueeze(1))
        draw = torch.rand(place.shape, generator=generator).to(lengths.device)
        # the keys of a window lie between those of its neighbours
        key = torch.where(inside, first.unsqueeze(1) + draw, at.double())
        place = place.gather(1, key.argsort(dim=1, stable=True))
    return place


def _coins(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator) < 0.5


def _drawn(below: Tensor, generator: torch.Generator) -> Tensor:
    """Whole numbers from 0 up to, and without, those given, all alike."""
    share = torch.rand(len(below), generator=generator, dtype=torch.float64)
    return (share * below).long()
