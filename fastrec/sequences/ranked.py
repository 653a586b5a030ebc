"""The best items of a row of scores, in an order that does not depend on the block that they were scored in."""

from __future__ import annotations

import torch

from fastrec._core import limits
from fastrec._core.kernels import compiled, sessions, shared, view

__all__ = ["best_items", "hide_items"]


def best_items(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k items with the highest scores; of equal scores the one with the lower code comes first.

    Args:
        scores: float ``[b, codes]``; -inf: never.
        k: how many.

    Returns:
        Items int64 ``[b, k]`` and their scores ``[b, k]``, the best first; 0 and -inf where there are fewer than k.
    """
    if (
        scores.device.type == "cpu"
        and scores.dtype == torch.float32
        and k <= limits.RANKED_FEW
        and compiled(scores.numel())
    ):
        items = torch.zeros((len(scores), k), dtype=torch.int64)
        found = torch.full((len(scores), k), -torch.inf)
        shared(sessions().best_of_rows, *map(view, (scores.contiguous(), items, found)), numbers=scores.numel())
        return items, found
    wanted = min(k, scores.shape[1])
    found, items = torch.topk(scores, wanted, dim=1)
    # topk says nothing of equal scores: rows where some stand at the edge, or inside, are ordered by hand
    tied = (found[:, 1:] == found[:, :-1]).any(1) | ((scores == found[:, -1:]).sum(1) > 1)
    rows = (tied & (found[:, 0] > -torch.inf)).nonzero().squeeze(1)
    if len(rows):
        again, order = torch.sort(scores[rows], dim=1, descending=True, stable=True)
        found[rows], items[rows] = again[:, :wanted], order[:, :wanted]
    items = items.masked_fill(found == -torch.inf, 0)
    if wanted < k:
        items = torch.nn.functional.pad(items, (0, k - wanted))
        found = torch.nn.functional.pad(found, (0, k - wanted), value=-torch.inf)
    return items, found


def hide_items(scores: torch.Tensor, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return scores ``[b, codes]`` with -inf, in place, at the items of each row's session (packed as in
    ``SessionFrame``).
    """
    rows = torch.repeat_interleave(torch.arange(len(scores)), offsets[1:] - offsets[:-1])
    scores[rows, values] = -torch.inf
    return scores
