"""Statistics by key and cell, arrays ``[cells, K]``: collected, merged and summed over cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fastrec.errors import DataError
from fastrec.features.base import Cells
from fastrec.segments import segment_max, segment_min, segment_sum
from fastrec.table import Coded, Keys, Table
from fastrec.table.keys import UNITS_PER_SECOND
from fastrec.table.vocab import hash_codes

MomentArrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sort_keys(coded: Coded) -> tuple[Keys, torch.Tensor]:
    """Return sorted keys, so that no state depends on the row order, and codes int64 ``[n]`` (0 = missing)."""
    done = coded.in_order()
    return done.keys, done.codes


def shared_codes(here: Table, there: Table, names: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Code two tables' rows by the same keys, int64 ``[n]`` and ``[m]``: codes above 0 are equal if the keys are.

    The columns' codes are digits of one number, which needs no table of combinations. 0 is a missing key, in ``there``
    also a key with a part that ``here`` lacks.
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
    """Convert key values (``[K]``, none missing) to text for hashing: equal values of any type have equal text."""
    # Integers have no fraction; times are seconds since 1970 in UTC (and nanoseconds)
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8()).cast(pa.large_string())
    if pa.types.is_timestamp(kind):
        unit = UNITS_PER_SECOND[kind.unit]
        seconds, rest = np.divmod(values.cast(pa.int64()).to_numpy(zero_copy_only=False), unit)
        text = pa.array(seconds).cast(pa.large_string())
        if not rest.any():
            return text
        nanoseconds = pa.array(rest * (10**9 // unit)).cast(pa.large_string())
        parts = pc.binary_join_element_wise(text, nanoseconds, pa.scalar(".", pa.large_string()))
        return pc.if_else(pa.array(rest > 0), parts, text)
    text = values.cast(pa.large_string())
    if not pa.types.is_floating(kind):
        return text
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
    whole = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**63)
    integers = pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.large_string())
    return pc.if_else(pa.array(whole), integers, text)


def hash_keys(keys: Keys, count: int, seed: int) -> torch.Tensor:
    """Return a stable hash of each key, int64 ``[K]`` in ``0 … count - 1``, independent of type and library."""
    text = [key_text(c) for c in keys.columns]
    joined = text[0] if len(text) == 1 else pc.binary_join_element_wise(*text, pa.scalar("\x1f", pa.large_string()))
    return torch.from_numpy(hash_codes(joined, count, seed=seed))


def of_codes(coded: Coded, values: torch.Tensor) -> torch.Tensor:
    """Map values of the distinct keys (``[K]``) to rows: ``[n]``, 0 where the key is missing."""
    return torch.cat([values.new_zeros(1), values]).to(coded.codes.device).index_select(0, coded.codes)


def cell_places(codes: torch.Tensor, cells: Cells | None, size: int) -> tuple[torch.Tensor, int]:
    """Return each row's place in a flattened ``[cells, size]`` array, and the number of cells."""
    return (codes, 1) if cells is None or cells.count == 1 else (cells.codes * size + codes, cells.count)


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
    """Sum weighted values (float64 ``[n]``, finite) by place, accurately for many and for large values.

    A second pass adds the sum of deviations from the mean: the rounding error of the first.
    ``count``: float64 ``[size]``, the sum of the weights at each place.
    """
    weighted = values if weight is None else weight * values
    total = segment_sum(weighted, places, len(count))
    # Integers whose partial sums are exact in float64 need no second pass.
    largest = max(abs(float(v)) for v in torch.aminmax(weighted)) if len(weighted) else 0.0
    if largest * len(weighted) < 2.0**53 and bool((weighted == torch.floor(weighted)).all()):
        return total
    rest = values - (total / torch.where(count > 0, count, 1)).index_select(0, places)
    return total + segment_sum(rest if weight is None else weight * rest, places, len(count))


