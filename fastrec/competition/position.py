"""Position bias of a ranking's clicks: how often each place is examined, and clicks weighed by its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.metrics.ranking import flat_tensor, plain_tensor


def examination(items: Any, places: Any, clicks: Any) -> dict[int, float]:
    """Estimate how often each place is examined, relative to the first one.

    An item that was shown at two adjacent places tells them apart: its relevance is the same at both, so the ratio of
    its click rates is that of the places' examination (intervention harvesting, the adjacent-chain estimator of Agarwal
    et al. 2019, "Estimating Position Bias without Intrusive Interventions"). Items are put together as Mantel and
    Haenszel 1959 do. It holds where an item's place does not depend on how relevant it is to that list alone.

    Args:
        items: ``[n]`` codes of items, integers.
        places: ``[n]`` whole numbers, the place at which each item was shown.
        clicks: ``[n]`` numbers, above 0 for a click.

    Returns:
        Place → its examination, 1 for the first. A place without a pair of its own has that of the place before it.

    Raises:
        DataError: lengths differ, or a place is no whole number.
    """
    item, clicked = (flat_tensor(x, n).cpu().numpy() for x, n in ((items, "items"), (clicks, "clicks")))
    place = flat_tensor(places, "places").cpu().double().numpy()
    if not len(item) == len(place) == len(clicked):
        raise DataError("items, places and clicks differ in length", remedy="Give one of each for each row")
    bad = ~(place == np.round(place))  # NaN, too
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{place[row]:g} is no place", column="places", row=row, remedy="Number the places 1, 2, 3, …")
    levels, codes = np.unique(place.astype(np.int64), return_inverse=True)
    # How often each item was shown at each place, and clicked there; items in order, and their places.
    pairs, row = np.unique(np.unique(item, return_inverse=True)[1] * len(levels) + codes, return_inverse=True)
    shown, hits = np.bincount(row).astype(np.float64), np.bincount(row, weights=clicked > 0)
    first = np.flatnonzero((np.diff(pairs) == 1) & (pairs[1:] % len(levels) > 0))
    both = shown[first] + shown[first + 1]
    upper = np.bincount(pairs[first] % len(levels), hits[first] * shown[first + 1] / both, minlength=len(levels))
    lower = np.bincount(pairs[first] % len(levels), hits[first + 1] * shown[first] / both, minlength=len(levels))
    known = (upper > 0) & (lower > 0)
    ratios = np.divide(lower, upper, out=np.ones(len(levels)), where=known)
    values = np.cumprod(np.append(1.0, ratios[:-1]))
    return dict(zip(levels.tolist(), values.tolist(), strict=True))


def click_weights(groups: Any, places: Any, clicks: Any, examined: dict[int, float]) -> torch.Tensor:
    """Weigh each list by the inverse examination of its clicks' places, so that seldom seen clicks count as much.

    The weights of lists with several clicks are their mean. An examination below 1 / 20 counts as that: the weights of
    few clicks would rule the others (clipping, Swaminathan and Joachims 2015).

    Args:
        groups: ``[n]`` integers, the list of each row.
        places, clicks: as for :func:`examination`.
        examined: its result.

    Returns:
        float64 ``[n]``, the same for all rows of a list; 1 where a list has no click.
    """
    place = plain_tensor(places, "places").cpu().numpy().astype(np.int64)
    inverse = np.array([1 / max(examined.get(int(p), 1.0), limits.LEAST_EXAMINED) for p in np.unique(place)])
    of_row = inverse[np.unique(place, return_inverse=True)[1]]
    codes = np.unique(plain_tensor(groups, "groups").cpu().numpy(), return_inverse=True)[1]
    hit = plain_tensor(clicks, "clicks").cpu().numpy() > 0
    count = np.bincount(codes, weights=hit)
    total = np.bincount(codes, weights=hit * of_row)
    return torch.from_numpy(np.divide(total, count, out=np.ones(len(count)), where=count > 0)[codes])
