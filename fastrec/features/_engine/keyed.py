"""Statistics by key and cell, arrays ``[cells, K]``: collected, merged and summed over cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells
from fastrec.segments import segment_max, segment_min, segment_sum
from fastrec.table import Coded, Keys, Table
from fastrec.table.key_types import UNITS_PER_SECOND

MomentArrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sort_keys(coded: Coded) -> tuple[Keys, torch.Tensor]:
    """Sort the keys, so that a state does not depend on the order of rows; also return each row's code.

    Returns:
        keys ``[K]`` and codes int64 ``[n]`` (0 = missing, ``i`` = key ``i - 1``).
    """
    done = coded.in_order()
    return done.keys, done.codes


def shared_codes(here: Table, there: Table, names: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Code two tables' rows by the same keys: codes above 0 are equal if and only if the keys are.

    The columns' codes are joined as digits of one number, which needs no table of the combinations that occur.

    Args:
        here: one table.
        there: the other one.
        names: the key columns, in both.

    Returns:
        int64 ``[n]`` and ``[m]``, not dense; 0 = missing, and in ``there`` also a key with a part that ``here`` lacks.
    """
    if not names:
        raise DataError("there is a key of no columns", remedy="Name at least one column")
    parts = [(here[n].coded(), there[n].coded()) for n in names]
    if math.prod(a.size for a, _ in parts) >= 1 << 62:
        keys = here.coded(list(names))
        return keys.codes, there.coded(list(names)).recode(keys.keys)
    joined = None
    for a, b in parts:
        pair = (a.codes, b.recode(a.keys))
        if joined is not None:
            pair = tuple(torch.where((x > 0) & (y > 0), x * a.size + y, 0) for x, y in zip(joined, pair))
        joined = pair
    return joined


def key_text(values: pa.Array) -> pa.Array:
    """Return key values as text for hashing: equal values read the same whatever type a frame gave them.

    Args:
        values: ``[K]`` of any key type, none missing.

    Returns:
        large_string ``[K]``: a whole number without a fraction, a time as seconds since 1970 in UTC (and nanoseconds).
    """
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8()).cast(pa.large_string())
    if pa.types.is_timestamp(kind):
        return _time_text(values.cast(pa.int64()).to_numpy(zero_copy_only=False), UNITS_PER_SECOND[kind.unit])
    text = values.cast(pa.large_string())
    if pa.types.is_decimal(kind):
        return pc.replace_substring_regex(text, r"(\.\d*[1-9])0+$|\.0*$", r"\1")
    if not pa.types.is_floating(kind):
        return text
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
    whole = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**63)
    integers = pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.large_string())
    return pc.if_else(pa.array(whole), integers, text)


