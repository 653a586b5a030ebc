"""How good ranked items are: HR, MRR and NDCG over all items, and coverage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fastrec.errors import DataError
from fastrec.sequences.ranked import best_items

__all__ = ["sequence_metrics", "target_ranks"]


def target_ranks(scores: Tensor, target: Tensor) -> Tensor:
    """Return the place of each row's right item among all items, from 1; of equal scores the lower code comes first.

    Args:
        scores: float ``[b, codes]``; -inf (or NaN): never shown.
        target: codes int64 ``[b]``; 0: no item of the vocabulary.

    Returns:
        int64 ``[b]``; the number of codes where the item is never shown.
    """
    own = scores.gather(1, target.unsqueeze(1))
    codes = torch.arange(scores.shape[1], device=scores.device)
    better = (scores > own).sum(1) + ((scores == own) & (codes < target.unsqueeze(1))).sum(1)
    shown = (target > 0) & (own.squeeze(1) > -torch.inf)
    return torch.where(shown, better + 1, scores.shape[1])


def sequence_metrics(
    ranking: Tensor | Iterable[tuple[Tensor, Tensor]], target: Tensor, k: int = 20, *, codes: int | None = None
) -> dict[str, float]:
    """HR, MRR, NDCG of one right item a session among its best ``k``, and the share of items that are shown.

    Args:
        ranking: scores of all codes, float ``[n, codes]`` (code 0 is no item); or blocks of them, ``(rows, scores)``,
            as ``SessionModel.score`` yields; or the best items themselves, int64 ``[n, at least k]``, 0 for none.
        target: the right items, int64 ``[n]``; 0: an item without a code, which is never found.
        k: how many items are shown. Of equal scores the lower code comes first.
        codes: how many codes there are, 0 included: for the coverage of best items.

    Returns:
        ``hr@k``, ``mrr@k``, ``ndcg@k`` and, where ``codes`` are known, ``coverage@k``.

    Raises:
        DataError: there are no sessions, not as many targets as sessions, or fewer than ``k`` items a session.
    """
    shown = torch.zeros(0, dtype=torch.bool)
    ranks = torch.full((len(target),), -1, dtype=torch.int64)
    blocks: Any = ranking
    if isinstance(ranking, Tensor):
        blocks = [(torch.arange(len(ranking)), ranking)]
        if len(ranking) != len(target):
            raise DataError(f"{len(target)} targets for {len(ranking)} sessions", remedy="Give one for each")
    for rows, part in blocks:
        items = part if not part.is_floating_point() else None
        if items is None:
            codes = part.shape[1]
            found = target_ranks(part, target[rows].to(part.device)).cpu()
            items = best_items(part, k)[0]
        else:
            found = item_ranks(items, target[rows], k)
        ranks[rows] = found
        if codes is not None:
            shown = shown if len(shown) else torch.zeros(codes, dtype=torch.bool)
            shown[items[:, :k].cpu().reshape(-1)] = True
    if not len(target) or bool((ranks < 0).any()):
        raise DataError("not every session has been scored, or there is none", remedy="Score each exactly once")
    place = ranks.double()
    hit = ranks <= k
    result = {
        f"hr@{k}": hit.double().mean(),
        f"mrr@{k}": torch.where(hit, 1 / place, 0.0).mean(),
        f"ndcg@{k}": torch.where(hit, 1 / torch.log2(place + 1), 0.0).mean(),
    }
    if len(shown) > 1:
        result[f"coverage@{k}"] = shown[1:].double().mean()
    return {name: float(value) for name, value in result.items()}


def item_ranks(items: Tensor, target: Tensor, k: int) -> Tensor:
    """Return the place of each row's right item among the best ones, from 1; ``k + 1`` where it is none of the first
    ``k``.

    Args:
        items: codes int64 ``[n, at least k]``, the best first; 0: none.
        target: codes int64 ``[n]``; 0: an item without a code, which is never found.
        k: how many are shown.

    Raises:
        DataError: there are fewer than ``k`` items a row.
    """
    if items.shape[1] < k:
        raise DataError(f"{items.shape[1]} items a session for a metric at {k}", remedy=f"Give {k} or more")
    same = (items[:, :k] == target.unsqueeze(1)) & (target > 0).unsqueeze(1)
    return torch.where(same.any(1), same.long().argmax(1) + 1, k + 1)
