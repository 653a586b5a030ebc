"""Numeric statistics of a column by cell and key, arrays ``[cells, K]``.

Counts, sums, moments, extremes, shares of bins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fastrec.features._engine.keyed import extreme_by_cell, merge_kept, merge_moments, spread, sum_by_cell
from fastrec.features.base import Cells

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
"""The arrays that each statistic is made from."""

_EMPTY = {"min": torch.inf, "max": -torch.inf}  # 0 for the others


def collect_moments(
    values: torch.Tensor,
    known: torch.Tensor,
    codes: torch.Tensor,
    cells: Cells | None,
    size: int,
    parts: Collection[str],
    bins: Sequence[float] = (),
) -> Arrays:
    """Collect one partition's arrays ``[cells, size - 1]``.

    Args:
        values: float64 ``[n]``.
        known: bool ``[n]``, False = the value is missing and does not count.
        codes: int64 ``[n]``, the key of each row, 0 = missing.
        cells: each row's cell; None: one for all.
        size: number of codes, the one for missing included.
        parts: which arrays are wanted.
        bins: the edges of the bins.
    """
    result: Arrays = {}
    filled = torch.where(known, values, 0)
    if "count" in parts:
        result["count"] = sum_by_cell(known.double(), codes, cells, size)
    if "sum" in parts:
        result["sum"] = sum_by_cell(filled, codes, cells, size)
    if "mean" in parts:
        result |= _central(filled, known, codes, cells, size, result["count"], parts)
    for part in ("min", "max"):
        if part in parts:
            edge = torch.where(known, values, _EMPTY[part])
            result[part] = extreme_by_cell(edge, codes, cells, size, largest=part == "max")
    if "bins" in parts:
        # A bin holds its lower edge, the last one both; -1 = none.
        edges = torch.tensor(list(bins), dtype=torch.float64, device=values.device)
        place = torch.bucketize(values, edges, right=True) - 1
        place = torch.where(values == edges[-1], len(edges) - 2, place)
        inside = torch.where(known & (place < len(edges) - 1), place, -1)
        for i in range(len(bins) - 1):
            result[f"bin{i}"] = sum_by_cell((inside == i).double(), codes, cells, size)
    return {n: v[:, 1:] for n, v in result.items()}


def _central(
    filled: torch.Tensor,
    known: torch.Tensor,
    codes: torch.Tensor,
    cells: Cells | None,
    size: int,
    count: torch.Tensor,
    parts: Collection[str],
) -> Arrays:
    some, row = count.clamp_min(1), 0 if cells is None else cells.codes
    mean = sum_by_cell(filled, codes, cells, size) / some
    own = mean[row, codes]
    # A second pass takes back what rounding of a long sum has lost; an infinite mean needs none.
    rest = torch.where(known & own.isfinite(), filled - own, 0)
    mean = mean + sum_by_cell(rest, codes, cells, size) / some
    result = {"mean": mean}
    if "m2" in parts:
        rest = torch.where(known, filled - mean[row, codes], 0)
        result["m2"] = m2 = sum_by_cell(rest**2, codes, cells, size)
        if "m3" in parts:
            # The mean is rounded, which a cube shows: what is left of the deviations' sum is taken out.
            left = sum_by_cell(rest, codes, cells, size) / some
            result["m3"] = sum_by_cell(rest**3, codes, cells, size) - 3 * left * m2 + 2 * count * left**3
    return result


def merge_arrays(
    a: Arrays, b: Arrays, left: torch.Tensor | None = None, right: torch.Tensor | None = None, size: int = 0
) -> Arrays:
    """Merge two partitions' arrays.

    Args:
        a, b: their arrays.
        left, right: where their keys stand among ``size`` keys of both; None: they have the same keys and cells.
        size: how many keys there are together.
    """
    if left is not None:
        cells = max(len(x) for part in (a, b) for x in part.values())
        a = {n: spread(v, left, size, cells, _EMPTY.get(n, 0)) for n, v in a.items()}
        b = {n: spread(v, right, size, cells, _EMPTY.get(n, 0)) for n, v in b.items()}
    result = {n: a[n] + b[n] for n in a if n not in ("mean", "m2", "m3", "min", "max")}
    if "mean" in a:
        nothing = torch.zeros_like(a["mean"])
        first, second = ((x["count"], x["mean"], x.get("m2", nothing)) for x in (a, b))
        _, result["mean"], m2 = merge_moments(first, second)
        if "m2" in a:
            result["m2"] = m2
        if "m3" in a:
            result["m3"] = _third(a, b)
    for name, pick in (("min", torch.minimum), ("max", torch.maximum)):
        if name in a:
            result[name] = pick(a[name], b[name])
    return result


def _third(a: Arrays, b: Arrays) -> torch.Tensor:
    """Sum the cubed deviations of both (Pébay 2008, SAND2008-6212, eq. 1.2 for p = 3)."""
    count = (a["count"] + b["count"]).clamp_min(1)
    delta = b["mean"] - a["mean"]
    share, other = b["count"] / count, a["count"] / count
    own = delta**3 * a["count"] * share * (other - share) + 3 * delta * (other * b["m2"] - share * a["m2"])
    both = (a["count"] > 0) & (b["count"] > 0)
    return a["m3"] + b["m3"] + torch.where(both, own, 0)


def over_cells(arrays: Arrays, keep: torch.Tensor | None) -> Arrays:
    """Merge the cells where ``keep`` (bool ``[cells]``) is True; None: all. ``[K]`` each."""
    return merge_kept(arrays, keep, _EMPTY, merge_arrays)


def statistics(total: Arrays) -> Arrays:
    """Compute statistics ``[K + 1]`` from ``over_cells``: entry 0 is a key that is missing or has no rows."""
    total = {n: torch.cat([v.new_full((1,), _EMPTY.get(n, 0)), v]) for n, v in total.items()}
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
        made["skew"] = _skew(total)
    bins = [n for n in total if n.startswith("bin")]
    return made | {f"hist{n[3:]}": total[n] / count.clamp_min(1) for n in bins}


def _skew(total: Arrays) -> torch.Tensor:
    """Return the adjusted Fisher-Pearson skewness, as pandas does (Joanes, Gill 1998, G1)."""
    count, mean, m2 = total["count"], total["mean"], total["m2"]
    differ = m2 > 0
    # Equal values have no skewness: avoid 0 / 0.
    m2 = torch.where(differ, m2, 1)
    made = count * torch.sqrt((count - 1).clamp_min(0)) / (count - 2).clamp_min(1) * (total["m3"] / m2) / torch.sqrt(m2)
    return torch.where((count > 2) & mean.isfinite(), torch.where(differ, made, 0), torch.nan)