def _time_text(numbers: np.ndarray, unit: int) -> pa.Array:
    seconds, rest = np.divmod(numbers, unit)
    text = pa.array(seconds).cast(pa.large_string())
    if not rest.any():
        return text
    nanoseconds = pa.array(rest * (10**9 // unit)).cast(pa.large_string())
    return pc.if_else(
        pa.array(rest > 0), pc.binary_join_element_wise(text, nanoseconds, pa.scalar(".", pa.large_string())), text
    )


def cell_places(codes: torch.Tensor, cells: Cells | None, size: int) -> tuple[torch.Tensor, int]:
    """Return each row's place in a flattened ``[cells, size]`` array, and the number of cells."""
    if cells is None or cells.count == 1:
        return codes, 1
    return cells.codes * size + codes, cells.count


def sum_by_cell(values: torch.Tensor, codes: torch.Tensor, cells: Cells | None, size: int) -> torch.Tensor:
    """Sum ``values`` (``[n]``) by cell and code: ``[cells, size]``, int64 or float64."""
    places, count = cell_places(codes, cells, size)
    return segment_sum(values, places, count * size).view(count, size)


def count_by_cell(codes: torch.Tensor, cells: Cells | None, size: int) -> torch.Tensor:
    """Count rows by cell and code: int64 ``[cells, size]``."""
    places, count = cell_places(codes, cells, size)
    return torch.bincount(places, minlength=count * size).view(count, size)


def accurate_sum(
    values: torch.Tensor, weight: torch.Tensor | None, count: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """Sum weighted values by place so that the mean is exact for many and for large values.

    What rounding of a long sum has lost is found by a second pass, as the sum of the deviations from the mean.

    Args:
        values: float64 ``[n]``, finite.
        weight: float64 ``[n]``; None: 1 each.
        count: float64 ``[size]``, the sum of the weights at each place.
        places: int64 ``[n]`` in ``0 … size - 1``.

    Returns:
        float64 ``[size]``.
    """
    weighted = values if weight is None else weight * values
    total = segment_sum(weighted, places, len(count))
    # Whole numbers whose partial sums float64 holds exactly need no second pass.
    largest = max(abs(float(v)) for v in torch.aminmax(weighted)) if len(weighted) else 0.0
    if largest * len(weighted) < 2.0**53 and bool((weighted == torch.floor(weighted)).all()):
        return total
    mean = total / torch.where(count > 0, count, 1)
    rest = values - mean.index_select(0, places)
    return total + segment_sum(rest if weight is None else weight * rest, places, len(count))


def sum_kept(values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Sum the kept cells of ``[cells, K]`` from the first on: ``[K]``; ``keep``: bool ``[cells]``."""
    rows = range(len(values)) if keep is None else keep.nonzero().squeeze(1).tolist()
    total = torch.zeros_like(values[0])
    for row in rows:
        total += values[row]
    return total


def extreme_by_cell(
    values: torch.Tensor, codes: torch.Tensor, cells: Cells | None, size: int, *, largest: bool
) -> torch.Tensor:
    """Take the extreme of ``values`` (``[n]``, no NaN) by cell and code: ``[cells, size]``; ∓inf if empty."""
    places, count = cell_places(codes, cells, size)
    return (segment_max if largest else segment_min)(values, places, count * size).view(count, size)


def union_keys(a: Keys, b: Keys) -> tuple[Keys, torch.Tensor, torch.Tensor]:
    """Return the keys of both, sorted, and the places of those of ``a`` and of ``b`` among them."""
    both = a.concat(b)
    codes, distinct = both.distinct()
    order = distinct.sort_order()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    codes = place[codes]
    return distinct.take(order), codes[: len(a)], codes[len(a) :]


def spread(values: torch.Tensor, places: torch.Tensor, size: int, cells: int, fill: Any = 0) -> torch.Tensor:
    """Move ``values`` (``[c, K]``) to ``places`` of a wider ``[cells, size]`` array."""
    wide = values.new_full((cells, size), fill)
    wide[: values.shape[0], places.to(values.device)] = values
    return wide


def merge_kept(
    arrays: dict[str, torch.Tensor],
    keep: torch.Tensor | None,
    empty: Mapping[str, float],
    merge: Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """Merge the cells' arrays, cell by cell from the first.

    Args:
        arrays: ``[cells, …]`` each.
        keep: bool ``[cells]``, the cells that count; None: all.
        empty: the values of an array that nothing was counted in; 0 for those that it does not name.
        merge: two cells' arrays as one.
    """
    kept = {n: v if keep is None else v[keep.to(v.device)] for n, v in arrays.items()}
    count = max((len(v) for v in kept.values()), default=0)
    if count == 1:  # nothing is merged with a cell that is alone
        return {n: v[0] for n, v in kept.items()}
    total = {n: v.new_full(v.shape[1:], empty.get(n, 0)) for n, v in kept.items()}
    for i in range(count):
        total = merge(total, {n: v[i] for n, v in kept.items()})
    return total


def merge_moments(a: MomentArrays, b: MomentArrays) -> MomentArrays:
    """Merge count, mean and sum of squared deviations of two samples (Chan, Golub, LeVeque 1979, eq. 2.1).

    Args:
        a: ``(count, mean, m2)`` of equal shape; the mean of an empty sample is 0. An infinite mean stays one.
        b: likewise.
    """
    count = a[0] + b[0]
    share = torch.where(count > 0, b[0] / torch.where(count > 0, count, 1), 0)
    delta = b[1] - a[1]
    mean = torch.where(delta.isfinite(), a[1] + delta * share, a[1] + b[1])
    both = (a[0] > 0) & (b[0] > 0)
    mean = torch.where(both, mean, torch.where(b[0] > 0, b[1], a[1]))
    return count, mean, a[2] + b[2] + torch.where(both, delta**2 * a[0] * share, 0)
