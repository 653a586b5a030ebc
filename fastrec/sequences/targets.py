"""What a batch of sessions asks: the next item, the last one, or items that are hidden.

Each function takes sessions ``[b, L]`` (0 behind their end) with their lengths, and gives inputs and targets of one
shape; target 0 is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["TASKS", "BatchTargets", "Task", "hidden_last"]

Task = Literal["causal", "last", "masked", "permuted", "hidden last", "permuted last"]


@dataclass
class BatchTargets:
    """A batch's inputs and targets.

    Args:
        items: int64 ``[b, L]``.
        lengths: how many of them count, int64 ``[b]``.
        sides: of the same events, ``[b, L]`` each.
        target: int64 ``[b, L]``, 0 where nothing is asked.
    """

    items: Tensor
    lengths: Tensor
    sides: list[Tensor]
    target: Tensor

    def hide(self, share: float, mask: int, generator: torch.Generator) -> None:
        """Put the virtual item ``mask`` in the place of some inputs; targets stay."""
        drawn = torch.rand(self.items.shape, generator=generator).to(self.items.device) < share
        self.items = torch.where(drawn & (self.items > 0), mask, self.items)


def causal(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """At every event the next one."""
    return BatchTargets(_inputs(items, lengths), lengths - 1, [s[:, :-1] for s in sides], items[:, 1:])


def last(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """At the last event but one the last."""
    asked = causal(items, lengths, sides, mask, share, generator)
    place = torch.arange(asked.items.shape[1], device=items.device)
    asked.target = asked.target.masked_fill(place != (lengths - 2).unsqueeze(1), 0)
    return asked


def masked(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """Return some events are hidden, by the code ``mask``, and asked for at their place (Cloze, arXiv 1904.06690).

    The last event is hidden too in every fifth session, as it is when the next item is asked; at least one is in any.
    """
    draw = torch.rand(items.shape, generator=generator).to(items.device)
    place = torch.arange(items.shape[1], device=items.device)
    inside = place < lengths.unsqueeze(1)
    draw = draw.masked_fill(~inside, 2.0)
    end = (place == (lengths - 1).unsqueeze(1)) & (
        torch.rand(len(items), 1, generator=generator).to(items.device) < 0.2
    )
    hidden = (draw < share) | (draw == draw.min(1, keepdim=True).values) | end
    return BatchTargets(items.masked_fill(hidden, mask), lengths, sides, torch.where(hidden, items, 0))


def permuted(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """As ``masked``, but events stay what they are; the last side says in which order hidden ones are told.

    It is int64 ``[b, L]``: 0 where nothing is hidden, then 1, 2, … in an order drawn at random.
    """
    asked = masked(items, lengths, sides, mask, share, generator)
    draw = torch.rand(items.shape, generator=generator).to(items.device)
    hidden = asked.target > 0
    rank = draw.masked_fill(~hidden, 2.0).argsort(1).argsort(1) + 1
    return BatchTargets(items, lengths, [*sides, rank.masked_fill(~hidden, 0)], asked.target)


def hidden_last(
    items: Tensor,
    lengths: Tensor,
    sides: list[Tensor],
    mask: int,
    share: float = 0.0,
    generator: torch.Generator | None = None,
) -> BatchTargets:
    """Return the last event is hidden and asked for."""
    place = torch.arange(items.shape[1], device=items.device)
    end = place == (lengths - 1).unsqueeze(1)
    return BatchTargets(items.masked_fill(end, mask), lengths, sides, torch.where(end, items, 0))


def permuted_last(
    items: Tensor, lengths: Tensor, sides: list[Tensor], mask: int, share: float, generator: torch.Generator
) -> BatchTargets:
    """As ``hidden_last``, with the order that ``permuted`` gives."""
    asked = hidden_last(items, lengths, sides, mask)
    return BatchTargets(items, lengths, [*sides, (asked.target > 0).long()], asked.target)


def _inputs(items: Tensor, lengths: Tensor) -> Tensor:
    place = torch.arange(items.shape[1] - 1, device=items.device)
    return items[:, :-1].masked_fill(place >= (lengths - 1).unsqueeze(1), 0)


TASKS: dict[str, Callable[..., BatchTargets]] = {
    "causal": causal,
    "last": last,
    "masked": masked,
    "permuted": permuted,
    "hidden last": hidden_last,
    "permuted last": permuted_last,
}
