"""Sums, means and extremes of the rows with one code: what every encoding is made of."""

from __future__ import annotations

import torch


def segment_count(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Count rows by code: int64 ``[size]``."""
    return torch.bincount(codes, minlength=size)


def segment_sum(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Sum ``values`` (``[n]``) by code: ``[size]``, float64 of floats, int64 of integers; 0 for an empty segment."""
    if (
        values.is_floating_point() and not values.is_cuda and len(values)
    ):  # bincount forgets the weights' type without rows
        return torch.bincount(codes, weights=values.double(), minlength=size)
    wide = values.double() if values.is_floating_point() else values.long()
    return torch.zeros(size, dtype=wide.dtype, device=values.device).index_add_(0, codes, wide)


def segment_mean(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Average ``values`` (``[n]``) by code: float64 ``[size]``; NaN for an empty segment."""
    return segment_sum(values.double(), codes, size) / segment_count(codes, size)


def segment_min(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Take the smallest value by code: ``[size]``; +inf (floats) or the largest integer for an empty segment."""
    return _reduce(values, codes, size, "amin")


def segment_max(values: torch.Tensor, codes: torch.Tensor, size: int) -> torch.Tensor:
    """Take the largest value by code: ``[size]``; -inf (floats) or the smallest integer for an empty segment."""
    return _reduce(values, codes, size, "amax")


def _reduce(values: torch.Tensor, codes: torch.Tensor, size: int, how: str) -> torch.Tensor:
    if values.is_floating_point():
        start = torch.inf if how == "amin" else -torch.inf
    else:
        start = torch.iinfo(values.dtype).max if how == "amin" else torch.iinfo(values.dtype).min
    result = torch.full((size,), start, dtype=values.dtype, device=values.device)
    return result.scatter_reduce_(0, codes, values, how)