def sum_kept(values: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Sum the cells in ``keep`` (bool ``[cells]``) of ``[cells, K]``, in order: ``[K]``."""
    rows = range(len(values)) if keep is None else keep.nonzero().squeeze(1).tolist()
    total = torch.zeros_like(values[0])
    for row in rows:
        total += values[row]
    return total


def union_keys(a: Keys, b: Keys) -> tuple[Keys, torch.Tensor, torch.Tensor]:
    """Return the sorted union of the keys, and the positions in it of those of ``a`` and of ``b``."""
    codes, distinct = a.concat(b).distinct()
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


def add_spread(a: torch.Tensor, b: torch.Tensor, keys: Sized, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add arrays ``[cells, K]`` of two partitions; ``left``, ``right``: positions of their keys in the union."""
    cells = max(len(a), len(b))
    return spread(a, left, len(keys), cells) + spread(b.to(a.device), right, len(keys), cells)


def merge_moments(a: MomentArrays, b: MomentArrays) -> MomentArrays:
    """Merge count, mean and sum of squared deviations of two samples (Chan, Golub, LeVeque 1979, eq. 2.1)."""
    # Equal shapes; the mean of an empty sample is 0, and an infinite mean stays infinite
    count = a[0] + b[0]
    share = torch.where(count > 0, b[0] / torch.where(count > 0, count, 1), 0)
    delta = b[1] - a[1]
    mean = torch.where(delta.isfinite(), a[1] + delta * share, a[1] + b[1])
    both = (a[0] > 0) & (b[0] > 0)
    mean = torch.where(both, mean, torch.where(b[0] > 0, b[1], a[1]))
    return count, mean, a[2] + b[2] + torch.where(both, delta**2 * a[0] * share, 0)


Arrays = dict[str, torch.Tensor]

PARTS = {
    "count": ("count",),
    "sum": ("sum",),
    "mean": ("count", "mean"),
    "std": ("count", "mean", "m2"),
    "skew": ("count", "mean", "m2", "m3"),
    "min": ("count", "min"),
    "max": ("count", "max"),
    "histogram": ("count", "bins"),
}
"""Arrays needed by each statistic."""

EMPTY = {"min": torch.inf, "max": -torch.inf}  # 0 for other arrays


def collect_moments(
    values: torch.Tensor,
    known: torch.Tensor,
    codes: torch.Tensor,
    cells: Cells | None,
    size: int,
    parts: Collection[str],
    bins: Sequence[float] = (),
) -> Arrays:
    """Collect one partition's arrays ``[cells, size - 1]``, those in ``parts``, of the ``known`` values.

    ``codes`` (int64 ``[n]``, 0 = missing) are the rows' keys; ``size`` is their number, including the missing one.
    """

    def total(values: torch.Tensor) -> torch.Tensor:
        return sum_by_cell(values, codes, cells, size)

    result: Arrays = {}
    filled = torch.where(known, values, 0)
    if "count" in parts:
        result["count"] = total(known.double())
    if "sum" in parts:
        result["sum"] = total(filled)
    if "mean" in parts:
        some, row = result["count"].clamp_min(1), 0 if cells is None else cells.codes
        mean = total(filled) / some
        here = mean[row, codes]
        # A second pass corrects the rounding of a long sum; an infinite mean needs none.
        result["mean"] = mean = mean + total(torch.where(known & here.isfinite(), filled - here, 0)) / some
    if "m2" in parts:
        rest = torch.where(known, filled - mean[row, codes], 0)
        result["m2"] = total(rest**2)
    if "m3" in parts:
        # Cubes amplify the rounding of the mean: subtract what remains of the deviations' sum.
        left = total(rest) / some
        result["m3"] = total(rest**3) - 3 * left * result["m2"] + 2 * result["count"] * left**3
    places, count = cell_places(codes, cells, size)
    for part, extreme in (("min", segment_min), ("max", segment_max)):
        if part in parts:  # a key without a value keeps ±inf
            result[part] = extreme(torch.where(known, values, EMPTY[part]), places, count * size).view(count, size)
    if "bins" in parts:
        # A bin includes its lower edge, the last one both; -1 = none.
        edges = torch.tensor(list(bins), dtype=torch.float64, device=values.device)
        place = torch.bucketize(values, edges, right=True) - 1
        place = torch.where(values == edges[-1], len(edges) - 2, place)
        inside = torch.where(known & (place < len(edges) - 1), place, -1)
        for i in range(len(bins) - 1):
            result[f"bin{i}"] = total((inside == i).double())
    return {n: v[:, 1:] for n, v in result.items()}


def merge_arrays(
    a: Arrays, b: Arrays, left: torch.Tensor | None = None, right: torch.Tensor | None = None, size: int = 0
) -> Arrays:
    """Merge two partitions' arrays."""
    # left, right: positions of their keys among size; None: keys and cells are the same
    if left is not None:
        cells = max(len(x) for part in (a, b) for x in part.values())
        a = {n: spread(v, left, size, cells, EMPTY.get(n, 0)) for n, v in a.items()}
        b = {n: spread(v, right, size, cells, EMPTY.get(n, 0)) for n, v in b.items()}
    result = {n: a[n] + b[n] for n in a if n not in ("mean", "m2", "m3", "min", "max")}
    if "mean" in a:
        nothing = torch.zeros_like(a["mean"])
        first, second = ((x["count"], x["mean"], x.get("m2", nothing)) for x in (a, b))
        _, result["mean"], m2 = merge_moments(first, second)
        if "m2" in a:
            result["m2"] = m2
        if "m3" in a:
            # the cubed deviations of both (Pébay 2008, SAND2008-6212, eq. 1.2 for p = 3)
            count, delta = (a["count"] + b["count"]).clamp_min(1), b["mean"] - a["mean"]
            share, other = b["count"] / count, a["count"] / count
            own = delta**3 * a["count"] * share * (other - share) + 3 * delta * (other * b["m2"] - share * a["m2"])
            result["m3"] = a["m3"] + b["m3"] + torch.where((a["count"] > 0) & (b["count"] > 0), own, 0)
    for name, pick in (("min", torch.minimum), ("max", torch.maximum)):
        if name in a:
            result[name] = pick(a[name], b[name])
    return result


def over_cells(arrays: Arrays, keep: torch.Tensor | None) -> Arrays:
    """Merge the cells (``[cells, K]``) in ``keep`` (bool ``[cells]``; None: all): ``[K]`` each."""
    kept = {n: v if keep is None else v[keep.to(v.device)] for n, v in arrays.items()}
    count = max((len(v) for v in kept.values()), default=0)
    if count == 1:  # a single cell needs no merge
        return {n: v[0] for n, v in kept.items()}
    total = {n: v.new_full(v.shape[1:], EMPTY.get(n, 0)) for n, v in kept.items()}
    for i in range(count):  # from the first on
        total = merge_arrays(total, {n: v[i] for n, v in kept.items()})
    return total


def statistics(total: Arrays) -> Arrays:
    """Compute statistics ``[K + 1]`` from ``over_cells``; entry 0 is for a key that is missing or without rows."""
    total = {n: torch.cat([v.new_full((1,), EMPTY.get(n, 0)), v]) for n, v in total.items()}
    made = {n: total[n] for n in ("count", "sum") if n in total}
    if "count" not in total:
        return made
    count, some = total["count"], total["count"] > 0
    for name in ("mean", "min", "max"):
        if name in total:
            made[name] = torch.where(some, total[name], torch.nan)
    if "m2" in total:
        enough = (count > 1) & total["mean"].isfinite()
        made["std"] = torch.where(enough, torch.sqrt(total["m2"] / (count - 1).clamp_min(1)), torch.nan)
    if "m3" in total:
        # Adjusted Fisher-Pearson skewness, as pandas' (Joanes, Gill 1998, G1). Equal values have none: avoid 0 / 0.
        differ, several = total["m2"] > 0, (count > 2) & total["mean"].isfinite()
        m2 = torch.where(differ, total["m2"], 1)
        skew = count * (count - 1).clamp_min(0).sqrt() / (count - 2).clamp_min(1) * (total["m3"] / m2) / m2.sqrt()
        made["skew"] = torch.where(several, torch.where(differ, skew, 0), torch.nan)
    return made | {f"hist{n[3:]}": v / count.clamp_min(1) for n, v in total.items() if n.startswith("bin")}
